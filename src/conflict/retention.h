/*-------------------------------------------------------------------------
 *
 * retention.h
 *	  How long tombstones are kept: what the files of that share.
 *
 *	 epoch.c		is all that a publisher did before an epoch's end applied here?
 *	 windows.c		deletes that the store doesn't know, tandem.deletion_windows
 *	 retention.c	the process that closes and drops epochs, one a database
 *	 tombstone_view.c	the view tandem.tombstones
 *
 * src/conflict/retention.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_RETENTION_H
#define TANDEM_RETENTION_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "common/compat.h"
#include "common/remote.h"

/* ---- What must be known of subscriptions ------------------------------------- */

typedef struct TandemIncoming
{
	Oid			subid;
	char		name[NAMEDATALEN];
	bool		tombstones;		/* option of that name */
	XLogRecPtr	flushed;		/* all that the publisher committed before this is applied
								 * here, durably, or in the spool of a table being copied */
	uint32		timeline;		/* of the publisher that it last applied from; 0 = unknown */
	TimestampTz remote_time;	/* commit of the last transaction applied; 0 = unknown */
} TandemIncoming;

/*
 * src/subscription sets these when the library is loaded.  Both run in a
 * transaction.
 */
typedef struct TandemIncomingCalls
{
	/*
	 * Adopted subscriptions of this database, also those that are paused: list
	 * of TandemIncoming, in the caller's memory context.
	 */
	List	   *(*list) (void);

	/* Is a table of it being copied, or its spool replayed?  As of now. */
	bool		(*copying) (Oid subid);
} TandemIncomingCalls;

extern TandemIncomingCalls tandem_incoming;

/* ---- epoch.c ------------------------------------------------------------------ */

/*
 * Where a subscription's pass is; the order is that of the rule:
 *
 *	IDLE --> CLOCK --> XID --> XMIN --> FLUSH --> COPIES --> IDLE, passed
 *
 * From each of them to UNPROVABLE or UNREACHABLE and back to CLOCK.
 */
typedef enum TandemPassPhase
{
	TANDEM_PASS_IDLE,			/* nothing to wait for */
	TANDEM_PASS_CLOCK,			/* the publisher's clock must be past the end */
	TANDEM_PASS_XID,			/* a transaction id is to be taken there */
	TANDEM_PASS_XMIN,			/* transactions before that must end */
	TANDEM_PASS_FLUSH,			/* what they wrote must be applied and confirmed */
	TANDEM_PASS_COPIES,			/* and no table be copied or replayed */
	TANDEM_PASS_UNPROVABLE,		/* this publisher's answers prove nothing */
	TANDEM_PASS_UNREACHABLE		/* it doesn't answer */
} TandemPassPhase;

typedef struct TandemPass
{
	Oid			subid;
	TandemPassPhase phase;
	TimestampTz since;			/* in this phase */
	TimestampTz goal;			/* the end that the pass is for */
	TimestampTz passed;			/* the latest end that has been passed; 0 = none */
	uint64		xid;			/* set from XMIN on */
	uint64		xmin;			/* as last seen */
	XLogRecPtr	lsn;			/* set from FLUSH on */
	uint32		timeline;		/* of the publisher, for this pass */
	char		message[256];	/* of UNPROVABLE and UNREACHABLE */
	char		hint[256];

	TandemRemote *remote;		/* NULL = not connected */
	TimestampTz asked;			/* when it last answered */
	TimestampTz next_try;		/* not before, after an error */
	int			backoff;		/* ms */
} TandemPass;

/* A new one; it lives in TopMemoryContext. */
extern TandemPass *tandem_pass_create(Oid subid);
extern void tandem_pass_free(TandemPass *pass);

/*
 * Goes on with a pass, or begins one for "goal" if that end hasn't been passed.
 * Asks the publisher, which may take some seconds; what goes wrong with that is
 * in the phase, and raises nothing.  No transaction may be open.
 */
extern void tandem_pass_step(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal);

/* What it waits for, palloc'd; NULL = nothing. */
extern char *tandem_pass_describe(TandemPassPhase phase, uint64 xid, uint64 xmin, XLogRecPtr lsn,
								  const char *message);

/* ---- windows.c: beside what store.h has of it -------------------------------------- */

#define TANDEM_WINDOWS_KEPT 100	/* that aren't active; up to twice as many */

/* Deletes that aren't known: while "passed" is 0, changes up to to_time may be for such rows. */
typedef struct TandemWindow
{
	Oid			subid;			/* InvalidOid = all */
	const char *reason;
	XLogRecPtr	from_lsn;
	XLogRecPtr	to_lsn;
	TimestampTz from_time;
	TimestampTz to_time;
	TimestampTz recorded;
	TimestampTz passed;
} TandemWindow;

/* By a fresh snapshot, palloc'd, in no order.  active: only those not passed. */
extern List *tandem_windows(bool active);

/*
 * For retention.c, the only one that changes rows.  end_early: records that an
 * epoch is dropped before it may, in the caller's transaction; a window of that
 * kind that is there becomes longer.  pass: those that end by then are history;
 * returns how many there were.
 */
extern void tandem_window_end_early(const TandemWindow *window);
extern int	tandem_windows_pass(TimestampTz passed);

/* ---- retention.c --------------------------------------------------------------------- */

/* What the view shows of a subscription. */
typedef struct TandemRetentionInfo
{
	Oid			subid;
	Oid			dbid;
	TandemPassPhase phase;
	TimestampTz since;
	TimestampTz goal;
	TimestampTz passed;
	uint64		xid;
	uint64		xmin;
	XLogRecPtr	lsn;
	char		message[256];
	char		hint[256];
} TandemRetentionInfo;

/* One a database. */
typedef struct TandemRetentionWorker
{
	Oid			dbid;			/* InvalidOid = free */
	pid_t		pid;			/* 0 = none */
	Latch	   *latch;
	uint64		dropped;		/* epochs, as the rule says */
	uint64		ended_early;	/* epochs, by a bound */
} TandemRetentionWorker;

/* False: nothing is known of it. */
extern bool tandem_retention_info(Oid subid, TandemRetentionInfo *info);
extern bool tandem_retention_worker(Oid dbid, TandemRetentionWorker *worker);

extern void tandem_retention_shmem_request(void);
extern void tandem_retention_shmem_startup(void);

/*
 * Starts a worker in each of these databases (list of OIDs) that has none.
 * Called in each turn of the launcher, in its process.  A worker ends by itself
 * when no subscription of its database needs it.  Returns in how many ms it
 * wants to be called again at the latest, -1 = no matter.
 */
extern long tandem_retention_supervise(List *databases);

extern PGDLLEXPORT void tandem_retention_main(Datum dbid) pg_attribute_noreturn();

#endif							/* TANDEM_RETENTION_H */
