/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Waiting for a clock that is behind the publisher's.
 *
 * The last update wins by commit time.  Who changes a row here after a change of
 * another node was applied must have a later time than that: else the other
 * nodes, where both come together by their times, keep the older change, and the
 * nodes differ for ever.  So a change isn't applied before this server's clock has
 * passed the time at which it was committed.
 *
 * Clocks that differ by more than MOST are wrong, and nobody is helped by waiting
 * for them: the change is applied, which tandem.subscriptions shows as long as it
 * is so, and the log says once in a while.
 *
 * Called by resolve.c when a table is opened.
 *
 * src/subscription/clock.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "common/settings.h"
#include "conflict/conflict.h"
#include "subscription/apply.h"
#include "subscription/late.h"
#include "subscription/subscription.h"

#define MOST 60000				/* ms; longer differences aren't waited for */
#define SAY_INTERVAL 60000		/* ms between two complaints */
#define NAP 200					/* ms; the publisher must hear of us */

static TimestampTz
our_clock(void)
{
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tandem_debug_clock_offset);
}

/* Shows why nothing is applied; only the apply worker has that state. */
static void
show(const char *reason)
{
	if (tandem_apply.sub != NULL)
		tandem_subscription_set_state(TANDEM_SUBSCRIPTION_STREAMING, reason);
}

static void
complain(long ms)
{
	static TimestampTz said = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (said != 0 && !TimestampDifferenceExceeds(said, now, SAY_INTERVAL))
		return;
	said = now;
	ereport(WARNING,
			(errmsg("the publisher's clock is %ld s ahead of this server's, changes are applied without waiting for that long", ms / 1000),
			 errdetail("What is changed here meanwhile loses against older changes, on some nodes only."),
			 errhint("Synchronize the servers' clocks; with last_update_wins nodes with such clocks may come to differ.")));
}

void
tandem_clock_wait(void)
{
	static TimestampTz passed = 0;	/* our clock was beyond it, once */
	static bool too_far = false;	/* the view says that we don't wait */
	TimestampTz time = tandem_conflict_session.time;
	bool		shown = false;

	if (time <= passed)
		return;
	for (;;)
	{
		TimestampTz now = our_clock();
		long		ms;
		char		reason[128];

		if (now > time)
		{
			shown = shown || too_far;
			too_far = false;
			break;
		}
		ms = (long) ((time - now) / 1000) + 1;
		if (ms > MOST)
		{
			complain(ms);
			snprintf(reason, sizeof(reason), "the publisher's clock is %ld s ahead of this server's: too far to wait, so nodes may come to differ", ms / 1000);
			show(reason);
			too_far = true;
			break;
		}
		if (!shown && ms > NAP)
		{
			snprintf(reason, sizeof(reason), "the publisher's clock is %.1f s ahead of this server's: waits to apply its changes", ms / 1000.0);
			show(reason);
			shown = true;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ms, NAP), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		tandem_apply_still_alive();
	}
	passed = time;
	if (shown)
		show(NULL);
}
