/*-------------------------------------------------------------------------
 *
 * standby.h
 *	  Standby lists and what standbys have confirmed; see standby.c.
 *
 * src/common/standby.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_STANDBY_H
#define TANDEM_STANDBY_H

#include "access/xlogdefs.h"
#include "lib/stringinfo.h"
#include "replication/slot.h"
#include "utils/guc.h"

typedef enum TandemStandbyMode
{
	TANDEM_STANDBYS_ALL,		/* a, b */
	TANDEM_STANDBYS_ANY,		/* ANY n (a, b) */
	TANDEM_STANDBYS_FIRST		/* FIRST n (a, b) */
} TandemStandbyMode;

/*
 * A parsed list.  One chunk, so that it can be the "extra" of a setting.  An
 * empty setting has no list: NULL.
 */
typedef struct TandemStandbyList
{
	TandemStandbyMode mode;
	int			required;		/* n; the number of names for "all" */
	int			nnames;
	NameData	names[FLEXIBLE_ARRAY_MEMBER];
} TandemStandbyList;

/* What stands in the way of a listed name; OK means that its position counts. */
typedef enum TandemStandbyProblem
{
	TANDEM_STANDBY_OK,
	TANDEM_STANDBY_MISSING,		/* no slot of this name */
	TANDEM_STANDBY_LOGICAL,		/* a logical slot */
	TANDEM_STANDBY_INVALIDATED, /* lost WAL it needed */
	TANDEM_STANDBY_NO_POSITION	/* has never confirmed anything */
} TandemStandbyProblem;

typedef struct TandemStandbyState
{
	TandemStandbyProblem problem;
	XLogRecPtr	flush;			/* what it has flushed; invalid unless OK */
	int			pid;			/* the process that has the slot, 0 = none */
	bool		streaming;		/* has caught up and streams; only filled in
								 * on request, it costs a scan */
} TandemStandbyState;

/* ---- settings ------------------------------------------------------------ */

/* the list of tandem.standby_slots, NULL if empty; replaced at reload */
extern const TandemStandbyList *tandem_standby_slots_list;

/* changes whenever tandem_standby_slots_list does */
extern uint64 tandem_standby_slots_version;

/* the list of tandem.failback_standbys likewise */
extern const TandemStandbyList *tandem_failback_standbys_list;

/* more names than anybody has standbys: what a list is bounded by */
#define TANDEM_MAX_STANDBYS 64

/* bytes that a list takes with room for this many names */
#define TANDEM_STANDBY_LIST_SIZE(nnames) \
	(offsetof(TandemStandbyList, names) + (nnames) * sizeof(NameData))

/* room for any list, where it isn't allocated; cast its address */
typedef union TandemStandbyListRoom
{
	int			align;
	char		space[TANDEM_STANDBY_LIST_SIZE(TANDEM_MAX_STANDBYS)];
} TandemStandbyListRoom;

extern bool tandem_check_standby_list(char **newval, void **extra, GucSource source);
extern void tandem_assign_standby_slots(const char *newval, void *extra);
extern void tandem_assign_failback_standbys(const char *newval, void *extra);

extern bool tandem_standby_list_has(const TandemStandbyList *list, const char *name);

/*
 * Physical slots of our own, which no standby uses: on a primary, keeps WAL
 * for a node to be rejoined; on a standby, does so after a promotion.
 */
#define TANDEM_FAILBACK_SLOT "tandem_failback"
#define TANDEM_REJOIN_SLOT "tandem_rejoin"

/* ---- positions ------------------------------------------------------------ */

/*
 * State of one standby, from its physical slot.  Caller holds
 * ReplicationSlotControlLock at least shared.  Raises nothing.
 */
extern void tandem_standby_state(const char *name, bool want_streaming,
								 TandemStandbyState *state);

/*
 * The WAL position that a list as a whole has flushed: every byte before it
 * is on disk on as many standbys as the list demands.  InvalidXLogRecPtr when
 * there is none.  It may be lower than the answer before.  Takes
 * ReplicationSlotControlLock shared; raises nothing.
 */
extern XLogRecPtr tandem_confirmed_lsn(const TandemStandbyList *list);

/*
 * The same, if every standby that is connected now had flushed everything.
 * Lower than a wanted position means that waiting longer is in vain until a
 * standby comes back.
 */
extern XLogRecPtr tandem_reachable_lsn(const TandemStandbyList *list);

/* has the list flushed everything before lsn?  An empty list always has. */
extern bool tandem_standbys_confirmed(const TandemStandbyList *list, XLogRecPtr lsn);

/*
 * Increases with every move of any standby.  As long as it is the same a
 * position read before is still the newest one.
 */
extern uint64 tandem_standby_generation(void);

/*
 * The name in the list that is furthest from lsn and may be named as what
 * one waits for.  Returns false if none is behind.
 */
extern bool tandem_standby_blocker(const TandemStandbyList *list, XLogRecPtr lsn,
								   NameData *name, TandemStandbyState *state);

/*
 * tandem_standby_report writes one log line for each listed name that can't
 * confirm anything, at most once a minute per server; kind tells whose minute
 * it is.
 */
typedef enum TandemReporter
{
	TANDEM_REPORT_GATE,
	TANDEM_REPORT_GUARD
} TandemReporter;
#define TANDEM_NUM_REPORTERS 2

/*
 * Appends the sentence that says why a listed name can't confirm anything,
 * and what to do.  setting is the name of the setting that lists it.
 */
extern void tandem_standby_explain(const char *name, TandemStandbyProblem problem,
								   const char *setting, StringInfo reason, StringInfo hint);

extern void tandem_standby_report(const TandemStandbyList *list, TandemReporter kind,
								  const char *setting);

/* ---- waking ---------------------------------------------------------------- */

/*
 * From tandem_standby_wait_begin(lsn) to tandem_standby_wait_end() this
 * process's latch is set when a standby that has flushed lsn reports it.
 * Begin first, then look at the position, then sleep.  A process waits for
 * one position at a time; beginning again replaces it.  Ends by itself at
 * process exit.  Other things that change a position (a slot dropped, a
 * setting) wake nobody, so every sleep needs a timeout as well.
 */
extern void tandem_standby_wait_begin(XLogRecPtr lsn);
extern void tandem_standby_wait_end(void);

/*
 * The same for a wait inside of whatever else this process does, which may
 * hold locks and be in a critical section: lsn, or invalid for none, replaces
 * what it waits for, and the return value is to be put back.  Raises nothing.
 */
extern XLogRecPtr tandem_standby_wait_swap(XLogRecPtr lsn);

/* Wakes those who wait for lsn or less; PG_UINT64_MAX for all. */
extern void tandem_standby_wake(XLogRecPtr lsn);

/*
 * Called in walsenders when a standby has moved, before anybody is woken.
 * Must not raise an error.
 */
extern void (*tandem_standby_moved_hook)(void);

/* ---- wiring ---------------------------------------------------------------- */

/*
 * What the gate adds to the wrapper; called in walsenders only.  See gate.c.
 */
typedef struct TandemWalsenderHooks
{
	void		(*reset)(void);
	/* true: taken, don't send */
	bool		(*putmessage_noblock)(char msgtype, const char *s, size_t len);
	bool		(*holds_message)(void);
	/* EOF ends the walsender */
	int			(*flush_if_writable)(void);
} TandemWalsenderHooks;

extern TandemWalsenderHooks tandem_walsender_hooks;

extern void tandem_standby_shmem_request(void);
extern void tandem_standby_shmem_startup(void);
extern void tandem_standby_init(void);

#endif							/* TANDEM_STANDBY_H */
