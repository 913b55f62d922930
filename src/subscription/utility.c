/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Statements on adopted subscriptions, and what is left when one is dropped.
 *
 *	 ENABLE						refused: the server's worker would start
 *	 REFRESH, SET/ADD/DROP		the server refuses to refresh a disabled
 *	  PUBLICATION				 subscription, so refresh.c does it
 *	 DROP						the server would wait for ever for the origin
 *	 SET, CONNECTION, OWNER,	the workers stop, the launcher starts them with
 *	  RENAME, SKIP				 what is true after the commit
 *
 * Where workers have to stop, they are held (shared.c) before the statement is
 * passed on, hence before the server locks the subscription.  Privileges are
 * checked first: a statement that the server is going to refuse must not stop
 * anything.
 *
 * The server leaves a shared object's label behind when it drops the object, so
 * the drop hook removes it.  The same hook refuses DROP EXTENSION while a
 * subscription of the database is adopted, and says why a table that is yet to
 * be copied can't be dropped.
 *
 * src/subscription/utility.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "common/compat.h"
#include "subscription/subscription.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/*
 * The OID of a subscription that is adopted and that the caller may alter;
 * InvalidOid if the statement is none of our business.
 */
static Oid
adopted_target(const char *name)
{
	Oid			subid = get_subscription_oid(name, true);

	if (!OidIsValid(subid) || !TANDEM_SUBSCRIPTION_OWNERCHECK(subid, GetUserId()) ||
		!tandem_subscription_adopted(subid, NULL))
		return InvalidOid;
	return subid;
}

/*
 * Takes a boolean option out of a list.  If it is given twice it is left there
 * for the server to refuse.
 */
static List *
take_option(List *options, const char *name, bool *value)
{
	DefElem    *found = NULL;
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, name) != 0)
			continue;
		if (found)
			return options;
		found = option;
	}
	if (found == NULL)
		return options;
	*value = defGetBoolean(found);
	return list_delete_ptr(options, found);
}

static void
refuse_enable(const AlterSubscriptionStmt *stmt)
{
	bool		enabled = false;

	(void) take_option(list_copy(stmt->options), "enabled", &enabled);
	if (enabled)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot enable subscription \"%s\": it is adopted by pg_tandem", stmt->subname),
				 errhint("To hand it back first, use SELECT tandem.release(%s); to resume a paused one, SELECT tandem.adopt(%s, 'enabled = on').",
						 quote_literal_cstr(stmt->subname), quote_literal_cstr(stmt->subname))));
}

/* As the server does once two_phase is in use: no copy could be aligned. */
static void
check_two_phase(const Subscription *sub, bool copy_data)
{
	if (sub->twophasestate == LOGICALREP_TWOPHASE_STATE_ENABLED && copy_data)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot refresh subscription \"%s\" with copy_data when two_phase is enabled", sub->name),
				 errhint("Use copy_data = false, or drop and create the subscription.")));
}

static void
refresh(AlterSubscriptionStmt *stmt, Oid subid, ProcessUtilityContext context)
{
	bool		copy_data = true;
	Subscription *sub = GetSubscription(subid, false);
	List	   *rest = take_option(list_copy(stmt->options), "copy_data", &copy_data);

	if (rest != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("unrecognized subscription parameter: \"%s\"",
						((DefElem *) linitial(rest))->defname)));
	check_two_phase(sub, copy_data);
	PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL, "ALTER SUBSCRIPTION ... REFRESH");
	tandem_refresh_publications(sub, copy_data, NIL);
}

/* ---- The hook -------------------------------------------------------------------- */

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *parsetree = pstmt->utilityStmt;
	Oid			subid = InvalidOid;
	bool		stop = false;
	bool		refresh_after = false;
	bool		copy_data = true;
	List	   *validate = NIL;

	switch (nodeTag(parsetree))
	{
		case T_DropSubscriptionStmt:
			subid = adopted_target(((DropSubscriptionStmt *) parsetree)->subname);
			stop = true;
			break;

		case T_RenameStmt:
			if (((RenameStmt *) parsetree)->renameType == OBJECT_SUBSCRIPTION)
				subid = adopted_target(strVal(((RenameStmt *) parsetree)->object));
			stop = true;
			break;

		case T_AlterOwnerStmt:
			if (((AlterOwnerStmt *) parsetree)->objectType == OBJECT_SUBSCRIPTION)
				subid = adopted_target(strVal(((AlterOwnerStmt *) parsetree)->object));
			stop = true;
			break;

		case T_AlterSubscriptionStmt:
			{
				AlterSubscriptionStmt *stmt = (AlterSubscriptionStmt *) parsetree;

				subid = adopted_target(stmt->subname);
				if (!OidIsValid(subid))
					break;
				switch (stmt->kind)
				{
					case ALTER_SUBSCRIPTION_ENABLED:
						refuse_enable(stmt);
						break;
					case ALTER_SUBSCRIPTION_REFRESH:
						refresh(stmt, subid, context);
						return;
					case ALTER_SUBSCRIPTION_SET_PUBLICATION:
					case ALTER_SUBSCRIPTION_ADD_PUBLICATION:
					case ALTER_SUBSCRIPTION_DROP_PUBLICATION:
						/* the server changes the list, we refresh */
						refresh_after = true;
						pstmt = copyObject(pstmt);
						stmt = (AlterSubscriptionStmt *) pstmt->utilityStmt;
						stmt->options = take_option(stmt->options, "refresh", &refresh_after);
						stmt->options = take_option(stmt->options, "copy_data", &copy_data);
						stmt->options = lappend(stmt->options,
												makeDefElem("refresh", (Node *) makeString("false"), -1));
						if (stmt->kind != ALTER_SUBSCRIPTION_DROP_PUBLICATION)
							validate = stmt->publication;
						if (refresh_after)
						{
							check_two_phase(GetSubscription(subid, false), copy_data);
							PreventInTransactionBlock(context == PROCESS_UTILITY_TOPLEVEL,
													  "ALTER SUBSCRIPTION with refresh");
						}
						stop = true;
						break;
					default:
						stop = true;
						break;
				}
				break;
			}

		default:
			break;
	}

	if (OidIsValid(subid) && stop)
		tandem_subscription_hold(MyDatabaseId, subid);

	if (prev_process_utility)
		prev_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (!OidIsValid(subid))
		return;
	if (IsA(parsetree, RenameStmt))
	{
		TandemLabel label;
		char	   *text = tandem_label_read(subid);

		CommandCounterIncrement();
		if (text && tandem_label_parse(text, &label))
			tandem_label_write(subid, ((RenameStmt *) parsetree)->newname, &label.options);
	}
	else if (refresh_after)
	{
		CommandCounterIncrement();
		tandem_refresh_publications(GetSubscription(subid, false), copy_data, validate);
	}
}

/*
 * The server doesn't drop a table that is yet to be copied, and tells to enable
 * the subscription, which we refuse.  So we say it first, and what helps.
 */
static void
refuse_drop_of_unready(Oid relid)
{
	Relation	rel = table_open(SubscriptionRelRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(rel, SubscriptionRelSrrelidSrsubidIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription_rel form = (Form_pg_subscription_rel) GETSTRUCT(tuple);
		char	   *name;

		if (form->srsubstate == SUBREL_STATE_READY || !tandem_subscription_adopted(form->srsubid, NULL))
			continue;
		name = get_subscription_name(form->srsubid, false);
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot drop table \"%s\": subscription \"%s\" is yet to copy it", get_rel_name(relid), name),
				 errhint("Wait until tandem.tables shows it ready; or take it out of the publication and run ALTER SUBSCRIPTION %s REFRESH PUBLICATION.",
						 quote_identifier(name))));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);
	if (access != OAT_DROP)
		return;

	if (classId == SubscriptionRelationId)
	{
		if (tandem_label_read(objectId) == NULL)
			return;
		if (tandem_copies.forget && tandem_subscription_adopted(objectId, NULL))
			tandem_copies.forget(objectId, InvalidOid);
		tandem_rules_drop(objectId, InvalidOid);
		tandem_label_write(objectId, NULL, NULL);
	}
	else if (classId == RelationRelationId && subId == 0)
	{
		char		kind = get_rel_relkind(objectId);

		if (kind == RELKIND_RELATION || kind == RELKIND_PARTITIONED_TABLE)
		{
			refuse_drop_of_unready(objectId);
			if (get_rel_persistence(objectId) != RELPERSISTENCE_TEMP)
				tandem_rules_drop(InvalidOid, objectId);
		}
	}
	else if (classId == ExtensionRelationId)
	{
		char	   *extension = get_extension_name(objectId);
		List	   *names;

		if (extension == NULL || strcmp(extension, "pg_tandem") != 0)
			return;
		names = tandem_adopted_subscriptions();
		if (names != NIL)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop extension pg_tandem: subscription \"%s\" is adopted",
							(char *) linitial(names)),
					 errhint("Use SELECT tandem.release(%s) first.",
							 quote_literal_cstr(linitial(names)))));
	}
}

/* Called when the library is preloaded. */
void
tandem_utility_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
