/*-------------------------------------------------------------------------
 *
 * result.c
 *	  Reading query results by column name.
 *
 * A result that is NULL has no rows; a column that isn't there is null: so
 * that a server of another version, or one that didn't answer, needs no
 * special care.
 *
 * cli/result.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "result.h"

int
nrows(const PGresult *res)
{
	return res ? PQntuples(res) : 0;
}

const char *
field(const PGresult *res, int row, const char *column)
{
	int			col = res ? PQfnumber(res, column) : -1;

	if (col < 0 || row < 0 || row >= PQntuples(res) || PQgetisnull(res, row, col))
		return NULL;
	return PQgetvalue(res, row, col);
}

bool
field_is_true(const PGresult *res, int row, const char *column)
{
	const char *value = field(res, row, column);

	return value && strcmp(value, "t") == 0;
}

uint64
parse_lsn(const char *text)
{
	unsigned int high;
	unsigned int low;

	if (text == NULL || sscanf(text, "%X/%X", &high, &low) != 2)
		return 0;
	return ((uint64) high << 32) | low;
}

uint64
field_lsn(const PGresult *res, int row, const char *column)
{
	return parse_lsn(field(res, row, column));
}

int
find_row(const PGresult *res, const char *column, const char *value)
{
	for (int row = 0; value && row < nrows(res); row++)
	{
		const char *have = field(res, row, column);

		if (have && strcmp(have, value) == 0)
			return row;
	}
	return -1;
}
