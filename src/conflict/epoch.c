/*-------------------------------------------------------------------------
 *
 * epoch.c
 *	  When a tombstone may go: one publisher's part of the answer.
 *
 * A tombstone is needed as long as a change can arrive that was made when its
 * author didn't know of the delete.  Tombstones are kept in epochs, and all of
 * an epoch may go when, for each incoming subscription, in this order:
 *
 *	 CLOCK	the publisher's clock has passed the epoch's end, which is the greater
 *			of the time at which it was closed and the greatest commit time in
 *			it.  What a transaction does from now on is later than each of the
 *			deletes.
 *	 XID	a transaction id X is taken there, after that clock was read: who has
 *			a smaller id may have written before.  (The xmax of a snapshot would
 *			not do: it is the id after the last one that has ended, and those who
 *			run may all have later ones.)
 *	 XMIN	its oldest running transaction is X or later: those have ended.
 *			Prepared ones count as running.
 *	 FLUSH	the position L in its WAL is read with that answer, so all they wrote
 *			is before L; and then what we have confirmed to it as flushed must
 *			reach L.  That moves on idle streams, too.
 *	 COPIES	no table is being copied, nor its spool replayed.  This is looked at
 *			after FLUSH: what was spooled before L is then applied.
 *
 * All of that is about a time, so one pass proves it for all epochs that end by
 * then, and for windows (see windows.c), which end by the same rule.
 *
 * A pass is made on one connection, and begins again when that is lost: who
 * answers on the next one may be another server, with another clock and other
 * transactions.  It also begins again when the changes come from another
 * timeline than the answers.  Nothing of a pass is kept across a restart, to
 * begin again is always right.
 *
 * Some publishers can't prove anything.  One in recovery doesn't know what its
 * primary does.  One that subscribes itself and forwards what it gets may send
 * changes that were made elsewhere, long ago by its own clock.  While that is
 * so nothing is dropped because of this subscription, and the bounds of
 * retention.c decide.
 *
 * Called by retention.c.
 *
 * src/conflict/epoch.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog_internal.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/wal_position.h"
#include "conflict/retention.h"

#define CONNECT_TIMEOUT 10000	/* ms */
#define QUERY_TIMEOUT 5000		/* ms */
#define ASK_INTERVAL 10000		/* ms between two questions that only keep the connection */
#define IDLE_LIMIT 60000		/* ms until a connection that nobody needs is closed */
#define BACKOFF_MIN 1000		/* ms */
#define BACKOFF_MAX 60000

/* Our plugin filters changes that have an origin; see src/output. */
#define FILTERING_PLUGIN "pg_tandem_output"

/* One answer of a publisher, all of one moment. */
typedef struct Answer
{
	bool		recovery;
	bool		subscribes;		/* has a subscription in that database */
	bool		filters;		/* the slot's plugin sends only its own changes */
	TimestampTz clock;			/* read after the snapshot */
	uint64		xmin;
	XLogRecPtr	lsn;			/* read after the snapshot; end of the last record */
	uint32		timeline;
} Answer;

/* $1: the slot's name.  All of this exists since version 10. */
static const char question[] =
	"SELECT r, pg_catalog.clock_timestamp(),"
	" pg_catalog.txid_snapshot_xmin(s),"
	" l, pg_catalog.pg_walfile_name(l),"
	" pg_catalog.current_setting('wal_block_size')::pg_catalog.int8,"
	" pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')),"
	" EXISTS (SELECT 1 FROM pg_catalog.pg_subscription AS u JOIN pg_catalog.pg_database AS d ON d.oid = u.subdbid"
	"  WHERE d.datname = pg_catalog.current_database()),"
	" coalesce((SELECT plugin::pg_catalog.text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1), '')"
	" FROM (SELECT pg_catalog.txid_current_snapshot() AS s, r,"
	"  CASE WHEN NOT r THEN pg_catalog.pg_current_wal_insert_lsn() END AS l"
	"  FROM (SELECT pg_catalog.pg_is_in_recovery() AS r OFFSET 0) AS a OFFSET 0) AS b";

/* Writes a commit record there, which it neither flushes at once nor waits for. */
static const char take_xid[] = "SELECT pg_catalog.txid_current()";

enum
{
	COL_RECOVERY,
	COL_CLOCK,
	COL_XMIN,
	COL_LSN,
	COL_FILE,
	COL_PAGE,
	COL_SEGMENT,
	COL_SUBSCRIBES,
	COL_PLUGIN,
	NUM_COLS
};

TandemIncomingCalls tandem_incoming = {NULL, NULL};

TandemPass *
tandem_pass_create(Oid subid)
{
	TandemPass *pass = MemoryContextAllocZero(TopMemoryContext, sizeof(TandemPass));

	pass->subid = subid;
	pass->since = GetCurrentTimestamp();
	return pass;
}

static void
disconnect(TandemPass *pass)
{
	tandem_remote_close(pass->remote);
	pass->remote = NULL;
}

void
tandem_pass_free(TandemPass *pass)
{
	disconnect(pass);
	pfree(pass);
}

/* ---- Transitions ----------------------------------------------------------------- */

static void
enter(TandemPass *pass, TandemPassPhase phase)
{
	if (pass->phase == phase)
		return;
	pass->phase = phase;
	pass->since = GetCurrentTimestamp();
	if (phase != TANDEM_PASS_UNPROVABLE && phase != TANDEM_PASS_UNREACHABLE)
		pass->message[0] = pass->hint[0] = '\0';
}

static void
begin(TandemPass *pass, TimestampTz goal)
{
	pass->goal = goal;
	pass->xid = pass->xmin = 0;
	pass->lsn = InvalidXLogRecPtr;
	pass->timeline = 0;
	enter(pass, TANDEM_PASS_CLOCK);
}

static void
say_unprovable(TandemPass *pass, const char *message, const char *hint)
{
	strlcpy(pass->message, message, sizeof(pass->message));
	strlcpy(pass->hint, hint, sizeof(pass->hint));
	pass->next_try = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ASK_INTERVAL);
	enter(pass, TANDEM_PASS_UNPROVABLE);
}

/* ---- Asking ------------------------------------------------------------------------ */

static uint64
get_int8(PGresult *res, int col)
{
	uint64		value;

	if (PQgetisnull(res, 0, col))
		return 0;
	if (PQgetlength(res, 0, col) != sizeof(value))
		elog(ERROR, "unexpected answer of the publisher in column %d", col);
	memcpy(&value, PQgetvalue(res, 0, col), sizeof(value));
	return pg_ntoh64(value);
}

static bool
get_bool(PGresult *res, int col)
{
	return !PQgetisnull(res, 0, col) && PQgetlength(res, 0, col) == 1 && *PQgetvalue(res, 0, col) != 0;
}

/* In binary format values have no final zero, but libpq adds one. */
static void
read_answer(PGresult *res, bool filters, Answer *answer)
{
	char		file[9];

	if (PQntuples(res) != 1 || PQnfields(res) != NUM_COLS)
		elog(ERROR, "unexpected answer of the publisher");
	memset(answer, 0, sizeof(*answer));
	answer->recovery = get_bool(res, COL_RECOVERY);
	answer->subscribes = get_bool(res, COL_SUBSCRIBES);
	answer->filters = filters || strcmp(PQgetvalue(res, 0, COL_PLUGIN), FILTERING_PLUGIN) == 0;
	answer->clock = TimestampTzPlusMilliseconds((TimestampTz) get_int8(res, COL_CLOCK), tandem_debug_publisher_clock);
	answer->xmin = get_int8(res, COL_XMIN);
	if (answer->recovery)
		return;
	answer->lsn = tandem_end_of_record(get_int8(res, COL_LSN), (int64) get_int8(res, COL_PAGE),
									   (int64) get_int8(res, COL_SEGMENT));
	strlcpy(file, PQgetvalue(res, 0, COL_FILE), sizeof(file));
	answer->timeline = strtoul(file, NULL, 16);
}

/* Connects if need be; an error is raised. */
static void
ask(TandemPass *pass, Answer *answer)
{
	Oid			types[] = {TEXTOID};
	int			formats[] = {0};
	const char *values[1];
	MemoryContext context = CurrentMemoryContext;
	Subscription *sub;
	char	   *conninfo;
	bool		must_use_password;
	bool		filters;
	PGresult   *res;

	/* no transaction while we wait */
	StartTransactionCommand();
	sub = GetSubscription(pass->subid, false);
	conninfo = MemoryContextStrdup(context, sub->conninfo);
	values[0] = MemoryContextStrdup(context, sub->slotname ? sub->slotname : "");
	filters = TANDEM_SUBSCRIPTION_FILTERS_ORIGIN(sub);
	must_use_password = TANDEM_MUST_USE_PASSWORD(sub);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	if (pass->remote == NULL)
		pass->remote = tandem_remote_connect_publisher(conninfo, must_use_password, CONNECT_TIMEOUT, NULL);
	res = tandem_remote_query(pass->remote, question, lengthof(types), types, values, NULL, formats, QUERY_TIMEOUT);
	PG_TRY();
	{
		read_answer(res, filters, answer);
	}
	PG_FINALLY();
	{
		PQclear(res);
	}
	PG_END_TRY();
}

static void
ask_for_xid(TandemPass *pass)
{
	PGresult   *res = tandem_remote_query(pass->remote, take_xid, 0, NULL, NULL, NULL, NULL, QUERY_TIMEOUT);

	PG_TRY();
	{
		pass->xid = get_int8(res, 0);
	}
	PG_FINALLY();
	{
		PQclear(res);
	}
	PG_END_TRY();
}

/* An error has been caught: says so, and when to try again. */
static void
failed(TandemPass *pass, const char *name, const ErrorData *error)
{
	disconnect(pass);
	pass->backoff = Min(Max(pass->backoff * 2, BACKOFF_MIN), BACKOFF_MAX);
	pass->next_try = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), pass->backoff);
	strlcpy(pass->message, error->message, sizeof(pass->message));
	strlcpy(pass->hint, error->hint ? error->hint : "Tombstones are kept until the publisher answers.",
			sizeof(pass->hint));
	for (char *c = pass->message; *c; c++)
	{
		if (*c == '\n' || *c == '\t')
			*c = ' ';
	}
	if (pass->phase != TANDEM_PASS_UNREACHABLE)
		ereport(LOG,
				(errmsg("tombstones for subscription \"%s\" are kept: %s", name, pass->message)));
	enter(pass, TANDEM_PASS_UNREACHABLE);
}

/* Asks (answer), or takes an id (NULL).  False = it doesn't answer; the phase says so. */
static bool
try_to_ask(TandemPass *pass, const char *name, Answer *answer)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool result = false;

	PG_TRY();
	{
		if (answer)
			ask(pass, answer);
		else
			ask_for_xid(pass);
		result = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(context);
		failed(pass, name, error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	if (result)
	{
		pass->backoff = 0;
		pass->next_try = 0;
		pass->asked = GetCurrentTimestamp();
	}
	return result;
}

/* A connection that has ended since is made anew, and the pass begins again. */
static bool
asked(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal, Answer *answer)
{
	if (pass->remote && !tandem_remote_is_alive(pass->remote))
	{
		disconnect(pass);
		begin(pass, goal);
	}
	return try_to_ask(pass, incoming->name, answer);
}

static bool
took_xid(TandemPass *pass, const TandemIncoming *incoming)
{
	return try_to_ask(pass, incoming->name, NULL);
}

/* Does this answer prove anything? */
static bool
provable(TandemPass *pass, const Answer *answer)
{
	if (answer->recovery)
		say_unprovable(pass, "the publisher is a standby, which doesn't know what its primary still does",
					   "Tombstones are kept up to tandem.max_retention and tandem.tombstone_limit. Subscribe to the primary.");
	else if (answer->subscribes && !answer->filters)
		say_unprovable(pass, "the publisher subscribes itself, and forwards what others did at any time",
					   "Tombstones are kept up to tandem.max_retention and tandem.tombstone_limit. Use origin = none, or on 15 the plugin " FILTERING_PLUGIN ".");
	else
		return true;
	return false;
}

/* ---- A step ------------------------------------------------------------------------- */

/* From CLOCK to FLUSH, as far as it gets. */
static void
step_publisher(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal)
{
	for (;;)
	{
		Answer		answer;

		if (!asked(pass, incoming, goal, &answer) || !provable(pass, &answer))
			return;

		/* it has proved nothing before, or was another server: from the start */
		if (pass->phase == TANDEM_PASS_UNPROVABLE || pass->phase == TANDEM_PASS_UNREACHABLE)
			begin(pass, goal);

		switch (pass->phase)
		{
			case TANDEM_PASS_CLOCK:
				pass->timeline = answer.timeline;
				if (answer.clock <= pass->goal)
					return;
				enter(pass, TANDEM_PASS_XID);
				if (!took_xid(pass, incoming))
					return;
				enter(pass, TANDEM_PASS_XMIN);
				break;

			case TANDEM_PASS_XMIN:
				pass->xmin = answer.xmin;
				if (answer.xmin < pass->xid)
					return;
				pass->lsn = answer.lsn;
				enter(pass, TANDEM_PASS_FLUSH);
				return;

			default:
				return;
		}
	}
}

/* Now and then, so that the connection stays, and that its end is noticed. */
static void
keep_in_touch(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal)
{
	Answer		answer;

	if (TimestampDifferenceExceeds(pass->asked, GetCurrentTimestamp(), ASK_INTERVAL) &&
		asked(pass, incoming, goal, &answer))
		(void) provable(pass, &answer);
}

/* From FLUSH on: what is known here, and at the end whether the publisher is still there. */
static void
step_here(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal)
{
	bool		copying;
	Answer		answer;

	if (incoming->timeline != 0 && incoming->timeline != pass->timeline)
	{
		disconnect(pass);
		begin(pass, goal);
		return;
	}
	if (incoming->flushed < pass->lsn)
	{
		keep_in_touch(pass, incoming, goal);
		return;
	}
	enter(pass, TANDEM_PASS_COPIES);

	StartTransactionCommand();
	copying = tandem_incoming.copying(pass->subid);
	CommitTransactionCommand();
	if (copying)
	{
		keep_in_touch(pass, incoming, goal);
		return;
	}

	/* and it is still the server it was at the start */
	if (!asked(pass, incoming, goal, &answer) || !provable(pass, &answer) || pass->phase != TANDEM_PASS_COPIES)
		return;
	if (answer.timeline != pass->timeline)
	{
		begin(pass, goal);
		return;
	}
	pass->passed = pass->goal;
	enter(pass, TANDEM_PASS_IDLE);
}

void
tandem_pass_step(TandemPass *pass, const TandemIncoming *incoming, TimestampTz goal)
{
	if (goal <= pass->passed)
	{
		/* what it waited for may have gone by another way */
		enter(pass, TANDEM_PASS_IDLE);
		if (TimestampDifferenceExceeds(pass->asked, GetCurrentTimestamp(), IDLE_LIMIT))
			disconnect(pass);
		return;
	}
	if (pass->phase == TANDEM_PASS_IDLE)
		begin(pass, goal);
	if (pass->next_try > GetCurrentTimestamp())
		return;
	if (pass->phase != TANDEM_PASS_FLUSH && pass->phase != TANDEM_PASS_COPIES)
		step_publisher(pass, incoming, goal);
	else
		step_here(pass, incoming, goal);
}

char *
tandem_pass_describe(TandemPassPhase phase, uint64 xid, uint64 xmin, XLogRecPtr lsn, const char *message)
{
	switch (phase)
	{
		case TANDEM_PASS_IDLE:
			break;
		case TANDEM_PASS_CLOCK:
		case TANDEM_PASS_XID:
			return pstrdup("the publisher's clock must pass the end of the epoch");
		case TANDEM_PASS_XMIN:
			return psprintf("transactions with ids before " UINT64_FORMAT " must end on the publisher; the oldest that runs there is " UINT64_FORMAT,
							xid, xmin);
		case TANDEM_PASS_FLUSH:
			return psprintf("all changes up to %X/%X must be applied and confirmed", LSN_FORMAT_ARGS(lsn));
		case TANDEM_PASS_COPIES:
			return pstrdup("tables are being copied");
		case TANDEM_PASS_UNPROVABLE:
		case TANDEM_PASS_UNREACHABLE:
			return pstrdup(message);
	}
	return NULL;
}
