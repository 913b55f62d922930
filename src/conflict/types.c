/*-------------------------------------------------------------------------
 *
 * types.c
 *	  The types of conflicts, the outcomes, and which go together.
 *
 * The table below is the one place that lists them.  The default is what the
 * server's own worker does.
 *
 * Called by all who read or write their names.
 *
 * src/conflict/types.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "conflict/conflict.h"

#define ONE(outcome) (1 << TANDEM_OUTCOME_##outcome)

static const struct
{
	const char *name;
	TandemOutcome standard;
	int			allowed;		/* bits */
}			types[] = {
	[TANDEM_INSERT_EXISTS] = {"insert_exists", TANDEM_OUTCOME_ERROR,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_UPDATE_ORIGIN_DIFFERS] = {"update_origin_differs", TANDEM_OUTCOME_APPLY,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_UPDATE_EXISTS] = {"update_exists", TANDEM_OUTCOME_ERROR,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_UPDATE_MISSING] = {"update_missing", TANDEM_OUTCOME_SKIP,
	ONE(ERROR) | ONE(SKIP) | ONE(INSERT_OR_SKIP)},
	[TANDEM_UPDATE_DELETED] = {"update_deleted", TANDEM_OUTCOME_SKIP,
	ONE(ERROR) | ONE(SKIP) | ONE(INSERT_OR_SKIP) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_DELETE_ORIGIN_DIFFERS] = {"delete_origin_differs", TANDEM_OUTCOME_APPLY,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_DELETE_MISSING] = {"delete_missing", TANDEM_OUTCOME_SKIP,
	ONE(ERROR) | ONE(SKIP)},
	[TANDEM_MULTIPLE_UNIQUE_CONFLICTS] = {"multiple_unique_conflicts", TANDEM_OUTCOME_ERROR,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)},
	[TANDEM_INSERT_DELETED] = {"insert_deleted", TANDEM_OUTCOME_APPLY,
	ONE(ERROR) | ONE(SKIP) | ONE(APPLY) | ONE(LAST_UPDATE_WINS)}};

static const char *const outcomes[] = {
	[TANDEM_OUTCOME_ERROR] = "error",
	[TANDEM_OUTCOME_SKIP] = "skip",
	[TANDEM_OUTCOME_APPLY] = "apply",
	[TANDEM_OUTCOME_LAST_UPDATE_WINS] = "last_update_wins",
	[TANDEM_OUTCOME_INSERT_OR_SKIP] = "insert_or_skip"};

const char *
tandem_conflict_name(TandemConflictType type)
{
	return types[type].name;
}

const char *
tandem_outcome_name(TandemOutcome outcome)
{
	return outcomes[outcome];
}

bool
tandem_conflict_parse(const char *name, TandemConflictType *type)
{
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
	{
		if (strcmp(types[i].name, name) == 0)
		{
			*type = i;
			return true;
		}
	}
	return false;
}

bool
tandem_outcome_parse(const char *name, TandemOutcome *outcome)
{
	for (int i = 0; i < TANDEM_OUTCOMES; i++)
	{
		if (strcmp(outcomes[i], name) == 0)
		{
			*outcome = i;
			return true;
		}
	}
	return false;
}

bool
tandem_outcome_allowed(TandemConflictType type, TandemOutcome outcome)
{
	return (types[type].allowed & (1 << outcome)) != 0;
}

char *
tandem_outcomes_of(TandemConflictType type)
{
	StringInfoData list;
	int			left = pg_popcount32(types[type].allowed);

	initStringInfo(&list);
	for (int i = 0; i < TANDEM_OUTCOMES; i++)
	{
		if (!tandem_outcome_allowed(type, i))
			continue;
		appendStringInfoString(&list, outcomes[i]);
		left--;
		if (left > 0)
			appendStringInfoString(&list, left == 1 ? " or " : ", ");
	}
	return list.data;
}

char *
tandem_conflict_names(void)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
		appendStringInfo(&list, "%s%s", i == 0 ? "" : i == TANDEM_CONFLICT_TYPES - 1 ? " and " : ", ",
						 types[i].name);
	return list.data;
}

void
tandem_outcomes_init(TandemOutcomes *result)
{
	for (int i = 0; i < TANDEM_CONFLICT_TYPES; i++)
		result->outcome[i] = types[i].standard;
}
