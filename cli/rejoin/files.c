/*-------------------------------------------------------------------------
 *
 * files.c
 *	  Files of the data directory: which there are, and durable changes.
 *
 * The list has the same kinds of files as tandem.source_files() of the new
 * primary (src/failback/reader.c), under the same relative paths:
 *
 *	 base/DB, pg_tblspc/TS/VERSION/DB		folders of databases (size -1)
 *	 base/DB/..., global/..., pg_tblspc/TS/VERSION/DB/...
 *	 pg_xact, pg_multixact/offsets and members, pg_commit_ts, pg_twophase
 *	 pg_logical/replorigin_checkpoint
 *
 * Every change is fsynced before the function returns.
 *
 * cli/rejoin/files.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "common/compat.h"
#include "common/file_perm.h"
#include "common/file_utils.h"
#include "common/string.h"
#include "rejoin/rejoin.h"

/* ---- paths ------------------------------------------------------------------- */

/* Reads an OID of plain digits; false if there is none. */
static bool
take_oid(const char **p, Oid *oid)
{
	char	   *end;

	if (**p < '1' || **p > '9')
		return false;
	*oid = (Oid) strtoul(*p, &end, 10);
	*p = end;
	return true;
}

/* NODE[_fork][.segment], to the end of the string */
static bool
parse_node(const char *name, PathInfo *info)
{
	const char *p = name;

	if (!take_oid(&p, &info->rel.node))
		return false;
	info->fork = MAIN_FORKNUM;
	if (*p == '_')
	{
		int			n = forkname_chars(p + 1, &info->fork);

		if (n == 0)
			return false;
		p += 1 + n;
	}
	if (*p == '.')
	{
		Oid			segment;

		p++;
		if (!take_oid(&p, &segment))
			return false;
		info->segment = segment;
	}
	return *p == '\0';
}

bool
path_parse(const char *path, PathInfo *info)
{
	const char *p = path;

	memset(info, 0, sizeof(*info));
	if (strncmp(p, "global/", 7) == 0)
	{
		info->rel.tablespace = GLOBALTABLESPACE_OID;
		p += 7;
	}
	else if (strncmp(p, "base/", 5) == 0)
	{
		p += 5;
		info->rel.tablespace = DEFAULTTABLESPACE_OID;
		if (!take_oid(&p, &info->rel.database))
			return false;
	}
	else if (strncmp(p, "pg_tblspc/", 10) == 0)
	{
		const char *version = "/" TABLESPACE_VERSION_DIRECTORY "/";

		p += 10;
		if (!take_oid(&p, &info->rel.tablespace) || strncmp(p, version, strlen(version)) != 0)
			return false;
		p += strlen(version);
		if (!take_oid(&p, &info->rel.database))
			return false;
	}
	else
		return false;

	if (info->rel.tablespace != GLOBALTABLESPACE_OID)
	{
		if (*p == '\0')
		{
			info->name = "";
			return true;		/* the folder */
		}
		if (*p++ != '/')
			return false;
	}
	info->name = p;
	if (strchr(p, '/'))
		return false;
	if (!parse_node(p, info))
		info->rel.node = InvalidOid;
	return true;
}

char *
rel_path(RelFile rel, ForkNumber fork, uint32 segment)
{
	char	   *path = TANDEM_FILE_PATH(rel.database, rel.tablespace, rel.node, fork);

	return segment == 0 ? path : psprintf("%s.%u", path, segment);
}

/* ---- listing ------------------------------------------------------------------- */

typedef struct FileList
{
	SourceFile *files;
	int			n;
	int			room;
} FileList;

static void
list_add(FileList *list, const char *path, int64 size)
{
	if (list->n == list->room)
	{
		list->room = Max(1024, list->room * 2);
		list->files = pg_realloc(list->files, list->room * sizeof(SourceFile));
	}
	list->files[list->n].path = path;
	list->files[list->n++].size = size;
}

static DIR *
open_dir(const char *path)
{
	DIR		   *dir = opendir(path);

	if (dir == NULL && errno != ENOENT)
		rejoin_refuse(NULL, "could not open directory \"%s\": %m", path);
	return dir;
}

static bool
all_digits(const char *name)
{
	return *name && strspn(name, "0123456789") == strlen(name);
}

/* The plain files of a folder; relations_only: and the few others that databases have */
static void
list_folder(FileList *list, const char *folder, bool relations_only)
{
	DIR		   *dir = open_dir(folder);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		char	   *path;
		struct stat st;
		PathInfo	info;

		if (entry->d_name[0] == '.')
			continue;
		path = psprintf("%s/%s", folder, entry->d_name);
		if (relations_only &&
			(!path_parse(path, &info) ||
			 (info.rel.node == InvalidOid &&
			  strcmp(entry->d_name, "PG_VERSION") != 0 &&
			  strcmp(entry->d_name, "pg_filenode.map") != 0)))
			continue;
		if (lstat(path, &st) == 0 && S_ISREG(st.st_mode))
			list_add(list, path, st.st_size);
	}
	if (dir)
		closedir(dir);
}

/* The folders of databases in a tablespace's folder, and what is in them. */
static void
list_databases(FileList *list, const char *folder)
{
	DIR		   *dir = open_dir(folder);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		char	   *path;

		if (!all_digits(entry->d_name))
			continue;
		path = psprintf("%s/%s", folder, entry->d_name);
		list_add(list, path, -1);
		list_folder(list, path, true);
	}
	if (dir)
		closedir(dir);
}

static int
compare_files(const void *a, const void *b)
{
	return strcmp(((const SourceFile *) a)->path, ((const SourceFile *) b)->path);
}

SourceFile *
local_files(int *count)
{
	FileList	list = {0};
	DIR		   *dir;
	struct dirent *entry;
	struct stat st;

	list_folder(&list, "global", true);
	list_databases(&list, "base");
	dir = open_dir("pg_tblspc");
	while (dir && (entry = readdir(dir)) != NULL)
		if (all_digits(entry->d_name))
			list_databases(&list, psprintf("pg_tblspc/%s/" TABLESPACE_VERSION_DIRECTORY,
										   entry->d_name));
	if (dir)
		closedir(dir);
	list_folder(&list, "pg_xact", false);
	list_folder(&list, "pg_multixact/offsets", false);
	list_folder(&list, "pg_multixact/members", false);
	list_folder(&list, "pg_commit_ts", false);
	list_folder(&list, "pg_twophase", false);
	if (stat("pg_logical/replorigin_checkpoint", &st) == 0)
		list_add(&list, "pg_logical/replorigin_checkpoint", st.st_size);

	if (list.n > 0)
		qsort(list.files, list.n, sizeof(SourceFile), compare_files);
	*count = list.n;
	return list.files;
}

const SourceFile *
find_file(const SourceFile *files, int count, const char *path)
{
	SourceFile	key = {path, 0};

	return count == 0 ? NULL : bsearch(&key, files, count, sizeof(SourceFile), compare_files);
}

/* ---- changing -------------------------------------------------------------------- */

bool
file_exists(const char *path)
{
	struct stat st;

	if (lstat(path, &st) == 0)
		return true;
	if (errno != ENOENT && errno != ENOTDIR)
		rejoin_refuse(NULL, "could not stat file \"%s\": %m", path);
	return false;
}

void
sync_file(const char *path)
{
	int			fd = open(path, O_RDWR | PG_BINARY);

	if (fd < 0 || fsync(fd) != 0)
		rejoin_refuse(NULL, "could not fsync file \"%s\": %m", path);
	close(fd);
}

void
sync_dir(const char *path)
{
	int			fd = open(path, O_RDONLY);

	if (fd < 0 || fsync(fd) != 0)
		rejoin_refuse(NULL, "could not fsync directory \"%s\": %m", path);
	close(fd);
}

static void
sync_parent(const char *path)
{
	char		parent[MAXPGPATH];

	strlcpy(parent, path, sizeof(parent));
	get_parent_directory(parent);
	sync_dir(parent[0] ? parent : ".");
}

/*
 * Writes a whole file so that after a crash there is the old or the new one:
 * under a temporary name, fsynced, renamed.
 */
void
write_durably(const char *path, const char *content, size_t len)
{
	char	   *temporary = psprintf("%s.tandem_tmp", path);
	int			fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY, pg_file_create_mode);

	if (fd < 0)
		rejoin_refuse(NULL, "could not create file \"%s\": %m", temporary);
	errno = 0;
	if (write(fd, content, len) != (ssize_t) len || fsync(fd) != 0 || close(fd) != 0)
	{
		int			save_errno = errno ? errno : ENOSPC;

		unlink(temporary);
		errno = save_errno;
		rejoin_refuse(NULL, "could not write file \"%s\": %m", temporary);
	}
	if (rename(temporary, path) != 0)
		rejoin_refuse(NULL, "could not rename file \"%s\" to \"%s\": %m", temporary, path);
	sync_parent(path);
}

/* Removes a file, or a folder with all that is in it, if it is there. */
void
remove_tree(const char *path)
{
	struct stat st;

	if (lstat(path, &st) != 0)
	{
		if (errno == ENOENT)
			return;
		rejoin_refuse(NULL, "could not stat file \"%s\": %m", path);
	}
	if (S_ISDIR(st.st_mode))
	{
		if (!rmtree(path, true))
			rejoin_refuse(NULL, "could not remove directory \"%s\"", path);
	}
	else if (unlink(path) != 0)
		rejoin_refuse(NULL, "could not remove file \"%s\": %m", path);
	sync_parent(path);
}

void
zero_range(const char *path, off_t from, off_t to)
{
	static const char zeroes[BLCKSZ];
	int			fd = open(path, O_RDWR | PG_BINARY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", path);
	to = Min(to, st.st_size);
	while (from < to)
	{
		size_t		n = Min((off_t) sizeof(zeroes), to - from);

		if (pg_pwrite(fd, zeroes, n, from) != (ssize_t) n)
			rejoin_refuse(NULL, "could not write file \"%s\": %m", path);
		from += n;
	}
	if (fsync(fd) != 0)
		rejoin_refuse(NULL, "could not fsync file \"%s\": %m", path);
	close(fd);
}
