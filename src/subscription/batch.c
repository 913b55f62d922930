/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Inserts in memory, written together.
 *
 * Consecutive inserts into one table are taken until another message comes, or
 * they are as many as COPY writes at once.  Written together they cost one WAL
 * record and one lock of a page for many rows.  Only for tables where nobody
 * could see the difference: no row triggers that fire, no deferred constraints,
 * no volatile defaults (target.c decides).
 *
 *	 empty -----> filling (a snapshot is active) -----> empty
 *			add							flush, before anything else
 *
 * Memory: at most 1000 rows, 256 kB of messages, 256 kB of slots.
 *
 * src/subscription/batch.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "subscription/dispatch.h"
#include "subscription/late.h"
#include "subscription/resolve.h"

#define BATCH_BYTES (256 * 1024)	/* of messages */
#define KEPT_SLOTS 32			/* of a table that is not being filled */

static TandemTarget *current = NULL;
static int	nrows = 0;
static Size bytes = 0;
static MemoryContext values_context = NULL;

TandemTarget *
tandem_batch_target(void)
{
	return current;
}

/* A free slot for the next row. */
static TupleTableSlot *
next_slot(TandemTarget *target)
{
	if (target->batch == NULL)
		target->batch = MemoryContextAllocZero(target->context,
											   target->max_slots * sizeof(TupleTableSlot *));
	if (nrows == target->nslots)
	{
		MemoryContext old = MemoryContextSwitchTo(target->context);

		target->batch[target->nslots++] =
			MakeSingleTupleTableSlot(target->search->tts_tupleDescriptor, &TTSOpsVirtual);
		MemoryContextSwitchTo(old);
	}
	return target->batch[nrows];
}

void
tandem_batch_add(TandemTarget *target, LogicalRepTupleData *row, Size size)
{
	TupleTableSlot *slot;
	TupleConstr *constr = target->rel->rd_att->constr;
	MemoryContext old;

	if (values_context == NULL)
		values_context = AllocSetContextCreate(TopMemoryContext, "tandem batch",
											   ALLOCSET_DEFAULT_SIZES);
	if (current == NULL)
	{
		tandem_target_check(target, ACL_INSERT);
		PushActiveSnapshot(GetTransactionSnapshot());
		current = target;
	}
	Assert(current == target);

	slot = next_slot(target);
	old = MemoryContextSwitchTo(values_context);
	tandem_map_store(target->map, slot, row, NULL, 0);
	slot->tts_tableOid = RelationGetRelid(target->rel);
	if (target->ndefaults > 0)
	{
		tandem_target_fill_defaults(target, slot);
		/* the expressions' results are in memory that the next row reuses */
		ExecMaterializeSlot(slot);
	}
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(target->relinfo, target->estate, slot, CMD_INSERT);
	if (constr)
		ExecConstraints(target->relinfo, slot, target->estate);
	if (target->rel->rd_rel->relispartition)
		ExecPartitionCheck(target->relinfo, slot, target->estate, true);
	MemoryContextSwitchTo(old);
	ResetPerTupleExprContext(target->estate);

	nrows++;
	bytes += size;
	if (nrows == target->max_slots || bytes >= BATCH_BYTES)
		tandem_batch_flush();
}

void
tandem_batch_flush(void)
{
	TandemTarget *target = current;
	TandemApplyAt at = tandem_apply_at;
	MemoryContext old;

	if (target == NULL)
		return;

	/* an error is one of these rows', whatever message has come since */
	tandem_apply_at.action = LOGICAL_REP_MSG_INSERT;
	tandem_apply_at.nspname = target->map->remote->nspname;
	tandem_apply_at.relname = target->map->remote->relname;

	old = MemoryContextSwitchTo(values_context);
	if (nrows == 1)
		simple_table_tuple_insert(target->rel, target->batch[0]);
	else
		table_multi_insert(target->rel, target->batch, nrows, GetCurrentCommandId(true), 0, NULL);

	for (int i = 0; i < nrows; i++)
	{
		tandem_writing = (TandemWriting) {target, target->batch[i], 'I'};
		if (target->relinfo->ri_NumIndices > 0)
			list_free(TANDEM_INSERT_INDEX_TUPLES(target->relinfo, target->batch[i], target->estate));
		tandem_late_remember(target, target->batch[i]);
		ExecClearTuple(target->batch[i]);
	}
	tandem_writing.slot = NULL;
	MemoryContextSwitchTo(old);
	tandem_apply_at = at;

	while (target->nslots > KEPT_SLOTS && nrows < target->max_slots)
	{
		ExecDropSingleTupleTableSlot(target->batch[--target->nslots]);
		target->batch[target->nslots] = NULL;
	}
	MemoryContextReset(values_context);
	ResetPerTupleExprContext(target->estate);
	tandem_apply_counts.inserts += nrows;
	current = NULL;
	nrows = 0;
	bytes = 0;
	PopActiveSnapshot();
	CommandCounterIncrement();
	tandem_late_check_many();
}

void
tandem_batch_abort(void)
{
	current = NULL;
	nrows = 0;
	bytes = 0;
	if (values_context)
		MemoryContextReset(values_context);
}
