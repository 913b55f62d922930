/*-------------------------------------------------------------------------
 *
 * structure.h
 *	  What of a publisher's table doesn't fit the table here.
 *
 * src/subscription/structure.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_STRUCTURE_H
#define TANDEM_STRUCTURE_H

#include "utils/array.h"

/* All palloc'd, or NULL. */
typedef struct TandemStructure
{
	char	   *problem;		/* why it can't be copied */
	char	   *remark;			/* why its rows, or changes, may not fit */
	char	   *hint;			/* the DDL for both */
	bool		binary;			/* every column can be copied in binary format */
} TandemStructure;

/*
 * names, oids, types (as of format_type()): of the columns that the publisher
 * sends; NULL = none.  binary_stream: the subscription has binary = true.  Takes
 * no lock.  In a transaction.
 */
extern void tandem_structure_compare(Oid relid, ArrayType *names, ArrayType *oids, ArrayType *types,
									 bool binary_stream, TandemStructure *result);

#endif							/* TANDEM_STRUCTURE_H */
