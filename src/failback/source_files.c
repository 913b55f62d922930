/*-------------------------------------------------------------------------
 *
 * source_files.c
 *	  SQL functions that tell a node that is rejoined what this one is
 *	  (tandem.rejoin_source), which files it has (tandem.source_files), and
 *	  what is in those that aren't relations (tandem.source_file).
 *
 * The list has what may have to be copied or compared, no more: relations, the
 * folders of databases and the few other files in them, transaction statuses,
 * prepared transactions, replication progress.  Its twin is local_files() of
 * cli/rejoin/files.c.  Files may come and go while it is made; a missing one
 * is left out.
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
#include "common/controldata_utils.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/wait_event.h"

#include "common/version.h"

PG_FUNCTION_INFO_V1(tandem_rejoin_source);
PG_FUNCTION_INFO_V1(tandem_source_files);
PG_FUNCTION_INFO_V1(tandem_source_file);

#define REJOIN_SOURCE_COLS 15
#define FILES_COLS 2
#define MOST_LENGTH (4 * 1024 * 1024)

static void
require_role(void)
{
	tandem_check_sql_version();
	CheckSlotPermissions();
}

/* Content of a small file in pg_wal, "" if it isn't there; palloc'd. */
static char *
read_history(TimeLineID tli)
{
	char		path[MAXPGPATH];
	StringInfoData content;
	char		buffer[8192];
	int			fd;
	int			n;

	initStringInfo(&content);
	if (tli == 1)
		return content.data;
	TLHistoryFilePath(path, tli);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	while ((n = read(fd, buffer, sizeof(buffer))) > 0)
		appendBinaryStringInfo(&content, buffer, n);
	CloseTransientFile(fd);
	return content.data;
}

/*
 * SQL function tandem.rejoin_source(): one row about this server.  On a
 * standby the insert position is null, the flush position that of the replay.
 */
Datum
tandem_rejoin_source(PG_FUNCTION_ARGS)
{
	Datum		values[REJOIN_SOURCE_COLS];
	bool		nulls[REJOIN_SOURCE_COLS] = {false};
	TupleDesc	desc;
	bool		recovery = RecoveryInProgress();
	TimeLineID	tli;
	XLogRecPtr	flush;
	ControlFileData *control;
	bool		crc_ok;
	char		sysid[32];
	int			i = 0;

	require_role();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	if (recovery)
		flush = GetXLogReplayRecPtr(&tli);
	else
	{
		flush = GetFlushRecPtr(NULL);
		tli = GetWALInsertionTimeLine();
	}
	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &crc_ok);
	LWLockRelease(ControlFileLock);
	if (!crc_ok)
		ereport(ERROR,
				(errmsg("calculated CRC checksum does not match value stored in file")));

	snprintf(sysid, sizeof(sysid), UINT64_FORMAT, GetSystemIdentifier());
	values[i++] = CStringGetTextDatum(TANDEM_VERSION);
	values[i++] = CStringGetTextDatum(sysid);
	values[i++] = Int32GetDatum(PG_VERSION_NUM);
	values[i++] = BoolGetDatum(recovery);
	values[i++] = Int32GetDatum((int32) tli);
	nulls[i] = recovery;
	values[i++] = LSNGetDatum(recovery ? InvalidXLogRecPtr : GetXLogInsertRecPtr());
	values[i++] = LSNGetDatum(flush);
	values[i++] = LSNGetDatum(control->checkPoint);
	values[i++] = LSNGetDatum(control->checkPointCopy.redo);
	values[i++] = Int32GetDatum((int32) control->checkPointCopy.ThisTimeLineID);
	values[i++] = Int32GetDatum(wal_segment_size);
	values[i++] = Int32GetDatum(BLCKSZ);
	values[i++] = Int32GetDatum(RELSEG_SIZE);
	values[i++] = BoolGetDatum(DataChecksumsEnabled());
	values[i++] = CStringGetTextDatum(read_history(tli));
	Assert(i == REJOIN_SOURCE_COLS);

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* ---- which files ---------------------------------------------------------------- */

static bool
all_digits(const char *name)
{
	return *name != '\0' && strspn(name, "0123456789") == strlen(name);
}

static bool
all_hex(const char *name)
{
	return *name != '\0' && strspn(name, "0123456789ABCDEF") == strlen(name);
}

/* NODE[_fork][.segment] */
static bool
is_relation(const char *name)
{
	const char *p = name + strspn(name, "0123456789");
	ForkNumber	fork;
	int			n;

	if (p == name)
		return false;
	if (*p == '_')
	{
		n = forkname_chars(p + 1, &fork);
		if (n == 0)
			return false;
		p += 1 + n;
	}
	return *p == '\0' || (*p == '.' && all_digits(p + 1));
}

static bool
is_database_file(const char *name)
{
	return is_relation(name) || strcmp(name, "PG_VERSION") == 0 ||
		strcmp(name, "pg_filenode.map") == 0;
}

/* A row; size -1 is a folder. */
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

/* The files of a folder whose names are accepted. */
static void
list_folder(ReturnSetInfo *rsinfo, const char *folder, bool (*accept) (const char *))
{
	DIR		   *dir = AllocateDir(folder);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return;
	while ((entry = ReadDir(dir, folder)) != NULL)
	{
		char		path[MAXPGPATH * 2];
		struct stat st;

		CHECK_FOR_INTERRUPTS();
		if (!accept(entry->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
			put_file(rsinfo, path, st.st_size);
	}
	FreeDir(dir);
}

/* The folders of databases in a folder, and what is in them. */
static void
list_databases(ReturnSetInfo *rsinfo, const char *folder)
{
	DIR		   *dir = AllocateDir(folder);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return;
	while ((entry = ReadDir(dir, folder)) != NULL)
	{
		char		path[MAXPGPATH];

		if (!all_digits(entry->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		put_file(rsinfo, path, -1);
		list_folder(rsinfo, path, is_database_file);
	}
	FreeDir(dir);
}

/* SQL function tandem.source_files(): see the head of this file. */
Datum
tandem_source_files(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DIR		   *dir;
	struct dirent *entry;
	struct stat st;

	require_role();
	InitMaterializedSRF(fcinfo, 0);

	list_folder(rsinfo, "global", is_database_file);
	list_databases(rsinfo, "base");
	dir = AllocateDir("pg_tblspc");
	while ((entry = ReadDir(dir, "pg_tblspc")) != NULL)
	{
		char		path[MAXPGPATH];

		if (!all_digits(entry->d_name))
			continue;
		snprintf(path, sizeof(path), "pg_tblspc/%s/" TABLESPACE_VERSION_DIRECTORY, entry->d_name);
		list_databases(rsinfo, path);
	}
	FreeDir(dir);
	list_folder(rsinfo, "pg_xact", all_hex);
	list_folder(rsinfo, "pg_multixact/offsets", all_hex);
	list_folder(rsinfo, "pg_multixact/members", all_hex);
	list_folder(rsinfo, "pg_commit_ts", all_hex);
	list_folder(rsinfo, "pg_twophase", all_hex);
	if (stat("pg_logical/replorigin_checkpoint", &st) == 0)
		put_file(rsinfo, "pg_logical/replorigin_checkpoint", st.st_size);
	return (Datum) 0;
}

/* ---- what is in them -------------------------------------------------------------- */

/* If path begins so, what follows; else NULL. */
static const char *
after(const char *path, const char *beginning)
{
	size_t		n = strlen(beginning);

	return strncmp(path, beginning, n) == 0 ? path + n : NULL;
}

/* "DIGITS/name" with one of the two names that databases have */
static bool
is_plain_database_file(const char *rest)
{
	size_t		n = strspn(rest, "0123456789");

	return n > 0 && (strcmp(rest + n, "/PG_VERSION") == 0 || strcmp(rest + n, "/pg_filenode.map") == 0);
}

/* May it be read?  Relations aren't: their pages come through shared buffers. */
static bool
may_be_read(const char *path)
{
	static const char *const folders[] = {
		"pg_xact/", "pg_multixact/offsets/", "pg_multixact/members/",
		"pg_commit_ts/", "pg_twophase/"};
	const char *rest;
	int			i;

	for (i = 0; i < lengthof(folders); i++)
		if ((rest = after(path, folders[i])) != NULL)
			return all_hex(rest);
	if (strcmp(path, "pg_logical/replorigin_checkpoint") == 0 ||
		strcmp(path, "global/pg_filenode.map") == 0)
		return true;
	if ((rest = after(path, "base/")) != NULL)
		return is_plain_database_file(rest);
	if ((rest = after(path, "pg_tblspc/")) != NULL)
	{
		size_t		n = strspn(rest, "0123456789");

		rest = n > 0 ? after(rest + n, "/" TABLESPACE_VERSION_DIRECTORY "/") : NULL;
		return rest != NULL && is_plain_database_file(rest);
	}
	return false;
}

/*
 * SQL function tandem.source_file(path, start, length): up to length bytes of
 * a file from byte start on; null if there is no such file.
 */
Datum
tandem_source_file(PG_FUNCTION_ARGS)
{
	char	   *path = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int64		start = PG_GETARG_INT64(1);
	int32		length = PG_GETARG_INT32(2);
	bytea	   *result;
	int			fd;
	int			done = 0;

	require_role();
	if (!may_be_read(path))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("\"%s\" is not a file that this function reads", path)));
	if (start < 0 || length <= 0 || length > MOST_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot read %d bytes at offset %lld", length, (long long) start),
				 errhint("Read at most %d bytes at a time.", MOST_LENGTH)));

	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
	{
		if (errno == ENOENT)
			PG_RETURN_NULL();
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	result = palloc(length + VARHDRSZ);
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
		CHECK_FOR_INTERRUPTS();
	}
	CloseTransientFile(fd);
	SET_VARSIZE(result, done + VARHDRSZ);
	PG_RETURN_BYTEA_P(result);
}
