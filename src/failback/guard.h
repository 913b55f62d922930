/*-------------------------------------------------------------------------
 *
 * guard.h
 *	  When data pages and commits wait for the failback standbys; guard.c.
 *
 * src/failback/guard.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_GUARD_H
#define TANDEM_GUARD_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/standby.h"

typedef enum TandemGuardState
{
	TANDEM_GUARD_OFF,
	TANDEM_GUARD_STARTING,		/* not decided yet since server start */
	TANDEM_GUARD_ARMING,
	TANDEM_GUARD_SETTLING,		/* waits, but what was written before is unconfirmed */
	TANDEM_GUARD_ARMED,
	TANDEM_GUARD_DEGRADED
} TandemGuardState;

typedef enum TandemGuardWait
{
	TANDEM_WAIT_DATA,			/* a page, a truncation, a removal */
	TANDEM_WAIT_COMMIT			/* a commit, a PREPARE */
} TandemGuardWait;
#define TANDEM_NUM_GUARD_WAITS 2

#define TANDEM_GUARD_TEXT 512

typedef struct TandemGuardShared
{
	/*
	 * What has an LSN up to here needn't wait, by kind of wait: PG_UINT64_MAX
	 * while nothing of that kind waits.  Written with "lock" held, read
	 * without.
	 */
	pg_atomic_uint64 passes[TANDEM_NUM_GUARD_WAITS];

	/* longest wait in ms; written by the worker */
	pg_atomic_uint32 timeout;

	/* counters since server start */
	pg_atomic_uint64 waits[TANDEM_NUM_GUARD_WAITS];
	pg_atomic_uint64 wait_time[TANDEM_NUM_GUARD_WAITS]; /* us */
	pg_atomic_uint64 longest;	/* us */
	pg_atomic_uint64 timeouts;	/* waits that degradation ended */
	pg_atomic_uint64 cancels;	/* commits that stopped waiting */

	LWLock	   *lock;			/* protects the rest */

	TandemGuardState state;
	TimestampTz since;			/* of the state */
	int			mode;			/* a TandemTransfer */
	bool		has_list;
	TandemStandbyListRoom standbys;
	char		self_test[TANDEM_GUARD_TEXT];	/* why pages can't be guarded */
	char		reason[TANDEM_GUARD_TEXT];	/* of degradation */
	XLogRecPtr	confirmed;		/* position of the list when last looked at */
	bool		unlogged;		/* a change of state has no log line yet */

	XLogRecPtr	settle_lsn;		/* of what was on disk when waiting began */

	/* re-arming, see guard.c */
	XLogRecPtr	probe_lsn;		/* invalid = no probe under way */
	TimestampTz probe_at;
	TimestampTz not_before;
	int			backoff;		/* ms */

	uint64		degradations;
	TimestampTz last_degraded;	/* 0 = never */

	/* retention.c */
	bool		wal_incomplete; /* not kept back to a confirmed checkpoint */
	char		wal_error[TANDEM_GUARD_TEXT];	/* what the last turn failed with */

	int			worker_pid;		/* 0 = it doesn't run */

	/* by number of the PGPROC: since when it waits, a TimestampTz; 0 = it doesn't */
	pg_atomic_uint64 waiting_since[FLEXIBLE_ARRAY_MEMBER];
} TandemGuardShared;

/* NULL where the library was not preloaded, and in the postmaster at load */
extern TandemGuardShared *tandem_guard;

/* this process never waits */
extern bool tandem_guard_exempt;

/* ---- called by the replaced functions of smgr_table.c ---- */

/*
 * Returns when this page may be written to disk, or has waited long enough.
 * What it returns is to be written: the page, or a copy that nobody changes.
 * The copy is good until the next call.  Raises nothing.
 */
extern TandemPage tandem_guard_page(TandemPage page);

/*
 * Returns when blocks or a file may be removed of which the current
 * transaction says so, or has waited long enough.  Raises nothing.
 */
extern void tandem_guard_removal(void);

/* ---- called by commit.c ---- */

/* May this process wait now? */
extern bool tandem_guard_may_wait(void);

/*
 * Waits until the failback standbys have flushed lsn, failback_timeout at
 * most.  Returns at once if none need to.  stop, if not null, is asked at
 * each turn whether to stop waiting.  Raises nothing, unless stop does.
 */
extern void tandem_guard_wait(XLogRecPtr lsn, TandemGuardWait kind, bool (*stop)(void));

/* ---- called by the worker and for views ---- */

extern void tandem_guard_configure(void);
extern void tandem_guard_look(void);
extern void tandem_guard_log(void);
extern void tandem_guard_set_self_test(const char *failure);
extern const char *tandem_guard_state_name(TandemGuardState state);

/*
 * Processes that wait now, and since when the first of them has (0 if none).
 */
extern int	tandem_guard_waiting(TimestampTz *since);

extern void tandem_guard_shmem_request(void);
extern void tandem_guard_shmem_startup(void);
extern void tandem_guard_init(void);

#endif							/* TANDEM_GUARD_H */
