/*-------------------------------------------------------------------------
 *
 * route.c
 *	  Where a change of the publisher goes.
 *
 * Tables that are ready in pg_subscription_rel are applied to, all others are
 * left alone, since they will be copied later with what has been changed.  What
 * is known of a table holds until an invalidation of that table, of
 * pg_subscription_rel or of a schema.
 *
 * Called by transaction.c in the apply worker.
 *
 * src/subscription/route.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_subscription_rel.h"
#include "nodes/makefuncs.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "subscription/route.h"
#include "subscription/subscription.h"

typedef struct RouteEntry
{
	LogicalRepRelId remoteid;	/* hash key */
	Oid			relid;
	TandemRoute route;
	bool		valid;
} RouteEntry;

static HTAB *routes = NULL;

static void
forget_table(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	RouteEntry *entry;

	hash_seq_init(&status, routes);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (!OidIsValid(relid) || entry->relid == relid)
			entry->valid = false;
	}
}

static void
forget_all(Datum arg, int cacheid, uint32 hash)
{
	forget_table(arg, InvalidOid);
}

static void
init(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(LogicalRepRelId);
	ctl.entrysize = sizeof(RouteEntry);
	ctl.hcxt = TopMemoryContext;
	routes = hash_create("tandem routes", 128, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(forget_table, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, forget_all, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_all, (Datum) 0);
}

void
tandem_route_begin(TransactionId remote_xid, XLogRecPtr commit_lsn, TimestampTz commit_time)
{
}

TandemRoute
tandem_route(const LogicalRepRelation *remote)
{
	RouteEntry *entry;
	XLogRecPtr	lsn;
	bool		found;

	if (routes == NULL)
		init();
	entry = hash_search(routes, &remote->remoteid, HASH_ENTER, &found);
	if (found && entry->valid)
		return entry->route;

	/* an invalidation from here on counts */
	entry->valid = true;
	entry->relid = RangeVarGetRelid(makeRangeVar(remote->nspname, remote->relname, -1), NoLock, true);
	if (!OidIsValid(entry->relid))
	{
		/* opening it raises the error */
		entry->valid = false;
		entry->route = TANDEM_ROUTE_APPLY;
	}
	else if (GetSubscriptionRelState(tandem_my_subscription->subid, entry->relid, &lsn) == SUBREL_STATE_READY)
		entry->route = TANDEM_ROUTE_APPLY;
	else
		entry->route = TANDEM_ROUTE_IGNORE;
	return entry->route;
}

void
tandem_route_spool(LogicalRepRelId relid, StringInfo message)
{
	elog(ERROR, "nothing is spooled for remote relation ID %u", relid);
}

void
tandem_route_commit(void)
{
}

void
tandem_route_boundary(XLogRecPtr end_lsn)
{
}
