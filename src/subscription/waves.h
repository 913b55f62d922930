/*-------------------------------------------------------------------------
 *
 * waves.h
 *	  Initial copies in waves: what the files of the wave engine share.
 *
 *	 leader.c, wave.c, drain.c	the leader: one process while there are tables to copy (leader.h)
 *	 wave_snapshot.c	the publisher's snapshot, and the ids received before it
 *	 wave_tables.c		what the publisher knows of the tables
 *	 structure.c		what of that doesn't fit here (structure.h)
 *	 copy.c				the copy worker
 *	 copy_stream.c		its sessions on the publisher
 *	 load.c				how rows get into a table
 *	 copies.c			the state of each table, in tandem.copies
 *	 spool.c			changes kept while a table is copied, in tandem.spool
 *	 history.c			the publisher's timelines: what is still good after a failover
 *	 route.c			the gate in the apply worker
 *	 waves_shared.c		shared memory
 *	 tables_view.c		the view tandem.tables, tandem.resync()
 *
 * State of a table, in tandem.copies; pg_subscription_rel says 'i' to the
 * server until READY is written with 'r'.  One that is copied again is 'r' there
 * while it waits and gets its changes, and 'i' from the transaction that makes it
 * COPYING: from then on changes are in the spool only, or nowhere.
 *
 *	(no row) --> WAITING <---------------------+
 *				   | leader: a wave begins	   | error in copy or replay, spool
 *				   v						   | too large, leader gone
 *				COPYING ---------------------->+
 *				   | copy worker, in the	   |
 *				   | transaction of the rows   |
 *				   v						   |
 *				CATCHING_UP ------------------>+
 *				   | apply worker: spool empty, stream past the copy
 *				   v
 *				 READY --> WAITING (tandem.resync)
 *
 * Changes of a table that is COPYING or CATCHING_UP go to its spool.
 *
 * src/subscription/waves.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_WAVES_H
#define TANDEM_WAVES_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/relcache.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "subscription/subscription.h"

/* ---- waves_shared.c ------------------------------------------------------- */

/* What a copy worker is at; for the view. */
typedef struct TandemCopyProgress
{
	pid_t		pid;			/* 0 = free */
	Latch	   *latch;
	Oid			relid;			/* InvalidOid = between two tables */
	Oid			void_relid;		/* leader to worker: give this one up */
	TimestampTz started;
	int64		rows;
	int64		bytes;
} TandemCopyProgress;

/*
 * One a subscription, with the same number as its TandemSubscriptionSlot.
 * "next" is atomic, the mutex protects all else.
 */
typedef struct TandemWaveShared
{
	slock_t		mutex;
	Oid			subid;

	pid_t		leader_pid;		/* 0 = no leader */
	Latch	   *leader_latch;
	bool		leader_started; /* registered, not yet attached */
	TimestampTz leader_retry;	/* no new leader before this */
	int			leader_backoff; /* ms */
	char		error[512];		/* why the wave doesn't go on, or the last one or its leader failed */
	char		hint[256];		/* what mends that, or empty */

	/* leader to apply: spool the tables that tandem.copies has now */
	uint32		spool_request;
	uint32		spool_ack;
	/* leader to apply: are all ids received before visible in this wave? */
	uint32		verify_request;
	uint32		verify_ack;
	bool		verify_ok;
	/* leader and copy workers to apply: tables may be finished */
	uint32		finish_request;
	/* apply to leader: look for spools that were given up */
	uint32		given_up_request;

	int64		wave;
	XLogRecPtr	lsn;
	char		snapshot[64];	/* as exported; for the copy workers */
	bool		copying;		/* the wave's copy workers go on */
	pg_atomic_uint32 next;		/* next table of the wave to copy */
	TandemCopyProgress workers[TANDEM_MAX_SYNC_WORKERS];
} TandemWaveShared;

extern TandemWaveShared *tandem_waves;	/* an array */

/* that of this process's subscription */
extern TandemWaveShared *tandem_my_wave(void);

/* Copy workers that a wave of it may have. */
extern int	tandem_wave_workers(void);

extern void tandem_waves_shmem_request(void);
extern void tandem_waves_shmem_startup(void);
extern void tandem_wake_apply(void);	/* of this process's subscription */

/* ---- copies.c ------------------------------------------------------------- */

#define TANDEM_COPY_WAITING 'w'
#define TANDEM_COPY_COPYING 'c'
#define TANDEM_COPY_CATCHING_UP 'u'
#define TANDEM_COPY_READY 'r'

/* One row of tandem.copies.  Strings are palloc'd and may be NULL. */
typedef struct TandemCopy
{
	Oid			subid;
	Oid			relid;
	char		state;
	int64		wave;
	int32		ordinal;		/* place in the wave's queue */
	Oid			remote_relid;
	bool		resync;			/* copied again: its rows are to be replaced */
	bool		content;		/* has rows of a copy that didn't get READY */
	bool		stale;			/* has rows from before the resync, and core sees 'i' */
	int32		attempts;		/* failed ones */
	TimestampTz next_retry;		/* 0 = at once */
	TimestampTz started;
	TimestampTz finished;
	int64		rows_done;
	int64		rows_estimated;
	int64		bytes_done;
	int64		bytes_estimated;
	char	   *error;
	char	   *hint;			/* what mends the error, or what may become one */
	char	   *remark;			/* what may become an error; not stored */
	char	   *remote_name;	/* quoted, qualified */
	char	   *columns;		/* remote columns: a text[] as text */
	char	   *query;			/* COPY on the publisher; NULL = empty there */
	bool		binary;			/* the query's format */
} TandemCopy;

/*
 * Rows of a subscription, in the caller's memory context, seen with a fresh
 * snapshot.  wave: only those of this wave, 0 = all.
 */
extern List *tandem_copies_list(Oid subid, int64 wave);

/* One row, or NULL. */
extern TandemCopy *tandem_copies_get(Oid subid, Oid relid);

/*
 * Inserts or replaces rows.  A row that another transaction has changed
 * meanwhile raises an error.
 */
extern void tandem_copies_put(List *copies);
extern void tandem_copies_put_one(TandemCopy *copy);
extern void tandem_copies_delete(Oid subid, Oid relid);

/*
 * Does this table have rows while pg_subscription_rel says 'i'?  Core would copy
 * into them.
 */
extern bool tandem_copy_unfinished(const TandemCopy *copy);

/* Sets a table back to WAITING with an error, drops its spool; in the caller's transaction. */
extern void tandem_copy_failed(TandemCopy *copy, const char *error);

/*
 * A lock of ours on a table's copy, until the end of the transaction: copying,
 * replaying and finishing exclude each other.  Returns false if dontWait and
 * somebody has it.
 */
extern bool tandem_copy_lock(Oid subid, Oid relid, bool dontWait);

/* ---- wave_snapshot.c ------------------------------------------------------ */

/* The publisher's snapshot that a wave was copied with. */
typedef struct TandemWaveSnapshot
{
	uint64		xmin;
	uint64		xmax;
	int			nxip;
	uint64	   *xip;			/* sorted */
	XLogRecPtr	lsn;			/* all it sees was in WAL before this */
	uint32		timeline;
	TimestampTz taken;			/* by the publisher's clock */
} TandemWaveSnapshot;

/* Reads "xmin:xmax:xip,..." into snapshot; palloc'd.  Raises an error if it is none. */
extern void tandem_snapshot_parse(const char *text, TandemWaveSnapshot *snapshot);

/* The 64-bit id nearest to reference whose low half is xid. */
extern uint64 tandem_widen_xid(TransactionId xid, uint64 reference);

/* Does the snapshot see this transaction, if it has committed? */
extern bool tandem_snapshot_sees(const TandemWaveSnapshot *snapshot, uint64 xid);

/* tandem.wave_snapshots; in a transaction */
extern void tandem_snapshot_store(Oid subid, int64 wave, const char *text, XLogRecPtr lsn,
								  uint32 timeline, TimestampTz taken);
extern TandemWaveSnapshot *tandem_snapshot_load(Oid subid, int64 wave);
extern int64 tandem_snapshot_last_wave(Oid subid);
extern void tandem_snapshots_prune(Oid subid, List *waves_needed);

/*
 * Ids whose commit the apply worker has received, in its memory.
 * received_reset: all ids before "horizon" may have been received before.
 * received_freeze: from now on spooled.  received_visible: are all of those
 * before the freeze visible?
 */
extern void tandem_received_reset(uint64 horizon);
extern void tandem_received_add(TransactionId xid);
extern void tandem_received_freeze(void);
extern bool tandem_received_visible(const TandemWaveSnapshot *snapshot);
extern void tandem_received_forget(const TandemWaveSnapshot *snapshot);

/* ---- spool.c -------------------------------------------------------------- */

/*
 * Writes an entry of a table.  "total" are the bytes written before it, and with
 * it is returned.
 */
extern int64 tandem_spool_write(Oid subid, Oid relid, XLogRecPtr commit_lsn, int64 seq,
								TransactionId xid, TimestampTz commit_time, StringInfo messages,
								int64 total);

/* OIDs of the tables that have entries, in the caller's memory context. */
extern List *tandem_spool_relids(Oid subid);

/* How large a table's spool is, in bytes as on disk; needs no time for it. */
typedef struct TandemSpool
{
	int64		bytes;
	int64		before;			/* written before the first entry that is there */
	int64		total;			/* ... before the end of the last one */
	int64		given_up;		/* the last wave it was given up in, 0 = none */
} TandemSpool;

extern void tandem_spool_look(Oid subid, Oid relid, TandemSpool *spool);

/*
 * Notes that the table's changes are no longer kept, in the transaction that has
 * some: this wave's copy of the table is void.
 */
extern void tandem_spool_give_up(Oid subid, Oid relid, int64 wave);

/* What is said of it; palloc'd. */
extern char *tandem_spool_given_up_error(void);

/*
 * Applies and deletes entries of a table's spool, oldest first, until about
 * max_bytes are done.  Entries of transactions that the snapshot sees are only
 * deleted.  Returns whether the end was reached.  Caller holds the table's copy
 * lock.
 */
extern bool tandem_spool_replay(Oid subid, Oid relid, const TandemWaveSnapshot *snapshot,
								int64 max_bytes, int64 *entries);

/* Deletes all; clear leaves the note that it was given up. */
extern void tandem_spool_drop(Oid subid, Oid relid);
extern void tandem_spool_clear(Oid subid, Oid relid);

/* ---- wave_tables.c -------------------------------------------------------- */

/*
 * Fills in what the publisher knows of tables: a list of TandemCopy whose
 * relid is set.  Those that can't be copied get "error" set, with "hint";
 * "remark" says what may fail.  With recheck,
 * under the wave's snapshot: also sets query to NULL for empty ones, and error
 * for those whose identity or columns have changed since the call before.
 */
extern void tandem_wave_describe(WalReceiverConn *conn, const Subscription *sub,
								 List *copies, bool recheck);

/* ---- history.c, in the apply worker ---------------------------------------- */

/* Asks the publisher, which is on this timeline, for its history; in a transaction. */
extern void tandem_history_read(WalReceiverConn *publisher, uint32 timeline);

/* Is all that a snapshot sees in the publisher's history? */
extern bool tandem_history_has(const TandemWaveSnapshot *snapshot);

/* ---- publisher connections (wave_snapshot.c) ------------------------------ */

extern WalReceiverConn *tandem_publisher_connect(const Subscription *sub, const char *purpose);

/* The publisher's PG_VERSION_NUM, or tandem.debug_publisher_version. */
extern int	tandem_publisher_version(WalReceiverConn *conn);

#define TANDEM_COLUMN_LISTS_SINCE 150000	/* and row filters */

/*
 * Raises what the publisher answered instead of what was expected.  If it ended
 * our session or statement, that is a failure of the connection, and not a
 * request to this process.
 */
extern void tandem_publisher_raise(const WalRcvExecResult *res) pg_attribute_noreturn();

/* A command without result / with rows; an error is raised with the publisher's message. */
extern void tandem_publisher_exec(WalReceiverConn *conn, const char *command);
extern WalRcvExecResult *tandem_publisher_query(WalReceiverConn *conn, const char *query,
												int ncolumns, const Oid *types);

/* Has the publisher flushed the record that ends at lsn? */
extern bool tandem_publisher_flushed(WalReceiverConn *conn, XLogRecPtr lsn);

/* ---- copy_stream.c, in a copy worker --------------------------------------------- */

/*
 * (Re)connects with the wave's snapshot; an error if the publisher has not
 * flushed lsn.  sub must live as long as the process.
 */
extern void tandem_copy_stream_connect(const Subscription *sub, const char *snapshot, XLogRecPtr lsn);
extern void tandem_copy_stream_disconnect(void);

/*
 * Locks the publisher's table, checks that the snapshot knows its files, and
 * begins to copy it in up to "wanted" sessions, as its size allows.
 */
extern void tandem_copy_stream_begin(const TandemCopy *copy, int wanted);

/*
 * The next piece of COPY's data, which is valid until the next call: its length;
 * 0 = nothing yet, it has waited for up to a second; -1 = that was all.
 */
extern int	tandem_copy_stream_receive(char **data);

/* All has arrived: others may have the publisher's table.  The next begin does this, too. */
extern void tandem_copy_stream_end(void);

/* Was COPY begun and not read to its end, so that the session can't be used? */
extern bool tandem_copy_stream_unread(void);

/* A COPY of the pages [from, to) of a table, to = -1: up to its end; palloc'd (wave_tables.c). */
extern char *tandem_copy_range(const TandemCopy *copy, int64 from, int64 to);

/* copy->columns as a list of String nodes (wave_tables.c) */
extern List *tandem_copy_columns(const TandemCopy *copy);

/* ---- load.c --------------------------------------------------------------- */

/*
 * Copies one table's rows, as copy_stream.c has them, into a relation the caller has
 * locked, and ends the remote copy before it builds indexes.  Returns the
 * number of rows.
 */
extern int64 tandem_load(Relation rel, List *columns, bool binary, bool fast,
						 TandemCopyProgress *progress);

/* Can a table be given new files and its indexes be built at the end? */
extern bool tandem_load_can_be_fast(Relation rel);

/* Empties a table, partitions included, by giving it new files; AccessExclusiveLock held on it. */
extern void tandem_empty_relation(Relation rel);

/* ---- copy.c, leader.c ----------------------------------------------------- */

/* Registers the leader if there is work and none runs; in the apply worker, no transaction open. */
extern void tandem_leader_consider(void);

/* Says in tandem.tables why the wave doesn't go on: the error's message and hint. */
extern void tandem_wave_failed(const ErrorData *error);

/* origins that copy workers need in their own name; see leader.c */
extern void tandem_copy_origin_name(Oid subid, int worker, char *name, size_t size);

/*
 * Drops all origins of leader and copy workers, none of which may be in use
 * (else an error); in the caller's transaction.
 */
extern void tandem_copy_origins_drop(Oid subid);
extern void tandem_use_subscription_origin(Oid subid, RepOriginId own);

extern PGDLLEXPORT void tandem_leader_main(Datum index) pg_attribute_noreturn();
extern PGDLLEXPORT void tandem_copy_main(Datum index) pg_attribute_noreturn();

extern void tandem_waves_init(void);

#endif							/* TANDEM_WAVES_H */
