/*-------------------------------------------------------------------------
 *
 * copy_stream.c
 *	  A copy worker's sessions on the publisher: the table's rows, from one
 *	  session or from several.
 *
 * The worker keeps one session, which has imported the wave's snapshot.  A large
 * heap is read by some more, each with the same snapshot and a range of its
 * pages (ctid), the last range open ended; they are closed when all rows have
 * arrived.  This process writes them all, in one transaction.  It pays when reading
 * is what takes the time: a row filter, values to be decompressed, a slow disk or
 * network there.
 *
 * On the publisher a table is locked for as long as it is read, and must still
 * have the files that the snapshot knows: under a snapshot older than a rewrite
 * COPY would return no rows and no error.  Each session locks and looks before the
 * first one lets go, so all ranges are of the same files.
 *
 * The publisher sends one row a message (the protocol's documentation says so
 * of CopyData from the backend), so the rows of several sessions make one stream
 * of COPY's data; in binary format it needs but one header and one trailer.
 *
 * Called by copy.c and load.c.
 *
 * src/subscription/copy_stream.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_am_d.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "common/settings.h"
#include "subscription/waves.h"

#define MAX_SESSIONS 16
#define WAIT_MS 1000L

/* COPY BINARY: signature, flags, length of an extension that nobody has */
#define SIGNATURE "PGCOPY\n\377\r\n\0"
#define HEADER_LEN (11 + 4 + 4)
#define TRAILER_LEN 2

typedef struct Session
{
	WalReceiverConn *conn;
	bool		header;			/* has come */
	bool		ended;			/* so have all its rows */
	pgsocket	socket;			/* where more will come */
} Session;

/* the first is the worker's own */
static Session sessions[MAX_SESSIONS];
static int	nsessions = 0;
static int	turn = 0;			/* the session read last */
static int	nended = 0;
static int	ntrailers = 0;
static bool binary = false;
static bool header_given = false;
static bool reading = false;	/* COPY's data has not been read to its end */
static bool locked = false;		/* the table read last; until the next savepoint */

static const Subscription *subscription;
static char snapshot_name[64];
static XLogRecPtr snapshot_lsn;

/* ---- Sessions --------------------------------------------------------------- */

static void
import_snapshot(WalReceiverConn *conn)
{
	tandem_publisher_exec(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
	tandem_publisher_exec(conn, psprintf("SET TRANSACTION SNAPSHOT %s", quote_literal_cstr(snapshot_name)));
	tandem_publisher_exec(conn, "SAVEPOINT tandem");
}

static void
close_others(void)
{
	while (nsessions > 1)
		walrcv_disconnect(sessions[--nsessions].conn);
}

void
tandem_copy_stream_connect(const Subscription *sub, const char *snapshot, XLogRecPtr lsn)
{
	tandem_copy_stream_disconnect();
	subscription = sub;
	strlcpy(snapshot_name, snapshot, sizeof(snapshot_name));
	snapshot_lsn = lsn;
	sessions[0].conn = tandem_publisher_connect(sub, "copy");
	nsessions = 1;
	import_snapshot(sessions[0].conn);
	if (!tandem_publisher_flushed(sessions[0].conn, lsn))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher has not flushed what the copy's snapshot sees")));
}

void
tandem_copy_stream_disconnect(void)
{
	close_others();
	if (nsessions > 0)
		walrcv_disconnect(sessions[--nsessions].conn);
	reading = locked = false;
}

bool
tandem_copy_stream_unread(void)
{
	return reading;
}

/*
 * Locks the publisher's table.  Returns whether it has the files that the
 * snapshot knows; *pages: how many pages a heap has, 0 of anything else.
 */
static bool
lock_table(WalReceiverConn *conn, const TandemCopy *copy, int64 *pages)
{
	Oid			types[] = {BOOLOID, INT8OID};
	WalRcvExecResult *res;
	TupleTableSlot *slot;
	bool		same = false;
	bool		isnull;

	/* one round trip; the lock of a small table before goes, too */
	res = tandem_publisher_query(conn,
								 psprintf("ROLLBACK TO SAVEPOINT tandem; LOCK TABLE ONLY %s IN ACCESS SHARE MODE;"
										  " SELECT c.oid = pg_catalog.to_regclass(%s) AND"
										  " CASE WHEN c.relkind = 'r' THEN c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)"
										  " ELSE coalesce((SELECT bool_and((SELECT l.relfilenode FROM pg_catalog.pg_class l"
										  " WHERE l.oid = t.relid AND l.relkind = 'r') = pg_catalog.pg_relation_filenode(t.relid))"
										  " FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf), true) END,"
										  " CASE WHEN c.relkind = 'r' AND c.relam = %u THEN pg_catalog.pg_relation_size(c.oid) /"
										  " pg_catalog.current_setting('block_size')::int8 ELSE 0 END"
										  " FROM pg_catalog.pg_class c WHERE c.oid = %u",
										  copy->remote_name, quote_literal_cstr(copy->remote_name),
										  HEAP_TABLE_AM_OID, copy->remote_relid),
								 lengthof(types), types);
	slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	if (tuplestore_gettupleslot(res->tuplestore, true, false, slot))
	{
		same = DatumGetBool(slot_getattr(slot, 1, &isnull)) && !isnull;
		*pages = DatumGetInt64(slot_getattr(slot, 2, &isnull));
		if (isnull)
			*pages = 0;
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);
	return same;
}

/* One more session, with the table locked; false if there is none to be had. */
static bool
add_session(const TandemCopy *copy)
{
	MemoryContext context = CurrentMemoryContext;
	WalReceiverConn *volatile conn = NULL;
	volatile bool ready = false;
	int64		pages;

	/* nothing here touches the database, so an error needs no subtransaction */
	PG_TRY();
	{
		conn = tandem_publisher_connect(subscription, "copy");
		import_snapshot(conn);
		ready = lock_table(conn, copy, &pages);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN || error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		FlushErrorState();
		ereport(DEBUG1,
				(errmsg("table %s is read by %d sessions, there is not one more: %s",
						copy->remote_name, nsessions, error->message)));
	}
	PG_END_TRY();
	if (ready)
		sessions[nsessions++].conn = conn;
	else if (conn)
		walrcv_disconnect(conn);
	return ready;
}

/* ---- COPY ------------------------------------------------------------------- */

static void
start_copy(Session *session, const char *query)
{
	WalRcvExecResult *res = walrcv_exec(session->conn, query, 0, NULL);

	if (res->status != WALRCV_OK_COPY_OUT)
		tandem_publisher_raise(res);
	walrcv_clear_result(res);
	reading = true;
	session->header = session->ended = false;
}

void
tandem_copy_stream_begin(const TandemCopy *copy, int wanted)
{
	int64		range = Max((int64) tandem_debug_range_size * 1024 / BLCKSZ, 1);
	int64		pages;
	int64		share;

	close_others();
	turn = nended = ntrailers = 0;
	header_given = false;
	binary = copy->binary;
	locked = true;
	if (!lock_table(sessions[0].conn, copy, &pages))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher's table was rewritten or replaced when it was to be copied")));

	wanted = Min(Min(wanted, MAX_SESSIONS), pages / range);
	while (nsessions < wanted && add_session(copy))
		continue;
	if (nsessions == 1)
	{
		start_copy(&sessions[0], copy->query);
		return;
	}
	share = pages / nsessions;
	for (int i = 0; i < nsessions; i++)
		start_copy(&sessions[i],
				   tandem_copy_range(copy, i * share, i < nsessions - 1 ? (i + 1) * share : -1));
	ereport(DEBUG1,
			(errmsg("table %s is read by %d sessions, about " INT64_FORMAT " pages each",
					copy->remote_name, nsessions, share)));
}

/* Leaves one header and one trailer of all sessions'; returns the length. */
static int
trim(Session *session, char **data, int len)
{
	int			kept = 0;

	if (!session->header)
	{
		if (len < HEADER_LEN || memcmp(*data, SIGNATURE, 11) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("the publisher's COPY data does not begin with the header of its binary format")));
		session->header = true;
		if (header_given)
		{
			*data += HEADER_LEN;
			len -= HEADER_LEN;
		}
		else
			kept = HEADER_LEN;
		header_given = true;
	}
	if (len - kept == TRAILER_LEN && memcmp(*data + kept, "\377\377", TRAILER_LEN) == 0 &&
		++ntrailers < nsessions)
		len = kept;
	return len;
}

static void
wait_for_data(void)
{
	WaitEventSet *set = TANDEM_CREATE_WAIT_EVENT_SET(nsessions + 2);
	WaitEvent	event;

	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < nsessions; i++)
	{
		if (!sessions[i].ended)
			AddWaitEventToSet(set, WL_SOCKET_READABLE, sessions[i].socket, NULL, NULL);
	}
	(void) WaitEventSetWait(set, WAIT_MS, &event, 1, PG_WAIT_EXTENSION);
	FreeWaitEventSet(set);
	ResetLatch(MyLatch);
}

int
tandem_copy_stream_receive(char **data)
{
	for (int tried = 0; tried < nsessions;)
	{
		Session	   *session = &sessions[turn];
		int			len = session->ended ? 0 : walrcv_receive(session->conn, data, &session->socket);

		if (len > 0)
		{
			if (binary)
				len = trim(session, data, len);
			if (len > 0)
				return len;
			continue;			/* a header, or a trailer */
		}
		if (len < 0)
		{
			session->ended = true;
			if (++nended == nsessions)
			{
				reading = false;
				close_others();
				return -1;
			}
		}
		turn = (turn + 1) % nsessions;
		tried++;
	}
	wait_for_data();
	return 0;
}

void
tandem_copy_stream_end(void)
{
	/* a session that is gone has no lock; what is to be read next will say so */
	if (locked)
		walrcv_clear_result(walrcv_exec(sessions[0].conn, "ROLLBACK TO SAVEPOINT tandem", 0, NULL));
	locked = false;
}
