/*-------------------------------------------------------------------------
 *
 * fetch.c
 *	  WAL that a slot needs and this standby doesn't have.
 *
 * A slot older than the standby needs WAL from before the base backup.  The
 * primary's slot keeps it there, so it is fetched segment by segment, from the
 * oldest one here downwards: what is here is always one run without a gap
 * that ends at the replayed position.  Precondition: the WAL is reserved here
 * and no restartpoint that began before is still running (see cycle.c).
 *
 * A segment is written under a temporary name, its header is verified, it is
 * fsynced, marked as archived (or the promoted node would archive it again),
 * and renamed.  Killed in between, a temporary file remains, which the server
 * removes at its next start, or a mark without a segment, which is harmless
 * and used by the next attempt.
 *
 * Which timeline's file holds a segment: the one that its end is on, as the
 * WAL reader of the server has it (XLogReadDetermineTimeline).
 *
 * Called by cycle.c, in a transaction.
 *
 * src/slots/fetch.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <sys/stat.h>

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogarchive.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/fd.h"
#include "utils/builtins.h"

#include "common/compat.h"
#include "common/remote.h"
#include "common/tmpfile.h"
#include "slots/slots.h"

#define FETCH_CHUNK (1024 * 1024)
#define FETCH_TIMEOUT 30000		/* ms for one chunk */
#define FETCH_TMP "xlogtemp.tandem" /* RemoveTempXlogFiles removes xlogtemp.* */

/* Timeline whose file holds a segment, given the history of the timeline replayed */
static TimeLineID
segment_timeline(List *history, XLogSegNo segno, TimeLineID newest)
{
	XLogRecPtr	end;

	XLogSegNoOffsetToRecPtr(segno, wal_segment_size - 1, wal_segment_size, end);
	if (end >= ((TimeLineHistoryEntry *) linitial(history))->begin)
		return newest;
	return tliOfPointInHistory(end, history);
}

static bool
segment_present(List *history, XLogSegNo segno, TimeLineID newest)
{
	char		name[MAXFNAMELEN];
	char		path[MAXPGPATH];
	struct stat st;

	XLogFileName(name, segment_timeline(history, segno, newest), segno,
				 wal_segment_size);
	snprintf(path, sizeof(path), XLOGDIR "/%s", name);
	return stat(path, &st) == 0 && st.st_size == wal_segment_size;
}

/*
 * First segment of the run of WAL here that ends with the last byte before
 * upto; one past that segment if even that is missing.  Cheap after the first call:
 * what was there is looked for only where it could have been removed.
 */
XLogSegNo
tandem_oldest_wal(TimeLineID timeline, XLogRecPtr upto)
{
	static TimeLineID known_timeline = 0;
	static XLogSegNo known_oldest = 0;
	static XLogSegNo known_newest = 0;
	List	   *history = readTimeLineHistory(timeline);
	XLogSegNo	newest;
	XLogSegNo	segno;

	/* replay may stand at the very beginning of a segment that isn't here yet */
	XLByteToPrevSeg(upto, newest, wal_segment_size);

	/* is what was known still there, at both ends? */
	if (known_timeline != timeline || known_newest > newest ||
		known_oldest > known_newest ||
		!segment_present(history, known_oldest, timeline) ||
		!segment_present(history, known_newest, timeline))
	{
		known_oldest = newest + 1;
		known_newest = newest;
	}
	else
	{
		/* extend upwards; a gap there means that the old run is no use */
		for (segno = known_newest + 1; segno <= newest; segno++)
		{
			if (!segment_present(history, segno, timeline))
			{
				known_oldest = newest + 1;
				break;
			}
		}
		known_newest = newest;
	}
	known_timeline = timeline;

	while (known_oldest > 1 &&
		   segment_present(history, known_oldest - 1, timeline))
		known_oldest--;
	list_free_deep(history);
	return known_oldest;
}

/* One chunk of a file of the primary, palloc'd, or NULL if there is no file. */
static bytea *
fetch_chunk(TandemRemote *remote, const char *name, int64 start, int length)
{
	const Oid	types[3] = {TEXTOID, INT8OID, INT4OID};
	const char *values[3];
	const int	lengths[3] = {0, 0, 0};
	const int	formats[3] = {0, 0, 0};
	char		start_text[32];
	char		length_text[32];
	PGresult   *res;
	bytea	   *result = NULL;

	snprintf(start_text, sizeof(start_text), INT64_FORMAT, start);
	snprintf(length_text, sizeof(length_text), "%d", length);
	values[0] = name;
	values[1] = start_text;
	values[2] = length_text;
	res = tandem_remote_query(remote,
							  "SELECT tandem.source_wal($1, $2, $3)",
							  3, types, values, lengths, formats, FETCH_TIMEOUT);
	if (PQntuples(res) == 1 && !PQgetisnull(res, 0, 0))
	{
		int			len = PQgetlength(res, 0, 0);

		result = palloc(len + VARHDRSZ);
		SET_VARSIZE(result, len + VARHDRSZ);
		memcpy(VARDATA(result), PQgetvalue(res, 0, 0), len);
	}
	PQclear(res);
	return result;
}

/* Is this the beginning of that segment of this cluster? */
static void
verify_segment_header(const char *page, const char *name, TimeLineID timeline,
					  XLogSegNo segno)
{
	XLogLongPageHeaderData header;	/* page need not be aligned */
	XLogRecPtr	address;

	memcpy(&header, page, sizeof(header));
	XLogSegNoOffsetToRecPtr(segno, 0, wal_segment_size, address);
	if (header.std.xlp_magic != XLOG_PAGE_MAGIC ||
		(header.std.xlp_info & XLP_LONG_HEADER) == 0 ||
		header.std.xlp_pageaddr != address ||
		header.std.xlp_tli > timeline ||
		header.xlp_sysid != GetSystemIdentifier() ||
		header.xlp_seg_size != (uint32) wal_segment_size ||
		header.xlp_xlog_blcksz != XLOG_BLCKSZ)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the primary sent a file that is not WAL segment %s of this cluster",
						name)));
}

/*
 * Fetches one file of pg_wal and installs it.  False if the primary doesn't
 * have it.  size is the exact size, or 0 for a history file.
 */
static bool
fetch_file(TandemRemote *remote, const char *name, int size,
		   TimeLineID timeline, XLogSegNo segno)
{
	char		path[MAXPGPATH];
	const char *tmppath = XLOGDIR "/" FETCH_TMP;
	int			fd;
	int64		done = 0;

	snprintf(path, sizeof(path), XLOGDIR "/%s", name);
	fd = tandem_tmpfile_create(tmppath);
	do
	{
		bytea	   *chunk = fetch_chunk(remote, name, done, FETCH_CHUNK);
		int			len;

		if (chunk == NULL)
		{
			CloseTransientFile(fd);
			unlink(tmppath);
			return false;
		}
		len = VARSIZE(chunk) - VARHDRSZ;
		if (size > 0 && done == 0 && len >= (int) sizeof(XLogLongPageHeaderData))
			verify_segment_header(VARDATA(chunk), name, timeline, segno);
		tandem_tmpfile_write(fd, tmppath, VARDATA(chunk), len, done);
		done += len;
		pfree(chunk);
		if (len < FETCH_CHUNK)
			break;
	} while (size == 0 || done < size);

	if (size > 0 && done != size)
	{
		CloseTransientFile(fd);
		unlink(tmppath);
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the primary sent %lld bytes of WAL segment %s, expected %d",
						(long long) done, name, size)));
	}
	tandem_tmpfile_close(fd, tmppath);

	XLogArchiveForceDone(name);
	(void) durable_rename(tmppath, path, ERROR);
	return true;
}

/*
 * Fetches WAL downwards from the oldest segment here until segment "from" is
 * here, at most limit bytes now.  *oldest is moved along.  Returns the number
 * of bytes fetched; raises an error if the primary doesn't have a segment.
 */
uint64
tandem_fetch_wal(TandemRemote *remote, TimeLineID timeline, XLogSegNo from,
				 XLogSegNo *oldest, uint64 limit)
{
	List	   *history = readTimeLineHistory(timeline);
	uint64		fetched = 0;

	while (*oldest > from && fetched < limit)
	{
		XLogSegNo	segno = *oldest - 1;
		TimeLineID	tli = segment_timeline(history, segno, timeline);
		char		name[MAXFNAMELEN];

		if (segno <= XLogGetLastRemovedSegno())
			break;
		if (tli > 1)
		{
			char		path[MAXPGPATH];
			struct stat st;

			/* readers of that segment want its timeline's history as well */
			TLHistoryFilePath(path, tli);
			TLHistoryFileName(name, tli);
			if (stat(path, &st) < 0 && errno == ENOENT &&
				!fetch_file(remote, name, 0, tli, 0))
				ereport(ERROR,
						(errcode_for_file_access(),
						 errmsg("the primary doesn't have timeline history file %s",
								name)));
		}
		XLogFileName(name, tli, segno, wal_segment_size);
		if (!fetch_file(remote, name, wal_segment_size, tli, segno))
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("the primary no longer has WAL segment %s", name),
					 errhint("The slot can't be kept here; recreate it on the primary.")));
		fetched += wal_segment_size;
		*oldest = segno;
		CHECK_FOR_INTERRUPTS();
	}
	list_free_deep(history);
	return fetched;
}
