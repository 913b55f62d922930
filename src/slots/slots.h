/*-------------------------------------------------------------------------
 *
 * slots.h
 *	  Failover slots: what the files of this folder share.
 *
 * The primary's side
 *	 source.c	slot query and WAL reader, called by standbys
 *	 hold.c		hold slots: catalog rows kept for a standby
 *	 gate.c		holding logical walsenders back
 * The standby's side
 *	 cycle.c	one cycle: ask, install, then slot by slot (cycle.h: its parts)
 *	 answer.c	the conversation with the primary
 *	 install.c	installing the files it sent
 *	 reserve.c	WAL and files of slots that aren't proven yet
 *	 follow.c	one slot: dropped, created, moved or explained
 *	 local.c	creating, moving and dropping a local slot, in durable order
 *	 prove.c	the helper process: decode forward, or wait for a restartpoint
 *	 fetch.c	WAL that is missing here
 * Both
 *	 forget.c	leaving: drop what is ours
 *	 ship.c		snapshot and mapping files
 *	 worker.c	the process: lifecycle, role, promotion
 *	 status.c	shared memory, views, requests for a cycle
 *
 * src/slots/slots.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SLOTS_H
#define TANDEM_SLOTS_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "port/pg_crc32c.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

#include "common/compat.h"

/* Version of the conversation between tandem.source_slots and its caller. */
#define TANDEM_PROTOCOL 1

/* flags of a slot row of tandem.source_slots */
#define TANDEM_SLOT_TWO_PHASE 0x01
#define TANDEM_SLOT_INVALID 0x02
#define TANDEM_SLOT_HAS_FILE 0x04	/* a snapshot lies at restart_lsn */

#define TANDEM_HOLD_PREFIX "tandem_hold_"
#define TANDEM_RESERVE_SLOT "tandem_reserve"
#define TANDEM_PROOF_SLOT "tandem_proof"

/* ---- one slot as the views show it ------------------------------------- */

typedef enum TandemSlotState
{
	TANDEM_READY,				/* promotion now would lose nothing */
	TANDEM_PENDING,				/* not proven, or not as far as its consumer */
	TANDEM_INVALID,				/* invalidated on the primary */
	TANDEM_FOREIGN,				/* a local slot of that name isn't ours */
	TANDEM_NATIVE				/* left to the server's own slot sync */
} TandemSlotState;

#define TANDEM_TEXT_LEN 320

typedef struct TandemSlotEntry
{
	NameData	name;
	NameData	database;
	NameData	plugin;
	TandemSlotState state;
	char		reason[TANDEM_TEXT_LEN];
	char		hint[TANDEM_TEXT_LEN];
	XLogRecPtr	restart_lsn;	/* here; 0 = no local slot */
	XLogRecPtr	confirmed_lsn;
	TransactionId catalog_xmin;
	XLogRecPtr	primary_restart_lsn;
	XLogRecPtr	primary_confirmed_lsn;
	TransactionId primary_catalog_xmin;
	TimestampTz last_sync;		/* last cycle that looked at it; 0 = never */
	bool		waits_for_wal;	/* within a cycle: its WAL is being fetched */
} TandemSlotEntry;

/* ---- shared memory ------------------------------------------------------ */

typedef enum TandemHelperTask
{
	TANDEM_HELPER_NONE,
	TANDEM_HELPER_BARRIER,		/* wait until a restartpoint has completed */
	TANDEM_HELPER_DECODE		/* decode a slot's WAL forward */
} TandemHelperTask;

typedef enum TandemHelperState
{
	TANDEM_HELPER_IDLE,
	TANDEM_HELPER_RUNNING,
	TANDEM_HELPER_SUCCEEDED,
	TANDEM_HELPER_FAILED
} TandemHelperState;

typedef struct TandemHelper
{
	TandemHelperTask task;
	TandemHelperState state;
	Oid			database;
	NameData	slot;
	XLogRecPtr	restart_lsn;	/* in: from where; out: proven restart point */
	XLogRecPtr	confirmed_lsn;	/* in: consistent before this */
	TransactionId catalog_xmin; /* in and out */
	bool		inconsistent;	/* out: decoding was not consistent by then */
	char		error[TANDEM_TEXT_LEN];
} TandemHelper;

typedef struct TandemSlotsShared
{
	LWLock	   *lock;			/* protects all below but what says otherwise */
	ConditionVariable cv;		/* broadcast when a cycle ends or the worker goes */

	pid_t		worker_pid;		/* 0 = none */
	struct Latch *worker_latch;
	bool		worker_on_standby;

	/* requests for a cycle: a ticket is served when served >= ticket */
	uint64		requested;
	uint64		served;
	uint64		forget_ticket;	/* this one asks to forget all slots; 0 = none */
	int			forgotten;		/* slots dropped then */
	char		forget_error[TANDEM_TEXT_LEN];	/* why not all, or empty */

	/* last cycle */
	uint64		cycles;
	uint64		failed_cycles;
	TimestampTz last_cycle;
	TimestampTz last_success;
	double		cycle_ms;
	double		cycle_cpu_ms;
	uint64		bytes_sent;
	uint64		bytes_received;
	int			slots_created;
	int			slots_moved;
	int			slots_saved;
	uint64		slots_dropped;	/* since start */
	uint64		files_installed;	/* since start */
	uint64		wal_fetched;	/* since start, bytes */
	uint64		restart_lag;	/* largest lag of a local restart_lsn, bytes */
	TransactionId hold_xmin;
	NameData	primary_slot_name;
	char		error[TANDEM_TEXT_LEN]; /* why the last cycle failed, or empty */
	char		hint[TANDEM_TEXT_LEN];

	int			unproven_at_start;	/* known missing before the first cycle */

	TandemHelper helper;

	int			nentries;
	int			max_entries;
	TandemSlotEntry entries[FLEXIBLE_ARRAY_MEMBER];
} TandemSlotsShared;

extern TandemSlotsShared *tandem_slots_shared;

/* status.c */
extern void tandem_slots_shmem_request(void);
extern void tandem_slots_shmem_startup(void);
extern void tandem_require_shmem(void);
extern void tandem_request_cycle(bool forget);

/* forget.c */
extern void tandem_slots_check_forget(void);
extern int	tandem_slots_forget(void);
extern void tandem_forget_run(void);

/* worker.c */
extern void tandem_slots_init(void);
extern PGDLLEXPORT void tandem_worker_main(Datum main_arg) pg_attribute_noreturn();

/* ---- ship.c -------------------------------------------------------------- */

typedef struct TandemSnapshotFile
{
	XLogRecPtr	lsn;
	pg_crc32c	crc;
} TandemSnapshotFile;

typedef struct TandemMappingFile
{
	char		name[MAXPGPATH];
	Oid			database;		/* InvalidOid: shared catalogs */
	XLogRecPtr	lsn;
	TransactionId create_xid;	/* the rewriting transaction */
	int64		size;
	pg_crc32c	crc;
} TandemMappingFile;

#define TANDEM_MAPPING_TEXT_LEN (MAXPGPATH + 64)

extern bool tandem_snapshot_check(const char *data, size_t len, pg_crc32c *crc,
								  const char **why);
extern TandemSnapshotFile *tandem_list_snapshots(XLogRecPtr from, int *count);
extern bool tandem_snapshot_exists(XLogRecPtr lsn);
extern bytea *tandem_read_snapshot(XLogRecPtr lsn);
extern void tandem_install_snapshot(XLogRecPtr lsn, const char *data, size_t len);
extern void tandem_flush_snapshot_dir(void);

extern TandemMappingFile *tandem_list_mappings(XLogRecPtr from, int *count);
extern bool tandem_parse_mapping_name(const char *name, TandemMappingFile *file);
extern bytea *tandem_read_mapping(const TandemMappingFile *file);
extern void tandem_install_mapping(const char *name, const char *data, size_t len);

/* ---- hold.c (primary) ---------------------------------------------------- */

extern void tandem_hold_name(const char *standby, Name name);
extern TransactionId tandem_hold_update(const char *standby, TransactionId saved_xmin);
extern TimestampTz tandem_hold_reported(const char *standby);
extern void tandem_hold_expire(void);
extern Size tandem_hold_shmem_size(void);
extern void tandem_hold_shmem_startup(void);

/* ---- the standby's side --------------------------------------------------- */

/* A failover slot as the primary has told of it. */
typedef struct TandemRemoteSlot
{
	NameData	name;
	NameData	database;
	NameData	plugin;
	int			flags;			/* TANDEM_SLOT_... */
	XLogRecPtr	restart_lsn;
	XLogRecPtr	confirmed_lsn;
	XLogRecPtr	two_phase_at;
	TransactionId catalog_xmin;
} TandemRemoteSlot;

/* A logical slot of this server, copied. */
typedef struct TandemLocalSlot
{
	NameData	name;
	Oid			database;
	NameData	plugin;
	bool		two_phase;
	bool		invalid;
	XLogRecPtr	restart_lsn;
	XLogRecPtr	confirmed_lsn;
	TransactionId catalog_xmin; /* effective, so saved */
} TandemLocalSlot;

/* local.c */
extern TandemLocalSlot *tandem_local_slots(int *count);
extern bool tandem_local_slot(const char *name, TandemLocalSlot *copy);
extern bool tandem_any_logical_slot(void);
extern int	tandem_free_slots(void);
extern void tandem_local_create(const TandemRemoteSlot *remote, Oid database,
								XLogRecPtr restart_lsn, bool need_file);
extern bool tandem_local_move(const TandemRemoteSlot *remote,
							  XLogRecPtr restart_lsn);
extern void tandem_local_drop(const char *name);
extern void tandem_reserve(XLogRecPtr lsn);
extern void tandem_unreserve(void);
extern bool tandem_reserve_exists(void);

/* Which local slots are ours: pg_tandem/slots, kept by owned.c. */
typedef struct TandemOwnedSlot
{
	NameData	name;
	XLogRecPtr	decoded_lsn;	/* restart_lsn proven by decoding; 0 = by file */
} TandemOwnedSlot;

extern void tandem_owned_load(void);
extern TandemOwnedSlot *tandem_owned(const char *name);
extern int	tandem_owned_count(void);
extern int	tandem_owned_unproven(void);
extern void tandem_owned_add(const char *name, XLogRecPtr decoded_lsn);
extern void tandem_owned_remove(const char *name);
extern void tandem_owned_set_unproven(int count);
extern TimestampTz tandem_owned_held_until(void);
extern void tandem_owned_set_held_until(TimestampTz until);
extern void tandem_owned_save(void);
extern void tandem_owned_discard_all(void);

/* fetch.c */
struct TandemRemote;
extern XLogSegNo tandem_oldest_wal(TimeLineID timeline, XLogRecPtr upto);
extern uint64 tandem_fetch_wal(struct TandemRemote *remote, TimeLineID timeline,
							   XLogSegNo from, XLogSegNo *oldest, uint64 limit);

/* prove.c */
extern PGDLLEXPORT void tandem_helper_main(Datum main_arg) pg_attribute_noreturn();
extern bool tandem_helper_start(TandemHelperTask task, Oid database,
								const TandemRemoteSlot *slot);
extern TandemHelperState tandem_helper_poll(TandemHelper *result);
extern bool tandem_helper_finished(void);
extern void tandem_helper_stop(void);
extern bool tandem_scan_proves(XLogRecPtr from, XLogRecPtr upto);

/* cycle.c */
extern void tandem_cycle_start(void);
extern bool tandem_cycle_run(void);
extern void tandem_cycle_check_hold(void);
extern void tandem_cycle_promoted(void);
extern void tandem_cycle_disconnect(void);

#endif							/* TANDEM_SLOTS_H */
