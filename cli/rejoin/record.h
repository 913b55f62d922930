/*-------------------------------------------------------------------------
 *
 * record.h
 *	  What single WAL records say, beyond the blocks they name; record.c.
 *
 * Each function looks at one record and returns false if it isn't of that
 * kind.  Arrays point into the record and live as long as it does.  A record
 * of the kind that is too short for what it says ends the program with a
 * message: it can't be judged, so nothing may be concluded from it.
 *
 * cli/rejoin/record.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_RECORD_H
#define TANDEM_REJOIN_RECORD_H

#include "catalog/pg_control.h"
#include "rejoin/wal.h"

/* The end of a transaction: commit, abort, either of a prepared one; or PREPARE. */
typedef struct RecordXact
{
	bool		commit;
	bool		prepare;		/* PREPARE TRANSACTION itself */
	bool		prepared;		/* COMMIT or ABORT PREPARED */
	TransactionId xid;			/* the transaction, not the one that ended it */
	TimestampTz time;
	int			nsubxacts;
	const TransactionId *subxacts;
	int			nrels;			/* relations whose storage it drops; with PREPARE
								 * none, they come with its commit or abort */
	const RelFile *rels;
	RepOriginId origin;			/* with a replication origin's progress */
	XLogRecPtr	origin_lsn;
} RecordXact;
extern bool record_xact(const WalRecord *record, RecordXact *xact);

/* A checkpoint, shutdown or online. */
extern bool record_checkpoint(const WalRecord *record, CheckPoint *checkpoint, bool *shutdown);

/* Storage made for a fork, or cut to "blocks" blocks (flags: SMGR_TRUNCATE_...). */
extern bool record_storage_create(const WalRecord *record, RelFile *rel, ForkNumber *fork);
extern bool record_storage_truncate(const WalRecord *record, RelFile *rel, BlockNumber *blocks, int *flags);

/* A database's folder made in a tablespace (by copying or empty), or folders removed. */
extern bool record_database_create(const WalRecord *record, Oid *database, Oid *tablespace);
extern bool record_database_copied(const WalRecord *record, Oid *from_database, Oid *from_tablespace);
extern bool record_database_drop(const WalRecord *record, Oid *database,
								 int *ntablespaces, const Oid **tablespaces);

extern bool record_tablespace_create(const WalRecord *record, Oid *tablespace, const char **location);
extern bool record_tablespace_drop(const WalRecord *record, Oid *tablespace);

/* A new relation map; database 0 is the shared one. */
extern bool record_relation_map(const WalRecord *record, Oid *database, Oid *tablespace);

/* A multixact made, with its members' first offset and count. */
extern bool record_multixact(const WalRecord *record, MultiXactId *multi,
							 MultiXactOffset *offset, int *nmembers);

/* Segments removed from an SLRU; path as in "pg_xact" or "pg_multixact/members". */
typedef enum RecordSlru
{
	SLRU_XACT,
	SLRU_COMMIT_TS,
	SLRU_MULTIXACT				/* offsets and members */
} RecordSlru;
extern bool record_slru_truncate(const WalRecord *record, RecordSlru *slru);

/* full_page_writes switched. */
extern bool record_full_page_writes(const WalRecord *record, bool *on);

/* wal_level "replica"; enum WalLevel is in a header for the server only */
#define RECORD_WAL_LEVEL_REPLICA 1

/* The settings that a standby has to know. */
typedef struct RecordSettings
{
	int			wal_level;
	bool		wal_log_hints;
	bool		track_commit_timestamp;
} RecordSettings;
extern bool record_settings(const WalRecord *record, RecordSettings *settings);

/* The OID counter is now here. */
extern bool record_next_oid(const WalRecord *record, Oid *next);

/* Replay stopped, and WAL goes on on another timeline. */
extern bool record_end_of_recovery(const WalRecord *record, TimeLineID *tli, TimeLineID *prev_tli);

/* A replication origin set to a position by hand, or dropped. */
extern bool record_origin(const WalRecord *record, RepOriginId *origin, bool *dropped);

/* Resource manager's name, for messages; lives until the next call. */
extern const char *record_rmgr_name(RmgrId rmid);

#endif							/* TANDEM_REJOIN_RECORD_H */
