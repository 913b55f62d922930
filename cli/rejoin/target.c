/*-------------------------------------------------------------------------
 *
 * target.c
 *	  The data directory that is to be rejoined: may it be, and what is it?
 *
 * Nothing is changed here.
 *
 * Is a server running?  Its lock file names the postmaster; if that process is
 * gone, backends may still live and write, which the number of processes
 * attached to its shared memory tells (as the server itself asks before it
 * starts).  A postmaster that begins to start later finds no pg_control once
 * repairs have begun, see journal.c.
 *
 * May pages be torn?  If the server didn't end cleanly and the machine booted
 * after it started.  Without a lock file nobody can know: then they may.  And if
 * a rejoin was cut short while it wrote pages: a write ends anywhere when the
 * machine stops, and between two pages of memory, which are smaller than ours,
 * when the process is killed.
 *
 * cli/rejoin/target.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

#include "catalog/catversion.h"
#include "common/controldata_utils.h"
#include "rejoin/rejoin.h"
#include "storage/pg_shmem.h"
#include "text.h"

#define LOCK_FILE "postmaster.pid"
#define OPTIONS_FILE "postmaster.opts"

/* Content of a small file, or NULL. */
static char *
read_small(const char *path)
{
	char		buffer[16384];
	FILE	   *file = fopen(path, "r");
	size_t		n;

	if (file == NULL)
		return NULL;
	n = fread(buffer, 1, sizeof(buffer) - 1, file);
	fclose(file);
	buffer[n] = '\0';
	return pg_strdup(buffer);
}

/* The line of that number, counted from 1; NULL if there are fewer. */
static const char *
nth_line(const char *text, int number)
{
	while (text && --number > 0)
	{
		text = strchr(text, '\n');
		if (text)
			text++;
	}
	return text && *text ? text : NULL;
}

/* A process that exists and isn't merely waiting to be reaped. */
static bool
process_lives(pid_t pid)
{
	char		path[64];
	char	   *stat;
	const char *state;

	if (kill(pid, 0) != 0 && errno != EPERM)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
	stat = read_small(path);
	state = stat ? strrchr(stat, ')') : NULL;
	return !(state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X'));
}

/* Does a process still use the shared memory of a server of this directory? */
static bool
memory_in_use(int id)
{
	struct shmid_ds info;
	struct stat here;
	PGShmemHeader *header;
	bool		ours;

	if (shmctl(id, IPC_STAT, &info) != 0 || info.shm_nattch == 0)
		return false;
	if (stat(".", &here) != 0)
		return true;
	header = shmat(id, NULL, SHM_RDONLY);
	if (header == (void *) -1)
		return errno != EINVAL && errno != EIDRM && errno != EACCES;
	ours = info.shm_segsz >= sizeof(PGShmemHeader) && header->magic == PGShmemMagic &&
		header->device == here.st_dev && header->inode == here.st_ino;
	shmdt(header);
	return ours;
}

/* What runs there: *pid of a postmaster, or 0 for backends without one. */
static bool
find_running(Target *target, int *pid)
{
	char	   *lock = read_small(LOCK_FILE);
	const char *line;
	unsigned long key;
	int			id;

	target->stale_pid = 0;
	if (lock == NULL)
		return false;
	*pid = abs(atoi(lock));
	if (*pid > 0 && *pid != getpid() && *pid != getppid() && process_lives(*pid))
		return true;
	target->stale_pid = *pid;
	*pid = 0;
	line = nth_line(lock, 7);
	return line && sscanf(line, "%lu %d", &key, &id) == 2 && memory_in_use(id);
}

bool
target_is_running(Target *target)
{
	int			pid;

	return find_running(target, &pid);
}

void
target_check_stopped(Target *target)
{
	int			pid;

	if (!find_running(target, &pid))
		return;
	if (pid > 0)
		rejoin_refuse(psprintf("Stop it with \"pg_ctl stop\"; if process %d is no PostgreSQL server, remove the file \"%s\".",
							   pid, LOCK_FILE),
					  "a server is running in \"%s\" (process %d)", target->dir, pid);
	rejoin_refuse("Wait until they have ended, or end them.",
				  "processes of the server that crashed still run in \"%s\"", target->dir);
}

/* Seconds since 1970 when the machine booted; 0 = unknown. */
static time_t
boot_time(void)
{
	char	   *stat = read_small("/proc/stat");
	const char *line = stat ? strstr(stat, "\nbtime ") : NULL;

	return line ? (time_t) atol(line + strlen("\nbtime ")) : 0;
}

/* See the head of this file. */
static bool
pages_may_be_torn(const Target *target)
{
	char	   *lock;
	const char *line;
	time_t		booted = boot_time();

	if (target->control.state == DB_SHUTDOWNED ||
		target->control.state == DB_SHUTDOWNED_IN_RECOVERY)
		return false;
	lock = read_small(LOCK_FILE);
	line = lock ? nth_line(lock, 3) : NULL;
	if (line == NULL || booted == 0 || atol(line) == 0)
		return true;
	return booted >= (time_t) atol(line);
}

static void
check_folder(const char *dir)
{
	struct stat st;

	if (geteuid() == 0)
		rejoin_refuse("Run the command as the user that the server runs as.",
					  "cannot be run as root");
	if (stat(dir, &st) != 0)
		rejoin_refuse("Give the data directory of the old primary with -D.",
					  "could not open directory \"%s\": %m", dir);
	if (!S_ISDIR(st.st_mode))
		rejoin_refuse("Give the data directory of the old primary with -D.",
					  "\"%s\" is not a directory", dir);
	if (st.st_uid != geteuid())
		rejoin_refuse("Run the command as the user that the server runs as.",
					  "directory \"%s\" belongs to another user", dir);
	if (chdir(dir) != 0 || access(".", R_OK | W_OK | X_OK) != 0)
		rejoin_refuse("The command needs to read and write all of the directory.",
					  "could not open directory \"%s\": %m", dir);
}

static void
check_version(const char *dir)
{
	char	   *version = read_small("PG_VERSION");

	if (version == NULL)
		rejoin_refuse("Give the data directory of the old primary with -D.",
					  "\"%s\" is not a data directory: no file PG_VERSION", dir);
	if (atoi(version) != PG_VERSION_NUM / 10000)
		rejoin_refuse(psprintf("Use the command \"tandem\" of PostgreSQL %d.", atoi(version)),
					  "\"%s\" is a data directory of PostgreSQL %d, this command is built for %d",
					  dir, atoi(version), PG_VERSION_NUM / 10000);
}

/* get_controlfile() ends the program without a hint if it can't read */
static void
check_readable(const char *folder)
{
	char	   *path = psprintf("%s/%s", folder, CONTROL_FILE);
	int			fd = open(path, O_RDWR | PG_BINARY);

	if (fd < 0 && errno == ENOENT)
		rejoin_refuse("Give the data directory of the old primary with -D.",
					  "this is not a whole data directory: no file \"%s\"", path);
	if (fd < 0)
		rejoin_refuse("Run the command as the user that the server runs as.",
					  "could not open file \"%s\": %m", path);
	close(fd);
}

static void
read_control(Target *target, const char *folder)
{
	ControlFileData *control;
	bool		crc_ok;

	check_readable(folder);
	control = get_controlfile(folder, &crc_ok);
	if (!crc_ok || control->pg_control_version != PG_CONTROL_VERSION)
		rejoin_refuse("A new base backup is the way that remains.",
					  "\"%s/%s\" is damaged", folder, CONTROL_FILE);
	if (control->catalog_version_no != CATALOG_VERSION_NO ||
		control->blcksz != BLCKSZ || control->relseg_size != RELSEG_SIZE ||
		control->xlog_blcksz != XLOG_BLCKSZ)
		rejoin_refuse("Use the command \"tandem\" that was built for this server.",
					  "the server of this directory was built with other sizes than this command");
	target->control = *control;
	target->segment_size = control->xlog_seg_size;
	target->checksums = control->data_checksum_version != 0;
}

/* The server's program beside this one, or NULL. */
static char *
neighbour(const char *program)
{
	char	   *path = pg_malloc(MAXPGPATH);

	if (find_my_exec(program, path) != 0)
		return NULL;
	get_parent_directory(path);
	join_path_components(path, path, "postgres");
	return access(path, X_OK) == 0 ? path : NULL;
}

/* The server's program, and how it was started last. */
static void
read_options(Target *target)
{
	char	   *options = read_small(OPTIONS_FILE);
	char	   *space;

	if (options == NULL)
		return;
	options[strcspn(options, "\n")] = '\0';
	space = strstr(options, " \"");
	if (space)
	{
		target->start_options = space + 1;
		*space = '\0';
	}
	if (access(options, X_OK) == 0)
		target->postgres = options;
}

void
target_open(Target *target, const Options *options)
{
	struct stat st;
	const char *found = options->data_dir;
	bool		interrupted;

	memset(target, 0, sizeof(*target));
	target->dir = make_absolute_path(found);
	target->postgres = neighbour(options->program);
	check_folder(found);
	check_version(found);
	target_check_stopped(target);

	interrupted = stat(REJOIN_DIR, &st) == 0 && access(CONTROL_FILE, F_OK) != 0;
	read_control(target, interrupted ? REJOIN_DIR : ".");

	if (access("backup_label", F_OK) == 0 || target->control.backupEndRequired ||
		!XLogRecPtrIsInvalid(target->control.backupStartPoint))
		rejoin_refuse("Start it as a standby; there is nothing to bring back.",
					  "\"%s\" is a base backup that was never started to its end", found);
	target->torn_pages = interrupted || pages_may_be_torn(target);
	read_options(target);
	/*
	 * The last -D wins.  If the configuration is in here, it is this directory,
	 * wherever it was when the server last ran; else -D may name the
	 * configuration's.
	 */
	if (target->start_options == NULL || access("postgresql.conf", F_OK) == 0)
		target->start_options = psprintf("%s \"-D\" \"%s\"",
										 target->start_options ? target->start_options : "", target->dir);
	if (options->config_file)
		target->start_options = psprintf("%s \"-c\" \"config_file=%s\"",
										 target->start_options, options->config_file);
}

void
target_lock(Target *target)
{
	/* not to be inherited by the server that we start */
	int			fd = open(".", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0)
		rejoin_refuse("Wait until it has ended.",
					  "another \"tandem rejoin\" is at work in \"%s\"", target->dir);
	/* stays open until the process ends */
}

char *
target_setting(const Target *target, const char *name)
{
	char		line[4096];
	char	   *command;
	FILE	   *pipe;
	bool		got;

	if (target->postgres == NULL)
		return NULL;
	command = psprintf("\"%s\" %s -C %s 2>/dev/null", target->postgres, target->start_options, name);
	fflush(NULL);
	pipe = popen(command, "r");
	if (pipe == NULL)
		return NULL;
	got = fgets(line, sizeof(line), pipe) != NULL;
	if (pclose(pipe) != 0 || !got)
		return NULL;
	line[strcspn(line, "\n")] = '\0';
	return pg_strdup(line);
}
