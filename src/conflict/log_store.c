/*-------------------------------------------------------------------------
 *
 * log_store.c
 *	  The conflict log's relations, and their bounds.
 *
 * tandem.conflict_log has the conflicts.  tandem.conflict_counts has sums: how
 * many conflicts there have been of each subscription, table, type and
 * resolution, and how many rows and bytes the log has.  Who writes conflicts
 * adds rows to it in the same transaction, and never changes one, so that
 * writers don't wait for each other; what counts is the sum of all rows.
 *
 * The log is bounded in age (tandem.conflict_retention) and in the bytes of its
 * rows (tandem.conflict_limit), before they are compressed.  The oldest go first,
 * STEP in a transaction, so that no lock is held for long; vacuum makes their room
 * usable again.  The same transaction puts the counts together.  One process does
 * it at a time, which a lock sees to.
 *
 * Both are relations that only the library writes (common/own_relation.c).
 *
 * Called by log.c, log_view.c and log_settle.c.
 *
 * src/conflict/log_store.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/own_relation.h"
#include "common/settings.h"
#include "conflict/log.h"

#define STEP 1000				/* rows removed in a transaction */
#define FEW_COUNTS 64			/* rows that aren't worth putting together */
#define OVERHEAD 100			/* bytes of a row in page and indexes */

/* One sum. */
typedef struct Count
{
	Oid			subid;
	Oid			relid;
	const char *type;
	const char *resolution;
	int64		conflicts;
	int64		stored;
	int64		bytes;
	TimestampTz since;
	TimestampTz last;
} Count;

/* Between tandem_log_store_open() and ..._close(); of the current transaction. */
static Relation log_rel;
static CatalogIndexState log_indexes;
static Oid	log_sequence;
static List *counts;
static MemoryContext counts_context;

/* ---- Counts -------------------------------------------------------------------------- */

static bool
same(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/* Adds to the list of sums, which is in the current memory context; returns it. */
static List *
add_count(List *sums, const Count *add)
{
	Count	   *sum = NULL;
	ListCell   *lc;

	foreach(lc, sums)
	{
		sum = lfirst(lc);
		if (sum->subid == add->subid && sum->relid == add->relid && same(sum->type, add->type) &&
			same(sum->resolution, add->resolution))
			break;
		sum = NULL;
	}
	if (sum == NULL)
	{
		sum = palloc(sizeof(Count));
		*sum = *add;
		sum->type = pstrdup(add->type);
		sum->resolution = pstrdup(add->resolution);
		return lappend(sums, sum);
	}
	sum->conflicts += add->conflicts;
	sum->stored += add->stored;
	sum->bytes += add->bytes;
	if (add->since != 0 && (sum->since == 0 || add->since < sum->since))
		sum->since = add->since;
	sum->last = Max(sum->last, add->last);
	return sums;
}

static void
insert_counts(List *sums)
{
	Relation	rel;
	ListCell   *lc;

	if (sums == NIL)
		return;
	rel = table_open(tandem_own_relation("conflict_counts"), RowExclusiveLock);
	foreach(lc, sums)
	{
		const Count *sum = lfirst(lc);
		Datum		v[COUNT_COLUMNS + 1];
		bool		n[COUNT_COLUMNS + 1] = {0};
		HeapTuple	tuple;

		v[COUNT_SUBID] = ObjectIdGetDatum(sum->subid);
		v[COUNT_RELID] = ObjectIdGetDatum(sum->relid);
		v[COUNT_TYPE] = CStringGetTextDatum(sum->type);
		v[COUNT_RESOLUTION] = CStringGetTextDatum(sum->resolution);
		v[COUNT_CONFLICTS] = Int64GetDatum(sum->conflicts);
		v[COUNT_STORED] = Int64GetDatum(sum->stored);
		v[COUNT_BYTES] = Int64GetDatum(sum->bytes);
		v[COUNT_SINCE] = TimestampTzGetDatum(sum->since);
		v[COUNT_LAST] = TimestampTzGetDatum(sum->last);
		tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);
		CatalogTupleInsert(rel, tuple);
		heap_freetuple(tuple);
	}
	table_close(rel, RowExclusiveLock);
}

static void
read_count(HeapTuple tuple, TupleDesc desc, Count *count)
{
	Datum		v[COUNT_COLUMNS + 1];
	bool		n[COUNT_COLUMNS + 1];

	heap_deform_tuple(tuple, desc, v + 1, n + 1);
	count->subid = DatumGetObjectId(v[COUNT_SUBID]);
	count->relid = DatumGetObjectId(v[COUNT_RELID]);
	count->type = TextDatumGetCString(v[COUNT_TYPE]);
	count->resolution = TextDatumGetCString(v[COUNT_RESOLUTION]);
	count->conflicts = DatumGetInt64(v[COUNT_CONFLICTS]);
	count->stored = DatumGetInt64(v[COUNT_STORED]);
	count->bytes = DatumGetInt64(v[COUNT_BYTES]);
	count->since = DatumGetTimestampTz(v[COUNT_SINCE]);
	count->last = DatumGetTimestampTz(v[COUNT_LAST]);
}

/* All sums; removes the rows that they are in, if asked. */
static List *
read_counts(Relation rel, Snapshot snapshot, bool remove, int *nrows)
{
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	List	   *sums = NIL;
	HeapTuple	tuple;

	*nrows = 0;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Count		count;

		read_count(tuple, RelationGetDescr(rel), &count);
		sums = add_count(sums, &count);
		(*nrows)++;
		if (remove)
			CatalogTupleDelete(rel, &tuple->t_self);
	}
	systable_endscan(scan);
	return sums;
}

static void
add_sizes(List *sums, int64 *stored, int64 *bytes)
{
	ListCell   *lc;

	*stored = *bytes = 0;
	foreach(lc, sums)
	{
		*stored += ((Count *) lfirst(lc))->stored;
		*bytes += ((Count *) lfirst(lc))->bytes;
	}
}

void
tandem_log_store_size(int64 *stored, int64 *bytes)
{
	Relation	rel = table_open(tandem_own_relation("conflict_counts"), AccessShareLock);
	int			nrows;

	add_sizes(read_counts(rel, GetActiveSnapshot(), false, &nrows), stored, bytes);
	table_close(rel, AccessShareLock);
}

List *
tandem_log_store_counts(void)
{
	Relation	rel = table_open(tandem_own_relation("conflict_counts"), AccessShareLock);
	List	   *sums;
	int			nrows;
	List	   *found = NIL;
	ListCell   *lc;

	sums = read_counts(rel, GetActiveSnapshot(), false, &nrows);
	table_close(rel, AccessShareLock);
	foreach(lc, sums)
	{
		const Count *sum = lfirst(lc);
		TandemLogCount *count;

		if (sum->conflicts == 0)
			continue;
		count = palloc(sizeof(TandemLogCount));
		count->subid = sum->subid;
		count->relid = sum->relid;
		count->type = sum->type;
		count->resolution = sum->resolution;
		count->conflicts = sum->conflicts;
		count->since = sum->since;
		count->last = sum->last;
		found = lappend(found, count);
	}
	return found;
}

/* ---- Writing ----------------------------------------------------------------------------- */

void
tandem_log_store_open(void)
{
	log_rel = table_open(tandem_own_relation("conflict_log"), RowExclusiveLock);
	log_indexes = CatalogOpenIndexes(log_rel);
	log_sequence = tandem_own_relation("conflict_id");
	counts = NIL;
	counts_context = AllocSetContextCreate(CurTransactionContext, "tandem conflict counts", ALLOCSET_SMALL_SIZES);
}

void
tandem_log_store_close(void)
{
	CatalogCloseIndexes(log_indexes);
	table_close(log_rel, RowExclusiveLock);
	insert_counts(counts);
	counts = NIL;
	MemoryContextDelete(counts_context);
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

static void
set_row(Datum *v, bool *n, int col, TandemLogTable *table, const TandemLogRow *row, int64 *bytes)
{
	Jsonb	   *json = tandem_log_row_json(table, row);

	n[col] = json == NULL;
	v[col] = PointerGetDatum(json);
	if (json)
		*bytes += VARSIZE(json);
}

int64
tandem_log_store_insert(const TandemLogEntry *entry)
{
	Datum		v[LOG_COLUMNS + 1];
	bool		n[LOG_COLUMNS + 1] = {0};
	int64		bytes = 0;
	NameData	subname;
	char	   *origin = NULL;
	HeapTuple	tuple;
	Count		count;
	MemoryContext old;
	int64		id;

	namestrcpy(&subname, entry->subname ? entry->subname : "");
	if (entry->origin != InvalidRepOriginId && entry->origin != DoNotReplicateId)
		(void) replorigin_by_oid(entry->origin, true, &origin);

	v[LOG_TIME] = TimestampTzGetDatum(entry->time);
	v[LOG_SUBID] = ObjectIdGetDatum(entry->subid);
	n[LOG_SUBSCRIPTION] = entry->subname == NULL;
	v[LOG_SUBSCRIPTION] = NameGetDatum(&subname);
	v[LOG_RELID] = ObjectIdGetDatum(entry->table->relid);
	v[LOG_SCHEMA] = NameGetDatum(&entry->table->schema);
	v[LOG_TABLE] = NameGetDatum(&entry->table->name);
	set_text(v, n, LOG_TYPE, tandem_conflict_name(entry->type));
	v[LOG_OPERATION] = CharGetDatum(entry->operation);
	set_text(v, n, LOG_CONFIGURED, tandem_outcome_name(entry->configured));
	set_text(v, n, LOG_RESOLUTION, entry->resolution);
	set_text(v, n, LOG_DETECTION, entry->detection);
	set_text(v, n, LOG_REASON, entry->reason);
	set_text(v, n, LOG_LOCAL_ORIGIN, tandem_log_origin_name(&entry->local));
	n[LOG_LOCAL_XID] = !TransactionIdIsValid(entry->local.xid);
	v[LOG_LOCAL_XID] = TransactionIdGetDatum(entry->local.xid);
	set_time(v, n, LOG_LOCAL_TIME, entry->local.time);
	set_text(v, n, LOG_REMOTE_ORIGIN, origin);
	set_text(v, n, LOG_REMOTE_NODE, entry->node[0] ? entry->node : NULL);
	n[LOG_REMOTE_XID] = !TransactionIdIsValid(entry->xid);
	v[LOG_REMOTE_XID] = TransactionIdGetDatum(entry->xid);
	set_time(v, n, LOG_REMOTE_TIME, entry->commit_time);
	n[LOG_REMOTE_LSN] = XLogRecPtrIsInvalid(entry->lsn);
	v[LOG_REMOTE_LSN] = LSNGetDatum(entry->lsn);
	set_row(v, n, LOG_KEY, entry->table, entry->key, &bytes);
	set_row(v, n, LOG_LOCAL_ROW, entry->table, entry->local_row, &bytes);
	set_row(v, n, LOG_REMOTE_ROW, entry->table, entry->remote_row, &bytes);
	set_row(v, n, LOG_RESULT_ROW, entry->table, entry->result_row, &bytes);
	v[LOG_ATTEMPTS] = Int32GetDatum(1);
	set_time(v, n, LOG_LAST_ATTEMPT, entry->time);
	n[LOG_SETTLED] = n[LOG_SETTLED_AT] = n[LOG_SETTLED_BY] = true;
	v[LOG_SETTLED] = v[LOG_SETTLED_AT] = v[LOG_SETTLED_BY] = (Datum) 0;

	/* the rest has about the same size in each row */
	bytes += 300 + OVERHEAD + (entry->reason ? strlen(entry->reason) : 0);
	v[LOG_BYTES] = Int32GetDatum((int32) bytes);
	id = nextval_internal(log_sequence, false);
	v[LOG_ID] = Int64GetDatum(id);
	tuple = heap_form_tuple(RelationGetDescr(log_rel), v + 1, n + 1);
	CatalogTupleInsertWithInfo(log_rel, tuple, log_indexes);
	heap_freetuple(tuple);

	memset(&count, 0, sizeof(count));
	count.subid = entry->subid;
	count.relid = entry->table->relid;
	count.type = tandem_conflict_name(entry->type);
	count.resolution = entry->resolution;
	count.conflicts = count.stored = 1;
	count.bytes = bytes;
	count.since = count.last = entry->time;
	old = MemoryContextSwitchTo(counts_context);
	counts = add_count(counts, &count);
	MemoryContextSwitchTo(old);
	return id;
}

/* ---- One entry ------------------------------------------------------------------------------ */

HeapTuple
tandem_log_store_get(Relation rel, int64 id)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, LOG_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	/* the catalog's snapshot may be older than a row just committed */
	InvalidateCatalogSnapshot();
	scan = systable_beginscan(rel, tandem_own_relation("conflict_log_id"), true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	return tuple;
}

/* Replaces columns of a row. */
static void
change(Relation rel, HeapTuple tuple, Datum *v, bool *n, bool *replace)
{
	HeapTuple	changed = heap_modify_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1, replace + 1);

	CatalogTupleUpdate(rel, &tuple->t_self, changed);
	heap_freetuple(changed);
}

bool
tandem_log_store_again(int64 id, const TandemLogEntry *entry)
{
	HeapTuple	tuple = tandem_log_store_get(log_rel, id);
	Datum		v[LOG_COLUMNS + 1] = {0};
	bool		n[LOG_COLUMNS + 1] = {0};
	bool		replace[LOG_COLUMNS + 1] = {0};
	bool		isnull;

	if (tuple == NULL)
		return false;
	v[LOG_ATTEMPTS] = Int32GetDatum(1 + DatumGetInt32(heap_getattr(tuple, LOG_ATTEMPTS,
																   RelationGetDescr(log_rel), &isnull)));
	v[LOG_LAST_ATTEMPT] = TimestampTzGetDatum(entry->time);
	replace[LOG_ATTEMPTS] = replace[LOG_LAST_ATTEMPT] = true;
	change(log_rel, tuple, v, n, replace);
	return true;
}

void
tandem_log_lock(int64 id)
{
	LOCKTAG		tag;

	/* the class is a relation of ours, so nobody else has this tag */
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, tandem_own_relation("conflict_log"), (uint32) id, 1);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
tandem_log_store_settle(int64 id, char state)
{
	Relation	rel = table_open(tandem_own_relation("conflict_log"), RowExclusiveLock);
	HeapTuple	tuple = tandem_log_store_get(rel, id);
	Datum		v[LOG_COLUMNS + 1] = {0};
	bool		n[LOG_COLUMNS + 1] = {0};
	bool		replace[LOG_COLUMNS + 1] = {0};
	NameData	by;

	if (HeapTupleIsValid(tuple))
	{
		namestrcpy(&by, GetUserNameFromId(GetUserId(), false));
		v[LOG_SETTLED] = CharGetDatum(state);
		v[LOG_SETTLED_AT] = TimestampTzGetDatum(GetCurrentTimestamp());
		v[LOG_SETTLED_BY] = NameGetDatum(&by);
		replace[LOG_SETTLED] = replace[LOG_SETTLED_AT] = replace[LOG_SETTLED_BY] = true;
		change(rel, tuple, v, n, replace);
	}
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

/* ---- Bounds ------------------------------------------------------------------------------------ */

/* Removes the oldest rows, up to STEP; returns how many, and subtracts their bytes. */
static int
remove_oldest(Relation rel, TimestampTz before, int64 limit, int64 *bytes)
{
	Relation	index = index_open(tandem_own_relation("conflict_log_time"), AccessShareLock);
	SysScanDesc scan = systable_beginscan_ordered(rel, index, NULL, 0, NULL);
	int			removed = 0;
	HeapTuple	tuple;

	while (removed < STEP &&
		   HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		bool		isnull;
		TimestampTz time = DatumGetTimestampTz(heap_getattr(tuple, LOG_TIME, RelationGetDescr(rel), &isnull));

		if (time >= before && *bytes <= limit)
			break;
		*bytes -= DatumGetInt32(heap_getattr(tuple, LOG_BYTES, RelationGetDescr(rel), &isnull));
		CatalogTupleDelete(rel, &tuple->t_self);
		removed++;
		CHECK_FOR_INTERRUPTS();
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	return removed;
}

/* Counts that nobody asks for any more only keep their sizes. */
static List *
forget_dropped(List *sums)
{
	List	   *kept = NIL;
	ListCell   *lc;

	foreach(lc, sums)
	{
		Count	   *sum = lfirst(lc);

		if (!OidIsValid(sum->subid) || !SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(sum->subid)))
		{
			sum->subid = sum->relid = InvalidOid;
			sum->type = sum->resolution = "";
			sum->conflicts = 0;
			sum->since = sum->last = 0;
		}
		kept = add_count(kept, sum);
	}
	return kept;
}

bool
tandem_log_store_clean(void)
{
	Oid			logid = tandem_own_relation_or_invalid("conflict_log");
	int64		limit = (int64) tandem_conflict_limit * 1024 * 1024;
	TimestampTz before;
	LOCKTAG		tag;
	Relation	rel;
	Relation	counts_rel;
	List	   *sums;
	int			nrows;
	int64		stored;
	int64		bytes;
	Count		gone = {.type = "",.resolution = ""};

	if (!OidIsValid(logid))
		return false;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, logid, 0, 2);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;

	PushActiveSnapshot(GetTransactionSnapshot());
	before = tandem_conflict_retention > 0 ?
		GetCurrentTimestamp() - tandem_conflict_retention * USECS_PER_SEC : DT_NOBEGIN;
	rel = table_open(logid, RowExclusiveLock);
	counts_rel = table_open(tandem_own_relation("conflict_counts"), RowExclusiveLock);
	sums = read_counts(counts_rel, NULL, false, &nrows);
	add_sizes(sums, &stored, &bytes);

	gone.bytes = bytes;
	gone.stored = -remove_oldest(rel, before, limit, &bytes);
	gone.bytes = bytes - gone.bytes;
	if (nrows > FEW_COUNTS && nrows > 2 * list_length(sums))
	{
		CommandCounterIncrement();
		sums = forget_dropped(read_counts(counts_rel, NULL, true, &nrows));
		if (gone.stored < 0)
			sums = add_count(sums, &gone);
		insert_counts(sums);
	}
	else if (gone.stored < 0)
		insert_counts(list_make1(&gone));
	table_close(counts_rel, RowExclusiveLock);
	table_close(rel, RowExclusiveLock);
	PopActiveSnapshot();
	return gone.stored == -STEP;
}
