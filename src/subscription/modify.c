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
#include "subscription/dispatch.h"
#include "subscription/late.h"
#include "subscription/modify.h"
#include "subscription/resolve.h"
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
insert_row(const TandemChange *change, TandemTarget *target, TupleTableSlot *row)
{
	tandem_target_check(target, ACL_INSERT);
	tandem_late_lock(target, row);
	if ((target->careful || (change->operation == 'U' && target->careful_update)) && target->unique != NIL)
	{
		tandem_resolve_insert(change, target, row);
		return;
	}
	tandem_writing = (TandemWriting) {target, row, 'I'};
	ExecSimpleRelationInsert(target->relinfo, target->estate, row);
	tandem_writing.slot = NULL;
	tandem_late_remember(target, row);
}

/* Updates the row in target->found to what is in target->changed. */
static void
update_row(const TandemChange *change)
{
	TandemTarget *target = change->leaf;

	tandem_target_check(target, ACL_UPDATE);
	if (!tandem_resolve_update(change))
		return;
	EvalPlanQualSetSlot(&target->epqstate, target->changed);
	tandem_writing = (TandemWriting) {target, target->changed, 'U'};
	ExecSimpleRelationUpdate(target->relinfo, target->estate, &target->epqstate,
							 target->found, target->changed);
	tandem_writing.slot = NULL;
}

/* Deletes the row in target->found. */
static void
delete_row(TandemTarget *target)
{
	tandem_target_check(target, ACL_DELETE);
	EvalPlanQualSetSlot(&target->epqstate, target->found);
	ExecSimpleRelationDelete(target->relinfo, target->estate, &target->epqstate, target->found);
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

/* Inserts a row of the root, where it belongs. */
static void
insert_routed(const TandemChange *change, TupleTableSlot *row)
{
	TandemTarget *root = change->root;

	if (root->routing)
	{
		TandemTarget *partition = route_row(root, row);

		to_partition(root, partition, row, partition->changed);
		insert_row(change, partition, partition->changed);
	}
	else
		insert_row(change, root, row);
}

/* The table itself, or the partition that the row in root->search belongs to. */
static TandemTarget *
find_leaf(TandemTarget *root)
{
	TandemTarget *partition;

	if (root->routing == NULL)
		return root;
	partition = route_row(root, root->search);
	tandem_map_check_updatable(partition->map);
	to_partition(root, partition, root->search, partition->search);
	return partition;
}

/* ---- Updates and deletes ---------------------------------------------------------------- */

/*
 * The row goes, and comes again as it is in leaf->changed: to another
 * partition, or with another key.
 */
static void
move_row(const TandemChange *change)
{
	TandemTarget *root = change->root;
	TandemTarget *leaf = change->leaf;

	if (leaf != root)
	{
		TupleConversionMap *to_root = convert_tuples_by_name(RelationGetDescr(leaf->rel),
															 RelationGetDescr(root->rel));

		if (to_root)
			execute_attr_map_slot(to_root->attrMap, leaf->changed, root->changed);
		else
			ExecCopySlot(root->changed, leaf->changed);
	}
	/* the new row isn't of the old one's memory, which the deletion may release */
	ExecMaterializeSlot(root->changed);
	slot_getallattrs(root->changed);
	delete_row(leaf);
	/* a look for rows in its way must not find it */
	CommandCounterIncrement();
	insert_routed(change, root->changed);
}

/* The row is in leaf->found. */
static void
update_found(const TandemChange *change)
{
	TandemTarget *leaf = change->leaf;
	TandemConflict conflict;
	bool		differs;
	bool		wins;
	bool		key_changes;

	key_changes = leaf->rules->outcomes.outcome[TANDEM_UPDATE_ORIGIN_DIFFERS] == TANDEM_OUTCOME_LAST_UPDATE_WINS &&
		tandem_resolve_key_changes(change);
	tandem_map_modify(leaf->map, leaf->changed, leaf->found, change->row);
	wins = tandem_resolve_found(change, &conflict, &differs);
	tandem_resolve_counters(change, wins);
	if (differs)
		tandem_conflict_record(&conflict);

	if (!wins && key_changes)
	{
		/* the row here stays, the new one is another */
		if (tandem_resolve_sent(change, change->root->changed))
			insert_routed(change, change->root->changed);
	}
	else if (wins && (key_changes || (leaf != change->root &&
									  !ExecPartitionCheck(leaf->relinfo, leaf->changed, leaf->estate, false))))
		move_row(change);
	else if (wins || leaf->counters)
		update_row(change);
	tandem_apply_counts.updates++;
}

static void
update_leaf(const TandemChange *change)
{
	TandemConflict conflict;

	tandem_target_check(change->leaf, ACL_SELECT);
	/* a change of the key is a delete, too */
	if (change->old != NULL)
		tandem_late_lock(change->leaf, change->leaf->search);
	if (!tandem_target_find(change->leaf))
	{
		switch (tandem_resolve_missing(change, &conflict))
		{
			case TANDEM_MISSING_FOUND:
				break;
			case TANDEM_MISSING_SKIP:
				return;
			case TANDEM_MISSING_INSERT:
				insert_routed(change, change->root->changed);
				conflict.result_row = change->root == change->leaf ? change->root->changed : NULL;
				conflict.remote_row = conflict.result_row;
				tandem_conflict_record(&conflict);
				return;
		}
	}
	update_found(change);
}

static void
delete_leaf(const TandemChange *change)
{
	TandemTarget *leaf = change->leaf;
	TandemConflict conflict;
	bool		differs;

	tandem_target_check(leaf, ACL_SELECT);
	tandem_late_lock(leaf, leaf->search);
	if (!tandem_target_find(leaf))
	{
		(void) tandem_resolve_missing(change, &conflict);
		return;
	}
	if (tandem_resolve_found(change, &conflict, &differs))
	{
		delete_row(leaf);
		tandem_apply_counts.deletes++;
	}
	else if (tandem_conflict_session.tombstones)
		tandem_tombstone_leave(leaf->root, leaf->rel,
							   leaf->lookup.index ? leaf->map->identity : InvalidOid, leaf->search);
	if (differs)
		tandem_conflict_record(&conflict);
}

/* ---- Changes ------------------------------------------------------------------------- */

void
tandem_modify_insert(TandemTarget *target, LogicalRepTupleData *row, Size size)
{
	MemoryContext old = CurrentMemoryContext;
	TandemChange change = {target, target, 'I', NULL, row};

	if (target->batchable && !target->careful &&
		!(target->late && target->rules->outcomes.outcome[TANDEM_INSERT_DELETED] != TANDEM_OUTCOME_APPLY))
	{
		tandem_batch_add(target, row, size);
		return;
	}

	begin_change(target);
	tandem_map_store(target->map, target->changed, row, NULL, 0);
	tandem_target_fill_defaults(target, target->changed);
	insert_routed(&change, target->changed);
	end_change(target, old);
	tandem_apply_counts.inserts++;
	tandem_late_check_many();
}

void
tandem_modify_undo_insert(TandemTarget *leaf, TupleTableSlot *row)
{
	MemoryContext old = CurrentMemoryContext;
	TandemParty party;
	int			nkeys = 0;
	const AttrNumber *keys = tandem_target_keys(leaf, &nkeys);

	begin_change(leaf);
	ExecStoreAllNullTuple(leaf->search);
	for (int i = 0; i < nkeys; i++)
	{
		leaf->search->tts_values[keys[i] - 1] = row->tts_values[keys[i] - 1];
		leaf->search->tts_isnull[keys[i] - 1] = row->tts_isnull[keys[i] - 1];
	}
	if (tandem_target_find(leaf) && tandem_local_party(leaf->found, &party))
		delete_row(leaf);
	ExecClearTuple(leaf->search);
	end_change(leaf, old);
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
	TandemChange change = {target, target, 'U', old_row, row};

	if (target->routing == NULL)
		tandem_map_check_updatable(target->map);
	begin_change(target);
	set_updated_columns(target, row);
	tandem_map_store(target->map, target->search, old_row ? old_row : row, keys, nkeys);
	change.leaf = find_leaf(target);
	update_leaf(&change);
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
	TandemChange change = {target, target, 'D', old_row, NULL};

	if (target->routing == NULL)
		tandem_map_check_updatable(target->map);
	begin_change(target);
	tandem_map_store(target->map, target->search, old_row, keys, nkeys);
	change.leaf = find_leaf(target);
	delete_leaf(&change);
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
