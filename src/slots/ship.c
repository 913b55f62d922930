/*-------------------------------------------------------------------------
 *
 * ship.c
 *	  Snapshot and mapping files: listing, reading, verifying, installing.
 *
 * A serialized snapshot (pg_logical/snapshots/%X-%X.snap) at a slot's
 * restart_lsn is what lets a decoder start there without a gap.  A physical
 * standby has the transaction ids and LSNs of its primary, so the primary's
 * bytes are valid on the standby.  They are never interpreted here, only
 * checked: a bad file makes decoding fail.
 *
 * File format (snapbuild.c, SnapBuildOnDisk): magic, CRC-32C, version,
 * length, content; the CRC covers everything behind itself.
 *
 * Mapping files (pg_logical/mappings/map-...) say where a rewrite of a
 * catalog (VACUUM FULL pg_class) has put its rows.  Replay appends to them,
 * and a restartpoint removes those that no logical slot needs, so a standby
 * may have lost the head of one.
 *
 * Durability: a file is written under a temporary name, fsynced, then linked
 * to its final name; the folder is fsynced once for all files of a cycle
 * (tandem_flush_snapshot_dir), before any slot that relies on them is made
 * persistent.  Temporary names end in .tmp and carry the LSN, so a checkpoint
 * removes what a crash has left.
 *
 * Used by source.c (reading, on the primary) and by cycle.c and local.c
 * (installing, on the standby).  No locks are taken.
 *
 * src/slots/ship.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <sys/stat.h>

#include "access/rewriteheap.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "common/compat.h"
#include "common/tmpfile.h"
#include "slots/slots.h"

#define SNAPSHOT_DIR "pg_logical/snapshots"
#define MAPPING_DIR "pg_logical/mappings"

#define SNAPSHOT_MAGIC 0x51A1E001	/* SNAPBUILD_MAGIC of snapbuild.c */

/* The part of SnapBuildOnDisk that has the same form in all versions. */
typedef struct SnapshotHeader
{
	uint32		magic;
	pg_crc32c	crc;
	uint32		version;
	uint32		length;
} SnapshotHeader;

/*
 * CRCs of files seen before: snapshot files don't change once they have their
 * final name, so a cycle need not open a thousand of them again.
 */
typedef struct SnapshotCrc
{
	XLogRecPtr	lsn;			/* key */
	off_t		size;
	time_t		mtime;
	ino_t		inode;
	pg_crc32c	crc;
	bool		seen;			/* in the listing under way */
} SnapshotCrc;

static HTAB *snapshot_crcs = NULL;

/*
 * Reads a whole file into a palloc'd bytea.  Returns NULL if it doesn't exist;
 * raises an error if it can't be read.
 */
static bytea *
read_file(const char *path)
{
	int			fd;
	struct stat st;
	bytea	   *result;
	char	   *data;
	off_t		done = 0;

	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
	{
		if (errno == ENOENT)
			return NULL;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	if (fstat(fd, &st) < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not stat file \"%s\": %m", path)));
	if (!AllocSizeIsValid(st.st_size + VARHDRSZ))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("file \"%s\" is too large to be sent to a standby", path)));

	result = palloc(st.st_size + VARHDRSZ);
	data = VARDATA(result);
	while (done < st.st_size)
	{
		ssize_t		n = read(fd, data + done, st.st_size - done);

		if (n < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", path)));
		if (n == 0)
			break;				/* it has become shorter: the CRC will tell */
		done += n;
	}
	SET_VARSIZE(result, done + VARHDRSZ);
	if (CloseTransientFile(fd) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", path)));
	return result;
}

/*
 * Writes data durably under a temporary name and gives it its final name.
 * An existing file of other content is replaced.  The folder is not fsynced.
 */
static void
install_file(const char *path, const char *data, size_t len)
{
	char		tmppath[MAXPGPATH + 32];
	int			fd;

	snprintf(tmppath, sizeof(tmppath), "%s.%d.tmp", path, MyProcPid);
	fd = tandem_tmpfile_create(tmppath);
	tandem_tmpfile_write(fd, tmppath, data, len, 0);
	tandem_tmpfile_close(fd, tmppath);

	/*
	 * link() never replaces what a local process has put there meanwhile;
	 * only when a file of that name is there already, which the caller knows
	 * to differ from the primary's, does ours take its place.
	 */
	if (link(tmppath, path) == 0)
		unlink(tmppath);
	else if (errno != EEXIST || rename(tmppath, path) != 0)
	{
		int			save_errno = errno;

		unlink(tmppath);
		errno = save_errno;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not link file \"%s\" to \"%s\": %m",
						tmppath, path)));
	}
}

/* ---- snapshot files ------------------------------------------------------ */

static void
snapshot_path(char *path, size_t size, XLogRecPtr lsn)
{
	snprintf(path, size, SNAPSHOT_DIR "/%X-%X.snap", LSN_FORMAT_ARGS(lsn));
}

/* LSN of a snapshot file's name; false for any other file. */
static bool
parse_snapshot_name(const char *name, XLogRecPtr *lsn)
{
	uint32		hi;
	uint32		lo;
	char		canonical[MAXPGPATH];

	if (sscanf(name, "%X-%X.snap", &hi, &lo) != 2)
		return false;
	snprintf(canonical, sizeof(canonical), "%X-%X.snap", hi, lo);
	if (strcmp(name, canonical) != 0)
		return false;			/* a temporary file, or none of ours */
	*lsn = ((uint64) hi) << 32 | lo;
	return true;
}

/*
 * Is this a snapshot file that this server version can read?  If not, *why
 * (static storage) says what is wrong; if so, *crc is the CRC it carries.
 */
bool
tandem_snapshot_check(const char *data, size_t len, pg_crc32c *crc,
					  const char **why)
{
	SnapshotHeader header;
	pg_crc32c	computed;

	if (len <= sizeof(header))
	{
		*why = "it is too short";
		return false;
	}
	memcpy(&header, data, sizeof(header));
	if (header.magic != SNAPSHOT_MAGIC)
	{
		*why = "it has a wrong magic number";
		return false;
	}
	if (header.version != TANDEM_SNAPBUILD_VERSION)
	{
		*why = "it was written by another server version";
		return false;
	}
	INIT_CRC32C(computed);
	COMP_CRC32C(computed, data + offsetof(SnapshotHeader, version),
				len - offsetof(SnapshotHeader, version));
	FIN_CRC32C(computed);
	if (!EQ_CRC32C(computed, header.crc))
	{
		*why = "its checksum does not match";
		return false;
	}
	*crc = header.crc;
	*why = NULL;
	return true;
}

/*
 * CRC of the snapshot file at lsn, from memory if the file is still the one
 * it was.  False if there is no such file or it isn't a sound one.
 */
static bool
snapshot_crc(XLogRecPtr lsn, pg_crc32c *crc)
{
	char		path[MAXPGPATH];
	struct stat st;
	SnapshotCrc *known;
	bool		found;
	bytea	   *content;
	const char *why;
	bool		sound;

	snapshot_path(path, sizeof(path), lsn);
	if (stat(path, &st) < 0)
	{
		if (errno == ENOENT)
			return false;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not stat file \"%s\": %m", path)));
	}

	if (snapshot_crcs == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = sizeof(XLogRecPtr);
		ctl.entrysize = sizeof(SnapshotCrc);
		ctl.hcxt = TopMemoryContext;
		snapshot_crcs = hash_create("tandem snapshot CRCs", 256, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	known = hash_search(snapshot_crcs, &lsn, HASH_FIND, NULL);
	if (known && known->size == st.st_size && known->mtime == st.st_mtime &&
		known->inode == st.st_ino)
	{
		known->seen = true;
		*crc = known->crc;
		return true;
	}

	content = read_file(path);
	if (content == NULL)
		return false;
	sound = tandem_snapshot_check(VARDATA(content),
								  VARSIZE(content) - VARHDRSZ, crc, &why);
	pfree(content);
	if (!sound)
		return false;

	known = hash_search(snapshot_crcs, &lsn, HASH_ENTER, &found);
	known->size = st.st_size;
	known->mtime = st.st_mtime;
	known->inode = st.st_ino;
	known->crc = *crc;
	known->seen = true;
	return true;
}

static int
snapshot_file_cmp(const void *a, const void *b)
{
	XLogRecPtr	x = ((const TandemSnapshotFile *) a)->lsn;
	XLogRecPtr	y = ((const TandemSnapshotFile *) b)->lsn;

	return x < y ? -1 : x > y ? 1 :
								0;
}

/*
 * All sound snapshot files at or after from, in order of their LSNs; palloc'd.
 * An unsound file is left out, so that it is replaced.
 */
TandemSnapshotFile *
tandem_list_snapshots(XLogRecPtr from, int *count)
{
	DIR		   *dir;
	struct dirent *de;
	int			room = 64;
	TandemSnapshotFile *files = palloc(room * sizeof(TandemSnapshotFile));
	HASH_SEQ_STATUS seq;
	SnapshotCrc *known;

	*count = 0;
	dir = AllocateDir(SNAPSHOT_DIR);
	while ((de = ReadDir(dir, SNAPSHOT_DIR)) != NULL)
	{
		XLogRecPtr	lsn;
		pg_crc32c	crc;

		if (!parse_snapshot_name(de->d_name, &lsn) || lsn < from ||
			!snapshot_crc(lsn, &crc))
			continue;
		if (*count == room)
		{
			room *= 2;
			files = repalloc(files, room * sizeof(TandemSnapshotFile));
		}
		files[*count].lsn = lsn;
		files[*count].crc = crc;
		(*count)++;
	}
	FreeDir(dir);
	qsort(files, *count, sizeof(TandemSnapshotFile), snapshot_file_cmp);

	/* forget files that are gone, or memory would grow for ever */
	if (snapshot_crcs)
	{
		hash_seq_init(&seq, snapshot_crcs);
		while ((known = hash_seq_search(&seq)) != NULL)
		{
			if (!known->seen)
				hash_search(snapshot_crcs, &known->lsn, HASH_REMOVE, NULL);
			else
				known->seen = false;
		}
	}
	return files;
}

bool
tandem_snapshot_exists(XLogRecPtr lsn)
{
	pg_crc32c	crc;

	return snapshot_crc(lsn, &crc);
}

/* Content of the snapshot file at lsn, palloc'd, or NULL if there is none. */
bytea *
tandem_read_snapshot(XLogRecPtr lsn)
{
	char		path[MAXPGPATH];

	snapshot_path(path, sizeof(path), lsn);
	return read_file(path);
}

/*
 * Installs a checked snapshot file.  Raises an error if that fails; then
 * nothing has changed but perhaps a temporary file.  The caller calls
 * tandem_flush_snapshot_dir() before relying on it.
 */
void
tandem_install_snapshot(XLogRecPtr lsn, const char *data, size_t len)
{
	char		path[MAXPGPATH];

	snapshot_path(path, sizeof(path), lsn);
	install_file(path, data, len);
}

void
tandem_flush_snapshot_dir(void)
{
	fsync_fname(SNAPSHOT_DIR, true);
}

/* ---- mapping files ------------------------------------------------------- */

/* Fills all of file but size and crc from its name; false for other files. */
bool
tandem_parse_mapping_name(const char *name, TandemMappingFile *file)
{
	Oid			database;
	Oid			relation;
	uint32		hi;
	uint32		lo;
	TransactionId mapped_xid;
	TransactionId create_xid;
	char		canonical[MAXPGPATH];

	if (sscanf(name, LOGICAL_REWRITE_FORMAT, &database, &relation, &hi, &lo,
			   &mapped_xid, &create_xid) != 6)
		return false;
	snprintf(canonical, sizeof(canonical), LOGICAL_REWRITE_FORMAT,
			 database, relation, hi, lo, mapped_xid, create_xid);
	if (strcmp(name, canonical) != 0)
		return false;
	strlcpy(file->name, name, sizeof(file->name));
	file->database = database;
	file->lsn = ((uint64) hi) << 32 | lo;
	file->create_xid = create_xid;
	return true;
}

/*
 * All mapping files whose rewrite began at or after from, with size and CRC
 * of what they hold now; palloc'd.  There are few, except while somebody
 * rewrites catalogs.
 */
TandemMappingFile *
tandem_list_mappings(XLogRecPtr from, int *count)
{
	DIR		   *dir;
	struct dirent *de;
	int			room = 8;
	TandemMappingFile *files = palloc(room * sizeof(TandemMappingFile));

	*count = 0;
	dir = AllocateDir(MAPPING_DIR);
	while ((de = ReadDir(dir, MAPPING_DIR)) != NULL)
	{
		TandemMappingFile file;
		bytea	   *content;

		if (!tandem_parse_mapping_name(de->d_name, &file) || file.lsn < from)
			continue;
		content = tandem_read_mapping(&file);
		if (content == NULL)
			continue;
		file.size = VARSIZE(content) - VARHDRSZ;
		INIT_CRC32C(file.crc);
		COMP_CRC32C(file.crc, VARDATA(content), file.size);
		FIN_CRC32C(file.crc);
		pfree(content);

		if (*count == room)
		{
			room *= 2;
			files = repalloc(files, room * sizeof(TandemMappingFile));
		}
		files[(*count)++] = file;
	}
	FreeDir(dir);
	return files;
}

/* Content of a mapping file, palloc'd, or NULL if it is gone. */
bytea *
tandem_read_mapping(const TandemMappingFile *file)
{
	char		path[MAXPGPATH * 2];

	snprintf(path, sizeof(path), MAPPING_DIR "/%s", file->name);
	return read_file(path);
}

/*
 * Installs a mapping file whose rewrite has ended, durably (rare enough for
 * its own fsync of the folder).  The caller has checked that local replay is
 * past the end of that rewrite.
 */
void
tandem_install_mapping(const char *name, const char *data, size_t len)
{
	TandemMappingFile file;
	char		path[MAXPGPATH * 2];

	if (!tandem_parse_mapping_name(name, &file))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("primary sent a mapping file with the impossible name \"%s\"",
						name)));
	snprintf(path, sizeof(path), MAPPING_DIR "/%s", file.name);
	install_file(path, data, len);
	fsync_fname(MAPPING_DIR, true);
}
