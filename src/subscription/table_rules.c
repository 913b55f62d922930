/*-------------------------------------------------------------------------
 *
 * table_rules.c
 *	  tandem.set_conflict() and tandem.set_delta(): rules for single tables; and
 *	  what can't be asked of a subscription.
 *
 * A rule is checked when it is set, as far as this node knows; what only the
 * publisher knows (its replica identity) is checked when it is applied.  At the
 * commit workers are told to read the rules again before their next
 * transaction.  Rules go with the table, the subscription, and tandem.release().
 *
 * Called by SQL, and by adopt.c.
 *
 * src/subscription/table_rules.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_subscription_rel.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "common/compat.h"
#include "subscription/resolve.h"
#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(tandem_set_conflict);
PG_FUNCTION_INFO_V1(tandem_set_delta);

/* ---- What goes together --------------------------------------------------------- */

bool
tandem_outcomes_need_time(const TandemOutcomes *outcomes)
{
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
	{
		if (outcomes->outcome[i] == TANDEM_OUTCOME_LAST_UPDATE_WINS)
			return true;
	}
	return false;
}

void
tandem_check_last_update_wins(const Subscription *sub)
{
	if (sub->twophasestate != LOGICALREP_TWOPHASE_STATE_DISABLED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("outcome last_update_wins can't be used for subscription \"%s\": it has two_phase", sub->name),
				 errhint("A prepared transaction has no commit time yet. Create the subscription without two_phase, or choose another outcome.")));
	if (!track_commit_timestamp)
		ereport(WARNING,
				(errmsg("track_commit_timestamp is off, so each remote change wins over rows here whatever their time"),
				 errhint("Set track_commit_timestamp = on and restart this server.")));
}

/* ---- The functions ------------------------------------------------------------------- */

/* The subscription, locked against others who change its rules. */
static Subscription *
lock_adopted(const char *name, const char *function)
{
	Oid			subid;

	tandem_require_subscriptions();
	PreventCommandDuringRecovery(function);
	subid = tandem_subscription_owned(name);
	LockSharedObject(SubscriptionRelationId, subid, 0, ShareUpdateExclusiveLock);
	if (tandem_subscription_owned(name) != subid)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("subscription \"%s\" was changed concurrently", name)));
	if (!tandem_subscription_adopted(subid, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is not adopted", name),
				 errhint("Use SELECT tandem.adopt(%s) first.", quote_literal_cstr(name))));
	return GetSubscription(subid, false);
}

/* A table of the subscription.  It stays locked, so that it isn't dropped meanwhile. */
static Relation
open_table(const Subscription *sub, Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	XLogRecPtr	lsn;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid),
				 errhint("The view tandem.tables lists the tables of the subscription.")));
	if (GetSubscriptionRelState(sub->oid, relid, &lsn) == SUBREL_STATE_UNKNOWN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s\" is not a table of subscription \"%s\"", RelationGetRelationName(rel), sub->name),
				 errhint("The view tandem.tables lists its tables; of partitioned ones that the publisher sends as such, the root.")));
	return rel;
}

Datum
tandem_set_conflict(PG_FUNCTION_ARGS)
{
	char	   *type_name;
	Subscription *sub;
	Relation	rel;
	TandemConflictType type;
	TandemOutcome outcome = TANDEM_OUTCOME_ERROR;

	for (int i = 0; i < 3; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("subscription, table and type must not be null"),
					 errhint("Only the outcome may be null: that of the subscription.")));
	}
	type_name = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (!tandem_conflict_parse(type_name, &type))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unrecognized type of conflict \"%s\"", type_name),
				 errhint("The types are %s.", tandem_conflict_names())));
	if (!PG_ARGISNULL(3))
	{
		char	   *outcome_name = text_to_cstring(PG_GETARG_TEXT_PP(3));

		if (!tandem_outcome_parse(outcome_name, &outcome))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unrecognized outcome \"%s\"", outcome_name),
					 errhint("That of %s can be %s.", type_name, tandem_outcomes_of(type))));
		if (!tandem_outcome_allowed(type, outcome))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("outcome \"%s\" is not one of %s", outcome_name, type_name),
					 errhint("It can be %s.", tandem_outcomes_of(type))));
	}

	sub = lock_adopted(NameStr(*PG_GETARG_NAME(0)), "tandem.set_conflict()");
	rel = open_table(sub, PG_GETARG_OID(1));
	if (!PG_ARGISNULL(3) && outcome == TANDEM_OUTCOME_LAST_UPDATE_WINS)
		tandem_check_last_update_wins(sub);
	if (tandem_rules_set_outcome(sub->oid, RelationGetRelid(rel), type, PG_ARGISNULL(3) ? -1 : (int) outcome))
		tandem_subscription_changed(sub->oid);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
tandem_set_delta(PG_FUNCTION_ARGS)
{
	Subscription *sub = lock_adopted(NameStr(*PG_GETARG_NAME(0)), "tandem.set_delta()");
	Relation	rel = open_table(sub, PG_GETARG_OID(1));
	const char *column = NameStr(*PG_GETARG_NAME(2));
	bool		on = PG_GETARG_BOOL(3);
	const char *table = RelationGetRelationName(rel);
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), column);
	Form_pg_attribute att;

	if (!AttrNumberIsForUserDefinedAttr(attnum))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column, table),
				 errhint("Name a column that both nodes have.")));
	att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	if (on)
	{
		Bitmapset  *key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);

		if (!tandem_counter_type(att->atttypid))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" of relation \"%s\" can't be a counter: its type is %s",
							column, table, format_type_be(att->atttypid)),
					 errhint("A counter is smallint, integer, bigint, real, double precision or numeric.")));
		if (att->attgenerated)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("column \"%s\" of relation \"%s\" can't be a counter: it is generated", column, table),
					 errhint("Choose a column that is written.")));
		if (bms_is_empty(key))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("relation \"%s\" can't have counters: it has no primary key", table),
					 errhint("A row has to be found whatever its counters are. Add a primary key.")));
		if (bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, key))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("column \"%s\" of relation \"%s\" can't be a counter: it is in the primary key", column, table),
					 errhint("Choose another column.")));
		if (rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("relation \"%s\" can't have counters: its replica identity is not FULL", table),
					 errhint("Old values have to be sent. Run ALTER TABLE %s REPLICA IDENTITY FULL, on both nodes.",
							 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)), table))));
	}
	if (tandem_rules_set_delta(sub->oid, RelationGetRelid(rel), attnum, on))
		tandem_subscription_changed(sub->oid);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}
