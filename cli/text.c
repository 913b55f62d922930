/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Text that is safe to show, and memory that lives for one screen.
 *
 * Whatever a server sends (names, errors, hints) may hold newlines, escape
 * sequences or bytes of no encoding at all.  text_clean() turns it into one
 * line of printable characters: everything else becomes a visible escape such
 * as \n, \x1b or \u202e.  Connections use UTF-8; on a terminal of another
 * encoding all characters beyond ASCII are escaped as well.
 *
 * cli/text.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/logging.h"
#include "mb/pg_wchar.h"
#include "text.h"

#define WIDTH_MOST 100
#define WIDTH_LEAST 60

typedef struct ScreenChunk
{
	struct ScreenChunk *next;
} ScreenChunk;

static ScreenChunk *screen_chunks = NULL;
static bool locale_is_utf8 = false;
static bool use_colour = false;
static bool is_terminal = false;

void
text_init(void)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	locale_is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	is_terminal = isatty(fileno(stdout));
	use_colour = is_terminal && !(no_color && no_color[0]) &&
		term && strcmp(term, "dumb") != 0;
}

bool
text_is_terminal(void)
{
	return is_terminal;
}

bool
text_is_utf8(void)
{
	return locale_is_utf8;
}

int
text_screen_width(void)
{
	struct winsize size;
	const char *columns = getenv("COLUMNS");
	int			width = WIDTH_MOST;

	if (is_terminal && ioctl(fileno(stdout), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		width = size.ws_col;
	else if (columns && atoi(columns) > 0)
		width = atoi(columns);
	return Max(WIDTH_LEAST, Min(WIDTH_MOST, width));
}

void *
screen_alloc(size_t size)
{
	ScreenChunk *chunk = pg_malloc0(MAXALIGN(sizeof(ScreenChunk)) + size);

	chunk->next = screen_chunks;
	screen_chunks = chunk;
	return (char *) chunk + MAXALIGN(sizeof(ScreenChunk));
}

char *
screen_strdup(const char *s)
{
	char	   *copy;

	if (s == NULL)
		return NULL;
	copy = screen_alloc(strlen(s) + 1);
	strcpy(copy, s);
	return copy;
}

char *
screen_printf(const char *fmt,...)
{
	PQExpBufferData buf;
	va_list		args;
	char	   *copy;
	int			len;

	va_start(args, fmt);
	len = vsnprintf(NULL, 0, fmt, args);
	va_end(args);

	initPQExpBuffer(&buf);
	if (len < 0 || !enlargePQExpBuffer(&buf, len + 1))
		pg_fatal("out of memory");
	va_start(args, fmt);
	vsnprintf(buf.data, len + 1, fmt, args);
	va_end(args);

	copy = screen_strdup(buf.data);
	termPQExpBuffer(&buf);
	return copy;
}

void
screen_forget(void)
{
	while (screen_chunks)
	{
		ScreenChunk *next = screen_chunks->next;

		free(screen_chunks);
		screen_chunks = next;
	}
}

/*
 * Characters that print nothing but change how others look: C1 controls,
 * zero-width characters, line separators, writing direction, tags.
 */
static bool
is_deceptive(pg_wchar c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad ||
		(c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
		(c >= 0x2060 && c <= 0x206f) || c == 0x061c || c == 0xfeff ||
		(c >= 0xfff0 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe0fff);
}

char *
text_clean(const char *raw)
{
	PQExpBufferData buf;
	const unsigned char *s = (const unsigned char *) raw;
	char	   *copy;
	size_t		left = raw ? strlen(raw) : 0;

	initPQExpBuffer(&buf);
	while (left > 0)
	{
		int			len = pg_utf_mblen(s);

		if (len > (int) left || !pg_utf8_islegal(s, len))
		{
			appendPQExpBuffer(&buf, "\\x%02x", *s);
			len = 1;
		}
		else if (len == 1)
		{
			if (*s == '\n')
				appendPQExpBufferStr(&buf, "\\n");
			else if (*s == '\t')
				appendPQExpBufferStr(&buf, "\\t");
			else if (*s == '\r')
				appendPQExpBufferStr(&buf, "\\r");
			else if (is_deceptive(*s))
				appendPQExpBuffer(&buf, "\\x%02x", *s);
			else
				appendPQExpBufferChar(&buf, *s);
		}
		else
		{
			pg_wchar	c = utf8_to_unicode(s);

			if (!locale_is_utf8 || is_deceptive(c))
				appendPQExpBuffer(&buf, "\\u%04x", (unsigned int) c);
			else
				appendBinaryPQExpBuffer(&buf, (const char *) s, len);
		}
		s += len;
		left -= len;
	}
	if (PQExpBufferDataBroken(buf))
		pg_fatal("out of memory");
	copy = screen_strdup(buf.data);
	termPQExpBuffer(&buf);
	return copy;
}

char *
text_message(const char *message)
{
	PQExpBufferData buf;
	char	   *line;

	initPQExpBuffer(&buf);
	for (const char *p = message; *p; p++)
	{
		if (*p != '\n')
			appendPQExpBufferChar(&buf, *p == '\t' ? ' ' : *p);
		else if (p[1] != '\0')
			appendPQExpBufferStr(&buf, "; ");
	}
	line = text_clean(buf.data);
	termPQExpBuffer(&buf);
	return line;
}

/* Columns of the character at s (0 for one that combines), and its bytes. */
static int
char_columns(const char *s, int *bytes)
{
	*bytes = pg_encoding_mblen(PG_UTF8, s);
	return Max(pg_encoding_dsplen(PG_UTF8, s), 0);
}

int
text_width(const char *clean)
{
	int			columns = 0;
	int			bytes;

	for (; *clean != '\0'; clean += bytes)
		columns += char_columns(clean, &bytes);
	return columns;
}

int
text_bytes_of(const char *clean, int columns)
{
	int			pos = 0;

	while (clean[pos] != '\0' && columns > 0)
	{
		int			bytes;

		columns -= char_columns(clean + pos, &bytes);
		pos += bytes;
	}
	return pos;
}

int
text_fit(const char *clean, int width)
{
	int			columns = 0;
	int			pos = 0;
	int			space = 0;

	while (clean[pos] != '\0')
	{
		int			bytes;

		columns += char_columns(clean + pos, &bytes);
		if (columns > width && pos > 0)
			return space > 0 && clean[pos] != ' ' ? space : pos;
		if (clean[pos] == ' ')
			space = pos;
		pos += bytes;
	}
	return pos;
}

void
text_wrap(PQExpBuffer out, const char *clean, int indent, int width)
{
	while (*clean != '\0')
	{
		int			len = text_fit(clean, Max(width - indent, 1));

		appendPQExpBuffer(out, "%*s%.*s\n", indent, "", len, clean);
		clean += len;
		while (*clean == ' ')
			clean++;
	}
}

void
text_paint(PQExpBuffer out, TextColour colour, const char *text, int len)
{
	static const char *const codes[] = {
		[COLOUR_GOOD] = "32", [COLOUR_WARN] = "33", [COLOUR_BAD] = "31", [COLOUR_TITLE] = "1"};

	if (colour != COLOUR_NONE && use_colour && len > 0)
		appendPQExpBuffer(out, "\033[%sm%.*s\033[0m", codes[colour], len, text);
	else
		appendBinaryPQExpBuffer(out, text, len);
}

char *
text_bytes(int64 bytes)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	double		value = bytes;
	int			unit = 0;

	while (unit < (int) lengthof(units) - 1 && (value >= 1024 || value <= -1024))
		value /= 1024, unit++;
	if (unit == 0 || value >= 10 || value <= -10 || value == (int) value)
		return screen_printf("%.0f %s", value, units[unit]);
	return screen_printf("%.1f %s", value, units[unit]);
}

char *
text_duration(double seconds)
{
	if (seconds < 10)
		return screen_printf("%.1f s", Max(seconds, 0));
	if (seconds < 120)
		return screen_printf("%.0f s", seconds);
	if (seconds < 2 * 3600)
		return screen_printf("%.0f min", seconds / 60);
	if (seconds < 2 * 86400)
		return screen_printf("%.0f h", seconds / 3600);
	return screen_printf("%.0f d", seconds / 86400);
}
