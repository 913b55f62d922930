/*-------------------------------------------------------------------------
 *
 * wal.h
 *	  Reading the WAL of a data directory whose server doesn't run; wal.c.
 *
 * cli/rejoin/wal.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_WAL_H
#define TANDEM_REJOIN_WAL_H

#include "postgres_fe.h"

#include "access/rmgr.h"
#include "access/timeline.h"
#include "access/xlog_internal.h"
#include "access/xlogrecord.h"
#include "common/relpath.h"
#include "storage/block.h"

/* A relation's storage: what the server calls RelFileNode, later RelFileLocator. */
typedef struct RelFile
{
	Oid			tablespace;
	Oid			database;
	Oid			node;
} RelFile;

/* A block that a record names. */
typedef struct WalBlock
{
	uint8		id;				/* 0..XLR_MAX_BLOCK_ID, not always consecutive */
	RelFile		rel;
	ForkNumber	fork;
	BlockNumber block;
	bool		image;			/* a full-page image that replay applies */
	bool		init;			/* replay makes the page anew */
} WalBlock;

typedef struct WalRecord
{
	XLogRecPtr	lsn;			/* first byte of its header */
	XLogRecPtr	end;			/* where the next one may begin, before alignment
								 * to a page header; after XLOG_SWITCH the next
								 * segment */
	TimeLineID	tli;			/* of the file it was read from */
	XLogRecPtr	prev;
	TransactionId xid;
	RmgrId		rmid;
	uint8		info;			/* with XLR_INFO_MASK bits */
	RepOriginId origin;			/* 0 if none */
	TransactionId top_xid;		/* InvalidTransactionId unless the record says */
	const char *data;			/* the main data; maxaligned, lives until the next read */
	uint32		data_len;
	int			nblocks;
	WalBlock	blocks[XLR_MAX_BLOCK_ID + 1];
} WalRecord;

typedef enum WalResult
{
	WAL_RECORD,
	WAL_END,					/* no valid record at the position: WAL ends here */
	WAL_MISSING					/* the segment isn't here: wal_missing_segment() */
} WalResult;

typedef struct WalReader WalReader;

/*
 * Called for a segment file that pg_wal doesn't have.  Returns the path of a
 * copy elsewhere (malloc'd, the reader frees it), or NULL.  name is the plain
 * segment file name.
 */
typedef char *(*WalFetch)(void *arg, const char *name);

/*
 * Opens the WAL of a timeline and its ancestors.  history: entries in order of
 * time, the last one open-ended (end = InvalidXLogRecPtr), as long as the
 * reader lives.  fetch may be NULL.
 *
 * A file that is there but can't be opened or read ends the program with a
 * message: it must not pass for the end of WAL.
 */
extern WalReader *wal_open(const char *wal_dir, const TimeLineHistoryEntry *history, int nhistory,
						   uint32 segment_size, WalFetch fetch, void *fetch_arg);

/*
 * The next read returns the first record that begins at or after lsn, which is
 * the start of a record or of a page or segment.
 */
extern void wal_seek(WalReader *reader, XLogRecPtr lsn);

/*
 * Reads and checks (CRC, page headers, prev link) the next record.  With
 * WAL_END, wal_position() is where it would have begun (the start of a page
 * where only that page's header would come before it), and wal_error() says
 * what is there instead: a clause for a message, in English.  A read that
 * fails can be repeated, for example when the missing segment has come.
 */
extern WalResult wal_read(WalReader *reader, WalRecord *record);

/* wal_seek and wal_read in one; what the record before is can't be checked. */
extern WalResult wal_read_at(WalReader *reader, XLogRecPtr lsn, WalRecord *record);

extern XLogRecPtr wal_position(const WalReader *reader);
extern const char *wal_error(const WalReader *reader);
extern const char *wal_missing_segment(const WalReader *reader);

/* Bytes read from files so far. */
extern uint64 wal_bytes_read(const WalReader *reader);

/*
 * Copies bytes as they are in the files, page headers included; false if a page
 * isn't there or has no good header.  Doesn't move the reader.
 */
extern bool wal_read_raw(WalReader *reader, XLogRecPtr lsn, char *to, size_t len);

extern void wal_close(WalReader *reader);

#endif							/* TANDEM_REJOIN_WAL_H */
