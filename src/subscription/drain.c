/*-------------------------------------------------------------------------
 *
 * drain.c
 *	  The leader applies what was spooled of tables that are copied.
 *
 * Down to what the apply worker does itself when it finishes a table
 * (route.c).  Entries are deleted in the transaction that applies them; the
 * table's copy lock keeps the two apart.  An error is that table's: its spool
 * goes, and it is copied again.  A local lock that isn't free in time is no
 * error, only a reason to try later.
 *
 * Also here: what becomes of a table whose spool the apply worker has given up
 * (spool.c).  The entries go at once; the table waits for a later wave as soon
 * as its copy worker has let it go, which is told to.
 *
 * Called by wave.c and leader.c.
 *
 * src/subscription/drain.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "conflict/conflict.h"
#include "subscription/dispatch.h"
#include "subscription/leader.h"

#define DRAIN_BYTES (4 * 1024 * 1024)	/* of spool in one transaction */
#define DRAIN_REST (512 * 1024) /* what is left to the apply worker */
#define DRAIN_PAUSE 4			/* times as long as a round that found nothing took */

static MemoryContext round_context = NULL;

/* ---- Spools beyond their limit --------------------------------------------------- */

/* Tells the copy worker that has this table, if one has. */
static void
tell_worker(Oid relid)
{
	TandemWaveShared *shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS; i++)
	{
		TandemCopyProgress *worker = &shared->workers[i];

		if (worker->pid != 0 && worker->relid == relid)
		{
			worker->void_relid = relid;
			if (worker->latch)
				SetLatch(worker->latch);
		}
	}
	SpinLockRelease(&shared->mutex);
}

/* The spool of this table was given up.  Returns whether that is done with. */
static bool
give_up(Oid relid)
{
	Oid			subid = tandem_leader.sub->oid;
	bool		done = true;

	StartTransactionCommand();
	if (tandem_copy_lock(subid, relid, true))
	{
		TandemCopy *copy = tandem_copies_get(subid, relid);
		TandemSpool spool;

		tandem_spool_look(subid, relid, &spool);
		if (copy && spool.given_up == copy->wave &&
			(copy->state == TANDEM_COPY_COPYING || copy->state == TANDEM_COPY_CATCHING_UP))
			tandem_copy_failed(copy, tandem_spool_given_up_error());
	}
	else
	{
		/* the mark stays, so nobody takes the rest for all */
		tandem_spool_clear(subid, relid);
		tell_worker(relid);
		done = false;
	}
	CommitTransactionCommand();
	return done;
}

/* Sees to spools of these tables that were given up, if there may be some.  Returns whether one waits now. */
static bool
give_up_all(List *relids)
{
	static uint32 seen = 0;		/* a new leader looks in any case */
	static bool all_done = false;
	TandemWaveShared *shared = tandem_my_wave();
	List	   *given_up = NIL;
	bool		any = false;
	uint32		request;
	ListCell   *lc;

	SpinLockAcquire(&shared->mutex);
	request = shared->given_up_request;
	SpinLockRelease(&shared->mutex);
	if (all_done && request == seen)
		return false;
	seen = request;
	all_done = true;

	StartTransactionCommand();
	foreach(lc, relids)
	{
		Oid			relid = lfirst_oid(lc);
		TandemCopy *copy = tandem_copies_get(tandem_leader.sub->oid, relid);
		TandemSpool spool;
		MemoryContext old;

		if (copy == NULL || (copy->state != TANDEM_COPY_COPYING && copy->state != TANDEM_COPY_CATCHING_UP))
			continue;
		tandem_spool_look(copy->subid, relid, &spool);
		if (spool.given_up != copy->wave)
			continue;
		old = MemoryContextSwitchTo(round_context);
		given_up = lappend_oid(given_up, relid);
		MemoryContextSwitchTo(old);
	}
	CommitTransactionCommand();
	foreach(lc, given_up)
	{
		if (give_up(lfirst_oid(lc)))
			any = true;
		else
			all_done = false;
	}
	return any;
}

/* ---- Replay -------------------------------------------------------------------------- */

/*
 * Applies some of a copied table's spool.  Returns whether there was something
 * worth it.  An error is that table's.
 */
static bool
drain_table(Oid relid)
{
	Oid			subid = tandem_leader.sub->oid;
	MemoryContext context;
	ResourceOwner owner;
	TandemCopy *copy;
	TandemWaveSnapshot *snapshot;
	TandemSpool spool;
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
	tandem_spool_look(subid, relid, &spool);
	if (copy == NULL || copy->state != TANDEM_COPY_CATCHING_UP || snapshot == NULL ||
		spool.bytes <= DRAIN_REST || spool.given_up == copy->wave)
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
	tandem_conflict_write_failed();
	CommitTransactionCommand();
	tandem_apply_counted();
	return done;
}

bool
tandem_drain(void)
{
	static TimestampTz next_round = 0;
	TandemWaveShared *shared = tandem_my_wave();
	TimestampTz begun = GetCurrentTimestamp();
	List	   *relids;
	bool		done = false;
	ListCell   *lc;

	if (begun < next_round)
		return false;

	/* a wave may last for hours, and this is called all the time */
	if (round_context == NULL)
		round_context = AllocSetContextCreate(TopMemoryContext, "tandem drain", ALLOCSET_DEFAULT_SIZES);
	StartTransactionCommand();
	MemoryContextSwitchTo(round_context);
	relids = tandem_spool_relids(tandem_leader.sub->oid);
	CommitTransactionCommand();
	done = give_up_all(relids);
	foreach(lc, relids)
	{
		CHECK_FOR_INTERRUPTS();
		if (tandem_subscription_stopping())
			break;				/* the caller sees to it */
		if (drain_table(lfirst_oid(lc)))
			done = true;
	}
	MemoryContextSwitchTo(tandem_leader.context);
	MemoryContextReset(round_context);

	/* with many tables that only wait for the stream this would be all we do */
	next_round = done ? 0 : GetCurrentTimestamp() + DRAIN_PAUSE * (GetCurrentTimestamp() - begun);
	if (done)
	{
		SpinLockAcquire(&shared->mutex);
		shared->finish_request++;
		SpinLockRelease(&shared->mutex);
		tandem_wake_apply();
	}
	return done;
}
