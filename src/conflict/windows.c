/*-------------------------------------------------------------------------
 *
 * windows.c
 *	  Windows: deletes that the store doesn't know, in tandem.deletion_windows.
 *
 * Wherever tombstones get lost, or can't be looked at in time, that is written
 * here, so that a verdict says "unknown" instead of guessing:
 *
 *	 stopped	an epoch was dropped early, by a bound
 *	 failover, slot lost, restored	deletes could not be decoded any more
 *	 timeout	the collector didn't pass in time; a verdict was "unknown", but
 *				nothing is lost
 *
 * A window is active until it has been passed by all subscriptions, by the rule
 * of epoch.c: until then a change that was committed before the window's end may
 * be for a row that was deleted in it.  A timeout is never active.  Those that
 * aren't active are kept for the view, the last ones.
 *
 * Anybody inserts; only the database's retention worker changes and deletes rows,
 * so that nobody waits.  An epoch is dropped in the transaction that writes its
 * window, and who looks for a tombstone looks here afterwards with a newer
 * snapshot, so either the one or the other is found.
 *
 * Called by retention.c, the collector and the look into the store.
 *
 * src/conflict/windows.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/own_relation.h"
#include "conflict/retention.h"
#include "conflict/store.h"

#define RELATION "deletion_windows"
#define STOPPED "stopped"
#define TIMEOUT "timeout"

enum
{
	COL_SUBID,
	COL_FROM_LSN,
	COL_TO_LSN,
	COL_FROM_TIME,
	COL_TO_TIME,
	COL_REASON,
	COL_RECORDED,
	COL_PASSED,
	NUM_COLS
};

/* ---- Rows ---------------------------------------------------------------------- */

static void
set_lsn(Datum *values, bool *nulls, int col, XLogRecPtr lsn)
{
	values[col] = LSNGetDatum(lsn);
	nulls[col] = XLogRecPtrIsInvalid(lsn);
}

static void
set_time(Datum *values, bool *nulls, int col, TimestampTz time)
{
	values[col] = TimestampTzGetDatum(time);
	nulls[col] = time == 0;
}

static HeapTuple
form_window(const TandemWindow *window, TupleDesc desc)
{
	Datum		values[NUM_COLS];
	bool		nulls[NUM_COLS];

	memset(nulls, 0, sizeof(nulls));
	values[COL_SUBID] = ObjectIdGetDatum(window->subid);
	set_lsn(values, nulls, COL_FROM_LSN, window->from_lsn);
	set_lsn(values, nulls, COL_TO_LSN, window->to_lsn);
	set_time(values, nulls, COL_FROM_TIME, window->from_time);
	set_time(values, nulls, COL_TO_TIME, window->to_time);
	values[COL_REASON] = CStringGetTextDatum(window->reason);
	set_time(values, nulls, COL_RECORDED, window->recorded);
	set_time(values, nulls, COL_PASSED, window->passed);
	return heap_form_tuple(desc, values, nulls);
}

static void
read_window(HeapTuple tuple, TupleDesc desc, TandemWindow *window)
{
	Datum		values[NUM_COLS];
	bool		nulls[NUM_COLS];

	heap_deform_tuple(tuple, desc, values, nulls);
	window->subid = DatumGetObjectId(values[COL_SUBID]);
	window->from_lsn = nulls[COL_FROM_LSN] ? InvalidXLogRecPtr : DatumGetLSN(values[COL_FROM_LSN]);
	window->to_lsn = nulls[COL_TO_LSN] ? InvalidXLogRecPtr : DatumGetLSN(values[COL_TO_LSN]);
	window->from_time = nulls[COL_FROM_TIME] ? 0 : DatumGetTimestampTz(values[COL_FROM_TIME]);
	window->to_time = nulls[COL_TO_TIME] ? 0 : DatumGetTimestampTz(values[COL_TO_TIME]);
	window->reason = TextDatumGetCString(values[COL_REASON]);
	window->recorded = nulls[COL_RECORDED] ? 0 : DatumGetTimestampTz(values[COL_RECORDED]);
	window->passed = nulls[COL_PASSED] ? 0 : DatumGetTimestampTz(values[COL_PASSED]);
}

/* All rows, as of now: there are few. */
static SysScanDesc
begin_scan(Relation rel)
{
	/* a snapshot of the catalog cache may be older than a row just committed */
	InvalidateCatalogSnapshot();
	return systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
}

static Relation
open_windows(LOCKMODE lock)
{
	return table_open(tandem_own_relation(RELATION), lock);
}

static void
insert_window(Relation rel, const TandemWindow *window)
{
	CatalogTupleInsert(rel, form_window(window, RelationGetDescr(rel)));
	CommandCounterIncrement();
}

List *
tandem_windows(bool active)
{
	Relation	rel = open_windows(AccessShareLock);
	SysScanDesc scan = begin_scan(rel);
	List	   *windows = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TandemWindow *window = palloc(sizeof(TandemWindow));

		read_window(tuple, RelationGetDescr(rel), window);
		if (!active || window->passed == 0)
			windows = lappend(windows, window);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return windows;
}

/* ---- Recording ------------------------------------------------------------------- */

/* The latest commit that was applied here: by another clock it may be ahead of ours. */
static TimestampTz
latest_remote_time(void)
{
	TimestampTz latest = 0;
	ListCell   *lc;

	if (tandem_incoming.list == NULL)
		return 0;
	foreach(lc, tandem_incoming.list())
	{
		TandemIncoming *incoming = lfirst(lc);

		latest = Max(latest, incoming->remote_time);
	}
	return latest;
}

void
tandem_window_record(Oid subid, const char *reason, XLogRecPtr from_lsn, XLogRecPtr to_lsn,
					 TimestampTz from_time, TimestampTz to_time)
{
	Relation	rel = open_windows(RowExclusiveLock);
	bool		lost = strcmp(reason, TIMEOUT) != 0;
	TandemWindow window = {
		.subid = subid, .reason = reason, .from_lsn = from_lsn, .to_lsn = to_lsn,
		.from_time = from_time, .to_time = to_time, .recorded = GetCurrentTimestamp()};

	if (lost)
		/* the lost ones may carry such times */
		window.to_time = Max(window.to_time, latest_remote_time());
	else
		window.passed = window.recorded;
	insert_window(rel, &window);
	table_close(rel, RowExclusiveLock);
}

/* Of two that may be 0 = unknown. */
static uint64
smaller(uint64 a, uint64 b)
{
	return a == 0 || b == 0 ? 0 : Min(a, b);
}

void
tandem_window_end_early(const TandemWindow *window)
{
	Relation	rel = open_windows(RowExclusiveLock);
	SysScanDesc scan = begin_scan(rel);
	bool		found = false;
	HeapTuple	tuple;
	TandemWindow merged;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		read_window(tuple, RelationGetDescr(rel), &merged);
		if (merged.passed != 0 || OidIsValid(merged.subid) || strcmp(merged.reason, STOPPED) != 0)
			continue;
		found = true;
		merged.from_lsn = smaller(merged.from_lsn, window->from_lsn);
		merged.from_time = (TimestampTz) smaller(merged.from_time, window->from_time);
		merged.to_lsn = Max(merged.to_lsn, window->to_lsn);
		merged.to_time = Max(merged.to_time, window->to_time);
		CatalogTupleUpdate(rel, &tuple->t_self, form_window(&merged, RelationGetDescr(rel)));
	}
	systable_endscan(scan);
	if (!found)
	{
		merged = *window;
		merged.subid = InvalidOid;
		merged.reason = STOPPED;
		merged.recorded = GetCurrentTimestamp();
		merged.passed = 0;
		insert_window(rel, &merged);
	}
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

static int
compare_recorded(const void *a, const void *b)
{
	TimestampTz x = *(const TimestampTz *) a;
	TimestampTz y = *(const TimestampTz *) b;

	return x < y ? -1 : x > y;
}

/* Deletes the oldest of those that aren't active. */
static void
prune(Relation rel)
{
	List	   *windows = tandem_windows(false);
	int			n = 0;
	TimestampTz *recorded;
	TimestampTz limit;
	SysScanDesc scan;
	HeapTuple	tuple;
	ListCell   *lc;

	if (list_length(windows) <= 2 * TANDEM_WINDOWS_KEPT)
		return;
	recorded = palloc(sizeof(TimestampTz) * list_length(windows));
	foreach(lc, windows)
	{
		TandemWindow *window = lfirst(lc);

		if (window->passed != 0)
			recorded[n++] = window->recorded;
	}
	if (n <= TANDEM_WINDOWS_KEPT)
		return;
	qsort(recorded, n, sizeof(TimestampTz), compare_recorded);
	limit = recorded[n - TANDEM_WINDOWS_KEPT];

	scan = begin_scan(rel);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TandemWindow window;

		read_window(tuple, RelationGetDescr(rel), &window);
		if (window.passed != 0 && window.recorded < limit)
			CatalogTupleDelete(rel, &tuple->t_self);
	}
	systable_endscan(scan);
}

int
tandem_windows_pass(TimestampTz passed)
{
	Relation	rel = open_windows(RowExclusiveLock);
	SysScanDesc scan = begin_scan(rel);
	int			n = 0;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TandemWindow window;

		read_window(tuple, RelationGetDescr(rel), &window);
		if (window.passed != 0 || window.to_time > passed)
			continue;
		window.passed = GetCurrentTimestamp();
		CatalogTupleUpdate(rel, &tuple->t_self, form_window(&window, RelationGetDescr(rel)));
		n++;
	}
	systable_endscan(scan);
	CommandCounterIncrement();
	prune(rel);
	table_close(rel, RowExclusiveLock);
	return n;
}

/* ---- Looking --------------------------------------------------------------------- */

const char *
tandem_window_covers(Oid subid, TimestampTz time)
{
	List	   *windows = tandem_windows(true);
	ListCell   *lc;

	foreach(lc, windows)
	{
		TandemWindow *window = lfirst(lc);

		if (OidIsValid(window->subid) && window->subid != subid)
			continue;
		if (time == 0 || time <= window->to_time)
			return psprintf("deletes before %s are not all known: %s",
							timestamptz_to_str(window->to_time), window->reason);
	}
	return NULL;
}
