/*-------------------------------------------------------------------------
 *
 * node.c
 *	  The servers of a topology and what each says about itself.
 *
 * The first node is reached by -h, -p, -U, -d and the environment like psql;
 * each --node is a connection string that takes user and database from -U and
 * -d where it names none.  A standby tells where its primary is: the open
 * replication connection if there is one (pg_stat_wal_receiver), else
 * tandem.primary_conninfo or primary_conninfo.  The command goes there with
 * its own user and database, never with those of the standby.  A primary
 * knows the addresses of its standbys but not their ports, so these are named
 * by --node.  Two names for one server count once.
 *
 * Sessions are read-only, with an empty search_path and a statement timeout.
 * Because a stopped server does not run its own timeout, every answer is also
 * awaited here no longer than --timeout; a node that is silent for so long is
 * unreachable.
 *
 * cli/node.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "common/string.h"
#include "fe_utils/string_utils.h"
#include "node.h"
#include "subscription.h"
#include "text.h"
#include "watch.h"

#define MOST_RESULTS 512

static PGresult *results[MOST_RESULTS];
static int	nresults = 0;

static const Options *connect_options;

/* ---- settings ---------------------------------------------------------- */

const char *
node_setting(const Node *node, const char *name)
{
	return field(node->settings, find_row(node->settings, "name", name), "setting");
}

int64
node_setting_int(const Node *node, const char *name, int64 otherwise)
{
	const char *value = node_setting(node, name);

	return value ? strtoll(value, NULL, 10) : otherwise;
}

bool
node_setting_is(const Node *node, const char *name, const char *value)
{
	const char *have = node_setting(node, name);

	return have && strcmp(have, value) == 0;
}

const char *
next_library(const char **list)
{
	const char *start = *list + strspn(*list, " ,");
	bool		quoted = *start == '"';
	int			len;

	if (quoted)
		start++;
	len = strcspn(start, quoted ? "\"" : " ,");
	*list = start + len + (quoted && start[len] == '"' ? 1 : 0);
	return len > 0 ? screen_printf("%.*s", len, start) : NULL;
}

const char *
quote_literal(const char *text)
{
	size_t		len = strlen(text);
	char	   *quoted = screen_alloc(2 * len + 4);
	char	   *p = quoted;

	if (strchr(text, '\\'))
	{
		*p++ = ' ';
		*p++ = 'E';
	}
	*p++ = '\'';
	for (; *text; text++)
	{
		if (*text == '\'' || *text == '\\')
			*p++ = *text;
		*p++ = *text;
	}
	*p = '\'';
	return quoted;
}

const char *
quote_identifier(const char *text)
{
	return screen_strdup(fmtId(text));
}

/* ---- connections -------------------------------------------------------- */

static int64
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * (int64) 1000 + now.tv_nsec / 1000000;
}

PGresult *
conn_query(PGconn *conn, int timeout_ms, const char *sql, const char **error,
		   const char **sqlstate)
{
	int64		deadline = now_ms() + timeout_ms;
	PGresult   *last = NULL;
	PGresult   *res;
	const char *why = NULL;

	if (error)
		*error = NULL;
	if (sqlstate)
		*sqlstate = "";

	if (!PQsendQuery(conn, sql))
		why = text_message(PQerrorMessage(conn));
	while (why == NULL)
	{
		struct pollfd fd = {.fd = PQsocket(conn), .events = POLLIN};
		int			left = (int) (deadline - now_ms());

		if (!PQisBusy(conn))
		{
			res = PQgetResult(conn);
			if (res == NULL)
				break;
			if (last)
				PQclear(last);
			last = res;
			/* COPY is not for us, and would never end */
			if (PQresultStatus(res) == PGRES_COPY_IN ||
				PQresultStatus(res) == PGRES_COPY_OUT ||
				PQresultStatus(res) == PGRES_COPY_BOTH)
				why = "unexpected answer of the server";
			continue;
		}
		if (watch_interrupted)
			why = "interrupted";
		else if (left <= 0)
			why = screen_printf("no answer within %g s", timeout_ms / 1000.0);
		else if (PQflush(conn) < 0 ||
				 (poll(&fd, 1, left) > 0 && !PQconsumeInput(conn)))
			why = text_message(PQerrorMessage(conn));
	}
	if (why)
	{
		/* the connection is of no more use */
		if (last)
			PQclear(last);
		if (error)
			*error = why;
		return NULL;
	}
	if (PQresultStatus(last) != PGRES_TUPLES_OK && PQresultStatus(last) != PGRES_COMMAND_OK)
	{
		const char *primary = PQresultErrorField(last, PG_DIAG_MESSAGE_PRIMARY);
		const char *code = PQresultErrorField(last, PG_DIAG_SQLSTATE);

		if (error)
			*error = text_message(primary ? primary : PQresultErrorMessage(last));
		if (sqlstate && code)
			*sqlstate = screen_strdup(code);
		PQclear(last);
		return NULL;
	}
	if (nresults >= MOST_RESULTS)
		pg_fatal("too many results");
	results[nresults++] = last;
	return last;
}

static void
disconnect(Node *node)
{
	PQfinish(node->conn);
	node->conn = NULL;
}

PGresult *
node_query(Node *node, const char *sql, const char **error, const char **sqlstate)
{
	const char *why;
	const char *code;
	PGresult   *res;

	if (node->conn == NULL)
	{
		if (error)
			*error = node->error;
		if (sqlstate)
			*sqlstate = "";
		return NULL;
	}
	res = conn_query(node->conn, connect_options->timeout_ms, sql, &why, &code);
	if (res == NULL && (code[0] == '\0' || PQstatus(node->conn) != CONNECTION_OK))
	{
		node->error = why;
		disconnect(node);
	}
	if (error)
		*error = why;
	if (sqlstate)
		*sqlstate = code;
	return res;
}

/*
 * The name by which people know a server: host:port, the host of a socket
 * being "local".  Works before a connection is there.
 */
static const char *
node_label(const Node *node, PGconn *conn)
{
	const char *host = conn ? PQhost(conn) : node->host;
	const char *port = conn ? PQport(conn) : node->port;

	if (host == NULL || host[0] == '\0' || host[0] == '/' || host[0] == '@')
		host = "local";
	if (strchr(host, ':'))
		return text_clean(screen_printf("[%s]:%s", host, port && *port ? port : "5432"));
	return text_clean(screen_printf("%s:%s", host, port && *port ? port : "5432"));
}

/*
 * Opens a connection.  dbname may be NULL: then what the user said, else
 * "postgres" as other cluster-wide commands do.
 */
static PGconn *
open_connection(Node *node, const char *dbname, const char **error)
{
	const char *keywords[16];
	const char *values[16];
	char	   *connect_timeout;
	const char *password = node->password;
	PGconn	   *conn;
	PGresult   *res;

	connect_timeout = screen_printf("%d", Max(2, (connect_options->timeout_ms + 999) / 1000));

	for (;;)
	{
		int			n = 0;

#define ADD(keyword, value) \
	do \
	{ \
		if (value) \
		{ \
			keywords[n] = keyword; \
			values[n++] = value; \
		} \
	} while (0)

		if (getenv("PGCONNECT_TIMEOUT") == NULL)
			ADD("connect_timeout", connect_timeout);
		ADD("user", connect_options->user);
		if (node->is_first)
		{
			ADD("host", connect_options->host);
			ADD("port", connect_options->port);
		}
		ADD("password", password);
		ADD("dbname", node->conninfo);
		/* whatever follows wins over the connection string */
		if (node->host)
		{
			ADD("host", node->host);
			ADD("hostaddr", "");
			ADD("port", node->port ? node->port : "");
			ADD("target_session_attrs", "any");
		}
		ADD("dbname", dbname);
		keywords[n] = "client_encoding";
		values[n++] = "UTF8";
		keywords[n] = "fallback_application_name";
		values[n++] = "tandem";
		keywords[n] = values[n] = NULL;
#undef ADD

		if (connect_options->force_password && password == NULL)
			conn = NULL;
		else
		{
			conn = PQconnectdbParams(keywords, values, true);
			if (conn == NULL)
				pg_fatal("out of memory");
		}

		if (conn == NULL ||
			(PQstatus(conn) == CONNECTION_BAD && PQconnectionNeedsPassword(conn) &&
			 password == NULL && !connect_options->never_password))
		{
			char	   *prompt = psprintf("Password for %s: ", node_label(node, conn));

			PQfinish(conn);
			password = node->password = simple_prompt(prompt, false);
			pfree(prompt);
			continue;
		}
		break;
	}

	/* libpq falls back to a database named like the user; we do not */
	if (dbname == NULL && getenv("PGDATABASE") == NULL && PQdb(conn) && PQuser(conn) &&
		strcmp(PQdb(conn), PQuser(conn)) == 0 &&
		(node->conninfo == NULL || strchr(node->conninfo, '=') || strstr(node->conninfo, "://")))
	{
		PQfinish(conn);
		return open_connection(node, "postgres", error);
	}

	node->label = node_label(node, conn);
	if (PQstatus(conn) == CONNECTION_BAD)
	{
		*error = text_message(PQerrorMessage(conn));
		PQfinish(conn);
		return NULL;
	}

	/* also refuses to fire triggers of ours or theirs by accident: read only */
	res = conn_query(conn, connect_options->timeout_ms,
					 screen_printf("SELECT pg_catalog.set_config('search_path', '', false),"
								   " pg_catalog.set_config('default_transaction_read_only', 'on', false),"
								   " pg_catalog.set_config('statement_timeout', '%d', false),"
								   " pg_catalog.set_config('lock_timeout', '%d', false),"
								   " pg_catalog.set_config('DateStyle', 'ISO', false)",
								   connect_options->timeout_ms, connect_options->timeout_ms),
					 error, NULL);
	if (res == NULL)
	{
		PQfinish(conn);
		return NULL;
	}
	return conn;
}

int
node_timeout_ms(void)
{
	return connect_options->timeout_ms;
}

PGconn *
node_connect_database(Node *node, const char *dbname, const char **error)
{
	return open_connection(node, dbname, error);
}

/* ---- what a node says --------------------------------------------------- */

static void
read_identity(Node *node)
{
	PGresult   *res;

	res = node_query(node,
					 "SELECT pg_catalog.pg_is_in_recovery() AS in_recovery,"
					 " pg_catalog.current_setting('server_version_num') AS version_num,"
					 " pg_catalog.current_setting('server_version') AS version,"
					 " CURRENT_USER AS username,"
					 " pg_catalog.pg_has_role(CURRENT_USER, 'pg_monitor', 'USAGE') AS monitor,"
					 " (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER) AS superuser,"
					 " CASE WHEN pg_catalog.pg_is_in_recovery()"
					 " THEN pg_catalog.pg_last_wal_replay_lsn()"
					 " ELSE pg_catalog.pg_current_wal_flush_lsn() END AS lsn,"
					 " EXISTS (SELECT FROM pg_catalog.pg_settings WHERE name = 'tandem.sync_slots') AS preloaded,"
					 " pg_catalog.current_setting('tandem.database', true) AS tandem_database",
					 &node->error, NULL);
	if (res == NULL)
	{
		disconnect(node);
		return;
	}
	node->in_recovery = field_is_true(res, 0, "in_recovery");
	node->version_num = atoi(field(res, 0, "version_num"));
	node->version = text_clean(field(res, 0, "version"));
	node->user = field(res, 0, "username");
	node->is_superuser = field_is_true(res, 0, "superuser");
	node->is_monitor = node->is_superuser || field_is_true(res, 0, "monitor");
	node->lsn = field_lsn(res, 0, "lsn");
	node->preloaded = field_is_true(res, 0, "preloaded");
	node->tandem_database = node->preloaded ? field(res, 0, "tandem_database") : NULL;

	/* may have been revoked */
	res = node_query(node, "SELECT system_identifier FROM pg_catalog.pg_control_system()",
					 NULL, NULL);
	node->system_identifier = field(res, 0, "system_identifier");

	/* a standby's own is the one it receives; its last restartpoint may be older */
	res = node_query(node,
					 "SELECT c.timeline_id AS checkpoint, CASE WHEN pg_catalog.pg_is_in_recovery()"
					 " THEN coalesce((SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), c.timeline_id)"
					 " ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::pg_catalog.bit(32)::pg_catalog.int4"
					 " END AS timeline FROM pg_catalog.pg_control_checkpoint() c",
					 NULL, NULL);
	if (nrows(res) == 1 && field(res, 0, "timeline"))
	{
		node->timeline = atoi(field(res, 0, "timeline"));
		node->checkpoint_timeline = atoi(field(res, 0, "checkpoint"));
	}
}

/* The extension lives in tandem.database: go there. */
static void
enter_database(Node *node)
{
	PGconn	   *conn;

	if (node->conn == NULL || node->tandem_database == NULL ||
		strcmp(PQdb(node->conn), node->tandem_database) == 0)
		return;
	conn = open_connection(node, node->tandem_database, &node->database_error);
	if (conn == NULL)
		return;
	PQfinish(node->conn);
	node->conn = conn;
	free(node->database);
	node->database = pg_strdup(node->tandem_database);
}

static PGresult *
tandem_query(Node *node, const char *sql)
{
	const char *error;
	const char *sqlstate;
	PGresult   *res = node_query(node, sql, &error, &sqlstate);

	if (res == NULL && node->tandem_error == NULL)
	{
		node->tandem_error = error;
		node->tandem_denied = strcmp(sqlstate, "42501") == 0;
	}
	return res;
}

static void
read_extension(Node *node)
{
	PGresult   *res;

	res = node_query(node,
					 "SELECT (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_tandem') AS extension,"
					 " (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'pg_tandem') AS available",
					 NULL, NULL);
	node->extension = field(res, 0, "extension");
	node->available = field(res, 0, "available");

	if (node->extension == NULL)
	{
		node->tandem_error = screen_printf("the extension is not installed in database \"%s\"",
										   node->conn ? text_clean(PQdb(node->conn)) : "");
		return;
	}
	if (!node->preloaded)
	{
		node->tandem_error = "the server has not loaded pg_tandem";
		return;
	}
	node->library = field(node_query(node, "SELECT tandem.library_version() AS v", NULL, NULL), 0, "v");

	node->sync = tandem_query(node,
							  "SELECT s.*,"
							  " extract(epoch FROM pg_catalog.clock_timestamp() - s.last_cycle) AS cycle_age,"
							  " extract(epoch FROM pg_catalog.clock_timestamp() - s.last_success) AS success_age"
							  " FROM tandem.sync_status s");
	node->failover_slots = tandem_query(node,
										"SELECT s.*,"
										" extract(epoch FROM pg_catalog.clock_timestamp() - s.last_sync) AS sync_age"
										" FROM tandem.slots s ORDER BY s.slot_name");
	node->standbys = tandem_query(node,
								  "SELECT s.*,"
								  " extract(epoch FROM pg_catalog.clock_timestamp() - s.hold_reported) AS report_age"
								  " FROM tandem.standbys s ORDER BY s.slot_name");
	node->failback = tandem_query(node,
								  "SELECT f.*,"
								  " extract(epoch FROM pg_catalog.clock_timestamp() - f.since) AS age"
								  " FROM tandem.failback f");
	node->ready = tandem_query(node, "SELECT r.ready, r.reason, r.hint FROM tandem.failover_ready() r");
}

static void
read_server(Node *node)
{
	node->settings = node_query(node,
								"SELECT name, setting, unit, vartype, source, sourcefile, pending_restart"
								" FROM pg_catalog.pg_settings",
								NULL, NULL);
	node->slots = node_query(node,
							 "SELECT slot_name, plugin, slot_type, database, temporary, active, active_pid,"
							 " catalog_xmin, pg_catalog.age(catalog_xmin) AS catalog_xmin_age,"
							 " restart_lsn, confirmed_flush_lsn, wal_status, safe_wal_size"
							 " FROM pg_catalog.pg_replication_slots ORDER BY slot_name",
							 NULL, NULL);
	node->walsenders = node_query(node,
								  "SELECT pid, usename, application_name, client_addr, state, flush_lsn, replay_lsn"
								  " FROM pg_catalog.pg_stat_replication",
								  NULL, NULL);
	node->walreceiver = node_query(node,
								   "SELECT status, slot_name, sender_host, sender_port, conninfo"
								   " FROM pg_catalog.pg_stat_wal_receiver",
								   NULL, NULL);
}

/*
 * tandem_failback always; tandem_rejoin until a node that was rejoined has
 * streamed through it, and tandem.standbys lists it.
 */
bool
node_slot_only_keeps_wal(const Node *node, int slot_row)
{
	const char *name = field(node->slots, slot_row, "slot_name");

	if (name == NULL || strcmp(field(node->slots, slot_row, "slot_type"), "physical") != 0)
		return false;
	return strcmp(name, FAILBACK_SLOT) == 0 ||
		(strcmp(name, REJOIN_SLOT) == 0 && !field_is_true(node->slots, slot_row, "active") &&
		 !field_is_true(node->standbys, find_row(node->standbys, "slot_name", REJOIN_SLOT), "slot_exists"));
}

const char *
node_primary_slot_name(const Node *node)
{
	const char *name = node_setting(node, "primary_slot_name");

	return name && *name ? name : NULL;
}

static const char *
conninfo_value(const char *conninfo, const char *keyword)
{
	PQconninfoOption *options;
	const char *value = NULL;

	if (conninfo == NULL || *conninfo == '\0')
		return NULL;
	options = PQconninfoParse(conninfo, NULL);
	for (PQconninfoOption *o = options; o && o->keyword; o++)
		if (strcmp(o->keyword, keyword) == 0 && o->val && *o->val)
			value = screen_strdup(o->val);
	PQconninfoFree(options);
	return value;
}

const char *
node_upstream(const Node *node, const char *keyword)
{
	const char *conninfo = node_setting(node, "tandem.primary_conninfo");
	const char *value;

	if (conninfo == NULL || *conninfo == '\0')
		conninfo = node_setting(node, "primary_conninfo");
	value = conninfo_value(conninfo, keyword);
	if (value == NULL)
		value = conninfo_value(field(node->walreceiver, 0, "conninfo"), keyword);
	return value;
}

static void
node_read(Node *node)
{
	if (node->conn && PQstatus(node->conn) != CONNECTION_OK)
		disconnect(node);
	if (node->conn == NULL)
		node->conn = open_connection(node, node->database, &node->error);
	else
		node->label = node_label(node, node->conn);
	if (node->conn == NULL)
		return;

	read_identity(node);
	enter_database(node);
	if (node->conn)
		read_server(node);
	if (node->conn)
		read_extension(node);
}

/* ---- topology ------------------------------------------------------------ */

static Node *
add_node(Topology *topology)
{
	Node	   *node;

	if (topology->nnodes >= MOST_NODES)
	{
		pg_log_error("too many nodes");
		pg_log_error_hint("At most %d can be given.", MOST_NODES);
		exit(EXIT_USAGE);
	}
	node = pg_malloc0(sizeof(Node));
	topology->nodes[topology->nnodes++] = node;
	return node;
}

Topology *
topology_create(const Options *options)
{
	Topology   *topology = pg_malloc0(sizeof(Topology));
	Node	   *node;

	connect_options = options;
	topology->options = options;
	node = add_node(topology);
	node->is_first = true;
	node->named = true;
	node->conninfo = options->dbname;

	for (SimpleStringListCell *cell = options->nodes.head; cell; cell = cell->next)
	{
		char	   *message = NULL;
		PQconninfoOption *parsed = PQconninfoParse(cell->val, &message);

		if (parsed == NULL)
		{
			pg_log_error("--node is not a connection string: %s",
						 message ? text_message(message) : "out of memory");
			pg_log_error_hint("Write for example --node=\"host=db2 port=5432\".");
			exit(EXIT_USAGE);
		}
		PQconninfoFree(parsed);
		node = add_node(topology);
		node->named = true;
		node->conninfo = cell->val;
	}
	return topology;
}

static void
remove_node(Topology *topology, int at)
{
	Node	   *node = topology->nodes[at];

	if (node->conn)
		PQfinish(node->conn);
	node_close_databases(node);
	free(node->host);
	free(node->port);
	free(node->database);
	free(node);
	memmove(&topology->nodes[at], &topology->nodes[at + 1],
			sizeof(Node *) * (--topology->nnodes - at));
}

/* Is this the same server as an earlier one, by another name? */
static bool
is_duplicate(Topology *topology, int at)
{
	static const char *const sql =
		"SELECT pg_catalog.pg_postmaster_start_time(), pg_catalog.inet_server_port(),"
		" pg_catalog.current_setting('port')";
	Node	   *node = topology->nodes[at];
	PGresult   *mine = NULL;

	for (int i = 0; i < at; i++)
	{
		Node	   *other = topology->nodes[i];
		PGresult   *theirs;

		if (node->conn == NULL || other->conn == NULL ||
			node->system_identifier == NULL || other->system_identifier == NULL ||
			strcmp(node->system_identifier, other->system_identifier) != 0)
			continue;
		if (mine == NULL)
			mine = node_query(node, sql, NULL, NULL);
		theirs = node_query(other, sql, NULL, NULL);
		if (mine && theirs &&
			strcmp(PQgetvalue(mine, 0, 0), PQgetvalue(theirs, 0, 0)) == 0 &&
			strcmp(PQgetvalue(mine, 0, 2), PQgetvalue(theirs, 0, 2)) == 0)
			return true;
	}
	return false;
}

static bool
is_local_host(const char *host)
{
	return host[0] == '/' || host[0] == '@' || strcmp(host, "localhost") == 0 ||
		strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* A standby's upstream becomes a node, unless it already is one. */
static void
discover_upstream(Topology *topology, Node *standby)
{
	const char *host = field(standby->walreceiver, 0, "sender_host");
	const char *port = field(standby->walreceiver, 0, "sender_port");
	const char *our_host = PQhost(standby->conn);
	Node	   *node;

	if (host == NULL)
	{
		host = node_upstream(standby, "host");
		if (host == NULL)
			host = node_upstream(standby, "hostaddr");
		port = node_upstream(standby, "port");
	}
	if (host == NULL)
		return;
	if (port == NULL)
		port = "5432";

	/*
	 * "localhost" is the standby's machine, not ours: take the name under
	 * which we know that.
	 */
	if (is_local_host(host) && our_host && !is_local_host(our_host))
		host = our_host;

	for (int i = 0; i < topology->nnodes; i++)
	{
		Node	   *other = topology->nodes[i];
		const char *other_host = other->conn ? PQhost(other->conn) : other->host;
		const char *other_port = other->conn ? PQport(other->conn) : other->port;

		if (other_host && other_port && strcmp(other_port, port) == 0 &&
			(strcmp(other_host, host) == 0 ||
			 (is_local_host(other_host) && is_local_host(host))))
			return;
	}

	node = add_node(topology);
	node->conninfo = standby->conninfo;
	node->host = pg_strdup(host);
	node->port = pg_strdup(port);
}

void
topology_read(Topology *topology)
{
	/* discovered nodes come at the end and are asked in their turn */
	for (int i = 0; i < topology->nnodes; i++)
	{
		Node	   *node = topology->nodes[i];

		node_read(node);
		if (is_duplicate(topology, i))
		{
			remove_node(topology, i--);
			continue;
		}
		if (topology->options->discover && node->conn && node->in_recovery)
			discover_upstream(topology, node);
	}

	topology->primary = NULL;
	topology->nprimaries = 0;
	topology->nunreachable = 0;
	for (int i = 0; i < topology->nnodes; i++)
	{
		Node	   *node = topology->nodes[i];

		if (node->conn == NULL)
			topology->nunreachable++;
		else if (!node->in_recovery)
		{
			topology->nprimaries++;
			topology->primary = node;
		}
	}
	if (topology->nprimaries != 1)
		topology->primary = NULL;
}

void
topology_forget(Topology *topology)
{
	while (nresults > 0)
		PQclear(results[--nresults]);
	for (int i = 0; i < topology->nnodes; i++)
	{
		Node	   *node = topology->nodes[i];
		size_t		start = offsetof(Node, label);

		memset((char *) node + start, 0, sizeof(Node) - start);
	}
	screen_forget();
}

void
topology_close(Topology *topology)
{
	topology_forget(topology);
	while (topology->nnodes > 0)
		remove_node(topology, topology->nnodes - 1);
	free(topology);
}
