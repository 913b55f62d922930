/*-------------------------------------------------------------------------
 *
 * table.h
 *	  Tables for people; see table.c.
 *
 * cli/table.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_TABLE_H
#define TANDEM_TABLE_H

#include "text.h"

typedef struct Table Table;

/*
 * "columns" is a NULL-terminated list of titles; a title that starts with
 * '>' makes a column that is aligned to the right.  Lives until
 * screen_forget().
 */
extern Table *table_new(const char *const *columns);

/* Adds a row of raw strings, one for each column; NULL prints as "-". */
extern void table_row(Table *table,...);

/* Colours one cell of the last row. */
extern void table_colour(Table *table, int column, TextColour colour);

/* Replaces one cell of the last row by text of our own, which isn't cleaned. */
extern void table_cell_raw(Table *table, int column, const char *text, TextColour colour);

/* Cells without a value stay empty. */
extern void table_blank_missing(Table *table);

/* A line of its own under the last row, indented and wrapped. */
extern void table_note(Table *table, const char *text);

/* Appends the table, not wider than text_screen_width(). */
extern void table_print(Table *table, PQExpBuffer out);

#endif							/* TANDEM_TABLE_H */
