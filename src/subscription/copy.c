/*-------------------------------------------------------------------------
 *
 * copy.c
 *	  The copy worker: copies tables of a wave until the queue is empty.
 *
 * It imports the leader's snapshot and keeps session and transaction on the
 * publisher (copy_stream.c); tables come from the wave's queue, a number in shared memory.
 * Several tables are committed together, each in a subtransaction of its own;
 * an error undoes one table and is shown with it.
 *
 * Nothing is committed before the publisher has flushed all that the snapshot
 * sees, as told by the session that has imported it.  Otherwise a crash there
 * could undo what has been copied here.
 *
 * Rows carry the subscription's origin with LSN 0: a position would let
 * recovery skip changes of other tables.
 *
 * Started by wave.c.
 *
 * src/subscription/copy.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/logicalrelation.h"
#include "replication/origin.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "subscription/waves.h"

#define BATCH_TABLES 200
#define BATCH_BYTES (16 * 1024 * 1024)
#define BATCH_TIME 1000			/* ms */
#define FAST_BYTES (256 * 1024) /* smaller tables aren't worth new files */
#define LOCK_WAIT "2s"
#define CACHED_TABLES 1000		/* whose descriptions may stay in this process's caches */

static TandemCopyProgress *progress = NULL;

static void
release_progress(int code, Datum arg)
{
	TandemWaveShared *shared = tandem_my_wave();
	Latch	   *latch;

	SpinLockAcquire(&shared->mutex);
	if (progress)
	{
		progress->pid = 0;
		progress->latch = NULL;
		progress->relid = InvalidOid;
	}
	shared->finish_request++;
	latch = shared->leader_pid ? shared->leader_latch : NULL;
	SpinLockRelease(&shared->mutex);
	if (latch)
		SetLatch(latch);
	tandem_wake_apply();
}

/* Tables are copied, or have failed: the apply worker looks at them. */
static void
tell_apply(void)
{
	TandemWaveShared *shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	shared->finish_request++;
	SpinLockRelease(&shared->mutex);
	tandem_wake_apply();
}

/* Ends the process if its wave is over. */
static void
check_wave(int64 wave)
{
	TandemWaveShared *shared = tandem_my_wave();
	bool		goes_on;

	CHECK_FOR_INTERRUPTS();
	SpinLockAcquire(&shared->mutex);
	goes_on = shared->leader_pid != 0 && shared->wave == wave && shared->copying;
	SpinLockRelease(&shared->mutex);
	if (!goes_on || tandem_subscription_stopping())
		proc_exit(0);
}

/*
 * Sessions that may read a large table for this worker: those of workers that
 * there could be, and are not.
 */
static int
readers(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	int			others = 0;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS; i++)
	{
		if (shared->workers[i].pid != 0 && &shared->workers[i] != progress)
			others++;
	}
	SpinLockRelease(&shared->mutex);
	return Max(tandem_wave_workers() - others, 1);
}

static void
check_local_table(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	acl = pg_class_aclcheck(relid, GetUserId(), ACL_INSERT);

	CheckSubscriptionRelkind(rel->rd_rel->relkind, get_namespace_name(RelationGetNamespace(rel)),
							 RelationGetRelationName(rel));
	if (acl != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for table %s", RelationGetRelationName(rel)),
				 errhint("The subscription's owner needs it: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON %s TO %s;",
						 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
													RelationGetRelationName(rel)),
						 quote_identifier(GetUserNameFromId(GetUserId(), false)))));
	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("user \"%s\" cannot replicate into relation with row-level security enabled: \"%s\"",
						GetUserNameFromId(GetUserId(), true), RelationGetRelationName(rel)),
				 errhint("Give the subscription an owner whom row-level security doesn't bind.")));
}

/* Is there no row that anybody could see?  Caller holds AccessExclusiveLock. */
static bool
is_empty(Relation rel)
{
	TableScanDesc scan;
	TupleTableSlot *slot;
	Snapshot	snapshot;
	bool		empty;

	if (RelationGetNumberOfBlocks(rel) == 0)
		return true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	empty = !table_scan_getnextslot(scan, ForwardScanDirection, slot);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	return empty;
}

/*
 * Locks a table exclusively for a fast load.  False, and then it isn't locked,
 * if it is in use or can't be loaded like that: its readers must not wait for
 * nothing.
 */
static bool
try_exclusive(Relation rel)
{
	if (!tandem_load_can_be_fast(rel) || !ConditionalLockRelation(rel, AccessExclusiveLock))
		return false;
	/* it may have changed before we had the lock */
	if (tandem_load_can_be_fast(rel) && is_empty(rel))
		return true;
	UnlockRelation(rel, AccessExclusiveLock);
	return false;
}

/* Copies one table, in a subtransaction. */
static void
copy_table(TandemCopy *copy)
{
	Relation	rel;
	bool		replace = copy->content || copy->resync;
	bool		fast = false;
	int64		rows = 0;
	TandemSpool spool;
	TandemCopy *now;

	rel = try_table_open(copy->relid, replace ? AccessExclusiveLock : RowExclusiveLock);
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("the table does not exist here")));
	check_local_table(rel);
	if (replace)
		fast = copy->query && tandem_fast_copy && tandem_load_can_be_fast(rel);
	else
		fast = copy->query && copy->bytes_estimated >= FAST_BYTES && tandem_fast_copy && try_exclusive(rel);
	if (replace && !fast)
		tandem_empty_relation(rel);

	if (copy->query)
	{
		tandem_copy_stream_begin(copy, readers());
		rows = tandem_load(rel, tandem_copy_columns(copy), copy->binary, fast, progress);
	}
	table_close(rel, NoLock);

	/* the apply worker gives a copy up without waiting for us: spool_limit, failover */
	tandem_spool_look(copy->subid, copy->relid, &spool);
	if (spool.given_up == copy->wave)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s", tandem_spool_given_up_error())));
	now = tandem_copies_get(copy->subid, copy->relid);
	if (now == NULL || now->state != TANDEM_COPY_COPYING || now->wave != copy->wave)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the copy was given up while it ran")));
	copy->state = TANDEM_COPY_CATCHING_UP;
	copy->content = !copy->resync;
	copy->error = NULL;
	copy->rows_done = rows;
	copy->bytes_done = progress->bytes;
	copy->finished = 0;
	tandem_copies_put_one(copy);
}

/*
 * Copies one table of a wave, unless it is no longer to be copied.  An error
 * undoes it, is written to the table's row, and returns false; *lost: it came
 * from the connection.
 */
static bool
copy_in_subtransaction(const Subscription *sub, Oid relid, int64 wave, bool *lost)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool done = false;

	*lost = false;
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		TandemCopy *copy;

		(void) tandem_copy_lock(sub->oid, relid, false);
		copy = tandem_copies_get(sub->oid, relid);
		if (copy != NULL && copy->state == TANDEM_COPY_COPYING && copy->wave == wave)
		{
			copy->started = progress->started;
			PushActiveSnapshot(GetTransactionSnapshot());
			copy_table(copy);
			PopActiveSnapshot();
		}
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;
		TandemCopy *copy;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);

		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not copy table \"%s\" of subscription \"%s\": %s",
						get_rel_name(relid), sub->name, error->message),
				 error->hint ? errhint("%s", error->hint) : 0,
				 error->context ? errcontext("%s", error->context) : 0));
		*lost = strncmp(unpack_sql_state(error->sqlerrcode), "08", 2) == 0;
		(void) tandem_copy_lock(sub->oid, relid, false);
		copy = tandem_copies_get(sub->oid, relid);
		if (copy != NULL && copy->state == TANDEM_COPY_COPYING && copy->wave == wave)
		{
			if (error->hint)
				copy->hint = error->hint;
			tandem_copy_failed(copy, error->message);
		}
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}

static int
by_ordinal(const ListCell *a, const ListCell *b)
{
	const TandemCopy *x = lfirst(a);
	const TandemCopy *y = lfirst(b);

	return x->ordinal < y->ordinal ? -1 : x->ordinal > y->ordinal;
}

/*
 * All that a worker needs before its first table: an origin, the wave's tables,
 * the publisher.  What is used up here or there concerns no table: it is said of
 * the wave.  Returns the tables in the queue's order, in the current context.
 */
static List *
begin_worker(int number, int64 wave, const char *snapshot, XLogRecPtr lsn, Subscription **subscription)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *volatile copies = NIL;

	PG_TRY();
	{
		char		origin_name[NAMEDATALEN];
		RepOriginId own;
		TandemWaveSnapshot *taken;
		Subscription *sub;

		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		sub = *subscription = GetSubscription(tandem_my_subscription->subid, false);
		SetConfigOption("synchronous_commit", sub->synccommit, PGC_BACKEND, PGC_S_OVERRIDE);
		tandem_copy_origin_name(sub->oid, number + 1, origin_name, sizeof(origin_name));
		own = replorigin_by_name(origin_name, true);
		if (own == InvalidRepOriginId)
			own = replorigin_create(origin_name);
		copies = tandem_copies_list(sub->oid, wave);
		taken = tandem_snapshot_load(sub->oid, wave);
		CommitTransactionCommand();
		if (taken == NULL)
			proc_exit(0);
		MemoryContextSwitchTo(context);
		list_sort(copies, by_ordinal);

		StartTransactionCommand();
		tandem_use_subscription_origin(sub->oid, own);
		replorigin_session_origin_timestamp = taken->taken;
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		tandem_copy_stream_connect(sub, snapshot, lsn);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		tandem_wave_failed(CopyErrorData());
		PG_RE_THROW();
	}
	PG_END_TRY();
	return copies;
}

void
tandem_copy_main(Datum index)
{
	TandemWaveShared *shared;
	Subscription *sub;
	char		snapshot[sizeof(shared->snapshot)];
	XLogRecPtr	lsn;
	int64		wave;
	int			number = -1;
	List	   *copies;
	MemoryContext context;
	bool		open = false;
	int			tables = 0;
	int			cached = 0;
	int64		bytes = 0;
	TimestampTz begun = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	tandem_subscription_attach(DatumGetInt32(index), false);
	shared = tandem_my_wave();

	SpinLockAcquire(&shared->mutex);
	wave = shared->wave;
	lsn = shared->lsn;
	strlcpy(snapshot, shared->snapshot, sizeof(snapshot));
	if (shared->leader_pid != 0 && shared->copying)
	{
		for (int i = 0; i < TANDEM_MAX_SYNC_WORKERS && number < 0; i++)
		{
			if (shared->workers[i].pid == 0)
			{
				number = i;
				shared->workers[i].pid = MyProcPid;
				shared->workers[i].latch = MyLatch;
				shared->workers[i].relid = shared->workers[i].void_relid = InvalidOid;
			}
		}
	}
	SpinLockRelease(&shared->mutex);
	if (number < 0)
		proc_exit(0);
	progress = &shared->workers[number];
	before_shmem_exit(release_progress, 0);

	tandem_subscription_connect();
	SetConfigOption("lock_timeout", LOCK_WAIT, PGC_SUSET, PGC_S_OVERRIDE);

	context = AllocSetContextCreate(TopMemoryContext, "tandem copy", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	copies = begin_worker(number, wave, snapshot, lsn, &sub);

	for (;;)
	{
		uint32		place = pg_atomic_fetch_add_u32(&shared->next, 1);
		TandemCopy *copy = place < list_length(copies) ? list_nth(copies, place) : NULL;
		bool		finished = copy == NULL;
		bool		lost;

		if (copy)
		{
			check_wave(wave);
			if (copy->state != TANDEM_COPY_COPYING)
				continue;
			if (!open)
			{
				StartTransactionCommand();
				open = true;
				tables = 0;
				bytes = 0;
				begun = GetCurrentTimestamp();
			}
			progress->started = GetCurrentTimestamp();
			progress->relid = copy->relid;
			progress->rows = progress->bytes = 0;

			if (!copy_in_subtransaction(sub, copy->relid, wave, &lost))
			{
				/* what is left of the data, or of a broken connection, goes */
				CommitTransactionCommand();
				open = false;
				MemoryContextSwitchTo(context);
				tell_apply();
				if (tandem_copy_stream_unread() || lost)
					tandem_copy_stream_connect(sub, snapshot, lsn);
			}
			tables++;
			bytes += progress->bytes;
			progress->relid = InvalidOid;
		}

		if (open && (finished || tables >= BATCH_TABLES || bytes >= BATCH_BYTES ||
					 GetCurrentTimestamp() >= TimestampTzPlusMilliseconds(begun, BATCH_TIME)))
		{
			check_wave(wave);
			tandem_copy_stream_end();
			CommitTransactionCommand();
			open = false;
			MemoryContextSwitchTo(context);
			pgstat_report_stat(false);
			cached += tables;
			if (cached >= CACHED_TABLES)
			{
				InvalidateSystemCaches();
				cached = 0;
			}
			tell_apply();
		}
		if (finished)
			break;
	}
	tandem_copy_stream_disconnect();
	proc_exit(0);
}
