/*-------------------------------------------------------------------------
 *
 * target.c
 *	  Executor state of a table that changes are applied to.
 *
 * Made at the first change of a table in a transaction, used for all others,
 * closed before the commit.  What takes longest to make (slots, keys, what the
 * indexes need) is kept for the next transactions if the table is plain:
 * without triggers, checks, expressions or deferred constraints, whose state
 * could refer to the transaction it was made in.
 *
 *	 none -------> open -------> kept (tables closed and unlocked)
 *				  ^	 |				|		|
 *				  |	 | not plain	| used	| invalidated, or too many kept
 *				  |	 v				|		v
 *				  | none			|	   none
 *				  +-----------------+
 *
 * An invalidation (of the table, or of an index of it) only marks: the state is
 * replaced at the next change, when nothing uses it.  With the table locked, a
 * mark in mid-transaction is harmless to the change in progress, as it would
 * be to a statement.
 *
 * src/subscription/target.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "rewrite/rewriteHandler.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"

#include "common/compat.h"
#include "subscription/resolve.h"

#define KEPT_TARGETS 64			/* more are dropped when a transaction didn't use them */
#define BATCH_ROWS 1000
#define BATCH_SLOT_MEMORY (256 * 1024)	/* bytes, of the slots of a batch */

static dlist_head targets = DLIST_STATIC_INIT(targets);
static int	ntargets = 0;
static uint64 transaction = 1;	/* counts those in which targets were closed */
static bool registered = false;

/* ---- Invalidation ------------------------------------------------------------- */

/* An index has changed: so has what was made of it. */
static void
forget_index(Datum arg, Oid relid)
{
	dlist_iter	iter;

	if (!OidIsValid(relid))
		return;					/* relation.c has marked all tables */
	dlist_foreach(iter, &targets)
	{
		TandemTarget *target = dlist_container(TandemTarget, node, iter.cur);

		for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
		{
			if (target->indexes[i] == relid)
				target->relation->valid = false;
		}
	}
}

/* ---- Making ---------------------------------------------------------------------- */

/* Would this trigger fire when we insert a row? */
static bool
fires_on_insert(const Trigger *trigger)
{
	return TRIGGER_FOR_INSERT(trigger->tgtype) && TRIGGER_FOR_ROW(trigger->tgtype) &&
		(trigger->tgenabled == TRIGGER_FIRES_ON_REPLICA || trigger->tgenabled == TRIGGER_FIRES_ALWAYS);
}

/* Prepares the defaults of columns that the publisher doesn't have. */
static bool
make_defaults(TandemTarget *target)
{
	bool		volatile_one = false;

	target->default_columns = palloc(target->map->natts * sizeof(int));
	target->defaults = palloc(target->map->natts * sizeof(ExprState *));
	for (int i = 0; i < target->map->natts; i++)
	{
		const TandemColumn *column = &target->map->columns[i];
		Expr	   *expr;

		if (column->remote >= 0 || column->dropped || column->generated)
			continue;
		expr = (Expr *) build_column_default(target->rel, i + 1);
		if (expr == NULL)
			continue;
		expr = expression_planner(expr);
		volatile_one = volatile_one || contain_volatile_functions_not_nextval((Node *) expr);
		target->default_columns[target->ndefaults] = i;
		target->defaults[target->ndefaults++] = ExecInitExpr(expr, NULL);
	}
	return volatile_one;
}

/* Finds the identity index among those that are open. */
static void
set_lookup(TandemTarget *target)
{
	target->lookup.index = NULL;
	for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
	{
		if (RelationGetRelid(target->relinfo->ri_IndexRelationDescs[i]) == target->map->identity)
			target->lookup.index = target->relinfo->ri_IndexRelationDescs[i];
	}
	target->lookup.nkeys = 0;
	if (target->lookup.index)
	{
		target->lookup.nkeys = IndexRelationGetNumberOfKeyAttributes(target->lookup.index);
		for (int i = 0; i < target->lookup.nkeys; i++)
			target->lookup.keys[i] = target->lookup.index->rd_index->indkey.values[i];
	}
}

/* Slots, keys and columns: what a table and a partition have alike. */
static void
make_common(TandemTarget *target)
{
	TupleDesc	desc;

	/* not the relation's own, which belongs to a transaction */
	desc = CreateTupleDescCopyConstr(RelationGetDescr(target->rel));
	target->search = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	target->changed = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	target->before = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	if (target->rel->rd_rel->relkind == RELKIND_RELATION)
		target->found = MakeSingleTupleTableSlot(desc, table_slot_callbacks(target->rel));
	for (int i = 0; i < target->map->natts; i++)
	{
		if (target->map->columns[i].remote >= 0)
			target->sent = bms_add_member(target->sent, i + 1 - FirstLowInvalidHeapAttributeNumber);
	}
	TANDEM_EPQ_INIT(&target->epqstate, target->estate);
	set_lookup(target);
	for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
	{
		Relation	index = target->relinfo->ri_IndexRelationDescs[i];

		if (tandem_unique_covered(index, target->relinfo->ri_IndexRelationInfo[i]))
			target->unique = lappend_oid(target->unique, RelationGetRelid(index));
	}
}

/* Decides what the table allows. */
static void
set_abilities(TandemTarget *target, bool volatile_default)
{
	ResultRelInfo *relinfo = target->relinfo;
	TupleConstr *constr = target->rel->rd_att->constr;
	bool		plain = target->rel->rd_rel->relkind == RELKIND_RELATION;
	bool		plain_indexes = true;
	bool		deferrable = false;

	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		const IndexInfo *info = relinfo->ri_IndexRelationInfo[i];

		if (info->ii_Expressions || info->ii_Predicate || info->ii_ExclusionOps)
			plain_indexes = false;
		if (!relinfo->ri_IndexRelationDescs[i]->rd_index->indimmediate)
			deferrable = true;
	}

	target->triggers = relinfo->ri_TrigDesc != NULL;
	target->keep = plain && plain_indexes && !deferrable && !target->triggers &&
		target->ndefaults == 0 && !target->rel->rd_rel->relispartition &&
		(constr == NULL || (constr->num_check == 0 && !constr->has_generated_stored));

	target->batchable = plain && !deferrable && !volatile_default;
	for (int i = 0; target->triggers && i < relinfo->ri_TrigDesc->numtriggers; i++)
	{
		if (fires_on_insert(&relinfo->ri_TrigDesc->triggers[i]))
			target->batchable = false;
	}
	target->max_slots = Min(BATCH_ROWS, BATCH_SLOT_MEMORY /
							(int) (sizeof(VirtualTupleTableSlot) + 16 +
								   target->map->natts * (sizeof(Datum) + sizeof(bool))));
	target->max_slots = Max(target->max_slots, 4);
}

/* The state of a table that is open. */
static TandemTarget *
make_target(TandemRelation *relation)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "tandem target",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	TandemTarget *target = palloc0(sizeof(TandemTarget));
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	bool		volatile_default = false;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_index, (Datum) 0);
		registered = true;
	}

	target->relation = relation;
	target->map = relation->map;
	target->generation = relation->generation;
	target->rel = relation->rel;
	target->context = context;
	target->estate = CreateExecutorState();
	MemoryContextSwitchTo(target->estate->es_query_cxt);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(target->rel);
	rte->relkind = target->rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
	TANDEM_INIT_RANGE_TABLE(target->estate, rte);

	target->relinfo = makeNode(ResultRelInfo);
	InitResultRelInfo(target->relinfo, target->rel, 1, NULL, 0);
	/* where AFTER triggers look for it */
	target->estate->es_opened_result_relations =
		lappend(target->estate->es_opened_result_relations, target->relinfo);

	if (target->rel->rd_rel->relkind == RELKIND_RELATION)
	{
		ExecOpenIndices(target->relinfo, false);
		target->indexes = palloc((target->relinfo->ri_NumIndices + 1) * sizeof(Oid));
		for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
			target->indexes[i] = RelationGetRelid(target->relinfo->ri_IndexRelationDescs[i]);
	}
	else
	{
		target->mtstate = makeNode(ModifyTableState);
		target->mtstate->ps.state = target->estate;
		target->mtstate->operation = CMD_INSERT;
		target->mtstate->resultRelInfo = target->relinfo;
		target->mtstate->rootResultRelInfo = target->relinfo;
		target->routing = ExecSetupPartitionTupleRouting(target->estate, target->rel);
	}
	make_common(target);
	if (!target->map->complete)
		volatile_default = make_defaults(target);
	set_abilities(target, volatile_default);
	MemoryContextSwitchTo(old);

	dlist_push_head(&targets, &target->node);
	ntargets++;
	relation->target = target;
	return target;
}

/* Opens the indexes of a kept target again. */
static void
reopen(TandemTarget *target)
{
	ResultRelInfo *relinfo = target->relinfo;

	target->rel = target->relation->rel;
	relinfo->ri_RelationDesc = target->rel;
	for (int i = 0; i < relinfo->ri_NumIndices; i++)
		relinfo->ri_IndexRelationDescs[i] = index_open(target->indexes[i], RowExclusiveLock);
	set_lookup(target);
}

TandemTarget *
tandem_target_open(LogicalRepRelId remoteid)
{
	TandemRelation *relation = tandem_relation_find(remoteid);
	TandemTarget *target = relation->target;

	if (target && target->open)
	{
		if (likely(relation->valid))
			return target;
		/* nothing is in memory for it: a mark is seen between two changes */
		if (tandem_batch_target() == target)
			tandem_batch_flush();
		tandem_target_forget(target);
		target = NULL;
	}

	if (target && !relation->valid)
	{
		tandem_target_forget(target);
		target = NULL;
	}
	tandem_relation_open(remoteid, RowExclusiveLock);
	target = relation->target;
	if (target && target->generation != relation->generation)
	{
		/* locking the table told of a change */
		tandem_target_forget(target);
		target = NULL;
	}
	if (target)
		reopen(target);
	else
		target = make_target(relation);
	target->open = true;
	target->allowed = 0;
	target->used = transaction;
	tandem_resolve_prepare(target, target);
	return target;
}

TandemTarget *
tandem_target_partition(TandemTarget *root, ResultRelInfo *relinfo)
{
	TandemTarget *target;
	TupleConversionMap *conversion;
	MemoryContext old;
	ListCell   *lc;

	foreach(lc, root->partitions)
	{
		target = lfirst(lc);
		if (target->relinfo == relinfo)
			return target;
	}

	CheckSubscriptionRelkind(relinfo->ri_RelationDesc->rd_rel->relkind,
							 get_namespace_name(RelationGetNamespace(relinfo->ri_RelationDesc)),
							 RelationGetRelationName(relinfo->ri_RelationDesc));

	old = MemoryContextSwitchTo(root->estate->es_query_cxt);
	target = palloc0(sizeof(TandemTarget));
	target->rel = relinfo->ri_RelationDesc;
	target->relinfo = relinfo;
	target->estate = root->estate;
	target->open = true;
	conversion = TANDEM_ROOT_TO_PARTITION(relinfo, root->estate);
	target->map = tandem_map_build(root->map->remote, target->rel, root->map,
								   conversion ? conversion->attrMap : NULL);
	/* routing has opened them if the partition has any */
	if (relinfo->ri_IndexRelationDescs == NULL)
		ExecOpenIndices(relinfo, false);
	make_common(target);
	target->triggers = relinfo->ri_TrigDesc != NULL;
	tandem_resolve_prepare(target, root);
	root->partitions = lappend(root->partitions, target);
	MemoryContextSwitchTo(old);
	return target;
}

/* ---- Closing ----------------------------------------------------------------------- */

/* Slots hold pins on pages. */
static void
clear_slots(TandemTarget *target)
{
	ExecClearTuple(target->search);
	ExecClearTuple(target->changed);
	ExecClearTuple(target->before);
	for (int i = 0; i < target->nrivals; i++)
		ExecClearTuple(target->rivals[i]);
	if (target->found)
		ExecClearTuple(target->found);
}

/* Closes an open target; its state may be kept. */
static void
close_target(TandemTarget *target)
{
	ListCell   *lc;

	clear_slots(target);
	foreach(lc, target->partitions)
		clear_slots(lfirst(lc));
	if (target->routing)
		ExecCleanupTupleRouting(target->mtstate, target->routing);
	target->routing = NULL;
	/* the slots of triggers belong to the transaction */
	ExecResetTupleTable(target->estate->es_tupleTable, false);
	target->estate->es_tupleTable = NIL;

	for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
	{
		index_close(target->relinfo->ri_IndexRelationDescs[i], NoLock);
		target->relinfo->ri_IndexRelationDescs[i] = NULL;
	}
	target->lookup.index = NULL;
	tandem_relation_close(target->relation, NoLock);
	target->open = false;
}

/* Frees the state of a closed one. */
static void
free_target(TandemTarget *target)
{
	target->relation->target = NULL;
	dlist_delete(&target->node);
	ntargets--;
	FreeExecutorState(target->estate);
	MemoryContextDelete(target->context);
}

void
tandem_target_forget(TandemTarget *target)
{
	if (target->open)
		close_target(target);
	free_target(target);
}

void
tandem_targets_close(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &targets)
	{
		TandemTarget *target = dlist_container(TandemTarget, node, iter.cur);

		if (target->open)
			close_target(target);
		if (!target->keep || !target->relation->valid ||
			(ntargets > KEPT_TARGETS && target->used != transaction))
			free_target(target);
	}
	transaction++;
}

void
tandem_targets_abort(void)
{
	/* tables, indexes and pins are gone with the transaction; the memory isn't worth the risk */
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &targets)
	{
		TandemTarget *target = dlist_container(TandemTarget, node, iter.cur);

		target->relation->target = NULL;
		dlist_delete(&target->node);
		ntargets--;
		MemoryContextDelete(target->context);
	}
	transaction++;
}

/* ---- Privileges, defaults ------------------------------------------------------------ */

void
tandem_table_check(Relation rel, AclMode mode)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	result = pg_class_aclcheck(relid, GetUserId(), mode);

	if (result != ACLCHECK_OK)
		aclcheck_error(result, get_relkind_objtype(rel->rd_rel->relkind), get_rel_name(relid));

	/* policies aren't evaluated here, so a user they hold for may not write at all */
	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("user \"%s\" cannot replicate into relation with row-level security enabled: \"%s\"",
						GetUserNameFromId(GetUserId(), true), RelationGetRelationName(rel)),
				 errhint("Let a role that bypasses row-level security own the subscription.")));
}

void
tandem_target_check(TandemTarget *target, AclMode mode)
{
	if (likely((target->allowed & mode) == mode))
		return;
	tandem_table_check(target->rel, mode);
	target->allowed |= mode;
}

void
tandem_target_fill_defaults(TandemTarget *target, TupleTableSlot *slot)
{
	ExprContext *econtext = GetPerTupleExprContext(target->estate);

	for (int i = 0; i < target->ndefaults; i++)
	{
		int			column = target->default_columns[i];

		slot->tts_values[column] = ExecEvalExpr(target->defaults[i], econtext,
												&slot->tts_isnull[column]);
	}
}
