/*-------------------------------------------------------------------------
 *
 * store.h
 *	  Tombstones: what collector, store, retention and view share.
 *
 * Processes
 *	 collector.c	one a database: decodes its WAL, writes the store
 *	 decode.c		what of WAL is looked at, and what becomes of it
 *	 collector_shared.c	shared memory of the collectors
 *	 tombstone.c	the look into the store, in apply workers and sessions
 *	 probe.c		waiting until the collector has passed
 *	 epoch.c		when an epoch may go
 * Storage
 *	 key.c			keys of rows: what is compared, hashed and stored
 *	 store.c		tandem.deleted_0 ... deleted_7, deletion_epochs, deletion_state,
 *					deletion_tables
 *	 windows.c		deletion_windows
 *
 * The ring.  Each of the relations deleted_N holds one epoch, or is empty.  One
 * epoch is open and takes entries; the others are closed.  deletion_epochs has a
 * row for each relation that isn't empty, and for the open one.
 *
 *			 collector, when asked				dropped whole
 *	 (empty) ----> open ----------> closed ----------------> (empty)
 *
 * All entries of one transaction are in one epoch.  The collector alone adds
 * entries, opens and closes, and writes deletion_state; it does so in one
 * transaction, so deletion_state's collected_lsn is exact: what committed before
 * it is in the store, what committed later isn't.
 *
 * Entries: hash 0 is about a whole table (key NULL):
 *	 't'	truncated: leaf is the table or the partition
 *	 'v'	there are keys of this version in this epoch
 *	 's'	collecting for this table began here, for the subscription in "leaf"
 * and the others are about a key:
 *	 'd'	deleted
 *	 'm'	moved: the row has another key now
 *	 'i'	not deleted: it has moved to another partition with the same key
 * The newest entry of a key, by (lsn, n), counts.
 *
 * src/conflict/store.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_STORE_H
#define TANDEM_STORE_H

#include "common/compat.h"
#include "conflict/conflict.h"
#include "nodes/pg_list.h"
#include "storage/latch.h"

#define TANDEM_RINGS 8
#define TANDEM_COLLECTOR_SLOT "tandem_tombstones_%u"	/* replication slot; the database's OID */

/* ---- collector.c: called by the launcher of src/subscription ------------------ */

/*
 * Starts, restarts and stops collectors so that one runs in each of these
 * databases (list of OIDs).  Called in each turn of the launcher, in its
 * process, outside of transactions.  Returns in how many ms it wants to be
 * called again at the latest, -1 = no matter.
 */
extern long tandem_collectors_supervise(List *databases);

/* Something about subscriptions or their tables in this database may have changed. */
extern void tandem_collector_reload(Oid dbid);

extern PGDLLEXPORT void tandem_collector_main(Datum dbid) pg_attribute_noreturn();

/* ---- collector_shared.c ------------------------------------------------------- */

extern void tandem_tombstones_shmem_request(void);
extern void tandem_tombstones_shmem_startup(void);

typedef enum TandemCollectorState
{
	TANDEM_COLLECTOR_OFF,		/* there is none */
	TANDEM_COLLECTOR_STARTING,	/* waits for a place in WAL where decoding can start */
	TANDEM_COLLECTOR_COLLECTING,
	TANDEM_COLLECTOR_FAILED,	/* is started again; see error */
	TANDEM_COLLECTOR_UNSUPPORTED	/* see reason */
} TandemCollectorState;

/* What is known of this database's collector; a copy. */
typedef struct TandemCollectorInfo
{
	TandemCollectorState state;
	pid_t		pid;			/* 0 = none runs */
	char		reason[256];	/* of the state; may be empty */
	char		hint[256];
	char		error[512];		/* the last one */
	XLogRecPtr	collected_lsn;	/* all that committed before this is in the store */
	TimestampTz collected_at;	/* when that was */
	uint64		transactions;	/* seen */
	uint64		tombstones;		/* written */
	uint64		batches;
	uint64		cpu_us;
	uint64		probes;			/* waits for it */
	uint64		expired;		/* those that took longer than tandem.detection_timeout */
	uint64		probe_us;		/* time of all of them */
} TandemCollectorInfo;

/* Fills *info; returns false, and state OFF, if nothing is known of it. */
extern bool tandem_collector_info(Oid dbid, TandemCollectorInfo *info);

/*
 * Asks the collector to close the open epoch, if it has entries, and to open the
 * next one, if a relation of the ring is empty.  Returns at once.
 */
extern void tandem_epoch_request_close(Oid dbid);

/* ---- store.c -------------------------------------------------------------------- */

typedef struct TandemEpoch
{
	int			ring;			/* 0 ... TANDEM_RINGS - 1: tandem.deleted_N */
	int64		epoch;			/* they are numbered from 1 */
	bool		open;
	TimestampTz opened;
	TimestampTz closed;			/* local clock; 0 = open */
	XLogRecPtr	first_lsn;		/* of its entries' commit records; 0 = none */
	XLogRecPtr	last_lsn;
	TimestampTz max_time;		/* greatest commit time stored; 0 = none */
	int64		entries;
	int64		bytes;			/* of the heap's entries, about */
} TandemEpoch;

typedef struct TandemDeletionState
{
	uint64		system;			/* system identifier of the cluster */
	uint32		timeline;
	TimestampTz started;		/* when collecting began, uninterrupted */
	XLogRecPtr	collected_lsn;
	TimestampTz collected_time;
	int			ring;			/* of the open epoch */
	int64		epoch;
} TandemDeletionState;

/* Epochs of this database, oldest first, by a fresh snapshot; palloc'd. */
extern List *tandem_epochs(void);

/* False: nothing has been collected yet. */
extern bool tandem_deletion_state(TandemDeletionState *state);

/*
 * Forgets a closed epoch: its relation gets new, empty files in the caller's
 * transaction, which holds AccessExclusiveLock on it until its end.  Tells the
 * collector at commit.
 */
extern void tandem_epoch_drop(const TandemEpoch *epoch);

/* Size on disk of the ring's relations and indexes, in bytes. */
extern int64 tandem_store_size(void);

/* ---- windows.c (helper epoch) -------------------------------------------------- */

/*
 * Deletes between these are not known to this subscription (InvalidOid: to any).
 * In the caller's transaction.  reason: static, one of "timeout", "stopped",
 * "failover", "slot lost", "restored".
 */
extern void tandem_window_record(Oid subid, const char *reason, XLogRecPtr from_lsn, XLogRecPtr to_lsn,
								 TimestampTz from_time, TimestampTz to_time);

/*
 * Why a missing row can't be proven not to have been deleted, for a remote
 * change that committed at "time" (0 = unknown): a reason, static or palloc'd,
 * or NULL if it can.
 */
extern const char *tandem_window_covers(Oid subid, TimestampTz time);

#endif							/* TANDEM_STORE_H */
