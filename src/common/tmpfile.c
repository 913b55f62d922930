/*-------------------------------------------------------------------------
 *
 * tmpfile.c
 *	  Files written under a temporary name, to be renamed once complete.
 *
 * Create, write in any number of pieces, close; the caller then gives the file
 * its name.  Each step raises an error if it fails, a full disk included, and
 * leaves no file behind.
 *
 * src/common/tmpfile.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "port/pg_iovec.h"
#include "storage/fd.h"

#include "common/compat.h"
#include "common/tmpfile.h"

/* Closes and removes the file, then raises the error that errno says. */
static void pg_attribute_noreturn()
give_up(int fd, const char *path, const char *fmt)
{
	int			save_errno = errno;

	CloseTransientFile(fd);
	unlink(path);
	errno = save_errno;
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg(fmt, path)));
	pg_unreachable();
}

/* Creates a file, or empties one that a crash has left. */
int
tandem_tmpfile_create(const char *path)
{
	int			fd = OpenTransientFile(path, O_CREAT | O_TRUNC | O_RDWR | PG_BINARY);

	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", path)));
	return fd;
}

/* Writes len bytes at an offset. */
void
tandem_tmpfile_write(int fd, const char *path, const void *data, size_t len,
					 off_t offset)
{
	size_t		done = 0;

	while (done < len)
	{
		ssize_t		n;

		errno = 0;
		n = pg_pwrite(fd, (const char *) data + done, len - done, offset + done);
		if (n <= 0)
		{
			/* if the write didn't set errno, assume that the disk is full */
			if (errno == 0)
				errno = ENOSPC;
			give_up(fd, path, "could not write to file \"%s\": %m");
		}
		done += n;
	}
}

/* Makes the content durable and closes the file; its name is the caller's. */
void
tandem_tmpfile_close(int fd, const char *path)
{
	if (pg_fsync(fd) != 0)
		give_up(fd, path, "could not fsync file \"%s\": %m");
	if (CloseTransientFile(fd) != 0)
	{
		int			save_errno = errno;

		unlink(path);
		errno = save_errno;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", path)));
	}
}
