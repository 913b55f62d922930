/*-------------------------------------------------------------------------
 *
 * prove.c
 *	  The helper process of the slot sync worker.
 *
 * Two things take time and may block, and must not hold up a cycle; a dynamic
 * background worker does them, one at a time:
 *
 * Decode.  A slot without a snapshot file at its restart_lsn is either fresh
 * (sound: replay of its WAL reaches consistency where creating it did) or was
 * itself synced without a snapshot (unsound).  They can't be told apart by
 * looking, so the helper decodes forward, as PostgreSQL 17 does, and calls the
 * slot proven if decoding was consistent at a record that ends at or before
 * confirmed_flush.  Decoding writes snapshot files on its way, so the proven
 * restart point may be later than the one it began at.  It may wait for a
 * transaction that is still running.
 *
 * Barrier.  A restartpoint that began before WAL was reserved removes that WAL
 * all the same.  The helper requests one more and waits for its end: whatever
 * ran before has ended too then.
 *
 *	 IDLE -- tandem_helper_start --> RUNNING -- the helper --> SUCCEEDED, FAILED
 *	 RUNNING -- process gone without a result, or stopped --> FAILED
 *	 SUCCEEDED, FAILED -- tandem_helper_poll --> IDLE
 *
 * The helper's slot is temporary and goes with the process.  The process is
 * connected to the slot's database, so replay of DROP DATABASE ends it.
 *
 * src/slots/prove.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgwriter.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/standbydefs.h"
#include "tcop/tcopprot.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "slots/slots.h"

#define DECODE_LIMIT 60000		/* ms that one proof may take */
#define BARRIER_LIMIT 3600000	/* ms: two restartpoints, as long as they need */
#define SCAN_LIMIT (256 * 1024) /* bytes of WAL read for one slot in a cycle */

static BackgroundWorkerHandle *helper_handle = NULL;
static TimestampTz helper_started;
static int	helper_limit;		/* ms */

/* ---- the worker's side ----------------------------------------------------- */

/*
 * Starts the helper.  False if one is running, or no background worker is
 * free.
 */
bool
tandem_helper_start(TandemHelperTask task, Oid database,
					const TandemRemoteSlot *slot)
{
	TandemHelper *helper = &tandem_slots_shared->helper;
	BackgroundWorker worker;
	MemoryContext old;
	bool		started;

	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	if (helper->state != TANDEM_HELPER_IDLE)
	{
		LWLockRelease(tandem_slots_shared->lock);
		return false;
	}
	memset(helper, 0, sizeof(*helper));
	helper->task = task;
	helper->state = TANDEM_HELPER_RUNNING;
	helper->database = database;
	if (slot)
	{
		helper->slot = slot->name;
		helper->restart_lsn = slot->restart_lsn;
		helper->confirmed_lsn = slot->confirmed_lsn;
		helper->catalog_xmin = slot->catalog_xmin;
	}
	LWLockRelease(tandem_slots_shared->lock);

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_helper_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem helper");
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem helper");
	worker.bgw_notify_pid = MyProcPid;

	old = MemoryContextSwitchTo(TopMemoryContext);
	started = RegisterDynamicBackgroundWorker(&worker, &helper_handle);
	MemoryContextSwitchTo(old);
	helper_started = GetCurrentTimestamp();
	helper_limit = task == TANDEM_HELPER_BARRIER ? BARRIER_LIMIT : DECODE_LIMIT;
	if (!started)
	{
		helper_handle = NULL;
		LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
		helper->state = TANDEM_HELPER_IDLE;
		LWLockRelease(tandem_slots_shared->lock);
	}
	return started;
}

/*
 * What has become of the helper?  A result is returned once, in *result; then
 * the helper is idle again.  Ends a helper that has taken too long.
 */
TandemHelperState
tandem_helper_poll(TandemHelper *result)
{
	TandemHelper *helper = &tandem_slots_shared->helper;
	pid_t		pid;

	if (helper_handle == NULL)
		return TANDEM_HELPER_IDLE;

	if (GetBackgroundWorkerPid(helper_handle, &pid) != BGWH_STOPPED)
	{
		if (TimestampDifferenceExceeds(helper_started, GetCurrentTimestamp(),
									   helper_limit))
			TerminateBackgroundWorker(helper_handle);
		return TANDEM_HELPER_RUNNING;
	}
	pfree(helper_handle);
	helper_handle = NULL;

	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	if (helper->state == TANDEM_HELPER_RUNNING)
	{
		helper->state = TANDEM_HELPER_FAILED;
		strlcpy(helper->error, "the helper process ended without a result",
				sizeof(helper->error));
		if (TimestampDifferenceExceeds(helper_started, GetCurrentTimestamp(),
									   helper_limit))
			strlcpy(helper->error,
					"decoding waits for a transaction that is still running",
					sizeof(helper->error));
	}
	*result = *helper;
	helper->state = TANDEM_HELPER_IDLE;
	LWLockRelease(tandem_slots_shared->lock);
	return result->state;
}

/* Has the helper a result that nobody has taken yet? */
bool
tandem_helper_finished(void)
{
	pid_t		pid;

	return helper_handle != NULL &&
		GetBackgroundWorkerPid(helper_handle, &pid) == BGWH_STOPPED;
}

/*
 * Ends the helper, if one runs, without waiting for it.  Also resets what a
 * worker that crashed has left.
 */
void
tandem_helper_stop(void)
{
	if (helper_handle != NULL)
	{
		TerminateBackgroundWorker(helper_handle);
		pfree(helper_handle);
		helper_handle = NULL;
	}
	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->helper.state = TANDEM_HELPER_IDLE;
	LWLockRelease(tandem_slots_shared->lock);
}

/* ---- the proof that needs no helper ------------------------------------------ */

/*
 * Is decoding from "from" certain to be consistent by "upto"?  True if a
 * running-transactions record that ends there or before has no transaction
 * running: a decoder that meets it is consistent at once, whatever it knew
 * before (SnapBuildFindSnapshot, case a).  That is how slots begin on a quiet
 * server.  Reads at most SCAN_LIMIT bytes of WAL, all of them replayed, and
 * never waits.  False means only that this proof doesn't work.
 */
bool
tandem_scan_proves(XLogRecPtr from, XLogRecPtr upto)
{
	XLogReaderState *reader;
	bool		proven = false;

	if (upto <= from || upto - from > SCAN_LIMIT)
		return false;
	reader = XLogReaderAllocate(wal_segment_size, NULL,
								XL_ROUTINE(.page_read = read_local_xlog_page_no_wait,
										   .segment_open = wal_segment_open,
										   .segment_close = wal_segment_close),
								palloc0(sizeof(ReadLocalXLogPageNoWaitPrivate)));
	if (reader == NULL)
		return false;
	XLogBeginRead(reader, from);
	while (!proven && reader->EndRecPtr < upto)
	{
		char	   *error = NULL;
		XLogRecord *record = XLogReadRecord(reader, &error);

		if (record == NULL || reader->EndRecPtr > upto)
			break;
		if (XLogRecGetRmid(reader) == RM_STANDBY_ID &&
			(XLogRecGetInfo(reader) & ~XLR_INFO_MASK) == XLOG_RUNNING_XACTS)
		{
			xl_running_xacts *running = (xl_running_xacts *) XLogRecGetData(reader);

			proven = running->oldestRunningXid == running->nextXid;
		}
	}
	XLogReaderFree(reader);
	return proven;
}

/* ---- the helper's side ------------------------------------------------------ */

/*
 * Decodes from restart_lsn to confirmed_lsn.  Returns whether decoding was
 * consistent by then; *restart_lsn moves to the latest point with a snapshot
 * file from which that holds.
 */
static bool
decode_forward(TandemHelper *task)
{
	ReplicationSlot *slot;
	LogicalDecodingContext *ctx;
	ResourceOwner old_owner;
	bool		consistent = false;

	StartTransactionCommand();
	old_owner = CurrentResourceOwner;

	TANDEM_SLOT_CREATE(TANDEM_PROOF_SLOT, true, RS_TEMPORARY, false);
	slot = MyReplicationSlot;
	SpinLockAcquire(&slot->mutex);
	slot->data.restart_lsn = task->restart_lsn;
	slot->data.confirmed_flush = task->confirmed_lsn;
	slot->data.catalog_xmin = task->catalog_xmin;
	slot->effective_catalog_xmin = task->catalog_xmin;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotsComputeRequiredXmin(false);
	ReplicationSlotsComputeRequiredLSN();

	ctx = CreateDecodingContext(InvalidXLogRecPtr, NIL, true,
								XL_ROUTINE(.page_read = read_local_xlog_page,
										   .segment_open = wal_segment_open,
										   .segment_close = wal_segment_close),
								NULL, NULL, NULL);
	XLogBeginRead(ctx->reader, task->restart_lsn);
	InvalidateSystemCaches();

	while (ctx->reader->EndRecPtr < task->confirmed_lsn)
	{
		char	   *error = NULL;
		XLogRecord *record = XLogReadRecord(ctx->reader, &error);

		if (error)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read WAL while proving a slot: %s", error)));
		if (record)
			LogicalDecodingProcessRecord(ctx, ctx->reader);
		if (ctx->reader->EndRecPtr > task->confirmed_lsn)
			break;
		if (DecodingContextReady(ctx))
			consistent = true;
		CHECK_FOR_INTERRUPTS();
	}

	CurrentResourceOwner = old_owner;
	if (slot->data.restart_lsn > task->restart_lsn &&
		tandem_snapshot_exists(slot->data.restart_lsn))
		task->restart_lsn = slot->data.restart_lsn;
	FreeDecodingContext(ctx);
	InvalidateSystemCaches();
	ReplicationSlotRelease();
	CommitTransactionCommand();
	return consistent;
}

/* Entry point of the helper process. */
void
tandem_helper_main(Datum main_arg)
{
	TandemHelper task;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	task = tandem_slots_shared->helper;
	LWLockRelease(tandem_slots_shared->lock);

	BackgroundWorkerInitializeConnectionByOid(task.database, InvalidOid, 0);
	pgstat_report_activity(STATE_RUNNING,
						   task.task == TANDEM_HELPER_BARRIER ?
							   "waiting for a restartpoint" :
							   "proving a slot");

	task.state = TANDEM_HELPER_SUCCEEDED;
	PG_TRY();
	{
		if (task.task == TANDEM_HELPER_BARRIER)
			RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_FORCE |
							  CHECKPOINT_WAIT);
		else if (!decode_forward(&task))
		{
			task.state = TANDEM_HELPER_FAILED;
			task.inconsistent = true;
			snprintf(task.error, sizeof(task.error),
					 "decoding from %X/%X is not consistent before %X/%X",
					 LSN_FORMAT_ARGS(task.restart_lsn),
					 LSN_FORMAT_ARGS(task.confirmed_lsn));
		}
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(TopMemoryContext);
		edata = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		task.state = TANDEM_HELPER_FAILED;
		strlcpy(task.error, edata->message, sizeof(task.error));
	}
	PG_END_TRY();

	LWLockReleaseAll();
	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	if (tandem_slots_shared->helper.state == TANDEM_HELPER_RUNNING &&
		tandem_slots_shared->helper.task == task.task &&
		strcmp(NameStr(tandem_slots_shared->helper.slot), NameStr(task.slot)) == 0)
		tandem_slots_shared->helper = task;
	LWLockRelease(tandem_slots_shared->lock);
	proc_exit(0);
}
