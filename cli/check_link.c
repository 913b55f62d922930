/*-------------------------------------------------------------------------
 *
 * check_link.c
 *	  Checks: does a standby follow its primary, and may it ask for slots?
 *
 * cli/check_link.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <ctype.h>

#include "check.h"

#define HOLD_PREFIX "tandem_hold_"
#define LONGEST_SLOT (NAMEDATALEN - 1 - (int) strlen(HOLD_PREFIX))

/* A name for a new slot of this standby that the primary doesn't have yet. */
static const char *
propose_slot_name(const Topology *topology, const Node *standby)
{
	const char *port = PQport(standby->conn);
	const char *name = screen_printf("standby_%s", port && *port ? port : "5432");

	for (int i = 2; topology->primary &&
		 find_row(topology->primary->slots, "slot_name", name) >= 0;
		 i++)
		name = screen_printf("standby_%s_%d", port && *port ? port : "5432", i);
	return name;
}

static const char *
create_slot_sql(const char *name)
{
	return screen_printf("SELECT pg_catalog.pg_create_physical_replication_slot(%s, true);",
						 quote_literal(name));
}

static void
check_primary_slot_name(Diagnosis *d, Node *node)
{
	const Topology *t = d->topology;
	const char *name = node_primary_slot_name(node);
	Finding	   *f;
	int			row;

	if (node->settings == NULL)
		return;
	if (name == NULL)
	{
		name = propose_slot_name(t, node);
		f = finding_add(d, PROBLEM, node, "primary_slot_name",
						"primary_slot_name is empty.",
						"The primary keeps neither WAL nor catalog rows for this standby, and no slot can become ready on it.");
		finding_fix_sql(f, t->primary, NULL, create_slot_sql(name));
		finding_fix(f, node, "sql",
					screen_printf("ALTER SYSTEM SET primary_slot_name = %s;", quote_literal(name)),
					"reload");
		return;
	}
	if ((int) strlen(name) > LONGEST_SLOT)
	{
		f = finding_add(d, PROBLEM, node, "primary_slot_name_long",
						screen_printf("primary_slot_name \"%s\" has more than %d characters.", name, LONGEST_SLOT),
						"No hold can be named after it, so no slot can become ready on this standby.");
		name = propose_slot_name(t, node);
		finding_fix_sql(f, t->primary, NULL, create_slot_sql(name));
		finding_fix(f, node, "sql",
					screen_printf("ALTER SYSTEM SET primary_slot_name = %s;", quote_literal(name)),
					"reload");
		return;
	}
	for (int i = 0; i < t->nnodes && t->nodes[i] != node; i++)
	{
		const Node *other = t->nodes[i];
		const char *other_name = other->conn && other->in_recovery ? node_primary_slot_name(other) : NULL;

		if (other_name && strcmp(other_name, name) == 0)
		{
			const char *proposed = propose_slot_name(t, node);

			f = finding_add(d, PROBLEM, node, "primary_slot_shared",
							screen_printf("primary_slot_name is \"%s\", as on %s.", name, other->label),
							"Only one of the two can stream at a time, and they share one hold.");
			finding_fix_sql(f, t->primary, NULL, create_slot_sql(proposed));
			finding_fix(f, node, "sql",
						screen_printf("ALTER SYSTEM SET primary_slot_name = %s;", quote_literal(proposed)),
						"reload");
		}
	}

	/* the rest is the primary's to tell */
	if (t->primary == NULL || t->primary->slots == NULL)
		return;
	row = find_row(t->primary->slots, "slot_name", name);
	if (row < 0)
	{
		f = finding_add(d, PROBLEM, node, "physical_slot_missing",
						screen_printf("primary_slot_name is \"%s\", but the primary has no such slot.", name),
						"The standby can't stream, and the primary keeps no WAL for it.");
		finding_fix_sql(f, t->primary, NULL, create_slot_sql(name));
	}
	else if (strcmp(field(t->primary->slots, row, "slot_type"), "physical") != 0)
	{
		f = finding_add(d, PROBLEM, node, "physical_slot_logical",
						screen_printf("primary_slot_name is \"%s\", which is a logical slot on the primary.", name),
						"The standby can't stream through it.");
		name = propose_slot_name(t, node);
		finding_fix_sql(f, t->primary, NULL, create_slot_sql(name));
		finding_fix(f, node, "sql",
					screen_printf("ALTER SYSTEM SET primary_slot_name = %s;", quote_literal(name)),
					"reload");
	}
}

static void
check_streaming(Diagnosis *d, Node *node)
{
	Finding	   *f;

	if (!node->is_monitor || nrows(node->walreceiver) > 0)
		return;
	f = finding_add(d, PROBLEM, node, "not_streaming",
					"No walreceiver runs: this standby does not stream from its primary.",
					"It falls behind; slots that move on the primary can't become ready here.");
	f->hint = "Look for the walreceiver's error in this server's log; check primary_conninfo and primary_slot_name.";
}

static void
check_worker(Diagnosis *d, Node *node)
{
	Finding	   *f;

	if (nrows(node->sync) == 0 || field(node->sync, 0, "worker_pid") != NULL ||
		(node->in_recovery && node_setting_is(node, "tandem.sync_slots", "off")))
		return;
	f = finding_add(d, PROBLEM, node, "worker",
					"The worker of pg_tandem does not run.",
					node->in_recovery ? "No slot is synced to this standby." :
										"Holds of standbys that are gone do not end by themselves.");
	f->hint = "It starts again within seconds after an error; if it stays away, the server log says why (often: max_worker_processes is too small).";
}

/*
 * The name between quotes that follows "before" in an error message, or NULL.
 */
static const char *
quoted_after(const char *message, const char *before)
{
	const char *at = strstr(message, before);

	if (at == NULL)
		return NULL;
	at += strlen(before);
	return screen_printf("%.*s", (int) strcspn(at, "\""), at);
}

/* The line for pg_hba.conf that lets the standby in. */
static const char *
hba_line(const Topology *t, const Node *standby, const char *error)
{
	const char *database = standby->tandem_database ? standby->tandem_database : "postgres";
	const char *role = node_upstream(standby, "user");
	const char *address = quoted_after(error, "host \"");
	const char *slot = node_primary_slot_name(standby);

	if (address == NULL && t->primary && slot)
	{
		int			row = find_row(t->primary->slots, "slot_name", slot);
		const char *pid = field(t->primary->slots, row, "active_pid");

		address = field(t->primary->walsenders, find_row(t->primary->walsenders, "pid", pid), "client_addr");
	}
	if (role == NULL)
		role = quoted_after(error, "user \"");
	database = screen_printf(strspn(database, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(database) ?
								 "%s" :
								 "\"%s\"",
							 database);
	role = screen_printf(role && strspn(role, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(role) ?
							 "%s" :
							 "\"%s\"",
						 role ? role : "repl");
	if (address == NULL || strcmp(address, "[local]") == 0)
		return screen_printf("local  %s  %s  scram-sha-256", database, role);
	return screen_printf("host  %s  %s  %s/%d  scram-sha-256", database, role, address,
						 strchr(address, ':') ? 128 : 32);
}

/*
 * What the primary knows about the role of this standby's connection.  Adds a
 * finding if it could not work; true if so.
 */
static bool
check_role(Diagnosis *d, Node *node)
{
	Node	   *primary = d->topology->primary;
	const char *role = node_upstream(node, "user");
	const char *error;
	PGresult   *res;
	Finding	   *f;

	if (primary == NULL || primary->conn == NULL || primary->extension == NULL)
		return false;
	if (role == NULL)
		return false;			/* an error of the connection will show it */
	res = node_query(primary,
					 screen_printf("SELECT rolcanlogin, rolsuper,"
								   " pg_catalog.has_database_privilege(oid, pg_catalog.current_database(), 'CONNECT') AS may_connect,"
								   " pg_catalog.has_schema_privilege(oid, 'tandem', 'USAGE') AS may_use,"
								   " pg_catalog.has_function_privilege(oid, 'tandem.source_slots(integer, text, xid, xid, bytea, text[])', 'EXECUTE')"
								   " AND pg_catalog.has_function_privilege(oid, 'tandem.source_wal(text, bigint, integer)', 'EXECUTE') AS may_ask"
								   " FROM pg_catalog.pg_roles WHERE rolname = %s",
								   quote_literal(role)),
					 &error, NULL);
	if (res == NULL)
	{
		finding_add(d, UNCHECKED, node, "role",
					screen_printf("The rights of role \"%s\" could not be read on the primary: %s", role, error),
					"Whether this standby may ask for slots was not checked.");
		return true;
	}
	if (nrows(res) == 0)
	{
		f = finding_add(d, PROBLEM, node, "role",
						screen_printf("This standby connects as \"%s\", a role that the primary does not have.", role),
						"No slot is synced to this standby.");
		finding_fix_sql(f, primary, NULL,
						screen_printf("CREATE ROLE %s LOGIN REPLICATION;", quote_identifier(role)));
		finding_fix_sql(f, primary, primary->tandem_database,
						screen_printf("GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal TO %s;",
									  quote_identifier(role)));
		f->hint = screen_printf("Give it a password with \\password %s in psql if pg_hba.conf asks for one.",
								quote_identifier(role));
		return true;
	}
	if (!field_is_true(res, 0, "rolcanlogin"))
	{
		f = finding_add(d, PROBLEM, node, "role",
						screen_printf("This standby connects as \"%s\", a role that may not log in.", role),
						"No slot is synced to this standby.");
		finding_fix_sql(f, primary, NULL,
						screen_printf("ALTER ROLE %s LOGIN;", quote_identifier(role)));
		return true;
	}
	if (!field_is_true(res, 0, "may_connect"))
	{
		f = finding_add(d, PROBLEM, node, "grant",
						screen_printf("Role \"%s\" may not connect to database \"%s\" on the primary.",
									  role, primary->tandem_database),
						"No slot is synced to this standby.");
		finding_fix_sql(f, primary, NULL,
						screen_printf("GRANT CONNECT ON DATABASE %s TO %s;",
									  quote_identifier(primary->tandem_database), quote_identifier(role)));
		return true;
	}
	if (!field_is_true(res, 0, "may_use") || !field_is_true(res, 0, "may_ask"))
	{
		f = finding_add(d, PROBLEM, node, "grant",
						screen_printf("This standby connects as \"%s\", a role that may not ask for failover slots.", role),
						"No slot is synced to this standby.");
		if (!field_is_true(res, 0, "may_use"))
			finding_fix_sql(f, primary, primary->tandem_database,
							screen_printf("GRANT USAGE ON SCHEMA tandem TO %s;", quote_identifier(role)));
		if (!field_is_true(res, 0, "may_ask"))
			finding_fix_sql(f, primary, primary->tandem_database,
							screen_printf("GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal TO %s;",
										  quote_identifier(role)));
		return true;
	}
	return false;
}

/* Does tandem.primary_conninfo lead to the right database? */
static bool
check_dbname(Diagnosis *d, Node *node)
{
	const char *conninfo = node_setting(node, "tandem.primary_conninfo");
	const char *want = d->topology->primary ? d->topology->primary->tandem_database : NULL;
	PQconninfoOption *options;
	const char *have = NULL;

	if (conninfo == NULL || *conninfo == '\0' || want == NULL)
		return false;
	options = PQconninfoParse(conninfo, NULL);
	for (PQconninfoOption *o = options; o && o->keyword; o++)
		if (strcmp(o->keyword, "dbname") == 0)
			have = screen_strdup(o->val);
	PQconninfoFree(options);

	/* without one, the standby asks in its own tandem.database */
	if (options == NULL || have == NULL || strcmp(have, want) == 0)
		return false;
	finding_setting(d, PROBLEM, node, "dbname", "tandem.primary_conninfo",
					quote_literal(strstr(conninfo, "://") ? conninfo :
															screen_printf("%s dbname=%s", conninfo, want)),
					"reload",
					screen_printf("tandem.primary_conninfo names database \"%s\", the primary serves failover slots in \"%s\".",
								  have, want),
					"No slot is synced to this standby.");
	return true;
}

/* The worker's own error, in the terms of whoever has to mend it. */
static void
check_sync_error(Diagnosis *d, Node *node)
{
	const Topology *t = d->topology;
	const char *error = field(node->sync, 0, "error");
	const char *age = field(node->sync, 0, "success_age");
	int64		interval = node_setting_int(node, "tandem.slot_sync_interval", 1000);
	const char *cost = "No slot is synced to this standby; what is ready now stays ready but falls behind.";
	Finding	   *f;

	if (check_role(d, node) || check_dbname(d, node))
		return;
	if (error == NULL)
	{
		if (nrows(node->sync) > 0 && age && field(node->sync, 0, "worker_pid") &&
			!node_setting_is(node, "tandem.sync_slots", "off") &&
			atof(age) > Max(60.0, 30 * interval / 1000.0))
			finding_add(d, WARNING, node, "sync_stale",
						screen_printf("The last sync that succeeded was %s ago.", text_duration(atof(age))),
						cost)
				->hint = "Look into tandem.sync_status and the server log.";
		return;
	}
	if (strstr(error, "pg_hba.conf"))
	{
		f = finding_add(d, PROBLEM, node, "pg_hba",
						screen_printf("The primary's pg_hba.conf does not let this standby in: %s", error), cost);
		finding_fix(f, t->primary, "pg_hba.conf", hba_line(t, node, error), "reload");
		f->hint = "A line for database \"replication\" does not cover this: slots are asked for in an ordinary database. Lines are tried from the top; use the method of the line for replication if that is another.";
		return;
	}
	if (strstr(error, "no password supplied") || strstr(error, "password authentication failed"))
	{
		f = finding_add(d, PROBLEM, node, "password",
						screen_printf("This standby's password is missing or wrong: %s", error), cost);
		f->hint = screen_printf("A .pgpass line for database \"replication\" does not cover this: write one for \"%s\", or * in its place.",
								node->tandem_database ? node->tandem_database : "postgres");
		return;
	}
	f = finding_add(d, PROBLEM, node, "sync_error",
					screen_printf("The last sync failed: %s", error), cost);
	f->hint = field(node->sync, 0, "hint");
}

/*
 * Standbys that the primary knows and nobody asked, and slots without a
 * standby.
 */
static void
check_known_standbys(Diagnosis *d, Node *primary)
{
	const Topology *t = d->topology;

	for (int i = 0; i < nrows(primary->slots); i++)
	{
		const char *name = field(primary->slots, i, "slot_name");
		const char *pid = field(primary->slots, i, "active_pid");
		bool		asked = false;
		Finding	   *f;

		if (strcmp(field(primary->slots, i, "slot_type"), "physical") != 0 ||
			strncmp(name, HOLD_PREFIX, strlen(HOLD_PREFIX)) == 0 ||
			node_slot_only_keeps_wal(primary, i) ||
			field_is_true(primary->slots, i, "temporary"))
			continue;
		for (int j = 0; j < t->nnodes; j++)
		{
			const char *slot = t->nodes[j]->conn && t->nodes[j]->in_recovery ?
				node_primary_slot_name(t->nodes[j]) :
				NULL;

			asked |= slot && strcmp(slot, name) == 0;
		}
		if (asked)
			continue;
		if (pid)
		{
			const char *address = field(primary->walsenders,
										find_row(primary->walsenders, "pid", pid), "client_addr");

			f = finding_add(d, UNCHECKED, primary, "standby_not_asked",
							screen_printf("A standby%s%s streams through slot \"%s\" and was not asked.",
										  address ? " at " : "", address ? address : "", name),
							"Whether its slots are ready is not known.");
			f->hint = screen_printf("The primary does not know its port: name it with --node=\"host=%s port=...\".",
									address ? address : "...");
			continue;
		}
		if (field(primary->slots, i, "restart_lsn") == NULL)
			continue;			/* keeps nothing */
		f = finding_add(d, WARNING, primary, "standby_away",
						screen_printf("No standby is connected to slot \"%s\", for which %s of WAL are kept.", name,
									  text_bytes((int64) (primary->lsn - Min(field_lsn(primary->slots, i, "restart_lsn"), primary->lsn)))),
						"WAL gathers for it, up to max_slot_wal_keep_size if that is set, else until the disk is full.");
		f->hint = "Start the standby, or if it is gone for good drop its slot:";
		finding_fix_sql(f, primary, NULL,
						screen_printf("SELECT pg_catalog.pg_drop_replication_slot(%s);", quote_literal(name)));
	}
}

const Check link_checks[] = {
	{AT_STANDBY | AT_RUNTIME, check_primary_slot_name},
	{AT_STANDBY | AT_RUNTIME, check_streaming},
	{AT_EVERY | AT_RUNTIME, check_worker},
	{AT_STANDBY | AT_RUNTIME, check_sync_error},
	{AT_PRIMARY | AT_RUNTIME, check_known_standbys},
	{0, NULL}};
