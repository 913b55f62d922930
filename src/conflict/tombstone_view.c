/*-------------------------------------------------------------------------
 *
 * tombstone_view.c
 *	  The views tandem.tombstones and tandem.tombstone_windows.
 *
 * One row an adopted subscription of this database: are deletes collected for
 * it, since when are they known, what keeps them.
 *
 *	 off			its option tombstones is off
 *	 unsupported	this server can't collect
 *	 failed			the collector or the retention worker doesn't run
 *	 stopped		a window is active: deletes before its end are not all known
 *	 catching up	the collector is far behind
 *	 collecting		all is well
 *
 * Called by SQL.
 *
 * src/conflict/tombstone_view.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/settings.h"
#include "common/version.h"
#include "conflict/retention.h"
#include "conflict/store.h"

#define COLUMNS 22
#define FAR_BEHIND (64 * 1024 * 1024)	/* bytes of WAL */
#define LONG_WAIT 60000			/* ms after which a wait gets a hint */

PG_FUNCTION_INFO_V1(tandem_tombstones_status);
PG_FUNCTION_INFO_V1(tandem_tombstone_windows_list);

typedef struct Row
{
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];
	int			n;
} Row;

static void
add(Row *row, Datum value, bool isnull)
{
	Assert(row->n < COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n++] = isnull;
}

/* NULL if empty */
static void
add_text(Row *row, const char *text)
{
	bool		empty = text == NULL || *text == '\0';

	add(row, empty ? (Datum) 0 : CStringGetTextDatum(text), empty);
}

static void
add_time(Row *row, TimestampTz time)
{
	add(row, TimestampTzGetDatum(time), time == 0);
}

static void
add_lsn(Row *row, XLogRecPtr lsn)
{
	add(row, LSNGetDatum(lsn), XLogRecPtrIsInvalid(lsn));
}

static void
add_int8(Row *row, int64 value, bool isnull)
{
	add(row, Int64GetDatum(value), isnull);
}

/* All that is known of this database, for all rows. */
typedef struct Database
{
	TandemCollectorInfo collector;
	TandemRetentionWorker worker;
	bool		has_state;
	TandemDeletionState state;
	List	   *epochs;
	List	   *windows;
	int64		size;			/* bytes */
	int64		entries;
	TimestampTz kept_since;		/* 0 = none is kept */
	int64		lag;			/* of the collector, bytes; -1 = unknown */
} Database;

static void
read_database(Database *database)
{
	ListCell   *lc;
	XLogRecPtr	collected;

	memset(database, 0, sizeof(*database));
	(void) tandem_collector_info(MyDatabaseId, &database->collector);
	(void) tandem_retention_worker(MyDatabaseId, &database->worker);
	database->has_state = tandem_deletion_state(&database->state);
	database->epochs = tandem_epochs();
	database->windows = tandem_windows(false);
	database->size = tandem_store_size();
	foreach(lc, database->epochs)
	{
		TandemEpoch *epoch = lfirst(lc);

		database->entries += epoch->entries;
		if (epoch->entries > 0 && (database->kept_since == 0 || epoch->opened < database->kept_since))
			database->kept_since = epoch->opened;
	}
	collected = database->collector.collected_lsn;
	if (XLogRecPtrIsInvalid(collected) && database->has_state)
		collected = database->state.collected_lsn;
	database->collector.collected_lsn = collected;
	database->lag = -1;
	if (!XLogRecPtrIsInvalid(collected) && !RecoveryInProgress())
	{
		XLogRecPtr	flushed = GetFlushRecPtr(NULL);

		database->lag = flushed > collected ? flushed - collected : 0;
	}
}

/* The window that ends last of those that are active for a subscription; NULL = none. */
static TandemWindow *
active_window(const Database *database, Oid subid)
{
	TandemWindow *latest = NULL;
	ListCell   *lc;

	foreach(lc, database->windows)
	{
		TandemWindow *window = lfirst(lc);

		if (window->passed == 0 && (!OidIsValid(window->subid) || window->subid == subid) &&
			(latest == NULL || window->to_time > latest->to_time))
			latest = window;
	}
	return latest;
}

static const char *
state_of(const Database *database, const TandemIncoming *incoming, const TandemWindow *window,
		 const char **reason, const char **hint)
{
	const TandemCollectorInfo *collector = &database->collector;

	*reason = *hint = NULL;
	if (!incoming->tombstones)
		return "off";
	if (RecoveryInProgress())
	{
		*reason = "this server is a standby";
		return "off";
	}
	if (collector->state == TANDEM_COLLECTOR_UNSUPPORTED)
	{
		*reason = collector->reason;
		*hint = collector->hint;
		return "unsupported";
	}
	if (collector->state == TANDEM_COLLECTOR_FAILED || collector->pid == 0)
	{
		*reason = collector->error[0] ? collector->error :
			collector->reason[0] ? collector->reason : "the collector doesn't run";
		*hint = collector->hint[0] ? collector->hint : "The server log says why.";
		return "failed";
	}
	if (window)
	{
		*reason = psprintf("deletes before %s are not all known: %s",
						   timestamptz_to_str(window->to_time), window->reason);
		*hint = strcmp(window->reason, "stopped") == 0 ?
			"A bound was reached: tandem.max_retention or tandem.tombstone_limit. It ends by itself when all subscriptions have caught up." :
			"It ends by itself when all subscriptions have caught up.";
		return "stopped";
	}
	if (database->worker.pid == 0)
	{
		*reason = "the worker \"tandem retention\" doesn't run";
		*hint = "The server log says why. Tombstones are kept meanwhile.";
		return "failed";
	}
	if (collector->state == TANDEM_COLLECTOR_STARTING || database->lag > FAR_BEHIND)
	{
		*reason = collector->reason[0] ? collector->reason : NULL;
		return "catching up";
	}
	return "collecting";
}

static const char *
hint_of_wait(const TandemRetentionInfo *info)
{
	if (!TimestampDifferenceExceeds(info->since, GetCurrentTimestamp(), LONG_WAIT))
		return NULL;
	switch (info->phase)
	{
		case TANDEM_PASS_CLOCK:
			return "The publisher's clock is behind this server's: synchronize them.";
		case TANDEM_PASS_XMIN:
			return "End long transactions on the publisher, prepared ones, too.";
		case TANDEM_PASS_FLUSH:
			return "The view tandem.subscriptions says how far apply is behind, or why it stands still.";
		case TANDEM_PASS_COPIES:
			return "The view tandem.tables says how far the copies are.";
		default:
			return NULL;
	}
}

static void
add_subscription(const Database *database, const TandemIncoming *incoming, Row *row)
{
	const TandemCollectorInfo *collector = &database->collector;
	TandemWindow *window = active_window(database, incoming->subid);
	TandemRetentionInfo info;
	bool		has_info = tandem_retention_info(incoming->subid, &info);
	bool		waits = has_info && info.phase != TANDEM_PASS_IDLE;
	const char *reason;
	const char *hint;
	const char *state = state_of(database, incoming, window, &reason, &hint);
	int			windows = 0;
	ListCell   *lc;

	foreach(lc, database->windows)
	{
		TandemWindow *one = lfirst(lc);

		windows += !OidIsValid(one->subid) || one->subid == incoming->subid;
	}
	if (hint == NULL && waits)
		hint = info.hint[0] ? pstrdup(info.hint) : hint_of_wait(&info);

	add(row, DirectFunctionCall1(namein, CStringGetDatum(incoming->name)), false);
	add(row, ObjectIdGetDatum(incoming->subid), false);
	add_text(row, state);
	add_text(row, reason);
	add_text(row, hint);
	add_time(row, database->kept_since);
	add_int8(row, database->entries, false);
	add_int8(row, database->size, false);
	add(row, Int32GetDatum(list_length(database->epochs)), false);
	add_lsn(row, collector->collected_lsn);
	add_int8(row, database->lag, database->lag < 0);
	add_text(row, waits ? tandem_pass_describe(info.phase, info.xid, info.xmin, info.lsn, info.message) : NULL);
	add_time(row, waits ? info.since : 0);
	add_time(row, has_info ? info.passed : 0);
	add_time(row, window && incoming->tombstones ? window->to_time : 0);
	add(row, Int32GetDatum(windows), false);
	add_int8(row, (int64) collector->probes, false);
	add_int8(row, (int64) collector->expired, false);
	add(row, Float8GetDatum(collector->probe_us / 1000.0), false);
	add_int8(row, (int64) database->worker.dropped, false);
	add_int8(row, (int64) database->worker.ended_early, false);
	add(row, Int32GetDatum((int32) collector->pid), collector->pid == 0);
	Assert(row->n == COLUMNS);
}

Datum
tandem_tombstones_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Database	database;
	ListCell   *lc;

	tandem_check_sql_version();
	InitMaterializedSRF(fcinfo, 0);
	if (tandem_incoming.list == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem must be loaded via shared_preload_libraries"),
				 errhint("Add pg_tandem to shared_preload_libraries and restart the server.")));
	read_database(&database);
	foreach(lc, tandem_incoming.list())
	{
		Row			row = {.n = 0};

		add_subscription(&database, lfirst(lc), &row);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

Datum
tandem_tombstone_windows_list(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	tandem_check_sql_version();
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, tandem_windows(false))
	{
		TandemWindow *window = lfirst(lc);
		Row			row = {.n = 0};

		add(&row, ObjectIdGetDatum(window->subid), !OidIsValid(window->subid));
		add_text(&row, window->reason);
		add_lsn(&row, window->from_lsn);
		add_lsn(&row, window->to_lsn);
		add_time(&row, window->from_time);
		add_time(&row, window->to_time);
		add_time(&row, window->recorded);
		add_time(&row, window->passed);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
