/*-------------------------------------------------------------------------
 *
 * text.h
 *	  Text that is safe to show, and memory that lives for one screen.
 *
 * cli/text.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_TEXT_H
#define TANDEM_TEXT_H

#include "postgres_fe.h"

#include "pqexpbuffer.h"

typedef enum TextColour
{
	COLOUR_NONE,
	COLOUR_GOOD,
	COLOUR_WARN,
	COLOUR_BAD,
	COLOUR_TITLE
} TextColour;

/* Looks at locale, terminal and NO_COLOR; call once. */
extern void text_init(void);

/* Columns to print in: the terminal's, at least 60, never more than 100. */
extern int	text_screen_width(void);
extern bool text_is_terminal(void);

/* May more than ASCII be printed? */
extern bool text_is_utf8(void);

/*
 * All strings below live until the next screen_forget(), which --watch calls
 * before each screen.
 */
extern void *screen_alloc(size_t size);
extern char *screen_strdup(const char *s);
extern char *screen_printf(const char *fmt,...) pg_attribute_printf(1, 2);
extern void screen_forget(void);

/* One line without anything that a terminal would obey; NULL gives "". */
extern char *text_clean(const char *raw);

/* The same of a message of libpq, which ends in a newline and may have several lines. */
extern char *text_message(const char *message);

/* Columns that clean text takes. */
extern int	text_width(const char *clean);

/* Bytes of the first "columns" columns of clean text. */
extern int	text_bytes_of(const char *clean, int columns);

/*
 * Bytes of clean text that fit into "width" columns, broken at a space if
 * there is one; at least one character.
 */
extern int	text_fit(const char *clean, int width);

/* Appends clean text word-wrapped, each line after "indent" spaces. */
extern void text_wrap(PQExpBuffer out, const char *clean, int indent, int width);

/* Appends text in a colour, if the output is a terminal that wants it. */
extern void text_paint(PQExpBuffer out, TextColour colour, const char *text, int len);

/* "1.5 GB", "12 kB" and "3.2 s", "4 min" for people; screen memory. */
extern char *text_bytes(int64 bytes);
extern char *text_duration(double seconds);

#endif							/* TANDEM_TEXT_H */
