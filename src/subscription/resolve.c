/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  Changes whose row isn't as expected.
 *
 *	 insert		a row has the same in a unique index	insert_exists
 *	 update		the row was written by another node		update_origin_differs
 *				another row has the same				update_exists
 *				there is no such row					update_missing, update_deleted
 *	 delete		the row was written by another node		delete_origin_differs
 *				there is no such row					delete_missing
 *	 insert or update, and more than one index			multiple_unique_conflicts
 *
 * What is done is configured (types.c of src/conflict).  Each is recorded, in the
 * transaction that resolves it; with outcome "error" after it.
 *
 * Whether another node wrote a row can be told only with track_commit_timestamp.
 * A row that has the subscription's own origin is no conflict, whatever its
 * time: the stream has the order of the publisher's changes.
 *
 * Called by modify.c.
 *
 * src/subscription/resolve.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "subscription/dispatch.h"
#include "subscription/late.h"
#include "subscription/resolve.h"

static inline TandemOutcome
outcome_of(const TandemTarget *target, TandemConflictType type)
{
	return target->rules->outcomes.outcome[type];
}

/* Where the last update wins, equal commit times have to be told apart. */
static void
check_nodes(void)
{
	if (strcmp(tandem_conflict_session.node, tandem_own_node()) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publisher and subscriber have the same node identifier \"%s\", so which update is the last one can't be told",
						tandem_conflict_session.node),
				 errhint("Set tandem.node_id to different values on both; for a publisher without this library use option node_id of tandem.adopt().")));
}

void
tandem_resolve_prepare(TandemTarget *target, TandemTarget *root)
{
	int			column = -1;

	target->root = root->relation->localoid;
	target->rules = root == target ? tandem_table_rules(target->root) : root->rules;
	target->careful = target->careful_update = target->late = false;
	target->counters = NULL;
	if (target->routing || target->unique != NIL)
	{
		bool		multiple = outcome_of(target, TANDEM_MULTIPLE_UNIQUE_CONFLICTS) != TANDEM_OUTCOME_ERROR;

		target->careful = multiple || outcome_of(target, TANDEM_INSERT_EXISTS) != TANDEM_OUTCOME_ERROR;
		target->careful_update = multiple || outcome_of(target, TANDEM_UPDATE_EXISTS) != TANDEM_OUTCOME_ERROR;
	}

	if (tandem_conflict_session.tombstones && !target->routing && target->lookup.index)
		target->late = outcome_of(target, TANDEM_INSERT_DELETED) != TANDEM_OUTCOME_APPLY ||
			tandem_tombstone_any(target->root);
	for (int i = 0; root == target && i < TANDEM_CONFLICT_TYPES; i++)
	{
		if (outcome_of(target, i) == TANDEM_OUTCOME_LAST_UPDATE_WINS)
		{
			check_nodes();
			tandem_clock_wait();
			break;
		}
	}

	/* a partition may have its columns in another order */
	while ((column = bms_next_member(target->rules->deltas, column)) >= 0)
	{
		int			remote = column <= root->map->natts ? root->map->columns[column - 1].remote : -1;

		for (int i = 0; remote >= 0 && i < target->map->natts; i++)
		{
			if (target->map->columns[i].remote == remote)
			{
				MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

				target->counters = bms_add_member(target->counters, i + 1);
				MemoryContextSwitchTo(old);
			}
		}
	}
}

/* ---- Telling -------------------------------------------------------------------- */

void
tandem_conflict_init(TandemConflict *conflict, const TandemChange *change, TandemConflictType type)
{
	memset(conflict, 0, sizeof(*conflict));
	conflict->type = type;
	conflict->configured = outcome_of(change->leaf, type);
	conflict->detection = "certain";
	conflict->rel = change->leaf->rel;
	conflict->operation = change->operation;
}

/* Columns of the leaf that the publisher has not sent a value of (in this change's memory). */
static Bitmapset *
not_sent(const TandemChange *change)
{
	const TandemMap *map = change->leaf->map;
	Bitmapset  *columns = NULL;

	for (int i = 0; i < map->natts; i++)
	{
		int			remote = map->columns[i].remote;

		if (map->columns[i].dropped)
			continue;
		if (remote < 0 || (change->row && (remote >= change->row->ncols ||
										   change->row->colstatus[remote] == LOGICALREP_COLUMN_UNCHANGED)))
			columns = bms_add_member(columns, i + 1);
	}
	return columns;
}

void
tandem_resolve_refuse(TandemConflict *conflict)
{
	bool		unique = conflict->type == TANDEM_INSERT_EXISTS || conflict->type == TANDEM_UPDATE_EXISTS ||
		conflict->type == TANDEM_MULTIPLE_UNIQUE_CONFLICTS;

	conflict->resolution = "error";
	conflict->result_row = conflict->local_row;
	tandem_conflict_record_failed(conflict);
	ereport(ERROR,
			(errcode(unique ? ERRCODE_UNIQUE_VIOLATION : ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("conflict detected on relation \"%s.%s\": conflict=%s",
					get_namespace_name(RelationGetNamespace(conflict->rel)),
					RelationGetRelationName(conflict->rel), tandem_conflict_name(conflict->type)),
			 errdetail_internal("%s", tandem_conflict_detail(conflict)),
			 errhint("Change the row here, or the outcome with tandem.set_conflict() or tandem.adopt(); or skip the transaction with ALTER SUBSCRIPTION ... SKIP.")));
}

/* ---- Another node wrote it -------------------------------------------------------- */

bool
tandem_resolve_found(const TandemChange *change, TandemConflict *conflict, bool *differs)
{
	TandemTarget *leaf = change->leaf;
	TandemConflictType type = change->operation == 'U' ?
		TANDEM_UPDATE_ORIGIN_DIFFERS : TANDEM_DELETE_ORIGIN_DIFFERS;
	TandemOutcome outcome = outcome_of(leaf, type);
	TandemParty local;
	bool		wins = true;

	*differs = false;
	if (!track_commit_timestamp || tandem_local_party(leaf->found, &local))
		return true;
	if (local.known && local.origin == tandem_conflict_session.origin)
		return true;
	if (!local.known && outcome != TANDEM_OUTCOME_LAST_UPDATE_WINS)
		return true;			/* there is no telling */

	*differs = true;
	tandem_conflict_init(conflict, change, type);
	if (!local.known)
		conflict->detection = "unknown";
	conflict->local = local;
	conflict->local_row = leaf->found;
	conflict->key = leaf->search;
	if (change->row)
	{
		conflict->remote_row = leaf->changed;
		conflict->remote_missing = not_sent(change);
	}
	switch (outcome)
	{
		case TANDEM_OUTCOME_ERROR:
			tandem_resolve_refuse(conflict);
			break;
		case TANDEM_OUTCOME_SKIP:
			wins = false;
			break;
		case TANDEM_OUTCOME_LAST_UPDATE_WINS:
			wins = tandem_remote_wins(&local, &conflict->reason);
			break;
		default:
			break;
	}
	conflict->resolution = wins ? "applied" : "skipped";
	if (!wins)
		conflict->result_row = leaf->found;
	else if (change->row)
		conflict->result_row = leaf->changed;
	return wins;
}

/* ---- Unique indexes ------------------------------------------------------------------ */

/* Does the index have other values for the new row than for the old one? */
static bool
index_changes(const IndexInfo *info, TupleTableSlot *old, TupleTableSlot *new)
{
	TupleDesc	desc = new->tts_tupleDescriptor;

	if (info->ii_Expressions != NIL || info->ii_Predicate != NIL)
		return true;
	slot_getallattrs(old);
	for (int i = 0; i < info->ii_NumIndexKeyAttrs; i++)
	{
		int			att = info->ii_IndexAttrNumbers[i] - 1;
		Form_pg_attribute form = TupleDescAttr(desc, att);

		if (old->tts_isnull[att] != new->tts_isnull[att] ||
			(!old->tts_isnull[att] &&
			 !datumIsEqual(old->tts_values[att], new->tts_values[att], form->attbyval, form->attlen)))
			return true;
	}
	return false;
}

/*
 * Finds and locks the rows that have in a unique index what "row" has; old: the
 * row that it replaces, or NULL.  Each is in leaf->rivals[]; returns how many.
 */
static int
find_rivals(TandemTarget *leaf, TupleTableSlot *row, TupleTableSlot *old)
{
	ResultRelInfo *relinfo = leaf->relinfo;
	int			n = 0;

	if (leaf->rivals == NULL)
	{
		MemoryContext context = MemoryContextSwitchTo(leaf->estate->es_query_cxt);

		leaf->rivals = palloc(relinfo->ri_NumIndices * sizeof(TupleTableSlot *));
		for (int i = 0; i < relinfo->ri_NumIndices; i++)
			leaf->rivals[i] = MakeSingleTupleTableSlot(leaf->found->tts_tupleDescriptor,
													   table_slot_callbacks(leaf->rel));
		leaf->nrivals = relinfo->ri_NumIndices;
		MemoryContextSwitchTo(context);
	}
	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		const IndexInfo *info = relinfo->ri_IndexRelationInfo[i];

		if (!tandem_unique_covered(relinfo->ri_IndexRelationDescs[i], info) ||
			(old && !index_changes(info, old, row)))
			continue;
		if (tandem_unique_find(relinfo, leaf->estate, i, row, old ? &old->tts_tid : NULL, true,
							   leaf->rivals[n]))
			n++;
	}
	return n;
}

static void
clear_rivals(TandemTarget *leaf)
{
	for (int i = 0; i < leaf->nrivals; i++)
		ExecClearTuple(leaf->rivals[i]);
}

/* May the remote row take the place of these?  Fills in the conflict. */
static bool
beats_rivals(const TandemChange *change, TandemTarget *leaf, int n, TupleTableSlot *row,
			 TandemConflict *conflict)
{
	bool		wins = true;

	tandem_conflict_init(conflict, change, n > 1 ? TANDEM_MULTIPLE_UNIQUE_CONFLICTS :
						 change->operation == 'U' ? TANDEM_UPDATE_EXISTS : TANDEM_INSERT_EXISTS);
	conflict->rel = leaf->rel;
	conflict->remote_row = row;
	conflict->remote_missing = leaf == change->leaf ? not_sent(change) : NULL;
	conflict->local_row = leaf->rivals[0];
	(void) tandem_local_party(leaf->rivals[0], &conflict->local);
	switch (conflict->configured)
	{
		case TANDEM_OUTCOME_ERROR:
			tandem_resolve_refuse(conflict);
			break;
		case TANDEM_OUTCOME_SKIP:
			wins = false;
			break;
		case TANDEM_OUTCOME_LAST_UPDATE_WINS:
			for (int i = 0; wins && i < n; i++)
			{
				TandemParty local;

				(void) tandem_local_party(leaf->rivals[i], &local);
				wins = tandem_remote_wins(&local, &conflict->reason);
				if (!wins)
				{
					conflict->local = local;
					conflict->local_row = leaf->rivals[i];
				}
				else if (!local.known)
					conflict->detection = "unknown";
			}
			break;
		default:
			break;
	}
	conflict->resolution = wins ? "applied" : "skipped";
	conflict->result_row = wins ? row : conflict->local_row;
	return wins;
}

/* Deletes the first n rivals, each once. */
static void
delete_rivals(TandemTarget *leaf, int n)
{
	tandem_target_check(leaf, ACL_DELETE);
	for (int i = 0; i < n; i++)
	{
		bool		again = false;

		for (int j = 0; j < i; j++)
			again = again || ItemPointerEquals(&leaf->rivals[i]->tts_tid, &leaf->rivals[j]->tts_tid);
		if (again)
			continue;
		EvalPlanQualSetSlot(&leaf->epqstate, leaf->rivals[i]);
		ExecSimpleRelationDelete(leaf->relinfo, leaf->estate, &leaf->epqstate, leaf->rivals[i]);
	}
	/* what looks next must not see them */
	CommandCounterIncrement();
}

static bool
one_rival(TandemTarget *leaf, int n)
{
	for (int i = 1; i < n; i++)
	{
		if (!ItemPointerEquals(&leaf->rivals[0]->tts_tid, &leaf->rivals[i]->tts_tid))
			return false;
	}
	return true;
}

/* The row here becomes the one sent; columns that the publisher lacks stay. */
static void
become(TandemTarget *leaf, TupleTableSlot *rival, TupleTableSlot *row)
{
	TupleTableSlot *merged = leaf->before;

	tandem_target_check(leaf, ACL_UPDATE);
	ExecClearTuple(merged);
	slot_getallattrs(rival);
	for (int i = 0; i < leaf->map->natts; i++)
	{
		TupleTableSlot *from = leaf->map->columns[i].remote >= 0 ? row : rival;

		merged->tts_values[i] = from->tts_values[i];
		merged->tts_isnull[i] = from->tts_isnull[i];
	}
	ExecStoreVirtualTuple(merged);
	EvalPlanQualSetSlot(&leaf->epqstate, merged);
	ExecSimpleRelationUpdate(leaf->relinfo, leaf->estate, &leaf->epqstate, rival, merged);
	ExecClearTuple(merged);
}

void
tandem_resolve_insert(const TandemChange *change, TandemTarget *leaf, TupleTableSlot *row)
{
	ResultRelInfo *relinfo = leaf->relinfo;
	TupleConstr *constr = leaf->rel->rd_att->constr;

	tandem_target_check(leaf, ACL_INSERT | ACL_SELECT);
	if (relinfo->ri_TrigDesc && relinfo->ri_TrigDesc->trig_insert_before_row &&
		!ExecBRInsertTriggers(leaf->estate, relinfo, row))
		return;
	if (constr && constr->has_generated_stored)
		ExecComputeStoredGenerated(relinfo, leaf->estate, row, CMD_INSERT);
	if (constr)
		ExecConstraints(relinfo, row, leaf->estate);
	if (leaf->rel->rd_rel->relispartition)
		ExecPartitionCheck(relinfo, row, leaf->estate, true);
	slot_getallattrs(row);

	for (;;)
	{
		TandemConflict conflict;
		int			n = find_rivals(leaf, row, NULL);

		if (n == 0)
		{
			if (tandem_unique_insert(leaf, leaf->unique, row))
			{
				tandem_late_remember(leaf, row);
				break;
			}
			continue;			/* somebody was faster */
		}
		if (!beats_rivals(change, leaf, n, row, &conflict))
		{
			tandem_conflict_record(&conflict);
			break;
		}
		if (one_rival(leaf, n))
		{
			become(leaf, leaf->rivals[0], row);
			tandem_conflict_record(&conflict);
			break;
		}
		delete_rivals(leaf, n);
		tandem_conflict_record(&conflict);
	}
	clear_rivals(leaf);
}

bool
tandem_resolve_update(const TandemChange *change)
{
	TandemTarget *leaf = change->leaf;
	TandemConflict conflict;
	bool		wins = true;
	int			n;

	if (!leaf->careful_update)
		return true;
	n = find_rivals(leaf, leaf->changed, leaf->found);
	if (n > 0)
	{
		wins = beats_rivals(change, leaf, n, leaf->changed, &conflict);
		if (wins)
			delete_rivals(leaf, n);
		conflict.key = leaf->search;
		tandem_conflict_record(&conflict);
	}
	clear_rivals(leaf);
	return wins;
}

/* ---- It isn't there ------------------------------------------------------------------ */

bool
tandem_resolve_sent(const TandemChange *change, TupleTableSlot *slot)
{
	TandemTarget *root = change->root;
	bool		full = root->map->remote->replident == REPLICA_IDENTITY_FULL && change->old;

	for (int i = 0; i < root->map->natts; i++)
	{
		int			remote = root->map->columns[i].remote;

		if (remote < 0 || (remote < change->row->ncols &&
						   change->row->colstatus[remote] != LOGICALREP_COLUMN_UNCHANGED))
			continue;
		if (!full || remote >= change->old->ncols ||
			change->old->colstatus[remote] == LOGICALREP_COLUMN_UNCHANGED)
			return false;
	}
	if (full)
	{
		tandem_map_store(root->map, root->before, change->old, NULL, 0);
		tandem_map_modify(root->map, slot, root->before, change->row);
	}
	else
		tandem_map_store(root->map, slot, change->row, NULL, 0);
	tandem_target_fill_defaults(root, slot);
	return true;
}

/*
 * Was the row in leaf->search deleted by this transaction?  Such a deletion is
 * nowhere yet but in the table.
 */
static bool
deleted_by_us(TandemTarget *leaf)
{
	TandemLookup *lookup = &leaf->lookup;
	IndexScanDesc scan;
	bool		found = false;

	if (lookup->index == NULL || !lookup->built ||
		leaf->rel->rd_tableam != GetHeapamTableAmRoutine() ||
		!TransactionIdIsValid(GetCurrentTransactionIdIfAny()))
		return false;
	scan = TANDEM_INDEX_BEGINSCAN(leaf->rel, lookup->index, SnapshotAny, lookup->nkeys);
	index_rescan(scan, lookup->scankeys, lookup->nkeys, NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, leaf->found))
	{
		HeapTuple	tuple = ExecFetchSlotHeapTuple(leaf->found, false, NULL);
		HeapTupleHeader header = tuple->t_data;

		found = !(header->t_infomask & HEAP_XMAX_INVALID) &&
			!HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
			TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header)) &&
			ItemPointerEquals(&header->t_ctid, &tuple->t_self);
	}
	index_endscan(scan);
	ExecClearTuple(leaf->found);
	return found;
}

/* Why is it missing?  Returns true if it has come meanwhile. */
static bool
find_out(const TandemChange *change, TandemTombstone *stone)
{
	TandemTarget *leaf = change->leaf;
	bool		wait = outcome_of(leaf, TANDEM_UPDATE_MISSING) != outcome_of(leaf, TANDEM_UPDATE_DELETED);

	memset(stone, 0, sizeof(*stone));
	if (deleted_by_us(leaf))
	{
		stone->verdict = TANDEM_VERDICT_DELETED;
		stone->kind = 'd';
		stone->deleter.known = tandem_conflict_session.time != 0;
		stone->deleter.xid = GetCurrentTransactionIdIfAny();
		stone->deleter.time = tandem_conflict_session.time;
		stone->deleter.origin = tandem_conflict_session.origin;
		return false;
	}
	if (!tandem_conflict_session.tombstones)
	{
		stone->verdict = TANDEM_VERDICT_UNKNOWN;
		stone->reason = "the subscription's option tombstones is off";
		return false;
	}
	tandem_tombstone_find(leaf->root, leaf->rel, leaf->lookup.index ? leaf->map->identity : InvalidOid,
						  leaf->search, wait, stone);
	/* time has passed */
	return wait && tandem_target_find(leaf);
}

static TandemMissing
delete_missing(const TandemChange *change, TandemConflict *conflict)
{
	TandemTarget *leaf = change->leaf;

	tandem_conflict_init(conflict, change, TANDEM_DELETE_MISSING);
	conflict->key = leaf->search;
	if (conflict->configured == TANDEM_OUTCOME_ERROR)
		tandem_resolve_refuse(conflict);
	if (tandem_conflict_session.tombstones)
		tandem_tombstone_leave(leaf->root, leaf->rel,
							   leaf->lookup.index ? leaf->map->identity : InvalidOid, leaf->search);
	conflict->resolution = "skipped";
	tandem_conflict_record(conflict);
	tandem_apply_counts.delete_missing++;
	return TANDEM_MISSING_SKIP;
}

TandemMissing
tandem_resolve_missing(const TandemChange *change, TandemConflict *conflict)
{
	TandemTarget *leaf = change->leaf;
	TandemTombstone stone;
	bool		key_changes;
	bool		insert;

	if (change->operation == 'D')
		return delete_missing(change, conflict);
	if (find_out(change, &stone))
		return TANDEM_MISSING_FOUND;

	tandem_conflict_init(conflict, change, stone.verdict == TANDEM_VERDICT_DELETED ?
						 TANDEM_UPDATE_DELETED : TANDEM_UPDATE_MISSING);
	conflict->key = leaf->search;
	if (stone.verdict == TANDEM_VERDICT_DELETED)
		conflict->local = stone.deleter;
	else if (stone.verdict == TANDEM_VERDICT_UNKNOWN)
	{
		conflict->detection = stone.unsupported ? "unsupported" : "unknown";
		conflict->reason = stone.reason;
	}

	/* with last_update_wins a new key is decided by itself, as a delete and an insert */
	key_changes = outcome_of(leaf, TANDEM_UPDATE_ORIGIN_DIFFERS) == TANDEM_OUTCOME_LAST_UPDATE_WINS &&
		tandem_resolve_key_changes(change);
	if (conflict->configured == TANDEM_OUTCOME_ERROR && !key_changes)
		tandem_resolve_refuse(conflict);
	insert = key_changes || conflict->configured == TANDEM_OUTCOME_INSERT_OR_SKIP ||
		(conflict->configured == TANDEM_OUTCOME_LAST_UPDATE_WINS &&
		 tandem_remote_wins(&stone.deleter, &conflict->reason));
	if (key_changes)
		conflict->reason = "the update changes the key: it counts as a delete of the old row and an insert of the new one";
	if (key_changes && tandem_conflict_session.tombstones)
		tandem_tombstone_leave(leaf->root, leaf->rel, leaf->map->identity, leaf->search);
	if (insert && !tandem_resolve_sent(change, change->root->changed))
	{
		conflict->reason = "columns that the update left unchanged were not sent";
		insert = false;
	}
	tandem_apply_counts.update_missing++;
	if (insert)
	{
		conflict->resolution = "inserted";
		return TANDEM_MISSING_INSERT;
	}
	conflict->resolution = "skipped";
	tandem_map_store(leaf->map, leaf->changed, change->row, NULL, 0);
	conflict->remote_row = leaf->changed;
	conflict->remote_missing = not_sent(change);
	tandem_conflict_record(conflict);
	return TANDEM_MISSING_SKIP;
}

/* ---- Keys, counters ---------------------------------------------------------------------- */

bool
tandem_resolve_key_changes(const TandemChange *change)
{
	TandemTarget *leaf = change->leaf;
	int			nkeys;
	const AttrNumber *keys = tandem_target_keys(leaf, &nkeys);

	if (keys == NULL || change->old == NULL || !leaf->lookup.built)
		return false;
	tandem_map_store(leaf->map, leaf->before, change->row, keys, nkeys);
	for (int i = 0; i < nkeys; i++)
	{
		int			att = keys[i] - 1;
		int			remote = leaf->map->columns[att].remote;
		ScanKey		key = &leaf->lookup.scankeys[i];

		if (remote < 0 || remote >= change->row->ncols ||
			change->row->colstatus[remote] == LOGICALREP_COLUMN_UNCHANGED)
			continue;
		if (leaf->before->tts_isnull[att] || leaf->search->tts_isnull[att] ||
			!DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation,
											leaf->search->tts_values[att], leaf->before->tts_values[att])))
			return true;
	}
	return false;
}

/* here + (new - old), in the column's own arithmetic, which may overflow. */
static Datum
add_difference(Oid type, Datum here, Datum old, Datum new)
{
	switch (type)
	{
		case INT2OID:
			return DirectFunctionCall2(int2pl, here, DirectFunctionCall2(int2mi, new, old));
		case INT4OID:
			return DirectFunctionCall2(int4pl, here, DirectFunctionCall2(int4mi, new, old));
		case INT8OID:
			return DirectFunctionCall2(int8pl, here, DirectFunctionCall2(int8mi, new, old));
		case FLOAT4OID:
			return DirectFunctionCall2(float4pl, here, DirectFunctionCall2(float4mi, new, old));
		case FLOAT8OID:
			return DirectFunctionCall2(float8pl, here, DirectFunctionCall2(float8mi, new, old));
		case NUMERICOID:
			return DirectFunctionCall2(numeric_add, here, DirectFunctionCall2(numeric_sub, new, old));
		default:
			return new;
	}
}

bool
tandem_counter_type(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID ||
		type == FLOAT4OID || type == FLOAT8OID || type == NUMERICOID;
}

void
tandem_resolve_counters(const TandemChange *change, bool wins)
{
	TandemTarget *leaf = change->leaf;
	TandemMap  *map = leaf->map;
	int			column = -1;

	if (leaf->counters == NULL)
		return;
	if (map->remote->replident != REPLICA_IDENTITY_FULL || change->old == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has counters, but the publisher does not send old rows of it",
						map->remote->nspname, map->remote->relname),
				 errhint("Run ALTER TABLE ... REPLICA IDENTITY FULL there, or take the counter back with tandem.set_delta(..., false).")));
	tandem_map_store(map, leaf->before, change->old, NULL, 0);
	slot_getallattrs(leaf->found);
	while ((column = bms_next_member(leaf->counters, column)) >= 0)
	{
		int			i = column - 1;
		Oid			type = map->columns[i].type;

		if (!tandem_counter_type(type))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" of table \"%s\" is a counter, but of type %s",
							NameStr(TupleDescAttr(RelationGetDescr(leaf->rel), i)->attname),
							RelationGetRelationName(leaf->rel), format_type_be(type)),
					 errhint("Take it back with tandem.set_delta(..., false).")));
		/* without a number on each side there is no difference */
		if (!leaf->before->tts_isnull[i] && !leaf->found->tts_isnull[i] && !leaf->changed->tts_isnull[i])
			leaf->changed->tts_values[i] = add_difference(type, leaf->found->tts_values[i],
														  leaf->before->tts_values[i],
														  leaf->changed->tts_values[i]);
		else if (!wins)
		{
			leaf->changed->tts_values[i] = leaf->found->tts_values[i];
			leaf->changed->tts_isnull[i] = leaf->found->tts_isnull[i];
		}
	}
	for (int i = 0; !wins && i < map->natts; i++)
	{
		if (!bms_is_member(i + 1, leaf->counters))
		{
			leaf->changed->tts_values[i] = leaf->found->tts_values[i];
			leaf->changed->tts_isnull[i] = leaf->found->tts_isnull[i];
		}
	}
	ExecClearTuple(leaf->before);
}
