/*-------------------------------------------------------------------------
 *
 * rejoin.h
 *	  What the parts of "tandem rejoin" share.
 *
 * The command works inside the data directory (it changes into it), so all
 * paths are relative to it.  It is a process of its own that ends with the
 * work: memory is taken with pg_malloc and not given back.
 *
 * Who calls whom: rejoin.c runs the steps; target.c (the data directory),
 * source.c (the new primary), timeline.c, wal.c and record.c (reading) know
 * nothing of each other; facts.c (what WAL says) is above wal.c; plan.c is
 * above all these and changes nothing; repair.c and settle.c carry a plan out.
 *
 * cli/rejoin/rejoin.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_H
#define TANDEM_REJOIN_H

#include "postgres_fe.h"

#include <sys/stat.h>

#include "catalog/pg_control.h"
#include "libpq-fe.h"
#include "pqexpbuffer.h"

#include "command.h"
#include "common/compat.h"
#include "rejoin/wal.h"

#define LSN_ARGS(lsn) (uint32) ((lsn) >> 32), (uint32) (lsn)

/* What a sorted build of a GiST index leaves as LSN; gist.h, a server header */
#define GIST_BUILD_LSN ((XLogRecPtr) 1)

/* where an interrupted rejoin keeps what it needs to go on */
#define REJOIN_DIR "tandem_rejoin"
#define REJOIN_SLOT "tandem_rejoin"
#define CONTROL_FILE "global/pg_control"

/*
 * Ends the command with exit code 1: one sentence, then a hint (may be NULL).
 * Nothing has been changed, unless repairs have begun: then says how to go on.
 */
extern void rejoin_refuse(const char *hint, const char *fmt,...)
	pg_attribute_printf(2, 3) pg_attribute_noreturn();

/* ---- the data directory; target.c ----------------------------------------- */

typedef struct Target
{
	const char *dir;			/* absolute */
	ControlFileData control;	/* as found, or as saved by an interrupted rejoin */
	bool		torn_pages;		/* the machine may have lost power while the
								 * server ran */
	int			stale_pid;		/* of the server that crashed; 0 = ended cleanly */
	const char *postgres;		/* path of the server's program */
	char	   *start_options;	/* command line to start it with, for a shell */
	uint32		segment_size;	/* WAL */
	bool		checksums;
} Target;

/* Opens and changes into the directory.  Refuses what can't be rejoined. */
extern void target_open(Target *target, const Options *options);

/* Takes the lock that keeps a second rejoin out; held until exit. */
extern void target_lock(Target *target);

/* Does a server run there, or what is left of one?  The other refuses if so. */
extern bool target_is_running(Target *target);
extern void target_check_stopped(Target *target);

/* A setting as the server would see it at its next start, or NULL. */
extern char *target_setting(const Target *target, const char *name);

/* ---- the new primary; source.c --------------------------------------------- */

typedef struct Source
{
	PGconn	   *conn;
	const char *conninfo;
	TimeLineID	tli;
	XLogRecPtr	flush;
	TimeLineID	checkpoint_tli;
	XLogRecPtr	checkpoint_redo;
	char	   *history;		/* its history file's content; "" on timeline 1 */
	const char *label;			/* "host:port", for messages */
} Source;

extern void source_open(Source *source, const Options *options, const Target *target);

/* Reads position, timeline and last checkpoint again. */
extern void source_refresh(Source *source);

/* Where its WAL is safe on disk now. */
extern XLogRecPtr source_flushed(Source *source);

/* Copies a WAL segment to a file; false if it isn't there any more. */
extern bool source_fetch_wal(Source *source, const char *name, const char *to, uint32 size);

/* Part of its WAL as bytes (malloc'd); NULL if it isn't there. */
extern char *source_read_wal(Source *source, const char *name, uint32 offset, int length);

typedef struct SourceFile
{
	const char *path;
	int64		size;			/* -1 = a folder */
} SourceFile;

/* All files that rejoin may have to do with, in order of path (strcmp). */
extern SourceFile *source_files(Source *source, int *count);

/* The whole of a file that isn't a relation's; false if it has gone. */
extern bool source_file(Source *source, const char *path, PQExpBuffer content);

typedef struct BlockRequest
{
	RelFile		rel;
	ForkNumber	fork;
	BlockNumber first;
	BlockNumber count;
} BlockRequest;

/*
 * Reads blocks.  For each request, in order: "blocks" is called for runs of
 * consecutive blocks, then "end" with the length of the fork in blocks, or -1
 * if it doesn't exist.
 */
typedef struct BlockSink
{
	void		(*blocks) (void *arg, const BlockRequest *request, BlockNumber first,
						   const char *content, int nblocks);
	void		(*end) (void *arg, const BlockRequest *request, int64 relation_blocks);
	void	   *arg;
} BlockSink;
extern void source_blocks(Source *source, const BlockRequest *requests, int nrequests,
						  const BlockSink *sink);

/* A checkpoint of the new primary that began on its own timeline is complete. */
extern void source_checkpoint(Source *source);

/* Can this node stream from there, with this slot?  Refuses if not. */
extern void source_check_streaming(Source *source, const char *slot, bool own);
/* Makes the slot if it isn't there. */
extern void source_ensure_slot(Source *source, const char *slot, bool own);
/* What the slot's standby has flushed; whether it is connected. */
extern bool source_slot_position(Source *source, const char *slot, XLogRecPtr *lsn);

/* ---- timelines; timeline.c -------------------------------------------------- */

typedef struct History
{
	int			n;
	TimeLineHistoryEntry *entries;	/* oldest first; the last has end 0 */
} History;

/* Parses a history file's content; tli is the timeline it belongs to. */
extern void history_parse(History *history, TimeLineID tli, const char *content, const char *what);

/* The history of the local timeline, from pg_wal. */
extern void history_read_local(History *history, TimeLineID tli);

/*
 * Where the two part: the last timeline they share and the end of what they
 * share (InvalidXLogRecPtr: no end known, one goes on from the other).  False
 * if they share none.
 */
extern bool history_fork(const History *local, const History *source,
						 TimeLineID *tli, XLogRecPtr *fork);

extern bool history_has(const History *history, TimeLineID tli);

/* Where a timeline ends in this history; InvalidXLogRecPtr = it is the last. */
extern XLogRecPtr history_end(const History *history, TimeLineID tli);

/* ---- hashes of relations and pages; facts.c ---------------------------------- */

typedef struct RelFacts
{
	RelFile		rel;			/* key */
	uint32		status;
	bool		created_before; /* a create record in [redo, fork] */
	bool		created_after;	/* ... after the fork */
	bool		dropped_after;	/* by a transaction that ended after the fork */
	bool		copy_again;		/* an interrupted rejoin was copying it */
	BlockNumber truncated_after;	/* least length after the fork, or
									 * InvalidBlockNumber */
} RelFacts;

typedef struct PageKey
{
	RelFile		rel;
	int32		fork;
	BlockNumber block;
} PageKey;

typedef struct PageFacts
{
	PageKey		key;
	uint32		status;
	RmgrId		rmid;			/* of the last record that names it */
	bool		healed;			/* replay up to the fork makes it right */
	bool		doubtful;		/* on disk it is ahead, or may be torn */
	bool		comparable;		/* rmid says how to compare it with another */
	bool		sequence;
} PageFacts;

#define SH_PREFIX relset
#define SH_ELEMENT_TYPE RelFacts
#define SH_KEY_TYPE RelFile
#define SH_SCOPE extern
#define SH_RAW_ALLOCATOR pg_malloc0
#define SH_DECLARE
#include "lib/simplehash.h"

#define SH_PREFIX pageset
#define SH_ELEMENT_TYPE PageFacts
#define SH_KEY_TYPE PageKey
#define SH_SCOPE extern
#define SH_RAW_ALLOCATOR pg_malloc0
#define SH_DECLARE
#include "lib/simplehash.h"

typedef struct OidPair
{
	Oid			database;
	Oid			tablespace;
} OidPair;

typedef struct PairList
{
	int			n;
	int			room;
	OidPair    *pairs;
} PairList;

typedef struct XidList
{
	int			n;
	int			room;
	TransactionId *xids;
} XidList;

/* What the WAL from the start checkpoint on says. */
typedef struct Facts
{
	/* the start: the last checkpoint whose record ends at or before the fork */
	XLogRecPtr	checkpoint_lsn;
	CheckPoint	checkpoint;
	bool		checkpoint_shutdown;

	uint32		segment_size;
	XLogSegNo	newest_segment; /* of all segment files in pg_wal */
	TimeLineID	fork_tli;
	XLogRecPtr	fork;			/* where replay of local WAL ends */
	XLogRecPtr	end;			/* of local WAL; = fork if nothing is to be cut */
	uint64		records_before;
	uint64		records_after;
	TimestampTz last_commit_before; /* 0 = none seen */

	/* as of the fork */
	FullTransactionId next_xid;
	MultiXactId next_multi;
	MultiXactOffset next_multi_offset;
	Oid			next_oid;		/* the new primary takes none below */
	bool		oids_wrapped;

	relset_hash *rels;
	pageset_hash *pages;		/* named after the fork */
	PairList	databases_created_before;
	PairList	databases_created_after;
	PairList	databases_dropped_after;	/* tablespace 0 = all */
	PairList	tablespaces_created_after;	/* database unused */
	PairList	tablespaces_dropped_after;
	PairList	folders_again;	/* an interrupted rejoin was copying them */
	PairList	maps_before;	/* relation maps written in [redo, fork] */
	PairList	maps_after;
	XidList		ended_after;	/* ids with a status set after the fork */
	TransactionId newest_xid_after; /* newest id named after the fork */
	XidList		prepared_before;	/* PREPARE in [redo, fork] */
	XidList		prepared_after;
	XidList		finished_after; /* prepared transactions ended after the fork */
	bool		origins_after;	/* progress of replication origins after the fork */
	bool		slru_truncated_after;
} Facts;

extern void facts_init(Facts *facts, uint32 segment_size);

/* To be copied as a whole, whatever WAL says. */
extern void facts_copy_again(Facts *facts, RelFile rel);
extern void facts_copy_folder_again(Facts *facts, Oid database, Oid tablespace);
extern RelFacts *facts_rel(const Facts *facts, RelFile rel);	/* NULL = nothing known */
extern void pairs_add(PairList *list, Oid database, Oid tablespace);
extern bool pairs_have(const PairList *list, Oid database, Oid tablespace);
extern bool xids_have(const XidList *list, TransactionId xid);

/*
 * Reads the WAL between the start checkpoint's redo and the fork, and after
 * the fork.  The first finds facts->checkpoint by itself, walking back from
 * pg_control's.
 */
extern void facts_find_start(Facts *facts, WalReader *reader, const ControlFileData *control);
extern void facts_read_before(Facts *facts, WalReader *reader, bool checksums);
extern void facts_read_after(Facts *facts, WalReader *reader, bool checksums);

/* Reads [redo, fork] once more and marks the doubtful pages that it heals. */
extern void facts_mark_healed(Facts *facts, WalReader *reader);

/* ---- files; files.c ---------------------------------------------------------- */

/* What a path under base/, global/ or pg_tblspc/ is. */
typedef struct PathInfo
{
	RelFile		rel;			/* node 0 = the database's folder or a file in it */
	ForkNumber	fork;
	uint32		segment;
	const char *name;			/* the last part */
} PathInfo;
extern bool path_parse(const char *path, PathInfo *info);

/* Path of a segment of a relation's fork; malloc'd. */
extern char *rel_path(RelFile rel, ForkNumber fork, uint32 segment);

/* All local files and folders of the kinds that source_files() lists, sorted. */
extern SourceFile *local_files(int *count);

/* The path, or NULL if the list doesn't have it. */
extern const SourceFile *find_file(const SourceFile *files, int count, const char *path);

extern bool file_exists(const char *path);
extern void write_durably(const char *path, const char *content, size_t len);
extern void remove_tree(const char *path);
extern void sync_file(const char *path);
extern void sync_dir(const char *path);

/* Zeroes part of a file, no further than its end. */
extern void zero_range(const char *path, off_t from, off_t to);

/* ---- the plan; plan.c ---------------------------------------------------------- */

typedef enum ActionKind
{
	ACTION_COPY_BLOCKS,			/* request */
	ACTION_COPY_RELATION,		/* request.rel: all its forks that the source has */
	ACTION_COPY_FILE,			/* path */
	ACTION_DELETE_FILE,			/* path */
	ACTION_DELETE_FOLDER,		/* path */
	ACTION_MAKE_FOLDER,			/* path */
	ACTION_MAKE_TABLESPACE,		/* path = link, target = where to */
	ACTION_DROP_TABLESPACE		/* path = link */
} ActionKind;

/* Why; the order is that of the report. */
typedef enum Reason
{
	REASON_AHEAD,
	REASON_TORN,
	REASON_TRUNCATED,
	REASON_DROPPED,
	REASON_MISSING,
	REASON_CREATED,
	REASON_ORPHAN,
	REASON_MAP,
	REASON_SLRU,
	REASON_PREPARED,
	REASON_ORIGIN,
	REASON_SNAPSHOT,
	REASON_SLOT,
	NUM_REASONS
} Reason;
extern const char *const reason_names[NUM_REASONS];

typedef struct Action
{
	ActionKind	kind;
	Reason		reason;
	BlockRequest request;
	int64		fork_blocks[MAX_FORKNUM + 1];	/* of a relation to copy; -1 = not
											 * this fork */
	const char *path;
	const char *target;
	int64		bytes;			/* to fetch; an estimate before, exact after */
} Action;

typedef struct Plan
{
	int			n;
	int			room;
	Action	   *actions;		/* in the order in which they are done */
	uint64		pages_named;	/* by records after the fork */
	uint64		pages_healed;	/* ahead on disk, and made right by replay */
	uint64		pages_to_copy;
	uint64		bytes_to_copy;
	bool		needs_checkpoint;	/* files are copied that the source writes
									 * only when it checkpoints */
	int			nkept_slots;
	char	  **kept_slots;		/* physical slots of others, left alone */
} Plan;

extern void plan_make(Plan *plan, Facts *facts, const Target *target, Source *source,
					  const History *source_history, WalReader *reader);

/* ---- carrying it out ----------------------------------------------------------- */

/* repair.c: files as the plan has them.  Idempotent. */
typedef struct RepairResult
{
	uint64		pages_copied[NUM_REASONS];
	uint64		files_copied[NUM_REASONS];
	uint64		files_deleted[NUM_REASONS];
	uint64		bytes_fetched;
} RepairResult;
extern void repair(const Plan *plan, const Facts *facts, Source *source, RepairResult *result);

/* slru.c: statuses, timestamps and multixacts from after the fork. */
extern void slru_repair(const Facts *facts);
/* Is this SLRU segment (as "pg_xact/0003") older than the fork? */
extern bool slru_segment_before_fork(const Facts *facts, const char *path);

/* recovery_conf.c: postgresql.auto.conf and standby.signal */
extern void recovery_conf_write(const char *lines, bool switch_off_restore);
extern void recovery_conf_allow_restore(void);
extern bool recovery_conf_restore_is_off(void);

#endif							/* TANDEM_REJOIN_H */
