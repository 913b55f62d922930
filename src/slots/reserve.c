/*-------------------------------------------------------------------------
 *
 * reserve.c
 *	  WAL and files of slots that are not proven yet: reserved, complete, fetched.
 *
 * Reserving keeps what a restartpoint would remove that begins later.  One that
 * has begun before removes WAL and files below its redo pointer all the same,
 * and all files if it found no logical slot.  Hence the barrier: one more
 * restartpoint is requested, and whatever ran before it has ended with it.
 *
 *	 barrier_lsn		from here on, WAL has been reserved since before the last
 *						barrier without a break; invalid if nothing has
 *	 barrier_pending	the same for the barrier under way
 *	 files_kept			no restartpoint can be running that found no logical slot
 *
 * src/slots/reserve.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"

#include "common/controldata_utils.h"
#include "common/remote.h"
#include "common/settings.h"
#include "slots/cycle.h"

#define FETCH_SLICE (128 * 1024 * 1024) /* bytes of WAL fetched in one cycle */

static XLogRecPtr barrier_lsn = InvalidXLogRecPtr;
static XLogRecPtr barrier_pending = InvalidXLogRecPtr;
static bool files_kept = false;


/*
 * Would keeping WAL from restart on exceed what this standby may keep?  Then
 * the entry (if not null) says so.  A reserve beyond that would be invalidated
 * by the next restartpoint, which ends the process that holds it.
 */
bool
tandem_wal_limit_exceeded(Cycle *cycle, XLogRecPtr restart, TandemSlotEntry *entry)
{
	XLogSegNo	segno;
	XLogSegNo	current;
	uint64		kept;
	uint64		missing;

	XLByteToSeg(restart, segno, wal_segment_size);
	XLByteToSeg(cycle->replayed, current, wal_segment_size);
	kept = (current >= segno ? current - segno + 1 : 0) *
		(uint64) wal_segment_size;
	missing = (cycle->oldest > segno ? cycle->oldest - segno : 0) *
		(uint64) wal_segment_size;

	if (max_slot_wal_keep_size_mb >= 0 &&
		kept > (uint64) max_slot_wal_keep_size_mb * 1024 * 1024)
	{
		if (entry)
			tandem_pending(entry, "Raise max_slot_wal_keep_size on this standby, or let the slot's consumer catch up.",
						   "it needs %llu MB of WAL, max_slot_wal_keep_size of this standby is %d MB",
						   (unsigned long long) (kept / (1024 * 1024)),
						   max_slot_wal_keep_size_mb);
		return true;
	}
	if (missing > (uint64) tandem_wal_fetch_limit * 1024 * 1024)
	{
		if (entry)
			tandem_pending(entry, "Raise tandem.wal_fetch_limit on this standby, or let the slot's consumer catch up.",
						   "%llu MB of WAL from before this standby are needed, tandem.wal_fetch_limit is %d MB",
						   (unsigned long long) (missing / (1024 * 1024)),
						   tandem_wal_fetch_limit);
		return true;
	}
	return false;
}

/* Reserves from lsn on; false, with the error logged, if that fails. */
static bool
try_reserve(XLogRecPtr lsn)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool reserved = false;

	PG_TRY();
	{
		tandem_reserve(lsn);
		reserved = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		LWLockReleaseAll();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
	}
	PG_END_TRY();
	return reserved;
}

/*
 * Keeps WAL and files from lsn on as well: a slot is about to be dropped and
 * made anew.
 */
void
tandem_reserve_also(Cycle *cycle, XLogRecPtr lsn)
{
	if (cycle->reserved && cycle->reserve <= lsn)
		return;
	if (try_reserve(lsn))
	{
		cycle->reserve = lsn;
		cycle->reserved = true;
	}
}

/*
 * Is a restartpoint under way that may be removing files?  It sets the redo
 * pointer in shared memory first, removes snapshot and mapping files, and
 * then writes the control file.
 */
static bool
restartpoint_running(void)
{
	ControlFileData *control;
	bool		sound;
	bool		running;

	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &sound);
	running = !sound || control->checkPointCopy.redo != GetRedoRecPtr();
	LWLockRelease(ControlFileLock);
	pfree(control);
	return running;
}

/*
 * Reserves WAL and files for the slots that don't exist here yet, before
 * anything of them is installed.
 */
void
tandem_reserve_for_new_slots(Cycle *cycle)
{
	int			i;

	cycle->reserve = InvalidXLogRecPtr;
	if (cycle->wrong_timeline || wal_level < WAL_LEVEL_LOGICAL)
		return;
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];
		TandemLocalSlot local;
		SlotMemory *m = tandem_slot_memory(NameStr(slot->name));
		XLogRecPtr	lsn = slot->restart_lsn;

		m->seen = tandem_cycle_number;
		if ((slot->flags & TANDEM_SLOT_INVALID) ||
			tandem_local_slot(NameStr(slot->name), &local) ||
			tandem_wal_limit_exceeded(cycle, lsn, NULL))
			continue;
		if (!XLogRecPtrIsInvalid(cycle->reserve) && cycle->reserve <= lsn)
			continue;
		cycle->reserve = lsn;
	}

	/*
	 * A restartpoint that found no logical slot removes all files, also those
	 * younger than itself.
	 */
	if (!tandem_any_logical_slot())
		files_kept = false;

	if (XLogRecPtrIsInvalid(cycle->reserve))
	{
		tandem_unreserve();
		barrier_lsn = InvalidXLogRecPtr;
		barrier_pending = InvalidXLogRecPtr;
	}
	else if (tandem_free_slots() > 1 ||
			 tandem_reserve_exists())
	{
		cycle->reserved = try_reserve(cycle->reserve);

		/* what lies below has not been kept all the time since the barrier */
		if (!XLogRecPtrIsInvalid(barrier_lsn))
			barrier_lsn = Max(barrier_lsn, cycle->reserve);
		if (!XLogRecPtrIsInvalid(barrier_pending))
			barrier_pending = Max(barrier_pending, cycle->reserve);
	}
	if (!files_kept && tandem_any_logical_slot())
		files_kept = !restartpoint_running();
}

/*
 * Can the slot's WAL be relied on?  Otherwise the entry says what is missing
 * and the cycle what to do about it.
 */
bool
tandem_wal_complete(Cycle *cycle, XLogRecPtr restart, TandemSlotEntry *entry)
{
	XLogSegNo	segno;
	uint64		missing;
	bool		barrier;

	XLByteToSeg(restart, segno, wal_segment_size);
	if (tandem_wal_limit_exceeded(cycle, restart, entry))
		return false;
	if (segno <= XLogGetLastRemovedSegno())
	{
		tandem_pending(entry, "Restart this standby; then the WAL can be fetched from the primary.",
					   "WAL from %X/%X on has been removed here, and this server remembers that until its next start",
					   LSN_FORMAT_ARGS(restart));
		return false;
	}
	if (segno < cycle->oldest)
	{
		missing = (cycle->oldest - segno) * (uint64) wal_segment_size;
		tandem_pending(entry, NULL,
					   "fetching %llu MB of WAL from before this standby",
					   (unsigned long long) (missing / (1024 * 1024)));
	}

	/*
	 * A restartpoint that began before the reservation may still remove WAL
	 * and files below its redo pointer, or all files.
	 */
	barrier = restart < GetRedoRecPtr() &&
		(XLogRecPtrIsInvalid(barrier_lsn) || restart < barrier_lsn);
	if (barrier || !files_kept)
	{
		if (!cycle->reserved)
			tandem_pending(entry, "Raise max_replication_slots on this standby and restart it.",
						   "no replication slot of this standby could be used to reserve its WAL");
		else if (segno >= cycle->oldest)
			tandem_pending(entry, NULL,
						   "waiting for a restartpoint that may have begun before its WAL was reserved");
		if (cycle->reserved && XLogRecPtrIsInvalid(barrier_pending) &&
			tandem_helper_start(TANDEM_HELPER_BARRIER, InvalidOid, NULL))
			barrier_pending = cycle->reserve;
		return false;
	}
	if (segno >= cycle->oldest)
		return true;
	if (XLogRecPtrIsInvalid(cycle->fetch_from) || restart < cycle->fetch_from)
		cycle->fetch_from = restart;
	entry->waits_for_wal = true;
	return false;
}

/*
 * Fetches a slice of the WAL that slots wait for.  An error is logged once and
 * becomes the reason of those slots; the others don't suffer from it.
 */
void
tandem_fetch_missing_wal(Cycle *cycle, MemoryContext context)
{
	static char last_error[TANDEM_TEXT_LEN];
	XLogSegNo	from;
	int			i;

	XLByteToSeg(cycle->fetch_from, from, wal_segment_size);
	PG_TRY();
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		cycle->fetched = tandem_fetch_wal(tandem_primary(), cycle->replay_timeline, from,
										  &cycle->oldest, FETCH_SLICE);
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		last_error[0] = '\0';
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (strcmp(edata->message, last_error) != 0)
		{
			EmitErrorReport();
			strlcpy(last_error, edata->message, sizeof(last_error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(context);
		for (i = 0; i < cycle->nentries; i++)
		{
			if (cycle->entries[i].waits_for_wal)
				tandem_pending(&cycle->entries[i],
							   edata->hint ? edata->hint : "The next cycle tries again; see this server's log if it stays.",
							   "%s", edata->message);
		}
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

/* The helper has come back from a barrier. */
void
tandem_barrier_ended(bool succeeded)
{
	if (succeeded && !XLogRecPtrIsInvalid(barrier_pending))
	{
		barrier_lsn = barrier_pending;
		files_kept = true;
	}
	barrier_pending = InvalidXLogRecPtr;
}
