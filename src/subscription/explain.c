/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  A unique violation is found out after it has happened.
 *
 * With outcome "error", as the server does, nothing is looked for before a row
 * is written: inserts stay as fast as they are.  When the server then finds a
 * violation, the transaction is lost, and with it the place to look from.  So the
 * row is kept in memory, and after the rollback a transaction of its own looks
 * for what stands in its way, and records the conflict with both rows.
 *
 * What it finds may be gone by then, or have been this transaction's own; then the
 * conflict is recorded without it.
 *
 * Called by apply.c, and by those who replay a spool.
 *
 * src/subscription/explain.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "subscription/resolve.h"

TandemWriting tandem_writing;

/* What was being written. */
static Oid	relid = InvalidOid;
static HeapTuple tuple = NULL;
static ItemPointerData own;
static char operation;

void
tandem_explain_remember(const ErrorData *error)
{
	TandemTarget *target = tandem_writing.target;
	TupleTableSlot *slot = tandem_writing.slot;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	tandem_writing.slot = NULL;
	if (slot == NULL || TTS_EMPTY(slot) || error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION)
	{
		MemoryContextSwitchTo(old);
		return;
	}
	PG_TRY();
	{
		slot_getallattrs(slot);
		tuple = heap_form_tuple(slot->tts_tupleDescriptor, slot->tts_values, slot->tts_isnull);
		operation = tandem_writing.operation;
		ItemPointerSetInvalid(&own);
		if (operation == 'U')
			own = target->found->tts_tid;
		relid = RelationGetRelid(target->rel);
	}
	PG_CATCH();
	{
		FlushErrorState();
		relid = InvalidOid;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
}

/* In a transaction: looks into all unique indexes, and hands what it finds over. */
static void
look_and_record(Relation rel)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *relinfo = makeNode(ResultRelInfo);
	TupleTableSlot *row = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
	TupleTableSlot *found = table_slot_create(rel, NULL);
	TupleTableSlot *first = table_slot_create(rel, NULL);
	TandemConflict conflict;
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	int			n = 0;

	InitResultRelInfo(relinfo, rel, 1, NULL, 0);
	ExecOpenIndices(relinfo, false);
	ExecStoreHeapTuple(tuple, row, false);
	row->tts_tableOid = relid;
	MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));
	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		if (!tandem_unique_covered(relinfo->ri_IndexRelationDescs[i], relinfo->ri_IndexRelationInfo[i]) ||
			!tandem_unique_find(relinfo, estate, i, row, ItemPointerIsValid(&own) ? &own : NULL, false, found))
			continue;
		if (n++ == 0)
			ExecCopySlot(first, found);
		if (n == 1)
			first->tts_tid = found->tts_tid;
	}

	memset(&conflict, 0, sizeof(conflict));
	conflict.type = n > 1 ? TANDEM_MULTIPLE_UNIQUE_CONFLICTS :
		operation == 'U' ? TANDEM_UPDATE_EXISTS : TANDEM_INSERT_EXISTS;
	conflict.configured = TANDEM_OUTCOME_ERROR;
	conflict.resolution = "error";
	conflict.detection = "certain";
	conflict.rel = rel;
	conflict.operation = operation;
	conflict.remote_row = row;
	if (n > 0)
	{
		(void) tandem_local_party(first, &conflict.local);
		conflict.local_row = conflict.result_row = first;
	}
	else
		conflict.reason = "the row that was in the way has not been found afterwards";
	tandem_conflict_record_failed(&conflict);

	MemoryContextSwitchTo(old);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(found);
	ExecDropSingleTupleTableSlot(first);
	ExecCloseIndices(relinfo);
	FreeExecutorState(estate);
}

void
tandem_explain(void)
{
	MemoryContext old = CurrentMemoryContext;

	if (OidIsValid(relid))
	{
		PG_TRY();
		{
			Relation	rel;

			StartTransactionCommand();
			PushActiveSnapshot(GetTransactionSnapshot());
			rel = try_table_open(relid, AccessShareLock);
			if (rel && rel->rd_rel->relkind == RELKIND_RELATION &&
				HeapTupleHeaderGetNatts(tuple->t_data) == RelationGetNumberOfAttributes(rel))
				look_and_record(rel);
			if (rel)
				table_close(rel, NoLock);
			PopActiveSnapshot();
			CommitTransactionCommand();
		}
		PG_CATCH();
		{
			/* it is about an error that has been reported */
			EmitErrorReport();
			FlushErrorState();
			AbortOutOfAnyTransaction();
		}
		PG_END_TRY();
		relid = InvalidOid;
		heap_freetuple(tuple);
		tuple = NULL;
	}
	MemoryContextSwitchTo(old);
	tandem_conflict_write_failed();
}
