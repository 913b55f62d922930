/*-------------------------------------------------------------------------
 *
 * source_blocks.c
 *	  SQL functions that hand out pages: tandem.source_blocks() to be copied,
 *	  tandem.page_digests() to be compared.
 *
 * Relations are named by tablespace, database and file number, of any database
 * of the cluster.  Neither needs superuser: the caller has EXECUTE and
 * REPLICATION, and could copy the whole cluster with that.
 *
 * A page leaves this server only when its WAL is on disk here.  Otherwise the
 * copy could be newer than what is left of this server after a crash.
 *
 * src/failback/source_blocks.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "common/version.h"
#include "failback/reader.h"

PG_FUNCTION_INFO_V1(tandem_source_blocks);
PG_FUNCTION_INFO_V1(tandem_page_digests);

#define BLOCKS_A_ROW 64
#define MOST_REQUESTS 65536
#define SOURCE_COLS 4
#define DIGEST_COLS 3

/* The elements of an array argument; all of one call have the same number. */
static Datum *
elements(FunctionCallInfo fcinfo, int arg, Oid type, int *n)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(arg);
	int16		typlen = type == INT8OID ? 8 : 4;
	bool		typbyval = type == INT8OID ? FLOAT8PASSBYVAL : true;
	char		typalign = type == INT8OID ? TYPALIGN_DOUBLE : TYPALIGN_INT;
	Datum	   *values;
	int			count;

	if (ARR_NDIM(array) > 1 || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("arrays must be one-dimensional and not contain nulls")));
	deconstruct_array(array, type, typlen, typbyval, typalign, &values, NULL, &count);
	if (count > MOST_REQUESTS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("cannot take more than %d requests at a time", MOST_REQUESTS)));
	if (arg > 0 && count != *n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("all arrays must have the same number of elements")));
	*n = count;
	return values;
}

static ForkNumber
check_fork(Datum value)
{
	int32		fork = DatumGetInt32(value);

	if (fork < 0 || fork > MAX_FORKNUM)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d is not the number of a fork", fork)));
	return (ForkNumber) fork;
}

static BlockNumber
check_block(Datum value)
{
	int64		block = DatumGetInt64(value);

	if (block < 0 || block > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%lld is not a block number", (long long) block)));
	return (BlockNumber) block;
}

static void
put_blocks(ReturnSetInfo *rsinfo, int request, BlockNumber first, bytea *content, int n)
{
	Datum		values[SOURCE_COLS];
	bool		nulls[SOURCE_COLS] = {false, false, false, true};

	SET_VARSIZE(content, VARHDRSZ + n * BLCKSZ);
	values[0] = Int32GetDatum(request);
	values[1] = Int64GetDatum(first);
	values[2] = PointerGetDatum(content);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_end(ReturnSetInfo *rsinfo, int request, int64 blocks)
{
	Datum		values[SOURCE_COLS];
	bool		nulls[SOURCE_COLS] = {false, true, true, blocks < 0};

	values[0] = Int32GetDatum(request);
	values[3] = Int64GetDatum(blocks);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* One request: runs of blocks up to the end of the fork, then its length. */
static void
answer_request(ReturnSetInfo *rsinfo, TandemBlockReader *reader, int request,
			   RelFileNode rnode, ForkNumber fork, BlockNumber first, int64 count, bytea *content)
{
	XLogRecPtr	newest = InvalidXLogRecPtr;
	int64		block = first;
	int64		end = Min((int64) first + count, (int64) MaxBlockNumber + 1);
	int			n = 0;

	for (; block < end; block++)
	{
		char	   *page = VARDATA(content) + n * BLCKSZ;

		if (!tandem_reader_read(reader, rnode, fork, (BlockNumber) block, page))
			break;
		newest = Max(newest, PageGetLSN(page));
		if (++n == BLOCKS_A_ROW)
		{
			XLogFlush(newest);
			put_blocks(rsinfo, request, (BlockNumber) (block + 1 - n), content, n);
			n = 0;
		}
	}
	if (n > 0)
	{
		XLogFlush(newest);
		put_blocks(rsinfo, request, (BlockNumber) (block - n), content, n);
	}
	put_end(rsinfo, request, tandem_reader_blocks(rnode, fork));
}

/*
 * SQL function tandem.source_blocks(): for each request, numbered from 1, rows
 * of up to 64 consecutive pages, then one with the length of the fork in
 * blocks (null if it doesn't exist).  The answer is kept in a tuplestore; the
 * caller bounds it by asking for few blocks at a time.
 */
Datum
tandem_source_blocks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TandemBlockReader reader;
	int			n = 0;
	Datum	   *tablespaces = elements(fcinfo, 0, OIDOID, &n);
	Datum	   *databases = elements(fcinfo, 1, OIDOID, &n);
	Datum	   *filenodes = elements(fcinfo, 2, OIDOID, &n);
	Datum	   *forks = elements(fcinfo, 3, INT4OID, &n);
	Datum	   *firsts = elements(fcinfo, 4, INT8OID, &n);
	Datum	   *counts = elements(fcinfo, 5, INT4OID, &n);
	bytea	   *content;
	int			i;

	tandem_check_sql_version();
	CheckSlotPermissions();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server is a standby and cannot hand out pages"),
				 errhint("Ask the primary.")));
	InitMaterializedSRF(fcinfo, 0);

	content = palloc(VARHDRSZ + BLOCKS_A_ROW * BLCKSZ);
	tandem_reader_init(&reader);
	for (i = 0; i < n; i++)
	{
		RelFileNode rnode;

		rnode.spcNode = DatumGetObjectId(tablespaces[i]);
		rnode.dbNode = DatumGetObjectId(databases[i]);
		rnode.relNode = DatumGetObjectId(filenodes[i]);
		answer_request(rsinfo, &reader, i + 1, rnode, check_fork(forks[i]),
					   check_block(firsts[i]), Max(0, DatumGetInt32(counts[i])), content);
	}
	tandem_reader_close(&reader);
	return (Datum) 0;
}

/*
 * What two copies of a page must have in common: everything but its checksum,
 * hint bits and unused space, as the resource manager's mask for consistency
 * checks has it.
 */
static int64
digest(char *page, BlockNumber block, int rmid)
{
	if (PageIsNew(page))
		return 0;
	if (GetRmgr(rmid).rm_mask != NULL)
		GetRmgr(rmid).rm_mask(page, block);
	else
		((PageHeader) page)->pd_checksum = 0;
	return (int64) hash_bytes_extended((unsigned char *) page, BLCKSZ, 0);
}

/*
 * SQL function tandem.page_digests(): LSN and digest of single pages; nulls
 * for a block that doesn't exist.  On standbys as well.
 */
Datum
tandem_page_digests(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TandemBlockReader reader;
	int			n = 0;
	Datum	   *tablespaces = elements(fcinfo, 0, OIDOID, &n);
	Datum	   *databases = elements(fcinfo, 1, OIDOID, &n);
	Datum	   *filenodes = elements(fcinfo, 2, OIDOID, &n);
	Datum	   *forks = elements(fcinfo, 3, INT4OID, &n);
	Datum	   *blocks = elements(fcinfo, 4, INT8OID, &n);
	Datum	   *rmgrs = elements(fcinfo, 5, INT4OID, &n);
	char	   *page = palloc(BLCKSZ);
	int			i;

	tandem_check_sql_version();
	CheckSlotPermissions();
	InitMaterializedSRF(fcinfo, 0);

	tandem_reader_init(&reader);
	for (i = 0; i < n; i++)
	{
		Datum		values[DIGEST_COLS] = {Int32GetDatum(i + 1)};
		bool		nulls[DIGEST_COLS] = {false, true, true};
		int32		rmid = DatumGetInt32(rmgrs[i]);
		BlockNumber block = check_block(blocks[i]);
		RelFileNode rnode;

		if (rmid < 0 || rmid > RM_MAX_ID || !RmgrIdExists((RmgrId) rmid))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%d is not the number of a resource manager", rmid)));
		rnode.spcNode = DatumGetObjectId(tablespaces[i]);
		rnode.dbNode = DatumGetObjectId(databases[i]);
		rnode.relNode = DatumGetObjectId(filenodes[i]);
		if (tandem_reader_read(&reader, rnode, check_fork(forks[i]), block, page))
		{
			nulls[1] = nulls[2] = false;
			values[1] = LSNGetDatum(PageGetLSN(page));
			values[2] = Int64GetDatum(digest(page, block, rmid));
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	tandem_reader_close(&reader);
	return (Datum) 0;
}
