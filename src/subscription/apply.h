/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  What the parts of the apply worker share.
 *
 * src/subscription/apply.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_APPLY_H
#define TANDEM_APPLY_H

#include "catalog/pg_subscription.h"
#include "lib/stringinfo.h"
#include "replication/logicalproto.h"
#include "replication/walreceiver.h"

#include "common/compat.h"

/* The apply worker's state; in this process only. */
typedef struct TandemApply
{
	Subscription *sub;			/* as last read */
	MemoryContext sub_context;	/* has it */
	MemoryContext message_context;	/* reset after each message */

	bool		in_transaction; /* BEGIN has come, its end hasn't */
	bool		prepared;		/* it was BEGIN PREPARE */
	bool		in_stream;		/* between STREAM START and STREAM STOP */
	XLogRecPtr	finish_lsn;		/* of the transaction, as its beginning announced */
	TransactionId xid;			/* there */
	bool		skipping;		/* its changes are skipped: ALTER SUBSCRIPTION ... SKIP */
} TandemApply;

extern TandemApply tandem_apply;

/* ---- transaction.c ---- */

/* One message of the publisher, from its first byte. */
extern void tandem_transaction_message(StringInfo message);

/* The transaction to which the following changes belong; raises nothing. */
extern void tandem_transaction_begin(TransactionId xid, XLogRecPtr finish_lsn, TimestampTz time);

/* A change or RELATION message of it: routed, then applied. */
extern void tandem_transaction_change(StringInfo message);

/* COMMIT and STREAM COMMIT. */
extern void tandem_transaction_commit(const LogicalRepCommitData *commit);

/* Opens a transaction unless one is open. */
extern void tandem_transaction_ensure(void);

/*
 * After a transaction was committed or prepared: end_lsn there, time there.
 * local: something was written here.
 */
extern void tandem_transaction_done(XLogRecPtr end_lsn, TimestampTz time, bool local);

/* ---- prepared.c ---- */

extern void tandem_prepared_begin(StringInfo message);
extern void tandem_prepared_prepare(StringInfo message);
extern void tandem_prepared_commit(StringInfo message);
extern void tandem_prepared_rollback(StringInfo message);

/* Prepares what has been applied (STREAM PREPARE has no BEGIN PREPARE). */
extern void tandem_prepared_finish(const LogicalRepPreparedTxnData *data);

/* ---- stream.c ---- */

extern void tandem_stream_start(StringInfo message);
extern void tandem_stream_stop(StringInfo message);
extern void tandem_stream_abort(StringInfo message);
extern void tandem_stream_commit(StringInfo message);
extern void tandem_stream_prepare(StringInfo message);

/* Takes a change between STREAM START and STREAM STOP. */
extern void tandem_stream_change(StringInfo message);

/* ---- feedback.c ---- */

/* A transaction that ends there at remote_end was committed here, until XactLastCommitEnd. */
extern void tandem_feedback_committed(XLogRecPtr remote_end);

/* Are there commits that aren't known to be flushed? */
extern bool tandem_feedback_pending(void);

/* Tells the publisher how far we are, if there is anything new or if forced. */
extern void tandem_feedback_send(WalReceiverConn *conn, XLogRecPtr received, bool force, bool request_reply);

/* ---- row.c: the subscription's row in pg_subscription ---- */

/* Reads it for the first time; ends the process if it is gone.  In a transaction. */
extern void tandem_row_read(void);

/* Reads it again if it has changed; ends the process if a new session is needed. */
extern void tandem_row_reread(void);

/* Resets what ALTER SUBSCRIPTION ... SKIP has set, if it is set. */
extern void tandem_row_clear_skip(XLogRecPtr finish_lsn);

/* Are all tables ready, and is there one? */
extern bool tandem_row_all_ready(void);

/* If two_phase is pending and all tables are ready now: ends the process, to start with it. */
extern void tandem_row_check_two_phase(void);

/* Ends the process; the launcher starts another at once. */
extern void tandem_apply_restart(const char *reason) pg_attribute_noreturn();

/*
 * At every change: tells the publisher in time that we are alive, however long
 * a transaction takes to apply.  Raises an error if the connection is gone.
 */
extern void tandem_apply_keep_alive(void);

/* The same, while something is waited for; in other workers nothing. */
extern void tandem_apply_still_alive(void);

#endif							/* TANDEM_APPLY_H */
