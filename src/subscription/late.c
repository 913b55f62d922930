/*-------------------------------------------------------------------------
 *
 * late.c
 *	  Inserts that come late: of rows that have been deleted meanwhile.
 *
 * Another node has deleted the row, its delete came here first, and now comes the
 * insert: nothing is in its way, and the row would be there for ever.  Only a
 * tombstone tells.  The delete may have committed just now, so the collector has to
 * be waited for; but not for each row.  So rows are inserted first, and looked at
 * together before the commit (or every MOST rows), after one wait.  From the
 * insertion on no local session can delete the row unseen, and what had been
 * deleted before is in the store when the wait is over.
 *
 * Another apply worker that deletes such a row and doesn't find it leaves a
 * tombstone that is visible with its commit only.  Therefore both lock the key, in
 * a number of classes: who comes second finds the row, or the tombstone.  It is a
 * lock that the server's deadlock detector knows.
 *
 * With outcome "apply" there is nothing to be undone, so nobody waits and nothing
 * is locked; if the table has tombstones at all, what the store knows is recorded.
 *
 * Called by modify.c, batch.c and dispatch.c.
 *
 * src/subscription/late.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "subscription/late.h"
#include "subscription/modify.h"
#include "subscription/resolve.h"

#define MOST 1000				/* rows remembered */
#define CLASSES 128				/* of keys that are locked together, of one table */
#define LOCK_KIND 7				/* in the lock's tag; those of pg_advisory_lock() have 1 and 2 */

typedef struct LateInsert
{
	TandemTarget *leaf;			/* open until the check */
	HeapTuple	row;
	TransactionId xid;			/* of the remote transaction */
	TimestampTz time;
	XLogRecPtr	lsn;
} LateInsert;

static MemoryContext context = NULL;
static List *inserts = NIL;		/* of LateInsert, in "context" */
static bool strict = false;		/* one of them may have to be undone */

static inline TandemOutcome
outcome_of(const TandemTarget *leaf)
{
	return leaf->rules->outcomes.outcome[TANDEM_INSERT_DELETED];
}

static inline Oid
identity_of(const TandemTarget *leaf)
{
	return leaf->lookup.index ? leaf->map->identity : InvalidOid;
}

void
tandem_late_lock(TandemTarget *leaf, TupleTableSlot *row)
{
	uint64		hash;
	LOCKTAG		tag;

	if (!leaf->late || outcome_of(leaf) == TANDEM_OUTCOME_APPLY)
		return;
	hash = tandem_tombstone_hash(leaf->root, leaf->rel, identity_of(leaf), row);
	if (hash == 0)
		return;					/* there can be no tombstone */
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, leaf->root, (uint32) (hash % CLASSES), LOCK_KIND);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
tandem_late_remember(TandemTarget *leaf, TupleTableSlot *row)
{
	const TandemConflictSession *session = &tandem_conflict_session;
	LateInsert *insert;
	MemoryContext old;

	if (!leaf->late)
		return;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "tandem late inserts", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	insert = palloc(sizeof(LateInsert));
	insert->leaf = leaf;
	insert->row = ExecCopySlotHeapTuple(row);
	insert->xid = session->xid;
	insert->time = session->time;
	insert->lsn = session->lsn;
	inserts = lappend(inserts, insert);
	MemoryContextSwitchTo(old);
	if (outcome_of(leaf) != TANDEM_OUTCOME_APPLY)
		strict = true;
}

/* There is a tombstone of this row; *row is what was inserted. */
static void
check_one(const LateInsert *insert, TupleTableSlot *row, const TandemTombstone *stone)
{
	TandemChange change = {insert->leaf, insert->leaf, 'I', NULL, NULL};
	TandemConflict conflict;
	const char *reason;

	if (tandem_remote_wins(&stone->deleter, &reason))
		return;					/* it was deleted before, and is new */

	tandem_conflict_init(&conflict, &change, TANDEM_INSERT_DELETED);
	conflict.local = stone->deleter;
	conflict.remote_row = row;
	conflict.reason = reason;
	switch (conflict.configured)
	{
		case TANDEM_OUTCOME_ERROR:
			tandem_resolve_refuse(&conflict);
			break;
		case TANDEM_OUTCOME_APPLY:
			conflict.resolution = "applied";
			conflict.result_row = row;
			break;
		default:
			tandem_modify_undo_insert(insert->leaf, row);
			conflict.resolution = "skipped";
			break;
	}
	tandem_conflict_record(&conflict);
}

void
tandem_late_check(void)
{
	TandemConflictSession now = tandem_conflict_session;
	List	   *all = inserts;
	bool		wait = strict;
	MemoryContext one;
	MemoryContext old;
	ListCell   *lc;

	if (all == NIL)
		return;

	/* what is undone here doesn't come back */
	inserts = NIL;
	strict = false;
	one = AllocSetContextCreate(CurrentMemoryContext, "tandem late insert", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(one);
	foreach(lc, all)
	{
		LateInsert *insert = lfirst(lc);
		TandemTarget *leaf = insert->leaf;
		TupleTableSlot *row;
		TandemTombstone stone;

		CHECK_FOR_INTERRUPTS();
		row = MakeSingleTupleTableSlot(RelationGetDescr(leaf->rel), &TTSOpsHeapTuple);
		ExecForceStoreHeapTuple(insert->row, row, false);
		slot_getallattrs(row);
		tandem_conflict_session.xid = insert->xid;
		tandem_conflict_session.time = insert->time;
		tandem_conflict_session.lsn = insert->lsn;
		tandem_tombstone_find(leaf->root, leaf->rel, identity_of(leaf), row, wait, &stone);
		wait = false;
		if (stone.deleter.known)
			check_one(insert, row, &stone);
		ExecDropSingleTupleTableSlot(row);
		MemoryContextReset(one);
	}
	tandem_conflict_session = now;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(one);
	MemoryContextReset(context);
}

void
tandem_late_check_many(void)
{
	if (list_length(inserts) >= MOST)
		tandem_late_check();
}

void
tandem_late_forget(void)
{
	inserts = NIL;
	strict = false;
	if (context)
		MemoryContextReset(context);
}
