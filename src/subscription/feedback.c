/*-------------------------------------------------------------------------
 *
 * feedback.c
 *	  What the publisher is told: how far we have received, written, flushed.
 *
 * What it is told is flushed it may forget.  A commit here returns before it
 * is flushed if synchronous_commit is off, so each is remembered with its
 * position here and there until the local WAL is flushed past it.  Only while
 * none is waiting, and no transaction is half received, does "flushed" follow
 * what has merely been received.
 *
 * Called by apply.c and transaction.c.
 *
 * src/subscription/feedback.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "libpq/pqformat.h"
#include "replication/walreceiver.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "subscription/apply.h"
#include "subscription/subscription.h"

typedef struct Commit
{
	XLogRecPtr	local_end;
	XLogRecPtr	remote_end;
} Commit;

/* A ring of those not known to be flushed; in order of both positions. */
static Commit *commits = NULL;
static int	size = 0;			/* a power of two */
static int	first = 0;
static int	count = 0;

static XLogRecPtr written = InvalidXLogRecPtr;	/* there; committed here */
static XLogRecPtr flushed = InvalidXLogRecPtr;	/* there; flushed here */

void
tandem_feedback_committed(XLogRecPtr remote_end)
{
	if (count == size)
	{
		int			larger = Max(size * 2, 1024);
		Commit	   *moved = MemoryContextAllocHuge(TopMemoryContext, larger * sizeof(Commit));

		for (int i = 0; i < count; i++)
			moved[i] = commits[(first + i) & (size - 1)];
		if (commits)
			pfree(commits);
		commits = moved;
		size = larger;
		first = 0;
	}
	commits[(first + count) & (size - 1)].local_end = XactLastCommitEnd;
	commits[(first + count) & (size - 1)].remote_end = remote_end;
	count++;
	written = remote_end;
}

/* Forgets those that are flushed. */
static void
take_flushed(void)
{
	XLogRecPtr	local_flush = count > 0 ? GetFlushRecPtr(NULL) : InvalidXLogRecPtr;

	while (count > 0 && commits[first].local_end <= local_flush)
	{
		flushed = commits[first].remote_end;
		first = (first + 1) & (size - 1);
		count--;
	}
}

bool
tandem_feedback_pending(void)
{
	return count > 0;
}

void
tandem_feedback_send(WalReceiverConn *conn, XLogRecPtr received, bool force, bool request_reply)
{
	static StringInfoData reply;
	static XLogRecPtr sent_received = InvalidXLogRecPtr;
	static XLogRecPtr sent_written = InvalidXLogRecPtr;
	static XLogRecPtr sent_flushed = InvalidXLogRecPtr;
	static TimestampTz sent_at = 0;
	TandemSubscriptionSlot *slot = tandem_my_subscription;
	TimestampTz now;

	if (!force && wal_receiver_status_interval <= 0)
		return;

	received = Max(received, sent_received);
	take_flushed();
	if (count == 0 && !tandem_apply.in_transaction)
		written = flushed = Max(received, flushed);

	now = GetCurrentTimestamp();
	if (!force && written <= sent_written && flushed <= sent_flushed &&
		!TimestampDifferenceExceeds(sent_at, now, wal_receiver_status_interval * 1000))
		return;
	sent_at = now;
	sent_received = received;
	sent_written = Max(written, sent_written);
	sent_flushed = Max(flushed, sent_flushed);

	if (reply.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&reply);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&reply);
	pq_sendbyte(&reply, 'r');
	pq_sendint64(&reply, sent_received);
	pq_sendint64(&reply, sent_flushed);
	pq_sendint64(&reply, sent_written);
	pq_sendint64(&reply, now);
	pq_sendbyte(&reply, request_reply);
	walrcv_send(conn, reply.data, reply.len);

	SpinLockAcquire(&slot->mutex);
	slot->flushed_lsn = sent_flushed;
	SpinLockRelease(&slot->mutex);
}
