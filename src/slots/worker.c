/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The tandem worker: one background worker on every server.
 *
 *	 standby:	runs a cycle every tandem.slot_sync_interval (if
 *				tandem.sync_slots is on) and on request
 *	 primary:	ends holds whose standby is silent; tells the gate of a
 *				shutdown
 *
 * The role is looked up at start; a standby's worker notices promotion by
 * itself, settles what is left to settle, and goes on as a primary's worker.
 *
 * On a standby it is connected to tandem.database (slots are created in a
 * database's name); on a primary to none, so that nobody's CREATE DATABASE ...
 * TEMPLATE or DROP DATABASE meets it.
 *
 * src/slots/worker.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "slots/gate.h"
#include "slots/slots.h"

#define WORKER_RESTART 5		/* s */
#define MAX_STRETCH 10			/* idle cycles stretch the pause up to this */
#define PROMOTION_CHECK 500		/* ms: how soon a promotion is noticed */
#define EXPIRE_INTERVAL 1000	/* ms between two looks at the holds */

/*
 * SIGTERM: a fast shutdown waits for walsenders, and those wait for standbys;
 * the gate must know before that.  Being told for nothing (somebody has ended
 * this process) only makes held walsenders reconnect.
 */
static void
worker_sigterm(SIGNAL_ARGS)
{
	tandem_gate_set_shutdown(true);
	die(postgres_signal_arg);
}

static void
worker_exit(int code, Datum arg)
{
	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->worker_pid = 0;
	tandem_slots_shared->worker_latch = NULL;
	LWLockRelease(tandem_slots_shared->lock);
	ConditionVariableBroadcast(&tandem_slots_shared->cv);
}

/* Returns whether the configuration was read again. */
static bool
reload_if_asked(void)
{
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

/*
 * Sleeps up to ms milliseconds or until the latch is set.  Returns whether the
 * configuration was read again.
 */
static bool
pause_for(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	return reload_if_asked();
}

/* Tells waiters that all tickets up to "ticket" have been served. */
static void
serve(uint64 ticket)
{
	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->served = Max(tandem_slots_shared->served, ticket);
	LWLockRelease(tandem_slots_shared->lock);
	ConditionVariableBroadcast(&tandem_slots_shared->cv);
}

/* Runs cycles until this server is promoted. */
static void
standby_loop(void)
{
	int			stretch = 1;
	TimestampTz next = GetCurrentTimestamp();

	tandem_cycle_start();
	while (RecoveryInProgress())
	{
		TimestampTz now = GetCurrentTimestamp();
		uint64		ticket;
		bool		requested;
		bool		forget;
		long		left;

		LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
		ticket = tandem_slots_shared->requested;
		requested = ticket > tandem_slots_shared->served;
		forget = tandem_slots_shared->forget_ticket > tandem_slots_shared->served;
		LWLockRelease(tandem_slots_shared->lock);

		tandem_cycle_check_hold();
		if (forget)
		{
			tandem_forget_run();
			serve(ticket);
		}
		else if (requested || (tandem_sync_slots_enabled && now >= next))
		{
			bool		progress;

			pgstat_report_activity(STATE_RUNNING, "syncing failover slots");
			progress = tandem_cycle_run();
			pgstat_report_activity(STATE_IDLE, NULL);
			pgstat_report_stat(true);
			serve(ticket);
			stretch = progress || requested ? 1 : Min(stretch * 2, MAX_STRETCH);
			next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											   (int64) tandem_slot_sync_interval * stretch);
		}
		if (!tandem_sync_slots_enabled)
		{
			stretch = 1;
			next = now;
		}
		left = tandem_sync_slots_enabled ?
			TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next) :
			PROMOTION_CHECK;
		if (left > 0)
		{
			/* new settings may mend what failed: try at once */
			if (pause_for(Min(left, PROMOTION_CHECK)) || tandem_helper_finished())
				next = GetCurrentTimestamp();
		}
		else
			(void) reload_if_asked();
	}
	tandem_cycle_promoted();
}

/* Watches holds for ever. */
static void
pg_attribute_noreturn()
	primary_loop(void)
{
	for (;;)
	{
		uint64		ticket;

		PG_TRY();
		{
			StartTransactionCommand();
			tandem_hold_expire();
			CommitTransactionCommand();
		}
		PG_CATCH();
		{
			HOLD_INTERRUPTS();
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			LWLockReleaseAll();
			if (MyReplicationSlot != NULL)
				ReplicationSlotRelease();
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();

		LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
		ticket = tandem_slots_shared->requested;
		LWLockRelease(tandem_slots_shared->lock);
		serve(ticket);			/* requests from before the promotion */

		(void) pause_for(EXPIRE_INTERVAL);
	}
}

/* Entry point of the worker process. */
void
tandem_worker_main(Datum main_arg)
{
	bool		standby = RecoveryInProgress();

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, worker_sigterm);
	tandem_gate_set_shutdown(false);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(worker_exit, 0);
	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->worker_pid = MyProcPid;
	tandem_slots_shared->worker_latch = MyLatch;
	tandem_slots_shared->worker_on_standby = standby;
	LWLockRelease(tandem_slots_shared->lock);

	BackgroundWorkerInitializeConnection(standby ? tandem_database : NULL,
										 NULL, 0);
	CurrentMemoryContext = TopMemoryContext;

	if (standby)
	{
		standby_loop();
		LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
		tandem_slots_shared->worker_on_standby = false;
		LWLockRelease(tandem_slots_shared->lock);
	}
	else
	{
		/* left over if the server was promoted and crashed at once */
		StartTransactionCommand();
		tandem_owned_load();
		tandem_owned_discard_all();
		CommitTransactionCommand();
	}
	primary_loop();
}

/* Registers the worker; called by _PG_init. */
void
tandem_slots_init(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = WORKER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_worker_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem worker");
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem worker");
	RegisterBackgroundWorker(&worker);
}
