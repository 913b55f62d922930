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
	COL_MESSAGES,
	NUM_COLS = COL_MESSAGES
};

void
tandem_spool_write(Oid subid, Oid relid, XLogRecPtr commit_lsn, int64 seq,
				   TransactionId xid, TimestampTz commit_time, StringInfo messages)
{
	Relation	rel = table_open(tandem_own_relation("spool"), RowExclusiveLock);
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];
	HeapTuple	tuple;
	Snapshot	snapshot;

	memset(n, 0, sizeof(n));
	v[COL_SUBID] = ObjectIdGetDatum(subid);
	v[COL_RELID] = ObjectIdGetDatum(relid);
	v[COL_COMMIT_LSN] = LSNGetDatum(commit_lsn);
	v[COL_SEQ] = Int64GetDatum(seq);
	v[COL_XID] = TransactionIdGetDatum(xid);
	v[COL_COMMIT_TIME] = TimestampTzGetDatum(commit_time);
	v[COL_BYTES] = Int32GetDatum(messages->len);
	v[COL_MESSAGES] = PointerGetDatum(cstring_to_text_with_len(messages->data, messages->len));
	tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);

	/* who writes what may be toasted has to have one */
	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	CatalogTupleInsert(rel, tuple);
	UnregisterSnapshot(snapshot);
	heap_freetuple(tuple);
	pfree(DatumGetPointer(v[COL_MESSAGES]));
	table_close(rel, RowExclusiveLock);
}

/* A scan of a table's entries (all tables: InvalidOid), oldest first. */
static SysScanDesc
begin_scan(Relation rel, Relation *index, Snapshot snapshot, Oid subid, Oid relid, ScanKeyData *keys)
{
	*index = index_open(tandem_own_relation("spool_key"), AccessShareLock);
	ScanKeyInit(&keys[0], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
	ScanKeyInit(&keys[1], COL_RELID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	return systable_beginscan_ordered(rel, *index, snapshot, OidIsValid(relid) ? 2 : 1, keys);
}

int64
tandem_spool_bytes(Oid subid, Oid relid, int64 limit)
{
	Relation	rel = table_open(tandem_own_relation("spool"), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Relation	index;
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, &index, snapshot, subid, relid, keys);
	HeapTuple	tuple;
	int64		bytes = 0;

	while (bytes <= limit &&
		   HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		bool		isnull;

		bytes += DatumGetInt32(heap_getattr(tuple, COL_BYTES, RelationGetDescr(rel), &isnull));
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return bytes;
}

void
tandem_spool_drop(Oid subid, Oid relid)
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
		CatalogTupleDelete(rel, &tuple->t_self);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
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

		replay_entry(VARDATA_ANY(messages), VARSIZE_ANY_EXHDR(messages), relid,
					 !tandem_snapshot_sees(wave, xid));
		replorigin_session_origin_timestamp = DatumGetTimestampTz(v[COL_COMMIT_TIME]);
		bytes += DatumGetInt32(v[COL_BYTES]);
		(*entries)++;
		CatalogTupleDelete(rel, &tuple->t_self);
		MemoryContextReset(entry_context);
	}
	tandem_apply_finish();
	MemoryContextDelete(entry_context);
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
	return at_end;
}
