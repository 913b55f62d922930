/*-------------------------------------------------------------------------
 *
 * adopt_check.c
 *	  What the publisher says when a subscription is adopted.
 *
 * Refused is what could never work as it is: a server that is too old, can't
 * decode, or has no such slot.  What may still come (a publication, a slot that
 * another process uses) is a warning, and so is a publisher that doesn't answer:
 * the apply worker tries again by itself, and tells why in
 * tandem.subscriptions.
 *
 * Called by adopt.c, once: not for changing options of an adopted subscription.
 *
 * src/subscription/adopt_check.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "subscription/waves.h"

#define OLDEST 140000			/* publisher's version */
#define STANDBY_DECODES_SINCE 160000
#define ANSWER_TIMEOUT 5000		/* ms for connecting and answering */
#define SLOT_GRACE 2000			/* ms for the walsender of the server's own worker to end */
#define SLOT_POLL 100

/* pgoutput with a filter by origin, see src/output */
#define ORIGIN_FILTER "pg_tandem_output"

/* The publisher's answer. */
typedef struct Answer
{
	int			version;
	char	   *wal_level;
	bool		standby;
	char	   *slot_type;		/* NULL = no such slot */
	char	   *plugin;
	bool		allowed;		/* by output_plugin_libraries, where there is such a setting */
	char	   *slot_database;
	char	   *database;
	char	   *wal_status;
	int			active_pid;		/* 0 = none */
	char	   *missing;		/* publications */
} Answer;

static char *
text_value(TupleTableSlot *slot, int column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

static void
ask(WalReceiverConn *conn, const Subscription *sub, Answer *answer)
{
	const Oid	types[] = {TEXTOID, BOOLOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID, TEXTOID, BOOLOID};
	StringInfoData names;
	WalRcvExecResult *result;
	TupleTableSlot *slot;
	bool		isnull;
	ListCell   *cell;

	initStringInfo(&names);
	foreach(cell, sub->publications)
		appendStringInfo(&names, "%s(%s)", names.len > 0 ? ", " : "", quote_literal_cstr(strVal(lfirst(cell))));
	memset(answer, 0, sizeof(*answer));
	answer->version = tandem_publisher_version(conn);
	result = tandem_publisher_query(conn,
									psprintf("SELECT pg_catalog.current_setting('wal_level'), pg_catalog.pg_is_in_recovery(),"
											 " s.slot_type, s.plugin::text, s.database::text, pg_catalog.current_database()::text,"
											 " s.wal_status, s.active_pid,"
											 " (SELECT string_agg(pg_catalog.format('\"%%s\"', w.name), ', ' ORDER BY w.name)"
											 " FROM (VALUES %s) w (name) WHERE NOT EXISTS"
											 " (SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = w.name)),"
											 /* not every role may see it, and then it isn't there */
											 " coalesce(s.plugin::text = ANY (pg_catalog.regexp_split_to_array("
											 "(SELECT setting FROM pg_catalog.pg_settings WHERE name = 'output_plugin_libraries'), '[\\s\",]+')), true)"
											 " FROM (VALUES (%s)) w (slot_name)"
											 " LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = w.slot_name",
											 names.data, quote_literal_cstr(sub->slotname)),
									lengthof(types), types);
	slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
	if (!tuplestore_gettupleslot(result->tuplestore, true, false, slot))
		elog(ERROR, "the publisher sent no answer");
	answer->wal_level = text_value(slot, 1);
	answer->standby = DatumGetBool(slot_getattr(slot, 2, &isnull));
	answer->slot_type = text_value(slot, 3);
	answer->plugin = text_value(slot, 4);
	answer->slot_database = text_value(slot, 5);
	answer->database = text_value(slot, 6);
	answer->wal_status = text_value(slot, 7);
	answer->active_pid = DatumGetInt32(slot_getattr(slot, 8, &isnull));
	if (isnull)
		answer->active_pid = 0;
	answer->missing = text_value(slot, 9);
	answer->allowed = DatumGetBool(slot_getattr(slot, 10, &isnull));
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(result);
}

/* Why it can't work (palloc'd), or NULL; *hint is set with it. */
static char *
find_problem(const Subscription *sub, const Answer *answer, int copies, const char **hint)
{
	const char *name = quote_identifier(sub->name);

	if (answer->version < OLDEST)
	{
		*hint = "pg_tandem reads from PostgreSQL 14 and newer; leave this subscription to the server.";
		return psprintf("its publisher has PostgreSQL %d", answer->version / 10000);
	}
	if (answer->standby && answer->version < STANDBY_DECODES_SINCE)
	{
		*hint = psprintf("PostgreSQL %d decodes changes on a primary only; lead the subscription there with ALTER SUBSCRIPTION %s CONNECTION.",
						 answer->version / 10000, name);
		return pstrdup("its publisher is a standby");
	}
	if (answer->standby && copies > 0)
	{
		*hint = psprintf("Tables are copied from a primary; lead the subscription there with ALTER SUBSCRIPTION %s CONNECTION, or let the server copy them first.",
						 name);
		return psprintf("its publisher is a standby, and tables are yet to be copied: %d", copies);
	}
	if (strcmp(answer->wal_level, "logical") != 0)
	{
		*hint = "Set wal_level = logical there and restart that server.";
		return psprintf("wal_level is \"%s\" on its publisher", answer->wal_level);
	}
	if (answer->slot_type == NULL)
	{
		*hint = psprintf("Create it there with SELECT pg_create_logical_replication_slot(%s, 'pgoutput'). If there was one, changes since it went are lost: then copy each table again with tandem.resync().",
						 quote_literal_cstr(sub->slotname));
		return psprintf("its publisher has no slot \"%s\"", sub->slotname);
	}
	if (strcmp(answer->slot_type, "logical") != 0 ||
		(strcmp(answer->plugin, "pgoutput") != 0 && strcmp(answer->plugin, ORIGIN_FILTER) != 0))
	{
		*hint = psprintf("Run ALTER SUBSCRIPTION %s SET (slot_name = ...) with a slot of the output plugin pgoutput or " ORIGIN_FILTER ".", name);
		return psprintf("slot \"%s\" of its publisher is not one of a subscription", sub->slotname);
	}
	if (!answer->allowed)
	{
		*hint = psprintf("Add %s to output_plugin_libraries there and reload its configuration.", answer->plugin);
		return psprintf("output_plugin_libraries of its publisher does not allow the output plugin \"%s\" of slot \"%s\"",
						answer->plugin, sub->slotname);
	}
	if (strcmp(answer->slot_database, answer->database) != 0)
	{
		*hint = psprintf("Run ALTER SUBSCRIPTION %s CONNECTION with the slot's database, or SET (slot_name = ...) with a slot of that one.", name);
		return psprintf("slot \"%s\" of its publisher belongs to database \"%s\", and it connects to \"%s\"",
						sub->slotname, answer->slot_database, answer->database);
	}
	if (answer->wal_status && strcmp(answer->wal_status, "lost") == 0)
	{
		*hint = "Drop the subscription and create it anew; max_slot_wal_keep_size on the publisher bounds how long a slot waits.";
		return psprintf("slot \"%s\" is lost: its publisher has removed WAL that it needs", sub->slotname);
	}
	return NULL;
}

static void
warn(const Subscription *sub, const Answer *answer)
{
	if (answer->standby)
		ereport(WARNING,
				(errmsg("the publisher of subscription \"%s\" is a standby", sub->name),
				 errhint("Tables that are added later, or copied again, wait until it is a primary.")));
	if (answer->missing)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the publisher of subscription \"%s\" has no publication %s", sub->name, answer->missing),
				 errhint("Create what is missing there with CREATE PUBLICATION, or change the list with ALTER SUBSCRIPTION %s SET PUBLICATION.",
						 quote_identifier(sub->name))));
	if (TANDEM_SUBSCRIPTION_RELATIONS(sub->oid) == NIL)
		ereport(WARNING,
				(errmsg("subscription \"%s\" knows no table", sub->name),
				 errhint("As after restoring a dump: run ALTER SUBSCRIPTION %s REFRESH PUBLICATION; tables that it is to copy have to be empty.",
						 quote_identifier(sub->name))));
	if (answer->active_pid)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("slot \"%s\" of subscription \"%s\" is in use on the publisher, by process %d",
						sub->slotname, sub->name, answer->active_pid),
				 errhint("If another server reads from it, as when this one was restored from a dump, release this subscription.")));
}

/* Tables that are not copied yet. */
static int
count_copies(Oid subid)
{
	int			n = 0;
	ListCell   *cell;

	foreach(cell, TANDEM_SUBSCRIPTION_RELATIONS(subid))
		n += ((SubscriptionRelState *) lfirst(cell))->state != SUBREL_STATE_READY;
	return n;
}

/* Asks, and raises what is wrong; waits a little for a slot that is in use. */
static void
check_answer(WalReceiverConn *conn, const Subscription *sub)
{
	TimestampTz give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SLOT_GRACE);
	Answer		answer;
	const char *hint = NULL;
	char	   *problem;

	for (;;)
	{
		ask(conn, sub, &answer);
		problem = find_problem(sub, &answer, count_copies(sub->oid), &hint);
		if (problem || answer.active_pid == 0 || GetCurrentTimestamp() >= give_up)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, SLOT_POLL, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (problem)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot adopt subscription \"%s\": %s", sub->name, problem),
				 errhint("%s", hint)));
	warn(sub, &answer);
}

/* The time is up: libpqwalreceiver waits for as long as nobody cancels. */
static volatile sig_atomic_t timed_out = false;

static void
handle_timeout(void)
{
	timed_out = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

void
tandem_check_publisher(const Subscription *sub)
{
	static TimeoutId timeout = MAX_TIMEOUTS;
	MemoryContext context = CurrentMemoryContext;
	WalReceiverConn *volatile conn = NULL;
	char	   *volatile silence = NULL;

	if (timeout == MAX_TIMEOUTS)
		timeout = RegisterTimeout(USER_TIMEOUT, handle_timeout);
	load_file("libpqwalreceiver", false);
	timed_out = false;
	enable_timeout_after(timeout, ANSWER_TIMEOUT);
	PG_TRY();
	{
		char	   *error = NULL;

		conn = TANDEM_WALRCV_CONNECT(sub->conninfo, sub->name, TANDEM_MUST_USE_PASSWORD(sub), &error);
		if (conn)
			check_answer(conn, sub);
		else
			silence = error;
	}
	PG_CATCH();
	{
		disable_timeout(timeout, false);
		if (conn)
			walrcv_disconnect(conn);
		if (!timed_out || geterrcode() != ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();

		/* nothing but the connection was at work, so nothing has to be undone */
		MemoryContextSwitchTo(context);
		FlushErrorState();
		conn = NULL;
		silence = psprintf("no answer within %d s", ANSWER_TIMEOUT / 1000);
	}
	PG_END_TRY();
	disable_timeout(timeout, false);
	if (timed_out)
		QueryCancelPending = false; /* it came too late to be noticed */
	if (conn)
		walrcv_disconnect(conn);
	if (silence)
		ereport(WARNING,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not ask the publisher of subscription \"%s\": %s", sub->name, silence),
				 errhint("It is adopted, and connects as soon as it can; tandem.subscriptions shows why it doesn't.")));
}
