/*-------------------------------------------------------------------------
 *
 * adopt.c
 *	  "tandem adopt" and "tandem release": take a subscription over, hand it
 *	  back.
 *
 * The SQL functions of the same name for the shell; they decide and refuse.  A
 * subscription is found in whatever database it is.  tandem.release() waits for
 * tables that are still being copied, as long as that takes: here no timeout
 * but the user's Ctrl-C ends it, which the server sees.
 *
 * cli/adopt.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "fe_utils/cancel.h"
#include "subscription.h"
#include "text.h"

/* Runs a statement that writes and may take long.  Ends the program on error. */
static void
run_statement(Node *node, const Subscription *s, const char *sql)
{
	const char *error = NULL;
	PGconn	   *conn = node_database(node, s->database, &error);
	PGresult   *res;

	if (conn == NULL)
	{
		pg_log_error("%s, database \"%s\": %s", node->label, text_clean(s->database), error);
		exit(EXIT_ATTENTION);
	}
	res = PQexec(conn, "SELECT pg_catalog.set_config('default_transaction_read_only', 'off', false),"
					   " pg_catalog.set_config('statement_timeout', '0', false),"
					   " pg_catalog.set_config('lock_timeout', '0', false)");
	PQclear(res);
	setup_cancel_handler(NULL);
	SetCancelConn(conn);
	res = PQexec(conn, sql);
	ResetCancelConn();
	if (PQresultStatus(res) != PGRES_TUPLES_OK)
	{
		const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
		const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
		const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
		const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		pg_log_error("%s", text_message(message ? message : PQerrorMessage(conn)));
		if (detail)
			pg_log_error_detail("%s", text_clean(detail));
		if (hint)
			pg_log_error_hint("%s", text_clean(hint));
		else if (sqlstate && (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42883") == 0))
			pg_log_error_hint("Run CREATE EXTENSION pg_tandem in database \"%s\".", text_clean(s->database));
		exit(EXIT_ATTENTION);
	}
	PQclear(res);
}

static int
run_adopt(const Options *options)
{
	Node	   *node = only_node(options);
	const Subscription *s = must_find_subscription(node, options);

	run_statement(node, s, screen_printf("SELECT tandem.adopt(%s, %s)", quote_literal(s->name), quote_literal(options->adopt_options ? options->adopt_options : "")));
	printf("Subscription \"%s\" of database \"%s\" is %s by pg_tandem.\n"
		   "\"tandem sync\" shows its tables, \"tandem status\" how far it is.\n",
		   text_clean(s->name), text_clean(s->database), s->labelled ? "run as before" : "now run");
	return EXIT_HEALTHY;
}

static int
run_release(const Options *options)
{
	Node	   *node = only_node(options);
	const Subscription *s = must_find_subscription(node, options);

	run_statement(node, s, screen_printf("SELECT tandem.release(%s, %s)", quote_literal(s->name), options->force ? "true" : "false"));
	printf("Subscription \"%s\" of database \"%s\" is the server's own again, and disabled.\n"
		   "ALTER SUBSCRIPTION ... ENABLE lets the server go on where pg_tandem stopped.\n",
		   text_clean(s->name), text_clean(s->database));
	return EXIT_HEALTHY;
}

const Command adopt_command = {
	.name = "adopt",
	.takes = TAKES_OPTIONS,
	.least_arguments = 1,
	.most_arguments = 1,
	.synopsis = "SUBSCRIPTION [--options=LIST]",
	.summary = "let pg_tandem run a subscription",
	.help = "The subscription has to be disabled (CREATE SUBSCRIPTION ... WITH (enabled = false), or ALTER\n"
			"SUBSCRIPTION ... DISABLE).  An adopted one may be named again to change its options.  Name its\n"
			"database with -d if several have a subscription of that name.\n",
	.run = run_adopt};

const Command release_command = {
	.name = "release",
	.takes = TAKES_FORCE,
	.least_arguments = 1,
	.most_arguments = 1,
	.synopsis = "SUBSCRIPTION [--force]",
	.summary = "hand a subscription back to the server",
	.help = "Waits until no table is half copied.  The subscription stays disabled; once enabled, the server\n"
			"goes on where pg_tandem stopped.\n",
	.run = run_release};
