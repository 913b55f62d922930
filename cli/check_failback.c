/*-------------------------------------------------------------------------
 *
 * check_failback.c
 *	  Checks: could a node that fails come back, and does the guard work?
 *
 * cli/check_failback.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"

/* A guard that has not armed for so long won't do so by itself, seconds. */
#define ARMING_PATIENCE 30

#define REJOIN_FUNCTIONS \
	"tandem.rejoin_source, tandem.source_files, tandem.source_file, tandem.source_blocks, tandem.page_digests"

static bool
has_list(const Node *node)
{
	const char *list = node_setting(node, "tandem.failback_standbys");

	return list && *list;
}

static bool
hints_are_logged(const Node *node)
{
	return !node_setting_is(node, "wal_log_hints", "off") ||
		!node_setting_is(node, "data_checksums", "off");
}

static bool
keeps_wal(const Node *node)
{
	return find_row(node->slots, "slot_name", REJOIN_SLOT) >= 0;
}

const char *
rejoin_obstacle(const Topology *topology, const Node *node)
{
	if (!hints_are_logged(node))
		return "neither wal_log_hints nor data checksums are on";
	if (node_setting_is(node, "full_page_writes", "off"))
		return "full_page_writes is off";
	if (node->in_recovery)
		return NULL;
	if (topology->nprimaries == 1)
	{
		int			nstandbys = 0;

		for (int i = 0; i < topology->nnodes; i++)
		{
			const Node *standby = topology->nodes[i];

			if (standby->conn == NULL || !standby->in_recovery)
				continue;
			nstandbys++;
			if (standby->slots && !keeps_wal(standby))
				return screen_printf("%s keeps no WAL for it", standby->label);
		}
		if (nstandbys == 0)
			return "no standby was asked";
	}
	return field(node->failback, 0, "wal_problem");
}

/* ---- what rejoin needs --------------------------------------------------------- */

static void
check_hint_bits(Diagnosis *d, Node *node)
{
	if (!hints_are_logged(node))
		finding_setting(d, WARNING, node, "wal_log_hints", "wal_log_hints", "on", "restart",
						"wal_log_hints is off and the cluster has no data checksums.",
						"After a failover this node can't be brought back by \"tandem rejoin\" or pg_rewind, only by a new base backup.");
}

static void
check_full_page_writes(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "full_page_writes", "off"))
		finding_setting(d, WARNING, node, "full_page_writes", "full_page_writes", "on", "reload",
						"full_page_writes is off.",
						"After a failover this node can't be brought back by \"tandem rejoin\", only by a new base backup.");
}

static void
check_rejoin_slot(Diagnosis *d, Node *node)
{
	static const char *const cost =
		"When this standby has replaced its primary, that finds the WAL it needs only if wal_keep_size or an archive happens to have it.";

	if (node->settings == NULL || node->slots == NULL || !node->preloaded)
		return;
	if (node_setting_int(node, "tandem.failback_keep_size", 0) == 0)
		finding_setting(d, NOTE, node, "failback_keep_size", "tandem.failback_keep_size", "'10GB'", "reload",
						"tandem.failback_keep_size is 0: no WAL is kept for a node to be rejoined.", cost);
	else if (!keeps_wal(node))
		finding_add(d, WARNING, node, "rejoin_slot",
					screen_printf("This standby has no slot \"%s\", which keeps WAL for the primary it may replace.", REJOIN_SLOT),
					cost)
			->hint = "The worker \"tandem failback\" makes it within seconds; if not, the server log says why (often: max_replication_slots is too small).";
}

/* The role by which nodes replicate is the one by which they rejoin. */
static void
check_rejoin_grant(Diagnosis *d, Node *node)
{
	Node	   *primary = d->topology->primary;
	const char *role = node_upstream(node, "user");
	PGresult   *res;
	Finding	   *f;

	if (primary == NULL || primary->conn == NULL || primary->extension == NULL || role == NULL)
		return;
	res = node_query(primary,
					 screen_printf("SELECT rolsuper, rolreplication,"
								   " pg_catalog.pg_has_role(r.oid, 'pg_checkpoint', 'USAGE') AS may_checkpoint,"
								   " (SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(r.oid, p.oid, 'EXECUTE'))"
								   " FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'tandem'::pg_catalog.regnamespace"
								   " AND p.proname IN ('rejoin_source', 'source_files', 'source_file', 'source_blocks', 'page_digests', 'source_wal')) AS may_ask"
								   " FROM pg_catalog.pg_roles r WHERE rolname = %s",
								   quote_literal(role)),
					 NULL, NULL);
	if (nrows(res) == 0 || field_is_true(res, 0, "rolsuper") || field(res, 0, "may_ask") == NULL ||
		(field_is_true(res, 0, "may_ask") && field_is_true(res, 0, "may_checkpoint")))
		return;
	f = finding_add(d, WARNING, node, "rejoin_grant",
					screen_printf("Role \"%s\" may not do all that \"tandem rejoin\" has to on a new primary.", role),
					"A node that was replaced can't be rejoined as this role.");
	if (!field_is_true(res, 0, "may_ask"))
		finding_fix_sql(f, primary, primary->tandem_database,
						screen_printf("GRANT EXECUTE ON FUNCTION tandem.source_wal, " REJOIN_FUNCTIONS " TO %s;",
									  quote_identifier(role)));
	if (!field_is_true(res, 0, "may_checkpoint"))
		finding_fix_sql(f, primary, NULL,
						screen_printf("GRANT pg_checkpoint TO %s;", quote_identifier(role)));
}

/* "tandem rejoin" switches restore_command off and can't always wait to undo it. */
static void
check_restore_off(Diagnosis *d, Node *node)
{
	int			row = find_row(node->settings, "name", "restore_command");
	const char *value = field(node->settings, row, "setting");
	const char *file = field(node->settings, row, "sourcefile");
	const char *name = file ? strrchr(file, '/') : NULL;
	Finding	   *f;

	if (name == NULL || strcmp(name, "/postgresql.auto.conf") != 0 || value == NULL || *value != '\0')
		return;
	/* the old timeline's segments could still be wanted from the archive */
	if (node->timeline != node->checkpoint_timeline)
	{
		finding_add(d, NOTE, node, "restore_off",
					"restore_command is switched off in postgresql.auto.conf, as \"tandem rejoin\" leaves it.",
					"Until it is switched on again this node takes no WAL from the archive.")
			->hint = "Wait until a restartpoint is on the new timeline; then it may go.";
		return;
	}
	f = finding_add(d, WARNING, node, "restore_off",
					"restore_command is switched off in postgresql.auto.conf, as \"tandem rejoin\" leaves it.",
					"This node takes no WAL from the archive.");
	finding_fix(f, node, "sql", "ALTER SYSTEM RESET restore_command;", "reload");
}

/* Somebody started an old primary again. */
static void
check_old_primary(Diagnosis *d, Node *unused)
{
	const Topology *t = d->topology;

	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];
		const Node *newest = NULL;

		if (node->conn == NULL || node->in_recovery || node->timeline == 0 || node->system_identifier == NULL)
			continue;
		for (int j = 0; j < t->nnodes; j++)
		{
			const Node *other = t->nodes[j];

			if (other->conn && !other->in_recovery && other->timeline > node->timeline &&
				other->system_identifier &&
				strcmp(other->system_identifier, node->system_identifier) == 0 &&
				(newest == NULL || other->timeline > newest->timeline))
				newest = other;
		}
		if (newest == NULL)
			continue;
		finding_add(d, PROBLEM, node, "old_primary",
					screen_printf("This node takes writes on timeline %d, which %s has left: that is on timeline %d.",
								  node->timeline, newest->label, newest->timeline),
					"What is written here is lost, and has to be undone when the node comes back.")
			->hint = screen_printf("Stop it, keep it from being started as a primary, and on its machine run: tandem rejoin -D %s --source \"host=%s port=%s\"",
								   node_setting(node, "data_directory") ? node_setting(node, "data_directory") : "...",
								   PQhost(newest->conn), PQport(newest->conn));
	}
}

/* WAL that waits for a node which may never come. */
static void
check_rejoin_waits(Diagnosis *d, Node *node)
{
	int			row = find_row(node->slots, "slot_name", REJOIN_SLOT);
	uint64		from = field_lsn(node->slots, row, "restart_lsn");

	if (row < 0 || from == 0 || !node_slot_only_keeps_wal(node, row))
		return;
	finding_add(d, NOTE, node, "rejoin_waits",
				screen_printf("Slot \"%s\" keeps %s of WAL for the node that this one has replaced.", REJOIN_SLOT,
							  text_bytes(node->lsn > from ? (int64) (node->lsn - from) : 0)),
				"It does so up to tandem.failback_keep_size, then the slot is dropped.")
		->hint = "Rejoin that node; if it is back already by another slot, or gone for good:";
	finding_fix_sql(d->last, node, NULL,
					"SELECT pg_catalog.pg_drop_replication_slot('" REJOIN_SLOT "');");
}

/* ---- the guard ------------------------------------------------------------------- */

static void
check_failback_worker(Diagnosis *d, Node *node)
{
	if (nrows(node->failback) > 0 && field(node->failback, 0, "worker_pid") == NULL)
		finding_add(d, PROBLEM, node, "failback_worker",
					"The worker \"tandem failback\" does not run.",
					node->in_recovery ? "No WAL is kept for a node to be rejoined." :
										"The guard does not arm, and no WAL is kept for this node to be rejoined.")
			->hint = "It starts again within seconds after an error; if it stays away, the server log says why (often: max_worker_processes is too small).";
}

static void
check_wal_problem(Diagnosis *d, Node *node)
{
	const char *problem = field(node->failback, 0, "wal_problem");

	if (problem)
		finding_add(d, WARNING, node, "failback_wal",
					screen_printf("WAL for rejoining a node is not kept as it should be: %s", problem),
					"A node that fails now may need WAL from an archive to be rejoined, or a new base backup.")
			->hint = "Let the standbys catch up, or raise tandem.failback_keep_size.";
}

/* The slots through which standbys stream, as a list, or NULL. */
static const char *
standby_slots(const Topology *t)
{
	const char *list = NULL;

	for (int i = 0; i < t->nnodes; i++)
	{
		const char *slot = t->nodes[i]->conn && t->nodes[i]->in_recovery ? node_primary_slot_name(t->nodes[i]) : NULL;

		if (slot)
			list = list ? screen_printf("%s, %s", list, slot) : slot;
	}
	return list;
}

static void
check_guard(Diagnosis *d, Node *node)
{
	static const char *const cost =
		"Pages are written that no standby has the WAL of. \"tandem rejoin\" still works, but has to copy them.";
	const char *state = field(node->failback, 0, "state");
	const char *reason = field(node->failback, 0, "reason");
	const char *age = field(node->failback, 0, "age");
	bool		none = node_setting_is(node, "tandem.synchronous_transfer", "none");
	const char *slots = standby_slots(d->topology);
	Finding	   *f = NULL;

	if (state == NULL)
		return;
	if (none || (strcmp(state, "off") == 0 && !has_list(node)))
	{
		f = finding_add(d, none ? NOTE : PROBLEM, node, none ? "no_guard" : "guard_off",
						none ? "tandem.synchronous_transfer is none: pages are written before a standby has their WAL." :
							   "The guard is off: tandem.failback_standbys is empty.",
						none ? "If this node crashes, \"tandem rejoin\" has to copy those pages; with the guard usually none." : cost);
		if (!has_list(node) && slots)
			finding_fix(f, node, "sql",
						screen_printf("ALTER SYSTEM SET tandem.failback_standbys = %s;", quote_literal(slots)), "reload");
		else if (!has_list(node))
			f->hint = "Name the physical slots of the standbys that may be promoted in tandem.failback_standbys.";
		if (none)
			finding_fix(f, node, "sql", "ALTER SYSTEM SET tandem.synchronous_transfer = 'data_flush';", "reload");
		return;
	}
	if (strcmp(state, "off") == 0)
		f = finding_add(d, PROBLEM, node, "guard_off",
						screen_printf("The guard is off: %s", reason ? reason : "no reason is given"), cost);
	else if (strcmp(state, "degraded") == 0)
		f = finding_add(d, WARNING, node, "guard_degraded",
						screen_printf("The guard is degraded since %s: %s", text_duration(age ? atof(age) : 0),
									  reason ? reason : "no reason is given"),
						cost);
	else if (strcmp(state, "armed") == 0 && reason)
		f = finding_add(d, WARNING, node, "guard_waits",
						screen_printf("The guard is armed, but %s", reason),
						"Each write waits up to tandem.failback_timeout, then the guard degrades.");
	else if (strcmp(state, "armed") != 0 && age && atof(age) > ARMING_PATIENCE)
		f = finding_add(d, WARNING, node, "guard_arming",
						screen_printf("The guard has not armed for %s: %s", text_duration(atof(age)),
									  reason ? reason : "no reason is given"),
						cost);
	if (f)
		f->hint = field(node->failback, 0, "hint");
}

/* WAL back to a confirmed checkpoint is about as much as between two of them. */
static void
check_keep_size(Diagnosis *d, Node *node)
{
	int64		keep = node_setting_int(node, "tandem.failback_keep_size", 0);
	int64		slot_keep = node_setting_int(node, "max_slot_wal_keep_size", -1);
	int64		max_wal = node_setting_int(node, "max_wal_size", 0);
	bool		by_slot = slot_keep >= 0 && slot_keep < keep;

	if (!has_list(node))
		return;
	if (keep == 0)
		finding_setting(d, WARNING, node, "failback_keep_size", "tandem.failback_keep_size",
						screen_printf("'" INT64_FORMAT "MB'", Max(2 * max_wal, 1024)), "reload",
						"tandem.failback_keep_size is 0: no WAL is kept for this node to be rejoined.",
						"If the checkpoint before a failover is not the last one here, \"tandem rejoin\" needs an archive.");
	else if ((by_slot ? slot_keep : keep) < max_wal)
		finding_setting(d, WARNING, node, "failback_keep_size",
						by_slot ? "max_slot_wal_keep_size" : "tandem.failback_keep_size",
						screen_printf("'" INT64_FORMAT "MB'", 2 * max_wal), "reload",
						screen_printf("%s is " INT64_FORMAT " MB, less than max_wal_size (" INT64_FORMAT " MB).",
									  by_slot ? "max_slot_wal_keep_size" : "tandem.failback_keep_size",
									  by_slot ? slot_keep : keep, max_wal),
						"WAL back to the last checkpoint that the standbys have confirmed may be removed; then \"tandem rejoin\" needs an archive.");
}

static void
check_unfenced_restart(Diagnosis *d, Node *node)
{
	if (has_list(node) && !node_setting_is(node, "tandem.synchronous_transfer", "none") &&
		node_setting_is(node, "restart_after_crash", "on"))
		finding_setting(d, NOTE, node, "restart_after_crash", "restart_after_crash", "off", "reload",
						"restart_after_crash is on: after a crash this server starts again as a primary by itself, also when another one has been promoted.",
						"The guard does not hold pages back in crash recovery; \"tandem rejoin\" then has to copy them.")
			->hint = "A service manager that restarts the server (Restart= in systemd) has the same effect; let whoever promotes decide. Leave it on if nobody promotes by himself.";
}

const Check failback_checks[] = {
	{AT_WHOLE | AT_RUNTIME, check_old_primary},
	{AT_EVERY, check_hint_bits},
	{AT_EVERY, check_full_page_writes},
	{AT_STANDBY, check_rejoin_slot},
	{AT_STANDBY, check_rejoin_grant},
	{AT_EVERY, check_restore_off},
	{AT_PRIMARY, check_rejoin_waits},
	{AT_EVERY | AT_RUNTIME, check_failback_worker},
	{AT_EVERY | AT_RUNTIME, check_wal_problem},
	{AT_PRIMARY | AT_RUNTIME, check_guard},
	{AT_PRIMARY, check_keep_size},
	{AT_PRIMARY, check_unfenced_restart},
	{0, NULL}};
