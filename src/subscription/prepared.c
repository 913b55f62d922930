/*-------------------------------------------------------------------------
 *
 * prepared.c
 *	  Transactions that the publisher prepares (two_phase).
 *
 * Here they are prepared as "pg_gid_<subscription>_<xid there>", as the server
 * names them: after tandem.release() its worker finishes what ours prepared.  A
 * transaction is prepared even if nothing of it is for us, since COMMIT
 * PREPARED could not know.
 *
 * Called by transaction.c and stream.c.
 *
 * src/subscription/prepared.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "replication/origin.h"
#include "utils/snapmgr.h"

#include "subscription/apply.h"
#include "subscription/dispatch.h"
#include "subscription/route.h"

static void
make_gid(TransactionId xid, char *gid, Size size)
{
	if (!TransactionIdIsValid(xid))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("invalid two-phase transaction ID")));
	snprintf(gid, size, "pg_gid_%u_%u", tandem_apply.sub->oid, xid);
}

void
tandem_prepared_begin(StringInfo message)
{
	LogicalRepPreparedTxnData data;

	logicalrep_read_begin_prepare(message, &data);
	tandem_transaction_begin(data.xid, data.prepare_lsn, data.prepare_time);
	tandem_apply.prepared = true;
	/* it has no commit time yet */
	tandem_apply_begin_transaction(data.xid, data.prepare_lsn, 0);
}

void
tandem_prepared_finish(const LogicalRepPreparedTxnData *data)
{
	char		gid[GIDSIZE];

	make_gid(data->xid, gid, sizeof(gid));
	tandem_transaction_ensure();
	tandem_apply_finish();
	tandem_route_commit();

	/* PREPARE ends a block, so there has to be one */
	BeginTransactionBlock();
	CommitTransactionCommand();
	replorigin_session_origin_lsn = data->end_lsn;
	replorigin_session_origin_timestamp = data->prepare_time;
	PrepareTransactionBlock(gid);
	CommitTransactionCommand();

	/* lost in a crash just now, it is reset with the next transaction */
	tandem_row_clear_skip(data->prepare_lsn);
	tandem_transaction_done(data->end_lsn, data->prepare_time, true);
}

void
tandem_prepared_prepare(StringInfo message)
{
	LogicalRepPreparedTxnData data;

	logicalrep_read_prepare(message, &data);
	if (!tandem_apply.prepared || data.prepare_lsn != tandem_apply.finish_lsn)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("incorrect prepare LSN %X/%X in prepare message (expected %X/%X)",
								 LSN_FORMAT_ARGS(data.prepare_lsn),
								 LSN_FORMAT_ARGS(tandem_apply.finish_lsn))));
	tandem_prepared_finish(&data);
}

/* Commits or rolls back what was prepared. */
static void
finish(const char *gid, bool commit, XLogRecPtr end_lsn, TimestampTz time)
{
	tandem_transaction_ensure();
	PushActiveSnapshot(GetTransactionSnapshot());
	replorigin_session_origin_lsn = end_lsn;
	replorigin_session_origin_timestamp = time;
	FinishPreparedTransaction(gid, commit);
	PopActiveSnapshot();
	CommitTransactionCommand();
	tandem_row_clear_skip(end_lsn);
}

void
tandem_prepared_commit(StringInfo message)
{
	LogicalRepCommitPreparedTxnData data;
	char		gid[GIDSIZE];

	logicalrep_read_commit_prepared(message, &data);
	tandem_apply_at.xid = data.xid;
	tandem_apply_at.finish_lsn = data.commit_lsn;
	make_gid(data.xid, gid, sizeof(gid));
	finish(gid, true, data.end_lsn, data.commit_time);
	tandem_transaction_done(data.end_lsn, data.commit_time, true);
}

void
tandem_prepared_rollback(StringInfo message)
{
	LogicalRepRollbackPreparedTxnData data;
	char		gid[GIDSIZE];
	bool		known;

	logicalrep_read_rollback_prepared(message, &data);
	tandem_apply_at.xid = data.xid;
	tandem_apply_at.finish_lsn = data.rollback_end_lsn;
	make_gid(data.xid, gid, sizeof(gid));

	/* prepared before two_phase was in effect, it never came here */
	known = LookupGXact(gid, data.prepare_end_lsn, data.prepare_time);
	if (known)
		finish(gid, false, data.rollback_end_lsn, data.rollback_time);
	tandem_transaction_done(data.rollback_end_lsn, data.rollback_time, known);
}
