/*-------------------------------------------------------------------------
 *
 * resolve.h
 *	  Changes whose row isn't as expected.
 *
 * src/subscription/resolve.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_RESOLVE_H
#define TANDEM_RESOLVE_H

#include "common/compat.h"
#include "conflict/conflict.h"
#include "subscription/target.h"

/* ---- resolve.c ---- */

/* A change of a row, and what came of it. */
typedef struct TandemChange
{
	TandemTarget *root;			/* the table that the publisher knows */
	TandemTarget *leaf;			/* it, or the partition the row is in */
	char		operation;		/* 'I', 'U' or 'D' */
	LogicalRepTupleData *old;	/* as sent; may be NULL */
	LogicalRepTupleData *row;	/* as sent; NULL for a delete */
} TandemChange;

/* For a table that has just been opened in a transaction, or a partition of it. */
extern void tandem_resolve_prepare(TandemTarget *target, TandemTarget *root);

/*
 * Inserts target->changed, or "row"; rows that stand in the way are dealt with.
 * The target is one that is "careful".
 */
extern void tandem_resolve_insert(const TandemChange *change, TandemTarget *target, TupleTableSlot *row);

/*
 * The row that an update or delete is for is in leaf->found.  Returns whether
 * the change is made.  *differs: there was a conflict, to be recorded when it is
 * done with.  Raises the error of outcome "error".
 */
extern bool tandem_resolve_found(const TandemChange *change, TandemConflict *conflict, bool *differs);

/*
 * Rows that would violate a unique index when leaf->found becomes leaf->changed.
 * Returns whether the update is made; then they are gone.
 */
extern bool tandem_resolve_update(const TandemChange *change);

typedef enum TandemMissing
{
	TANDEM_MISSING_FOUND,		/* it has come meanwhile; it is in leaf->found */
	TANDEM_MISSING_SKIP,
	TANDEM_MISSING_INSERT		/* insert root->changed, which has been filled */
} TandemMissing;

/* The row that an update or delete is for isn't there.  Records it, except for INSERT. */
extern TandemMissing tandem_resolve_missing(const TandemChange *change, TandemConflict *conflict);

/*
 * Fills a slot of the root with the row as sent; false = columns have not come.
 */
extern bool tandem_resolve_sent(const TandemChange *change, TupleTableSlot *slot);

/* Does an update change what its row is found by?  leaf->search has the old key. */
extern bool tandem_resolve_key_changes(const TandemChange *change);

/* Can a column of this type be a counter? */
extern bool tandem_counter_type(Oid type);

/* Adds the differences of counters to leaf->changed; wins: else nothing but those. */
extern void tandem_resolve_counters(const TandemChange *change, bool wins);

/* Fills in what a change is about. */
extern void tandem_conflict_init(TandemConflict *conflict, const TandemChange *change,
								 TandemConflictType type);

/* Outcome "error": recorded when the transaction has been rolled back. */
extern void tandem_resolve_refuse(TandemConflict *conflict) pg_attribute_noreturn();

/* ---- unique.c ---- */

/* Are violations of this index conflicts that can be resolved? */
extern bool tandem_unique_covered(Relation index, const IndexInfo *info);

/*
 * Finds another row than "own" (may be NULL) that has in the n-th index of
 * relinfo what "row" has, and, with lock, locks it; waits for transactions that
 * are just writing one.  found: a slot of the table's kind, cleared if there is
 * none.  Without lock committed rows only.
 */
extern bool tandem_unique_find(ResultRelInfo *relinfo, EState *estate, int n, TupleTableSlot *row,
							   ItemPointer own, bool lock, TupleTableSlot *found);

/* Inserts a row; false = not, since one of these indexes (OIDs) may have the same. */
extern bool tandem_unique_insert(TandemTarget *target, List *indexes, TupleTableSlot *row);

/* ---- explain.c ---- */

/* The row that is just being written, for when that fails; slot NULL = none. */
typedef struct TandemWriting
{
	TandemTarget *target;
	TupleTableSlot *slot;
	char		operation;
} TandemWriting;

extern TandemWriting tandem_writing;

/*
 * After an error, before and after the transaction is rolled back: if a unique
 * index was violated, the conflict is found out and recorded.  Raise nothing.
 */
extern void tandem_explain_remember(const ErrorData *error);
extern void tandem_explain(void);

#endif							/* TANDEM_RESOLVE_H */
