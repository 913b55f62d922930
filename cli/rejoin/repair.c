/*-------------------------------------------------------------------------
 *
 * repair.c
 *	  Carries out the actions of a plan: files become what replay needs.
 *
 * Every action may be done again.  Whole files are written under a temporary
 * name and renamed, so that a file that is there is complete; blocks are
 * written in place.  All that was written is fsynced before repair() returns.
 *
 * Blocks that the new primary no longer has were cut off or dropped there, and
 * replay will do the same; the file here is cut at the first of them.
 *
 * cli/rejoin/repair.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "rejoin/journal.h"

typedef struct Writer
{
	RepairResult *result;
	const Action *action;
	int			fd;				/* of "path", -1 = none is open */
	char	   *path;
	bool		whole;			/* a relation is copied as a whole */
} Writer;

static void
close_file(Writer *writer)
{
	if (writer->fd < 0)
		return;
	if (fsync(writer->fd) != 0 || close(writer->fd) != 0)
		rejoin_refuse(NULL, "could not fsync file \"%s\": %m", writer->path);
	writer->fd = -1;
}

static int
open_file(Writer *writer, RelFile rel, ForkNumber fork, uint32 segment)
{
	char	   *path = rel_path(rel, fork, segment);

	if (writer->fd >= 0 && strcmp(writer->path, path) == 0)
		return writer->fd;
	close_file(writer);
	writer->path = path;
	writer->fd = open(path, O_RDWR | O_CREAT | PG_BINARY, pg_file_create_mode);
	if (writer->fd < 0)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", path);
	return writer->fd;
}

static void
write_blocks(void *arg, const BlockRequest *request, BlockNumber first,
			 const char *content, int nblocks)
{
	Writer	   *writer = arg;
	int			done = 0;

	while (done < nblocks)
	{
		BlockNumber block = first + done;
		uint32		segment = block / RELSEG_SIZE;
		int			n = Min(nblocks - done, (int) (RELSEG_SIZE - block % RELSEG_SIZE));
		int			fd = open_file(writer, request->rel, request->fork, segment);
		ssize_t		len = (ssize_t) n * BLCKSZ;

		errno = 0;
		if (pg_pwrite(fd, content + (size_t) done * BLCKSZ, len,
					  (off_t) (block % RELSEG_SIZE) * BLCKSZ) != len)
		{
			if (errno == 0)
				errno = ENOSPC;
			rejoin_refuse(NULL, "could not write block %u of file \"%s\": %m", block, writer->path);
		}
		done += n;
	}
	writer->result->pages_copied[writer->action->reason] += nblocks;
	writer->result->bytes_fetched += (uint64) nblocks * BLCKSZ;
}

/* Cuts a fork to a number of blocks, if it is longer. */
static void
cut_fork(RelFile rel, ForkNumber fork, int64 blocks)
{
	for (uint32 segment = blocks / RELSEG_SIZE;; segment++)
	{
		char	   *path = rel_path(rel, fork, segment);
		int64		keep = Max(blocks - (int64) segment * RELSEG_SIZE, 0) * BLCKSZ;
		struct stat st;

		if (stat(path, &st) != 0)
		{
			if (errno == ENOENT)
				return;
			rejoin_refuse(NULL, "could not stat file \"%s\": %m", path);
		}
		if (st.st_size > keep)
		{
			if (truncate(path, keep) != 0)
				rejoin_refuse(NULL, "could not cut file \"%s\": %m", path);
			sync_file(path);
		}
	}
}

static void
end_of_request(void *arg, const BlockRequest *request, int64 relation_blocks)
{
	Writer	   *writer = arg;

	close_file(writer);
	if (writer->whole)
	{
		if (relation_blocks < 0)
			return;
		(void) open_file(writer, request->rel, request->fork, 0);	/* also an empty fork exists */
		close_file(writer);
		cut_fork(request->rel, request->fork, relation_blocks);
	}
	else if (relation_blocks < (int64) request->first + request->count)
		cut_fork(request->rel, request->fork, Max(relation_blocks, request->first));
}

/* ---- blocks: all requests of the plan in one stream ------------------------------- */

typedef struct BlockWork
{
	Writer		writer;
	const BlockRequest *requests;
	const Action **actions;		/* of each request */
} BlockWork;

static void
work_blocks(void *arg, const BlockRequest *request, BlockNumber first,
			const char *content, int nblocks)
{
	BlockWork  *work = arg;

	work->writer.action = work->actions[request - work->requests];
	work->writer.whole = work->writer.action->kind == ACTION_COPY_RELATION;
	write_blocks(&work->writer, request, first, content, nblocks);
}

static void
work_end(void *arg, const BlockRequest *request, int64 relation_blocks)
{
	BlockWork  *work = arg;

	work->writer.action = work->actions[request - work->requests];
	work->writer.whole = work->writer.action->kind == ACTION_COPY_RELATION;
	end_of_request(&work->writer, request, relation_blocks);
}

/* Removes all forks that are here. */
static void
remove_relation(RelFile rel)
{
	for (int fork = 0; fork <= MAX_FORKNUM; fork++)
		for (uint32 segment = 0;; segment++)
		{
			char	   *path = rel_path(rel, (ForkNumber) fork, segment);

			if (!file_exists(path))
				break;
			remove_tree(path);
		}
}

static void
copy_blocks(const Plan *plan, Source *source, RepairResult *result)
{
	BlockWork	work = {.writer = {.result = result, .fd = -1}};
	BlockSink	sink = {work_blocks, work_end, &work};
	BlockRequest *requests = pg_malloc0((plan->n + 1) * (MAX_FORKNUM + 1) * sizeof(BlockRequest));
	const Action **actions = pg_malloc0((plan->n + 1) * (MAX_FORKNUM + 1) * sizeof(Action *));
	int			n = 0;

	for (int i = 0; i < plan->n; i++)
	{
		const Action *action = &plan->actions[i];

		if (action->kind == ACTION_COPY_BLOCKS)
		{
			actions[n] = action;
			requests[n++] = action->request;
		}
		else if (action->kind == ACTION_COPY_RELATION)
		{
			remove_relation(action->request.rel);
			/* blocks and forks that came since the plan was made replay makes */
			for (int fork = 0; fork <= MAX_FORKNUM; fork++)
			{
				if (action->fork_blocks[fork] < 0)
					continue;
				actions[n] = action;
				requests[n].rel = action->request.rel;
				requests[n].fork = (ForkNumber) fork;
				requests[n++].count = (BlockNumber) action->fork_blocks[fork];
			}
		}
	}
	work.requests = requests;
	work.actions = actions;
	source_blocks(source, requests, n, &sink);
	close_file(&work.writer);
}

/* ---- everything else ----------------------------------------------------------------- */

static void
copy_file(const Action *action, Source *source, RepairResult *result)
{
	PQExpBufferData content;

	initPQExpBuffer(&content);
	if (source_file(source, action->path, &content))
	{
		write_durably(action->path, content.data, content.len);
		result->files_copied[action->reason]++;
		result->bytes_fetched += content.len;
	}
	else if (action->reason == REASON_ORIGIN)
		remove_tree(action->path);	/* it never had any progress */
	termPQExpBuffer(&content);
}

static void
make_folder(const char *path)
{
	char	   *parts = pg_strdup(path);

	if (pg_mkdir_p(parts, pg_dir_create_mode) != 0 && errno != EEXIST)
		rejoin_refuse(NULL, "could not create directory \"%s\": %m", path);
	get_parent_directory(parts);
	sync_dir(parts);
}

static void
make_tablespace(const Action *action)
{
	if (file_exists(action->path))
		return;
	if (!is_absolute_path(action->target))
		make_folder(action->path);
	else if (symlink(action->target, action->path) != 0)
		rejoin_refuse(NULL, "could not create symbolic link \"%s\": %m", action->path);
	sync_dir("pg_tblspc");
	make_folder(psprintf("%s/%s", action->path, TABLESPACE_VERSION_DIRECTORY));
}

static void
drop_tablespace(const char *link)
{
	struct stat st;

	if (lstat(link, &st) != 0)
		return;
	remove_tree(psprintf("%s/%s", link, TABLESPACE_VERSION_DIRECTORY));
	if (S_ISDIR(st.st_mode) ? rmdir(link) != 0 : unlink(link) != 0)
		rejoin_refuse(NULL, "could not remove \"%s\": %m", link);
	sync_dir("pg_tblspc");
}

void
repair(const Plan *plan, const Facts *facts, Source *source, RepairResult *result)
{
	bool		any_blocks = false;

	memset(result, 0, sizeof(*result));
	stop_point("repair");
	for (int i = 0; i < plan->n; i++)
	{
		const Action *action = &plan->actions[i];

		switch (action->kind)
		{
			case ACTION_DELETE_FILE:
			case ACTION_DELETE_FOLDER:
				remove_tree(action->path);
				result->files_deleted[action->reason]++;
				stop_point("delete");
				break;
			case ACTION_MAKE_FOLDER:
				make_folder(action->path);
				break;
			case ACTION_MAKE_TABLESPACE:
				make_tablespace(action);
				break;
			case ACTION_DROP_TABLESPACE:
				drop_tablespace(action->path);
				break;
			case ACTION_COPY_FILE:
				copy_file(action, source, result);
				stop_point("copy_file");
				break;
			case ACTION_COPY_BLOCKS:
			case ACTION_COPY_RELATION:
				any_blocks = true;
				break;
		}
	}
	if (any_blocks)
		copy_blocks(plan, source, result);
	stop_point("copy_blocks");
	slru_repair(facts);
	stop_point("slru");
}
