/*-------------------------------------------------------------------------
 *
 * tombstone.c
 *	  Rows that were deleted meanwhile.
 *
 * For now nothing is known of them.
 *
 * Called by src/subscription/modify.c.
 *
 * src/conflict/tombstone.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/conflict.h"

void
tandem_tombstone_find(Oid root, Relation rel, Oid identity, TupleTableSlot *key,
					  bool wait, TandemTombstone *result)
{
	memset(result, 0, sizeof(*result));
	result->verdict = TANDEM_VERDICT_UNKNOWN;
	result->unsupported = true;
	result->reason = "no tombstones are collected";
}

void
tandem_tombstone_leave(Oid root, Relation rel, Oid identity, TupleTableSlot *key)
{
}

bool
tandem_tombstone_any(Oid root)
{
	return false;
}
