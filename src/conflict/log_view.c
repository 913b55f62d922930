/*-------------------------------------------------------------------------
 *
 * log_view.c
 *	  The views of conflicts.
 *
 * A conflict itself (which table, when, whose transactions) is shown to all who
 * may use the view; the values of rows only to those who could read them in the
 * table: by privileges on the table or its columns (a partition: or those of a
 * table that it belongs to) and on its schema.  A policy of row level security
 * can't be asked about a row that isn't there any more, so whom one restricts
 * sees no values.  Of a table that is gone, superusers and pg_read_all_data do.
 *
 * src/conflict/log_view.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_subscription.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "conflict/log.h"

#define MOST_RECENT 10000		/* rows that are looked at to count those of a day */

PG_FUNCTION_INFO_V1(tandem_find_conflicts);
PG_FUNCTION_INFO_V1(tandem_conflict_counters);
PG_FUNCTION_INFO_V1(tandem_conflict_storage);

/* ---- Who may see values ------------------------------------------------------------ */

/* What the caller may see of rows of a table. */
typedef struct Sight
{
	Oid			relid;
	bool		all;
	List	   *relids;			/* of columns: where there may be a privilege */
	const char *hidden;			/* why not all, or NULL */
} Sight;

static Sight *
look_at(Oid relid)
{
	Sight	   *sight = palloc0(sizeof(Sight));
	List	   *relids;
	bool		restricted = false;
	ListCell   *lc;

	sight->relid = relid;
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
	{
		sight->all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_DATA);
		sight->hidden = sight->all ? NULL : "the table does not exist any more";
		return sight;
	}
	relids = list_make1_oid(relid);
	if (get_rel_relispartition(relid))
		relids = list_concat(relids, get_partition_ancestors(relid));
	foreach(lc, relids)
	{
		Oid			one = lfirst_oid(lc);

		if (TANDEM_SCHEMA_ACLCHECK(get_rel_namespace(one), GetUserId(), ACL_USAGE) != ACLCHECK_OK)
			continue;
		if (check_enable_rls(one, InvalidOid, true) == RLS_ENABLED)
		{
			restricted = true;
			continue;
		}
		if (pg_class_aclcheck(one, GetUserId(), ACL_SELECT) == ACLCHECK_OK)
		{
			sight->all = true;
			return sight;
		}
		sight->relids = lappend_oid(sight->relids, one);
	}
	sight->hidden = restricted ? "row level security" : "no privilege to read all columns";
	return sight;
}

static bool
may_see_column(const Sight *sight, const char *name)
{
	ListCell   *lc;

	foreach(lc, sight->relids)
	{
		AttrNumber	attnum = get_attnum(lfirst_oid(lc), name);

		if (attnum > 0 &&
			pg_attribute_aclcheck(lfirst_oid(lc), attnum, GetUserId(), ACL_SELECT) == ACLCHECK_OK)
			return true;
	}
	return false;
}

/* The members of a row that the caller may see; NULL = none. */
static Jsonb *
visible_part(const Sight *sight, Jsonb *row)
{
	JsonbParseState *state = NULL;
	JsonbIterator *it = JsonbIteratorInit(&row->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	JsonbValue	key;
	bool		any = false;

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			key = value;
		else if (token == WJB_VALUE &&
				 may_see_column(sight, pnstrdup(key.val.string.val, key.val.string.len)))
		{
			(void) pushJsonbValue(&state, WJB_KEY, &key);
			(void) pushJsonbValue(&state, WJB_VALUE, &value);
			any = true;
		}
	}
	value = *pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return any ? JsonbValueToJsonb(&value) : NULL;
}

/* ---- tandem.conflicts ------------------------------------------------------------------ */

/* Columns of the function's result that aren't in the log as they are. */
enum
{
	OUT_HIDDEN = 24,
	OUT_STATE = 27,
	OUT_COLUMNS = 30
};

/* Where each column of the result comes from; 0 = nowhere. */
static const int from[OUT_COLUMNS] = {
	LOG_ID, LOG_TIME, LOG_SUBSCRIPTION, LOG_SCHEMA, LOG_TABLE, LOG_RELID, LOG_TYPE, LOG_OPERATION,
	LOG_CONFIGURED, LOG_RESOLUTION, LOG_DETECTION, LOG_REASON,
	LOG_LOCAL_ORIGIN, LOG_LOCAL_XID, LOG_LOCAL_TIME,
	LOG_REMOTE_ORIGIN, LOG_REMOTE_NODE, LOG_REMOTE_XID, LOG_REMOTE_TIME, LOG_REMOTE_LSN,
	LOG_KEY, LOG_LOCAL_ROW, LOG_REMOTE_ROW, LOG_RESULT_ROW, 0,
	LOG_ATTEMPTS, LOG_LAST_ATTEMPT, 0, LOG_SETTLED_AT, LOG_SETTLED_BY};

static void
put_conflict(ReturnSetInfo *rsinfo, HeapTuple tuple, TupleDesc desc, List **sights)
{
	Datum		v[LOG_COLUMNS + 1];
	bool		n[LOG_COLUMNS + 1];
	Datum		out[OUT_COLUMNS];
	bool		nulls[OUT_COLUMNS];
	Sight	   *sight = NULL;
	ListCell   *lc;

	heap_deform_tuple(tuple, desc, v + 1, n + 1);
	foreach(lc, *sights)
	{
		sight = lfirst(lc);
		if (sight->relid == DatumGetObjectId(v[LOG_RELID]))
			break;
		sight = NULL;
	}
	if (sight == NULL)
	{
		sight = look_at(DatumGetObjectId(v[LOG_RELID]));
		*sights = lappend(*sights, sight);
	}
	for (int col = LOG_KEY; col <= LOG_RESULT_ROW && !sight->all; col++)
	{
		Jsonb	   *part = n[col] ? NULL : visible_part(sight, DatumGetJsonbP(v[col]));

		n[col] = part == NULL;
		v[col] = JsonbPGetDatum(part);
	}
	for (int i = 0; i < OUT_COLUMNS; i++)
	{
		nulls[i] = from[i] == 0 || n[from[i]];
		out[i] = nulls[i] ? (Datum) 0 : v[from[i]];
		if (from[i] == LOG_OPERATION && !nulls[i])
			out[i] = CStringGetTextDatum(DatumGetChar(out[i]) == 'I' ? "insert" :
										 DatumGetChar(out[i]) == 'U' ? "update" : "delete");
	}
	nulls[OUT_HIDDEN] = sight->hidden == NULL;
	out[OUT_HIDDEN] = sight->hidden ? CStringGetTextDatum(sight->hidden) : (Datum) 0;
	nulls[OUT_STATE] = false;
	out[OUT_STATE] = CStringGetTextDatum(n[LOG_SETTLED] ? "open" :
										 DatumGetChar(v[LOG_SETTLED]) == TANDEM_LOG_REPLAYED ? "replayed" : "dismissed");
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, out, nulls);
}

/* What find_conflicts() looks for. */
typedef struct Wanted
{
	const char *subscription;	/* NULL = any */
	const char *schema;
	const char *table;
	const char *type;
} Wanted;

static bool
is_name(Datum value, bool isnull, const char *wanted)
{
	return wanted == NULL || (!isnull && strcmp(NameStr(*DatumGetName(value)), wanted) == 0);
}

static bool
is_wanted(HeapTuple tuple, TupleDesc desc, const Wanted *wanted)
{
	Datum		value;
	bool		isnull;

	value = heap_getattr(tuple, LOG_SUBSCRIPTION, desc, &isnull);
	if (!is_name(value, isnull, wanted->subscription))
		return false;
	value = heap_getattr(tuple, LOG_SCHEMA, desc, &isnull);
	if (!is_name(value, isnull, wanted->schema))
		return false;
	value = heap_getattr(tuple, LOG_TABLE, desc, &isnull);
	if (!is_name(value, isnull, wanted->table))
		return false;
	value = heap_getattr(tuple, LOG_TYPE, desc, &isnull);
	return wanted->type == NULL || (!isnull && strcmp(TextDatumGetCString(value), wanted->type) == 0);
}

/* "table" or "schema.table", each quoted if need be. */
static void
parse_table(text *name, Wanted *wanted)
{
	List	   *names = textToQualifiedNameList(name);

	if (list_length(names) > 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("\"%s\" is not the name of a table", text_to_cstring(name)),
				 errhint("Write it as in SQL: orders, public.orders or \"Orders\".")));
	wanted->table = strVal(llast(names));
	if (list_length(names) == 2)
		wanted->schema = strVal(linitial(names));
}

static void
parse_type(text *name, Wanted *wanted)
{
	TandemConflictType type;

	wanted->type = text_to_cstring(name);
	if (!tandem_conflict_parse(wanted->type, &type))
	{
		StringInfoData hint;

		initStringInfo(&hint);
		for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
			appendStringInfo(&hint, "%s%s", i == 0 ? "" : i == TANDEM_CONFLICT_TYPES - 1 ? " and " : ", ",
							 tandem_conflict_name(i));
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not a type of conflict", wanted->type),
				 errhint("There are %s.", hint.data)));
	}
}

Datum
tandem_find_conflicts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Wanted		wanted = {0};
	int64		most = PG_ARGISNULL(5) ? PG_INT64_MAX : PG_GETARG_INT32(5);
	TimestampTz not_before = PG_ARGISNULL(1) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(1);
	List	   *sights = NIL;
	Relation	rel;
	Relation	index;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	tandem_require_conflicts();
	if (!PG_ARGISNULL(2))
		wanted.subscription = NameStr(*PG_GETARG_NAME(2));
	if (!PG_ARGISNULL(3))
		parse_table(PG_GETARG_TEXT_PP(3), &wanted);
	if (!PG_ARGISNULL(4))
		parse_type(PG_GETARG_TEXT_PP(4), &wanted);

	InitMaterializedSRF(fcinfo, 0);
	rel = table_open(tandem_own_relation("conflict_log"), AccessShareLock);
	if (PG_ARGISNULL(0))
	{
		index = index_open(tandem_own_relation("conflict_log_time"), AccessShareLock);
		ScanKeyInit(&key, LOG_TIME, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
					TimestampTzGetDatum(not_before));
	}
	else
	{
		index = index_open(tandem_own_relation("conflict_log_id"), AccessShareLock);
		ScanKeyInit(&key, LOG_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(PG_GETARG_INT64(0)));
	}
	scan = systable_beginscan_ordered(rel, index, GetActiveSnapshot(), 1, &key);
	while (most > 0 && HeapTupleIsValid(tuple = systable_getnext_ordered(scan, BackwardScanDirection)))
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_wanted(tuple, RelationGetDescr(rel), &wanted))
			continue;
		put_conflict(rsinfo, tuple, RelationGetDescr(rel), &sights);
		most--;
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* ---- tandem.conflict_stats ---------------------------------------------------------------- */

Datum
tandem_conflict_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	tandem_require_conflicts();
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, tandem_log_store_counts())
	{
		const TandemLogCount *count = lfirst(lc);
		char	   *subscription = get_subscription_name(count->subid, true);
		char	   *table = get_rel_name(count->relid);
		char	   *schema = table ? get_namespace_name(get_rel_namespace(count->relid)) : NULL;
		NameData	names[3];
		Datum		v[9];
		bool		n[9] = {0};

		if (subscription == NULL)
			continue;
		namestrcpy(&names[0], subscription);
		namestrcpy(&names[1], schema ? schema : "");
		namestrcpy(&names[2], table ? table : "");
		v[0] = NameGetDatum(&names[0]);
		v[1] = NameGetDatum(&names[1]);
		n[1] = schema == NULL;
		v[2] = NameGetDatum(&names[2]);
		n[2] = table == NULL;
		v[3] = ObjectIdGetDatum(count->relid);
		v[4] = CStringGetTextDatum(count->type);
		v[5] = CStringGetTextDatum(count->resolution);
		v[6] = Int64GetDatum(count->conflicts);
		v[7] = TimestampTzGetDatum(count->since);
		v[8] = TimestampTzGetDatum(count->last);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, v, n);
	}
	return (Datum) 0;
}

/* ---- tandem.conflict_storage ---------------------------------------------------------------- */

/* Of the newest rows: their time, and how many of the last day are open, and have failed. */
static void
count_recent(TimestampTz *oldest, TimestampTz *newest, int64 *open, int64 *failed)
{
	Relation	rel = table_open(tandem_own_relation("conflict_log"), AccessShareLock);
	Relation	index = index_open(tandem_own_relation("conflict_log_time"), AccessShareLock);
	SysScanDesc scan = systable_beginscan_ordered(rel, index, GetActiveSnapshot(), 0, NULL);
	TimestampTz since = GetCurrentTimestamp() - USECS_PER_DAY;
	HeapTuple	tuple;
	bool		isnull;

	*oldest = *newest = 0;
	*open = *failed = 0;
	for (int i = 0; i < MOST_RECENT; i++)
	{
		TimestampTz time;
		Datum		resolution;

		CHECK_FOR_INTERRUPTS();
		tuple = systable_getnext_ordered(scan, BackwardScanDirection);
		if (!HeapTupleIsValid(tuple))
			break;
		time = DatumGetTimestampTz(heap_getattr(tuple, LOG_TIME, RelationGetDescr(rel), &isnull));
		if (*newest == 0)
			*newest = time;
		if (time < since)
			break;
		(void) heap_getattr(tuple, LOG_SETTLED, RelationGetDescr(rel), &isnull);
		if (!isnull)
			continue;
		(*open)++;
		resolution = heap_getattr(tuple, LOG_RESOLUTION, RelationGetDescr(rel), &isnull);
		*failed += !isnull && strcmp(TextDatumGetCString(resolution), "error") == 0;
	}
	systable_endscan_ordered(scan);

	scan = systable_beginscan_ordered(rel, index, GetActiveSnapshot(), 0, NULL);
	tuple = systable_getnext_ordered(scan, ForwardScanDirection);
	if (HeapTupleIsValid(tuple))
		*oldest = DatumGetTimestampTz(heap_getattr(tuple, LOG_TIME, RelationGetDescr(rel), &isnull));
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}

Datum
tandem_conflict_storage(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	TandemLogTrouble trouble;
	int64		stored;
	int64		bytes;
	TimestampTz oldest;
	TimestampTz newest;
	int64		open;
	int64		failed;
	Datum		v[9];
	bool		n[9] = {0};

	tandem_require_conflicts();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tandem_log_store_size(&stored, &bytes);
	count_recent(&oldest, &newest, &open, &failed);
	tandem_log_trouble(&trouble);
	v[0] = Int64GetDatum(stored);
	v[1] = Int64GetDatum(bytes);
	v[2] = TimestampTzGetDatum(oldest);
	n[2] = oldest == 0;
	v[3] = TimestampTzGetDatum(newest);
	n[3] = newest == 0;
	v[4] = Int64GetDatum(open);
	v[5] = Int64GetDatum(failed);
	v[6] = Int64GetDatum(trouble.not_stored);
	n[7] = n[8] = trouble.not_stored == 0;
	v[7] = n[7] ? (Datum) 0 : CStringGetTextDatum(trouble.error);
	v[8] = TimestampTzGetDatum(trouble.at);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), v, n)));
}
