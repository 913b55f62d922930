/*-------------------------------------------------------------------------
 *
 * settle.c
 *	  The last steps, once all files are right: WAL ends at the fork, the
 *	  configuration follows the new primary, pg_control says "standby".
 *
 * pg_control comes last.  It then describes a standby whose last restartpoint
 * is the start checkpoint and that has to reach minRecoveryPoint before it is
 * consistent, which is exactly what the directory is.  A backup_label would say
 * the same, but that would be two files to switch at once.
 *
 * Local WAL after the fork is removed: the rest of the fork's segment is
 * zeroed, later segments and timelines that the new primary's history doesn't
 * have are deleted, history files and marks for the archiver included.  (A
 * mark would archive a segment that is no longer what its name says.)
 *
 * Everything here can be done again from the journal alone.
 *
 * cli/rejoin/settle.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/controldata_utils.h"
#include "common/string.h"
#include "rejoin/journal.h"

static void
remove_status(const char *name, const char *suffix)
{
	char	   *path = psprintf(XLOGDIR "/archive_status/%s%s", name, suffix);

	if (unlink(path) != 0 && errno != ENOENT)
		rejoin_refuse(NULL, "could not remove file \"%s\": %m", path);
}

static void
remove_wal(const char *name)
{
	char	   *path = psprintf(XLOGDIR "/%s", name);

	/* the mark first: without its file it would make the archiver fail */
	remove_status(name, ".ready");
	remove_status(name, ".done");
	if (unlink(path) != 0 && errno != ENOENT)
		rejoin_refuse(NULL, "could not remove file \"%s\": %m", path);
}

/* Is a segment, whole or partial, of a part of history that isn't ours any more? */
static bool
is_cut(const SettleInput *input, const char *name)
{
	TimeLineID	tli;
	XLogSegNo	segno;
	XLogRecPtr	start;
	XLogRecPtr	end;

	if (!IsXLogFileName(name) && !IsPartialXLogFileName(name))
		return false;
	XLogFromFileName(name, &tli, &segno, input->segment_size);
	if (!history_has(input->source_history, tli))
		return true;
	end = history_end(input->source_history, tli);
	if (tli == input->journal->fork_tli)
		end = input->journal->fork;
	XLogSegNoOffsetToRecPtr(segno, 0, input->segment_size, start);
	return !XLogRecPtrIsInvalid(end) && start >= end;
}

static bool
is_foreign_history(const SettleInput *input, const char *name)
{
	TimeLineID	tli;

	if (!IsTLHistoryFileName(name))
		return false;
	tli = (TimeLineID) strtoul(name, NULL, 16);
	return !history_has(input->source_history, tli);
}

/*
 * The segment with the last byte before the fork, under the name it has in the
 * shared history.  A later local timeline may have the only copy.
 */
static void
cut_fork_segment(const SettleInput *input)
{
	XLogRecPtr	fork = input->journal->fork;
	XLogSegNo	segno;
	char		name[MAXFNAMELEN];
	char	   *path;
	uint32		keep;

	XLByteToPrevSeg(fork, segno, input->segment_size);
	keep = XLogSegmentOffset(fork - 1, input->segment_size) + 1;
	XLogFileName(name, input->journal->fork_tli, segno, input->segment_size);
	path = psprintf(XLOGDIR "/%s", name);
	if (!file_exists(path))
		rejoin_refuse(NULL, "WAL segment \"%s\" has disappeared", path);
	zero_range(path, keep, input->segment_size);
	remove_status(name, ".ready");
}

static void
cut_wal(const SettleInput *input)
{
	DIR		   *dir;
	struct dirent *entry;

	cut_fork_segment(input);
	dir = opendir(XLOGDIR);
	if (dir == NULL)
		rejoin_refuse(NULL, "could not open directory \"%s\": %m", XLOGDIR);
	while ((entry = readdir(dir)) != NULL)
		if (is_cut(input, entry->d_name) || is_foreign_history(input, entry->d_name))
			remove_wal(entry->d_name);
	closedir(dir);
	sync_dir(XLOGDIR "/archive_status");
	sync_dir(XLOGDIR);
}

static void
install_history(const SettleInput *input)
{
	const History *history = input->source_history;
	TimeLineID	tli = history->entries[history->n - 1].tli;
	char		name[MAXFNAMELEN];

	if (tli == 1)
		return;
	TLHistoryFileName(name, tli);
	write_durably(psprintf(XLOGDIR "/%s", name), input->history, strlen(input->history));
}

static void
switch_control(const SettleInput *input)
{
	ControlFileData control = input->control;
	const Journal *journal = input->journal;

	control.checkPoint = journal->checkpoint_lsn;
	control.checkPointCopy = journal->checkpoint;
	control.state = DB_IN_ARCHIVE_RECOVERY;
	control.minRecoveryPoint = journal->recovery_point;
	control.minRecoveryPointTLI = journal->source_tli;
	control.backupStartPoint = InvalidXLogRecPtr;
	control.backupEndPoint = InvalidXLogRecPtr;
	control.backupEndRequired = false;
	control.time = (pg_time_t) time(NULL);
	update_controlfile(REJOIN_DIR, &control, true);
	stop_point("control");
	if (rename(REJOIN_DIR "/" CONTROL_FILE, CONTROL_FILE) != 0)
		rejoin_refuse(NULL, "could not rename file \"%s\" to \"%s\": %m",
					  REJOIN_DIR "/" CONTROL_FILE, CONTROL_FILE);
	sync_dir("global");
}

/* A server of this directory ran before, so its lock file is stale. */
static void
remove_stale_files(void)
{
	if (unlink("recovery.signal") != 0 && errno != ENOENT)
		rejoin_refuse(NULL, "could not remove file \"%s\": %m", "recovery.signal");
}

void
settle(const SettleInput *input)
{
	stop_point("settle");
	cut_wal(input);
	stop_point("cut_wal");
	install_history(input);
	remove_tree("pg_tandem");
	remove_stale_files();
	recovery_conf_write(input->conninfo_lines, input->switch_off_restore);
	stop_point("recovery_conf");
	switch_control(input);
	stop_point("switched");
	journal_remove();
}
