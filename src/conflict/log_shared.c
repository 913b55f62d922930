/*-------------------------------------------------------------------------
 *
 * log_shared.c
 *	  What the conflict log could not store, in shared memory.
 *
 * One entry a subscription that has had trouble, or a transaction that failed,
 * since the server started.  If there are more than ENTRIES of them, the one
 * that was used longest ago goes.
 *
 * Called by log.c and log_view.c.
 *
 * src/conflict/log_shared.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "common/version.h"
#include "conflict/log.h"

#define ENTRIES 256

/* All fields are protected by the lock. */
typedef struct SharedEntry
{
	Oid			dbid;			/* Invalid = free */
	Oid			subid;
	TimestampTz used;
	TandemLogTrouble trouble;

	/* the conflict in the log that ended its transaction the last time */
	int64		failed_id;		/* 0 = none */
	Oid			failed_relid;
	TandemConflictType failed_type;
	TransactionId failed_xid;
	XLogRecPtr	failed_lsn;
} SharedEntry;

typedef struct SharedLog
{
	LWLock	   *lock;
	SharedEntry entries[ENTRIES];
} SharedLog;

static SharedLog *shared = NULL;

void
tandem_conflict_shmem_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(SharedLog)));
	RequestNamedLWLockTranche("tandem conflict log", 1);
}

void
tandem_conflict_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("tandem conflict log", sizeof(SharedLog), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(SharedLog));
		shared->lock = &GetNamedLWLockTranche("tandem conflict log")[0].lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

void
tandem_require_conflicts(void)
{
	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem must be loaded via shared_preload_libraries"),
				 errhint("Add pg_tandem to shared_preload_libraries and restart the server.")));
	tandem_check_sql_version();
}

/* The entry of a subscription of this database; lock held exclusively. */
static SharedEntry *
find_entry(Oid subid)
{
	SharedEntry *oldest = &shared->entries[0];

	for (int i = 0; i < ENTRIES; i++)
	{
		SharedEntry *entry = &shared->entries[i];

		if (entry->dbid == MyDatabaseId && entry->subid == subid)
		{
			entry->used = GetCurrentTimestamp();
			return entry;
		}
		if (entry->used < oldest->used)
			oldest = entry;
	}
	memset(oldest, 0, sizeof(*oldest));
	oldest->dbid = MyDatabaseId;
	oldest->subid = subid;
	oldest->used = GetCurrentTimestamp();
	return oldest;
}

void
tandem_log_not_stored(Oid subid, int64 conflicts, const char *error)
{
	SharedEntry *entry;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	entry = find_entry(subid);
	entry->trouble.not_stored += conflicts;
	entry->trouble.at = GetCurrentTimestamp();
	strlcpy(entry->trouble.error, error,
			1 + pg_mbcliplen(error, strlen(error), sizeof(entry->trouble.error) - 1));
	LWLockRelease(shared->lock);
}

void
tandem_log_trouble(TandemLogTrouble *trouble)
{
	memset(trouble, 0, sizeof(*trouble));
	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < ENTRIES; i++)
	{
		const TandemLogTrouble *one = &shared->entries[i].trouble;

		if (shared->entries[i].dbid != MyDatabaseId || one->not_stored == 0)
			continue;
		trouble->not_stored += one->not_stored;
		if (one->at > trouble->at)
		{
			trouble->at = one->at;
			strlcpy(trouble->error, one->error, sizeof(trouble->error));
		}
	}
	LWLockRelease(shared->lock);
}

int64
tandem_log_failed_id(const TandemLogEntry *entry)
{
	int64		id = 0;

	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < ENTRIES; i++)
	{
		const SharedEntry *one = &shared->entries[i];

		if (one->dbid == MyDatabaseId && one->subid == entry->subid &&
			one->failed_relid == entry->table->relid && one->failed_type == entry->type &&
			one->failed_xid == entry->xid && one->failed_lsn == entry->lsn)
			id = one->failed_id;
	}
	LWLockRelease(shared->lock);
	return id;
}

void
tandem_log_set_failed_id(const TandemLogEntry *entry, int64 id)
{
	SharedEntry *one;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	one = find_entry(entry->subid);
	one->failed_id = id;
	one->failed_relid = entry->table->relid;
	one->failed_type = entry->type;
	one->failed_xid = entry->xid;
	one->failed_lsn = entry->lsn;
	LWLockRelease(shared->lock);
}
