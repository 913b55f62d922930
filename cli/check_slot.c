/*-------------------------------------------------------------------------
 *
 * check_slot.c
 *	  Checks: failover slots, holds, and the lists of standbys.
 *
 * cli/check_slot.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <ctype.h>

#include "check.h"

#define HOLD_PREFIX "tandem_hold_"

static void
check_failover_slots(Diagnosis *d, Node *node)
{
	bool		any = false;

	for (int i = 0; i < nrows(node->failover_slots); i++)
	{
		const char *state = field(node->failover_slots, i, "state");
		const char *reason = field(node->failover_slots, i, "reason");
		Finding	   *f;

		if (state && strcmp(state, "ready") == 0)
			continue;
		any = true;
		f = finding_add(d, state && strcmp(state, "pending") == 0 ? WARNING : PROBLEM,
						node, "slot_not_ready",
						screen_printf("Slot \"%s\" is %s: %s", field(node->failover_slots, i, "slot_name"),
									  state ? state : "unknown", reason ? reason : "no reason is given"),
						node->in_recovery ?
							"After a failover to this node its consumer would lose rows or find no slot." :
							"Its consumer waits, or the slot is of no more use.");
		f->hint = field(node->failover_slots, i, "hint");
	}
	if (!any && node->in_recovery && nrows(node->ready) > 0 &&
		!field_is_true(node->ready, 0, "ready") && field(node->sync, 0, "error") == NULL)
	{
		const char *reason = field(node->ready, 0, "reason");

		finding_add(d, WARNING, node, "not_failover_ready",
					reason ? reason : "tandem.failover_ready() says no.",
					"A failover to this node now might lose what its slots stand for.")
			->hint =
			field(node->ready, 0, "hint");
	}
	if (!node->in_recovery && node->failover_slots && nrows(node->failover_slots) == 0)
		finding_add(d, NOTE, node, "no_failover_slots",
					"No logical slot matches tandem.failover_slots.",
					"Nothing is kept on standbys.");
}

/* Slots whose WAL is gone or about to go. */
static void
check_slot_health(Diagnosis *d, Node *node)
{
	for (int i = 0; i < nrows(node->slots); i++)
	{
		const char *status = field(node->slots, i, "wal_status");
		const char *name = field(node->slots, i, "slot_name");
		Finding	   *f;

		if (status == NULL)
			continue;
		if (strcmp(status, "lost") == 0)
		{
			f = finding_add(d, PROBLEM, node, "slot_lost",
							screen_printf("Slot \"%s\" is lost: WAL that it needs has been removed.", name),
							"Its consumer or standby can't go on from it.");
			finding_fix_sql(f, node, NULL,
							screen_printf("SELECT pg_catalog.pg_drop_replication_slot(%s);", quote_literal(name)));
			f->hint = "Then make the subscription or standby anew.";
		}
		else if (strcmp(status, "unreserved") == 0)
			finding_setting(d, WARNING, node, "slot_unreserved", "max_slot_wal_keep_size", "-1", "reload",
							screen_printf("Slot \"%s\" is further behind than max_slot_wal_keep_size.", name),
							"The next checkpoint removes WAL that it needs, and the slot is lost.");
	}
}

static void
check_holds(Diagnosis *d, Node *primary)
{
	for (int i = 0; i < nrows(primary->slots); i++)
	{
		const char *name = field(primary->slots, i, "slot_name");
		const char *age = field(primary->slots, i, "catalog_xmin_age");
		const char *standby;
		const char *reported;
		const char *why = NULL;
		bool		asked = false;
		Finding	   *f;

		if (strncmp(name, HOLD_PREFIX, strlen(HOLD_PREFIX)) != 0 ||
			strcmp(field(primary->slots, i, "slot_type"), "physical") != 0)
			continue;
		standby = name + strlen(HOLD_PREFIX);
		reported = field(primary->standbys,
						 find_row(primary->standbys, "slot_name", standby), "report_age");
		for (int j = 0; j < d->topology->nnodes; j++)
		{
			const Node *node = d->topology->nodes[j];
			const char *slot = node->conn && node->in_recovery ? node_primary_slot_name(node) : NULL;

			asked |= slot && strcmp(slot, standby) == 0;
		}

		if (find_row(primary->slots, "slot_name", standby) < 0)
			why = screen_printf("there is no slot \"%s\" of such a standby", standby);
		else if (reported && atof(reported) > 60)
			why = screen_printf("its standby has not reported for %s", text_duration(atof(reported)));
		else if (reported == NULL && primary->standbys && !asked)
			why = "its standby has not reported since this server started";
		if (why == NULL)
			continue;
		f = finding_add(d, WARNING, primary, "stale_hold",
						screen_printf("Hold \"%s\" is stale: %s.", name, why),
						screen_printf("Vacuum can't clean the catalogs beyond it (age %s transactions now); for ever, that ends in wraparound.",
									  age ? age : "0"));
		f->hint = "Start the standby, or if it is gone for good end its hold:";
		finding_fix_sql(f, primary, primary->tandem_database,
						screen_printf("SELECT tandem.drop_hold(%s);", quote_literal(standby)));
	}
}

/*
 * A standby list without one of its names: "ANY 2 (a, b)" without b is
 * "ANY 1 (a)".  The grammar is that of synchronous_standby_names.
 */
static const char *
list_without(const char *list, const char *name)
{
	PQExpBufferData names;
	const char *method = "";
	const char *result;
	const char *p = list + strspn(list, " \t\n");
	int			count = 0;
	int			kept = 0;

	if (pg_strncasecmp(p, "any", 3) == 0 && strchr(p, '('))
		method = "ANY", p += 3;
	else if (pg_strncasecmp(p, "first", 5) == 0 && strchr(p, '('))
		method = "FIRST", p += 5;
	if (strchr(p, '('))
	{
		count = atoi(p);
		p = strchr(p, '(') + 1;
	}

	initPQExpBuffer(&names);
	while (*p && *p != ')')
	{
		const char *start;
		int len;

		p += strspn(p, " \t\n,");
		if (*p == '\0' || *p == ')')
			break;
		start = *p == '"' ? ++p : p;
		len = strcspn(p, p[-1] == '"' ? "\"" : " \t\n,)");
		if (len == 0)
			break;
		p += len;
		if (*p == '"')
			p++;
		if ((int) strlen(name) == len && strncmp(start, name, len) == 0)
			continue;
		appendPQExpBuffer(&names, "%s%.*s", kept++ ? ", " : "", len, start);
	}
	if (count > 0 && kept > 0)
		result = screen_printf("%s%s%d (%s)", method, *method ? " " : "", Min(count, kept), names.data);
	else
		result = screen_strdup(names.data);
	termPQExpBuffer(&names);
	return result;
}

/* How many standbys of the list must confirm; 0 = all of them. */
static int
list_count(const char *list)
{
	const char *open = strchr(list, '(');

	if (open == NULL)
		return 0;
	list += strcspn(list, "0123456789");
	return list < open ? atoi(list) : 0;
}

/* Is this a slot that a standby can confirm through? */
static bool
slot_can_confirm(const Node *node, const char *name)
{
	int row = find_row(node->slots, "slot_name", name);
	const char *status = field(node->slots, row, "wal_status");

	return row >= 0 && strcmp(field(node->slots, row, "slot_type"), "physical") == 0 &&
		(status == NULL || strcmp(status, "lost") != 0);
}

/* A setting that lists standbys, and what waits for them. */
typedef struct StandbyList
{
	const char *setting;
	const char *column;			/* of tandem.standbys: is it in the list? */
	const char *code;
	const char *cost;
	const char *after_failover; /* cost of a name that a standby lacks, or NULL */
} StandbyList;

static const StandbyList gate_list = {
	"tandem.standby_slots", "in_gate", "standby_slots",
	"Logical walsenders that wait for it send nothing.",
	"Promoted, this node holds logical walsenders back until that slot exists and its standby has caught up."};

static const StandbyList guard_list = {
	"tandem.failback_standbys", "in_guard", "failback_standbys",
	"The guard can't arm: pages are written before that standby has their WAL, and rejoining this node means copying them.",
	NULL};

static void
check_list(Diagnosis *d, Node *node, const StandbyList *kind)
{
	int			confirming = 0;
	bool		enough;
	const char *list = node_setting(node, kind->setting);

	if (list == NULL || *list == '\0')
		return;
	for (int i = 0; i < nrows(node->standbys); i++)
		confirming += field_is_true(node->standbys, i, kind->column) &&
			slot_can_confirm(node, field(node->standbys, i, "slot_name"));
	enough = list_count(list) > 0 && confirming >= list_count(list);

	for (int i = 0; i < nrows(node->standbys); i++)
	{
		const char *name = field(node->standbys, i, "slot_name");
		int			row = find_row(node->slots, "slot_name", name);
		bool		physical = row >= 0 && strcmp(field(node->slots, row, "slot_type"), "physical") == 0;
		bool		is_standby_of_ours = false;
		Finding	   *f;

		if (!field_is_true(node->standbys, i, kind->column) ||
			slot_can_confirm(node, name))
			continue;

		if (node->in_recovery)
		{
			if (kind->after_failover == NULL)
				continue;
			f = finding_add(d, NOTE, node, screen_printf("%s_after_failover", kind->code),
							screen_printf("%s names \"%s\", which this standby does not have as a slot.",
										  kind->setting, name),
							kind->after_failover);
			f->hint = "Create the slots of the other standbys here ahead of a failover, or leave this list empty on standbys.";
			continue;
		}
		f = finding_add(d, enough ? NOTE : PROBLEM, node, kind->code,
						screen_printf("%s names \"%s\", which %s.", kind->setting, name,
									  row < 0      ? "does not exist" :
										  physical ? "is lost" :
													 "is a logical slot"),
						enough ? "The list has one standby fewer to choose from." : kind->cost);
		for (int j = 0; j < d->topology->nnodes; j++)
		{
			const Node *other = d->topology->nodes[j];
			const char *slot = other->conn && other->in_recovery ? node_primary_slot_name(other) : NULL;

			is_standby_of_ours |= slot && strcmp(slot, name) == 0;
		}
		if (is_standby_of_ours && row < 0)
			finding_fix_sql(f, node, NULL,
							screen_printf("SELECT pg_catalog.pg_create_physical_replication_slot(%s, true);",
										  quote_literal(name)));
		else
		{
			finding_fix(f, node, "sql",
						screen_printf("ALTER SYSTEM SET %s = %s;", kind->setting,
									  quote_literal(list_without(list, name))),
						"reload");
			f->hint = "Or create a physical slot of that name and let a standby use it.";
		}
	}
}

static void
check_standby_slots(Diagnosis *d, Node *node)
{
	check_list(d, node, &gate_list);
}

static void
check_failback_standbys(Diagnosis *d, Node *node)
{
	check_list(d, node, &guard_list);
}

/* Whatever else tandem.standbys has to say. */
static void
check_standby_warnings(Diagnosis *d, Node *node)
{
	for (int i = 0; i < nrows(node->standbys); i++)
	{
		const char *warning = field(node->standbys, i, "warning");
		const char *name = field(node->standbys, i, "slot_name");
		bool told = false;

		if (warning == NULL || node->in_recovery)
			continue;
		for (const Finding *f = d->findings; f; f = f->next)
			told |= f->node == node &&
				(strcmp(f->code, "standby_slots") == 0 || strcmp(f->code, "failback_standbys") == 0 ||
				 strcmp(f->code, "stale_hold") == 0 ||
				 strcmp(f->code, "standby_away") == 0 || strcmp(f->code, "slot_lost") == 0) &&
				strstr(f->what, screen_printf("%s\"", name)) != NULL;
		if (!told)
			finding_add(d, WARNING, node, "standby_warning",
						screen_printf("Standby \"%s\": %s", name, warning),
						NULL)
				->hint = field(node->standbys, i, "hint");
	}
}

const Check slot_checks[] = {
	{AT_EVERY | AT_RUNTIME, check_failover_slots},
	{AT_EVERY | AT_RUNTIME, check_slot_health},
	{AT_PRIMARY | AT_RUNTIME, check_holds},
	{AT_EVERY | AT_RUNTIME, check_standby_slots},
	{AT_PRIMARY | AT_RUNTIME, check_failback_standbys},
	{AT_PRIMARY | AT_RUNTIME, check_standby_warnings},
	{0, NULL}};
