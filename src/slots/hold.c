/*-------------------------------------------------------------------------
 *
 * hold.c
 *	  Hold slots: catalog rows that the primary keeps for a standby.
 *
 * A slot on a standby decodes with catalog rows as they were at its
 * catalog_xmin.  The primary's own slot moves on, vacuum on the primary
 * removes the rows, and replay removes them on the standby.
 * hot_standby_feedback is no protection: it is not saved, and feedback in
 * flight overwrites a lowered value.  So each standby has a hold of its own
 * on the primary: the physical slot tandem_hold_<its primary_slot_name> with
 * a catalog_xmin, without WAL and without a walsender.
 *
 * States of a hold, all transitions in tandem_hold_update and release_hold:
 *
 *	 none ----- first report while logical slots exist -----> held at H
 *	 held at H -- report with a younger saved xmin ---------> held at H' > H
 *	 held at H -- an older logical slot has appeared -------> held at H' < H
 *	 held ------- silence for tandem.hold_timeout,
 *	              tandem.drop_hold(), or no logical slot ----> none
 *
 * Invariant: what tandem_hold_update returns is effective and saved.  A
 * standby whose slot has catalog_xmin C is safe while the hold is at H <= C:
 *
 * - H is set to the minimum L of the logical slots' effective_catalog_xmin
 *   while ReplicationSlotControlLock is held exclusively.  Rows that L needs
 *   exist then, and L never falls behind what vacuum has removed, since a new
 *   slot's xmin is no older than the horizon in force.
 * - So if the hold has been lost and made anew, H tells: either H <= C, then
 *   nothing that C needs was removable in between, or the standby sees H > C
 *   and gives up its slot.
 *
 * Order of changes: lowering and first setting go effective, save, reply;
 * moving forward goes data, save, effective (as LogicalConfirmReceivedLocation
 * does), and only to what the standby reports as saved.
 *
 * Called by source.c (each cycle of a standby) and by the worker (expiry).
 *
 * src/slots/hold.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/version.h"
#include "slots/slots.h"

PG_FUNCTION_INFO_V1(tandem_drop_hold);

/* When a standby has last reported; all fields under the mutex. */
typedef struct HoldReport
{
	NameData	hold;			/* empty = free */
	TimestampTz reported;
} HoldReport;

typedef struct HoldShared
{
	slock_t		mutex;
	int			count;
	HoldReport	reports[FLEXIBLE_ARRAY_MEMBER];
} HoldShared;

static HoldShared *hold_shared = NULL;

Size
tandem_hold_shmem_size(void)
{
	return add_size(offsetof(HoldShared, reports),
					mul_size(max_replication_slots, sizeof(HoldReport)));
}

/* Called with AddinShmemInitLock held. */
void
tandem_hold_shmem_startup(void)
{
	bool		found;

	hold_shared = ShmemInitStruct("pg_tandem holds", tandem_hold_shmem_size(),
								  &found);
	if (!found)
	{
		memset(hold_shared, 0, tandem_hold_shmem_size());
		SpinLockInit(&hold_shared->mutex);
		hold_shared->count = max_replication_slots;
	}
}

/*
 * Remembers that this hold's standby has reported now.  With only_if_new,
 * keeps an earlier report.  Returns the time of the last report.
 */
static TimestampTz
note_report(const char *hold, bool only_if_new)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz result = now;
	HoldReport *entry = NULL;
	int			i;

	SpinLockAcquire(&hold_shared->mutex);
	for (i = 0; i < hold_shared->count; i++)
	{
		HoldReport *r = &hold_shared->reports[i];

		if (strcmp(NameStr(r->hold), hold) == 0)
		{
			entry = r;
			break;
		}
		if (entry == NULL && NameStr(r->hold)[0] == '\0')
			entry = r;
	}
	if (entry)
	{
		if (strcmp(NameStr(entry->hold), hold) != 0)
		{
			strlcpy(NameStr(entry->hold), hold, NAMEDATALEN);
			entry->reported = now;
		}
		else if (!only_if_new)
			entry->reported = now;
		result = entry->reported;
	}
	SpinLockRelease(&hold_shared->mutex);
	return result;
}

static void
forget_report(const char *hold)
{
	int			i;

	SpinLockAcquire(&hold_shared->mutex);
	for (i = 0; i < hold_shared->count; i++)
	{
		if (strcmp(NameStr(hold_shared->reports[i].hold), hold) == 0)
			memset(&hold_shared->reports[i], 0, sizeof(HoldReport));
	}
	SpinLockRelease(&hold_shared->mutex);
}

/* Last report of the standby with this primary_slot_name; 0 = none known. */
TimestampTz
tandem_hold_reported(const char *standby)
{
	NameData	hold;
	TimestampTz result = 0;
	int			i;

	if (hold_shared == NULL ||
		strlen(TANDEM_HOLD_PREFIX) + strlen(standby) >= NAMEDATALEN)
		return 0;
	tandem_hold_name(standby, &hold);
	SpinLockAcquire(&hold_shared->mutex);
	for (i = 0; i < hold_shared->count; i++)
	{
		if (strcmp(NameStr(hold_shared->reports[i].hold), NameStr(hold)) == 0)
			result = hold_shared->reports[i].reported;
	}
	SpinLockRelease(&hold_shared->mutex);
	return result;
}

/* Name of a standby's hold; raises an error if no slot can have that name. */
void
tandem_hold_name(const char *standby, Name name)
{
	if (strlen(standby) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the standby has no primary_slot_name"),
				 errhint("Create a physical replication slot on the primary and set primary_slot_name to it on the standby.")));
	if (strlen(TANDEM_HOLD_PREFIX) + strlen(standby) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("primary_slot_name \"%s\" is too long for a hold slot to be named after it",
						standby),
				 errhint("Use a name of at most %d characters.",
						 (int) (NAMEDATALEN - 1 - strlen(TANDEM_HOLD_PREFIX)))));
	MemSet(name, 0, sizeof(NameData));
	snprintf(NameStr(*name), NAMEDATALEN, "%s%s", TANDEM_HOLD_PREFIX, standby);
	ReplicationSlotValidateName(NameStr(*name), ERROR);
}

/*
 * Oldest effective_catalog_xmin of the logical slots; *any tells whether
 * there is one.  The caller holds ReplicationSlotControlLock.
 */
static TransactionId
logical_slots_xmin(bool *any)
{
	TransactionId oldest = InvalidTransactionId;
	int			i;

	*any = false;
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *s = &ReplicationSlotCtl->replication_slots[i];
		TransactionId xmin;
		bool		invalid;

		if (!s->in_use || !SlotIsLogical(s))
			continue;
		SpinLockAcquire(&s->mutex);
		xmin = s->effective_catalog_xmin;
		invalid = XLogRecPtrIsInvalid(s->data.restart_lsn);
		SpinLockRelease(&s->mutex);

		if (invalid)
			continue;
		*any = true;
		if (TransactionIdIsValid(xmin) &&
			(!TransactionIdIsValid(oldest) ||
			 TransactionIdPrecedes(xmin, oldest)))
			oldest = xmin;
	}
	return oldest;
}

/* Acquires the hold, without waiting; false if there is none. */
static bool
acquire_hold(const char *hold)
{
	if (SearchNamedReplicationSlot(hold, true) == NULL)
		return false;
	TANDEM_SLOT_ACQUIRE(hold);
	Assert(MyReplicationSlot != NULL);
	if (SlotIsLogical(MyReplicationSlot) ||
		!XLogRecPtrIsInvalid(MyReplicationSlot->data.restart_lsn))
	{
		ReplicationSlotRelease();
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("replication slot \"%s\" is not a hold", hold),
				 errdetail("pg_tandem uses this name for what it keeps for a standby, but this slot was made for something else."),
				 errhint("Drop the slot or give it another name.")));
	}
	return true;
}

/* Moves the acquired hold to xmin, which is younger than what it holds. */
static void
move_hold_forward(TransactionId xmin)
{
	ReplicationSlot *slot = MyReplicationSlot;

	SpinLockAcquire(&slot->mutex);
	slot->data.catalog_xmin = xmin;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotMarkDirty();
	ReplicationSlotSave();
	SpinLockAcquire(&slot->mutex);
	slot->effective_catalog_xmin = xmin;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotsComputeRequiredXmin(false);
}

/*
 * Makes sure that the hold of a standby exists, moves it as far as the
 * standby's saved slots allow (saved_xmin: the oldest catalog_xmin among
 * them, invalid if it has none), and returns what is held now, effective and
 * saved.  Invalid if nothing needs holding, since no logical slot exists.
 *
 * Takes ReplicationSlotControlLock; must not hold a slot.  Raises an error if
 * the hold is in use by another session or can't be created.
 */
TransactionId
tandem_hold_update(const char *standby, TransactionId saved_xmin)
{
	NameData	hold;
	volatile bool created = false;
	bool		any;
	volatile bool lowered = false;
	TransactionId oldest;
	TransactionId held;

	tandem_hold_name(standby, &hold);
	if (MyReplicationSlot != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session already uses replication slot \"%s\"",
						NameStr(MyReplicationSlot->data.name))));

	if (!acquire_hold(NameStr(hold)))
	{
		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		(void) logical_slots_xmin(&any);
		LWLockRelease(ReplicationSlotControlLock);
		if (!any)
			return InvalidTransactionId;
		TANDEM_SLOT_CREATE(NameStr(hold), false, RS_EPHEMERAL, false);
		created = true;
	}

	PG_TRY();
	{
		ReplicationSlot *slot = MyReplicationSlot;

		Assert(slot != NULL);
		LWLockAcquire(ReplicationSlotControlLock, LW_EXCLUSIVE);
		oldest = logical_slots_xmin(&any);
		held = slot->effective_catalog_xmin;
		if (TransactionIdIsValid(oldest) &&
			(!TransactionIdIsValid(held) ||
			 TransactionIdPrecedes(oldest, held)))
		{
			SpinLockAcquire(&slot->mutex);
			slot->effective_catalog_xmin = oldest;
			slot->data.catalog_xmin = oldest;
			SpinLockRelease(&slot->mutex);
			lowered = true;
		}
		LWLockRelease(ReplicationSlotControlLock);

		if (lowered)
		{
			ReplicationSlotsComputeRequiredXmin(false);
			if (created)
				ReplicationSlotPersist();
			else
			{
				ReplicationSlotMarkDirty();
				ReplicationSlotSave();
			}
			created = false;
		}
		else if (TransactionIdIsValid(oldest))
		{
			TransactionId target = oldest;

			if (TransactionIdIsValid(saved_xmin) &&
				TransactionIdPrecedes(saved_xmin, target))
				target = saved_xmin;
			if (TransactionIdFollows(target, held))
				move_hold_forward(target);
		}
		held = slot->effective_catalog_xmin;
	}
	PG_CATCH();
	{
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* an ephemeral slot goes away with its release */
	ReplicationSlotRelease();
	if (created)
		return InvalidTransactionId;

	if (!any)
	{
		/* the last logical slot is gone: nothing to hold back vacuum for */
		ReplicationSlotDrop(NameStr(hold), true);
		forget_report(NameStr(hold));
		return InvalidTransactionId;
	}
	note_report(NameStr(hold), false);
	return held;
}

/*
 * Drops holds whose standby has been silent for tandem.hold_timeout.  A
 * standby known from before this server's start gets the whole time again.
 * Called by the worker of a primary, in a transaction.
 */
void
tandem_hold_expire(void)
{
	NameData   *holds;
	int			nholds = 0;
	int			i;

	holds = palloc(max_replication_slots * sizeof(NameData));
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *s = &ReplicationSlotCtl->replication_slots[i];

		if (s->in_use && SlotIsPhysical(s) &&
			XLogRecPtrIsInvalid(s->data.restart_lsn) &&
			strncmp(NameStr(s->data.name), TANDEM_HOLD_PREFIX,
					strlen(TANDEM_HOLD_PREFIX)) == 0)
			holds[nholds++] = s->data.name;
	}
	LWLockRelease(ReplicationSlotControlLock);

	for (i = 0; i < nholds; i++)
	{
		const char *hold = NameStr(holds[i]);
		TimestampTz reported = note_report(hold, true);

		if (tandem_hold_timeout <= 0 ||
			!TimestampDifferenceExceeds(reported, GetCurrentTimestamp(),
										tandem_hold_timeout < INT_MAX / 1000 ?
											tandem_hold_timeout * 1000 :
											INT_MAX))
			continue;

		ReplicationSlotDrop(hold, true);
		forget_report(hold);
		ereport(LOG,
				(errmsg("dropped hold \"%s\": its standby has not reported for tandem.hold_timeout",
						hold),
				 errdetail("The last report was at %s.", timestamptz_to_str(reported)),
				 errhint("If the standby comes back, its failover slots become ready again by themselves.")));
	}
	pfree(holds);
}

/*
 * SQL function tandem.drop_hold(standby): ends a hold at once.
 */
Datum
tandem_drop_hold(PG_FUNCTION_ARGS)
{
	char	   *standby = text_to_cstring(PG_GETARG_TEXT_PP(0));
	NameData	hold;

	tandem_require_shmem();
	tandem_check_sql_version();

	/* take the hold's own name as well: views show both */
	if (strncmp(standby, TANDEM_HOLD_PREFIX, strlen(TANDEM_HOLD_PREFIX)) == 0)
		standby += strlen(TANDEM_HOLD_PREFIX);
	tandem_hold_name(standby, &hold);

	if (!acquire_hold(NameStr(hold)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no hold for standby \"%s\" on this server", standby),
				 errhint("Holds are listed in the view tandem.standbys of the primary.")));
	ReplicationSlotRelease();
	ReplicationSlotDrop(NameStr(hold), true);
	forget_report(NameStr(hold));
	ereport(LOG,
			(errmsg("dropped hold \"%s\" on request", NameStr(hold))));
	PG_RETURN_VOID();
}
