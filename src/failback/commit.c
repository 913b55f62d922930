/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Commits that wait for the failback standbys.
 *
 * With tandem.synchronous_transfer = commit or all, a commit returns to its
 * client only after the failback standbys have flushed it, whatever
 * synchronous_standby_names says.  So does PREPARE TRANSACTION.
 *
 * We wait in a transaction callback.  The transaction is committed then, and
 * other sessions see its rows; core's own synchronous replication waits just
 * before that.  Its locks are still held.  An error is out of the question: a
 * committed transaction can't be aborted, it would be a PANIC.  So, as core
 * does, we look at cancel and termination requests ourselves and turn them
 * into warnings.  Interrupts are held off by our caller.
 *
 * Called through RegisterXactCallback.
 *
 * src/failback/commit.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/pmsignal.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"

#include "failback/failback.h"
#include "failback/guard.h"

#define DETAIL_COMMITTED "The transaction has already committed locally, but might not have been flushed by the standbys of tandem.failback_standbys."

/* Should the wait end?  Says so to the client. */
static bool
cancelled(void)
{
	if (!PostmasterIsAlive())
	{
		/* as core does: no acknowledgement, and no more commits */
		ProcDiePending = true;
		whereToSendOutput = DestNone;
	}
	else if (ProcDiePending)
	{
		ereport(WARNING,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("canceling the wait for failback standbys and terminating connection due to administrator command"),
				 errdetail(DETAIL_COMMITTED)));
		/* nobody gets to know that it has committed, not even through NOTIFY */
		whereToSendOutput = DestNone;
	}
	else if (QueryCancelPending)
	{
		QueryCancelPending = false;
		ereport(WARNING,
				(errmsg("canceling the wait for failback standbys due to user request"),
				 errdetail(DETAIL_COMMITTED)));
	}
	else
		return false;

	pg_atomic_fetch_add_u64(&tandem_guard->cancels, 1);
	return true;
}

static void
commit_xact_callback(XactEvent event, void *arg)
{
	static XLogRecPtr last_commit = InvalidXLogRecPtr;
	XLogRecPtr	lsn;

	/* the end of PREPARE isn't told, but it has just been flushed */
	if (event == XACT_EVENT_PREPARE)
		lsn = GetFlushRecPtr(NULL);
	else if (event == XACT_EVENT_COMMIT)
	{
		/* a transaction that has written nothing leaves what was there */
		lsn = XactLastCommitEnd;
		if (lsn == last_commit)
			return;
		last_commit = lsn;
	}
	else
		return;

	if (tandem_guard == NULL ||
		pg_atomic_read_u64(&tandem_guard->passes[TANDEM_WAIT_COMMIT]) == PG_UINT64_MAX ||
		synchronous_commit <= SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		return;

	/*
	 * What core has not flushed for this commit, it does not wait for either:
	 * nothing was written, or nothing that a crash could lose.
	 */
	if (XLogRecPtrIsInvalid(lsn) || lsn > GetFlushRecPtr(NULL))
		return;

	tandem_guard_wait(lsn, TANDEM_WAIT_COMMIT, cancelled);
}

void
tandem_commit_init(void)
{
	RegisterXactCallback(commit_xact_callback, NULL);
}
