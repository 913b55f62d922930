/*-------------------------------------------------------------------------
 *
 * status.c
 *	  The view tandem.subscriptions.
 *
 * One row a subscription with a label of ours, of all databases: its catalog
 * row, its slot in shared memory if it has one, and, when the label doesn't
 * fit, why it isn't adopted.  Read-only.
 *
 * src/subscription/status.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

#define COLUMNS 26

PG_FUNCTION_INFO_V1(tandem_subscriptions_status);

/* What of a slot the view shows, copied under its mutex. */
typedef struct SlotCopy
{
	bool		found;
	TandemSubscriptionState state;
	char		reason[256];
	pid_t		apply_pid;
	XLogRecPtr	received_lsn;
	XLogRecPtr	applied_lsn;
	XLogRecPtr	flushed_lsn;
	XLogRecPtr	remote_end_lsn;
	TimestampTz remote_commit_time;
	char		error[1024];
	TimestampTz error_at;
	int			error_count;
	TimestampTz next_retry;
	uint64		inserts;
	uint64		updates;
	uint64		deletes;
	uint64		truncates;
	uint64		update_missing;
	uint64		delete_missing;
	uint64		transactions;
} SlotCopy;

static void
copy_slot(Oid subid, SlotCopy *copy)
{
	TandemSubscriptionSlot *slot;

	memset(copy, 0, sizeof(*copy));
	LWLockAcquire(tandem_subscriptions->lock, LW_SHARED);
	slot = tandem_subscription_find(subid);
	if (slot)
	{
		SpinLockAcquire(&slot->mutex);
		copy->found = true;
		copy->state = slot->state;
		memcpy(copy->reason, slot->reason, sizeof(copy->reason));
		copy->apply_pid = slot->apply_pid;
		copy->received_lsn = slot->received_lsn;
		copy->applied_lsn = slot->applied_lsn;
		copy->flushed_lsn = slot->flushed_lsn;
		copy->remote_end_lsn = slot->remote_end_lsn;
		copy->remote_commit_time = slot->remote_commit_time;
		memcpy(copy->error, slot->error, sizeof(copy->error));
		copy->error_at = slot->error_at;
		copy->error_count = slot->error_count;
		copy->next_retry = slot->next_retry;
		SpinLockRelease(&slot->mutex);
		copy->inserts = pg_atomic_read_u64(&slot->inserts);
		copy->updates = pg_atomic_read_u64(&slot->updates);
		copy->deletes = pg_atomic_read_u64(&slot->deletes);
		copy->truncates = pg_atomic_read_u64(&slot->truncates);
		copy->update_missing = pg_atomic_read_u64(&slot->update_missing);
		copy->delete_missing = pg_atomic_read_u64(&slot->delete_missing);
		copy->transactions = pg_atomic_read_u64(&slot->transactions);
	}
	LWLockRelease(tandem_subscriptions->lock);
}

/* One row, filled column by column. */
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
	row->values[row->n] = isnull ? (Datum) 0 : value;
	row->nulls[row->n++] = isnull;
}

static void
add_text(Row *row, const char *text)
{
	bool		empty = text == NULL || text[0] == '\0';

	add(row, empty ? (Datum) 0 : CStringGetTextDatum(text), empty);
}

static void
add_name(Row *row, const char *name)
{
	add(row, name ? DirectFunctionCall1(namein, CStringGetDatum(name)) : (Datum) 0, name == NULL);
}

static void
add_lsn(Row *row, XLogRecPtr lsn)
{
	add(row, LSNGetDatum(lsn), XLogRecPtrIsInvalid(lsn));
}

static void
add_time(Row *row, TimestampTz time)
{
	add(row, TimestampTzGetDatum(time), time == 0);
}

/* How far the applied changes are behind the publisher, as far as known here. */
static void
add_lag(Row *row, const SlotCopy *slot)
{
	bool		known = !XLogRecPtrIsInvalid(slot->remote_end_lsn) &&
		!XLogRecPtrIsInvalid(slot->applied_lsn);
	bool		behind = known && slot->applied_lsn < slot->remote_end_lsn;
	Interval   *lag = palloc0(sizeof(Interval));

	if (behind && slot->remote_commit_time != 0)
		lag->time = Max(GetCurrentTimestamp() - slot->remote_commit_time, 0);
	add(row, Int64GetDatum(behind ? slot->remote_end_lsn - slot->applied_lsn : 0), !known);
	add(row, IntervalPGetDatum(lag), !known || (behind && slot->remote_commit_time == 0));
}

/* State and reason. */
static void
add_state(Row *row, const char *misfit, const SlotCopy *slot)
{
	const char *reason = NULL;

	if (misfit)
	{
		add_text(row, "not adopted");
		add_text(row, misfit);
		return;
	}
	if (!slot->found)
	{
		add_text(row, tandem_subscription_state_name(TANDEM_SUBSCRIPTION_STOPPED));
		if (RecoveryInProgress())
			reason = "this server is a standby";
		else if (tandem_subscriptions->launcher_pid == 0)
			reason = "the worker \"tandem subscriptions\" does not run; the server log says why";
		add_text(row, reason);
		return;
	}
	add_text(row, tandem_subscription_state_name(slot->state));
	add_text(row, slot->reason);
}

Datum
tandem_subscriptions_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	tandem_require_subscriptions();
	InitMaterializedSRF(fcinfo, 0);

	rel = table_open(SubscriptionRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		char	   *text = tandem_label_read(form->oid);
		const char *misfit;
		TandemLabel label;
		SlotCopy	slot;
		Row			row = {.n = 0};

		if (text == NULL)
			continue;
		misfit = tandem_label_parse(text, &label) ?
			tandem_label_misfit(&label, form->oid, NameStr(form->subname)) :
			"its label was written by another version of pg_tandem";
		copy_slot(form->oid, &slot);
		if (misfit)
			memset(&slot, 0, sizeof(slot));

		add_name(&row, NameStr(form->subname));
		add(&row, ObjectIdGetDatum(form->oid), false);
		add_name(&row, GetUserNameFromId(form->subowner, true));
		add(&row, BoolGetDatum(misfit == NULL && label.options.enabled), false);
		add_state(&row, misfit, &slot);
		add(&row, Int32GetDatum((int32) slot.apply_pid), slot.apply_pid == 0);
		add_lsn(&row, slot.received_lsn);
		add_lsn(&row, slot.applied_lsn);
		add_lsn(&row, slot.flushed_lsn);
		add_lag(&row, &slot);
		add(&row, Int64GetDatum(slot.inserts), !slot.found);
		add(&row, Int64GetDatum(slot.updates), !slot.found);
		add(&row, Int64GetDatum(slot.deletes), !slot.found);
		add(&row, Int64GetDatum(slot.truncates), !slot.found);
		add(&row, Int64GetDatum(slot.transactions), !slot.found);
		add_text(&row, slot.error);
		add_time(&row, slot.error_at);
		add(&row, Int32GetDatum(slot.error_count), !slot.found);
		add_time(&row, slot.state == TANDEM_SUBSCRIPTION_RETRYING ? slot.next_retry : 0);
		add_name(&row, get_database_name(form->subdbid));
		add_text(&row, misfit ? psprintf("To adopt it, use SELECT tandem.adopt(%s); to remove the label, SELECT tandem.release(%s).",
										 quote_literal_cstr(NameStr(form->subname)),
										 quote_literal_cstr(NameStr(form->subname))) : NULL);
		add(&row, Int32GetDatum(label.options.workers), misfit != NULL);
		add(&row, Int64GetDatum(slot.update_missing), !slot.found);
		add(&row, Int64GetDatum(slot.delete_missing), !slot.found);
		Assert(row.n == COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
