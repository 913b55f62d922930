/*-------------------------------------------------------------------------
 *
 * decide.c
 *	  Who wins: the change that comes, or what is here.
 *
 * All nodes have to come to the same end, in whatever order the changes reach
 * them, so nothing may count that only one node knows.  Commit times travel with
 * the changes.  Equal ones are told apart by the identifier of the node where
 * the transaction was committed: the text that sorts last, byte by byte, wins.
 * Origin ids are of no use there, since each node has its own.
 *
 * A row whose time is gone loses: it is older than all whose times are kept.
 *
 * Called by src/subscription/resolve.c.
 *
 * src/conflict/decide.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "replication/origin.h"

#include "common/settings.h"
#include "conflict/conflict.h"

const char *
tandem_own_node(void)
{
	static char system[24];

	if (tandem_node_id[0] != '\0')
		return tandem_node_id;
	snprintf(system, sizeof(system), UINT64_FORMAT, GetSystemIdentifier());
	return system;
}

/* The identifier of the node where an origin's transactions come from; empty = unknown. */
static void
node_of(RepOriginId origin, char *node)
{
	char	   *name;
	unsigned int subid;
	char		rest;

	node[0] = '\0';
	if (origin == InvalidRepOriginId)
		strlcpy(node, tandem_own_node(), NAMEDATALEN);
	else if (origin == tandem_conflict_session.origin)
		strlcpy(node, tandem_conflict_session.node, NAMEDATALEN);
	else if (replorigin_by_oid(origin, true, &name) && sscanf(name, "pg_%u%c", &subid, &rest) == 1)
		(void) tandem_rules_read_node(subid, node);
}

bool
tandem_remote_wins(const TandemParty *local, const char **reason)
{
	const TandemConflictSession *session = &tandem_conflict_session;
	char		node[NAMEDATALEN];
	int			order;

	if (session->time == 0)
	{
		*reason = "the commit time of the remote change is unknown";
		return false;
	}
	if (!local->known)
	{
		*reason = "the commit time of the row here is unknown";
		return true;
	}
	if (local->time != session->time)
	{
		*reason = session->time > local->time ? "the remote change is later" : "the local change is later";
		return session->time > local->time;
	}

	node_of(local->origin, node);
	order = strcmp(session->node, node);
	if (order == 0)
	{
		/* of one node: what it sends later is later */
		*reason = "both are from one node at the same time";
		return true;
	}
	*reason = order > 0 ? "equal commit times, the remote node's identifier is greater" :
		"equal commit times, this node's identifier is greater";
	return order > 0;
}
