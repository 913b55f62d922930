/*-------------------------------------------------------------------------
 *
 * smgr_table.c
 *	  How the guard is called: between the buffer manager and the files.
 *
 * The server has no hook where a data page is written.  But smgr.c calls the
 * storage manager through smgrsw, a table of function pointers in which each
 * entry is one of the exported md* functions.  It is constant, so the linker
 * puts it where relocations are applied at start and the pages are made
 * read-only afterwards.  We look for these pointers in the program that has
 * mdinit, all of them in the order of this server version, and replace those
 * that write, extend, truncate and unlink.  The page protection is put back.
 * The postmaster does that at load, before it has any child; children inherit
 * it.
 *
 *	   not installed --- table found, replaced, called ---> installed
 *	   not installed --- any doubt ---> refused, with a log line
 *
 * "Any doubt" is:
 * - The library was built for a minor release in which mdtruncate has other
 *	 arguments than in the one that runs.
 * - The pointers are not there, or more than once (another library has
 *	 replaced some, or the linker has other ideas).
 * - The protection of the pages can't be found out or changed.
 * - A call through smgr.c does not arrive here.  The proof has two parts.  At
 *	 load it extends a relation that does not exist, to a length which
 *	 mdextend refuses before it touches anything.  The other three calls need
 *	 shared memory and open files, so the worker makes them when it starts.
 *	 These are the only calls that are not passed on.
 *
 * Everything else: no replaced function ever returns without having done what
 * the original does.  A write that was left out would be marked clean, and
 * lost.
 *
 * src/failback/smgr_table.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef __linux__
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/md.h"
#include "storage/smgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "common/compat.h"
#include "common/settings.h"
#include "failback/guard.h"
#include "failback/smgr_table.h"

#define HINT_WITHOUT "Commits can wait for the failback standbys, data pages can't; \"tandem rejoin\" repairs what that leaves."

/* The table as smgr.c has it. */
static const void *const core_table[] = TANDEM_SMGR_TABLE;

/* the result of tandem_smgr_install */
static const char *refusal = "it was not loaded by shared_preload_libraries";
static const char *refusal_hint = NULL;

/* ---- the replaced functions ----------------------------------------------------- */

#define ARRIVED_WRITE 1
#define ARRIVED_EXTEND 2
#define ARRIVED_TRUNCATE 4
#define ARRIVED_UNLINK 8

/* The relation of the self test; it has no file and is nobody's. */
static SMgrRelationData test_relation;
static bool testing = false;
static int	arrived = 0;

/* Is this call ours? */
static inline bool
is_test(TANDEM_RELFILE relfile, int call)
{
	if (likely(!testing) ||
		memcmp(&relfile, &TANDEM_SMGR_RELFILE(&test_relation), sizeof(relfile)) != 0)
		return false;
	arrived |= call;
	return true;
}

#ifdef TANDEM_SMGR_WRITES_VECTORS
static void
guarded_writev(SMgrRelation reln, ForkNumber forknum, BlockNumber blocknum,
			   const void **buffers, BlockNumber nblocks, bool skipFsync)
{
	if (is_test(TANDEM_SMGR_RELFILE(reln), ARRIVED_WRITE))
		return;
	if (!skipFsync && !SmgrIsTemp(reln))
	{
		/* one page may be replaced by a copy, of more we wait for the newest */
		if (nblocks == 1)
		{
			const void *page = tandem_guard_page(buffers[0]);

			mdwritev(reln, forknum, blocknum, &page, 1, skipFsync);
			return;
		}
		for (BlockNumber i = 0; i < nblocks; i++)
			(void) tandem_guard_page(buffers[i]);
	}
	mdwritev(reln, forknum, blocknum, buffers, nblocks, skipFsync);
}
#else
static void
guarded_write(SMgrRelation reln, ForkNumber forknum, BlockNumber blocknum,
			  TandemPage buffer, bool skipFsync)
{
	if (is_test(TANDEM_SMGR_RELFILE(reln), ARRIVED_WRITE))
		return;
	if (!skipFsync && !SmgrIsTemp(reln))
		buffer = tandem_guard_page(buffer);
	mdwrite(reln, forknum, blocknum, buffer, skipFsync);
}
#endif

static void
guarded_extend(SMgrRelation reln, ForkNumber forknum, BlockNumber blocknum,
			   TandemPage buffer, bool skipFsync)
{
	if (is_test(TANDEM_SMGR_RELFILE(reln), ARRIVED_EXTEND))
		return;
	if (!skipFsync && !SmgrIsTemp(reln))
		buffer = tandem_guard_page(buffer);
	mdextend(reln, forknum, blocknum, buffer, skipFsync);
}

#ifdef TANDEM_TRUNCATE_OLD_LENGTH
static void
guarded_truncate(SMgrRelation reln, ForkNumber forknum, BlockNumber old_blocks,
				 BlockNumber nblocks)
{
	if (is_test(TANDEM_SMGR_RELFILE(reln), ARRIVED_TRUNCATE))
		return;
	if (!SmgrIsTemp(reln))
		tandem_guard_removal();
	mdtruncate(reln, forknum, old_blocks, nblocks);
}
#else
static void
guarded_truncate(SMgrRelation reln, ForkNumber forknum, BlockNumber nblocks)
{
	if (is_test(TANDEM_SMGR_RELFILE(reln), ARRIVED_TRUNCATE))
		return;
	if (!SmgrIsTemp(reln))
		tandem_guard_removal();
	mdtruncate(reln, forknum, nblocks);
}
#endif

static void
guarded_unlink(TANDEM_RELFILE relfile, ForkNumber forknum, bool isRedo)
{
	if (is_test(relfile, ARRIVED_UNLINK))
		return;
	if (!isRedo && !TANDEM_RELFILE_IS_TEMP(relfile))
		tandem_guard_removal();
	mdunlink(relfile, forknum, isRedo);
}

static const struct
{
	const void *original;
	const void *replacement;
} replaced[] = {
#ifdef TANDEM_SMGR_WRITES_VECTORS
	{mdwritev, guarded_writev},
#else
	{mdwrite, guarded_write},
#endif
	{mdextend, guarded_extend},
	{mdtruncate, guarded_truncate},
	{mdunlink, guarded_unlink}};

/* ---- refusing ----------------------------------------------------------------------- */

/* not installed -> refused; both texts are constants */
static void
refuse(const char *reason, const char *hint)
{
	refusal = reason;
	refusal_hint = hint;
	ereport(LOG,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("pg_tandem can't guard data pages: %s", reason),
			 errhint("%s", hint)));
}

const char *
tandem_smgr_refusal(const char **hint)
{
	if (hint)
		*hint = refusal_hint;
	return refusal;
}

/* Is mdtruncate here what it was where this library was built? */
static bool
truncate_is_the_same(void)
{
	int			running = atoi(GetConfigOption("server_version_num", false, false));

	if (tandem_debug_guard_failure == TANDEM_SMGR_MINOR)
		running = PG_VERSION_NUM / 10000 * 10000;	/* the first one: older than all */

	return TANDEM_TRUNCATE_HAS_OLD_LENGTH(running) ==
		TANDEM_TRUNCATE_HAS_OLD_LENGTH(PG_VERSION_NUM);
}

/* ---- finding the table ------------------------------------------------------------------ */

#ifdef __linux__

typedef struct TableSearch
{
	const void **table;			/* the last match */
	int			matches;
} TableSearch;

static bool
contains(const struct dl_phdr_info *object, const ElfW(Phdr) * segment, const void *address)
{
	uintptr_t	start = object->dlpi_addr + segment->p_vaddr;

	return (uintptr_t) address >= start &&
		(uintptr_t) address < start + segment->p_memsz;
}

/* Looks for the table in what is constant of the object that has mdinit. */
static int
search_object(struct dl_phdr_info *object, size_t size, void *arg)
{
	TableSearch *search = (TableSearch *) arg;
	bool		ours = false;

	for (int i = 0; i < object->dlpi_phnum; i++)
		ours |= object->dlpi_phdr[i].p_type == PT_LOAD &&
			contains(object, &object->dlpi_phdr[i], core_table[0]);
	if (!ours)
		return 0;

	for (int i = 0; i < object->dlpi_phnum; i++)
	{
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		const void **p;
		const void **end;

		/* without position independence it needs no relocation */
		if (segment->p_type != PT_GNU_RELRO &&
			!(segment->p_type == PT_LOAD && (segment->p_flags & (PF_R | PF_W)) == PF_R))
			continue;

		p = (const void **) TYPEALIGN(sizeof(void *), object->dlpi_addr + segment->p_vaddr);
		end = (const void **) (object->dlpi_addr + segment->p_vaddr + segment->p_memsz -
							   sizeof(core_table));
		for (; p <= end; p++)
		{
			if (*p == core_table[0] && memcmp(p, core_table, sizeof(core_table)) == 0)
			{
				search->table = p;
				search->matches++;
			}
		}
	}
	return 1;
}

/*
 * The protection of the pages from start to end, if they all are in one
 * mapping; else -1.
 */
static int
protection_of(uintptr_t start, uintptr_t end)
{
	FILE	   *maps = AllocateFile("/proc/self/maps", "r");
	char		line[1024];
	int			protection = -1;

	if (maps == NULL)
		return -1;
	while (protection < 0 && fgets(line, sizeof(line), maps) != NULL)
	{
		unsigned long from;
		unsigned long to;
		char		flags[5];

		if (sscanf(line, "%lx-%lx %4s", &from, &to, flags) == 3 &&
			from <= start && end <= to)
			protection = (flags[0] == 'r' ? PROT_READ : 0) |
				(flags[1] == 'w' ? PROT_WRITE : 0) |
				(flags[2] == 'x' ? PROT_EXEC : 0);
	}
	FreeFile(maps);
	return protection;
}

/* Writes the replacements into the table.  Returns why not, or NULL. */
static const char *
replace(void)
{
	TableSearch search = {NULL, 0};
	uintptr_t	page_size = sysconf(_SC_PAGESIZE);
	uintptr_t	start;
	uintptr_t	end;
	int			protection;

	if (tandem_debug_guard_failure != TANDEM_SMGR_MISSING)
		(void) dl_iterate_phdr(search_object, &search);
	if (search.matches == 0)
		return "the table of storage manager functions was not found";
	if (search.matches > 1)
		return "more than one table of storage manager functions was found";

	/* a test wants to know whether we believe that without looking */
	if (tandem_debug_guard_failure == TANDEM_SMGR_UNCALLED)
		return NULL;

	start = (uintptr_t) search.table / page_size * page_size;
	end = TYPEALIGN(page_size, (uintptr_t) search.table + sizeof(core_table));
	protection = protection_of(start, end);
	if (protection < 0)
		return "the protection of the table of storage manager functions is unknown";
	if (mprotect((void *) start, end - start, protection | PROT_WRITE) != 0)
		return "the table of storage manager functions can't be written";

	for (int i = 0; i < lengthof(core_table); i++)
	{
		for (int j = 0; j < lengthof(replaced); j++)
		{
			if (tandem_debug_guard_failure == TANDEM_SMGR_PARTIAL &&
				replaced[j].replacement != guarded_extend)
				continue;
			if (core_table[i] == replaced[j].original)
				search.table[i] = replaced[j].replacement;
		}
	}

	if (mprotect((void *) start, end - start, protection) != 0)
		ereport(LOG,
				(errmsg("could not protect the table of storage manager functions again: %m")));
	return NULL;
}

#else

static const char *
replace(void)
{
	return "this operating system is not supported";
}

#endif

/* ---- the proof ----------------------------------------------------------------------------- */

/*
 * Makes calls as the buffer manager would; which ones arrived is in "arrived".
 * Where they don't, the originals complain.
 */
static void
call(bool at_load)
{
	TANDEM_PAGE_ROOM page;
	MemoryContext context = CurrentMemoryContext;

	memset(&test_relation, 0, sizeof(test_relation));
	/* a temporary relation of nobody: it has no shared buffers to look for */
	TANDEM_SMGR_RELFILE(&test_relation).backend = MaxBackends + 1;
	memset(page.data, 0, BLCKSZ);

	arrived = 0;
	testing = true;
	PG_TRY();
	{
		if (at_load)
			smgrextend(&test_relation, MAIN_FORKNUM, InvalidBlockNumber, page.data, true);
		else
		{
			SMgrRelation reln = &test_relation;

			TANDEM_SMGRTRUNCATE(reln, 0, 0);
			smgrdounlinkall(&reln, 1, false);
			smgrwrite(&test_relation, MAIN_FORKNUM, 0, page.data, true);
		}
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	testing = false;
}

void
tandem_smgr_install(void)
{
	const char *reason;

	if (!truncate_is_the_same())
	{
		refuse("the library was built for a minor release with another mdtruncate",
			   "Install the build of pg_tandem for this minor release, then restart the server.");
		return;
	}
	reason = replace();
	if (reason != NULL)
	{
		refuse(reason, HINT_WITHOUT);
		return;
	}
	call(true);
	if (arrived != ARRIVED_EXTEND)
	{
		refuse("the replaced storage manager functions are not called", HINT_WITHOUT);
		return;
	}
	refusal = NULL;
}

bool
tandem_smgr_self_test(void)
{
	if (refusal != NULL)
		return false;

	call(false);
	if (arrived == (ARRIVED_TRUNCATE | ARRIVED_UNLINK | ARRIVED_WRITE))
		return true;

	refuse("not all of the replaced storage manager functions are called", HINT_WITHOUT);
	return false;
}
