/*-------------------------------------------------------------------------
 *
 * structure.c
 *	  What of a publisher's table doesn't fit the table here, with the DDL that
 *	  mends it.
 *
 * Two kinds.  A problem: the publisher sends a column that can't be filled here,
 * so nothing is copied.  A remark: a type that doesn't take every value, or a
 * column that would have to be sent and isn't; the copy is tried, as rows may
 * fit after all or a trigger may mend them.  Both are told for all tables of a
 * wave before the first is copied.
 *
 * The local side is read from the catalogs without a lock: a table that somebody
 * has locked keeps no other one waiting.  Copying looks again, with its lock.
 *
 * Called by wave_tables.c, in the leader; search_path is empty there and in the
 * connection to the publisher, so that both name types alike.
 *
 * src/subscription/structure.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "common/column_fit.h"
#include "subscription/structure.h"

#define MOST_NAMED 10			/* columns, and statements in a hint */

/* Names of one kind; the statements go to one hint. */
typedef struct Names
{
	int			n;
	StringInfoData text;
} Names;

static void
add_name(Names *names, const char *text)
{
	if (names->n == 0)
		initStringInfo(&names->text);
	if (names->n < MOST_NAMED)
		appendStringInfo(&names->text, "%s%s", names->n > 0 ? ", " : "", text);
	names->n++;
}

static void
add_fix(Names *fixes, TandemColumnFit fit, const char *table, const char *column, const char *type)
{
	char	   *quoted = pstrdup(quote_identifier(column));
	int			size = tandem_column_fix(NULL, 0, fit, table, quoted, type) + 1;
	char	   *sql = palloc(size);

	(void) tandem_column_fix(sql, size, fit, table, quoted, type);
	if (fixes->n == 0)
		initStringInfo(&fixes->text);
	if (fixes->n < MOST_NAMED)
		appendStringInfo(&fixes->text, "%s%s", fixes->n > 0 ? " " : "", sql);
	fixes->n++;
}

/* "a", "b" and 3 more */
static char *
finish(Names *names, const char *what)
{
	if (names->n > MOST_NAMED)
		appendStringInfo(&names->text, " and %d more", names->n - MOST_NAMED);
	return psprintf("%s: %s", what, names->text.data);
}

/*
 * Types whose binary form is the same on every version and doesn't name
 * objects by OID, and their arrays.
 */
static bool
type_is_binary(Oid type)
{
	static const Oid types[] = {
		BOOLOID, BYTEAOID, INT8OID, INT2OID, INT4OID, TEXTOID, VARCHAROID, BPCHAROID, FLOAT4OID,
		FLOAT8OID, NUMERICOID, DATEOID, TIMEOID, TIMETZOID, TIMESTAMPOID, TIMESTAMPTZOID, INTERVALOID,
		UUIDOID, JSONOID, JSONBOID, INETOID, CIDROID, MACADDROID, MACADDR8OID, BITOID, VARBITOID,
		POINTOID, BOXOID, LSEGOID, PATHOID, POLYGONOID, CIRCLEOID, LINEOID,
		BOOLARRAYOID, BYTEAARRAYOID, INT2ARRAYOID, INT4ARRAYOID, INT8ARRAYOID, TEXTARRAYOID,
		VARCHARARRAYOID, FLOAT4ARRAYOID, FLOAT8ARRAYOID, NUMERICARRAYOID, DATEARRAYOID,
		TIMESTAMPARRAYOID, TIMESTAMPTZARRAYOID, UUIDARRAYOID, JSONBARRAYOID};

	for (int i = 0; i < lengthof(types); i++)
	{
		if (types[i] == type)
			return true;
	}
	return false;
}

/* A column as pg_attribute has it; false if there is none (any more). */
static bool
fetch_column(HeapTuple tuple, FormData_pg_attribute *column)
{
	bool		found = HeapTupleIsValid(tuple) && ((Form_pg_attribute) GETSTRUCT(tuple))->attnum > 0 &&
		!((Form_pg_attribute) GETSTRUCT(tuple))->attisdropped;

	memset(column, 0, ATTRIBUTE_FIXED_PART_SIZE);
	if (found)
		memcpy(column, GETSTRUCT(tuple), ATTRIBUTE_FIXED_PART_SIZE);
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return found;
}

void
tandem_structure_compare(Oid relid, ArrayType *names, ArrayType *oids, ArrayType *types,
						 bool binary_stream, TandemStructure *result)
{
	HeapTuple	relation = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	int			natts;
	Bitmapset  *sent = NULL;
	char	   *table;
	Names		missing = {0};
	Names		differing = {0};
	Names		demanded = {0};
	Names		fixes = {0};
	Datum	   *name_values = NULL;
	Datum	   *oid_values = NULL;
	Datum	   *type_values = NULL;
	int			n = 0;
	StringInfoData remark;

	memset(result, 0, sizeof(*result));
	if (!HeapTupleIsValid(relation))
	{
		result->problem = pstrdup("the table does not exist here");
		return;
	}
	natts = ((Form_pg_class) GETSTRUCT(relation))->relnatts;
	table = quote_qualified_identifier(get_namespace_name(((Form_pg_class) GETSTRUCT(relation))->relnamespace),
									   NameStr(((Form_pg_class) GETSTRUCT(relation))->relname));
	ReleaseSysCache(relation);
	if (names)
	{
		deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &name_values, NULL, &n);
		deconstruct_array(oids, OIDOID, sizeof(Oid), true, TYPALIGN_INT, &oid_values, NULL, &n);
		deconstruct_array(types, TEXTOID, -1, false, TYPALIGN_INT, &type_values, NULL, &n);
	}
	result->binary = n > 0;
	for (int i = 0; i < n; i++)
	{
		char	   *name = TextDatumGetCString(name_values[i]);
		char	   *there = TextDatumGetCString(type_values[i]);
		FormData_pg_attribute column;
		bool		found = fetch_column(SearchSysCacheAttName(relid, name), &column);
		char	   *here = found ? format_type_with_typemod(column.atttypid, column.atttypmod) : NULL;
		TandemColumnFit fit = tandem_column_fit(there, here, column.attgenerated, binary_stream);

		if (found)
			sent = bms_add_member(sent, column.attnum);
		if (column.atttypid != DatumGetObjectId(oid_values[i]) || !type_is_binary(column.atttypid))
			result->binary = false;
		if (fit == TANDEM_COLUMN_FITS)
			continue;
		if (fit == TANDEM_COLUMN_TYPE)
			add_name(&differing, psprintf("\"%s\" (%s here, %s there)", name, here, there));
		else
			add_name(&missing, psprintf(fit == TANDEM_COLUMN_GENERATED ? "\"%s\" (generated here)" : "\"%s\"", name));
		add_fix(&fixes, fit, table, name, there);
	}
	for (int i = 1; i <= natts; i++)
	{
		FormData_pg_attribute column;

		if (bms_is_member(i, sent) ||
			!fetch_column(SearchSysCache2(ATTNUM, ObjectIdGetDatum(relid), Int16GetDatum(i)), &column) ||
			!column.attnotnull || column.atthasdef || column.attidentity)
			continue;
		add_name(&demanded, psprintf("\"%s\"", NameStr(column.attname)));
		add_fix(&fixes, TANDEM_COLUMN_DEMANDED, table, NameStr(column.attname), NULL);
	}

	initStringInfo(&remark);
	if (differing.n > 0)
		appendStringInfoString(&remark, finish(&differing, "columns have another type"));
	if (demanded.n > 0)
		appendStringInfo(&remark, "%s%s", remark.len ? "; " : "",
						 finish(&demanded, "columns are NOT NULL without a default and not sent"));
	if (missing.n > 0)
		result->problem = finish(&missing, "the publisher sends columns that this table can't take");
	if (remark.len > 0)
		result->remark = remark.data;
	if (fixes.n > MOST_NAMED)
		appendStringInfo(&fixes.text, " -- and %d more", fixes.n - MOST_NAMED);
	if (fixes.n > 0)
		result->hint = fixes.text.data;
}
