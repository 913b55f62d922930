/*-------------------------------------------------------------------------
 *
 * status.c
 *	  The view tandem.failback, and the guard's part of tandem.standbys.
 *
 * Read-only.  What a person at the console wants to know is whether the guard
 * works, if not why and what to do, what it costs, and how much WAL is kept.
 *
 * src/failback/status.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "common/version.h"
#include "failback/failback.h"
#include "failback/guard.h"
#include "failback/smgr_table.h"

#define FAILBACK_COLUMNS 25
#define STANDBYS_COLUMNS 3

PG_FUNCTION_INFO_V1(tandem_failback_status);
PG_FUNCTION_INFO_V1(tandem_failback_standbys_status);

/* What the guard was when we looked. */
typedef struct GuardCopy
{
	TandemGuardState state;
	TimestampTz since;
	int			mode;
	const TandemStandbyList *list;	/* NULL, or points to room */
	TandemStandbyListRoom room;
	char		self_test[TANDEM_GUARD_TEXT];
	char		reason[TANDEM_GUARD_TEXT];
	char		wal_error[TANDEM_GUARD_TEXT];
	bool		wal_incomplete;
	TimestampTz not_before;
	uint64		degradations;
	TimestampTz last_degraded;
	int			worker_pid;
} GuardCopy;

static void
require_guard(void)
{
	if (tandem_guard == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem must be loaded via shared_preload_libraries"),
				 errhint("Add pg_tandem to shared_preload_libraries and restart the server.")));
	tandem_check_sql_version();
}

static GuardCopy *
copy_guard(void)
{
	GuardCopy  *copy = palloc0(sizeof(GuardCopy));

	LWLockAcquire(tandem_guard->lock, LW_SHARED);
	copy->state = tandem_guard->state;
	copy->since = tandem_guard->since;
	copy->mode = tandem_guard->mode;
	if (tandem_guard->has_list)
	{
		copy->room = tandem_guard->standbys;
		copy->list = (const TandemStandbyList *) &copy->room;
	}
	strlcpy(copy->self_test, tandem_guard->self_test, TANDEM_GUARD_TEXT);
	strlcpy(copy->reason, tandem_guard->reason, TANDEM_GUARD_TEXT);
	strlcpy(copy->wal_error, tandem_guard->wal_error, TANDEM_GUARD_TEXT);
	copy->wal_incomplete = tandem_guard->wal_incomplete;
	copy->not_before = tandem_guard->not_before;
	copy->degradations = tandem_guard->degradations;
	copy->last_degraded = tandem_guard->last_degraded;
	copy->worker_pid = tandem_guard->worker_pid;
	LWLockRelease(tandem_guard->lock);
	return copy;
}

/* A list as one would write it. */
static char *
list_text(const TandemStandbyList *list)
{
	StringInfoData text;

	initStringInfo(&text);
	if (list->mode != TANDEM_STANDBYS_ALL)
		appendStringInfo(&text, "%s %d (", list->mode == TANDEM_STANDBYS_ANY ? "ANY" : "FIRST",
						 list->required);
	for (int i = 0; i < list->nnames; i++)
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "", NameStr(list->names[i]));
	if (list->mode != TANDEM_STANDBYS_ALL)
		appendStringInfoChar(&text, ')');
	return text.data;
}

/*
 * Appends what keeps the listed standbys from confirming: a slot that can't
 * confirm, else one that nobody uses.  Nothing if they just need time.
 */
static void
explain_standbys(const TandemStandbyList *list, StringInfo reason, StringInfo hint)
{
	const char *idle = NULL;

	for (int i = 0; list != NULL && i < list->nnames && reason->len == 0; i++)
	{
		TandemStandbyState state;

		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		tandem_standby_state(NameStr(list->names[i]), false, &state);
		LWLockRelease(ReplicationSlotControlLock);
		tandem_standby_explain(NameStr(list->names[i]), state.problem,
							   "tandem.failback_standbys", reason, hint);
		if (idle == NULL && state.pid == 0)
			idle = NameStr(list->names[i]);
	}
	if (reason->len == 0 && idle != NULL)
	{
		appendStringInfo(reason, "standby slot \"%s\" is not connected", idle);
		appendStringInfo(hint, "Start the standby, or remove \"%s\" from tandem.failback_standbys.", idle);
	}
}

/* Why the guard is in a state that isn't "armed", or won't stay so. */
static void
explain_state(const GuardCopy *guard, StringInfo reason, StringInfo hint)
{
	if (RecoveryInProgress())
	{
		appendStringInfoString(reason, "this server is a standby");
		return;
	}

	switch (guard->state)
	{
		case TANDEM_GUARD_OFF:
			if (guard->mode == TANDEM_TRANSFER_NONE)
			{
				appendStringInfoString(reason, "tandem.synchronous_transfer is none");
				appendStringInfoString(hint, "Set tandem.synchronous_transfer to data_flush or all.");
			}
			else if (guard->list == NULL)
			{
				appendStringInfoString(reason, "tandem.failback_standbys is empty");
				appendStringInfoString(hint, "Name the physical slots of the standbys that may be promoted.");
			}
			else
			{
				const char *refusal_hint = NULL;

				(void) tandem_smgr_refusal(&refusal_hint);
				appendStringInfo(reason, "data pages can't be guarded: %s", guard->self_test);
				appendStringInfoString(hint, refusal_hint ? refusal_hint : "See the server log.");
			}
			break;

		case TANDEM_GUARD_STARTING:
		case TANDEM_GUARD_ARMING:
		case TANDEM_GUARD_SETTLING:
			explain_standbys(guard->list, reason, hint);
			if (reason->len == 0)
				appendStringInfoString(reason, "the standbys have not caught up yet");
			break;

		case TANDEM_GUARD_ARMED:
			/* only if it matters to the list as a whole */
			if (guard->list != NULL && tandem_reachable_lsn(guard->list) != PG_UINT64_MAX)
			{
				explain_standbys(guard->list, reason, hint);
				if (reason->len > 0)
					appendStringInfoString(reason, "; writes will wait for it");
			}
			break;

		case TANDEM_GUARD_DEGRADED:
			{
				StringInfoData now;

				initStringInfo(&now);
				appendStringInfoString(reason, guard->reason);
				explain_standbys(guard->list, &now, hint);
				if (now.len > 0)
					appendStringInfo(reason, "; %s", now.data);
				else
					appendStringInfoString(hint, "It arms again when the standbys keep up.  If that doesn't last, look at the standby's log, disk and network.");
				break;
			}
	}

	if (guard->worker_pid == 0)
	{
		appendStringInfo(reason, "%sthe worker \"tandem failback\" does not run",
						 reason->len > 0 ? "; " : "");
		appendStringInfo(hint, "%sSee the server log; max_worker_processes must leave room for it.",
						 hint->len > 0 ? "  " : "");
	}
}

static Datum
text_or_null(StringInfo text, bool *isnull)
{
	*isnull = text->len == 0;
	return *isnull ? (Datum) 0 : CStringGetTextDatum(text->data);
}

static Datum
time_or_null(TimestampTz time, bool *isnull)
{
	*isnull = time == 0;
	return TimestampTzGetDatum(time);
}

static Datum
lsn_or_null(XLogRecPtr lsn, bool *isnull)
{
	*isnull = XLogRecPtrIsInvalid(lsn);
	return LSNGetDatum(lsn);
}

/* The one row of tandem.failback. */
Datum
tandem_failback_status(PG_FUNCTION_ARGS)
{
	bool		recovery = RecoveryInProgress();
	XLogRecPtr	end = recovery ? GetXLogReplayRecPtr(NULL) : GetFlushRecPtr(NULL);
	XLogRecPtr	confirmed = InvalidXLogRecPtr;
	TandemRetention slots[2];
	const char *slot_names[2] = {TANDEM_FAILBACK_SLOT, TANDEM_REJOIN_SLOT};
	int			oldest = -1;
	GuardCopy  *guard;
	TupleDesc	tupdesc;
	StringInfoData reason;
	StringInfoData hint;
	StringInfoData wal_problem;
	TimestampTz waiting_since;
	Datum		values[FAILBACK_COLUMNS];
	bool		nulls[FAILBACK_COLUMNS] = {false};
	int			n = 0;

	require_guard();
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	guard = copy_guard();
	if (guard->list != NULL && !recovery)
		confirmed = tandem_confirmed_lsn(guard->list);
	initStringInfo(&reason);
	initStringInfo(&hint);
	initStringInfo(&wal_problem);
	explain_state(guard, &reason, &hint);

	for (int i = 0; i < 2; i++)
	{
		tandem_retention_state(slot_names[i], &slots[i]);
		if (!XLogRecPtrIsInvalid(slots[i].restart_lsn) && !slots[i].in_use &&
			(oldest < 0 || slots[i].restart_lsn < slots[oldest].restart_lsn))
			oldest = i;
	}
	if (guard->wal_error[0] != '\0')
		appendStringInfoString(&wal_problem, guard->wal_error);
	else if (guard->wal_incomplete && !recovery)
		appendStringInfoString(&wal_problem, "WAL back to the last checkpoint that the standbys have confirmed exceeds tandem.failback_keep_size");

	values[n++] = CStringGetTextDatum(tandem_guard_state_name(recovery ? TANDEM_GUARD_OFF : guard->state));
	values[n++] = CStringGetTextDatum(tandem_transfer_name(guard->mode));
	nulls[n] = guard->list == NULL;
	values[n++] = guard->list ? CStringGetTextDatum(list_text(guard->list)) : (Datum) 0;
	values[n] = text_or_null(&reason, &nulls[n]);
	n++;
	values[n] = text_or_null(&hint, &nulls[n]);
	n++;
	values[n++] = TimestampTzGetDatum(guard->since);
	values[n] = lsn_or_null(confirmed, &nulls[n]);
	n++;
	nulls[n] = XLogRecPtrIsInvalid(confirmed);
	values[n++] = Int64GetDatum(end > confirmed ? end - confirmed : 0);

	values[n++] = Int32GetDatum(tandem_guard_waiting(&waiting_since));
	values[n] = time_or_null(waiting_since, &nulls[n]);
	n++;
	values[n++] = Int64GetDatum(pg_atomic_read_u64(&tandem_guard->waits[TANDEM_WAIT_DATA]));
	values[n++] = Float8GetDatum(pg_atomic_read_u64(&tandem_guard->wait_time[TANDEM_WAIT_DATA]) / 1000.0);
	values[n++] = Int64GetDatum(pg_atomic_read_u64(&tandem_guard->waits[TANDEM_WAIT_COMMIT]));
	values[n++] = Float8GetDatum(pg_atomic_read_u64(&tandem_guard->wait_time[TANDEM_WAIT_COMMIT]) / 1000.0);
	values[n++] = Float8GetDatum(pg_atomic_read_u64(&tandem_guard->longest) / 1000.0);
	values[n++] = Int64GetDatum(pg_atomic_read_u64(&tandem_guard->timeouts));
	values[n++] = Int64GetDatum(pg_atomic_read_u64(&tandem_guard->cancels));

	values[n++] = Int64GetDatum(guard->degradations);
	values[n] = time_or_null(guard->last_degraded, &nulls[n]);
	n++;
	values[n] = time_or_null(guard->state == TANDEM_GUARD_DEGRADED ? guard->not_before : 0, &nulls[n]);
	n++;

	nulls[n] = oldest < 0;
	values[n++] = oldest < 0 ? (Datum) 0 : DirectFunctionCall1(namein, CStringGetDatum(slot_names[oldest]));
	values[n] = lsn_or_null(oldest < 0 ? InvalidXLogRecPtr : slots[oldest].restart_lsn, &nulls[n]);
	n++;
	values[n++] = Int64GetDatum(oldest < 0 || end < slots[oldest].restart_lsn ? 0 : end - slots[oldest].restart_lsn);
	values[n] = text_or_null(&wal_problem, &nulls[n]);
	n++;
	nulls[n] = guard->worker_pid == 0;
	values[n++] = Int32GetDatum(guard->worker_pid);
	Assert(n == FAILBACK_COLUMNS);

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

/*
 * One row a name in tandem.failback_standbys: the name, what of it the guard
 * has to complain about, the hint.  None on a standby.
 */
Datum
tandem_failback_standbys_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	GuardCopy  *guard;
	StringInfoData warning;
	StringInfoData hint;

	require_guard();
	InitMaterializedSRF(fcinfo, 0);

	guard = copy_guard();
	if (guard->list == NULL || RecoveryInProgress())
		return (Datum) 0;

	initStringInfo(&warning);
	initStringInfo(&hint);
	for (int i = 0; i < guard->list->nnames; i++)
	{
		const char *name = NameStr(guard->list->names[i]);
		TandemStandbyState state;
		Datum		values[STANDBYS_COLUMNS];
		bool		nulls[STANDBYS_COLUMNS] = {false};

		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		tandem_standby_state(name, false, &state);
		LWLockRelease(ReplicationSlotControlLock);

		resetStringInfo(&warning);
		resetStringInfo(&hint);
		if (state.problem != TANDEM_STANDBY_OK)
			tandem_standby_explain(name, state.problem, "tandem.failback_standbys", &warning, &hint);
		else if (state.pid == 0)
		{
			appendStringInfoString(&warning, "it is not connected; data pages and commits can't wait for it");
			appendStringInfo(&hint, "Start the standby, or remove \"%s\" from tandem.failback_standbys.", name);
		}

		values[0] = NameGetDatum(&guard->list->names[i]);
		values[1] = text_or_null(&warning, &nulls[1]);
		values[2] = text_or_null(&hint, &nulls[2]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
