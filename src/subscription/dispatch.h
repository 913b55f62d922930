/*-------------------------------------------------------------------------
 *
 * dispatch.h
 *	  Applying the messages that change tables, in any of our workers.
 *
 * src/subscription/dispatch.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_DISPATCH_H
#define TANDEM_DISPATCH_H

#include "catalog/pg_subscription.h"
#include "lib/stringinfo.h"

/* Where we are in the publisher's stream: for the context of errors. */
typedef struct TandemApplyAt
{
	const char *origin;			/* name; NULL = not applying */
	char		action;			/* message type, 0 = none */
	const char *nspname;		/* table of the publisher, NULL = none */
	const char *relname;
	const char *const *columns; /* its columns */
	int			column;			/* number of the column from 0, -1 = none */
	TransactionId xid;			/* there, Invalid = none */
	XLogRecPtr	finish_lsn;		/* end of its transaction there, Invalid = unknown */
} TandemApplyAt;

extern TandemApplyAt tandem_apply_at;

/* Rows since the worker last took them; in this process only. */
typedef struct TandemApplyCounts
{
	uint64		inserts;
	uint64		updates;
	uint64		deletes;
	uint64		truncates;
	uint64		update_missing; /* skipped, since the row wasn't here */
	uint64		delete_missing;
} TandemApplyCounts;

extern TandemApplyCounts tandem_apply_counts;

/* After their commit: shows them in tandem.subscriptions, and begins anew. */
extern void tandem_apply_counted(void);

/*
 * Before the first message, and when options or rules may have changed: what
 * the session applies for.  "sub" must live as long as the session, or be
 * replaced by another call.  The session's origin is set.  In a transaction.
 */
extern void tandem_apply_begin_session(const Subscription *sub);

/*
 * The remote transaction whose changes follow: its end there, its commit time,
 * 0 = unknown.  Raises nothing.
 */
extern void tandem_apply_begin_transaction(TransactionId xid, XLogRecPtr lsn, TimestampTz time);

/*
 * Applies one RELATION, TYPE, INSERT, UPDATE, DELETE or TRUNCATE message, from
 * its first byte, in the open transaction; without routing.  Inserts may stay
 * in memory, and tables open, until tandem_apply_finish().
 */
extern void tandem_apply_message(StringInfo message);

/*
 * A TRUNCATE of relations of the publisher; "elsewhere" are others of the same
 * one, which are emptied by a copy, or by their spool, at another time.
 */
extern void tandem_apply_truncate(List *remoteids, List *elsewhere, bool restart_sequences);

/* Writes inserts that are still in memory.  Needs the transaction they belong to. */
extern void tandem_apply_flush(void);

/*
 * The same, and closes all tables: before the transaction (or the
 * subtransaction in which the first message was applied) commits.
 */
extern void tandem_apply_finish(void);

/* Forgets everything of a transaction that has been rolled back. */
extern void tandem_apply_abort(void);

/* Callback for error_context_stack. */
extern void tandem_apply_error_context(void *arg);

#endif							/* TANDEM_DISPATCH_H */
