/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The one place where the settings of pg_tandem are listed.
 *
 * Names, defaults and meanings are an interface: docs/settings.md has the
 * same list.  Settings named tandem.debug_... are for tests; they are hidden
 * from SHOW ALL and from the sample.
 *
 * Called once by _PG_init.
 *
 * src/common/settings.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <fnmatch.h>
#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "common/settings.h"
#include "common/standby.h"

char	   *tandem_database;
bool		tandem_sync_slots_enabled;
char	   *tandem_failover_slots;
int			tandem_slot_sync_interval;
char	   *tandem_primary_conninfo;
int			tandem_wal_fetch_limit;
int			tandem_hold_timeout;
char	   *tandem_standby_slots;
int			tandem_synchronous_transfer;
char	   *tandem_failback_standbys;
int			tandem_failback_timeout;
int			tandem_failback_keep_size;
int			tandem_sync_workers;
int			tandem_spool_limit;
int			tandem_conflict_retention;
int			tandem_conflict_limit;
int			tandem_tombstone_memory;
int			tandem_detection_timeout;
bool		tandem_fast_copy;
int			tandem_tombstone_limit;
int			tandem_max_retention;
int			tandem_debug_epoch_age;
int			tandem_debug_publisher_clock;
char	   *tandem_node_id;
int			tandem_debug_clock_offset;
bool		tandem_debug_ship_snapshots;
int			tandem_debug_guard_failure;
int			tandem_debug_publisher_version;
int			tandem_debug_wave_share;
int			tandem_debug_range_size;
int			tandem_debug_clean_interval;

static const struct config_enum_entry transfer_options[] = {
	{"none", TANDEM_TRANSFER_NONE, false},
	{"commit", TANDEM_TRANSFER_COMMIT, false},
	{"data_flush", TANDEM_TRANSFER_DATA_FLUSH, false},
	{"all", TANDEM_TRANSFER_ALL, false},
	{NULL, 0, false}};

static const struct config_enum_entry guard_failure_options[] = {
	{"none", TANDEM_SMGR_WORKS, false},
	{"minor", TANDEM_SMGR_MINOR, false},
	{"missing", TANDEM_SMGR_MISSING, false},
	{"uncalled", TANDEM_SMGR_UNCALLED, false},
	{"partial", TANDEM_SMGR_PARTIAL, false},
	{NULL, 0, false}};

#define PATTERN_SPACE " \t\n\r"

/*
 * Steps through a comma separated list of patterns.  Returns the next
 * element, without the white space around it, in *start and *len (which may
 * be zero), or false at the end.  The very first call passes *next = list.
 */
static bool
next_pattern(const char **next, const char **start, size_t *len)
{
	const char *p = *next;
	size_t		n;

	if (p == NULL)
		return false;
	n = strcspn(p, ",");
	*next = p[n] == ',' ? p + n + 1 : NULL;

	while (n > 0 && strchr(PATTERN_SPACE, *p) != NULL)
		p++, n--;
	while (n > 0 && strchr(PATTERN_SPACE, p[n - 1]) != NULL)
		n--;
	*start = p;
	*len = n;
	return true;
}

/* check_hook of tandem.failover_slots */
static bool
check_failover_slots(char **newval, void **extra, GucSource source)
{
	const char *next = *newval;
	const char *start;
	size_t		len;

	if (strspn(*newval, PATTERN_SPACE) == strlen(*newval))
		return true;			/* no slot at all */

	while (next_pattern(&next, &start, &len))
	{
		size_t		ok = strspn(start, "abcdefghijklmnopqrstuvwxyz0123456789_*?");

		if (len == 0)
		{
			GUC_check_errdetail("The list has an empty element.");
			GUC_check_errhint("Write patterns separated by single commas, such as \"app_*, billing\".");
			return false;
		}
		if (ok < len)
		{
			GUC_check_errdetail("Pattern \"%.*s\" has the character \"%c\", which no slot name has.",
								(int) len, start, start[ok]);
			GUC_check_errhint("Patterns consist of lower case letters, digits, underscores and the wildcards * and ?, separated by commas.");
			return false;
		}
		if (len >= NAMEDATALEN)
		{
			GUC_check_errdetail("Pattern \"%.*s\" is longer than a slot name can be.",
								(int) len, start);
			return false;
		}
	}
	return true;
}

bool
tandem_node_id_valid(const char *text)
{
	if (strlen(text) >= NAMEDATALEN)
		return false;
	for (const char *p = text; *p; p++)
	{
		if (!isalnum((unsigned char) *p) && strchr("_-.", *p) == NULL)
			return false;
	}
	return true;
}

/* check_hook of tandem.node_id */
static bool
check_node_id(char **newval, void **extra, GucSource source)
{
	if (tandem_node_id_valid(*newval))
		return true;
	GUC_check_errhint("It can be " TANDEM_NODE_ID_VALUES ".");
	return false;
}

/*
 * Is this slot one that standbys keep?  Reads tandem.failover_slots; takes no
 * lock and raises nothing.
 */
bool
tandem_failover_slot_matches(const char *slot_name)
{
	const char *next = tandem_failover_slots;
	const char *start;
	size_t		len;

	while (next_pattern(&next, &start, &len))
	{
		char		pattern[NAMEDATALEN];

		if (len == 0 || len >= NAMEDATALEN)
			continue;
		memcpy(pattern, start, len);
		pattern[len] = '\0';
		if (fnmatch(pattern, slot_name, 0) == 0)
			return true;
	}
	return false;
}

const char *
tandem_transfer_name(int mode)
{
	for (const struct config_enum_entry *option = transfer_options; option->name; option++)
	{
		if (option->val == mode)
			return option->name;
	}
	return "unknown";
}

void
tandem_define_settings(void)
{
	/*
	 * The server refuses settings that need a restart in a library loaded
	 * later; there every function says that it must be preloaded.
	 */
	if (process_shared_preload_libraries_in_progress)
		DefineCustomStringVariable("tandem.database",
								   "Database in which the extension serves failover slots.",
								   NULL,
								   &tandem_database, "postgres",
								   PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("tandem.sync_slots",
							 "On a standby, keeps the primary's failover slots.",
							 NULL,
							 &tandem_sync_slots_enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tandem.failover_slots",
							   "On a primary, name patterns of the logical slots that standbys keep.",
							   "Comma separated; * and ? are wildcards.",
							   &tandem_failover_slots, "*",
							   PGC_SIGHUP, 0, check_failover_slots, NULL, NULL);
	DefineCustomIntVariable("tandem.slot_sync_interval",
							"Pause between two cycles of the slot sync worker.",
							"Cycles that moved nothing may stretch it up to ten times.",
							&tandem_slot_sync_interval, 1000, 10, 3600 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("tandem.primary_conninfo",
							   "On a standby, how to reach tandem.database on the primary.",
							   "Empty means to use primary_conninfo, with tandem.database as dbname.",
							   &tandem_primary_conninfo, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.wal_fetch_limit",
							"On a standby, most WAL fetched for slots older than it.",
							NULL,
							&tandem_wal_fetch_limit, 1024, 0, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.hold_timeout",
							"On a primary, a standby's hold on catalog rows ends after this silence.",
							"0 means never.",
							&tandem_hold_timeout, 24 * 3600, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomStringVariable("tandem.standby_slots",
							   "On a primary, logical walsenders send nothing that these standbys have not flushed.",
							   "Physical slots: \"a, b\", \"ANY n (a, b)\" or \"FIRST n (a, b)\".",
							   &tandem_standby_slots, "",
							   PGC_SIGHUP, 0,
							   tandem_check_standby_list, tandem_assign_standby_slots, NULL);
	DefineCustomEnumVariable("tandem.synchronous_transfer",
							 "On a primary, what waits until the failback standbys have flushed its WAL.",
							 "Commits, data pages on their way to disk, both (\"all\"), or nothing.",
							 &tandem_synchronous_transfer, TANDEM_TRANSFER_NONE, transfer_options,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("tandem.failback_standbys",
							   "On a primary, the standbys that tandem.synchronous_transfer waits for.",
							   "Physical slots: \"a, b\", \"ANY n (a, b)\" or \"FIRST n (a, b)\".",
							   &tandem_failback_standbys, "",
							   PGC_SIGHUP, 0,
							   tandem_check_standby_list, tandem_assign_failback_standbys, NULL);
	DefineCustomIntVariable("tandem.failback_timeout",
							"Longest wait for the failback standbys before the guard degrades.",
							NULL,
							&tandem_failback_timeout, 10 * 1000, 1000, 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.failback_keep_size",
							"Most WAL kept only so that a node can be rejoined.",
							"0 keeps none.",
							&tandem_failback_keep_size, 10 * 1024, 0, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.sync_workers",
							"On a subscriber, processes that copy tables of one subscription.",
							NULL,
							&tandem_sync_workers, 2, 1, 64,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.spool_limit",
							"On a subscriber, most changes kept of one table while it is copied.",
							"Beyond it they are dropped and the table is copied again.",
							&tandem_spool_limit, 10 * 1024, 1, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.tombstone_memory",
							"On a subscriber, memory in which the deletes of a database are collected.",
							"Larger transactions go through temporary files.",
							&tandem_tombstone_memory, 64 * 1024, 1024, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.detection_timeout",
							"On a subscriber, longest wait for a verdict on one missing row.",
							NULL,
							&tandem_detection_timeout, 1000, 0, 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("tandem.fast_copy",
							 "On a subscriber, copies give empty tables new files and build indexes at the end.",
							 "Readers of such a table wait until its copy commits.",
							 &tandem_fast_copy, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("tandem.node_id",
							   "This node's identifier where the commit times of a conflict are equal.",
							   "Empty means the system identifier.",
							   &tandem_node_id, "",
							   PGC_SIGHUP, 0, check_node_id, NULL, NULL);

	DefineCustomIntVariable("tandem.conflict_retention",
							"On a subscriber, how long conflicts are kept.",
							"0 means until there are too many.",
							&tandem_conflict_retention, 30 * 24 * 3600, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.conflict_limit",
							"On a subscriber, most conflicts that a database keeps.",
							"Beyond it the oldest ones go.",
							&tandem_conflict_limit, 1024, 1, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_clock_offset",
							"Developer setting: apply workers that wait for the publisher's clock see ours as this much later.",
							NULL,
							&tandem_debug_clock_offset, 0, INT_MIN, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.tombstone_limit",
							"On a subscriber, most disk space of a database's tombstones.",
							"Beyond it the oldest are dropped before it is safe.",
							&tandem_tombstone_limit, 10 * 1024, 1, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);
	DefineCustomIntVariable("tandem.max_retention",
							"On a subscriber, longest time for which tombstones are kept.",
							"0 keeps them until it is safe to drop them.",
							&tandem_max_retention, 0, 0, INT_MAX / 1000,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomBoolVariable("tandem.debug_ship_snapshots",
							 "Developer setting: off copies slot positions without snapshots or proof.",
							 NULL,
							 &tandem_debug_ship_snapshots, true,
							 PGC_SIGHUP,
							 GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_epoch_age",
							"Developer setting: age at which an epoch of tombstones is closed when there is no other.",
							NULL,
							&tandem_debug_epoch_age, 5000, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_publisher_clock",
							"Developer setting: how far a publisher's clock is ahead, where tombstones are concerned.",
							NULL,
							&tandem_debug_publisher_clock, 0, INT_MIN, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_wave_share",
							"Developer setting: bytes that each copy worker may get of a wave.",
							NULL,
							&tandem_debug_wave_share, 32 * 1024 * 1024, 1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_KB | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_range_size",
							"Developer setting: the least part of a table that a session on the publisher reads beside others.",
							NULL,
							&tandem_debug_range_size, 64 * 1024, 1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_KB | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_clean_interval",
							"Developer setting: pause between two looks at the size of the conflict log.",
							NULL,
							&tandem_debug_clean_interval, 60 * 1000, 1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS | GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("tandem.debug_publisher_version",
							"Developer setting: a subscription's publisher is asked as if it had this version.",
							"PG_VERSION_NUM; 0 is what it really has.",
							&tandem_debug_publisher_version, 0, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
							NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
		DefineCustomEnumVariable("tandem.debug_guard_failure",
								 "Developer setting: how the guard fails to install itself.",
								 NULL,
								 &tandem_debug_guard_failure, TANDEM_SMGR_WORKS, guard_failure_options,
								 PGC_POSTMASTER,
								 GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_AUTO_FILE,
								 NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
		MarkGUCPrefixReserved("tandem");
}
