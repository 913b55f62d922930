/*-------------------------------------------------------------------------
 *
 * doctor.c
 *	  "tandem doctor": checks every node, says what to change and why, and
 *	  counts what is needed.
 *
 * cli/doctor.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "table.h"
#include "watch.h"

static const char *
need_state(const Need *need)
{
	if (strcmp(need->setting, "max_slot_wal_keep_size") == 0 && need->now == -1)
		return "no limit";
	if (need->now < need->needed)
		return "too small";
	return need->now < need->advised ? "no room" : "ok";
}

static void
print_needs(const Topology *t, PQExpBuffer out)
{
	static const char *const columns[] = {
		"NODE", "SETTING", ">NOW", ">NEEDED", ">ADVISED", "STATE", NULL};
	Table	   *table = table_new(columns);

	for (int i = 0; i < t->nnodes; i++)
	{
		Need		needs[MOST_NEEDS];
		int			n = t->nodes[i]->conn ? node_needs(t, t->nodes[i], needs) : 0;

		for (int j = 0; j < n; j++)
		{
			const char *state = need_state(&needs[j]);

			table_row(table, needs[j].node->label, needs[j].setting,
					  screen_printf(INT64_FORMAT, needs[j].now),
					  screen_printf(INT64_FORMAT, needs[j].needed),
					  screen_printf(INT64_FORMAT, needs[j].advised), state);
			table_colour(table, 5, strcmp(state, "too small") == 0 ? COLOUR_BAD : strcmp(state, "no room") == 0 ? COLOUR_WARN :
																												  COLOUR_NONE);
			table_note(table, needs[j].counted);
		}
	}
	table_print(table, out);
}

static void
doctor_json(const Diagnosis *d, PQExpBuffer out)
{
	const Topology *t = d->topology;
	Json		json;

	json_init(&json, out, t->options->watch == 0);
	json_open_object(&json, NULL);
	json_string(&json, "command", "doctor");
	json_string(&json, "version", TANDEM_VERSION);
	json_bool(&json, "healthy", diagnosis_exit_code(d) == EXIT_HEALTHY);
	json_int(&json, "exit_code", diagnosis_exit_code(d));
	json_int(&json, "checks", d->nchecks);
	json_int(&json, "clean", d->nclean);
	findings_json(d, &json, "findings");
	json_open_array(&json, "needs");
	for (int i = 0; i < t->nnodes; i++)
	{
		Need		needs[MOST_NEEDS];
		int			n = t->nodes[i]->conn ? node_needs(t, t->nodes[i], needs) : 0;

		for (int j = 0; j < n; j++)
		{
			json_open_object(&json, NULL);
			json_string(&json, "node", needs[j].node->label);
			json_string(&json, "setting", needs[j].setting);
			json_int(&json, "now", needs[j].now);
			json_int(&json, "needed", needs[j].needed);
			json_int(&json, "advised", needs[j].advised);
			json_string(&json, "counted", needs[j].counted);
			json_close(&json);
		}
	}
	json_close(&json);
	json_close(&json);
}

static int
doctor_screen(Topology *topology, PQExpBuffer out)
{
	Diagnosis  *d = diagnose(topology, false);

	if (topology->options->json)
		doctor_json(d, out);
	else
	{
		findings_print(d, out);
		print_needs(topology, out);
		appendPQExpBuffer(out, "\n%d nodes, %d checks: %d problems, %d warnings, %d not checked, %d notes.\n",
						  topology->nnodes, d->nchecks, d->count[PROBLEM], d->count[WARNING],
						  d->count[UNCHECKED], d->count[NOTE]);
	}
	return diagnosis_exit_code(d);
}

static int
run_doctor(const Options *options)
{
	return watch_run(options, doctor_screen, false);
}

const Command doctor_command = {
	.name = "doctor",
	.takes = TAKES_NODES | TAKES_JSON,
	.synopsis = "[--json]",
	.summary = "check the settings of every node, say what to change and why",
	.help = "Changes nothing.  Each finding says what is wrong, what it will cost, and the exact line to\n"
			"change on which node.  What could not be looked at is \"not checked\", never fine.  The table at\n"
			"the end counts what failover slots need.  Exits with 0 if there are at most notes, 1 if anything\n"
			"needs attention or was not checked, 3 if a node is unreachable.\n",
	.run = run_doctor};
