/*-------------------------------------------------------------------------
 *
 * rejoin.c
 *	  "tandem rejoin": a node that was a primary comes back as a standby.
 *
 * The steps, in order:
 *	 1. look at the data directory; refuse what can't be rejoined
 *	 2. ask the new primary for its timeline; find the fork
 *	 3. read local WAL: before the fork from the last checkpoint on, then after
 *	 4. plan: what to delete, what to copy; --dry-run ends here
 *	 5. repair files, with a journal; settle: WAL, configuration, pg_control
 *	 6. start the server, wait until it streams, compare the pages
 *
 * Up to 4 nothing is changed.  A directory whose repair was interrupted is
 * recognised by its journal, and the same command goes on.
 *
 * cli/rejoin/rejoin.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <unistd.h>

#include "common/archive.h"
#include "common/compat.h"
#include "common/file_perm.h"
#include "fe_utils/recovery_gen.h"
#include "rejoin/journal.h"
#include "rejoin/record.h"
#include "rejoin/report.h"
#include "rejoin/start.h"
#include "text.h"

typedef struct Rejoin
{
	const Options *options;
	Target		target;
	Source		source;
	History		local_history;
	History		source_history;
	Journal		journal;
	bool		interrupted;	/* a journal was found, and pg_control is away */
	Facts		facts;
	Plan		plan;
	RepairResult result;
	Report		report;
	WalReader  *reader;
	char	   *fetch_dir;		/* WAL that was not here; NULL = none yet */
	const char *slot;
	bool		own_slot;		/* the slot wasn't named by the user */
} Rejoin;

/* ---- refusing -------------------------------------------------------------------- */

static bool files_changed = false;

/* What to do about a system call that failed; NULL = nothing in particular. */
static const char *
errno_hint(int error)
{
	switch (error)
	{
		case EACCES:
		case EPERM:
		case EROFS:
			return "The command needs to read and write all of the directory, as the user that the server runs as.";
		case ENOSPC:
#ifdef EDQUOT
		case EDQUOT:
#endif
			return "Make room on that disk and run the same command again.";
		default:
			return NULL;
	}
}

void
rejoin_refuse(const char *hint, const char *fmt,...)
{
	va_list		args;
	int			error = errno;

	if (hint == NULL && strstr(fmt, "%m"))
		hint = errno_hint(error);
	if (text_is_terminal())
		fputs("\r\033[K", stdout);
	fflush(stdout);
	errno = error;
	va_start(args, fmt);
	pg_log_generic_v(PG_LOG_ERROR, PG_LOG_PRIMARY, fmt, args);
	va_end(args);
	if (files_changed)
		pg_log_error_detail("The directory is half repaired and cannot be started; the same command goes on.");
	if (hint)
		pg_log_error_hint("%s", hint);
	exit(EXIT_ATTENTION);
}

/* ---- WAL that isn't here ------------------------------------------------------------ */

static char *fetch_dir_to_remove = NULL;

static void
remove_fetch_dir(void)
{
	if (fetch_dir_to_remove)
		(void) rmtree(fetch_dir_to_remove, true);
}

static void
make_fetch_dir(Rejoin *r)
{
	const char *tmp = getenv("TMPDIR");

	if (r->fetch_dir)
		return;
	r->fetch_dir = psprintf("%s/tandem_rejoin.XXXXXX", tmp ? tmp : "/tmp");
	if (mkdtemp(r->fetch_dir) == NULL)
		rejoin_refuse(NULL, "could not create directory \"%s\": %m", r->fetch_dir);
	fetch_dir_to_remove = r->fetch_dir;
	atexit(remove_fetch_dir);
}

/* WalFetch: from the archive if there is a command, else from the new primary */
static char *
fetch_wal(void *arg, const char *name)
{
	Rejoin	   *r = arg;
	TimeLineID	tli;
	XLogSegNo	segno;
	char	   *path;
	struct stat st;

	/*
	 * In the newest one here, or past it, local WAL ends, whatever others have:
	 * the new primary's file of the fork's segment isn't ours.
	 */
	XLogFromFileName(name, &tli, &segno, r->target.segment_size);
	if (segno >= r->facts.newest_segment)
		return NULL;
	make_fetch_dir(r);
	path = psprintf("%s/%s", r->fetch_dir, name);
	if (stat(path, &st) == 0)
		return path;
	if (r->options->restore_command)
	{
		char	   *command = BuildRestoreCommand(r->options->restore_command, path, name, NULL);

		if (command == NULL)
			rejoin_refuse("It may have %f and %p.", "--restore-command is not valid");
		fflush(NULL);
		if (system(command) == 0 && stat(path, &st) == 0 && st.st_size == (off_t) r->target.segment_size)
			return path;
		unlink(path);
	}
	if (source_fetch_wal(&r->source, name, path, r->target.segment_size))
		return path;
	pg_free(path);
	return NULL;
}

/* Puts what was fetched into pg_wal, and the fork's segment under its shared name. */
static void
install_wal(Rejoin *r)
{
	DIR		   *dir = r->fetch_dir ? opendir(r->fetch_dir) : NULL;
	struct dirent *entry;
	XLogSegNo	segno;
	char		name[MAXFNAMELEN];
	char	   *path;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		char	   *from = psprintf("%s/%s", r->fetch_dir, entry->d_name);
		char	   *to = psprintf(XLOGDIR "/%s", entry->d_name);
		char	   *content;
		FILE	   *file;

		if (!IsXLogFileName(entry->d_name) || file_exists(to))
			continue;
		content = pg_malloc(r->target.segment_size);
		file = fopen(from, "r");
		if (file == NULL ||
			fread(content, 1, r->target.segment_size, file) != r->target.segment_size)
			rejoin_refuse(NULL, "could not read file \"%s\": %m", from);
		fclose(file);
		write_durably(to, content, r->target.segment_size);
		pg_free(content);
	}
	if (dir)
		closedir(dir);

	XLByteToPrevSeg(r->facts.fork, segno, r->target.segment_size);
	XLogFileName(name, r->facts.fork_tli, segno, r->target.segment_size);
	path = psprintf(XLOGDIR "/%s", name);
	if (!file_exists(path))
	{
		char	   *content = pg_malloc0(r->target.segment_size);
		XLogRecPtr	start;

		XLogSegNoOffsetToRecPtr(segno, 0, r->target.segment_size, start);
		if (!wal_read_raw(r->reader, start, content, r->facts.fork - start))
			rejoin_refuse(NULL, "could not read local WAL before the fork");
		write_durably(path, content, r->target.segment_size);
	}
}

/* ---- the steps ------------------------------------------------------------------------ */

static void
check_usage(Rejoin *r)
{
	if (r->options->data_dir == NULL)
	{
		pg_log_error("no data directory given");
		pg_log_error_hint("Give the data directory of the old primary with -D, or in the environment variable PGDATA.");
		exit(EXIT_USAGE);
	}
	if (r->options->source == NULL)
	{
		pg_log_error("no source given");
		pg_log_error_hint("Give a connection string of the new primary with --source.");
		exit(EXIT_USAGE);
	}
}

/* An interrupted rejoin can only go on along the same history. */
static void
check_journal(Rejoin *r)
{
	bool		found = journal_read(&r->journal);

	r->interrupted = found && !file_exists(CONTROL_FILE);
	if (!r->interrupted)
		return;
	r->report.resumed = true;
	files_changed = true;
	if (!history_has(&r->source_history, r->journal.source_tli))
		rejoin_refuse("Give a source whose history has that timeline; else a new base backup is the way that remains.",
					  "this directory was being rejoined to timeline %u, which is not in the history of %s",
					  r->journal.source_tli, r->source.label);
}

/* Where local WAL and the new primary's part; sets facts.fork and fork_tli. */
static void
find_fork(Rejoin *r)
{
	const ControlFileData *control = &r->target.control;
	TimeLineID	tli = Max(control->checkPointCopy.ThisTimeLineID, control->minRecoveryPointTLI);

	history_read_local(&r->local_history, tli);
	if (!history_fork(&r->local_history, &r->source_history, &r->facts.fork_tli, &r->facts.fork))
		rejoin_refuse("A new base backup is the way that remains.",
					  "this directory and %s have no timeline in common", r->source.label);
	if (!control->wal_log_hints && !r->target.checksums)
		rejoin_refuse("Set wal_log_hints on all nodes from now on (or enable checksums); for this node a new base backup is the way that remains.",
					  "neither wal_log_hints nor data checksums were on, so pages may differ unseen");
	if (control->wal_level < RECORD_WAL_LEVEL_REPLICA)
		rejoin_refuse("A new base backup is the way that remains.",
					  "wal_level was \"minimal\"");
}

static bool
was_standby(const Rejoin *r)
{
	return r->target.control.state == DB_SHUTDOWNED_IN_RECOVERY ||
		r->target.control.state == DB_IN_ARCHIVE_RECOVERY;
}

/*
 * Reads local WAL.  Afterwards facts.fork is where replay of local WAL ends:
 * the fork, or the end of local WAL if that lies before.
 */
static void
read_wal(Rejoin *r)
{
	Facts	   *facts = &r->facts;
	const ControlFileData *control = &r->target.control;
	XLogRecPtr	shared_end = facts->fork;

	r->reader = wal_open(XLOGDIR, r->local_history.entries, r->local_history.n,
						 r->target.segment_size, fetch_wal, r);
	/* one goes on from the other: the new primary has at least what it flushed */
	if (XLogRecPtrIsInvalid(facts->fork))
		facts->fork = PG_UINT64_MAX;

	facts_find_start(facts, r->reader, control);
	facts_read_before(facts, r->reader, r->target.checksums);
	if (XLogRecPtrIsInvalid(facts->end))
		facts_read_after(facts, r->reader, r->target.checksums);
	else
		facts->fork = facts->end;	/* merely behind */
	/* asked before WAL was read here; a server started meanwhile streams */
	if (XLogRecPtrIsInvalid(shared_end) && facts->end > r->source.flush)
	{
		target_check_stopped(&r->target);
		source_refresh(&r->source);
	}
	if (XLogRecPtrIsInvalid(shared_end) && facts->end > r->source.flush)
		rejoin_refuse("Both were primaries of the same timeline; a new base backup is the way that remains.",
					  "local WAL goes on to %X/%X on timeline %u, where %s has only got to %X/%X",
					  LSN_ARGS(facts->end), facts->fork_tli, r->source.label, LSN_ARGS(r->source.flush));
	/*
	 * A primary sends only what it has flushed.  If its WAL seems to end before
	 * the fork it is damaged there, and what comes after can't be known.
	 */
	if (!XLogRecPtrIsInvalid(shared_end) && facts->end < shared_end && !was_standby(r))
		rejoin_refuse("A new base backup is the way that remains.",
					  "local WAL is damaged: it ends at %X/%X, before the fork at %X/%X, because %s",
					  LSN_ARGS(facts->end), LSN_ARGS(shared_end), wal_error(r->reader));
	/* pages may be as new as this, without WAL here that names them */
	if (control->minRecoveryPoint > facts->end &&
		(facts->end > facts->fork ||
		 control->minRecoveryPoint > (XLogRecPtrIsInvalid(shared_end) ? r->source.flush : shared_end)))
		rejoin_refuse("A new base backup is the way that remains.",
					  "this standby was stopped before it was consistent: its files may be as new as %X/%X, its WAL ends at %X/%X",
					  LSN_ARGS(control->minRecoveryPoint), LSN_ARGS(facts->end));
	r->report.wal_read = wal_bytes_read(r->reader);
}

static bool
merely_behind(const Rejoin *r)
{
	return !r->interrupted && r->facts.end <= r->facts.fork && was_standby(r);
}

static void
make_plan(Rejoin *r)
{
	if (r->interrupted)
		journal_load_copies(&r->facts);
	plan_make(&r->plan, &r->facts, &r->target, &r->source, &r->source_history, r->reader);
}

static bool
source_has_checkpoint(const Rejoin *r)
{
	return r->source.checkpoint_tli == r->source.tli && r->source.checkpoint_redo >= r->facts.fork;
}

/* The lines for postgresql.auto.conf. */
static const char *
conninfo_lines(const Rejoin *r)
{
	PQExpBuffer contents = TANDEM_RECOVERY_CONFIG(r->source.conn, pg_strdup(r->slot));

	return contents->data;
}

static bool
restore_must_be_off(const Rejoin *r)
{
	char	   *value;

	if (recovery_conf_restore_is_off())
		return true;
	value = target_setting(&r->target, "restore_command");
	return value == NULL || value[0] != '\0';
}

static void
run_settle(Rejoin *r)
{
	SettleInput input = {
		.journal = &r->journal,
		.history = r->source.history,
		.source_history = &r->source_history,
		.segment_size = r->target.segment_size,
		.conninfo_lines = conninfo_lines(r),
		.switch_off_restore = restore_must_be_off(r),
		.control = r->target.control,
	};

	report_step(&r->report, "cut WAL, switch to standby");
	source_ensure_slot(&r->source, r->slot, r->own_slot);
	settle(&input);
	files_changed = false;
	r->report.recovery_point = r->journal.recovery_point;
}

/* From a plan to a standby's directory. */
static void
carry_out(Rejoin *r)
{
	Journal    *journal = &r->journal;

	if (r->plan.needs_checkpoint && !source_has_checkpoint(r))
	{
		report_step(&r->report, "checkpoint on the new primary");
		source_checkpoint(&r->source);
		make_plan(r);			/* there may be files now that weren't */
	}

	report_step(&r->report, "repair files");
	target_check_stopped(&r->target);
	journal->phase = PHASE_REPAIR;
	journal->source_tli = r->source.tli;
	journal->fork = r->facts.fork;
	journal->fork_tli = r->facts.fork_tli;
	journal->checkpoint_lsn = r->facts.checkpoint_lsn;
	journal->checkpoint = r->facts.checkpoint;
	journal_begin(journal, &r->plan, &r->target);
	files_changed = true;
	stop_point("begun");
	repair(&r->plan, &r->facts, &r->source, &r->result);
	r->report.result = &r->result;
	install_wal(r);
	stop_point("install_wal");

	/* only now: it has to be past everything that was copied */
	journal->recovery_point = source_flushed(&r->source);
	if (r->source.tli != journal->source_tli)
		rejoin_refuse(NULL, "%s has switched to timeline %u meanwhile", r->source.label, r->source.tli);
	journal->phase = PHASE_SETTLE;
	journal_write(journal);
	run_settle(r);
}

static void
follow(Rejoin *r)
{
	report_step(&r->report, "point it to the new primary");
	source_ensure_slot(&r->source, r->slot, r->own_slot);
	if (r->source.tli > 1)
	{
		char		name[MAXFNAMELEN];

		TLHistoryFileName(name, r->source.tli);
		write_durably(psprintf(XLOGDIR "/%s", name), r->source.history, strlen(r->source.history));
	}
	recovery_conf_write(conninfo_lines(r), recovery_conf_restore_is_off());
	/* of a rejoin that was killed just before its very end */
	journal_remove();
	r->report.outcome = OUTCOME_FOLLOWING;
}

static void
start(Rejoin *r)
{
	PGconn	   *local;

	if (r->options->no_start)
	{
		if (recovery_conf_restore_is_off())
			r->report.note = allow_restore(NULL, r->facts.fork);
		return;
	}
	report_step(&r->report, "start the server");
	start_server(&r->target, r->options);
	report_step(&r->report, "catch up");
	wait_streaming(&r->target, &r->source, r->slot, &r->report);
	r->report.started = true;

	report_step(&r->report, "compare pages");
	local = connect_local(&r->target, r->options, &r->report.verified.why_not);
	if (local && !wait_replayed(local, r->report.recovery_point))
		rejoin_refuse("The server's log says why.", "the node receives WAL but does not replay it");
	if (local && r->plan.pages_named > 0)
		verify_pages(local, &r->source, &r->facts, &r->plan, &r->report.verified);
	r->report.note = allow_restore(local, r->facts.fork ? r->facts.fork : r->journal.fork);
	if (local)
		PQfinish(local);
}

static int
run_rejoin(const Options *options)
{
	Rejoin	   *r = pg_malloc0(sizeof(Rejoin));

	r->options = options;
	check_usage(r);
	r->slot = options->slot ? options->slot : REJOIN_SLOT;
	r->own_slot = options->slot == NULL;
	report_init(&r->report, options);
	r->report.target = &r->target;
	r->report.source = &r->source;
	r->report.slot = r->slot;

	report_step(&r->report, "look at both nodes");
	target_open(&r->target, options);
	if (!options->dry_run)
		target_lock(&r->target);
	source_open(&r->source, options, &r->target);
	history_parse(&r->source_history, r->source.tli, r->source.history, "on the source");
	check_journal(r);
	source_check_streaming(&r->source, r->slot, r->own_slot);
	r->report.outcome = OUTCOME_REJOINED;

	if (r->interrupted && r->journal.phase == PHASE_SETTLE)
	{
		if (!options->dry_run)
		{
			run_settle(r);
			start(r);
		}
		else
			r->report.outcome = OUTCOME_PLANNED;
		report_end(&r->report);
		return EXIT_HEALTHY;
	}

	report_step(&r->report, "read local WAL");
	facts_init(&r->facts, r->target.segment_size);
	find_fork(r);
	read_wal(r);
	r->report.facts = &r->facts;
	if (!merely_behind(r))
	{
		report_step(&r->report, "compare, and make a plan");
		make_plan(r);
		r->report.plan = &r->plan;
		report_plan(&r->report);
	}
	if (options->dry_run)
		r->report.outcome = OUTCOME_PLANNED;
	else
	{
		if (merely_behind(r))
			follow(r);
		else
			carry_out(r);
		start(r);
	}
	report_end(&r->report);
	return EXIT_HEALTHY;
}

const Command rejoin_command = {
	.name = "rejoin",
	.takes = TAKES_JSON | TAKES_DRY_RUN | TAKES_REJOIN,
	.synopsis = "-D DIR --source CONNINFO [--slot NAME] [--dry-run] [--no-start] [--json]",
	.summary = "bring an old primary back as a standby of the new one",
	.help =
		"The data directory's server must be stopped, or have crashed. What it wrote after the\n"
		"new primary was promoted is undone: from its own WAL the command finds out which pages\n"
		"and files that concerns, fetches what replay would not make right, cuts WAL at the fork,\n"
		"starts the server, and compares both nodes. What it can't prove it refuses, with the\n"
		"directory unchanged. Killed at any moment, the same command goes on.\n\n"
		"Run it as the user that the server runs as. The role in CONNINFO needs REPLICATION and\n"
		"the grants listed in docs/failback.md; the standby will stream as this role. -U and -d\n"
		"say how to connect to the node itself once it runs.\n",
	.run = run_rejoin,
};
