/*-------------------------------------------------------------------------
 *
 * column_fit.c
 *	  Does a column here take what a publisher sends?
 *
 * Called by subscription/structure.c and by the command's
 * check_subscription.c.
 *
 * src/common/column_fit.c
 *-------------------------------------------------------------------------
 */
#include "c.h"

#include "common/column_fit.h"

#define VARYING "character varying"

/* The length in "character varying(10)", or 0. */
static int
type_length(const char *type)
{
	return atoi(type + strcspn(type, "0123456789"));
}

/* Can every value of one type be stored in the other, when it comes as text? */
static bool
widens(const char *from, const char *to)
{
	static const char *const numbers[] = {"smallint", "integer", "bigint", "numeric"};
	int			f = -1;
	int			t = -1;

	for (int i = 0; i < (int) lengthof(numbers); i++)
	{
		if (strcmp(from, numbers[i]) == 0)
			f = i;
		if (strcmp(to, numbers[i]) == 0)
			t = i;
	}
	if (f >= 0 && t >= 0)
		return f <= t;
	if (strncmp(from, VARYING, strlen(VARYING)) == 0 && strstr(from, "[]") == NULL)
	{
		int			length = type_length(from);

		if (strcmp(to, "text") == 0 || strcmp(to, VARYING) == 0)
			return true;
		return strncmp(to, VARYING, strlen(VARYING)) == 0 && strstr(to, "[]") == NULL &&
			length > 0 && length <= type_length(to);
	}
	if (strcmp(from, "text") == 0)
		return strcmp(to, VARYING) == 0;
	return strcmp(from, "real") == 0 && strcmp(to, "double precision") == 0;
}

TandemColumnFit
tandem_column_fit(const char *there, const char *here, bool generated, bool binary)
{
	if (here == NULL)
		return TANDEM_COLUMN_MISSING;
	if (generated)
		return TANDEM_COLUMN_GENERATED;
	if (strcmp(there, here) != 0 && (binary || !widens(there, here)))
		return TANDEM_COLUMN_TYPE;
	return TANDEM_COLUMN_FITS;
}

int
tandem_column_fix(char *sql, size_t size, TandemColumnFit fit, const char *table,
				  const char *column, const char *type)
{
	switch (fit)
	{
		case TANDEM_COLUMN_MISSING:
			return snprintf(sql, size, "ALTER TABLE %s ADD COLUMN %s %s;", table, column, type);
		case TANDEM_COLUMN_GENERATED:
			return snprintf(sql, size, "ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION;", table, column);
		case TANDEM_COLUMN_TYPE:
			return snprintf(sql, size, "ALTER TABLE %s ALTER COLUMN %s TYPE %s USING %s::%s;",
							table, column, type, column, type);
		case TANDEM_COLUMN_DEMANDED:
			return snprintf(sql, size, "ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", table, column);
		case TANDEM_COLUMN_FITS:
			break;
	}
	return 0;
}
