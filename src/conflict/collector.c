/*-------------------------------------------------------------------------
 *
 * collector.c
 *	  The collector of tombstones: one process in each database that has a
 *	  subscription with tombstones = on.
 *
 * It decodes the database's own WAL with a persistent logical slot, keeps who
 * deleted what and when (decode.c), and writes that to the store (store.c).
 *
 * Durable order.  A write transaction has the entries and the collected LSN, so
 * the store is exact at every commit, and after any crash decoding goes on at the
 * LSN in deletion_state: nothing is written twice or not at all.  The transaction
 * is not flushed at its commit (nobody waits for a disk); but before the slot is
 * told that WAL up to an LSN isn't needed, the commit that says so is flushed.
 *
 * Publishing.  collected_lsn in shared memory moves after the commit, for whoever
 * sees it must see the entries.
 *
 * Pace.  It works off all WAL that is there and then sleeps for NAP, so a busy
 * server's deletes are written a few times a second.  Whoever waits for an LSN
 * wakes it, and gets what is decoded as soon as that LSN is.
 *
 *	 (none) --> STARTING --> COLLECTING --> (error) FAILED --> STARTING
 *			 \--> UNSUPPORTED: wal_level		 after RETRY
 *	 nobody wants it: slot and store are cleared, OFF
 *
 * What can't be decoded any more (the slot is gone or invalidated; this node was
 * promoted and the slot that it has is ahead of the store) is a window: its
 * deletes are not known, and whoever asks is told so.
 *
 * The launcher of src/subscription calls tandem_collectors_supervise().
 *
 * src/conflict/collector.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/resource.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogutils.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "common/settings.h"
#include "conflict/collector.h"
#include "conflict/retention.h"

#define NAP 200					/* ms at the end of WAL */
#define RETRY 5000				/* ms after an error */
#define LOOK 256				/* records between two looks at who waits */
#define CONFIRM 1000			/* ms between two confirmations, if there were entries */
#define CONFIRM_IDLE 10000		/* ms, if there were none */
#define CONFIRM_BYTES (16 * 1024 * 1024)	/* of WAL, whatever the time */

static TandemCollector *me;
static TandemDeletionState state;
static XLogRecPtr confirmed;
static TimestampTz confirmed_at;
static XLogRecPtr written;		/* end of the last write transaction's commit */
static bool have_foreign;		/* others have written since the last confirmation */
static bool have_entries;		/* entries were written since */

/* ---- The launcher's side ------------------------------------------------------------ */

typedef struct Started
{
	Oid			dbid;
	BackgroundWorkerHandle *handle;
} Started;

static List *started = NIL;		/* in TopMemoryContext */

static bool
runs(Oid dbid)
{
	ListCell   *lc;

	foreach(lc, started)
	{
		Started    *one = lfirst(lc);
		pid_t		pid;

		if (one->dbid != dbid)
			continue;
		if (GetBackgroundWorkerPid(one->handle, &pid) != BGWH_STOPPED)
			return true;
		pfree(one->handle);
		started = foreach_delete_current(started, lc);
		pfree(one);
		return false;
	}
	return false;
}

static void
start(Oid dbid)
{
	TandemCollector *collector = tandem_collector_find(dbid, true);
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	MemoryContext old;

	if (collector == NULL || collector->pid != 0)
		return;
	if (collector->state == TANDEM_COLLECTOR_UNSUPPORTED)
		return;					/* until the server is started again */
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(dbid);
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_collector_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem collector of database %u", dbid);
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem collector");

	old = MemoryContextSwitchTo(TopMemoryContext);
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		Started    *one = palloc(sizeof(Started));

		one->dbid = dbid;
		one->handle = handle;
		started = lappend(started, one);
	}
	else
		tandem_collector_set_state(collector, TANDEM_COLLECTOR_FAILED,
								   "no background worker is free", "Increase max_worker_processes.");
	MemoryContextSwitchTo(old);
}

/* Databases that have a slot of a collector (list of OIDs). */
static List *
databases_with_slot(void)
{
	List	   *databases = NIL;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		Oid			dbid;
		char		rest;

		if (slot->in_use && SlotIsLogical(slot) &&
			sscanf(NameStr(slot->data.name), TANDEM_COLLECTOR_SLOT "%c", &dbid, &rest) == 1 &&
			dbid == slot->data.database)
			databases = lappend_oid(databases, dbid);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return databases;
}

long
tandem_collectors_supervise(List *databases)
{
	List	   *all = list_concat_unique_oid(list_copy(databases), databases_with_slot());
	TimestampTz now = GetCurrentTimestamp();
	long		again = -1;
	ListCell   *lc;

	foreach(lc, all)
	{
		TandemCollector *collector = tandem_collector_find(lfirst_oid(lc), false);

		if (runs(lfirst_oid(lc)))
		{
			tandem_collector_reload(lfirst_oid(lc));
			continue;
		}
		if (collector && collector->retry_at > now)
		{
			long		wait = TimestampDifferenceMilliseconds(now, collector->retry_at);

			again = again < 0 ? wait : Min(again, wait);
			continue;
		}
		start(lfirst_oid(lc));
	}
	list_free(all);
	return again;
}

/* ---- The slot ------------------------------------------------------------------------- */

static char *
slot_name(void)
{
	return psprintf(TANDEM_COLLECTOR_SLOT, MyDatabaseId);
}

/* Makes the slot; decoding can begin at the returned position. */
static XLogRecPtr
create_slot(void)
{
	LogicalDecodingContext *ctx;
	XLogRecPtr	lsn;

	tandem_collector_set_state(me, TANDEM_COLLECTOR_STARTING,
							   "decoding can start when the transactions that run now have ended", NULL);
	TANDEM_SLOT_CREATE(slot_name(), true, RS_EPHEMERAL, false);
	ctx = CreateInitDecodingContext("pgoutput", NIL, false, InvalidXLogRecPtr,
									XL_ROUTINE(.page_read = read_local_xlog_page,
											   .segment_open = wal_segment_open,
											   .segment_close = wal_segment_close),
									NULL, NULL, NULL);
	DecodingContextFindStartpoint(ctx);
	FreeDecodingContext(ctx);
	ReplicationSlotPersist();
	lsn = MyReplicationSlot->data.confirmed_flush;
	ereport(LOG,
			(errmsg("collecting tombstones of this database from %X/%X on", LSN_FORMAT_ARGS(lsn))));
	return lsn;
}

/*
 * Acquires the slot, makes it if need be.  Returns where decoding begins; *lost:
 * why WAL between collected_lsn and that can't be decoded, or NULL.
 */
static XLogRecPtr
acquire_slot(bool have_state, const char **lost)
{
	char	   *name = slot_name();

	*lost = NULL;
	if (SearchNamedReplicationSlot(name, true) != NULL)
	{
		TANDEM_SLOT_ACQUIRE(name);
		if (!TANDEM_SLOT_INVALIDATED(&MyReplicationSlot->data))
		{
			XLogRecPtr	lsn = MyReplicationSlot->data.confirmed_flush;

			if (!have_state || lsn <= state.collected_lsn)
				return have_state ? state.collected_lsn : lsn;
			*lost = "failover";
			return lsn;
		}
		ereport(LOG,
				(errmsg("replication slot \"%s\" was invalidated and is made anew", name),
				 errdetail("The deletes it stood for are not known."),
				 errhint("max_slot_wal_keep_size may be too small.")));
		ReplicationSlotRelease();
		ReplicationSlotDrop(name, true);
	}
	if (have_state)
		*lost = "slot lost";
	return create_slot();
}

/* Nobody wants tombstones here any more: leaves nothing behind. */
static void
clear(void)
{
	char	   *name;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (OidIsValid(tandem_own_relation_or_invalid("deletion_state")))
		tandem_store_clear();
	PopActiveSnapshot();
	CommitTransactionCommand();

	/* after the store: who finds it again starts at the beginning */
	StartTransactionCommand();
	name = slot_name();
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	if (SearchNamedReplicationSlot(name, true) != NULL)
		ReplicationSlotDrop(name, true);
	CommitTransactionCommand();
	tandem_any_begin(me);
	tandem_any_end(me);
	tandem_collector_set_state(me, TANDEM_COLLECTOR_OFF, NULL, NULL);
	ereport(LOG,
			(errmsg("tombstones of this database are no longer collected")));
	proc_exit(0);
}

/* ---- Writing --------------------------------------------------------------------------- */

static void
publish(XLogRecPtr lsn)
{
	SpinLockAcquire(&me->mutex);
	me->collected_at = GetCurrentTimestamp();
	SpinLockRelease(&me->mutex);
	pg_atomic_write_u64(&me->transactions, tandem_decode_transactions);
	pg_write_barrier();
	pg_atomic_write_u64(&me->collected_lsn, lsn);
	ConditionVariableBroadcast(&me->cv);
}

/* Writes what has been decoded, up to here. */
static void
write_batch(XLogRecPtr lsn)
{
	TandemBatch *batch = tandem_batch_pending();

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	state.collected_lsn = lsn;
	state.collected_time = GetCurrentTimestamp();
	tandem_store_write(me, &state);
	PopActiveSnapshot();
	CommitTransactionCommand();
	written = XactLastCommitEnd;

	have_entries |= batch->entries > 0;
	pg_atomic_fetch_add_u64(&me->tombstones, batch->entries);
	pg_atomic_fetch_add_u64(&me->batches, 1);
	if (batch->entries > 0)
		tandem_batch_reset();
}

/* Tells the slot how far WAL isn't needed any more, if it is time. */
static void
confirm(XLogRecPtr lsn)
{
	TimestampTz now = GetCurrentTimestamp();
	struct rusage usage;

	if (lsn - confirmed < CONFIRM_BYTES &&
		!((have_entries && TimestampDifferenceExceeds(confirmed_at, now, CONFIRM)) ||
		  (have_foreign && TimestampDifferenceExceeds(confirmed_at, now, CONFIRM_IDLE))))
		return;
	if (state.collected_lsn < lsn)
		write_batch(lsn);
	XLogFlush(written);
	LogicalConfirmReceivedLocation(lsn);
	confirmed = lsn;
	confirmed_at = now;
	have_entries = have_foreign = false;
	if (getrusage(RUSAGE_SELF, &usage) == 0)
		pg_atomic_write_u64(&me->cpu_us,
							(uint64) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
							usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* ---- Running ------------------------------------------------------------------------------ */

/* Subscriptions of this database with tombstones = on (list of OIDs). */
static List *
subscriptions(void)
{
	List	   *subids = NIL;
	ListCell   *lc;

	foreach(lc, tandem_incoming.list())
	{
		TandemIncoming *incoming = lfirst(lc);

		if (incoming->tombstones)
			subids = lappend_oid(subids, incoming->subid);
	}
	return subids;
}

/* Reads subscriptions and their tables. */
static void
reload(XLogRecPtr lsn)
{
	List	   *subids;
	List	   *roots;
	List	   *origins = NIL;
	ListCell   *lc;

	me->reload = false;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	subids = OidIsValid(tandem_own_relation_or_invalid("deletion_state")) ? subscriptions() : NIL;
	if (subids == NIL)
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		clear();
	}
	if (state.epoch == 0)
	{
		/* not known yet what there is */
		PopActiveSnapshot();
		CommitTransactionCommand();
		return;
	}
	roots = tandem_store_tables(subids, lsn);
	foreach(lc, subids)
	{
		char		name[NAMEDATALEN];
		RepOriginId origin;

		snprintf(name, sizeof(name), "pg_%u", lfirst_oid(lc));
		origin = replorigin_by_name(name, true);
		if (origin != InvalidRepOriginId)
			origins = lappend_int(origins, origin);
	}
	tandem_decode_set_roots(roots, origins);

	/* the marks of new tables go with the note that they are known */
	if (tandem_batch_pending()->entries > 0)
	{
		state.collected_lsn = lsn;
		state.collected_time = GetCurrentTimestamp();
		tandem_store_write(me, &state);
		have_entries = true;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	written = XactLastCommitEnd;
	tandem_batch_reset();
}

static void
close_epoch(void)
{
	me->close_epoch = false;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_store_close_epoch(&state);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
count_roots(void)
{
	me->recount = false;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_store_count_roots(me);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* Finds or makes slot and state; returns the context. */
static LogicalDecodingContext *
begin(void)
{
	LogicalDecodingContext *ctx;
	const char *lost;
	bool		have_state;
	XLogRecPtr	lsn;
	XLogRecPtr	from;
	TimestampTz from_time;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	have_state = tandem_deletion_state(&state) && state.system == GetSystemIdentifier();
	PopActiveSnapshot();
	CommitTransactionCommand();

	StartTransactionCommand();
	lsn = acquire_slot(have_state, &lost);
	CommitTransactionCommand();

	from = state.collected_lsn;
	from_time = state.collected_time;
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!have_state)
	{
		/* what a cluster of another name left isn't about this one's WAL */
		tandem_store_clear();
		CommandCounterIncrement();
		memset(&state, 0, sizeof(state));
		state.system = GetSystemIdentifier();
	}
	if (!have_state || lost)
		state.started = GetCurrentTimestamp();
	state.timeline = GetWALInsertionTimeLine();
	state.collected_lsn = lsn;
	state.collected_time = GetCurrentTimestamp();
	tandem_batch_reset();
	if (!have_state)
		tandem_store_init(&state);
	else
		tandem_store_write(me, &state);
	if (lost)
	{
		tandem_window_record(InvalidOid, lost, from, lsn, from_time, state.collected_time);
		ereport(LOG,
				(errmsg("deletes between %X/%X and %X/%X can't be decoded any more (%s)",
						LSN_FORMAT_ARGS(from), LSN_FORMAT_ARGS(lsn), lost),
				 errdetail("A missing row that may be one of them is reported with detection \"unknown\".")));
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	written = XactLastCommitEnd;
	confirmed = MyReplicationSlot->data.confirmed_flush;
	confirmed_at = GetCurrentTimestamp();

	/* in a transaction, so that our snapshots are honoured like anybody's */
	StartTransactionCommand();
	ctx = tandem_decode_begin(lsn, TopMemoryContext);
	CommitTransactionCommand();
	return ctx;
}

/* Is somebody waiting for a position that is decoded and not published? */
static bool
is_wanted(XLogRecPtr lsn)
{
	uint64		wanted = pg_atomic_read_u64(&me->wanted_lsn);

	return wanted > pg_atomic_read_u64(&me->collected_lsn) && wanted <= lsn;
}

/* Works off the WAL that is there. */
static void
work(LogicalDecodingContext *ctx)
{
	int			n = 0;

	while (tandem_decode_next(ctx, &have_foreign))
	{
		TandemBatch *batch = tandem_batch_pending();

		if (batch->file != NULL || batch->bytes > (int64) tandem_tombstone_memory * 1024 / 8 ||
			(++n % LOOK == 0 && is_wanted(ctx->reader->EndRecPtr)))
		{
			if (batch->entries > 0)
				write_batch(ctx->reader->EndRecPtr);
			publish(ctx->reader->EndRecPtr);
			confirm(ctx->reader->EndRecPtr);
		}
		if (n % LOOK == 0)
		{
			CHECK_FOR_INTERRUPTS();
			if (n % (LOOK * 64) == 0)
			{
				if (batch->entries == 0)
					publish(ctx->reader->EndRecPtr);
				confirm(ctx->reader->EndRecPtr);
			}
		}
	}
}

static void
run(void)
{
	LogicalDecodingContext *ctx;
	ResourceOwner owner;

	if (wal_level < WAL_LEVEL_LOGICAL)
	{
		tandem_collector_set_state(me, TANDEM_COLLECTOR_UNSUPPORTED, "wal_level isn't logical",
								   "Set wal_level to logical and restart the server.");
		ereport(LOG,
				(errmsg("tombstones can't be collected: wal_level isn't logical"),
				 errhint("Set wal_level to logical and restart the server.")));
		proc_exit(0);
	}
	tandem_collector_set_state(me, TANDEM_COLLECTOR_STARTING, NULL, NULL);
	tandem_batch_reset();
	reload(InvalidXLogRecPtr);
	ctx = begin();
	owner = CurrentResourceOwner;
	if (state.collected_lsn != InvalidXLogRecPtr)
		reload(state.collected_lsn);
	count_roots();
	tandem_collector_set_state(me, TANDEM_COLLECTOR_COLLECTING, NULL, NULL);

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		ResetLatch(MyLatch);
		work(ctx);
		CurrentResourceOwner = owner;

		/* the end of WAL, or what has been flushed of it */
		if (tandem_batch_pending()->entries > 0)
			write_batch(ctx->reader->EndRecPtr);
		publish(ctx->reader->EndRecPtr);
		confirm(ctx->reader->EndRecPtr);
		if (me->reload)
			reload(ctx->reader->EndRecPtr);
		if (me->close_epoch)
			close_epoch();
		if (me->recount)
			count_roots();
		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, NAP, PG_WAIT_EXTENSION);
	}
}

/* Entry point. */
void
tandem_collector_main(Datum dbid)
{
	char		memory[32];

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	me = tandem_collector_attach(DatumGetObjectId(dbid));
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(dbid), InvalidOid, 0);

	/* nobody's functions are found but those of the server */
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("session_replication_role", "replica", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("temp_file_limit", "-1", PGC_SUSET, PGC_S_OVERRIDE);
	snprintf(memory, sizeof(memory), "%d", Max(64, tandem_tombstone_memory / 2));
	SetConfigOption("logical_decoding_work_mem", memory, PGC_SUSET, PGC_S_OVERRIDE);

	PG_TRY();
	{
		run();
	}
	PG_CATCH();
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		ErrorData  *error = CopyErrorData();

		MemoryContextSwitchTo(old);
		SpinLockAcquire(&me->mutex);
		strlcpy(me->error, error->message ? error->message : "missing error text", sizeof(me->error));
		me->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RETRY);
		SpinLockRelease(&me->mutex);
		PG_RE_THROW();
	}
	PG_END_TRY();
	proc_exit(0);
}
