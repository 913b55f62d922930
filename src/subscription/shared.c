/*-------------------------------------------------------------------------
 *
 * shared.c
 *	  Shared memory of adopted subscriptions: one slot each.
 *
 * The launcher gives a subscription its slot and starts an apply worker with
 * the slot's number; apply and copy workers attach to it and keep in it what
 * the view shows.  The slot outlives its workers, so that counters and the last
 * error stay; it is given back when the subscription is no longer adopted.
 *
 * Stopping.  Whoever alters, releases or drops a subscription "holds" it: from
 * then on no worker is started, and those that run are asked to end at the next
 * transaction boundary.  A hold ends with the holder's transaction, however
 * that ends.  Rule: a hold is counted, and "launched" is set, under the
 * exclusive lock, so either the launcher sees the hold or the holder sees the
 * worker; there is nothing in between.
 *
 * A worker that can't end in time (it may wait for a lock that the holder's own
 * transaction has, which no deadlock detector sees) is terminated: what it was
 * applying is rolled back, the origin's position with it, and applied again.
 *
 * Called by all files of this folder.
 *
 * src/subscription/shared.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/version.h"
#include "subscription/subscription.h"

#define TRANCHE "pg_tandem subscriptions"
#define SPARE_SLOTS 64			/* for paused ones, beside max_worker_processes */
#define STOP_GRACE 10000		/* ms before workers are terminated */
#define STOP_POLL 1000			/* ms between two looks, should a wake-up be lost */
#define BACKOFF_MIN 1000		/* ms */
#define BACKOFF_MAX 60000

TandemSubscriptionsShared *tandem_subscriptions = NULL;
TandemSubscriptionSlot *tandem_my_subscription = NULL;
TandemCopies tandem_copies = {NULL, NULL, NULL};

/* What this session's transaction does to subscriptions. */
typedef enum HeldKind
{
	HELD_STOPPED,				/* counted in "holds" */
	HELD_DRAINING,
	HELD_WAKE					/* to be woken at the end */
} HeldKind;

typedef struct Held
{
	Oid			subid;
	HeldKind	kind;
} Held;

static Held *held = NULL;		/* in TopMemoryContext */
static int	nheld = 0;
static int	max_held = 0;
static bool wake_at_commit = false;

static int
number_of_slots(void)
{
	return max_worker_processes + SPARE_SLOTS;
}

static Size
shared_size(void)
{
	return add_size(offsetof(TandemSubscriptionsShared, slots),
					mul_size(number_of_slots(), sizeof(TandemSubscriptionSlot)));
}

static void xact_callback(XactEvent event, void *arg);

void
tandem_subscriptions_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche(TRANCHE, 1);
}

void
tandem_subscriptions_shmem_startup(void)
{
	TandemSubscriptionsShared *shared;
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("pg_tandem subscriptions", shared_size(), &found);
	if (!found)
	{
		memset(shared, 0, shared_size());
		shared->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		ConditionVariableInit(&shared->cv);
		shared->nslots = number_of_slots();
		for (int i = 0; i < shared->nslots; i++)
		{
			TandemSubscriptionSlot *slot = &shared->slots[i];

			SpinLockInit(&slot->mutex);
			pg_atomic_init_u64(&slot->inserts, 0);
			pg_atomic_init_u64(&slot->updates, 0);
			pg_atomic_init_u64(&slot->deletes, 0);
			pg_atomic_init_u64(&slot->truncates, 0);
			pg_atomic_init_u64(&slot->update_missing, 0);
			pg_atomic_init_u64(&slot->delete_missing, 0);
			pg_atomic_init_u64(&slot->transactions, 0);
		}
	}
	tandem_subscriptions = shared;
	LWLockRelease(AddinShmemInitLock);

	/* a crashed server starts its shared memory anew, but not its callbacks */
	if (max_held == 0)
	{
		max_held = 4;
		held = MemoryContextAlloc(TopMemoryContext, sizeof(Held) * max_held);
		RegisterXactCallback(xact_callback, NULL);
	}
}

void
tandem_require_subscriptions(void)
{
	if (tandem_subscriptions == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem must be loaded via shared_preload_libraries"),
				 errhint("Add pg_tandem to shared_preload_libraries and restart the server.")));
	tandem_check_sql_version();
}

const char *
tandem_subscription_state_name(TandemSubscriptionState state)
{
	static const char *const names[] = {
		[TANDEM_SUBSCRIPTION_STARTING] = "starting",
		[TANDEM_SUBSCRIPTION_STREAMING] = "streaming",
		[TANDEM_SUBSCRIPTION_RETRYING] = "retrying",
		[TANDEM_SUBSCRIPTION_PAUSED] = "paused",
		[TANDEM_SUBSCRIPTION_STOPPED] = "stopped"};

	return names[state];
}

/* ---- Slots ------------------------------------------------------------------ */

TandemSubscriptionSlot *
tandem_subscription_find(Oid subid)
{
	for (int i = 0; i < tandem_subscriptions->nslots; i++)
	{
		TandemSubscriptionSlot *slot = &tandem_subscriptions->slots[i];

		if (slot->used && slot->subid == subid)
			return slot;
	}
	return NULL;
}

/* Is a process of ours attached?  Caller holds the mutex. */
static bool
has_processes(const TandemSubscriptionSlot *slot)
{
	for (int i = 0; i < TANDEM_SUBSCRIPTION_PROCESSES; i++)
	{
		if (slot->pids[i] != 0)
			return true;
	}
	return false;
}

TandemSubscriptionSlot *
tandem_subscription_find_or_add(Oid dbid, Oid subid)
{
	TandemSubscriptionSlot *slot = tandem_subscription_find(subid);

	if (slot != NULL)
		return slot;
	for (int i = 0; i < tandem_subscriptions->nslots; i++)
	{
		slot = &tandem_subscriptions->slots[i];
		if (slot->used)
			continue;

		/* field by field: the mutex lives in it */
		SpinLockAcquire(&slot->mutex);
		slot->used = true;
		slot->dbid = dbid;
		slot->subid = subid;
		slot->owner = InvalidOid;
		memset(&slot->name, 0, sizeof(slot->name));
		memset(&slot->options, 0, sizeof(slot->options));
		slot->state = TANDEM_SUBSCRIPTION_STOPPED;
		slot->reason[0] = '\0';
		slot->launched = false;
		slot->launched_at = 0;
		slot->apply_pid = 0;
		slot->apply_latch = NULL;
		memset(slot->pids, 0, sizeof(slot->pids));
		slot->stop_requested = false;
		slot->holds = 0;
		slot->draining = false;
		slot->received_lsn = slot->applied_lsn = InvalidXLogRecPtr;
		slot->flushed_lsn = slot->remote_end_lsn = InvalidXLogRecPtr;
		slot->timeline = 0;
		slot->last_message = slot->remote_commit_time = 0;
		slot->error[0] = slot->sqlstate[0] = '\0';
		slot->error_at = 0;
		slot->error_count = 0;
		slot->backoff = 0;
		slot->backoff_transactions = 0;
		slot->next_retry = 0;
		pg_atomic_write_u64(&slot->inserts, 0);
		pg_atomic_write_u64(&slot->updates, 0);
		pg_atomic_write_u64(&slot->deletes, 0);
		pg_atomic_write_u64(&slot->truncates, 0);
		pg_atomic_write_u64(&slot->update_missing, 0);
		pg_atomic_write_u64(&slot->delete_missing, 0);
		pg_atomic_write_u64(&slot->transactions, 0);
		SpinLockRelease(&slot->mutex);
		return slot;
	}
	return NULL;
}

void
tandem_subscription_remove(TandemSubscriptionSlot *slot)
{
	SpinLockAcquire(&slot->mutex);
	if (slot->holds == 0 && !slot->launched && !has_processes(slot))
		slot->used = false;
	SpinLockRelease(&slot->mutex);
}

/* ---- Workers ----------------------------------------------------------------- */

/* When to try again: later each time, until a transaction was applied.  Caller holds the mutex. */
static void
retry_later(TandemSubscriptionSlot *slot, TimestampTz now)
{
	uint64		transactions = pg_atomic_read_u64(&slot->transactions);

	if (slot->backoff == 0 || transactions != slot->backoff_transactions)
		slot->backoff = BACKOFF_MIN;
	else
		slot->backoff = Min(slot->backoff * 2, BACKOFF_MAX);
	slot->backoff_transactions = transactions;
	slot->state = TANDEM_SUBSCRIPTION_RETRYING;
	slot->next_retry = TimestampTzPlusMilliseconds(now, slot->backoff);
}

/*
 * This process no longer uses the slot; runs after its locks and its origin are
 * free.  The launcher may look before the postmaster knows of our end, so what
 * there is to say of an apply worker that was terminated is said here.
 */
static void
detach(int code, Datum arg)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	SpinLockAcquire(&slot->mutex);
	for (int i = 0; i < TANDEM_SUBSCRIPTION_PROCESSES; i++)
	{
		if (slot->pids[i] == MyProcPid)
			slot->pids[i] = 0;
	}
	if (slot->apply_pid == MyProcPid)
	{
		slot->apply_pid = 0;
		slot->apply_latch = NULL;
		slot->launched = false;
		if (code != 0 && !slot->stop_requested &&
			(slot->state == TANDEM_SUBSCRIPTION_STARTING || slot->state == TANDEM_SUBSCRIPTION_STREAMING))
		{
			retry_later(slot, now);
			strlcpy(slot->reason, "the apply worker has ended; the server log says why", sizeof(slot->reason));
		}
	}
	SpinLockRelease(&slot->mutex);
	if (tandem_subscriptions->launcher_latch)
		SetLatch(tandem_subscriptions->launcher_latch);
	LWLockRelease(tandem_subscriptions->lock);
	ConditionVariableBroadcast(&tandem_subscriptions->cv);
}

void
tandem_subscription_attach(int index, bool apply)
{
	TandemSubscriptionSlot *slot;
	bool		attached = false;

	if (tandem_subscriptions == NULL || index < 0 || index >= tandem_subscriptions->nslots)
		elog(ERROR, "invalid subscription slot %d", index);
	slot = &tandem_subscriptions->slots[index];

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	SpinLockAcquire(&slot->mutex);
	if (slot->used && (apply ? slot->launched && slot->apply_pid == 0 : !slot->stop_requested))
	{
		for (int i = 0; !attached && i < TANDEM_SUBSCRIPTION_PROCESSES; i++)
		{
			if (slot->pids[i] == 0)
			{
				slot->pids[i] = MyProcPid;
				attached = true;
			}
		}
		if (attached && apply)
		{
			slot->apply_pid = MyProcPid;
			slot->apply_latch = MyLatch;
		}
	}
	SpinLockRelease(&slot->mutex);
	LWLockRelease(tandem_subscriptions->lock);

	if (!attached)
		proc_exit(0);

	tandem_my_subscription = slot;
	on_shmem_exit(detach, 0);
	if (tandem_subscription_stopping())
		proc_exit(0);
}

void
tandem_subscription_set_state(TandemSubscriptionState state, const char *reason)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;

	SpinLockAcquire(&slot->mutex);
	slot->state = state;
	strlcpy(slot->reason, reason ? reason : "", sizeof(slot->reason));
	SpinLockRelease(&slot->mutex);
}

void
tandem_subscription_connect(void)
{
	BackgroundWorkerInitializeConnectionByOid(tandem_my_subscription->dbid,
											  tandem_my_subscription->owner, 0);
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	/* nobody's functions are found but those of the server */
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	/* each change sees what has been committed, and is one */
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
}

bool
tandem_subscription_stopping(void)
{
	/* a bool is read as a whole; whoever sets it sets our latch after it */
	return *(volatile bool *) &tandem_my_subscription->stop_requested;
}

char *
tandem_one_line(char *message)
{
	char	   *to = message;

	for (char *from = message; *from; from++)
	{
		if (*from != '\n' && *from != '\r' && *from != '\t')
			*to++ = *from;
		else if (to > message && to[-1] != ' ')
			*to++ = ' ';
	}
	while (to > message && to[-1] == ' ')
		to--;
	*to = '\0';
	return message;
}

void
tandem_subscription_failed(ErrorData *error)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;
	TimestampTz now = GetCurrentTimestamp();
	char		text[sizeof(slot->error)];

	/* one line for the view; whatever was cut is in the log */
	snprintf(text, sizeof(text), "%s%s%s%s%s",
			 error->message ? error->message : "missing error text",
			 error->detail ? "; " : "", error->detail ? error->detail : "",
			 error->hint ? "; hint: " : "", error->hint ? error->hint : "");
	(void) tandem_one_line(text);

	SpinLockAcquire(&slot->mutex);
	retry_later(slot, now);
	slot->reason[0] = '\0';
	strlcpy(slot->error, text, sizeof(slot->error));
	strlcpy(slot->sqlstate, unpack_sql_state(error->sqlerrcode), sizeof(slot->sqlstate));
	slot->error_at = now;
	slot->error_count++;
	SpinLockRelease(&slot->mutex);
}

/* ---- Holding ------------------------------------------------------------------ */

/* Notes what this transaction does to a subscription. */
static void
remember(Oid subid, HeldKind kind)
{
	if (nheld == max_held)
	{
		held = repalloc(held, sizeof(Held) * max_held * 2);
		max_held *= 2;
	}
	held[nheld++] = (Held){.subid = subid, .kind = kind};
}

static void
wake_apply(TandemSubscriptionSlot *slot)
{
	Latch	   *latch;

	SpinLockAcquire(&slot->mutex);
	latch = slot->apply_latch;
	SpinLockRelease(&slot->mutex);
	if (latch)
		SetLatch(latch);
}

void
tandem_subscription_wake(Oid subid)
{
	TandemSubscriptionSlot *slot;

	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(subid);
	if (slot)
		wake_apply(slot);
	LWLockRelease(tandem_subscriptions->lock);
}

void
tandem_subscription_wake_at_commit(Oid subid)
{
	remember(subid, HELD_WAKE);
}

void
tandem_launcher_wake(void)
{
	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	if (tandem_subscriptions->launcher_latch)
		SetLatch(tandem_subscriptions->launcher_latch);
	LWLockRelease(tandem_subscriptions->lock);
}

void
tandem_launcher_wake_at_commit(void)
{
	wake_at_commit = true;
}

/* Is a process of the slot there, or on its way?  Copies their pids. */
static bool
slot_is_busy(Oid subid, pid_t *pids)
{
	TandemSubscriptionSlot *slot;
	bool		busy = false;

	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(subid);
	if (slot)
	{
		SpinLockAcquire(&slot->mutex);
		busy = slot->launched || has_processes(slot);
		memcpy(pids, slot->pids, sizeof(slot->pids));
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(tandem_subscriptions->lock);
	return busy;
}

void
tandem_subscription_hold(Oid dbid, Oid subid)
{
	TandemSubscriptionSlot *slot;
	TimestampTz started = GetCurrentTimestamp();
	TimestampTz terminate_at = TimestampTzPlusMilliseconds(started, STOP_GRACE);
	pid_t		pids[TANDEM_SUBSCRIPTION_PROCESSES];

	/* memory first: what is counted must be remembered */
	remember(InvalidOid, HELD_STOPPED);

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	slot = tandem_subscription_find_or_add(dbid, subid);
	if (slot == NULL)
	{
		LWLockRelease(tandem_subscriptions->lock);
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many adopted subscriptions"),
				 errhint("Increase max_worker_processes.")));
	}
	held[nheld - 1].subid = subid;
	SpinLockAcquire(&slot->mutex);
	slot->holds++;
	slot->stop_requested = true;
	SpinLockRelease(&slot->mutex);
	wake_apply(slot);
	LWLockRelease(tandem_subscriptions->lock);

	ConditionVariablePrepareToSleep(&tandem_subscriptions->cv);
	while (slot_is_busy(subid, pids))
	{
		if (GetCurrentTimestamp() >= terminate_at)
		{
			for (int i = 0; i < TANDEM_SUBSCRIPTION_PROCESSES; i++)
			{
				if (pids[i] != 0)
					kill(pids[i], SIGTERM);
			}
			terminate_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), STOP_GRACE);
		}
		(void) ConditionVariableTimedSleep(&tandem_subscriptions->cv, STOP_POLL, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();

	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(subid);
	if (slot)
	{
		SpinLockAcquire(&slot->mutex);
		slot->state = TANDEM_SUBSCRIPTION_STOPPED;
		strlcpy(slot->reason, "it is being altered, released or dropped", sizeof(slot->reason));
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(tandem_subscriptions->lock);
}

void
tandem_subscription_drain(Oid subid)
{
	TandemSubscriptionSlot *slot;

	remember(InvalidOid, HELD_DRAINING);
	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(subid);
	if (slot)
	{
		held[nheld - 1].subid = subid;
		SpinLockAcquire(&slot->mutex);
		slot->draining = true;
		SpinLockRelease(&slot->mutex);
		wake_apply(slot);
	}
	LWLockRelease(tandem_subscriptions->lock);
}

/* Ends what this transaction held. */
static void
end_holds(void)
{
	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	for (int i = 0; i < nheld; i++)
	{
		TandemSubscriptionSlot *slot = OidIsValid(held[i].subid) ?
			tandem_subscription_find(held[i].subid) : NULL;

		if (slot == NULL)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (held[i].kind == HELD_STOPPED)
			slot->holds--;
		else if (held[i].kind == HELD_DRAINING)
			slot->draining = false;
		SpinLockRelease(&slot->mutex);
		wake_apply(slot);
	}
	nheld = 0;
	if (tandem_subscriptions->launcher_latch)
		SetLatch(tandem_subscriptions->launcher_latch);
	LWLockRelease(tandem_subscriptions->lock);
	ConditionVariableBroadcast(&tandem_subscriptions->cv);
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			if (nheld > 0)
				end_holds();
			if (wake_at_commit && event != XACT_EVENT_ABORT)
				tandem_launcher_wake();
			wake_at_commit = false;
			break;
		default:
			break;
	}
}
