/*-------------------------------------------------------------------------
 *
 * wave_tables.c
 *	  What the publisher knows of the tables of a wave, in one query.
 *
 * Asked twice: before the wave, for the relation ids that the apply worker's
 * gate needs, the columns, filters and sizes; and under the wave's snapshot,
 * when a table that is no longer the same is left for a later wave.  An empty
 * table (no blocks in the very file that the snapshot knows) isn't copied.
 *
 * The size is read before the file's number: no blocks now, and then still the
 * snapshot's file, means that this file was the one without blocks.
 *
 * Also says what doesn't fit here: tables and columns that are missing.
 *
 * Called by wave.c.
 *
 * src/subscription/wave_tables.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "subscription/waves.h"

enum
{
	COL_N = 1,
	COL_OID,
	COL_KIND,
	COL_SAME_FILE,
	COL_EMPTY,
	COL_COLUMNS,
	COL_TYPES,
	COL_FILTERS,
	COL_LISTS,
	COL_ROWS,
	COL_BYTES,
	NUM_COLS = COL_BYTES
};

static const Oid column_types[NUM_COLS] = {INT4OID, OIDOID, CHAROID, BOOLOID, BOOLOID,
										   TEXTARRAYOID, OIDARRAYOID, TEXTARRAYOID, INT8OID, INT8OID, INT8OID};

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

static void
append_query(StringInfo query, const Subscription *sub, List *copies)
{
	ListCell   *lc;
	bool		first = true;
	int			n = 0;

	appendStringInfoString(query,
						   "WITH p AS (SELECT g.relid,"
						   " count(DISTINCT coalesce(g.list, '*')) AS lists, min(g.list) AS list,"
						   " CASE WHEN bool_or(g.qual IS NULL) THEN NULL"
						   " ELSE array_agg(DISTINCT g.qual) END AS filters"
						   " FROM (SELECT t.relid, pg_catalog.pg_get_expr(t.qual, t.relid) AS qual,"
						   " CASE WHEN pg_catalog.array_length(t.attrs, 1) = c.relnatts THEN NULL"
						   " ELSE t.attrs::text END AS list"
						   " FROM pg_catalog.pg_publication p,"
						   " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) t,"
						   " pg_catalog.pg_class c"
						   " WHERE c.oid = t.relid AND p.pubname IN (");
	foreach(lc, sub->publications)
	{
		appendStringInfo(query, "%s%s", first ? "" : ", ", quote_literal_cstr(strVal(lfirst(lc))));
		first = false;
	}
	appendStringInfoString(query, ")) g GROUP BY g.relid) SELECT w.n, c.oid, c.relkind,"
								  " CASE WHEN c.relkind = 'r' THEN c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)"
								  " ELSE coalesce((SELECT bool_and(l.relfilenode = pg_catalog.pg_relation_filenode(l.oid))"
								  " FROM pg_catalog.pg_partition_tree(c.oid) t JOIN pg_catalog.pg_class l ON l.oid = t.relid"
								  " WHERE l.relkind = 'r'), true) END,"
								  " CASE WHEN c.relkind = 'r' AND pg_catalog.pg_relation_size(c.oid) = 0"
								  " THEN c.relfilenode = pg_catalog.pg_relation_filenode(c.oid) ELSE false END,"
								  " (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
								  " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
								  " AND (p.list IS NULL OR a.attnum = ANY (pg_catalog.string_to_array(p.list, ' ')::int2[]))),"
								  " (SELECT array_agg(a.atttypid ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
								  " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
								  " AND (p.list IS NULL OR a.attnum = ANY (pg_catalog.string_to_array(p.list, ' ')::int2[]))),"
								  " p.filters, coalesce(p.lists, 0)::int8, greatest(c.reltuples, 0)::int8,"
								  " CASE WHEN c.relkind = 'r' THEN pg_catalog.pg_relation_size(c.oid)"
								  " + CASE WHEN c.reltoastrelid = 0 THEN 0 ELSE coalesce(pg_catalog.pg_relation_size(c.reltoastrelid), 0) END"
								  " ELSE coalesce((SELECT sum(pg_catalog.pg_table_size(t.relid)) FROM pg_catalog.pg_partition_tree(c.oid) t"
								  " WHERE t.isleaf), 0) END::int8"
								  " FROM (VALUES ");
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);
		char	   *nspname = get_namespace_name(get_rel_namespace(copy->relid));
		char	   *relname = get_rel_name(copy->relid);

		/* a table dropped here just now matches nothing */
		appendStringInfo(query, "%s(%d, %s, %s)", n ? ", " : "", n,
						 quote_literal_cstr(nspname ? nspname : ""),
						 quote_literal_cstr(relname ? relname : ""));
		n++;
	}
	appendStringInfoString(query, ") AS w (n, nspname, relname)"
								  " JOIN pg_catalog.pg_namespace s ON s.nspname = w.nspname"
								  " JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = w.relname"
								  " LEFT JOIN p ON p.relid = c.oid"
								  " WHERE c.relkind IN ('r', 'p')");
}

/* The command that makes the publisher send a table. */
static char *
copy_command(const char *name, char kind, ArrayType *columns, ArrayType *filters, bool binary)
{
	StringInfoData command;
	Datum	   *names = NULL;
	int			nnames = 0;
	bool		select = kind != RELKIND_RELATION || filters != NULL;

	initStringInfo(&command);
	if (columns)
		deconstruct_array(columns, TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &nnames);
	appendStringInfoString(&command, "COPY ");
	if (select)
		appendStringInfoString(&command, "(SELECT ");
	else
		appendStringInfo(&command, "%s%s", name, nnames > 0 ? " (" : "");
	for (int i = 0; i < nnames; i++)
		appendStringInfo(&command, "%s%s", i ? ", " : "", quote_identifier(TextDatumGetCString(names[i])));
	if (select)
	{
		appendStringInfo(&command, " FROM %s%s", kind == RELKIND_RELATION ? "ONLY " : "", name);
		if (filters)
		{
			Datum	   *quals;
			int			nquals;

			deconstruct_array(filters, TEXTOID, -1, false, TYPALIGN_INT, &quals, NULL, &nquals);
			for (int i = 0; i < nquals; i++)
				appendStringInfo(&command, "%s(%s)", i ? " OR " : " WHERE ", TextDatumGetCString(quals[i]));
		}
		appendStringInfoChar(&command, ')');
	}
	else if (nnames > 0)
		appendStringInfoChar(&command, ')');
	appendStringInfo(&command, " TO STDOUT%s", binary ? " (FORMAT binary)" : "");
	return command.data;
}

/*
 * Do the publisher's columns fit?  Returns what is missing (palloc'd) or NULL;
 * *binary says whether all of them can be sent in binary format.
 */
static char *
columns_problem(Oid relid, ArrayType *columns, ArrayType *types, bool *binary)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	StringInfoData missing;
	Datum	   *names = NULL;
	Datum	   *oids = NULL;
	int			n = 0;

	if (rel == NULL)
		return pstrdup("the table does not exist here");
	initStringInfo(&missing);
	if (columns)
	{
		deconstruct_array(columns, TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &n);
		deconstruct_array(types, OIDOID, sizeof(Oid), true, TYPALIGN_INT, &oids, NULL, &n);
	}
	*binary = n > 0;
	for (int i = 0; i < n; i++)
	{
		char	   *name = TextDatumGetCString(names[i]);
		AttrNumber	attnum = get_attnum(relid, name);

		if (attnum <= 0 || TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attgenerated)
		{
			appendStringInfo(&missing, "%s\"%s\"", missing.len ? ", " : "", name);
			continue;
		}
		if (TupleDescAttr(RelationGetDescr(rel), attnum - 1)->atttypid != DatumGetObjectId(oids[i]) ||
			!type_is_binary(DatumGetObjectId(oids[i])))
			*binary = false;
	}
	relation_close(rel, AccessShareLock);
	return missing.len ? psprintf("the publisher sends columns that this table can't take: %s", missing.data) : NULL;
}

/* A text[] as text, which array_in() reads. */
static char *
array_text(Datum array)
{
	Oid			output;
	bool		varlena;

	getTypeOutputInfo(TEXTARRAYOID, &output, &varlena);
	return OidOutputFunctionCall(output, array);
}

void
tandem_wave_describe(WalReceiverConn *conn, const Subscription *sub, List *copies, bool recheck)
{
	StringInfoData query;
	WalRcvExecResult *res;
	TupleTableSlot *slot;
	bool	   *seen = palloc0(sizeof(bool) * (list_length(copies) + 1));
	int			i = 0;
	ListCell   *lc;

	if (copies == NIL)
		return;
	initStringInfo(&query);
	append_query(&query, sub, copies);
	res = tandem_publisher_query(conn, query.data, NUM_COLS, column_types);
	slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	while (tuplestore_gettupleslot(res->tuplestore, true, false, slot))
	{
		Datum	   *v;
		bool	   *isnull;
		TandemCopy *copy;
		int			n;
		ArrayType  *columns;
		ArrayType  *filters;
		char		kind;
		bool		binary = false;
		char	   *name;
		char	   *text;
		char	   *command;
		char	   *problem;

		slot_getallattrs(slot);
		v = slot->tts_values - 1;
		isnull = slot->tts_isnull - 1;
		n = DatumGetInt32(v[COL_N]);
		copy = list_nth(copies, n);
		seen[n] = true;
		kind = DatumGetChar(v[COL_KIND]);
		columns = isnull[COL_COLUMNS] ? NULL : DatumGetArrayTypeP(v[COL_COLUMNS]);
		filters = isnull[COL_FILTERS] ? NULL : DatumGetArrayTypeP(v[COL_FILTERS]);
		text = columns ? array_text(PointerGetDatum(columns)) : pstrdup("{}");
		name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(copy->relid)),
										  get_rel_name(copy->relid));

		problem = columns_problem(copy->relid, columns,
								  columns ? DatumGetArrayTypeP(v[COL_TYPES]) : NULL, &binary);
		if (DatumGetInt64(v[COL_LISTS]) > 1)
			problem = pstrdup("its column lists differ between publications");
		command = copy_command(name, kind, columns, filters, binary);

		if (!recheck)
		{
			copy->remote_relid = DatumGetObjectId(v[COL_OID]);
			copy->remote_name = name;
			copy->columns = text;
			copy->query = command;
			copy->binary = binary;
			copy->rows_estimated = DatumGetInt64(v[COL_ROWS]);
			copy->bytes_estimated = DatumGetInt64(v[COL_BYTES]);
		}
		else if (copy->remote_relid != DatumGetObjectId(v[COL_OID]) ||
				 strcmp(copy->query, command) != 0 || strcmp(copy->columns, text) != 0)
			problem = pstrdup("the publisher's table was changed when its copy began");
		else if (isnull[COL_SAME_FILE] || !DatumGetBool(v[COL_SAME_FILE]))
			problem = pstrdup("the publisher's table was rewritten when its copy began");
		else if (!isnull[COL_EMPTY] && DatumGetBool(v[COL_EMPTY]))
			copy->query = NULL;
		copy->error = problem;
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);

	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (!seen[i++])
			copy->error = pstrdup("the publisher has no table of this name");
	}
}
