/*-------------------------------------------------------------------------
 *
 * lookup.c
 *	  Finding the row that a change is for.
 *
 * The row is looked for with a fresh MVCC snapshot, which misses none that has
 * committed, and locked; if it has changed since, again.  Only when it isn't
 * there the server's own function looks with a dirty snapshot and waits for
 * whoever is just writing it.  That one alone isn't enough: under concurrent
 * updates it may see neither the old nor the new version of an existing row.
 * So before a row counts as missing, a fresh snapshot has the last word.
 *
 * Called by modify.c.
 *
 * src/subscription/lookup.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "common/compat.h"
#include "subscription/target.h"

/* Equality operators of the index; kept with the target. */
static void
build_keys(TandemTarget *target)
{
	TandemLookup *lookup = &target->lookup;
	MemoryContext old = MemoryContextSwitchTo(target->estate->es_query_cxt);
	oidvector  *opclasses;
	bool		isnull;

	opclasses = (oidvector *)
		DatumGetPointer(SysCacheGetAttr(INDEXRELID, lookup->index->rd_indextuple,
										Anum_pg_index_indclass, &isnull));
	for (int i = 0; i < lookup->nkeys; i++)
	{
		Oid			family = get_opclass_family(opclasses->values[i]);
		Oid			type = get_opclass_input_type(opclasses->values[i]);
		Oid			operator = get_opfamily_member(family, type, type, BTEqualStrategyNumber);

		if (!OidIsValid(operator))
			elog(ERROR, "missing operator %d(%u,%u) in opfamily %u",
				 BTEqualStrategyNumber, type, type, family);
		ScanKeyInit(&lookup->scankeys[i], i + 1, BTEqualStrategyNumber, get_opcode(operator), (Datum) 0);
		lookup->scankeys[i].sk_collation = lookup->index->rd_indcollation[i];
	}
	MemoryContextSwitchTo(old);
	lookup->built = true;
}

const AttrNumber *
tandem_target_keys(TandemTarget *target, int *nkeys)
{
	if (target->lookup.index == NULL)
		return NULL;
	*nkeys = target->lookup.nkeys;
	return target->lookup.keys;
}

/* One look by the index. */
static bool
look_by_index(TandemTarget *target, Snapshot snapshot)
{
	TandemLookup *lookup = &target->lookup;
	IndexScanDesc scan;
	bool		found;

	if (!lookup->built)
		build_keys(target);
	for (int i = 0; i < lookup->nkeys; i++)
	{
		int			att = lookup->keys[i] - 1;

		if (target->search->tts_isnull[att])
			return false;		/* no such row can exist */
		lookup->scankeys[i].sk_argument = target->search->tts_values[att];
	}
	scan = TANDEM_INDEX_BEGINSCAN(target->rel, lookup->index, snapshot, lookup->nkeys);
	index_rescan(scan, lookup->scankeys, lookup->nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, target->found);
	index_endscan(scan);
	return found;
}

/* Are these rows the same?  types: cache of one look. */
static bool
same_row(TandemTarget *target, TupleTableSlot *row, TypeCacheEntry **types)
{
	TupleTableSlot *search = target->search;
	TupleDesc	desc = row->tts_tupleDescriptor;

	slot_getallattrs(row);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->attgenerated)
			continue;
		if (row->tts_isnull[i] != search->tts_isnull[i])
			return false;
		if (row->tts_isnull[i])
			continue;
		if (types[i] == NULL)
		{
			types[i] = lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR_FINFO);
			if (!OidIsValid(types[i]->eq_opr_finfo.fn_oid))
				ereport(ERROR,
						(errcode(ERRCODE_UNDEFINED_FUNCTION),
						 errmsg("could not identify an equality operator for type %s",
								format_type_be(att->atttypid))));
		}
		if (!DatumGetBool(FunctionCall2Coll(&types[i]->eq_opr_finfo, att->attcollation,
											row->tts_values[i], search->tts_values[i])))
			return false;
	}
	return true;
}

/* One look through the whole table. */
static bool
look_at_all(TandemTarget *target, Snapshot snapshot)
{
	TypeCacheEntry **types = palloc0(target->map->natts * sizeof(TypeCacheEntry *));
	TableScanDesc scan = table_beginscan(target->rel, snapshot, 0, NULL);
	bool		found = false;

	while (!found && table_scan_getnextslot(scan, ForwardScanDirection, target->found))
	{
		CHECK_FOR_INTERRUPTS();
		found = same_row(target, target->found, types);
	}
	table_endscan(scan);
	pfree(types);
	return found;
}

/*
 * Looks with a fresh snapshot, and locks what it finds.  fresh: the active
 * snapshot has just been taken.
 */
static bool
find_committed(TandemTarget *target, bool fresh)
{
	for (;; fresh = false)
	{
		TM_FailureData failure;
		TM_Result	result = TM_Ok;
		bool		found;

		if (!fresh)
			PushActiveSnapshot(GetLatestSnapshot());
		found = target->lookup.index ?
			look_by_index(target, GetActiveSnapshot()) : look_at_all(target, GetActiveSnapshot());
		if (found)
		{
			ItemPointerData tid = target->found->tts_tid;

			result = table_tuple_lock(target->rel, &tid, GetActiveSnapshot(), target->found,
									  GetCurrentCommandId(false), LockTupleExclusive,
									  LockWaitBlock, 0 /* not its later versions */ , &failure);
		}
		if (!fresh)
			PopActiveSnapshot();
		if (!found || result == TM_Ok)
			return found;
		if (result != TM_Updated && result != TM_Deleted)
			elog(ERROR, "unexpected table_tuple_lock status: %u", result);

		/* somebody was faster: what is there now? */
		CHECK_FOR_INTERRUPTS();
	}
}

bool
tandem_target_find(TandemTarget *target)
{
	bool		found;

	if (find_committed(target, true))
		return true;

	/* somebody may be inserting it */
	if (target->lookup.index)
	{
		for (int i = 0; i < target->lookup.nkeys; i++)
		{
			if (target->search->tts_isnull[target->lookup.keys[i] - 1])
				return false;
		}
		found = RelationFindReplTupleByIndex(target->rel, target->map->identity, LockTupleExclusive,
											 target->search, target->found);
	}
	else
		found = RelationFindReplTupleSeq(target->rel, LockTupleExclusive,
										 target->search, target->found);
	return found || find_committed(target, false);
}
