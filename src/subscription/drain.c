/*-------------------------------------------------------------------------
 *
 * drain.c
 *	  The leader applies what was spooled of tables that are copied.
 *
 * Down to what the apply worker does itself when it finishes a table
 * (route.c).  Entries are deleted in the transaction that applies them; the
 * table's copy lock keeps the two apart.  An error is that table's: its spool
 * goes, and it is copied again.  A local lock that isn't free in time is no
 * error, only a reason to try later.
 *
 * Called by wave.c and leader.c.
 *
 * src/subscription/drain.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "common/compat.h"
#include "subscription/dispatch.h"
#include "subscription/leader.h"

#define DRAIN_BYTES (4 * 1024 * 1024)	/* of spool in one transaction */
#define DRAIN_REST (512 * 1024) /* what is left to the apply worker */

/*
 * Applies some of a copied table's spool.  Returns whether there was something
 * worth it.  An error is that table's.
 */
static bool
drain_table(Oid relid)
{
	Oid			subid = tandem_leader.sub->oid;
	MemoryContext context;
	ResourceOwner owner;
	TandemCopy *copy;
	TandemWaveSnapshot *snapshot;
	volatile bool done = false;
	int64		entries;

	StartTransactionCommand();
	if (!tandem_copy_lock(subid, relid, true))
	{
		CommitTransactionCommand();
		return false;
	}
	copy = tandem_copies_get(subid, relid);
	snapshot = copy ? tandem_snapshot_load(subid, copy->wave) : NULL;
	if (copy == NULL || copy->state != TANDEM_COPY_CATCHING_UP || snapshot == NULL ||
		tandem_spool_bytes(subid, relid, DRAIN_REST) <= DRAIN_REST)
	{
		CommitTransactionCommand();
		return false;
	}

	context = CurrentMemoryContext;
	owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) tandem_spool_replay(subid, relid, snapshot, DRAIN_BYTES, &entries);
		PopActiveSnapshot();
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		tandem_apply_abort();
		CurrentResourceOwner = owner;
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(error);
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		{
			ereport(LOG,
					(errmsg("changes made while table \"%s\" was copied could not be applied, it will be copied again: %s",
							get_rel_name(relid), error->message)));
			tandem_copy_failed(copy, error->message);
		}
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	CommitTransactionCommand();
	tandem_apply_counted();
	return done;
}

bool
tandem_drain(void)
{
	TandemWaveShared *shared = tandem_my_wave();
	List	   *copies;
	bool		done = false;
	ListCell   *lc;

	StartTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	copies = tandem_copies_list(tandem_leader.sub->oid, 0);
	CommitTransactionCommand();
	MemoryContextSwitchTo(tandem_leader.context);
	foreach(lc, copies)
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_CATCHING_UP && drain_table(copy->relid))
			done = true;
		MemoryContextSwitchTo(tandem_leader.context);
	}
	if (done)
	{
		SpinLockAcquire(&shared->mutex);
		shared->finish_request++;
		SpinLockRelease(&shared->mutex);
		tandem_wake_apply();
	}
	return done;
}
