/*-------------------------------------------------------------------------
 *
 * status.c
 *	  What failover slots look like from SQL: views and requests.
 *
 * The worker publishes the outcome of each cycle in shared memory; everything
 * here reads it under the lock, or asks the worker for a cycle and waits.
 *
 * src/slots/status.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/version.h"
#include "slots/gate.h"
#include "slots/slots.h"

PG_FUNCTION_INFO_V1(tandem_slots_status);
PG_FUNCTION_INFO_V1(tandem_sync_slots);
PG_FUNCTION_INFO_V1(tandem_failover_ready);
PG_FUNCTION_INFO_V1(tandem_sync_status);

#define SLOTS_COLS 13
#define STATUS_COLS 22
#define MIN_ENTRIES 256			/* entries of slots that have no place here */

TandemSlotsShared *tandem_slots_shared = NULL;

static const char *const state_names[] = {
	[TANDEM_READY] = "ready",
	[TANDEM_PENDING] = "pending",
	[TANDEM_INVALID] = "invalid",
	[TANDEM_FOREIGN] = "foreign",
	[TANDEM_NATIVE] = "native",
};

/* ---- shared memory --------------------------------------------------------- */

/* How many slots the views can show. */
static int
max_entries(void)
{
	return Max(2 * max_replication_slots, MIN_ENTRIES);
}

static Size
slots_shmem_size(void)
{
	return add_size(offsetof(TandemSlotsShared, entries),
					mul_size(max_entries(), sizeof(TandemSlotEntry)));
}

void
tandem_slots_shmem_request(void)
{
	RequestAddinShmemSpace(slots_shmem_size());
	RequestAddinShmemSpace(tandem_hold_shmem_size());
	RequestNamedLWLockTranche("pg_tandem_slots", 1);
}

void
tandem_slots_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	tandem_slots_shared = ShmemInitStruct("pg_tandem slots",
										  slots_shmem_size(), &found);
	if (!found)
	{
		memset(tandem_slots_shared, 0, slots_shmem_size());
		tandem_slots_shared->lock = &(GetNamedLWLockTranche("pg_tandem_slots"))->lock;
		tandem_slots_shared->max_entries = max_entries();
		ConditionVariableInit(&tandem_slots_shared->cv);
	}
	tandem_hold_shmem_startup();
	LWLockRelease(AddinShmemInitLock);
}

/* Raises an error unless the library was preloaded. */
void
tandem_require_shmem(void)
{
	if (tandem_slots_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem must be loaded via shared_preload_libraries"),
				 errhint("Add pg_tandem to shared_preload_libraries and restart the server.")));
}

/* ---- view tandem.slots --------------------------------------------------------- */

static void
put_entry(ReturnSetInfo *rsinfo, const TandemSlotEntry *entry)
{
	Datum		values[SLOTS_COLS];
	bool		nulls[SLOTS_COLS];
	int			i = 0;

	memset(nulls, 0, sizeof(nulls));
#define PUT_TEXT(text) \
	do \
	{ \
		if ((text)[0]) \
			values[i] = CStringGetTextDatum(text); \
		else \
			nulls[i] = true; \
		i++; \
	} while (0)
#define PUT_LSN(lsn) \
	do \
	{ \
		values[i] = LSNGetDatum(lsn); \
		nulls[i++] = XLogRecPtrIsInvalid(lsn); \
	} while (0)
#define PUT_XID(xid) \
	do \
	{ \
		values[i] = TransactionIdGetDatum(xid); \
		nulls[i++] = !TransactionIdIsValid(xid); \
	} while (0)

	values[i++] = NameGetDatum(&entry->name);
	values[i] = NameGetDatum(&entry->database);
	nulls[i++] = NameStr(entry->database)[0] == '\0';
	values[i++] = NameGetDatum(&entry->plugin);
	PUT_TEXT(state_names[entry->state]);
	PUT_TEXT(entry->reason);
	PUT_TEXT(entry->hint);
	PUT_LSN(entry->restart_lsn);
	PUT_LSN(entry->confirmed_lsn);
	PUT_XID(entry->catalog_xmin);
	PUT_LSN(entry->primary_restart_lsn);
	PUT_LSN(entry->primary_confirmed_lsn);
	PUT_XID(entry->primary_catalog_xmin);
	values[i] = TimestampTzGetDatum(entry->last_sync);
	nulls[i++] = entry->last_sync == 0;
	Assert(i == SLOTS_COLS);
#undef PUT_TEXT
#undef PUT_LSN
#undef PUT_XID
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Copies what the worker has published; palloc'd. */
static TandemSlotEntry *
copy_entries(int *count)
{
	TandemSlotEntry *entries;

	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	*count = Min(tandem_slots_shared->nentries, tandem_slots_shared->max_entries);
	entries = palloc((*count + 1) * sizeof(TandemSlotEntry));
	memcpy(entries, tandem_slots_shared->entries, *count * sizeof(TandemSlotEntry));
	LWLockRelease(tandem_slots_shared->lock);
	return entries;
}

/*
 * The failover slots of a primary: "ready" means offered to standbys with
 * nothing held up here.
 */
static void
put_primary_slots(ReturnSetInfo *rsinfo)
{
	TandemSlotEntry *entries = palloc0((max_replication_slots + 1) * sizeof(TandemSlotEntry));
	Oid		   *databases = palloc((max_replication_slots + 1) * sizeof(Oid));
	const char *blocked_reason = NULL;
	const char *blocked_hint = NULL;
	bool		blocked = tandem_gate_blocked(&blocked_reason, &blocked_hint);
	int			n = 0;
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *s = &ReplicationSlotCtl->replication_slots[i];
		ReplicationSlotPersistentData data;
		TandemSlotEntry *entry = &entries[n];

		if (!s->in_use || !SlotIsLogical(s))
			continue;
		SpinLockAcquire(&s->mutex);
		data = s->data;
		entry->catalog_xmin = s->effective_catalog_xmin;
		SpinLockRelease(&s->mutex);
		if (data.persistency == RS_TEMPORARY ||
			!tandem_failover_slot_matches(NameStr(data.name)))
			continue;

		entry->name = data.name;
		entry->plugin = data.plugin;
		entry->restart_lsn = data.restart_lsn;
		entry->confirmed_lsn = data.confirmed_flush;
		entry->primary_restart_lsn = data.restart_lsn;
		entry->primary_confirmed_lsn = data.confirmed_flush;
		entry->primary_catalog_xmin = entry->catalog_xmin;
		entry->state = TANDEM_READY;
		if (TANDEM_SLOT_INVALIDATED(&data))
		{
			entry->state = TANDEM_INVALID;
			strlcpy(entry->reason, "it needed more WAL than max_slot_wal_keep_size allows",
					TANDEM_TEXT_LEN);
			strlcpy(entry->hint, "Its consumer has lost changes; recreate slot and subscription, and raise max_slot_wal_keep_size.",
					TANDEM_TEXT_LEN);
		}
		else if (data.persistency != RS_PERSISTENT ||
				 XLogRecPtrIsInvalid(data.confirmed_flush))
		{
			entry->state = TANDEM_PENDING;
			strlcpy(entry->reason, "it is still being created", TANDEM_TEXT_LEN);
			strlcpy(entry->hint, "Creation waits for transactions that were running when it began.",
					TANDEM_TEXT_LEN);
		}
		else if (blocked)
		{
			entry->state = TANDEM_PENDING;
			strlcpy(entry->reason, blocked_reason, TANDEM_TEXT_LEN);
			strlcpy(entry->hint, blocked_hint, TANDEM_TEXT_LEN);
		}
		databases[n++] = data.database;
	}
	LWLockRelease(ReplicationSlotControlLock);

	for (i = 0; i < n; i++)
	{
		char	   *database = get_database_name(databases[i]);

		if (database)
			namestrcpy(&entries[i].database, database);
		put_entry(rsinfo, &entries[i]);
	}
}

static void
put_slots(ReturnSetInfo *rsinfo)
{
	TandemSlotEntry *entries;
	int			n;
	int			i;

	if (!RecoveryInProgress())
	{
		put_primary_slots(rsinfo);
		return;
	}
	entries = copy_entries(&n);
	for (i = 0; i < n; i++)
		put_entry(rsinfo, &entries[i]);
}

Datum
tandem_slots_status(PG_FUNCTION_ARGS)
{
	tandem_require_shmem();
	tandem_check_sql_version();
	InitMaterializedSRF(fcinfo, 0);
	put_slots((ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* ---- tandem.sync_slots() ------------------------------------------------------------ */

static void
require_worker(void)
{
	pid_t		pid;
	char		error[TANDEM_TEXT_LEN];

	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	pid = tandem_slots_shared->worker_pid;
	strlcpy(error, tandem_slots_shared->error, sizeof(error));
	LWLockRelease(tandem_slots_shared->lock);
	if (pid == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the tandem worker is not running"),
				 errhint("The server's log says why; it is started again every few seconds. It needs the database that tandem.database names and a free place among max_worker_processes.")));
}

/*
 * Asks the worker of this standby for a cycle, or to forget all its slots,
 * that begins after this call, and waits for its end.
 */
void
tandem_request_cycle(bool forget)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	uint64		ticket;

	require_worker();

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	ticket = ++shared->requested;
	if (forget)
		shared->forget_ticket = ticket;
	if (shared->worker_latch)
		SetLatch(shared->worker_latch);
	LWLockRelease(shared->lock);

	ConditionVariablePrepareToSleep(&shared->cv);
	for (;;)
	{
		bool		served;

		LWLockAcquire(shared->lock, LW_SHARED);
		served = shared->served >= ticket;
		LWLockRelease(shared->lock);
		if (served)
			break;
		require_worker();
		(void) ConditionVariableTimedSleep(&shared->cv, 1000, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/*
 * SQL function tandem.sync_slots(): one cycle now, then the view's rows.
 */
Datum
tandem_sync_slots(PG_FUNCTION_ARGS)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	uint64		failed_before;
	bool		failed;
	char		error[TANDEM_TEXT_LEN];
	char		hint[TANDEM_TEXT_LEN];

	tandem_require_shmem();
	tandem_check_sql_version();
	if (!RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("failover slots can be synchronized only on a standby"),
				 errhint("Call tandem.sync_slots() on the standby that is to be promoted.")));

	LWLockAcquire(shared->lock, LW_SHARED);
	failed_before = shared->failed_cycles;
	LWLockRelease(shared->lock);
	tandem_request_cycle(false);

	LWLockAcquire(shared->lock, LW_SHARED);
	failed = shared->failed_cycles != failed_before && shared->error[0] != '\0';
	strlcpy(error, shared->error, sizeof(error));
	strlcpy(hint, shared->hint, sizeof(hint));
	LWLockRelease(shared->lock);
	if (failed)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("slot synchronization failed: %s", error),
				 hint[0] ? errhint("%s", hint) : 0));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	put_slots((ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* ---- tandem.failover_ready() ----------------------------------------------------------- */

/* "3 s", "5 min", "2 h", "4 d": an age as people say it; palloc'd. */
static char *
age_text(TimestampTz since)
{
	int64		s = (GetCurrentTimestamp() - since) / USECS_PER_SEC;

	if (s < 120)
		return psprintf("%d s", (int) Max(s, 0));
	if (s < 7200)
		return psprintf("%d min", (int) (s / 60));
	if (s < 172800)
		return psprintf("%d h", (int) (s / 3600));
	return psprintf("%d d", (int) (s / 86400));
}

/* "all 3 failover slots are"; palloc'd */
static char *
slots_text(int n)
{
	return n == 1 ? pstrdup("the only failover slot is") :
					psprintf("all %d failover slots are", n);
}

/*
 * SQL function tandem.failover_ready(): what an orchestrator asks before it
 * promotes.  True if every failover slot that the primary had at the last
 * contact is proven here and as far as its consumer was.
 */
Datum
tandem_failover_ready(PG_FUNCTION_ARGS)
{
	TupleDesc	tupdesc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	TandemSlotEntry *entries;
	TandemSlotEntry *worst = NULL;
	int			n;
	int			total;
	int			not_ready = 0;
	int			unproven_at_start;
	TimestampTz last_success;
	char		error[TANDEM_TEXT_LEN];
	char	   *reason = NULL;
	const char *hint = NULL;
	bool		ready = false;
	int			i;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tandem_require_shmem();
	tandem_check_sql_version();

	entries = copy_entries(&n);
	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	total = tandem_slots_shared->nentries;
	last_success = tandem_slots_shared->last_success;
	unproven_at_start = tandem_slots_shared->unproven_at_start;
	strlcpy(error, tandem_slots_shared->error, sizeof(error));
	LWLockRelease(tandem_slots_shared->lock);

	for (i = 0; i < n; i++)
	{
		if (entries[i].state != TANDEM_READY && entries[i].state != TANDEM_NATIVE)
		{
			if (worst == NULL)
				worst = &entries[i];
			not_ready++;
		}
	}

	if (!RecoveryInProgress())
	{
		reason = "this server is a primary";
		hint = "Ask the standby that is to be promoted.";
	}
	else if (worst != NULL)
	{
		reason = psprintf("%d of %d failover slots %s not ready; \"%s\": %s",
						  not_ready, total, not_ready == 1 ? "is" : "are",
						  NameStr(worst->name), worst->reason);
		hint = worst->hint;
	}
	else if (total > n)
	{
		reason = psprintf("%d failover slots have no place in this standby's memory",
						  total - n);
		hint = "Raise max_replication_slots on this standby to at least the number of failover slots and restart it.";
	}
	else if (last_success == 0 && unproven_at_start > 0)
	{
		reason = psprintf("%d failover slots of the primary were not ready at the last contact, before this server's start",
						  unproven_at_start);
		hint = error[0] ? error : "Wait for the first contact with the primary.";
	}
	else if (last_success == 0 && n == 0)
	{
		reason = "this standby has not been in contact with its primary since its start, and it has no failover slots from before";
		hint = error[0] ? error : "Wait for the first contact with the primary.";
	}
	else if (last_success == 0)
	{
		ready = true;
		reason = psprintf("%s ready; this server has had no contact with the primary since its start",
						  slots_text(n));
	}
	else
	{
		ready = true;
		reason = n == 0 ?
			psprintf("the primary has no failover slots; last contact %s ago",
					 age_text(last_success)) :
			psprintf("%s ready; last contact with the primary %s ago",
					 slots_text(n), age_text(last_success));
	}

	values[0] = BoolGetDatum(ready);
	values[1] = CStringGetTextDatum(reason);
	if (hint)
		values[2] = CStringGetTextDatum(hint);
	else
		nulls[2] = true;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

/* ---- view tandem.sync_status --------------------------------------------------------------- */

Datum
tandem_sync_status(PG_FUNCTION_ARGS)
{
	TupleDesc	tupdesc;
	Datum		values[STATUS_COLS];
	bool		nulls[STATUS_COLS];
	TandemSlotsShared *copy;
	bool		standby = RecoveryInProgress();
	NameData	hold;
	int			i = 0;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	tandem_require_shmem();
	tandem_check_sql_version();

	copy = palloc(offsetof(TandemSlotsShared, entries));
	LWLockAcquire(tandem_slots_shared->lock, LW_SHARED);
	memcpy(copy, tandem_slots_shared, offsetof(TandemSlotsShared, entries));
	LWLockRelease(tandem_slots_shared->lock);

	memset(nulls, 0, sizeof(nulls));
	memset(&hold, 0, sizeof(hold));
	if (standby && PrimarySlotName && PrimarySlotName[0])
	{
		namestrcpy(&copy->primary_slot_name, PrimarySlotName);
		if (strlen(PrimarySlotName) + strlen(TANDEM_HOLD_PREFIX) < NAMEDATALEN)
			tandem_hold_name(PrimarySlotName, &hold);
	}
	else
		NameStr(copy->primary_slot_name)[0] = '\0';

	values[i++] = CStringGetTextDatum(standby ? "standby" : "primary");
	values[i] = Int32GetDatum(copy->worker_pid);
	nulls[i++] = copy->worker_pid == 0;
	values[i] = NameGetDatum(&copy->primary_slot_name);
	nulls[i++] = NameStr(copy->primary_slot_name)[0] == '\0';
	values[i] = NameGetDatum(&hold);
	nulls[i++] = NameStr(hold)[0] == '\0';
	values[i] = TransactionIdGetDatum(copy->hold_xmin);
	nulls[i++] = !standby || !TransactionIdIsValid(copy->hold_xmin);
	values[i++] = Int64GetDatum(copy->cycles);
	values[i++] = Int64GetDatum(copy->failed_cycles);
	values[i] = TimestampTzGetDatum(copy->last_cycle);
	nulls[i++] = copy->last_cycle == 0;
	values[i] = TimestampTzGetDatum(copy->last_success);
	nulls[i++] = copy->last_success == 0;
	values[i++] = Float8GetDatum(copy->cycle_ms);
	values[i++] = Float8GetDatum(copy->cycle_cpu_ms);
	values[i++] = Int64GetDatum(copy->bytes_sent);
	values[i++] = Int64GetDatum(copy->bytes_received);
	values[i++] = Int32GetDatum(copy->slots_created);
	values[i++] = Int32GetDatum(copy->slots_moved);
	values[i++] = Int32GetDatum(copy->slots_saved);
	values[i++] = Int64GetDatum(copy->slots_dropped);
	values[i++] = Int64GetDatum(copy->files_installed);
	values[i++] = Int64GetDatum(copy->wal_fetched);
	values[i++] = Int64GetDatum(copy->restart_lag);
	if (copy->error[0])
		values[i] = CStringGetTextDatum(copy->error);
	else
		nulls[i] = true;
	i++;
	if (copy->hint[0])
		values[i] = CStringGetTextDatum(copy->hint);
	else
		nulls[i] = true;
	i++;
	Assert(i == STATUS_COLS);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}
