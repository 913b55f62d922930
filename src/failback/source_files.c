/*-------------------------------------------------------------------------
 *
 * source_files.c
 *	  SQL functions that tell a node that rejoins where this server stands and
 *	  which files it has.
 *
 * tandem.rejoin_source(): position, timeline, sizes.
 * tandem.source_files(): the files that "tandem rejoin" may have to do with.
 * tandem.source_file(): part of one of them, but never of a relation, whose
 * blocks only tandem.source_blocks() can give as new as they are.  Unlogged
 * relations' initialisation forks are the exception: written once.
 *
 * A path is relative to the data directory.  classify() knows the names there
 * are; nothing else is listed or can be read, so no path leads elsewhere.
 *
 *	 base/DB/, global/, pg_tblspc/TABLESPACE/VERSION/DB/
 *		NODE[_fork][.segment], PG_VERSION, pg_filenode.map
 *	 pg_xact/, pg_multixact/offsets/, pg_multixact/members/, pg_commit_ts/,
 *	 pg_twophase/		upper-case hexadecimal names
 *	 pg_logical/replorigin_checkpoint
 *
 * Reading while the server runs: the relation map under its lock, a prepared
 * transaction's file under the lock that its writer holds; the origins' file
 * is replaced as a whole.  Pages of pg_xact and its like may be seen half
 * written; the older half is from before, and WAL has what it lacks.
 *
 * src/failback/source_files.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"

#include "common/version.h"
#include "failback/reader.h"

PG_FUNCTION_INFO_V1(tandem_rejoin_source);
PG_FUNCTION_INFO_V1(tandem_source_files);
PG_FUNCTION_INFO_V1(tandem_source_file);

#define REJOIN_SOURCE_COLS 15
#define FILES_COLS 2
#define MAX_FILE_CHUNK (4 * 1024 * 1024)
#define MAX_HISTORY (1024 * 1024)
#define ORIGINS_FILE "pg_logical/replorigin_checkpoint"

/* ---- where this server stands ---------------------------------------------------- */

/* A timeline's history file as text; its comments may be in any encoding. */
static text *
history_text(TimeLineID timeline)
{
	char		path[MAXPGPATH];
	text	   *result = palloc(VARHDRSZ + MAX_HISTORY);
	char	   *content = VARDATA(result);
	int			fd;
	int			n;
	int			i;

	if (timeline == 1)
		return cstring_to_text("");
	TLHistoryFilePath(path, timeline);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path),
				 errhint("Restore the timeline history file from the WAL archive into pg_wal.")));
	n = read(fd, content, MAX_HISTORY);
	if (n < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", path)));
	CloseTransientFile(fd);
	for (i = 0; i < n; i++)
	{
		if (content[i] == '\0' || IS_HIGHBIT_SET(content[i]))
			content[i] = '?';
	}
	SET_VARSIZE(result, VARHDRSZ + n);
	return result;
}

/* SQL function tandem.rejoin_source() */
Datum
tandem_rejoin_source(PG_FUNCTION_ARGS)
{
	TupleDesc	tupdesc;
	Datum		values[REJOIN_SOURCE_COLS];
	bool		nulls[REJOIN_SOURCE_COLS];
	bool		in_recovery = RecoveryInProgress();
	ControlFileData *control;
	bool		crc_ok;
	TimeLineID	timeline;
	XLogRecPtr	inserted;
	XLogRecPtr	flushed;
	char		sysid[32];

	tandem_require_reader(true);
	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE ||
		tupdesc->natts != REJOIN_SOURCE_COLS)
		elog(ERROR, "return type must be a row type");

	if (in_recovery)
	{
		inserted = flushed = GetXLogReplayRecPtr(&timeline);
	}
	else
	{
		timeline = GetWALInsertionTimeLine();
		flushed = GetFlushRecPtr(NULL);
		inserted = GetXLogInsertRecPtr();
	}

	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &crc_ok);
	LWLockRelease(ControlFileLock);
	if (!crc_ok)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("calculated CRC checksum does not match value stored in file \"%s\"",
						XLOG_CONTROL_FILE)));

	memset(nulls, 0, sizeof(nulls));
	snprintf(sysid, sizeof(sysid), UINT64_FORMAT, GetSystemIdentifier());
	values[0] = CStringGetTextDatum(TANDEM_VERSION);
	values[1] = CStringGetTextDatum(sysid);
	values[2] = Int32GetDatum(atoi(GetConfigOption("server_version_num", false, false)));
	values[3] = BoolGetDatum(in_recovery);
	values[4] = Int32GetDatum((int32) timeline);
	values[5] = LSNGetDatum(inserted);
	values[6] = LSNGetDatum(flushed);
	values[7] = LSNGetDatum(control->checkPoint);
	values[8] = LSNGetDatum(control->checkPointCopy.redo);
	values[9] = Int32GetDatum((int32) control->checkPointCopy.ThisTimeLineID);
	values[10] = Int32GetDatum(wal_segment_size);
	values[11] = Int32GetDatum(BLCKSZ);
	values[12] = Int32GetDatum(RELSEG_SIZE);
	values[13] = BoolGetDatum(DataChecksumsEnabled());
	values[14] = PointerGetDatum(history_text(timeline));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
}

/* ---- names ------------------------------------------------------------------------- */

typedef enum FileKind
{
	FILE_NONE,					/* none of ours */
	FILE_DATABASE,				/* the folder of a database */
	FILE_RELATION,
	FILE_INIT_FORK,
	FILE_RELATION_MAP,
	FILE_TWO_PHASE,
	FILE_OTHER
} FileKind;

/* Steps over an OID of plain digits; false if there is none. */
static bool
skip_oid(const char **p)
{
	int			digits = strspn(*p, "0123456789");

	if (digits == 0 || digits > OIDCHARS || **p == '0')
		return false;
	*p += digits;
	return true;
}

static bool
skip_prefix(const char **p, const char *prefix)
{
	size_t		len = strlen(prefix);

	if (strncmp(*p, prefix, len) != 0)
		return false;
	*p += len;
	return true;
}

/* NODE[_fork][.segment] */
static FileKind
classify_relation(const char *name)
{
	ForkNumber	fork = MAIN_FORKNUM;

	if (!skip_oid(&name))
		return FILE_NONE;
	if (*name == '_')
	{
		int			len = forkname_chars(name + 1, &fork);

		if (len == 0)
			return FILE_NONE;
		name += 1 + len;
	}
	if (*name == '.')
	{
		name++;
		if (!skip_oid(&name))
			return FILE_NONE;
	}
	if (*name != '\0')
		return FILE_NONE;
	return fork == INIT_FORKNUM ? FILE_INIT_FORK : FILE_RELATION;
}

/* What is a path, relative to the data directory? */
static FileKind
classify(const char *path)
{
	const char *p = path;

	if (strcmp(p, ORIGINS_FILE) == 0)
		return FILE_OTHER;
	if (skip_prefix(&p, "pg_xact/") || skip_prefix(&p, "pg_multixact/offsets/") ||
		skip_prefix(&p, "pg_multixact/members/") || skip_prefix(&p, "pg_commit_ts/") ||
		skip_prefix(&p, "pg_twophase/"))
	{
		size_t		len = strlen(p);

		if (len < 4 || len > 16 || strspn(p, "0123456789ABCDEF") != len)
			return FILE_NONE;
		return path[3] == 't' ? FILE_TWO_PHASE : FILE_OTHER;
	}

	if (skip_prefix(&p, "base/") ||
		(skip_prefix(&p, "pg_tblspc/") && skip_oid(&p) &&
		 skip_prefix(&p, "/" TABLESPACE_VERSION_DIRECTORY "/")))
	{
		if (!skip_oid(&p))
			return FILE_NONE;
		if (*p == '\0')
			return FILE_DATABASE;
		if (*p++ != '/')
			return FILE_NONE;
		if (strcmp(p, "PG_VERSION") == 0)
			return FILE_OTHER;
	}
	else
	{
		p = path;
		if (!skip_prefix(&p, "global/"))
			return FILE_NONE;
	}
	if (strcmp(p, "pg_filenode.map") == 0)
		return FILE_RELATION_MAP;
	return classify_relation(p);
}

/* ---- list --------------------------------------------------------------------------- */

static void
put_file(ReturnSetInfo *rsinfo, const char *path, int64 size)
{
	Datum		values[FILES_COLS];
	bool		nulls[FILES_COLS] = {false, size < 0};

	values[0] = CStringGetTextDatum(path);
	values[1] = Int64GetDatum(size);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	pfree(DatumGetPointer(values[0]));
}

/*
 * Lists one folder, and those of databases beneath it.  What vanishes
 * meanwhile is left out.
 */
static void
list_folder(ReturnSetInfo *rsinfo, const char *folder)
{
	DIR		   *dir = AllocateDir(folder);
	struct dirent *entry;

	if (dir == NULL && (errno == ENOENT || errno == ENOTDIR))
		return;
	while ((entry = ReadDir(dir, folder)) != NULL)
	{
		char		path[MAXPGPATH];
		struct stat st;
		FileKind	kind;

		CHECK_FOR_INTERRUPTS();
		if (snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) >= (int) sizeof(path))
			continue;
		kind = classify(path);
		if (kind == FILE_NONE)
			continue;
		if (lstat(path, &st) != 0)
		{
			if (errno == ENOENT || errno == ENOTDIR)
				continue;
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not stat file \"%s\": %m", path)));
		}
		if (kind == FILE_DATABASE && S_ISDIR(st.st_mode))
		{
			put_file(rsinfo, path, -1);
			list_folder(rsinfo, path);
		}
		else if (kind != FILE_DATABASE && S_ISREG(st.st_mode))
			put_file(rsinfo, path, st.st_size);
	}
	FreeDir(dir);
}

static void
list_tablespaces(ReturnSetInfo *rsinfo)
{
	DIR		   *dir = AllocateDir("pg_tblspc");
	struct dirent *entry;

	while ((entry = ReadDir(dir, "pg_tblspc")) != NULL)
	{
		const char *p = entry->d_name;
		char		path[MAXPGPATH];

		if (!skip_oid(&p) || *p != '\0')
			continue;
		snprintf(path, sizeof(path), "pg_tblspc/%s/%s", entry->d_name,
				 TABLESPACE_VERSION_DIRECTORY);
		list_folder(rsinfo, path);
	}
	FreeDir(dir);
}

/* SQL function tandem.source_files() */
Datum
tandem_source_files(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	struct stat st;

	tandem_require_reader(false);
	InitMaterializedSRF(fcinfo, 0);

	list_folder(rsinfo, "global");
	list_folder(rsinfo, "base");
	list_tablespaces(rsinfo);
	list_folder(rsinfo, "pg_xact");
	list_folder(rsinfo, "pg_multixact/offsets");
	list_folder(rsinfo, "pg_multixact/members");
	list_folder(rsinfo, "pg_commit_ts");
	list_folder(rsinfo, "pg_twophase");
	if (stat(ORIGINS_FILE, &st) == 0)
		put_file(rsinfo, ORIGINS_FILE, st.st_size);
	return (Datum) 0;
}

/* ---- content ------------------------------------------------------------------------ */

/* Up to length bytes from start on; NULL if there is no such file. */
static bytea *
read_part(const char *path, int64 start, int length)
{
	bytea	   *result;
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	int			done = 0;

	if (fd < 0)
	{
		if (errno == ENOENT || errno == ENOTDIR)
			return NULL;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	result = palloc(VARHDRSZ + length);
	while (done < length)
	{
		ssize_t		n = pg_pread(fd, VARDATA(result) + done, length - done, start + done);

		if (n < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", path)));
		if (n == 0)
			break;
		done += n;
	}
	CloseTransientFile(fd);
	SET_VARSIZE(result, VARHDRSZ + done);
	return result;
}

/* SQL function tandem.source_file(path, start, length) */
Datum
tandem_source_file(PG_FUNCTION_ARGS)
{
	char	   *path = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int64		start = PG_GETARG_INT64(1);
	int32		length = PG_GETARG_INT32(2);
	LWLock	   *lock = NULL;
	bytea	   *result;

	tandem_require_reader(false);
	if (start < 0 || length <= 0 || length > MAX_FILE_CHUNK)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot read %d bytes at offset %lld of a file", length, (long long) start),
				 errhint("Read at most %d bytes at a time.", MAX_FILE_CHUNK)));
	switch (classify(path))
	{
		case FILE_NONE:
		case FILE_DATABASE:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" is not a file that tandem.source_files() would list", path)));
			break;
		case FILE_RELATION:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" is a relation's file", path),
					 errhint("Use tandem.source_blocks().")));
			break;
		case FILE_RELATION_MAP:
			lock = RelationMappingLock;
			break;
		case FILE_TWO_PHASE:
			lock = TwoPhaseStateLock;
			break;
		case FILE_INIT_FORK:
		case FILE_OTHER:
			break;
	}

	/* a checkpoint writes files of prepared transactions under the shared lock */
	if (lock)
		LWLockAcquire(lock, lock == TwoPhaseStateLock ? LW_EXCLUSIVE : LW_SHARED);
	result = read_part(path, start, length);
	if (lock)
		LWLockRelease(lock);
	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(result);
}
