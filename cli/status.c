/*-------------------------------------------------------------------------
 *
 * status.c
 *	  "tandem status": the whole topology on one screen.
 *
 * cli/status.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "access/xlogdefs.h"
#include "check.h"
#include "subscription.h"
#include "table.h"
#include "watch.h"

#define HOLD_PREFIX "tandem_hold_"

/* "streaming", "no walreceiver", ...: what the node is doing, in a word */
static const char *
node_state(const Node *node)
{
	if (node->conn == NULL)
		return "unreachable";
	if (!node->in_recovery)
		return "writable";
	if (!node->is_monitor)
		return "not visible";
	if (nrows(node->walreceiver) == 0)
		return "not streaming";
	return field(node->walreceiver, 0, "status");
}

static int
count_ready(const Node *node)
{
	int			ready = 0;

	for (int i = 0; i < nrows(node->failover_slots); i++)
	{
		const char *state = field(node->failover_slots, i, "state");

		ready += state && strcmp(state, "ready") == 0;
	}
	return ready;
}

/* Bytes that a standby has not replayed yet, or -1 if unknown. */
static int64
replay_lag(const Topology *t, const Node *node)
{
	if (node->conn == NULL || !node->in_recovery || t->primary == NULL ||
		node->lsn == 0 || t->primary->lsn == 0)
		return -1;
	return t->primary->lsn > node->lsn ? (int64) (t->primary->lsn - node->lsn) : 0;
}

/* May it be promoted?  For a primary NULL. */
static const char *
failover_word(const Node *node)
{
	if (node->conn && !node->in_recovery)
		return NULL;
	if (node->ready == NULL)
		return "unknown";
	return field_is_true(node->ready, 0, "ready") ? "ready" : "not ready";
}

/* May it come back after it was replaced? */
static const char *
rejoin_word(const Topology *t, const Node *node)
{
	if (node->conn == NULL || node->settings == NULL || !node->preloaded)
		return "unknown";
	return rejoin_obstacle(t, node) ? "not ready" : "ready";
}

static void
print_nodes(const Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"NODE", "ROLE", "STATE", ">TLI", ">POSITION", ">BEHIND", ">SLOTS", "FAILOVER", "REJOIN", ">SYNC AGE", NULL};
	Table	   *table = table_new(columns);

	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];
		const char *state = node_state(node);
		const char *failover = failover_word(node);
		const char *rejoin = rejoin_word(t, node);
		const char *age = node->in_recovery ? field(node->sync, 0, "success_age") : NULL;
		int64		lag = replay_lag(t, node);

		table_row(table, node->label,
				  node->conn == NULL ? NULL : node->in_recovery ? "standby" :
																  "primary",
				  state,
				  node->timeline ? screen_printf("%d", node->timeline) : NULL,
				  node->lsn ? screen_printf("%X/%X", LSN_FORMAT_ARGS(node->lsn)) : NULL,
				  lag >= 0 ? text_bytes(lag) : NULL,
				  node->failover_slots ?
					  screen_printf("%d/%d", count_ready(node), nrows(node->failover_slots)) :
					  NULL,
				  failover,
				  rejoin,
				  age ? text_duration(atof(age)) : NULL);
		table_colour(table, 2, strcmp(state, "writable") == 0 || strcmp(state, "streaming") == 0 ? COLOUR_GOOD : COLOUR_BAD);
		if (failover)
			table_colour(table, 7, strcmp(failover, "ready") == 0 ? COLOUR_GOOD : COLOUR_WARN);
		table_colour(table, 8, strcmp(rejoin, "ready") == 0 ? COLOUR_GOOD : COLOUR_WARN);
	}
	table_print(table, out);
}

/* What the primary sees of its standbys. */
static void
print_standbys(const Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"STANDBY", "CONNECTED", ">FLUSHED", ">BEHIND", "IN GATE", "IN GUARD", ">HOLD AGE", ">REPORTED", NULL};
	const PGresult *s = t->primary ? t->primary->standbys : NULL;
	Table	   *table = table_new(columns);

	if (t->primary == NULL || nrows(s) == 0)
		return;
	for (int row = 0; row < nrows(s); row++)
	{
		const char *flush = field(s, row, "flush_lsn");
		uint64		flushed = parse_lsn(flush);
		const char *report = field(s, row, "report_age");
		bool		exists = field_is_true(s, row, "slot_exists");
		bool		connected = field_is_true(s, row, "connected");

		table_row(table, field(s, row, "slot_name"),
				  !exists ? "no such slot" : connected ? "yes" :
														 "no",
				  flush,
				  flushed ? text_bytes(t->primary->lsn > flushed ? (int64) (t->primary->lsn - flushed) : 0) : NULL,
				  field_is_true(s, row, "in_gate") ? "yes" : "no",
				  field_is_true(s, row, "in_guard") ? "yes" : "no",
				  field(s, row, "hold_age"),
				  report ? screen_printf("%s ago", text_duration(atof(report))) : NULL);
		table_colour(table, 1, connected ? COLOUR_GOOD : COLOUR_BAD);
	}
	appendPQExpBufferChar(out, '\n');
	table_print(table, out);
}

/* The guard of each primary. */
static void
print_guard(const Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"GUARD OF", "STATE", "MODE", "STANDBYS", ">BEHIND", ">WAITS", ">DEGRADED", ">WAL KEPT", NULL};
	Table	   *table = table_new(columns);
	int			rows = 0;

	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];
		const PGresult *f = node->failback;
		const char *state = field(f, 0, "state");
		const char *lag = field(f, 0, "lag_bytes");
		const char *kept = field(f, 0, "wal_kept_bytes");

		if (node->in_recovery || state == NULL)
			continue;
		rows++;
		table_row(table, node->label, state, field(f, 0, "mode"), field(f, 0, "standbys"),
				  lag ? text_bytes(strtoll(lag, NULL, 10)) : NULL,
				  screen_printf(INT64_FORMAT,
								(int64) strtoll(field(f, 0, "data_waits"), NULL, 10) +
									(int64) strtoll(field(f, 0, "commit_waits"), NULL, 10)),
				  field(f, 0, "degradations"),
				  kept ? text_bytes(strtoll(kept, NULL, 10)) : NULL);
		if (strcmp(state, "off") != 0)
			table_colour(table, 1, strcmp(state, "armed") == 0 ? COLOUR_GOOD : COLOUR_WARN);
	}
	if (rows == 0)
		return;
	appendPQExpBufferChar(out, '\n');
	table_print(table, out);
}

/* How many there were, in each database once. */
static void
print_conflicts(Node *node, PQExpBuffer out)
{
	const Subscriptions *all = node_subscriptions(node);
	const char *last = NULL;

	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];
		const char *open = field(s->conflicts, 0, "open_last_day");

		if (open == NULL || strcmp(open, "0") == 0 || (last && strcmp(last, s->database) == 0))
			continue;
		last = s->database;
		text_wrap(out, text_clean(screen_printf("Open conflicts of the last day in database \"%s\" of %s: %s, of which failed: %s. See \"tandem conflicts\".", s->database, node->label, open, field(s->conflicts, 0, "failed_last_day"))),
				  0, text_screen_width());
	}
}

/* Subscriptions of every node, whoever runs them. */
static void
print_subscriptions(const Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"SUBSCRIPTION", "DATABASE", "NODE", "RUN BY", "STATE", ">BEHIND", ">LAG", ">TABLES", ">TRANSACTIONS", NULL};
	Table	   *table = table_new(columns);
	int			rows = 0;

	for (int i = 0; i < t->nnodes; i++)
	{
		const Subscriptions *all = node_subscriptions(t->nodes[i]);

		for (int j = 0; j < all->n; j++)
		{
			const Subscription *s = &all->list[j];
			const char *state = subscription_field(s, "state");
			const char *bytes = subscription_field(s, "lag_bytes");
			const char *lag = subscription_field(s, "lag_seconds");

			if (!s->labelled)
				state = s->enabled ? "enabled" : "disabled";
			rows++;
			table_row(table, s->name, s->database, t->nodes[i]->label,
					  s->labelled ? "pg_tandem" : "server", state ? state : "unknown",
					  bytes ? text_bytes(strtoll(bytes, NULL, 10)) : NULL,
					  lag ? text_duration(atof(lag)) : NULL,
					  s->tables ? screen_printf(INT64_FORMAT "/" INT64_FORMAT, subscription_sum(s, "ready", "tables"),
												subscription_sum(s, NULL, "tables")) :
								  NULL,
					  subscription_field(s, "transactions"));
			if (s->labelled)
				table_colour(table, 4, state && strcmp(state, "streaming") == 0 ? COLOUR_GOOD : COLOUR_WARN);
		}
	}
	if (rows == 0)
		return;
	appendPQExpBufferChar(out, '\n');
	table_print(table, out);
	for (int i = 0; i < t->nnodes; i++)
		print_conflicts(t->nodes[i], out);
}

static void
print_attention(const Diagnosis *d, PQExpBuffer out)
{
	for (int severity = PROBLEM; severity < NOTE; severity++)
	{
		for (const Finding *f = d->findings; f; f = f->next)
		{
			const char *name = severity_name(f->severity);

			if ((int) f->severity != severity)
				continue;
			appendPQExpBufferChar(out, '\n');
			text_paint(out, severity_colour(f->severity), name, strlen(name));
			appendPQExpBuffer(out, ": %s on %s\n", f->code, f->node ? f->node->label : "the topology");
			text_wrap(out, text_clean(f->what), 4, text_screen_width());
			if (f->hint && f->nfixes == 0)
				text_wrap(out, text_clean(screen_printf("Hint: %s", f->hint)), 4, text_screen_width());
		}
	}
}

static void
json_rejoin(Json *json, const Topology *t, const Node *node)
{
	const char *word = rejoin_word(t, node);

	if (strcmp(word, "unknown") == 0)
		json_null(json, "rejoin_ready");
	else
		json_bool(json, "rejoin_ready", strcmp(word, "ready") == 0);
	json_string(json, "rejoin_reason", strcmp(word, "not ready") == 0 ? rejoin_obstacle(t, node) : NULL);
}

/* The row of tandem.failback. */
static void
json_guard(Json *json, const Node *node)
{
	static const char *const texts[] = {
		"state", "mode", "standbys", "reason", "hint", "since", "confirmed_lsn",
		"last_degraded", "rearm_after", "wal_kept_by", "wal_kept_from", "wal_problem"};
	static const char *const numbers[] = {
		"lag_bytes", "waiting", "data_waits", "data_wait_ms", "commit_waits", "commit_wait_ms",
		"longest_wait_ms", "timeouts", "cancels", "degradations", "wal_kept_bytes"};
	const PGresult *f = node->failback;

	if (nrows(f) == 0)
	{
		json_null(json, "guard");
		return;
	}
	json_open_object(json, "guard");
	for (int i = 0; i < (int) lengthof(texts); i++)
		json_string(json, texts[i], field(f, 0, texts[i]));
	for (int i = 0; i < (int) lengthof(numbers); i++)
		json_number(json, numbers[i], field(f, 0, numbers[i]));
	json_close(json);
}

static void
json_subscriptions(Json *json, Node *node)
{
	static const char *const texts[] = {
		"state", "reason", "received_lsn", "applied_lsn", "flushed_lsn", "last_error", "last_error_at", "next_retry"};
	static const char *const numbers[] = {
		"lag_bytes", "lag_seconds", "inserts", "updates", "deletes", "truncates", "transactions", "update_missing", "delete_missing", "error_count"};
	const Subscriptions *all = node_subscriptions(node);

	json_open_array(json, "subscriptions");
	for (int i = 0; i < all->n; i++)
	{
		const Subscription *s = &all->list[i];

		json_open_object(json, NULL);
		json_string(json, "subscription", s->name);
		json_string(json, "database", s->database);
		json_string(json, "slot", s->slot);
		json_bool(json, "labelled", s->labelled);
		json_bool(json, "enabled", s->labelled ? field_is_true(s->view, 0, "enabled") : s->enabled);
		json_string(json, "error", s->error);
		for (int j = 0; j < (int) lengthof(texts); j++)
			json_string(json, texts[j], subscription_field(s, texts[j]));
		for (int j = 0; j < (int) lengthof(numbers); j++)
			json_number(json, numbers[j], subscription_field(s, numbers[j]));
		/* of its database */
		json_number(json, "conflicts_open", field(s->conflicts, 0, "open_last_day"));
		json_number(json, "conflicts_failed", field(s->conflicts, 0, "failed_last_day"));
		json_number(json, "conflicts_not_stored", field(s->conflicts, 0, "not_stored"));
		if (s->tables)
		{
			json_int(json, "tables", subscription_sum(s, NULL, "tables"));
			json_int(json, "tables_ready", subscription_sum(s, "ready", "tables"));
			json_int(json, "tables_failed", subscription_sum(s, "failed", "tables"));
		}
		else
		{
			json_null(json, "tables");
			json_null(json, "tables_ready");
			json_null(json, "tables_failed");
		}
		json_close(json);
	}
	json_close(json);
}

static void
status_json(const Diagnosis *d, PQExpBuffer out)
{
	const Topology *t = d->topology;
	Json		json;

	json_init(&json, out, t->options->watch == 0);
	json_open_object(&json, NULL);
	json_string(&json, "command", "status");
	json_string(&json, "version", TANDEM_VERSION);
	json_bool(&json, "healthy", diagnosis_exit_code(d) == EXIT_HEALTHY);
	json_int(&json, "exit_code", diagnosis_exit_code(d));

	json_open_array(&json, "nodes");
	for (int i = 0; i < t->nnodes; i++)
	{
		Node	   *node = t->nodes[i];
		int64		lag = replay_lag(t, node);

		json_open_object(&json, NULL);
		json_string(&json, "node", node->label);
		json_bool(&json, "named", node->named);
		json_string(&json, "role", node->conn == NULL ? NULL : node->in_recovery ? "standby" :
																				   "primary");
		json_string(&json, "state", node_state(node));
		json_string(&json, "error", node->conn == NULL ? node->error : node->tandem_error);
		json_string(&json, "server_version", node->version);
		json_string(&json, "library", node->library);
		json_string(&json, "extension", node->extension);
		if (node->timeline)
			json_int(&json, "timeline", node->timeline);
		else
			json_null(&json, "timeline");
		json_string(&json, "lsn", node->lsn ? screen_printf("%X/%X", LSN_FORMAT_ARGS(node->lsn)) : NULL);
		if (lag >= 0)
			json_int(&json, "behind_bytes", lag);
		else
			json_null(&json, "behind_bytes");
		json_string(&json, "primary_slot_name", node->conn && node->in_recovery ? node_primary_slot_name(node) : NULL);
		if (node->failover_slots)
		{
			json_int(&json, "slots", nrows(node->failover_slots));
			json_int(&json, "slots_ready", count_ready(node));
		}
		else
		{
			json_null(&json, "slots");
			json_null(&json, "slots_ready");
		}
		if (node->ready)
			json_bool(&json, "failover_ready", field_is_true(node->ready, 0, "ready"));
		else
			json_null(&json, "failover_ready");
		json_string(&json, "failover_reason", field(node->ready, 0, "reason"));
		json_rejoin(&json, t, node);
		json_number(&json, "sync_age", field(node->sync, 0, "success_age"));
		json_number(&json, "cycle_ms", field(node->sync, 0, "cycle_ms"));
		json_string(&json, "sync_error", field(node->sync, 0, "error"));
		json_guard(&json, node);
		json_subscriptions(&json, node);
		json_close(&json);
	}
	json_close(&json);

	json_open_array(&json, "standbys");
	for (int row = 0; t->primary && row < nrows(t->primary->standbys); row++)
	{
		const PGresult *s = t->primary->standbys;

		json_open_object(&json, NULL);
		json_string(&json, "slot", field(s, row, "slot_name"));
		json_bool(&json, "slot_exists", field_is_true(s, row, "slot_exists"));
		json_bool(&json, "connected", field_is_true(s, row, "connected"));
		json_string(&json, "flush_lsn", field(s, row, "flush_lsn"));
		json_bool(&json, "in_gate", field_is_true(s, row, "in_gate"));
		json_bool(&json, "in_guard", field_is_true(s, row, "in_guard"));
		json_number(&json, "hold_xmin", field(s, row, "hold_xmin"));
		json_number(&json, "hold_age", field(s, row, "hold_age"));
		json_number(&json, "report_age", field(s, row, "report_age"));
		json_string(&json, "warning", field(s, row, "warning"));
		json_string(&json, "hint", field(s, row, "hint"));
		json_close(&json);
	}
	json_close(&json);
	findings_json(d, &json, "findings");
	json_close(&json);
}

static int
status_screen(Topology *topology, PQExpBuffer out)
{
	Diagnosis  *d = diagnose(topology, true);
	int			exit_code = diagnosis_exit_code(d);
	const char *word = exit_code == EXIT_HEALTHY ? "healthy" : "needs attention";

	if (topology->options->json)
	{
		status_json(d, out);
		return exit_code;
	}
	print_nodes(topology, out);
	print_standbys(topology, out);
	print_guard(topology, out);
	print_subscriptions(topology, out);
	print_attention(d, out);
	appendPQExpBufferChar(out, '\n');
	text_paint(out, exit_code == EXIT_HEALTHY ? COLOUR_GOOD : COLOUR_BAD, word, strlen(word));
	appendPQExpBuffer(out, ": %d nodes, %d unreachable, %d problems, %d warnings, %d not checked\n",
					  topology->nnodes, topology->nunreachable,
					  d->count[PROBLEM], d->count[WARNING], d->count[UNCHECKED]);
	if (exit_code != EXIT_HEALTHY)
		appendPQExpBufferStr(out, "Run \"tandem doctor\" with the same options for what to change.\n");
	return exit_code;
}

static int
run_status(const Options *options)
{
	return watch_run(options, status_screen, false);
}

const Command status_command = {
	.name = "status",
	.takes = TAKES_NODES | TAKES_JSON | TAKES_WATCH,
	.synopsis = "[--json] [--watch=SECONDS]",
	.summary = "the whole topology on one screen",
	.help = "Exits with 0 if all is healthy, 1 if something needs attention, 3 if a node is unreachable.\n",
	.run = run_status};
