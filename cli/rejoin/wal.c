/*-------------------------------------------------------------------------
 *
 * wal.c
 *	  Reading the WAL of a data directory whose server doesn't run.
 *
 * "tandem rejoin" decides by what is in local WAL which pages and files to
 * repair, so a record that is there must never be missed, and bytes that the
 * server's recovery would not replay must never be taken for a record.  The
 * rules are those of recovery, from the format that access/xlogrecord.h and
 * access/xlog_internal.h define:
 *
 * - A page counts if its header has this version's magic, only known flags,
 *   its own address, and the timeline that the history gives for that address.
 *   That rejects pages of recycled files and of abandoned timelines.
 * - A record counts if it links back to the record before it and its CRC is
 *   right.  It may go on over any number of pages; each says how much is left.
 * - A record whose rest was lost in a crash is followed by a page that says so
 *   (XLP_FIRST_IS_OVERWRITE_CONTRECORD).  It never happened; what follows is
 *   on that page, and the first record there names the one it replaces.
 * - After XLOG_SWITCH the rest of the segment holds nothing.
 *
 * Which file a segment is read from: a new timeline starts with a copy of the
 * segment it forked in, so the newest timeline that has begun by the end of
 * the segment is asked first, then its ancestors.  An ancestor's file is never
 * used at or past the point where it was left: what is there belongs to nobody
 * in this history.  Files in pg_wal come before those the caller can fetch.
 *
 * State: "next" is where the next record begins, "prev" the record before it
 * (unknown after a seek).  A read that fails changes nothing and can be tried
 * again.  Memory: a window, and the longest record that crossed a page.
 * Nothing is trusted for an allocation or an offset before it was checked.
 *
 * Called by the planning and cutting parts of rejoin.
 *
 * cli/rejoin/wal.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <unistd.h>

#include "catalog/pg_control.h"
#include "common/logging.h"
#include "rejoin/wal.h"

/* Read at once.  Divides every segment size, and is a multiple of the page size. */
#define WINDOW (1024 * 1024)

struct WalReader
{
	char	   *dir;
	const TimeLineHistoryEntry *history;
	int			nhistory;
	uint32		segment_size;
	WalFetch	fetch;
	void	   *fetch_arg;

	/* The open segment; fd is -1 if there is none. */
	int			fd;
	char	   *path;
	XLogSegNo	segno;
	const TimeLineHistoryEntry *timeline;	/* whose file it is */

	/* Bytes of it, from "window_start" on. */
	char	   *window;
	XLogRecPtr	window_start;
	size_t		window_len;
	XLogRecPtr	good_page;		/* last page whose header was checked */
	uint64		system_identifier;	/* 0 until the first segment was opened */

	XLogRecPtr	next;
	XLogRecPtr	prev;			/* invalid after a seek */
	bool		skip;			/* "next" may be amid a record: skip its rest */

	char	   *record;			/* one that crosses pages, put together */
	size_t		record_size;
	char	   *data;			/* main data, aligned */
	size_t		data_size;

	uint64		bytes_read;
	char		missing[MAXFNAMELEN];
	char		error[MAXPGPATH + 256];
};

/* The unread rest of a record. */
typedef struct Cursor
{
	const char *at;
	uint32		left;
} Cursor;

static WalResult end_here(WalReader *reader, const char *fmt,...) pg_attribute_printf(2, 3);

WalReader *
wal_open(const char *wal_dir, const TimeLineHistoryEntry *history, int nhistory,
		 uint32 segment_size, WalFetch fetch, void *fetch_arg)
{
	WalReader  *reader = pg_malloc0(sizeof(WalReader));

	Assert(nhistory > 0 && IsValidWalSegSize(segment_size));
	reader->dir = pg_strdup(wal_dir);
	reader->history = history;
	reader->nhistory = nhistory;
	reader->segment_size = segment_size;
	reader->fetch = fetch;
	reader->fetch_arg = fetch_arg;
	reader->fd = -1;
	reader->window = pg_malloc(WINDOW);
	reader->skip = true;
	return reader;
}

static void
close_segment(WalReader *reader)
{
	if (reader->fd >= 0)
		close(reader->fd);
	reader->fd = -1;
	pg_free(reader->path);
	reader->path = NULL;
	reader->window_len = 0;
	reader->good_page = InvalidXLogRecPtr;
}

void
wal_close(WalReader *reader)
{
	close_segment(reader);
	pg_free(reader->dir);
	pg_free(reader->window);
	pg_free(reader->record);
	pg_free(reader->data);
	pg_free(reader);
}

/* Notes why there is no record. */
static WalResult
end_here(WalReader *reader, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	vsnprintf(reader->error, sizeof(reader->error), fmt, args);
	va_end(args);
	return WAL_END;
}

/* ---- Files --------------------------------------------------------------- */

static bool
open_file(WalReader *reader, char *path)
{
	reader->fd = open(path, O_RDONLY | PG_BINARY, 0);
	if (reader->fd < 0)
	{
		if (errno != ENOENT)
		{
			pg_log_error("could not open file \"%s\": %m", path);
			pg_log_error_hint("Run the command as the user that the server runs as.");
			exit(1);
		}
		pg_free(path);
		return false;
	}
	reader->path = path;
	return true;
}

/* Opens the file that holds "lsn", see the top, or names the one to ask for. */
static bool
open_segment(WalReader *reader, XLogRecPtr lsn)
{
	XLogSegNo	segno = lsn / reader->segment_size;

	close_segment(reader);
	reader->segno = segno;
	reader->missing[0] = '\0';
	for (int fetching = 0; fetching <= (reader->fetch ? 1 : 0); fetching++)
	{
		for (int i = reader->nhistory - 1; i >= 0; i--)
		{
			const TimeLineHistoryEntry *entry = &reader->history[i];
			char		name[MAXFNAMELEN];
			char	   *path;

			if (entry->begin / reader->segment_size > segno)
				continue;
			if (entry->end != InvalidXLogRecPtr && lsn >= entry->end)
				break;

			XLogFileName(name, entry->tli, segno, reader->segment_size);
			if (reader->missing[0] == '\0')
				strlcpy(reader->missing, name, sizeof(reader->missing));
			if (fetching)
				path = reader->fetch(reader->fetch_arg, name);
			else
				path = psprintf("%s/%s", reader->dir, name);
			if (path && open_file(reader, path))
			{
				reader->timeline = entry;
				return true;
			}
		}
	}
	return false;
}

/* The bytes [lsn, lsn + len), all in one window; false if the file is shorter. */
static bool
window_at(WalReader *reader, XLogRecPtr lsn, size_t len, const char **content)
{
	XLogRecPtr	start = lsn - lsn % WINDOW;

	Assert(lsn % WINDOW + len <= WINDOW);
	if (reader->window_len == 0 || reader->window_start != start)
	{
		reader->window_start = start;
		reader->window_len = 0;
		while (reader->window_len < WINDOW)
		{
			ssize_t		n = pread(reader->fd, reader->window + reader->window_len,
							  WINDOW - reader->window_len,
							  (off_t) (start % reader->segment_size + reader->window_len));

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				pg_fatal("could not read file \"%s\": %m", reader->path);
			if (n == 0)
				break;
			reader->window_len += n;
			reader->bytes_read += n;
		}
	}
	*content = reader->window + lsn % WINDOW;
	return lsn % WINDOW + len <= reader->window_len;
}

/* The timeline that wrote the byte at "lsn". */
static TimeLineID
timeline_at(const WalReader *reader, XLogRecPtr lsn)
{
	int			i = 0;

	while (i < reader->nhistory - 1 && lsn >= reader->history[i].end)
		i++;
	return reader->history[i].tli;
}

static WalResult
check_page_header(WalReader *reader, XLogRecPtr page, XLogPageHeader header)
{
	const char *path = reader->path;
	bool		first = page % reader->segment_size == 0;

	if (header->xlp_magic == 0 && header->xlp_pageaddr == 0)
		return end_here(reader, "the page at %X/%X in \"%s\" was never written",
						LSN_FORMAT_ARGS(page), path);
	if (header->xlp_magic != XLOG_PAGE_MAGIC)
		return end_here(reader, "the page at %X/%X in \"%s\" has magic number %04X, not %04X",
						LSN_FORMAT_ARGS(page), path, header->xlp_magic, XLOG_PAGE_MAGIC);
	if ((header->xlp_info & ~XLP_ALL_FLAGS) != 0 ||
		(first && !(header->xlp_info & XLP_LONG_HEADER)))
		return end_here(reader, "the page at %X/%X in \"%s\" has unexpected flags %04X",
						LSN_FORMAT_ARGS(page), path, header->xlp_info);
	if (header->xlp_pageaddr != page)
		return end_here(reader, "the page at %X/%X in \"%s\" was left there as %X/%X",
						LSN_FORMAT_ARGS(page), path, LSN_FORMAT_ARGS(header->xlp_pageaddr));
	if (header->xlp_tli != timeline_at(reader, page))
		return end_here(reader, "the page at %X/%X in \"%s\" is of timeline %u, not %u",
						LSN_FORMAT_ARGS(page), path, header->xlp_tli, timeline_at(reader, page));
	if (header->xlp_info & XLP_LONG_HEADER)
	{
		XLogLongPageHeader longer = (XLogLongPageHeader) header;

		if (longer->xlp_seg_size != reader->segment_size ||
			longer->xlp_xlog_blcksz != XLOG_BLCKSZ)
			return end_here(reader, "\"%s\" has segments of %u bytes and pages of %u bytes, not %u and %u",
							path, longer->xlp_seg_size, longer->xlp_xlog_blcksz,
							reader->segment_size, XLOG_BLCKSZ);
		if (reader->system_identifier == 0)
			reader->system_identifier = longer->xlp_sysid;
		if (longer->xlp_sysid != reader->system_identifier)
			return end_here(reader, "\"%s\" is from another database system", path);
	}
	return WAL_RECORD;
}

static WalResult
load_page(WalReader *reader, XLogRecPtr page, const char **content)
{
	WalResult	result;

	if (!window_at(reader, page, XLOG_BLCKSZ, content))
		return end_here(reader, "\"%s\" ends before its page at %X/%X",
						reader->path, LSN_FORMAT_ARGS(page));
	if (page == reader->good_page)
		return WAL_RECORD;
	result = check_page_header(reader, page, (XLogPageHeader) *content);
	if (result == WAL_RECORD)
		reader->good_page = page;
	return result;
}

/* Opens the file that has "page", of which the bytes from "lsn" on are wanted. */
static WalResult
enter_segment(WalReader *reader, XLogRecPtr page, XLogRecPtr lsn)
{
	XLogRecPtr	first = page - page % reader->segment_size;
	const char *content;

	if (reader->fd >= 0 && reader->segno == page / reader->segment_size &&
		(reader->timeline->end == InvalidXLogRecPtr || lsn < reader->timeline->end))
		return WAL_RECORD;
	if (!open_segment(reader, lsn))
		return WAL_MISSING;

	/* A file is told by its first page, wherever reading begins. */
	if (load_page(reader, first, &content) != WAL_RECORD)
	{
		close_segment(reader);
		return WAL_END;
	}
	return WAL_RECORD;
}

/*
 * The whole page at "page" with a good header, of which the bytes from "lsn" on
 * are wanted.  WAL_RECORD means success.  *content lives until the next call.
 */
static WalResult
get_page(WalReader *reader, XLogRecPtr page, XLogRecPtr lsn, const char **content)
{
	WalResult	result = enter_segment(reader, page, lsn);

	return result == WAL_RECORD ? load_page(reader, page, content) : result;
}

/* ---- Records ------------------------------------------------------------- */

static bool
take(Cursor *cursor, void *to, uint32 len)
{
	if (cursor->left < len)
		return false;
	memcpy(to, cursor->at, len);
	cursor->at += len;
	cursor->left -= len;
	return true;
}

/*
 * Reads a block reference after its id.  *payload grows by what it has further
 * on in the record.  rel is the relation of the reference before, and becomes
 * this one's.
 */
static bool
take_block(Cursor *cursor, WalBlock *block, RelFile **rel, uint64 *payload)
{
	uint8		flags;
	uint16		data_len;

	if (!take(cursor, &flags, sizeof(flags)) || !take(cursor, &data_len, sizeof(data_len)))
		return false;
	if (((flags & BKPBLOCK_HAS_DATA) != 0) != (data_len > 0))
		return false;
	if ((flags & BKPBLOCK_FORK_MASK) > MAX_FORKNUM)
		return false;
	block->fork = (ForkNumber) (flags & BKPBLOCK_FORK_MASK);
	block->init = (flags & BKPBLOCK_WILL_INIT) != 0;
	block->image = false;
	*payload += data_len;

	if (flags & BKPBLOCK_HAS_IMAGE)
	{
		uint16		length;
		uint16		hole_offset;
		uint16		hole_length;
		uint8		info;

		if (!take(cursor, &length, sizeof(length)) ||
			!take(cursor, &hole_offset, sizeof(hole_offset)) ||
			!take(cursor, &info, sizeof(info)))
			return false;
		if (BKPIMAGE_COMPRESSED(info) && (info & BKPIMAGE_HAS_HOLE) &&
			!take(cursor, &hole_length, sizeof(hole_length)))
			return false;
		if (length > BLCKSZ)
			return false;
		block->image = (info & BKPIMAGE_APPLY) != 0;
		*payload += length;
	}

	if (!(flags & BKPBLOCK_SAME_REL))
	{
		if (!take(cursor, &block->rel, sizeof(RelFile)))
			return false;
	}
	else if (*rel)
		block->rel = **rel;
	else
		return false;
	*rel = &block->rel;

	return take(cursor, &block->block, sizeof(BlockNumber));
}

/* Takes a record apart that has been checked; false if it makes no sense. */
static bool
decode(WalReader *reader, const XLogRecord *header, WalRecord *record)
{
	Cursor		cursor;
	RelFile	   *rel = NULL;
	int			last_id = -1;
	uint64		payload = 0;	/* of blocks, main data */
	uint32		data_len = 0;
	bool		done = false;

	cursor.at = (const char *) header + SizeOfXLogRecord;
	cursor.left = header->xl_tot_len - SizeOfXLogRecord;
	record->prev = header->xl_prev;
	record->xid = header->xl_xid;
	record->rmid = header->xl_rmid;
	record->info = header->xl_info;
	record->origin = 0;
	record->top_xid = InvalidTransactionId;
	record->nblocks = 0;

	/* Headers of the parts, until only the parts are left. */
	while (!done && cursor.left > payload)
	{
		uint8		id;

		if (!take(&cursor, &id, sizeof(id)))
			return false;
		if (id <= XLR_MAX_BLOCK_ID)
		{
			WalBlock   *block = &record->blocks[record->nblocks++];

			if (id <= last_id)
				return false;
			last_id = block->id = id;
			if (!take_block(&cursor, block, &rel, &payload))
				return false;
		}
		else if (id == XLR_BLOCK_ID_DATA_SHORT)
		{
			uint8		len;

			if (!take(&cursor, &len, sizeof(len)))
				return false;
			data_len = len;
			done = true;
		}
		else if (id == XLR_BLOCK_ID_DATA_LONG)
		{
			if (!take(&cursor, &data_len, sizeof(data_len)))
				return false;
			done = true;
		}
		else if (id == XLR_BLOCK_ID_ORIGIN)
		{
			if (!take(&cursor, &record->origin, sizeof(record->origin)))
				return false;
		}
		else if (id == XLR_BLOCK_ID_TOPLEVEL_XID)
		{
			if (!take(&cursor, &record->top_xid, sizeof(record->top_xid)))
				return false;
		}
		else
			return false;
	}
	if (cursor.left != payload + data_len)
		return false;

	if (reader->data_size < data_len || reader->data == NULL)
	{
		reader->data_size = Max(data_len, BLCKSZ);
		pg_free(reader->data);
		reader->data = pg_malloc(reader->data_size);
	}
	memcpy(reader->data, cursor.at + payload, data_len);
	record->data = reader->data;
	record->data_len = data_len;
	return true;
}

static bool
checksum_matches(const XLogRecord *header)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, (const char *) header + SizeOfXLogRecord,
				header->xl_tot_len - SizeOfXLogRecord);
	COMP_CRC32C(crc, header, offsetof(XLogRecord, xl_crc));
	FIN_CRC32C(crc);
	return EQ_CRC32C(crc, header->xl_crc);
}

/* What can be said of a record from its header alone. */
static WalResult
check_record_header(WalReader *reader, XLogRecPtr lsn, const XLogRecord *header)
{
	if (header->xl_tot_len < SizeOfXLogRecord)
		return end_here(reader, "there is no record at %X/%X", LSN_FORMAT_ARGS(lsn));
	if (!RmgrIdIsValid(header->xl_rmid))
		return end_here(reader, "the bytes at %X/%X are no record: resource manager %u",
						LSN_FORMAT_ARGS(lsn), header->xl_rmid);
	if (reader->prev != InvalidXLogRecPtr ? header->xl_prev != reader->prev : header->xl_prev >= lsn)
		return end_here(reader, "the record at %X/%X follows one at %X/%X, which isn't the one before it",
						LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(header->xl_prev));
	return WAL_RECORD;
}

/*
 * Puts the record at "lsn" together, of which "first" bytes are on its first
 * page.  *end is where it ends.  *overwritten is set if a crash cut it off and
 * WAL goes on without it at *end.
 */
static WalResult
assemble(WalReader *reader, XLogRecPtr lsn, const char *start, uint32 first, uint32 total,
		 bool header_checked, XLogRecPtr *end, bool *overwritten)
{
	XLogRecPtr	page = lsn - lsn % XLOG_BLCKSZ;
	uint32		got = first;

	*overwritten = false;
	if (reader->record == NULL)
	{
		reader->record_size = 8 * XLOG_BLCKSZ;
		reader->record = pg_malloc(reader->record_size);
	}
	memcpy(reader->record, start, first);

	while (got < total)
	{
		const char *content;
		XLogPageHeader header;
		uint32		header_size;
		uint32		len;
		WalResult	result;

		page += XLOG_BLCKSZ;
		result = get_page(reader, page, page, &content);
		if (result != WAL_RECORD)
			return result;
		header = (XLogPageHeader) content;
		if (header->xlp_info & XLP_FIRST_IS_OVERWRITE_CONTRECORD)
		{
			*overwritten = true;
			*end = page;
			return WAL_RECORD;
		}
		if (!(header->xlp_info & XLP_FIRST_IS_CONTRECORD) ||
			header->xlp_rem_len != total - got)
			return end_here(reader, "the record at %X/%X doesn't go on at %X/%X",
							LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(page));

		header_size = XLogPageHeaderSize(header);
		len = Min(total - got, XLOG_BLCKSZ - header_size);
		if (reader->record_size - got < len)
		{
			reader->record_size *= 2;
			reader->record = pg_realloc(reader->record, reader->record_size);
		}
		memcpy(reader->record + got, content + header_size, len);
		got += len;
		*end = page + header_size + MAXALIGN(len);

		if (!header_checked)
		{
			result = check_record_header(reader, lsn, (XLogRecord *) reader->record);
			if (result != WAL_RECORD)
				return result;
			header_checked = true;
		}
	}
	return WAL_RECORD;
}

/*
 * Finds where the first record begins that doesn't begin before the page at
 * *lsn, if what is there first is the rest of an earlier one.
 */
static WalResult
skip_rest(WalReader *reader, XLogRecPtr *lsn)
{
	XLogRecPtr	page = *lsn;
	uint32		left = 0;

	for (;;)
	{
		const char *content;
		XLogPageHeader header;
		uint32		header_size;
		WalResult	result = get_page(reader, page, page, &content);

		if (result != WAL_RECORD)
			return result;
		header = (XLogPageHeader) content;
		header_size = XLogPageHeaderSize(header);
		if (!(header->xlp_info & XLP_FIRST_IS_CONTRECORD))
		{
			if (left > 0 && !(header->xlp_info & XLP_FIRST_IS_OVERWRITE_CONTRECORD))
				return end_here(reader, "the record before %X/%X doesn't go on there",
								LSN_FORMAT_ARGS(page));
			*lsn = page;
			return WAL_RECORD;
		}
		if (left > 0 && header->xlp_rem_len != left)
			return end_here(reader, "the record before %X/%X doesn't go on there",
							LSN_FORMAT_ARGS(page));
		left = header->xlp_rem_len;
		if (left <= XLOG_BLCKSZ - header_size)
		{
			*lsn = page + header_size + MAXALIGN(left);
			return WAL_RECORD;
		}
		left -= XLOG_BLCKSZ - header_size;
		page += XLOG_BLCKSZ;
	}
}

/*
 * Reads the record that begins at or just after "lsn".  "replaces", if valid,
 * is the record cut by a crash that it must name.  Otherwise as assemble().
 */
static WalResult
read_one(WalReader *reader, XLogRecPtr lsn, XLogRecPtr replaces, WalRecord *record, bool *overwritten)
{
	XLogRecPtr	page = lsn - lsn % XLOG_BLCKSZ;
	uint32		offset = lsn % XLOG_BLCKSZ;
	const char *content;
	uint32		header_size;
	uint32		room;
	const XLogRecord *header;
	WalResult	result;
	bool		whole_header;

	*overwritten = false;
	result = get_page(reader, page, lsn, &content);
	if (result != WAL_RECORD)
		return result;
	header_size = XLogPageHeaderSize((XLogPageHeader) content);
	if (offset == 0)
	{
		offset = header_size;
		lsn += header_size;
	}
	if (offset < header_size || lsn != MAXALIGN64(lsn))
		return end_here(reader, "no record can begin at %X/%X", LSN_FORMAT_ARGS(lsn));
	if (offset == header_size &&
		(((XLogPageHeader) content)->xlp_info & XLP_FIRST_IS_CONTRECORD))
		return end_here(reader, "what is at %X/%X is the rest of a record",
						LSN_FORMAT_ARGS(lsn));

	/* The length is on this page, being aligned; the rest needn't be. */
	header = (const XLogRecord *) (content + offset);
	room = XLOG_BLCKSZ - offset;
	whole_header = room >= SizeOfXLogRecord;
	if (!whole_header && header->xl_tot_len < SizeOfXLogRecord)
		return end_here(reader, "there is no record at %X/%X", LSN_FORMAT_ARGS(lsn));
	if (whole_header)
	{
		result = check_record_header(reader, lsn, header);
		if (result != WAL_RECORD)
			return result;
	}
	record->lsn = lsn;
	record->tli = reader->timeline->tli;
	if (header->xl_tot_len <= room)
		record->end = lsn + MAXALIGN(header->xl_tot_len);
	else
	{
		result = assemble(reader, lsn, content + offset, room, header->xl_tot_len,
						  whole_header, &record->end, overwritten);
		if (result != WAL_RECORD || *overwritten)
			return result;
		header = (const XLogRecord *) reader->record;
	}

	if (!checksum_matches(header))
		return end_here(reader, "the record at %X/%X has a wrong checksum", LSN_FORMAT_ARGS(lsn));
	if (!decode(reader, header, record))
		return end_here(reader, "the record at %X/%X is malformed", LSN_FORMAT_ARGS(lsn));

	if (replaces != InvalidXLogRecPtr)
	{
		xl_overwrite_contrecord named;

		if (record->rmid != RM_XLOG_ID || record->data_len < sizeof(named) ||
			(record->info & ~XLR_INFO_MASK) != XLOG_OVERWRITE_CONTRECORD)
			return end_here(reader, "the record at %X/%X doesn't replace the one at %X/%X",
							LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(replaces));
		memcpy(&named, record->data, sizeof(named));
		if (named.overwritten_lsn != replaces)
			return end_here(reader, "the record at %X/%X replaces one at %X/%X, not the one at %X/%X",
							LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(named.overwritten_lsn),
							LSN_FORMAT_ARGS(replaces));
	}
	if (record->rmid == RM_XLOG_ID && (record->info & ~XLR_INFO_MASK) == XLOG_SWITCH &&
		record->end % reader->segment_size != 0)
		record->end += reader->segment_size - record->end % reader->segment_size;
	return WAL_RECORD;
}

WalResult
wal_read(WalReader *reader, WalRecord *record)
{
	XLogRecPtr	lsn = reader->next;
	XLogRecPtr	replaces = InvalidXLogRecPtr;
	bool		overwritten;
	WalResult	result;

	reader->error[0] = '\0';
	if (reader->skip && lsn % XLOG_BLCKSZ == 0)
	{
		result = skip_rest(reader, &lsn);
		if (result != WAL_RECORD)
			return result;
	}
	for (;;)
	{
		result = read_one(reader, lsn, replaces, record, &overwritten);
		if (result != WAL_RECORD)
			return result;
		if (!overwritten)
			break;
		replaces = record->lsn;
		lsn = record->end;
	}
	reader->prev = record->lsn;
	reader->next = record->end;
	reader->skip = false;
	return WAL_RECORD;
}

void
wal_seek(WalReader *reader, XLogRecPtr lsn)
{
	reader->next = lsn;
	reader->prev = InvalidXLogRecPtr;
	reader->skip = true;
}

WalResult
wal_read_at(WalReader *reader, XLogRecPtr lsn, WalRecord *record)
{
	wal_seek(reader, lsn);
	return wal_read(reader, record);
}

XLogRecPtr
wal_position(const WalReader *reader)
{
	return reader->next;
}

const char *
wal_error(const WalReader *reader)
{
	return reader->error;
}

const char *
wal_missing_segment(const WalReader *reader)
{
	return reader->missing;
}

uint64
wal_bytes_read(const WalReader *reader)
{
	return reader->bytes_read;
}

bool
wal_read_raw(WalReader *reader, XLogRecPtr lsn, char *to, size_t len)
{
	while (len > 0)
	{
		XLogRecPtr	page = lsn - lsn % XLOG_BLCKSZ;
		size_t		part = Min(len, XLOG_BLCKSZ - lsn % XLOG_BLCKSZ);
		const char *content;

		/* pages after XLOG_SWITCH have no header */
		if (enter_segment(reader, page, lsn) != WAL_RECORD ||
			!window_at(reader, page, XLOG_BLCKSZ, &content))
			return false;
		memcpy(to, content + lsn % XLOG_BLCKSZ, part);
		to += part;
		lsn += part;
		len -= part;
	}
	return true;
}
