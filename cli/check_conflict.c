/*-------------------------------------------------------------------------
 *
 * check_conflict.c
 *	  Checks: are conflicts stored (AT_RUNTIME), and can those be told that
 *	  somebody has asked for?
 *
 * cli/check_conflict.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "subscription.h"

/* The conflict log of each database, once. */
static void
check_stored(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];
		const char *age = field(s->conflicts, 0, "error_age");

		/* what was lost long ago is for the log */
		if (age == NULL || atof(age) > 24 * 3600 ||
			(i > 0 && strcmp(all->list[i - 1].database, s->database) == 0 && all->list[i - 1].conflicts))
			continue;
		finding_add(d, WARNING, node, "conflicts_not_stored",
					screen_printf("Conflicts of database \"%s\" that could not be stored: %s; the last one %s ago: %s.", s->database,
								  field(s->conflicts, 0, "not_stored"), text_duration(atof(age)),
								  field(s->conflicts, 0, "last_error")),
					"They were resolved as configured, but \"tandem conflicts\" doesn't show them.")
			->hint = "Mend the cause; conflicts are stored again as soon as they can be.";
	}
}

/* Outcomes that depend on when and by whom a row was written. */
static void
check_timestamps(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);
	const char *timestamps = node_setting(node, "track_commit_timestamp");

	if (timestamps == NULL || strcmp(timestamps, "on") == 0)
		return;
	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];

		if (!s->labelled || !s->needs_timestamps)
			continue;
		finding_setting(d, WARNING, node, "conflict_timestamps", "track_commit_timestamp", "on", "restart",
						screen_printf("track_commit_timestamp is off, but subscription \"%s\" has outcomes for rows that another node wrote, or last_update_wins.", s->name),
						"It is not known when and by whom rows here were written: changes to rows of another origin are no conflicts, and a remote change always wins. Missing rows and keys that exist are detected.");
		return;
	}
}

const Check conflict_checks[] = {
	{AT_PRIMARY | AT_RUNTIME, check_stored},
	{AT_PRIMARY, check_timestamps},
	{0, NULL}};
