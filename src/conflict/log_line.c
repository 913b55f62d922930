/*-------------------------------------------------------------------------
 *
 * log_line.c
 *	  What the server's log says of a conflict.
 *
 * The message is that of PostgreSQL 18, so that who looks for it finds ours,
 * too: "conflict detected on relation "public.t": conflict=update_missing".  Its
 * detail is put together from parts: what was found and who wrote it, the rows,
 * what was done and why.
 *
 * A process writes at most LINES of them a second, and then says how many it
 * has not written; all are in tandem.conflicts.  What could not be stored is said
 * beside that, once a second at most.
 *
 * Called by log.c, with what is printed already.
 *
 * src/conflict/log_line.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "replication/origin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "conflict/log.h"

#define LINES 10

/* ---- Parts ------------------------------------------------------------------------ */

char *
tandem_log_origin_name(const TandemParty *party)
{
	char	   *name;

	if (!party->known)
		return NULL;
	if (party->origin == InvalidRepOriginId)
		return pstrdup("local");
	if (party->origin != DoNotReplicateId && replorigin_by_oid(party->origin, true, &name))
		return name;
	return psprintf("dropped origin %u", party->origin);
}

/* " locally in transaction 733 at 2026-..." */
static void
append_party(StringInfo out, const TandemParty *party)
{
	char	   *origin = tandem_log_origin_name(party);

	if (origin && party->origin == InvalidRepOriginId)
		appendStringInfoString(out, " locally");
	else if (origin)
		appendStringInfo(out, " by origin \"%s\"", origin);
	if (TransactionIdIsValid(party->xid))
		appendStringInfo(out, " in transaction %u", party->xid);
	if (party->time != 0)
		appendStringInfo(out, " at %s", timestamptz_to_str(party->time));
}

static const struct
{
	const char *found;
	bool		party;			/* says who it was */
}			sentences[] = {
	[TANDEM_INSERT_EXISTS] = {"The key of the row to be inserted already exists, modified", true},
	[TANDEM_UPDATE_ORIGIN_DIFFERS] = {"The row to be updated was modified", true},
	[TANDEM_UPDATE_EXISTS] = {"The new key of the row to be updated already exists, modified", true},
	[TANDEM_UPDATE_MISSING] = {"Could not find the row to be updated", false},
	[TANDEM_UPDATE_DELETED] = {"Could not find the row to be updated, it was deleted", true},
	[TANDEM_DELETE_ORIGIN_DIFFERS] = {"The row to be deleted was modified", true},
	[TANDEM_DELETE_MISSING] = {"Could not find the row to be deleted", false},
	[TANDEM_MULTIPLE_UNIQUE_CONFLICTS] = {"Several rows already have keys of the remote row, the first one modified", true},
	[TANDEM_INSERT_DELETED] = {"The row to be inserted was deleted", true},
};

static void
append_row(StringInfo out, const TandemLogEntry *entry, const char *what, const TandemLogRow *row,
		   const char **comma)
{
	if (row == NULL)
		return;
	appendStringInfo(out, "%s%s ", *comma, what);
	tandem_log_row_text(out, entry->table, row);
	*comma = ", ";
}

char *
tandem_log_detail(const TandemLogEntry *entry)
{
	StringInfoData out;
	const char *comma = ": ";

	initStringInfo(&out);
	appendStringInfoString(&out, sentences[entry->type].found);
	if (sentences[entry->type].party)
		append_party(&out, &entry->local);
	append_row(&out, entry, "local row", entry->local_row, &comma);
	append_row(&out, entry, "remote row", entry->remote_row, &comma);
	append_row(&out, entry, "replica identity", entry->key, &comma);
	appendStringInfo(&out, ". The remote change of transaction %u", entry->xid);
	if (entry->commit_time != 0)
		appendStringInfo(&out, ", committed at %s,", timestamptz_to_str(entry->commit_time));
	if (strcmp(entry->resolution, "error") == 0)
		appendStringInfoString(&out, " has failed");
	else
		appendStringInfo(&out, " was %s", entry->resolution);
	appendStringInfo(&out, " (%s)", tandem_outcome_name(entry->configured));
	if (entry->reason)
		appendStringInfo(&out, ": %s", entry->reason);
	appendStringInfoChar(&out, '.');
	return out.data;
}

/* ---- Saying -------------------------------------------------------------------------- */

static TimestampTz second = 0;	/* beginning of the current one */
static int	said = 0;			/* in it */
static int64 unsaid = 0;

static TimestampTz lost_said = 0;
static int64 lost = 0;			/* not yet said */
static char lost_why[256];

/* Once a second at most. */
static void
say_lost(void)
{
	if (lost == 0 || (lost_said != 0 && !TimestampDifferenceExceeds(lost_said, GetCurrentTimestamp(), 1000)))
		return;
	ereport(LOG,
			(errmsg_plural("%lld conflict could not be stored: %s",
						   "%lld conflicts could not be stored: %s",
						   (unsigned long) lost, (long long) lost, lost_why),
			 errdetail("Changes are applied as configured. The view tandem.conflict_storage counts what is not stored.")));
	lost = 0;
	lost_said = GetCurrentTimestamp();
}

void
tandem_log_say_lost(int64 conflicts, const char *why)
{
	lost += conflicts;
	strlcpy(lost_why, why, 1 + pg_mbcliplen(why, strlen(why), sizeof(lost_why) - 1));
	say_lost();
}

void
tandem_log_say_rest(void)
{
	say_lost();
	if (unsaid == 0 || !TimestampDifferenceExceeds(second, GetCurrentTimestamp(), 1000))
		return;
	ereport(LOG,
			(errmsg_plural("%lld more conflict is not in this log",
						   "%lld more conflicts are not in this log",
						   (unsigned long) unsaid, (long long) unsaid),
			 errdetail("At most %d a second are.", LINES),
			 errhint("The view tandem.conflicts has all of them.")));
	unsaid = 0;
}

void
tandem_log_say(const TandemLogEntry *entry, const char *detail)
{
	tandem_log_say_rest();
	if (second == 0 || TimestampDifferenceExceeds(second, GetCurrentTimestamp(), 1000))
	{
		second = GetCurrentTimestamp();
		said = 0;
	}
	if (said >= LINES)
	{
		unsaid++;
		return;
	}
	said++;
	ereport(LOG,
			(errmsg("conflict detected on relation \"%s.%s\": conflict=%s",
					NameStr(entry->table->schema), NameStr(entry->table->name),
					tandem_conflict_name(entry->type)),
			 detail ? errdetail_internal("%s", detail) : 0));
}
