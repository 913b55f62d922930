/*-------------------------------------------------------------------------
 *
 * check_setting.c
 *	  Checks: settings of a node.
 *
 * cli/check_setting.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"

static void
check_wal_level(Diagnosis *d, Node *node)
{
	const char *level = node_setting(node, "wal_level");

	if (level == NULL || strcmp(level, "logical") == 0)
		return;
	finding_setting(d, PROBLEM, node, "wal_level", "wal_level", "'logical'", "restart",
					screen_printf("wal_level is \"%s\".", level),
					node->in_recovery ?
						"This standby can't keep logical slots; promoted, it could not decode." :
						"The server can't have logical slots.");
}

/* Slots, walsenders, workers: what need.c has counted. */
static void
check_needs(Diagnosis *d, Node *node)
{
	static const char *const costs[][2] = {
		{"max_replication_slots",
		 "The next slot can't be made: a failover slot stays not ready, or a standby or its hold is turned away."},
		{"max_wal_senders",
		 "A standby or subscriber is turned away, today or after a failover."},
		{"max_worker_processes",
		 "The worker of pg_tandem or one of a subscription may not start."},
	};
	Need		needs[MOST_NEEDS];
	int			n = node_needs(d->topology, node, needs);

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < (int) lengthof(costs); j++)
		{
			if (strcmp(needs[i].setting, costs[j][0]) != 0 || needs[i].now >= needs[i].advised)
				continue;
			finding_setting(d, needs[i].now < needs[i].needed ? PROBLEM : WARNING, node,
							needs[i].setting, needs[i].setting,
							screen_printf(INT64_FORMAT, needs[i].advised), "restart",
							screen_printf("%s is " INT64_FORMAT "; needed are " INT64_FORMAT
										  ", advised " INT64_FORMAT " (%s).",
										  needs[i].setting, needs[i].now, needs[i].needed,
										  needs[i].advised, needs[i].counted),
							costs[j][1]);
		}
	}
}

/* A standby with less than the primary stops replaying. */
static void
check_recovery_settings(Diagnosis *d, Node *node)
{
	static const char *const names[] = {
		"max_connections", "max_worker_processes", "max_wal_senders",
		"max_prepared_transactions", "max_locks_per_transaction"};
	const Node *primary = d->topology->primary;

	for (int i = 0; primary && i < (int) lengthof(names); i++)
	{
		int64		here = node_setting_int(node, names[i], -1);
		int64		there = node_setting_int(primary, names[i], -1);

		if (here >= 0 && there > here)
			finding_setting(d, PROBLEM, node, "recovery_setting", names[i],
							screen_printf(INT64_FORMAT, there), "restart",
							screen_printf("%s is " INT64_FORMAT " here and " INT64_FORMAT " on the primary.",
										  names[i], here, there),
							"Replay pauses, or the standby does not start again.");
	}
}

static void
check_slot_wal(Diagnosis *d, Node *node)
{
	Need		needs[MOST_NEEDS];
	int			n = node_needs(d->topology, node, needs);

	for (int i = 0; i < n; i++)
	{
		const Need *need = &needs[i];

		if (strcmp(need->setting, "max_slot_wal_keep_size") != 0)
			continue;
		if (need->now == -1)
			finding_setting(d, NOTE, node, "slot_wal_unlimited", "max_slot_wal_keep_size",
							screen_printf("'" INT64_FORMAT "GB'", Max((int64) 10, (need->advised + 1023) / 1024)),
							"reload",
							"max_slot_wal_keep_size is -1: slots keep WAL without limit.",
							"The disk fills if a consumer or standby stays away. With a limit no disk fills, but slots further behind than it are lost.");
		else if (need->now < need->advised)
			finding_setting(d, WARNING, node, "slot_wal_short", "max_slot_wal_keep_size",
							screen_printf("'" INT64_FORMAT "MB'", need->advised), "reload",
							screen_printf("max_slot_wal_keep_size is " INT64_FORMAT " MB; one slot keeps " INT64_FORMAT " MB already.",
										  need->now, need->needed),
							"A slot that falls further behind than the limit is lost, and with it its subscriber or standby.");
		else
			finding_add(d, NOTE, node, "slot_wal_limited",
						screen_printf("max_slot_wal_keep_size is " INT64_FORMAT " MB.", need->now),
						"No disk fills, but a slot that falls further behind is lost, and with it its subscriber or standby.");
	}
}

static void
check_commit_timestamp(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "track_commit_timestamp", "off"))
		finding_setting(d, NOTE, node, "track_commit_timestamp", "track_commit_timestamp", "on", "restart",
						"track_commit_timestamp is off.",
						"Only nodes that subscribe and are written to need it: conflicts can't be told by origin and time.");
}

static void
check_hot_standby(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "hot_standby", "off"))
		finding_setting(d, NOTE, node, "hot_standby", "hot_standby", "on", "restart",
						"hot_standby is off.",
						"As a standby, after a failover and its return, this node would take no connections.");
}

static void
check_sync_off(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "tandem.sync_slots", "off"))
		finding_setting(d, PROBLEM, node, "sync_off", "tandem.sync_slots", "on", "reload",
						"tandem.sync_slots is off.",
						"Failover slots on this standby stay as they are, or away; a failover to it loses what came later.");
}

/* PostgreSQL 17 and newer can sync slots too; one of the two is enough. */
static void
check_native_sync(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "sync_replication_slots", "on") &&
		node_setting_is(node, "tandem.sync_slots", "on"))
		finding_setting(d, WARNING, node, "native_sync", "sync_replication_slots", "off", "reload",
						"sync_replication_slots and tandem.sync_slots are both on.",
						"Slots that the server itself syncs are left to it: pg_tandem can't prove or hold them.");
}

static void
check_hold_timeout(Diagnosis *d, Node *node)
{
	if (node_setting_is(node, "tandem.hold_timeout", "0"))
		finding_setting(d, NOTE, node, "hold_timeout", "tandem.hold_timeout", "'1d'", "reload",
						"tandem.hold_timeout is 0: holds never end by themselves.",
						"The hold of a standby that is gone for good keeps vacuum from cleaning the catalogs, in the end from preventing wraparound.");
}

static void
check_tandem_database(Diagnosis *d, Node *node)
{
	const Node *primary = d->topology->primary;

	if (primary && primary->tandem_database && node->tandem_database &&
		strcmp(primary->tandem_database, node->tandem_database) != 0)
		finding_setting(d, PROBLEM, node, "tandem_database", "tandem.database",
						quote_literal(primary->tandem_database), "restart",
						screen_printf("tandem.database is \"%s\" here and \"%s\" on the primary.",
									  node->tandem_database, primary->tandem_database),
						"This standby asks in a database that has no answers.");
}

const Check setting_checks[] = {
	{AT_EVERY, check_wal_level},
	{AT_EVERY, check_needs},
	{AT_STANDBY, check_recovery_settings},
	{AT_EVERY, check_slot_wal},
	{AT_EVERY, check_commit_timestamp},
	{AT_PRIMARY, check_hot_standby},
	{AT_STANDBY | AT_RUNTIME, check_sync_off},
	{AT_STANDBY, check_native_sync},
	{AT_PRIMARY, check_hold_timeout},
	{AT_STANDBY, check_tandem_database},
	{0, NULL}};
