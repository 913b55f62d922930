/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Reads blocks of any relation, of any database, as new as can be.
 *
 * A node that rejoins needs pages that hold all that was done before it asked,
 * also what is in shared buffers only.  Files alone don't have that.  Reading
 * through ReadBuffer does, but it would load pages of other databases into
 * shared buffers without a lock on the relation: dropped meanwhile, a valid
 * buffer would stay behind and wait for a relation that gets the same file
 * number.  So a block is copied from where it is and nothing is loaded:
 *
 *	 in shared buffers	pinned, copied under its content lock
 *	 not there			read from the file while its buffer mapping lock is held
 *
 * The mapping lock (shared) keeps the block out of shared buffers during the
 * read: nobody can load it, hence change it, hence write it, and what was
 * evicted before has been written before its mapping was removed.  So the read
 * sees the newest image, and no write of half a page.  It is held for one read
 * of a page that was read just before without it, so for a copy out of the
 * kernel's cache rather than for a disk.
 *
 * A buffer that is mapped but not valid is being read or extended, which is
 * waited for, or that has failed; then the file is read as above.  It can
 * become valid meanwhile and even be written, but valid it stays until somebody
 * takes the mapping lock exclusively; seen not valid before and after, the
 * file wasn't written.
 *
 * Files are opened here and not through smgr, because they may vanish or
 * shrink at any moment: for us that is an answer ("not there"), for smgr an
 * error.  None is open between two calls.
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
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/wait_event.h"

#include "common/compat.h"
#include "failback/reader.h"

#define MAX_READS 3				/* of a page that fails verification */

typedef enum BlockState
{
	BLOCK_READ,					/* from the file */
	BLOCK_COPIED,				/* from shared buffers */
	BLOCK_ABSENT,
	BLOCK_FAILED				/* errno says why */
} BlockState;

static const char *
segment_path(const TandemFork *fork, BlockNumber block, char *path)
{
	BlockNumber segment = block / ((BlockNumber) RELSEG_SIZE);

	TANDEM_RELATION_PATH(path, MAXPGPATH, fork->rel, fork->fork);
	if (segment > 0)
		snprintf(path + strlen(path), MAXPGPATH - strlen(path), ".%u", segment);
	return path;
}

/*
 * Length of a fork in blocks, -1 if it doesn't exist.  Valid buffers never lie
 * beyond the end of the file.
 */
int64
tandem_fork_length(const TandemFork *fork)
{
	BlockNumber segment;

	for (segment = 0; segment <= MaxBlockNumber / RELSEG_SIZE; segment++)
	{
		char		path[MAXPGPATH];
		struct stat st;

		segment_path(fork, segment * (BlockNumber) RELSEG_SIZE, path);
		if (stat(path, &st) != 0)
		{
			if (errno != ENOENT && errno != ENOTDIR)
				ereport(ERROR,
						(errcode_for_file_access(),
						 errmsg("could not stat file \"%s\": %m", path)));
			if (segment == 0)
				return -1;
			return (int64) segment * RELSEG_SIZE;
		}
		if (st.st_size < (off_t) RELSEG_SIZE * BLCKSZ)
			return (int64) segment * RELSEG_SIZE + st.st_size / BLCKSZ;
		CHECK_FOR_INTERRUPTS();
	}
	return (int64) segment * RELSEG_SIZE;
}

/* Waits until nobody reads or extends into the buffer (see WaitIO). */
static void
wait_for_io(BufferDesc *buf)
{
	ConditionVariable *cv = BufferDescriptorGetIOCV(buf);

	ConditionVariablePrepareToSleep(cv);
	for (;;)
	{
		uint32		state = LockBufHdr(buf);

		UnlockBufHdr(buf, state);
		if (!(state & BM_IO_IN_PROGRESS))
			break;
		ConditionVariableSleep(cv, WAIT_EVENT_BUFFER_IO);
	}
	ConditionVariableCancelSleep();
}

/* Is the buffer, whose mapping lock is held, neither valid nor on its way? */
static bool
buffer_failed(BufferDesc *buf)
{
	uint32		state = LockBufHdr(buf);

	UnlockBufHdr(buf, state);
	return !(state & (BM_VALID | BM_IO_IN_PROGRESS));
}

/* fd is -1 if the file doesn't exist */
static BlockState
read_from_file(int fd, BlockNumber block, char *page)
{
	off_t		offset = (off_t) (block % ((BlockNumber) RELSEG_SIZE)) * BLCKSZ;
	ssize_t		n;

	if (fd < 0)
		return BLOCK_ABSENT;
	do
	{
		n = pg_pread(fd, page, BLCKSZ, offset);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return BLOCK_FAILED;
	return n == BLCKSZ ? BLOCK_READ : BLOCK_ABSENT;
}

/* Raises no error while it holds the mapping lock. */
static BlockState
read_block(const TandemFork *fork, int fd, BlockNumber block, char *page)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	bool		warm = false;

	TANDEM_INIT_BUFFER_TAG(tag, fork->rel, fork->fork, block);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);

	for (;;)
	{
		BlockState	result;
		BufferDesc *buf = NULL;
		int			id;

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(lock, LW_SHARED);
		id = BufTableLookup(&tag, hash);
		if (id >= 0)
		{
			buf = GetBufferDescriptor(id);
			if (!buffer_failed(buf))
			{
				Buffer		buffer = BufferDescriptorGetBuffer(buf);

				LWLockRelease(lock);
				if (ReadRecentBuffer(fork->rel, fork->fork, block, buffer))
				{
					LockBuffer(buffer, BUFFER_LOCK_SHARE);
					memcpy(page, BufferGetPage(buffer), BLCKSZ);
					UnlockReleaseBuffer(buffer);
					return BLOCK_COPIED;
				}
				wait_for_io(buf);	/* or it has another page by now */
				continue;
			}
		}
		if (!warm)
		{
			/* let the kernel fetch it while nobody waits for us */
			LWLockRelease(lock);
			(void) read_from_file(fd, block, page);
			warm = true;
			continue;
		}
		result = read_from_file(fd, block, page);
		if (buf == NULL || buffer_failed(buf))
		{
			int			save_errno = errno;

			LWLockRelease(lock);
			errno = save_errno;
			return result;
		}
		LWLockRelease(lock);
	}
}

/*
 * Reads up to count blocks from first on into pages; all must lie in one
 * segment.  Returns how many there are before the end of the fork.  Their
 * checksums are right if the cluster has checksums.  Raises an error for a
 * page that fails verification, as reading it in a query would.
 */
int
tandem_read_blocks(const TandemFork *fork, BlockNumber first, int count, char *pages)
{
	char		path[MAXPGPATH];
	int			fd;
	int			done;

	Assert(count > 0);
	Assert(first / RELSEG_SIZE == (first + count - 1) / RELSEG_SIZE);
	segment_path(fork, first, path);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));

	for (done = 0; done < count; done++)
	{
		BlockNumber block = first + done;
		char	   *page = pages + (Size) done * BLCKSZ;
		BlockState	state = BLOCK_ABSENT;
		int			attempt;

		/*
		 * Who writes a new file without shared buffers (CREATE DATABASE, index
		 * builds) may be seen at work; read again.
		 */
		for (attempt = 0; attempt < MAX_READS; attempt++)
		{
			state = read_block(fork, fd, block, page);
			if (state != BLOCK_READ || TANDEM_PAGE_IS_VERIFIED(page, block))
				break;
		}
		if (attempt == MAX_READS)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("invalid page in block %u of relation %s", block, path),
					 errhint("Repair it here first, a page like this must not spread.")));
		if (state == BLOCK_FAILED)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read block %u in file \"%s\": %m", block, path)));
		if (state == BLOCK_ABSENT)
			break;
		if (state == BLOCK_COPIED)
			PageSetChecksumInplace(page, block);
	}
	if (fd >= 0)
		CloseTransientFile(fd);
	return done;
}
