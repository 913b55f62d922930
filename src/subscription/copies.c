/*-------------------------------------------------------------------------
 *
 * copies.c
 *	  The state of each table's copy, in tandem.copies.
 *
 * tandem.copies, tandem.wave_snapshots and tandem.spool are relations that only
 * the library writes (common/own_relation.c).
 *
 * A row is written by the leader, by the copy worker that has the table, and
 * by the apply worker.  Two who change a row at the same time: the later one
 * gets an error ("tuple concurrently updated") and tries again from the start;
 * the copy lock makes that rare.
 *
 * src/subscription/copies.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "subscription/waves.h"

#define RETRY_MIN 5				/* s, doubled with each failure of the table */
#define RETRY_MAX 600

enum
{
	COL_SUBID = 1,
	COL_RELID,
	COL_STATE,
	COL_WAVE,
	COL_ORDINAL,
	COL_REMOTE_RELID,
	COL_RESYNC,
	COL_CONTENT,
	COL_STALE,
	COL_ATTEMPTS,
	COL_NEXT_RETRY,
	COL_STARTED,
	COL_FINISHED,
	COL_ROWS_DONE,
	COL_ROWS_ESTIMATED,
	COL_BYTES_DONE,
	COL_BYTES_ESTIMATED,
	COL_ERROR,
	COL_HINT,
	COL_REMOTE_NAME,
	COL_COLUMNS,
	COL_QUERY,
	COL_BINARY,
	NUM_COLS = COL_BINARY
};

static char *
text_or_null(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

static TandemCopy *
read_copy(HeapTuple tuple, TupleDesc desc)
{
	TandemCopy *copy = palloc0(sizeof(TandemCopy));
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];

	heap_deform_tuple(tuple, desc, v + 1, n + 1);
	copy->subid = DatumGetObjectId(v[COL_SUBID]);
	copy->relid = DatumGetObjectId(v[COL_RELID]);
	copy->state = DatumGetChar(v[COL_STATE]);
	copy->wave = DatumGetInt64(v[COL_WAVE]);
	copy->ordinal = DatumGetInt32(v[COL_ORDINAL]);
	copy->remote_relid = DatumGetObjectId(v[COL_REMOTE_RELID]);
	copy->resync = DatumGetBool(v[COL_RESYNC]);
	copy->content = DatumGetBool(v[COL_CONTENT]);
	copy->stale = DatumGetBool(v[COL_STALE]);
	copy->attempts = DatumGetInt32(v[COL_ATTEMPTS]);
	copy->next_retry = n[COL_NEXT_RETRY] ? 0 : DatumGetTimestampTz(v[COL_NEXT_RETRY]);
	copy->started = n[COL_STARTED] ? 0 : DatumGetTimestampTz(v[COL_STARTED]);
	copy->finished = n[COL_FINISHED] ? 0 : DatumGetTimestampTz(v[COL_FINISHED]);
	copy->rows_done = DatumGetInt64(v[COL_ROWS_DONE]);
	copy->rows_estimated = DatumGetInt64(v[COL_ROWS_ESTIMATED]);
	copy->bytes_done = DatumGetInt64(v[COL_BYTES_DONE]);
	copy->bytes_estimated = DatumGetInt64(v[COL_BYTES_ESTIMATED]);
	copy->error = text_or_null(v[COL_ERROR], n[COL_ERROR]);
	copy->hint = text_or_null(v[COL_HINT], n[COL_HINT]);
	copy->remote_name = text_or_null(v[COL_REMOTE_NAME], n[COL_REMOTE_NAME]);
	copy->columns = text_or_null(v[COL_COLUMNS], n[COL_COLUMNS]);
	copy->query = text_or_null(v[COL_QUERY], n[COL_QUERY]);
	copy->binary = DatumGetBool(v[COL_BINARY]);
	return copy;
}

static void
set_text(Datum *v, bool *n, int col, const char *text)
{
	n[col] = text == NULL;
	v[col] = text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

static void
set_time(Datum *v, bool *n, int col, TimestampTz time)
{
	n[col] = time == 0;
	v[col] = TimestampTzGetDatum(time);
}

static HeapTuple
form_copy(const TandemCopy *copy, TupleDesc desc)
{
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];

	memset(n, 0, sizeof(n));
	v[COL_SUBID] = ObjectIdGetDatum(copy->subid);
	v[COL_RELID] = ObjectIdGetDatum(copy->relid);
	v[COL_STATE] = CharGetDatum(copy->state);
	v[COL_WAVE] = Int64GetDatum(copy->wave);
	v[COL_ORDINAL] = Int32GetDatum(copy->ordinal);
	v[COL_REMOTE_RELID] = ObjectIdGetDatum(copy->remote_relid);
	v[COL_RESYNC] = BoolGetDatum(copy->resync);
	v[COL_CONTENT] = BoolGetDatum(copy->content);
	v[COL_STALE] = BoolGetDatum(copy->stale);
	v[COL_ATTEMPTS] = Int32GetDatum(copy->attempts);
	set_time(v, n, COL_NEXT_RETRY, copy->next_retry);
	set_time(v, n, COL_STARTED, copy->started);
	set_time(v, n, COL_FINISHED, copy->finished);
	v[COL_ROWS_DONE] = Int64GetDatum(copy->rows_done);
	v[COL_ROWS_ESTIMATED] = Int64GetDatum(copy->rows_estimated);
	v[COL_BYTES_DONE] = Int64GetDatum(copy->bytes_done);
	v[COL_BYTES_ESTIMATED] = Int64GetDatum(copy->bytes_estimated);
	set_text(v, n, COL_ERROR, copy->error);
	set_text(v, n, COL_HINT, copy->hint);
	set_text(v, n, COL_REMOTE_NAME, copy->remote_name);
	set_text(v, n, COL_COLUMNS, copy->columns);
	set_text(v, n, COL_QUERY, copy->query);
	v[COL_BINARY] = BoolGetDatum(copy->binary);
	return heap_form_tuple(desc, v + 1, n + 1);
}

/* Begins a scan of one table's row, or of all (relid invalid), as of now. */
static SysScanDesc
begin_scan(Relation rel, Oid subid, Oid relid, ScanKeyData *keys)
{
	ScanKeyInit(&keys[0], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
	ScanKeyInit(&keys[1], COL_RELID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	/* a snapshot of the catalog cache may be older than a row just committed */
	InvalidateCatalogSnapshot();
	return systable_beginscan(rel, tandem_own_relation("copies_key"), true, NULL,
							  OidIsValid(relid) ? 2 : 1, keys);
}

List *
tandem_copies_list(Oid subid, int64 wave)
{
	Relation	rel = table_open(tandem_own_relation("copies"), AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, InvalidOid, keys);
	List	   *copies = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TandemCopy *copy = read_copy(tuple, RelationGetDescr(rel));

		if (wave == 0 || copy->wave == wave)
			copies = lappend(copies, copy);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return copies;
}

TandemCopy *
tandem_copies_get(Oid subid, Oid relid)
{
	Relation	rel = table_open(tandem_own_relation("copies"), AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, relid, keys);
	HeapTuple	tuple = systable_getnext(scan);
	TandemCopy *copy = NULL;

	if (HeapTupleIsValid(tuple))
		copy = read_copy(tuple, RelationGetDescr(rel));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return copy;
}

void
tandem_copies_put(List *copies)
{
	Relation	rel = table_open(tandem_own_relation("copies"), RowExclusiveLock);
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	ListCell   *lc;

	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);
		HeapTuple	tuple = form_copy(copy, RelationGetDescr(rel));
		ScanKeyData keys[2];
		SysScanDesc scan = begin_scan(rel, copy->subid, copy->relid, keys);
		HeapTuple	old = systable_getnext(scan);

		if (HeapTupleIsValid(old))
			CatalogTupleUpdateWithInfo(rel, &old->t_self, tuple, indexes);
		else
			CatalogTupleInsertWithInfo(rel, tuple, indexes);
		systable_endscan(scan);
		heap_freetuple(tuple);
	}
	CatalogCloseIndexes(indexes);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

void
tandem_copies_put_one(TandemCopy *copy)
{
	tandem_copies_put(list_make1(copy));
}

/* Removes a table's row, or (InvalidOid) all of a subscription. */
void
tandem_copies_delete(Oid subid, Oid relid)
{
	Relation	rel = table_open(tandem_own_relation("copies"), RowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, relid, keys);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		CatalogTupleDelete(rel, &tuple->t_self);
	systable_endscan(scan);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

bool
tandem_copy_unfinished(const TandemCopy *copy)
{
	return copy->state != TANDEM_COPY_READY && (copy->content || copy->stale);
}

void
tandem_copy_failed(TandemCopy *copy, const char *error)
{
	int64		wait = RETRY_MIN;

	for (int i = 0; i < copy->attempts && wait < RETRY_MAX; i++)
		wait *= 2;
	copy->state = TANDEM_COPY_WAITING;
	copy->attempts++;
	copy->error = tandem_one_line(pstrdup(error));
	copy->next_retry = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   Min(wait, RETRY_MAX) * 1000);
	tandem_spool_drop(copy->subid, copy->relid);
	tandem_copies_put_one(copy);
}

bool
tandem_copy_lock(Oid subid, Oid relid, bool dontWait)
{
	LOCKTAG		tag;

	/*
	 * The class is a relation of ours, so nobody else has this tag.  Two
	 * subscriptions that copy one table wait for each other, which does no
	 * harm.
	 */
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, tandem_own_relation("copies"), relid, 0);
	return LockAcquire(&tag, AccessExclusiveLock, false, dontWait) != LOCKACQUIRE_NOT_AVAIL;
}
