/*-------------------------------------------------------------------------
 *
 * log.h
 *	  What the files of the conflict log share; nobody else includes it.
 *
 *	 log.c			what has been recorded and not yet been written
 *	 log_row.c		values of rows, as jsonb and as text
 *	 log_line.c		what the server's log says
 *	 log_store.c	the relations, and their bounds
 *	 log_shared.c	what could not be stored; in shared memory
 *	 log_view.c		the views
 *	 log_settle.c	tandem.conflict_dismiss(), tandem.conflict_replay()
 *
 * src/conflict/log.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_CONFLICT_LOG_H
#define TANDEM_CONFLICT_LOG_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "fmgr.h"
#include "utils/jsonb.h"

#include "conflict/conflict.h"

/* ---- log_row.c --------------------------------------------------------------- */

#define TANDEM_LOG_VALUE_LIMIT (64 * 1024)	/* bytes of one value that are kept */
#define TANDEM_LOG_ROW_LIMIT (1024 * 1024)	/* bytes of a row, after which values are cut to ... */
#define TANDEM_LOG_VALUE_SHORT 1024

/* The member of a value that isn't there as it was: {"tandem_cut": "beginning", "bytes": 100000} */
#define TANDEM_LOG_CUT "tandem_cut"

/* How to print the columns of a table; lives as long as what was recorded of it. */
typedef struct TandemLogTable
{
	Oid			relid;
	NameData	schema;
	NameData	name;
	TupleDesc	desc;			/* a copy */
	FmgrInfo   *output;			/* of each column; fn_oid = 0: not yet looked up */
} TandemLogTable;

/* The values of a row that are there. */
typedef struct TandemLogRow
{
	Datum	   *values;
	bool	   *nulls;
	bool	   *absent;			/* not sent, or not asked for */
	int64	   *cut;			/* 0 = whole, else bytes that it had */
} TandemLogRow;

/*
 * Copies what slot has into the current memory context, without what is beyond
 * the limits; it needs neither the slot nor toasted values later.  "missing":
 * attribute numbers that it hasn't got.  only_set: nor is null.
 */
extern TandemLogRow *tandem_log_row_take(const TandemLogTable *table, TupleTableSlot *slot,
										 const Bitmapset *missing, bool only_set);

/*
 * A row as a jsonb object; NULL if row is.  Calls output functions, which may
 * raise errors.
 */
extern Jsonb *tandem_log_row_json(TandemLogTable *table, const TandemLogRow *row);

/*
 * Appends "(1, text)", or "(id)=(1)" if not all columns are there.  Values are
 * shortened.  Raises what output functions do.
 */
extern void tandem_log_row_text(StringInfo out, TandemLogTable *table, const TandemLogRow *row);

/* Sets what output functions look at; returns what AtEOXact_GUC() needs, -1 = nothing was changed. */
extern int	tandem_log_output_begin(void);
extern void tandem_log_output_end(int nest);

/* ---- log.c ------------------------------------------------------------------------ */

/* A conflict that has been recorded. */
typedef struct TandemLogEntry
{
	TandemLogTable *table;
	TandemConflictType type;
	TandemOutcome configured;
	const char *resolution;
	const char *detection;
	char	   *reason;
	char		operation;
	TandemParty local;
	Oid			subid;
	char	   *subname;		/* NULL = none */
	RepOriginId origin;
	char		node[NAMEDATALEN];
	TransactionId xid;
	TimestampTz commit_time;
	XLogRecPtr	lsn;
	TimestampTz time;			/* when it was recorded */
	TandemLogRow *key;
	TandemLogRow *local_row;
	TandemLogRow *remote_row;
	TandemLogRow *result_row;
} TandemLogEntry;

/* ---- log_line.c -------------------------------------------------------------------- */

/* The detail of a conflict's message; palloc'd. */
extern char *tandem_log_detail(const TandemLogEntry *entry);

/* Says it in the server's log, unless there has been too much; detail may be NULL. */
extern void tandem_log_say(const TandemLogEntry *entry, const char *detail);

/* Says that conflicts could not be stored, now or soon. */
extern void tandem_log_say_lost(int64 conflicts, const char *why);

/* Says what was not said, when it is time for it. */
extern void tandem_log_say_rest(void);

/* An origin by name, "local" for this node's own changes; palloc'd.  NULL = unknown. */
extern char *tandem_log_origin_name(const TandemParty *party);

/* ---- log_store.c ---------------------------------------------------------------------- */

/* Opens the relations for writing; raises ERRCODE_UNDEFINED_OBJECT if they aren't there. */
extern void tandem_log_store_open(void);

/* Writes the counts since then, too. */
extern void tandem_log_store_close(void);

/* Writes an entry, and returns its id. */
extern int64 tandem_log_store_insert(const TandemLogEntry *entry);

/* Another attempt of what entry "id" tells.  Returns false if that isn't there. */
extern bool tandem_log_store_again(int64 id, const TandemLogEntry *entry);

/*
 * Some of the cleaning, in a transaction.  Returns whether there is more to do.
 * Does nothing if another process is at it.
 */
extern bool tandem_log_store_clean(void);

/*
 * The row of an entry, or NULL; a copy, in the caller's memory context.  It is
 * the newest committed one.
 */
extern HeapTuple tandem_log_store_get(Relation rel, int64 id);

/*
 * Sets an entry's state, TANDEM_LOG_DISMISSED or ..._REPLAYED, in the caller's
 * transaction; the caller holds tandem_log_lock().
 */
extern void tandem_log_store_settle(int64 id, char state);

/* Those who settle a conflict do it one after the other, until the end of their transactions. */
extern void tandem_log_lock(int64 id);

/* How many conflicts there have been. */
typedef struct TandemLogCount
{
	Oid			subid;
	Oid			relid;
	const char *type;
	const char *resolution;
	int64		conflicts;
	TimestampTz since;			/* the first of them */
	TimestampTz last;
} TandemLogCount;

/* All of them, as a list of TandemLogCount; with the active snapshot, as is the next one. */
extern List *tandem_log_store_counts(void);

/* Rows and bytes in the log, from the counts. */
extern void tandem_log_store_size(int64 *stored, int64 *bytes);

/* Attribute numbers of tandem.conflict_log and tandem.conflict_counts, as in sql/. */
enum
{
	LOG_ID = 1,
	LOG_TIME,
	LOG_SUBID,
	LOG_SUBSCRIPTION,
	LOG_RELID,
	LOG_SCHEMA,
	LOG_TABLE,
	LOG_TYPE,
	LOG_OPERATION,
	LOG_CONFIGURED,
	LOG_RESOLUTION,
	LOG_DETECTION,
	LOG_REASON,
	LOG_LOCAL_ORIGIN,
	LOG_LOCAL_XID,
	LOG_LOCAL_TIME,
	LOG_REMOTE_ORIGIN,
	LOG_REMOTE_NODE,
	LOG_REMOTE_XID,
	LOG_REMOTE_TIME,
	LOG_REMOTE_LSN,
	LOG_KEY,
	LOG_LOCAL_ROW,
	LOG_REMOTE_ROW,
	LOG_RESULT_ROW,
	LOG_ATTEMPTS,
	LOG_LAST_ATTEMPT,
	LOG_SETTLED,				/* TANDEM_LOG_DISMISSED, ..._REPLAYED, or null */
	LOG_SETTLED_AT,
	LOG_SETTLED_BY,
	LOG_BYTES,
	LOG_COLUMNS = LOG_BYTES
};

#define TANDEM_LOG_DISMISSED 'd'
#define TANDEM_LOG_REPLAYED 'r'

enum
{
	COUNT_SUBID = 1,			/* 0: what has been removed from the log */
	COUNT_RELID,
	COUNT_TYPE,
	COUNT_RESOLUTION,
	COUNT_CONFLICTS,
	COUNT_STORED,				/* rows in the log */
	COUNT_BYTES,				/* of them */
	COUNT_SINCE,
	COUNT_LAST,
	COUNT_COLUMNS = COUNT_LAST
};

/* ---- log_shared.c ------------------------------------------------------------------------ */

/* Raises an error if the library isn't preloaded, or isn't the extension's. */
extern void tandem_require_conflicts(void);

/* What a subscription could not store since the server started. */
typedef struct TandemLogTrouble
{
	int64		not_stored;
	TimestampTz at;
	char		error[256];
} TandemLogTrouble;

extern void tandem_log_not_stored(Oid subid, int64 conflicts, const char *error);

/* Of all subscriptions of this database. */
extern void tandem_log_trouble(TandemLogTrouble *trouble);

/* The conflict that has ended a subscription's transaction the last time. */
extern int64 tandem_log_failed_id(const TandemLogEntry *entry); /* 0 = another one, or none */
extern void tandem_log_set_failed_id(const TandemLogEntry *entry, int64 id);

#endif							/* TANDEM_CONFLICT_LOG_H */
