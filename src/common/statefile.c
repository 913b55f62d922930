/*-------------------------------------------------------------------------
 *
 * statefile.c
 *	  Small durable files of ours in the data directory.
 *
 * Format: magic (4 bytes), CRC-32C of the rest (4), length of the content
 * (8), content; in the server's byte order.  A file is replaced as a whole by
 * durable_rename, so after a crash it is the old one or the new one.
 *
 * src/common/statefile.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/file_perm.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "common/statefile.h"
#include "common/tmpfile.h"

typedef struct StateFileHeader
{
	uint32		magic;
	pg_crc32c	crc;
	uint64		length;
} StateFileHeader;

static pg_crc32c
state_crc(const StateFileHeader *header, const void *content)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, &header->length, sizeof(header->length));
	COMP_CRC32C(crc, content, header->length);
	FIN_CRC32C(crc);
	return crc;
}

/*
 * Replaces pg_tandem/<name> durably.  Raises an error, with the old file
 * untouched, if that fails.
 */
void
tandem_statefile_write(const char *name, uint32 magic, const void *content,
					   size_t len)
{
	char		path[MAXPGPATH];
	char		tmppath[MAXPGPATH + 8];
	StateFileHeader header;
	int			fd;

	if (MakePGDirectory(TANDEM_STATE_DIR) == 0)
		fsync_fname(".", true);
	else if (errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m",
						TANDEM_STATE_DIR)));

	snprintf(path, sizeof(path), TANDEM_STATE_DIR "/%s", name);
	snprintf(tmppath, sizeof(tmppath), "%s.tmp", path);
	header.magic = magic;
	header.length = len;
	header.crc = state_crc(&header, content);

	fd = tandem_tmpfile_create(tmppath);
	tandem_tmpfile_write(fd, tmppath, &header, sizeof(header), 0);
	tandem_tmpfile_write(fd, tmppath, content, len, sizeof(header));
	tandem_tmpfile_close(fd, tmppath);
	(void) durable_rename(tmppath, path, ERROR);
}

/*
 * Content of pg_tandem/<name>, palloc'd, its length in *len; NULL if there is
 * no such file.  A damaged file is reported as a warning and read as absent.
 */
void *
tandem_statefile_read(const char *name, uint32 magic, size_t *len)
{
	char		path[MAXPGPATH];
	StateFileHeader header;
	struct stat st;
	int			fd;
	char	   *content = NULL;
	bool		sound = false;

	*len = 0;
	snprintf(path, sizeof(path), TANDEM_STATE_DIR "/%s", name);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
	{
		if (errno == ENOENT)
			return NULL;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	if (fstat(fd, &st) == 0 &&
		read(fd, &header, sizeof(header)) == sizeof(header) &&
		header.magic == magic &&
		header.length == (uint64) (st.st_size - sizeof(header)) &&
		header.length < MaxAllocSize)
	{
		content = palloc(header.length + 1);
		sound = read(fd, content, header.length) == (ssize_t) header.length &&
			EQ_CRC32C(state_crc(&header, content), header.crc);
	}
	CloseTransientFile(fd);
	if (!sound)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" is damaged and is ignored", path)));
		return NULL;
	}
	content[header.length] = '\0';
	*len = header.length;
	return content;
}

/* Removes the folder pg_tandem with all that is in it; none is fine too. */
void
tandem_statefile_remove_all(void)
{
	struct stat st;

	if (lstat(TANDEM_STATE_DIR, &st) != 0)
	{
		if (errno == ENOENT)
			return;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not stat file \"%s\": %m", TANDEM_STATE_DIR)));
	}
	if (!rmtree(TANDEM_STATE_DIR, true))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not remove directory \"%s\"", TANDEM_STATE_DIR),
				 errhint("The server's log has the cause.")));
	fsync_fname(".", true);
}
