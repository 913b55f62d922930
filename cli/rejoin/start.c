/*-------------------------------------------------------------------------
 *
 * start.c
 *	  Starts the rejoined server and waits until it streams.
 *
 * It is started as it was started last (postmaster.opts), by pg_ctl of the
 * same installation.  Whether it streams is seen on the new primary: the
 * standby's slot there is in use, and its position is what the standby has
 * flushed.  That needs no right to connect to the standby.
 *
 * cli/rejoin/start.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "result.h"
#include "rejoin/start.h"
#include "text.h"

#define POLL_US 50000
#define PATIENCE 120			/* seconds without any progress */
#define CONNECT_PATIENCE 30		/* seconds for a connection to a node that already streams */
#define LOG_FILE "tandem_rejoin.log"

/* The last lines of the server's log that say what went wrong. */
static char *
log_tail(const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[1024];
	char	   *last = NULL;

	while (file && fgets(line, sizeof(line), file))
		if (strstr(line, "FATAL:") || strstr(line, "PANIC:") || strstr(line, "ERROR:"))
			last = pg_strdup(line);
	if (file)
		fclose(file);
	return last;
}

/* For the inside of single quotes of a shell. */
static char *
in_quotes(const char *text)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	for (; *text; text++)
	{
		if (*text == '\'')
			appendPQExpBufferStr(&out, "'\\''");
		else
			appendPQExpBufferChar(&out, *text);
	}
	return out.data;
}

void
start_server(const Target *target, const Options *options)
{
	const char *log = options->log_file ? options->log_file : LOG_FILE;
	char		bin[MAXPGPATH];
	char	   *command;
	char	   *why;

	if (target->postgres == NULL)
		rejoin_refuse("The directory is ready: start the server yourself.",
					  "the server's program was not found");
	strlcpy(bin, target->postgres, sizeof(bin));
	get_parent_directory(bin);
	command = psprintf("\"%s/pg_ctl\" start -w -s -t %d -D \"%s\" -l \"%s\" -o '%s' >/dev/null 2>&1",
					   bin, PATIENCE, target->dir, log, in_quotes(target->start_options));
	fflush(NULL);
	unlink(LOG_FILE);
	if (system(command) == 0)
		return;
	why = log_tail(log);
	rejoin_refuse(psprintf("The directory is ready; the server's messages are in \"%s/%s\" or in its own log.",
						   target->dir, log),
				  "the server did not start%s%s", why ? ": " : "", why ? text_clean(why) : "");
}

void
wait_streaming(const Target *target, Source *source, const char *slot, Report *report)
{
	XLogRecPtr	goal = source_flushed(source);
	XLogRecPtr	best = InvalidXLogRecPtr;
	time_t		progress = time(NULL);

	for (;;)
	{
		XLogRecPtr	position;
		bool		active = source_slot_position(source, slot, &position);

		if (active && position >= goal)
			return;
		if (active && position > best)
		{
			best = position;
			progress = time(NULL);
			report_progress(report, position < goal ? goal - position : 0, 0, " behind");
		}
		if (time(NULL) - progress > PATIENCE)
		{
			char	   *why = log_tail(LOG_FILE);

			rejoin_refuse("The directory is ready and the server runs; its log says why it does not stream.",
						  "the node is at %X/%X and made no progress towards %X/%X for %d seconds%s%s",
						  LSN_ARGS(best), LSN_ARGS(goal), PATIENCE,
						  why ? ": " : "", why ? text_clean(why) : "");
		}
		pg_usleep(POLL_US);
	}
}

/* A line of postmaster.pid, counted from 1 */
static char *
pid_file_line(int number)
{
	FILE	   *file = fopen("postmaster.pid", "r");
	char		line[1024];
	char	   *found = NULL;

	for (int i = 1; file && fgets(line, sizeof(line), file); i++)
		if (i == number)
		{
			line[strcspn(line, "\n")] = '\0';
			found = pg_strdup(line);
		}
	if (file)
		fclose(file);
	return found;
}

PGconn *
connect_local(const Target *target, const Options *options, const char **why_not)
{
	char	   *port = pid_file_line(4);
	char	   *socket_dir = pid_file_line(5);
	char	   *listen = pid_file_line(6);
	const char *host = socket_dir && socket_dir[0] ? socket_dir : listen;
	const char *keywords[8];
	const char *values[8];
	int			n = 0;
	time_t		start = time(NULL);
	PGconn	   *conn;

	if (host && strcmp(host, "*") == 0)
		host = "localhost";
	keywords[n] = "dbname";
	values[n++] = options->dbname ? options->dbname : "postgres";
	keywords[n] = "host";
	values[n++] = host;
	keywords[n] = "port";
	values[n++] = port;
	if (options->user)
	{
		keywords[n] = "user";
		values[n++] = options->user;
	}
	if (getenv("PGCONNECT_TIMEOUT") == NULL)
	{
		keywords[n] = "connect_timeout";
		values[n++] = psprintf("%d", CONNECT_PATIENCE);
	}
	keywords[n] = "fallback_application_name";
	values[n++] = "tandem rejoin";
	keywords[n] = values[n] = NULL;
	conn = PQconnectdbParams(keywords, values, 1);
	if (PQstatus(conn) != CONNECTION_OK)
	{
		*why_not = psprintf("no connection to the local server: %s%s", text_message(PQerrorMessage(conn)),
							socket_dir && socket_dir[0] && time(NULL) - start > 1 ?
								" (it may wait for a lock of a transaction that the crash cut off;"
								" a standby keeps that until prepared transactions from before it end)" :
								"");
		PQfinish(conn);
		return NULL;
	}
	PQclear(PQexec(conn, "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"
						 " pg_catalog.set_config('lock_timeout', '30s', false)"));
	return conn;
}

bool
wait_replayed(PGconn *local, XLogRecPtr lsn)
{
	time_t		progress = time(NULL);
	XLogRecPtr	best = InvalidXLogRecPtr;

	for (;;)
	{
		PGresult   *res = PQexec(local, "SELECT pg_catalog.pg_last_wal_replay_lsn() AS lsn");
		XLogRecPtr	at = PQresultStatus(res) == PGRES_TUPLES_OK ? field_lsn(res, 0, "lsn") : 0;

		PQclear(res);
		if (at >= lsn)
			return true;
		if (at > best)
		{
			best = at;
			progress = time(NULL);
		}
		if (time(NULL) - progress > PATIENCE)
			return false;
		pg_usleep(POLL_US);
	}
}

const char *
allow_restore(PGconn *local, XLogRecPtr fork)
{
	PGresult   *res;
	XLogRecPtr	redo;

	if (!recovery_conf_restore_is_off())
		return NULL;
	if (local)
	{
		PQclear(PQexec(local, "CHECKPOINT"));
		res = PQexec(local, "SELECT redo_lsn FROM pg_catalog.pg_control_checkpoint()");
		redo = PQresultStatus(res) == PGRES_TUPLES_OK ? field_lsn(res, 0, "redo_lsn") : 0;
		PQclear(res);
		if (redo > fork)
		{
			recovery_conf_allow_restore();
			PQclear(PQexec(local, "SELECT pg_catalog.pg_reload_conf()"));
			return NULL;
		}
	}
	return psprintf("restore_command is switched off in postgresql.auto.conf, because the archive may have WAL of the old timeline past the fork."
					" Once a restartpoint lies past %X/%X (pg_controldata), run ALTER SYSTEM RESET restore_command and reload.",
					LSN_ARGS(fork));
}
