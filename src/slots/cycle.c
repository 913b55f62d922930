/*-------------------------------------------------------------------------
 *
 * cycle.c
 *	  One cycle of the slot sync worker on a standby.
 *
 * Invariant: a persistent slot of ours on the standby is a proven slot.  Never
 * proven: there is none.  Disproved (WAL, snapshot file or hold lost): dropped
 * at once and made anew.  Primary unreachable: the last proof stays valid and
 * its age is shown.  So nothing is left for promotion to decide.
 *
 * A slot with restart_lsn R, confirmed_flush C and catalog_xmin X is proven if
 *
 * - every snapshot file that the primary has in [R, C] is here, R's among
 *   them (or decoding from R is proven to be consistent by C in another way,
 *   see prove.c), and, when the slot is made, the mapping files from R on;
 * - WAL from R on is here, and it can't be removed: no restartpoint that began
 *   before the reservation is still running;
 * - C has been replayed here;
 * - the primary holds catalog rows from X or older for this standby;
 * - this server can keep and use it: wal_level, a free slot, the plugin.
 *
 * Steps of a cycle:
 *
 *	 1. one query: positions, and the files that differ here
 *	 2. reserve WAL and files for slots that don't exist here yet
 *	 3. install files (at or below the replayed position), one fsync of the folder
 *	 4. slot by slot, each with its own error handling: drop, create, move
 *	 5. for what is missing: the helper, or a slice of WAL to fetch
 *	 6. publish what the views show
 *
 * Only confirmed_flush moves in every cycle, unsaved, as in core.  restart_lsn
 * and catalog_xmin need a durable save and move only when more than a segment
 * or a minute behind; an older restart_lsn with its file is still proven.
 *
 * answer.c talks to the primary, install.c installs files, reserve.c looks after
 * WAL, follow.c after a single slot; cycle.h has what they share.
 *
 * Everything here runs in the worker.  Memory is in a context of the cycle,
 * except the table of what is remembered per slot.
 *
 * src/slots/cycle.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/resource.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/remote.h"
#include "common/settings.h"
#include "slots/cycle.h"

#define REPLAY_WAIT 300			/* ms: most waiting for replay in one cycle */


/*
 * Takes the replayed position; waits a little if slots are just ahead of it,
 * as they are when a standby follows within milliseconds.
 */
static void
read_replay_position(Cycle *cycle)
{
	XLogRecPtr	wanted = InvalidXLogRecPtr;
	TimestampTz deadline;
	int			i;

	for (i = 0; i < cycle->nslots; i++)
		wanted = Max(wanted, cycle->slots[i].confirmed_lsn);
	for (i = 0; i < cycle->nmappings; i++)
	{
		if (cycle->mapping_contents[i] != NULL)
			wanted = Max(wanted, cycle->mapping_asof[i]);
	}
	deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										   Min(REPLAY_WAIT, tandem_slot_sync_interval));
	for (;;)
	{
		cycle->replayed = GetXLogReplayRecPtr(&cycle->replay_timeline);
		if (cycle->replayed >= wanted || tandem_promoted() != NULL ||
			GetCurrentTimestamp() >= deadline)
			break;
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	cycle->wrong_timeline = cycle->timeline != cycle->replay_timeline;
	cycle->oldest = tandem_oldest_wal(cycle->replay_timeline, cycle->replayed);
}

static void
publish(Cycle *cycle, double ms, double cpu_ms)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	TimestampTz now = GetCurrentTimestamp();
	int			i;

	for (i = 0; i < cycle->nentries; i++)
		cycle->entries[i].last_sync = now;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->nentries = cycle->nentries;
	memcpy(shared->entries, cycle->entries,
		   Min(cycle->nentries, shared->max_entries) * sizeof(TandemSlotEntry));
	shared->cycles++;
	shared->last_cycle = now;
	shared->last_success = now;
	shared->cycle_ms = ms;
	shared->cycle_cpu_ms = cpu_ms;
	shared->bytes_sent = tandem_remote_bytes_sent(tandem_primary()) - cycle->sent_before;
	shared->bytes_received = tandem_remote_bytes_received(tandem_primary()) - cycle->received_before;
	shared->slots_created = cycle->created;
	shared->slots_moved = cycle->moved;
	shared->slots_saved = cycle->saved;
	shared->slots_dropped += cycle->dropped;
	shared->files_installed += cycle->installed;
	shared->wal_fetched += cycle->fetched;
	shared->restart_lag = cycle->restart_lag;
	shared->hold_xmin = cycle->hold;
	strlcpy(NameStr(shared->primary_slot_name), PrimarySlotName, NAMEDATALEN);
	shared->error[0] = '\0';
	shared->hint[0] = '\0';
	LWLockRelease(shared->lock);
}

/*
 * Enters the slots that this cycle is likely to create into the file of ours:
 * one durable write instead of one for each.
 */
static void
expect_slots(Cycle *cycle)
{
	TandemLocalSlot local;
	int			i;

	if (cycle->wrong_timeline)
		return;
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];

		if (slot->confirmed_lsn <= cycle->replayed &&
			!(slot->flags & TANDEM_SLOT_INVALID) &&
			!tandem_local_slot(NameStr(slot->name), &local))
			tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
	}
	tandem_owned_save();
}

/* Takes those back that could not be created. */
static void
forget_expected(Cycle *cycle)
{
	TandemLocalSlot local;
	int			i;

	for (i = 0; i < cycle->nslots; i++)
	{
		const char *name = NameStr(cycle->slots[i].name);

		if (tandem_owned(name) && !tandem_local_slot(name, &local))
			tandem_owned_remove(name);
	}
}

/* The cycle proper; errors that concern all slots are raised. */
static void
run_cycle(Cycle *cycle, MemoryContext context)
{
	TransactionId saved_xmin = InvalidTransactionId;
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;

	tandem_connect_primary();
	cycle->sent_before = tandem_remote_bytes_sent(tandem_primary());
	cycle->received_before = tandem_remote_bytes_received(tandem_primary());
	tandem_take_helper_result();

	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		if (tandem_owned(NameStr(locals[i].name)) &&
			TransactionIdIsValid(locals[i].catalog_xmin) &&
			(!TransactionIdIsValid(saved_xmin) ||
			 TransactionIdPrecedes(locals[i].catalog_xmin, saved_xmin)))
			saved_xmin = locals[i].catalog_xmin;
	}

	tandem_ask_primary(cycle, saved_xmin);
	tandem_owned_set_held_until(cycle->held_until);
	read_replay_position(cycle);
	tandem_reserve_for_new_slots(cycle);
	tandem_install_files(cycle);

	cycle->entries = palloc((cycle->nslots + max_replication_slots + 1) *
							sizeof(TandemSlotEntry));

	expect_slots(cycle);
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];
		TandemSlotEntry *entry = tandem_new_entry(cycle, NameStr(slot->name),
												  NameStr(slot->database),
												  NameStr(slot->plugin));

		if (tandem_promoted() != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gave up syncing slots: %s", tandem_promoted())));
		entry->primary_restart_lsn = slot->restart_lsn;
		entry->primary_confirmed_lsn = slot->confirmed_lsn;
		entry->primary_catalog_xmin = slot->catalog_xmin;
		tandem_process_slot(cycle, context, slot, entry);
		tandem_show_local(entry);
		if (entry->restart_lsn && slot->restart_lsn > entry->restart_lsn)
			cycle->restart_lag = Max(cycle->restart_lag,
									 slot->restart_lsn - entry->restart_lsn);
	}
	forget_expected(cycle);
	tandem_process_leftovers(cycle, context);
	tandem_owned_set_unproven(cycle->unproven);
	tandem_owned_save();

	if (!XLogRecPtrIsInvalid(cycle->fetch_from))
		tandem_fetch_missing_wal(cycle, context);
	tandem_forget_unseen();
}

/*
 * Has replay come to a time when the primary may have ended our hold, without
 * a contact in between?  Then catalog rows that our slots need may be gone.
 *
 * The times of replayed commits tell, not this server's clock: when nothing
 * more comes from the primary, nothing more is removed either, and the last
 * proof stays valid however old it is.
 */
static bool
hold_ended(void)
{
	TimestampTz until = tandem_owned_held_until();

	return until != 0 && GetLatestXTime() > until;
}

/*
 * Gives up our slots if the primary may no longer hold catalog rows for them.
 * Called by the worker between cycles, not in a transaction.
 */
void
tandem_cycle_check_hold(void)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	TandemLocalSlot *locals;
	int			nlocals;
	int			ndropped = 0;
	int			i;
	int			j;

	if (!hold_ended() || tandem_owned_count() == 0)
		return;
	StartTransactionCommand();
	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);

		if (tandem_owned(name) == NULL)
			continue;
		LockSharedObject(DatabaseRelationId, locals[i].database, 0,
						 AccessShareLock);
		if (!tandem_local_slot(name, &locals[i]))
			continue;
		tandem_local_drop(name);
		tandem_owned_remove(name);
		ndropped++;
		ereport(LOG,
				(errmsg("dropped failover slot \"%s\" on this standby: the primary may no longer hold its catalog rows",
						name),
				 errdetail("Replay has passed %s, up to when the primary had promised to hold them.",
						   timestamptz_to_str(tandem_owned_held_until())),
				 errhint("Restore the contact with the primary; tandem.sync_status shows the error.")));

		LWLockAcquire(shared->lock, LW_EXCLUSIVE);
		for (j = 0; j < Min(shared->nentries, shared->max_entries); j++)
		{
			TandemSlotEntry *entry = &shared->entries[j];

			if (strcmp(NameStr(entry->name), name) != 0)
				continue;
			entry->restart_lsn = entry->confirmed_lsn = InvalidXLogRecPtr;
			entry->catalog_xmin = InvalidTransactionId;
			tandem_pending(entry, "Restore the contact with the primary; tandem.sync_status shows the error.",
						   "there was no contact with the primary for longer than its tandem.hold_timeout, so it may no longer hold the catalog rows of this slot");
		}
		LWLockRelease(shared->lock);
	}
	tandem_owned_set_unproven(tandem_owned_unproven() + ndropped);
	tandem_owned_save();
	CommitTransactionCommand();
}

/*
 * Runs one cycle and publishes its outcome.  Returns whether something moved
 * or is on its way, so that the pause before the next cycle is the short one.
 */
bool
tandem_cycle_run(void)
{
	MemoryContext context;
	Cycle	   *cycle;
	TimestampTz began = GetCurrentTimestamp();
	struct rusage before;
	struct rusage after;
	volatile bool progress = false;

	context = AllocSetContextCreate(TopMemoryContext, "tandem cycle",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	cycle = palloc0(sizeof(Cycle));
	tandem_cycle_number++;
	getrusage(RUSAGE_SELF, &before);

	PG_TRY();
	{
		run_cycle(cycle, context);
		getrusage(RUSAGE_SELF, &after);
		publish(cycle,
				(GetCurrentTimestamp() - began) / 1000.0,
				(after.ru_utime.tv_sec - before.ru_utime.tv_sec +
				 after.ru_stime.tv_sec - before.ru_stime.tv_sec) *
						1000.0 +
					(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
					 after.ru_stime.tv_usec - before.ru_stime.tv_usec) /
						1000.0);
		progress = cycle->progress || cycle->unproven > 0;
	}
	PG_CATCH();
	{
		static char last_error[TANDEM_TEXT_LEN];
		ErrorData  *edata;
		const char *hint;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		hint = edata->hint ? edata->hint : tandem_connection_hint(edata->sqlerrcode);
		if (strcmp(edata->message, last_error) != 0 ||
			tandem_slots_shared->error[0] == '\0')
		{
			EmitErrorReport();
			strlcpy(last_error, edata->message, sizeof(last_error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		LWLockReleaseAll();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		MemoryContextSwitchTo(context);

		if (!tandem_remote_is_alive(tandem_primary()))
			tandem_cycle_disconnect();

		LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
		tandem_slots_shared->failed_cycles++;
		tandem_slots_shared->last_cycle = GetCurrentTimestamp();
		strlcpy(tandem_slots_shared->error, edata->message,
				sizeof(tandem_slots_shared->error));
		strlcpy(tandem_slots_shared->hint, hint ? hint : "",
				sizeof(tandem_slots_shared->hint));
		LWLockRelease(tandem_slots_shared->lock);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
	return progress;
}

/*
 * When the worker of a standby starts: checks our slots with what this server
 * knows alone, before the primary has answered, and shows those that hold.
 */
void
tandem_cycle_start(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "tandem start",
												  ALLOCSET_DEFAULT_SIZES);
	Cycle		cycle;
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	tandem_helper_stop();
	tandem_owned_load();

	memset(&cycle, 0, sizeof(cycle));
	cycle.replayed = GetXLogReplayRecPtr(&cycle.replay_timeline);
	cycle.oldest = tandem_oldest_wal(cycle.replay_timeline, cycle.replayed);
	cycle.entries = palloc((max_replication_slots + 1) * sizeof(TandemSlotEntry));

	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);
		TandemSlotEntry *entry;
		const char *why;

		if (tandem_owned(name) == NULL)
			continue;
		LockSharedObject(DatabaseRelationId, locals[i].database, 0,
						 AccessShareLock);
		if (!tandem_local_slot(name, &locals[i]))
			continue;
		why = hold_ended() ? "the primary may no longer hold its catalog rows" :
							 tandem_local_disproof(&locals[i], cycle.oldest);
		if (why)
		{
			tandem_drop_slot(&cycle, name, why);
			continue;
		}
		entry = tandem_new_entry(&cycle, name, get_database_name(locals[i].database),
								 NameStr(locals[i].plugin));
		entry->state = TANDEM_READY;
		tandem_show_local(entry);
	}
	tandem_owned_set_unproven(tandem_owned_unproven() + cycle.dropped);
	tandem_owned_save();

	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->nentries = cycle.nentries;
	memcpy(tandem_slots_shared->entries, cycle.entries,
		   Min(cycle.nentries, tandem_slots_shared->max_entries) *
			   sizeof(TandemSlotEntry));
	tandem_slots_shared->slots_dropped += cycle.dropped;
	tandem_slots_shared->unproven_at_start = tandem_owned_unproven();
	LWLockRelease(tandem_slots_shared->lock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}

/*
 * This server has been promoted: one log line a slot, then the slots are its
 * own.
 */
void
tandem_cycle_promoted(void)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	int			i;

	tandem_helper_stop();
	tandem_cycle_disconnect();
	tandem_unreserve();

	LWLockAcquire(shared->lock, LW_SHARED);
	for (i = 0; i < Min(shared->nentries, shared->max_entries); i++)
	{
		TandemSlotEntry *entry = &shared->entries[i];

		if (entry->state == TANDEM_READY)
			ereport(LOG,
					(errmsg("failover slot \"%s\" goes on from %X/%X on this new primary",
							NameStr(entry->name),
							LSN_FORMAT_ARGS(entry->confirmed_lsn)),
					 entry->last_sync ?
						 errdetail("It was last compared with the old primary at %s.",
								   timestamptz_to_str(entry->last_sync)) :
						 0));
		else
			ereport(LOG,
					(errmsg("failover slot \"%s\" was not ready when this server was promoted: %s",
							NameStr(entry->name), entry->reason),
					 errhint("%s", entry->restart_lsn ? "Its consumer may have received changes that this server doesn't have." : "It does not exist on this server; its consumer needs a new slot and a new copy of its tables.")));
	}
	LWLockRelease(shared->lock);
	tandem_owned_discard_all();
}
