/*-------------------------------------------------------------------------
 *
 * key.h
 *	  Keys of rows, as the store of tombstones has them.
 *
 * src/conflict/key.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_KEY_H
#define TANDEM_KEY_H

#include "access/htup.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/rel.h"

/* One column of a key. */
typedef struct TandemKeyColumn
{
	AttrNumber	att;			/* in the table (partition) itself */
	AttrNumber	root_att;		/* in the root; columns are ordered by it */
	Oid			type;
	int16		typlen;
	bool		typbyval;
	Oid			collation;
	Oid			equal;			/* operator */
	Oid			hash;			/* function with seed; Invalid = all values hash alike */
	FmgrInfo	equal_finfo;
	FmgrInfo	hash_finfo;
} TandemKeyColumn;

/* What the key of a table's rows is, as far as this node's WAL has it. */
typedef struct TandemKey
{
	Oid			relid;
	Oid			root;
	Oid			owner;			/* the table's: its functions run as this role */
	const char *unsupported;	/* why there can't be one, static; NULL = there is */
	bool		whole;			/* all columns */
	Oid			index;			/* that has the columns; Invalid = whole */
	int32		version;		/* keys with another one can't be compared */
	int			ncolumns;
	TandemKeyColumn columns[FLEXIBLE_ARRAY_MEMBER];
} TandemKey;

/*
 * The key of a table (a partition of "root", or it itself), palloc'd.  Reads
 * catalogs with whatever snapshot is in force, also with a historic one.
 */
extern TandemKey *tandem_key_of(Relation rel, Oid root);

/* Values of a key: what a tuple, or a slot, of the table has in its columns. */
typedef struct TandemKeyValues
{
	Datum	   *values;			/* by column of the key */
	bool	   *isnull;
} TandemKeyValues;

extern void tandem_key_from_tuple(const TandemKey *key, HeapTuple tuple, TupleDesc desc, TandemKeyValues *values);
extern void tandem_key_from_slot(const TandemKey *key, TupleTableSlot *slot, TandemKeyValues *values);

/* Never 0.  Runs the types' functions, as the table's owner. */
extern int64 tandem_key_hash(TandemKey *key, const TandemKeyValues *values);

/*
 * Bytes to be stored: the values, or of a whole row a second hash.  *length in
 * bytes; palloc'd.
 */
extern char *tandem_key_pack(TandemKey *key, const TandemKeyValues *values, int *length);

/* Do packed bytes of the same version and hash have these values? */
extern bool tandem_key_equal(TandemKey *key, const char *packed, int length, const TandemKeyValues *values);

#endif							/* TANDEM_KEY_H */
