/*-------------------------------------------------------------------------
 *
 * modify.c
 *	  Inserting, updating, deleting, truncating as the publisher did.
 *
 * One change is one command: it has a snapshot while it runs, its AFTER
 * triggers fire at its end, and the next change sees what it did.  Triggers,
 * constraints, generated columns and indexes are the business of the server's
 * own functions (execReplication.c, partition routing).
 *
 * Called by dispatch.c.
 *
 * src/subscription/modify.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/tupconvert.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/sequence.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "conflict/missing.h"
#include "subscription/dispatch.h"
#include "subscription/modify.h"
#include "subscription/waves.h"

/* ---- One change ------------------------------------------------------------------- */

static inline void
begin_change(TandemTarget *target)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	target->estate->es_output_cid = GetCurrentCommandId(true);
	AfterTriggerBeginQuery();
	MemoryContextSwitchTo(GetPerTupleMemoryContext(target->estate));
}

static inline void
end_change(TandemTarget *target, MemoryContext old)
{
	MemoryContextSwitchTo(old);
	AfterTriggerEndQuery(target->estate);
	ResetPerTupleExprContext(target->estate);
	PopActiveSnapshot();
	CommandCounterIncrement();
}

static void
insert_row(TandemTarget *target, TupleTableSlot *row)
{
	tandem_target_check(target, ACL_INSERT);
	ExecSimpleRelationInsert(target->relinfo, target->estate, row);
}

/* Updates the row in target->found to what is in target->changed. */
static void
update_row(TandemTarget *target)
{
	tandem_target_check(target, ACL_UPDATE);
	EvalPlanQualSetSlot(&target->epqstate, target->changed);
	ExecSimpleRelationUpdate(target->relinfo, target->estate, &target->epqstate,
							 target->found, target->changed);
	tandem_apply_counts.updates++;
}

/* Deletes the row in target->found. */
static void
delete_row(TandemTarget *target)
{
	tandem_target_check(target, ACL_DELETE);
	EvalPlanQualSetSlot(&target->epqstate, target->found);
	ExecSimpleRelationDelete(target->relinfo, target->estate, &target->epqstate, target->found);
}

/* Finds the row in target->search; if there is none, counts the change as skipped. */
static bool
find_row(TandemTarget *target, CmdType operation)
{
	tandem_target_check(target, ACL_SELECT);
	if (tandem_target_find(target))
		return true;
	tandem_conflict_missing(target->rel, operation, target->search);
	if (operation == CMD_UPDATE)
		tandem_apply_counts.update_missing++;
	else
		tandem_apply_counts.delete_missing++;
	return false;
}

/* ---- Partitions --------------------------------------------------------------------- */

/* Copies a row of a partitioned table into a slot of its partition. */
static void
to_partition(TandemTarget *root, TandemTarget *partition, TupleTableSlot *from, TupleTableSlot *to)
{
	TupleConversionMap *conversion = TANDEM_ROOT_TO_PARTITION(partition->relinfo, root->estate);

	if (conversion)
		execute_attr_map_slot(conversion->attrMap, from, to);
	else
		ExecCopySlot(to, from);
	slot_getallattrs(to);
}

/* The partition that a row of the root belongs to. */
static TandemTarget *
route_row(TandemTarget *root, TupleTableSlot *row)
{
	return tandem_target_partition(root, ExecFindPartition(root->mtstate, root->relinfo,
														   root->routing, row, root->estate));
}

static void
insert_into_partition(TandemTarget *root, TupleTableSlot *row)
{
	TandemTarget *partition = route_row(root, row);

	to_partition(root, partition, row, partition->changed);
	insert_row(partition, partition->changed);
}

/* Updates a row; it may move to another partition. */
static void
update_in_partition(TandemTarget *root, LogicalRepTupleData *row)
{
	TandemTarget *partition = route_row(root, root->search);
	TupleConversionMap *to_root;

	tandem_map_check_updatable(partition->map);
	to_partition(root, partition, root->search, partition->search);
	if (!find_row(partition, CMD_UPDATE))
		return;

	tandem_map_modify(partition->map, partition->changed, partition->found, row);
	if (ExecPartitionCheck(partition->relinfo, partition->changed, root->estate, false))
	{
		update_row(partition);
		return;
	}

	/* the new row isn't of the old one's memory, which the deletion may release */
	to_root = convert_tuples_by_name(RelationGetDescr(partition->rel), RelationGetDescr(root->rel));
	if (to_root)
		execute_attr_map_slot(to_root->attrMap, partition->changed, root->changed);
	else
		ExecCopySlot(root->changed, partition->changed);
	ExecMaterializeSlot(root->changed);

	delete_row(partition);
	insert_into_partition(root, root->changed);
	tandem_apply_counts.updates++;
}

static void
delete_in_partition(TandemTarget *root)
{
	TandemTarget *partition = route_row(root, root->search);

	tandem_map_check_updatable(partition->map);
	to_partition(root, partition, root->search, partition->search);
	if (find_row(partition, CMD_DELETE))
	{
		delete_row(partition);
		tandem_apply_counts.deletes++;
	}
}

/* ---- Changes ------------------------------------------------------------------------- */

void
tandem_modify_insert(TandemTarget *target, LogicalRepTupleData *row, Size size)
{
	MemoryContext old = CurrentMemoryContext;

	if (target->batchable)
	{
		tandem_batch_add(target, row, size);
		return;
	}

	begin_change(target);
	tandem_map_store(target->map, target->changed, row, NULL, 0);
	tandem_target_fill_defaults(target, target->changed);
	if (target->routing)
		insert_into_partition(target, target->changed);
	else
		insert_row(target, target->changed);
	end_change(target, old);
	tandem_apply_counts.inserts++;
}

/* Sets which columns the publisher sent: for triggers on columns, and a hint for indexes. */
static void
set_updated_columns(TandemTarget *target, LogicalRepTupleData *row)
{
	Bitmapset  *sent = target->sent;

	for (int i = 0; i < target->map->natts; i++)
	{
		int			remote = target->map->columns[i].remote;

		if (remote >= 0 && remote < row->ncols &&
			row->colstatus[remote] == LOGICALREP_COLUMN_UNCHANGED)
		{
			if (sent == target->sent)
				sent = bms_copy(sent);	/* in memory of this change */
			sent = bms_del_member(sent, i + 1 - FirstLowInvalidHeapAttributeNumber);
		}
	}
	TANDEM_UPDATED_COLUMNS(target->estate) = sent;
}

void
tandem_modify_update(TandemTarget *target, LogicalRepTupleData *old_row, LogicalRepTupleData *row)
{
	MemoryContext old = CurrentMemoryContext;
	int			nkeys = 0;
	const AttrNumber *keys = target->routing ? NULL : tandem_target_keys(target, &nkeys);

	if (target->routing == NULL)
		tandem_map_check_updatable(target->map);
	begin_change(target);
	set_updated_columns(target, row);
	tandem_map_store(target->map, target->search, old_row ? old_row : row, keys, nkeys);
	if (target->routing)
		update_in_partition(target, row);
	else if (find_row(target, CMD_UPDATE))
	{
		tandem_map_modify(target->map, target->changed, target->found, row);
		update_row(target);
	}
	TANDEM_UPDATED_COLUMNS(target->estate) = target->sent;
	ExecClearTuple(target->changed);
	end_change(target, old);
}

void
tandem_modify_delete(TandemTarget *target, LogicalRepTupleData *old_row)
{
	MemoryContext old = CurrentMemoryContext;
	int			nkeys = 0;
	const AttrNumber *keys = target->routing ? NULL : tandem_target_keys(target, &nkeys);

	if (target->routing == NULL)
		tandem_map_check_updatable(target->map);
	begin_change(target);
	tandem_map_store(target->map, target->search, old_row, keys, nkeys);
	if (target->routing)
		delete_in_partition(target);
	else if (find_row(target, CMD_DELETE))
	{
		delete_row(target);
		tandem_apply_counts.deletes++;
	}
	end_change(target, old);
}

/* ---- TRUNCATE -------------------------------------------------------------------------- */

/*
 * May these be truncated although tables outside refer to them, because those
 * are emptied elsewhere?
 */
static bool
referenced_elsewhere(List *relids, List *elsewhere)
{
	List	   *referencing;
	List	   *excused = NIL;
	ListCell   *lc;

	if (elsewhere == NIL)
		return false;
	referencing = list_difference_oid(heap_truncate_find_FKs(relids), relids);
	if (referencing == NIL)
		return false;
	foreach(lc, elsewhere)
	{
		LogicalRepRelation *remote = tandem_relation_find(lfirst_oid(lc))->remote;
		Oid			relid = RangeVarGetRelid(makeRangeVar(remote->nspname, remote->relname, -1),
											 NoLock, true);

		if (OidIsValid(relid))
			excused = list_concat_unique_oid(excused, find_all_inheritors(relid, NoLock, NULL));
	}
	return list_difference_oid(referencing, excused) == NIL;
}

/*
 * TRUNCATE refuses a table that another one refers to.  That one's rows go as
 * well, but not now; here no such row is checked (session_replication_role is
 * "replica").  So the tables get new files.  TRUNCATE's triggers don't fire.
 */
static void
empty_referenced(List *roots, List *logged, bool restart_sequences)
{
	ListCell   *lc;

	foreach(lc, roots)
	{
		Relation	rel = lfirst(lc);

		tandem_empty_relation(rel);
		if (restart_sequences)
		{
			ListCell   *sequence;

			foreach(sequence, getOwnedSequences(RelationGetRelid(rel)))
				ResetSequence(lfirst_oid(sequence));
		}
	}
	if (logged != NIL)
	{
		/* as TRUNCATE does, for those who subscribe to us */
		xl_heap_truncate record;
		Oid		   *relids = palloc(sizeof(Oid) * list_length(logged));
		int			n = 0;

		foreach(lc, logged)
			relids[n++] = lfirst_oid(lc);
		record.dbId = MyDatabaseId;
		record.nrelids = n;
		record.flags = restart_sequences ? XLH_TRUNCATE_RESTART_SEQS : 0;
		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfHeapTruncate);
		XLogRegisterData((char *) relids, n * sizeof(Oid));
		XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
		(void) XLogInsert(RM_HEAP_ID, XLOG_HEAP_TRUNCATE);
	}
}

/*
 * CASCADE isn't followed: the publisher names all the tables that it emptied,
 * and what refers to them only here isn't its to empty.
 */
void
tandem_modify_truncate(List *remoteids, List *elsewhere, bool restart_sequences)
{
	List	   *opened = NIL;
	List	   *partitions = NIL;
	List	   *roots = NIL;
	List	   *rels = NIL;
	List	   *relids = NIL;
	List	   *logged = NIL;
	ListCell   *lc;

	PushActiveSnapshot(GetTransactionSnapshot());
	foreach(lc, remoteids)
	{
		TandemRelation *relation = tandem_relation_open(lfirst_oid(lc), AccessExclusiveLock);
		List	   *children;
		ListCell   *child;

		opened = lappend(opened, relation);
		if (list_member_oid(relids, relation->localoid))
			continue;
		tandem_table_check(relation->rel, ACL_TRUNCATE);
		rels = lappend(rels, relation->rel);
		roots = lappend(roots, relation->rel);
		relids = lappend_oid(relids, relation->localoid);
		if (RelationIsLogicallyLogged(relation->rel))
			logged = lappend_oid(logged, relation->localoid);
		if (relation->rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			continue;

		children = find_all_inheritors(relation->localoid, AccessExclusiveLock, NULL);
		foreach(child, children)
		{
			Relation	rel;

			if (list_member_oid(relids, lfirst_oid(child)))
				continue;
			rel = table_open(lfirst_oid(child), NoLock);
			if (RELATION_IS_OTHER_TEMP(rel))
			{
				table_close(rel, AccessExclusiveLock);
				continue;
			}
			tandem_table_check(rel, ACL_TRUNCATE);
			rels = lappend(rels, rel);
			partitions = lappend(partitions, rel);
			relids = lappend_oid(relids, RelationGetRelid(rel));
			if (RelationIsLogicallyLogged(rel))
				logged = lappend_oid(logged, RelationGetRelid(rel));
		}
	}

	if (referenced_elsewhere(relids, elsewhere))
	{
		foreach(lc, partitions)
			table_close(lfirst(lc), NoLock);
		partitions = NIL;
		empty_referenced(roots, logged, restart_sequences);
	}
	else if (rels != NIL)
		TANDEM_TRUNCATE(rels, relids, logged, restart_sequences);

	foreach(lc, opened)
		tandem_relation_close(lfirst(lc), NoLock);
	foreach(lc, partitions)
		table_close(lfirst(lc), NoLock);
	PopActiveSnapshot();
	CommandCounterIncrement();
	tandem_apply_counts.truncates += list_length(remoteids);
}
