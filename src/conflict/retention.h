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

#include "common/remote.h"

/* ---- What must be known of subscriptions ------------------------------------- */

typedef struct TandemIncoming
{
	Oid			subid;
	char		name[NAMEDATALEN];
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
	 * Adopted subscriptions of this database with tombstones = on, also those
	 * that are paused: list of TandemIncoming, in the caller's memory context.
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

/* What has to be passed: all of it at once. */
typedef struct TandemPassGoal
{
	int64		epoch;			/* closed epochs up to this number; 0 = none */
	int64		window;			/* windows up to this number; 0 = none */
	TimestampTz end;			/* the latest end of all of them */
} TandemPassGoal;

typedef struct TandemPass
{
	Oid			subid;
	TandemPassPhase phase;
	TimestampTz since;			/* in this phase */
	TandemPassGoal goal;		/* of the pass that goes on */
	TandemPassGoal passed;		/* of all passes before */
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
 * Goes on with a pass towards "goal", or begins one if there is something in it
 * that hasn't been passed.  Asks the publisher, for at most some seconds, and
 * never raises an error because of what it does.  No transaction may be open.
 */
extern void tandem_pass_step(TandemPass *pass, const TandemIncoming *incoming,
							 const TandemPassGoal *goal);

/* What it waits for, palloc'd; NULL = nothing. */
extern char *tandem_pass_describe(TandemPassPhase phase, uint64 xid, uint64 xmin, XLogRecPtr lsn,
								  const char *message);

#endif							/* TANDEM_RETENTION_H */
