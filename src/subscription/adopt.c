/*-------------------------------------------------------------------------
 *
 * adopt.c
 *	  SQL functions tandem.adopt() and tandem.release().
 *
 * Adopting asks the publisher (adopt_check.c) and writes the label, and nothing
 * else; the launcher does the rest after the commit.  Adopting an adopted subscription changes the options named and
 * leaves the others.
 *
 * Releasing: the workers end at a transaction boundary, no table may be left
 * that the server couldn't go on with, then the label goes.  A table is in such
 * a state between the commit of its copied rows and the moment it has caught
 * up; the server sees it as 'i' and would copy it again into rows that are
 * there.  So release waits until there is none, or (force) empties them, which
 * makes 'i' true.  The subscription stays disabled: whether the server's
 * worker starts is the user's decision.
 *
 * Order in release: drain, stop, lock.  Workers take AccessShareLock on the
 * subscription whenever they write pg_subscription_rel, so whoever waits for
 * them must not hold a stronger lock yet.
 *
 * src/subscription/adopt.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/worker_internal.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "subscription/subscription.h"

#define CORE_WORKERS_GRACE 10000	/* ms for the server's workers to end */
#define CORE_WORKERS_POLL 100		/* ms: they tell nobody */
#define COPIES_POLL 500			/* ms between two looks at the unfinished copies */

PG_FUNCTION_INFO_V1(tandem_adopt);
PG_FUNCTION_INFO_V1(tandem_release);

Oid
tandem_subscription_owned(const char *name)
{
	Oid			subid = get_subscription_oid(name, true);

	if (!OidIsValid(subid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist", name),
				 errhint("Create it in this database with CREATE SUBSCRIPTION ... WITH (enabled = false).")));
	if (!TANDEM_SUBSCRIPTION_OWNERCHECK(subid, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of subscription %s", name),
				 errhint("Connect as its owner, role \"%s\", or as a superuser.",
						 GetUserNameFromId(GetSubscription(subid, false)->owner, true))));
	return subid;
}

/* Locks it against all others; it must still be what it was. */
static Subscription *
lock_subscription(Oid subid, const char *name)
{
	Subscription *sub;

	LockSharedObject(SubscriptionRelationId, subid, 0, AccessExclusiveLock);
	if (tandem_subscription_owned(name) != subid)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("subscription \"%s\" was changed concurrently", name)));
	sub = GetSubscription(subid, false);
	return sub;
}

/*
 * Waits until the server's workers of a disabled subscription have noticed.
 * Two workers on one origin would only get in each other's way, but the
 * message would be the server's, and not helpful.
 */
static void
wait_for_core_workers(Oid subid, const char *name)
{
	TimestampTz give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), CORE_WORKERS_GRACE);

	for (;;)
	{
		int			running;

		LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
		running = list_length(TANDEM_CORE_WORKERS(subid));
		LWLockRelease(LogicalRepWorkerLock);
		if (running == 0)
			return;
		if (GetCurrentTimestamp() >= give_up)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("cannot adopt subscription \"%s\": the server's own worker still runs", name),
					 errhint("It may be waiting for a lock or applying a large transaction; see pg_stat_activity, then try again.")));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 CORE_WORKERS_POLL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * The server copies each table through states of its own, with a slot and an
 * origin for each; what it has begun only it can finish.
 */
static void
check_table_states(Oid subid, const char *name)
{
	List	   *tables = TANDEM_SUBSCRIPTION_RELATIONS(subid);
	int			begun = 0;
	Oid			example = InvalidOid;
	ListCell   *cell;

	foreach(cell, tables)
	{
		SubscriptionRelState *table = lfirst(cell);

		if (table->state != SUBREL_STATE_INIT && table->state != SUBREL_STATE_READY)
		{
			example = table->relid;
			begun++;
		}
	}
	if (begun > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("cannot adopt subscription \"%s\": the server has begun to copy %d table (\"%s\")",
							   "cannot adopt subscription \"%s\": the server has begun to copy %d tables, \"%s\" among them",
							   begun, name, begun, get_rel_name(example)),
				 errhint("Run ALTER SUBSCRIPTION %s ENABLE, wait until pg_subscription_rel has no state but \"i\" and \"r\", and disable it again.",
						 quote_identifier(name))));
}

Datum
tandem_adopt(PG_FUNCTION_ARGS)
{
	char	   *name = pstrdup(NameStr(*PG_GETARG_NAME(0)));
	char	   *list = text_to_cstring(PG_GETARG_TEXT_PP(1));
	TandemSubscriptionOptions options;
	Subscription *sub;
	Oid			subid;
	char	   *problem;
	const char *hint = NULL;

	tandem_require_subscriptions();
	PreventCommandDuringRecovery("tandem.adopt()");

	subid = tandem_subscription_owned(name);
	tandem_options_init(&options);
	tandem_options_parse(list, &options);	/* bad ones first */

	sub = GetSubscription(subid, false);
	problem = tandem_core_options_problem(sub, &hint);
	if (problem == NULL)
	{
		wait_for_core_workers(subid, name);
		if (!tandem_subscription_adopted(subid, NULL))
		{
			check_table_states(subid, name);
			tandem_check_publisher(sub);
		}
		sub = lock_subscription(subid, name);
		problem = tandem_core_options_problem(sub, &hint);
	}
	if (problem)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot adopt subscription \"%s\": %s", name, problem),
				 errhint("%s", hint)));

	if (tandem_subscription_adopted(subid, &options))
		tandem_options_parse(list, &options);
	else
		check_table_states(subid, name);
	if (tandem_outcomes_need_time(&options.outcomes))
		tandem_check_last_update_wins(sub);
	tandem_label_write(subid, name, &options);
	PG_RETURN_VOID();
}

/* ---- Release ------------------------------------------------------------------- */

static int
unfinished_copies(Oid subid)
{
	return tandem_copies.unfinished ? tandem_copies.unfinished(subid) : 0;
}

void
tandem_check_releasable(Oid subid, const char *name)
{
	int			unfinished = unfinished_copies(subid);

	if (unfinished > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("cannot release subscription \"%s\": %d table is copied halfway",
							   "cannot release subscription \"%s\": %d tables are copied halfway",
							   unfinished, name, unfinished),
				 errhint("Resume it and wait until tandem.tables shows them ready, or empty them with SELECT tandem.release(%s, force => true).",
						 quote_literal_cstr(name))));
}

/* Waits until copies that have begun are finished; no others begin. */
static void
wait_for_copies(Oid subid, const char *name, const TandemSubscriptionOptions *options)
{
	int			unfinished = unfinished_copies(subid);

	if (unfinished == 0)
		return;
	if (!options->enabled)
		tandem_check_releasable(subid, name);
	tandem_subscription_drain(subid);
	ereport(NOTICE,
			(errmsg_plural("waiting for %d table that is copied halfway",
						   "waiting for %d tables that are copied halfway", unfinished, unfinished),
			 errhint("With force they are emptied instead.")));

	while (unfinished_copies(subid) > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 COPIES_POLL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		AcceptInvalidationMessages();
	}
}

Datum
tandem_release(PG_FUNCTION_ARGS)
{
	char	   *name = pstrdup(NameStr(*PG_GETARG_NAME(0)));
	bool		force = PG_GETARG_BOOL(1);
	TandemSubscriptionOptions options;
	Oid			subid;

	tandem_require_subscriptions();
	PreventCommandDuringRecovery("tandem.release()");

	subid = tandem_subscription_owned(name);
	if (tandem_label_read(subid) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is not adopted", name),
				 errhint("The view tandem.subscriptions lists those that are.")));

	if (!tandem_subscription_adopted(subid, &options))
	{
		(void) lock_subscription(subid, name);
		tandem_label_write(subid, name, NULL);
		ereport(NOTICE,
				(errmsg("subscription \"%s\" was not adopted here; its label is removed", name)));
		PG_RETURN_VOID();
	}

	if (!force)
		wait_for_copies(subid, name, &options);
	tandem_subscription_hold(MyDatabaseId, subid);
	(void) lock_subscription(subid, name);
	if (!tandem_subscription_adopted(subid, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("subscription \"%s\" was changed concurrently", name)));

	if (force && tandem_copies.empty)
		tandem_copies.empty(subid);
	tandem_check_releasable(subid, name);
	if (tandem_copies.forget)
		tandem_copies.forget(subid, InvalidOid);
	tandem_rules_drop(subid, InvalidOid);
	tandem_label_write(subid, name, NULL);
	ereport(NOTICE,
			(errmsg("subscription \"%s\" is released, and disabled", name),
			 errhint("To let the server's own worker go on from here, run ALTER SUBSCRIPTION %s ENABLE.",
					 quote_identifier(name))));
	PG_RETURN_VOID();
}
