/*-------------------------------------------------------------------------
 *
 * label.c
 *	  The mark of an adopted subscription: a security label of provider
 *	  "tandem".
 *
 * Why a label: it belongs to the subscription in the server's own catalogs, is
 * transactional, and can be read by the launcher, which has no database.
 *
 * What it says: the system identifier of the server, the OID and the name of
 * the subscription it was made for, then the options.  A dump carries the label
 * along; restored elsewhere, it must not make another server consume this
 * one's replication slot.  So a label that doesn't fit in all three means "not
 * adopted", and the view says so.  For the same reason SECURITY LABEL with a
 * label that doesn't fit succeeds: that is what a restore does.  One that fits
 * is refused unless it is there already: tandem.adopt() has checks to make.
 *
 * SECURITY LABEL ... IS NULL is a release, and is refused where that would be.
 *
 *		pg_tandem 1 system=7312 oid=16400 enabled=on workers=0 node_id= name=sub
 *
 * The name comes last and is not quoted.  Before it there may be tombstones=on
 * and outcomes of conflicts, such as insert_exists=skip.
 *
 * Called by adopt.c, utility.c, launcher.c, status.c and workers.
 *
 * src/subscription/label.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_shseclabel.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "subscription/subscription.h"

#define LABEL_START "pg_tandem 1 "
#define NAME_START "name="

static ObjectAddress
subscription_address(Oid subid)
{
	ObjectAddress address;

	ObjectAddressSet(address, SubscriptionRelationId, subid);
	return address;
}

static char *
format_label(Oid subid, const char *name, const TandemSubscriptionOptions *options)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, LABEL_START "system=" UINT64_FORMAT " oid=%u",
					 GetSystemIdentifier(), subid);
	tandem_options_format(&text, options);
	appendStringInfo(&text, " " NAME_START "%s", name);
	if (text.len > TANDEM_LABEL_SIZE)
		elog(ERROR, "label of subscription \"%s\" is too long: %d bytes", name, text.len);
	return text.data;
}

/* Reads an unsigned number that fills the whole text. */
static bool
parse_number(const char *text, uint64 max, uint64 *number)
{
	char	   *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*number = strtoull(text, &end, 10);
	return *end == '\0' && errno == 0 && *number <= max;
}

/*
 * Is this a label of ours?  One with an option that we don't know isn't: it was
 * written by a later version, and may mean something that we wouldn't do.
 */
bool
tandem_label_parse(const char *text, TandemLabel *label)
{
	char		copy[TANDEM_LABEL_SIZE + 1];
	bool		has_system = false;
	bool		has_oid = false;
	char	   *p;

	memset(label, 0, sizeof(*label));
	tandem_options_init(&label->options);
	if (strlen(text) > TANDEM_LABEL_SIZE || strncmp(text, LABEL_START, strlen(LABEL_START)) != 0)
		return false;
	strlcpy(copy, text + strlen(LABEL_START), sizeof(copy));

	for (p = copy;;)
	{
		char	   *value;
		char	   *end;
		uint64		number;

		if (strncmp(p, NAME_START, strlen(NAME_START)) == 0)
		{
			p += strlen(NAME_START);
			if (*p == '\0' || strlen(p) >= NAMEDATALEN)
				return false;
			strlcpy(label->name, p, NAMEDATALEN);
			return has_system && has_oid;
		}

		end = strchr(p, ' ');
		value = strchr(p, '=');
		if (end == NULL || value == NULL || value > end)
			return false;
		*end = '\0';
		*value++ = '\0';
		if (strcmp(p, "system") == 0)
		{
			if (!parse_number(value, PG_UINT64_MAX, &label->system))
				return false;
			has_system = true;
		}
		else if (strcmp(p, "oid") == 0)
		{
			if (!parse_number(value, PG_UINT32_MAX, &number))
				return false;
			label->subid = (Oid) number;
			has_oid = true;
		}
		else if (!tandem_option_set(&label->options, p, value))
			return false;
		p = end + 1;
	}
}

char *
tandem_label_misfit(const TandemLabel *label, Oid subid, const char *name)
{
	if (label->system != GetSystemIdentifier())
		return psprintf("its label was made on another server, with system identifier " UINT64_FORMAT,
						label->system);
	if (label->subid != subid)
		return psprintf("its label was made for a subscription with OID %u", label->subid);
	if (strcmp(label->name, name) != 0)
		return psprintf("its label was made when its name was \"%s\"", label->name);
	return NULL;
}

char *
tandem_label_read(Oid subid)
{
	ObjectAddress address = subscription_address(subid);

	return GetSecurityLabel(&address, TANDEM_LABEL_PROVIDER);
}

void
tandem_subscription_changed(Oid subid)
{
	HeapTuple	tuple = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));
	Relation	rel;

	if (!HeapTupleIsValid(tuple))
		return;
	rel = table_open(SubscriptionRelationId, AccessShareLock);
	CacheInvalidateHeapTuple(rel, tuple, NULL);
	table_close(rel, AccessShareLock);
	ReleaseSysCache(tuple);
}

void
tandem_label_write(Oid subid, const char *name, const TandemSubscriptionOptions *options)
{
	ObjectAddress address = subscription_address(subid);

	SetSecurityLabel(&address, TANDEM_LABEL_PROVIDER,
					 options ? format_label(subid, name, options) : NULL);
	tandem_subscription_changed(subid);
	tandem_launcher_wake_at_commit();
}

bool
tandem_subscription_adopted(Oid subid, TandemSubscriptionOptions *options)
{
	char	   *text = tandem_label_read(subid);
	char	   *name;
	TandemLabel label;

	if (text == NULL || !tandem_label_parse(text, &label))
		return false;
	name = get_subscription_name(subid, true);
	if (name == NULL || tandem_label_misfit(&label, subid, name) != NULL)
		return false;
	if (options)
		*options = label.options;
	return true;
}

void
tandem_subscription_pause(Oid subid)
{
	TandemSubscriptionOptions options;

	LockSharedObject(SubscriptionRelationId, subid, 0, ShareUpdateExclusiveLock);
	if (!tandem_subscription_adopted(subid, &options) || !options.enabled)
		return;
	options.enabled = false;
	tandem_label_write(subid, get_subscription_name(subid, false), &options);
}

List *
tandem_adopted_subscriptions(void)
{
	List	   *names = NIL;
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);

		if (form->subdbid == MyDatabaseId && tandem_subscription_adopted(form->oid, NULL))
			names = lappend(names, pstrdup(NameStr(form->subname)));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return names;
}

/*
 * SECURITY LABEL FOR tandem ...; the server has checked ownership, and holds
 * ShareUpdateExclusiveLock on the object.
 */
static void
check_label(const ObjectAddress *object, const char *text)
{
	TandemLabel label;
	char	   *misfit;
	char	   *current;
	char	   *name;

	if (object->classId != SubscriptionRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("label provider \"%s\" labels only subscriptions", TANDEM_LABEL_PROVIDER)));
	name = get_subscription_name(object->objectId, false);

	tandem_launcher_wake_at_commit();
	if (text == NULL)
	{
		if (tandem_subscription_adopted(object->objectId, NULL))
		{
			tandem_subscription_hold(MyDatabaseId, object->objectId);
			tandem_check_releasable(object->objectId, name);
		}
		return;
	}

	if (!tandem_label_parse(text, &label))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid label for subscription \"%s\"", name),
				 errhint("Labels of provider \"%s\" are written by tandem.adopt().", TANDEM_LABEL_PROVIDER)));
	misfit = tandem_label_misfit(&label, object->objectId, name);
	current = tandem_label_read(object->objectId);
	if (misfit == NULL)
	{
		if (current == NULL || strcmp(current, text) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("subscription \"%s\" can't be adopted by a label", name),
					 errhint("Use SELECT tandem.adopt(%s).", quote_literal_cstr(name))));
		return;
	}
	if (tandem_subscription_adopted(object->objectId, NULL))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is adopted, and this label isn't its own", name),
				 errhint("Use SELECT tandem.release(%s).", quote_literal_cstr(name))));
	ereport(NOTICE,
			(errmsg("subscription \"%s\" is not adopted: %s", name, misfit),
			 errhint("To adopt it, use SELECT tandem.adopt(%s).", quote_literal_cstr(name))));
}

void
tandem_label_init(void)
{
	register_label_provider(TANDEM_LABEL_PROVIDER, check_label);
}
