/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Options of an adopted subscription: ours, and those of the server.
 *
 * Ours are given to tandem.adopt() and kept in the label.  The table below is
 * the one place that lists them.
 *
 * src/subscription/options.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "utils/builtins.h"

#include "common/compat.h"
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
	if (strlen(value) >= NAMEDATALEN)
		return false;
	for (const char *p = value; *p; p++)
	{
		if (!isalnum((unsigned char) *p) && strchr("_-.", *p) == NULL)
			return false;
	}
	strlcpy(options->node_id, value, NAMEDATALEN);
	return true;
}

static void
format_node_id(StringInfo text, const TandemSubscriptionOptions *options)
{
	appendStringInfoString(text, options->node_id);
}

static const OptionKind kinds[] = {
	{"enabled", "on or off", set_enabled, format_enabled},
	{"workers", "0 (tandem.sync_workers) to " CppAsString2(TANDEM_MAX_SYNC_WORKERS),
	set_workers, format_workers},
	{"node_id", "up to 63 letters, digits, \"_\", \"-\" and \".\"", set_node_id, format_node_id}};

void
tandem_options_init(TandemSubscriptionOptions *options)
{
	memset(options, 0, sizeof(*options));
	options->enabled = true;
}

static const OptionKind *
find_kind(const char *name)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	}
	return NULL;
}

bool
tandem_option_set(TandemSubscriptionOptions *options, const char *name, const char *value)
{
	const OptionKind *kind = find_kind(name);

	return kind != NULL && kind->set(options, value);
}

void
tandem_options_format(StringInfo text, const TandemSubscriptionOptions *options)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		appendStringInfo(text, " %s=", kinds[i].name);
		kinds[i].format(text, options);
	}
}

/* "enabled, workers and node_id" */
static char *
list_of_options(void)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < lengthof(kinds); i++)
		appendStringInfo(&list, "%s%s", i == 0 ? "" : i == lengthof(kinds) - 1 ? " and " : ", ",
						 kinds[i].name);
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
	bool		seen[lengthof(kinds)] = {false};

	if (*copy == '\0')
		return;
	for (char *next = copy; next != NULL;)
	{
		char	   *part = next;
		char	   *comma = strchr(part, ',');
		char	   *equals;
		char	   *name;
		char	   *value;
		const OptionKind *kind;

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

		kind = find_kind(name);
		if (kind == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_PARAMETER),
					 errmsg("unrecognized option \"%s\"", name),
					 errhint("The options are %s.", list_of_options())));
		if (seen[kind - kinds])
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"%s\" is given more than once", name)));
		seen[kind - kinds] = true;
		if (!kind->set(options, value))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for option \"%s\": \"%s\"", name, value),
					 errhint("It can be %s.", kind->values)));
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
