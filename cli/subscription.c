/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  The subscriptions of a node, those of all databases.
 *
 * pg_subscription and the labels on it are shared by all databases and readable
 * by everybody, so one query finds every subscription and whether it was
 * adopted.  The views of pg_tandem are not: each database that has an adopted
 * one is entered, in sessions that stay open while a command watches.
 *
 * cli/subscription.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "fe_utils/cancel.h"
#include "subscription.h"
#include "text.h"

typedef struct NodeDatabase
{
	struct NodeDatabase *next;
	char	   *name;
	PGconn	   *conn;
} NodeDatabase;

PGconn *
node_database(Node *node, const char *database, const char **error)
{
	NodeDatabase *entry = node->databases;

	*error = NULL;
	while (entry && strcmp(entry->name, database) != 0)
		entry = entry->next;
	if (entry && PQstatus(entry->conn) == CONNECTION_OK &&
		PQtransactionStatus(entry->conn) == PQTRANS_IDLE)
		return entry->conn;
	if (entry)
	{
		PQfinish(entry->conn);
		entry->conn = NULL;
	}
	else
	{
		entry = pg_malloc0(sizeof(NodeDatabase));
		entry->name = pg_strdup(database);
		entry->next = node->databases;
		node->databases = entry;
	}
	entry->conn = node_connect_database(node, database, error);
	return entry->conn;
}

void
node_close_databases(Node *node)
{
	while (node->databases)
	{
		NodeDatabase *entry = node->databases;

		node->databases = entry->next;
		if (entry->conn)
			PQfinish(entry->conn);
		free(entry->name);
		free(entry);
	}
}

/* What pg_tandem says of a subscription, in its database. */
static void
read_views(Node *node, Subscription *s, int timeout_ms)
{
	PGconn	   *conn = node_database(node, s->database, &s->error);
	const char *sqlstate;
	const char *error;

	if (conn == NULL)
		return;
	s->view = conn_query(conn, timeout_ms,
						 screen_printf("SELECT s.*,"
									   " extract(epoch FROM s.lag) AS lag_seconds,"
									   " extract(epoch FROM s.next_retry - pg_catalog.clock_timestamp()) AS retry_in,"
									   " extract(epoch FROM pg_catalog.clock_timestamp() - s.last_error_at) AS error_age"
									   " FROM tandem.subscriptions s WHERE s.subid = %s",
									   s->subid),
						 &s->error, &sqlstate);
	if (s->view == NULL && strcmp(sqlstate, "42P01") == 0)
		s->error = screen_printf("the extension, or this version of it, is not in database \"%s\"",
								 text_clean(s->database));
	if (s->view == NULL)
		return;
	s->tables = conn_query(conn, timeout_ms,
						   screen_printf("SELECT t.state, pg_catalog.count(*) AS tables,"
										 " pg_catalog.sum(t.rows_done) AS rows_done,"
										 " pg_catalog.sum(t.rows_estimated) AS rows_estimated,"
										 " pg_catalog.sum(t.bytes_done) AS bytes_done,"
										 " pg_catalog.sum(greatest(t.bytes_estimated, t.bytes_done)) AS bytes_estimated,"
										 " extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min(t.started)) AS age"
										 " FROM tandem.tables t WHERE t.subscription = %s GROUP BY 1",
										 quote_literal(s->name)),
						   &error, NULL);
	if (s->tables == NULL)
		s->error = error;
	s->conflicts = conn_query(conn, timeout_ms,
							  "SELECT c.*, extract(epoch FROM pg_catalog.clock_timestamp() - c.last_error_at) AS error_age"
							  " FROM tandem.conflict_storage c",
							  &error, &sqlstate);
	if (s->conflicts == NULL && strcmp(sqlstate, "42P01") != 0)
		s->error = error;
	s->tombstones = conn_query(conn, timeout_ms,
							   screen_printf("SELECT t.*,"
											 " extract(epoch FROM pg_catalog.clock_timestamp() - t.waits_since) AS waits_seconds"
											 " FROM tandem.tombstones t WHERE t.subid = %s",
											 s->subid),
							   &error, &sqlstate);
	if (s->tombstones == NULL && strcmp(sqlstate, "42P01") != 0)
		s->error = error;
}

const Subscriptions *
node_subscriptions(Node *node)
{
	Subscriptions *all;
	PGresult   *res;

	if (node->subscriptions)
		return node->subscriptions;
	all = screen_alloc(sizeof(Subscriptions));
	node->subscriptions = all;
	if (node->conn == NULL || node->in_recovery)
		return all;
	res = node_query(node,
					 "SELECT s.oid AS subid, s.subname, d.datname, s.subslotname, s.subenabled,"
					 " EXISTS (SELECT FROM pg_catalog.pg_shseclabel l"
					 " WHERE l.classoid = 'pg_catalog.pg_subscription'::pg_catalog.regclass"
					 " AND l.objoid = s.oid AND l.provider = 'tandem') AS labelled,"
					 " EXISTS (SELECT FROM pg_catalog.pg_shseclabel l"
					 " WHERE l.classoid = 'pg_catalog.pg_subscription'::pg_catalog.regclass"
					 " AND l.objoid = s.oid AND l.provider = 'tandem'"
					 " AND l.label ~ '(=last_update_wins|origin_differs=)') AS needs_timestamps"
					 " FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_database d ON d.oid = s.subdbid"
					 " ORDER BY d.datname, s.subname",
					 NULL, NULL);
	all->n = nrows(res);
	all->list = screen_alloc(Max(all->n, 1) * sizeof(Subscription));
	for (int i = 0; i < all->n; i++)
	{
		Subscription *s = &all->list[i];

		s->name = field(res, i, "subname");
		s->subid = field(res, i, "subid");
		s->database = field(res, i, "datname");
		s->slot = field(res, i, "subslotname");
		s->enabled = field_is_true(res, i, "subenabled");
		s->labelled = field_is_true(res, i, "labelled");
		s->needs_timestamps = field_is_true(res, i, "needs_timestamps");
		if (s->labelled)
		{
			all->nlabelled++;
			read_views(node, s, node_timeout_ms());
		}
	}
	return all;
}

const char *
subscription_field(const Subscription *s, const char *column)
{
	return field(s->view, 0, column);
}

int64
subscription_sum(const Subscription *s, const char *state, const char *column)
{
	int64		sum = 0;

	for (int i = 0; i < nrows(s->tables); i++)
	{
		const char *value = field(s->tables, i, column);

		if (value && (state == NULL || strcmp(field(s->tables, i, "state"), state) == 0))
			sum += strtoll(value, NULL, 10);
	}
	return sum;
}

PGresult *
node_run(Node *node, const char *database, const char *sql, bool own_path)
{
	const char *error = NULL;
	PGconn	   *conn = node_database(node, database, &error);
	PGresult   *res;

	if (conn == NULL)
	{
		pg_log_error("%s, database \"%s\": %s", node->label, text_clean(database), error);
		exit(EXIT_ATTENTION);
	}
	PQclear(PQexec(conn, "SELECT pg_catalog.set_config('default_transaction_read_only', 'off', false),"
						 " pg_catalog.set_config('statement_timeout', '0', false),"
						 " pg_catalog.set_config('lock_timeout', '0', false)"));
	if (own_path)
		PQclear(PQexec(conn, "RESET search_path"));
	setup_cancel_handler(NULL);
	SetCancelConn(conn);
	res = PQexec(conn, sql);
	ResetCancelConn();
	if (PQresultStatus(res) != PGRES_TUPLES_OK)
	{
		const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
		const char *detail = PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL);
		const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
		const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		pg_log_error("%s", text_message(message ? message : PQerrorMessage(conn)));
		if (detail)
			pg_log_error_detail("%s", text_clean(detail));
		if (hint)
			pg_log_error_hint("%s", text_clean(hint));
		else if (sqlstate && (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42883") == 0))
			pg_log_error_hint("Run CREATE EXTENSION pg_tandem in database \"%s\".", text_clean(database));
		exit(EXIT_ATTENTION);
	}
	return res;
}

Node *
only_node(const Options *options)
{
	Topology   *topology = topology_create(options);

	topology_read(topology);
	if (topology->nodes[0]->conn == NULL)
	{
		pg_log_error("%s: %s", topology->nodes[0]->label, topology->nodes[0]->error);
		pg_log_error_hint("Check that the server runs and that -h, -p and -U name it rightly.");
		exit(EXIT_UNREACHABLE);
	}
	return topology->nodes[0];
}

const char *
asked_database(const Options *options)
{
	const char *name = options->dbname;

	if (name == NULL)
	{
		name = getenv("PGDATABASE");
		return name && *name ? name : NULL;
	}
	if (strchr(name, '=') || strstr(name, "://"))
	{
		PQconninfoOption *parsed = PQconninfoParse(name, NULL);

		name = NULL;
		for (PQconninfoOption *o = parsed; o && o->keyword; o++)
			if (strcmp(o->keyword, "dbname") == 0 && o->val && *o->val)
				name = screen_strdup(o->val);
		PQconninfoFree(parsed);
	}
	return name;
}

const Subscription *
must_find_subscription(Node *node, const Options *options)
{
	const Subscriptions *all = node_subscriptions(node);
	const char *database = asked_database(options);
	const Subscription *found = NULL;
	int			nfound = 0;

	for (int pass = 0; pass < 2 && nfound == 0; pass++)
	{
		for (int i = 0; i < all->n; i++)
		{
			const Subscription *s = &all->list[i];

			if (strcmp(s->name, options->subscription) != 0 ||
				(pass == 0 && database && strcmp(s->database, database) != 0))
				continue;
			found = s;
			nfound++;
		}
		/* -d says more than PGDATABASE: it must be there */
		if (options->dbname)
			break;
	}
	if (nfound == 1)
		return found;
	if (nfound == 0)
	{
		pg_log_error("subscription \"%s\" does not exist on %s", text_clean(options->subscription), node->label);
		pg_log_error_hint(all->n == 0 ? "There is no subscription on that server; create one with CREATE SUBSCRIPTION ... WITH (enabled = false)." :
										"\"tandem status\" lists the subscriptions of a server.");
	}
	else
	{
		pg_log_error("%d databases of %s have a subscription \"%s\"", nfound, node->label,
					 text_clean(options->subscription));
		pg_log_error_hint("Name the database with -d.");
	}
	exit(EXIT_ATTENTION);
}
