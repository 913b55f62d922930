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

#include "subscription.h"
#include "text.h"

static void
run(Node *node, const Subscription *s, const char *sql)
{
	PQclear(node_run(node, s->database, sql, false));
}

static int
run_adopt(const Options *options)
{
	Node	   *node = only_node(options);
	const Subscription *s = must_find_subscription(node, options);

	run(node, s, screen_printf("SELECT tandem.adopt(%s, %s)", quote_literal(s->name), quote_literal(options->adopt_options ? options->adopt_options : "")));
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

	run(node, s, screen_printf("SELECT tandem.release(%s, %s)", quote_literal(s->name), options->force ? "true" : "false"));
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
