/*-------------------------------------------------------------------------
 *
 * local.c
 *	  Creating, moving and dropping a slot on the standby, in durable order.
 *
 * States of a local slot of ours:
 *
 *	 (none) -- tandem_local_create --> ephemeral --> persistent = proven
 *	 persistent -- tandem_local_move --> persistent, further on
 *	 persistent -- tandem_local_drop --> (none)
 *
 * "Ephemeral" lasts only within tandem_local_create: the slot reserves WAL and
 * snapshot files, then both are checked, then it is made persistent.  An error
 * or a crash in between leaves nothing.
 *
 * Order of a move: data, save, effective values.  A crash after "data" is
 * harmless: data not saved is gone.  A restartpoint saves dirty slots first
 * and then removes files below the restart_lsn in memory, so restart_lsn is
 * never left to it; confirmed_flush is, as in core.
 *
 * Locks: the caller holds a lock on the slot's database, since replay of DROP
 * DATABASE raises an error, fatal for the standby, when it finds a slot of
 * that database in use.
 *
 * The reserve is one temporary logical slot of the worker, in the worker's
 * own database.  It keeps WAL and files for slots that aren't proven yet.
 *
 * src/slots/local.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"

#include "common/compat.h"
#include "slots/slots.h"

/* Copies a logical slot.  Caller holds ReplicationSlotControlLock. */
static bool
copy_local(ReplicationSlot *s, TandemLocalSlot *copy)
{
	ReplicationSlotPersistentData data;
	TransactionId xmin;

	if (!s->in_use || !SlotIsLogical(s))
		return false;
	SpinLockAcquire(&s->mutex);
	data = s->data;
	xmin = s->effective_catalog_xmin;
	SpinLockRelease(&s->mutex);

	/* temporary ones are the reserve and a helper's, or somebody's session's */
	if (data.persistency != RS_PERSISTENT)
		return false;
	copy->name = data.name;
	copy->database = data.database;
	copy->plugin = data.plugin;
	copy->two_phase = data.two_phase;
	copy->invalid = XLogRecPtrIsInvalid(data.restart_lsn);
	copy->restart_lsn = data.restart_lsn;
	copy->confirmed_lsn = data.confirmed_flush;
	copy->catalog_xmin = xmin;
	return true;
}

/* All persistent logical slots of this server; palloc'd. */
TandemLocalSlot *
tandem_local_slots(int *count)
{
	TandemLocalSlot *slots = palloc((max_replication_slots + 1) * sizeof(TandemLocalSlot));
	int			i;

	*count = 0;
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		if (copy_local(&ReplicationSlotCtl->replication_slots[i],
					   &slots[*count]))
			(*count)++;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return slots;
}

/* One persistent logical slot by name; false if there is none. */
bool
tandem_local_slot(const char *name, TandemLocalSlot *copy)
{
	ReplicationSlot *s;
	bool		found;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	s = SearchNamedReplicationSlot(name, false);
	found = s != NULL && copy_local(s, copy);
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

/* Is there a logical slot, of whatever persistency, that keeps files? */
bool
tandem_any_logical_slot(void)
{
	bool		found = false;
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots && !found; i++)
	{
		ReplicationSlot *s = &ReplicationSlotCtl->replication_slots[i];

		if (!s->in_use || !SlotIsLogical(s))
			continue;
		SpinLockAcquire(&s->mutex);
		found = !XLogRecPtrIsInvalid(s->data.restart_lsn);
		SpinLockRelease(&s->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

/* How many more slots this server can have. */
int
tandem_free_slots(void)
{
	int			n = 0;
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		if (!ReplicationSlotCtl->replication_slots[i].in_use)
			n++;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return n;
}

/*
 * Creates a proven slot.  restart_lsn may be older than the primary's.  With
 * need_file, a snapshot file must lie at restart_lsn.
 *
 * The slot is ephemeral until everything has been checked with the reservation
 * in force.  Raises an error, leaving nothing, if a check fails.
 */
void
tandem_local_create(const TandemRemoteSlot *remote, Oid database,
					XLogRecPtr restart_lsn, bool need_file)
{
	ReplicationSlot *slot;
	XLogSegNo	segno;

	Assert(MyReplicationSlot == NULL);
	TANDEM_SLOT_CREATE(NameStr(remote->name), true, RS_EPHEMERAL,
						  (remote->flags & TANDEM_SLOT_TWO_PHASE) != 0);
	slot = MyReplicationSlot;

	SpinLockAcquire(&slot->mutex);
	slot->data.database = database;
	slot->data.plugin = remote->plugin;
	slot->data.restart_lsn = restart_lsn;
	slot->data.confirmed_flush = remote->confirmed_lsn;
	slot->data.two_phase_at = remote->two_phase_at;
	slot->data.catalog_xmin = remote->catalog_xmin;
	slot->effective_catalog_xmin = remote->catalog_xmin;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotsComputeRequiredXmin(false);
	ReplicationSlotsComputeRequiredLSN();

	/* now nothing new is removed: is all still there? */
	XLByteToSeg(restart_lsn, segno, wal_segment_size);
	if (segno <= XLogGetLastRemovedSegno())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("WAL from %X/%X on has been removed meanwhile",
						LSN_FORMAT_ARGS(restart_lsn))));
	if (need_file && !tandem_snapshot_exists(restart_lsn))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the snapshot file at %X/%X has been removed meanwhile",
						LSN_FORMAT_ARGS(restart_lsn))));

	PG_TRY();
	{
		ReplicationSlotPersist();
	}
	PG_CATCH();
	{
		/* not saved, so not to be kept: releasing an ephemeral slot drops it */
		SpinLockAcquire(&slot->mutex);
		slot->data.persistency = RS_EPHEMERAL;
		SpinLockRelease(&slot->mutex);
		PG_RE_THROW();
	}
	PG_END_TRY();
	ReplicationSlotRelease();
}

/*
 * Moves a proven slot: confirmed_flush and two_phase to what the primary has,
 * restart_lsn to the given one and catalog_xmin along with it (0: both stay).
 * Never moves backwards.  Returns whether the slot had to be saved.
 */
bool
tandem_local_move(const TandemRemoteSlot *remote, XLogRecPtr restart_lsn)
{
	ReplicationSlot *slot;
	bool		two_phase = (remote->flags & TANDEM_SLOT_TWO_PHASE) != 0;
	volatile bool save = false;
	volatile bool xmin_moved = false;
	ReplicationSlotPersistentData before;

	TANDEM_SLOT_ACQUIRE(NameStr(remote->name));
	slot = MyReplicationSlot;

	SpinLockAcquire(&slot->mutex);
	before = slot->data;
	if (remote->confirmed_lsn > slot->data.confirmed_flush)
		slot->data.confirmed_flush = remote->confirmed_lsn;
	if (two_phase && !slot->data.two_phase)
	{
		slot->data.two_phase = true;
		slot->data.two_phase_at = remote->two_phase_at;
		save = true;
	}
	if (restart_lsn > slot->data.restart_lsn)
	{
		slot->data.restart_lsn = restart_lsn;
		save = true;
	}
	if (!XLogRecPtrIsInvalid(restart_lsn) &&
		TransactionIdIsValid(remote->catalog_xmin) &&
		TransactionIdFollows(remote->catalog_xmin, slot->effective_catalog_xmin))
	{
		slot->data.catalog_xmin = remote->catalog_xmin;
		xmin_moved = true;
		save = true;
	}
	SpinLockRelease(&slot->mutex);

	ReplicationSlotMarkDirty();
	if (save)
	{
		PG_TRY();
		{
			ReplicationSlotSave();
		}
		PG_CATCH();
		{
			/* a restartpoint would remove files on the strength of this */
			SpinLockAcquire(&slot->mutex);
			slot->data.restart_lsn = before.restart_lsn;
			slot->data.catalog_xmin = before.catalog_xmin;
			SpinLockRelease(&slot->mutex);
			PG_RE_THROW();
		}
		PG_END_TRY();
		if (xmin_moved)
		{
			SpinLockAcquire(&slot->mutex);
			slot->effective_catalog_xmin = slot->data.catalog_xmin;
			SpinLockRelease(&slot->mutex);
			ReplicationSlotsComputeRequiredXmin(false);
		}
		ReplicationSlotsComputeRequiredLSN();
	}
	ReplicationSlotRelease();
	return save;
}

/* Drops a slot of ours; an error if somebody uses it. */
void
tandem_local_drop(const char *name)
{
	ReplicationSlotDrop(name, true);
}

/*
 * Keeps WAL and files from lsn on for slots that aren't proven yet.  Moves an
 * existing reserve, in either direction.
 */
void
tandem_reserve(XLogRecPtr lsn)
{
	ReplicationSlot *slot;

	Assert(MyReplicationSlot == NULL);
	if (tandem_reserve_exists())
		TANDEM_SLOT_ACQUIRE(TANDEM_RESERVE_SLOT);
	else
		TANDEM_SLOT_CREATE(TANDEM_RESERVE_SLOT, true, RS_TEMPORARY, false);
	slot = MyReplicationSlot;
	SpinLockAcquire(&slot->mutex);
	slot->data.restart_lsn = lsn;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotsComputeRequiredLSN();
	ReplicationSlotRelease();
}

void
tandem_unreserve(void)
{
	if (tandem_reserve_exists())
		ReplicationSlotDrop(TANDEM_RESERVE_SLOT, true);
}

/* Has this process a reserve?  A slot of that name may be somebody's. */
bool
tandem_reserve_exists(void)
{
	ReplicationSlot *slot;
	bool		ours;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	slot = SearchNamedReplicationSlot(TANDEM_RESERVE_SLOT, false);
	ours = slot != NULL && slot->data.persistency == RS_TEMPORARY &&
		slot->active_pid == MyProcPid;
	LWLockRelease(ReplicationSlotControlLock);
	return ours;
}
