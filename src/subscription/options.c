/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of an adopted subscription: ours, and those of the server.
 *
 * Ours are given to tandem.adopt() and kept in the label.  The table below is
 * the one place that lists them, but for the outcomes of conflicts, of which
 * src/conflict/types.c has the table: each type is an option.
 *
 * src/subscription/options.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "utils/builtins.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conflict/conflict.h"
#include "subscription/subscription.h"

typedef struct OptionKind
{
	const char *name;
	const char *values;			/* for the hint */
	bool		(*set) (TandemSubscriptionOptions *options, const char *value);
	void		(*format) (StringInfo text, const TandemSubscriptionOptions *options);
} OptionKind;

static bool
set_enabled(TandemSubscriptionOptions *options, const char *value)
{
	return parse_bool(value, &options->enabled);
}

static void
format_enabled(StringInfo text, const TandemSubscriptionOptions *options)
{
	appendStringInfoString(text, options->enabled ? "on" : "off");
}

static bool
set_workers(TandemSubscriptionOptions *options, const char *value)
{
	char	   *end;
	long		number;

	errno = 0;
	number = strtol(value, &end, 10);
	if (end == value || *end != '\0' || errno != 0 || number < 0 || number > TANDEM_MAX_SYNC_WORKERS)
		return false;
	options->workers = (int) number;
	return true;
}

static void
format_workers(StringInfo text, const TandemSubscriptionOptions *options)
{
	appendStringInfo(text, "%d", options->workers);
}

static bool
set_node_id(TandemSubscriptionOptions *options, const char *value)
{
	if (!tandem_node_id_valid(value))
		return false;
	strlcpy(options->node_id, value, NAMEDATALEN);
	return true;
}

static void
format_node_id(StringInfo text, const TandemSubscriptionOptions *options)
{
	appendStringInfoString(text, options->node_id);
}

static bool
set_tombstones(TandemSubscriptionOptions *options, const char *value)
{
	return parse_bool(value, &options->tombstones);
}

static void
format_tombstones(StringInfo text, const TandemSubscriptionOptions *options)
{
	appendStringInfoString(text, options->tombstones ? "on" : "off");
}

static const OptionKind kinds[] = {
	{"enabled", "on or off", set_enabled, format_enabled},
	{"workers", "0 (tandem.sync_workers) to " CppAsString2(TANDEM_MAX_SYNC_WORKERS),
	set_workers, format_workers},
	{"node_id", TANDEM_NODE_ID_VALUES, set_node_id, format_node_id},
	{"tombstones", "on or off", set_tombstones, format_tombstones}};

#define OPTIONS (lengthof(kinds) + TANDEM_CONFLICT_TYPES)

void
tandem_options_init(TandemSubscriptionOptions *options)
{
	memset(options, 0, sizeof(*options));
	options->enabled = true;
	tandem_outcomes_init(&options->outcomes);
}

/* The number of an option: in kinds, and behind them the types of conflicts; -1 = unknown. */
static int
find_option(const char *name)
{
	TandemConflictType type;

	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kinds[i].name, name) == 0)
			return i;
	}
	return tandem_conflict_parse(name, &type) ? lengthof(kinds) + type : -1;
}

/* Its name. */
static const char *
option_name(int option)
{
	return option < lengthof(kinds) ? kinds[option].name : tandem_conflict_name(option - lengthof(kinds));
}

/* Sets it; is the value valid? */
static bool
set_option(TandemSubscriptionOptions *options, int option, const char *value)
{
	TandemOutcome outcome;

	if (option < lengthof(kinds))
		return kinds[option].set(options, value);
	if (!tandem_outcome_parse(value, &outcome) ||
		!tandem_outcome_allowed(option - lengthof(kinds), outcome))
		return false;
	options->outcomes.outcome[option - lengthof(kinds)] = outcome;
	return true;
}

bool
tandem_option_set(TandemSubscriptionOptions *options, const char *name, const char *value)
{
	int			option = find_option(name);

	return option >= 0 && set_option(options, option, value);
}

/* Conflicts only if they aren't resolved as the server does: a label has little room. */
void
tandem_options_format(StringInfo text, const TandemSubscriptionOptions *options)
{
	TandemOutcomes standard;

	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (kinds[i].set == set_tombstones && !options->tombstones)
			continue;
		appendStringInfo(text, " %s=", kinds[i].name);
		kinds[i].format(text, options);
	}
	tandem_outcomes_init(&standard);
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
	{
		if (options->outcomes.outcome[i] != standard.outcome[i])
			appendStringInfo(text, " %s=%s", tandem_conflict_name(i),
							 tandem_outcome_name(options->outcomes.outcome[i]));
	}
}

/* "enabled, workers, ... and insert_deleted" */
static char *
list_of_options(void)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < OPTIONS; i++)
		appendStringInfo(&list, "%s%s", i == 0 ? "" : i == OPTIONS - 1 ? " and " : ", ",
						 option_name(i));
	return list.data;
}

/* Cuts white space at both ends, in place. */
static char *
trim(char *text)
{
	char	   *end = text + strlen(text);

	while (end > text && isspace((unsigned char) end[-1]))
		end--;
	*end = '\0';
	while (isspace((unsigned char) *text))
		text++;
	return text;
}

void
tandem_options_parse(const char *text, TandemSubscriptionOptions *options)
{
	char	   *copy = trim(pstrdup(text));
	bool		seen[OPTIONS] = {false};

	if (*copy == '\0')
		return;
	for (char *next = copy; next != NULL;)
	{
		char	   *part = next;
		char	   *comma = strchr(part, ',');
		char	   *equals;
		char	   *name;
		char	   *value;
		int			option;

		if (comma)
			*comma = '\0';
		next = comma ? comma + 1 : NULL;

		equals = strchr(part, '=');
		if (equals == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("invalid option list: \"%s\" has no value", trim(part)),
					 errhint("Write options as \"name = value, name = value\"; they are %s.", list_of_options())));
		*equals = '\0';
		name = trim(part);
		value = trim(equals + 1);

		option = find_option(name);
		if (option < 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_PARAMETER),
					 errmsg("unrecognized option \"%s\"", name),
					 errhint("The options are %s.", list_of_options())));
		if (seen[option])
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"%s\" is given more than once", name)));
		seen[option] = true;
		if (!set_option(options, option, value))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for option \"%s\": \"%s\"", name, value),
					 errhint("It can be %s.", option < lengthof(kinds) ? kinds[option].values :
							 tandem_outcomes_of(option - lengthof(kinds)))));
	}
}

/* ---- The server's options ------------------------------------------------------ */

/*
 * What we don't refuse we do as the server's worker would: binary, streaming
 * ("parallel" as "on": such transactions are applied after their commit),
 * two_phase, disable_on_error, synchronous_commit, SKIP; later versions'
 * origin, password_required, run_as_owner and failover likewise.
 */
char *
tandem_core_options_problem(const Subscription *sub, const char **hint)
{
	if (sub->enabled)
	{
		*hint = psprintf("Run ALTER SUBSCRIPTION %s DISABLE first.", quote_identifier(sub->name));
		return pstrdup("it is enabled, so the server's own worker runs it");
	}
	if (sub->slotname == NULL)
	{
		*hint = psprintf("Run ALTER SUBSCRIPTION %s SET (slot_name = ...) with a slot that exists on the publisher.",
						 quote_identifier(sub->name));
		return pstrdup("it has no slot name");
	}
	if (sub->publications == NIL)
	{
		*hint = psprintf("Run ALTER SUBSCRIPTION %s SET PUBLICATION first.", quote_identifier(sub->name));
		return pstrdup("it has no publication");
	}
	return NULL;
}
