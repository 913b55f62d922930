/*-------------------------------------------------------------------------
 *
 * route.c
 *	  The gate in the apply worker: is a change applied, spooled or ignored?
 *
 * Decided by the publisher's relation id before anything local is opened, so
 * that a locked table never stalls the stream:
 *
 *	 SPOOL		tandem.copies has the table as COPYING or CATCHING_UP
 *	 APPLY		pg_subscription_rel says 'r'
 *	 IGNORE		all else: a copy to come has the change, or nobody wants it
 *
 * The answer is remembered by relation id, and forgotten when one of the two
 * catalogs changes.  tandem.copies is read again when leader or copy workers
 * say so: at a transaction boundary, so a transaction is spooled whole or not
 * at all.
 *
 * At boundaries this process also
 *	 - answers the leader (see wave_snapshot.c for what it asks)
 *	 - finishes tables: when the stream has passed the copy's L and little is
 *	   left in the spool, applies the rest and writes 'r', last before the
 *	   commit.  An error there stays with the table.  After a failover of the
 *	   publisher it sends those back that were copied from a history it has lost.
 *	 - starts the leader when there are tables to copy
 *
 * Called by apply.c.
 *
 * src/subscription/route.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "replication/origin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conflict/conflict.h"
#include "subscription/dispatch.h"
#include "subscription/route.h"
#include "subscription/waves.h"

#define ENTRY_BYTES (64 * 1024) /* messages of a transaction packed into one entry */
#define FINISH_BYTES (1024 * 1024)	/* of spool that the apply worker replays itself */
#define FINISH_TIME 2000		/* ms: longest pause of the stream for it */
#define FINISH_BATCH 1000		/* tables in one transaction */
#define FINISH_INTERVAL 100		/* ms between two looks */
#define LOCKED_INTERVAL 1000	/* ... after one that has waited for a local lock */
#define FINISH_PAUSE 4			/* the least pause, as a multiple of the time the look took */
#define LEADER_INTERVAL 1000

/* A table that is being copied. */
typedef struct Gate
{
	Oid			remote_relid;	/* hash key */
	Oid			relid;
	char		state;
	int64		wave;

	StringInfoData pending;		/* messages of this transaction */
	int64		seq;			/* entries of this transaction */
	char	   *relation;		/* RELATION message of the pending entry; its length, 0 = none yet */
	int			relation_len;
	bool		looked;			/* the next three are known */
	int64		before;			/* see TandemSpool; what is replayed meanwhile is noticed late */
	int64		total;
	bool		given_up;		/* beyond tandem.spool_limit: nothing is kept any more */
	bool		touched;		/* in the list below */
	struct Gate *next_touched;
} Gate;

/* What is known of any other relation. */
typedef struct Known
{
	Oid			remote_relid;	/* hash key */
	TandemRoute route;
} Known;

static HTAB *gates = NULL;
static Gate *touched = NULL;	/* those with changes of this transaction */
static HTAB *known = NULL;
static bool known_valid = false;

/* the transaction being received */
static TransactionId current_xid;
static XLogRecPtr current_lsn;
static TimestampTz current_time;

static bool gave_up = false;	/* to be told to the leader */
static uint32 finish_seen = 0;
static bool may_finish = false;
static TimestampTz next_finish = 0;
static TimestampTz next_leader = 0;
static XLogRecPtr stream_lsn = InvalidXLogRecPtr;
static XLogRecPtr wanted_lsn = InvalidXLogRecPtr;	/* lowest that lets a table be finished */
static bool ask_position = false;

static void
invalidate_known(Datum arg, int cacheid, uint32 hash)
{
	known_valid = false;
	next_leader = 0;
}

static void
invalidate_relation(Datum arg, Oid relid)
{
	known_valid = false;
}

static HTAB *
make_table(const char *name, Size entrysize)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = entrysize;
	ctl.hcxt = TopMemoryContext;
	return hash_create(name, 128, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Reads tandem.copies.  In a transaction, between remote ones. */
static void
load_gates(void)
{
	List	   *copies = tandem_copies_list(tandem_my_subscription->subid, 0);
	HTAB	   *fresh = make_table("tandem gates", sizeof(Gate));
	HASH_SEQ_STATUS status;
	Gate	   *gate;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	ListCell   *lc;

	may_finish = false;
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);
		Gate	   *before;
		bool		found;

		if (copy->state != TANDEM_COPY_COPYING && copy->state != TANDEM_COPY_CATCHING_UP)
			continue;
		may_finish = may_finish || copy->state == TANDEM_COPY_CATCHING_UP;

		before = gates ? hash_search(gates, &copy->remote_relid, HASH_FIND, NULL) : NULL;
		gate = hash_search(fresh, &copy->remote_relid, HASH_ENTER, &found);
		if (before && before->relid == copy->relid && before->wave == copy->wave)
		{
			*gate = *before;
			before->pending.data = NULL;
			before->relation = NULL;
		}
		else
		{
			memset((char *) gate + sizeof(Oid), 0, sizeof(Gate) - sizeof(Oid));
			gate->relid = copy->relid;
			gate->wave = copy->wave;
			initStringInfo(&gate->pending);
		}
		gate->state = copy->state;
	}
	if (gates)
	{
		hash_seq_init(&status, gates);
		while ((gate = hash_seq_search(&status)) != NULL)
		{
			if (gate->pending.data)
				pfree(gate->pending.data);
			if (gate->relation)
				pfree(gate->relation);
		}
		hash_destroy(gates);
	}
	gates = fresh;
	known_valid = false;
	MemoryContextSwitchTo(old);
}

/* ---- The stream's start ----------------------------------------------------- */

void
tandem_route_start(WalReceiverConn *publisher, uint32 timeline)
{
	Oid			types[] = {TEXTOID};
	WalRcvExecResult *res;
	uint64		horizon = 0;

	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, invalidate_known, (Datum) 0);
	CacheRegisterRelcacheCallback(invalidate_relation, (Datum) 0);
	known = make_table("tandem routes", sizeof(Known));

	StartTransactionCommand();
	/*
	 * All that earlier sessions have received is below an id assigned now.  A
	 * publisher that assigns none (in recovery) can't be copied from.
	 */
	res = walrcv_exec(publisher, "SELECT pg_catalog.pg_current_xact_id()::text", lengthof(types), types);
	if (res->status == WALRCV_OK_TUPLES)
	{
		TupleTableSlot *slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
		bool		isnull;

		if (tuplestore_gettupleslot(res->tuplestore, true, false, slot))
			horizon = strtou64(TextDatumGetCString(slot_getattr(slot, 1, &isnull)), NULL, 10);
		ExecDropSingleTupleTableSlot(slot);
	}
	else
		ereport(LOG,
				(errmsg("tables of subscription \"%s\" can't be copied from this publisher: %s",
						NameStr(tandem_my_subscription->name), res->err)));
	walrcv_clear_result(res);
	tandem_received_reset(horizon);
	tandem_history_read(publisher, timeline);
	load_gates();
	CommitTransactionCommand();
	gave_up = true;				/* it may not have been told before */
}

/* ---- Changes ------------------------------------------------------------------ */

void
tandem_route_begin(TransactionId remote_xid, XLogRecPtr commit_lsn, TimestampTz commit_time)
{
	current_xid = remote_xid;
	current_lsn = commit_lsn;
	current_time = commit_time;
	tandem_received_add(remote_xid);
}

/* What earlier processes have left in a table's spool. */
static void
look_at_spool(Gate *gate)
{
	TandemSpool spool;

	if (gate->looked)
		return;
	tandem_spool_look(tandem_my_subscription->subid, gate->relid, &spool);
	gate->before = spool.before;
	gate->total = spool.total;
	gate->given_up = spool.given_up == gate->wave;
	gate->looked = true;
}

/* What a relation that isn't being copied gets. */
static TandemRoute
look_up(const LogicalRepRelation *remote)
{
	RangeVar   *name = makeRangeVar(remote->nspname, remote->relname, -1);
	Oid			relid = RangeVarGetRelid(name, NoLock, true);
	XLogRecPtr	lsn;

	/* core's message about a table that is missing comes from opening it */
	if (!OidIsValid(relid))
		return TANDEM_ROUTE_APPLY;
	if (GetSubscriptionRelState(tandem_my_subscription->subid, relid, &lsn) != SUBREL_STATE_READY)
		return TANDEM_ROUTE_IGNORE;
	return TANDEM_ROUTE_APPLY;
}

TandemRoute
tandem_route(const LogicalRepRelation *remote)
{
	Oid			remote_relid = remote->remoteid;
	Gate	   *gate;
	Known	   *entry;
	bool		found;

	AcceptInvalidationMessages();
	gate = hash_search(gates, &remote_relid, HASH_FIND, NULL);
	if (gate)
	{
		StringInfoData message;
		MemoryContext old;

		look_at_spool(gate);
		if (gate->given_up)
			return TANDEM_ROUTE_IGNORE;

		/* what the publisher says of the relation: first in an entry, and when it is new */
		initStringInfo(&message);
		pq_sendbyte(&message, LOGICAL_REP_MSG_RELATION);
		pq_sendint32(&message, remote->remoteid);
		pq_sendstring(&message, remote->nspname);
		pq_sendstring(&message, remote->relname);
		pq_sendbyte(&message, remote->replident);
		pq_sendint16(&message, remote->natts);
		for (int i = 0; i < remote->natts; i++)
		{
			pq_sendbyte(&message, bms_is_member(i, remote->attkeys) ? 1 : 0);
			pq_sendstring(&message, remote->attnames[i]);
			pq_sendint32(&message, remote->atttyps[i]);
			pq_sendint32(&message, -1);
		}
		if (gate->relation == NULL || gate->relation_len != message.len ||
			memcmp(gate->relation, message.data, message.len) != 0)
		{
			tandem_route_spool(remote_relid, &message);
			old = MemoryContextSwitchTo(TopMemoryContext);
			if (gate->relation)
				pfree(gate->relation);
			gate->relation = palloc(message.len);
			memcpy(gate->relation, message.data, message.len);
			gate->relation_len = message.len;
			MemoryContextSwitchTo(old);
		}
		pfree(message.data);
		return TANDEM_ROUTE_SPOOL;
	}

	if (!known_valid)
	{
		HASH_SEQ_STATUS status;

		hash_seq_init(&status, known);
		while ((entry = hash_seq_search(&status)) != NULL)
			hash_search(known, &entry->remote_relid, HASH_REMOVE, NULL);
		known_valid = true;
	}
	entry = hash_search(known, &remote_relid, HASH_FIND, &found);
	if (!found)
	{
		TandemRoute route = look_up(remote);

		entry = hash_search(known, &remote_relid, HASH_ENTER, &found);
		entry->route = route;
	}
	return entry->route;
}

/*
 * Is a spool beyond its limit?  Then nothing is kept of that table any more,
 * from this change on.  Noted in the spool, not in tandem.copies: the copy
 * worker may have that row, and the stream waits for nobody.
 */
static void
check_limit(Gate *gate)
{
	int64		limit = (int64) tandem_spool_limit * 1024 * 1024;
	Oid			subid = tandem_my_subscription->subid;
	TandemSpool spool;

	if (gate->total - gate->before <= limit)
		return;
	CommandCounterIncrement();
	tandem_spool_look(subid, gate->relid, &spool);
	gate->before = spool.before;
	if (gate->total - gate->before <= limit)
		return;					/* the rest is applied */
	tandem_spool_give_up(subid, gate->relid, gate->wave);
	gate->given_up = true;
	gave_up = true;
	ereport(LOG,
			(errmsg("table \"%s\" of subscription \"%s\" will be copied again: %s",
					get_rel_name(gate->relid), NameStr(tandem_my_subscription->name),
					tandem_spool_given_up_error()),
			 errhint("Increase tandem.spool_limit if there is room for more changes.")));
}

/* Writes what a table has pending. */
static void
write_pending(Gate *gate)
{
	if (gate->pending.len == 0)
		return;
	gate->total = tandem_spool_write(tandem_my_subscription->subid, gate->relid, current_lsn,
									 gate->seq++, current_xid, current_time, &gate->pending,
									 gate->total);
	check_limit(gate);
	resetStringInfo(&gate->pending);
	gate->relation_len = 0;		/* each entry says what the relation is */
	if (gate->pending.maxlen > ENTRY_BYTES * 2)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		pfree(gate->pending.data);
		initStringInfo(&gate->pending);
		MemoryContextSwitchTo(old);
	}
}

void
tandem_route_spool(LogicalRepRelId relid, StringInfo message)
{
	Oid			remote_relid = relid;
	Gate	   *gate = hash_search(gates, &remote_relid, HASH_FIND, NULL);
	StringInfoData single;
	const char *data = message->data + message->cursor;
	uint32		len = message->len - message->cursor;

	if (gate == NULL)
		elog(ERROR, "no copy of remote relation %u is under way", relid);
	if (!gate->touched)
	{
		gate->touched = true;
		gate->next_touched = touched;
		touched = gate;
	}

	/* of a TRUNCATE of several relations only this one is ours */
	if (data[0] == LOGICAL_REP_MSG_TRUNCATE)
	{
		initStringInfo(&single);
		appendBinaryStringInfo(&single, data, 1);
		pq_sendint32(&single, 1);
		appendBinaryStringInfo(&single, data + 1 + 4, 1);	/* options */
		pq_sendint32(&single, relid);
		data = single.data;
		len = single.len;
	}
	appendBinaryStringInfo(&gate->pending, (char *) &len, sizeof(len));
	appendBinaryStringInfo(&gate->pending, data, len);
	/* what the relation is belongs to the change that follows */
	if (gate->pending.len >= ENTRY_BYTES && data[0] != LOGICAL_REP_MSG_RELATION)
		write_pending(gate);
}

void
tandem_route_commit(void)
{
	for (Gate *gate = touched; gate != NULL; gate = gate->next_touched)
	{
		write_pending(gate);
		gate->seq = 0;
		gate->touched = false;
	}
	touched = NULL;
}

/* ---- Boundaries ----------------------------------------------------------------- */

/* Answers the leader. */
static void
answer_leader(TandemWaveShared *shared)
{
	uint32		spool_request;
	uint32		verify_request;
	bool		spool;
	bool		verify;
	int64		wave;
	Latch	   *latch;

	SpinLockAcquire(&shared->mutex);
	spool_request = shared->spool_request;
	verify_request = shared->verify_request;
	spool = spool_request != shared->spool_ack;
	verify = verify_request != shared->verify_ack;
	wave = shared->wave;
	SpinLockRelease(&shared->mutex);
	if (!spool && !verify)
		return;

	StartTransactionCommand();
	if (spool)
	{
		load_gates();
		tandem_received_freeze();
		SpinLockAcquire(&shared->mutex);
		shared->spool_ack = spool_request;
		SpinLockRelease(&shared->mutex);
	}
	if (verify)
	{
		TandemWaveSnapshot *snapshot = tandem_snapshot_load(tandem_my_subscription->subid, wave);
		bool		ok;

		/* the leader may still be connected to the primary that was before */
		ok = snapshot != NULL && tandem_history_has(snapshot) &&
			tandem_received_visible(snapshot);

		if (ok)
			tandem_received_forget(snapshot);
		SpinLockAcquire(&shared->mutex);
		shared->verify_ack = verify_request;
		shared->verify_ok = ok;
		SpinLockRelease(&shared->mutex);
	}
	CommitTransactionCommand();

	SpinLockAcquire(&shared->mutex);
	latch = shared->leader_pid ? shared->leader_latch : NULL;
	SpinLockRelease(&shared->mutex);
	if (latch)
		SetLatch(latch);
}

/* From now on core may apply to this table, too.  Written last before the commit. */
static void
write_ready(TandemCopy *copy, const TandemWaveSnapshot *snapshot)
{
	XLogRecPtr	lsn;

	copy->state = TANDEM_COPY_READY;
	copy->resync = copy->content = copy->stale = false;
	copy->error = copy->hint = copy->query = copy->columns = NULL;
	copy->attempts = 0;
	copy->next_retry = 0;
	copy->finished = GetCurrentTimestamp();
	tandem_copies_put_one(copy);
	if (GetSubscriptionRelState(copy->subid, copy->relid, &lsn) == SUBREL_STATE_INIT)
		TANDEM_UPDATE_SUBSCRIPTION_REL(copy->subid, copy->relid, SUBREL_STATE_READY, snapshot->lsn);
}

static bool lock_missed = false;	/* by the look that goes on */

/*
 * Finishes one table, if it can be now.  Returns whether its state changed.
 * An error is that table's.
 */
static bool
finish_table(Oid relid, TandemWaveSnapshot *snapshot, int64 wave)
{
	Oid			subid = tandem_my_subscription->subid;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	TandemCopy *copy;
	int64		entries;
	TandemSpool spool;
	volatile bool done = false;

	if (!tandem_copy_lock(subid, relid, true))
		return false;
	copy = tandem_copies_get(subid, relid);
	if (copy == NULL || copy->state != TANDEM_COPY_CATCHING_UP || copy->wave != wave)
		return false;
	if (snapshot == NULL || !tandem_history_has(snapshot))
	{
		ereport(LOG,
				(errmsg("table \"%s\" of subscription \"%s\" will be copied again: the publisher has failed over, to a server without all that was copied",
						get_rel_name(relid), NameStr(tandem_my_subscription->name))));
		tandem_copy_failed(copy, "the publisher has failed over, to a server without all that was copied");
		return true;
	}
	tandem_spool_look(subid, relid, &spool);
	if (spool.bytes > FINISH_BYTES || spool.given_up == wave)
		return false;
	if (spool.bytes == 0)
	{
		write_ready(copy, snapshot);
		return true;
	}
	/* many tables may be locked at once, and the stream waits for this */
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return false;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		(void) tandem_spool_replay(subid, relid, snapshot, PG_INT64_MAX, &entries);
		write_ready(copy, snapshot);
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
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(error);
		if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
			lock_missed = true;
		else
		{
			ereport(LOG,
					(errmsg("changes made while table \"%s\" was copied could not be applied, it will be copied again: %s",
							get_rel_name(relid), error->message)));
			tandem_copy_failed(copy, error->message);
			done = true;
		}
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	tandem_conflict_write_failed();
	return done;
}

/*
 * Finishes what can be finished, for a time.  Returns whether there are more to
 * try at once.  What has failed meanwhile is spooled no longer.
 */
static bool
finish_tables(TimestampTz until)
{
	int			finished = 0;
	bool		again = false;
	Oid			subid = tandem_my_subscription->subid;
	TandemWaveSnapshot *snapshot = NULL;
	int64		wave = 0;
	bool		changed = false;
	bool		failed = false;
	bool		left = false;
	List	   *copies;
	ListCell   *lc;
	char		saved[32];

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	copies = tandem_copies_list(subid, 0);
	wanted_lsn = InvalidXLogRecPtr;

	/* the stream waits for no local lock longer than this */
	strlcpy(saved, GetConfigOption("lock_timeout", false, false), sizeof(saved));
	SetConfigOption("lock_timeout", "300ms", PGC_SUSET, PGC_S_SESSION);

	/* a position of the origin belongs to what the stream applies */
	replorigin_session_origin_lsn = InvalidXLogRecPtr;

	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_WAITING)
		{
			Gate	   *gate = hash_search(gates, &copy->remote_relid, HASH_FIND, NULL);

			failed = failed || (gate && gate->relid == copy->relid);
		}
		if (copy->state != TANDEM_COPY_CATCHING_UP)
			continue;
		if (finished >= FINISH_BATCH)
		{
			left = again = true;	/* locks are limited */
			break;
		}
		if (copy->wave != wave)
		{
			snapshot = tandem_snapshot_load(subid, copy->wave);
			wave = copy->wave;
			if (snapshot)
				replorigin_session_origin_timestamp = snapshot->taken;
		}
		if (snapshot && tandem_history_has(snapshot) && stream_lsn < snapshot->lsn)
		{
			if (wanted_lsn == InvalidXLogRecPtr || snapshot->lsn < wanted_lsn)
				wanted_lsn = snapshot->lsn;
			left = ask_position = true;
			continue;
		}
		if (GetCurrentTimestamp() >= until || !finish_table(copy->relid, snapshot, copy->wave))
			left = true;
		else
		{
			changed = true;
			finished++;
		}
	}
	SetConfigOption("lock_timeout", saved, PGC_SUSET, PGC_S_SESSION);
	PopActiveSnapshot();
	if (changed || failed)
		load_gates();
	CommitTransactionCommand();
	tandem_apply_counted();
	may_finish = left;
	if (changed)
		next_leader = 0;
	return again;
}

void
tandem_route_boundary(XLogRecPtr end_lsn)
{
	TandemWaveShared *shared = tandem_my_wave();
	TimestampTz now = GetCurrentTimestamp();
	uint32		finish_request;

	stream_lsn = Max(stream_lsn, end_lsn);
	answer_leader(shared);

	SpinLockAcquire(&shared->mutex);
	finish_request = shared->finish_request;
	if (gave_up)
	{
		shared->given_up_request++;
		if (shared->leader_pid && shared->leader_latch)
			SetLatch(shared->leader_latch);
	}
	SpinLockRelease(&shared->mutex);
	gave_up = false;
	if (finish_request != finish_seen)
	{
		finish_seen = finish_request;
		may_finish = true;
		next_finish = 0;
	}
	if (may_finish && (now >= next_finish || (wanted_lsn != InvalidXLogRecPtr && stream_lsn >= wanted_lsn)))
	{
		TimestampTz until = TimestampTzPlusMilliseconds(now, FINISH_TIME);

		lock_missed = false;
		while (finish_tables(until) && GetCurrentTimestamp() < until)
			continue;
		/* looking at many tables in vain must not be most of what this process does */
		next_finish = Max(TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  lock_missed ? LOCKED_INTERVAL : FINISH_INTERVAL),
						  GetCurrentTimestamp() + FINISH_PAUSE * (GetCurrentTimestamp() - now));
	}
	if (now >= next_leader)
	{
		tandem_leader_consider();
		next_leader = TimestampTzPlusMilliseconds(now, LEADER_INTERVAL);
	}
}

bool
tandem_route_wants_position(void)
{
	bool		ask = ask_position;

	ask_position = false;
	return ask;
}

long
tandem_route_nap(void)
{
	return may_finish ? FINISH_INTERVAL : LEADER_INTERVAL;
}
