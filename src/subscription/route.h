/*-------------------------------------------------------------------------
 *
 * route.h
 *	  Where the apply worker sends a change: to its table, to the spool of a
 *	  table that is being copied, or nowhere; see route.c.
 *
 * src/subscription/route.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_ROUTE_H
#define TANDEM_ROUTE_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "replication/logicalproto.h"
#include "replication/walreceiver.h"

typedef enum TandemRoute
{
	TANDEM_ROUTE_APPLY,
	TANDEM_ROUTE_SPOOL,			/* hand it to tandem_route_spool() */
	TANDEM_ROUTE_IGNORE			/* a copy to come has it, or nobody wants it */
} TandemRoute;

/*
 * Called once, before the stream is started, outside of a transaction: learns
 * from the publisher, which is on this timeline, which transaction ids may have
 * been received before, and what it has of what earlier ones had.
 */
extern void tandem_route_start(WalReceiverConn *publisher, uint32 timeline);

/*
 * A transaction's commit has been received (BEGIN, STREAM COMMIT, BEGIN
 * PREPARE).  In the local transaction or before it.
 */
extern void tandem_route_begin(TransactionId remote_xid, XLogRecPtr commit_lsn,
							   TimestampTz commit_time);

/*
 * What to do with changes of a remote relation.  In a transaction; opens and
 * locks no user table.
 */
extern TandemRoute tandem_route(const LogicalRepRelation *remote);

/*
 * Keeps a change for later: the raw message from its cursor, which is at its
 * action byte, without the transaction id of streamed ones; a TRUNCATE of
 * several relations is kept for this one.  In the apply transaction.
 */
extern void tandem_route_spool(LogicalRepRelId relid, StringInfo message);

/* In the apply transaction, before the commit that advances the origin. */
extern void tandem_route_commit(void);

/*
 * Between transactions, and at each wake-up while idle; no transaction is
 * open.  end_lsn is how far the stream has come.  May commit transactions of
 * its own, whose origin is the subscription's, with LSN 0.
 */
extern void tandem_route_boundary(XLogRecPtr end_lsn);

/*
 * After it: do copied tables wait for the stream to pass the position of their
 * snapshot, and has the publisher not been asked since they were looked at?  An
 * idle one doesn't say by itself how far it has come.
 */
extern bool tandem_route_wants_position(void);

/* The longest time (ms) until tandem_route_boundary() is to be called again. */
extern long tandem_route_nap(void);

#endif							/* TANDEM_ROUTE_H */
