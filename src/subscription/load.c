/*-------------------------------------------------------------------------
 *
 * load.c
 *	  How the rows of a copy get into a local table.
 *
 * Plain load: what COPY FROM does, with triggers (REPLICA and ALWAYS only, for
 * session_replication_role is "replica"), partitions, and indexes maintained
 * row by row.
 *
 * Fast load, for an ordinary table that is empty: the table gets new files, so
 * that rows can be written frozen, in batches and without looking for free
 * space, and the indexes are built at the end, in the same transaction.  What
 * they check (uniqueness, exclusion) is checked then; CHECK and NOT NULL as
 * rows come.  Needs AccessExclusiveLock, so readers of the table wait for the
 * commit.  An error undoes all of it with the subtransaction.
 *
 * Called by copy.c.
 *
 * src/subscription/load.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/copy.h"
#include "commands/copyfrom_internal.h"
#include "commands/defrem.h"
#include "commands/progress.h"
#include "commands/tablecmds.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "parser/parse_relation.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/backend_status.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "common/compat.h"
#include "subscription/waves.h"

#define BATCH_ROWS 1000
#define BATCH_BYTES (256 * 1024)	/* as received; keeps memory small for wide rows */

/* The source of the COPY that runs; a callback has no argument. */
static struct
{
	char	   *data;			/* copy_stream.c's */
	int			len;
	int			cursor;
	bool		at_end;
	int64		bytes;
	TandemCopyProgress *progress;
	bool		by_copy;		/* CopyFrom counts the rows, as of pg_stat_progress_copy */
	CopyFromState measured;		/* CopyFrom in binary format, or NULL */
	int64		seen;			/* of its rows */
	int64		given;			/* bytes since */
} source;

/*
 * CopyFrom keeps rows until they are 1000 or their lines have 64 kB.  Binary
 * format has no lines, so that 1000 wide rows would be kept.  We tell it how
 * long a line was: what was given since its last row.
 */
static void
measure_rows(int n)
{
	int64		rows;

	if (source.measured == NULL || MyBEEntry == NULL)
		return;
	rows = MyBEEntry->st_progress_param[PROGRESS_COPY_TUPLES_PROCESSED] - source.seen;
	if (rows > 0)
	{
		source.seen += rows;
		source.given = n;
	}
	else
		source.given += n;
	source.measured->line_buf.len = Min(source.given / Max(rows, 1), MaxAllocSize);
}

/* Gives COPY what has arrived; waits for at least minread bytes. */
static int
read_source(void *out, int minread, int maxread)
{
	int			done = 0;

	while (done < minread && !source.at_end)
	{
		if (source.cursor < source.len)
		{
			int			n = Min(source.len - source.cursor, maxread - done);

			memcpy((char *) out + done, source.data + source.cursor, n);
			source.cursor += n;
			done += n;
			measure_rows(n);
			continue;
		}
		/* the leader may want this copy no more */
		if (source.progress->void_relid == source.progress->relid)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("%s", tandem_spool_given_up_error())));
		source.len = tandem_copy_stream_receive(&source.data);
		source.cursor = 0;
		CHECK_FOR_INTERRUPTS();
		if (source.len < 0)
		{
			source.at_end = true;
			source.len = 0;
		}
		else
		{
			source.bytes += source.len;
			source.progress->bytes = source.bytes;
			if (source.by_copy && MyBEEntry)
				source.progress->rows = MyBEEntry->st_progress_param[PROGRESS_COPY_TUPLES_PROCESSED];
		}
	}
	return done;
}

bool
tandem_load_can_be_fast(Relation rel)
{
	TriggerDesc *triggers = rel->trigdesc;

	if (rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		rel->rd_tableam != GetHeapamTableAmRoutine() ||
		IsSystemRelation(rel) || RelationIsMapped(rel))
		return false;
	for (int i = 0; triggers && i < triggers->numtriggers; i++)
	{
		if (triggers->triggers[i].tgenabled == TRIGGER_FIRES_ON_REPLICA ||
			triggers->triggers[i].tgenabled == TRIGGER_FIRES_ALWAYS)
			return false;
	}
	return true;
}

/* New, empty files for a table and its TOAST table, whose index is built. */
static void
new_files(Relation rel)
{
	Oid			toast = rel->rd_rel->reltoastrelid;
	ReindexParams params = {0};

	CheckTableNotInUse(rel, "COPY");
	pgstat_count_truncate(rel);
	TANDEM_NEW_FILES(rel);
	if (OidIsValid(toast))
	{
		Relation	toastrel = table_open(toast, AccessExclusiveLock);

		TANDEM_NEW_FILES(toastrel);
		table_close(toastrel, NoLock);
		CommandCounterIncrement();
		(void) TANDEM_REINDEX_RELATION(toast, 0, &params);
	}
	CommandCounterIncrement();
}

/* Builds all indexes of a table anew, and checks what they check. */
static void
build_indexes(Oid relid)
{
	ReindexParams params = {0};

	(void) TANDEM_REINDEX_RELATION(relid, REINDEX_REL_CHECK_CONSTRAINTS, &params);
}

void
tandem_empty_relation(Relation rel)
{
	List	   *relids = find_all_inheritors(RelationGetRelid(rel), AccessExclusiveLock, NULL);
	ListCell   *lc;

	/* children of an ordinary table are tables of their own */
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		relids = list_make1_oid(RelationGetRelid(rel));
	foreach(lc, relids)
	{
		Oid			relid = lfirst_oid(lc);
		Relation	part = rel;

		/* nobody else may have it open, nor may we twice */
		if (relid != RelationGetRelid(rel))
			part = table_open(relid, AccessExclusiveLock);
		if (part->rd_rel->relkind == RELKIND_RELATION)
			new_files(part);
		else if (part->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("cannot empty \"%s\" for a new copy", RelationGetRelationName(part)),
					 errhint("Delete its rows.")));
		if (part->rd_rel->relkind == RELKIND_RELATION)
			build_indexes(relid);
		if (part != rel)
			table_close(part, NoLock);
	}
}

/* COPY's state, reading from the connection. */
static CopyFromState
begin_copy(Relation rel, List *columns, bool binary)
{
	ParseState *pstate = make_parsestate(NULL);
	List	   *options = NIL;

	/* what COPY has, whatever the caller holds beside it */
	LockRelationOid(RelationGetRelid(rel), RowExclusiveLock);
	if (binary)
		options = list_make1(makeDefElem("format", (Node *) makeString("binary"), -1));
	(void) addRangeTableEntryForRelation(pstate, rel, RowExclusiveLock, NULL, false, false);
	return BeginCopyFrom(pstate, rel, NULL, NULL, false, read_source, columns, options);
}

/* The fast load's rows; the table has new files and no index is looked at. */
static int64
load_frozen(Relation rel, List *columns, bool binary)
{
	CopyFromState cstate = begin_copy(rel, columns, binary);
	EState	   *estate = CreateExecutorState();
	ExprContext *econtext = GetPerTupleExprContext(estate);
	ResultRelInfo *result = makeNode(ResultRelInfo);
	BulkInsertState bistate = GetBulkInsertState();
	CommandId	cid = GetCurrentCommandId(true);
	int			options = TABLE_INSERT_SKIP_FSM | TABLE_INSERT_FROZEN;
	TupleConstr *constraints = RelationGetDescr(rel)->constr;
	TupleTableSlot *slots[BATCH_ROWS];
	MemoryContext oldcontext = CurrentMemoryContext;
	MemoryContext insert_context = AllocSetContextCreate(CurrentMemoryContext, "load",
														 ALLOCSET_DEFAULT_SIZES);
	int			nslots = 0;
	int			n = 0;
	int64		batch_start = 0;
	int64		rows = 0;
	bool		more = true;
	ErrorContextCallback context;

	InitResultRelInfo(result, rel, 0, NULL, 0);
	context.callback = CopyFromErrorCallback;
	context.arg = cstate;
	context.previous = error_context_stack;
	error_context_stack = &context;

	while (more)
	{
		CHECK_FOR_INTERRUPTS();
		if (n == nslots)
			slots[nslots++] = table_slot_create(rel, NULL);
		ResetPerTupleExprContext(estate);
		ExecClearTuple(slots[n]);

		MemoryContextSwitchTo(GetPerTupleMemoryContext(estate));
		more = NextCopyFrom(cstate, econtext, slots[n]->tts_values, slots[n]->tts_isnull);
		MemoryContextSwitchTo(oldcontext);
		if (more)
		{
			ExecStoreVirtualTuple(slots[n]);
			slots[n]->tts_tableOid = RelationGetRelid(rel);
			if (constraints && constraints->has_generated_stored)
				ExecComputeStoredGenerated(result, estate, slots[n], CMD_INSERT);
			if (constraints)
				ExecConstraints(result, slots[n], estate);
			if (rel->rd_rel->relispartition)
				ExecPartitionCheck(result, slots[n], estate, true);
			ExecMaterializeSlot(slots[n]);
			n++;
		}
		if (n == BATCH_ROWS || source.bytes - batch_start > BATCH_BYTES || !more)
		{
			if (n > 0)
			{
				/* it may leak */
				MemoryContextSwitchTo(insert_context);
				table_multi_insert(rel, slots, n, cid, options, bistate);
				MemoryContextSwitchTo(oldcontext);
				MemoryContextReset(insert_context);
				for (int i = 0; i < n; i++)
					ExecClearTuple(slots[i]);
			}
			rows += n;
			source.progress->rows = rows;
			n = 0;
			batch_start = source.bytes;
		}
	}
	error_context_stack = context.previous;

	pgstat_count_heap_insert(rel, 0);
	for (int i = 0; i < nslots; i++)
		ExecDropSingleTupleTableSlot(slots[i]);
	FreeBulkInsertState(bistate);
	table_finish_bulk_insert(rel, options);
	EndCopyFrom(cstate);
	FreeExecutorState(estate);
	MemoryContextDelete(insert_context);
	return rows;
}

/* Reads to the end of COPY's messages, which comes after that of the data. */
static void
finish_source(void)
{
	while (!source.at_end)
	{
		char		drain[64];

		(void) read_source(drain, sizeof(drain), sizeof(drain));
	}
}

int64
tandem_load(Relation rel, List *columns, bool binary, bool fast, TandemCopyProgress *progress)
{
	int64		rows;

	memset(&source, 0, sizeof(source));
	source.progress = progress;

	if (fast)
	{
		new_files(rel);
		rows = load_frozen(rel, columns, binary);
		CommandCounterIncrement();
		finish_source();
		tandem_copy_stream_end();
		build_indexes(RelationGetRelid(rel));
	}
	else
	{
		CopyFromState cstate = begin_copy(rel, columns, binary);

		source.by_copy = true;
		/* without track_activities nobody counts rows */
		source.measured = binary && pgstat_track_activities ? cstate : NULL;
		rows = (int64) CopyFrom(cstate);
		source.by_copy = false;
		source.measured = NULL;
		EndCopyFrom(cstate);
		finish_source();
	}
	progress->rows = rows;
	CommandCounterIncrement();
	return rows;
}
