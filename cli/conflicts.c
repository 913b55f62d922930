/*-------------------------------------------------------------------------
 *
 * conflicts.c
 *	  "tandem conflicts": the conflicts that a node has had, the two rows of one
 *	  side by side, and seeing to one.
 *
 * Each database has a log of its own, with ids of its own.  Those that have an
 * adopted subscription are asked, or the one that -d names, so that the log of a
 * subscription that is gone can be read, too.
 *
 * cli/conflicts.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "json.h"
#include "subscription.h"
#include "table.h"

#define MOST_SHOWN "50"

/* A database that is asked. */
typedef struct Log
{
	const char *database;
	const PGresult *found;		/* NULL = it could not be asked */
} Log;

/* ---- what there is ------------------------------------------------------------- */

/* The databases to ask, at least one; ends the program otherwise. */
static Log *
find_databases(Node *node, const Options *options, int *n)
{
	const Subscriptions *all = node_subscriptions(node);
	Log		   *logs = screen_alloc(Max(all->n, 1) * sizeof(Log));

	*n = 0;
	if (options->dbname && asked_database(options))
		logs[(*n)++].database = asked_database(options);
	for (int i = 0; i < all->n && options->dbname == NULL; i++)
		/* they are ordered by database */
		if (all->list[i].labelled && (*n == 0 || strcmp(logs[*n - 1].database, all->list[i].database) != 0))
			logs[(*n)++].database = all->list[i].database;
	if (*n == 0)
	{
		pg_log_error("no subscription of %s is adopted", node->label);
		pg_log_error_hint("Name the database with -d to read its log nevertheless.");
		exit(EXIT_ATTENTION);
	}
	return logs;
}

static const char *
or_null(const char *value, const char *type)
{
	return value ? screen_printf("%s::pg_catalog.%s", quote_literal(value), type) : "NULL";
}

static void
complain(const Node *node, const char *database, const char *error, const char *sqlstate)
{
	if (sqlstate && (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42883") == 0))
		error = "the extension, or this version of it, is not there";
	pg_log_error("%s, database \"%s\": %s", node->label, text_clean(database), text_message(error));
	if (sqlstate && strcmp(sqlstate, "42501") == 0)
		pg_log_error_hint("Members of pg_monitor may read it.");
	else if (sqlstate && strcmp(sqlstate, "22023") == 0)
		pg_log_error_hint("\"tandem conflicts --help\" names the types.");
	else if (sqlstate && (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42883") == 0))
		pg_log_error_hint("Run CREATE EXTENSION pg_tandem in that database.");
}

/* --since as SQL: a time, or how long ago. */
static const char *
since_sql(PGconn *conn, const char *since)
{
	const char *error;

	if (since == NULL)
		return "NULL";
	if (conn_query(conn, node_timeout_ms(), screen_printf("SELECT %s", or_null(since, "interval")), &error, NULL))
		return screen_printf("pg_catalog.clock_timestamp() - %s", or_null(since, "interval"));
	if (conn_query(conn, node_timeout_ms(), screen_printf("SELECT %s", or_null(since, "timestamptz")), &error, NULL))
		return or_null(since, "timestamptz");
	pg_log_error("\"%s\" is neither a time nor an interval", text_clean(since));
	pg_log_error_hint("Write --since='2 hours' or --since='2026-12-31 18:00'.");
	exit(EXIT_USAGE);
}

/* Asks a database for conflicts; id: only that one, or NULL. */
static void
ask(Node *node, Log *log, const Options *options, const char *id)
{
	const char *error = NULL;
	const char *sqlstate = NULL;
	PGconn	   *conn = node_database(node, log->database, &error);
	const char *most = options->most ? options->most : MOST_SHOWN;

	if (conn)
		log->found = conn_query(conn, node_timeout_ms(),
								screen_printf("SELECT c.*, extract(epoch FROM pg_catalog.clock_timestamp() - c.\"time\") AS age"
											  " FROM tandem.find_conflicts(%s, %s, %s, %s, %s, %s) c ORDER BY c.id DESC",
											  or_null(id, "int8"), since_sql(conn, options->since),
											  or_null(options->of_subscription, "name"), or_null(options->table, "text"),
											  or_null(options->type, "text"),
											  strcmp(most, "0") == 0 ? "NULL" : or_null(most, "int4")),
								&error, &sqlstate);
	if (log->found == NULL)
		complain(node, log->database, error, sqlstate);
}

/* The database that has this conflict; ends the program if none has, or several. */
static const Log *
must_find_conflict(Node *node, const Options *options, const char *id)
{
	int			n;
	Log		   *logs = find_databases(node, options, &n);
	const Log  *found = NULL;

	for (int i = 0; i < n; i++)
	{
		ask(node, &logs[i], options, id);
		if (logs[i].found == NULL)
			exit(EXIT_ATTENTION);
		if (nrows(logs[i].found) == 0)
			continue;
		if (found)
		{
			pg_log_error("databases \"%s\" and \"%s\" have a conflict %s", text_clean(found->database),
						 text_clean(logs[i].database), id);
			pg_log_error_hint("Name the database with -d.");
			exit(EXIT_ATTENTION);
		}
		found = &logs[i];
	}
	if (found == NULL)
	{
		pg_log_error("there is no conflict %s on %s", id, node->label);
		pg_log_error_hint("\"tandem conflicts\" lists those that are kept.");
		exit(EXIT_ATTENTION);
	}
	return found;
}

/* ---- for programs ------------------------------------------------------------------ */

static void
json_conflict(Json *json, const char *database, const PGresult *found, int row)
{
	static const char *const texts[] = {
		"time", "subscription", "schema", "table", "type", "operation", "outcome", "resolution", "detection",
		"reason", "local_origin", "local_time", "remote_origin", "remote_node", "remote_time", "remote_lsn",
		"hidden", "last_attempt", "state", "settled_at", "settled_by"};
	static const char *const numbers[] = {"id", "relid", "local_xid", "remote_xid", "attempts", "age"};
	static const char *const rows[] = {"key", "local_row", "remote_row", "result_row"};

	json_open_object(json, NULL);
	json_string(json, "database", database);
	for (int i = 0; i < (int) lengthof(numbers); i++)
		json_number(json, numbers[i], field(found, row, numbers[i]));
	for (int i = 0; i < (int) lengthof(texts); i++)
		json_string(json, texts[i], field(found, row, texts[i]));
	for (int i = 0; i < (int) lengthof(rows); i++)
		json_written(json, rows[i], field(found, row, rows[i]));
	json_close(json);
}

static int
print_json(const Log *logs, int n, int exit_code)
{
	PQExpBufferData out;
	Json		json;

	initPQExpBuffer(&out);
	json_init(&json, &out, true);
	json_open_object(&json, NULL);
	json_string(&json, "command", "conflicts");
	json_string(&json, "version", TANDEM_VERSION);
	json_int(&json, "exit_code", exit_code);
	json_open_array(&json, "conflicts");
	for (int i = 0; i < n; i++)
		for (int row = 0; row < nrows(logs[i].found); row++)
			json_conflict(&json, logs[i].database, logs[i].found, row);
	json_close(&json);
	json_close(&json);
	fputs(out.data, stdout);
	return exit_code;
}

/* ---- the list ------------------------------------------------------------------------- */

static const char *
relation(const PGresult *found, int row)
{
	return screen_printf("%s.%s", field(found, row, "schema"), field(found, row, "table"));
}

/* "skipped", "skipped, dismissed" */
static const char *
result(const PGresult *found, int row)
{
	const char *state = field(found, row, "state");

	return screen_printf("%s%s%s", field(found, row, "resolution"), strcmp(state, "open") == 0 ? "" : ", ",
						 strcmp(state, "open") == 0 ? "" : state);
}

static TextColour
result_colour(const PGresult *found, int row)
{
	if (strcmp(field(found, row, "state"), "open") != 0)
		return COLOUR_GOOD;
	if (strcmp(field(found, row, "resolution"), "error") == 0)
		return COLOUR_BAD;
	return strcmp(field(found, row, "resolution"), "skipped") == 0 ? COLOUR_WARN : COLOUR_NONE;
}

static int
run_list(Node *node, const Options *options)
{
	static const char *const columns[] = {">ID", ">AGO", "SUBSCRIPTION", "TABLE", "TYPE", "RESULT", "KEY", NULL};
	int			n;
	Log		   *logs = find_databases(node, options, &n);
	int			exit_code = EXIT_HEALTHY;
	int			shown = 0;
	PQExpBufferData out;

	for (int i = 0; i < n; i++)
	{
		ask(node, &logs[i], options, NULL);
		if (logs[i].found == NULL)
			exit_code = EXIT_ATTENTION;
	}
	if (options->json)
		return print_json(logs, n, exit_code);

	initPQExpBuffer(&out);
	for (int i = 0; i < n; i++)
	{
		const PGresult *found = logs[i].found;
		Table	   *table = table_new(columns);

		if (nrows(found) == 0)
			continue;
		if (n > 1)
			appendPQExpBuffer(&out, "%sDatabase \"%s\"\n", shown > 0 ? "\n" : "", text_clean(logs[i].database));
		for (int row = 0; row < nrows(found); row++)
		{
			table_row(table, field(found, row, "id"), text_duration(atof(field(found, row, "age"))),
					  field(found, row, "subscription"), relation(found, row), field(found, row, "type"),
					  result(found, row), field(found, row, "key"));
			table_colour(table, 5, result_colour(found, row));
		}
		table_print(table, &out);
		shown += nrows(found);
		if (options->most == NULL && nrows(found) == atoi(MOST_SHOWN))
			appendPQExpBufferStr(&out, "The newest " MOST_SHOWN " are shown; --limit=0 shows all.\n");
	}
	if (shown > 0)
		appendPQExpBufferStr(&out, "\"tandem conflicts ID\" shows the rows of one.\n");
	else if (exit_code == EXIT_HEALTHY)
		appendPQExpBufferStr(&out, "No conflicts.\n");
	fputs(out.data, stdout);
	return exit_code;
}

/* ---- one of them -------------------------------------------------------------------------- */

/* Its columns, in the order that they have in the table. */
static const PGresult *
read_columns(Node *node, const Log *log, const char *id)
{
	const char *error = NULL;
	const char *sqlstate = NULL;
	PGconn	   *conn = node_database(node, log->database, &error);
	const PGresult *columns = NULL;

	if (conn)
		columns = conn_query(conn, node_timeout_ms(),
							 screen_printf("WITH c AS MATERIALIZED (SELECT * FROM tandem.find_conflicts(%s))"
										   " SELECT k.name, c.key ? k.name AS in_key,"
										   " c.local_row ? k.name AS in_local, c.local_row ->> k.name AS local,"
										   " c.remote_row ? k.name AS in_remote, c.remote_row ->> k.name AS remote,"
										   " c.result_row ? k.name AS in_result, c.result_row ->> k.name AS result,"
										   " c.key ->> k.name AS key,"
										   " c.local_row -> k.name IS DISTINCT FROM c.remote_row -> k.name AS differs"
										   " FROM c CROSS JOIN LATERAL ("
										   "SELECT pg_catalog.jsonb_object_keys(c.key) UNION SELECT pg_catalog.jsonb_object_keys(c.local_row)"
										   " UNION SELECT pg_catalog.jsonb_object_keys(c.remote_row)"
										   " UNION SELECT pg_catalog.jsonb_object_keys(c.result_row)) k(name)"
										   " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.relid AND a.attname = k.name"
										   " ORDER BY a.attnum, k.name",
										   or_null(id, "int8")),
							 &error, &sqlstate);
	if (columns == NULL)
		complain(node, log->database, error, sqlstate);
	return columns;
}

/* A value, NULL if it is not there. */
static const char *
value(const PGresult *columns, int row, const char *name)
{
	if (!field_is_true(columns, row, screen_printf("in_%s", name)))
		return NULL;
	return field(columns, row, name) ? field(columns, row, name) : "null";
}

static void
print_fact(PQExpBuffer out, const char *title, const char *text)
{
	if (text)
		text_wrap(out, text_clean(screen_printf("%-9s %s", title, text)), 0, text_screen_width());
}

static const char *
party(const char *who, const char *xid, const char *time)
{
	if (who == NULL && xid == NULL)
		return NULL;
	return screen_printf("%s%s%s%s%s", who ? who : "unknown", xid ? ", transaction " : "", xid ? xid : "",
						 time ? ", committed " : "", time ? time : "");
}

static void
print_facts(const Log *log, PQExpBuffer out)
{
	const PGresult *found = log->found;
	const char *reason = field(found, 0, "reason");
	const char *detection = field(found, 0, "detection");
	const char *attempts = field(found, 0, "attempts");
	const char *node = field(found, 0, "remote_node");
	const char *origin = field(found, 0, "remote_origin");
	const char *state = field(found, 0, "state");

	text_wrap(out, text_clean(screen_printf("Conflict %s of subscription \"%s\" in database \"%s\"", field(found, 0, "id"), field(found, 0, "subscription"), log->database)),
			  0, text_screen_width());
	print_fact(out, "conflict", screen_printf("%s on %s of %s", field(found, 0, "type"), field(found, 0, "operation"), relation(found, 0)));
	print_fact(out, "found", screen_printf("%s, %s ago", field(found, 0, "time"), text_duration(atof(field(found, 0, "age")))));
	print_fact(out, "local", party(field(found, 0, "local_origin"), field(found, 0, "local_xid"), field(found, 0, "local_time")));
	print_fact(out, "remote", party(node ? screen_printf("node %s", node) : origin, field(found, 0, "remote_xid"), field(found, 0, "remote_time")));
	print_fact(out, "result", screen_printf("%s (%s)%s%s%s", field(found, 0, "resolution"), field(found, 0, "outcome"), reason ? ": " : "", reason ? reason : "",
											atoi(attempts) > 1 ? screen_printf("; %s attempts, the last one %s", attempts, field(found, 0, "last_attempt")) : ""));
	if (detection && strcmp(detection, "certain") != 0)
		print_fact(out, "detection", detection);
	if (strcmp(state, "open") != 0)
		print_fact(out, "state", screen_printf("%s by %s, %s", state, field(found, 0, "settled_by"), field(found, 0, "settled_at")));
}

static int
run_show(Node *node, const Options *options, const char *id)
{
	static const char *const titles[] = {"", "COLUMN", "LOCAL", "REMOTE", "NOW", NULL};
	const Log  *log = must_find_conflict(node, options, id);
	const PGresult *columns;
	Table	   *table = table_new(titles);
	PQExpBufferData out;
	bool		has_local = field(log->found, 0, "local_row") != NULL;
	bool		has_remote = field(log->found, 0, "remote_row") != NULL;

	if (options->json)
		return print_json(log, 1, EXIT_HEALTHY);
	columns = read_columns(node, log, id);
	if (columns == NULL)
		return EXIT_ATTENTION;

	initPQExpBuffer(&out);
	print_facts(log, &out);
	for (int row = 0; row < nrows(columns); row++)
	{
		const char *local = value(columns, row, "local");
		const char *remote = value(columns, row, "remote");
		bool		differs = local && remote && field_is_true(columns, row, "differs");

		/* a delete sends the key only */
		if (!has_local && !has_remote)
			remote = field(columns, row, "key");
		table_row(table, differs ? "*" : " ", field(columns, row, "name"), local, remote, value(columns, row, "result"));
		if (!differs)
			table_cell_raw(table, 0, " ", COLOUR_NONE);
		for (int column = 2; column < 4 && differs; column++)
			table_colour(table, column, COLOUR_WARN);
	}
	if (nrows(columns) > 0)
	{
		appendPQExpBufferChar(&out, '\n');
		table_print(table, &out);
	}
	if (field(log->found, 0, "hidden"))
		text_wrap(&out, text_clean(screen_printf("Values that you may not read are not shown: %s.", field(log->found, 0, "hidden"))),
				  0, text_screen_width());
	if (strcmp(field(log->found, 0, "state"), "open") == 0 && result_colour(log->found, 0) != COLOUR_NONE)
		appendPQExpBuffer(&out, "\"tandem conflicts --replay=%s\" applies the remote change, --dismiss=%s leaves it so.\n", id, id);
	fputs(out.data, stdout);
	return EXIT_HEALTHY;
}

static int
run_settle(Node *node, const Options *options, const char *id, bool replay)
{
	const Log  *log = must_find_conflict(node, options, id);
	PGresult   *res;

	/* triggers of the table find what they find in any session */
	res = node_run(node, log->database,
				   screen_printf("SELECT tandem.conflict_%s(%s)", replay ? "replay" : "dismiss", or_null(id, "int8")), true);
	printf("Conflict %s of database \"%s\" is %s%s%s.\n", id, text_clean(log->database), replay ? "replayed: " : "dismissed",
		   replay ? "the row was " : "", replay ? PQgetvalue(res, 0, 0) : "");
	PQclear(res);
	return EXIT_HEALTHY;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* An id as the user wrote it, or wrong usage. */
static const char *
check_number(const char *text, const char *what)
{
	if (*text == '\0' || strlen(text) > 18 || strspn(text, "0123456789") != strlen(text))
	{
		pg_log_error("\"%s\" is not %s", text_clean(text), what);
		pg_log_error_hint("Try \"tandem conflicts --help\" for more information.");
		exit(EXIT_USAGE);
	}
	return text;
}

static int
run_conflicts(const Options *options)
{
	const char *ids[] = {options->argument, options->diff, options->replay, options->dismiss};
	const char *id = NULL;
	int			nids = 0;

	for (int i = 0; i < (int) lengthof(ids); i++)
		if (ids[i])
		{
			id = check_number(ids[i], "the number of a conflict");
			nids++;
		}
	if (options->most)
		(void) check_number(options->most, "a number of conflicts");
	if (nids > 1 || (nids == 1 && (options->table || options->type || options->since || options->of_subscription || options->most)))
	{
		pg_log_error("name one conflict, or say which ones to list");
		pg_log_error_hint("Try \"tandem conflicts --help\" for more information.");
		exit(EXIT_USAGE);
	}
	if (options->json && (options->replay || options->dismiss))
	{
		pg_log_error("--json can't be used with --replay or --dismiss");
		pg_log_error_hint("Try \"tandem conflicts --help\" for more information.");
		exit(EXIT_USAGE);
	}
	if (options->replay || options->dismiss)
		return run_settle(only_node(options), options, id, options->replay != NULL);
	return id ? run_show(only_node(options), options, id) : run_list(only_node(options), options);
}

const Command conflicts_command = {
	.name = "conflicts",
	.takes = TAKES_JSON | TAKES_CONFLICTS,
	.most_arguments = 1,
	.synopsis = "[ID | OPTION...]",
	.summary = "the conflicts of adopted subscriptions, and seeing to them",
	.help = "Lists the newest ones first, of all databases with an adopted subscription, or of the one that -d\n"
			"names.  With ID (or --diff=ID) the two rows of that one, column by column; columns that differ are\n"
			"marked.  Types: insert_exists, insert_deleted, update_exists, update_missing, update_deleted,\n"
			"update_origin_differs, delete_missing, delete_origin_differs, multiple_unique_conflicts.\n"
			"Exits with 0 if every database could be asked, 1 if not or if what was asked for could not be\n"
			"done, 3 if the server is unreachable.\n",
	.run = run_conflicts};
