/*-------------------------------------------------------------------------
 *
 * target.h
 *	  Executor state of a table that changes are applied to.
 *
 * src/subscription/target.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_TARGET_H
#define TANDEM_TARGET_H

#include "access/skey.h"
#include "executor/execPartition.h"
#include "lib/ilist.h"
#include "nodes/execnodes.h"
#include "subscription/relation.h"

/* How rows are found by the identity index. */
typedef struct TandemLookup
{
	Relation	index;			/* open; NULL = by reading the whole table */
	int			nkeys;
	AttrNumber	keys[INDEX_MAX_KEYS];	/* columns of the table */
	ScanKeyData scankeys[INDEX_MAX_KEYS];
	bool		built;
} TandemLookup;

typedef struct TandemTarget
{
	TandemRelation *relation;	/* NULL for a partition */
	uint64		generation;		/* of the relation's map */
	TandemMap  *map;
	Relation	rel;
	EState	   *estate;			/* a partition's is its root's */
	ResultRelInfo *relinfo;
	Oid		   *indexes;		/* relinfo's, for when they are closed */
	EPQState	epqstate;
	bool		open;			/* in this transaction; its tables are locked */
	bool		keep;			/* state may outlive the transaction */
	bool		triggers;		/* has some */
	AclMode		allowed;		/* privileges that have been checked */
	uint64		used;			/* number of the transaction that used it last */
	MemoryContext context;
	dlist_node	node;			/* in the list of all, not for a partition */

	TupleTableSlot *search;		/* virtual: the row as sent */
	TupleTableSlot *found;		/* of the table's own kind: the row as it is here */
	TupleTableSlot *changed;	/* virtual: the row as it shall be */
	TupleTableSlot *before;		/* virtual: the row as it was there; or for a moment */
	Bitmapset  *sent;			/* columns that the publisher sends, as in updatedCols */
	TandemLookup lookup;

	/* columns that we have to fill */
	int			ndefaults;
	int		   *default_columns;	/* from 0 */
	ExprState **defaults;

	/* partitioned tables */
	ModifyTableState *mtstate;
	PartitionTupleRouting *routing;
	List	   *partitions;		/* TandemTargets of those used */

	/* conflicts: set when the table is opened in a transaction, see resolve.c */
	Oid			root;			/* the table that the publisher knows */
	const struct TandemTableRules *rules;
	Bitmapset  *counters;		/* attribute numbers */
	bool		careful;		/* an insert resolves violations of unique indexes */
	bool		careful_update; /* so does an update */
	bool		late;			/* an inserted row may have been deleted meanwhile: late.c */
	List	   *unique;			/* OIDs of the indexes that are covered */
	int			nrivals;
	TupleTableSlot **rivals;	/* rows found by them; empty between two changes */

	/* inserts in memory: see batch.c */
	bool		batchable;
	TupleTableSlot **batch;
	int			nslots;
	int			max_slots;
} TandemTarget;

/*
 * The target of a table's changes, open and locked RowExclusiveLock until
 * tandem_targets_close().  Raises what tandem_relation_open() does.
 */
extern TandemTarget *tandem_target_open(LogicalRepRelId remoteid);

/* The same for a partition that a row of "root" was routed to. */
extern TandemTarget *tandem_target_partition(TandemTarget *root, ResultRelInfo *relinfo);

/* Closes all targets, before the transaction ends.  Caller has flushed the batch. */
extern void tandem_targets_close(void);

/* Closes and forgets one.  Caller has flushed the batch. */
extern void tandem_target_forget(TandemTarget *target);

/* Forgets all: their transaction has been rolled back. */
extern void tandem_targets_abort(void);

/* Raises an error unless the subscription's owner may do this. */
extern void tandem_target_check(TandemTarget *target, AclMode mode);
extern void tandem_table_check(Relation rel, AclMode mode);

/* Fills the columns that the publisher doesn't have. */
extern void tandem_target_fill_defaults(TandemTarget *target, TupleTableSlot *slot);

/* ---- lookup.c ---- */

/*
 * Finds and locks the row in target->search; fills target->found.  With an
 * index only lookup.keys need be set in search.  Sees what has committed and
 * what this transaction did; waits for other transactions that have the row.
 * The caller has just taken the active snapshot.
 */
extern bool tandem_target_find(TandemTarget *target);

/* The columns that have to be set to find a row; NULL = all. */
extern const AttrNumber *tandem_target_keys(TandemTarget *target, int *nkeys);

/* ---- batch.c ---- */

/* Takes a row sent to be inserted; the target is batchable. */
extern void tandem_batch_add(TandemTarget *target, LogicalRepTupleData *row, Size size);

/* Writes what has been taken. */
extern void tandem_batch_flush(void);

/* The table it is for, or NULL if it is empty. */
extern TandemTarget *tandem_batch_target(void);

extern void tandem_batch_abort(void);

#endif							/* TANDEM_TARGET_H */
