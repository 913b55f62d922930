/*-------------------------------------------------------------------------
 *
 * wal_position.h
 *	  Positions in another server's WAL; see wal_position.c.
 *
 * src/common/wal_position.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_WAL_POSITION_H
#define TANDEM_WAL_POSITION_H

#include "access/xlogdefs.h"

/*
 * The end of the last record before an insert position, with that server's
 * wal_block_size and wal_segment_size (bytes).  Where that is a page's end, the
 * insert position is behind the next page's header, and neither what is flushed
 * nor what is sent gets there before there is another record.
 */
extern XLogRecPtr tandem_end_of_record(XLogRecPtr insert, int64 page, int64 segment);

#endif							/* TANDEM_WAL_POSITION_H */
