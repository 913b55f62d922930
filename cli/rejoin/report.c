/*-------------------------------------------------------------------------
 *
 * report.c
 *	  What "tandem rejoin" tells while it works and at its end.
 *
 * Text: the plan once it is made, then a line a step with its time, then what
 * came of it.  With --json nothing until the end, then one object.
 *
 * cli/rejoin/report.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "json.h"
#include "rejoin/report.h"
#include "text.h"

static const char *const outcome_names[] = {"planned", "following", "rejoined"};

static const char *const state_names[] = {
	[DB_STARTUP] = "starting up",
	[DB_SHUTDOWNED] = "shut down",
	[DB_SHUTDOWNED_IN_RECOVERY] = "a standby that was shut down",
	[DB_SHUTDOWNING] = "crashed while shutting down",
	[DB_IN_CRASH_RECOVERY] = "crashed in crash recovery",
	[DB_IN_ARCHIVE_RECOVERY] = "a standby that crashed",
	[DB_IN_PRODUCTION] = "a primary that crashed",
};

void
report_init(Report *report, const Options *options)
{
	memset(report, 0, sizeof(*report));
	report->json = options->json;
	report->dry_run = options->dry_run;
	report->terminal = text_is_terminal() && !options->json;
}

void
report_step_end(Report *report)
{
	instr_time	now;
	int			i = report->nsteps - 1;

	if (i < 0 || report->seconds[i] >= 0)
		return;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, report->begun);
	report->seconds[i] = INSTR_TIME_GET_DOUBLE(now);
	if (!report->json)
	{
		printf("%s%-34s %8.2f s\n", report->terminal ? "\r\033[K" : "",
			   report->steps[i], report->seconds[i]);
		fflush(stdout);
	}
}

void
report_step(Report *report, const char *name)
{
	report_step_end(report);
	if (report->nsteps == MOST_STEPS)
		pg_fatal("too many steps");
	report->steps[report->nsteps] = name;
	report->seconds[report->nsteps++] = -1;
	INSTR_TIME_SET_CURRENT(report->begun);
	if (report->terminal)
	{
		printf("%s ...", name);
		fflush(stdout);
	}
}

void
report_progress(Report *report, uint64 done, uint64 total, const char *unit)
{
	if (!report->terminal || report->nsteps == 0)
		return;
	printf("\r\033[K%s ... %s%s%s%s", report->steps[report->nsteps - 1],
		   text_bytes((int64) done), total ? " of " : "",
		   total ? text_bytes((int64) total) : "", unit);
	fflush(stdout);
}

/* ---- the plan ------------------------------------------------------------------- */

typedef struct Sums
{
	uint64		pages;
	uint64		relations;
	uint64		files;
	uint64		folders_made;
	uint64		deleted;
	int64		bytes;
} Sums;

static void
sum_plan(const Plan *plan, Reason reason, Sums *sums)
{
	memset(sums, 0, sizeof(*sums));
	for (int i = 0; i < plan->n; i++)
	{
		const Action *action = &plan->actions[i];

		if (action->reason != reason)
			continue;
		sums->bytes += action->bytes;
		switch (action->kind)
		{
			case ACTION_COPY_RELATION:
				sums->relations++;
				sums->pages += action->bytes / BLCKSZ;
				break;
			case ACTION_COPY_BLOCKS:
				sums->pages += action->bytes / BLCKSZ;
				break;
			case ACTION_COPY_FILE:
				sums->files++;
				break;
			case ACTION_MAKE_FOLDER:
			case ACTION_MAKE_TABLESPACE:
				sums->folders_made++;
				break;
			case ACTION_DELETE_FILE:
			case ACTION_DELETE_FOLDER:
			case ACTION_DROP_TABLESPACE:
				sums->deleted++;
				break;
		}
	}
}

/* "1 page", "3 pages" */
static const char *
count(uint64 n, const char *one)
{
	return screen_printf(UINT64_FORMAT " %s%s", n, one, n == 1 ? "" : "s");
}

static void
print_amount(const char *verb, const char *what, int64 bytes, Reason reason)
{
	printf("  %-7s %-14s %9s   %s\n", verb, what, bytes > 0 ? text_bytes(bytes) : "",
		   reason_names[reason]);
}

static void
print_plan(const Report *report)
{
	const Facts *facts = report->facts;
	const Plan *plan = report->plan;
	bool		any = false;

	printf("Data directory    %s: %s%s\n", text_clean(report->target->dir),
		   state_names[report->target->control.state],
		   report->resumed ? ", being rejoined" : "");
	printf("New primary       %s, timeline %u\n", text_clean(report->source->label),
		   report->source->tli);
	if (facts->end > facts->fork)
		printf("Fork              %X/%X on timeline %u; local WAL goes on for %s (%s)\n",
			   LSN_ARGS(facts->fork), facts->fork_tli,
			   text_bytes((int64) (facts->end - facts->fork)), count(facts->records_after, "record"));
	else
		printf("Fork              none: local WAL ends at %X/%X, within the new primary's history\n",
			   LSN_ARGS(facts->fork));
	printf("Replay starts at  %X/%X, %s before\n", LSN_ARGS(facts->checkpoint.redo),
		   text_bytes((int64) (facts->fork - facts->checkpoint.redo)));
	printf("Pages named       " UINT64_FORMAT " after the fork; " UINT64_FORMAT " to copy, " UINT64_FORMAT " made right by replay\n",
		   plan->pages_named, plan->pages_to_copy, plan->pages_healed);
	for (int r = 0; r < NUM_REASONS; r++)
	{
		Sums		sums;

		sum_plan(plan, (Reason) r, &sums);
		if (sums.pages > 0 || sums.relations > 0)
			print_amount("copy", count(sums.pages, "page"), sums.bytes, (Reason) r);
		if (sums.files > 0)
			print_amount("copy", count(sums.files, "file"), sums.pages ? 0 : sums.bytes, (Reason) r);
		if (sums.folders_made > 0)
			print_amount("make", count(sums.folders_made, "folder"), 0, (Reason) r);
		if (sums.deleted > 0)
			print_amount("delete", count(sums.deleted, r == REASON_SLOT ? "slot" : "file"), 0, (Reason) r);
		any = any || sums.pages || sums.relations || sums.files || sums.folders_made || sums.deleted;
	}
	if (!any)
		printf("  nothing to copy, nothing to delete\n");
	if (plan->needs_checkpoint)
		printf("  what is copied needs a checkpoint of the new primary after its promotion: it is asked for one unless it had one\n");
	for (int i = 0; i < plan->nkept_slots; i++)
		printf("  physical slot \"%s\" stays; drop it if nothing will use it\n",
			   text_clean(plan->kept_slots[i]));
	fflush(stdout);
}

void
report_plan(Report *report)
{
	if (!report->json)
	{
		report_step_end(report);
		printf("\n");
		print_plan(report);
		printf("\n");
		screen_forget();
	}
}

/* ---- the end ----------------------------------------------------------------------- */

static const char *
lsn_text(XLogRecPtr lsn)
{
	return screen_printf("%X/%X", LSN_ARGS(lsn));
}

static void
json_plan(Json *json, const Report *report)
{
	const Facts *facts = report->facts;
	const Plan *plan = report->plan;

	json_open_object(json, "plan");
	json_string(json, "fork", lsn_text(facts->fork));
	json_int(json, "fork_timeline", facts->fork_tli);
	json_string(json, "local_wal_end", lsn_text(facts->end));
	json_int(json, "bytes_after_fork", (int64) (facts->end - facts->fork));
	json_int(json, "records_after_fork", (int64) facts->records_after);
	json_string(json, "start_checkpoint", lsn_text(facts->checkpoint_lsn));
	json_string(json, "redo", lsn_text(facts->checkpoint.redo));
	json_int(json, "pages_named", (int64) plan->pages_named);
	json_int(json, "pages_healed", (int64) plan->pages_healed);
	json_int(json, "pages_to_copy", (int64) plan->pages_to_copy);
	json_int(json, "bytes_to_copy", (int64) plan->bytes_to_copy);
	json_bool(json, "needs_checkpoint", plan->needs_checkpoint);
	json_open_array(json, "reasons");
	for (int r = 0; r < NUM_REASONS; r++)
	{
		Sums		sums;

		sum_plan(plan, (Reason) r, &sums);
		if (!sums.pages && !sums.relations && !sums.files && !sums.folders_made && !sums.deleted)
			continue;
		json_open_object(json, NULL);
		json_string(json, "reason", reason_names[r]);
		json_int(json, "pages", (int64) sums.pages);
		json_int(json, "relations", (int64) sums.relations);
		json_int(json, "files", (int64) sums.files);
		json_int(json, "folders_made", (int64) sums.folders_made);
		json_int(json, "deleted", (int64) sums.deleted);
		json_int(json, "bytes", sums.bytes);
		json_close(json);
	}
	json_close(json);
	json_open_array(json, "kept_slots");
	for (int i = 0; i < plan->nkept_slots; i++)
		json_string(json, NULL, plan->kept_slots[i]);
	json_close(json);
	json_close(json);
}

static void
json_result(Json *json, const RepairResult *result)
{
	uint64		pages = 0;
	uint64		files = 0;
	uint64		deleted = 0;

	for (int r = 0; r < NUM_REASONS; r++)
	{
		pages += result->pages_copied[r];
		files += result->files_copied[r];
		deleted += result->files_deleted[r];
	}
	json_open_object(json, "done");
	json_int(json, "pages_copied", (int64) pages);
	json_int(json, "files_copied", (int64) files);
	json_int(json, "deleted", (int64) deleted);
	json_int(json, "bytes_fetched", (int64) result->bytes_fetched);
	json_close(json);
}

static void
print_json(const Report *report)
{
	PQExpBufferData out;
	Json		json;

	initPQExpBuffer(&out);
	json_init(&json, &out, true);
	json_open_object(&json, NULL);
	json_string(&json, "outcome", outcome_names[report->outcome]);
	json_bool(&json, "dry_run", report->dry_run);
	json_string(&json, "data_directory", report->target->dir);
	json_string(&json, "state", state_names[report->target->control.state]);
	json_string(&json, "source", report->source->label);
	json_int(&json, "timeline", report->source->tli);
	json_string(&json, "slot", report->slot);
	json_bool(&json, "resumed", report->resumed);
	if (report->plan && report->facts)
		json_plan(&json, report);
	if (report->result)
		json_result(&json, report->result);
	json_string(&json, "recovery_point",
				report->recovery_point ? lsn_text(report->recovery_point) : NULL);
	json_int(&json, "wal_bytes_read", (int64) report->wal_read);
	json_bool(&json, "started", report->started);
	json_open_object(&json, "verified");
	json_bool(&json, "done", report->verified.done);
	json_string(&json, "why_not", report->verified.why_not);
	json_int(&json, "pages_equal", report->verified.same);
	json_int(&json, "pages_changing", report->verified.changing);
	json_close(&json);
	json_string(&json, "note", report->note);
	json_open_array(&json, "steps");
	for (int i = 0; i < report->nsteps; i++)
	{
		json_open_object(&json, NULL);
		json_string(&json, "step", report->steps[i]);
		json_number(&json, "seconds", screen_printf("%.3f", report->seconds[i]));
		json_close(&json);
	}
	json_close(&json);
	json_close(&json);
	printf("%s\n", out.data);
	termPQExpBuffer(&out);
}

static void
print_text(const Report *report)
{
	printf("\n");
	if (report->outcome == OUTCOME_PLANNED)
	{
		printf("Nothing has been changed. Run the same command without --dry-run to do it.\n");
		return;
	}
	if (report->outcome == OUTCOME_FOLLOWING)
		printf("Nothing to repair: the node is merely behind.\n");
	if (report->started)
	{
		printf("The node streams from %s on timeline %u", text_clean(report->source->label),
			   report->source->tli);
		if (report->slot)
			printf(", slot \"%s\"", text_clean(report->slot));
		printf(".\n");
		if (report->verified.done)
			printf("Verified: " INT64_FORMAT " pages that were in question are the same on both nodes"
				   ", " INT64_FORMAT " keep changing there.\n",
				   report->verified.same, report->verified.changing);
		else if (report->verified.why_not)
			printf("Pages were not compared: %s\n", text_clean(report->verified.why_not));
	}
	else
		printf("The data directory is that of a standby of %s now. Start the server.\n",
			   text_clean(report->source->label));
	if (report->note)
		printf("%s\n", report->note);
}

void
report_end(Report *report)
{
	report_step_end(report);
	if (report->json)
		print_json(report);
	else
		print_text(report);
	fflush(stdout);
}
