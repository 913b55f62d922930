/*-------------------------------------------------------------------------
 *
 * row.c
 *	  The subscription's row in pg_subscription, as the apply worker sees it.
 *
 * Read at the start and after each change of it, at the beginning of a
 * transaction or between two.  A change that concerns the session with the
 * publisher ends the process; the launcher starts another at once.
 *
 * Called by apply.c, transaction.c, prepared.c.
 *
 * src/subscription/row.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_subscription_rel.h"
#include "nodes/nodeFuncs.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "common/compat.h"
#include "subscription/apply.h"
#include "subscription/dispatch.h"
#include "subscription/subscription.h"

static bool valid = false;		/* the row is as we have read it */
static bool tables_valid = false;	/* no table's state has changed since we looked */

static void
row_changed(Datum arg, int cacheid, uint32 hash)
{
	valid = false;
}

static void
tables_changed(Datum arg, int cacheid, uint32 hash)
{
	tables_valid = false;
}

void
tandem_apply_restart(const char *reason)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;

	ereport(LOG,
			(errmsg("tandem apply worker for subscription \"%s\" ends: %s",
					NameStr(slot->name), reason)));
	tandem_subscription_set_state(TANDEM_SUBSCRIPTION_RETRYING, reason);
	SpinLockAcquire(&slot->mutex);
	slot->next_retry = 0;
	SpinLockRelease(&slot->mutex);
	proc_exit(0);
}

/* The row as it is now, in a context of its own; NULL = gone. */
static Subscription *
read_row(MemoryContext *context)
{
	Subscription *sub;
	MemoryContext old;

	*context = AllocSetContextCreate(TopMemoryContext, "tandem subscription", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(*context);
	valid = true;
	sub = GetSubscription(tandem_my_subscription->subid, true);
	MemoryContextSwitchTo(old);
	return sub;
}

void
tandem_row_read(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, row_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, tables_changed, (Datum) 0);

	/* until the end of this transaction nobody drops it */
	LockSharedObject(SubscriptionRelationId, tandem_my_subscription->subid, 0, AccessShareLock);
	tandem_apply.sub = read_row(&tandem_apply.sub_context);
	if (tandem_apply.sub == NULL)
		tandem_apply_restart("the subscription has been dropped");
	if (tandem_apply.sub->enabled)
		tandem_apply_restart("the subscription is enabled for the server's own worker");
	if (tandem_apply.sub->slotname == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has no slot name", tandem_apply.sub->name),
				 errhint("Set one with ALTER SUBSCRIPTION ... SET (slot_name = ...).")));
}

void
tandem_row_reread(void)
{
	Subscription *old = tandem_apply.sub;
	Subscription *sub;
	MemoryContext context;
	bool		started = false;

	if (likely(valid))
		return;
	if (!IsTransactionState())
	{
		StartTransactionCommand();
		started = true;
	}

	sub = read_row(&context);
	if (sub == NULL)
		tandem_apply_restart("the subscription has been dropped");
	if (sub->enabled)
		tandem_apply_restart("the subscription is enabled for the server's own worker");
	if (sub->slotname == NULL || strcmp(sub->slotname, old->slotname) != 0 ||
		strcmp(sub->conninfo, old->conninfo) != 0 || strcmp(sub->name, old->name) != 0 ||
		sub->binary != old->binary || sub->stream != old->stream ||
		sub->owner != old->owner || !equal(sub->publications, old->publications))
		tandem_apply_restart("a parameter of the subscription has changed");

	if (strcmp(sub->synccommit, old->synccommit) != 0)
		SetConfigOption("synchronous_commit", sub->synccommit, PGC_BACKEND, PGC_S_OVERRIDE);
	tandem_apply.sub = sub;
	tandem_apply_begin_session(sub);
	MemoryContextDelete(tandem_apply.sub_context);
	tandem_apply.sub_context = context;

	if (started)
		CommitTransactionCommand();
}

void
tandem_row_clear_skip(XLogRecPtr finish_lsn)
{
	XLogRecPtr	skip = tandem_apply.sub->skiplsn;
	Relation	rel;
	HeapTuple	tuple;
	bool		started = false;

	if (likely(XLogRecPtrIsInvalid(skip)))
		return;
	if (!IsTransactionState())
	{
		StartTransactionCommand();
		started = true;
	}

	PushActiveSnapshot(GetTransactionSnapshot());
	LockSharedObject(SubscriptionRelationId, tandem_apply.sub->oid, 0, AccessShareLock);
	rel = table_open(SubscriptionRelationId, RowExclusiveLock);
	tuple = SearchSysCacheCopy1(SUBSCRIPTIONOID, ObjectIdGetDatum(tandem_apply.sub->oid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "subscription \"%s\" does not exist", tandem_apply.sub->name);

	/* one that was set meanwhile is for another transaction */
	if (((Form_pg_subscription) GETSTRUCT(tuple))->subskiplsn == skip)
	{
		Datum		values[Natts_pg_subscription] = {0};
		bool		nulls[Natts_pg_subscription] = {0};
		bool		replaces[Natts_pg_subscription] = {0};

		values[Anum_pg_subscription_subskiplsn - 1] = LSNGetDatum(InvalidXLogRecPtr);
		replaces[Anum_pg_subscription_subskiplsn - 1] = true;
		tuple = heap_modify_tuple(tuple, RelationGetDescr(rel), values, nulls, replaces);
		CatalogTupleUpdate(rel, &tuple->t_self, tuple);
		if (skip != finish_lsn)
			ereport(WARNING,
					(errmsg("skip-LSN of subscription \"%s\" cleared", tandem_apply.sub->name),
					 errdetail("Remote transaction's finish WAL location (LSN) %X/%X did not match skip-LSN %X/%X.",
							   LSN_FORMAT_ARGS(finish_lsn), LSN_FORMAT_ARGS(skip))));
	}
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	PopActiveSnapshot();
	if (started)
		CommitTransactionCommand();
}

bool
tandem_row_all_ready(void)
{
	List	   *tables = TANDEM_SUBSCRIPTION_RELATIONS(tandem_apply.sub->oid);
	ListCell   *lc;

	foreach(lc, tables)
	{
		if (((SubscriptionRelState *) lfirst(lc))->state != SUBREL_STATE_READY)
			return false;
	}
	return tables != NIL;
}

void
tandem_row_check_two_phase(void)
{
	bool		ready;

	if (tandem_apply.sub->twophasestate != LOGICALREP_TWOPHASE_STATE_PENDING || tables_valid)
		return;
	tables_valid = true;
	StartTransactionCommand();
	ready = tandem_row_all_ready();
	CommitTransactionCommand();
	if (ready)
		tandem_apply_restart("all tables are ready, two_phase can be enabled");
}
