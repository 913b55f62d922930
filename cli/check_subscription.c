/*-------------------------------------------------------------------------
 *
 * check_subscription.c
 *	  Checks: subscriptions, and whether both sides fit together.
 *
 * What runs (AT_RUNTIME) is told by the views of pg_tandem.  The rest compares
 * with the publisher, for "tandem doctor" only: it connects to where the
 * subscription's connection string leads, with the user's own name and password,
 * never with those in it.  All differences of a kind are one finding, with the
 * DDL for the first few tables.
 *
 * cli/check_subscription.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "common/column_fit.h"
#include "subscription.h"

#define MOST_NAMED 5			/* tables or columns that a finding names */

/* ---- does it run? ------------------------------------------------------------ */

static const char *
quoted_name(const Subscription *s)
{
	return screen_printf("Subscription \"%s\" of database \"%s\"", s->name, s->database);
}

static const char *
adopt_sql(const Subscription *s, const char *options)
{
	return screen_printf("SELECT tandem.adopt(%s%s);", quote_literal(s->name),
						 options ? screen_printf(", %s", quote_literal(options)) : "");
}

static void
check_label(Diagnosis *d, Node *node, const Subscription *s)
{
	Finding	   *f = finding_add(d, PROBLEM, node, "subscription_label",
							 screen_printf("%s is not adopted: %s.", quoted_name(s), subscription_field(s, "reason")),
							 "Nobody applies its changes, as it is disabled; if its slot exists, the publisher keeps WAL for it.");

	f->hint = screen_printf("After restoring a dump: if this server shall take over from that slot, adopt it; if not, run SELECT tandem.release(%s) here, which only removes the label.",
							quote_literal(s->name));
	finding_fix_sql(f, node, s->database, adopt_sql(s, NULL));
}

static void
check_failed_tables(Diagnosis *d, Node *node, const Subscription *s)
{
	int64		failed = subscription_sum(s, "failed", "tables");

	if (failed > 0)
		finding_add(d, WARNING, node, "table_failed",
					screen_printf(INT64_FORMAT " of the tables of subscription \"%s\" could not be copied.", failed, s->name),
					"They are tried again; until then they have none of the publisher's rows.")
			->hint = screen_printf("\"tandem sync %s\" shows their errors.", s->name);
}

/* A change that is skipped means that the two sides differ. */
static void
check_missing_rows(Diagnosis *d, Node *node, const Subscription *s)
{
	const char *updates = subscription_field(s, "update_missing");
	const char *deletes = subscription_field(s, "delete_missing");
	int64		n = (updates ? strtoll(updates, NULL, 10) : 0) + (deletes ? strtoll(deletes, NULL, 10) : 0);

	if (n > 0)
		finding_add(d, WARNING, node, "rows_missing",
					screen_printf("%s: changes skipped since their rows are not here: " INT64_FORMAT ".", quoted_name(s), n),
					"Its tables differ from the publisher's.")
			->hint = "The server log names the first table. SELECT tandem.resync(...) copies a table again.";
}

static void
check_running(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];
		const char *state = subscription_field(s, "state");
		const char *error = subscription_field(s, "last_error");
		const char *reason = subscription_field(s, "reason");

		if (!s->labelled)
			continue;
		if (s->enabled)
			finding_fix_sql(finding_add(d, PROBLEM, node, "subscription_enabled",
										screen_printf("%s is adopted, but also enabled for the server's own worker.", quoted_name(s)),
										"Both want its slot and origin; one of them fails again and again."),
							node, s->database,
							screen_printf("ALTER SUBSCRIPTION %s DISABLE;", quote_identifier(s->name)));
		if (state == NULL)
		{
			Finding	   *f = finding_add(d, UNCHECKED, node, "subscription_views",
									 screen_printf("%s is adopted, but pg_tandem can't be asked about it: %s.", quoted_name(s),
												   s->error ? s->error : "it is gone"),
									 "Whether it runs was not checked.");

			if (s->error && strstr(s->error, "not in database"))
				finding_fix_sql(f, node, s->database, "CREATE EXTENSION IF NOT EXISTS pg_tandem;");
			continue;
		}
		if (strcmp(state, "not adopted") == 0)
			check_label(d, node, s);
		else if (strcmp(state, "paused") == 0)
			finding_fix_sql(finding_add(d, NOTE, node, "subscription_paused",
										screen_printf("%s is paused.", quoted_name(s)),
										"The publisher keeps WAL for it."),
							node, s->database, adopt_sql(s, "enabled = on"));
		else if (strcmp(state, "retrying") == 0 ||
				 /* also between two tries, so that it doesn't come and go */
				 (error && (strcmp(state, "stopped") == 0 || strcmp(state, "starting") == 0)))
			finding_add(d, PROBLEM, node, "subscription_error",
						screen_printf("%s is %s: %s", quoted_name(s), state, error ? error : reason ? reason :
																									  "no reason was given"),
						"No change is applied, and the publisher keeps WAL for it.")
				->hint =
				subscription_field(s, "hint") ? subscription_field(s, "hint") :
				subscription_field(s, "retry_in") ?
												screen_printf("Mend the cause; the next try is in %s.", text_duration(atof(subscription_field(s, "retry_in")))) :
												"Mend the cause; it is tried again by itself.";
		else if (strcmp(state, "stopped") == 0)
			finding_add(d, PROBLEM, node, "subscription_stopped",
						screen_printf("%s does not run: %s.", quoted_name(s), reason ? reason : "no reason was given"),
						"No change is applied, and the publisher keeps WAL for it.")
				->hint = subscription_field(s, "hint");
		check_failed_tables(d, node, s);
		check_missing_rows(d, node, s);
	}
}

/* ---- is there room on this side? ----------------------------------------------- */

int
subscription_processes(const Node *node)
{
	const Subscriptions *all = node->subscriptions;
	int			n = 0;

	for (int i = 0; all && i < all->n; i++)
	{
		const char *workers = subscription_field(&all->list[i], "workers");

		if (!all->list[i].labelled || !field_is_true(all->list[i].view, 0, "enabled"))
			continue;
		/* the apply worker, the leader of a wave, its copy workers */
		n += 2 + (workers && atoi(workers) > 0 ? atoi(workers) : (int) node_setting_int(node, "tandem.sync_workers", 2));
	}
	return n;
}

/* Before PostgreSQL 18 origins are as many as slots may be. */
static void
check_origins(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);
	const char *setting = node->version_num >= 180000 ? "max_active_replication_origins" : "max_replication_slots";
	int64		now = node_setting_int(node, setting, -1);
	int			needed = all->n + subscription_processes(node);

	if (all->nlabelled == 0 || now < 0 || now >= needed)
		return;
	finding_setting(d, WARNING, node, "origins", setting, screen_printf("%d", needed), "restart",
					screen_printf("%s is " INT64_FORMAT ", which also bounds replication origins; %d subscriptions with their copy workers use up to %d.",
								  setting, now, all->n, needed),
					"Copy workers wait for each other, or a subscription can't start.");
}

/* ---- the publisher ---------------------------------------------------------------- */

/* A list of names that were found wrong in one way. */
typedef struct Names
{
	int			n;
	PQExpBufferData text;
	int			nfixes;
	const char *fixes[MOST_FIXES];
} Names;

static void
names_init(Names *names)
{
	names->n = names->nfixes = 0;
	initPQExpBuffer(&names->text);
}

static void
names_add(Names *names, const char *name, const char *fix)
{
	if (names->n < MOST_NAMED)
		appendPQExpBuffer(&names->text, "%s%s", names->n ? ", " : "", name);
	names->n++;
	if (fix && names->nfixes < MOST_FIXES)
		names->fixes[names->nfixes++] = fix;
}

static void
names_report(Names *names, Diagnosis *d, Severity severity, Node *node, const Node *fix_node, const char *database,
			 const char *code, const char *what, const char *cost)
{
	if (names->n > 0)
	{
		Finding	   *f = finding_add(d, severity, node, code,
								 screen_printf("%s: %s%s.", what, names->text.data,
											   names->n > MOST_NAMED ? screen_printf(" and %d more", names->n - MOST_NAMED) : ""),
								 cost);

		for (int i = 0; i < names->nfixes; i++)
			finding_fix_sql(f, fix_node, database, names->fixes[i]);
		if (names->n > names->nfixes && names->nfixes > 0)
			f->hint = "For the rest likewise; run this command again after these.";
	}
	termPQExpBuffer(&names->text);
}

static const char *
connection_value(const char *conninfo, const char *keyword)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	const char *value = NULL;

	for (PQconninfoOption *o = options; o && o->keyword; o++)
		if (strcmp(o->keyword, keyword) == 0 && o->val && *o->val)
			value = screen_strdup(o->val);
	PQconninfoFree(options);
	return value;
}

/* The publisher's node, not part of the topology, and a connection to it. */
static PGconn *
connect_publisher(const char *conninfo, Node **publisher, const char **error)
{
	Node	   *node = screen_alloc(sizeof(Node));
	const char *host = connection_value(conninfo, "host");
	const char *database = connection_value(conninfo, "dbname");

	if (host == NULL)
		host = connection_value(conninfo, "hostaddr");
	node->host = (char *) (host ? host : DEFAULT_PGSOCKET_DIR);
	node->port = (char *) connection_value(conninfo, "port");
	if (node->port == NULL)
		node->port = DEF_PGPORT_STR;
	*publisher = node;
	return node_connect_database(node, database ? database : "postgres", error);
}

static void
check_publisher_server(Diagnosis *d, Node *node, Node *publisher, PGconn *conn, const Subscription *s)
{
	const char *error;
	PGresult   *res = conn_query(conn, node_timeout_ms(),
							   screen_printf("SELECT pg_catalog.current_setting('wal_level') AS wal_level,"
											 " pg_catalog.current_setting('server_encoding') AS encoding,"
											 " pg_catalog.current_setting('max_replication_slots') AS max_slots,"
											 " pg_catalog.current_setting('max_wal_senders') AS max_senders,"
											 " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots,"
											 " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender') AS senders,"
											 " (SELECT active FROM pg_catalog.pg_replication_slots WHERE slot_name = %s) AS active,"
											 " (SELECT wal_status FROM pg_catalog.pg_replication_slots WHERE slot_name = %s) AS wal_status",
											 quote_literal(s->slot ? s->slot : ""), quote_literal(s->slot ? s->slot : "")),
							   &error, NULL);
	const char *wal_level = field(res, 0, "wal_level");
	const char *active = field(res, 0, "active");
	const char *wal_status = field(res, 0, "wal_status");
	const char *encoding = field(res, 0, "encoding");
	const char *here = node_setting(node, "server_encoding");
	int			max_slots = atoi(field(res, 0, "max_slots") ? field(res, 0, "max_slots") : "0");
	int			slots = atoi(field(res, 0, "slots") ? field(res, 0, "slots") : "0");
	int			max_senders = atoi(field(res, 0, "max_senders") ? field(res, 0, "max_senders") : "0");
	int			senders = atoi(field(res, 0, "senders") ? field(res, 0, "senders") : "0");

	if (res == NULL)
		return;
	if (strcmp(wal_level, "logical") != 0)
		finding_fix(finding_add(d, PROBLEM, publisher, "publisher_wal_level",
								screen_printf("wal_level is \"%s\" on the publisher of subscription \"%s\".", wal_level, s->name),
								"It can't decode changes."),
					publisher, "sql", "ALTER SYSTEM SET wal_level = 'logical';", "restart");
	if (s->slot && active == NULL)
	{
		Finding	   *f = finding_add(d, PROBLEM, publisher, "subscription_slot",
								 screen_printf("Slot \"%s\" of subscription \"%s\" does not exist on its publisher.", s->slot, s->name),
								 "No change arrives; those since the slot went are lost, so that tables must be copied again.");

		if (slots >= max_slots)
			f->hint = screen_printf("All %d slots (max_replication_slots) are in use there; raise that first.", max_slots);
		finding_fix_sql(f, publisher, screen_strdup(PQdb(conn)),
						screen_printf("SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput');", quote_literal(s->slot)));
	}
	else if (wal_status && strcmp(wal_status, "lost") == 0)
		finding_add(d, PROBLEM, publisher, "subscription_slot",
					screen_printf("Slot \"%s\" of subscription \"%s\" is lost: its publisher has removed WAL it needs.", s->slot, s->name),
					"No change arrives.")
			->hint = "Drop the subscription and create it anew.";
	if (active && strcmp(active, "f") == 0 && senders >= max_senders)
		finding_fix(finding_add(d, PROBLEM, publisher, "publisher_senders",
								screen_printf("All %d walsenders (max_wal_senders) of the publisher are in use, and subscription \"%s\" has none.", max_senders, s->name),
								"It can't connect."),
					publisher, "sql", screen_printf("ALTER SYSTEM SET max_wal_senders = %d;", max_senders + 2), "restart");
	if (s->slot && active != NULL && slots >= max_slots)
		finding_fix(finding_add(d, WARNING, publisher, "publisher_slots",
								screen_printf("All %d slots (max_replication_slots) of the publisher of subscription \"%s\" are in use.", max_slots, s->name),
								"The server's own worker could copy no table, and another subscription can't be created."),
					publisher, "sql", screen_printf("ALTER SYSTEM SET max_replication_slots = %d;", max_slots + 2), "restart");
	if (encoding && here && strcmp(encoding, here) != 0)
		finding_add(d, WARNING, node, "encoding",
					screen_printf("Database \"%s\" has encoding %s, the publisher of subscription \"%s\" %s.",
								  s->database, here, s->name, encoding),
					"A character that this database's encoding doesn't have stops the copy or the apply.")
			->hint = "Make a database with the publisher's encoding, unless you know that its text is plain.";
}

/* One query for each side; sorted alike, so that one walk compares them. */
#define BY_NAME " ORDER BY n.nspname COLLATE \"C\", c.relname COLLATE \"C\", a.attname COLLATE \"C\""

static PGresult *
read_published(PGconn *conn, const char *publications, const char **error)
{
	return conn_query(conn, node_timeout_ms(),
					  screen_printf("SELECT n.nspname, c.relname, a.attname, a.attnum,"
									" pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, c.relreplident,"
									" pg_catalog.bool_or(p.pubupdate OR p.pubdelete) AS changes,"
									" c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid"
									" AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END) AS identity,"
									" EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)"
									" AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END) AS key"
									" FROM pg_catalog.pg_publication_tables t"
									" JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname"
									" JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname"
									" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
									" JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
									" AND NOT a.attisdropped AND a.attgenerated = ''%s"
									" WHERE p.pubname = ANY (%s::pg_catalog.text[])"
									" GROUP BY n.nspname, c.relname, c.oid, c.relreplident, a.attname, a.attnum, a.atttypid, a.atttypmod" BY_NAME,
									PQserverVersion(conn) >= 150000 ? " AND a.attname = ANY (t.attnames)" : "",
									quote_literal(publications)),
					  error, NULL);
}

static PGresult *
read_local(PGconn *conn, const char **error)
{
	return conn_query(conn, node_timeout_ms(),
					  "SELECT n.nspname, c.relname, a.attname,"
					  " pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,"
					  " a.attgenerated <> '' AS generated,"
					  " a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS demands,"
					  " c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid"
					  " AND (i.indisprimary OR i.indisreplident)) AS identity"
					  " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
					  " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
					  " WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')" BY_NAME,
					  error, NULL);
}

static int
compare_table(const PGresult *a, int i, const PGresult *b, int j)
{
	int			order = strcmp(field(a, i, "nspname"), field(b, j, "nspname"));

	return order != 0 ? order : strcmp(field(a, i, "relname"), field(b, j, "relname"));
}

static const char *
full_name(const PGresult *res, int row)
{
	const char *schema = quote_identifier(field(res, row, "nspname"));

	return screen_printf("%s.%s", schema, quote_identifier(field(res, row, "relname")));
}

/* The differences of all tables, kind by kind. */
typedef struct Differences
{
	Names		missing_tables;
	Names		missing_columns;
	Names		types;
	Names		demanding;
	Names		no_identity;
	Names		no_local_identity;
} Differences;

/* The row in [from, to) whose column follows number "after" in its table. */
static int
next_column(const PGresult *remote, int from, int to, int after)
{
	int			next = -1;

	for (int i = from; i < to; i++)
	{
		int			number = atoi(field(remote, i, "attnum"));

		if (number > after && (next < 0 || number < atoi(field(remote, next, "attnum"))))
			next = i;
	}
	return next;
}

/* CREATE TABLE for a table whose columns are the rows [from, to). */
static const char *
create_table(const PGresult *remote, int from, int to)
{
	PQExpBufferData sql;
	PQExpBufferData key;
	const char *result;

	initPQExpBuffer(&sql);
	initPQExpBuffer(&key);
	appendPQExpBuffer(&sql, "CREATE TABLE %s (", full_name(remote, from));
	for (int n = from, i = next_column(remote, from, to, 0); n < to; n++)
	{
		appendPQExpBuffer(&sql, "%s%s %s", n > from ? ", " : "", quote_identifier(field(remote, i, "attname")),
						  field(remote, i, "type"));
		if (field_is_true(remote, i, "key"))
			appendPQExpBuffer(&key, "%s%s", key.len ? ", " : "", quote_identifier(field(remote, i, "attname")));
		i = next_column(remote, from, to, atoi(field(remote, i, "attnum")));
	}
	if (key.len)
		appendPQExpBuffer(&sql, ", PRIMARY KEY (%s)", key.data);
	appendPQExpBufferStr(&sql, ");");
	result = screen_strdup(sql.data);
	termPQExpBuffer(&sql);
	termPQExpBuffer(&key);
	return result;
}

static const char *
key_columns(const PGresult *remote, int from, int to)
{
	const char *list = "";

	for (int i = from; i < to; i++)
		if (field_is_true(remote, i, "key"))
			list = screen_printf("%s%s%s", list, *list ? ", " : "", quote_identifier(field(remote, i, "attname")));
	return list;
}

/* The statement that mends a column; names quoted. */
static const char *
column_fix(TandemColumnFit fit, const char *table, const char *column, const char *type)
{
	int			size = tandem_column_fix(NULL, 0, fit, table, column, type) + 1;
	char	   *sql = screen_alloc(size);

	(void) tandem_column_fix(sql, size, fit, table, column, type);
	return sql;
}

/* One table that both sides have: rows [r, r_end) there, [l, l_end) here. */
static void
compare_columns(const PGresult *remote, int r, int r_end, const PGresult *local, int l, int l_end, bool binary,
				Differences *diff)
{
	const char *table = full_name(remote, r);

	if (field_is_true(remote, r, "changes") && field_is_true(remote, r, "identity") &&
		strcmp(field(remote, r, "relreplident"), "f") != 0 && !field_is_true(local, l, "identity"))
		names_add(&diff->no_local_identity, table,
				  screen_printf("ALTER TABLE %s ADD PRIMARY KEY (%s);", table, key_columns(remote, r, r_end)));
	while (r < r_end || l < l_end)
	{
		int			order = r == r_end ? 1 : l == l_end ? -1 :
												  strcmp(field(remote, r, "attname"), field(local, l, "attname"));
		const char *column = quote_identifier(order <= 0 ? field(remote, r, "attname") : field(local, l, "attname"));

		TandemColumnFit fit = TANDEM_COLUMN_FITS;

		if (order <= 0)
			fit = tandem_column_fit(field(remote, r, "type"), order == 0 ? field(local, l, "type") : NULL,
									order == 0 && field_is_true(local, l, "generated"), binary);
		else if (field_is_true(local, l, "demands") && !field_is_true(local, l, "generated"))
			fit = TANDEM_COLUMN_DEMANDED;
		if (fit != TANDEM_COLUMN_FITS)
			names_add(fit == TANDEM_COLUMN_TYPE ? &diff->types :
						  fit == TANDEM_COLUMN_DEMANDED ? &diff->demanding :
														  &diff->missing_columns,
					  fit == TANDEM_COLUMN_TYPE ?
						  screen_printf("%s of %s (%s here, %s there)", column, table, field(local, l, "type"), field(remote, r, "type")) :
						  screen_printf("%s of %s", column, table),
					  column_fix(fit, table, column, order <= 0 ? field(remote, r, "type") : NULL));
		r += order <= 0;
		l += order >= 0;
	}
}

static void
compare_tables(const PGresult *remote, const PGresult *local, bool binary, Differences *diff)
{
	int			l = 0;

	for (int r = 0, r_end; r < nrows(remote); r = r_end)
	{
		int			order = -1;
		int			l_end;

		for (r_end = r + 1; r_end < nrows(remote) && compare_table(remote, r, remote, r_end) == 0; r_end++)
			;
		while (l < nrows(local) && (order = compare_table(remote, r, local, l)) > 0)
			l++;
		if (l >= nrows(local))
			order = -1;
		if (field_is_true(remote, r, "changes") && !field_is_true(remote, r, "identity"))
			names_add(&diff->no_identity, full_name(remote, r),
					  screen_printf("ALTER TABLE %s REPLICA IDENTITY FULL;", full_name(remote, r)));
		if (order != 0)
		{
			names_add(&diff->missing_tables, full_name(remote, r), create_table(remote, r, r_end));
			continue;
		}
		for (l_end = l + 1; l_end < nrows(local) && compare_table(local, l, local, l_end) == 0; l_end++)
			;
		compare_columns(remote, r, r_end, local, l, l_end, binary, diff);
		l = l_end;
	}
}

static void
check_structure(Diagnosis *d, Node *node, Node *publisher, PGconn *conn, const Subscription *s,
				const char *publications, bool binary)
{
	const char *error;
	PGconn	   *here = node_database(node, s->database, &error);
	PGresult   *local = here ? read_local(here, &error) : NULL;
	PGresult   *remote = local ? read_published(conn, publications, &error) : NULL;
	Differences diff;

	if (remote == NULL)
	{
		finding_add(d, UNCHECKED, node, "subscription_structure",
					screen_printf("The tables of subscription \"%s\" could not be compared: %s", s->name, error),
					"Differences would stop the copy or the apply.");
		return;
	}
	names_init(&diff.missing_tables);
	names_init(&diff.missing_columns);
	names_init(&diff.types);
	names_init(&diff.demanding);
	names_init(&diff.no_identity);
	names_init(&diff.no_local_identity);
	compare_tables(remote, local, binary, &diff);

	names_report(&diff.missing_tables, d, PROBLEM, node, node, s->database, "missing_table",
				 screen_printf("Tables that subscription \"%s\" gets are not in database \"%s\"", s->name, s->database),
				 "They can't be copied, and a change to one stops the apply.");
	names_report(&diff.missing_columns, d, PROBLEM, node, node, s->database, "missing_column",
				 screen_printf("Columns that subscription \"%s\" gets are not there, or generated, in database \"%s\"", s->name, s->database),
				 "Their tables can't be copied, and a change to one stops the apply.");
	names_report(&diff.types, d, binary ? PROBLEM : WARNING, node, node, s->database, "column_type",
				 screen_printf("Columns of subscription \"%s\" have another type than on the publisher", s->name),
				 binary ? "The subscription has binary = true: such a value stops the copy or the apply." : "Values arrive as text; one that the type here does not take stops the copy or the apply.");
	names_report(&diff.demanding, d, PROBLEM, node, node, s->database, "extra_column",
				 screen_printf("Columns of database \"%s\" that subscription \"%s\" does not get are NOT NULL without a default", s->database, s->name),
				 "Every row that is inserted fails.");
	names_report(&diff.no_identity, d, PROBLEM, publisher, publisher, screen_strdup(PQdb(conn)), "replica_identity",
				 screen_printf("Tables published to subscription \"%s\" have no replica identity", s->name),
				 "UPDATE and DELETE of them fail on the publisher.");
	names_report(&diff.no_local_identity, d, PROBLEM, node, node, s->database, "no_key",
				 screen_printf("Tables of subscription \"%s\" have no primary key or replica identity in database \"%s\"", s->name, s->database),
				 "The first UPDATE or DELETE that arrives for one stops the apply.");
}

static void
check_publisher(Diagnosis *d, Node *node)
{
	const Subscriptions *all = node_subscriptions(node);

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];
		const char *error;
		PGresult   *res = node_query(node,
								   screen_printf("SELECT subconninfo, subbinary, subpublications"
												 " FROM pg_catalog.pg_subscription WHERE oid = %s",
												 s->subid),
								   &error, NULL);
		const char *conninfo = field(res, 0, "subconninfo");
		Node	   *publisher;
		PGconn	   *conn;

		if (conninfo == NULL)
		{
			finding_add(d, UNCHECKED, node, "publisher",
						screen_printf("The publisher of subscription \"%s\" is not known: %s", s->name, error ? error : "it was dropped"),
						"Whether both sides fit together was not checked.")
				->hint = "Only a superuser sees the connection string of a subscription.";
			continue;
		}
		conn = connect_publisher(conninfo, &publisher, &error);
		if (conn == NULL)
		{
			finding_add(d, UNCHECKED, node, "publisher",
						screen_printf("The publisher of subscription \"%s\" could not be asked: %s", s->name, error),
						"Whether both sides fit together was not checked.")
				->hint = "It is asked with your own user and password, not with those of the subscription.";
			continue;
		}
		check_publisher_server(d, node, publisher, conn, s);
		check_mesh(d, node, publisher, conn, s);
		check_structure(d, node, publisher, conn, s, field(res, 0, "subpublications"),
						field_is_true(res, 0, "subbinary"));
		PQfinish(conn);
	}
}

const Check subscription_checks[] = {
	{AT_PRIMARY | AT_RUNTIME, check_running},
	{AT_PRIMARY, check_origins},
	{AT_PRIMARY, check_publisher},
	{0, NULL}};
