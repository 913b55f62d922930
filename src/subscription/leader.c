/*-------------------------------------------------------------------------
 *
 * leader.c
 *	  The leader: plans waves of initial copies, one after the other.
 *
 * One process while there are tables to copy, or copied ones that are not
 * finished.  wave.c runs a wave, drain.c applies spools.
 *
 * A leader that ends leaves rows that say COPYING, but no copied row: those
 * come with the row that says CATCHING_UP.  It terminates its copy workers,
 * whatever they are waiting for; the next leader waits until they have ended,
 * and copies those tables again.
 *
 * Started by the apply worker (tandem_leader_consider).
 *
 * src/subscription/leader.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "subscription/dispatch.h"
#include "subscription/leader.h"

#define BACKOFF_MIN 1000		/* ms */
#define BACKOFF_MAX 60000
#define NO_WORKER_RETRY 5000	/* ms, while no background worker is free */

TandemLeader tandem_leader;

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

void
tandem_copy_origins_drop(Oid subid)
{
	for (int i = 0; i <= TANDEM_MAX_SYNC_WORKERS; i++)
	{
		char		name[NAMEDATALEN];

		tandem_copy_origin_name(subid, i, name, sizeof(name));
		if (replorigin_by_name(name, true) != InvalidRepOriginId)
			replorigin_drop_by_name(name, true, true);
	}
}

/* At the leader's end: all workers have ended. */
static void
drop_origins(void)
{
	StartTransactionCommand();
	if (tandem_leader.origin != InvalidRepOriginId)
	{
		replorigin_session_origin = InvalidRepOriginId;
		replorigin_session_reset();
		tandem_leader.origin = InvalidRepOriginId;
	}
	tandem_copy_origins_drop(tandem_my_subscription->subid);
	CommitTransactionCommand();
}

/* ---- Waiting ------------------------------------------------------------------- */

void
tandem_leader_pause(long ms)
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

void
tandem_leader_message(const char *message)
{
	TandemWaveShared *shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	strlcpy(shared->error, message, sizeof(shared->error));
	shared->hint[0] = '\0';
	SpinLockRelease(&shared->mutex);
}

void
tandem_wave_failed(const ErrorData *error)
{
	TandemWaveShared *shared = tandem_my_wave();
	char		message[sizeof(shared->error)];

	strlcpy(message, error->message, sizeof(message));
	(void) tandem_one_line(message);
	SpinLockAcquire(&shared->mutex);
	strlcpy(shared->error, message, sizeof(shared->error));
	strlcpy(shared->hint, error->hint ? error->hint : "", sizeof(shared->hint));
	SpinLockRelease(&shared->mutex);
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

	/*
	 * In this order: the apply worker finishes tables meanwhile, and the other
	 * way round one would be READY, and 'i' as if it had been added again.
	 */
	List	   *copies = tandem_copies_list(subid, 0);
	List	   *relations = TANDEM_SUBSCRIPTION_RELATIONS(subid);
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

/* ---- The process ---------------------------------------------------------------- */

static void
leader_exit(int code, Datum arg)
{
	TandemWaveShared *shared = tandem_my_wave();
	pid_t		workers[TANDEM_MAX_SYNC_WORKERS];

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
		workers[i] = shared->workers[i].pid;
	SpinLockRelease(&shared->mutex);

	/* in the middle of a large table, of an index, or waiting for a lock */
	for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS; i++)
	{
		if (workers[i] != 0)
			kill(workers[i], SIGTERM);
	}
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
		MemoryContextSwitchTo(tandem_leader.context);
		MemoryContextReset(tandem_leader.context);
		tandem_leader.sub = GetSubscription(tandem_my_subscription->subid, false);
		due = plan(&catching_up, &next, &last_wave);
		CommitTransactionCommand();
		MemoryContextSwitchTo(tandem_leader.context);

		SpinLockAcquire(&tandem_my_subscription->mutex);
		draining = tandem_my_subscription->draining;
		SpinLockRelease(&tandem_my_subscription->mutex);
		if (draining)
		{
			/* a release waits for those that core couldn't go on with */
			ListCell   *lc;

			foreach(lc, due)
			{
				if (!tandem_copy_unfinished(lfirst(lc)))
					due = foreach_delete_current(due, lc);
			}
		}
		if (due != NIL)
			tandem_wave_run(due, last_wave + 1);
		else if (!catching_up)
			return;
		else if (!tandem_drain())
			tandem_leader_pause(TANDEM_LEADER_POLL);
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
	}
	SpinLockRelease(&shared->mutex);
	if (already)
		proc_exit(0);
	before_shmem_exit(leader_exit, 0);

	tandem_subscription_connect();
	SetConfigOption("lock_timeout", "2s", PGC_SUSET, PGC_S_OVERRIDE);
	tandem_leader.context = AllocSetContextCreate(TopMemoryContext, "tandem wave", ALLOCSET_DEFAULT_SIZES);

	PG_TRY();
	{
		/* those of a leader before end as soon as they see that it has */
		while (running_workers() > 0)
			tandem_leader_pause(TANDEM_LEADER_POLL);

		StartTransactionCommand();
		MemoryContextSwitchTo(tandem_leader.context);
		tandem_leader.sub = GetSubscription(tandem_my_subscription->subid, false);
		MemoryContextSwitchTo(TopMemoryContext);
		session = GetSubscription(tandem_my_subscription->subid, false);	/* stays */
		MemoryContextSwitchTo(tandem_leader.context);
		SetConfigOption("synchronous_commit", tandem_leader.sub->synccommit, PGC_BACKEND, PGC_S_OVERRIDE);
		tandem_copy_origin_name(tandem_leader.sub->oid, 0, name, sizeof(name));
		tandem_leader.origin = replorigin_by_name(name, true);
		if (tandem_leader.origin == InvalidRepOriginId)
			tandem_leader.origin = replorigin_create(name);
		CommitTransactionCommand();
		StartTransactionCommand();
		tandem_use_subscription_origin(tandem_my_subscription->subid, tandem_leader.origin);
		tandem_apply_begin_session(session);
		CommitTransactionCommand();

		lead();
		if (tandem_leader.control)
			walrcv_disconnect(tandem_leader.control);
		if (tandem_leader.holder)
			walrcv_disconnect(tandem_leader.holder);
		drop_origins();
		tandem_leader_message("");
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		tandem_wave_failed(error);
		PG_RE_THROW();
	}
	PG_END_TRY();
	proc_exit(0);
}

/* ---- In the apply worker ---------------------------------------------------------- */

void
tandem_leader_consider(void)
{
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
		if (copy->state == TANDEM_COPY_CATCHING_UP ||
			(copy->next_retry <= now && (!draining || tandem_copy_unfinished(copy))))
			wanted = true;
		/* those without a row are new */
		if (!copy->resync || copy->stale)
			new_tables--;
	}
	wanted = wanted || (new_tables > 0 && !draining);
	if (!wanted && !draining)
	{
		char		name[NAMEDATALEN];

		/* a leader that has ended before it dropped its origins */
		tandem_copy_origin_name(subid, 0, name, sizeof(name));
		wanted = replorigin_by_name(name, true) != InvalidRepOriginId;
	}
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
		const char *message = "no background worker is free for a wave";
		char		hint[sizeof(shared->hint)];
		bool		known;

		snprintf(hint, sizeof(hint), "Increase max_worker_processes, which is %d.", max_worker_processes);
		SpinLockAcquire(&shared->mutex);
		known = strcmp(shared->error, message) == 0;
		strlcpy(shared->error, message, sizeof(shared->error));
		strlcpy(shared->hint, hint, sizeof(shared->hint));
		shared->leader_retry = TimestampTzPlusMilliseconds(now, NO_WORKER_RETRY);
		SpinLockRelease(&shared->mutex);
		if (!known)
			ereport(LOG,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("tables of subscription \"%s\" wait: %s",
							NameStr(tandem_my_subscription->name), message),
					 errhint("%s", hint)));
	}
}
