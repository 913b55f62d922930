/*-------------------------------------------------------------------------
 *
 * reader.h
 *	  Reading pages of any relation of the cluster; reader.c.
 *
 * src/failback/reader.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_FAILBACK_READER_H
#define TANDEM_FAILBACK_READER_H

#include "storage/block.h"
#include "storage/relfilenode.h"

/* A file kept open from block to block. */
typedef struct TandemBlockReader
{
	RelFileNode rnode;
	ForkNumber	fork;
	uint32		segment;
	int			fd;				/* OpenTransientFile(), -1 = none or no such file */
	bool		opened;
} TandemBlockReader;

extern void tandem_reader_init(TandemBlockReader *reader);

/*
 * Copies a page as it is now, newer than anything done before the call, to
 * BLCKSZ bytes at "page".  Returns false if the block or its fork doesn't
 * exist.  Takes buffer locks for a moment; raises an error for a page whose
 * checksum is wrong or that can't be read.  Interruptible between pages.
 */
extern bool tandem_reader_read(TandemBlockReader *reader, RelFileNode rnode,
							   ForkNumber fork, BlockNumber block, char *page);

/* Length of a fork in blocks, -1 if it doesn't exist. */
extern int64 tandem_reader_blocks(RelFileNode rnode, ForkNumber fork);

extern void tandem_reader_close(TandemBlockReader *reader);

#endif							/* TANDEM_FAILBACK_READER_H */
