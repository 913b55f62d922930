/*-------------------------------------------------------------------------
 *
 * key.c
 *	  Keys of rows, as the store of tombstones has them.
 *
 * What a row's key is, this node's own WAL decides: a delete logs the old values
 * of the replica identity's columns and no others.  It is
 *
 *	 DEFAULT, USING INDEX	the index's columns
 *	 FULL					those of the primary key, or without one the whole row
 *	 NOTHING, or no index	none: unsupported
 *
 * Two keys are the same if the index's own equality says so, with its collation:
 * 1.0 and 1.00, 'a' and 'A' of a type that takes them for equal.  The hash goes
 * with that equality; a type without one still works, slower, for all its values
 * hash alike.  A whole row is known by two hashes of 64 bits, so each of its
 * types needs a hash function.
 *
 * Columns are ordered as in the root, so that a row has the same key whichever
 * partition it is in.  The version is a hash of all that the comparison rests
 * on; DDL that changes it gives another one, and the same again if it is undone.
 *
 * Functions of a type may be anybody's: they run as the table's owner, restricted
 * as in maintenance commands.
 *
 * Called by decode.c and tombstone.c.
 *
 * src/conflict/key.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/hash.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/catcache.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "common/compat.h"
#include "conflict/key.h"

#define SEED UINT64CONST(0x7461)
#define SECOND_SEED UINT64CONST(0x6e64656d)

/* ---- What the key is ------------------------------------------------------------- */

/* The hash function, with a seed, that goes with an equality operator; or Invalid. */
static Oid
hash_function_of(Oid type, Oid equal)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_HASH_EXTENDED_PROC);
	CatCList   *list;
	Oid			result = InvalidOid;

	/* knows of arrays, rows and ranges whether their elements can be hashed */
	if (entry->eq_opr == equal)
		return entry->hash_extended_proc;

	list = SearchSysCacheList1(AMOPOPID, ObjectIdGetDatum(equal));
	for (int i = 0; i < list->n_members && !OidIsValid(result); i++)
	{
		Form_pg_amop amop = (Form_pg_amop) GETSTRUCT(&list->members[i]->tuple);

		if (amop->amopmethod == HASH_AM_OID && amop->amopstrategy == HTEqualStrategyNumber &&
			amop->amoplefttype == amop->amoprighttype)
			result = get_opfamily_proc(amop->amopfamily, amop->amoplefttype, amop->amoplefttype,
									   HASHEXTENDED_PROC);
	}
	ReleaseSysCacheList(list);
	return result;
}

static int
by_root_att(const void *a, const void *b)
{
	return (int) ((const TandemKeyColumn *) a)->root_att - (int) ((const TandemKeyColumn *) b)->root_att;
}

/* Adds a column; returns why it can't be part of a key, or NULL. */
static const char *
add_column(TandemKey *key, Relation rel, AttrNumber att, Oid equal, Oid collation)
{
	Form_pg_attribute form = TupleDescAttr(RelationGetDescr(rel), att - 1);
	TandemKeyColumn *column = &key->columns[key->ncolumns++];

	column->att = att;
	column->root_att = key->root == key->relid ? att : get_attnum(key->root, NameStr(form->attname));
	column->type = form->atttypid;
	column->typlen = form->attlen;
	column->typbyval = form->attbyval;
	column->collation = collation;
	column->equal = equal;
	if (column->root_att <= 0)
		return "the partition is no longer of this table";
	if (!OidIsValid(equal))
		return "a column's type has no equality";
	column->hash = hash_function_of(form->atttypid, equal);
	if (OidIsValid(column->hash))
		fmgr_info_cxt(column->hash, &column->hash_finfo, CurrentMemoryContext);
	else if (key->whole)
		return "the replica identity is the whole row, and a column's type has no hash function";
	fmgr_info_cxt(get_opcode(equal), &column->equal_finfo, CurrentMemoryContext);
	return NULL;
}

static const char *
add_index_columns(TandemKey *key, Relation rel)
{
	Relation	index = RelationIdGetRelation(key->index);
	const char *problem = NULL;

	if (!RelationIsValid(index))
		return "its identity's index is being dropped";
	if (index->rd_rel->relam != BTREE_AM_OID)
		problem = "its identity's index is no btree";
	for (int i = 0; problem == NULL && i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		Oid			type = index->rd_opcintype[i];

		problem = add_column(key, rel, index->rd_index->indkey.values[i],
							 get_opfamily_member(index->rd_opfamily[i], type, type, BTEqualStrategyNumber),
							 index->rd_indcollation[i]);
	}
	RelationClose(index);
	return problem;
}

static const char *
add_all_columns(TandemKey *key, Relation rel)
{
	const char *problem = NULL;

	for (int i = 0; problem == NULL && i < RelationGetNumberOfAttributes(rel); i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), i);

		/* a publisher doesn't send generated ones */
		if (!att->attisdropped && !att->attgenerated)
			problem = add_column(key, rel, i + 1,
								 lookup_type_cache(att->atttypid, TYPECACHE_EQ_OPR)->eq_opr,
								 att->attcollation);
	}
	return problem;
}

static int32
version_of(const TandemKey *key)
{
	uint32		version = key->whole;

	for (int i = 0; i < key->ncolumns; i++)
	{
		const TandemKeyColumn *column = &key->columns[i];

		version = hash_combine(version, murmurhash32(column->root_att));
		version = hash_combine(version, murmurhash32(column->type));
		version = hash_combine(version, murmurhash32(column->collation));
		version = hash_combine(version, murmurhash32(column->equal));
		version = hash_combine(version, murmurhash32(column->hash));
	}
	return (int32) version;
}

TandemKey *
tandem_key_of(Relation rel, Oid root)
{
	TandemKey  *key = palloc0(offsetof(TandemKey, columns) +
							  sizeof(TandemKeyColumn) * Max(RelationGetNumberOfAttributes(rel), INDEX_MAX_KEYS));

	key->relid = RelationGetRelid(rel);
	key->root = root;
	key->owner = rel->rd_rel->relowner;
	switch (rel->rd_rel->relreplident)
	{
		case REPLICA_IDENTITY_NOTHING:
			key->unsupported = "its replica identity is NOTHING";
			break;
		case REPLICA_IDENTITY_FULL:
			(void) RelationGetReplicaIndex(rel);	/* reads the list of indexes */
			key->index = TANDEM_PRIMARY_KEY_INDEX(rel);
			key->whole = !OidIsValid(key->index);
			break;
		default:
			key->index = RelationGetReplicaIndex(rel);
			if (!OidIsValid(key->index))
				key->unsupported = "it has no replica identity";
			break;
	}
	if (key->unsupported == NULL)
		key->unsupported = key->whole ? add_all_columns(key, rel) : add_index_columns(key, rel);
	if (key->unsupported == NULL)
	{
		qsort(key->columns, key->ncolumns, sizeof(TandemKeyColumn), by_root_att);
		key->version = version_of(key);
	}
	return key;
}

/* ---- Values ------------------------------------------------------------------------- */

static void
make_room(const TandemKey *key, TandemKeyValues *values)
{
	values->values = palloc(sizeof(Datum) * Max(key->ncolumns, 1));
	values->isnull = palloc(sizeof(bool) * Max(key->ncolumns, 1));
}

void
tandem_key_from_tuple(const TandemKey *key, HeapTuple tuple, TupleDesc desc, TandemKeyValues *values)
{
	make_room(key, values);
	for (int i = 0; i < key->ncolumns; i++)
		values->values[i] = heap_getattr(tuple, key->columns[i].att, desc, &values->isnull[i]);
}

void
tandem_key_from_slot(const TandemKey *key, TupleTableSlot *slot, TandemKeyValues *values)
{
	make_room(key, values);
	for (int i = 0; i < key->ncolumns; i++)
		values->values[i] = slot_getattr(slot, key->columns[i].att, &values->isnull[i]);
}

static uint64
combined_hash(TandemKey *key, const TandemKeyValues *values, uint64 seed)
{
	uint64		hash = seed;
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(key->owner, context | SECURITY_RESTRICTED_OPERATION);
	for (int i = 0; i < key->ncolumns; i++)
	{
		TandemKeyColumn *column = &key->columns[i];

		if (!values->isnull[i] && OidIsValid(column->hash))
			hash = hash_combine64(hash, DatumGetUInt64(FunctionCall2Coll(&column->hash_finfo, column->collation,
																		 values->values[i], UInt64GetDatum(seed))));
		else
			hash = hash_combine64(hash, values->isnull[i]);
	}
	SetUserIdAndSecContext(user, context);
	return hash;
}

int64
tandem_key_hash(TandemKey *key, const TandemKeyValues *values)
{
	uint64		hash = combined_hash(key, values, SEED);

	return hash == 0 ? 1 : (int64) hash;
}

char *
tandem_key_pack(TandemKey *key, const TandemKeyValues *values, int *length)
{
	Size		size = 0;
	char	   *packed;
	char	   *to;

	if (key->whole)
	{
		uint64		second = combined_hash(key, values, SECOND_SEED);

		packed = palloc(sizeof(second));
		memcpy(packed, &second, sizeof(second));
		*length = sizeof(second);
		return packed;
	}
	for (int i = 0; i < key->ncolumns; i++)
		size += datumEstimateSpace(values->values[i], values->isnull[i],
								   key->columns[i].typbyval, key->columns[i].typlen);
	to = packed = palloc(Max(size, 1));
	for (int i = 0; i < key->ncolumns; i++)
		datumSerialize(values->values[i], values->isnull[i],
					   key->columns[i].typbyval, key->columns[i].typlen, &to);
	*length = (int) size;
	return packed;
}

bool
tandem_key_equal(TandemKey *key, const char *packed, int length, const TandemKeyValues *values)
{
	char	   *from = (char *) packed;
	bool		equal = true;
	Oid			user;
	int			context;

	if (key->whole)
	{
		uint64		second = combined_hash(key, values, SECOND_SEED);

		return length == sizeof(second) && memcmp(packed, &second, sizeof(second)) == 0;
	}
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(key->owner, context | SECURITY_RESTRICTED_OPERATION);
	for (int i = 0; equal && i < key->ncolumns; i++)
	{
		TandemKeyColumn *column = &key->columns[i];
		bool		isnull;
		Datum		stored = datumRestore(&from, &isnull);

		equal = !isnull && !values->isnull[i] &&
			DatumGetBool(FunctionCall2Coll(&column->equal_finfo, column->collation, stored, values->values[i]));
	}
	SetUserIdAndSecContext(user, context);
	return equal;
}
