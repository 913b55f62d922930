/*-------------------------------------------------------------------------
 *
 * tables_view.c
 *	  The view tandem.tables, tandem.resync(), and what adopt.c asks about
 *	  copies.
 *
 * The view has one row for each table of each adopted subscription of the
 * current database.
 *
 * src/subscription/tables_view.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "subscription/waves.h"

#define LOCK_POLL 20			/* ms between two looks whether a table's copy lock is free */

PG_FUNCTION_INFO_V1(tandem_tables_status);
PG_FUNCTION_INFO_V1(tandem_resync);

/* OIDs of this database's adopted subscriptions. */
static List *
adopted_subscriptions(void)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	List	   *list = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);

		if (form->subdbid == MyDatabaseId && tandem_subscription_adopted(form->oid, NULL))
			list = lappend_oid(list, form->oid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return list;
}

/* What the copy worker that has a table shows; returns false if none has. */
static bool
current_progress(Oid subid, Oid relid, TandemCopyProgress *progress)
{
	bool		found = false;

	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	for (int i = 0; i < tandem_subscriptions->nslots && !found; i++)
	{
		TandemSubscriptionSlot *slot = &tandem_subscriptions->slots[i];
		TandemWaveShared *wave = &tandem_waves[i];

		if (!slot->used || slot->subid != subid)
			continue;
		SpinLockAcquire(&wave->mutex);
		for (int w = 0; w < TANDEM_MAX_SYNC_WORKERS && !found; w++)
		{
			if (wave->workers[w].pid != 0 && wave->workers[w].relid == relid)
			{
				*progress = wave->workers[w];
				found = true;
			}
		}
		SpinLockRelease(&wave->mutex);
	}
	LWLockRelease(tandem_subscriptions->lock);
	return found;
}

/* Why a subscription's wave doesn't go on. */
typedef struct WaveTrouble
{
	char		error[512];		/* empty = it does */
	char		hint[256];
	TimestampTz retry;			/* when there is another wave, 0 = not known */
} WaveTrouble;

static void
wave_trouble(Oid subid, WaveTrouble *trouble)
{
	memset(trouble, 0, sizeof(*trouble));
	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	for (int i = 0; i < tandem_subscriptions->nslots; i++)
	{
		if (!tandem_subscriptions->slots[i].used || tandem_subscriptions->slots[i].subid != subid)
			continue;
		SpinLockAcquire(&tandem_waves[i].mutex);
		if (tandem_waves[i].subid == subid)
		{
			strlcpy(trouble->error, tandem_waves[i].error, sizeof(trouble->error));
			strlcpy(trouble->hint, tandem_waves[i].hint, sizeof(trouble->hint));
			if (tandem_waves[i].leader_pid == 0)
				trouble->retry = tandem_waves[i].leader_retry;
		}
		SpinLockRelease(&tandem_waves[i].mutex);
	}
	LWLockRelease(tandem_subscriptions->lock);
}

static int
by_relid(const ListCell *a, const ListCell *b)
{
	Oid			x = ((TandemCopy *) lfirst(a))->relid;
	Oid			y = ((TandemCopy *) lfirst(b))->relid;

	return x < y ? -1 : x > y;
}

/* Steps through copies, sorted by relid, to this one's row. */
static TandemCopy *
find_copy(List *copies, Oid relid)
{
	int			low = 0;
	int			high = list_length(copies) - 1;

	while (low <= high)
	{
		int			middle = (low + high) / 2;
		TandemCopy *copy = list_nth(copies, middle);

		if (copy->relid == relid)
			return copy;
		if (copy->relid < relid)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return NULL;
}

static void
put_table(ReturnSetInfo *rsinfo, Oid subid, const char *name, SubscriptionRelState *state,
		  TandemCopy *copy, const WaveTrouble *trouble)
{
	TandemCopy	none = {.state = state->state == SUBREL_STATE_READY ? TANDEM_COPY_READY : TANDEM_COPY_WAITING};
	TandemCopyProgress progress = {0};
	TandemSpool spool = {0};
	NameData	names[3];
	const char *text = NULL;
	Datum		v[18];
	bool		n[18];
	char	   *schema = get_namespace_name(get_rel_namespace(state->relid));
	char	   *table = get_rel_name(state->relid);

	if (schema == NULL || table == NULL)
		return;					/* dropped meanwhile */
	if (copy == NULL)
		copy = &none;
	switch (copy->state)
	{
		case TANDEM_COPY_WAITING:
			text = copy->error ? "failed" : "waiting";
			break;
		case TANDEM_COPY_COPYING:
			text = "copying";
			if (current_progress(subid, state->relid, &progress))
			{
				copy->started = progress.started;
				copy->rows_done = progress.rows;
				copy->bytes_done = progress.bytes;
			}
			break;
		case TANDEM_COPY_CATCHING_UP:
			text = "catching up";
			break;
		default:
			text = "ready";
	}
	memset(n, 0, sizeof(n));
	namestrcpy(&names[0], name);
	namestrcpy(&names[1], schema);
	namestrcpy(&names[2], table);
	v[0] = NameGetDatum(&names[0]);
	v[1] = NameGetDatum(&names[1]);
	v[2] = NameGetDatum(&names[2]);
	v[3] = ObjectIdGetDatum(state->relid);
	v[4] = CStringGetTextDatum(text);
	v[5] = Int64GetDatum(copy->wave);
	n[5] = copy->wave == 0;
	v[6] = Int32GetDatum(progress.pid);
	n[6] = progress.pid == 0;
	v[7] = Int64GetDatum(copy->rows_done);
	v[8] = Int64GetDatum(copy->rows_estimated);
	v[9] = Int64GetDatum(copy->bytes_done);
	v[10] = Int64GetDatum(copy->bytes_estimated);
	v[11] = TimestampTzGetDatum(copy->started);
	n[11] = copy->started == 0;
	v[12] = TimestampTzGetDatum(copy->finished);
	n[12] = copy->finished == 0;
	if (copy->state == TANDEM_COPY_COPYING || copy->state == TANDEM_COPY_CATCHING_UP)
	{
		tandem_spool_look(subid, state->relid, &spool);
		if (spool.given_up == copy->wave)
			copy->error = tandem_spool_given_up_error();
	}
	v[13] = Int64GetDatum(spool.bytes);
	if (copy->error == NULL && copy->state != TANDEM_COPY_READY && trouble->error[0])
	{
		copy->error = pstrdup(trouble->error);
		if (trouble->hint[0])
			copy->hint = pstrdup(trouble->hint);
		if (copy->next_retry == 0)
			copy->next_retry = trouble->retry;
	}
	n[14] = copy->error == NULL;
	v[14] = copy->error ? CStringGetTextDatum(copy->error) : (Datum) 0;
	n[15] = copy->hint == NULL;
	v[15] = copy->hint ? CStringGetTextDatum(copy->hint) : (Datum) 0;
	v[16] = Int32GetDatum(copy->attempts);
	v[17] = TimestampTzGetDatum(copy->next_retry);
	n[17] = copy->next_retry == 0 || copy->state != TANDEM_COPY_WAITING;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, v, n);
}

Datum
tandem_tables_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	tandem_require_subscriptions();
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, adopted_subscriptions())
	{
		Oid			subid = lfirst_oid(lc);
		char	   *name = get_subscription_name(subid, true);
		List	   *copies;
		WaveTrouble trouble;
		ListCell   *relation;

		if (name == NULL)
			continue;
		copies = tandem_copies_list(subid, 0);
		list_sort(copies, by_relid);
		wave_trouble(subid, &trouble);
		foreach(relation, TANDEM_SUBSCRIPTION_RELATIONS(subid))
		{
			SubscriptionRelState *state = lfirst(relation);

			put_table(rsinfo, subid, name, state, find_copy(copies, state->relid), &trouble);
		}
	}
	return (Datum) 0;
}

Datum
tandem_resync(PG_FUNCTION_ARGS)
{
	char	   *name = NameStr(*PG_GETARG_NAME(0));
	Oid			relid = PG_GETARG_OID(1);
	Oid			subid;
	XLogRecPtr	lsn;
	char		state;
	TandemCopy *copy;

	tandem_require_subscriptions();
	subid = get_subscription_oid(name, false);
	if (!TANDEM_SUBSCRIPTION_OWNERCHECK(subid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_SUBSCRIPTION, name);
	LockSharedObject(SubscriptionRelationId, subid, 0, RowExclusiveLock);
	if (!tandem_subscription_adopted(subid, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is not adopted", name),
				 errhint("Take it over with tandem.adopt('%s').", name)));
	if (GetSubscription(subid, false)->twophasestate == LOGICALREP_TWOPHASE_STATE_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a table can't be copied again while two_phase is enabled"),
				 errhint("Create the subscription without two_phase.")));
	state = GetSubscriptionRelState(subid, relid, &lsn);
	if (state == SUBREL_STATE_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" is not part of subscription \"%s\"", get_rel_name(relid), name),
				 errhint("Add it to a publication and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						 quote_identifier(name))));

	/* one that has failed is copied now; one that is being copied, which may take long, as it is */
	while (!tandem_copy_lock(subid, relid, true))
	{
		copy = tandem_copies_get(subid, relid);
		if (copy && copy->state == TANDEM_COPY_COPYING)
		{
			ereport(NOTICE,
					(errmsg("table \"%s\" is being copied", get_rel_name(relid))));
			PG_RETURN_VOID();
		}
		/* its spool is being applied, for a moment */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOCK_POLL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	copy = tandem_copies_get(subid, relid);
	/* it may have been finished meanwhile */
	AcceptInvalidationMessages();
	state = GetSubscriptionRelState(subid, relid, &lsn);
	if (copy == NULL)
	{
		copy = palloc0(sizeof(TandemCopy));
		copy->subid = subid;
		copy->relid = relid;
		copy->state = TANDEM_COPY_READY;
	}
	if (copy->state == TANDEM_COPY_READY && state == SUBREL_STATE_READY)
	{
		copy->state = TANDEM_COPY_WAITING;
		copy->resync = true;
	}
	if (copy->state == TANDEM_COPY_WAITING)
	{
		copy->attempts = 0;
		copy->next_retry = 0;
		copy->error = copy->hint = NULL;
		tandem_copies_put_one(copy);
	}
	tandem_subscription_wake_at_commit(subid);
	PG_RETURN_VOID();
}

/* ---- For adopt.c ------------------------------------------------------------ */

static int
unfinished_copies(Oid subid)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, tandem_copies_list(subid, 0))
		n += tandem_copy_unfinished(lfirst(lc));
	return n;
}

static void
empty_copies(Oid subid)
{
	ListCell   *lc;

	foreach(lc, tandem_copies_list(subid, 0))
	{
		TandemCopy *copy = lfirst(lc);
		Relation	rel;

		if (!tandem_copy_unfinished(copy))
			continue;
		rel = try_table_open(copy->relid, AccessExclusiveLock);
		if (rel)
		{
			tandem_empty_relation(rel);
			table_close(rel, NoLock);
		}
		copy->content = copy->stale = false;	/* 'i' is true now */
		tandem_copies_put_one(copy);
	}
}

static void
forget_copies(Oid subid, Oid relid)
{
	tandem_spool_drop(subid, relid);
	tandem_copies_delete(subid, relid);
	if (!OidIsValid(relid))
	{
		tandem_snapshots_prune(subid, NIL);
		/* a leader that was told to stop has left them */
		tandem_copy_origins_drop(subid);
	}
}

void
tandem_waves_init(void)
{
	tandem_copies.unfinished = unfinished_copies;
	tandem_copies.empty = empty_copies;
	tandem_copies.forget = forget_copies;
}
