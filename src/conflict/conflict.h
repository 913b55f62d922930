/*-------------------------------------------------------------------------
 *
 * conflict.h
 *	  Conflicts: what the files of this folder share, and what those who apply
 *	  changes call.
 *
 * Knowing
 *	 types.c	the types of conflicts, the outcomes, which go together
 *	 rules.c	the outcomes for a table, and its counters
 *	 session.c	what is being applied, and for whom
 *	 local.c	who wrote the row that is here, and when
 *	 decide.c	who wins
 * Telling
 *	 log.c		conflicts on their way into the log; see log.h
 *	 log_view.c	the views
 *	 log_settle.c	tandem.conflict_dismiss(), tandem.conflict_replay()
 * Rows that were deleted meanwhile
 *	 collector.c	the process that decodes this database's own deletes
 *	 tombstone.c	the store, and the look into it
 *	 epoch.c	when a tombstone may go
 *	 tombstone_view.c	the view tandem.tombstones
 *
 * Nothing here knows src/subscription.
 *
 * src/conflict/conflict.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_CONFLICT_H
#define TANDEM_CONFLICT_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"
#include "utils/rel.h"

/* ---- types.c ------------------------------------------------------------------ */

/* Their names are those of PostgreSQL 18 and 19, the last one is ours. */
typedef enum TandemConflictType
{
	TANDEM_INSERT_EXISTS,
	TANDEM_UPDATE_ORIGIN_DIFFERS,
	TANDEM_UPDATE_EXISTS,
	TANDEM_UPDATE_MISSING,
	TANDEM_UPDATE_DELETED,
	TANDEM_DELETE_ORIGIN_DIFFERS,
	TANDEM_DELETE_MISSING,
	TANDEM_MULTIPLE_UNIQUE_CONFLICTS,
	TANDEM_INSERT_DELETED
} TandemConflictType;

#define TANDEM_CONFLICT_TYPES (TANDEM_INSERT_DELETED + 1)

typedef enum TandemOutcome
{
	TANDEM_OUTCOME_ERROR,		/* the subscription stops */
	TANDEM_OUTCOME_SKIP,		/* the row here stays as it is */
	TANDEM_OUTCOME_APPLY,		/* the remote change wins */
	TANDEM_OUTCOME_LAST_UPDATE_WINS,	/* by commit time, then by node identifier */
	TANDEM_OUTCOME_INSERT_OR_SKIP	/* a missing row is inserted if all of it came */
} TandemOutcome;

#define TANDEM_OUTCOMES (TANDEM_OUTCOME_INSERT_OR_SKIP + 1)

/* outcome[type] = a TandemOutcome */
typedef struct TandemOutcomes
{
	uint8		outcome[TANDEM_CONFLICT_TYPES];
} TandemOutcomes;

extern const char *tandem_conflict_name(TandemConflictType type);
extern const char *tandem_outcome_name(TandemOutcome outcome);

/* By name; false = there is none.  Raise nothing. */
extern bool tandem_conflict_parse(const char *name, TandemConflictType *type);
extern bool tandem_outcome_parse(const char *name, TandemOutcome *outcome);

/* May this outcome be configured for this type? */
extern bool tandem_outcome_allowed(TandemConflictType type, TandemOutcome outcome);

/* The names that may, as "error, skip or apply" (palloc'd): for hints. */
extern char *tandem_outcomes_of(TandemConflictType type);

/* All types, as "insert_exists, ... and insert_deleted" (palloc'd): for hints. */
extern char *tandem_conflict_names(void);

/* What the server does. */
extern void tandem_outcomes_init(TandemOutcomes *outcomes);

/* ---- session.c ------------------------------------------------------------------ */

/* What a worker applies; in this process only. */
typedef struct TandemConflictSession
{
	Oid			subid;			/* Invalid = nothing is being applied */
	const char *subname;
	RepOriginId origin;			/* the subscription's, as local rows carry it */
	char		node[NAMEDATALEN];	/* identifier of the publisher; empty = unknown */
	TandemOutcomes outcomes;	/* of the subscription; rules of a table go before */
	bool		tombstones;		/* option of that name */

	/* the remote transaction whose changes come; from a spool, the one spooled */
	TransactionId xid;
	TimestampTz time;			/* its commit; 0 = unknown (prepared, in progress) */
	XLogRecPtr	lsn;			/* its end; 0 = unknown */
} TandemConflictSession;

extern TandemConflictSession tandem_conflict_session;

/* ---- rules.c ---------------------------------------------------------------------- */

/* What holds for one table in this session. */
typedef struct TandemTableRules
{
	TandemOutcomes outcomes;
	Bitmapset  *deltas;			/* attribute numbers of counters; NULL = none */
} TandemTableRules;

/*
 * The rules of a table (partitions: of the root that the publisher knows), valid
 * until the next transaction.  Needs a transaction.
 */
extern const TandemTableRules *tandem_table_rules(Oid relid);

/* Is there last_update_wins in this session, for any table and type?  Needs a transaction. */
extern bool tandem_rules_last_update_wins(void);

/* They are read again when next needed; session.outcomes, too.  Raises nothing. */
extern void tandem_rules_forget(void);

/*
 * Changes a rule; outcome -1 = that of the subscription.  Returns whether that
 * is a change.  The caller has checked all, and holds a lock on the subscription
 * against others who do the same.
 */
extern bool tandem_rules_set_outcome(Oid subid, Oid relid, TandemConflictType type, int outcome);
extern bool tandem_rules_set_delta(Oid subid, Oid relid, AttrNumber attnum, bool on);

/* Forgets those of a subscription, or of a table; the other is InvalidOid. */
extern void tandem_rules_drop(Oid subid, Oid relid);

/*
 * The identifier of a subscription's publisher (NAMEDATALEN bytes).  Read: false
 * = not known yet, and node is empty.
 */
extern void tandem_rules_write_node(Oid subid, const char *node);
extern bool tandem_rules_read_node(Oid subid, char *node);

/* ---- local.c --------------------------------------------------------------- */

/* Who wrote a version of a row, or deleted it. */
typedef struct TandemParty
{
	bool		known;			/* time and origin are (else: no commit timestamps, or gone) */
	TransactionId xid;			/* 0 = unknown */
	TimestampTz time;			/* commit; 0 = unknown */
	RepOriginId origin;			/* Invalid = written on this node */
} TandemParty;

/*
 * Who wrote the row in a slot of its table's kind.  Returns whether it was this
 * transaction.  Never raises; a slot without a stored row is unknown.
 */
extern bool tandem_local_party(TupleTableSlot *slot, TandemParty *party);

/* ---- decide.c ------------------------------------------------------------------------ */

/* This node's identifier: tandem.node_id, or the system identifier. */
extern const char *tandem_own_node(void);

/*
 * Does the session's remote transaction win over what "local" wrote?  By commit
 * time, then by node identifier.  *reason says why (static).  Needs a transaction.
 */
extern bool tandem_remote_wins(const TandemParty *local, const char **reason);

/* ---- log.c --------------------------------------------------------------------------- */

/*
 * One conflict.  Slots may be NULL; they have the table's (the partition's)
 * columns.  "key": only columns of the identity are set.
 */
typedef struct TandemConflict
{
	TandemConflictType type;
	TandemOutcome configured;
	const char *resolution;		/* what was done: "applied", "skipped", "inserted",
								 * "error"; static */
	const char *detection;		/* "certain", "unknown", "unsupported"; static */
	const char *reason;			/* why it isn't certain, or why this side won; may be NULL */
	Relation	rel;
	TandemParty local;			/* who wrote or deleted what is here */
	TupleTableSlot *local_row;
	TupleTableSlot *remote_row; /* as sent, perhaps only the identity's columns */
	Bitmapset  *remote_missing; /* attribute numbers that remote_row doesn't have (unchanged
								 * toast, not sent); NULL = none */
	TupleTableSlot *key;		/* what was looked for */
	TupleTableSlot *result_row; /* as it is now; NULL = there is none */
	char		operation;		/* 'I', 'U' or 'D': the remote change */
} TandemConflict;

/*
 * Records a conflict of the current transaction, with what the session says.  It
 * is kept in memory (slots may be used again), and written, counted and said in
 * the server's log by tandem_conflict_flush(), or before if there are many.  A
 * conflict log that can't be written (full, missing) is said in the log and
 * counted, and raises nothing.  Needs a transaction and an active snapshot.
 */
extern void tandem_conflict_record(const TandemConflict *conflict);

/*
 * Before the transaction, or the subtransaction in which changes were applied,
 * commits: writes what has been recorded.  Raises nothing but cancellation.
 * After a rollback: forgets it.
 */
extern void tandem_conflict_flush(void);
extern void tandem_conflict_forget(void);

/*
 * For a conflict that ends the transaction: it is kept in memory, and written by
 * tandem_conflict_write_failed() when the caller has rolled back, in a transaction
 * of its own, or within the caller's if there is one.  The same conflict again (its transaction is
 * tried again) only counts as another attempt.  They don't say it in the log:
 * the caller's error does.  Raise nothing.
 */
extern void tandem_conflict_record_failed(const TandemConflict *conflict);
extern void tandem_conflict_write_failed(void);

/*
 * What is said of a conflict: "The row to be updated was modified by ... at ...:
 * local row (...), remote row (...), replica identity (...). ...".  For the detail
 * of an error; palloc'd.  May raise what output functions do.
 */
extern char *tandem_conflict_detail(const TandemConflict *conflict);

/*
 * Keeps the log within its bounds, some steps at a time and once a minute; for a
 * process that has a moment, with no transaction open.  Raises nothing.
 */
extern void tandem_conflict_housekeeping(void);

extern void tandem_conflict_shmem_request(void);
extern void tandem_conflict_shmem_startup(void);

/* ---- tombstone.c ------------------------------------------------------------------------ */

typedef enum TandemVerdict
{
	TANDEM_VERDICT_DELETED,		/* there is a tombstone */
	TANDEM_VERDICT_MISSING,		/* it is proven that there is none */
	TANDEM_VERDICT_UNKNOWN		/* it can't be proven: reason */
} TandemVerdict;

typedef struct TandemTombstone
{
	TandemVerdict verdict;
	char		kind;			/* 'd' deleted, 'm' moved to another key, 't' truncated */
	TandemParty deleter;
	bool		unsupported;	/* unknown because there can be no tombstones here */
	const char *reason;			/* of unknown; static, or in the caller's context */
} TandemTombstone;

/*
 * Looks for the newest tombstone of a key.  root: the table that the publisher
 * knows; rel: it, or the partition the row would be in; identity: the index
 * that finds a row, Invalid = REPLICA IDENTITY FULL; key: its columns are set.
 * wait: first makes sure, for at most tandem.detection_timeout, that all deletes
 * committed before this call are in the store; without it the answer is of what
 * is there already and never "missing".  Needs a transaction, which must hold no
 * lock that a committing deleter could wait for with the collector's.
 */
extern void tandem_tombstone_find(Oid root, Relation rel, Oid identity, TupleTableSlot *key,
								  bool wait, TandemTombstone *result);

/*
 * For a remote delete that found nothing here, or lost: leaves a tombstone of the
 * session's remote transaction, in this transaction, for changes that come late.
 */
extern void tandem_tombstone_leave(Oid root, Relation rel, Oid identity, TupleTableSlot *key);

/* A hash of a key, the same wherever equal keys are; 0 = there can be no tombstones. */
extern uint64 tandem_tombstone_hash(Oid root, Relation rel, Oid identity, TupleTableSlot *key);

/* Could there be any tombstone of this table?  Cheap; false is certain only of what has been collected. */
extern bool tandem_tombstone_any(Oid root);

#endif							/* TANDEM_CONFLICT_H */
