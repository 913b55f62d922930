/*-------------------------------------------------------------------------
 *
 * incoming.c
 *	  What src/conflict must know of subscriptions to decide how long
 *	  tombstones are kept.
 *
 * Where a subscription is has two sources: what the apply worker confirms, in
 * shared memory, which also moves while the publisher is idle, and the origin,
 * which survives a restart.  Both say: all that was committed there before is
 * durable here, in the tables or in the spool of one that is being copied.
 *
 * Called by src/conflict/retention.c and its view, through tandem_incoming.
 *
 * src/subscription/incoming.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "utils/rel.h"

#include "conflict/retention.h"
#include "subscription/subscription.h"
#include "subscription/waves.h"

/* The position of the subscription's origin; 0 = it has none. */
static XLogRecPtr
origin_position(Oid subid)
{
	char		name[NAMEDATALEN];
	RepOriginId origin;

	snprintf(name, sizeof(name), "pg_%u", subid);
	origin = replorigin_by_name(name, true);
	return origin == InvalidRepOriginId ? InvalidXLogRecPtr : replorigin_get_progress(origin, !RecoveryInProgress());
}

static TandemIncoming *
read_incoming(Form_pg_subscription form, const TandemSubscriptionOptions *options)
{
	TandemIncoming *incoming = palloc0(sizeof(TandemIncoming));
	TandemSubscriptionSlot *slot;

	incoming->subid = form->oid;
	strlcpy(incoming->name, NameStr(form->subname), NAMEDATALEN);
	incoming->tombstones = options->tombstones;
	incoming->flushed = origin_position(form->oid);

	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(form->oid);
	if (slot)
	{
		SpinLockAcquire(&slot->mutex);
		incoming->flushed = Max(incoming->flushed, slot->flushed_lsn);
		incoming->timeline = slot->timeline;
		incoming->remote_time = slot->remote_commit_time;
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(tandem_subscriptions->lock);
	return incoming;
}

static List *
list_incoming(void)
{
	List	   *result = NIL;
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		TandemSubscriptionOptions options;

		if (form->subdbid == MyDatabaseId && tandem_subscription_adopted(form->oid, &options))
			result = lappend(result, read_incoming(form, &options));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

static bool
is_copying(Oid subid)
{
	ListCell   *lc;

	foreach(lc, tandem_copies_list(subid, 0))
	{
		TandemCopy *copy = lfirst(lc);

		if (copy->state == TANDEM_COPY_COPYING || copy->state == TANDEM_COPY_CATCHING_UP)
			return true;
	}
	return false;
}

/* Called when the library is loaded. */
void
tandem_incoming_init(void)
{
	tandem_incoming.list = list_incoming;
	tandem_incoming.copying = is_copying;
}
