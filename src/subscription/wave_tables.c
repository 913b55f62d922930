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
 * One table that is locked there must not keep the others waiting.  So nothing
 * is called that locks a table (sizes, partition trees) of one that somebody has
 * locked ACCESS EXCLUSIVE or is about to; it is left for a later wave.  A lock
 * taken in between is waited for until lock_timeout, and seen the next time.
 *
 * What doesn't fit here is said by structure.c.
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
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "subscription/structure.h"
#include "subscription/waves.h"

#define CACHED_TABLES 1000		/* whose descriptions may stay in this process's caches */

enum
{
	COL_N = 1,
	COL_OID,
	COL_KIND,
	COL_LOCKED,
	COL_SAME_FILE,
	COL_EMPTY,
	COL_COLUMNS,
	COL_TYPES,
	COL_TYPE_NAMES,
	COL_FILTERS,
	COL_LISTS,
	COL_ROWS,
	COL_BYTES,
	NUM_COLS = COL_BYTES
};

static const Oid column_types[NUM_COLS] = {INT4OID, OIDOID, CHAROID, BOOLOID, BOOLOID, BOOLOID,
										   TEXTARRAYOID, OIDARRAYOID, TEXTARRAYOID, TEXTARRAYOID, INT8OID, INT8OID, INT8OID};

/*
 * Tables that another session has locked, or waits to lock, so that asking for
 * their size would wait; also those with such a partition or TOAST table.
 */
#define LOCKED_TABLES \
	"l AS MATERIALIZED (SELECT DISTINCT k.relation AS relid FROM pg_catalog.pg_locks k" \
	" WHERE k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock' AND k.pid <> pg_catalog.pg_backend_pid()" \
	" AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))," \
	" locked AS MATERIALIZED (SELECT l.relid FROM l" \
	" UNION SELECT a.relid FROM l JOIN pg_catalog.pg_class c ON c.oid = l.relid AND c.relispartition," \
	" LATERAL pg_catalog.pg_partition_ancestors(l.relid) a" \
	" UNION SELECT c.oid FROM l JOIN pg_catalog.pg_class c ON c.reltoastrelid = l.relid)"

/* Is relation "oid" of namespace "namespace" named by publication b, itself or with its schema? */
#define NAMED(oid, namespace) \
	"(EXISTS (SELECT 1 FROM pg_catalog.pg_publication_rel x WHERE x.prrelid = " oid " AND x.prpubid = b.oid)" \
	" OR EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace x WHERE x.pnnspid = " namespace " AND x.pnpubid = b.oid))"

#define ANCESTOR_NAMED \
	"EXISTS (SELECT 1 FROM pg_catalog.pg_partition_ancestors(c.oid) a JOIN pg_catalog.pg_class ac ON ac.oid = a.relid" \
	" WHERE a.relid <> c.oid AND " NAMED("ac.oid", "ac.relnamespace") ")"

/*
 * The tables for which some publication of the subscription has a column list or
 * a row filter: relid, lists (number of different column lists), list (attribute
 * numbers, NULL = all columns), filters (NULL = all rows).  What a table is given
 * in one publication is void if another one has the table without.
 *
 * Reads the catalogs as pg_get_publication_tables() does, which locks all tables
 * of a publication from 16 on.  Before 15 there were neither lists nor filters.
 */
static void
append_published(StringInfo query, const Subscription *sub, int version)
{
	StringInfoData names;
	ListCell   *lc;

	if (version < TANDEM_COLUMN_LISTS_SINCE)
	{
		appendStringInfoString(query, "SELECT 0::oid AS relid, 1::int8 AS lists, NULL::text AS list, NULL::text[] AS filters WHERE false");
		return;
	}
	initStringInfo(&names);
	foreach(lc, sub->publications)
		appendStringInfo(&names, "%s%s", names.len ? ", " : "", quote_literal_cstr(strVal(lfirst(lc))));
	appendStringInfo(query,
					 "SELECT g.relid,"
					 " count(DISTINCT coalesce(g.list, '*')) AS lists, min(g.list) AS list,"
					 " CASE WHEN bool_or(g.qual IS NULL) THEN NULL"
					 " ELSE array_agg(DISTINCT g.qual) END AS filters"
					 " FROM (SELECT c.oid AS relid, pg_catalog.pg_get_expr(r.prqual, r.prrelid) AS qual,"
					 " CASE WHEN pg_catalog.array_length(r.prattrs, 1) = c.relnatts THEN NULL"
					 " ELSE r.prattrs::text END AS list"
					 " FROM (SELECT DISTINCT s.prrelid FROM pg_catalog.pg_publication_rel s"
					 " JOIN pg_catalog.pg_publication b ON b.oid = s.prpubid"
					 " WHERE b.pubname IN (%s) AND (s.prqual IS NOT NULL OR s.prattrs IS NOT NULL)) s"
					 " JOIN pg_catalog.pg_class c ON c.oid = s.prrelid"
					 " CROSS JOIN pg_catalog.pg_publication b"
					 " LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid"
					 " AND NOT b.puballtables AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace x"
					 " WHERE x.pnpubid = b.oid AND x.pnnspid = c.relnamespace)"
					 " WHERE b.pubname IN (%s) AND c.oid NOT IN (SELECT locked.relid FROM locked)"
					 " AND CASE WHEN b.pubviaroot AND b.puballtables THEN NOT c.relispartition"
					 " WHEN b.puballtables THEN c.relkind = 'r'"
					 " WHEN b.pubviaroot THEN " NAMED("c.oid", "c.relnamespace")
					 " AND NOT (c.relispartition AND " ANCESTOR_NAMED ")"
					 " ELSE c.relkind = 'r' AND (" NAMED("c.oid", "c.relnamespace")
					 " OR (c.relispartition AND " ANCESTOR_NAMED ")) END) g GROUP BY g.relid",
					 names.data, names.data);
	pfree(names.data);
}

/* One value of each column that is sent, in order, as an array. */
static void
append_columns(StringInfo query, const char *value)
{
	appendStringInfo(query,
					 " (SELECT array_agg(%s ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
					 " WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''"
					 " AND (p.list IS NULL OR a.attnum = ANY (pg_catalog.string_to_array(p.list, ' ')::int2[]))),",
					 value);
}

static void
append_query(StringInfo query, const Subscription *sub, List *copies, int version)
{
	ListCell   *lc;
	int			n = 0;

	appendStringInfoString(query, "WITH " LOCKED_TABLES ", p AS (");
	append_published(query, sub, version);
	appendStringInfoString(query, ") SELECT w.n, c.oid, c.relkind, k.relid IS NOT NULL,"
								  " CASE WHEN k.relid IS NOT NULL THEN NULL"
								  " WHEN c.relkind = 'r' THEN c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)"
								  " ELSE coalesce((SELECT bool_and((SELECT l.relfilenode FROM pg_catalog.pg_class l"
								  " WHERE l.oid = t.relid AND l.relkind = 'r') = pg_catalog.pg_relation_filenode(t.relid))"
								  " FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf), true) END,"
								  " CASE WHEN k.relid IS NOT NULL THEN NULL"
								  " WHEN c.relkind = 'r' AND pg_catalog.pg_relation_size(c.oid) = 0"
								  " THEN c.relfilenode = pg_catalog.pg_relation_filenode(c.oid) ELSE false END,");
	append_columns(query, "a.attname::text");
	append_columns(query, "a.atttypid");
	append_columns(query, "pg_catalog.format_type(a.atttypid, a.atttypmod)");
	appendStringInfoString(query,
								  " p.filters, coalesce(p.lists, 0)::int8, greatest(c.reltuples, 0)::int8,"
								  " CASE WHEN k.relid IS NOT NULL THEN 0 WHEN c.relkind = 'r' THEN pg_catalog.pg_relation_size(c.oid)"
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
								  " LEFT JOIN locked k ON k.relid = c.oid"
								  " WHERE c.relkind IN ('r', 'p')");
}

#define COPY_END(binary) ((binary) ? " TO STDOUT (FORMAT binary)" : " TO STDOUT")
#define COPY_QUERY "COPY (SELECT "

/*
 * The command that makes the publisher send a table.  A query of an ordinary
 * table ends in its filter, in parentheses; tandem_copy_range() adds to it.
 */
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
	if (select)
		appendStringInfoString(&command, COPY_QUERY);
	else
		appendStringInfo(&command, "COPY %s%s", name, nnames > 0 ? " (" : "");
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
				appendStringInfo(&command, "%s(%s)", i ? " OR " : " WHERE (", TextDatumGetCString(quals[i]));
			appendStringInfoChar(&command, ')');
		}
		appendStringInfoChar(&command, ')');
	}
	else if (nnames > 0)
		appendStringInfoChar(&command, ')');
	appendStringInfoString(&command, COPY_END(binary));
	return command.data;
}

List *
tandem_copy_columns(const TandemCopy *copy)
{
	Datum		array = OidInputFunctionCall(F_ARRAY_IN, copy->columns, TEXTOID, -1);
	Datum	   *names;
	int			n;
	List	   *list = NIL;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &names, NULL, &n);
	for (int i = 0; i < n; i++)
		list = lappend(list, makeString(TextDatumGetCString(names[i])));
	return list;
}

char *
tandem_copy_range(const TandemCopy *copy, int64 from, int64 to)
{
	const char *end = COPY_END(copy->binary);
	StringInfoData command;

	initStringInfo(&command);
	if (strncmp(copy->query, COPY_QUERY, strlen(COPY_QUERY)) == 0)
	{
		/* without the last parenthesis */
		appendBinaryStringInfo(&command, copy->query, strlen(copy->query) - strlen(end) - 1);
		appendStringInfoString(&command, " AND ");
	}
	else
	{
		const char *separator = "";
		ListCell   *lc;

		appendStringInfoString(&command, COPY_QUERY);
		foreach(lc, tandem_copy_columns(copy))
		{
			appendStringInfo(&command, "%s%s", separator, quote_identifier(strVal(lfirst(lc))));
			separator = ", ";
		}
		appendStringInfo(&command, " FROM ONLY %s WHERE ", copy->remote_name);
	}
	appendStringInfo(&command, "ctid >= '(" INT64_FORMAT ",0)'::pg_catalog.tid", from);
	if (to >= 0)
		appendStringInfo(&command, " AND ctid < '(" INT64_FORMAT ",0)'::pg_catalog.tid", to);
	appendStringInfo(&command, ")%s", end);
	return command.data;
}

/* A copy of text, which may be NULL, in a context. */
static char *
keep(MemoryContext context, const char *text)
{
	return text ? MemoryContextStrdup(context, text) : NULL;
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
	MemoryContext context = CurrentMemoryContext;
	MemoryContext table_context;
	int			cached = 0;
	int			i = 0;
	ListCell   *lc;

	if (copies == NIL)
		return;
	initStringInfo(&query);
	append_query(&query, sub, copies, tandem_publisher_version(conn));

	/*
	 * The publisher's planner knows nothing of the lists that are joined here,
	 * and takes a nested loop, whose time grows with the square of their length.
	 */
	tandem_publisher_exec(conn, "SET enable_nestloop = off");
	tandem_publisher_exec(conn, "SET jit = off");
	res = tandem_publisher_query(conn, query.data, NUM_COLS, column_types);
	slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	/* what a copy points to is kept in the caller's context, nothing else is */
	table_context = AllocSetContextCreate(context, "tandem table", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		Datum	   *v;
		bool	   *isnull;
		TandemCopy *copy;
		int			n;
		ArrayType  *columns;
		ArrayType  *filters;
		char		kind;
		TandemStructure structure;
		char	   *name;
		char	   *text;
		char	   *command;
		char	   *problem;

		/* the row itself may be allocated, and is freed with the slot */
		MemoryContextSwitchTo(context);
		if (!tuplestore_gettupleslot(res->tuplestore, true, false, slot))
			break;

		/* with many tables the caches would be most of this process's memory */
		if (++cached % CACHED_TABLES == 0)
			InvalidateSystemCaches();
		MemoryContextReset(table_context);
		MemoryContextSwitchTo(table_context);
		slot_getallattrs(slot);
		v = slot->tts_values - 1;
		isnull = slot->tts_isnull - 1;
		n = DatumGetInt32(v[COL_N]);
		copy = list_nth(copies, n);
		seen[n] = true;
		if (DatumGetBool(v[COL_LOCKED]))
		{
			copy->error = keep(context, "the publisher's table is locked ACCESS EXCLUSIVE");
			copy->hint = keep(context, "It is copied when that lock is released there.");
			continue;
		}
		kind = DatumGetChar(v[COL_KIND]);
		columns = isnull[COL_COLUMNS] ? NULL : DatumGetArrayTypeP(v[COL_COLUMNS]);
		filters = isnull[COL_FILTERS] ? NULL : DatumGetArrayTypeP(v[COL_FILTERS]);
		text = columns ? array_text(PointerGetDatum(columns)) : pstrdup("{}");
		name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(copy->relid)),
										  get_rel_name(copy->relid));

		tandem_structure_compare(copy->relid, columns, columns ? DatumGetArrayTypeP(v[COL_TYPES]) : NULL,
								 columns ? DatumGetArrayTypeP(v[COL_TYPE_NAMES]) : NULL, sub->binary, &structure);
		problem = structure.problem;
		copy->remark = keep(context, structure.remark);
		copy->hint = keep(context, structure.hint);
		if (DatumGetInt64(v[COL_LISTS]) > 1)
		{
			problem = pstrdup("its column lists differ between publications");
			copy->hint = keep(context, "Give the table the same column list in all of the subscription's publications.");
		}
		command = copy_command(name, kind, columns, filters, structure.binary);

		if (!recheck)
		{
			copy->remote_relid = DatumGetObjectId(v[COL_OID]);
			copy->remote_name = keep(context, name);
			copy->columns = keep(context, text);
			copy->query = keep(context, command);
			copy->binary = structure.binary;
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
		copy->error = keep(context, problem);
	}
	MemoryContextDelete(table_context);
	InvalidateSystemCaches();
	pfree(query.data);
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);

	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (seen[i++])
			continue;
		copy->error = pstrdup("the publisher has no table of this name");
		copy->hint = psprintf("To leave it out, run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
							  quote_identifier(sub->name));
	}
}
