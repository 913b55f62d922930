/*-------------------------------------------------------------------------
 *
 * collector_shared.c
 *	  Shared memory of the collectors of tombstones: one element a database.
 *
 * An element is made when a collector is first wanted in a database, and stays.
 * The collector publishes in it how far the store is; those who look into the
 * store wait for that, and tell the collector what they wait for.
 *
 * Called by collector.c, probe.c, tombstone.c and the views.
 *
 * src/conflict/collector_shared.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "conflict/collector.h"

#define TRANCHE "pg_tandem collectors"

TandemCollectors *tandem_collectors = NULL;

static TandemCollector *attached = NULL;

void
tandem_tombstones_shmem_request(void)
{
	RequestAddinShmemSpace(sizeof(TandemCollectors));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

void
tandem_tombstones_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	tandem_collectors = ShmemInitStruct("pg_tandem collectors", sizeof(TandemCollectors), &found);
	if (!found)
	{
		memset(tandem_collectors, 0, sizeof(TandemCollectors));
		tandem_collectors->lock = &GetNamedLWLockTranche(TRANCHE)->lock;
		for (int i = 0; i < TANDEM_COLLECTORS; i++)
		{
			TandemCollector *collector = &tandem_collectors->collectors[i];

			SpinLockInit(&collector->mutex);
			ConditionVariableInit(&collector->cv);
			pg_atomic_init_u64(&collector->collected_lsn, 0);
			pg_atomic_init_u64(&collector->wanted_lsn, 0);
			pg_atomic_init_u32(&collector->expired_in_row, 0);
			pg_atomic_init_u64(&collector->transactions, 0);
			pg_atomic_init_u64(&collector->tombstones, 0);
			pg_atomic_init_u64(&collector->batches, 0);
			pg_atomic_init_u64(&collector->cpu_us, 0);
			pg_atomic_init_u64(&collector->probes, 0);
			pg_atomic_init_u64(&collector->expired, 0);
			pg_atomic_init_u64(&collector->probe_us, 0);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

TandemCollector *
tandem_collector_find(Oid dbid, bool add)
{
	TandemCollector *found = NULL;

	if (tandem_collectors == NULL)
		return NULL;
	LWLockAcquire(tandem_collectors->lock, add ? LW_EXCLUSIVE : LW_SHARED);
	for (int i = 0; found == NULL && i < TANDEM_COLLECTORS; i++)
	{
		if (tandem_collectors->collectors[i].dbid == dbid)
			found = &tandem_collectors->collectors[i];
	}
	for (int i = 0; add && found == NULL && i < TANDEM_COLLECTORS; i++)
	{
		TandemCollector *collector = &tandem_collectors->collectors[i];

		/* one that says nothing any more may go */
		if (!OidIsValid(collector->dbid) ||
			(collector->pid == 0 && collector->state == TANDEM_COLLECTOR_OFF))
		{
			collector->dbid = dbid;
			found = collector;
		}
	}
	LWLockRelease(tandem_collectors->lock);
	return found;
}

void
tandem_collector_set_state(TandemCollector *collector, TandemCollectorState state,
						   const char *reason, const char *hint)
{
	SpinLockAcquire(&collector->mutex);
	collector->state = state;
	strlcpy(collector->reason, reason ? reason : "", sizeof(collector->reason));
	strlcpy(collector->hint, hint ? hint : "", sizeof(collector->hint));
	SpinLockRelease(&collector->mutex);
}

static void
detach(int code, Datum arg)
{
	LWLockAcquire(tandem_collectors->lock, LW_EXCLUSIVE);
	SpinLockAcquire(&attached->mutex);
	attached->pid = 0;
	attached->latch = NULL;
	if (attached->state == TANDEM_COLLECTOR_STARTING || attached->state == TANDEM_COLLECTOR_COLLECTING)
	{
		attached->state = TANDEM_COLLECTOR_FAILED;
		strlcpy(attached->reason, "the collector has ended and is started again", sizeof(attached->reason));
	}
	SpinLockRelease(&attached->mutex);
	LWLockRelease(tandem_collectors->lock);
	ConditionVariableBroadcast(&attached->cv);
}

TandemCollector *
tandem_collector_attach(Oid dbid)
{
	TandemCollector *collector = tandem_collector_find(dbid, true);
	bool		mine = false;

	if (collector == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("tombstones are collected in too many databases"),
				 errdetail("There can be %d.", TANDEM_COLLECTORS)));
	LWLockAcquire(tandem_collectors->lock, LW_EXCLUSIVE);
	if (collector->pid == 0)
	{
		mine = true;
		collector->pid = MyProcPid;
		collector->latch = MyLatch;
		collector->reload = true;
		collector->any_known = false;
	}
	LWLockRelease(tandem_collectors->lock);
	if (!mine)
		proc_exit(0);
	attached = collector;
	on_shmem_exit(detach, 0);
	return collector;
}

/* Sets a flag of a collector and wakes it. */
static void
request(Oid dbid, size_t flag)
{
	TandemCollector *collector = tandem_collector_find(dbid, false);

	if (collector == NULL)
		return;
	LWLockAcquire(tandem_collectors->lock, LW_SHARED);
	*(volatile bool *) ((char *) collector + flag) = true;
	if (collector->latch)
		SetLatch(collector->latch);
	LWLockRelease(tandem_collectors->lock);
}

void
tandem_collector_reload(Oid dbid)
{
	request(dbid, offsetof(TandemCollector, reload));
}

void
tandem_epoch_request_close(Oid dbid)
{
	request(dbid, offsetof(TandemCollector, close_epoch));
}

bool
tandem_collector_info(Oid dbid, TandemCollectorInfo *info)
{
	TandemCollector *collector = tandem_collector_find(dbid, false);

	memset(info, 0, sizeof(*info));
	if (collector == NULL)
		return false;
	SpinLockAcquire(&collector->mutex);
	info->state = collector->state;
	info->pid = collector->pid;
	strlcpy(info->reason, collector->reason, sizeof(info->reason));
	strlcpy(info->hint, collector->hint, sizeof(info->hint));
	strlcpy(info->error, collector->error, sizeof(info->error));
	info->collected_at = collector->collected_at;
	SpinLockRelease(&collector->mutex);
	info->collected_lsn = pg_atomic_read_u64(&collector->collected_lsn);
	info->transactions = pg_atomic_read_u64(&collector->transactions);
	info->tombstones = pg_atomic_read_u64(&collector->tombstones);
	info->batches = pg_atomic_read_u64(&collector->batches);
	info->cpu_us = pg_atomic_read_u64(&collector->cpu_us);
	info->probes = pg_atomic_read_u64(&collector->probes);
	info->expired = pg_atomic_read_u64(&collector->expired);
	info->probe_us = pg_atomic_read_u64(&collector->probe_us);
	return true;
}

/* ---- Tables with tombstones ------------------------------------------------------- */

void
tandem_any_begin(TandemCollector *collector)
{
	SpinLockAcquire(&collector->mutex);
	collector->nany = 0;
	collector->any_known = false;
	SpinLockRelease(&collector->mutex);
}

void
tandem_any_end(TandemCollector *collector)
{
	SpinLockAcquire(&collector->mutex);
	collector->any_known = true;
	SpinLockRelease(&collector->mutex);
}

void
tandem_any_add(TandemCollector *collector, Oid root)
{
	bool		known = false;

	SpinLockAcquire(&collector->mutex);
	for (int i = 0; !known && i < Min(collector->nany, TANDEM_ANY_ROOTS); i++)
		known = collector->any[i] == root;
	if (!known && collector->nany < TANDEM_ANY_ROOTS)
		collector->any[collector->nany] = root;
	if (!known && collector->nany <= TANDEM_ANY_ROOTS)
		collector->nany++;
	SpinLockRelease(&collector->mutex);
}

bool
tandem_tombstone_any(Oid root)
{
	static TandemCollector *collector = NULL;
	bool		any;

	if (collector == NULL || collector->dbid != MyDatabaseId)
		collector = tandem_collector_find(MyDatabaseId, false);
	if (collector == NULL)
		return false;
	SpinLockAcquire(&collector->mutex);
	any = !collector->any_known || collector->nany > TANDEM_ANY_ROOTS;
	for (int i = 0; !any && i < collector->nany; i++)
		any = collector->any[i] == root;
	SpinLockRelease(&collector->mutex);
	return any;
}
