/*-------------------------------------------------------------------------
 *
 * check_mesh.c
 *	  Checks: nodes that subscribe to each other.
 *
 * A publisher that itself subscribes to this node must not send back what it has
 * received.  That it does so is known by its walsender here: it reads from the
 * slot that a subscription there names, under that subscription's name.  What
 * keeps changes from going round is the slot's plugin before PostgreSQL 16, and the
 * subscription's origin from then on.
 *
 * cli/check_mesh.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "subscription.h"

#define ORIGIN_FILTER "pg_tandem_output"	/* src/output */

/* The newest minor releases allow the plugins of a list only. */
static void
check_allowed(Diagnosis *d, Node *publisher, PGconn *conn, const Subscription *s, const char *plugin)
{
	const char *error;
	PGresult   *res = conn_query(conn, node_timeout_ms(),
							   screen_printf("SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'output_plugin_libraries') AS libraries,"
											 " NOT %s = ANY (pg_catalog.regexp_split_to_array("
											 "(SELECT setting FROM pg_catalog.pg_settings WHERE name = 'output_plugin_libraries'), '[[:space:]\",]+')) AS refused",
											 quote_literal(plugin)),
							   &error, NULL);
	const char *libraries = field(res, 0, "libraries");

	if (libraries == NULL || !field_is_true(res, 0, "refused"))
		return;
	finding_fix(finding_add(d, PROBLEM, publisher, "plugin_refused",
							screen_printf("output_plugin_libraries does not list \"%s\", the output plugin of subscription \"%s\".", plugin, s->name),
							"The publisher refuses the slot: no change arrives."),
				publisher, "sql",
				screen_printf("ALTER SYSTEM SET output_plugin_libraries = %s%s%s;", libraries, *libraries ? ", " : "", plugin),
				"reload");
}

/* Does the publisher subscribe to this node? */
static bool
is_mutual(Node *node, PGconn *conn)
{
	const char *error;
	PGresult   *there = conn_query(conn, node_timeout_ms(),
								 "SELECT s.subname, s.subslotname FROM pg_catalog.pg_subscription s, pg_catalog.pg_database b"
								 " WHERE b.oid = s.subdbid AND b.datname = pg_catalog.current_database() AND s.subslotname IS NOT NULL",
								 &error, NULL);

	for (int i = 0; i < nrows(there); i++)
	{
		PGresult   *here = node_query(node,
									screen_printf("SELECT FROM pg_catalog.pg_replication_slots s, pg_catalog.pg_stat_activity a"
												  " WHERE a.pid = s.active_pid AND s.slot_type = 'logical'"
												  " AND s.slot_name = %s AND a.application_name = %s",
												  quote_literal(field(there, i, "subslotname")),
												  quote_literal(field(there, i, "subname"))),
									&error, NULL);

		if (nrows(here) > 0)
			return true;
	}
	return false;
}

/* Does this subscription get only what was written on its publisher itself? */
static bool
is_filtered(Node *node, PGconn *conn, const Subscription *s, const char *plugin)
{
	const char *error;
	PGresult   *res;

	if (strcmp(plugin, ORIGIN_FILTER) == 0)
		return true;
	if (PQserverVersion(conn) < 160000 || node->version_num < 160000)
		return false;
	res = node_query(node,
					 screen_printf("SELECT suborigin = 'none' AS filtered FROM pg_catalog.pg_subscription WHERE oid = %s", s->subid),
					 &error, NULL);
	return field_is_true(res, 0, "filtered");
}

void
check_mesh(Diagnosis *d, Node *node, Node *publisher, PGconn *conn, const Subscription *s)
{
	const char *error;
	PGresult   *res;
	const char *plugin;
	Finding	   *f;

	if (s->slot == NULL)
		return;
	res = conn_query(conn, node_timeout_ms(),
					 screen_printf("SELECT plugin FROM pg_catalog.pg_replication_slots WHERE slot_name = %s AND slot_type = 'logical'",
								   quote_literal(s->slot)),
					 &error, NULL);
	plugin = field(res, 0, "plugin");
	if (plugin == NULL)
		return;					/* told elsewhere */

	check_allowed(d, publisher, conn, s, plugin);
	if (!is_mutual(node, conn) || is_filtered(node, conn, s, plugin))
		return;
	f = finding_add(d, PROBLEM, node, "subscription_loop",
					screen_printf("Subscription \"%s\" and its publisher subscribe to each other, and slot \"%s\" sends back what came from here.",
								  s->name, s->slot),
					"A change of a row with a key is applied again and again, or is a conflict; one without a key is doubled for ever.");
	if (PQserverVersion(conn) >= 160000 && node->version_num >= 160000)
		finding_fix_sql(f, node, s->database, screen_printf("ALTER SUBSCRIPTION %s SET (origin = none);", quote_identifier(s->name)));
	else
		f->hint = "Make a slot with the output plugin " ORIGIN_FILTER
				  " there while nobody writes, and lead the subscription to it with ALTER SUBSCRIPTION ... SET (slot_name = ...); see \"Several writable nodes\" in docs/conflicts.md.";
}
