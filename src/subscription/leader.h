/*-------------------------------------------------------------------------
 *
 * leader.h
 *	  The process that plans waves and sees them through: what its files share.
 *
 *	 leader.c	its life, and which tables are due
 *	 wave.c		one wave
 *	 drain.c	applying what was spooled of tables that are copied
 *
 * src/subscription/leader.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_LEADER_H
#define TANDEM_LEADER_H

#include "postmaster/bgworker.h"

#include "subscription/waves.h"

#define TANDEM_LEADER_POLL 100	/* ms between two looks, should a wake-up be lost */

typedef struct TandemLeader
{
	Subscription *sub;			/* in "context" */
	WalReceiverConn *control;	/* for questions; NULL = not yet connected */
	WalReceiverConn *holder;	/* has the wave's snapshot; NULL = not yet connected */
	MemoryContext context;		/* reset when a wave is planned */
	RepOriginId origin;			/* of this session */
} TandemLeader;

extern TandemLeader tandem_leader;

/*
 * Sleeps for a moment (ms) or until woken; ends the process if it isn't wanted
 * any more.  No transaction open.
 */
extern void tandem_leader_pause(long ms);

/* What is said of the wave in tandem.tables; empty = nothing. */
extern void tandem_leader_message(const char *message);

/*
 * Copies tables that are due, or as many of them as a wave may have.  A table's
 * error is written to its row; those of the publisher's connections are raised.
 * No transaction open.
 */
extern void tandem_wave_run(List *copies, int64 wave);

/*
 * One round over all copied tables; returns whether something was applied.  No
 * transaction open.
 */
extern bool tandem_drain(void);

#endif							/* TANDEM_LEADER_H */
