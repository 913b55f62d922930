/*-------------------------------------------------------------------------
 *
 * journal.c
 *	  What makes a rejoin that was killed go on, and keeps the server from
 *	  starting in between.
 *
 *	 none ── journal_begin ──> repair ── journal_write ──> settle ── journal_remove ──> none
 *
 * repair:	pg_control has been moved from global/ to tandem_rejoin/global/, so
 *			that no server can start on half repaired files.  Local WAL is
 *			whole: everything is planned again.
 * settle:	all files are right.  What is left (WAL, slots, configuration, a new
 *			pg_control) is done from the journal alone.
 *
 * The new pg_control is the last thing: once it is in place the directory is a
 * standby's; only the folder tandem_rejoin remains to be removed, which the
 * next rejoin does as well.
 *
 * cli/rejoin/journal.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/controldata_utils.h"
#include "rejoin/journal.h"

#define JOURNAL REJOIN_DIR "/journal"
#define COPIES REJOIN_DIR "/copies"
#define SAVED_CONTROL REJOIN_DIR "/" CONTROL_FILE
#define JOURNAL_VERSION 1

static const char *const phase_names[] = {"none", "repair", "settle"};

bool
journal_read(Journal *journal)
{
	char		buffer[2048];
	FILE	   *file = fopen(JOURNAL, "r");
	size_t		n;
	int			version;
	char		phase[16];
	unsigned	lsn[6];
	unsigned	tli[3];
	int			at = 0;

	memset(journal, 0, sizeof(*journal));
	if (file == NULL)
		return false;
	n = fread(buffer, 1, sizeof(buffer) - 1, file);
	fclose(file);
	buffer[n] = '\0';
	if (sscanf(buffer,
			   "tandem rejoin journal %d\nphase %15s\nsource timeline %u\nfork timeline %u\n"
			   "fork %X/%X\ncheckpoint %X/%X\nrecovery point %X/%X on %u\ncheckpoint data %n",
			   &version, phase, &tli[0], &tli[1], &lsn[0], &lsn[1], &lsn[2], &lsn[3],
			   &lsn[4], &lsn[5], &tli[2], &at) != 11 ||
		version != JOURNAL_VERSION || at == 0)
		rejoin_refuse("Only the command that began may go on; or make a new base backup.",
					  "file \"%s\" is damaged or of another version", JOURNAL);
	journal->phase = strcmp(phase, "settle") == 0 ? PHASE_SETTLE : PHASE_REPAIR;
	journal->source_tli = tli[0];
	journal->fork_tli = tli[1];
	journal->fork = ((uint64) lsn[0] << 32) | lsn[1];
	journal->checkpoint_lsn = ((uint64) lsn[2] << 32) | lsn[3];
	journal->recovery_point = ((uint64) lsn[4] << 32) | lsn[5];
	for (size_t i = 0; i < sizeof(CheckPoint); i++)
	{
		unsigned	byte;

		if (sscanf(buffer + at + 2 * i, "%2x", &byte) != 1)
			rejoin_refuse(NULL, "file \"%s\" is damaged", JOURNAL);
		((uint8 *) &journal->checkpoint)[i] = (uint8) byte;
	}
	return true;
}

void
journal_write(const Journal *journal)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBuffer(&out,
					  "tandem rejoin journal %d\nphase %s\nsource timeline %u\nfork timeline %u\n"
					  "fork %X/%X\ncheckpoint %X/%X\nrecovery point %X/%X on %u\ncheckpoint data ",
					  JOURNAL_VERSION, phase_names[journal->phase], journal->source_tli,
					  journal->fork_tli, LSN_ARGS(journal->fork), LSN_ARGS(journal->checkpoint_lsn),
					  LSN_ARGS(journal->recovery_point), journal->source_tli);
	for (size_t i = 0; i < sizeof(CheckPoint); i++)
		appendPQExpBuffer(&out, "%02x", ((const uint8 *) &journal->checkpoint)[i]);
	appendPQExpBufferStr(&out, "\n\nThis data directory is being rejoined; run \"tandem rejoin\" again.\n"
							   "Until then pg_control is in the folder beside this file.\n");
	write_durably(JOURNAL, out.data, out.len);
	termPQExpBuffer(&out);
}

/*
 * What is copied as a whole may be there in part when the work is taken up
 * again, and then looks as if it weren't missing.  So it is listed.
 */
static void
write_copies(const Plan *plan)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	for (int i = 0; i < plan->n; i++)
	{
		const Action *action = &plan->actions[i];
		PathInfo	info;

		if (action->kind == ACTION_COPY_RELATION)
			appendPQExpBuffer(&out, "%u %u %u\n", action->request.rel.tablespace,
							  action->request.rel.database, action->request.rel.node);
		else if (action->kind == ACTION_MAKE_FOLDER && path_parse(action->path, &info))
			appendPQExpBuffer(&out, "%u %u 0\n", info.rel.tablespace, info.rel.database);
	}
	if (PQExpBufferDataBroken(out))
		rejoin_refuse(NULL, "out of memory");
	write_durably(COPIES, out.data, out.len);
	termPQExpBuffer(&out);
}

void
journal_load_copies(Facts *facts)
{
	FILE	   *file = fopen(COPIES, "r");
	RelFile		rel;

	if (file == NULL)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", COPIES);
	while (fscanf(file, "%u %u %u", &rel.tablespace, &rel.database, &rel.node) == 3)
	{
		if (rel.node == InvalidOid)
			facts_copy_folder_again(facts, rel.database, rel.tablespace);
		else
			facts_copy_again(facts, rel);
	}
	fclose(file);
}

/* Undoes journal_begin() when nothing else has been changed yet. */
static void
cancel(void)
{
	if (rename(SAVED_CONTROL, CONTROL_FILE) != 0)
		rejoin_refuse(NULL, "could not rename file \"%s\" to \"%s\": %m", SAVED_CONTROL, CONTROL_FILE);
	sync_dir("global");
	remove_tree(REJOIN_DIR);
}

/* Our folder has been made, and nothing else has changed yet. */
static bool folder_only = false;

/* A journal that can't be written, on a full disk, leaves nothing behind. */
static void
remove_folder(void)
{
	if (folder_only)
		(void) rmtree(REJOIN_DIR, true);
}

void
journal_begin(const Journal *journal, const Plan *plan, Target *target)
{
	ControlFileData *now;
	bool		crc_ok;

	if (!file_exists(CONTROL_FILE))
	{
		write_copies(plan);
		journal_write(journal);
		return;					/* going on */
	}
	remove_tree(REJOIN_DIR);
	atexit(remove_folder);
	folder_only = true;
	if (mkdir(REJOIN_DIR, pg_dir_create_mode) != 0 ||
		mkdir(REJOIN_DIR "/global", pg_dir_create_mode) != 0)
		rejoin_refuse(NULL, "could not create directory \"%s\": %m", REJOIN_DIR);
	write_copies(plan);
	journal_write(journal);
	sync_dir(".");
	stop_point("journal");
	if (rename(CONTROL_FILE, SAVED_CONTROL) != 0)
		rejoin_refuse(NULL, "could not rename file \"%s\" to \"%s\": %m", CONTROL_FILE, SAVED_CONTROL);
	folder_only = false;
	sync_dir("global");
	sync_dir(REJOIN_DIR "/global");

	/* from here on no server can start; has one since we looked? */
	now = get_controlfile(REJOIN_DIR, &crc_ok);
	if (!EQ_CRC32C(now->crc, target->control.crc) || now->state != target->control.state ||
		now->time != target->control.time || now->checkPoint != target->control.checkPoint)
	{
		cancel();
		rejoin_refuse("Stop it and repeat.", "a server has been started in \"%s\" meanwhile", target->dir);
	}
	if (target_is_running(target))
	{
		cancel();
		target_check_stopped(target);
	}
}

void
journal_remove(void)
{
	remove_tree(REJOIN_DIR);
}

void
stop_point(const char *name)
{
	const char *stop = getenv("TANDEM_REJOIN_STOP_AT");

	if (stop && strcmp(stop, name) == 0)
	{
		fprintf(stderr, "stopped at %s\n", name);
		fflush(NULL);
		kill(getpid(), SIGKILL);
	}
}
