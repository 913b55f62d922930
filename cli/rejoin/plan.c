/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  What has to be done so that replay from the start checkpoint is right.
 *
 * Replay begins at the redo position of the last checkpoint before the fork
 * and goes on along the new primary's timeline.  For it to be right, no file
 * may hold anything from after the fork that replay doesn't overwrite, and
 * nothing may be missing that replay doesn't make.  Where in doubt a thing is
 * copied: a copy from the new primary, taken while it runs, is what any base
 * backup is made of, and right once replay has passed the moment of the copy
 * (minRecoveryPoint sees to that).
 *
 * The list of actions is in the order in which they are done: first what is
 * deleted, then folders, then what is copied.  Each is idempotent, so that an
 * interrupted repair is simply planned again: a page that was copied already
 * is newer than the fork and named by the same record as before.
 *
 * Nothing is changed here.
 *
 * cli/rejoin/plan.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "rejoin/plan.h"

const char *const reason_names[NUM_REASONS] = {
	[REASON_AHEAD] = "ahead of the fork",
	[REASON_TORN] = "possibly torn by a power failure",
	[REASON_TRUNCATED] = "cut off after the fork",
	[REASON_DROPPED] = "dropped after the fork",
	[REASON_MISSING] = "missing here",
	[REASON_CREATED] = "created after the fork",
	[REASON_ORPHAN] = "left behind by the crash",
	[REASON_MAP] = "relation map changed after the fork",
	[REASON_SLRU] = "transaction status removed after the fork",
	[REASON_PREPARED] = "prepared transaction changed after the fork",
	[REASON_ORIGIN] = "replication progress from after the fork",
	[REASON_SNAPSHOT] = "decoding snapshot from after the fork",
	[REASON_SLOT] = "replication slot that is stale now",
};

Action *
plan_add(Plan *plan, ActionKind kind, Reason reason, const char *path)
{
	Action	   *action;

	if (plan->n == plan->room)
	{
		plan->room = Max(256, plan->room * 2);
		plan->actions = pg_realloc(plan->actions, plan->room * sizeof(Action));
	}
	action = &plan->actions[plan->n++];
	memset(action, 0, sizeof(*action));
	action->kind = kind;
	action->reason = reason;
	action->path = path;
	return action;
}

/* Deletions first, then what is made, then what is copied. */
static int
stage(ActionKind kind)
{
	switch (kind)
	{
		case ACTION_DELETE_FILE:
		case ACTION_DELETE_FOLDER:
			return 0;
		case ACTION_DROP_TABLESPACE:
			return 1;
		case ACTION_MAKE_TABLESPACE:
			return 2;
		case ACTION_MAKE_FOLDER:
			return 3;
		default:
			return 4;
	}
}

static int
compare_actions(const void *a, const void *b)
{
	const Action *x = a;
	const Action *y = b;
	int			stages = stage(x->kind) - stage(y->kind);

	if (stages != 0)
		return stages;
	return x->request.rel.node == y->request.rel.node ? 0 :
		x->request.rel.node < y->request.rel.node ? -1 : 1;
}

/*
 * Two timelines of the same number and beginning are the same only if the WAL
 * is.  Compares the last bytes before the fork.
 */
static void
check_common_wal(const Planning *p, const History *source_history)
{
	XLogRecPtr	fork = p->facts->fork;
	uint32		size = p->target->segment_size;
	uint32		end = XLogSegmentOffset(fork - 1, size) + 1;
	int			length = Min(end, XLOG_BLCKSZ);
	char		name[MAXFNAMELEN];
	XLogSegNo	segno;
	char		here[XLOG_BLCKSZ];
	char	   *there = NULL;

	XLByteToPrevSeg(fork, segno, size);
	for (int i = source_history->n - 1; i >= 0 && there == NULL; i--)
	{
		XLogSegNo	begin;

		XLByteToSeg(source_history->entries[i].begin, begin, size);
		if (begin > segno)
			continue;
		XLogFileName(name, source_history->entries[i].tli, segno, size);
		there = source_read_wal(p->source, name, end - length, length);
	}
	if (there == NULL)
		rejoin_refuse("A new base backup is the way that remains. The slot \"" REJOIN_SLOT "\", which pg_tandem keeps on standbys, prevents this; see tandem.failback_keep_size.",
					  "%s no longer has the WAL from the fork at %X/%X on (segment %s)",
					  p->source->label, LSN_ARGS(fork), name);
	if (!wal_read_raw(p->reader, fork - length, here, length))
		rejoin_refuse(NULL, "could not read local WAL before the fork at %X/%X", LSN_ARGS(fork));
	if (memcmp(here, there, length) != 0)
		rejoin_refuse("A new base backup is the way that remains.",
					  "local WAL and the one of %s differ before %X/%X: they are not one cluster's history",
					  p->source->label, LSN_ARGS(fork));
}

void
plan_make(Plan *plan, Facts *facts, const Target *target, Source *source,
		  const History *source_history, WalReader *reader)
{
	Planning	p = {
		.plan = plan, .facts = facts, .target = target, .source = source, .reader = reader};

	memset(plan, 0, sizeof(*plan));
	check_common_wal(&p, source_history);
	if (facts->oids_wrapped)
		rejoin_refuse("A new base backup is the way that remains.",
					  "the counter of object identifiers wrapped around before the fork, so new files cannot be told from old ones");

	/* after the WAL was read: what it doesn't name can only have come before */
	p.there = source_files(source, &p.nthere);
	p.here = local_files(&p.nhere);
	p.settled = relset_create(256, NULL);

	plan_read_databases(&p, source_history);
	plan_tablespaces(&p);
	plan_folders(&p);
	plan_relations(&p);
	plan_pages(&p);
	plan_rest(&p);
	plan_check_copies(&p);

	if (plan->n > 0)
		qsort(plan->actions, plan->n, sizeof(Action), compare_actions);
	for (int i = 0; i < plan->n; i++)
		plan->bytes_to_copy += plan->actions[i].bytes;
}
