/*-------------------------------------------------------------------------
 *
 * refresh.c
 *	  REFRESH PUBLICATION of an adopted subscription.
 *
 * Compares the tables that the publications have now with pg_subscription_rel.
 * New ones get 'i', to be copied by a wave, or with copy_data = false 'r'.
 * Those that are gone lose their row; for that the workers are stopped, since
 * one of them may be copying such a table.  Rows that it had copied stay, as
 * they do when the server's own worker had finished copying.
 *
 * Called by utility.c, in the statement's transaction.
 *
 * src/subscription/refresh.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "replication/walreceiver.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "subscription/waves.h"

#define MOST_STATEMENTS 10		/* of a hint */

/* The names as SQL literals: 'a', 'b' */
static char *
literals(List *names)
{
	StringInfoData text;
	ListCell   *cell;

	initStringInfo(&text);
	foreach(cell, names)
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "",
						 quote_literal_cstr(strVal(lfirst(cell))));
	return text.data;
}

/* Runs a query on the publisher. */
static WalRcvExecResult *
ask(WalReceiverConn *conn, const char *query, int ncolumns, const Oid *types)
{
	WalRcvExecResult *result = walrcv_exec(conn, query, ncolumns, types);

	if (result->status != WALRCV_OK_TUPLES)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not receive the list of tables from the publisher: %s", result->err)));
	return result;
}

/* Warns of publications that don't exist (yet). */
static void
warn_of_missing(WalReceiverConn *conn, List *publications)
{
	const Oid	types[] = {TEXTOID};
	List	   *missing = list_copy(publications);
	WalRcvExecResult *result = ask(conn,
								   psprintf("SELECT pubname::text FROM pg_catalog.pg_publication WHERE pubname IN (%s)",
											literals(publications)),
								   1, types);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);

	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		bool		isnull;
		char	   *name = TextDatumGetCString(slot_getattr(slot, 1, &isnull));

		missing = list_delete(missing, makeString(name));
		ExecClearTuple(slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(result);
	if (missing != NIL)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg_plural("publication %s does not exist on the publisher",
							   "publications %s do not exist on the publisher",
							   list_length(missing), literals(missing))));
}

/* The tables of the publications (list of RangeVar). */
static List *
published_tables(WalReceiverConn *conn, List *publications)
{
	const Oid	types[] = {TEXTOID, TEXTOID, INT8OID};
	List	   *tables = NIL;
	WalRcvExecResult *result;
	TupleTableSlot *slot;

	result = ask(conn,
				 psprintf("SELECT schemaname::text, tablename::text, %s"
						  " FROM pg_catalog.pg_publication_tables WHERE pubname IN (%s)"
						  " GROUP BY schemaname, tablename ORDER BY schemaname, tablename",
						  tandem_publisher_version(conn) >= TANDEM_COLUMN_LISTS_SINCE ?
						  "count(DISTINCT attnames::text)" : "1::bigint",
						  literals(publications)),
				 3, types);
	slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		bool		isnull;
		char	   *schema = TextDatumGetCString(slot_getattr(slot, 1, &isnull));
		char	   *name = TextDatumGetCString(slot_getattr(slot, 2, &isnull));

		if (DatumGetInt64(slot_getattr(slot, 3, &isnull)) > 1)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot use different column lists for table \"%s.%s\" in different publications",
							schema, name),
					 errhint("Give the table the same column list in all of the subscription's publications.")));
		tables = lappend(tables, makeRangeVar(schema, name, -1));
		ExecClearTuple(slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(result);
	return tables;
}

/* CREATE TABLE, as far as a copy needs it, for some of the publisher's tables (list of RangeVar). */
static char *
create_statements(WalReceiverConn *conn, List *publications, List *tables)
{
	const Oid	types[] = {TEXTOID};
	StringInfoData names;
	StringInfoData statements;
	WalRcvExecResult *result;
	TupleTableSlot *slot;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, tables)
	{
		RangeVar   *table = lfirst(cell);

		appendStringInfo(&names, "%s(%s, %s)", names.len > 0 ? ", " : "",
						 quote_literal_cstr(table->schemaname), quote_literal_cstr(table->relname));
	}
	result = ask(conn,
				 psprintf("SELECT pg_catalog.format('CREATE TABLE %%I.%%I (%%s%%s);', n.nspname, c.relname,"
						  " string_agg(pg_catalog.format('%%I %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum),"
						  " (SELECT ', PRIMARY KEY (' || string_agg(pg_catalog.quote_ident(k.attname), ', ' ORDER BY u.place) || ')'"
						  " FROM pg_catalog.pg_index i,"
						  " pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY u (attnum, place), pg_catalog.pg_attribute k"
						  " WHERE i.indrelid = c.oid AND i.indisprimary AND k.attrelid = c.oid AND k.attnum = u.attnum))"
						  " FROM (VALUES %s) w (nspname, relname)"
						  " JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname"
						  " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname"
						  " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
						  " AND a.attgenerated = ''%s"
						  " GROUP BY n.nspname, c.relname, c.oid ORDER BY n.nspname, c.relname LIMIT %d",
						  names.data,
						  tandem_publisher_version(conn) < TANDEM_COLUMN_LISTS_SINCE ? "" :
						  psprintf(" AND EXISTS (SELECT FROM pg_catalog.pg_publication_tables t WHERE t.pubname IN (%s)"
								   " AND t.schemaname = w.nspname AND t.tablename = w.relname AND a.attname = ANY (t.attnames))",
								   literals(publications)),
						  MOST_STATEMENTS),
				 1, types);
	initStringInfo(&statements);
	slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	while (tuplestore_gettupleslot(result->tuplestore, true, false, slot))
	{
		bool		isnull;

		appendStringInfo(&statements, "%s%s", statements.len > 0 ? " " : "",
						 TextDatumGetCString(slot_getattr(slot, 1, &isnull)));
		ExecClearTuple(slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(result);
	return statements.data;
}

/* All tables that are not here are told at once. */
static void
refuse_missing(WalReceiverConn *conn, List *publications, List *tables)
{
	List	   *missing = NIL;
	StringInfoData names;
	char	   *statements;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, tables)
	{
		RangeVar   *table = lfirst(cell);

		if (OidIsValid(RangeVarGetRelid(table, NoLock, true)))
			continue;
		if (list_length(missing) < MOST_STATEMENTS)
			appendStringInfo(&names, "%s\"%s.%s\"", missing != NIL ? ", " : "", table->schemaname, table->relname);
		missing = lappend(missing, table);
	}
	if (missing == NIL)
		return;
	if (list_length(missing) > MOST_STATEMENTS)
		appendStringInfo(&names, " and %d more", list_length(missing) - MOST_STATEMENTS);
	statements = create_statements(conn, publications, missing);
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg_plural("the publisher has %d table that does not exist here: %s",
						   "the publisher has %d tables that do not exist here: %s",
						   list_length(missing), list_length(missing), names.data),
			 errhint("%s%s", statements,
					 list_length(missing) > MOST_STATEMENTS ? " -- then run the statement again for the rest" : "")));
}

/* What the publisher has; connects and disconnects. */
static List *
fetch_tables(const Subscription *sub, List *validate)
{
	char	   *error = NULL;
	List	   *volatile tables = NIL;
	WalReceiverConn *conn;

	load_file("libpqwalreceiver", false);
	conn = TANDEM_WALRCV_CONNECT(sub->conninfo, sub->name, TANDEM_MUST_USE_PASSWORD(sub), &error);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher: %s", error)));
	PG_TRY();
	{
		if (validate != NIL)
			warn_of_missing(conn, validate);
		tables = published_tables(conn, sub->publications);
		refuse_missing(conn, sub->publications, tables);
	}
	PG_FINALLY();
	{
		walrcv_disconnect(conn);
	}
	PG_END_TRY();
	return tables;
}

/* The members of one sorted list of OIDs that another one lacks. */
static List *
sorted_difference(List *these, List *those)
{
	List	   *difference = NIL;
	int			other = 0;
	ListCell   *cell;

	foreach(cell, these)
	{
		while (other < list_length(those) && list_nth_oid(those, other) < lfirst_oid(cell))
			other++;
		if (other == list_length(those) || list_nth_oid(those, other) != lfirst_oid(cell))
			difference = lappend_oid(difference, lfirst_oid(cell));
	}
	return difference;
}

static int
compare_oids(const void *a, const void *b)
{
	return list_oid_cmp(a, b);
}

static bool
sorted_member(List *these, Oid oid)
{
	ListCell	key = {.oid_value = oid};

	return these != NIL && bsearch(&key, these->elements, list_length(these), sizeof(ListCell), compare_oids);
}

void
tandem_refresh_publications(const Subscription *sub, bool copy_data, List *validate)
{
	List	   *published = fetch_tables(sub, validate);
	List	   *known = NIL;	/* OIDs of tables in pg_subscription_rel */
	List	   *wanted = NIL;
	List	   *gone;
	ListCell   *cell;

	foreach(cell, TANDEM_SUBSCRIPTION_RELATIONS(sub->oid))
		known = lappend_oid(known, ((SubscriptionRelState *) lfirst(cell))->relid);
	list_sort(known, list_oid_cmp);

	foreach(cell, published)
	{
		RangeVar   *table = lfirst(cell);
		Oid			relid = RangeVarGetRelid(table, NoLock, false);

		/* a new one must not be dropped meanwhile; one we know may be locked by its copy, for long */
		if (!sorted_member(known, relid))
			relid = RangeVarGetRelid(table, AccessShareLock, false);
		CheckSubscriptionRelkind(get_rel_relkind(relid), table->schemaname, table->relname);
		wanted = lappend_oid(wanted, relid);
	}
	list_sort(wanted, list_oid_cmp);
	list_deduplicate_oid(wanted);

	gone = sorted_difference(known, wanted);
	if (gone != NIL)
	{
		Relation	rel;

		tandem_subscription_hold(MyDatabaseId, sub->oid);
		LockSharedObject(SubscriptionRelationId, sub->oid, 0, AccessExclusiveLock);
		rel = table_open(SubscriptionRelRelationId, AccessExclusiveLock);
		foreach(cell, gone)
		{
			RemoveSubscriptionRel(sub->oid, lfirst_oid(cell));
			if (tandem_copies.forget)
				tandem_copies.forget(sub->oid, lfirst_oid(cell));
		}
		table_close(rel, NoLock);
	}

	foreach(cell, sorted_difference(wanted, known))
		TANDEM_ADD_SUBSCRIPTION_REL(sub->oid, lfirst_oid(cell),
									copy_data ? SUBREL_STATE_INIT : SUBREL_STATE_READY);
	tandem_subscription_wake_at_commit(sub->oid);
}
