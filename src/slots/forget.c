/*-------------------------------------------------------------------------
 *
 * forget.c
 *	  Leaving: drops what is ours on this server.
 *
 * A standby can't run DROP EXTENSION; that arrives with replication and
 * removes only catalog rows.  What else is ours there are the slots we made
 * and the folder pg_tandem in the data directory, and only the worker may
 * touch them: it has the list.  So tandem.forget() asks the worker, the way
 * tandem.sync_slots() asks for a cycle.  tandem.sync_slots has to be off, or
 * the next cycle would make everything anew.
 *
 * On a primary nothing of ours is left but the folder (its slots became its
 * own at promotion); the backend removes it, since a primary's worker looks
 * at it only when it starts.
 *
 * src/slots/forget.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "common/settings.h"
#include "common/statefile.h"
#include "slots/slots.h"

/* Drops one slot of ours in a transaction of its own; raises errors. */
static void
forget_slot(const TandemLocalSlot *local)
{
	TandemLocalSlot now;

	StartTransactionCommand();
	/* replay of DROP DATABASE must not find the slot in use */
	LockSharedObject(DatabaseRelationId, local->database, 0, AccessShareLock);
	if (tandem_local_slot(NameStr(local->name), &now))
	{
		tandem_local_drop(NameStr(local->name));
		ereport(LOG,
				(errmsg("dropped failover slot \"%s\" on this standby: tandem.forget() was called",
						NameStr(local->name))));
	}
	CommitTransactionCommand();
}

/*
 * Called by the worker of a standby, outside a transaction.  Drops what can
 * be dropped; raises nothing, but leaves the reason in shared memory.
 */
void
tandem_forget_run(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "tandem forget",
												  ALLOCSET_DEFAULT_SIZES);
	char		error[TANDEM_TEXT_LEN] = "";
	TandemLocalSlot *locals;
	int			nlocals;
	volatile int forgotten = 0;
	int			i;

	MemoryContextSwitchTo(context);

	/* the caller's session may have seen a reload that hasn't come here yet */
	if (tandem_sync_slots_enabled)
		ProcessConfigFile(PGC_SIGHUP);

	tandem_helper_stop();
	tandem_cycle_disconnect();
	tandem_unreserve();

	locals = tandem_local_slots(&nlocals);
	for (i = 0; i <= nlocals; i++)
	{
		PG_TRY();
		{
			if (i == nlocals)
			{
				/* the list first: a folder left behind must not claim a slot */
				if (error[0])
					tandem_owned_save();
				else
				{
					tandem_owned_discard_all();
					tandem_statefile_remove_all();
				}
			}
			else if (tandem_owned(NameStr(locals[i].name)) != NULL)
			{
				forget_slot(&locals[i]);
				tandem_owned_remove(NameStr(locals[i].name));
				forgotten++;
			}
		}
		PG_CATCH();
		{
			ErrorData  *edata;

			HOLD_INTERRUPTS();
			MemoryContextSwitchTo(context);
			edata = CopyErrorData();
			EmitErrorReport();
			FlushErrorState();
			strlcpy(error, edata->message, sizeof(error));
			if (IsTransactionState())
				AbortCurrentTransaction();
			LWLockReleaseAll();
			if (MyReplicationSlot != NULL)
				ReplicationSlotRelease();
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();
		MemoryContextSwitchTo(context);
	}

	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->nentries = 0;
	tandem_slots_shared->forgotten = forgotten;
	strlcpy(tandem_slots_shared->forget_error, error, TANDEM_TEXT_LEN);
	LWLockRelease(tandem_slots_shared->lock);

	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}

/* Raises an error while the next cycle would make everything anew. */
void
tandem_slots_check_forget(void)
{
	if (RecoveryInProgress() && tandem_sync_slots_enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("failover slots are being synchronized"),
				 errhint("First set tandem.sync_slots to off on this standby and reload it.")));
}

/*
 * Drops our slots on this standby and our folder on any server; returns the
 * number of slots.
 */
int
tandem_slots_forget(void)
{
	char		error[TANDEM_TEXT_LEN];
	int			forgotten;

	if (!RecoveryInProgress())
	{
		tandem_statefile_remove_all();
		return 0;
	}
	tandem_slots_check_forget();

	tandem_request_cycle(true);
	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	forgotten = tandem_slots_shared->forgotten;
	strlcpy(error, tandem_slots_shared->forget_error, sizeof(error));
	LWLockRelease(tandem_slots_shared->lock);
	if (error[0])
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("not all of pg_tandem could be removed from this standby: %s", error),
				 errhint("End the session that uses the slot and call tandem.forget() again.")));
	return forgotten;
}
