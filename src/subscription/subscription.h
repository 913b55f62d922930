/*-------------------------------------------------------------------------
 *
 * subscription.h
 *	  Subscriptions of the server that pg_tandem runs: what the files of this
 *	  folder share.
 *
 * Taking over
 *	 label.c	the mark: a security label of provider "tandem"
 *	 options.c	options in it, and which of the server's options we honour
 *	 adopt.c	tandem.adopt() and tandem.release()
 *	 adopt_check.c	what the publisher says to that
 *	 utility.c	statements on adopted subscriptions
 *	 refresh.c	ALTER SUBSCRIPTION ... REFRESH PUBLICATION, done by us
 * Running
 *	 shared.c	shared memory: one slot a subscription
 *	 launcher.c	the process that starts and stops apply workers
 *	 apply.c	the apply worker
 * Seeing
 *	 status.c	the view tandem.subscriptions
 *
 * Of an adopted subscription the server's own worker never runs: it stays
 * disabled.  Replication slot, origin ("pg_<oid>") and pg_subscription_rel stay
 * the server's, and at every commit they are a state it could go on from.
 *
 * src/subscription/subscription.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SUBSCRIPTION_H
#define TANDEM_SUBSCRIPTION_H

#include "access/xlogdefs.h"
#include "catalog/pg_subscription.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "conflict/conflict.h"
#include "common/compat.h"

#define TANDEM_LABEL_PROVIDER "tandem"
#define TANDEM_LABEL_SIZE 1024	/* bytes; longer ones might be toasted, which a
								 * process without a database can't read */
#define TANDEM_MAX_SYNC_WORKERS 64	/* copy workers of one subscription */
#define TANDEM_SUBSCRIPTION_PROCESSES (TANDEM_MAX_SYNC_WORKERS + 2)

/* ---- options.c: options of tandem.adopt() ------------------------------- */

typedef struct TandemSubscriptionOptions
{
	bool		enabled;		/* off = paused */
	int			workers;		/* copy workers; 0 = tandem.sync_workers */
	char		node_id[NAMEDATALEN];	/* the publisher's identifier in conflicts;
										 * empty = what it says itself */
	bool		tombstones;		/* rows that are deleted here are remembered */
	TandemOutcomes outcomes;	/* of conflicts */
} TandemSubscriptionOptions;

extern void tandem_options_init(TandemSubscriptionOptions *options);

/*
 * Reads "name = value, ..." over what *options has.  Raises errors that name
 * the option and, in the hint, those there are.
 */
extern void tandem_options_parse(const char *text, TandemSubscriptionOptions *options);

/* One option; returns whether it is one and its value is valid.  Raises nothing. */
extern bool tandem_option_set(TandemSubscriptionOptions *options, const char *name, const char *value);

/* Appends " name=value" of every option. */
extern void tandem_options_format(StringInfo text, const TandemSubscriptionOptions *options);

/*
 * Why we can't run a subscription as its options in pg_subscription demand
 * (palloc'd), or NULL; *hint is set with it.
 */
extern char *tandem_core_options_problem(const Subscription *sub, const char **hint);

/* ---- label.c: the mark of an adopted subscription ------------------------- */

typedef struct TandemLabel
{
	uint64		system;			/* system identifier of the server it is for */
	Oid			subid;
	char		name[NAMEDATALEN];
	TandemSubscriptionOptions options;
} TandemLabel;

extern bool tandem_label_parse(const char *text, TandemLabel *label);

/* Why a label isn't this subscription's (palloc'd), or NULL if it is. */
extern char *tandem_label_misfit(const TandemLabel *label, Oid subid, const char *name);

/* The label text of a subscription (palloc'd), or NULL; needs a transaction. */
extern char *tandem_label_read(Oid subid);

/*
 * Writes, or with options = NULL removes, the label; the launcher is told at
 * commit.  Caller has checked privileges and holds a lock on the subscription.
 */
extern void tandem_label_write(Oid subid, const char *name, const TandemSubscriptionOptions *options);

/*
 * At commit, workers of a subscription read what they know of it again, before
 * the next transaction that they apply.
 */
extern void tandem_subscription_changed(Oid subid);

/*
 * Is this subscription adopted: does it have a label that fits this system, its
 * OID and its name?  Fills *options (may be NULL).  Needs a transaction in a
 * process with a database.
 */
extern bool tandem_subscription_adopted(Oid subid, TandemSubscriptionOptions *options);

/*
 * Sets option "enabled" to off, in the caller's transaction: for
 * disable_on_error.  The launcher stops the workers after the commit, and
 * starts none until tandem.adopt(..., 'enabled = on').
 */
extern void tandem_subscription_pause(Oid subid);

/* Names of the adopted subscriptions of this database (palloc'd C strings). */
extern List *tandem_adopted_subscriptions(void);

extern void tandem_label_init(void);

/* ---- shared.c: one slot a subscription ------------------------------------ */

/*
 *			 launcher				 worker
 *	(none) ----------> STARTING -----------------> STREAMING
 *						 ^						  |
 *						 | launcher,			  | error, lost connection, exit
 *						 | at next_retry		  v
 *						 +-------------------- RETRYING
 *
 *	PAUSED: option enabled is off.  STOPPED: something in reason says why no
 *	worker may run, or somebody who alters, releases or drops it waits.
 */
typedef enum TandemSubscriptionState
{
	TANDEM_SUBSCRIPTION_STARTING,
	TANDEM_SUBSCRIPTION_STREAMING,
	TANDEM_SUBSCRIPTION_RETRYING,
	TANDEM_SUBSCRIPTION_PAUSED,
	TANDEM_SUBSCRIPTION_STOPPED
} TandemSubscriptionState;

/*
 * The slot's number is the argument of its workers' main functions.  "used",
 * "dbid", "subid", "holds" and "launched" change only with both
 * tandem_subscriptions->lock and the mutex held, so either suffices to read
 * them; the mutex protects the rest.
 */
typedef struct TandemSubscriptionSlot
{
	slock_t		mutex;

	bool		used;
	Oid			dbid;
	Oid			subid;
	Oid			owner;
	NameData	name;
	TandemSubscriptionOptions options;	/* as the launcher has read them */

	TandemSubscriptionState state;
	char		reason[256];	/* why it is in that state, or empty */

	bool		launched;		/* an apply worker is registered or runs */
	TimestampTz launched_at;
	pid_t		apply_pid;		/* 0 = none attached */
	Latch	   *apply_latch;
	pid_t		pids[TANDEM_SUBSCRIPTION_PROCESSES];	/* of all attached; 0 = free */

	/*
	 * The workers must end at the next transaction boundary.  Set while
	 * "holds", the number of sessions that need them stopped, isn't zero, or by
	 * the launcher; reset when an apply worker is launched.
	 */
	bool		stop_requested;
	int			holds;
	bool		draining;		/* tandem.release() waits: start no copy of a further
								 * table, finish those begun */

	XLogRecPtr	received_lsn;	/* end of what has arrived */
	XLogRecPtr	applied_lsn;	/* end of the last transaction committed here */
	XLogRecPtr	flushed_lsn;	/* confirmed to the publisher */
	uint32		timeline;		/* of the publisher when we connected; 0 = not yet */
	XLogRecPtr	remote_end_lsn; /* end of the publisher's WAL as last told */
	TimestampTz last_message;
	TimestampTz remote_commit_time; /* of the last transaction applied */

	char		error[1024];	/* the last one; empty = none */
	char		sqlstate[6];
	TimestampTz error_at;
	int			error_count;
	int			backoff;		/* ms until the next try after an error */
	uint64		backoff_transactions;	/* "transactions" when it was set */
	TimestampTz next_retry;		/* 0 = at once */

	/* counters need no lock */
	pg_atomic_uint64 inserts;
	pg_atomic_uint64 updates;
	pg_atomic_uint64 deletes;
	pg_atomic_uint64 truncates;
	pg_atomic_uint64 update_missing;
	pg_atomic_uint64 delete_missing;
	pg_atomic_uint64 transactions;
} TandemSubscriptionSlot;

typedef struct TandemSubscriptionsShared
{
	LWLock	   *lock;
	ConditionVariable cv;		/* a process has detached, or a hold has ended */
	Latch	   *launcher_latch; /* lock; NULL = it doesn't run */
	pid_t		launcher_pid;	/* lock */
	int			nslots;
	TandemSubscriptionSlot slots[FLEXIBLE_ARRAY_MEMBER];
} TandemSubscriptionsShared;

extern TandemSubscriptionsShared *tandem_subscriptions; /* NULL unless preloaded */
extern TandemSubscriptionSlot *tandem_my_subscription;	/* in apply and copy workers */

extern void tandem_subscriptions_shmem_request(void);
extern void tandem_subscriptions_shmem_startup(void);

/* Raises an error when the library isn't preloaded, or has another version than the SQL objects. */
extern void tandem_require_subscriptions(void);

extern const char *tandem_subscription_state_name(TandemSubscriptionState state);

/*
 * What each of our workers calls before anything else, also before it connects
 * to its database: sets tandem_my_subscription and is counted until the process
 * ends.  Ends the process if it isn't wanted (any more).  apply: this is the
 * apply worker.
 */
extern void tandem_subscription_attach(int index, bool apply);

/*
 * Connects a worker to the subscription's database as its owner, with settings
 * that no default of that role or database may change.
 */
extern void tandem_subscription_connect(void);

/* For the apply worker: sets the state; reason may be NULL. */
extern void tandem_subscription_set_state(TandemSubscriptionState state, const char *reason);

/* Must this worker end at the next transaction boundary? */
extern bool tandem_subscription_stopping(void);

/*
 * Records an error of the apply worker and sets next_retry: 1 s, doubled each
 * time up to 60 s until a transaction has been applied in between.  The worker
 * then ends with exit code 1, and the launcher starts a new one at next_retry.
 */
extern void tandem_subscription_failed(ErrorData *error);

/* Makes a message that libpq may have broken into lines one line, in place. */
extern char *tandem_one_line(char *message);

/* The slot of a subscription, or NULL.  Caller holds tandem_subscriptions->lock. */
extern TandemSubscriptionSlot *tandem_subscription_find(Oid subid);

/* The same; takes a free slot if there is none yet.  Exclusive lock; NULL = none free. */
extern TandemSubscriptionSlot *tandem_subscription_find_or_add(Oid dbid, Oid subid);

/* Gives a slot back that nobody holds and no process uses.  Exclusive lock. */
extern void tandem_subscription_remove(TandemSubscriptionSlot *slot);

/*
 * Stops the subscription's workers and keeps them stopped until the end of this
 * (top level) transaction.  Waits: ten seconds for the end of the transaction
 * being applied, after which they are terminated and that transaction is
 * rolled back, to be applied again.  Cancellable.
 */
extern void tandem_subscription_hold(Oid dbid, Oid subid);

/*
 * Lets copies that have begun finish and none other begin until the end of this
 * transaction.  The apply worker goes on.
 */
extern void tandem_subscription_drain(Oid subid);

/* Wakes a subscription's apply worker / the launcher. */
extern void tandem_subscription_wake(Oid subid);
extern void tandem_subscription_wake_at_commit(Oid subid);
extern void tandem_launcher_wake(void);
extern void tandem_launcher_wake_at_commit(void);

/*
 * What the wave engine knows of tables that are being copied; it sets these
 * when the library is loaded.  All run in the subscription's database, in the
 * caller's transaction, and see what others have committed by then.
 */
typedef struct TandemCopies
{
	/* number of tables that hold rows of an unfinished copy */
	int			(*unfinished) (Oid subid);
	/* empties these tables; in pg_subscription_rel they stay 'i' */
	void		(*empty) (Oid subid);
	/* forgets all that is known of a table, or (InvalidOid) of all of them */
	void		(*forget) (Oid subid, Oid relid);
} TandemCopies;

extern TandemCopies tandem_copies;

/* ---- table_rules.c ---- */

/* Is last_update_wins among them? */
extern bool tandem_outcomes_need_time(const TandemOutcomes *outcomes);

/* Raises an error if last_update_wins can't be used, a warning if it will not work. */
extern void tandem_check_last_update_wins(const Subscription *sub);

/* ---- adopt.c ---- */

/* A subscription of this database that the caller may alter; else raises an error. */
extern Oid	tandem_subscription_owned(const char *name);

/* Raises an error unless a subscription's tables are in a state that core can go on from. */
extern void tandem_check_releasable(Oid subid, const char *name);

/* ---- adopt_check.c ---- */

/*
 * Asks the publisher whether the subscription can be run from there: raises an
 * error with a hint if it can't, a warning if it isn't reachable or something is
 * missing that may still come.  Waits five seconds at most; takes no lock.
 */
extern void tandem_check_publisher(const Subscription *sub);

/* ---- utility.c, refresh.c ---- */

extern void tandem_utility_init(void);

/*
 * REFRESH PUBLICATION of an adopted subscription; caller has checked privileges.
 * validate: publications to warn of if the publisher lacks them (NIL = none).
 */
extern void tandem_refresh_publications(const Subscription *sub, bool copy_data, List *validate);

/* ---- incoming.c: for src/conflict/retention.c ---- */

extern void tandem_incoming_init(void);

/* ---- wiring ---- */

extern void tandem_subscriptions_init(void);
extern PGDLLEXPORT void tandem_launcher_main(Datum main_arg) pg_attribute_noreturn();
extern PGDLLEXPORT void tandem_apply_main(Datum index) pg_attribute_noreturn();

#endif							/* TANDEM_SUBSCRIPTION_H */
