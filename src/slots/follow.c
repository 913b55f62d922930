/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  One slot in one cycle: dropped, created, moved, or explained.
 *
 *	 no slot here -- adopt_slot: all proofs hold --> slot of ours (cycle.c says
 *	 when a slot is proven)
 *	 slot of ours -- follow_slot --> the same, further on
 *	 slot of ours -- disproved, another one, gone --> no slot here
 *	 slot that isn't ours: shown, never touched
 *
 * Each slot is processed in a transaction of its own; its errors become its
 * reason and touch no other.  What is remembered of a slot from cycle to cycle
 * is in a table of this file, in TopMemoryContext.
 *
 * src/slots/follow.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <sys/stat.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "common/settings.h"
#include "slots/cycle.h"

#define LAZY_MOVE 60000			/* ms: longest lag of a restart_lsn */
#define HELPER_RETRY 10000		/* ms between two attempts to prove a slot */

uint64		tandem_cycle_number = 0;

static HTAB *memory = NULL;


SlotMemory *
tandem_slot_memory(const char *name)
{
	NameData	key;
	bool		found;
	SlotMemory *m;

	if (memory == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = sizeof(NameData);
		ctl.entrysize = sizeof(SlotMemory);
		ctl.hcxt = TopMemoryContext;
		memory = hash_create("tandem slots", 128, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	memset(&key, 0, sizeof(key));
	namestrcpy(&key, name);
	m = hash_search(memory, &key, HASH_ENTER, &found);
	if (!found)
		memset((char *) m + sizeof(NameData), 0, sizeof(SlotMemory) - sizeof(NameData));
	return m;
}

/* Forgets slots that this cycle hasn't seen. */
void
tandem_forget_unseen(void)
{
	HASH_SEQ_STATUS seq;
	SlotMemory *m;

	if (memory == NULL)
		return;
	hash_seq_init(&seq, memory);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		if (m->seen != tandem_cycle_number)
			hash_search(memory, &m->name, HASH_REMOVE, NULL);
	}
}

/* Marks an entry as pending, with a reason and (null for none) a hint. */
void
tandem_pending(TandemSlotEntry *entry, const char *hint, const char *fmt,...)
{
	va_list		args;

	entry->state = TANDEM_PENDING;
	va_start(args, fmt);
	vsnprintf(entry->reason, sizeof(entry->reason), fmt, args);
	va_end(args);
	strlcpy(entry->hint, hint ? hint : "No action is needed.",
			sizeof(entry->hint));
}

/*
 * Is the library of an output plugin installed?  Looks where the server would,
 * along dynamic_library_path.
 */
static bool
plugin_present(const char *plugin)
{
	const char *path = Dynamic_library_path;
	char		file[MAXPGPATH];
	struct stat st;

	if (strcmp(plugin, "pgoutput") == 0)
		return true;
	if (strchr(plugin, '/') != NULL)
		return stat(plugin, &st) == 0;
	while (path && *path)
	{
		size_t		len = strcspn(path, ":");

		if (len >= 7 && strncmp(path, "$libdir", 7) == 0)
			snprintf(file, sizeof(file), "%s%.*s/%s%s", pkglib_path,
					 (int) (len - 7), path + 7, plugin, DLSUFFIX);
		else
			snprintf(file, sizeof(file), "%.*s/%s%s", (int) len, path,
					 plugin, DLSUFFIX);
		if (stat(file, &st) == 0)
			return true;
		path += len;
		if (*path == ':')
			path++;
	}
	snprintf(file, sizeof(file), "%s/%s%s", pkglib_path, plugin, DLSUFFIX);
	return stat(file, &st) == 0;
}

/*
 * May the server load this library as an output plugin?  The latest minor
 * releases refuse those that output_plugin_libraries doesn't list, also for
 * slots that exist.
 */
static bool
plugin_allowed(const char *plugin)
{
	const char *setting = GetConfigOption("output_plugin_libraries", true, false);
	List	   *names;
	ListCell   *lc;

	if (setting == NULL)
		return true;			/* this server has no such rule */
	if (!SplitGUCList(pstrdup(setting), ',', &names))
		return true;
	foreach(lc, names)
	{
		if (strcmp((char *) lfirst(lc), plugin) == 0)
			return true;
	}
	return false;
}

/* Could this server decode with the slot's plugin?  Otherwise the entry says why not. */
static bool
plugin_usable(const char *plugin, TandemSlotEntry *entry)
{
	if (!plugin_present(plugin))
	{
		tandem_pending(entry, "Install the output plugin's package on this standby.",
					   "its output plugin \"%s\" is not installed on this standby",
					   plugin);
		return false;
	}
	if (!plugin_allowed(plugin))
	{
		tandem_pending(entry, "Add it to output_plugin_libraries on this standby and reload its configuration.",
					   "this standby's output_plugin_libraries does not allow its output plugin \"%s\"",
					   plugin);
		return false;
	}
	return true;
}

/*
 * Is a persistent slot of ours still proven, as far as this server alone can
 * tell?  Returns NULL if so, else why not.
 */
const char *
tandem_local_disproof(const TandemLocalSlot *local, XLogSegNo oldest)
{
	TandemOwnedSlot *own = tandem_owned(NameStr(local->name));
	XLogSegNo	segno;

	if (local->invalid)
		return "it was invalidated on this standby";
	XLByteToSeg(local->restart_lsn, segno, wal_segment_size);
	if (segno < oldest || segno <= XLogGetLastRemovedSegno())
		return "WAL that it needs is no longer here";
	if (tandem_debug_ship_snapshots &&
		!(own && own->decoded_lsn == local->restart_lsn) &&
		!tandem_snapshot_exists(local->restart_lsn))
		return "the snapshot file that it needs is no longer here";
	return NULL;
}

void
tandem_drop_slot(Cycle *cycle, const char *name, const char *why)
{
	tandem_local_drop(name);
	tandem_owned_remove(name);
	cycle->dropped++;
	cycle->progress = true;
	ereport(LOG,
			(errmsg("dropped failover slot \"%s\" on this standby: %s", name, why)));
}

/* Puts what a local slot has into its entry. */
void
tandem_show_local(TandemSlotEntry *entry)
{
	TandemLocalSlot local;

	if (tandem_local_slot(NameStr(entry->name), &local))
	{
		entry->restart_lsn = local.restart_lsn;
		entry->confirmed_lsn = local.confirmed_lsn;
		entry->catalog_xmin = local.catalog_xmin;
	}
}

/*
 * Brings an existing slot of ours along.  It is proven for what it has; the
 * entry says whether that is as far as its consumer.
 */
static void
follow_slot(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
			const TandemLocalSlot *local, TandemSlotEntry *entry, SlotMemory *m)
{
	XLogRecPtr	restart = InvalidXLogRecPtr;
	TimestampTz now = GetCurrentTimestamp();
	bool		two_phase = (slot->flags & TANDEM_SLOT_TWO_PHASE) != 0;

	if (slot->confirmed_lsn > cycle->replayed)
	{
		tandem_pending(entry, "No action is needed if the standby catches up; tandem.standby_slots on the primary keeps subscribers from getting ahead of it.",
					   "its consumer has confirmed %X/%X, but this standby has replayed only %X/%X",
					   LSN_FORMAT_ARGS(slot->confirmed_lsn),
					   LSN_FORMAT_ARGS(cycle->replayed));
		return;
	}
	if (!tandem_files_complete(cycle, slot, database, true, entry))
		return;

	if (m->moved == 0)
		m->moved = now;
	if (slot->restart_lsn > local->restart_lsn &&
		((slot->flags & TANDEM_SLOT_HAS_FILE) || !tandem_debug_ship_snapshots) &&
		(slot->restart_lsn - local->restart_lsn > (XLogRecPtr) wal_segment_size ||
		 TimestampDifferenceExceeds(m->moved, now, LAZY_MOVE)))
		restart = slot->restart_lsn;
	else if (TransactionIdIsValid(slot->catalog_xmin) &&
			 TransactionIdFollows(slot->catalog_xmin, local->catalog_xmin) &&
			 TimestampDifferenceExceeds(m->moved, now, LAZY_MOVE))
		restart = local->restart_lsn;

	if (!XLogRecPtrIsInvalid(restart) ||
		slot->confirmed_lsn > local->confirmed_lsn ||
		(two_phase && !local->two_phase))
	{
		if (restart > local->restart_lsn && tandem_debug_ship_snapshots &&
			!tandem_snapshot_exists(restart))
			restart = InvalidXLogRecPtr;
		if (tandem_local_move(slot, restart))
		{
			cycle->saved++;
			m->moved = now;
			if (restart > local->restart_lsn)
				tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
		}
		cycle->moved++;
		cycle->progress = true;
	}
	if (plugin_usable(NameStr(slot->plugin), entry))
		entry->state = TANDEM_READY;
}

/* Creates a slot that doesn't exist here, if it can be proven now. */
static void
adopt_slot(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
		   TandemSlotEntry *entry, SlotMemory *m)
{
	XLogRecPtr	restart = slot->restart_lsn;
	XLogRecPtr	decoded = InvalidXLogRecPtr;
	bool		has_file = (slot->flags & TANDEM_SLOT_HAS_FILE) != 0;
	bool		disproved;
	TimestampTz now = GetCurrentTimestamp();

	if (wal_level < WAL_LEVEL_LOGICAL)
	{
		tandem_pending(entry, "Set wal_level = logical on this standby and restart it.",
					   "this standby's wal_level is lower than logical");
		return;
	}
	if (!plugin_usable(NameStr(slot->plugin), entry))
		return;
	if (tandem_free_slots() == 0)
	{
		tandem_pending(entry, "Raise max_replication_slots on this standby and restart it.",
					   "all %d replication slots of this standby are in use",
					   max_replication_slots);
		return;
	}
	if (!TransactionIdIsValid(cycle->hold) ||
		TransactionIdFollows(cycle->hold, slot->catalog_xmin))
	{
		tandem_pending(entry, NULL, "the primary holds no catalog rows for this standby yet");
		return;
	}

	if (!tandem_debug_ship_snapshots)
	{
		/* the way of tools that copy positions only; for tests */
		if (slot->confirmed_lsn > cycle->replayed)
		{
			tandem_pending(entry, NULL, "waiting for replay");
			return;
		}
		tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
		tandem_owned_save();
		tandem_local_create(slot, database, restart, false);
		cycle->created++;
		cycle->progress = true;
		entry->state = TANDEM_READY;
		return;
	}

	/* a proof from before the slot moved on is no use any more */
	if (has_file || m->proven_from < slot->restart_lsn)
		m->proven_from = InvalidXLogRecPtr;
	if (!XLogRecPtrIsInvalid(m->proven_from))
	{
		restart = m->proven_from;
		decoded = m->proven_decoded;
	}
	if (!tandem_wal_complete(cycle, restart, entry))
		return;
	if (slot->confirmed_lsn > cycle->replayed)
	{
		tandem_pending(entry, NULL,
					   "its consumer has confirmed %X/%X, but this standby has replayed only %X/%X",
					   LSN_FORMAT_ARGS(slot->confirmed_lsn),
					   LSN_FORMAT_ARGS(cycle->replayed));
		return;
	}
	if (!tandem_files_complete(cycle, slot, database, false, entry))
		return;

	/* the same WAL decoded again gives the same verdict */
	disproved = m->disproved_from == slot->restart_lsn &&
		m->disproved_upto == slot->confirmed_lsn;
	if (!has_file && XLogRecPtrIsInvalid(m->proven_from) && !disproved &&
		tandem_scan_proves(restart, slot->confirmed_lsn))
	{
		m->proven_from = restart;
		decoded = restart;
	}
	if (!has_file && XLogRecPtrIsInvalid(m->proven_from))
	{
		bool		due = !disproved &&
			(m->helper_tried == 0 ||
			 TimestampDifferenceExceeds(m->helper_tried, now, HELPER_RETRY));

		if (due && tandem_helper_start(TANDEM_HELPER_DECODE, database, slot))
			m->helper_tried = now;
		if (m->helper_error[0])
			tandem_pending(entry, "It becomes ready by itself once its consumer has moved on.",
						   "the primary has no snapshot for its position, and %s",
						   m->helper_error);
		else
			tandem_pending(entry, "It becomes ready by itself; a transaction that has been running for long may delay it.",
						   "the primary has no snapshot for its position, so its WAL is decoded as a proof");
		return;
	}

	/* the file first: after a crash, an entry without a slot is harmless */
	tandem_owned_add(NameStr(slot->name), decoded);
	tandem_owned_save();
	tandem_local_create(slot, database, restart,
						XLogRecPtrIsInvalid(decoded));
	cycle->created++;
	cycle->progress = true;
	m->moved = now;
	entry->state = TANDEM_READY;
}

/* One slot of the primary; errors are the caller's to catch. */
static void
process_slot(Cycle *cycle, const TandemRemoteSlot *slot, TandemSlotEntry *entry)
{
	const char *name = NameStr(slot->name);
	SlotMemory *m = tandem_slot_memory(name);
	TandemLocalSlot local;
	bool		exists = tandem_local_slot(name, &local);
	bool		invalid = (slot->flags & TANDEM_SLOT_INVALID) != 0;
	Oid			database;
	const char *why = NULL;

	m->seen = tandem_cycle_number;
	if (exists && tandem_owned(name) == NULL)
	{
		entry->state = TANDEM_FOREIGN;
		strlcpy(entry->reason, "a slot of this name exists on this standby that pg_tandem did not make",
				sizeof(entry->reason));
		snprintf(entry->hint, sizeof(entry->hint),
				 "If nothing uses it, run SELECT pg_drop_replication_slot('%s') on this standby.",
				 name);
		return;
	}
	if (cycle->wrong_timeline)
	{
		tandem_pending(entry, NULL, "this standby follows timeline %u, the primary is on %u",
					   cycle->replay_timeline, cycle->timeline);
		return;
	}

	/*
	 * Replay of DROP DATABASE takes this lock exclusively before it looks for
	 * slots; an active one would make it fail, and the standby with it.
	 */
	database = get_database_oid(NameStr(slot->database), true);
	if (OidIsValid(database))
	{
		LockSharedObject(DatabaseRelationId, database, 0, AccessShareLock);
		if (!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)))
			database = InvalidOid;
	}
	if (!OidIsValid(database))
	{
		tandem_pending(entry, NULL, "its database does not exist on this standby (yet)");
		return;
	}

	exists = tandem_local_slot(name, &local);
	if (exists)
	{
		if (invalid)
			why = "the primary's slot has been invalidated";
		else if (local.database != database ||
				 strcmp(NameStr(local.plugin), NameStr(slot->plugin)) != 0 ||
				 (local.two_phase && !(slot->flags & TANDEM_SLOT_TWO_PHASE)))
			why = "the primary's slot of this name is another one now";
		else if (m->remote_started == cycle->started &&
				 slot->confirmed_lsn < m->remote_confirmed)
			why = "the primary's slot has been recreated at an older position";
		else if (!TransactionIdIsValid(cycle->hold) ||
				 TransactionIdFollows(cycle->hold, local.catalog_xmin))
			why = "the primary no longer held its catalog rows";
		else
			why = tandem_local_disproof(&local, cycle->oldest);

		if (why)
		{
			if (!invalid && !tandem_wal_limit_exceeded(cycle, slot->restart_lsn, NULL))
				tandem_reserve_also(cycle, slot->restart_lsn);
			tandem_drop_slot(cycle, name, why);
			exists = false;
			m->proven_from = InvalidXLogRecPtr;
			m->moved = 0;
		}
	}
	m->remote_confirmed = slot->confirmed_lsn;
	m->remote_started = cycle->started;

	if (invalid)
	{
		entry->state = TANDEM_INVALID;
		strlcpy(entry->reason, "the primary has invalidated it: it needed more WAL than max_slot_wal_keep_size allows",
				sizeof(entry->reason));
		strlcpy(entry->hint, "Its consumer has lost changes; recreate slot and subscription, and raise max_slot_wal_keep_size.",
				sizeof(entry->hint));
	}
	else if (exists)
		follow_slot(cycle, slot, database, &local, entry, m);
	else
	{
		adopt_slot(cycle, slot, database, entry, m);
		if (entry->state == TANDEM_READY)
		{
			ereport(LOG,
					(errmsg("failover slot \"%s\" is ready on this standby", name),
					 errdetail("It is confirmed to %X/%X and restarts at %X/%X.",
							   LSN_FORMAT_ARGS(slot->confirmed_lsn),
							   LSN_FORMAT_ARGS(slot->restart_lsn))));
			m->proven_from = InvalidXLogRecPtr;
		}
	}

	if (entry->state == TANDEM_PENDING && !tandem_local_slot(name, &local))
		cycle->unproven++;
}

/*
 * Runs one step on a slot in a transaction of its own.  An error is logged
 * (once, not every second) and becomes the slot's reason.
 */
void
tandem_process_slot(Cycle *cycle, MemoryContext context, const TandemRemoteSlot *slot,
					TandemSlotEntry *entry)
{
	SlotMemory *m = tandem_slot_memory(NameStr(slot->name));
	TandemLocalSlot local;

	PG_TRY();
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		process_slot(cycle, slot, entry);
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		m->error[0] = '\0';
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (strcmp(edata->message, m->error) != 0)
		{
			EmitErrorReport();
			strlcpy(m->error, edata->message, sizeof(m->error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		MemoryContextSwitchTo(context);
		tandem_pending(entry, edata->hint ? edata->hint : "The next cycle tries again; see this server's log if it stays.",
					   "%s", edata->message);
		if (!tandem_local_slot(NameStr(slot->name), &local))
			cycle->unproven++;
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

TandemSlotEntry *
tandem_new_entry(Cycle *cycle, const char *name, const char *database,
				 const char *plugin)
{
	TandemSlotEntry *entry = &cycle->entries[cycle->nentries++];

	memset(entry, 0, sizeof(*entry));
	namestrcpy(&entry->name, name);
	if (database)
		namestrcpy(&entry->database, database);
	namestrcpy(&entry->plugin, plugin);
	return entry;
}

/*
 * Local logical slots that the primary's answer doesn't have: ours are
 * dropped, others are shown.
 */
void
tandem_process_leftovers(Cycle *cycle, MemoryContext context)
{
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;
	int			j;

	if (cycle->wrong_timeline)
		return;
	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);

		for (j = 0; j < cycle->nslots; j++)
		{
			if (strcmp(NameStr(cycle->slots[j].name), name) == 0)
				break;
		}
		if (j < cycle->nslots)
			continue;

		PG_TRY();
		{
			StartTransactionCommand();
			MemoryContextSwitchTo(context);
			if (tandem_owned(name) != NULL)
			{
				LockSharedObject(DatabaseRelationId, locals[i].database, 0,
								 AccessShareLock);
				if (tandem_local_slot(name, &locals[i]))
					tandem_drop_slot(cycle, name, "the primary has no failover slot of this name");
				else
					tandem_owned_remove(name);
			}
			else
			{
				TandemSlotEntry *entry =
					tandem_new_entry(cycle, name, get_database_name(locals[i].database),
									 NameStr(locals[i].plugin));

				entry->state = TANDEM_FOREIGN;
				strlcpy(entry->reason, "this slot exists only on this standby, and pg_tandem did not make it",
						sizeof(entry->reason));
				snprintf(entry->hint, sizeof(entry->hint),
						 "If nothing uses it, run SELECT pg_drop_replication_slot('%s') on this standby.",
						 name);
				tandem_show_local(entry);
			}
			CommitTransactionCommand();
			MemoryContextSwitchTo(context);
		}
		PG_CATCH();
		{
			HOLD_INTERRUPTS();
			MemoryContextSwitchTo(context);
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			if (MyReplicationSlot != NULL)
				ReplicationSlotRelease();
			MemoryContextSwitchTo(context);
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();
	}
}

/* Takes the helper's result, if there is one, into memory. */
void
tandem_take_helper_result(void)
{
	TandemHelper result;
	TandemHelperState state = tandem_helper_poll(&result);

	if (state != TANDEM_HELPER_SUCCEEDED && state != TANDEM_HELPER_FAILED)
		return;
	if (result.task == TANDEM_HELPER_BARRIER)
		tandem_barrier_ended(state == TANDEM_HELPER_SUCCEEDED);
	else
	{
		SlotMemory *m = tandem_slot_memory(NameStr(result.slot));

		m->seen = tandem_cycle_number;
		m->helper_error[0] = '\0';
		if (state == TANDEM_HELPER_SUCCEEDED)
		{
			m->proven_from = result.restart_lsn;
			m->proven_decoded = tandem_snapshot_exists(result.restart_lsn) ?
				InvalidXLogRecPtr :
				result.restart_lsn;
		}
		else
		{
			strlcpy(m->helper_error, result.error, sizeof(m->helper_error));
			if (result.inconsistent)
			{
				m->disproved_from = result.restart_lsn;
				m->disproved_upto = result.confirmed_lsn;
			}
		}
	}
}
