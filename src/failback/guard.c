/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  When data pages and commits wait for the failback standbys.
 *
 * A crashed primary can follow its successor without copying a page if no
 * page on its disk has a change that the successor lacks.  So, as WAL goes to
 * disk before the page it describes, with tandem.synchronous_transfer =
 * data_flush WAL also goes to the standbys of tandem.failback_standbys before
 * the page goes to disk.  The guard keeps the repair set small; what makes a
 * node correct is "tandem rejoin".  Hence everything here is bounded and ends
 * in doing what was asked for.
 *
 * States; all transitions in set_state:
 *
 *	 OFF ------- mode and standbys set, pages can be guarded ---> ARMING,
 *				 in recovery ---------------------------------------> STARTING
 *	 STARTING -- recovery is over, a standby was there before --> SETTLING
 *	 STARTING -- recovery is over, none was --------------------> ARMING
 *	 ARMING ---- the standbys are connected and keep up --------> SETTLING
 *	 SETTLING -- they have all that was flushed when it began --> ARMED
 *	 SETTLING, ARMED
 *			  -- somebody has waited failback_timeout,
 *				 or the list can't confirm anything any more ---> DEGRADED
 *			  -- another list that has confirmed less ----------> ARMING
 *	 DEGRADED -- the standbys keep up, back-off is over --------> SETTLING
 *	 any ------- mode none, or no standbys ---------------------> OFF
 *
 * SETTLING and ARMED make others wait.  In SETTLING the disk still has pages
 * from before; it ends when the standbys have what those can have, and only
 * then does the view say "armed".  ARMING exists so that the base backup of
 * the first standby isn't held up by the lack of it.  After a restart a
 * standby that has confirmed a checkpoint before (then the slot
 * tandem_failback exists, see retention.c) is waited for from the first
 * write on.
 *
 * "Keep up" is a probe: note the flush position, then see how long it takes
 * until the standbys have it.  More than a tenth of failback_timeout is not
 * keeping up, and the probe starts anew.  Each degradation that follows soon
 * after arming doubles the time until the next arming, up to MAX_BACKOFF_MS:
 * a standby that is too slow must not stop the server again and again.
 *
 * The list, the mode and the timeout that count are those in shared memory,
 * which the worker copies there from its settings, so that all processes
 * agree and a process that waits need not read the configuration.  Before the
 * worker runs they are what the postmaster has read.
 *
 * What is waited for is published in one number per kind of wait, so that
 * whoever has no reason to wait makes one comparison.  It is recomputed, by
 * the one who holds the lock, whenever a walsender has had a reply that moved
 * its standby, by the worker, and by waiting processes themselves from time
 * to time.  It may go down, as positions of standbys may.
 *
 * The wait takes no part in interrupts, allocates nothing, raises nothing:
 * the process may hold a content lock or be in a critical section.  The locks
 * taken are leaves: ours, and below it ReplicationSlotControlLock, under
 * which nobody writes a page.  Who never waits:
 * - physical walsenders, since the wait is for what they do; that includes
 *	 one that is being started and must evict a page to read a catalog,
 * - startup process, everything while in recovery, single-user mode,
 * - the worker of this capability.
 *
 * src/failback/guard.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "storage/bufpage.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "failback/failback.h"
#include "failback/guard.h"
#include "failback/smgr_table.h"

#define TRANCHE "pg_tandem guard"

/* Longest time between two looks of a waiting process at the standbys. */
#define LOOK_AGAIN_MS 200

#define MAX_BACKOFF_MS (10 * 60 * 1000)

/*
 * How much unflushed WAL makes a process that writes pages wake the WAL writer,
 * which flushes this much at once (wal_writer_flush_after), and after how many
 * of its pages it looks.
 */
#define FLUSH_AHEAD_BYTES (1024 * 1024)
#define FLUSH_AHEAD_PAGES 16

TandemGuardShared *tandem_guard = NULL;
bool		tandem_guard_exempt = false;

static uint32 wait_event = 0;

/* The current transaction is being aborted; see tandem_guard_removal. */
static bool aborting = false;

const char *
tandem_guard_state_name(TandemGuardState state)
{
	switch (state)
	{
		case TANDEM_GUARD_OFF:
			return "off";
		case TANDEM_GUARD_STARTING:
		case TANDEM_GUARD_ARMING:
		case TANDEM_GUARD_SETTLING:
			return "arming";
		case TANDEM_GUARD_ARMED:
			return "armed";
		case TANDEM_GUARD_DEGRADED:
			return "degraded";
	}
	return "unknown";
}

/* ---- states; the caller holds the lock exclusively ------------------------------------ */

/* Does anybody wait in this state? */
static bool
guards(void)
{
	return tandem_guard->state == TANDEM_GUARD_SETTLING ||
		tandem_guard->state == TANDEM_GUARD_ARMED;
}

/* The list that counts, or NULL. */
static const TandemStandbyList *
the_list(void)
{
	return tandem_guard->has_list ? (const TandemStandbyList *) &tandem_guard->standbys : NULL;
}

/* Publishes what the state and the confirmed position mean for waiters. */
static void
publish(void)
{
	static const int bits[TANDEM_NUM_GUARD_WAITS] = {
		[TANDEM_WAIT_DATA] = TANDEM_TRANSFER_DATA_FLUSH,
		[TANDEM_WAIT_COMMIT] = TANDEM_TRANSFER_COMMIT};

	for (int kind = 0; kind < TANDEM_NUM_GUARD_WAITS; kind++)
	{
		uint64		passes = PG_UINT64_MAX;

		/* while starting everybody comes and asks */
		if (tandem_guard->mode & bits[kind])
		{
			if (guards())
				passes = tandem_guard->confirmed;
			else if (tandem_guard->state == TANDEM_GUARD_STARTING)
				passes = 0;
		}
		pg_atomic_write_u64(&tandem_guard->passes[kind], passes);
	}
}

static void
set_state(TandemGuardState state, TimestampTz now)
{
	if (state == tandem_guard->state)
		return;

	if (state == TANDEM_GUARD_DEGRADED)
	{
		tandem_guard->degradations++;
		tandem_guard->last_degraded = now;
	}
	if (state == TANDEM_GUARD_OFF || state == TANDEM_GUARD_ARMING)
	{
		tandem_guard->backoff = 0;
		tandem_guard->not_before = now;
	}
	if (state != TANDEM_GUARD_DEGRADED)
		tandem_guard->reason[0] = '\0';
	tandem_guard->probe_lsn = InvalidXLogRecPtr;
	tandem_guard->unlogged = state != TANDEM_GUARD_STARTING && state != TANDEM_GUARD_SETTLING &&
		!(state == TANDEM_GUARD_OFF && tandem_guard->state == TANDEM_GUARD_STARTING);
	tandem_guard->state = state;
	tandem_guard->since = now;
}

/*
 * STARTING, ARMING, DEGRADED -> SETTLING.  Whoever has not seen yet that pages
 * wait now has flushed what he writes, so it is below the flush position that
 * is read afterwards.
 */
static void
settle(TimestampTz now)
{
	set_state(TANDEM_GUARD_SETTLING, now);
	publish();
	pg_memory_barrier();
	tandem_guard->settle_lsn = GetFlushRecPtr(NULL);
}

/* SETTLING, ARMED -> DEGRADED, because somebody has waited for this too long. */
static void
degrade(XLogRecPtr lsn, TimestampTz now)
{
	int			timeout = pg_atomic_read_u32(&tandem_guard->timeout);
	int			backoff = tandem_guard->backoff;
	NameData	name;
	TandemStandbyState standby;

	/* was the guard armed for long enough to forget the last degradation? */
	if (backoff == 0 ||
		TimestampDifferenceExceeds(tandem_guard->since, now, Max(backoff, 6 * timeout)))
		backoff = timeout;
	else
		backoff = Min(2 * backoff, MAX_BACKOFF_MS);

	set_state(TANDEM_GUARD_DEGRADED, now);
	tandem_guard->backoff = backoff;
	tandem_guard->not_before = TimestampTzPlusMilliseconds(now, backoff);

	if (tandem_standby_blocker(the_list(), lsn, &name, &standby))
		snprintf(tandem_guard->reason, TANDEM_GUARD_TEXT,
				 "standby slot \"%s\", which is %s, has flushed up to %X/%X, not %X/%X, within %d ms",
				 NameStr(name), standby.pid != 0 ? "connected" : "not connected",
				 LSN_FORMAT_ARGS(standby.flush), LSN_FORMAT_ARGS(lsn), timeout);
	else
		snprintf(tandem_guard->reason, TANDEM_GUARD_TEXT,
				 "standbys have not flushed %X/%X within %d ms",
				 LSN_FORMAT_ARGS(lsn), timeout);
}

/* SETTLING, ARMED -> DEGRADED, because no position will ever come from this list. */
static void
degrade_hopeless(TimestampTz now)
{
	set_state(TANDEM_GUARD_DEGRADED, now);
	strlcpy(tandem_guard->reason,
			"replication slots named in tandem.failback_standbys are missing or have lost their position",
			TANDEM_GUARD_TEXT);
}

/* Do the standbys keep up with the server? */
static bool
keep_up(TimestampTz now)
{
	int			limit = pg_atomic_read_u32(&tandem_guard->timeout) / 10;

	/* a slot that nobody uses may have the last position of an idle server */
	if (tandem_reachable_lsn(the_list()) != PG_UINT64_MAX)
	{
		tandem_guard->probe_lsn = InvalidXLogRecPtr;
		return false;
	}

	if (!XLogRecPtrIsInvalid(tandem_guard->probe_lsn))
	{
		bool		late = TimestampDifferenceExceeds(tandem_guard->probe_at, now, limit);

		if (!late && tandem_guard->confirmed >= tandem_guard->probe_lsn)
			return true;
		if (!late)
			return false;
	}

	tandem_guard->probe_lsn = GetFlushRecPtr(NULL);
	tandem_guard->probe_at = now;
	return tandem_guard->confirmed >= tandem_guard->probe_lsn;
}

/* Looks at the standbys and does what follows from it. */
static void
look(TimestampTz now)
{
	bool		rearm;

	if (tandem_guard->state == TANDEM_GUARD_OFF || RecoveryInProgress())
		return;

	tandem_guard->confirmed = tandem_confirmed_lsn(the_list());
	switch (tandem_guard->state)
	{
		case TANDEM_GUARD_OFF:
			break;

		case TANDEM_GUARD_STARTING:
			LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
			rearm = SearchNamedReplicationSlot(TANDEM_FAILBACK_SLOT, false) != NULL;
			LWLockRelease(ReplicationSlotControlLock);
			if (rearm)
				settle(now);
			else
				set_state(TANDEM_GUARD_ARMING, now);
			break;

		case TANDEM_GUARD_ARMING:
		case TANDEM_GUARD_DEGRADED:
			if (now >= tandem_guard->not_before && keep_up(now))
				settle(now);
			break;

		case TANDEM_GUARD_SETTLING:
		case TANDEM_GUARD_ARMED:
			if (XLogRecPtrIsInvalid(tandem_guard->confirmed))
				degrade_hopeless(now);
			break;
	}
	if (tandem_guard->state == TANDEM_GUARD_SETTLING &&
		tandem_guard->confirmed >= tandem_guard->settle_lsn)
		set_state(TANDEM_GUARD_ARMED, now);
	publish();
}

/* ---- the same from outside --------------------------------------------------------------- */

/*
 * Looks at the standbys.  Takes the lock; raises nothing.  Does not log, which
 * is left to those who may.
 */
void
tandem_guard_look(void)
{
	if (tandem_guard->state == TANDEM_GUARD_OFF)
		return;

	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	look(GetCurrentTimestamp());
	LWLockRelease(tandem_guard->lock);

	tandem_standby_wake(Min(pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_DATA]),
							pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_COMMIT])));
}

/* Somebody has waited for lsn as long as one may. */
static void
timed_out(XLogRecPtr lsn)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	look(now);
	if (guards() && tandem_guard->confirmed < lsn)
	{
		degrade(lsn, now);
		publish();
	}
	LWLockRelease(tandem_guard->lock);

	tandem_standby_wake(PG_UINT64_MAX);
}

/*
 * Writes the log line of the last change of state, unless somebody has.  Not
 * in a critical section.
 */
void
tandem_guard_log(void)
{
	TandemGuardState state;
	char		reason[TANDEM_GUARD_TEXT];
	bool		unlogged;

	if (!tandem_guard->unlogged)
		return;

	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	unlogged = tandem_guard->unlogged;
	tandem_guard->unlogged = false;
	state = tandem_guard->state;
	strlcpy(reason, tandem_guard->reason, sizeof(reason));
	LWLockRelease(tandem_guard->lock);
	if (!unlogged)
		return;

	switch (state)
	{
		case TANDEM_GUARD_STARTING:
		case TANDEM_GUARD_SETTLING:
			break;
		case TANDEM_GUARD_OFF:
			ereport(LOG_SERVER_ONLY,
					(errmsg("guard is off: nothing waits for failback standbys")));
			break;
		case TANDEM_GUARD_ARMING:
			ereport(LOG_SERVER_ONLY,
					(errmsg("guard is arming: it waits until the failback standbys keep up")));
			break;
		case TANDEM_GUARD_ARMED:
			ereport(LOG_SERVER_ONLY,
					(errmsg("guard is armed")));
			break;
		case TANDEM_GUARD_DEGRADED:
			ereport(LOG_SERVER_ONLY,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("guard is degraded: nothing waits for failback standbys any more"),
					 errdetail_internal("%s", reason),
					 errhint("It arms again by itself when the standbys keep up.  If this server crashes before that, \"tandem rejoin\" has pages to repair.")));
			break;
	}
}

/*
 * Copies the settings to where they count, and looks at once.  Called by the
 * worker when it starts and after each reload, and by the postmaster before
 * there is anybody else.
 */
void
tandem_guard_configure(void)
{
	const TandemStandbyList *list = tandem_failback_standbys_list;
	const TandemStandbyList *old_list;
	int			mode = tandem_synchronous_transfer;
	TimestampTz now = GetCurrentTimestamp();
	XLogRecPtr	confirmed;
	bool		wanted;
	bool		other_list;

	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);

	old_list = the_list();
	other_list = (list != NULL) != (old_list != NULL) ||
		(list != NULL &&
		 (list->nnames != old_list->nnames ||
		  memcmp(list, old_list, TANDEM_STANDBY_LIST_SIZE(list->nnames)) != 0));
	if (other_list)
	{
		tandem_guard->has_list = list != NULL;
		if (list != NULL)
			memcpy(&tandem_guard->standbys, list, TANDEM_STANDBY_LIST_SIZE(list->nnames));
	}
	if (other_list || mode != tandem_guard->mode ||
		pg_atomic_read_u32(&tandem_guard->timeout) != tandem_failback_timeout)
	{
		/* somebody has done something about it: try soon */
		tandem_guard->backoff = 0;
		tandem_guard->not_before = now;
	}
	tandem_guard->mode = mode;
	pg_atomic_write_u32(&tandem_guard->timeout, tandem_failback_timeout);

	wanted = mode != TANDEM_TRANSFER_NONE && list != NULL &&
		(!(mode & TANDEM_TRANSFER_DATA_FLUSH) || tandem_guard->self_test[0] == '\0');
	if (!wanted)
		set_state(TANDEM_GUARD_OFF, now);
	else if (tandem_guard->state == TANDEM_GUARD_OFF)
		set_state(RecoveryInProgress() ? TANDEM_GUARD_STARTING : TANDEM_GUARD_ARMING, now);
	else if (guards() && other_list)
	{
		confirmed = tandem_guard->confirmed;
		if (tandem_confirmed_lsn(list) < confirmed)
			set_state(TANDEM_GUARD_ARMING, now);
	}
	publish();
	if (IsUnderPostmaster)
		look(now);
	LWLockRelease(tandem_guard->lock);

	tandem_standby_wake(PG_UINT64_MAX);
}

/* The worker has found that pages can't be guarded. */
void
tandem_guard_set_self_test(const char *failure)
{
	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	strlcpy(tandem_guard->self_test, failure, TANDEM_GUARD_TEXT);
	LWLockRelease(tandem_guard->lock);
	tandem_guard_configure();
}

int
tandem_guard_waiting(TimestampTz *since)
{
	int			count = 0;

	*since = 0;
	for (int i = 0; i < MaxBackends + NUM_AUXILIARY_PROCS; i++)
	{
		TimestampTz start = (TimestampTz) pg_atomic_read_u64(&tandem_guard->waiting_since[i]);

		if (start == 0)
			continue;
		count++;
		if (*since == 0 || start < *since)
			*since = start;
	}
	return count;
}

/* ---- waiting ---------------------------------------------------------------------------------- */

bool
tandem_guard_may_wait(void)
{
	if (!IsUnderPostmaster || MyProc == NULL || tandem_guard_exempt ||
		AmStartupProcess() || RecoveryInProgress())
		return false;

	/* physical replication, by its kind of connection or by its slot */
	return !am_walsender ||
		(am_db_walsender &&
		 (MyReplicationSlot == NULL || SlotIsLogical(MyReplicationSlot)));
}

/* Adds a finished wait to the counters. */
static void
count_wait(TandemGuardWait kind, TimestampTz start)
{
	uint64		us = Max(GetCurrentTimestamp() - start, 0);
	uint64		longest = pg_atomic_read_u64(&tandem_guard->longest);

	pg_atomic_fetch_add_u64(&tandem_guard->waits[kind], 1);
	pg_atomic_fetch_add_u64(&tandem_guard->wait_time[kind], us);
	while (us > longest &&
		   !pg_atomic_compare_exchange_u64(&tandem_guard->longest, &longest, us))
		;
}

void
tandem_guard_wait(XLogRecPtr lsn, TandemGuardWait kind, bool (*stop)(void))
{
	pg_atomic_uint64 *passes = &tandem_guard->passes[kind];
	pg_atomic_uint64 *since;
	TimestampTz start;
	TimestampTz looked;
	XLogRecPtr	previous;
	bool		woken = false;

	if (lsn <= pg_atomic_read_u64(passes) || !tandem_guard_may_wait())
		return;

	/* the first one after recovery decides what to do */
	if (tandem_guard->state == TANDEM_GUARD_STARTING)
	{
		tandem_guard_look();
		if (lsn <= pg_atomic_read_u64(passes))
			return;
	}

	/*
	 * Standbys get only what is flushed here.  Usually it is: the buffer
	 * manager does it before each write.  What is beyond the end of WAL is no
	 * position in it (GiST has numbers of its own in unlogged indexes).
	 */
	if (lsn > GetFlushRecPtr(NULL))
	{
		if (lsn > GetXLogInsertRecPtr())
			return;
		XLogFlush(lsn);
	}

	since = &tandem_guard->waiting_since[TANDEM_MY_PROCNO];
	start = looked = GetCurrentTimestamp();
	pg_atomic_write_u64(since, start);
	previous = tandem_standby_wait_swap(lsn);

	while (lsn > pg_atomic_read_u64(passes))
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz end = TimestampTzPlusMilliseconds(start, pg_atomic_read_u32(&tandem_guard->timeout));
		long		left = TimestampDifferenceMilliseconds(now, end);
		int			events;

		if (left <= 0)
		{
			timed_out(lsn);
			break;
		}
		if (stop != NULL && stop())
			break;
		if (TimestampDifferenceExceeds(looked, now, LOOK_AGAIN_MS))
		{
			looked = now;
			tandem_guard_look();
			continue;
		}

		events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH,
						   Min(left, LOOK_AGAIN_MS), wait_event);
		if (events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			woken = true;
		}

		/*
		 * We can't exit in here, and going on at once would write just what
		 * we must not write: the postmaster may be only the first to be
		 * killed.  With it dead WaitLatch does not sleep any more.
		 */
		if (events & WL_POSTMASTER_DEATH)
			pg_usleep(10 * 1000L);
	}

	(void) tandem_standby_wait_swap(previous);
	pg_atomic_write_u64(since, 0);
	count_wait(kind, start);
	if (tandem_guard->state == TANDEM_GUARD_DEGRADED && lsn > tandem_guard->confirmed)
		pg_atomic_fetch_add_u64(&tandem_guard->timeouts, 1);

	/* what we consumed may have been meant for what goes on below us */
	if (woken || previous != InvalidXLogRecPtr)
		SetLatch(MyLatch);

	/* the log line may need memory */
	if (CritSectionCount == 0)
		tandem_guard_log();
}

/*
 * Whoever dirties pages fast, as a bulk load does, soon writes them, and then
 * waits for a flush here and for one at the standbys.  With the WAL writer woken
 * as soon as there is enough to flush, both are mostly done by then.  The
 * position is rounded down: WAL up to the start of a page was certainly inserted
 * or is being inserted, which the WAL writer waits for.
 */
static void
flush_ahead(void)
{
	static int	calls = 0;
	XLogRecPtr	inserted;

	if (++calls < FLUSH_AHEAD_PAGES)
		return;
	calls = 0;
	inserted = GetXLogInsertRecPtr();
	inserted -= inserted % XLOG_BLCKSZ;
	if (inserted > GetFlushRecPtr(NULL) + FLUSH_AHEAD_BYTES)
		XLogSetAsyncXactLSN(inserted);
}

/*
 * Without checksums a page is written from where others may still set hint
 * bits, which moves its LSN if those are logged.  The LSN we looked at must
 * be that of what is written, so a copy is.  With checksums the buffer manager
 * has made one already.
 */
TandemPage
tandem_guard_page(TandemPage page)
{
	static TANDEM_PAGE_ROOM copy;
	XLogRecPtr	lsn;

	if (tandem_guard == NULL ||
		pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_DATA]) == PG_UINT64_MAX ||
		RecoveryInProgress())
		return page;

	flush_ahead();
	if (wal_log_hints && !DataChecksumsEnabled())
	{
		memcpy(copy.data, page, BLCKSZ);
		page = copy.data;
	}
	lsn = PageGetLSN((Page) page);
	if (lsn > pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_DATA]))
		tandem_guard_wait(lsn, TANDEM_WAIT_DATA, NULL);
	return page;
}

/*
 * A truncation is logged right before it is done, a file is removed right
 * after the commit that says so.  Files removed by an abort are new and
 * nobody's.  An aborting transaction isn't in progress any more, which tells
 * it from a later one that removes files before its own end (COMMIT PREPARED).
 */
void
tandem_guard_removal(void)
{
	XLogRecPtr	lsn;

	if (tandem_guard == NULL ||
		pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_DATA]) == PG_UINT64_MAX ||
		(aborting && !IsTransactionState()))
		return;

	lsn = Max(XactLastRecEnd, XactLastCommitEnd);
	tandem_guard_wait(lsn, TANDEM_WAIT_DATA, NULL);
}

/* ---- wiring ------------------------------------------------------------------------------------- */

static void
guard_xact_callback(XactEvent event, void *arg)
{
	aborting = event == XACT_EVENT_ABORT;
}

static void
guard_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					   SubTransactionId parentSubid, void *arg)
{
	aborting = event == SUBXACT_EVENT_ABORT_SUB;
}

static Size
shared_size(void)
{
	return add_size(offsetof(TandemGuardShared, waiting_since),
					mul_size(MaxBackends + NUM_AUXILIARY_PROCS, sizeof(pg_atomic_uint64)));
}

void
tandem_guard_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
}

void
tandem_guard_shmem_startup(void)
{
	TandemGuardShared *guard;
	const char *refusal = tandem_smgr_refusal(NULL);
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	guard = ShmemInitStruct("pg_tandem guard", shared_size(), &found);
	if (!found)
	{
		memset(guard, 0, offsetof(TandemGuardShared, waiting_since));
		for (int i = 0; i < TANDEM_NUM_GUARD_WAITS; i++)
		{
			pg_atomic_init_u64(&guard->passes[i], PG_UINT64_MAX);
			pg_atomic_init_u64(&guard->waits[i], 0);
			pg_atomic_init_u64(&guard->wait_time[i], 0);
		}
		pg_atomic_init_u32(&guard->timeout, 0);
		pg_atomic_init_u64(&guard->longest, 0);
		pg_atomic_init_u64(&guard->timeouts, 0);
		pg_atomic_init_u64(&guard->cancels, 0);
		for (int i = 0; i < MaxBackends + NUM_AUXILIARY_PROCS; i++)
			pg_atomic_init_u64(&guard->waiting_since[i], 0);
		guard->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		guard->state = TANDEM_GUARD_STARTING;
		guard->since = GetCurrentTimestamp();
		if (refusal)
			strlcpy(guard->self_test, refusal, TANDEM_GUARD_TEXT);
	}
	LWLockRelease(AddinShmemInitLock);
	tandem_guard = guard;
	if (!found)
		tandem_guard_configure();
	wait_event = TANDEM_NEW_WAIT_EVENT("TandemFailbackFlush");
}

void
tandem_guard_init(void)
{
	tandem_standby_moved_hook = tandem_guard_look;
	RegisterXactCallback(guard_xact_callback, NULL);
	RegisterSubXactCallback(guard_subxact_callback, NULL);
}
