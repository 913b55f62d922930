/*-------------------------------------------------------------------------
 *
 * standbys_view.c
 *	  The view tandem.standbys: what a primary knows about its standbys.
 *
 * One row for each physical slot and for each name in a standby list that no
 * physical slot has.  What the primary holds for a standby (a slot named
 * tandem_hold_<name of the standby's slot>) is shown in the standby's row; a
 * hold whose standby has no slot gets a row of its own, named like the
 * standby.  Slots of our own that no standby uses are left out; after a
 * promotion tandem_rejoin is the old primary's.  Read-only; the rows are read
 * one after the other, so they may differ by moments.
 *
 * src/slots/standbys_view.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "common/settings.h"
#include "common/standby.h"
#include "slots/gate.h"
#include "slots/slots.h"

#define STANDBYS_COLUMNS 11
#define HELD_PATIENCE_MS 5000

PG_FUNCTION_INFO_V1(tandem_standbys_status);

typedef struct StandbyRow
{
	NameData	name;			/* of the standby's slot */
	bool		is_slot;		/* a physical slot of that name exists */
	bool		has_hold;
	TransactionId hold_xmin;	/* of its hold, if there is one */
} StandbyRow;

/* The row of a standby, added if there is none. */
static StandbyRow *
row_of(List **rows, const char *name)
{
	ListCell   *cell;
	StandbyRow *row;

	foreach (cell, *rows)
	{
		row = (StandbyRow *) lfirst(cell);
		if (strcmp(NameStr(row->name), name) == 0)
			return row;
	}
	row = palloc0(sizeof(StandbyRow));
	namestrcpy(&row->name, name);
	*rows = lappend(*rows, row);
	return row;
}

/* Everything that gets a row: slots in the order of the server, then names. */
static List *
collect_rows(void)
{
	const TandemStandbyList *list = tandem_standby_slots_list;
	int			prefix = strlen(TANDEM_HOLD_PREFIX);
	ReplicationSlot *rejoin = NULL;
	List	   *rows = NIL;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		TransactionId xmin;
		const char *name = NameStr(slot->data.name);

		if (!slot->in_use || SlotIsLogical(slot) || strcmp(name, TANDEM_FAILBACK_SLOT) == 0)
			continue;
		if (strcmp(name, TANDEM_REJOIN_SLOT) == 0)
		{
			rejoin = slot;
			continue;
		}

		if (strncmp(name, TANDEM_HOLD_PREFIX, prefix) != 0 || name[prefix] == '\0')
			row_of(&rows, name)->is_slot = true;
		else
		{
			StandbyRow *row = row_of(&rows, name + prefix);

			SpinLockAcquire(&slot->mutex);
			xmin = slot->effective_catalog_xmin;
			SpinLockRelease(&slot->mutex);
			row->has_hold = true;
			row->hold_xmin = xmin;
		}
	}
	if (rejoin != NULL)
	{
		/* it is a standby's when a node that was rejoined uses it */
		bool		used = tandem_standby_list_has(list, TANDEM_REJOIN_SLOT) ||
			tandem_standby_list_has(tandem_failback_standbys_list, TANDEM_REJOIN_SLOT);
		ListCell   *lc;

		SpinLockAcquire(&rejoin->mutex);
		used |= rejoin->active_pid != 0;
		SpinLockRelease(&rejoin->mutex);
		if (used)
			(void) row_of(&rows, TANDEM_REJOIN_SLOT);
		foreach (lc, rows)
		{
			StandbyRow *row = lfirst(lc);

			if (strcmp(NameStr(row->name), TANDEM_REJOIN_SLOT) == 0)
				row->is_slot = true;
		}
	}
	LWLockRelease(ReplicationSlotControlLock);

	for (int i = 0; list != NULL && i < list->nnames; i++)
		(void) row_of(&rows, NameStr(list->names[i]));
	return rows;
}

/* Transactions begun since xid; how far a hold keeps vacuum back. */
static int64
transactions_since(TransactionId xid)
{
	return (int32) (XidFromFullTransactionId(ReadNextFullTransactionId()) - xid);
}

/*
 * What is wrong with a standby, the most urgent first: it stops subscribers,
 * it will stop the server.
 */
static void
judge(StandbyRow *row, TandemStandbyState *state, bool listed,
	  StringInfo warning, StringInfo hint)
{
	const char *name = NameStr(row->name);
	TimestampTz since = 0;
	XLogRecPtr	wanted = InvalidXLogRecPtr;
	int			held;

	if (listed && state->problem != TANDEM_STANDBY_OK)
	{
		tandem_standby_explain(name, state->problem, "tandem.standby_slots", warning, hint);
		appendStringInfoString(warning, "; logical walsenders wait for it");
		return;
	}

	/* under load something waits at any moment, for a moment */
	held = listed ? tandem_gate_count_held(&since, &wanted) : 0;
	if (held > 0 && state->flush < wanted &&
		(state->pid == 0 ||
		 TimestampDifferenceExceeds(since, GetCurrentTimestamp(), HELD_PATIENCE_MS)))
	{
		appendStringInfo(warning, "%s; %d logical walsender%s wait%s for standbys to flush %X/%X, since %s",
						 state->pid != 0 ? "it has not flushed enough yet" : "it is not connected",
						 held, held == 1 ? "" : "s", held == 1 ? "s" : "",
						 LSN_FORMAT_ARGS(wanted), timestamptz_to_str(since));
		if (state->pid != 0)
			appendStringInfoString(hint, "If that lasts, look at the standby's log, disk and network.");
		else
			appendStringInfo(hint, "Start the standby, or remove \"%s\" from tandem.standby_slots.", name);
	}
	else if (listed && state->pid == 0)
	{
		appendStringInfoString(warning, "it is not connected; logical walsenders will wait for it");
		appendStringInfo(hint, "Start the standby, or remove \"%s\" from tandem.standby_slots.", name);
	}
	else if (row->has_hold && !row->is_slot)
	{
		appendStringInfo(warning, "rows are held for a standby that has no replication slot \"%s\"", name);
		appendStringInfo(hint, "If the standby is gone, run SELECT tandem.drop_hold('%s').", name);
	}
	else if (row->has_hold && TransactionIdIsNormal(row->hold_xmin) &&
			 transactions_since(row->hold_xmin) > autovacuum_freeze_max_age / 2)
	{
		appendStringInfo(warning, "its hold keeps vacuum back by %lld transactions",
						 (long long) transactions_since(row->hold_xmin));
		appendStringInfo(hint, "Let the standby sync its slots, or run SELECT tandem.drop_hold('%s') before autovacuum can't prevent wraparound any more.", name);
	}
	else if (row->is_slot && state->problem == TANDEM_STANDBY_INVALIDATED)
	{
		appendStringInfoString(warning, "its slot is invalidated, it has lost WAL that it needs");
		appendStringInfoString(hint, "Make the standby anew, with a new slot.");
	}
}

Datum
tandem_standbys_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	StringInfoData warning;
	StringInfoData hint;
	ListCell   *cell;

	tandem_require_shmem();
	InitMaterializedSRF(fcinfo, 0);
	initStringInfo(&warning);
	initStringInfo(&hint);

	foreach (cell, collect_rows())
	{
		StandbyRow *row = (StandbyRow *) lfirst(cell);
		bool		listed = tandem_standby_list_has(tandem_standby_slots_list,
											  NameStr(row->name));
		TandemStandbyState state;
		Datum		values[STANDBYS_COLUMNS];
		bool		nulls[STANDBYS_COLUMNS] = {false};
		TimestampTz reported;

		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		tandem_standby_state(NameStr(row->name), false, &state);
		LWLockRelease(ReplicationSlotControlLock);

		resetStringInfo(&warning);
		resetStringInfo(&hint);
		judge(row, &state, listed, &warning, &hint);
		reported = row->has_hold ? tandem_hold_reported(NameStr(row->name)) : 0;

		values[0] = NameGetDatum(&row->name);
		values[1] = BoolGetDatum(row->is_slot);
		values[2] = BoolGetDatum(state.pid != 0);
		values[3] = Int32GetDatum(state.pid);
		nulls[3] = state.pid == 0;
		values[4] = LSNGetDatum(state.flush);
		nulls[4] = XLogRecPtrIsInvalid(state.flush);
		values[5] = BoolGetDatum(listed);
		values[6] = TransactionIdGetDatum(row->hold_xmin);
		nulls[6] = !TransactionIdIsValid(row->hold_xmin);
		values[7] = Int64GetDatum(nulls[6] ? 0 : transactions_since(row->hold_xmin));
		nulls[7] = nulls[6];
		values[8] = TimestampTzGetDatum(reported);
		nulls[8] = reported == 0;
		values[9] = CStringGetTextDatum(warning.data);
		nulls[9] = warning.len == 0;
		values[10] = CStringGetTextDatum(hint.data);
		nulls[10] = hint.len == 0;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
