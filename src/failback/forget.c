/*-------------------------------------------------------------------------
 *
 * forget.c
 *	  Leaving: the slots that keep WAL for a node to be rejoined.
 *
 * The worker makes them and drops them, by tandem.failback_keep_size; so
 * leaving means to set that to 0 and to wait for it.  Without a worker we
 * drop them.  A slot that a node streams through after it was rejoined is that
 * node's, and stays.
 *
 * Called by tandem.forget().
 *
 * src/failback/forget.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogdefs.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/settings.h"
#include "common/standby.h"
#include "failback/failback.h"
#include "failback/guard.h"

#define PATIENCE_MS 10000
#define POLL_MS 100

/* Raises an error while the settings would let us begin anew. */
void
tandem_failback_check_forget(void)
{
	if (tandem_synchronous_transfer != TANDEM_TRANSFER_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the guard is on"),
				 errhint("First set tandem.synchronous_transfer to none on this server and reload it.")));
	if (tandem_failback_keep_size != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("WAL is kept for nodes to be rejoined"),
				 errhint("First set tandem.failback_keep_size to 0 on this server and reload it.")));
}

static bool
worker_runs(void)
{
	bool		runs;

	LWLockAcquire(tandem_guard->lock, LW_SHARED);
	runs = tandem_guard->worker_pid != 0;
	LWLockRelease(tandem_guard->lock);
	return runs;
}

static void
forget_slot(const char *name, TimestampTz deadline)
{
	for (;;)
	{
		TandemRetention slot;

		CHECK_FOR_INTERRUPTS();
		tandem_retention_state(name, &slot);
		if (!slot.exists || slot.in_use)
			return;
		/* the worker leaves alone what a rejoined node has used */
		if (!slot.active && (slot.in_use || !worker_runs()))
		{
			ReplicationSlotDrop(name, true);
			return;
		}
		/* the worker itself has it for a moment now and then */
		if (GetCurrentTimestamp() >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("replication slot \"%s\" of pg_tandem is still in use", name),
					 errhint("End the process that uses it and try again.")));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Returns when both slots are gone; raises an error when they don't go. */
void
tandem_failback_forget(void)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PATIENCE_MS);

	tandem_failback_check_forget();
	forget_slot(TANDEM_FAILBACK_SLOT, deadline);
	forget_slot(TANDEM_REJOIN_SLOT, deadline);
}
