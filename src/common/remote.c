/*-------------------------------------------------------------------------
 *
 * remote.c
 *	  Connections from this server to another node, over libpq.
 *
 * Never blocks in libpq: all waits are on the process latch and the socket,
 * end at a timeout, react to interrupts, and ask the caller's give_up function
 * every GIVE_UP_INTERVAL ms (a standby that is promoted must not wait for a
 * primary that hangs).  Wait event: Extension.
 *
 * A failure is raised as an error of class connection_exception with the
 * other side's message; the remote stays usable only after errors of the
 * query itself (tandem_remote_is_alive).  Remotes live in TopMemoryContext
 * until they are closed.
 *
 * src/common/remote.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "common/remote.h"

#define GIVE_UP_INTERVAL 200	/* ms */

struct TandemRemote
{
	PGconn	   *conn;
	const char *peer;			/* what messages call the other side */
	TandemGiveUp give_up;
	uint64		bytes_sent;
	uint64		bytes_received;
};

/*
 * Waits for the socket or until the deadline; raises an error then, or when
 * the caller wants to give up.
 */
static void
wait_socket(TandemRemote *remote, int socket_event, TimestampTz deadline,
			const char *doing)
{
	for (;;)
	{
		long		left;
		int			rc;
		const char *why;

		CHECK_FOR_INTERRUPTS();
		why = remote->give_up ? remote->give_up() : NULL;
		if (why)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gave up %s the %s: %s", doing, remote->peer, why)));
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (left <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("timed out %s the %s", doing, remote->peer),
					 errhint("Check that the other server runs and that the network lets this server reach it.")));
		rc = WaitLatchOrSocket(MyLatch,
							   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH | socket_event,
							   PQsocket(remote->conn),
							   Min(left, GIVE_UP_INTERVAL),
							   PG_WAIT_EXTENSION);
		if (rc & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (rc & socket_event)
			return;
	}
}

/* libpq's message of a connection, without its trailing newline; palloc'd */
static char *
connection_message(PGconn *conn)
{
	return pchomp(PQerrorMessage(conn));
}

/*
 * As tandem_remote_connect.  peer: see there; hint: what to correct in a wrong
 * conninfo; must_use_password: refuse a connection that needs none.
 */
static TandemRemote *
connect_to(const char *peer, const char *hint, const char *conninfo, const char *dbname,
		   bool override, bool must_use_password, int timeout_ms, TandemGiveUp give_up)
{
	PQconninfoOption *options;
	PQconninfoOption *o;
	char	   *error = NULL;
	const char *keywords[64];
	const char *values[64];
	StringInfoData server_options;
	int			n = 0;
	bool		named = false;	/* conninfo names a database */
	TandemRemote *remote;
	TimestampTz deadline;

	options = PQconninfoParse(conninfo, &error);
	if (options == NULL)
	{
		char	   *message = pchomp(error ? error : "out of memory");

		PQfreemem(error);
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string: %s", message),
				 errhint("%s", hint)));
	}

	/* nothing of the other side's search_path may matter to our queries */
	initStringInfo(&server_options);
	appendStringInfoString(&server_options, "-csearch_path=");
	for (o = options; o->keyword != NULL; o++)
	{
		if (o->val == NULL || n >= lengthof(keywords) - 6)
			continue;
		if (strcmp(o->keyword, "options") == 0)
			appendStringInfo(&server_options, " %s", o->val);
		else if (strcmp(o->keyword, "replication") == 0 ||
				 strcmp(o->keyword, "client_encoding") == 0 ||
				 (override && strcmp(o->keyword, "dbname") == 0))
			continue;
		else
		{
			/* a service may name one, too */
			if (strcmp(o->keyword, "dbname") == 0 ||
				strcmp(o->keyword, "service") == 0)
				named = true;
			keywords[n] = o->keyword;
			values[n++] = pstrdup(o->val);
		}
	}
	PQconninfoFree(options);
	if (override || !named)
	{
		keywords[n] = "dbname";
		values[n++] = dbname;
	}
	keywords[n] = "options";
	values[n++] = server_options.data;
	keywords[n] = "client_encoding";
	values[n++] = GetDatabaseEncodingName();
	keywords[n] = "fallback_application_name";
	values[n++] = "pg_tandem";
	keywords[n] = NULL;
	values[n] = NULL;

	remote = MemoryContextAllocZero(TopMemoryContext, sizeof(TandemRemote));
	remote->give_up = give_up;
	remote->peer = peer;
	PG_TRY();
	{
		PostgresPollingStatusType status = PGRES_POLLING_WRITING;

		deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
		remote->conn = PQconnectStartParams(keywords, values, 0);
		if (remote->conn == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory")));
		if (PQstatus(remote->conn) == CONNECTION_BAD)
			status = PGRES_POLLING_FAILED;
		while (status != PGRES_POLLING_OK && status != PGRES_POLLING_FAILED)
		{
			wait_socket(remote,
						status == PGRES_POLLING_READING ?
							WL_SOCKET_READABLE :
							WL_SOCKET_CONNECTED,
						deadline, "connecting to");
			status = PQconnectPoll(remote->conn);
		}
		if (status == PGRES_POLLING_FAILED)
			ereport(ERROR,
					(errcode(ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION),
					 errmsg("could not connect to the %s: %s", peer,
							connection_message(remote->conn))));
		if (must_use_password && !PQconnectionUsedPassword(remote->conn))
			ereport(ERROR,
					(errcode(ERRCODE_S_R_E_PROHIBITED_SQL_STATEMENT_ATTEMPTED),
					 errmsg("the %s asked for no password", peer),
					 errdetail("The subscription's owner is no superuser and must use one."),
					 errhint("The other server's authentication method must be changed, or password_required set to false.")));
		if (PQsetnonblocking(remote->conn, 1) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("could not set the connection to non-blocking mode: %s",
							connection_message(remote->conn))));
	}
	PG_CATCH();
	{
		tandem_remote_close(remote);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return remote;
}

/*
 * Connects to the node that conninfo describes, to database dbname if conninfo
 * has none, or in any case (override).  timeout_ms bounds the whole.
 */
TandemRemote *
tandem_remote_connect(const char *conninfo, const char *dbname, bool override,
					  int timeout_ms, TandemGiveUp give_up)
{
	return connect_to("primary", "Correct tandem.primary_conninfo, or primary_conninfo if that is empty.",
					  conninfo, dbname, override, false, timeout_ms, give_up);
}

/*
 * Connects to a subscription's publisher, to the database that conninfo says;
 * must_use_password: the server's rule for owners who are no superusers.
 */
TandemRemote *
tandem_remote_connect_publisher(const char *conninfo, bool must_use_password,
								int timeout_ms, TandemGiveUp give_up)
{
	return connect_to("publisher", "Correct it with ALTER SUBSCRIPTION ... CONNECTION.",
					  conninfo, NULL, false, must_use_password, timeout_ms, give_up);
}

void
tandem_remote_close(TandemRemote *remote)
{
	if (remote == NULL)
		return;
	if (remote->conn)
		PQfinish(remote->conn);
	pfree(remote);
}

/*
 * Can the connection take another query?  False after a query that timed out
 * or was given up: its answer may still arrive.
 */
bool
tandem_remote_is_alive(TandemRemote *remote)
{
	if (remote == NULL)
		return false;

	/*
	 * Only reading notices that the other side has closed the connection; its
	 * last words may come before the end.
	 */
	if (PQtransactionStatus(remote->conn) == PQTRANS_IDLE &&
		PQconsumeInput(remote->conn))
		(void) PQconsumeInput(remote->conn);
	return PQstatus(remote->conn) == CONNECTION_OK &&
		PQtransactionStatus(remote->conn) == PQTRANS_IDLE;
}

uint64
tandem_remote_bytes_sent(TandemRemote *remote)
{
	return remote->bytes_sent;
}

uint64
tandem_remote_bytes_received(TandemRemote *remote)
{
	return remote->bytes_received;
}

/* Size of a result's messages, as the protocol sends them. */
static uint64
result_size(PGresult *res)
{
	uint64		size = 0;
	int			rows = PQntuples(res);
	int			cols = PQnfields(res);
	int			i;
	int			j;

	for (j = 0; j < cols; j++)
		size += strlen(PQfname(res, j)) + 1 + 18;
	for (i = 0; i < rows; i++)
	{
		size += 7;
		for (j = 0; j < cols; j++)
			size += 4 + PQgetlength(res, i, j);
	}
	return size + 64;			/* the small messages around them */
}

/*
 * Runs one query with parameters and returns its rows in binary format; the
 * caller frees them with PQclear.  Anything but rows is raised as an error
 * with the other server's SQLSTATE, message and hint.
 */
PGresult *
tandem_remote_query(TandemRemote *remote, const char *query, int nparams,
					const Oid *types, const char *const *values,
					const int *lengths, const int *formats, int timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													   timeout_ms);
	PGconn	   *conn = remote->conn;
	PGresult   *result = NULL;
	int			i;

	if (!PQsendQueryParams(conn, query, nparams, types, values, lengths,
						   formats, 1))
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not send query to the %s: %s", remote->peer,
						connection_message(conn))));
	remote->bytes_sent += strlen(query) + 64;
	for (i = 0; i < nparams; i++)
		remote->bytes_sent += 8 + (values[i] == NULL ? 0 : formats[i] ? lengths[i] :
																		strlen(values[i]));

	PG_TRY();
	{
		PGresult   *res;
		int			flush;

		while ((flush = PQflush(conn)) != 0)
		{
			if (flush < 0)
				ereport(ERROR,
						(errcode(ERRCODE_CONNECTION_FAILURE),
						 errmsg("could not send query to the %s: %s", remote->peer,
								connection_message(conn))));
			wait_socket(remote, WL_SOCKET_WRITEABLE | WL_SOCKET_READABLE,
						deadline, "sending a query to");
			if (!PQconsumeInput(conn))
				ereport(ERROR,
						(errcode(ERRCODE_CONNECTION_FAILURE),
						 errmsg("lost the connection to the %s: %s", remote->peer,
								connection_message(conn))));
		}
		for (;;)
		{
			while (PQisBusy(conn))
			{
				wait_socket(remote, WL_SOCKET_READABLE, deadline,
							"waiting for an answer of");
				if (!PQconsumeInput(conn))
					ereport(ERROR,
							(errcode(ERRCODE_CONNECTION_FAILURE),
							 errmsg("lost the connection to the %s: %s", remote->peer,
									connection_message(conn))));
			}
			res = PQgetResult(conn);
			if (res == NULL)
				break;
			PQclear(result);
			result = res;
		}

		if (PQresultStatus(result) != PGRES_TUPLES_OK)
		{
			const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
			const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
			const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);

			ereport(ERROR,
					(errcode(sqlstate && strlen(sqlstate) == 5 ?
								 MAKE_SQLSTATE(sqlstate[0], sqlstate[1],
											   sqlstate[2], sqlstate[3],
											   sqlstate[4]) :
								 ERRCODE_CONNECTION_FAILURE),
					 errmsg("the %s answered: %s", remote->peer,
							primary ? primary : connection_message(conn)),
					 hint ? errhint("%s", hint) : 0));
		}
	}
	PG_CATCH();
	{
		PQclear(result);
		PG_RE_THROW();
	}
	PG_END_TRY();

	remote->bytes_received += result_size(result);
	return result;
}
