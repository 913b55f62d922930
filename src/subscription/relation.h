/*-------------------------------------------------------------------------
 *
 * relation.h
 *	  The publisher's tables, and the local tables their changes go to.
 *
 * src/subscription/relation.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_RELATION_H
#define TANDEM_RELATION_H

#include "access/attmap.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "replication/logicalproto.h"
#include "storage/lockdefs.h"
#include "utils/rel.h"

/* How one local column is filled. */
typedef struct TandemColumn
{
	int			remote;			/* number of the publisher's column from 0, -1 = none */
	bool		dropped;
	bool		generated;
	Oid			type;
	int32		typmod;
	bool		text_known;		/* the next two are set */
	Oid			text_param;
	FmgrInfo	text;			/* input function */
	bool		binary_known;	/* the next two are set */
	Oid			binary_param;
	FmgrInfo	binary;			/* receive function */
} TandemColumn;

/* The columns of a local table, or of one of its partitions. */
typedef struct TandemMap
{
	const LogicalRepRelation *remote;
	int			natts;
	TandemColumn *columns;		/* natts of them, in local order */
	Oid			identity;		/* index that finds a row, or InvalidOid */
	bool		updatable;		/* the publisher sends what finds a row */
	bool		complete;		/* no column has to be filled by us */
	MemoryContext context;
} TandemMap;

struct TandemTarget;			/* target.h */

/* A table of the publisher, by its OID there. */
typedef struct TandemRelation
{
	LogicalRepRelId remoteid;	/* hash key */
	LogicalRepRelation *remote; /* as its last RELATION message said */
	MemoryContext context;		/* has "remote" */

	Oid			localoid;
	bool		valid;			/* localoid and map are; reset by invalidation */
	TandemMap  *map;
	uint64		generation;		/* another one for every map */
	Relation	rel;			/* open, or NULL */
	LOCKMODE	lockmode;		/* of rel */

	struct TandemTarget *target;	/* what modify.c keeps, or NULL */
} TandemRelation;

/* Reads a RELATION message behind its first byte; a known relation's map is void after it. */
extern TandemRelation *tandem_relation_read(StringInfo message);

/* The relation; raises an error if no RELATION message named it. */
extern TandemRelation *tandem_relation_find(LogicalRepRelId remoteid);

/* The same, or NULL. */
extern TandemRelation *tandem_relation_find_or_null(LogicalRepRelId remoteid);

/*
 * Opens and locks the local table, until tandem_relation_close() or, with
 * NoLock there, the end of the transaction.  The map is valid as long as the
 * table is open.  Raises an error if the table or one of the publisher's
 * columns is missing.  Needs a transaction.
 */
extern TandemRelation *tandem_relation_open(LogicalRepRelId remoteid, LOCKMODE lockmode);
extern void tandem_relation_close(TandemRelation *relation, LOCKMODE lockmode);

/* Forgets that tables are open: their transaction has failed. */
extern void tandem_relations_abort(void);

/*
 * The map of a table (parent = NULL) or of a partition of the table that
 * "parent" maps; attrmap: the partition's columns to the parent's, NULL if they
 * are the same.  In a context of its own, a child of the current one.
 */
extern TandemMap *tandem_map_build(const LogicalRepRelation *remote, Relation rel,
								   const TandemMap *parent, const AttrMap *attrmap);

/* Raises an error if the publisher doesn't send what is needed to find a row. */
extern void tandem_map_check_updatable(const TandemMap *map);

/*
 * Fills a virtual slot with a row as sent.  keys: only these local columns
 * (nkeys attribute numbers); the others are null.  Values are in the current
 * memory context.
 */
extern void tandem_map_store(TandemMap *map, TupleTableSlot *slot, LogicalRepTupleData *row,
							 const AttrNumber *keys, int nkeys);

/*
 * Fills a virtual slot with "old" changed as "row" says.  Columns that it
 * leaves alone still point into old.
 */
extern void tandem_map_modify(TandemMap *map, TupleTableSlot *slot, TupleTableSlot *old,
							  LogicalRepTupleData *row);

#endif							/* TANDEM_RELATION_H */
