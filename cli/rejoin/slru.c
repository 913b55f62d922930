/*-------------------------------------------------------------------------
 *
 * slru.c
 *	  Transaction statuses, commit timestamps and multixacts of ids from after
 *	  the fork.
 *
 * None of these files has page LSNs, and nothing keeps them from reaching the
 * disk.  A status from after the fork would make rows visible here that the
 * new primary never committed: a transaction that was under way at the fork
 * counts as aborted there.  So the status is erased of
 *	 - every id that a record after the fork ends (commit, abort, PREPARE),
 *	 - every id from the next one at the fork on, to the end of the segment
 *	   file of the newest one seen: an abort sets its status without waiting
 *	   for its record to be flushed.
 * The new primary gives ids from the next one on to other transactions; replay
 * writes their status.  The same for commit timestamps.
 *
 * Offsets of multixacts are erased from the one after the next at the fork on.
 * The offset of the next one itself is known when the one before is made, and
 * is the same on both nodes.  Members are only reached through offsets.
 *
 * Subtransactions' parents (pg_subtrans) are emptied at every start.
 *
 * cli/rejoin/slru.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/multixact.h"
#include "access/transam.h"
#include "rejoin/rejoin.h"

#define PAGES_PER_SEGMENT 32	/* SLRU_PAGES_PER_SEGMENT, a server header */

/* layouts of clog.c, commit_ts.c and multixact.c */
#define XACTS_PER_BYTE 4
#define XACT_BITS 2
#define XACTS_PER_PAGE (BLCKSZ * XACTS_PER_BYTE)
#define STAMP_SIZE 10			/* a timestamp and a replication origin */
#define STAMPS_PER_PAGE (BLCKSZ / STAMP_SIZE)
#define OFFSETS_PER_PAGE (BLCKSZ / (int) sizeof(MultiXactOffset))
#define MEMBERS_PER_PAGE ((BLCKSZ / 20) * 4)	/* groups of four */

/* "next" has wrapped around more often than "id", or the same */
static bool
precedes(uint32 id, uint32 next)
{
	return (int32) (id - next) < 0;
}

static char *
segment_path(const char *folder, uint32 page)
{
	return psprintf("%s/%04X", folder, page / PAGES_PER_SEGMENT);
}

static off_t
page_offset(uint32 page)
{
	return (off_t) (page % PAGES_PER_SEGMENT) * BLCKSZ;
}

bool
slru_segment_before_fork(const Facts *facts, const char *path)
{
	uint32		segment;
	uint32		page;

	segment = (uint32) strtoul(strrchr(path, '/') + 1, NULL, 16);
	page = segment * PAGES_PER_SEGMENT;
	if (strncmp(path, "pg_xact/", 8) == 0)
		return precedes(page * XACTS_PER_PAGE, XidFromFullTransactionId(facts->next_xid));
	if (strncmp(path, "pg_commit_ts/", 13) == 0)
		return precedes(page * STAMPS_PER_PAGE, XidFromFullTransactionId(facts->next_xid));
	if (strncmp(path, "pg_multixact/offsets/", 21) == 0)
		return precedes(page * OFFSETS_PER_PAGE, facts->next_multi);
	return precedes(page * MEMBERS_PER_PAGE, facts->next_multi_offset);
}

/*
 * Erases fixed-size entries from "first" on to the end of the segment file
 * that has "last"; files that aren't there are skipped.
 */
static void
erase_range(const char *folder, uint32 first, uint32 last, uint32 per_page, int entry_size)
{
	uint32		page = first / per_page;
	uint32		last_segment = last / per_page / PAGES_PER_SEGMENT;
	off_t		from = page_offset(page) + (off_t) (first % per_page) * entry_size;

	for (uint32 segment = page / PAGES_PER_SEGMENT;; segment++)
	{
		char	   *path = segment_path(folder, segment * PAGES_PER_SEGMENT);

		if (file_exists(path))
			zero_range(path, from, (off_t) PAGES_PER_SEGMENT * BLCKSZ);
		if (segment >= last_segment)
			break;
		from = 0;
	}
}

/* As erase_range, when ids from 0 to "most" may have wrapped around in between. */
static void
erase_from(const char *folder, uint32 first, uint32 last, uint32 most, uint32 per_page, int entry_size)
{
	if (last < first)
	{
		erase_range(folder, first, most, per_page, entry_size);
		first = 0;
	}
	erase_range(folder, first, last, per_page, entry_size);
}

/* Changes bytes of a file through a small function; skips a file that isn't there. */
static void
patch(const char *path, off_t offset, int len, uint8 keep_mask)
{
	uint8		bytes[STAMP_SIZE];
	int			fd = open(path, O_RDWR | PG_BINARY);

	if (fd < 0 && errno == ENOENT)
		return;
	if (fd < 0)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", path);
	if (pg_pread(fd, bytes, len, offset) == len)
	{
		for (int i = 0; i < len; i++)
			bytes[i] &= keep_mask;
		if (pg_pwrite(fd, bytes, len, offset) != len)
			rejoin_refuse(NULL, "could not write file \"%s\": %m", path);
	}
	close(fd);
}

static void
erase_xact(TransactionId xid)
{
	uint32		page = xid / XACTS_PER_PAGE;
	uint32		entry = xid % XACTS_PER_PAGE;
	int			shift = (entry % XACTS_PER_BYTE) * XACT_BITS;

	patch(segment_path("pg_xact", page), page_offset(page) + entry / XACTS_PER_BYTE, 1,
		  (uint8) ~(((1 << XACT_BITS) - 1) << shift));

	page = xid / STAMPS_PER_PAGE;
	patch(segment_path("pg_commit_ts", page),
		  page_offset(page) + (off_t) (xid % STAMPS_PER_PAGE) * STAMP_SIZE, STAMP_SIZE, 0);
}

static int
compare_xids(const void *a, const void *b)
{
	TransactionId x = *(const TransactionId *) a;
	TransactionId y = *(const TransactionId *) b;

	return x == y ? 0 : x < y ? -1 : 1;
}

static void
sync_segment(const char *folder, uint32 page)
{
	char	   *path = segment_path(folder, page);

	if (file_exists(path))
		sync_file(path);
}

/* Ids that were under way, or prepared, at the fork and ended after it. */
static void
erase_older(const Facts *facts, TransactionId next)
{
	const XidList *ended = &facts->ended_after;
	TransactionId last = InvalidTransactionId;

	if (ended->n > 0)
		qsort(ended->xids, ended->n, sizeof(TransactionId), compare_xids);
	for (int i = 0; i < ended->n; i++)
	{
		TransactionId xid = ended->xids[i];

		if (!precedes(xid, next))
			continue;
		erase_xact(xid);
		if (TransactionIdIsValid(last) &&
			last / STAMPS_PER_PAGE / PAGES_PER_SEGMENT != xid / STAMPS_PER_PAGE / PAGES_PER_SEGMENT)
		{
			sync_segment("pg_xact", last / XACTS_PER_PAGE);
			sync_segment("pg_commit_ts", last / STAMPS_PER_PAGE);
		}
		last = xid;
	}
	if (TransactionIdIsValid(last))
	{
		sync_segment("pg_xact", last / XACTS_PER_PAGE);
		sync_segment("pg_commit_ts", last / STAMPS_PER_PAGE);
	}
}

void
slru_repair(const Facts *facts)
{
	TransactionId next = XidFromFullTransactionId(facts->next_xid);
	TransactionId newest = facts->newest_xid_after;

	if (facts->end <= facts->fork)
		return;
	if (!TransactionIdIsValid(newest) || precedes(newest, next))
		newest = next;

	erase_older(facts, next);
	erase_from("pg_commit_ts", next, newest, MaxTransactionId, STAMPS_PER_PAGE, STAMP_SIZE);
	erase_from("pg_multixact/offsets", facts->next_multi + 1, facts->next_multi + 1,
			   MaxMultiXactId, OFFSETS_PER_PAGE, sizeof(MultiXactOffset));

	/* a byte has four statuses: the first ones may be older than the fork */
	for (; next % XACTS_PER_BYTE != 0; next++)
		erase_xact(next);
	sync_segment("pg_xact", (next - 1) / XACTS_PER_PAGE);
	if (precedes(newest, next))
		newest = next;
	erase_from("pg_xact", next / XACTS_PER_BYTE, newest / XACTS_PER_BYTE,
			   MaxTransactionId / XACTS_PER_BYTE, BLCKSZ, 1);
}
