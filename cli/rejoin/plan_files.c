/*-------------------------------------------------------------------------
 *
 * plan_files.c
 *	  Files and folders that one of the two nodes has and the other hasn't.
 *
 * WAL names most of what was created and dropped after the fork, but not all:
 * a bulk write makes a file before its record is flushed, and DROP DATABASE
 * removes a folder before it writes the record.  So the lists are compared.
 *
 *			here only								there only
 *	 created after the fork: deleted		dropped after the fork: copied
 *	 old: dropped there, replay will		younger than the fork: replay makes it
 *	 anything else is an orphan: deleted	anything else is missing: copied
 *
 * What is old?  A relation that has a page from before the fork, or whose
 * create record lies before it.  What is younger than the fork?  The new
 * primary numbers new files from the counter of the last record or checkpoint
 * that moved it (facts->next_oid) on, so none of its new files is below.
 *
 * An old file that the new primary dropped is left alone on purpose: replay of
 * a CREATE DATABASE that copies files may need it before it is dropped.  That
 * goes for files that tell nothing of their age too (empty ones, for example),
 * where the new primary dropped or moved the whole database.
 *
 * A relation that is missing without a record that drops it means that DROP
 * DATABASE was killed amid its folder.  Then no file in there is relied on: what
 * is left of a large relation may lack segments.  All of it is copied.
 *
 * An unlogged relation is made from its initialisation fork when recovery
 * ends; only that fork is ever copied.
 *
 * cli/rejoin/plan_files.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "catalog/pg_tablespace_d.h"
#include "result.h"
#include "rejoin/plan.h"
#include "text.h"

static bool
is_there(const Planning *p, const char *path)
{
	return find_file(p->there, p->nthere, path) != NULL;
}

static bool
is_here(const Planning *p, const char *path)
{
	return find_file(p->here, p->nhere, path) != NULL;
}

/* ---- tablespaces ----------------------------------------------------------------- */

static bool
folder_has(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A tablespace of the new primary that has no link here. */
static void
plan_missing_tablespace(Planning *p, Oid tablespace, const char *location)
{
	char	   *link = psprintf("pg_tblspc/%u", tablespace);
	Action	   *action;

	/* an absolute location is a symbolic link; else it lies in pg_tblspc itself */
	if (is_absolute_path(location) && !folder_has(location) &&
		pg_mkdir_p(pstrdup(location), pg_dir_create_mode) != 0)
		rejoin_refuse(psprintf("Create the directory \"%s\" for the user that the server runs as, and repeat.", location),
					  "tablespace %u is missing here, and its directory \"%s\" could not be created: %m",
					  tablespace, location);
	if (!pairs_have(&p->facts->tablespaces_dropped_after, InvalidOid, tablespace) &&
		tablespace >= p->facts->next_oid)
		return;					/* made after the fork: replay will */
	action = plan_add(p->plan, ACTION_MAKE_TABLESPACE, REASON_MISSING, link);
	action->target = location;
}

void
plan_tablespaces(Planning *p)
{
	PGresult   *res = PQexec(p->source->conn,
						   "SELECT oid, pg_catalog.pg_tablespace_location(oid) AS location"
						   " FROM pg_catalog.pg_tablespace WHERE oid NOT IN (1663, 1664)");
	DIR		   *dir;
	struct dirent *entry;

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		rejoin_refuse(NULL, "%s: %s", p->source->label, text_message(PQerrorMessage(p->source->conn)));
	for (int i = 0; i < PQntuples(res); i++)
	{
		Oid			tablespace = (Oid) strtoul(field(res, i, "oid"), NULL, 10);

		if (!file_exists(psprintf("pg_tblspc/%u", tablespace)))
			plan_missing_tablespace(p, tablespace, field(res, i, "location"));
	}

	dir = opendir("pg_tblspc");
	while (dir && (entry = readdir(dir)) != NULL)
	{
		Oid			tablespace = (Oid) strtoul(entry->d_name, NULL, 10);

		if (tablespace == InvalidOid || find_row(res, "oid", entry->d_name) >= 0)
			continue;
		/* old ones were dropped there: replay will */
		if (pairs_have(&p->facts->tablespaces_created_after, InvalidOid, tablespace))
			plan_add(p->plan, ACTION_DROP_TABLESPACE, REASON_CREATED,
					 psprintf("pg_tblspc/%u", tablespace));
	}
	if (dir)
		closedir(dir);
}

/* ---- folders of databases ---------------------------------------------------------- */

/* Nothing is in it, but for files that any start removes. */
static bool
folder_is_empty(const Planning *p, const char *path)
{
	/* what is in it follows right behind */
	const SourceFile *next = find_file(p->here, p->nhere, path) + 1;
	size_t		len = strlen(path);

	return next == p->here + p->nhere || strncmp(next->path, path, len) != 0 || next->path[len] != '/';
}

/* Was a folder that isn't there any more a database's at the fork? */
static bool
folder_is_old(const Planning *p, const char *path, Oid database, Oid tablespace)
{
	if (folder_was_dropped_there(p, database, tablespace))
		return true;
	/* of another tablespace than the database's: no record tells that it is made */
	return !file_exists(psprintf("%s/PG_VERSION", path)) && !folder_is_empty(p, path);
}

static void
plan_local_folder(Planning *p, const char *path, const PathInfo *info)
{
	const Facts *facts = p->facts;
	Oid			database = info->rel.database;
	Oid			tablespace = info->rel.tablespace;
	bool		created_after = pairs_have(&facts->databases_created_after, database, tablespace);
	bool		created_before = pairs_have(&facts->databases_created_before, database, tablespace);

	if (created_before || (is_there(p, path) && !created_after) ||
		pairs_have(&facts->folders_again, database, tablespace))
		return;
	if (!created_after && database < facts->checkpoint.nextOid &&
		folder_is_old(p, path, database, tablespace))
		return;					/* dropped there: replay will */
	plan_add(p->plan, ACTION_DELETE_FOLDER, created_after ? REASON_CREATED : REASON_ORPHAN, path);
	pairs_add(&p->folders_settled, database, tablespace);
}

/* A folder of the new primary's that isn't here. */
static void
plan_missing_folder(Planning *p, int there, const PathInfo *info)
{
	const Facts *facts = p->facts;
	Oid			database = info->rel.database;
	Oid			tablespace = info->rel.tablespace;
	bool		again = pairs_have(&facts->folders_again, database, tablespace);
	bool		dropped = pairs_have(&facts->databases_dropped_after, database, tablespace);
	const char *path = p->there[there].path;
	size_t		len = strlen(path);

	if (!dropped && !again &&
		(database >= facts->next_oid ||
		 pairs_have(&facts->databases_created_before, database, tablespace)))
		return;					/* replay makes it */
	plan_add(p->plan, ACTION_MAKE_FOLDER, dropped ? REASON_DROPPED : REASON_MISSING, path);
	for (int i = there + 1; i < p->nthere && strncmp(p->there[i].path, path, len) == 0; i++)
	{
		PathInfo	file;

		if (p->there[i].path[len] != '/' || !path_parse(p->there[i].path, &file) ||
			file.rel.node != InvalidOid)
			continue;			/* relations are found by plan_relations() */
		plan_add(p->plan, ACTION_COPY_FILE, dropped ? REASON_DROPPED : REASON_MISSING,
				 p->there[i].path)
			->bytes = p->there[i].size;
	}
}

/* ---- relations ------------------------------------------------------------------------ */

/* Blocks of a fork there, -1 if there is none. */
static int64
blocks_there(const Planning *p, RelFile rel, ForkNumber fork)
{
	int64		bytes = 0;
	const SourceFile *file;
	uint32		segment;

	for (segment = 0; (file = find_file(p->there, p->nthere, rel_path(rel, fork, segment))) != NULL; segment++)
		bytes += file->size;
	return segment == 0 ? -1 : bytes / BLCKSZ;
}

static void
settle_rel(Planning *p, RelFile rel)
{
	bool		found;

	relset_insert(p->settled, rel, &found);
}

static void
copy_relation(Planning *p, RelFile rel, Reason reason)
{
	Action	   *action = plan_add(p->plan, ACTION_COPY_RELATION, reason, NULL);

	bool		unlogged = blocks_there(p, rel, INIT_FORKNUM) >= 0;

	action->request.rel = rel;
	for (int fork = 0; fork <= MAX_FORKNUM; fork++)
	{
		int64		blocks = unlogged && fork != INIT_FORKNUM ? -1 : blocks_there(p, rel, (ForkNumber) fork);

		action->fork_blocks[fork] = blocks;
		action->bytes += Max(blocks, 0) * BLCKSZ;
	}
	/* it may be a sequence, see plan_pages.c */
	p->plan->needs_checkpoint = true;
	p->plan->pages_to_copy += action->bytes / BLCKSZ;
	settle_rel(p, rel);
}

/* Deletes all files of a relation that are here. */
static void
delete_relation(Planning *p, RelFile rel, Reason reason)
{
	for (int fork = 0; fork <= MAX_FORKNUM; fork++)
	{
		char	   *path;

		for (uint32 segment = 0;
			 is_here(p, path = rel_path(rel, (ForkNumber) fork, segment));
			 segment++)
			plan_add(p->plan, ACTION_DELETE_FILE, reason, path);
	}
	settle_rel(p, rel);
}

static bool
rel_is_there(const Planning *p, RelFile rel)
{
	return is_there(p, rel_path(rel, MAIN_FORKNUM, 0)) || is_there(p, rel_path(rel, INIT_FORKNUM, 0));
}

/* Was it there at the fork, as far as its pages tell? */
static bool
rel_is_old(const Planning *p, RelFile rel)
{
	char	   *path = rel_path(rel, MAIN_FORKNUM, 0);

	*strrchr(path, '/') = '\0';
	switch (rel_age(p, rel))
	{
		case REL_OLD:
			return true;
		case REL_NEW:
			return false;
		case REL_AGELESS:
			break;
	}
	return !is_there(p, path);
}

static void
plan_local_relation(Planning *p, RelFile rel)
{
	const RelFacts *facts = facts_rel(p->facts, rel);
	bool		there = rel_is_there(p, rel);
	bool		created_after = facts && facts->created_after;
	bool		may_be_new;

	if (facts && facts->copy_again)
		return;					/* see plan_missing_relation() */
	if (facts && facts->dropped_after)
	{
		if (created_after && !facts->created_before)
			delete_relation(p, rel, REASON_CREATED);
		return;					/* else copied, see below */
	}
	if (facts && facts->created_before)
		return;

	/* a pure lookup unless the file is suspicious */
	may_be_new = created_after || !there || rel.node >= p->facts->checkpoint.nextOid;
	if (!may_be_new || (!created_after && rel_is_old(p, rel)))
		return;
	if (!there)
		delete_relation(p, rel, created_after ? REASON_CREATED : REASON_ORPHAN);
	else
		copy_relation(p, rel, created_after ? REASON_CREATED : REASON_ORPHAN);
}

/* Has it gone, although it was there at the fork and no record drops it? */
static bool
is_missing(const Planning *p, RelFile rel)
{
	const RelFacts *facts = facts_rel(p->facts, rel);

	return !(facts && (facts->created_before || facts->dropped_after)) &&
		rel.node < p->facts->next_oid &&
		!is_here(p, rel_path(rel, MAIN_FORKNUM, 0)) &&
		!is_here(p, rel_path(rel, INIT_FORKNUM, 0)) &&
		!(rel.database != InvalidOid && rel.database >= p->facts->next_oid) &&
		!pairs_have(&p->facts->databases_created_before, rel.database, rel.tablespace);
}

/* Relations dropped after the fork, and those missing for another reason. */
static void
plan_missing_relation(Planning *p, RelFile rel)
{
	const RelFacts *facts = facts_rel(p->facts, rel);

	if ((facts && facts->copy_again) ||
		pairs_have(&p->facts->folders_again, rel.database, rel.tablespace))
		copy_relation(p, rel, REASON_MISSING);
	else if (facts && facts->dropped_after && !facts->created_before && !facts->created_after)
		copy_relation(p, rel, REASON_DROPPED);
	else if (is_missing(p, rel))
		copy_relation(p, rel, REASON_MISSING);
}

/* The first file of a relation: its main fork, or the only one it has here. */
static bool
first_file(const char *path, PathInfo *info)
{
	return path_parse(path, info) && info->rel.node != InvalidOid && info->segment == 0 &&
		(info->fork == MAIN_FORKNUM || info->fork == INIT_FORKNUM);
}

/* Folders of databases that DROP DATABASE was removing when it was killed. */
static void
find_broken_folders(Planning *p)
{
	PathInfo	info;

	for (int i = 0; i < p->nthere; i++)
		if (first_file(p->there[i].path, &info) && info.rel.database != InvalidOid &&
			is_missing(p, info.rel))
			facts_copy_folder_again(p->facts, info.rel.database, info.rel.tablespace);
}

void
plan_folders(Planning *p)
{
	PathInfo	info;

	find_broken_folders(p);
	for (int i = 0; i < p->nhere; i++)
		if (p->here[i].size < 0 && path_parse(p->here[i].path, &info))
			plan_local_folder(p, p->here[i].path, &info);
	for (int i = 0; i < p->nthere; i++)
		if (p->there[i].size < 0 && path_parse(p->there[i].path, &info) &&
			(!is_here(p, p->there[i].path) ||
			 pairs_have(&p->facts->folders_again, info.rel.database, info.rel.tablespace)))
			plan_missing_folder(p, i, &info);
}

void
plan_relations(Planning *p)
{
	PathInfo	info;

	for (int i = 0; i < p->nhere; i++)
		if (first_file(p->here[i].path, &info) &&
			relset_lookup(p->settled, info.rel) == NULL &&
			!pairs_have(&p->folders_settled, info.rel.database, info.rel.tablespace))
			plan_local_relation(p, info.rel);
	for (int i = 0; i < p->nthere; i++)
		if (first_file(p->there[i].path, &info) &&
			relset_lookup(p->settled, info.rel) == NULL &&
			!pairs_have(&p->folders_settled, info.rel.database, info.rel.tablespace))
			plan_missing_relation(p, info.rel);
}
