/*-------------------------------------------------------------------------
 *
 * check_extension.c
 *	  Checks: can we look at all, and is pg_tandem itself in place?
 *
 * cli/check_extension.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"

/* Unreachable nodes, and what their message tells. */
static void
check_reachable(Diagnosis *d, Node *unused)
{
	for (int i = 0; i < d->topology->nnodes; i++)
	{
		Node	   *node = d->topology->nodes[i];
		Finding	   *f;

		if (node->conn)
			continue;
		if (strstr(node->error, "Hot standby mode is disabled"))
		{
			f = finding_add(d, PROBLEM, node, "hot_standby",
							"hot_standby is off: this standby takes no connections.",
							"Neither orchestrators nor this command can ask it whether its slots are ready.");
			finding_fix(f, node, "postgresql.conf", "hot_standby = on", "restart");
			continue;
		}
		f = finding_add(d, PROBLEM, node, "unreachable", node->error,
						"Nothing about this node could be checked.");
		f->hint = "Check that the server runs and that -h, -p, -U or --node name it rightly.";
	}
}

/* Exactly one primary, one cluster. */
static void
check_cluster(Diagnosis *d, Node *unused)
{
	Topology   *t = d->topology;
	Node	   *reference = t->primary;

	if (t->nprimaries > 1)
	{
		PQExpBufferData labels;

		initPQExpBuffer(&labels);
		for (int i = 0; i < t->nnodes; i++)
			if (t->nodes[i]->conn && !t->nodes[i]->in_recovery)
				appendPQExpBuffer(&labels, "%s%s", labels.len ? ", " : "", t->nodes[i]->label);
		finding_add(d, PROBLEM, NULL, "primaries",
					screen_printf("%d nodes take writes: %s.", t->nprimaries, labels.data),
					"What is written on one of them will have to be thrown away.")
			->hint =
			"Decide which one is right and stop the other; leave out nodes that don't belong to this topology.";
		termPQExpBuffer(&labels);
	}
	else if (t->nprimaries == 0 && t->nunreachable < t->nnodes)
	{
		Finding	   *f = finding_add(d, t->nunreachable > 0 ? UNCHECKED : PROBLEM, NULL, "no_primary",
								 "None of the nodes that answered is a primary.",
								 "Whether the primary has what its standbys need could not be checked.");

		f->hint = "Name the primary with --node.";
	}

	for (int i = 0; i < t->nnodes; i++)
	{
		Node	   *node = t->nodes[i];

		if (reference && node->conn && node != reference &&
			node->system_identifier && reference->system_identifier &&
			strcmp(node->system_identifier, reference->system_identifier) != 0)
			finding_add(d, PROBLEM, node, "system_identifier",
						screen_printf("This server is not a copy of %s: their system identifiers differ.",
									  reference->label),
						"It can't take over from it.")
				->hint =
				"Leave it out, or make it anew with pg_basebackup.";
	}
}

/* Nothing that we can't see may count as fine. */
static void
check_privilege(Diagnosis *d, Node *node)
{
	const Node *where = d->topology->primary ? d->topology->primary : node;

	if (node->is_monitor)
		return;
	finding_fix_sql(finding_add(d, UNCHECKED, node, "privilege",
								screen_printf("Role \"%s\" may not see settings, replication and failover slots of this server.",
											  node->user),
								"Checks that need them were not made."),
					where, NULL,
					screen_printf("GRANT pg_monitor TO %s;", quote_identifier(node->user)));
}

static void
check_server_version(Diagnosis *d, Node *node)
{
	const Node *primary = d->topology->primary;

	if (node->version_num < 150000)
		finding_add(d, PROBLEM, node, "server_version",
					screen_printf("The server has version %s; pg_tandem needs 15 or newer.", node->version),
					"Failover slots can't be kept here.");
	else if (primary && primary != node && primary->version_num / 10000 != node->version_num / 10000)
		finding_add(d, PROBLEM, node, "server_version",
					screen_printf("The server has version %s, the primary %s.",
								  node->version, primary->version),
					"A physical standby has the primary's major version.");
}

/* shared_preload_libraries with pg_tandem added, as ALTER SYSTEM wants it */
static const char *
preload_list(const Node *node)
{
	const char *now = node_setting(node, "shared_preload_libraries");
	const char *library;
	PQExpBufferData list;
	const char *result;

	initPQExpBuffer(&list);
	while (now && (library = next_library(&now)) != NULL)
		if (strcmp(library, "pg_tandem") != 0)
			appendPQExpBuffer(&list, "%s, ", quote_literal(library));
	appendPQExpBufferStr(&list, "'pg_tandem'");
	result = screen_strdup(list.data);
	termPQExpBuffer(&list);
	return result;
}

static void
check_library(Diagnosis *d, Node *node)
{
	const char *cost = node->in_recovery ?
		"No slot is kept on this standby; a failover to it loses every logical slot." :
		"Standbys can't ask for failover slots.";
	Finding	   *f;

	if (node->preloaded)
		return;
	if (node->available == NULL)
	{
		finding_add(d, PROBLEM, node, "library_missing",
					"The files of pg_tandem are not installed on this server.", cost)
			->hint =
			screen_printf("Install the package of pg_tandem for PostgreSQL %d there, then run this command again.",
						  node->version_num / 10000);
		return;
	}
	f = finding_setting(d, PROBLEM, node, "not_preloaded", "shared_preload_libraries",
						preload_list(node), "restart",
						"The server runs without the library: shared_preload_libraries does not name pg_tandem.",
						cost);
	if (node_setting(node, "shared_preload_libraries") == NULL)
		f->hint = "The present value could not be seen; add pg_tandem to it, don't replace it.";
}

static void
check_database(Diagnosis *d, Node *node)
{
	if (node->database_error == NULL)
		return;
	finding_add(d, PROBLEM, node, "database",
				screen_printf("tandem.database is \"%s\", which this command can't enter: %s",
							  node->tandem_database, node->database_error),
				"If the database isn't there, standbys can't ask for failover slots.")
		->hint =
		"Let tandem.database name the same existing database on every node; changing it takes a restart.";
}

static void
check_extension(Diagnosis *d, Node *node)
{
	const Node *primary = d->topology->primary;
	const char *database = node->tandem_database ? node->tandem_database : PQdb(node->conn);

	if (node->extension || node->database_error || (!node->preloaded && node->available == NULL))
		return;
	if (!node->in_recovery)
	{
		Finding	   *f = finding_add(d, PROBLEM, node, "extension_missing",
								 screen_printf("The extension is not installed in database \"%s\".", database),
								 "Standbys can't ask for failover slots.");

		if (!node->preloaded)
			f->hint = "After the restart with the library loaded:";
		finding_fix_sql(f, node, database, "CREATE EXTENSION pg_tandem;");
	}
	else if (primary && primary->extension)
		finding_add(d, PROBLEM, node, "extension_missing",
					screen_printf("The extension is on the primary but not yet on this standby in database \"%s\".", database),
					"Its slots can't be seen.")
			->hint =
			"It arrives with replication; check that this standby replays and that tandem.database is the same on both.";
	else if (primary == NULL)
		finding_add(d, PROBLEM, node, "extension_missing",
					screen_printf("The extension is not installed in database \"%s\".", database),
					"Standbys can't ask for failover slots.")
			->hint =
			"Run CREATE EXTENSION pg_tandem on the primary; it arrives here with replication.";
}

static void
check_version(Diagnosis *d, Node *node)
{
	const Node *primary = d->topology->primary;

	if (node->library == NULL || node->extension == NULL)
		return;
	if (strcmp(node->library, node->extension) != 0)
	{
		Finding	   *f = finding_add(d, PROBLEM, node, "version_mismatch",
								 screen_printf("The loaded library has version %s, the extension in database \"%s\" version %s.",
											   node->library, PQdb(node->conn), node->extension),
								 "The functions of pg_tandem refuse to work.");

		if (node->available && strcmp(node->available, node->library) != 0)
		{
			f->hint = screen_printf("The installed files have version %s: restart the server, so that it loads them.",
									node->available);
			return;
		}
		finding_fix_sql(f, primary ? primary : node, PQdb(node->conn),
						screen_printf("ALTER EXTENSION pg_tandem UPDATE TO %s;", quote_literal(node->library)));
	}
	else if (node->available && strcmp(node->available, node->library) != 0)
		finding_add(d, WARNING, node, "version_mismatch",
					screen_printf("The loaded library has version %s, the installed files %s.",
								  node->library, node->available),
					"After the next restart library and extension will not match.")
			->hint =
			"Restart the server at a time of your choice, then run ALTER EXTENSION pg_tandem UPDATE on the primary.";

	if (primary && primary != node && primary->library &&
		strcmp(primary->library, node->library) != 0)
		finding_add(d, WARNING, node, "version_mismatch",
					screen_printf("The loaded library has version %s, on the primary %s.",
								  node->library, primary->library),
					"Fine during a rolling upgrade, untested for longer.")
			->hint =
			"Install the newer version on both and restart, standbys first.";
}

/* The views themselves fail for another reason. */
static void
check_views(Diagnosis *d, Node *node)
{
	if (!node->preloaded || node->extension == NULL || node->tandem_error == NULL)
		return;
	if (node->tandem_denied)
	{
		if (node->is_monitor)
			finding_fix_sql(finding_add(d, UNCHECKED, node, "privilege",
										screen_printf("The views of pg_tandem can't be read: %s", node->tandem_error),
										"The failover slots of this node were not checked."),
							d->topology->primary ? d->topology->primary : node, NULL,
							screen_printf("GRANT pg_monitor TO %s;", quote_identifier(node->user)));
		return;
	}
	if (node->library && strcmp(node->library, node->extension) != 0)
		return;					/* said already */
	finding_add(d, UNCHECKED, node, "views",
				screen_printf("The views of pg_tandem can't be read: %s", node->tandem_error),
				"The failover slots of this node were not checked.");
}

const Check extension_checks[] = {
	{AT_WHOLE | AT_RUNTIME, check_reachable},
	{AT_WHOLE | AT_RUNTIME, check_cluster},
	{AT_EVERY | AT_RUNTIME, check_privilege},
	{AT_EVERY | AT_RUNTIME, check_server_version},
	{AT_EVERY | AT_RUNTIME, check_library},
	{AT_EVERY | AT_RUNTIME, check_database},
	{AT_EVERY | AT_RUNTIME, check_extension},
	{AT_EVERY | AT_RUNTIME, check_version},
	{AT_EVERY | AT_RUNTIME, check_views},
	{0, NULL}};
