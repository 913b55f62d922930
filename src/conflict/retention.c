/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  The process that closes and drops epochs of tombstones: one a database.
 *
 *			 collector, asked by us			 all subscriptions have passed its end
 *	 open --------------------> closed -----------------------------------> dropped
 *										|									   ^
 *										+--------------------------------------+
 *										  a bound: dropped early, and recorded
 *
 * Each turn it asks where the subscriptions are (epoch.c), and drops what all of
 * them have passed.  It closes the open epoch when that has entries and
 *
 *	 - none is closed any more, or
 *	 - it is a minute old (a quarter of tandem.max_retention, if that is less), or
 *	 - it is large: an eighth of tandem.tombstone_limit,
 *
 * so it is always the next in the ring of eight, and the size of what is kept
 * follows from how far apply lags.  When no relation of the ring is empty the
 * open epoch stays open, and grows.
 *
 * Bounds.  An epoch that was closed tandem.max_retention ago, or the oldest one
 * when the store is larger than tandem.tombstone_limit, is dropped though it is
 * needed.  That is recorded in the same transaction as a window: changes that
 * are older than its end can't be told from those to rows that never were.
 * Nothing else stops: deletes are collected on, changes that are newer than the
 * window's end get certain answers, and the window is history as soon as all
 * subscriptions have passed it.  So there is nothing to turn on again, and
 * nobody has to be slowed down for it: collecting costs the same all the time.
 *
 * The collector, in its own process, never waits for us, and a publisher that
 * doesn't answer delays nothing but the end of epochs.  Where nothing is deleted
 * nothing is asked.  What is known of passes is kept in memory only; after a
 * restart they begin again, which is right, if late.
 *
 * Called by the launcher of src/subscription (tandem_retention_supervise).
 *
 * src/conflict/retention.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "common/settings.h"
#include "conflict/retention.h"
#include "conflict/store.h"

#define NAP 1000				/* ms between two turns */
#define SHORT_NAP 100			/* ms, when tests let epochs end fast */
#define RESTART 10000			/* ms before a worker that has failed is started again */
#define EPOCH_AGE 60000			/* ms after which an epoch with entries is closed */
#define SPARE 64				/* subscriptions that are paused, beside max_worker_processes */
#define TRANCHE "pg_tandem retention"

/* All of it is protected by the lock. */
typedef struct RetentionShared
{
	LWLock	   *lock;
	int			nsubs;
	int			nworkers;
	TandemRetentionWorker *workers;
	TandemRetentionInfo *subs;	/* subid invalid = free */
} RetentionShared;

static RetentionShared *shared = NULL;

/* this process's */
static List *passes = NIL;		/* of TandemPass */
static MemoryContext turn_context;

/* ---- Shared memory ------------------------------------------------------------------ */

static int
number_of_subs(void)
{
	return max_worker_processes + SPARE;
}

static Size
shared_size(void)
{
	Size		size = MAXALIGN(sizeof(RetentionShared));

	size = add_size(size, MAXALIGN(mul_size(max_worker_processes, sizeof(TandemRetentionWorker))));
	return add_size(size, mul_size(number_of_subs(), sizeof(TandemRetentionInfo)));
}

void
tandem_retention_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
}

void
tandem_retention_shmem_startup(void)
{
	bool		found;
	char	   *memory;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	memory = ShmemInitStruct("pg_tandem retention", shared_size(), &found);
	shared = (RetentionShared *) memory;
	if (!found)
	{
		memset(memory, 0, shared_size());
		shared->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		shared->nworkers = max_worker_processes;
		shared->nsubs = number_of_subs();
		memory += MAXALIGN(sizeof(RetentionShared));
		shared->workers = (TandemRetentionWorker *) memory;
		memory += MAXALIGN(mul_size(max_worker_processes, sizeof(TandemRetentionWorker)));
		shared->subs = (TandemRetentionInfo *) memory;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* The entry of a database, or (InvalidOid) a free one; NULL = none.  Caller has the lock. */
static TandemRetentionWorker *
find_worker(Oid dbid)
{
	for (int i = 0; i < shared->nworkers; i++)
	{
		if (shared->workers[i].dbid == dbid)
			return &shared->workers[i];
	}
	return NULL;
}

static TandemRetentionInfo *
find_sub(Oid subid)
{
	for (int i = 0; i < shared->nsubs; i++)
	{
		if (shared->subs[i].subid == subid)
			return &shared->subs[i];
	}
	return NULL;
}

bool
tandem_retention_info(Oid subid, TandemRetentionInfo *info)
{
	TandemRetentionInfo *found = NULL;

	if (shared == NULL)
		return false;
	LWLockAcquire(shared->lock, LW_SHARED);
	found = find_sub(subid);
	if (found)
		*info = *found;
	LWLockRelease(shared->lock);
	return found != NULL;
}

bool
tandem_retention_worker(Oid dbid, TandemRetentionWorker *worker)
{
	TandemRetentionWorker *found = NULL;

	if (shared == NULL)
		return false;
	LWLockAcquire(shared->lock, LW_SHARED);
	found = find_worker(dbid);
	if (found)
		*worker = *found;
	LWLockRelease(shared->lock);
	return found != NULL;
}

/* Shows where the passes of this database are. */
static void
publish(void)
{
	ListCell   *lc;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->nsubs; i++)
	{
		if (shared->subs[i].dbid == MyDatabaseId)
			memset(&shared->subs[i], 0, sizeof(TandemRetentionInfo));
	}
	foreach(lc, passes)
	{
		TandemPass *pass = lfirst(lc);
		TandemRetentionInfo *info = find_sub(InvalidOid);

		if (info == NULL)
			break;
		info->subid = pass->subid;
		info->dbid = MyDatabaseId;
		info->phase = pass->phase;
		info->since = pass->since;
		info->goal = pass->goal;
		info->passed = pass->passed;
		info->xid = pass->xid;
		info->xmin = pass->xmin;
		info->lsn = pass->lsn;
		strlcpy(info->message, pass->message, sizeof(info->message));
		strlcpy(info->hint, pass->hint, sizeof(info->hint));
	}
	LWLockRelease(shared->lock);
}

static void
count(int dropped, int ended_early)
{
	TandemRetentionWorker *worker;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	worker = find_worker(MyDatabaseId);
	if (worker)
	{
		worker->dropped += dropped;
		worker->ended_early += ended_early;
	}
	LWLockRelease(shared->lock);
}

/* ---- What there is ------------------------------------------------------------------- */

/* One turn's view of the database; in turn_context. */
typedef struct Situation
{
	List	   *incoming;		/* of TandemIncoming: those with tombstones */
	List	   *epochs;			/* of TandemEpoch, oldest first */
	List	   *windows;		/* of TandemWindow: the active ones */
	int			history;		/* number of the others */
	int64		size;			/* of the store on disk, bytes */
	TimestampTz goal;			/* latest end of all that is to be passed; 0 = nothing */
} Situation;

static TimestampTz
end_of_epoch(const TandemEpoch *epoch)
{
	return Max(epoch->closed, epoch->max_time);
}

static void
look(Situation *situation)
{
	ListCell   *lc;

	memset(situation, 0, sizeof(*situation));
	StartTransactionCommand();
	MemoryContextSwitchTo(turn_context);
	if (!OidIsValid(tandem_own_relation_or_invalid("deletion_windows")))
	{
		/* the extension is gone, or isn't there yet */
		CommitTransactionCommand();
		return;
	}
	foreach(lc, tandem_incoming.list())
	{
		TandemIncoming *incoming = lfirst(lc);

		if (incoming->tombstones)
			situation->incoming = lappend(situation->incoming, incoming);
	}
	situation->epochs = tandem_epochs();
	foreach(lc, tandem_windows(false))
	{
		TandemWindow *window = lfirst(lc);

		if (window->passed == 0)
			situation->windows = lappend(situation->windows, window);
		else
			situation->history++;
	}
	situation->size = tandem_store_size();
	CommitTransactionCommand();
	MemoryContextSwitchTo(turn_context);

	foreach(lc, situation->epochs)
	{
		TandemEpoch *epoch = lfirst(lc);

		if (!epoch->open)
			situation->goal = Max(situation->goal, end_of_epoch(epoch));
	}
	foreach(lc, situation->windows)
	{
		TandemWindow *window = lfirst(lc);

		situation->goal = Max(situation->goal, window->to_time);
	}
}

/* ---- Passes ----------------------------------------------------------------------------- */

static TandemPass *
find_pass(Oid subid)
{
	ListCell   *lc;

	foreach(lc, passes)
	{
		TandemPass *pass = lfirst(lc);

		if (pass->subid == subid)
			return pass;
	}
	return NULL;
}

static bool
is_incoming(const Situation *situation, Oid subid)
{
	ListCell   *lc;

	foreach(lc, situation->incoming)
	{
		if (((TandemIncoming *) lfirst(lc))->subid == subid)
			return true;
	}
	return false;
}

/* Goes on with all of them; returns the end that all have passed. */
static TimestampTz
step_passes(const Situation *situation)
{
	TimestampTz passed = DT_NOEND;
	ListCell   *lc;

	foreach(lc, passes)
	{
		TandemPass *pass = lfirst(lc);

		if (!is_incoming(situation, pass->subid))
		{
			passes = foreach_delete_current(passes, lc);
			tandem_pass_free(pass);
		}
	}
	foreach(lc, situation->incoming)
	{
		TandemIncoming *incoming = lfirst(lc);
		TandemPass *pass = find_pass(incoming->subid);

		if (pass == NULL)
		{
			MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

			pass = tandem_pass_create(incoming->subid);
			passes = lappend(passes, pass);
			MemoryContextSwitchTo(old);
		}
		tandem_pass_step(pass, incoming, situation->goal);
		MemoryContextSwitchTo(turn_context);
		passed = Min(passed, pass->passed);
	}
	return passed;
}

/* ---- Dropping ----------------------------------------------------------------------------- */

/*
 * Drops an epoch, unless somebody is looking into it just now.  early: why, a
 * bound; then it is recorded.
 */
static bool
drop_epoch(const TandemEpoch *epoch, const char *early)
{
	char		name[NAMEDATALEN];

	snprintf(name, sizeof(name), "deleted_%d", epoch->ring);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!ConditionalLockRelationOid(tandem_own_relation(name), AccessExclusiveLock))
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(turn_context);
		return false;
	}
	if (early)
	{
		TandemWindow window = {
			.from_lsn = epoch->first_lsn, .to_lsn = epoch->last_lsn,
			.from_time = epoch->opened, .to_time = end_of_epoch(epoch)};

		tandem_window_end_early(&window);
	}
	tandem_epoch_drop(epoch);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(turn_context);
	count(early == NULL, early != NULL);
	ereport(early ? LOG : DEBUG1,
			(errmsg("epoch " INT64_FORMAT " with " INT64_FORMAT " tombstones has been dropped%s%s",
					epoch->epoch, epoch->entries, early ? " early: " : "", early ? early : ""),
			 early ? errdetail("Where a row is missing for a change from before %s, it can't be told whether it was deleted.",
							   timestamptz_to_str(end_of_epoch(epoch))) : 0));
	return true;
}

/* What all have passed. */
static void
drop_passed(Situation *situation, TimestampTz passed)
{
	int			windows = 0;
	ListCell   *lc;

	foreach(lc, situation->epochs)
	{
		TandemEpoch *epoch = lfirst(lc);

		if (!epoch->open && end_of_epoch(epoch) <= passed && drop_epoch(epoch, NULL))
			situation->epochs = foreach_delete_current(situation->epochs, lc);
	}
	foreach(lc, situation->windows)
		windows += ((TandemWindow *) lfirst(lc))->to_time <= passed;
	/* those that never were active are kept in bounds, too */
	if (windows == 0 && situation->history <= 2 * TANDEM_WINDOWS_KEPT)
		return;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	windows = tandem_windows_pass(passed);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(turn_context);
	if (windows > 0)
		ereport(LOG,
				(errmsg("all subscriptions have caught up past %d window(s) of unknown deletes", windows)));
}

/* What is over a bound. */
static void
drop_early(Situation *situation)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		limit = (int64) tandem_tombstone_limit * 1024 * 1024;
	ListCell   *lc;

	foreach(lc, situation->epochs)
	{
		TandemEpoch *epoch = lfirst(lc);
		const char *why = NULL;

		if (epoch->open)
			continue;
		if (tandem_max_retention > 0 &&
			TimestampDifferenceExceeds(epoch->closed, now, tandem_max_retention * 1000L))
			why = "tandem.max_retention";
		else if (situation->size > limit)
			why = "tandem.tombstone_limit";
		if (why == NULL || !drop_epoch(epoch, why))
			continue;
		situation->size -= epoch->bytes;
		situation->epochs = foreach_delete_current(situation->epochs, lc);
	}
}

/* ---- Closing ------------------------------------------------------------------------------- */

static void
close_epoch(const Situation *situation)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		limit = (int64) tandem_tombstone_limit * 1024 * 1024;
	long		age = EPOCH_AGE;
	TandemEpoch *open = NULL;
	int			closed = 0;
	ListCell   *lc;

	foreach(lc, situation->epochs)
	{
		TandemEpoch *epoch = lfirst(lc);

		if (epoch->open)
			open = epoch;
		else
			closed++;
	}
	if (open == NULL || open->entries == 0 || closed >= TANDEM_RINGS - 1)
		return;
	if (tandem_max_retention > 0)
		age = Min(age, tandem_max_retention * 1000L / 4);
	if (closed == 0)
		age = Min(age, tandem_debug_epoch_age);
	if (TimestampDifferenceExceeds(open->opened, now, age) ||
		open->bytes > limit / TANDEM_RINGS || situation->size > limit)
		tandem_epoch_request_close(MyDatabaseId);
}

/* ---- The process ----------------------------------------------------------------------------- */

static void
retention_exit(int code, Datum arg)
{
	TandemRetentionWorker *worker;

	passes = NIL;
	publish();
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	worker = find_worker(MyDatabaseId);
	if (worker && worker->pid == MyProcPid)
	{
		worker->pid = 0;
		worker->latch = NULL;
	}
	LWLockRelease(shared->lock);
}

/* False: there is one already, or no room. */
static bool
attach(Oid dbid)
{
	TandemRetentionWorker *worker;
	bool		attached = false;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	worker = find_worker(dbid);
	if (worker == NULL)
		worker = find_worker(InvalidOid);
	if (worker && worker->pid == 0)
	{
		if (worker->dbid != dbid)
			memset(worker, 0, sizeof(*worker));
		worker->dbid = dbid;
		worker->pid = MyProcPid;
		worker->latch = MyLatch;
		attached = true;
	}
	LWLockRelease(shared->lock);
	return attached;
}

static void
turn(void)
{
	Situation	situation;
	TimestampTz passed;

	MemoryContextReset(turn_context);
	look(&situation);
	if (situation.incoming == NIL)
		proc_exit(0);			/* the launcher starts another when there is one again */

	passed = step_passes(&situation);
	drop_passed(&situation, passed);
	drop_early(&situation);
	close_epoch(&situation);
	publish();
}

void
tandem_retention_main(Datum dbid)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (!attach(DatumGetObjectId(dbid)))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(dbid), InvalidOid, 0);
	before_shmem_exit(retention_exit, 0);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
	/* a drop that is lost is done again */
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	turn_context = AllocSetContextCreate(TopMemoryContext, "tandem retention turn", ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		turn();
		pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(Min(NAP, tandem_debug_epoch_age), SHORT_NAP), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* ---- In the launcher ---------------------------------------------------------------------------- */

/* A worker that this process has registered. */
typedef struct Registered
{
	Oid			dbid;
	BackgroundWorkerHandle *handle;
	TimestampTz started;
} Registered;

long
tandem_retention_supervise(List *databases)
{
	static List *registered = NIL;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	TimestampTz now = GetCurrentTimestamp();
	long		nap = -1;
	ListCell   *lc;

	foreach(lc, registered)
	{
		Registered *worker = lfirst(lc);
		pid_t		pid;

		if (worker->handle && GetBackgroundWorkerPid(worker->handle, &pid) == BGWH_STOPPED)
		{
			pfree(worker->handle);
			worker->handle = NULL;
		}
		if (worker->handle == NULL && TimestampDifferenceExceeds(worker->started, now, RESTART))
		{
			registered = foreach_delete_current(registered, lc);
			pfree(worker);
		}
	}
	foreach(lc, databases)
	{
		Oid			dbid = lfirst_oid(lc);
		bool		found = false;
		BackgroundWorker worker;
		TandemRetentionWorker known;
		Registered *entry;
		ListCell   *lc2;

		foreach(lc2, registered)
			found = found || ((Registered *) lfirst(lc2))->dbid == dbid;
		if (tandem_retention_worker(dbid, &known) && known.pid != 0)
			continue;
		if (found)
		{
			nap = NAP;			/* it has just ended, or hasn't got that far */
			continue;
		}
		memset(&worker, 0, sizeof(worker));
		worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
		worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		worker.bgw_main_arg = ObjectIdGetDatum(dbid);
		worker.bgw_notify_pid = MyProcPid;
		snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
		snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_retention_main");
		snprintf(worker.bgw_name, BGW_MAXLEN, "tandem retention for database %u", dbid);
		snprintf(worker.bgw_type, BGW_MAXLEN, "tandem retention");
		entry = palloc0(sizeof(Registered));
		entry->dbid = dbid;
		entry->started = now;
		if (!RegisterDynamicBackgroundWorker(&worker, &entry->handle))
		{
			entry->handle = NULL;
			ereport(LOG,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("tombstones of database %u are kept: no background worker is free", dbid),
					 errhint("Increase max_worker_processes, which is %d.", max_worker_processes)));
		}
		registered = lappend(registered, entry);
		nap = NAP;
	}
	MemoryContextSwitchTo(old);
	return nap;
}
