/*-------------------------------------------------------------------------
 *
 * log.c
 *	  Conflicts that have been recorded, on their way into the conflict log.
 *
 * Replication must not stop because the log can't be written, so it is written
 * in subtransactions, which can fail alone.  One for each conflict would be slow
 * and use up transaction ids; hence conflicts wait in memory:
 *
 *	 recorded --flush: BATCH at once, or the end of the transaction--> stored, said
 *		|									|
 *		|									+--error--> each alone --> stored, said
 *		| rollback							|					|
 *		v									|					+--error--> said, counted
 *	 forgotten (they happen again)			+--no room--> said, counted (not_stored)
 *
 * After "no room" nothing is tried for PAUSE, since each try costs.
 *
 * One that ends the transaction, with outcome "error", is kept apart and stored
 * after the rollback.
 *
 * Called by those who find conflicts and by the workers of src/subscription.
 *
 * src/conflict/log.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conflict/log.h"

#define BATCH 1000				/* conflicts written at once */
#define BATCH_MEMORY (8 * 1024 * 1024)	/* bytes, a soft limit */
#define PAUSE 1000				/* ms without a try after there was no room */

/* Conflicts in memory, and the tables that they are of; all in one context. */
typedef struct Recorded
{
	MemoryContext context;
	List	   *entries;		/* of TandemLogEntry */
	List	   *tables;			/* of TandemLogTable */
} Recorded;

static Recorded recorded;		/* in this transaction */
static Recorded failed;			/* the one that has ended it */
static char why[256];			/* there was no room the last time */

/* ---- Recording --------------------------------------------------------------------- */

static void
forget(Recorded *what)
{
	what->entries = what->tables = NIL;
	if (what->context)
		MemoryContextReset(what->context);
}

static TandemLogTable *
find_table(Recorded *to, Relation rel)
{
	TandemLogTable *table;
	char	   *schema;
	ListCell   *lc;

	foreach(lc, to->tables)
	{
		table = lfirst(lc);
		if (table->relid == RelationGetRelid(rel))
			return table;
	}
	table = palloc0(sizeof(TandemLogTable));
	table->relid = RelationGetRelid(rel);
	schema = get_namespace_name(RelationGetNamespace(rel));
	namestrcpy(&table->schema, schema ? schema : "");
	namestrcpy(&table->name, RelationGetRelationName(rel));
	table->desc = CreateTupleDescCopy(RelationGetDescr(rel));
	/* generated columns are known by their own mark, which the copy has lost */
	for (int i = 0; i < table->desc->natts; i++)
		TupleDescAttr(table->desc, i)->attgenerated = TupleDescAttr(RelationGetDescr(rel), i)->attgenerated;
	table->output = palloc0(Max(table->desc->natts, 1) * sizeof(FmgrInfo));
	to->tables = lappend(to->tables, table);
	return table;
}

/* Copies a conflict. */
static TandemLogEntry *
take(Recorded *to, const TandemConflict *conflict)
{
	const TandemConflictSession *session = &tandem_conflict_session;
	MemoryContext old;
	TandemLogEntry *entry;
	TandemLogTable *table;
	bool		identified;

	if (to->context == NULL)
		to->context = AllocSetContextCreate(TopMemoryContext, "tandem conflicts", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(to->context);

	entry = palloc0(sizeof(TandemLogEntry));
	entry->table = table = find_table(to, conflict->rel);
	entry->type = conflict->type;
	entry->configured = conflict->configured;
	entry->resolution = conflict->resolution;
	entry->detection = conflict->detection;
	entry->reason = conflict->reason ? pstrdup(conflict->reason) : NULL;
	entry->operation = conflict->operation;
	entry->local = conflict->local;
	entry->subid = session->subid;
	entry->subname = session->subname ? pstrdup(session->subname) : NULL;
	entry->origin = session->origin;
	strlcpy(entry->node, session->node, sizeof(entry->node));
	entry->xid = session->xid;
	entry->commit_time = session->time;
	entry->lsn = session->lsn;
	entry->time = GetCurrentTimestamp();

	/* identities have no nulls, but for whole rows */
	identified = OidIsValid(RelationGetReplicaIndex(conflict->rel)) ||
		OidIsValid(TANDEM_PRIMARY_KEY_INDEX(conflict->rel)) ||
		conflict->rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL;
	entry->key = tandem_log_row_take(table, conflict->key, NULL, identified);
	entry->local_row = tandem_log_row_take(table, conflict->local_row, NULL, false);
	entry->remote_row = tandem_log_row_take(table, conflict->remote_row, conflict->remote_missing, false);
	entry->result_row = tandem_log_row_take(table, conflict->result_row, NULL, false);
	MemoryContextSwitchTo(old);
	return entry;
}

void
tandem_conflict_record(const TandemConflict *conflict)
{
	TandemLogEntry *entry = take(&recorded, conflict);
	MemoryContext old = MemoryContextSwitchTo(recorded.context);

	recorded.entries = lappend(recorded.entries, entry);
	MemoryContextSwitchTo(old);
	if (list_length(recorded.entries) >= BATCH ||
		MemoryContextMemAllocated(recorded.context, true) > BATCH_MEMORY)
		tandem_conflict_flush();
}

void
tandem_conflict_record_failed(const TandemConflict *conflict)
{
	TandemLogEntry *entry;
	MemoryContext old;

	forget(&failed);
	entry = take(&failed, conflict);
	old = MemoryContextSwitchTo(failed.context);
	failed.entries = list_make1(entry);
	MemoryContextSwitchTo(old);
}

void
tandem_conflict_forget(void)
{
	forget(&recorded);
}

char *
tandem_conflict_detail(const TandemConflict *conflict)
{
	Recorded	one = {0};
	char	   *detail;
	int			nest;

	one.context = CurrentMemoryContext;
	nest = tandem_log_output_begin();
	detail = tandem_log_detail(take(&one, conflict));
	tandem_log_output_end(nest);
	return detail;
}

/* ---- Writing ------------------------------------------------------------------------- */

/* What came of it. */
typedef enum Written
{
	WRITTEN,
	NO_ROOM,					/* or nowhere to write to: others won't fare better */
	REFUSED						/* one of them can't be written */
} Written;

/* Writes entries, raising any error; prints what is to be said of them. */
static void
write_all(List *entries, char **details, MemoryContext context)
{
	MemoryContext scratch;
	MemoryContext old;
	int			nest = tandem_log_output_begin();
	int			i = 0;
	ListCell   *lc;

	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_log_store_open();
	scratch = AllocSetContextCreate(CurrentMemoryContext, "tandem conflict log", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(scratch);
	foreach(lc, entries)
	{
		const TandemLogEntry *entry = lfirst(lc);
		char	   *detail;

		if (details)
		{
			detail = tandem_log_detail(entry);
			details[i++] = MemoryContextStrdup(context, detail);
		}
		(void) tandem_log_store_insert(entry);
		MemoryContextReset(scratch);
	}
	MemoryContextSwitchTo(old);
	tandem_log_store_close();
	tandem_log_output_end(nest);
	PopActiveSnapshot();
	MemoryContextDelete(scratch);
}

/*
 * Runs write(arg) in a subtransaction, within the transaction that is open.
 * Returns in *error (palloc'd) what it raised.  Cancellation is raised again.
 */
static Written
try_writing(void (*write) (void *), void *arg, char **error)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile Written result = WRITTEN;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		write(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *data;

		MemoryContextSwitchTo(context);
		data = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (data->sqlerrcode == ERRCODE_QUERY_CANCELED || data->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(data);
		result = ERRCODE_TO_CATEGORY(data->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES ||
			ERRCODE_TO_CATEGORY(data->sqlerrcode) == ERRCODE_SYSTEM_ERROR ||
			data->sqlerrcode == ERRCODE_UNDEFINED_OBJECT ? NO_ROOM : REFUSED;
		*error = data->message ? pstrdup(data->message) : pstrdup("unknown error");
		FreeErrorData(data);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return result;
}

typedef struct WriteAll
{
	List	   *entries;
	char	  **details;
} WriteAll;

static void
write_recorded(void *arg)
{
	WriteAll   *what = arg;

	write_all(what->entries, what->details, recorded.context);
}

/* Says entries in the log, and counts them if they could not be stored. */
static void
say(List *entries, char **details, const char *error)
{
	int			i = 0;
	ListCell   *lc;

	foreach(lc, entries)
	{
		const TandemLogEntry *entry = lfirst(lc);

		tandem_log_say(entry, details[i++]);
		if (error)
			tandem_log_not_stored(entry->subid, 1, error);
	}
	if (error)
		tandem_log_say_lost(list_length(entries), error);
}

static void
remember(const char *error)
{
	if (error)
		strlcpy(why, error, 1 + pg_mbcliplen(error, strlen(error), sizeof(why) - 1));
}

void
tandem_conflict_flush(void)
{
	static TimestampTz no_room = 0; /* the last time; 0 = there is room */
	MemoryContext old;
	WriteAll	all;
	char	   *error = NULL;
	Written		result;

	if (recorded.entries == NIL)
		return;
	old = MemoryContextSwitchTo(recorded.context);
	all.entries = recorded.entries;
	all.details = palloc0(list_length(recorded.entries) * sizeof(char *));
	if (no_room != 0 && !TimestampDifferenceExceeds(no_room, GetCurrentTimestamp(), PAUSE))
	{
		say(all.entries, all.details, why);
		MemoryContextSwitchTo(old);
		forget(&recorded);
		return;
	}

	result = try_writing(write_recorded, &all, &error);
	if (result == REFUSED && list_length(all.entries) > 1)
	{
		/* which one? */
		ListCell   *lc;
		int			i = 0;

		result = WRITTEN;
		foreach(lc, recorded.entries)
		{
			WriteAll	one;

			one.entries = list_make1(lfirst(lc));
			one.details = &all.details[i++];
			one.details[0] = NULL;
			error = NULL;
			if (result != NO_ROOM)
				result = try_writing(write_recorded, &one, &error);
			say(one.entries, one.details, result == NO_ROOM && error == NULL ? why : error);
			remember(error);
		}
	}
	else
	{
		say(all.entries, all.details, error);
		remember(error);
	}
	no_room = result == NO_ROOM ? GetCurrentTimestamp() : 0;
	MemoryContextSwitchTo(old);
	forget(&recorded);
}

/* ---- What has failed ------------------------------------------------------------------ */

static void
write_failed(void *arg)
{
	const TandemLogEntry *entry = arg;
	int64		id = tandem_log_failed_id(entry);
	int			nest = tandem_log_output_begin();

	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_log_store_open();
	if (id == 0 || !tandem_log_store_again(id, entry))
	{
		id = tandem_log_store_insert(entry);
		tandem_log_set_failed_id(entry, id);
	}
	tandem_log_store_close();
	tandem_log_output_end(nest);
	PopActiveSnapshot();
}

void
tandem_conflict_write_failed(void)
{
	MemoryContext old = CurrentMemoryContext;
	TandemLogEntry *entry;
	volatile bool started = false;
	char	   *volatile error = NULL;

	if (failed.entries == NIL)
		return;
	entry = linitial(failed.entries);
	PG_TRY();
	{
		char	   *raised = NULL;

		if (!IsTransactionState())
		{
			StartTransactionCommand();
			started = true;
		}
		MemoryContextSwitchTo(failed.context);
		(void) try_writing(write_failed, entry, &raised);
		error = raised;
		if (started)
			CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *data;

		if (!started)
			PG_RE_THROW();
		MemoryContextSwitchTo(failed.context);
		data = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		error = data->message ? data->message : "unknown error";
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	if (error)
	{
		tandem_log_say_lost(1, error);
		tandem_log_not_stored(entry->subid, 1, error);
	}
	forget(&failed);
}

/* ---- Bounds ----------------------------------------------------------------------------- */

void
tandem_conflict_housekeeping(void)
{
	static TimestampTz next = 0;
	MemoryContext old = CurrentMemoryContext;
	volatile bool more = false;

	tandem_log_say_rest();
	if (GetCurrentTimestamp() < next)
		return;
	PG_TRY();
	{
		StartTransactionCommand();
		more = tandem_log_store_clean();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			ReThrowError(error);
		ereport(LOG,
				(errmsg("the conflict log could not be cleaned: %s", error->message)));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(old);
	next = more ? 0 : TimestampTzPlusMilliseconds(GetCurrentTimestamp(), tandem_debug_clean_interval);
}
