/*-------------------------------------------------------------------------
 *
 * reader.h
 *	  Reading blocks of any relation for another node.
 *
 * src/failback/reader.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_READER_H
#define TANDEM_READER_H

#include "common/relpath.h"
#include "storage/block.h"
#include "storage/smgr.h"

#include "common/compat.h"

/* One fork of a relation of any database and tablespace. */
typedef struct TandemFork
{
	TANDEM_RELFILE_ID rel;
	ForkNumber	fork;
} TandemFork;

extern int64 tandem_fork_length(const TandemFork *fork);
extern int	tandem_read_blocks(const TandemFork *fork, BlockNumber first,
							  int count, char *pages);

/* Raises an error unless the caller may read blocks and files. */
extern void tandem_require_reader(bool in_recovery_too);

#endif							/* TANDEM_READER_H */
