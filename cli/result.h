/*-------------------------------------------------------------------------
 *
 * result.h
 *	  Reading query results by column name; result.c.
 *
 * cli/result.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_RESULT_H
#define TANDEM_RESULT_H

#include "postgres_fe.h"

#include "libpq-fe.h"

/* A field by column name; NULL if it is null or there is no such row. */
extern const char *field(const PGresult *res, int row, const char *column);
extern bool field_is_true(const PGresult *res, int row, const char *column);
extern uint64 field_lsn(const PGresult *res, int row, const char *column);
extern int	nrows(const PGresult *res);

/* The row in which "column" is "value", or -1. */
extern int	find_row(const PGresult *res, const char *column, const char *value);

/* "16/B374D848" as a number; 0 for NULL or what isn't one. */
extern uint64 parse_lsn(const char *text);

#endif							/* TANDEM_RESULT_H */
