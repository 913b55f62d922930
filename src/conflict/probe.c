/*-------------------------------------------------------------------------
 *
 * probe.c
 *	  Waiting until the collector of tombstones has passed.
 *
 * Whoever has found a row missing wants to know that every delete which
 * committed before is in the store.  Such a delete's commit record is in WAL
 * already.  So we write a record behind it, a logical message that belongs to no
 * transaction, flush WAL to that record's end, and wait until the collector has
 * committed what it decoded up to there.  The end of a record is a position that
 * flushing and decoding get to; the insert position isn't always one (it may be
 * behind the header of a page that has no record yet).
 *
 * The message must not carry the origin of the subscription that is being
 * applied: what filters by origin would pass it by.
 *
 * A wait ends after tandem.detection_timeout.  After LIMIT of them in a row
 * nobody waits until the collector has got to where it was wanted: a collector
 * that lags by minutes must not cost a second for each missing row.
 *
 * Called by tombstone.c.
 *
 * src/conflict/probe.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/message.h"
#include "replication/origin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conflict/collector.h"

#define LIMIT 3

/* Writes the message, returns its end.  It is flushed. */
static XLogRecPtr
write_message(void)
{
	RepOriginId origin = replorigin_session_origin;
	volatile XLogRecPtr lsn = InvalidXLogRecPtr;

	PG_TRY();
	{
		replorigin_session_origin = InvalidRepOriginId;
		lsn = TANDEM_LOG_MESSAGE(TANDEM_PROBE_PREFIX, "", 0, false);
	}
	PG_FINALLY();
	{
		replorigin_session_origin = origin;
	}
	PG_END_TRY();
	XLogFlush(lsn);
	return lsn;
}

/* Tells the collector what is waited for. */
static void
want(TandemCollector *collector, XLogRecPtr lsn)
{
	uint64		before = pg_atomic_read_u64(&collector->wanted_lsn);

	while (before < lsn && !pg_atomic_compare_exchange_u64(&collector->wanted_lsn, &before, lsn))
		;
	LWLockAcquire(tandem_collectors->lock, LW_SHARED);
	if (collector->latch)
		SetLatch(collector->latch);
	LWLockRelease(tandem_collectors->lock);
}

/* Records of which deletes an apply worker could not know. */
static void
record_expiry(TandemCollector *collector, XLogRecPtr lsn)
{
	TimestampTz collected_at;

	if (!OidIsValid(tandem_conflict_session.subid))
		return;
	SpinLockAcquire(&collector->mutex);
	collected_at = collector->collected_at;
	SpinLockRelease(&collector->mutex);
	tandem_window_record(tandem_conflict_session.subid, "timeout",
						 pg_atomic_read_u64(&collector->collected_lsn), lsn,
						 collected_at, GetCurrentTimestamp());
}

const char *
tandem_probe(void)
{
	static uint32 wait_event = 0;
	TandemCollector *collector = tandem_collector_find(MyDatabaseId, false);
	XLogRecPtr	lsn;
	TimestampTz start;
	bool		passed;

	if (collector == NULL || collector->state == TANDEM_COLLECTOR_OFF)
		return "no tombstones are collected in this database";
	if (collector->state == TANDEM_COLLECTOR_UNSUPPORTED)
		return "tombstones can't be collected; see tandem.tombstones";
	if (collector->pid == 0)
		return "the collector of tombstones doesn't run";
	if (RecoveryInProgress())
		return "the server is in recovery";

	/* nothing has been written since? */
	if (pg_atomic_read_u64(&collector->collected_lsn) >= GetXLogInsertRecPtr())
		return NULL;
	if (pg_atomic_read_u32(&collector->expired_in_row) >= LIMIT)
	{
		if (pg_atomic_read_u64(&collector->collected_lsn) < pg_atomic_read_u64(&collector->wanted_lsn))
			return "the collector of tombstones lags behind";
		pg_atomic_write_u32(&collector->expired_in_row, 0);
	}

	lsn = write_message();
	start = GetCurrentTimestamp();
	want(collector, lsn);
	if (wait_event == 0)
		wait_event = TANDEM_NEW_WAIT_EVENT("TandemTombstone");

	ConditionVariablePrepareToSleep(&collector->cv);
	while (!(passed = pg_atomic_read_u64(&collector->collected_lsn) >= lsn) && collector->pid != 0)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
														   TimestampTzPlusMilliseconds(start, tandem_detection_timeout));

		if (left <= 0)
			break;
		(void) ConditionVariableTimedSleep(&collector->cv, left, wait_event);
	}
	ConditionVariableCancelSleep();

	pg_atomic_fetch_add_u64(&collector->probes, 1);
	pg_atomic_fetch_add_u64(&collector->probe_us, GetCurrentTimestamp() - start);
	if (passed)
	{
		pg_atomic_write_u32(&collector->expired_in_row, 0);
		return NULL;
	}
	pg_atomic_fetch_add_u32(&collector->expired_in_row, 1);
	pg_atomic_fetch_add_u64(&collector->expired, 1);
	record_expiry(collector, lsn);
	return "the collector of tombstones didn't get there within tandem.detection_timeout";
}
