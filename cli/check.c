/*-------------------------------------------------------------------------
 *
 * check.c
 *	  Runs the checks of "tandem doctor" and "tandem status" and shows what
 *	  they found.
 *
 * A check looks at one node, or once at the whole topology, and adds a finding
 * for everything that is wrong: what it is, what it will cost, the exact line
 * to change and where.  A check that could not look adds a finding too, of
 * severity UNCHECKED: silence always means "looked at and fine".  The checks
 * are in check_*.c; no check talks to a user.
 *
 * cli/check.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"
#include "subscription.h"

static const Check *const all_checks[] = {
	extension_checks, setting_checks, link_checks, slot_checks, failback_checks, subscription_checks,
	tombstone_checks, conflict_checks};

static void
run_check(Diagnosis *d, const Check *check, Node *node)
{
	Finding	   *before = d->last;

	check->run(d, node);
	d->nchecks++;
	if (d->last == before)
		d->nclean++;
}

Diagnosis *
diagnose(Topology *topology, bool runtime_only)
{
	Diagnosis  *d = screen_alloc(sizeof(Diagnosis));

	d->topology = topology;
	for (int i = 0; i < topology->nnodes; i++)
		node_subscriptions(topology->nodes[i]);
	for (int table = 0; table < (int) lengthof(all_checks); table++)
	{
		for (const Check *check = all_checks[table]; check->run; check++)
		{
			if (runtime_only && !(check->where & AT_RUNTIME))
				continue;
			if (check->where & AT_WHOLE)
			{
				run_check(d, check, NULL);
				continue;
			}
			for (int i = 0; i < topology->nnodes; i++)
			{
				Node	   *node = topology->nodes[i];

				if (node->conn &&
					(check->where & (node->in_recovery ? AT_STANDBY : AT_PRIMARY)))
					run_check(d, check, node);
			}
		}
	}
	return d;
}

int
diagnosis_exit_code(const Diagnosis *d)
{
	if (d->topology->nunreachable > 0)
		return EXIT_UNREACHABLE;
	if (d->count[PROBLEM] + d->count[WARNING] + d->count[UNCHECKED] > 0)
		return EXIT_ATTENTION;
	return EXIT_HEALTHY;
}

Finding *
finding_add(Diagnosis *d, Severity severity, const Node *node, const char *code,
			const char *what, const char *cost)
{
	Finding	   *f = screen_alloc(sizeof(Finding));

	f->severity = severity;
	f->node = node;
	f->code = code;
	f->what = what;
	f->cost = cost;
	if (d->last)
		d->last->next = f;
	else
		d->findings = f;
	d->last = f;
	d->count[severity]++;
	return f;
}

void
finding_fix(Finding *f, const Node *node, const char *kind, const char *line,
			const char *then)
{
	if (f->nfixes < MOST_FIXES)
		f->fixes[f->nfixes++] = (Fix){node, NULL, kind, line, then};
}

void
finding_fix_sql(Finding *f, const Node *node, const char *database, const char *sql)
{
	finding_fix(f, node, "sql", sql, NULL);
	f->fixes[f->nfixes - 1].database = database;
}

Finding *
finding_setting(Diagnosis *d, Severity severity, const Node *node, const char *code,
				const char *setting, const char *value, const char *then,
				const char *what, const char *cost)
{
	int			row = find_row(node->settings, "name", setting);
	Finding	   *f = finding_add(d, severity, node, code, what, cost);

	if (field_is_true(node->settings, row, "pending_restart"))
		f->hint = screen_printf("Another value of %s is already in the configuration and waits for a restart.",
								setting);
	finding_fix(f, node, "sql",
				screen_printf("ALTER SYSTEM SET %s = %s;", setting, value), then);
	return f;
}

const char *
severity_name(Severity severity)
{
	static const char *const names[] = {"problem", "warning", "not checked", "note"};

	return names[severity];
}

TextColour
severity_colour(Severity severity)
{
	static const TextColour colours[] = {COLOUR_BAD, COLOUR_WARN, COLOUR_WARN, COLOUR_NONE};

	return colours[severity];
}

static void
print_finding(const Finding *f, PQExpBuffer out)
{
	int			width = text_screen_width();
	const char *name = severity_name(f->severity);

	text_paint(out, severity_colour(f->severity), name, strlen(name));
	appendPQExpBuffer(out, ": %s on %s\n", f->code, f->node ? f->node->label : "the topology");
	text_wrap(out, text_clean(f->what), 4, width);
	if (f->cost)
		text_wrap(out, text_clean(screen_printf("Cost: %s", f->cost)), 4, width);
	if (f->hint)
		text_wrap(out, text_clean(screen_printf("Hint: %s", f->hint)), 4, width);
	for (int i = 0; i < f->nfixes; i++)
	{
		const Fix  *fix = &f->fixes[i];
		char	   *where = screen_printf("%s on %s",
									strcmp(fix->kind, "sql") == 0       ? "Run" :
										strcmp(fix->kind, "shell") == 0 ? "Type" :
																		  screen_printf("Write into %s", fix->kind),
									fix->node ? fix->node->label : "that server");

		if (fix->database)
			where = screen_printf("%s in database \"%s\"", where, fix->database);
		if (fix->then)
			where = screen_printf("%s, then %s it", where,
								  strcmp(fix->then, "reload") == 0 ? "reload" : "restart");
		/* the line itself is for copying: never wrapped */
		text_wrap(out, text_clean(screen_printf("%s:", where)), 4, width);
		appendPQExpBuffer(out, "        %s\n", text_clean(fix->line));
	}
	appendPQExpBufferChar(out, '\n');
}

void
findings_print(const Diagnosis *d, PQExpBuffer out)
{
	/* the worst first, otherwise in the order of the checks */
	for (int severity = PROBLEM; severity <= NOTE; severity++)
		for (const Finding *f = d->findings; f; f = f->next)
			if ((int) f->severity == severity)
				print_finding(f, out);
}

void
findings_json(const Diagnosis *d, Json *json, const char *key)
{
	json_open_array(json, key);
	for (const Finding *f = d->findings; f; f = f->next)
	{
		json_open_object(json, NULL);
		json_string(json, "code", f->code);
		json_string(json, "severity", f->severity == UNCHECKED ? "unchecked" : severity_name(f->severity));
		json_string(json, "node", f->node ? f->node->label : NULL);
		json_string(json, "what", f->what);
		json_string(json, "cost", f->cost);
		json_string(json, "hint", f->hint);
		json_open_array(json, "fix");
		for (int i = 0; i < f->nfixes; i++)
		{
			json_open_object(json, NULL);
			json_string(json, "node", f->fixes[i].node ? f->fixes[i].node->label : NULL);
			json_string(json, "kind", f->fixes[i].kind);
			json_string(json, "database", f->fixes[i].database);
			json_string(json, "line", f->fixes[i].line);
			json_string(json, "then", f->fixes[i].then);
			json_close(json);
		}
		json_close(json);
		json_close(json);
	}
	json_close(json);
}
