/*-------------------------------------------------------------------------
 *
 * uninstall.c
 *	  "tandem uninstall": removes what pg_tandem keeps on every node.
 *
 * The order matters.
 *
 *	 0. The primary: every adopted subscription is handed back, and goes on as the
 *		server's own if it was not paused.  That waits for tables that are copied
 *		halfway; one that can't be finished is for "tandem release --force".
 *	 1. Every node: the settings that let our workers make slots off, the guard
 *		too.  Every standby: tandem.forget(), which lets the workers drop the
 *		slots they made and the folder pg_tandem.  After that no standby asks
 *		the primary any more.
 *	 2. The primary: the holds; a standby that still asked would make them anew.
 *	 3. The primary: tandem.forget(), for its slots and the folder.
 *	 4. The primary: DROP EXTENSION in every database; replication carries it
 *		to the standbys, which have no more use for the functions.
 *	 5. Every node: ALTER SYSTEM RESET of what ALTER SYSTEM has set, pg_tandem
 *		taken out of shared_preload_libraries likewise.
 *
 * Whatever stands in files that only people edit is named with file and line.
 * Nothing is done before all nodes have been looked at; each step may be
 * repeated, so after a failure the command is simply run again.
 *
 * cli/uninstall.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "common/compat.h"
#include "node.h"
#include "subscription.h"
#include "text.h"

#define HOLD_PREFIX "tandem_hold_"
#define MOST_STEPS 512

typedef struct Step
{
	Node	   *node;
	const char *database;		/* NULL = the one we are in */
	const char *sql;
	bool		stops_workers;	/* wait until off_settings are in force */
	bool		takes_long;		/* no timeout but Ctrl-C */
} Step;

typedef struct Plan
{
	int			nsteps;
	Step		steps[MOST_STEPS];
	PQExpBufferData by_hand;	/* lines for people */
} Plan;

static void
add_step(Plan *plan, Node *node, const char *database, const char *sql)
{
	if (plan->nsteps >= MOST_STEPS)
		pg_fatal("too many steps");
	plan->steps[plan->nsteps++] = (Step){node, database, sql, false, false};
}

pg_attribute_noreturn() static void refuse(const char *error, const char *hint)
{
	pg_log_error("%s", text_clean(error));
	if (hint)
		pg_log_error_hint("%s", text_clean(hint));
	exit(EXIT_ATTENTION);
}

/* A query that must work; the plan rests on it. */
static PGresult *
must_query(Node *node, const char *sql)
{
	const char *error;
	PGresult   *res = node_query(node, sql, &error, NULL);

	if (res == NULL)
		refuse(screen_printf("%s: %s", node->label, error), NULL);
	return res;
}

static bool
is_asked(const Topology *t, const char *slot)
{
	for (int i = 0; i < t->nnodes; i++)
	{
		const char *name = t->nodes[i]->in_recovery ? node_primary_slot_name(t->nodes[i]) : NULL;

		if (name && strcmp(name, slot) == 0)
			return true;
	}
	return false;
}

/* Can it be done at all?  Ends the program if not. */
static void
check_topology(const Topology *t)
{
	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];

		if (node->conn == NULL)
			refuse(screen_printf("%s: %s", node->label, node->error),
				   "Every node must be reachable, so that nothing is left on it.");
		if (!node->is_superuser)
			refuse(screen_printf("role \"%s\" is not a superuser on %s", node->user, node->label),
				   "Connect as a superuser with -U.");
	}
	if (t->nprimaries != 1)
		refuse(t->nprimaries == 0 ? "none of the nodes is a primary" : "more than one node is a primary",
			   "Name the nodes of one topology with -h and --node.");

	for (int i = 0; i < nrows(t->primary->slots); i++)
	{
		const char *name = field(t->primary->slots, i, "slot_name");
		const char *standby = name + strlen(HOLD_PREFIX);

		if (strncmp(name, HOLD_PREFIX, strlen(HOLD_PREFIX)) == 0 &&
			!is_asked(t, standby) &&
			field_is_true(t->primary->slots,
						  find_row(t->primary->slots, "slot_name", standby), "active"))
			refuse(screen_printf("the standby that streams through slot \"%s\" was not named", standby),
				   "Name every standby with --node=\"host=... port=...\"; its slots must be dropped before the extension.");
	}
}

/* What our workers have to see before tandem.forget() can work. */
typedef struct OffSetting
{
	const char *name;
	const char *value;
	bool		standby_only;
} OffSetting;

static const OffSetting off_settings[] = {
	{"tandem.sync_slots", "off", true},
	{"tandem.synchronous_transfer", "none", false},
	{"tandem.failback_keep_size", "0", false}};

static bool
is_set_off(const Node *node, int i)
{
	return node->preloaded && node->extension && (node->in_recovery || !off_settings[i].standby_only);
}

static void
plan_subscriptions(Plan *plan, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];

		if (!s->labelled)
			continue;
		if (!node->preloaded || s->view == NULL)
			refuse(screen_printf("%s: subscription \"%s\" of database \"%s\" has a label of pg_tandem, but %s",
								 node->label, s->name, s->database,
								 node->preloaded ? s->error : "the library is not loaded"),
				   "Load the library and create the extension in that database again, then run this command: only it can hand the subscription back.");
		add_step(plan, node, s->database, screen_printf("SELECT tandem.release(%s)", quote_literal(s->name)));
		plan->steps[plan->nsteps - 1].takes_long = true;
		if (field_is_true(s->view, 0, "enabled"))
			add_step(plan, node, s->database,
					 screen_printf("ALTER SUBSCRIPTION %s ENABLE", quote_identifier(s->name)));
	}
}

static void
plan_off(Plan *plan, Node *node)
{
	if (!node->preloaded || !node->extension)
		return;
	for (int i = 0; i < (int) lengthof(off_settings); i++)
		if (is_set_off(node, i))
			add_step(plan, node, NULL,
					 screen_printf("ALTER SYSTEM SET %s = %s", off_settings[i].name,
								   quote_literal(off_settings[i].value)));
	add_step(plan, node, NULL, "SELECT pg_catalog.pg_reload_conf()");
	plan->steps[plan->nsteps - 1].stops_workers = true;
}

static void
plan_standby(Plan *plan, Node *node)
{
	if (node->preloaded && node->extension)
		add_step(plan, node, NULL, "SELECT tandem.forget()");
	else if (field(must_query(node, "SELECT size FROM pg_catalog.pg_stat_file('pg_tandem', true)"),
				   0, "size") != NULL)
		refuse(screen_printf("%s still has the folder pg_tandem, but the library is not loaded or the extension is gone",
							 node->label),
			   "Load the library and create the extension on the primary again, then run this command: only it knows which slots of that server are its own.");
}

static void
plan_databases(Plan *plan, Node *primary)
{
	PGresult   *res = must_query(primary,
							   "SELECT datname FROM pg_catalog.pg_database"
							   " WHERE datallowconn ORDER BY datname");

	for (int i = 0; i < nrows(res); i++)
	{
		const char *database = field(res, i, "datname");
		const char *error;
		PGconn	   *conn = node_connect_database(primary, database, &error);
		PGresult   *found;

		if (conn == NULL)
			refuse(screen_printf("%s, database \"%s\": %s", primary->label, database, error),
				   "Every database is looked at for the extension.");
		found = conn_query(conn, 10000, "SELECT FROM pg_catalog.pg_extension WHERE extname = 'pg_tandem'",
						   &error, NULL);
		PQfinish(conn);
		if (found == NULL)
			refuse(screen_printf("%s, database \"%s\": %s", primary->label, database, error), NULL);
		if (nrows(found) > 0)
			add_step(plan, primary, database, "DROP EXTENSION pg_tandem");
	}
}

static void
plan_primary(Plan *plan, Node *primary)
{
	for (int i = 0; i < nrows(primary->slots); i++)
	{
		const char *name = field(primary->slots, i, "slot_name");

		if (strncmp(name, HOLD_PREFIX, strlen(HOLD_PREFIX)) != 0 ||
			strcmp(field(primary->slots, i, "slot_type"), "physical") != 0)
			continue;
		if (primary->preloaded && primary->extension)
			add_step(plan, primary, NULL,
					 screen_printf("SELECT tandem.drop_hold(%s)", quote_literal(name + strlen(HOLD_PREFIX))));
		else
			add_step(plan, primary, NULL,
					 screen_printf("SELECT pg_catalog.pg_drop_replication_slot(%s)", quote_literal(name)));
	}
	if (primary->preloaded && primary->extension)
		add_step(plan, primary, NULL, "SELECT tandem.forget()");
	plan_databases(plan, primary);
}

/* Is pg_tandem in this list?  *rest = the list without it, as SQL; "" if empty. */
static bool
preload_without_us(const char *list, const char **rest)
{
	PQExpBufferData out;
	const char *library;
	bool		found = false;

	initPQExpBuffer(&out);
	while ((library = next_library(&list)) != NULL)
	{
		if (strcmp(library, "pg_tandem") == 0)
			found = true;
		else
			appendPQExpBuffer(&out, "%s%s", out.len ? ", " : "", quote_literal(library));
	}
	*rest = screen_strdup(out.data);
	termPQExpBuffer(&out);
	return found;
}

static bool
is_auto_conf(const char *path)
{
	const char *name = path ? strrchr(path, '/') : NULL;

	return name && strcmp(name, "/postgresql.auto.conf") == 0;
}

/* Settings: what ALTER SYSTEM has set is reset, the rest is for people. */
static void
plan_settings(Plan *plan, Node *node)
{
	PGresult   *res = must_query(node,
							   "SELECT sourcefile, sourceline, name, setting FROM pg_catalog.pg_file_settings"
							   " WHERE name LIKE 'tandem.%' OR name = 'shared_preload_libraries'"
							   " ORDER BY seqno");
	bool		reset[lengthof(off_settings)];

	for (int i = 0; i < (int) lengthof(off_settings); i++)
		reset[i] = !is_set_off(node, i);

	for (int i = 0; i < nrows(res); i++)
	{
		const char *name = field(res, i, "name");
		const char *setting = field(res, i, "setting");
		const char *file = field(res, i, "sourcefile");
		const char *rest = NULL;

		if (strcmp(name, "shared_preload_libraries") == 0)
		{
			if (!preload_without_us(setting ? setting : "", &rest))
				continue;
			if (is_auto_conf(file))
			{
				add_step(plan, node, NULL, *rest ? screen_printf("ALTER SYSTEM SET shared_preload_libraries = %s", rest) : "ALTER SYSTEM RESET shared_preload_libraries");
				continue;
			}
		}
		else if (is_auto_conf(file))
		{
			for (int j = 0; j < (int) lengthof(off_settings); j++)
				reset[j] |= strcmp(name, off_settings[j].name) == 0;
			add_step(plan, node, NULL, screen_printf("ALTER SYSTEM RESET %s", name));
			continue;
		}
		appendPQExpBuffer(&plan->by_hand, "%s: %s, line %s: %s\n",
						  node->label, text_clean(file), field(res, i, "sourceline"),
						  rest == NULL ? screen_printf("remove %s", name) :
							  *rest    ? screen_printf("let shared_preload_libraries be %s", rest) :
										 "remove shared_preload_libraries");
	}
	for (int i = 0; i < (int) lengthof(off_settings); i++)
		if (!reset[i])
			add_step(plan, node, NULL, screen_printf("ALTER SYSTEM RESET %s", off_settings[i].name));
}

/* Waits until the session sees a setting off, bounded. */
static void
wait_off(Node *node, const OffSetting *setting, int timeout_ms)
{
	for (int waited = 0; waited < timeout_ms; waited += 50)
	{
		PGresult   *res = must_query(node,
								   screen_printf("SELECT pg_catalog.current_setting(%s) AS s", quote_literal(setting->name)));

		if (strcmp(field(res, 0, "s"), setting->value) == 0)
			return;
		pg_usleep(50 * 1000L);
	}
	refuse(screen_printf("%s: %s is not \"%s\" after ALTER SYSTEM and reload", node->label, setting->name,
						 setting->value),
		   "Something overrides it: look for it on the server's command line.");
}

static void
run_step(const Options *options, const Step *step)
{
	const char *error = NULL;
	const char *sqlstate = "";
	PGconn	   *conn = step->node->conn;
	PGresult   *res = NULL;
	int			timeout_ms = step->takes_long ? 24 * 3600 * 1000 : options->timeout_ms;

	if (step->database)
		conn = node_connect_database(step->node, step->database, &error);
	if (conn && conn_query(conn, options->timeout_ms, "SET default_transaction_read_only = off", &error, NULL) &&
		(!step->takes_long || conn_query(conn, options->timeout_ms, "SET statement_timeout = 0", &error, NULL)))
		res = conn_query(conn, timeout_ms, step->sql, &error, &sqlstate);
	if (step->database)
		PQfinish(conn);
	if (res == NULL)
		refuse(screen_printf("%s: %s failed: %s", step->node->label, step->sql, error),
			   strcmp(sqlstate, "2BP01") == 0 ?
				   "Drop or change what depends on the extension, then run this command again." :
				   step->takes_long ?
				   "Mend the cause, or hand it back with \"tandem release --force\"; then run this command again." :
				   "Steps before this one are done; run this command again when the cause is mended.");
	for (int i = 0; step->stops_workers && i < (int) lengthof(off_settings); i++)
		if (is_set_off(step->node, i))
			wait_off(step->node, &off_settings[i], options->timeout_ms);
}

static void
print_step(const Step *step)
{
	printf("  %s%s: %s;\n", step->node->label,
		   step->database ? screen_printf(", database \"%s\"", text_clean(step->database)) : "",
		   text_clean(step->sql));
}

static bool
confirmed(void)
{
	char		line[16] = "";

	printf("\nDo it? [y/N] ");
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) == NULL)
		printf("\n");
	return line[0] == 'y' || line[0] == 'Y';
}

static int
run_uninstall(const Options *options)
{
	Topology   *t = topology_create(options);
	Plan	   *plan = pg_malloc0(sizeof(Plan));

	initPQExpBuffer(&plan->by_hand);
	topology_read(t);
	check_topology(t);

	plan_subscriptions(plan, t->primary);
	for (int i = 0; i < t->nnodes; i++)
		plan_off(plan, t->nodes[i]);
	for (int i = 0; i < t->nnodes; i++)
		if (t->nodes[i]->in_recovery)
			plan_standby(plan, t->nodes[i]);
	plan_primary(plan, t->primary);
	for (int i = 0; i < t->nnodes; i++)
		plan_settings(plan, t->nodes[i]);

	if (plan->nsteps == 0 && plan->by_hand.len == 0)
	{
		printf("Nothing of pg_tandem is on these %d nodes.\n", t->nnodes);
		return EXIT_HEALTHY;
	}

	printf("%s on %d nodes:\n", options->dry_run ? "Would run" : "To run", t->nnodes);
	for (int i = 0; i < plan->nsteps; i++)
		print_step(&plan->steps[i]);
	if (plan->nsteps == 0)
		printf("  nothing\n");
	if (!options->dry_run)
	{
		if (plan->nsteps > 0 && !options->yes && !confirmed())
		{
			pg_log_error("not confirmed, nothing was changed");
			return EXIT_ATTENTION;
		}
		for (int i = 0; i < plan->nsteps; i++)
			run_step(options, &plan->steps[i]);
		if (plan->nsteps > 0)
			printf("Done.\n");
	}
	if (plan->by_hand.len > 0)
		printf("\nChange by hand:\n%s", plan->by_hand.data);
	printf("\nThen restart each server; it runs without the library from then on.\n");

	topology_close(t);
	return EXIT_HEALTHY;
}

const Command uninstall_command = {
	.name = "uninstall",
	.takes = TAKES_NODES | TAKES_YES | TAKES_DRY_RUN,
	.synopsis = "[--dry-run] [--yes]",
	.summary = "remove everything of pg_tandem from all nodes",
	.help = "Hands adopted subscriptions back to the server, which goes on with them.  Drops the slots that\n"
			"standbys keep for the primary, the holds on the primary, the slots that keep WAL for nodes to be\n"
			"rejoined, the extension in every database, and what ALTER SYSTEM has set.  Switches the guard off.\n"
			"Names the lines of other files that remain to be changed.  Your own slots, physical and logical,\n"
			"stay.  Name every standby with --node; connect as a superuser.  Asks first unless --yes is given.\n",
	.run = run_uninstall};
