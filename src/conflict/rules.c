/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  What holds for one table of a subscription: outcomes, counters.
 *
 * Kept in tandem.conflict_rules, which is like tandem.spool: written only by
 * us, WAL-logged, in no publication.  A row is one rule:
 *
 *	kind 'o'	name = a type of conflict, value = its outcome for the table
 *	kind 'd'	name = the number of a column that is a counter
 *	kind 'n'	relid 0, value = identifier of the subscription's publisher, as it
 *				was when an apply worker last connected
 *
 * A worker reads all rules of its subscription when it first needs one, and
 * again after tandem_rules_forget(): at each change of the subscription, which
 * whoever changes a rule announces with tandem_subscription_changed().
 *
 * Called by src/subscription: table_rules.c writes, target.c, modify.c and
 * apply.c read; here decide.c reads.
 *
 * src/conflict/rules.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/own_relation.h"
#include "conflict/conflict.h"

#define KIND_OUTCOME 'o'
#define KIND_DELTA 'd'
#define KIND_NODE 'n'

enum
{
	COL_SUBID = 1,
	COL_RELID,
	COL_KIND,
	COL_NAME,
	COL_VALUE,
	NUM_COLS = COL_VALUE
};

/* One row. */
typedef struct Rule
{
	Oid			subid;
	Oid			relid;
	char		kind;
	char	   *name;
	char	   *value;
} Rule;

typedef struct CachedRules
{
	Oid			relid;			/* hash key */
	TandemTableRules rules;
} CachedRules;

static bool loaded = false;
static MemoryContext cache_context = NULL;
static HTAB *cache = NULL;		/* NULL = no table has a rule */
static bool any_last_update_wins = false;

/* ---- The relation ------------------------------------------------------------- */

/* Scans the rules of a subscription (Invalid = all), as of now. */
static SysScanDesc
begin_scan(Relation rel, Oid subid, Oid relid, ScanKeyData *keys)
{
	int			n = 0;

	if (OidIsValid(subid))
		ScanKeyInit(&keys[n++], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
	if (OidIsValid(relid))
		ScanKeyInit(&keys[n++], COL_RELID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	/* a snapshot of the catalog cache may be older than a row just committed */
	InvalidateCatalogSnapshot();
	return systable_beginscan(rel, tandem_own_relation("conflict_rules_key"), OidIsValid(subid), NULL, n, keys);
}

static void
read_rule(HeapTuple tuple, TupleDesc desc, Rule *rule)
{
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];

	heap_deform_tuple(tuple, desc, v + 1, n + 1);
	rule->subid = DatumGetObjectId(v[COL_SUBID]);
	rule->relid = DatumGetObjectId(v[COL_RELID]);
	rule->kind = DatumGetChar(v[COL_KIND]);
	rule->name = TextDatumGetCString(v[COL_NAME]);
	rule->value = TextDatumGetCString(v[COL_VALUE]);
}

/* Replaces a rule; value NULL = only removes it.  Does it differ from what was there? */
static bool
put_rule(Oid subid, Oid relid, char kind, const char *name, const char *value)
{
	Relation	rel = table_open(tandem_own_relation("conflict_rules"), RowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, relid, keys);
	HeapTuple	tuple;
	bool		same = value == NULL;
	bool		found = false;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Rule		rule;

		read_rule(tuple, RelationGetDescr(rel), &rule);
		if (rule.kind != kind || rule.relid != relid || strcmp(rule.name, name) != 0)
			continue;
		found = true;
		same = value && strcmp(rule.value, value) == 0;
		if (!same)
			CatalogTupleDelete(rel, &tuple->t_self);
	}
	systable_endscan(scan);
	if (value && !same)
	{
		Datum		v[NUM_COLS + 1];
		bool		n[NUM_COLS + 1];

		memset(n, 0, sizeof(n));
		v[COL_SUBID] = ObjectIdGetDatum(subid);
		v[COL_RELID] = ObjectIdGetDatum(relid);
		v[COL_KIND] = CharGetDatum(kind);
		v[COL_NAME] = CStringGetTextDatum(name);
		v[COL_VALUE] = CStringGetTextDatum(value);
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1));
	}
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
	return value ? !same : found;
}

bool
tandem_rules_set_outcome(Oid subid, Oid relid, TandemConflictType type, int outcome)
{
	return put_rule(subid, relid, KIND_OUTCOME, tandem_conflict_name(type),
					outcome < 0 ? NULL : tandem_outcome_name(outcome));
}

bool
tandem_rules_set_delta(Oid subid, Oid relid, AttrNumber attnum, bool on)
{
	char		name[16];

	snprintf(name, sizeof(name), "%d", attnum);
	return put_rule(subid, relid, KIND_DELTA, name, on ? "" : NULL);
}

void
tandem_rules_write_node(Oid subid, const char *node)
{
	(void) put_rule(subid, InvalidOid, KIND_NODE, "", node);
}

bool
tandem_rules_read_node(Oid subid, char *node)
{
	Relation	rel = table_open(tandem_own_relation("conflict_rules"), AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, InvalidOid, keys);
	HeapTuple	tuple;
	bool		found = false;

	node[0] = '\0';
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Rule		rule;

		read_rule(tuple, RelationGetDescr(rel), &rule);
		if (rule.kind != KIND_NODE)
			continue;
		strlcpy(node, rule.value, NAMEDATALEN);
		found = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

void
tandem_rules_drop(Oid subid, Oid relid)
{
	Oid			own = tandem_own_relation_or_invalid("conflict_rules");
	Relation	rel;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		any = false;

	/* objects of an older version, or the extension is being dropped */
	if (!OidIsValid(own))
		return;
	rel = table_open(own, RowExclusiveLock);
	scan = begin_scan(rel, subid, relid, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CatalogTupleDelete(rel, &tuple->t_self);
		any = true;
	}
	systable_endscan(scan);
	table_close(rel, RowExclusiveLock);
	if (any)
		CommandCounterIncrement();
}

/* ---- What a worker knows of them ------------------------------------------------- */

void
tandem_rules_forget(void)
{
	loaded = false;
}

static bool
has_last_update_wins(const TandemOutcomes *outcomes)
{
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
	{
		if (outcomes->outcome[i] == TANDEM_OUTCOME_LAST_UPDATE_WINS)
			return true;
	}
	return false;
}

/* The entry of a table; new ones say what the subscription says. */
static TandemTableRules *
find_or_add(Oid relid)
{
	CachedRules *entry;
	bool		found;

	if (cache == NULL)
	{
		HASHCTL		ctl;

		memset(&ctl, 0, sizeof(ctl));
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(CachedRules);
		ctl.hcxt = cache_context;
		cache = hash_create("tandem rules", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(cache, &relid, HASH_ENTER, &found);
	if (!found)
	{
		entry->rules.outcomes = tandem_conflict_session.outcomes;
		entry->rules.deltas = NULL;
	}
	return &entry->rules;
}

/* One rule of this subscription.  What an older version of us doesn't know, it doesn't do. */
static void
take_rule(const Rule *rule)
{
	TandemConflictType type;
	TandemOutcome outcome;

	if (rule->kind == KIND_OUTCOME && tandem_conflict_parse(rule->name, &type) &&
		tandem_outcome_parse(rule->value, &outcome) && tandem_outcome_allowed(type, outcome))
		find_or_add(rule->relid)->outcomes.outcome[type] = outcome;
	else if (rule->kind == KIND_DELTA)
	{
		TandemTableRules *rules = find_or_add(rule->relid);
		MemoryContext old = MemoryContextSwitchTo(cache_context);

		rules->deltas = bms_add_member(rules->deltas, atoi(rule->name));
		MemoryContextSwitchTo(old);
	}
}

static void
load(void)
{
	Relation	rel;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "tandem rules", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(cache_context);
	cache = NULL;
	any_last_update_wins = has_last_update_wins(&tandem_conflict_session.outcomes);

	rel = table_open(tandem_own_relation("conflict_rules"), AccessShareLock);
	scan = begin_scan(rel, tandem_conflict_session.subid, InvalidOid, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Rule		rule;

		read_rule(tuple, RelationGetDescr(rel), &rule);
		take_rule(&rule);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	if (cache)
	{
		HASH_SEQ_STATUS status;
		CachedRules *entry;

		hash_seq_init(&status, cache);
		while ((entry = hash_seq_search(&status)) != NULL)
			any_last_update_wins = any_last_update_wins || has_last_update_wins(&entry->rules.outcomes);
	}
	loaded = true;
}

const TandemTableRules *
tandem_table_rules(Oid relid)
{
	static TandemTableRules standard;
	CachedRules *entry = NULL;

	if (!loaded)
		load();
	if (cache)
		entry = hash_search(cache, &relid, HASH_FIND, NULL);
	if (entry)
		return &entry->rules;
	standard.outcomes = tandem_conflict_session.outcomes;
	standard.deltas = NULL;
	return &standard;
}

bool
tandem_rules_last_update_wins(void)
{
	if (!loaded)
		load();
	return any_last_update_wins;
}
