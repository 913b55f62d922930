/*-------------------------------------------------------------------------
 *
 * source_blocks.c
 *	  SQL functions that give pages to a node that rejoins or compares.
 *
 * tandem.source_blocks() is the new primary's answer to "tandem rejoin": whole
 * pages, by ranges of blocks.  For each request come rows with up to 64
 * consecutive blocks, then one without content that ends it and has the fork's
 * length.  The length is taken before the first block is read and cut where
 * the end is met earlier.  So each block below it has been sent if it was
 * asked for, and what lies above was made or removed after the call, which
 * replay will do again.
 *
 * No page leaves this server before its WAL is on disk here: a page from the
 * future of a source that crashes would never be repaired.
 *
 * Rows are returned one by one.  Called in the select list, as "tandem rejoin"
 * does, the answer is never collected; called in FROM, the executor puts all
 * of it into a temporary file.
 *
 * tandem.page_digests() works on a primary and on a standby: pages with the
 * same LSN have the same digest on both, since what may differ is masked like
 * wal_consistency_checking masks it, by the resource manager that wrote it.
 *
 * src/failback/source_blocks.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/bufmask.h"
#include "access/htup_details.h"
#include "access/spgist_private.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/bufpage.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "common/compat.h"
#include "common/version.h"
#include "failback/reader.h"

PG_FUNCTION_INFO_V1(tandem_source_blocks);
PG_FUNCTION_INFO_V1(tandem_page_digests);

#define BLOCKS_COLS 4
#define DIGESTS_COLS 3
#define BLOCKS_PER_ROW 64

/*
 * The functions that mask a page trust its item pointers, which address 32 kB
 * and have lengths of as much.  A caller may name any page with any resource
 * manager; give them room for all they could touch.
 */
#define MASK_ROOM (BLCKSZ + 2 * 65536)

void
tandem_require_reader(bool in_recovery_too)
{
	tandem_check_sql_version();
	CheckSlotPermissions();
	if (!in_recovery_too && RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server is a standby and cannot give pages or files to another node"),
				 errhint("Name the primary as the source.")));
}

/* ---- arguments --------------------------------------------------------------- */

/* The elements of an array argument, which has to have as many as the first. */
static Datum *
array_argument(FunctionCallInfo fcinfo, int arg, Oid type, int *count)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(arg);
	bool		wide = type == INT8OID;
	Datum	   *elements;
	int			n;

	Assert(ARR_ELEMTYPE(array) == type);
	if (ARR_NDIM(array) > 1 || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("arrays must have one dimension and no null")));
	deconstruct_array(array, type, wide ? 8 : 4, wide ? FLOAT8PASSBYVAL : true,
					  wide ? TYPALIGN_DOUBLE : TYPALIGN_INT, &elements, NULL, &n);
	if (*count >= 0 && n != *count)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("arrays must have the same number of elements")));
	*count = n;
	return elements;
}

/* The forks named by the first four arguments; palloc'd. */
static TandemFork *
fork_arguments(FunctionCallInfo fcinfo, int *count)
{
	Datum	   *tablespaces;
	Datum	   *databases;
	Datum	   *nodes;
	Datum	   *numbers;
	TandemFork *forks;
	int			i;

	*count = -1;
	tablespaces = array_argument(fcinfo, 0, OIDOID, count);
	databases = array_argument(fcinfo, 1, OIDOID, count);
	nodes = array_argument(fcinfo, 2, OIDOID, count);
	numbers = array_argument(fcinfo, 3, INT4OID, count);

	forks = palloc0((*count + 1) * sizeof(TandemFork));
	for (i = 0; i < *count; i++)
	{
		Oid			tablespace = DatumGetObjectId(tablespaces[i]);
		Oid			database = DatumGetObjectId(databases[i]);
		Oid			node = DatumGetObjectId(nodes[i]);
		int			number = DatumGetInt32(numbers[i]);

		if (!OidIsValid(tablespace) || !OidIsValid(node) ||
			OidIsValid(database) == (tablespace == GLOBALTABLESPACE_OID) ||
			number < 0 || number > MAX_FORKNUM)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("there is no fork %d of a relation with tablespace %u, database %u and file number %u",
							number, tablespace, database, node)));
		TANDEM_SET_RELFILE_ID(forks[i].rel, tablespace, database, node);
		forks[i].fork = (ForkNumber) number;
	}
	return forks;
}

static BlockNumber
block_argument(int64 block)
{
	if (block < 0 || block > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("block number %lld is out of range", (long long) block)));
	return (BlockNumber) block;
}

/* ---- whole pages --------------------------------------------------------------- */

/* Where an answer of tandem.source_blocks() has got to. */
typedef struct BlocksAnswer
{
	int			nrequests;
	TandemFork *forks;
	BlockNumber *first;
	int		   *count;

	int			request;		/* the one being answered */
	bool		started;		/* next and length are this request's */
	BlockNumber next;			/* first block not sent yet */
	int64		length;			/* of the fork in blocks, -1 = doesn't exist */
	bytea	   *content;		/* room for one row's */
} BlocksAnswer;

static BlocksAnswer *
start_blocks_answer(FunctionCallInfo fcinfo)
{
	BlocksAnswer *answer = palloc0(sizeof(BlocksAnswer));
	Datum	   *first;
	Datum	   *count;
	int			i;

	answer->forks = fork_arguments(fcinfo, &answer->nrequests);
	first = array_argument(fcinfo, 4, INT8OID, &answer->nrequests);
	count = array_argument(fcinfo, 5, INT4OID, &answer->nrequests);

	answer->first = palloc((answer->nrequests + 1) * sizeof(BlockNumber));
	answer->count = palloc((answer->nrequests + 1) * sizeof(int));
	for (i = 0; i < answer->nrequests; i++)
	{
		answer->first[i] = block_argument(DatumGetInt64(first[i]));
		answer->count[i] = DatumGetInt32(count[i]);
		if (answer->count[i] < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("number of blocks must not be negative")));
	}
	answer->content = palloc(VARHDRSZ + BLOCKS_PER_ROW * BLCKSZ);
	return answer;
}

/* Same fork as the request before: its length still holds, see above. */
static bool
same_fork_as_before(const BlocksAnswer *answer)
{
	const TandemFork *fork = &answer->forks[answer->request];

	return answer->request > 0 && fork[-1].fork == fork->fork &&
		TANDEM_RELFILE_ID_EQUALS(fork[-1].rel, fork->rel);
}

/* Waits until the WAL of these pages is on disk. */
static void
flush_pages(const TandemFork *fork, BlockNumber first, const char *pages, int count)
{
	XLogRecPtr	newest = InvalidXLogRecPtr;
	int			i;

	for (i = 0; i < count; i++)
	{
		XLogRecPtr	lsn = PageGetLSN((Page) (pages + (Size) i * BLCKSZ));

		if (lsn > newest && lsn > GetXLogInsertRecPtr())
		{
			char		path[MAXPGPATH];

			TANDEM_RELATION_PATH(path, sizeof(path), fork->rel, fork->fork);
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("block %u of relation %s has LSN %X/%X, beyond the end of WAL",
							first + i, path, LSN_FORMAT_ARGS(lsn)),
					 errhint("Repair it here first, a page like this must not spread.")));
		}
		newest = Max(newest, lsn);
	}
	if (!XLogRecPtrIsInvalid(newest))
		XLogFlush(newest);
}

/*
 * Reads the next run of the request at hand into answer->content.  Returns
 * the number of blocks, 0 when the request is done.
 */
static int
read_run(BlocksAnswer *answer)
{
	const TandemFork *fork = &answer->forks[answer->request];
	BlockNumber first = answer->first[answer->request];
	int64		end = (int64) first + answer->count[answer->request];
	int			want;
	int			got;

	if (!answer->started)
	{
		if (!same_fork_as_before(answer))
			answer->length = tandem_fork_length(fork);
		answer->next = first;
		answer->started = true;
	}
	end = Min(end, answer->length);
	if (answer->next >= end)
		return 0;
	want = Min(end - answer->next, BLOCKS_PER_ROW);
	want = Min(want, RELSEG_SIZE - answer->next % ((BlockNumber) RELSEG_SIZE));
	got = tandem_read_blocks(fork, answer->next, want, VARDATA(answer->content));
	if (got < want)
		answer->length = (int64) answer->next + got;	/* truncated meanwhile */
	flush_pages(fork, answer->next, VARDATA(answer->content), got);
	return got;
}

/*
 * SQL function tandem.source_blocks(tablespace, database, filenode, fork,
 * first, count); see the header of this file.
 */
Datum
tandem_source_blocks(PG_FUNCTION_ARGS)
{
	FuncCallContext *context;
	BlocksAnswer *answer;
	Datum		values[BLOCKS_COLS];
	bool		nulls[BLOCKS_COLS] = {false, false, false, false};
	int			got;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;
		TupleDesc	tupdesc;

		context = SRF_FIRSTCALL_INIT();
		tandem_require_reader(false);
		old = MemoryContextSwitchTo(context->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE ||
			tupdesc->natts != BLOCKS_COLS)
			elog(ERROR, "return type must be a row type");
		context->tuple_desc = BlessTupleDesc(tupdesc);
		context->user_fctx = start_blocks_answer(fcinfo);
		MemoryContextSwitchTo(old);
	}
	context = SRF_PERCALL_SETUP();
	answer = context->user_fctx;
	if (answer->request >= answer->nrequests)
		SRF_RETURN_DONE(context);

	got = read_run(answer);
	values[0] = Int32GetDatum(answer->request + 1);
	values[1] = Int64GetDatum((int64) answer->next);
	if (got > 0)
	{
		SET_VARSIZE(answer->content, VARHDRSZ + (Size) got * BLCKSZ);
		values[2] = PointerGetDatum(answer->content);
		values[3] = (Datum) 0;
		nulls[3] = true;
		answer->next += got;
	}
	else
	{
		values[2] = (Datum) 0;
		nulls[2] = true;
		values[3] = Int64GetDatum(answer->length);
		nulls[3] = answer->length < 0;
		answer->request++;
		answer->started = false;
	}
	SRF_RETURN_NEXT(context,
					HeapTupleGetDatum(heap_form_tuple(context->tuple_desc, values, nulls)));
}

/* ---- digests --------------------------------------------------------------------- */

/* As PageIsVerified demands of a page that isn't new. */
static bool
header_is_sane(const char *page)
{
	const PageHeaderData *header = (const PageHeaderData *) page;

	return (header->pd_flags & ~PD_VALID_FLAG_BITS) == 0 &&
		header->pd_lower >= SizeOfPageHeaderData &&
		header->pd_lower <= header->pd_upper &&
		header->pd_upper <= header->pd_special &&
		header->pd_special <= BLCKSZ &&
		header->pd_special == MAXALIGN(header->pd_special);
}

/*
 * Does a page have content that no record tells of, and that no consistency
 * check sees since it has no images of it?  A sequence is logged ahead of the
 * values it hands out; SP-GiST's metapage remembers where there was room.
 */
static bool
content_is_unlogged(BlockNumber block, int rmid)
{
	return rmid == RM_SEQ_ID || (rmid == RM_SPGIST_ID && block == SPGIST_METAPAGE_BLKNO);
}

/* page has MASK_ROOM bytes and is changed */
static int64
page_digest(char *page, BlockNumber block, int rmid)
{
	if (header_is_sane(page))
	{
		RmgrData	rmgr = GetRmgr((RmgrId) rmid);

		if (rmgr.rm_mask != NULL)
			rmgr.rm_mask(page, block);
		else
			mask_page_lsn_and_checksum((Page) page);
		if (content_is_unlogged(block, rmid))
			mask_page_content((Page) page);
	}
	return (int64) hash_bytes_extended((unsigned char *) page, BLCKSZ, 0);
}

/*
 * SQL function tandem.page_digests(tablespace, database, filenode, fork, block,
 * rmgr): a row for each block, with nulls where there is none.
 */
Datum
tandem_page_digests(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TandemFork *forks;
	Datum	   *blocks;
	Datum	   *rmids;
	char	   *page;
	int			count;
	int			i;

	tandem_require_reader(true);
	forks = fork_arguments(fcinfo, &count);
	blocks = array_argument(fcinfo, 4, INT8OID, &count);
	rmids = array_argument(fcinfo, 5, INT4OID, &count);
	for (i = 0; i < count; i++)
	{
		int			rmid = DatumGetInt32(rmids[i]);

		(void) block_argument(DatumGetInt64(blocks[i]));
		if (rmid < 0 || rmid > RM_MAX_ID || !RmgrIdExists(rmid))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("this server has no resource manager %d", rmid)));
	}

	InitMaterializedSRF(fcinfo, 0);
	page = palloc0(MASK_ROOM);
	for (i = 0; i < count; i++)
	{
		BlockNumber block = (BlockNumber) DatumGetInt64(blocks[i]);
		Datum		values[DIGESTS_COLS];
		bool		nulls[DIGESTS_COLS] = {false, false, false};
		bool		found = tandem_read_blocks(&forks[i], block, 1, page) == 1;

		values[0] = Int32GetDatum(i + 1);
		values[1] = values[2] = (Datum) 0;
		nulls[1] = nulls[2] = !found;
		if (found)
		{
			values[1] = LSNGetDatum(PageGetLSN((Page) page));
			values[2] = Int64GetDatum(page_digest(page, block, DatumGetInt32(rmids[i])));
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	pfree(page);
	return (Datum) 0;
}
