/*-------------------------------------------------------------------------
 *
 * table.c
 *	  Tables for people: columns line up, nothing is wider than the screen.
 *
 * A table wider than the screen takes from its widest columns until it fits;
 * their cells go on in the next line.  Notes (reasons, hints) stand under
 * their row over the whole width.  Cells and notes are cleaned on the way in.
 *
 * cli/table.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "table.h"

#define MOST_COLUMNS 12
#define GAP 2					/* blanks between two columns */
#define NARROWEST 6				/* no column is squeezed below this */
#define NOTE_INDENT 4

typedef struct TableRow
{
	struct TableRow *next;
	const char *note;			/* if set, a note and not a row */
	const char *cells[MOST_COLUMNS];
	TextColour	colours[MOST_COLUMNS];
} TableRow;

struct Table
{
	int			ncolumns;
	const char *titles[MOST_COLUMNS];
	bool		right[MOST_COLUMNS];
	TableRow   *first;
	TableRow   *last;			/* the last row or note */
	TableRow   *last_row;
};

Table *
table_new(const char *const *columns)
{
	Table	   *table = screen_alloc(sizeof(Table));

	for (int i = 0; columns[i] != NULL; i++)
	{
		Assert(i < MOST_COLUMNS);
		table->right[i] = columns[i][0] == '>';
		table->titles[i] = columns[i] + (table->right[i] ? 1 : 0);
		table->ncolumns++;
	}
	return table;
}

static TableRow *
append_row(Table *table)
{
	TableRow   *row = screen_alloc(sizeof(TableRow));

	if (table->last)
		table->last->next = row;
	else
		table->first = row;
	table->last = row;
	return row;
}

void
table_row(Table *table,...)
{
	TableRow   *row = append_row(table);
	va_list		args;

	table->last_row = row;
	va_start(args, table);
	for (int i = 0; i < table->ncolumns; i++)
	{
		const char *cell = va_arg(args, const char *);

		row->cells[i] = cell && *cell ? text_clean(cell) : "-";
	}
	va_end(args);
}

void
table_colour(Table *table, int column, TextColour colour)
{
	table->last_row->colours[column] = colour;
}

void
table_cell_raw(Table *table, int column, const char *text, TextColour colour)
{
	table->last_row->cells[column] = text;
	table->last_row->colours[column] = colour;
}

void
table_blank_missing(Table *table)
{
	for (TableRow *row = table->first; row; row = row->next)
		for (int i = 0; i < table->ncolumns && row->note == NULL; i++)
			if (strcmp(row->cells[i], "-") == 0)
				row->cells[i] = "";
}

void
table_note(Table *table, const char *text)
{
	append_row(table)->note = text_clean(text);
}

/* Prints one row, over as many lines as its longest cell needs. */
static void
print_cells(Table *table, const char *const *cells, const TextColour *colours,
			const int *widths, PQExpBuffer out)
{
	const char *rest[MOST_COLUMNS];
	bool		more = true;

	memcpy(rest, cells, sizeof(char *) * table->ncolumns);
	while (more)
	{
		int			owed = 0;	/* blanks not yet printed: no line ends with any */

		more = false;
		for (int i = 0; i < table->ncolumns; i++)
		{
			int			len = text_fit(rest[i], widths[i]);
			int			columns = text_width(screen_printf("%.*s", len, rest[i]));
			int			pad = Max(widths[i] - columns, 0);

			if (table->right[i])
				owed += pad;
			if (len > 0)
			{
				appendPQExpBuffer(out, "%*s", owed, "");
				owed = 0;
				text_paint(out, colours[i], rest[i], len);
			}
			if (!table->right[i])
				owed += pad;
			owed += GAP;

			rest[i] += len;
			while (*rest[i] == ' ')
				rest[i]++;
			more |= *rest[i] != '\0';
		}
		appendPQExpBufferChar(out, '\n');
	}
}

void
table_print(Table *table, PQExpBuffer out)
{
	TextColour	title_colours[MOST_COLUMNS];
	int			widths[MOST_COLUMNS];
	int			screen = text_screen_width();
	int			total = -GAP;

	Assert(table->ncolumns > 0);
	for (int i = 0; i < table->ncolumns; i++)
	{
		widths[i] = text_width(table->titles[i]);
		for (TableRow *row = table->first; row; row = row->next)
			if (row->note == NULL)
				widths[i] = Max(widths[i], text_width(row->cells[i]));
		total += widths[i] + GAP;
		title_colours[i] = COLOUR_TITLE;
	}
	while (total > screen)
	{
		int			widest = 0;

		for (int i = 1; i < table->ncolumns; i++)
			if (widths[i] > widths[widest])
				widest = i;
		if (widths[widest] <= NARROWEST)
			break;
		widths[widest]--;
		total--;
	}

	print_cells(table, table->titles, title_colours, widths, out);
	for (TableRow *row = table->first; row; row = row->next)
	{
		if (row->note)
			text_wrap(out, row->note, NOTE_INDENT, screen);
		else
			print_cells(table, row->cells, row->colours, widths, out);
	}
}
