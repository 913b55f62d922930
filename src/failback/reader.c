/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Reading pages of any relation of the cluster, from one database.
 *
 * A node that is rejoined copies single pages from here.  It needs each as the
 * buffer manager has it now: the file may lack changes for as long as a
 * checkpoint interval.  But a page must not be brought into shared buffers by
 * this: we hold no lock on its relation, whose database we may not even be
 * connected to, so the relation could be dropped right before, and a valid
 * buffer of it would stay behind for whoever gets its number next.
 *
 * So: look for the page in the mapping table, under its partition lock.
 *	 There:		give up the lock and pin it with ReadRecentBuffer(), which looks
 *				again whether it is still that page; copy it under its content
 *				lock.  If it has gone meanwhile, begin again.
 *	 Not there: read the file while still holding the partition lock, shared.
 *				As long as we do, nobody can bring the page in, and a page that
 *				isn't in a buffer isn't written, so what we read is whole and
 *				the newest.  (A buffer leaves the table only after it has been
 *				written.)
 * The files are opened by us and not through smgr, so that nothing of a dropped
 * relation lingers, and a file that shrinks meanwhile simply ends earlier.
 *
 * Called by source_blocks.c.
 *
 * src/failback/reader.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/fd.h"
#include "storage/lwlock.h"

#include "failback/reader.h"

/* Tries before a page that is neither in a buffer nor out of it is an error. */
#define MOST_TRIES 10000
#define PAUSE_US 1000

void
tandem_reader_init(TandemBlockReader *reader)
{
	memset(reader, 0, sizeof(*reader));
	reader->fd = -1;
}

void
tandem_reader_close(TandemBlockReader *reader)
{
	if (reader->fd >= 0)
		CloseTransientFile(reader->fd);
	tandem_reader_init(reader);
}

/* Path of a segment; palloc'd. */
static char *
segment_path(RelFileNode rnode, ForkNumber fork, uint32 segment)
{
	char	   *path = relpathperm(rnode, fork);

	return segment == 0 ? path : psprintf("%s.%u", path, segment);
}

/* Opens the segment of a block, unless it is open already. */
static void
open_segment(TandemBlockReader *reader, RelFileNode rnode, ForkNumber fork, uint32 segment)
{
	char	   *path;

	if (reader->opened && RelFileNodeEquals(reader->rnode, rnode) &&
		reader->fork == fork && reader->segment == segment)
		return;
	tandem_reader_close(reader);
	path = segment_path(rnode, fork, segment);
	reader->fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (reader->fd < 0 && errno != ENOENT)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	reader->rnode = rnode;
	reader->fork = fork;
	reader->segment = segment;
	reader->opened = true;
	pfree(path);
}

/* From the file; caller holds the partition lock.  False if it isn't there. */
static bool
read_file(TandemBlockReader *reader, BlockNumber block, char *page)
{
	ssize_t		n;

	if (reader->fd < 0)
		return false;
	n = pg_pread(reader->fd, page, BLCKSZ, (off_t) (block % RELSEG_SIZE) * BLCKSZ);
	if (n < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read block %u in file \"%s\": %m", block,
						segment_path(reader->rnode, reader->fork, reader->segment))));
	return n == BLCKSZ;
}

static void
check_page(TandemBlockReader *reader, BlockNumber block, char *page)
{
	if (PageIsNew(page) || !DataChecksumsEnabled())
		return;
	if (pg_checksum_page(page, block) != ((PageHeader) page)->pd_checksum)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("invalid page in block %u of file \"%s\"", block,
						segment_path(reader->rnode, reader->fork, reader->segment))));
}

bool
tandem_reader_read(TandemBlockReader *reader, RelFileNode rnode, ForkNumber fork,
				   BlockNumber block, char *page)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *partition;
	int			tries;

	memset(&tag, 0, sizeof(tag));
	INIT_BUFFERTAG(tag, rnode, fork, block);
	hash = BufTableHashCode(&tag);
	partition = BufMappingPartitionLock(hash);

	/* not under the lock: it allocates */
	open_segment(reader, rnode, fork, block / RELSEG_SIZE);

	for (tries = 0; tries < MOST_TRIES; tries++)
	{
		int			id;

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(partition, LW_SHARED);
		id = BufTableLookup(&tag, hash);
		if (id < 0)
		{
			bool		found = read_file(reader, block, page);

			LWLockRelease(partition);
			if (found)
				check_page(reader, block, page);
			return found;
		}
		LWLockRelease(partition);

		if (ReadRecentBuffer(rnode, fork, block, id + 1))
		{
			LockBuffer(id + 1, BUFFER_LOCK_SHARE);
			memcpy(page, BufferGetPage(id + 1), BLCKSZ);
			UnlockReleaseBuffer(id + 1);
			return true;
		}
		/* it has just left, or is being read in: look again */
		if (tries > 10)
			pg_usleep(PAUSE_US);
	}
	ereport(ERROR,
			(errcode(ERRCODE_IO_ERROR),
			 errmsg("block %u of file \"%s\" could not be read into a buffer by another process",
					block, segment_path(rnode, fork, block / RELSEG_SIZE))));
}

int64
tandem_reader_blocks(RelFileNode rnode, ForkNumber fork)
{
	int64		blocks = 0;
	uint32		segment;

	for (segment = 0;; segment++)
	{
		char	   *path = segment_path(rnode, fork, segment);
		struct stat st;

		if (stat(path, &st) != 0)
		{
			if (errno != ENOENT)
				ereport(ERROR,
						(errcode_for_file_access(),
						 errmsg("could not stat file \"%s\": %m", path)));
			return segment == 0 ? -1 : blocks;
		}
		pfree(path);
		blocks += st.st_size / BLCKSZ;
		if (st.st_size < (off_t) RELSEG_SIZE * BLCKSZ)
			return blocks;
	}
}
