/*-------------------------------------------------------------------------
 *
 * column_fit.h
 *	  Does a column here take what a publisher sends?  One rule for the copy
 *	  workers' leader, which says it before the first row is copied, and for
 *	  "tandem doctor", which says it before a subscription is adopted.
 *
 * Plain C without the server's or the client's libraries: the library and the
 * command link the same object.
 *
 * src/common/column_fit.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_COLUMN_FIT_H
#define TANDEM_COLUMN_FIT_H

typedef enum TandemColumnFit
{
	TANDEM_COLUMN_FITS,
	TANDEM_COLUMN_MISSING,		/* the table has no such column: nothing can be copied */
	TANDEM_COLUMN_GENERATED,	/* it is generated here: the same */
	TANDEM_COLUMN_TYPE,			/* another type: some values may not fit */
	TANDEM_COLUMN_DEMANDED		/* NOT NULL without a default, and not sent: rows fail,
								 * unless a trigger fills it */
} TandemColumnFit;

/*
 * A column that the publisher sends.  there, here: types as of format_type();
 * here = NULL: no such column.  binary: values come in binary format.
 */
extern TandemColumnFit tandem_column_fit(const char *there, const char *here, bool generated, bool binary);

/*
 * Writes the statement that mends it; table, column: quoted; type: the
 * publisher's.  Returns the length it has or would have, as snprintf() does.
 */
extern int	tandem_column_fix(char *sql, size_t size, TandemColumnFit fit, const char *table,
							  const char *column, const char *type);

#endif							/* TANDEM_COLUMN_FIT_H */
