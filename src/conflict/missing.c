/*-------------------------------------------------------------------------
 *
 * missing.c
 *	  What is done when the row that a change is for isn't as expected.
 *
 * The one place that is called.  For now as the server does it: the change is
 * skipped; but the caller counts it (update_missing, delete_missing of the view
 * tandem.subscriptions), and the first of each process is logged aloud, since a
 * skipped change means that two nodes have drifted apart.
 *
 * An insert of a row that is already there raises the server's unique
 * violation; it doesn't come here yet.
 *
 * Called by src/subscription/modify.c.
 *
 * src/conflict/missing.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/lsyscache.h"

#include "conflict/missing.h"

void
tandem_conflict_missing(Relation rel, CmdType operation, TupleTableSlot *sent)
{
	static bool said = false;

	ereport(said ? DEBUG1 : LOG,
			(errmsg("logical replication did not find row to be %s in replication target relation \"%s.%s\"",
					operation == CMD_UPDATE ? "updated" : "deleted",
					get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel)),
			 said ? 0 : errdetail("The change is skipped. Further ones are logged at level DEBUG1 until the worker restarts."),
			 said ? 0 : errhint("The view tandem.subscriptions counts them. SELECT tandem.resync(...) copies the table again.")));
	said = true;
}
