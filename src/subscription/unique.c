/*-------------------------------------------------------------------------
 *
 * unique.c
 *	  Rows that stand in the way of one that comes, by unique indexes; and
 *	  inserting a row unless there is one.
 *
 * The server stops at the first violation it meets.  Where conflicts are to be
 * resolved, all unique indexes are looked into before the row is written: with a
 * fresh MVCC snapshot, which misses nothing that has committed, and then with a
 * dirty one, which sees what others are just writing; we wait for those and
 * look again.  What is found is locked.
 *
 * Somebody may still insert a value between the look and our insertion.  So the
 * row is inserted speculatively, as INSERT ... ON CONFLICT does: the index itself
 * says, under its page lock, whether another row may have the value; then ours
 * is taken back and the look begins anew.
 *
 * Not covered are deferrable constraints, which may hold only later, and
 * exclusion constraints; their violations are errors, as ever.
 *
 * Called by resolve.c and explain.c.
 *
 * src/subscription/unique.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "subscription/resolve.h"

bool
tandem_unique_covered(Relation index, const IndexInfo *info)
{
	return info->ii_Unique && info->ii_ExclusionOps == NULL && info->ii_ReadyForInserts &&
		index->rd_index->indimmediate && index->rd_rel->relam == BTREE_AM_OID;
}

/* Fills the keys to look for; false = no other row can have the same. */
static bool
make_keys(ResultRelInfo *relinfo, EState *estate, int n, TupleTableSlot *row, ScanKeyData *keys)
{
	Relation	index = relinfo->ri_IndexRelationDescs[n];
	IndexInfo  *info = relinfo->ri_IndexRelationInfo[n];
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	GetPerTupleExprContext(estate)->ecxt_scantuple = row;
	if (info->ii_Predicate != NIL)
	{
		if (info->ii_PredicateState == NULL)
			info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, estate);
		if (!ExecQual(info->ii_PredicateState, GetPerTupleExprContext(estate)))
			return false;
	}
	FormIndexDatum(info, row, estate, values, isnull);
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		Oid			operator;

		if (isnull[i])
		{
			if (!info->ii_NullsNotDistinct)
				return false;
			ScanKeyEntryInitialize(&keys[i], SK_ISNULL | SK_SEARCHNULL, i + 1, InvalidStrategy,
								   InvalidOid, index->rd_indcollation[i], InvalidOid, (Datum) 0);
			continue;
		}
		operator = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
									   index->rd_opcintype[i], BTEqualStrategyNumber);
		if (!OidIsValid(operator))
			elog(ERROR, "missing operator %d(%u,%u) in opfamily %u", BTEqualStrategyNumber,
				 index->rd_opcintype[i], index->rd_opcintype[i], index->rd_opfamily[i]);
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator), values[i]);
	}
	return true;
}

/* One look; own: a row that doesn't count, or NULL. */
static bool
look(ResultRelInfo *relinfo, int n, ScanKeyData *keys, Snapshot snapshot, ItemPointer own,
	 TupleTableSlot *found)
{
	Relation	index = relinfo->ri_IndexRelationDescs[n];
	int			nkeys = IndexRelationGetNumberOfKeyAttributes(index);
	IndexScanDesc scan = TANDEM_INDEX_BEGINSCAN(relinfo->ri_RelationDesc, index, snapshot, nkeys);
	bool		any = false;

	index_rescan(scan, keys, nkeys, NULL, 0);
	while (!any && index_getnext_slot(scan, ForwardScanDirection, found))
		any = own == NULL || !ItemPointerEquals(&found->tts_tid, own);
	index_endscan(scan);
	if (!any)
		ExecClearTuple(found);
	return any;
}

/* Waits for the transaction that a dirty snapshot has met, if it has. */
static void
wait_for_writer(Relation rel, const SnapshotData *dirty, TupleTableSlot *found)
{
	if (TransactionIdIsValid(dirty->xmin) && dirty->speculativeToken != 0)
		SpeculativeInsertionWait(dirty->xmin, dirty->speculativeToken);
	else if (TransactionIdIsValid(dirty->xmin))
		XactLockTableWait(dirty->xmin, rel, &found->tts_tid, XLTW_InsertIndex);
	else if (TransactionIdIsValid(dirty->xmax))
		XactLockTableWait(dirty->xmax, rel, &found->tts_tid, XLTW_InsertIndex);
}

bool
tandem_unique_find(ResultRelInfo *relinfo, EState *estate, int n, TupleTableSlot *row,
				   ItemPointer own, bool lock, TupleTableSlot *found)
{
	Relation	rel = relinfo->ri_RelationDesc;
	ScanKeyData keys[INDEX_MAX_KEYS];

	if (!make_keys(relinfo, estate, n, row, keys))
		return false;
	for (;;)
	{
		SnapshotData dirty;
		TM_Result	result = TM_Ok;
		bool		any;

		CHECK_FOR_INTERRUPTS();
		PushActiveSnapshot(GetLatestSnapshot());
		any = look(relinfo, n, keys, GetActiveSnapshot(), own, found);
		if (any && lock)
		{
			TM_FailureData failure;
			ItemPointerData tid = found->tts_tid;

			result = table_tuple_lock(rel, &tid, GetActiveSnapshot(), found,
									  GetCurrentCommandId(false), LockTupleExclusive,
									  LockWaitBlock, 0 /* not its later versions */ , &failure);
		}
		PopActiveSnapshot();
		if (any && result == TM_Ok)
			return true;
		if (any)
		{
			if (result != TM_Updated && result != TM_Deleted)
				elog(ERROR, "unexpected table_tuple_lock status: %u", result);
			continue;			/* what is there now? */
		}
		if (!lock)
			return false;

		InitDirtySnapshot(dirty);
		if (!look(relinfo, n, keys, &dirty, own, found))
			return false;
		wait_for_writer(rel, &dirty, found);
	}
}

/*
 * Inserts a row whose BEFORE triggers have fired and that fulfils the table's
 * constraints, unless a unique index has the same.
 */
bool
tandem_unique_insert(TandemTarget *target, List *indexes, TupleTableSlot *row)
{
	TransactionId xid = GetCurrentTransactionId();
	uint32		token = SpeculativeInsertionLockAcquire(xid);
	bool		conflict = false;
	List	   *recheck;

	table_tuple_insert_speculative(target->rel, row, GetCurrentCommandId(true), 0, NULL, token);
	recheck = TANDEM_INSERT_INDEX_TUPLES_UNLESS(target->relinfo, row, target->estate, &conflict, indexes);
	table_tuple_complete_speculative(target->rel, row, token, !conflict);
	SpeculativeInsertionLockRelease(xid);
	if (!conflict)
		ExecARInsertTriggers(target->estate, target->relinfo, row, recheck, NULL);
	list_free(recheck);
	return !conflict;
}
