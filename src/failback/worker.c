/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The tandem failback worker: one background worker on every server.
 *
 *	 primary:	gives the settings to the guard, lets it look at the standbys,
 *				writes its log lines; moves the slot tandem_failback
 *	 standby:	moves the slot tandem_rejoin
 *
 * It is connected to no database, but connected: only so it is a process that
 * ReplicationSlotRelease() may be called in, which writes to the status flags
 * of its entry in the process array.  The guard doesn't depend on it from write
 * to write: walsenders and waiting processes look at the standbys too, and
 * degrade the guard in time when this worker is gone, as it is during
 * shutdown.  Without it settings aren't taken over and WAL is kept where the
 * slots stand.
 *
 * src/failback/worker.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "failback/failback.h"
#include "failback/guard.h"
#include "failback/smgr_table.h"

#define WORKER_RESTART 5		/* s */
#define TURN_MS 1000
#define TURN_ARMING_MS 100		/* while the guard is to be armed */

static void
worker_exit(int code, Datum arg)
{
	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	tandem_guard->worker_pid = 0;
	LWLockRelease(tandem_guard->lock);
}

/*
 * Moves the slots.  An error (no free slot, somebody uses ours) is shown and
 * logged, once as long as it stays the same; the next turn tries again.
 */
static void
keep_wal(MemoryContext context)
{
	static char last[TANDEM_GUARD_TEXT] = "";
	char		error[TANDEM_GUARD_TEXT] = "";

	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		tandem_retention_run();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		LWLockReleaseAll();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		strlcpy(error, edata->message, sizeof(error));
		if (strcmp(error, last) != 0)
		{
			edata->elevel = LOG;
			ThrowErrorData(edata);
		}
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextReset(context);

	if (strcmp(error, last) != 0)
	{
		strlcpy(last, error, sizeof(last));
		LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
		strlcpy(tandem_guard->wal_error, error, TANDEM_GUARD_TEXT);
		LWLockRelease(tandem_guard->lock);
	}
}

/* Entry point of the worker process. */
void
tandem_failback_worker_main(Datum main_arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	tandem_guard_exempt = true;
	before_shmem_exit(worker_exit, 0);
	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	tandem_guard->worker_pid = MyProcPid;
	LWLockRelease(tandem_guard->lock);

	CurrentMemoryContext = TopMemoryContext;
	context = AllocSetContextCreate(TopMemoryContext, "tandem failback turn",
									ALLOCSET_DEFAULT_SIZES);

	if (tandem_smgr_refusal(NULL) == NULL && !tandem_smgr_self_test())
		tandem_guard_set_self_test(tandem_smgr_refusal(NULL));
	tandem_guard_configure();

	for (;;)
	{
		TandemGuardState state;
		long		pause;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			tandem_guard_configure();
		}

		tandem_guard_look();
		tandem_guard_log();
		state = tandem_guard->state;
		if (state == TANDEM_GUARD_ARMING || state == TANDEM_GUARD_DEGRADED)
			tandem_standby_report(tandem_failback_standbys_list, TANDEM_REPORT_GUARD,
								  "tandem.failback_standbys");
		keep_wal(context);

		pause = TURN_MS;
		if (!RecoveryInProgress() &&
			state != TANDEM_GUARD_OFF && state != TANDEM_GUARD_ARMED)
			pause = TURN_ARMING_MS;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 pause, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Registers what failback needs at load; called by _PG_init. */
void
tandem_failback_init(void)
{
	BackgroundWorker worker;

	tandem_smgr_install();
	tandem_guard_init();
	tandem_commit_init();

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = WORKER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_failback_worker_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem failback");
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem failback");
	RegisterBackgroundWorker(&worker);
}
