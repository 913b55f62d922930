/*-------------------------------------------------------------------------
 *
 * spool.c
 *	  Changes of tables that are being copied, in tandem.spool.
 *
 * An entry holds messages of one remote transaction for one table, in stream
 * order, each with its length before it, and starts with what the publisher
 * said of the relation (RELATION): whoever replays it, the leader or an apply
 * worker started since, need not have seen an entry before it.  Entries of a
 * table are ordered by commit LSN, then by their number in the transaction; that
 * is the order of the stream.
 *
 * The apply worker writes them in the transaction that advances the
 * subscription's origin; they are deleted in the transaction that applies
 * them.  Hence a change is in the spool or in the table, after any crash, and
 * on any standby of ours.  They are not written to the logical log.
 *
 * Each entry says how many bytes have been written before its end, so that the
 * first and the last one tell how large the spool is, however many there are.
 * When it is larger than tandem.spool_limit the apply worker writes no more, but
 * a mark: an entry at position 0 (before all others) with the wave's number.  It
 * is in the transaction that would have written the changes, so it is there
 * exactly if some are missing; a table with it is never finished.  The leader,
 * or the copy worker that has the table, drops the spool and lets the table wait
 * for a later wave (drain.c).
 *
 * src/subscription/spool.c
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
#include "executor/executor.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "replication/logicalproto.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "common/settings.h"
#include "subscription/dispatch.h"
#include "subscription/waves.h"

enum
{
	COL_SUBID = 1,
	COL_RELID,
	COL_COMMIT_LSN,
	COL_SEQ,
	COL_XID,
	COL_COMMIT_TIME,
	COL_BYTES,
	COL_TOTAL,
	COL_MESSAGES,
	NUM_COLS = COL_MESSAGES
};

#define ENTRY_OVERHEAD 128		/* on disk: headers, other columns, index */

int64
tandem_spool_write(Oid subid, Oid relid, XLogRecPtr commit_lsn, int64 seq,
				   TransactionId xid, TimestampTz commit_time, StringInfo messages, int64 total)
{
	Relation	rel = table_open(tandem_own_relation("spool"), RowExclusiveLock);
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];
	HeapTuple	tuple;
	Snapshot	snapshot;

	total += messages->len + ENTRY_OVERHEAD;
	memset(n, 0, sizeof(n));
	v[COL_SUBID] = ObjectIdGetDatum(subid);
	v[COL_RELID] = ObjectIdGetDatum(relid);
	v[COL_COMMIT_LSN] = LSNGetDatum(commit_lsn);
	v[COL_SEQ] = Int64GetDatum(seq);
	v[COL_XID] = TransactionIdGetDatum(xid);
	v[COL_COMMIT_TIME] = TimestampTzGetDatum(commit_time);
	v[COL_BYTES] = Int32GetDatum(messages->len + ENTRY_OVERHEAD);
	v[COL_TOTAL] = Int64GetDatum(total);
	v[COL_MESSAGES] = PointerGetDatum(cstring_to_text_with_len(messages->data, messages->len));
	tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);

	/* who writes what may be toasted has to have one */
	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	CatalogTupleInsert(rel, tuple);
	UnregisterSnapshot(snapshot);
	heap_freetuple(tuple);
	pfree(DatumGetPointer(v[COL_MESSAGES]));
	table_close(rel, RowExclusiveLock);
	return total;
}

void
tandem_spool_give_up(Oid subid, Oid relid, int64 wave)
{
	StringInfoData none;

	initStringInfo(&none);
	(void) tandem_spool_write(subid, relid, InvalidXLogRecPtr, wave, InvalidTransactionId, 0, &none, 0);
	pfree(none.data);
}

char *
tandem_spool_given_up_error(void)
{
	return psprintf("its spool grew beyond tandem.spool_limit (%d MB)", tandem_spool_limit);
}

/* A scan of a table's entries (all tables: InvalidOid), oldest first; marks come before them. */
static SysScanDesc
begin_scan(Relation rel, Relation *index, Snapshot snapshot, Oid subid, Oid relid, ScanKeyData *keys)
{
	*index = index_open(tandem_own_relation("spool_key"), AccessShareLock);
	ScanKeyInit(&keys[0], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
	ScanKeyInit(&keys[1], COL_RELID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	return systable_beginscan_ordered(rel, *index, snapshot, OidIsValid(relid) ? 2 : 1, keys);
}

static int64
get_int64(HeapTuple tuple, Relation rel, int column)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, column, RelationGetDescr(rel), &isnull));
}

/* Is this entry a mark? */
static bool
is_mark(HeapTuple tuple, Relation rel)
{
	bool		isnull;

	return DatumGetLSN(heap_getattr(tuple, COL_COMMIT_LSN, RelationGetDescr(rel), &isnull)) == InvalidXLogRecPtr;
}

List *
tandem_spool_relids(Oid subid)
{
	Relation	rel = table_open(tandem_own_relation("spool"), AccessShareLock);
	Relation	index = index_open(tandem_own_relation("spool_key"), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Oid			last = InvalidOid;
	List	   *relids = NIL;
	bool		found;

	/* from one table's first entry to the next one's */
	do
	{
		ScanKeyData keys[2];
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&keys[0], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
		ScanKeyInit(&keys[1], COL_RELID, BTGreaterStrategyNumber, F_OIDGT, ObjectIdGetDatum(last));
		scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
		tuple = systable_getnext_ordered(scan, ForwardScanDirection);
		found = HeapTupleIsValid(tuple);
		if (found)
		{
			bool		isnull;

			last = DatumGetObjectId(heap_getattr(tuple, COL_RELID, RelationGetDescr(rel), &isnull));
			relids = lappend_oid(relids, last);
		}
		systable_endscan_ordered(scan);
	} while (found);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return relids;
}

void
tandem_spool_look(Oid subid, Oid relid, TandemSpool *spool)
{
	Relation	rel = table_open(tandem_own_relation("spool"), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	index;
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, &index, snapshot, subid, relid, keys);
	HeapTuple	tuple;
	bool		any = false;

	memset(spool, 0, sizeof(*spool));
	while (!any && HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		bool		isnull;

		if (is_mark(tuple, rel))
			spool->given_up = get_int64(tuple, rel, COL_SEQ);	/* that of the last wave */
		else
		{
			any = true;
			spool->total = get_int64(tuple, rel, COL_TOTAL);
			spool->before = spool->total -
				DatumGetInt32(heap_getattr(tuple, COL_BYTES, RelationGetDescr(rel), &isnull));
		}
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	if (any)
	{
		scan = begin_scan(rel, &index, snapshot, subid, relid, keys);
		tuple = systable_getnext_ordered(scan, BackwardScanDirection);
		if (HeapTupleIsValid(tuple))
			spool->total = get_int64(tuple, rel, COL_TOTAL);
		systable_endscan_ordered(scan);
		index_close(index, AccessShareLock);
	}
	spool->bytes = spool->total - spool->before;
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* Deletes a row that somebody else may be deleting at the same time. */
static void
delete_row(Relation rel, ItemPointer tid)
{
	TM_FailureData failure;
	TM_Result	result = heap_delete(rel, tid, GetCurrentCommandId(true), InvalidSnapshot, true,
									 &failure, false);

	if (result != TM_Ok && result != TM_Deleted)
		elog(ERROR, "could not delete from tandem.spool: result %d", (int) result);
}

/* Deletes a table's entries, or (InvalidOid) those of all tables; marks as well, or not. */
static void
delete_entries(Oid subid, Oid relid, bool marks)
{
	Relation	rel = table_open(tandem_own_relation("spool"), RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	index;
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, &index, snapshot, subid, relid, keys);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		CHECK_FOR_INTERRUPTS();
		if (marks || !is_mark(tuple, rel))
			delete_row(rel, &tuple->t_self);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

void
tandem_spool_drop(Oid subid, Oid relid)
{
	delete_entries(subid, relid, true);
}

void
tandem_spool_clear(Oid subid, Oid relid)
{
	delete_entries(subid, relid, false);
}

/*
 * The spool belongs to a local table.  Should the publisher have renamed its
 * table meanwhile, its changes now are for another one here.
 */
static void
check_relation(StringInfo message, Oid relid)
{
	StringInfoData copy = *message;
	LogicalRepRelation *remote;
	RangeVar   *name;

	(void) pq_getmsgbyte(&copy);
	remote = logicalrep_read_rel(&copy);
	name = makeRangeVar(remote->nspname, remote->relname, -1);
	if (RangeVarGetRelid(name, NoLock, true) != relid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher's table is now named \"%s.%s\"", remote->nspname, remote->relname),
				 errhint("Rename the table here as well.")));
}

/* Applies the messages of one entry; all, or only what describes the relation. */
static void
replay_entry(const char *data, int len, Oid relid, bool all)
{
	StringInfoData message;
	int			done = 0;

	while (done < len)
	{
		uint32		size;

		memcpy(&size, data + done, sizeof(size));
		done += sizeof(size);
		if (size == 0 || size > (uint32) (len - done))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("an entry of tandem.spool is damaged")));
		message.data = (char *) data + done;
		message.len = message.maxlen = size;
		message.cursor = 0;
		if (message.data[0] == LOGICAL_REP_MSG_RELATION)
			check_relation(&message, relid);
		if (all || message.data[0] == LOGICAL_REP_MSG_RELATION)
			tandem_apply_message(&message);
		done += size;
	}
}

bool
tandem_spool_replay(Oid subid, Oid relid, const TandemWaveSnapshot *wave, int64 max_bytes,
					int64 *entries)
{
	Relation	rel = table_open(tandem_own_relation("spool"), RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	index;
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, &index, snapshot, subid, relid, keys);
	HeapTuple	tuple;
	int64		bytes = 0;
	bool		at_end = true;
	MemoryContext entry_context = AllocSetContextCreate(CurrentMemoryContext, "spool entry",
														ALLOCSET_DEFAULT_SIZES);

	*entries = 0;
	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		MemoryContext old;
		Datum		v[NUM_COLS + 1];
		bool		n[NUM_COLS + 1];
		text	   *messages;
		uint64		xid;

		CHECK_FOR_INTERRUPTS();
		if (is_mark(tuple, rel))
		{
			/* of an earlier wave */
			delete_row(rel, &tuple->t_self);
			continue;
		}
		if (bytes >= max_bytes)
		{
			at_end = false;
			break;
		}
		old = MemoryContextSwitchTo(entry_context);
		heap_deform_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1);
		xid = tandem_widen_xid(DatumGetTransactionId(v[COL_XID]), wave->xmax);
		messages = DatumGetTextPP(v[COL_MESSAGES]);
		MemoryContextSwitchTo(old);

		tandem_apply_begin_transaction(DatumGetTransactionId(v[COL_XID]),
									   DatumGetLSN(v[COL_COMMIT_LSN]),
									   DatumGetTimestampTz(v[COL_COMMIT_TIME]));
		replay_entry(VARDATA_ANY(messages), VARSIZE_ANY_EXHDR(messages), relid,
					 !tandem_snapshot_sees(wave, xid));
		replorigin_session_origin_timestamp = DatumGetTimestampTz(v[COL_COMMIT_TIME]);
		bytes += DatumGetInt32(v[COL_BYTES]);
		(*entries)++;
		CatalogTupleDelete(rel, &tuple->t_self);
		MemoryContextReset(entry_context);
	}
	tandem_apply_finish();
	tandem_apply_begin_transaction(InvalidTransactionId, InvalidXLogRecPtr, 0);
	MemoryContextDelete(entry_context);
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
	return at_end;
}
