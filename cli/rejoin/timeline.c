/*-------------------------------------------------------------------------
 *
 * timeline.c
 *	  Timeline histories, and where two of them part.
 *
 * A history file has one line for each ancestor: its timeline, where it ended,
 * and why (readTimeLineHistory in the server's timeline.c).  Two servers share
 * a timeline only if it began at the same place in both: two standbys may have
 * been promoted to the same number independently.  That two timelines of the
 * same number and the same beginning are the same is checked against the WAL
 * itself, see plan.c.
 *
 * cli/rejoin/timeline.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "rejoin/rejoin.h"

static void
add_entry(History *history, TimeLineID tli, XLogRecPtr begin, XLogRecPtr end)
{
	history->entries = pg_realloc(history->entries,
								  (history->n + 1) * sizeof(TimeLineHistoryEntry));
	history->entries[history->n].tli = tli;
	history->entries[history->n].begin = begin;
	history->entries[history->n].end = end;
	history->n++;
}

void
history_parse(History *history, TimeLineID tli, const char *content, const char *what)
{
	const char *p = content;
	XLogRecPtr	begin = InvalidXLogRecPtr;
	TimeLineID	last = 0;

	memset(history, 0, sizeof(*history));
	while (*p)
	{
		const char *line = p + strspn(p, " \t\r\n");
		unsigned	parent;
		unsigned	high;
		unsigned	low;

		p = line + strcspn(line, "\n");
		if (*line == '\0' || *line == '#' || line == p)
			continue;
		if (sscanf(line, "%u\t%X/%X", &parent, &high, &low) != 3 || parent <= last)
			rejoin_refuse(NULL, "the history of timeline %u %s is damaged", tli, what);
		last = parent;
		add_entry(history, parent, begin, ((uint64) high << 32) | low);
		begin = history->entries[history->n - 1].end;
	}
	if (last >= tli)
		rejoin_refuse(NULL, "the history of timeline %u %s is damaged", tli, what);
	add_entry(history, tli, begin, InvalidXLogRecPtr);
}

void
history_read_local(History *history, TimeLineID tli)
{
	char		name[MAXFNAMELEN];
	char		path[MAXPGPATH];
	char		buffer[65536];
	size_t		n;
	FILE	   *file;

	if (tli == 1)
	{
		history_parse(history, 1, "", "in this directory");
		return;
	}
	TLHistoryFileName(name, tli);
	snprintf(path, sizeof(path), XLOGDIR "/%s", name);
	file = fopen(path, "r");
	if (file == NULL)
		rejoin_refuse("Put the file back from the archive.",
					  "could not open the history of timeline %u, file \"%s\": %m", tli, path);
	n = fread(buffer, 1, sizeof(buffer) - 1, file);
	buffer[n] = '\0';
	fclose(file);
	history_parse(history, tli, buffer, "in this directory");
}

bool
history_fork(const History *local, const History *source, TimeLineID *tli, XLogRecPtr *fork)
{
	int			i = 0;

	while (i < local->n && i < source->n &&
		   local->entries[i].tli == source->entries[i].tli &&
		   local->entries[i].begin == source->entries[i].begin)
		i++;
	if (i == 0)
		return false;
	*tli = local->entries[i - 1].tli;
	*fork = local->entries[i - 1].end;
	if (XLogRecPtrIsInvalid(*fork) ||
		(!XLogRecPtrIsInvalid(source->entries[i - 1].end) && source->entries[i - 1].end < *fork))
		*fork = source->entries[i - 1].end;
	return true;
}

bool
history_has(const History *history, TimeLineID tli)
{
	for (int i = 0; i < history->n; i++)
		if (history->entries[i].tli == tli)
			return true;
	return false;
}

XLogRecPtr
history_end(const History *history, TimeLineID tli)
{
	for (int i = 0; i < history->n; i++)
		if (history->entries[i].tli == tli)
			return history->entries[i].end;
	return InvalidXLogRecPtr;
}
