/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  WAL that is kept only so that a node can be rejoined.
 *
 * "tandem rejoin" needs WAL in two places, and each has a physical slot of
 * ours that keeps it.  No standby uses them, no process holds them.
 *
 * tandem_failback, on a primary.  The old primary replays from the last
 * checkpoint before the fork.  pg_control may be ahead of the fork, and what
 * checkpoints before its last one need, the server would remove.  So the slot
 * stands at the redo of the last checkpoint whose record the failback standbys
 * have confirmed.
 *
 *	 none --- a listed standby has confirmed the last checkpoint ---> kept
 *	 kept --- a later checkpoint is confirmed ----------------------> kept, from its redo
 *	 kept --- more than tandem.failback_keep_size ------------------> kept, from the
 *			  oldest redo within that which no standby has confirmed (problem)
 *	 kept --- no standby is listed, or this is a standby -----------> none
 *
 * When a checkpoint has been written to pg_control, WAL up to its record's end
 * is flushed; so the flush position read after pg_control is a bound for that
 * end.
 *
 * tandem_rejoin, on a standby.  It needs WAL of its successor from the fork
 * on.  While in recovery the slot follows replay; after a promotion nobody
 * moves it any more, so it stands before the fork.
 *
 *	 none ------ recovery ---------------------------> following
 *	 following - promotion --------------------------> standing
 *	 standing -- recovery (rejoined elsewhere) ------> following
 *	 standing -- more than tandem.failback_keep_size -> none
 *	 standing -- a node streams from it -------------> in use
 *	 in use ---- recovery (rejoined elsewhere) ------> following
 *
 * "tandem rejoin" lets the old primary stream from it.  Then it is an ordinary
 * standby's slot, which we don't touch any more; that is seen from its
 * position, which is beyond the beginning of this timeline.
 *
 * tandem.failback_keep_size = 0 means neither.
 *
 * Called by worker.c; the states are read by status.c.
 *
 * src/failback/retention.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "common/compat.h"
#include "common/controldata_utils.h"
#include "common/settings.h"
#include "common/standby.h"
#include "failback/failback.h"
#include "failback/guard.h"

/* A checkpoint that no listed standby has confirmed yet. */
typedef struct Candidate
{
	XLogRecPtr	redo;
	XLogRecPtr	proof;			/* confirming that confirms the checkpoint */
} Candidate;

/* When there are more, the oldest but one goes: only precision is lost. */
#define MAX_CANDIDATES 64

static Candidate candidates[MAX_CANDIDATES];
static int	ncandidates = 0;

/* the redo of the last checkpoint that was made a candidate */
static XLogRecPtr newest_redo = InvalidXLogRecPtr;

/* Where the timeline of this primary begins. */
static XLogRecPtr
timeline_start(void)
{
	static TimeLineID last_tli = 0;
	static XLogRecPtr start = InvalidXLogRecPtr;
	TimeLineID	tli = GetWALInsertionTimeLine();

	if (tli != last_tli)
	{
		List	   *history = readTimeLineHistory(tli);

		start = ((TimeLineHistoryEntry *) linitial(history))->begin;
		last_tli = tli;
		list_free_deep(history);
	}
	return start;
}

void
tandem_retention_state(const char *name, TandemRetention *state)
{
	ReplicationSlot *slot;

	memset(state, 0, sizeof(*state));
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	slot = SearchNamedReplicationSlot(name, false);
	if (slot != NULL && SlotIsPhysical(slot))
	{
		state->exists = true;
		SpinLockAcquire(&slot->mutex);
		state->active = slot->active_pid != 0;
		if (!TANDEM_SLOT_INVALIDATED(&slot->data))
			state->restart_lsn = slot->data.restart_lsn;
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);

	if (state->exists && strcmp(name, TANDEM_REJOIN_SLOT) == 0 && !RecoveryInProgress())
		state->in_use = state->active || state->restart_lsn > timeline_start();
}

/* ---- moving slots ------------------------------------------------------------------- */

/* Lets the slot that we have acquired keep WAL from lsn on. */
static void
set_restart_lsn(XLogRecPtr lsn)
{
	SpinLockAcquire(&MyReplicationSlot->mutex);
	MyReplicationSlot->data.restart_lsn = lsn;
	SpinLockRelease(&MyReplicationSlot->mutex);
	ReplicationSlotMarkDirty();
	ReplicationSlotsComputeRequiredLSN();
}

/*
 * Creates a slot that keeps WAL from lsn on, or, if that is being removed, from
 * the redo of the last checkpoint.
 */
static void
create_slot(const char *name, XLogRecPtr lsn)
{
	XLogRecPtr	reserved;
	XLogSegNo	segno;

	TANDEM_SLOT_CREATE(name, false, RS_EPHEMERAL, false);
	ReplicationSlotReserveWal();
	reserved = MyReplicationSlot->data.restart_lsn;
	if (lsn < reserved)
	{
		set_restart_lsn(lsn);
		XLByteToSeg(lsn, segno, wal_segment_size);
		if (XLogGetLastRemovedSegno() >= segno)
			set_restart_lsn(reserved);
	}
	ReplicationSlotPersist();
	ReplicationSlotRelease();
}

/*
 * Moves a slot.  On disk the old position is kept until the next checkpoint or
 * restartpoint: after a crash it keeps more, never less.
 */
static void
move_slot(const char *name, XLogRecPtr lsn)
{
	TANDEM_SLOT_ACQUIRE(name);
	set_restart_lsn(lsn);
	ReplicationSlotRelease();
}

static void
drop_slot(const char *name, const char *why)
{
	ReplicationSlotDrop(name, true);
	ereport(LOG,
			(errmsg("dropped replication slot \"%s\" because %s", name, why)));
}

/* Bytes of WAL from lsn to the end. */
static uint64
wal_since(XLogRecPtr lsn)
{
	XLogRecPtr	end = RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetFlushRecPtr(NULL);

	return end > lsn ? end - lsn : 0;
}

static bool
over_limit(XLogRecPtr lsn)
{
	return wal_since(lsn) > (uint64) tandem_failback_keep_size * 1024 * 1024;
}

/* ---- a primary ------------------------------------------------------------------------ */

/* Forgets candidates up to and including the i-th. */
static void
forget_candidates(int i)
{
	ncandidates -= i + 1;
	memmove(&candidates[0], &candidates[i + 1], ncandidates * sizeof(Candidate));
}

/* Makes the last checkpoint a candidate, if it is a new one. */
static void
notice_checkpoint(void)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);
	XLogRecPtr	redo = control->checkPointCopy.redo;

	pfree(control);
	if (!crc_ok || redo == newest_redo)
		return;

	if (ncandidates == MAX_CANDIDATES)
	{
		ncandidates--;
		memmove(&candidates[1], &candidates[2], (ncandidates - 1) * sizeof(Candidate));
	}
	candidates[ncandidates].redo = redo;
	candidates[ncandidates].proof = GetFlushRecPtr(NULL);
	ncandidates++;
	newest_redo = redo;
}

/* Says, or takes back, that WAL back to a confirmed checkpoint is not kept. */
static void
set_incomplete(bool incomplete)
{
	bool		changed;

	LWLockAcquire(tandem_guard->lock, LW_EXCLUSIVE);
	changed = tandem_guard->wal_incomplete != incomplete;
	tandem_guard->wal_incomplete = incomplete;
	LWLockRelease(tandem_guard->lock);

	if (changed && incomplete)
		ereport(LOG,
				(errmsg("WAL back to the last checkpoint that failback standbys have confirmed exceeds tandem.failback_keep_size"),
				 errdetail("If this server crashes before they catch up, \"tandem rejoin\" has to fetch WAL from elsewhere, or can't rejoin it."),
				 errhint("Let the standbys catch up, or raise tandem.failback_keep_size.")));
}

static void
run_primary(void)
{
	const TandemStandbyList *list = tandem_failback_standbys_list;
	TandemRetention failback;
	TandemRetention rejoin;
	XLogRecPtr	confirmed;
	int			last = -1;

	/* left from when this server was a standby */
	tandem_retention_state(TANDEM_REJOIN_SLOT, &rejoin);
	if (rejoin.exists && !rejoin.in_use)
	{
		if (tandem_failback_keep_size == 0)
			drop_slot(TANDEM_REJOIN_SLOT, "tandem.failback_keep_size is 0");
		else if (!XLogRecPtrIsInvalid(rejoin.restart_lsn) && over_limit(rejoin.restart_lsn))
			drop_slot(TANDEM_REJOIN_SLOT, "it kept more WAL than tandem.failback_keep_size");
	}

	tandem_retention_state(TANDEM_FAILBACK_SLOT, &failback);
	if (list == NULL || tandem_failback_keep_size == 0)
	{
		if (failback.exists && !failback.active)
			drop_slot(TANDEM_FAILBACK_SLOT,
					  list == NULL ? "tandem.failback_standbys is empty" : "tandem.failback_keep_size is 0");
		ncandidates = 0;
		newest_redo = InvalidXLogRecPtr;
		set_incomplete(false);
		return;
	}
	if (failback.exists && XLogRecPtrIsInvalid(failback.restart_lsn) && !failback.active)
	{
		drop_slot(TANDEM_FAILBACK_SLOT, "the WAL that it kept has been removed");
		failback.exists = false;
	}

	notice_checkpoint();
	confirmed = tandem_confirmed_lsn(list);
	for (int i = 0; i < ncandidates; i++)
	{
		if (candidates[i].proof <= confirmed)
			last = i;
	}

	/* a slot that nobody has used yet claims more than a standby has said */
	if (!failback.exists && tandem_reachable_lsn(list) != PG_UINT64_MAX)
		return;

	if (last >= 0)
	{
		XLogRecPtr	redo = candidates[last].redo;

		if (!failback.exists)
			create_slot(TANDEM_FAILBACK_SLOT, redo);
		else if (redo > failback.restart_lsn)
			move_slot(TANDEM_FAILBACK_SLOT, redo);
		forget_candidates(last);
		set_incomplete(false);
	}
	else if (failback.exists && over_limit(failback.restart_lsn))
	{
		/* the last one stays: the server itself needs WAL from its redo on */
		while (ncandidates > 1 && over_limit(candidates[0].redo))
			forget_candidates(0);
		if (ncandidates > 0 && candidates[0].redo > failback.restart_lsn)
		{
			move_slot(TANDEM_FAILBACK_SLOT, candidates[0].redo);
			set_incomplete(true);
		}
	}
}

/* ---- a standby -------------------------------------------------------------------------- */

static void
run_standby(void)
{
	TandemRetention failback;
	TandemRetention rejoin;
	XLogRecPtr	replayed = GetXLogReplayRecPtr(NULL);

	/* left from when this server was a primary */
	tandem_retention_state(TANDEM_FAILBACK_SLOT, &failback);
	if (failback.exists && !failback.active)
		drop_slot(TANDEM_FAILBACK_SLOT, "this server is a standby");

	tandem_retention_state(TANDEM_REJOIN_SLOT, &rejoin);
	if (rejoin.active)
		return;
	if (tandem_failback_keep_size == 0)
	{
		if (rejoin.exists)
			drop_slot(TANDEM_REJOIN_SLOT, "tandem.failback_keep_size is 0");
		return;
	}
	if (rejoin.exists && XLogRecPtrIsInvalid(rejoin.restart_lsn))
	{
		drop_slot(TANDEM_REJOIN_SLOT, "the WAL that it kept has been removed");
		rejoin.exists = false;
	}
	if (!rejoin.exists)
		create_slot(TANDEM_REJOIN_SLOT, replayed);
	else if (rejoin.restart_lsn != replayed)
	{
		/*
		 * Promotion may have ended recovery meanwhile.  What was read before
		 * is then still not past the fork.
		 */
		move_slot(TANDEM_REJOIN_SLOT, replayed);
	}
}

void
tandem_retention_run(void)
{
	if (RecoveryInProgress())
		run_standby();
	else
		run_primary();
}
