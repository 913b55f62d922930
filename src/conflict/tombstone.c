/*-------------------------------------------------------------------------
 *
 * tombstone.c
 *	  Was a row that is missing deleted, when and by whom?
 *
 * The answer is one of three, and never a guess:
 *
 *	 deleted	there is a tombstone, and no later one can be missing from the store
 *	 missing	all deletes that count were collected, and none has this key
 *	 unknown	with the reason: the collector didn't get there in time, a window
 *				(windows.c), keys of another version, collecting began too late, or
 *				there can be no tombstones of this table at all (unsupported)
 *
 * The order matters: first all deletes committed so far must be in the store
 * (probe.c), then a fresh snapshot reads it.
 *
 * A delete of the publisher that found nothing here, or lost, writes no delete to
 * WAL.  tandem_tombstone_leave() writes a logical message in its stead, in the same
 * transaction; the collector makes a tombstone of it at the commit.
 *
 * Called by src/subscription (missing rows, late inserts) and by users, through
 * tandem.tombstone_find().
 *
 * src/conflict/tombstone.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "replication/origin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/version.h"
#include "conflict/collector.h"
#include "conflict/key.h"
#include "conflict/retention.h"

/* The key of the table asked for last, until something changes. */
static MemoryContext key_context = NULL;
static TandemKey *last_key = NULL;

static void
relation_changed(Datum arg, Oid relid)
{
	if (last_key && (relid == InvalidOid || relid == last_key->relid || relid == last_key->root))
		last_key = NULL;
}

static TandemKey *
key_of(Relation rel, Oid root)
{
	if (last_key == NULL || last_key->relid != RelationGetRelid(rel) || last_key->root != root)
	{
		MemoryContext old;
		TandemKey  *key;

		if (key_context == NULL)
		{
			key_context = AllocSetContextCreate(TopMemoryContext, "key of tombstones", ALLOCSET_SMALL_SIZES);
			CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		}
		last_key = NULL;
		MemoryContextReset(key_context);
		old = MemoryContextSwitchTo(key_context);
		key = tandem_key_of(rel, root);
		MemoryContextSwitchTo(old);
		last_key = key;
		return key;
	}
	return last_key;
}

/* Does the slot have the key's columns, if those of this index are set (Invalid: all)? */
static bool
has_columns(const TandemKey *key, Relation rel, Oid identity)
{
	Relation	index;
	bool		all = true;

	if (!OidIsValid(identity) || identity == key->index)
		return true;
	index = RelationIdGetRelation(identity);
	if (!RelationIsValid(index))
		return false;
	for (int i = 0; all && i < key->ncolumns; i++)
	{
		bool		found = false;

		for (int j = 0; j < IndexRelationGetNumberOfKeyAttributes(index); j++)
			found |= index->rd_index->indkey.values[j] == key->columns[i].att;
		all = found;
	}
	RelationClose(index);
	return all;
}

static void
unknown(TandemTombstone *result, const char *reason, bool unsupported)
{
	result->verdict = TANDEM_VERDICT_UNKNOWN;
	result->reason = reason;
	result->unsupported = unsupported;
}

static void
fill_deleter(TandemTombstone *result, const TandemEntry *entry)
{
	result->kind = entry->kind;
	result->deleter.known = true;
	result->deleter.xid = entry->xid;
	result->deleter.time = entry->time;
	result->deleter.origin = entry->origin;
}

void
tandem_tombstone_find(Oid root, Relation rel, Oid identity, TupleTableSlot *slot,
					  bool wait, TandemTombstone *result)
{
	TandemKey  *key = key_of(rel, root);
	Oid			subid = tandem_conflict_session.subid;
	const char *not_waited;
	const char *window;
	TandemKeyValues values;
	TandemFound found;

	memset(result, 0, sizeof(*result));
	if (key->unsupported)
	{
		unknown(result, key->unsupported, true);
		return;
	}
	if (!has_columns(key, rel, identity))
	{
		unknown(result, "the replica identity here has columns that the publisher's doesn't have", true);
		return;
	}
	if (!tandem_store_has_table(subid, root))
	{
		unknown(result, "deletes of this table are not collected", true);
		return;
	}

	not_waited = wait ? tandem_probe() : "deletes that have just been committed may be missing";
	tandem_key_from_slot(key, slot, &values);
	tandem_store_look(key, &values, tandem_key_hash(key, &values), subid, &found);

	/* the row lives, elsewhere; whatever there was before doesn't count */
	if (found.any && found.newest.kind != 'i')
	{
		fill_deleter(result, &found.newest);
		if (wait && not_waited)
			unknown(result, not_waited, false);
		else
			result->verdict = TANDEM_VERDICT_DELETED;
		return;
	}
	if (not_waited)
		unknown(result, not_waited, false);
	else if (found.other_version)
		unknown(result, "the table's key has changed since deletes were collected", false);
	else if (found.began)
		unknown(result, psprintf("deletes of this table are known only since %s",
								 timestamptz_to_str(found.began_at)), false);
	else if ((window = tandem_window_covers(subid, tandem_conflict_session.time)) != NULL)
		unknown(result, window, false);
	else
		result->verdict = TANDEM_VERDICT_MISSING;
}

uint64
tandem_tombstone_hash(Oid root, Relation rel, Oid identity, TupleTableSlot *slot)
{
	TandemKey  *key = key_of(rel, root);
	TandemKeyValues values;

	if (key->unsupported || !has_columns(key, rel, identity))
		return 0;
	tandem_key_from_slot(key, slot, &values);
	return (uint64) tandem_key_hash(key, &values);
}

void
tandem_tombstone_leave(Oid root, Relation rel, Oid identity, TupleTableSlot *slot)
{
	TandemKey  *key = key_of(rel, root);
	TandemKeyValues values;
	TandemEntry entry = {0};
	StringInfoData text;
	char	   *packed;

	if (key->unsupported || !has_columns(key, rel, identity) ||
		replorigin_session_origin == InvalidRepOriginId)
		return;
	tandem_key_from_slot(key, slot, &values);
	entry.root = root;
	entry.leaf = RelationGetRelid(rel);
	entry.version = key->version;
	entry.hash = tandem_key_hash(key, &values);
	entry.time = tandem_conflict_session.time;
	packed = tandem_key_pack(key, &values, &entry.length);

	initStringInfo(&text);
	appendBinaryStringInfo(&text, (const char *) &entry, sizeof(entry));
	appendBinaryStringInfo(&text, packed, entry.length);
	(void) TANDEM_LOG_MESSAGE(TANDEM_DELETED_PREFIX, text.data, text.len, true);
	pfree(text.data);
	pfree(packed);
}

/* ---- For users --------------------------------------------------------------------- */

PG_FUNCTION_INFO_V1(tandem_tombstone_find_sql);
PG_FUNCTION_INFO_V1(tandem_collector_status);

/* The table above a partition whose deletes are collected; without one, itself. */
static Oid
collected_root(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	ListCell   *lc;

	if (rel->rd_rel->relispartition && !tandem_store_has_table(InvalidOid, relid))
	{
		foreach(lc, get_partition_ancestors(relid))
		{
			if (tandem_store_has_table(InvalidOid, lfirst_oid(lc)))
				return lfirst_oid(lc);
		}
	}
	return relid;
}

/* Sets the key's columns of a slot from a JSON object. */
static void
set_key(const TandemKey *key, Relation rel, Jsonb *json, TupleTableSlot *slot)
{
	ExecStoreAllNullTuple(slot);
	for (int i = 0; i < key->ncolumns; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), key->columns[i].att - 1);
		Datum		name = PointerGetDatum(cstring_to_text(NameStr(att->attname)));
		Datum		value;
		Oid			input;
		Oid			param;

		if (!DatumGetBool(DirectFunctionCall2(jsonb_exists, JsonbPGetDatum(json), name)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the key of table \"%s\" needs column \"%s\"",
							RelationGetRelationName(rel), NameStr(att->attname)),
					 errhint("Write it as a JSON object with the columns of the replica identity, such as {\"id\": 1}.")));

		/* NULL comes as a NULL result, which such a call may not have */
		{
			LOCAL_FCINFO(fcinfo, 2);

			InitFunctionCallInfoData(*fcinfo, NULL, 2, InvalidOid, NULL, NULL);
			fcinfo->args[0].value = JsonbPGetDatum(json);
			fcinfo->args[0].isnull = false;
			fcinfo->args[1].value = name;
			fcinfo->args[1].isnull = false;
			value = jsonb_object_field_text(fcinfo);
			if (fcinfo->isnull)
				continue;
		}
		getTypeInputInfo(att->atttypid, &input, &param);
		slot->tts_values[key->columns[i].att - 1] =
			OidInputFunctionCall(input, TextDatumGetCString(value), param, att->atttypmod);
		slot->tts_isnull[key->columns[i].att - 1] = false;
	}
}

/* tandem.tombstone_find(table, key, wait) */
Datum
tandem_tombstone_find_sql(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	Oid			root = collected_root(rel);
	TandemKey  *key = key_of(rel, root);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsVirtual);
	TandemTombstone result;
	TupleDesc	desc;
	Datum		values[6];
	bool		isnull[6];
	static const char *const names[] = {"deleted", "missing", "unknown"};

	tandem_check_sql_version();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (key->unsupported == NULL)
		set_key(key, rel, PG_GETARG_JSONB_P(1), slot);
	tandem_tombstone_find(root, rel, InvalidOid, slot, PG_GETARG_BOOL(2), &result);

	memset(isnull, true, sizeof(isnull));
	isnull[0] = false;
	values[0] = CStringGetTextDatum(names[result.verdict]);
	if (result.deleter.known)
	{
		char	   *origin = NULL;

		isnull[1] = isnull[2] = isnull[4] = false;
		values[1] = CStringGetTextDatum(result.kind == 't' ? "truncated" : result.kind == 'm' ? "moved" : "deleted");
		values[2] = TimestampTzGetDatum(result.deleter.time);
		values[4] = TransactionIdGetDatum(result.deleter.xid);
		if (result.deleter.origin != InvalidRepOriginId &&
			replorigin_by_oid(result.deleter.origin, true, &origin))
		{
			isnull[3] = false;
			values[3] = CStringGetTextDatum(origin);
		}
	}
	if (result.reason)
	{
		isnull[5] = false;
		values[5] = CStringGetTextDatum(result.reason);
	}
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}

/* tandem.collector_status() */
Datum
tandem_collector_status(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"off", "starting", "collecting", "failed", "unsupported"};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TandemCollectorInfo info;
	Datum		values[13];
	bool		isnull[13] = {false};

	InitMaterializedSRF(fcinfo, 0);
	if (!tandem_collector_info(MyDatabaseId, &info))
		return (Datum) 0;
	values[0] = Int32GetDatum(info.pid);
	isnull[0] = info.pid == 0;
	values[1] = CStringGetTextDatum(names[info.state]);
	values[2] = CStringGetTextDatum(info.reason);
	isnull[2] = info.reason[0] == '\0';
	values[3] = CStringGetTextDatum(info.hint);
	isnull[3] = info.hint[0] == '\0';
	values[4] = LSNGetDatum(info.collected_lsn);
	isnull[4] = info.collected_lsn == InvalidXLogRecPtr;
	values[5] = Int64GetDatum((int64) info.transactions);
	values[6] = Int64GetDatum((int64) info.tombstones);
	values[7] = Int64GetDatum((int64) info.batches);
	values[8] = Float8GetDatum(info.cpu_us / 1000.0);
	values[9] = Int64GetDatum((int64) info.probes);
	values[10] = Int64GetDatum((int64) info.expired);
	values[11] = Float8GetDatum(info.probe_us / 1000.0);
	values[12] = CStringGetTextDatum(info.error);
	isnull[12] = info.error[0] == '\0';
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	return (Datum) 0;
}
