/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  Holding logical walsenders back.
 *
 * A subscriber must never see a change that the standby lacks which is
 * promoted next: it would keep a row that the new primary never had.  So as
 * long as tandem.standby_slots names standbys, nothing leaves through a slot
 * matched by tandem.failover_slots before those standbys have flushed it.
 *
 * How a walsender is held.  The wrapper around the methods that send to the
 * client (common/standby.c) asks us about every message.  One that must wait
 * is kept, and until it may leave we say that output is pending.  Core then
 * stays in ProcessPendingWrites, which handles the client's replies, the
 * timeout, keepalives, reload and disconnect, and calls flush_if_writable
 * over and over, where we sleep until the position we need is published, 10
 * ms at most.  Core produces no other data meanwhile, so one message is all
 * there is to keep.
 *
 *	   PASSING --- data beyond the position ---> HOLDING
 *	   HOLDING --- flushed by the standbys, or gate opened ---> PASSING
 *	   HOLDING --- client ends the stream ---> CUT (until the next stream)
 *	   HOLDING, or PASSING with a capped keepalive --- shutdown ---> exit
 *
 * What a message needs:
 * - Data ('w') needs the position in its header, which for the end of a
 *	 transaction is the end of the commit record, exactly.  It also needs
 *	 everything up to the record that is being decoded, and a byte of that:
 *	 rows leave only while their commit is decoded (or, streamed, while the
 *	 record is that filled the memory), and everything before is in
 *	 MyWalSnd->sentPtr.  That holds back Begin and rows of all output plugins
 *	 without knowing their formats.  Rows, not the commit, may leave when a
 *	 standby has flushed only the first part of a commit record.
 * - A keepalive ('k') is never held.  The position in it is lowered to what
 *	 standbys have flushed, since a client may confirm it and start from it
 *	 later.  It is not lowered below what this client has been told before.
 *	 When the standbys get there, an idle walsender is woken so that core
 *	 sends the next keepalive; a synchronous subscriber may wait for it.
 *
 * When the client ends the stream (CopyDone) while a message is held, ours
 * is answered at once and all that remains of the stream is dropped: nothing
 * may follow CopyDone, and what is dropped was never confirmed.
 *
 * Shutdown.  A fast shutdown waits until logical walsenders have sent
 * everything and got it confirmed, which a held one never does, nor one whose
 * keepalives are capped.  So once the tandem worker has seen SIGTERM they
 * exit without sending: at once if no standby can confirm any more, else
 * after SHUTDOWN_GRACE_MS.
 *
 * The SQL functions that decode (pg_logical_slot_get_changes and relatives,
 * also pg_replication_slot_advance) wait before they decode anything.  They
 * have no hook, but each calls InvalidateSystemCaches once it has acquired
 * the slot and knows how far it will decode; we get that as a syscache
 * callback.  Waiting later, with the result, would be too late: the slot has
 * moved by then, and a cancelled wait would lose the changes for good.
 *
 * Nothing of this happens in recovery, nor for temporary slots, which no
 * standby can have.
 *
 * src/slots/gate.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/libpq_methods.h"
#include "common/settings.h"
#include "common/standby.h"
#include "slots/gate.h"

/* Longest sleep of a held walsender before core gets to look at its client. */
#define HOLD_SLEEP_MS 10

/* Longest sleep of an SQL function; what wakes nobody is seen after that. */
#define SQL_SLEEP_MS 200

/* A hold is logged when it gets that old. */
#define LONG_HOLD_MS (10 * 1000)

/* A capped keepalive that says nothing new is sent only that often. */
#define CAPPED_REPEAT_MS 100

/* How long a held walsender waits for connected standbys at shutdown. */
#define SHUTDOWN_GRACE_MS 5000

#define KEEPALIVE_LENGTH (1 + 8 + 8 + 1)
#define DATA_HEADER_LENGTH (1 + 8 + 8 + 8)

/* What a held walsender shows to others; by its number in WalSndCtl. */
typedef struct GateHold
{
	slock_t		mutex;			/* protects the rest */
	XLogRecPtr	wanted;			/* invalid = not held */
	TimestampTz since;
	NameData	slot_name;
} GateHold;

typedef struct GateShared
{
	/* when the server began to shut down, a TimestampTz; 0 = it runs */
	pg_atomic_uint64 shutdown_since;
	GateHold	holds[FLEXIBLE_ARRAY_MEMBER];	/* max_wal_senders */
} GateShared;

static GateShared *shared = NULL;

/* The stream of this walsender. */
static struct
{
	/* the one message that is held */
	bool		holding;
	StringInfoData message;		/* in TopMemoryContext */
	XLogRecPtr	wanted;			/* what it waits for */
	TimestampTz since;
	bool		logged;			/* the hold got a log line */

	/* CopyDone overtook a held message: drop everything after it */
	bool		cut;

	/* highest position the client has been told */
	XLogRecPtr	told;

	/* the last keepalive was lowered: from and to which position, when */
	bool		capped;
	XLogRecPtr	capped_from;
	XLogRecPtr	capped_to;
	TimestampTz capped_at;

	/*
	 * Result of passable_lsn, and what it was computed for.  One look at the
	 * standbys serves all messages of one decoded record.
	 */
	XLogRecPtr	passable;
	XLogRecPtr	passable_sent;
	uint64		passable_generation;
	uint64		passable_version;
} stream;

/* State of the SQL functions: has the call in progress waited already? */
static bool sql_waited = false;

/* The transaction has used pg_replication_slot_advance. */
static bool sql_advanced = false;

/* An error in the wait leads back into the callback. */
static bool sql_waiting = false;

static object_access_hook_type prev_object_access_hook = NULL;

/* ---- how far may this slot's client see? ---------------------------------------- */

/* Does the gate apply to this slot? */
static bool
gate_applies(ReplicationSlot *slot)
{
	return tandem_standby_slots_list != NULL &&
		slot != NULL &&
		SlotIsLogical(slot) &&
		slot->data.persistency == RS_PERSISTENT &&
		!RecoveryInProgress() &&
		tandem_failover_slot_matches(NameStr(slot->data.name));
}

/*
 * Everything before the returned position may leave this walsender.  Unless
 * fresh, an answer given for the same decoded record is good enough while no
 * standby has reported.
 */
static XLogRecPtr
passable_lsn(bool fresh)
{
	uint64		generation;

	if (tandem_standby_slots_list == NULL)
		return PG_UINT64_MAX;

	generation = tandem_standby_generation();
	if (fresh ||
		stream.passable_sent != MyWalSnd->sentPtr ||
		stream.passable_generation != generation ||
		stream.passable_version != tandem_standby_slots_version)
	{
		stream.passable = gate_applies(MyReplicationSlot) ?
			tandem_confirmed_lsn(tandem_standby_slots_list) :
			PG_UINT64_MAX;
		stream.passable_sent = MyWalSnd->sentPtr;
		stream.passable_generation = generation;
		stream.passable_version = tandem_standby_slots_version;
	}
	return stream.passable;
}

/* ---- state transitions ------------------------------------------------------------ */

/* Shows the hold of this walsender to others; InvalidXLogRecPtr ends it. */
static void
show_hold(XLogRecPtr wanted)
{
	GateHold   *hold = &shared->holds[MyWalSnd - WalSndCtl->walsnds];

	SpinLockAcquire(&hold->mutex);
	hold->wanted = wanted;
	if (!XLogRecPtrIsInvalid(wanted))
	{
		hold->since = stream.since;
		hold->slot_name = MyReplicationSlot->data.name;
	}
	SpinLockRelease(&hold->mutex);
}

static void
hide_hold_at_exit(int code, Datum arg)
{
	if (stream.holding && MyWalSnd != NULL)
		show_hold(InvalidXLogRecPtr);
}

/* PASSING -> HOLDING */
static void
hold_message(const char *s, size_t len, XLogRecPtr wanted)
{
	static bool exit_registered = false;

	/* core waits until nothing is pending before it sends more data */
	if (stream.holding)
		elog(ERROR, "a second message while one is held");

	if (!exit_registered)
	{
		/* the entry would outlive us otherwise */
		before_shmem_exit(hide_hold_at_exit, 0);
		exit_registered = true;
	}

	if (stream.message.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&stream.message);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&stream.message);
	appendBinaryStringInfo(&stream.message, s, len);

	stream.holding = true;
	stream.wanted = wanted;
	stream.since = GetCurrentTimestamp();
	stream.logged = false;
	show_hold(wanted);
	tandem_standby_wait_begin(wanted);
}

/* HOLDING -> PASSING, CUT or nothing; the message is gone or sent. */
static void
end_hold(void)
{
	if (!stream.holding)
		return;

	stream.holding = false;
	tandem_standby_wait_end();
	show_hold(InvalidXLogRecPtr);
	if (stream.capped)
		tandem_standby_wait_begin(stream.capped_from);

	/* one huge row is no reason to keep its memory */
	if (stream.message.maxlen > 1024 * 1024)
	{
		pfree(stream.message.data);
		stream.message.data = NULL;
	}
}

/* The last keepalive was capped (true), or told everything (false). */
static void
set_capped(bool capped)
{
	if (capped && !stream.holding)
		tandem_standby_wait_begin(stream.capped_from);
	else if (!capped && stream.capped && !stream.holding)
		tandem_standby_wait_end();
	stream.capped = capped;
}

/* A stream begins, or an error ended one. */
static void
gate_reset(void)
{
	end_hold();
	set_capped(false);
	stream.cut = false;
	stream.told = InvalidXLogRecPtr;
	stream.capped_at = 0;
	stream.passable_generation = 0;
}

/* ---- the messages --------------------------------------------------------------------- */

static uint64
get_int64(const char *s)
{
	uint64		n;

	memcpy(&n, s, sizeof(n));
	return pg_ntoh64(n);
}

static void
put_int64(char *s, uint64 n)
{
	n = pg_hton64(n);
	memcpy(s, &n, sizeof(n));
}

/*
 * Sends a keepalive with no more than standbys have flushed.  Returns true if
 * it did, false if the message may leave as it is.
 */
static bool
cap_keepalive(const char *s, size_t len)
{
	char		message[KEEPALIVE_LENGTH];
	XLogRecPtr	lsn = get_int64(s + 1);
	XLogRecPtr	limit = passable_lsn(true);
	bool		reply_requested = s[len - 1] != 0;
	TimestampTz now;

	/* what the client has confirmed or been told it knows anyway */
	if (XLogRecPtrIsInvalid(stream.told))
		stream.told = MyReplicationSlot->data.confirmed_flush;
	limit = Max(limit, stream.told);

	if (lsn <= limit)
	{
		set_capped(false);
		stream.told = Max(stream.told, lsn);
		return false;
	}

	tandem_standby_report(tandem_standby_slots_list, TANDEM_REPORT_GATE,
						  "tandem.standby_slots");

	/*
	 * Core repeats keepalives on every wakeup until the client has confirmed
	 * the position in them, which it can't as long as we lower it.
	 */
	now = GetCurrentTimestamp();
	if (!reply_requested && stream.capped && stream.capped_to == limit &&
		!TimestampDifferenceExceeds(stream.capped_at, now, CAPPED_REPEAT_MS))
	{
		stream.capped_from = lsn;
		return true;
	}

	stream.capped_from = lsn;
	stream.capped_to = limit;
	stream.capped_at = now;
	set_capped(true);
	stream.told = limit;

	memcpy(message, s, KEEPALIVE_LENGTH);
	put_int64(message + 1, limit);
	tandem_wrapped_methods->putmessage_noblock('d', message, KEEPALIVE_LENGTH);
	return true;
}

/*
 * Every message that walsenders send without blocking comes here.  True means
 * that it is taken care of.
 */
static bool
gate_putmessage_noblock(char msgtype, const char *s, size_t len)
{
	XLogRecPtr	lsn;
	XLogRecPtr	wanted;

	if (msgtype == 'c' && stream.holding)
	{
		end_hold();
		stream.cut = true;
		return false;
	}
	if (msgtype != 'd')
		return false;
	if (stream.cut)
		return true;
	if (tandem_standby_slots_list == NULL ||
		MyReplicationSlot == NULL || !SlotIsLogical(MyReplicationSlot))
	{
		if (stream.capped)
			set_capped(false);
		return false;
	}

	if (len == KEEPALIVE_LENGTH && s[0] == 'k')
		return cap_keepalive(s, len);
	if (len < DATA_HEADER_LENGTH || s[0] != 'w')
		return false;

	lsn = get_int64(s + 1);
	wanted = Max(lsn, MyWalSnd->sentPtr + 1);
	if (wanted <= passable_lsn(false))
	{
		stream.told = Max(stream.told, lsn);
		return false;
	}
	hold_message(s, len, wanted);
	return true;
}

static bool
gate_holds_message(void)
{
	return stream.holding;
}

/* Is the server shutting down, and we wait for standbys in vain? */
static bool
must_leave(XLogRecPtr wanted)
{
	TimestampTz since = (TimestampTz) pg_atomic_read_u64(&shared->shutdown_since);

	if (since == 0 || tandem_standby_slots_list == NULL ||
		passable_lsn(true) >= wanted)
		return false;
	return TimestampDifferenceExceeds(since, GetCurrentTimestamp(), SHUTDOWN_GRACE_MS) ||
		tandem_reachable_lsn(tandem_standby_slots_list) < wanted;
}

/* Says once what a long hold waits for. */
static void
log_long_hold(void)
{
	NameData	name;
	TandemStandbyState state;

	tandem_standby_report(tandem_standby_slots_list, TANDEM_REPORT_GATE,
						  "tandem.standby_slots");

	if (stream.logged ||
		!TimestampDifferenceExceeds(stream.since, GetCurrentTimestamp(), LONG_HOLD_MS))
		return;
	stream.logged = true;

	if (tandem_standby_blocker(tandem_standby_slots_list, stream.wanted, &name, &state))
		ereport(LOG_SERVER_ONLY,
				(errmsg("logical replication slot \"%s\" waits for standby slot \"%s\"",
						NameStr(MyReplicationSlot->data.name), NameStr(name)),
				 errdetail("The standby has flushed up to %X/%X of %X/%X and is %s.",
						   LSN_FORMAT_ARGS(state.flush), LSN_FORMAT_ARGS(stream.wanted),
						   state.pid != 0 ? "connected" : "not connected")));
}

/*
 * Sleeps until the held message may leave, HOLD_SLEEP_MS at most.  Comes back
 * early when core has something to do.
 */
static bool
wait_for_standbys(void)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), HOLD_SLEEP_MS);
	bool		fresh = true;
	bool		woken = false;
	bool		passes;

	for (;;)
	{
		long		rest;

		passes = stream.wanted <= passable_lsn(fresh);
		if (passes || InterruptPending || ConfigReloadPending)
			break;

		rest = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
		if (rest <= 0)
			break;

		/* every flush of WAL wakes all walsenders; no need to bother core */
		if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  rest, PG_WAIT_EXTENSION) &
			WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			woken = true;
		}
		fresh = false;
	}

	/* what we consumed may have been meant for core */
	if (woken)
		SetLatch(MyLatch);
	return passes;
}

static int
gate_flush_if_writable(void)
{
	int			result = tandem_wrapped_methods->flush_if_writable();

	if (result != 0 || !(stream.holding || stream.capped))
		return result;

	if (must_leave(stream.holding ? stream.wanted : stream.capped_from))
	{
		ereport(LOG_SERVER_ONLY,
				(errmsg("shutting down although logical replication slot \"%s\" still waits for standbys",
						MyReplicationSlot ? NameStr(MyReplicationSlot->data.name) : ""),
				 errdetail("Its client gets the rest from where it stopped, after the next start or failover.")));
		return EOF;
	}

	if (!stream.holding)
		return 0;

	if (!wait_for_standbys())
	{
		log_long_hold();
		return 0;
	}

	/* the client measures lag by the time of sending */
	put_int64(stream.message.data + 1 + 8 + 8, GetCurrentTimestamp());
	tandem_wrapped_methods->putmessage_noblock('d', stream.message.data, stream.message.len);
	stream.told = Max(stream.told, get_int64(stream.message.data + 1));
	if (stream.logged)
		ereport(LOG_SERVER_ONLY,
				(errmsg("logical replication slot \"%s\" goes on after %ld ms",
						NameStr(MyReplicationSlot->data.name),
						TimestampDifferenceMilliseconds(stream.since, GetCurrentTimestamp()))));
	end_hold();

	return tandem_wrapped_methods->flush_if_writable();
}

/* ---- SQL functions ---------------------------------------------------------------------- */

/*
 * The end of the last record that begins before the current flush position.
 * That position itself is the end of a record or the end of a page inside
 * one.  Flushes the remainder in the second case.
 */
static XLogRecPtr
flushed_record_end(void)
{
	XLogRecPtr	flush = GetFlushRecPtr(NULL);

	while (flush % XLOG_BLCKSZ == 0 &&
		   GetXLogInsertRecPtr() > flush + SizeOfXLogLongPHD)
	{
		CHECK_FOR_INTERRUPTS();
		XLogFlush(flush + SizeOfXLogLongPHD + 1);
		flush = GetFlushRecPtr(NULL);
	}
	return flush;
}

/* Waits until the standbys have all that a decoding function can return. */
static void
wait_before_decoding(void)
{
	XLogRecPtr	wanted = flushed_record_end();

	while (gate_applies(MyReplicationSlot))
	{
		tandem_standby_wait_begin(wanted);
		if (tandem_standbys_confirmed(tandem_standby_slots_list, wanted))
			break;
		tandem_standby_report(tandem_standby_slots_list, TANDEM_REPORT_GATE,
							  "tandem.standby_slots");

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 SQL_SLEEP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();

		/* as core does where a statement waits for standbys */
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
	tandem_standby_wait_end();
}

/*
 * Syscache callback; hash value 0 is a reset of all caches.  The SQL
 * functions do one when they are ready to decode, and one when they are done
 * (released the slot, except for advance) or failed (still have it).  Resets
 * may also come from outside at any time.
 */
static void
cache_reset_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	if (hashvalue != 0 || shared == NULL)
		return;

	if (MyReplicationSlot == NULL)
	{
		sql_waited = false;
		return;
	}

	/* streaming walsenders are held above */
	if (am_walsender && MyWalSnd != NULL && MyWalSnd->state != WALSNDSTATE_STARTUP)
		return;

	/*
	 * Once per call.  Advance does not show its end, so after it we can't
	 * tell and rather wait once more.
	 */
	if (sql_waiting || (sql_waited && !sql_advanced) ||
		!gate_applies(MyReplicationSlot) ||
		!IsTransactionState() || InterruptHoldoffCount > 0 || CritSectionCount > 0)
		return;

	sql_waited = true;
	sql_waiting = true;			/* stays until the end of transaction if it fails */
	wait_before_decoding();
	sql_waiting = false;
}

static void
gate_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId,
				   void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	if (access == OAT_FUNCTION_EXECUTE && objectId == F_PG_REPLICATION_SLOT_ADVANCE)
		sql_advanced = true;
}

/* Any end of a transaction or subtransaction ends the calls in it. */
static void
sql_reset(bool failed)
{
	if (failed && sql_waiting)
		tandem_standby_wait_end();
	sql_waited = false;
	sql_waiting = false;
}

static void
gate_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			sql_reset(event == XACT_EVENT_ABORT);
			sql_advanced = false;
			break;
		default:
			break;
	}
}

static void
gate_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		sql_reset(true);
}

/* ---- for views ------------------------------------------------------------------------------ */

bool
tandem_gate_blocked(const char **reason, const char **hint)
{
	const TandemStandbyList *list = tandem_standby_slots_list;
	StringInfoData reason_buf;
	StringInfoData hint_buf;

	if (list == NULL || RecoveryInProgress() ||
		!XLogRecPtrIsInvalid(tandem_confirmed_lsn(list)))
		return false;

	initStringInfo(&reason_buf);
	initStringInfo(&hint_buf);
	for (int i = 0; i < list->nnames && reason_buf.len == 0; i++)
	{
		TandemStandbyState state;

		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		tandem_standby_state(NameStr(list->names[i]), false, &state);
		LWLockRelease(ReplicationSlotControlLock);
		tandem_standby_explain(NameStr(list->names[i]), state.problem,
							   "tandem.standby_slots", &reason_buf, &hint_buf);
	}
	if (reason_buf.len == 0)
		return false;			/* mended meanwhile */

	*reason = reason_buf.data;
	*hint = hint_buf.data;
	return true;
}

bool
tandem_gate_slot_held(const char *slot_name, TimestampTz *since, XLogRecPtr *wanted)
{
	if (shared == NULL)
		return false;

	for (int i = 0; i < max_wal_senders; i++)
	{
		GateHold   *hold = &shared->holds[i];
		bool		found;

		SpinLockAcquire(&hold->mutex);
		found = !XLogRecPtrIsInvalid(hold->wanted) &&
			strcmp(NameStr(hold->slot_name), slot_name) == 0;
		*wanted = hold->wanted;
		*since = hold->since;
		SpinLockRelease(&hold->mutex);
		if (found)
			return true;
	}
	return false;
}

int
tandem_gate_count_held(TimestampTz *since, XLogRecPtr *wanted)
{
	int			count = 0;

	for (int i = 0; shared != NULL && i < max_wal_senders; i++)
	{
		GateHold   *hold = &shared->holds[i];

		SpinLockAcquire(&hold->mutex);
		if (!XLogRecPtrIsInvalid(hold->wanted))
		{
			if (count == 0 || hold->since < *since)
			{
				*since = hold->since;
				*wanted = hold->wanted;
			}
			count++;
		}
		SpinLockRelease(&hold->mutex);
	}
	return count;
}

/* ---- wiring ----------------------------------------------------------------------------------- */

void
tandem_gate_set_shutdown(bool shutting_down)
{
	if (shared != NULL)
		pg_atomic_write_u64(&shared->shutdown_since,
							shutting_down ? (uint64) GetCurrentTimestamp() : 0);
}

static Size
shared_size(void)
{
	return add_size(offsetof(GateShared, holds),
					mul_size(max_wal_senders, sizeof(GateHold)));
}

void
tandem_gate_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
}

void
tandem_gate_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("pg_tandem gate", shared_size(), &found);
	if (!found)
	{
		pg_atomic_init_u64(&shared->shutdown_since, 0);
		for (int i = 0; i < max_wal_senders; i++)
		{
			memset(&shared->holds[i], 0, sizeof(GateHold));
			SpinLockInit(&shared->holds[i].mutex);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

void
tandem_gate_init(void)
{
	tandem_walsender_hooks.reset = gate_reset;
	tandem_walsender_hooks.putmessage_noblock = gate_putmessage_noblock;
	tandem_walsender_hooks.holds_message = gate_holds_message;
	tandem_walsender_hooks.flush_if_writable = gate_flush_if_writable;

	/* any cache will do; access methods are hardly ever touched */
	CacheRegisterSyscacheCallback(AMOID, cache_reset_callback, (Datum) 0);
	RegisterXactCallback(gate_xact_callback, NULL);
	RegisterSubXactCallback(gate_subxact_callback, NULL);

	prev_object_access_hook = object_access_hook;
	object_access_hook = gate_object_access;
}
