/*-------------------------------------------------------------------------
 *
 * collector.h
 *	  The collector of tombstones: what its files share.
 *
 * src/conflict/collector.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_COLLECTOR_H
#define TANDEM_COLLECTOR_H

#include "port/atomics.h"
#include "replication/logical.h"
#include "storage/buffile.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "conflict/store.h"

/* ---- collector_shared.c ------------------------------------------------------- */

#define TANDEM_COLLECTORS 64	/* databases with tombstones */
#define TANDEM_ANY_ROOTS 256	/* tables with tombstones that are told apart */

/*
 * One database's.  "lock" of TandemCollectors protects dbid, pid, latch and what
 * the launcher knows; the mutex the rest, but for the atomics.
 */
typedef struct TandemCollector
{
	slock_t		mutex;
	Oid			dbid;			/* Invalid = free */
	pid_t		pid;			/* 0 = none attached */
	Latch	   *latch;			/* of it */
	bool		reload;			/* read subscriptions and tables again */
	bool		close_epoch;
	bool		recount;		/* an epoch was dropped: count roots again */
	TandemCollectorState state;
	char		reason[256];
	char		hint[256];
	char		error[512];
	TimestampTz retry_at;		/* after an error */
	TimestampTz collected_at;
	ConditionVariable cv;		/* collected_lsn has moved, or the collector has ended */
	pg_atomic_uint64 collected_lsn;
	pg_atomic_uint64 wanted_lsn;	/* greatest that somebody waits for */
	pg_atomic_uint32 expired_in_row;	/* waits; beyond the limit nobody waits */
	pg_atomic_uint64 transactions;
	pg_atomic_uint64 tombstones;
	pg_atomic_uint64 batches;
	pg_atomic_uint64 cpu_us;
	pg_atomic_uint64 probes;
	pg_atomic_uint64 expired;
	pg_atomic_uint64 probe_us;
	int			nany;			/* > TANDEM_ANY_ROOTS: any table may have some */
	bool		any_known;		/* they have been counted */
	Oid			any[TANDEM_ANY_ROOTS];
} TandemCollector;

typedef struct TandemCollectors
{
	LWLock	   *lock;
	TandemCollector collectors[TANDEM_COLLECTORS];
} TandemCollectors;

extern TandemCollectors *tandem_collectors; /* NULL unless preloaded */

/* The collector of a database; with add one is made.  NULL: there is none, or no room. */
extern TandemCollector *tandem_collector_find(Oid dbid, bool add);

extern void tandem_collector_set_state(TandemCollector *collector, TandemCollectorState state,
									   const char *reason, const char *hint);

/* This process is the collector until it ends. */
extern TandemCollector *tandem_collector_attach(Oid dbid);

/* Roots with tombstones: counted anew between begin and end, until when any may have some. */
extern void tandem_any_begin(TandemCollector *collector);
extern void tandem_any_end(TandemCollector *collector);
extern void tandem_any_add(TandemCollector *collector, Oid root);

/* ---- probe.c -------------------------------------------------------------------- */

/*
 * Makes sure that all deletes committed before this call are in the store.
 * NULL, or why not (static).
 */
extern const char *tandem_probe(void);

/* ---- decode.c --------------------------------------------------------------------- */

/* Prefix of the message that stands for a delete that did nothing, and of probes. */
#define TANDEM_DELETED_PREFIX "tandem.deleted"
#define TANDEM_PROBE_PREFIX "tandem.probe"

/* One entry of the store, as it is buffered; the key follows. */
typedef struct TandemEntry
{
	Oid			root;
	Oid			leaf;
	int32		version;
	int64		hash;
	XLogRecPtr	lsn;
	int64		n;
	TransactionId xid;
	TimestampTz time;
	RepOriginId origin;
	char		kind;
	int			length;			/* of the key; -1 = NULL */
} TandemEntry;

/* Entries that have been decoded and not yet written. */
typedef struct TandemBatch
{
	MemoryContext context;		/* of all that follows */
	StringInfoData data;		/* those in memory: the last ones */
	BufFile    *file;			/* the ones before them, or NULL */
	int64		entries;
	int64		bytes;
	XLogRecPtr	first_lsn;
	XLogRecPtr	last_lsn;
	TimestampTz max_time;
} TandemBatch;

extern TandemBatch *tandem_batch_pending(void);
extern void tandem_batch_reset(void);

/* Reads the entries in order: NULL at the end.  The result is valid until the next call. */
extern void tandem_batch_rewind(void);
extern TandemEntry *tandem_batch_next(char **key);

/* Adds an entry about a whole table. */
extern void tandem_batch_mark(Oid root, Oid leaf, char kind, XLogRecPtr lsn, TimestampTz time);

/*
 * A context that decodes from start_lsn on, in "context"; the slot is acquired.
 * Needs a transaction.
 */
extern LogicalDecodingContext *tandem_decode_begin(XLogRecPtr start_lsn, MemoryContext context);

/*
 * Reads and decodes one record; false = there is no other one yet.  Sets
 * *foreign if it is anything but upkeep.
 */
extern bool tandem_decode_next(LogicalDecodingContext *ctx, bool *foreign);

/* Which tables are looked at: OIDs of roots. */
extern void tandem_decode_set_roots(List *roots, List *origins);

/* Number of commits seen. */
extern uint64 tandem_decode_transactions;

/* ---- store.c ---------------------------------------------------------------------- */

/*
 * Writes all pending entries and the state, in the caller's transaction; opens
 * the first epoch if there is none.
 */
extern void tandem_store_write(TandemCollector *collector, TandemDeletionState *state);
extern void tandem_store_close_epoch(TandemDeletionState *state);

/* Forgets everything; in the caller's transaction. */
extern void tandem_store_clear(void);

/* Counts tables with tombstones again. */
extern void tandem_store_count_roots(TandemCollector *collector);

/* Writes the first state. */
extern void tandem_store_init(TandemDeletionState *state);

/*
 * Tables of these subscriptions (lists of OIDs): adds a mark to the batch for
 * each that is new, forgets those that are gone.  Returns the roots.
 */
extern List *tandem_store_tables(List *subids, XLogRecPtr lsn);

/* Tombstones that could be this key's; see tombstone.c. */
typedef struct TandemFound
{
	bool		any;			/* newest is set */
	TandemEntry newest;
	bool		other_version;
	bool		began;			/* collecting for this subscription and table began in the store */
	TimestampTz began_at;
} TandemFound;

struct TandemKey;
struct TandemKeyValues;
extern void tandem_store_look(struct TandemKey *key, const struct TandemKeyValues *values, int64 hash,
							  Oid subid, TandemFound *found);

/* Is this table's deletes' collecting on record for the subscription (Invalid = any)? */
extern bool tandem_store_has_table(Oid subid, Oid root);

#endif							/* TANDEM_COLLECTOR_H */
