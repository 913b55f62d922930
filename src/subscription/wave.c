/*-------------------------------------------------------------------------
 *
 * wave.c
 *	  The leader: plans waves of initial copies and sees them through.
 *
 * One process while there are tables to copy.  For each wave:
 *
 *	1. asks the publisher about all tables that are due; says what doesn't fit
 *	2. writes them as COPYING, and waits until the apply worker spools them
 *	3. takes snapshots of the publisher until one sees all that the apply
 *	   worker has received before (wave_snapshot.c)
 *	4. asks about the tables again, under the snapshot; empty ones are copied
 *	   with that
 *	5. starts copy workers, and meanwhile applies what is spooled of tables
 *	   that are copied already, down to what the apply worker does itself
 *
 * A leader that ends leaves rows that say COPYING, but no copied row: those
 * come with the row that says CATCHING_UP.  The next leader waits until the copy
 * workers have ended, who look at leader_pid, and copies those tables again.
 *
 * Started by the apply worker (tandem_leader_consider).
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
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "common/settings.h"
#include "subscription/dispatch.h"
#include "subscription/waves.h"

#define WAVE_BYTES INT64CONST(500000000000)	/* estimated; so that no snapshot lives too long */
#define BACKOFF_MIN 1000		/* ms */
#define BACKOFF_MAX 60000
#define POLL 100				/* ms between two looks, should a wake-up be lost */
#define DRAIN_BYTES (4 * 1024 * 1024)	/* of spool in one transaction */
#define DRAIN_REST (512 * 1024) /* what is left to the apply worker */
#define PING 10000				/* ms: the publisher's session that holds the snapshot lives */

static Subscription *sub = NULL;
static WalReceiverConn *control = NULL; /* for questions, and flush positions */
static WalReceiverConn *holder = NULL;	/* has the snapshot */
static MemoryContext wave_context = NULL;
static RepOriginId own_origin = InvalidRepOriginId;

/* ---- Origins ------------------------------------------------------------------- */

/* Number 0 is the leader's, others are the copy workers'. */
void
tandem_copy_origin_name(Oid subid, int worker, char *name, size_t size)
{
	snprintf(name, size, "tandem_copy_%u_%d", subid, worker);
}

/*
 * What this process writes gets the subscription's origin, without a position.
 * A session needs an origin of its own for that: a commit with an origin moves
 * the session's.  In a transaction.
 */
void
tandem_use_subscription_origin(Oid subid, RepOriginId own)
{
	char		name[NAMEDATALEN];
	RepOriginId subscription;

	snprintf(name, sizeof(name), "pg_%u", subid);
	subscription = replorigin_by_name(name, false);
	TANDEM_ORIGIN_SETUP(own);
	replorigin_session_origin = subscription;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = GetCurrentTimestamp();
}

/* Drops all origins of leader and copy workers; none of them is in use. */
static void
drop_origins(void)
{
	StartTransactionCommand();
	if (own_origin != InvalidRepOriginId)
	{
		replorigin_session_origin = InvalidRepOriginId;
		replorigin_session_reset();
		own_origin = InvalidRepOriginId;
	}
	for (int i = 0; i <= TANDEM_MAX_SYNC_WORKERS; i++)
	{
		char		name[NAMEDATALEN];

		tandem_copy_origin_name(tandem_my_subscription->subid, i, name, sizeof(name));
		replorigin_drop_by_name(name, true, true);
	}
	CommitTransactionCommand();
}

/* ---- Waiting ------------------------------------------------------------------- */

/* Sleeps for a moment or until woken; ends the process if it isn't wanted any more. */
static void
pause_for(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (tandem_subscription_stopping())
		proc_exit(0);
}

static void
set_message(const char *message)
{
	TandemWaveShared *shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	strlcpy(shared->error, message, sizeof(shared->error));
	SpinLockRelease(&shared->mutex);
}

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
			pause_for(POLL);
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
		pause_for(POLL);
	}
}

static int
running_workers(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	int			n = 0;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS; i++)
		n += shared->workers[i].pid != 0;
	SpinLockRelease(&shared->mutex);
	return n;
}

/* ---- Planning -------------------------------------------------------------------- */

static int
by_size(const ListCell *a, const ListCell *b)
{
	const TandemCopy *x = lfirst(a);
	const TandemCopy *y = lfirst(b);

	if (x->bytes_estimated != y->bytes_estimated)
		return x->bytes_estimated > y->bytes_estimated ? -1 : 1;
	return x->relid < y->relid ? -1 : x->relid > y->relid;
}

static int
by_relid(const void *a, const void *b)
{
	Oid			x = (*(TandemCopy *const *) a)->relid;
	Oid			y = (*(TandemCopy *const *) b)->relid;

	return x < y ? -1 : x > y;
}

/*
 * Tables to copy now.  Forgets tables that are no longer in the subscription.
 * *catching_up: some are copied and not finished.  *next: when a failed one is
 * due, 0 = none.  In a transaction; the list is in the current context.
 */
static List *
plan(bool *catching_up, TimestampTz *next, int64 *last_wave)
{
	Oid			subid = tandem_my_subscription->subid;
	List	   *relations = TANDEM_SUBSCRIPTION_RELATIONS(subid);
	List	   *copies = tandem_copies_list(subid, 0);
	int			ncopies = list_length(copies);
	TandemCopy **sorted = palloc(sizeof(TandemCopy *) * (ncopies + 1));
	bool	   *used = palloc0(sizeof(bool) * (ncopies + 1));
	List	   *due = NIL;
	List	   *waves = NIL;
	TimestampTz now = GetCurrentTimestamp();
	int			i = 0;
	ListCell   *lc;

	*catching_up = false;
	*next = 0;
	*last_wave = tandem_snapshot_last_wave(subid);
	foreach(lc, copies)
	{
		sorted[i++] = lfirst(lc);
		*last_wave = Max(*last_wave, ((TandemCopy *) lfirst(lc))->wave);
	}
	qsort(sorted, ncopies, sizeof(TandemCopy *), by_relid);

	foreach(lc, relations)
	{
		SubscriptionRelState *state = lfirst(lc);
		TandemCopy	key = {.relid = state->relid};
		TandemCopy *keyp = &key;
		TandemCopy **found = bsearch(&keyp, sorted, ncopies, sizeof(TandemCopy *), by_relid);
		TandemCopy *copy = found ? *found : NULL;

		if (found)
			used[found - sorted] = true;
		if (copy == NULL)
		{
			if (state->state == SUBREL_STATE_READY)
				continue;
			copy = palloc0(sizeof(TandemCopy));
			copy->subid = subid;
			copy->relid = state->relid;
			copy->state = TANDEM_COPY_WAITING;
		}
		else if (copy->state == TANDEM_COPY_READY)
		{
			/* removed and added again by REFRESH */
			if (state->state == SUBREL_STATE_READY)
				continue;
			copy->state = TANDEM_COPY_WAITING;
		}
		if (copy->state == TANDEM_COPY_CATCHING_UP)
		{
			*catching_up = true;
			waves = lappend(waves, &copy->wave);
			continue;
		}
		if (copy->next_retry > now)
		{
			if (*next == 0 || copy->next_retry < *next)
				*next = copy->next_retry;
			continue;
		}
		due = lappend(due, copy);
	}
	for (i = 0; i < ncopies; i++)
	{
		if (used[i])
			continue;
		tandem_spool_drop(subid, sorted[i]->relid);
		tandem_copies_delete(subid, sorted[i]->relid);
	}
	tandem_snapshots_prune(subid, waves);
	return due;
}

/* ---- One wave ------------------------------------------------------------------- */

/* Takes a snapshot that fits; it is stored under the wave's number. */
static void
take_snapshot(int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	Oid			types[] = {TEXTOID, TEXTOID, LSNOID, TIMESTAMPTZOID, TEXTOID};
	long		delay = 5;
	bool		waited = false;

	SpinLockAcquire(&shared->mutex);
	shared->wave = wave;
	shared->copying = false;
	SpinLockRelease(&shared->mutex);

	if (holder == NULL)
		holder = tandem_publisher_connect(sub, "wave");
	for (;;)
	{
		WalRcvExecResult *res;
		TupleTableSlot *slot;
		char	   *exported;
		char	   *file;
		XLogRecPtr	lsn;
		bool		isnull;

		tandem_publisher_exec(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");

		/* L is read after the snapshot is taken */
		res = tandem_publisher_query(holder,
									 "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,"
									 " pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.clock_timestamp(),"
									 " pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())",
									 lengthof(types), types);
		slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
		if (!tuplestore_gettupleslot(res->tuplestore, true, false, slot))
			elog(ERROR, "the publisher sent no snapshot");
		exported = TextDatumGetCString(slot_getattr(slot, 1, &isnull));
		lsn = DatumGetLSN(slot_getattr(slot, 3, &isnull));
		file = TextDatumGetCString(slot_getattr(slot, 5, &isnull));
		file[8] = '\0';

		StartTransactionCommand();
		tandem_snapshot_store(sub->oid, wave, TextDatumGetCString(slot_getattr(slot, 2, &isnull)), lsn,
							  strtoul(file, NULL, 16), DatumGetTimestampTz(slot_getattr(slot, 4, &isnull)));
		CommitTransactionCommand();
		MemoryContextSwitchTo(wave_context);

		SpinLockAcquire(&shared->mutex);
		shared->lsn = lsn;
		strlcpy(shared->snapshot, exported, sizeof(shared->snapshot));
		SpinLockRelease(&shared->mutex);
		ExecDropSingleTupleTableSlot(slot);
		walrcv_clear_result(res);

		if (snapshot_sees_received())
			break;
		if (!waited)
			set_message("waits for transactions on the publisher that were open when this subscription connected, or that wait for a synchronous standby there");
		waited = true;
		tandem_publisher_exec(holder, "COMMIT");
		pause_for(delay);
		delay = Min(delay * 2, 1000);
	}
	if (waited)
		set_message("");
}

/* Waits until the publisher has flushed all that the snapshot sees. */
static void
wait_for_flush(void)
{
	Oid			types[] = {LSNOID};
	XLogRecPtr	lsn = tandem_my_wave()->lsn;

	if (tandem_publisher_flushed(holder, lsn))
		return;
	/* nobody else may commit there for a long time */
	tandem_publisher_exec(control, "SET synchronous_commit = 'local'");
	walrcv_clear_result(tandem_publisher_query(control,
											   "SELECT pg_catalog.pg_logical_emit_message(true, 'pg_tandem', 'flush')",
											   lengthof(types), types));
	while (!tandem_publisher_flushed(holder, lsn))
		pause_for(10);
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
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem copy for subscription %u", sub->oid);
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

/*
 * Applies some of a copied table's spool.  Returns whether there was something
 * worth it.  An error is that table's.
 */
static bool
drain_table(Oid relid)
{
	Oid			subid = sub->oid;
	MemoryContext context;
	ResourceOwner owner;
	TandemCopy *copy;
	TandemWaveSnapshot *snapshot;
	volatile bool done = false;
	int64		entries;

	StartTransactionCommand();
	if (!tandem_copy_lock(subid, relid, true))
	{
		CommitTransactionCommand();
		return false;
	}
	copy = tandem_copies_get(subid, relid);
	snapshot = copy ? tandem_snapshot_load(subid, copy->wave) : NULL;
	if (copy == NULL || copy->state != TANDEM_COPY_CATCHING_UP || snapshot == NULL ||
		tandem_spool_bytes(subid, relid, DRAIN_REST) <= DRAIN_REST)
	{
		CommitTransactionCommand();
		return false;
	}

	context = CurrentMemoryContext;
	owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) tandem_spool_replay(subid, relid, snapshot, DRAIN_BYTES, &entries);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		tandem_apply_abort();
		CurrentResourceOwner = owner;
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(error);
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		{
			ereport(LOG,
					(errmsg("changes made while table \"%s\" was copied could not be applied, it will be copied again: %s",
							get_rel_name(relid), error->message)));
			tandem_copy_failed(copy, error->message);
		}
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	CommitTransactionCommand();
	return done;
}

/* One round over all copied tables.  Returns whether something was done. */
static bool
drain_all(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	List	   *copies;
	bool		done = false;
	ListCell   *lc;

	StartTransactionCommand();
	MemoryContextSwitchTo(wave_context);
	copies = tandem_copies_list(sub->oid, 0);
	CommitTransactionCommand();
	MemoryContextSwitchTo(wave_context);
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_CATCHING_UP && drain_table(copy->relid))
			done = true;
		MemoryContextSwitchTo(wave_context);
	}
	if (done)
	{
		SpinLockAcquire(&shared->mutex);
		shared->finish_request++;
		SpinLockRelease(&shared->mutex);
		tandem_wake_apply();
	}
	return done;
}

/* Copies these tables. */
static void
run_wave(List *copies, int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	List	   *chosen = NIL;
	int64		bytes = 0;
	int			ordinal = 0;
	int			nworkers;
	int			started = 0;
	TimestampTz next_ping;
	BackgroundWorkerHandle *handles[TANDEM_MAX_SYNC_WORKERS];
	ListCell   *lc;

	/* 1. what the publisher knows of them */
	if (control == NULL)
		control = tandem_publisher_connect(sub, "wave");
	StartTransactionCommand();
	MemoryContextSwitchTo(wave_context);
	foreach(lc, copies)
		((TandemCopy *) lfirst(lc))->error = NULL;
	tandem_wave_describe(control, sub, copies, false);
	list_sort(copies, by_size);
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->error)
		{
			ereport(LOG,
					(errmsg("table \"%s\" of subscription \"%s\" can't be copied: %s",
							get_rel_name(copy->relid), sub->name, copy->error)));
			tandem_copy_failed(copy, copy->error);
			continue;
		}
		if (chosen != NIL && bytes + copy->bytes_estimated > WAVE_BYTES)
			continue;
		bytes += copy->bytes_estimated;
		chosen = lappend(chosen, copy);
	}

	/* 2. spooled from now on; what an earlier wave has left is void */
	foreach(lc, chosen)
	{
		TandemCopy *copy = lfirst(lc);

		copy->state = TANDEM_COPY_COPYING;
		copy->wave = wave;
		copy->ordinal = ordinal++;
		copy->rows_done = copy->bytes_done = 0;
		copy->started = copy->finished = 0;
		if (copy->attempts > 0 || copy->content || copy->resync)
			tandem_spool_drop(sub->oid, copy->relid);
	}
	tandem_copies_put(chosen);
	CommitTransactionCommand();
	MemoryContextSwitchTo(wave_context);
	if (chosen == NIL)
		return;
	wait_for_spooling();

	/* 3. the snapshot */
	take_snapshot(wave);
	wait_for_flush();

	/* 4. still the same tables?  Are there rows? */
	{
		List	   *changed = NIL;
		List	   *to_copy = NIL;

		StartTransactionCommand();
		MemoryContextSwitchTo(wave_context);
		replorigin_session_origin_timestamp = GetCurrentTimestamp();

		/*
		 * Asking locks partitions there; this session stays in its transaction
		 * as long as the wave lasts, and DDL must not wait for that.
		 */
		tandem_publisher_exec(holder, "SAVEPOINT tandem");
		tandem_wave_describe(holder, sub, chosen, true);
		tandem_publisher_exec(holder, "ROLLBACK TO SAVEPOINT tandem");
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
		MemoryContextSwitchTo(wave_context);
		SpinLockAcquire(&shared->mutex);
		shared->finish_request++;
		shared->copying = true;
		SpinLockRelease(&shared->mutex);
		tandem_wake_apply();
		chosen = to_copy;
	}

	/* 5. the others */
	pg_atomic_write_u32(&shared->next, 0);
	nworkers = tandem_my_subscription->options.workers > 0 ?
		tandem_my_subscription->options.workers : tandem_sync_workers;
	nworkers = Min(nworkers, list_length(chosen));
	nworkers = Min(nworkers, TANDEM_MAX_SYNC_WORKERS);
	while (started < nworkers && (handles[started] = start_worker()) != NULL)
		started++;
	if (started < nworkers)
	{
		set_message("no background worker is free for a copy; increase max_worker_processes");
		ereport(LOG,
				(errmsg("%d of %d copy workers of subscription \"%s\" could be started",
						started, nworkers, sub->name),
				 errhint("Increase max_worker_processes.")));
	}
	next_ping = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PING);
	while (workers_run(handles, started))
	{
		if (!drain_all())
			pause_for(POLL);
		else
			pause_for(0);
		if (GetCurrentTimestamp() >= next_ping)
		{
			Oid			types[] = {INT4OID};

			walrcv_clear_result(tandem_publisher_query(holder, "SELECT 1", lengthof(types), types));
			next_ping = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PING);
		}
	}
	SpinLockAcquire(&shared->mutex);
	shared->copying = false;
	SpinLockRelease(&shared->mutex);
	tandem_publisher_exec(holder, "COMMIT");

	/* tables of a worker that has died */
	StartTransactionCommand();
	foreach(lc, tandem_copies_list(sub->oid, wave))
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_COPYING)
			tandem_copy_failed(copy, started > 0 ? "its copy worker has ended" : "no copy worker could be started");
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(wave_context);
	SpinLockAcquire(&shared->mutex);
	shared->leader_backoff = 0;
	SpinLockRelease(&shared->mutex);
}

static void
leader_exit(int code, Datum arg)
{
	TandemWaveShared *shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	shared->leader_pid = 0;
	shared->leader_latch = NULL;
	shared->leader_started = false;
	shared->copying = false;
	if (code != 0)
	{
		shared->leader_backoff = shared->leader_backoff ?
			Min(shared->leader_backoff * 2, BACKOFF_MAX) :
			BACKOFF_MIN;
		shared->leader_retry = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), shared->leader_backoff);
	}
	for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS; i++)
	{
		if (shared->workers[i].latch)
			SetLatch(shared->workers[i].latch);
	}
	SpinLockRelease(&shared->mutex);
}

/* Waves until there is nothing left to do. */
static void
lead(void)
{
	for (;;)
	{
		bool		catching_up;
		TimestampTz next;
		int64		last_wave;
		List	   *due;
		bool		draining;

		CHECK_FOR_INTERRUPTS();
		StartTransactionCommand();
		MemoryContextSwitchTo(wave_context);
		MemoryContextReset(wave_context);
		sub = GetSubscription(tandem_my_subscription->subid, false);
		due = plan(&catching_up, &next, &last_wave);
		CommitTransactionCommand();
		MemoryContextSwitchTo(wave_context);

		SpinLockAcquire(&tandem_my_subscription->mutex);
		draining = tandem_my_subscription->draining;
		SpinLockRelease(&tandem_my_subscription->mutex);
		if (due != NIL && !draining)
			run_wave(due, last_wave + 1);
		else if (!catching_up)
			return;
		else if (!drain_all())
			pause_for(POLL);
	}
}

void
tandem_leader_main(Datum index)
{
	TandemWaveShared *shared;
	char		name[NAMEDATALEN];
	Subscription *session;
	bool		already;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	tandem_subscription_attach(DatumGetInt32(index), false);
	shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	already = shared->leader_pid != 0;
	if (!already)
	{
		shared->leader_pid = MyProcPid;
		shared->leader_latch = MyLatch;
		shared->leader_started = false;
		shared->error[0] = '\0';
	}
	SpinLockRelease(&shared->mutex);
	if (already)
		proc_exit(0);
	before_shmem_exit(leader_exit, 0);

	BackgroundWorkerInitializeConnectionByOid(tandem_my_subscription->dbid,
											  tandem_my_subscription->owner, 0);
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "2s", PGC_SUSET, PGC_S_OVERRIDE);
	wave_context = AllocSetContextCreate(TopMemoryContext, "tandem wave", ALLOCSET_DEFAULT_SIZES);

	PG_TRY();
	{
		/* those of a leader before end as soon as they see that it has */
		while (running_workers() > 0)
			pause_for(POLL);

		StartTransactionCommand();
		MemoryContextSwitchTo(wave_context);
		sub = GetSubscription(tandem_my_subscription->subid, false);
		MemoryContextSwitchTo(TopMemoryContext);
		session = GetSubscription(tandem_my_subscription->subid, false);	/* stays */
		MemoryContextSwitchTo(wave_context);
		SetConfigOption("synchronous_commit", sub->synccommit, PGC_BACKEND, PGC_S_OVERRIDE);
		tandem_copy_origin_name(sub->oid, 0, name, sizeof(name));
		own_origin = replorigin_by_name(name, true);
		if (own_origin == InvalidRepOriginId)
			own_origin = replorigin_create(name);
		CommitTransactionCommand();
		StartTransactionCommand();
		tandem_use_subscription_origin(tandem_my_subscription->subid, own_origin);
		CommitTransactionCommand();
		tandem_apply_begin_session(session);

		lead();
		if (control)
			walrcv_disconnect(control);
		if (holder)
			walrcv_disconnect(holder);
		drop_origins();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		set_message(error->message);
		PG_RE_THROW();
	}
	PG_END_TRY();
	proc_exit(0);
}

/* ---- In the apply worker ---------------------------------------------------------- */

void
tandem_leader_consider(void)
{
	static bool first = true;
	TandemWaveShared *shared = tandem_my_wave();
	Oid			subid = tandem_my_subscription->subid;
	TimestampTz now = GetCurrentTimestamp();
	bool		busy;
	bool		wanted = false;
	bool		draining;
	BackgroundWorker worker;
	int			new_tables;
	ListCell   *lc;

	SpinLockAcquire(&shared->mutex);
	if (shared->subid != subid)
	{
		/* the slot was another subscription's */
		shared->subid = subid;
		shared->leader_retry = 0;
		shared->leader_backoff = 0;
		shared->error[0] = '\0';
	}
	busy = shared->leader_pid != 0 || now < shared->leader_retry;
	SpinLockRelease(&shared->mutex);
	SpinLockAcquire(&tandem_my_subscription->mutex);
	draining = tandem_my_subscription->draining;
	SpinLockRelease(&tandem_my_subscription->mutex);
	if (busy || tandem_subscription_stopping())
		return;

	StartTransactionCommand();
	new_tables = list_length(TANDEM_SUBSCRIPTION_NOT_READY(subid));
	foreach(lc, tandem_copies_list(subid, 0))
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_READY)
			continue;
		if (copy->state == TANDEM_COPY_CATCHING_UP || (copy->next_retry <= now && !draining))
			wanted = true;
		/* those without a row are new */
		if (!copy->resync)
			new_tables--;
	}
	wanted = wanted || (new_tables > 0 && !draining);
	if (first && !wanted)
	{
		char		name[NAMEDATALEN];

		/* a leader that was killed at its end */
		tandem_copy_origin_name(subid, 0, name, sizeof(name));
		wanted = replorigin_by_name(name, true) != InvalidRepOriginId;
	}
	first = false;
	CommitTransactionCommand();
	if (!wanted)
		return;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = Int32GetDatum(tandem_my_subscription - tandem_subscriptions->slots);
	worker.bgw_notify_pid = 0;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_leader_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem wave for subscription %u", subid);
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem wave");
	if (!RegisterDynamicBackgroundWorker(&worker, NULL))
	{
		SpinLockAcquire(&shared->mutex);
		strlcpy(shared->error, "no background worker is free for the copy; increase max_worker_processes",
				sizeof(shared->error));
		shared->leader_retry = TimestampTzPlusMilliseconds(now, 5000);
		SpinLockRelease(&shared->mutex);
	}
}
