/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The publisher's timelines, as of when the apply worker connected.
 *
 * After a failover the publisher may have lost the end of what its predecessor
 * had written.  A wave's snapshot is good as long as the publisher's history
 * contains the position before which all is that it sees; and so are the
 * transaction ids in it, for whatever has ended in it has left a record before
 * that position, so its id is not used again.
 *
 * Called by route.c, in the apply worker.
 *
 * src/subscription/history.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogdefs.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "subscription/waves.h"

/* A timeline that ended, and where. */
typedef struct Ended
{
	uint32		timeline;
	XLogRecPtr	end;
} Ended;

static uint32 current = 0;
static Ended *ended = NULL;		/* those before it */
static int	nended = 0;

/* Reads a history file: lines of timeline, position, reason. */
static void
parse(const char *text)
{
	int			room = 1;

	for (const char *c = text; *c; c++)
		room += *c == '\n';
	ended = MemoryContextAlloc(TopMemoryContext, room * sizeof(Ended));
	for (const char *line = text; line; line = strchr(line, '\n'))
	{
		uint32		timeline;
		uint32		high;
		uint32		low;

		line += *line == '\n';
		if (sscanf(line, "%u %X/%X", &timeline, &high, &low) == 3)
		{
			ended[nended].timeline = timeline;
			ended[nended++].end = ((uint64) high << 32) | low;
		}
	}
}

void
tandem_history_read(WalReceiverConn *publisher, uint32 timeline)
{
	Oid			types[] = {TEXTOID, TEXTOID};
	WalRcvExecResult *res;

	current = timeline;
	nended = 0;
	if (ended)
		pfree(ended);
	ended = NULL;
	if (timeline <= 1)
		return;

	/* walrcv_readtimelinehistoryfile() is for physical replication */
	res = walrcv_exec(publisher, psprintf("TIMELINE_HISTORY %u", timeline), lengthof(types), types);
	if (res->status == WALRCV_OK_TUPLES)
	{
		TupleTableSlot *slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
		bool		isnull;

		if (tuplestore_gettupleslot(res->tuplestore, true, false, slot))
			parse(TextDatumGetCString(slot_getattr(slot, 2, &isnull)));
		ExecDropSingleTupleTableSlot(slot);
	}
	else
		ereport(LOG,
				(errmsg("the publisher has no history of its timeline %u: %s", timeline, res->err),
				 errhint("Tables that were copied before, and are not ready, are copied again.")));
	walrcv_clear_result(res);
}

bool
tandem_history_has(const TandemWaveSnapshot *snapshot)
{
	if (snapshot->timeline == current)
		return true;
	for (int i = 0; i < nended; i++)
	{
		if (ended[i].timeline == snapshot->timeline)
			return snapshot->lsn <= ended[i].end;
	}
	return false;
}
