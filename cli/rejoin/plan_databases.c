/*-------------------------------------------------------------------------
 *
 * plan_databases.c
 *	  Databases that the new primary copied, moved or dropped since the fork.
 *
 * Replay of CREATE DATABASE with STRATEGY file_copy, and of ALTER DATABASE SET
 * TABLESPACE, copies a folder as it is here at that moment: it has to be as it
 * was there.  A page that rejoin fetched is newer, and so would be the copy;
 * what rejoin can't fetch, as the folder has gone there, would be missing.
 *
 * Local WAL doesn't tell of it, the new primary's does.  It is read only if the
 * two nodes don't have the same folders, or may have the same by chance: else
 * all that was copied since has gone again.  The list of files was taken before; what happens later is as in
 * any base backup (see the caveats of CREATE DATABASE there).
 *
 * It also tells a folder that was dropped there, which replay will remove, from
 * one that a CREATE DATABASE left which was killed before its record.
 *
 * cli/rejoin/plan_databases.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "common/file_utils.h"
#include "rejoin/plan.h"
#include "rejoin/record.h"

#define BACKUP_HINT "A new base backup is the way that remains."

/* ---- reading the new primary's WAL ------------------------------------------------- */

typedef struct Fetch
{
	Source	   *source;
	char	   *dir;
	char	   *last;			/* path of the one segment that is kept */
	uint32		segment_size;
} Fetch;

static char *fetch_dir = NULL;

static void
remove_fetch_dir(void)
{
	if (fetch_dir)
		(void) rmtree(fetch_dir, true);
	fetch_dir = NULL;
}

static char *
fetch_segment(void *arg, const char *name)
{
	Fetch	   *fetch = arg;

	if (fetch->last)
		unlink(fetch->last);
	fetch->last = psprintf("%s/%s", fetch->dir, name);
	if (!source_fetch_wal(fetch->source, name, fetch->last, fetch->segment_size))
		return NULL;
	return pg_strdup(fetch->last);
}

static void
note_created(Planning *p, const WalRecord *record, OidPair to)
{
	FolderCopy *copy;

	pairs_add(&p->created_there, to.database, to.tablespace);
	p->copies = pg_realloc(p->copies, (p->ncopies + 1) * sizeof(FolderCopy));
	copy = &p->copies[p->ncopies];
	copy->to = to;
	if (record_database_copied(record, &copy->from.database, &copy->from.tablespace))
		p->ncopies++;
}

/* Database records from the fork to where the new primary's WAL is safe now. */
static void
read_source(Planning *p, const History *history)
{
	const char *tmp = getenv("TMPDIR");
	Fetch		fetch = {.source = p->source, .segment_size = p->target->segment_size};
	XLogRecPtr	flush = source_flushed(p->source);
	WalReader  *reader;
	WalRecord	record;
	WalResult	result;

	fetch.dir = fetch_dir = psprintf("%s/tandem_rejoin.XXXXXX", tmp ? tmp : "/tmp");
	if (mkdtemp(fetch_dir) == NULL)
		rejoin_refuse(NULL, "could not create directory \"%s\": %m", fetch_dir);
	atexit(remove_fetch_dir);

	reader = wal_open(fetch_dir, history->entries, history->n, fetch.segment_size, fetch_segment, &fetch);
	wal_seek(reader, p->facts->fork);
	while ((result = wal_read(reader, &record)) == WAL_RECORD && record.lsn < flush)
	{
		OidPair		folder;
		int			ntablespaces;
		const Oid  *tablespaces;

		if (record_database_create(&record, &folder.database, &folder.tablespace))
			note_created(p, &record, folder);
		else if (record_database_drop(&record, &folder.database, &ntablespaces, &tablespaces))
		{
			for (int i = 0; i < ntablespaces; i++)
				pairs_add(&p->dropped_there, folder.database, tablespaces[i]);
		}
	}
	/* the last record may not have been flushed as a whole */
	if (result != WAL_RECORD && wal_position(reader) + fetch.segment_size < flush)
		rejoin_refuse(BACKUP_HINT, "could not read the WAL of %s after %X/%X: %s",
					  p->source->label, LSN_ARGS(wal_position(reader)),
					  result == WAL_MISSING ? wal_missing_segment(reader) : wal_error(reader));
	wal_close(reader);
	remove_fetch_dir();
}

/* ---- what it means ------------------------------------------------------------------- */

static const char *
folder_path(Oid database, Oid tablespace)
{
	RelFile		rel = {.tablespace = tablespace, .database = database, .node = 1};
	char	   *path = rel_path(rel, MAIN_FORKNUM, 0);

	*strrchr(path, '/') = '\0';
	return path;
}

static bool
same_folders(const Planning *p)
{
	int			i = 0;
	int			j = 0;

	for (;;)
	{
		while (i < p->nhere && p->here[i].size >= 0)
			i++;
		while (j < p->nthere && p->there[j].size >= 0)
			j++;
		if (i == p->nhere || j == p->nthere)
			return i == p->nhere && j == p->nthere;
		if (strcmp(p->here[i++].path, p->there[j++].path) != 0)
			return false;
	}
}

void
plan_read_databases(Planning *p, const History *source_history)
{
	const Facts *facts = p->facts;

	/* DROP DATABASE removes files before any record, so no record is needed after the fork */
	if (!same_folders(p) || facts->databases_created_after.n > 0 || facts->databases_dropped_after.n > 0)
		read_source(p, source_history);
}

bool
folder_was_dropped_there(const Planning *p, Oid database, Oid tablespace)
{
	if (pairs_have(&p->dropped_there, database, tablespace))
		return true;
	/* its files go before the record */
	for (int i = 0; i < p->ncopies; i++)
		if (p->copies[i].from.database == database && p->copies[i].from.tablespace == tablespace)
			return true;
	return false;
}

static void
refuse_copy(const Planning *p, const FolderCopy *copy)
{
	rejoin_refuse(BACKUP_HINT,
				  "%s copied the directory \"%s\" after the fork (CREATE DATABASE with STRATEGY file_copy, or ALTER DATABASE SET TABLESPACE), and this node's cannot be made what it was then",
				  p->source->label, folder_path(copy->from.database, copy->from.tablespace));
}

/* Is something of the folder missing or ahead of the fork here, and not by WAL before it? */
static bool
folder_is_touched(const Planning *p, OidPair folder)
{
	const Facts *facts = p->facts;
	relset_iterator i;
	RelFacts   *rel;

	for (int a = 0; a < p->plan->n; a++)
	{
		const Action *action = &p->plan->actions[a];
		RelFile		of = action->request.rel;
		PathInfo	info;

		if (action->kind == ACTION_DELETE_FILE || action->kind == ACTION_DELETE_FOLDER)
			continue;
		if (action->path && path_parse(action->path, &info))
			of = info.rel;
		if (of.database == folder.database && of.tablespace == folder.tablespace)
			return true;
	}
	/* what the plan leaves alone because it has gone there */
	relset_start_iterate(facts->rels, &i);
	while ((rel = relset_iterate(facts->rels, &i)) != NULL)
		if (rel->rel.database == folder.database && rel->rel.tablespace == folder.tablespace &&
			(rel->truncated_after != InvalidBlockNumber || rel->dropped_after) &&
			!rel->created_after)
			return true;
	return pairs_have(&facts->maps_after, folder.database, folder.tablespace) ||
		pairs_have(&facts->databases_dropped_after, folder.database, folder.tablespace);
}

/* Do files from before the fork that the copy has miss here?  DROP DATABASE removes them before its record. */
static bool
folder_is_incomplete(const Planning *p, const FolderCopy *copy)
{
	const char *to = folder_path(copy->to.database, copy->to.tablespace);
	size_t		len = strlen(to);

	for (int i = 0; i < p->nthere; i++)
	{
		PathInfo	info;

		if (strncmp(p->there[i].path, to, len) != 0 || p->there[i].path[len] != '/' ||
			!path_parse(p->there[i].path, &info) || info.fork != MAIN_FORKNUM ||
			info.segment != 0 || info.rel.node == InvalidOid || info.rel.node >= p->facts->checkpoint.nextOid)
			continue;
		info.rel.database = copy->from.database;
		info.rel.tablespace = copy->from.tablespace;
		if (find_file(p->here, p->nhere, rel_path(info.rel, MAIN_FORKNUM, 0)) == NULL)
			return true;
	}
	return false;
}

/* Called with the plan complete: refuses what replay would copy wrongly. */
void
plan_check_copies(const Planning *p)
{
	for (int i = 0; i < p->ncopies; i++)
	{
		const FolderCopy *copy = &p->copies[i];
		OidPair		from = copy->from;

		/* replay makes the folder from nothing */
		if (pairs_have(&p->created_there, from.database, from.tablespace) ||
			pairs_have(&p->facts->databases_created_before, from.database, from.tablespace))
			continue;
		if (folder_is_touched(p, from) || folder_is_incomplete(p, copy))
			refuse_copy(p, copy);
	}
}
