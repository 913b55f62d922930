/*-------------------------------------------------------------------------
 *
 * check_tombstone.c
 *	  Checks: rows that were deleted are remembered where that was asked for.
 *
 * Whether it works is told by the view tandem.tombstones (AT_RUNTIME).  "tandem
 * doctor" also looks at what it needs, and at tables for which it can't work.
 *
 * cli/check_tombstone.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "subscription.h"

#define LONG_WAIT 3600			/* s; then what keeps tombstones is a finding */
#define FAR_BEHIND (INT64CONST(256) * 1024 * 1024)	/* bytes of WAL */

static const char *
value_of(const Subscription *s, const char *column)
{
	return field(s->tombstones, 0, column);
}

/* Is it asked for? */
static bool
has_tombstones(const Subscription *s)
{
	const char *state = value_of(s, "state");

	return state && strcmp(state, "off") != 0;
}

static void
check_state(Diagnosis *d, Node *node, const Subscription *s)
{
	const char *state = value_of(s, "state");
	const char *reason = value_of(s, "reason");
	const char *waits_for = value_of(s, "waits_for");
	const char *lag = value_of(s, "collector_lag");
	Finding	   *f = NULL;

	if (strcmp(state, "failed") == 0 || strcmp(state, "unsupported") == 0)
		f = finding_add(d, PROBLEM, node, "tombstones_failed",
						screen_printf("Deleted rows are not remembered for subscription \"%s\": %s.", s->name,
									  reason ? reason : state),
						"An update to such a row can't be told from one to a row that never was.");
	else if (strcmp(state, "stopped") == 0)
		f = finding_add(d, WARNING, node, "tombstones_stopped",
						screen_printf("Not all deleted rows are remembered for subscription \"%s\": %s.", s->name,
									  reason ? reason : "no reason was given"),
						"Verdicts on changes that are older say \"unknown\".");
	else if (waits_for && atof(value_of(s, "waits_seconds")) > LONG_WAIT)
		f = finding_add(d, WARNING, node, "tombstones_kept",
						screen_printf("Tombstones can't be removed for %s, because of subscription \"%s\": %s.",
									  text_duration(atof(value_of(s, "waits_seconds"))), s->name, waits_for),
						"They take disk space, up to tandem.tombstone_limit; then the oldest go early.");
	else if (lag && strtoll(lag, NULL, 10) > FAR_BEHIND)
		f = finding_add(d, WARNING, node, "tombstones_lag",
						screen_printf("The collector of deleted rows in database \"%s\" is %s of WAL behind.", s->database,
									  text_bytes(strtoll(lag, NULL, 10))),
						"Its slot keeps that WAL, and verdicts on missing rows say \"unknown\".");
	if (f)
		f->hint = value_of(s, "hint");
}

static void
check_running(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		if (has_tombstones(&all->list[i]))
			check_state(d, node, &all->list[i]);
	}
}

/* Settings that it needs. */
static void
check_settings(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);
	const char *wal_level = node_setting(node, "wal_level");
	const char *timestamps = node_setting(node, "track_commit_timestamp");
	int64		keep = node_setting_int(node, "max_slot_wal_keep_size", -1);
	bool		any = false;

	for (int i = 0; i < all->n; i++)
		any = any || has_tombstones(&all->list[i]);
	if (!any)
		return;
	if (wal_level && strcmp(wal_level, "logical") != 0)
		finding_setting(d, PROBLEM, node, "tombstones_wal_level", "wal_level", "logical", "restart",
						screen_printf("wal_level is %s, but a subscription has tombstones = on.", wal_level),
						"Deleted rows can't be collected.");
	if (timestamps && strcmp(timestamps, "on") != 0)
		finding_setting(d, WARNING, node, "tombstones_timestamps", "track_commit_timestamp", "on", "restart",
						"track_commit_timestamp is off, but a subscription has tombstones = on.",
						"It is not known when and by whom rows that are still here were written.");
	if (keep >= 0)
		finding_add(d, NOTE, node, "tombstones_slot",
					screen_printf("max_slot_wal_keep_size is " INT64_FORMAT " MB, and the collector's slot is lost if it falls further behind.", keep),
					"Deletes that it has not collected by then are not remembered, which is recorded as a window.");
}

/* Tables whose rows have no identity. */
static void
check_tables(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];
		const char *error;
		PGconn	   *conn;
		PGresult   *res;

		if (!has_tombstones(s))
			continue;
		conn = node_database(node, s->database, &error);
		res = conn == NULL ? NULL :
			conn_query(conn, node_timeout_ms(),
					   screen_printf("SELECT pg_catalog.count(*) AS n,"
									 " pg_catalog.min(c.oid::pg_catalog.regclass::pg_catalog.text) AS first"
									 " FROM pg_catalog.pg_subscription_rel r JOIN pg_catalog.pg_class c ON c.oid = r.srrelid"
									 " WHERE r.srsubid = %s AND (c.relreplident = 'n' OR c.relreplident = 'd'"
									 " AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))",
									 s->subid),
					   &error, NULL);
		if (res == NULL)
			finding_add(d, UNCHECKED, node, "tombstones_identity",
						screen_printf("The tables of subscription \"%s\" could not be looked at: %s", s->name, error),
						"Whether their deleted rows can be remembered was not checked.");
		else if (strcmp(field(res, 0, "n"), "0") != 0)
			finding_add(d, NOTE, node, "tombstones_identity",
						screen_printf("Tables of subscription \"%s\" that have no replica identity here: %s; the first is %s.", s->name,
									  field(res, 0, "n"), field(res, 0, "first")),
						"Their deleted rows can't be remembered.")
				->hint = "Give them a primary key, or REPLICA IDENTITY FULL.";
	}
}

const Check tombstone_checks[] = {
	{AT_PRIMARY | AT_RUNTIME, check_running},
	{AT_PRIMARY, check_settings},
	{AT_PRIMARY, check_tables},
	{0, NULL}};
