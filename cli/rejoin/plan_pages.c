/*-------------------------------------------------------------------------
 *
 * plan_pages.c
 *	  Pages that replay from the start checkpoint would not make right.
 *
 * Candidates are the pages that records after the fork name.  On disk such a
 * page is
 *	 - not ahead (LSN at or before the fork) and whole: fine.  It is whole if
 *	   its checksum says so, or, without checksums, if the machine has not
 *	   lost power since it was written;
 *	 - ahead, or maybe torn: fine if replay up to the fork overwrites it, by an
 *	   image or an initialisation; else it is copied.
 *
 * One kind of page changes without a record and without its LSN moving: the
 * metapage of an SP-GiST index remembers pages with room.  Where those are cut
 * off because the new primary never had them, it would lead beyond the end of
 * the file.  So it is copied along with any other page of such an index.
 *
 * A sequence gives out values ahead of its last record.  A copy of its page is
 * right only if the next value will be logged, which the new primary does for
 * the first one after a checkpoint.
 *
 * A relation cut short after the fork lacks blocks that were there at the
 * fork; from the least length on it is copied.  That goes for the main fork
 * only: bits of a visibility map and free space that are missing are safe.
 *
 * cli/rejoin/plan_pages.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <unistd.h>

#include "rejoin/plan.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/checksum_impl.h"

#define SPGIST_METAPAGE_BLKNO 0 /* spgist_private.h, a server header */

typedef enum PageState
{
	PAGE_ABSENT,
	PAGE_FINE,
	PAGE_AHEAD,
	PAGE_TORN
} PageState;

/* One open segment of a fork; pages come sorted, so it rarely changes. */
typedef struct OpenSegment
{
	int			fd;				/* -1 = none, or there is no such file */
	bool		valid;
	RelFile		rel;
	ForkNumber	fork;
	uint32		segment;
} OpenSegment;

static int
open_segment(OpenSegment *open_one, RelFile rel, ForkNumber fork, uint32 segment)
{
	char	   *path;

	if (open_one->valid && memcmp(&open_one->rel, &rel, sizeof(rel)) == 0 &&
		open_one->fork == fork && open_one->segment == segment)
		return open_one->fd;
	if (open_one->valid && open_one->fd >= 0)
		close(open_one->fd);

	path = rel_path(rel, fork, segment);
	open_one->fd = open(path, O_RDONLY | PG_BINARY);
	if (open_one->fd < 0 && errno != ENOENT && errno != ENOTDIR)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", path);
	open_one->valid = true;
	open_one->rel = rel;
	open_one->fork = fork;
	open_one->segment = segment;
	pg_free(path);
	return open_one->fd;
}

/* Bytes of a page that are there. */
static ssize_t
read_page(OpenSegment *segment, RelFile rel, ForkNumber fork, BlockNumber block, char *page)
{
	int			fd = open_segment(segment, rel, fork, block / RELSEG_SIZE);
	ssize_t		n;

	if (fd < 0)
		return 0;
	n = pg_pread(fd, page, BLCKSZ, (off_t) (block % RELSEG_SIZE) * BLCKSZ);
	if (n < 0)
		rejoin_refuse(NULL, "could not read block %u of file \"%s\": %m", block,
					  rel_path(rel, fork, block / RELSEG_SIZE));
	return n;
}

static bool
all_zero(const char *page)
{
	return page[0] == 0 && memcmp(page, page + 1, BLCKSZ - 1) == 0;
}

static PageState
page_state(const Planning *p, char *page, ssize_t n, BlockNumber block)
{
	PageHeader	header = (PageHeader) page;

	if (n == 0)
		return PAGE_ABSENT;
	if (n < BLCKSZ)
		return PAGE_TORN;
	if (all_zero(page))
		return PAGE_FINE;		/* extended, never written */
	if (PageGetLSN(page) > p->facts->fork)
		return PAGE_AHEAD;
	if (p->target->checksums)
		return pg_checksum_page(page, block) == header->pd_checksum ? PAGE_FINE : PAGE_TORN;
	return p->target->torn_pages ? PAGE_TORN : PAGE_FINE;
}

RelAge
rel_age(const Planning *p, RelFile rel)
{
	OpenSegment segment = {.fd = -1};
	PGAlignedBlock page;
	RelAge		age = REL_AGELESS;

	for (BlockNumber block = 0; age != REL_OLD; block++)
	{
		XLogRecPtr	lsn;

		if (read_page(&segment, rel, MAIN_FORKNUM, block, page.data) != BLCKSZ)
			break;
		lsn = PageGetLSN(page.data);
		if (lsn > p->facts->fork)
			age = REL_NEW;
		else if (lsn > GIST_BUILD_LSN)
			age = REL_OLD;
	}
	if (segment.valid && segment.fd >= 0)
		close(segment.fd);
	return age;
}

static int
compare_keys(const void *a, const void *b)
{
	const PageKey *x = &(*(PageFacts *const *) a)->key;
	const PageKey *y = &(*(PageFacts *const *) b)->key;

#define COMPARE(field) if (x->field != y->field) return x->field < y->field ? -1 : 1
	COMPARE(rel.tablespace);
	COMPARE(rel.database);
	COMPARE(rel.node);
	COMPARE(fork);
	COMPARE(block);
#undef COMPARE
	return 0;
}

static PageFacts **
sorted_pages(const Facts *facts)
{
	PageFacts **pages = pg_malloc((facts->pages->members + 1) * sizeof(PageFacts *));
	pageset_iterator i;
	PageFacts  *page;
	int64		n = 0;

	pageset_start_iterate(facts->pages, &i);
	while ((page = pageset_iterate(facts->pages, &i)) != NULL)
		pages[n++] = page;
	qsort(pages, n, sizeof(PageFacts *), compare_keys);
	return pages;
}

/* Deleted or copied as a whole anyway, or not from before the fork? */
static bool
is_settled(const Planning *p, RelFile rel)
{
	return relset_lookup(p->settled, rel) != NULL ||
		pairs_have(&p->folders_settled, rel.database, rel.tablespace);
}

/*
 * Do both nodes mean the same relation?  Both may have made one of this number
 * after the fork.
 */
static bool
is_shared(const Planning *p, RelFile rel)
{
	const RelFacts *facts = facts_rel(p->facts, rel);

	return !(facts && facts->created_after) &&
		(rel.node < p->facts->next_oid || (facts && facts->created_before)) &&
		rel.database < p->facts->next_oid &&
		!pairs_have(&p->facts->databases_created_after, rel.database, rel.tablespace);
}

/* One more page to copy; joins the action before if it follows. */
static void
add_page(Planning *p, const PageKey *key, Reason reason)
{
	Plan	   *plan = p->plan;
	Action	   *last = plan->n > 0 ? &plan->actions[plan->n - 1] : NULL;

	if (last == NULL || last->kind != ACTION_COPY_BLOCKS || last->reason != reason ||
		memcmp(&last->request.rel, &key->rel, sizeof(RelFile)) != 0 ||
		(int) last->request.fork != key->fork ||
		last->request.first + last->request.count != key->block)
	{
		last = plan_add(plan, ACTION_COPY_BLOCKS, reason, NULL);
		last->request.rel = key->rel;
		last->request.fork = (ForkNumber) key->fork;
		last->request.first = key->block;
	}
	last->request.count++;
	last->bytes += BLCKSZ;
	plan->pages_to_copy++;
}

/* See the head of this file; "page" is about to be copied. */
static void
add_spgist_metapage(Planning *p, const PageFacts *page, Reason reason, RelFile *last)
{
	PageKey		key = {page->key.rel, MAIN_FORKNUM, SPGIST_METAPAGE_BLKNO};
	bool		done = memcmp(last, &key.rel, sizeof(RelFile)) == 0;

	if (page->rmid != RM_SPGIST_ID || done)
		return;
	*last = key.rel;
	if (page->key.block != SPGIST_METAPAGE_BLKNO)
		add_page(p, &key, reason);
}

/* Blocks here, counted by what the files have. */
static BlockNumber
local_blocks(const Planning *p, RelFile rel)
{
	BlockNumber blocks = 0;

	for (uint32 segment = 0;; segment++)
	{
		const SourceFile *file = find_file(p->here, p->nhere, rel_path(rel, MAIN_FORKNUM, segment));

		if (file == NULL)
			return blocks;
		blocks += file->size / BLCKSZ;
		if (file->size < (int64) RELSEG_SIZE * BLCKSZ)
			return blocks;
	}
}

static int64
source_blocks_of(const Planning *p, RelFile rel)
{
	int64		blocks = 0;

	for (uint32 segment = 0;; segment++)
	{
		const SourceFile *file = find_file(p->there, p->nthere, rel_path(rel, MAIN_FORKNUM, segment));

		if (file == NULL)
			return blocks;
		blocks += file->size / BLCKSZ;
	}
}

/* Relations that were cut short after the fork. */
static void
plan_truncated(Planning *p)
{
	relset_iterator i;
	RelFacts   *rel;

	relset_start_iterate(p->facts->rels, &i);
	while ((rel = relset_iterate(p->facts->rels, &i)) != NULL)
	{
		BlockNumber from = rel->truncated_after;
		int64		to;
		Action	   *action;

		if (from == InvalidBlockNumber || is_settled(p, rel->rel))
			continue;
		from = Min(from, local_blocks(p, rel->rel));
		to = source_blocks_of(p, rel->rel);
		if (find_file(p->there, p->nthere, rel_path(rel->rel, MAIN_FORKNUM, 0)) == NULL)
			continue;			/* dropped there: replay will */

		/* to its end, wherever that will be when it is read */
		action = plan_add(p->plan, ACTION_COPY_BLOCKS, REASON_TRUNCATED, NULL);
		action->request.rel = rel->rel;
		action->request.fork = MAIN_FORKNUM;
		action->request.first = from;
		action->request.count = InvalidBlockNumber - from;
		action->bytes = Max(0, to - (int64) from) * BLCKSZ;
		p->plan->pages_to_copy += action->bytes / BLCKSZ;
	}
}

void
plan_pages(Planning *p)
{
	Facts	   *facts = p->facts;
	PageFacts **pages = sorted_pages(facts);
	PageState  *states = pg_malloc0((facts->pages->members + 1) * sizeof(PageState));
	OpenSegment segment = {.fd = -1};
	PGAlignedBlock page;
	uint64		doubtful = 0;
	RelFile		spgist = {InvalidOid, InvalidOid, InvalidOid};

	p->plan->pages_named = facts->pages->members;
	for (uint32 i = 0; i < facts->pages->members; i++)
	{
		const PageKey *key = &pages[i]->key;

		if (is_settled(p, key->rel) || !is_shared(p, key->rel))
			pages[i]->comparable = false;
		if (is_settled(p, key->rel))
			continue;
		states[i] = page_state(p, page.data,
							   read_page(&segment, key->rel, (ForkNumber) key->fork, key->block, page.data),
							   key->block);
		pages[i]->doubtful = states[i] == PAGE_AHEAD || states[i] == PAGE_TORN;
		doubtful += pages[i]->doubtful;
	}
	if (segment.valid && segment.fd >= 0)
		close(segment.fd);

	/* with the guard there are none, and WAL isn't read again */
	if (doubtful > 0)
		facts_mark_healed(facts, p->reader);
	for (uint32 i = 0; i < facts->pages->members; i++)
	{
		if (!pages[i]->doubtful)
			continue;
		if (pages[i]->healed)
			p->plan->pages_healed++;
		else
		{
			Reason		reason = states[i] == PAGE_AHEAD ? REASON_AHEAD : REASON_TORN;

			if (pages[i]->sequence)
				p->plan->needs_checkpoint = true;
			add_spgist_metapage(p, pages[i], reason, &spgist);
			add_page(p, &pages[i]->key, reason);
		}
	}
	plan_truncated(p);
}
