/*-------------------------------------------------------------------------
 *
 * log_settle.c
 *	  Conflicts that somebody sees to: tandem.conflict_dismiss() and
 *	  tandem.conflict_replay().
 *
 *	 open --dismiss--> dismissed
 *	   |				  |
 *	   +-----replay-------+--> replayed
 *
 * Both are for the owner of the subscription (of one that is gone: superusers),
 * part of the caller's transaction, and exclude each other by a lock.
 *
 * Replaying does what the publisher did, to the table as it is now: the row is
 * looked for by its key, and updated, inserted if it isn't there and all of it
 * is known, or deleted.  The statements are the caller's own: privileges,
 * policies, constraints and triggers count as for any other, and subscribers of
 * this node get the change.  All names and operators in them are qualified, since
 * the caller's search_path may have anything.
 *
 * src/conflict/log_settle.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "conflict/log.h"

PG_FUNCTION_INFO_V1(tandem_conflict_dismiss);
PG_FUNCTION_INFO_V1(tandem_conflict_replay);

/* ---- The entry ----------------------------------------------------------------------- */

/* A conflict of the log, as far as it is needed here. */
typedef struct Conflict
{
	int64		id;
	Oid			relid;
	char	   *schema;
	char	   *table;
	char		operation;
	char	   *resolution;
	char		settled;		/* 0 = open */
	Jsonb	   *key;			/* NULL = none */
	Jsonb	   *remote_row;
} Conflict;

static void
check_owner(HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	Oid			subid = DatumGetObjectId(heap_getattr(tuple, LOG_SUBID, desc, &isnull));
	Datum		name = heap_getattr(tuple, LOG_SUBSCRIPTION, desc, &isnull);

	if (SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid)) ?
		!TANDEM_SUBSCRIPTION_OWNERCHECK(subid, GetUserId()) : !superuser())
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, isnull ? "" : NameStr(*DatumGetName(name)));
}

static Jsonb *
get_json(HeapTuple tuple, TupleDesc desc, int column)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, desc, &isnull);

	return isnull ? NULL : DatumGetJsonbPCopy(value);
}

/* Reads a conflict that the caller may settle, and locks it. */
static void
read_conflict(int64 id, Conflict *conflict)
{
	Relation	rel = table_open(tandem_own_relation("conflict_log"), AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	HeapTuple	tuple;
	Datum		value;
	bool		isnull;

	tandem_log_lock(id);
	tuple = tandem_log_store_get(rel, id);
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("conflict %lld does not exist", (long long) id),
				 errhint("The view tandem.conflicts of the database that subscribes lists those that are kept.")));
	check_owner(tuple, desc);
	memset(conflict, 0, sizeof(*conflict));
	conflict->id = id;
	conflict->relid = DatumGetObjectId(heap_getattr(tuple, LOG_RELID, desc, &isnull));
	conflict->schema = pstrdup(NameStr(*DatumGetName(heap_getattr(tuple, LOG_SCHEMA, desc, &isnull))));
	conflict->table = pstrdup(NameStr(*DatumGetName(heap_getattr(tuple, LOG_TABLE, desc, &isnull))));
	conflict->operation = DatumGetChar(heap_getattr(tuple, LOG_OPERATION, desc, &isnull));
	conflict->resolution = TextDatumGetCString(heap_getattr(tuple, LOG_RESOLUTION, desc, &isnull));
	value = heap_getattr(tuple, LOG_SETTLED, desc, &isnull);
	conflict->settled = isnull ? 0 : DatumGetChar(value);
	conflict->key = get_json(tuple, desc, LOG_KEY);
	conflict->remote_row = get_json(tuple, desc, LOG_REMOTE_ROW);
	table_close(rel, AccessShareLock);
}

Datum
tandem_conflict_dismiss(PG_FUNCTION_ARGS)
{
	Conflict	conflict;

	tandem_require_conflicts();
	PreventCommandIfReadOnly("tandem.conflict_dismiss()");
	read_conflict(PG_GETARG_INT64(0), &conflict);
	if (conflict.settled)
		ereport(NOTICE,
				(errmsg("conflict %lld has been %s already", (long long) conflict.id,
						conflict.settled == TANDEM_LOG_REPLAYED ? "replayed" : "dismissed")));
	else
		tandem_log_store_settle(conflict.id, TANDEM_LOG_DISMISSED);
	PG_RETURN_VOID();
}

/* ---- Values ---------------------------------------------------------------------------- */

/* A column that is set or compared. */
typedef struct Column
{
	AttrNumber	attnum;
	Oid			type;
	const char *name;			/* quoted */
	char		identity;		/* attidentity */
	Datum		value;
	bool		isnull;
} Column;

static void pg_attribute_noreturn()
refuse(const Conflict *conflict, const char *why, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("conflict %lld cannot be replayed: %s", (long long) conflict->id,
					psprintf(why, name)),
			 errhint("Change the row by hand, or copy the table again with tandem.resync(); then use tandem.conflict_dismiss(%lld).",
					 (long long) conflict->id)));
}

/* Text that the type's input function takes; NULL = it can't be told. */
static char *
value_text(JsonbValue *value, Oid type)
{
	if (value->type == jbvBinary)
	{
		Jsonb	   *container = JsonbValueToJsonb(value);
		JsonbValue	key = {.type = jbvString};

		key.val.string.val = TANDEM_LOG_CUT;
		key.val.string.len = strlen(TANDEM_LOG_CUT);
		if (getBaseType(type) != JSONBOID ||
			(JB_ROOT_IS_OBJECT(container) && findJsonbValueFromContainer(&container->root, JB_FOBJECT, &key)))
			return NULL;
		return JsonbToCString(NULL, &container->root, VARSIZE(container));
	}
	if (getBaseType(type) == JSONBOID)
	{
		Jsonb	   *scalar = JsonbValueToJsonb(value);

		return JsonbToCString(NULL, &scalar->root, VARSIZE(scalar));
	}
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/* The columns of a row, as the table has them now; without generated ones. */
static List *
read_columns(const Conflict *conflict, Relation rel, Jsonb *row)
{
	List	   *columns = NIL;
	JsonbIterator *it = JsonbIteratorInit(&row->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	char	   *name = NULL;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		AttrNumber	attnum;
		Form_pg_attribute att;
		Column	   *column;

		if (token == WJB_KEY)
			name = pnstrdup(value.val.string.val, value.val.string.len);
		if (token != WJB_VALUE)
			continue;
		attnum = get_attnum(RelationGetRelid(rel), name);
		if (attnum <= 0)
			refuse(conflict, "the table has no column \"%s\" any more", name);
		att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
		if (att->attgenerated)
			continue;
		column = palloc0(sizeof(Column));
		column->attnum = attnum;
		column->type = att->atttypid;
		column->name = pstrdup(quote_identifier(name));
		column->identity = att->attidentity;
		column->isnull = value.type == jbvNull;
		if (!column->isnull)
		{
			char	   *text = value_text(&value, att->atttypid);
			Oid			input;
			Oid			param;

			if (text == NULL)
				refuse(conflict, "the value of column \"%s\" was not kept as a whole", name);
			getTypeInputInfo(att->atttypid, &input, &param);
			column->value = OidInputFunctionCall(input, text, param, att->atttypmod);
		}
		columns = lappend(columns, column);
	}
	return columns;
}

static Column *
find_column(List *columns, AttrNumber attnum)
{
	ListCell   *lc;

	foreach(lc, columns)
	{
		if (((Column *) lfirst(lc))->attnum == attnum)
			return lfirst(lc);
	}
	return NULL;
}

/* The columns by which the row is looked for; NIL = there is no key. */
static List *
read_key(const Conflict *conflict, Relation rel, List *row)
{
	List	   *key = NIL;
	Oid			indexid;
	HeapTuple	tuple;
	Form_pg_index index;

	if (conflict->key)
		return read_columns(conflict, rel, conflict->key);

	indexid = TANDEM_PRIMARY_KEY_INDEX(rel);
	if (!OidIsValid(indexid))
		indexid = RelationGetReplicaIndex(rel);
	tuple = OidIsValid(indexid) ? SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexid)) : NULL;
	if (!HeapTupleIsValid(tuple))
		return NIL;
	index = (Form_pg_index) GETSTRUCT(tuple);
	for (int i = 0; i < index->indnkeyatts; i++)
	{
		Column	   *column = find_column(row, index->indkey.values[i]);

		if (column == NULL)
		{
			key = NIL;
			break;
		}
		key = lappend(key, column);
	}
	ReleaseSysCache(tuple);
	return key;
}

/* ---- Statements ---------------------------------------------------------------------------- */

/* A statement with its parameters. */
typedef struct Statement
{
	StringInfoData sql;
	int			nparams;
	Oid			types[2 * MaxHeapAttributeNumber + 2];
	Datum		values[2 * MaxHeapAttributeNumber + 2];
	char		nulls[2 * MaxHeapAttributeNumber + 2];
} Statement;

static Statement *
new_statement(void)
{
	Statement  *statement = palloc0(sizeof(Statement));

	initStringInfo(&statement->sql);
	return statement;
}

/* Adds a parameter; returns its "$1". */
static char *
add_param(Statement *statement, Oid type, Datum value, bool isnull)
{
	int			i = statement->nparams++;

	statement->types[i] = type;
	statement->values[i] = value;
	statement->nulls[i] = isnull ? 'n' : ' ';
	return psprintf("$%d", i + 1);
}

/* Runs it; returns the number of rows. */
static uint64
run(Statement *statement, int expected)
{
	int			result = SPI_execute_with_args(statement->sql.data, statement->nparams, statement->types,
											   statement->values, statement->nulls, false, 0);

	if (result != expected)
		elog(ERROR, "SPI_execute_with_args returned %s for \"%s\"", SPI_result_code_string(result),
			 statement->sql.data);
	return SPI_processed;
}

static char *
table_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel));
}

/* Without tables that inherit from it. */
static const char *
only(Relation rel)
{
	return rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ";
}

/* Where a row is. */
typedef struct Place
{
	Oid			tableoid;
	ItemPointerData ctid;
} Place;

static bool
find_row(const Conflict *conflict, Relation rel, List *key, Place *place)
{
	Statement  *select = new_statement();
	const char *and = "";
	ListCell   *lc;
	bool		isnull;

	appendStringInfo(&select->sql, "SELECT t.tableoid, t.ctid FROM %s%s t WHERE ", only(rel), table_name(rel));
	foreach(lc, key)
	{
		const Column *column = lfirst(lc);
		char	   *left = psprintf("t.%s", column->name);

		appendStringInfoString(&select->sql, and);
		and = " AND ";
		if (column->isnull)
			appendStringInfo(&select->sql, "%s IS NULL", left);
		else
		{
			TypeCacheEntry *type = lookup_type_cache(column->type, TYPECACHE_EQ_OPR);

			if (!OidIsValid(type->eq_opr))
				refuse(conflict, "the type of column %s has no equality", column->name);
			generate_operator_clause(&select->sql, left, column->type, type->eq_opr,
									 add_param(select, column->type, column->value, false), column->type);
		}
	}
	appendStringInfoString(&select->sql, " LIMIT 1");
	if (run(select, SPI_OK_SELECT) == 0)
		return false;
	place->tableoid = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	place->ctid = *(ItemPointer) DatumGetPointer(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	return true;
}

static void
append_place(Statement *statement, Place *place)
{
	appendStringInfo(&statement->sql, " WHERE t.ctid OPERATOR(pg_catalog.=) %s",
					 add_param(statement, TIDOID, PointerGetDatum(&place->ctid), false));
	appendStringInfo(&statement->sql, " AND t.tableoid OPERATOR(pg_catalog.=) %s",
					 add_param(statement, OIDOID, ObjectIdGetDatum(place->tableoid), false));
}

static void
check_changed(uint64 rows)
{
	if (rows == 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the row was changed meanwhile"),
				 errhint("Try again; policies of row level security or a trigger may also have kept it.")));
}

static const char *
delete_row(Relation rel, Place *place)
{
	Statement  *statement = new_statement();

	appendStringInfo(&statement->sql, "DELETE FROM %s%s t", only(rel), table_name(rel));
	append_place(statement, place);
	check_changed(run(statement, SPI_OK_DELETE));
	return "deleted";
}

static const char *
update_row(Relation rel, List *row, Place *place)
{
	Statement  *statement = new_statement();
	const char *comma = " SET ";
	ListCell   *lc;

	appendStringInfo(&statement->sql, "UPDATE %s%s t", only(rel), table_name(rel));
	foreach(lc, row)
	{
		const Column *column = lfirst(lc);

		/* it can only be set to its default */
		if (column->identity == ATTRIBUTE_IDENTITY_ALWAYS)
			continue;
		appendStringInfo(&statement->sql, "%s%s = %s", comma, column->name,
						 add_param(statement, column->type, column->value, column->isnull));
		comma = ", ";
	}
	if (comma[1] == 'S')
		return "unchanged";
	append_place(statement, place);
	check_changed(run(statement, SPI_OK_UPDATE));
	return "updated";
}

static const char *
insert_row(const Conflict *conflict, Relation rel, List *row)
{
	Statement  *statement = new_statement();
	StringInfoData values;
	const char *comma = "";
	ListCell   *lc;

	/* an update doesn't send large values that have not changed */
	for (int i = 0; i < RelationGetDescr(rel)->natts && conflict->operation == 'U'; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), i);

		if (!att->attisdropped && !att->attgenerated && att->attlen == -1 &&
			att->attstorage != TYPSTORAGE_PLAIN && find_column(row, i + 1) == NULL)
			refuse(conflict, "the row is not here, and the value of its column \"%s\" was not sent",
				   NameStr(att->attname));
	}
	initStringInfo(&values);
	appendStringInfo(&statement->sql, "INSERT INTO %s (", table_name(rel));
	foreach(lc, row)
	{
		const Column *column = lfirst(lc);

		appendStringInfo(&statement->sql, "%s%s", comma, column->name);
		appendStringInfo(&values, "%s%s", comma, add_param(statement, column->type, column->value, column->isnull));
		comma = ", ";
	}
	appendStringInfo(&statement->sql, ") OVERRIDING SYSTEM VALUE VALUES (%s)", values.data);
	(void) run(statement, SPI_OK_INSERT);
	return "inserted";
}

/* ---- tandem.conflict_replay() -------------------------------------------------------------------- */

static void
replay_context(void *arg)
{
	const Conflict *conflict = arg;

	errcontext("replaying conflict %lld on relation \"%s.%s\"", (long long) conflict->id,
			   conflict->schema, conflict->table);
}

static void
check_replayable(const Conflict *conflict)
{
	if (conflict->settled == TANDEM_LOG_REPLAYED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflict %lld has been replayed already", (long long) conflict->id),
				 errhint("The view tandem.conflicts says when and by whom.")));
	if (strcmp(conflict->resolution, "skipped") != 0 && strcmp(conflict->resolution, "error") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the remote change of conflict %lld was %s", (long long) conflict->id, conflict->resolution),
				 errhint("Only changes that were skipped or have failed can be replayed; tandem.conflict_dismiss(%lld) marks the conflict as seen to.",
						 (long long) conflict->id)));
}

/* The table that is written to: of a partition, the one that the rows are routed from. */
static Relation
open_table(const Conflict *conflict)
{
	Oid			relid = conflict->relid;
	Relation	rel = NULL;

	if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
	{
		if (get_rel_relispartition(relid))
			relid = llast_oid(get_partition_ancestors(relid));
		rel = try_table_open(relid, AccessShareLock);
	}
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("conflict %lld cannot be replayed: table \"%s.%s\" does not exist any more",
						(long long) conflict->id, conflict->schema, conflict->table),
				 errhint("tandem.conflict_dismiss(%lld) marks the conflict as seen to.", (long long) conflict->id)));
	return rel;
}

Datum
tandem_conflict_replay(PG_FUNCTION_ARGS)
{
	Conflict	conflict;
	Relation	rel;
	List	   *row = NIL;
	List	   *key;
	Place		place;
	bool		found;
	const char *done;
	ErrorContextCallback context;

	tandem_require_conflicts();
	PreventCommandIfReadOnly("tandem.conflict_replay()");
	read_conflict(PG_GETARG_INT64(0), &conflict);
	check_replayable(&conflict);
	rel = open_table(&conflict);

	context.callback = replay_context;
	context.arg = &conflict;
	context.previous = error_context_stack;
	error_context_stack = &context;
	if (conflict.remote_row)
		row = read_columns(&conflict, rel, conflict.remote_row);
	key = read_key(&conflict, rel, row);
	if (conflict.operation != 'D' && row == NIL)
		refuse(&conflict, "%s", "its row was not kept");
	if (conflict.operation != 'I' && key == NIL)
		refuse(&conflict, "%s", "the table has no key that its row could be found by");

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	found = key != NIL && find_row(&conflict, rel, key, &place);
	if (conflict.operation == 'D')
		done = found ? delete_row(rel, &place) : "not there";
	else
		done = found ? update_row(rel, row, &place) : insert_row(&conflict, rel, row);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	error_context_stack = context.previous;

	table_close(rel, NoLock);
	tandem_log_store_settle(conflict.id, TANDEM_LOG_REPLAYED);
	PG_RETURN_TEXT_P(cstring_to_text(done));
}
