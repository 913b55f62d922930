/*-------------------------------------------------------------------------
 *
 * dispatch.c
 *	  Applying the messages that change tables, in any of our workers.
 *
 * The apply worker calls it for what it has routed here, a copy worker for what
 * was spooled while it copied.  Both own the transaction.
 *
 * src/subscription/dispatch.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/pqformat.h"
#include "replication/logicalproto.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/memutils.h"

#include "common/compat.h"
#include "conflict/conflict.h"
#include "subscription/dispatch.h"
#include "subscription/late.h"
#include "subscription/modify.h"
#include "subscription/resolve.h"
#include "subscription/subscription.h"

TandemApplyAt tandem_apply_at = {.column = -1};
TandemApplyCounts tandem_apply_counts;

void
tandem_apply_begin_session(const Subscription *sub)
{
	TandemSubscriptionOptions options;
	TandemConflictSession *session = &tandem_conflict_session;

	/* functions of the server that we call report conflicts in its name (18) */
	MySubscription = (Subscription *) sub;

	tandem_options_init(&options);
	(void) tandem_subscription_adopted(sub->oid, &options);
	session->subid = sub->oid;
	session->subname = sub->name;
	session->origin = replorigin_session_origin;
	session->outcomes = options.outcomes;
	session->tombstones = options.tombstones;
	(void) tandem_rules_read_node(sub->oid, session->node);
	tandem_rules_forget();
}

void
tandem_apply_begin_transaction(TransactionId xid, XLogRecPtr lsn, TimestampTz time)
{
	tandem_conflict_session.xid = xid;
	tandem_conflict_session.lsn = lsn;
	tandem_conflict_session.time = time;
}

/* ---- What has been done -------------------------------------------------------- */

void
tandem_apply_counted(void)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;
	TandemApplyCounts *counts = &tandem_apply_counts;

	if (counts->inserts)
		pg_atomic_fetch_add_u64(&slot->inserts, counts->inserts);
	if (counts->updates)
		pg_atomic_fetch_add_u64(&slot->updates, counts->updates);
	if (counts->deletes)
		pg_atomic_fetch_add_u64(&slot->deletes, counts->deletes);
	if (counts->truncates)
		pg_atomic_fetch_add_u64(&slot->truncates, counts->truncates);
	if (counts->update_missing)
		pg_atomic_fetch_add_u64(&slot->update_missing, counts->update_missing);
	if (counts->delete_missing)
		pg_atomic_fetch_add_u64(&slot->delete_missing, counts->delete_missing);
	memset(counts, 0, sizeof(*counts));
}

/* ---- Context of errors ------------------------------------------------------------ */

void
tandem_apply_error_context(void *arg)
{
	const TandemApplyAt *at = &tandem_apply_at;
	StringInfoData where;

	if (at->origin == NULL || at->action == 0)
		return;

	initStringInfo(&where);
	appendStringInfo(&where, "processing remote data for replication origin \"%s\" during message type \"%s\"",
					 at->origin, logicalrep_message_type(at->action));
	if (at->relname)
		appendStringInfo(&where, " for replication target relation \"%s.%s\"", at->nspname, at->relname);
	if (at->relname && at->columns && at->column >= 0)
		appendStringInfo(&where, " column \"%s\"", at->columns[at->column]);
	if (TransactionIdIsValid(at->xid))
		appendStringInfo(&where, " in transaction %u", at->xid);
	if (TransactionIdIsValid(at->xid) && !XLogRecPtrIsInvalid(at->finish_lsn))
		appendStringInfo(&where, ", finished at %X/%X", LSN_FORMAT_ARGS(at->finish_lsn));
	errcontext("%s", where.data);
	pfree(where.data);
}

static void
set_table(const LogicalRepRelation *remote)
{
	tandem_apply_at.nspname = remote ? remote->nspname : NULL;
	tandem_apply_at.relname = remote ? remote->relname : NULL;
	tandem_apply_at.columns = remote ? (const char *const *) remote->attnames : NULL;
}

/* ---- Messages --------------------------------------------------------------------------- */

/*
 * Opens the table of a change.  Rows of another table that are in memory are
 * written before, since the server keeps the order of changes and so do we.
 */
static TandemTarget *
open_target(LogicalRepRelId relid, bool insert)
{
	TandemTarget *target;

	set_table(tandem_relation_find(relid)->remote);
	target = tandem_target_open(relid);
	if (tandem_batch_target() && (!insert || tandem_batch_target() != target))
		tandem_batch_flush();
	return target;
}

static void
handle_relation(StringInfo message)
{
	TandemRelation *relation;
	LogicalRepRelId remoteid;

	tandem_batch_flush();

	/* the first thing in it is the relation's OID */
	remoteid = pq_getmsgint(message, 4);
	message->cursor -= 4;
	relation = tandem_relation_find_or_null(remoteid);
	if (relation && relation->target)
		tandem_target_forget(relation->target);
	tandem_relation_read(message);
}

static void
handle_insert(StringInfo message)
{
	LogicalRepTupleData row;
	LogicalRepRelId relid = logicalrep_read_insert(message, &row);
	TandemTarget *target = open_target(relid, true);

	tandem_modify_insert(target, &row, message->len);
}

static void
handle_update(StringInfo message)
{
	LogicalRepTupleData old;
	LogicalRepTupleData row;
	bool		has_old;
	LogicalRepRelId relid = logicalrep_read_update(message, &has_old, &old, &row);
	TandemTarget *target = open_target(relid, false);

	tandem_modify_update(target, has_old ? &old : NULL, &row);
}

static void
handle_delete(StringInfo message)
{
	LogicalRepTupleData old;
	LogicalRepRelId relid = logicalrep_read_delete(message, &old);
	TandemTarget *target = open_target(relid, false);

	tandem_modify_delete(target, &old);
}

static void
handle_truncate(StringInfo message)
{
	bool		cascade;
	bool		restart_sequences;
	List	   *relids = logicalrep_read_truncate(message, &cascade, &restart_sequences);

	tandem_apply_truncate(relids, NIL, restart_sequences);
}

void
tandem_apply_message(StringInfo message)
{
	char		action = pq_getmsgbyte(message);
	char		outer = tandem_apply_at.action;

	tandem_apply_at.action = action;
	switch (action)
	{
		case LOGICAL_REP_MSG_RELATION:
			handle_relation(message);
			break;
		case LOGICAL_REP_MSG_TYPE:
			/* input functions are those of the local columns */
			break;
		case LOGICAL_REP_MSG_INSERT:
			handle_insert(message);
			break;
		case LOGICAL_REP_MSG_UPDATE:
			handle_update(message);
			break;
		case LOGICAL_REP_MSG_DELETE:
			handle_delete(message);
			break;
		case LOGICAL_REP_MSG_TRUNCATE:
			handle_truncate(message);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("invalid logical replication message type \"%c\"", action)));
	}
	set_table(NULL);
	tandem_apply_at.action = outer;
}

void
tandem_apply_truncate(List *remoteids, List *elsewhere, bool restart_sequences)
{
	char		outer = tandem_apply_at.action;

	tandem_apply_at.action = LOGICAL_REP_MSG_TRUNCATE;
	/* a table in use can't be truncated */
	tandem_apply_finish();
	tandem_modify_truncate(remoteids, elsewhere, restart_sequences);
	set_table(NULL);
	tandem_apply_at.action = outer;
}

void
tandem_apply_flush(void)
{
	tandem_batch_flush();
}

void
tandem_apply_finish(void)
{
	tandem_batch_flush();
	tandem_late_check();
	tandem_targets_close();
	tandem_conflict_flush();
}

void
tandem_apply_abort(void)
{
	tandem_writing.slot = NULL;
	tandem_batch_abort();
	tandem_late_forget();
	tandem_targets_abort();
	tandem_relations_abort();
	tandem_conflict_forget();
	memset(&tandem_apply_counts, 0, sizeof(tandem_apply_counts));
	tandem_apply_begin_transaction(InvalidTransactionId, InvalidXLogRecPtr, 0);
	tandem_apply_at.action = 0;
	set_table(NULL);
	tandem_apply_at.column = -1;
}
