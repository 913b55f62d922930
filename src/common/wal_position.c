/*-------------------------------------------------------------------------
 *
 * wal_position.c
 *	  Positions in another server's WAL.
 *
 * Called by src/subscription (waves) and src/conflict (epochs), with what a
 * publisher answered.
 *
 * src/common/wal_position.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog_internal.h"

#include "common/wal_position.h"

XLogRecPtr
tandem_end_of_record(XLogRecPtr insert, int64 page, int64 segment)
{
	if (insert % segment == SizeOfXLogLongPHD)
		return insert - SizeOfXLogLongPHD;
	if (insert % segment > (uint64) page && insert % page == SizeOfXLogShortPHD)
		return insert - SizeOfXLogShortPHD;
	return insert;
}
