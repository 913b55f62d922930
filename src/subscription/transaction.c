/*-------------------------------------------------------------------------
 *
 * transaction.c
 *	  The publisher's transactions, one after the other.
 *
 *	 idle --BEGIN--> begun --first change--> open --COMMIT--> idle
 *					   |				  (transaction here)
 *					   +------COMMIT: nothing for us-----> idle
 *
 * A transaction here carries the position of the publisher's (origin LSN and
 * time) in its commit record, so that what is applied and what is remembered as
 * applied are one.  An empty one isn't committed: the publisher sends nothing
 * again before the position that we confirm, and sending nothing twice is
 * harmless.
 *
 * Called by apply.c, and by stream.c for what it has kept.
 *
 * src/subscription/transaction.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/pqformat.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "subscription/apply.h"
#include "subscription/dispatch.h"
#include "subscription/relation.h"
#include "subscription/route.h"
#include "subscription/subscription.h"

TandemApply tandem_apply;

static void
protocol_error(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg_internal("%s", what)));
}

void
tandem_transaction_ensure(void)
{
	if (IsTransactionState())
		return;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	tandem_row_reread();
	MemoryContextSwitchTo(tandem_apply.message_context);
}

void
tandem_transaction_begin(TransactionId xid, XLogRecPtr finish_lsn, TimestampTz time)
{
	tandem_apply.xid = xid;
	tandem_apply.finish_lsn = finish_lsn;
	tandem_apply.in_transaction = true;
	tandem_apply_at.xid = xid;
	tandem_apply_at.finish_lsn = finish_lsn;
	tandem_apply_begin_transaction(xid, finish_lsn, time);

	tandem_apply.skipping = !XLogRecPtrIsInvalid(tandem_apply.sub->skiplsn) &&
		tandem_apply.sub->skiplsn == finish_lsn;
	if (tandem_apply.skipping)
		ereport(LOG,
				(errmsg("logical replication starts skipping transaction at LSN %X/%X",
						LSN_FORMAT_ARGS(finish_lsn))));
	tandem_route_begin(xid, finish_lsn, time);
}

/* ---- Changes ------------------------------------------------------------------------ */

/* Each table of a TRUNCATE may go another way. */
static void
route_truncate(StringInfo message)
{
	StringInfoData body = *message;
	List	   *here = NIL;
	List	   *elsewhere = NIL;
	bool		cascade;
	bool		restart_sequences;
	ListCell   *lc;

	(void) pq_getmsgbyte(&body);
	foreach(lc, logicalrep_read_truncate(&body, &cascade, &restart_sequences))
	{
		LogicalRepRelId relid = lfirst_oid(lc);

		switch (tandem_route(tandem_relation_find(relid)->remote))
		{
			case TANDEM_ROUTE_APPLY:
				here = lappend_oid(here, relid);
				break;
			case TANDEM_ROUTE_SPOOL:
				tandem_apply_flush();
				tandem_route_spool(relid, message); /* takes its own part */
				elsewhere = lappend_oid(elsewhere, relid);
				break;
			case TANDEM_ROUTE_IGNORE:
				elsewhere = lappend_oid(elsewhere, relid);
				break;
		}
	}
	if (here != NIL)
		tandem_apply_truncate(here, elsewhere, restart_sequences);
}

void
tandem_transaction_change(StringInfo message)
{
	char		action = message->data[message->cursor];
	LogicalRepRelId relid;
	uint32		wire;

	if (action == LOGICAL_REP_MSG_RELATION || action == LOGICAL_REP_MSG_TYPE)
	{
		tandem_apply_message(message);
		return;
	}
	if (tandem_apply.skipping)
		return;
	if (!tandem_apply.in_transaction)
		protocol_error("a change came outside of a transaction");

	tandem_apply_keep_alive();
	tandem_transaction_ensure();
	if (action == LOGICAL_REP_MSG_TRUNCATE)
	{
		route_truncate(message);
		return;
	}

	if (message->len - message->cursor < 1 + (int) sizeof(wire))
		protocol_error("a change is too short");
	memcpy(&wire, message->data + message->cursor + 1, sizeof(wire));
	relid = pg_ntoh32(wire);
	switch (tandem_route(tandem_relation_find(relid)->remote))
	{
		case TANDEM_ROUTE_APPLY:
			tandem_apply_message(message);
			break;
		case TANDEM_ROUTE_SPOOL:
			tandem_apply_flush();
			tandem_route_spool(relid, message);
			break;
		case TANDEM_ROUTE_IGNORE:
			break;
	}
}

/* ---- The end --------------------------------------------------------------------------- */

void
tandem_transaction_done(XLogRecPtr end_lsn, TimestampTz time, bool local)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;

	if (local)
	{
		tandem_feedback_committed(end_lsn);
		pgstat_report_stat(false);
		tandem_apply_counted();
		pg_atomic_fetch_add_u64(&slot->transactions, 1);
	}
	SpinLockAcquire(&slot->mutex);
	slot->applied_lsn = end_lsn;
	slot->remote_commit_time = time;
	SpinLockRelease(&slot->mutex);

	if (tandem_apply.skipping)
		ereport(LOG,
				(errmsg("logical replication completed skipping transaction at LSN %X/%X",
						LSN_FORMAT_ARGS(tandem_apply.finish_lsn))));
	tandem_apply.skipping = false;
	tandem_apply.in_transaction = false;
	tandem_apply.prepared = false;
	tandem_apply_at.xid = InvalidTransactionId;
	tandem_apply_at.finish_lsn = InvalidXLogRecPtr;

	tandem_route_boundary(end_lsn);
	MemoryContextSwitchTo(tandem_apply.message_context);
}

void
tandem_transaction_commit(const LogicalRepCommitData *commit)
{
	bool		local;

	/* that it was skipped has to be remembered, even though nothing was written */
	if (tandem_apply.skipping)
		tandem_transaction_ensure();

	local = IsTransactionState();
	if (local)
	{
		tandem_apply_finish();
		tandem_route_commit();
		tandem_row_clear_skip(commit->commit_lsn);
		replorigin_session_origin_lsn = commit->end_lsn;
		replorigin_session_origin_timestamp = commit->committime;
		CommitTransactionCommand();
	}
	else
	{
		AcceptInvalidationMessages();
		tandem_row_reread();
	}
	tandem_transaction_done(commit->end_lsn, commit->committime, local);
}

/* ---- Messages ------------------------------------------------------------------------------ */

static void
handle_begin(StringInfo message)
{
	LogicalRepBeginData begin;

	logicalrep_read_begin(message, &begin);
	tandem_transaction_begin(begin.xid, begin.final_lsn, begin.committime);
}

static void
handle_commit(StringInfo message)
{
	LogicalRepCommitData commit;

	logicalrep_read_commit(message, &commit);
	if (!tandem_apply.in_transaction || commit.commit_lsn != tandem_apply.finish_lsn)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("incorrect commit LSN %X/%X in commit message (expected %X/%X)",
								 LSN_FORMAT_ARGS(commit.commit_lsn),
								 LSN_FORMAT_ARGS(tandem_apply.finish_lsn))));
	tandem_transaction_commit(&commit);
}

void
tandem_transaction_message(StringInfo message)
{
	char		action = message->data[message->cursor];

	if (message->cursor >= message->len)
		protocol_error("an empty message came");

	switch (action)
	{
		case LOGICAL_REP_MSG_RELATION:
		case LOGICAL_REP_MSG_TYPE:
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
		case LOGICAL_REP_MSG_TRUNCATE:
			if (tandem_apply.in_stream)
				tandem_stream_change(message);
			else
				tandem_transaction_change(message);
			return;
		default:
			break;
	}

	message->cursor++;
	tandem_apply_at.action = action;
	switch (action)
	{
		case LOGICAL_REP_MSG_BEGIN:
			handle_begin(message);
			break;
		case LOGICAL_REP_MSG_COMMIT:
			handle_commit(message);
			break;
		case LOGICAL_REP_MSG_ORIGIN:
		case LOGICAL_REP_MSG_MESSAGE:
			/* where it came from before the publisher, and what isn't for tables */
			break;
		case LOGICAL_REP_MSG_BEGIN_PREPARE:
			tandem_prepared_begin(message);
			break;
		case LOGICAL_REP_MSG_PREPARE:
			tandem_prepared_prepare(message);
			break;
		case LOGICAL_REP_MSG_COMMIT_PREPARED:
			tandem_prepared_commit(message);
			break;
		case LOGICAL_REP_MSG_ROLLBACK_PREPARED:
			tandem_prepared_rollback(message);
			break;
		case LOGICAL_REP_MSG_STREAM_START:
			tandem_stream_start(message);
			break;
		case LOGICAL_REP_MSG_STREAM_STOP:
			tandem_stream_stop(message);
			break;
		case LOGICAL_REP_MSG_STREAM_ABORT:
			tandem_stream_abort(message);
			break;
		case LOGICAL_REP_MSG_STREAM_COMMIT:
			tandem_stream_commit(message);
			break;
		case LOGICAL_REP_MSG_STREAM_PREPARE:
			tandem_stream_prepare(message);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("invalid logical replication message type \"%c\"", action)));
	}
	tandem_apply_at.action = 0;
}
