/*-------------------------------------------------------------------------
 *
 * missing.c
 *	  What is done when the row that a change is for isn't here.
 *
 * For now as the server does it: the change is skipped; the caller counts it
 * (update_missing, delete_missing of the view tandem.subscriptions), and it is in
 * the conflict log, since a skipped change means that two nodes have drifted
 * apart.
 *
 * Called by src/subscription/modify.c.
 *
 * src/conflict/missing.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/conflict.h"
#include "conflict/missing.h"

void
tandem_conflict_missing(Relation rel, CmdType operation, TupleTableSlot *sent)
{
	TandemConflict conflict = {0};

	conflict.type = operation == CMD_UPDATE ? TANDEM_UPDATE_MISSING : TANDEM_DELETE_MISSING;
	conflict.configured = TANDEM_OUTCOME_SKIP;
	conflict.resolution = "skipped";
	conflict.detection = "unsupported";
	conflict.rel = rel;
	conflict.key = sent;
	conflict.operation = operation == CMD_UPDATE ? 'U' : 'D';
	tandem_conflict_record(&conflict);
}
