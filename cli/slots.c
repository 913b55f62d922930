/*-------------------------------------------------------------------------
 *
 * slots.c
 *	  "tandem slots": the failover slots of every node; with --ready only
 *	  whether a failover now would lose nothing.
 *
 * --ready asks the standbys that the user named.  Each must say yes, and must
 * know every failover slot that the primary has, if the primary answers; a
 * primary that doesn't is no reason for a no, since that is when one fails
 * over.
 *
 * cli/slots.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "json.h"
#include "table.h"
#include "watch.h"

typedef struct Verdict
{
	bool		ready;
	const char *reason;
	const char *hint;
} Verdict;

static Verdict
judge(const Topology *t, const Node *node)
{
	Verdict		v = {false, NULL, NULL};

	if (node->conn == NULL)
		v.reason = node->error;
	else if (!node->in_recovery)
	{
		v.reason = "this server is a primary; a failover goes to a standby";
		v.hint = "Ask the standby that would be promoted.";
	}
	else if (node->ready == NULL)
	{
		v.reason = node->tandem_error ? node->tandem_error : "tandem.failover_ready() could not be asked";
		v.hint = "Run \"tandem doctor\" for what to change.";
	}
	else
	{
		v.ready = field_is_true(node->ready, 0, "ready");
		v.reason = field(node->ready, 0, "reason");
		v.hint = field(node->ready, 0, "hint");
	}

	if (v.ready && t->primary && t->primary != node && t->primary->failover_slots)
	{
		for (int i = 0; i < nrows(t->primary->failover_slots); i++)
		{
			const char *name = field(t->primary->failover_slots, i, "slot_name");

			if (find_row(node->failover_slots, "slot_name", name) >= 0)
				continue;
			v.ready = false;
			v.reason = screen_printf("the primary has a failover slot \"%s\" that this standby does not know yet", name);
			v.hint = "Ask again after the next sync.";
		}
	}
	return v;
}

static const char *
role_of(const Node *node)
{
	return node->conn == NULL ? NULL : node->in_recovery ? "standby" :
														   "primary";
}

static int
ready_screen(Topology *t, PQExpBuffer out)
{
	bool		all = true;
	Json		json;

	for (int i = 0; i < t->nnodes; i++)
		if (t->nodes[i]->named)
			all &= judge(t, t->nodes[i]).ready;

	if (t->options->json)
	{
		json_init(&json, out, t->options->watch == 0);
		json_open_object(&json, NULL);
		json_string(&json, "command", "slots");
		json_string(&json, "version", TANDEM_VERSION);
		json_bool(&json, "ready", all);
		json_open_array(&json, "nodes");
	}
	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];
		Verdict		v;

		if (!node->named)
			continue;
		v = judge(t, node);
		if (t->options->json)
		{
			json_open_object(&json, NULL);
			json_string(&json, "node", node->label);
			json_string(&json, "role", role_of(node));
			json_bool(&json, "ready", v.ready);
			json_string(&json, "reason", v.reason);
			json_string(&json, "hint", v.hint);
			json_close(&json);
			continue;
		}
		appendPQExpBuffer(out, "%s: ", node->label);
		text_paint(out, v.ready ? COLOUR_GOOD : COLOUR_BAD, v.ready ? "ready" : "not ready",
				   strlen(v.ready ? "ready" : "not ready"));
		appendPQExpBufferChar(out, '\n');
		if (v.reason)
			text_wrap(out, text_clean(v.reason), 4, text_screen_width());
		if (v.hint)
			text_wrap(out, text_clean(screen_printf("Hint: %s", v.hint)), 4, text_screen_width());
	}
	if (t->options->json)
	{
		json_close(&json);
		json_close(&json);
	}
	return all ? EXIT_HEALTHY : EXIT_ATTENTION;
}

static void
slots_json(const Topology *t, PQExpBuffer out)
{
	static const char *const texts[] = {
		"database", "plugin", "state", "reason", "hint", "restart_lsn", "confirmed_lsn",
		"primary_restart_lsn", "primary_confirmed_lsn", "last_sync"};
	Json		json;

	json_init(&json, out, t->options->watch == 0);
	json_open_object(&json, NULL);
	json_string(&json, "command", "slots");
	json_string(&json, "version", TANDEM_VERSION);
	json_open_array(&json, "nodes");
	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];

		json_open_object(&json, NULL);
		json_string(&json, "node", node->label);
		json_string(&json, "role", role_of(node));
		json_string(&json, "error", node->conn == NULL ? node->error : node->failover_slots == NULL ? node->tandem_error :
																									  NULL);
		if (node->ready)
			json_bool(&json, "failover_ready", field_is_true(node->ready, 0, "ready"));
		else
			json_null(&json, "failover_ready");
		json_open_array(&json, "slots");
		for (int row = 0; row < nrows(node->failover_slots); row++)
		{
			json_open_object(&json, NULL);
			json_string(&json, "slot", field(node->failover_slots, row, "slot_name"));
			for (int c = 0; c < (int) lengthof(texts); c++)
				json_string(&json, texts[c], field(node->failover_slots, row, texts[c]));
			json_number(&json, "catalog_xmin", field(node->failover_slots, row, "catalog_xmin"));
			json_number(&json, "primary_catalog_xmin", field(node->failover_slots, row, "primary_catalog_xmin"));
			json_number(&json, "sync_age", field(node->failover_slots, row, "sync_age"));
			json_close(&json);
		}
		json_close(&json);
		json_close(&json);
	}
	json_close(&json);
	json_close(&json);
}

static TextColour
state_colour(const char *state)
{
	if (state && (strcmp(state, "ready") == 0 || strcmp(state, "native") == 0))
		return COLOUR_GOOD;
	return state && strcmp(state, "pending") == 0 ? COLOUR_WARN : COLOUR_BAD;
}

static int
slots_screen(Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"NODE", "SLOT", "DATABASE", "STATE", ">CONFIRMED", ">ON PRIMARY", ">SYNCED", NULL};
	Table	   *table = table_new(columns);
	int			exit_code = EXIT_HEALTHY;
	int			total = 0;

	if (t->options->ready)
		return ready_screen(t, out);

	for (int i = 0; i < t->nnodes; i++)
		if (t->nodes[i]->failover_slots == NULL)
		{
			exit_code = EXIT_ATTENTION;
			pg_log_error("%s: %s", t->nodes[i]->label,
						 text_clean(t->nodes[i]->conn == NULL     ? t->nodes[i]->error :
										t->nodes[i]->tandem_error ? t->nodes[i]->tandem_error :
																	"failover slots could not be read"));
			pg_log_error_hint("Run \"tandem doctor\" for what to change.");
		}
	if (t->options->json)
	{
		slots_json(t, out);
		return exit_code;
	}

	for (int i = 0; i < t->nnodes; i++)
	{
		const Node *node = t->nodes[i];

		for (int row = 0; row < nrows(node->failover_slots); row++)
		{
			const PGresult *s = node->failover_slots;
			const char *state = field(s, row, "state");
			const char *age = field(s, row, "sync_age");
			const char *reason = field(s, row, "reason");
			const char *hint = field(s, row, "hint");

			table_row(table, node->label, field(s, row, "slot_name"), field(s, row, "database"),
					  state, field(s, row, "confirmed_lsn"),
					  node->in_recovery ? field(s, row, "primary_confirmed_lsn") : NULL,
					  age ? screen_printf("%s ago", text_duration(atof(age))) : NULL);
			table_colour(table, 3, state_colour(state));
			if (reason && !(state && strcmp(state, "ready") == 0))
				table_note(table, reason);
			if (hint && !(state && strcmp(state, "ready") == 0))
				table_note(table, screen_printf("Hint: %s", hint));
			total++;
		}
	}
	if (total > 0)
		table_print(table, out);
	else if (exit_code == EXIT_HEALTHY)
		appendPQExpBufferStr(out, "No failover slots.\n");
	return exit_code;
}

static int
run_slots(const Options *options)
{
	return watch_run(options, slots_screen, false);
}

const Command slots_command = {
	.name = "slots",
	.takes = TAKES_NODES | TAKES_JSON | TAKES_WATCH | TAKES_READY,
	.synopsis = "[--ready] [--json] [--watch=SECONDS]",
	.summary = "show the failover slots: is each one ready, and if not why",
	.help = "With --ready, asks the standbys named by -h and --node and exits with 0 only if a failover to\n"
			"each of them now would lose nothing of any failover slot, else with 1.  Without it, exits with 0\n"
			"if every node could be asked, else with 1.\n",
	.run = run_slots};
