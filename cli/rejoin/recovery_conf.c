/*-------------------------------------------------------------------------
 *
 * recovery_conf.c
 *	  The settings that make the node follow the new primary.
 *
 * They go to postgresql.auto.conf, where pg_basebackup -R and ALTER SYSTEM
 * write theirs: it is read last, wherever the other files are and whoever may
 * write them.  Other lines of it stay as they are.  The file is replaced by
 * renaming, so it may be read-only.
 *
 * The archive may have segments of the old timeline from after the fork, and
 * replay would take the fork's segment from there, the whole of it.  So
 * restore_command is switched off until a restartpoint lies past the fork.
 *
 * cli/rejoin/recovery_conf.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "rejoin/rejoin.h"

#define AUTO_CONF "postgresql.auto.conf"
#define RESTORE_OFF "restore_command = ''		# tandem rejoin, until replay has passed the fork\n"

static const char *const our_settings[] = {
	"primary_conninfo", "primary_slot_name", "recovery_target_timeline", NULL};

/* Does a line of the file set this? */
static bool
line_sets(const char *line, const char *name)
{
	size_t		len = strlen(name);

	line += strspn(line, " \t");
	return pg_strncasecmp(line, name, len) == 0 && strchr(" \t=", line[len]) != NULL && line[len];
}

static bool
is_restore_off(const char *line)
{
	return strncmp(line, RESTORE_OFF, strlen(RESTORE_OFF) - 1) == 0;
}

/* The file without what we replace; NULL if there is none. */
static void
read_rest(PQExpBuffer out, bool drop_ours)
{
	FILE	   *file = fopen(AUTO_CONF, "r");
	char		line[65536];

	if (file == NULL && errno == ENOENT)
		return;
	if (file == NULL)
		rejoin_refuse(NULL, "could not open file \"%s\": %m", AUTO_CONF);
	while (fgets(line, sizeof(line), file))
	{
		bool		drop = is_restore_off(line);

		for (int i = 0; drop_ours && our_settings[i]; i++)
			drop = drop || line_sets(line, our_settings[i]);
		if (!drop)
		{
			appendPQExpBufferStr(out, line);
			if (line[0] && line[strlen(line) - 1] != '\n' && feof(file))
				appendPQExpBufferChar(out, '\n');
		}
	}
	fclose(file);
}

void
recovery_conf_write(const char *lines, bool switch_off_restore)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	read_rest(&out, true);
	appendPQExpBufferStr(&out, lines);
	appendPQExpBufferStr(&out, "recovery_target_timeline = 'latest'\n");
	if (switch_off_restore)
		appendPQExpBufferStr(&out, RESTORE_OFF);
	if (PQExpBufferDataBroken(out))
		rejoin_refuse(NULL, "out of memory");
	write_durably(AUTO_CONF, out.data, out.len);
	write_durably("standby.signal", "", 0);
	termPQExpBuffer(&out);
}

bool
recovery_conf_restore_is_off(void)
{
	FILE	   *file = fopen(AUTO_CONF, "r");
	char		line[65536];
	bool		off = false;

	while (file && fgets(line, sizeof(line), file))
		off = off || is_restore_off(line);
	if (file)
		fclose(file);
	return off;
}

void
recovery_conf_allow_restore(void)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	read_rest(&out, false);
	write_durably(AUTO_CONF, out.data, out.len);
	termPQExpBuffer(&out);
}
