/*-------------------------------------------------------------------------
 *
 * route.h
 *	  Where a change of the publisher goes: to its table, to the spool of a
 *	  table that is being copied, or nowhere.
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

typedef enum TandemRoute
{
	TANDEM_ROUTE_APPLY,
	TANDEM_ROUTE_SPOOL,			/* tandem_route_spool() takes it */
	TANDEM_ROUTE_IGNORE			/* the table will be copied later, with this change */
} TandemRoute;

/*
 * At BEGIN, STREAM COMMIT, BEGIN PREPARE, STREAM PREPARE: the transaction whose
 * changes follow.  With or without an open transaction.
 */
extern void tandem_route_begin(TransactionId remote_xid, XLogRecPtr commit_lsn, TimestampTz commit_time);

/* One change; before any local table is opened or locked.  Needs a transaction. */
extern TandemRoute tandem_route(const LogicalRepRelation *remote);

/* Takes the raw message, from its action byte; in the apply transaction. */
extern void tandem_route_spool(LogicalRepRelId relid, StringInfo message);

/* Before the local commit that advances the origin. */
extern void tandem_route_commit(void);

/* Between transactions, and at each wake-up while idle; no transaction is open. */
extern void tandem_route_boundary(XLogRecPtr end_lsn);

#endif							/* TANDEM_ROUTE_H */
