/*-------------------------------------------------------------------------
 *
 * wave.c
 *	  One wave: copies of many tables with one snapshot of the publisher.
 *
 *	1. asks the publisher about all tables that are due; says what doesn't fit
 *	2. writes them as COPYING, and waits until the apply worker spools them
 *	3. takes snapshots of the publisher until one sees all that the apply
 *	   worker has received before (wave_snapshot.c)
 *	4. asks about the tables again, under the snapshot; empty ones are copied
 *	   with that
 *	5. starts copy workers (copy.c), and meanwhile applies what is spooled of
 *	   tables that are copied already
 *
 * Called by leader.c.
 *
 * src/subscription/wave.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/wal_position.h"
#include "subscription/leader.h"

#define PING 1000				/* ms: does the publisher's session that holds the snapshot live? */

/* ---- Questions to the apply worker ----------------------------------------------- */

/* Asks the apply worker to spool what tandem.copies says now, and waits until it does. */
static void
wait_for_spooling(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	uint32		request;
	bool		done = false;

	SpinLockAcquire(&shared->mutex);
	request = ++shared->spool_request;
	SpinLockRelease(&shared->mutex);
	tandem_wake_apply();
	while (!done)
	{
		SpinLockAcquire(&shared->mutex);
		done = shared->spool_ack == request;
		SpinLockRelease(&shared->mutex);
		if (!done)
			tandem_leader_pause(TANDEM_LEADER_POLL);
	}
}

/* Does this wave's snapshot see all ids received before spooling? */
static bool
snapshot_sees_received(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	uint32		request;

	SpinLockAcquire(&shared->mutex);
	request = ++shared->verify_request;
	SpinLockRelease(&shared->mutex);
	tandem_wake_apply();
	for (;;)
	{
		bool		done;
		bool		ok;

		SpinLockAcquire(&shared->mutex);
		done = shared->verify_ack == request;
		ok = shared->verify_ok;
		SpinLockRelease(&shared->mutex);
		if (done)
			return ok;
		tandem_leader_pause(TANDEM_LEADER_POLL);
	}
}

/* ---- The snapshot ------------------------------------------------------------------- */

/* Takes a snapshot that fits; it is stored under the wave's number. */
static void
take_snapshot(int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	Oid			types[] = {TEXTOID, TEXTOID, LSNOID, TIMESTAMPTZOID, TEXTOID, INT8OID, INT8OID};
	long		delay = 5;
	bool		waited = false;

	SpinLockAcquire(&shared->mutex);
	shared->wave = wave;
	shared->copying = false;
	SpinLockRelease(&shared->mutex);

	for (;;)
	{
		WalRcvExecResult *res;
		TupleTableSlot *slot;
		char	   *exported;
		char	   *file;
		XLogRecPtr	lsn;
		bool		isnull;

		tandem_publisher_exec(tandem_leader.holder, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");

		/* L is read after the snapshot is taken */
		res = tandem_publisher_query(tandem_leader.holder,
									 "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,"
									 " pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.clock_timestamp(),"
									 " pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),"
									 " pg_catalog.current_setting('wal_block_size')::int8,"
									 " pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))",
									 lengthof(types), types);
		slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
		if (!tuplestore_gettupleslot(res->tuplestore, true, false, slot))
			elog(ERROR, "the publisher sent no snapshot");
		exported = TextDatumGetCString(slot_getattr(slot, 1, &isnull));
		lsn = tandem_end_of_record(DatumGetLSN(slot_getattr(slot, 3, &isnull)),
								   DatumGetInt64(slot_getattr(slot, 6, &isnull)),
								   DatumGetInt64(slot_getattr(slot, 7, &isnull)));
		file = TextDatumGetCString(slot_getattr(slot, 5, &isnull));
		file[8] = '\0';

		StartTransactionCommand();
		tandem_snapshot_store(tandem_leader.sub->oid, wave, TextDatumGetCString(slot_getattr(slot, 2, &isnull)), lsn,
							  strtoul(file, NULL, 16), DatumGetTimestampTz(slot_getattr(slot, 4, &isnull)));
		CommitTransactionCommand();
		MemoryContextSwitchTo(tandem_leader.context);

		SpinLockAcquire(&shared->mutex);
		shared->lsn = lsn;
		strlcpy(shared->snapshot, exported, sizeof(shared->snapshot));
		SpinLockRelease(&shared->mutex);
		ExecDropSingleTupleTableSlot(slot);
		walrcv_clear_result(res);

		if (snapshot_sees_received())
			break;
		if (!waited)
			tandem_leader_message("waits for transactions on the publisher that were open when this subscription connected, or that wait for a synchronous standby there");
		waited = true;
		tandem_publisher_exec(tandem_leader.holder, "COMMIT");
		tandem_leader_pause(delay);
		delay = Min(delay * 2, 1000);
	}
	if (waited)
		tandem_leader_message("");
}

/* Waits until the publisher has flushed all that the snapshot sees. */
static void
wait_for_flush(void)
{
	Oid			types[] = {LSNOID};
	XLogRecPtr	lsn = tandem_my_wave()->lsn;

	if (tandem_publisher_flushed(tandem_leader.holder, lsn))
		return;
	/* nobody else may commit there for a long time */
	tandem_publisher_exec(tandem_leader.control, "SET synchronous_commit = 'local'");
	walrcv_clear_result(tandem_publisher_query(tandem_leader.control,
											   "SELECT pg_catalog.pg_logical_emit_message(true, 'pg_tandem', 'flush')",
											   lengthof(types), types));
	while (!tandem_publisher_flushed(tandem_leader.holder, lsn))
		tandem_leader_pause(10);
}

/* Registers a copy worker; NULL if there is no room. */
static BackgroundWorkerHandle *
start_worker(void)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = Int32GetDatum(tandem_my_subscription - tandem_subscriptions->slots);
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_copy_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem copy for subscription %u", tandem_leader.sub->oid);
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem copy");
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return NULL;
	return handle;
}

/* Does one of these go on, or is yet to start? */
static bool
workers_run(BackgroundWorkerHandle **handles, int n)
{
	for (int i = 0; i < n; i++)
	{
		pid_t		pid;

		if (GetBackgroundWorkerPid(handles[i], &pid) != BGWH_STOPPED)
			return true;
	}
	return false;
}

/* ---- One wave ------------------------------------------------------------------- */

static int
by_size(const ListCell *a, const ListCell *b)
{
	const TandemCopy *x = lfirst(a);
	const TandemCopy *y = lfirst(b);

	if (x->bytes_estimated != y->bytes_estimated)
		return x->bytes_estimated > y->bytes_estimated ? -1 : 1;
	return x->relid < y->relid ? -1 : x->relid > y->relid;
}

/*
 * Estimated bytes that a wave may have, with this as its largest table.  While
 * it lasts, its snapshot keeps the publisher from removing dead rows.  A worker
 * copies some 35 MB a second (two cores, a primary key), so 32 GB take a quarter
 * of an hour; another wave costs two questions and the idle time of workers
 * behind the last table.  A larger table can't be cut, and takes its time: the
 * other workers get as much.
 */
static int64
wave_bytes(const TandemCopy *largest)
{
	return tandem_wave_workers() * Max((int64) tandem_debug_wave_share * 1024, largest->bytes_estimated);
}

/*
 * 1. What the publisher knows of these tables; those that can't be copied get
 * an error, others are chosen up to the size of a wave.
 * 2. They are spooled from now on; what an earlier wave has left is void.  With
 * that core must no longer apply to those that are copied again: it sees 'i'
 * from the same commit on.
 */
static List *
choose_tables(List *copies, int64 wave)
{
	List	   *chosen = NIL;
	List	   *unready = NIL;
	int64		bytes = 0;
	int64		limit = 0;
	int			ordinal = 0;
	ListCell   *lc;

	/* before any table depends on it */
	if (tandem_leader.control == NULL)
		tandem_leader.control = tandem_publisher_connect(tandem_leader.sub, "wave");
	if (tandem_leader.holder == NULL)
		tandem_leader.holder = tandem_publisher_connect(tandem_leader.sub, "wave");
	StartTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	foreach(lc, copies)
		((TandemCopy *) lfirst(lc))->error = NULL;
	tandem_wave_describe(tandem_leader.control, tandem_leader.sub, copies, false);
	list_sort(copies, by_size);
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->error)
		{
			ereport(LOG,
					(errmsg("table \"%s\" of subscription \"%s\" can't be copied: %s",
							get_rel_name(copy->relid), tandem_leader.sub->name, copy->error),
					 copy->remark ? errdetail("Also: %s", copy->remark) : 0,
					 copy->hint ? errhint("%s", copy->hint) : 0));
			tandem_copy_failed(copy, copy->error);
			continue;
		}
		if (copy->remark)
			ereport(LOG,
					(errmsg("table \"%s\" of subscription \"%s\" may not take what the publisher sends: %s",
							get_rel_name(copy->relid), tandem_leader.sub->name, copy->remark),
					 copy->hint ? errhint("%s", copy->hint) : 0));
		if (chosen == NIL)
			limit = wave_bytes(copy);
		else if (bytes + copy->bytes_estimated > limit)
			continue;
		bytes += copy->bytes_estimated;
		chosen = lappend(chosen, copy);
	}

	foreach(lc, chosen)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->attempts > 0 || copy->content || copy->resync || copy->state == TANDEM_COPY_COPYING)
			tandem_spool_drop(tandem_leader.sub->oid, copy->relid);
		copy->state = TANDEM_COPY_COPYING;
		copy->wave = wave;
		copy->ordinal = ordinal++;
		copy->rows_done = copy->bytes_done = 0;
		copy->started = copy->finished = 0;
		if (copy->resync && !copy->stale)
		{
			copy->stale = true;
			unready = lappend_oid(unready, copy->relid);
		}
	}
	tandem_copies_put(chosen);
	foreach(lc, unready)
		TANDEM_UPDATE_SUBSCRIPTION_REL(tandem_leader.sub->oid, lfirst_oid(lc), SUBREL_STATE_INIT,
									   InvalidXLogRecPtr);
	CommitTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	if (chosen != NIL)
		wait_for_spooling();
	return chosen;
}

/*
 * 4. Are these still the same tables?  Are there rows?  Returns those that the
 * copy workers have to copy.
 */
static List *
check_tables(List *chosen)
{
	TandemWaveShared *shared = tandem_my_wave();
	List	   *changed = NIL;
	List	   *to_copy = NIL;
	ListCell   *lc;

	StartTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	replorigin_session_origin_timestamp = GetCurrentTimestamp();

	/*
	 * Asking locks partitions there; this session stays in its transaction as
	 * long as the wave lasts, and DDL must not wait for that.
	 */
	tandem_publisher_exec(tandem_leader.holder, "SAVEPOINT tandem");
	tandem_wave_describe(tandem_leader.holder, tandem_leader.sub, chosen, true);
	tandem_publisher_exec(tandem_leader.holder, "ROLLBACK TO SAVEPOINT tandem");
	foreach(lc, chosen)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->error)
		{
			tandem_copy_failed(copy, copy->error);
			continue;
		}
		if (copy->query == NULL && !copy->content && !copy->resync)
		{
			copy->state = TANDEM_COPY_CATCHING_UP;
			copy->content = true;
			copy->started = GetCurrentTimestamp();
			changed = lappend(changed, copy);
			continue;
		}
		if (copy->query == NULL)
			changed = lappend(changed, copy);
		to_copy = lappend(to_copy, copy);
	}
	tandem_copies_put(changed);
	CommitTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	SpinLockAcquire(&shared->mutex);
	shared->finish_request++;
	shared->copying = true;
	SpinLockRelease(&shared->mutex);
	tandem_wake_apply();
	return to_copy;
}

/* 5. Copy workers for n tables, until they have ended. */
static void
run_workers(int n)
{
	TandemWaveShared *shared = tandem_my_wave();
	BackgroundWorkerHandle *handles[TANDEM_MAX_SYNC_WORKERS];
	TimestampTz next_ping;
	int			nworkers;
	int			started = 0;

	pg_atomic_write_u32(&shared->next, 0);
	tandem_leader_message("");
	nworkers = Min(tandem_wave_workers(), n);
	while (started < nworkers && (handles[started] = start_worker()) != NULL)
		started++;
	if (started == 0 && nworkers > 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no background worker is free for a copy"),
				 errhint("Increase max_worker_processes, which is %d.", max_worker_processes)));
	if (started < nworkers)
		ereport(LOG,
				(errmsg("%d of %d copy workers of subscription \"%s\" could be started",
						started, nworkers, tandem_leader.sub->name),
				 errhint("Increase max_worker_processes, which is %d.", max_worker_processes)));
	next_ping = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PING);
	while (workers_run(handles, started))
	{
		if (!tandem_drain())
			tandem_leader_pause(TANDEM_LEADER_POLL);
		else
			tandem_leader_pause(0);
		if (GetCurrentTimestamp() >= next_ping)
		{
			Oid			types[] = {INT4OID};

			walrcv_clear_result(tandem_publisher_query(tandem_leader.holder, "SELECT 1", lengthof(types), types));
			next_ping = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PING);
		}
	}
	SpinLockAcquire(&shared->mutex);
	shared->copying = false;
	SpinLockRelease(&shared->mutex);
}

/*
 * What the copy workers have left.  A table that one of them had taken when it
 * died has failed.  If none took the rest, none could begin: that is no table's
 * fault.  They wait for another wave, and what a worker said of the wave is
 * raised for it to be shown.
 */
static void
settle_wave(int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	uint32		taken = pg_atomic_read_u32(&shared->next);
	List	   *left = NIL;
	bool		failed = false;
	ListCell   *lc;

	StartTransactionCommand();
	foreach(lc, tandem_copies_list(tandem_leader.sub->oid, wave))
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_WAITING)
			failed = true;
		if (copy->state != TANDEM_COPY_COPYING)
			continue;
		if ((uint32) copy->ordinal < taken)
		{
			tandem_copy_failed(copy, "its copy worker has ended");
			failed = true;
			continue;
		}
		tandem_spool_drop(copy->subid, copy->relid);
		copy->state = TANDEM_COPY_WAITING;
		left = lappend(left, copy);
	}
	tandem_copies_put(left);
	CommitTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);

	/* of these nothing is spooled until they are in another wave */
	if (failed || left != NIL)
	{
		SpinLockAcquire(&shared->mutex);
		shared->spool_request++;
		SpinLockRelease(&shared->mutex);
		tandem_wake_apply();
	}
	if (left != NIL && taken == 0)
	{
		char		message[sizeof(shared->error)];
		char		hint[sizeof(shared->hint)];

		SpinLockAcquire(&shared->mutex);
		strlcpy(message, shared->error, sizeof(message));
		strlcpy(hint, shared->hint, sizeof(hint));
		SpinLockRelease(&shared->mutex);
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("%s", message[0] ? message : "no copy worker could begin"),
				 hint[0] ? errhint("%s", hint) : 0));
	}
}

void
tandem_wave_run(List *copies, int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	List	   *chosen = choose_tables(copies, wave);

	if (chosen == NIL)
		return;
	/* 3. */
	take_snapshot(wave);
	wait_for_flush();
	chosen = check_tables(chosen);
	run_workers(list_length(chosen));
	tandem_publisher_exec(tandem_leader.holder, "COMMIT");
	settle_wave(wave);
	SpinLockAcquire(&shared->mutex);
	shared->leader_backoff = 0;
	SpinLockRelease(&shared->mutex);
}
