/*-------------------------------------------------------------------------
 *
 * record.c
 *	  What single WAL records say, beyond the blocks they name.
 *
 * The main data of a record is the structure that the server's header of its
 * resource manager declares; commit and abort records are a sequence of parts
 * that flags announce (access/xact.h).  wal.c has checked the CRC, so the bytes
 * are what the server wrote, and lengths are only checked so that nothing is
 * ever read past the end.
 *
 * Called by the planning part of rejoin, for every record of the tail.
 *
 * cli/rejoin/record.c
 *-------------------------------------------------------------------------
 */
/* Headers of the server's resource managers, read as pg_waldump does. */
#define FRONTEND 1
#include "postgres.h"

#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/multixact.h"
#include "access/xact.h"
#include "catalog/storage_xlog.h"
#include "commands/dbcommands_xlog.h"
#include "commands/tablespace.h"
#include "common/compat.h"
#include "common/logging.h"
#include "rejoin/record.h"
#include "replication/origin.h"
#include "utils/relmapper.h"

static const char *const rmgr_names[] = {
#define PG_RMGR(symname, name, redo, desc, identify, startup, cleanup, mask, decode) name,
#include "access/rmgrlist.h"
#undef PG_RMGR
};

const char *
record_rmgr_name(RmgrId rmid)
{
	static char custom[16];

	if (rmid < lengthof(rmgr_names))
		return rmgr_names[rmid];
	snprintf(custom, sizeof(custom), "custom%03d", rmid);
	return custom;
}

/* ---- Reading main data --------------------------------------------------- */

/* The main data from "offset" on, of which "len" bytes must be there. */
static const char *
bytes_at(const WalRecord *record, uint64 offset, uint64 len)
{
	if (offset > record->data_len || len > record->data_len - offset)
		pg_fatal("the WAL record at %X/%X (%s) is too short",
				 LSN_FORMAT_ARGS(record->lsn), record_rmgr_name(record->rmid));
	return record->data + offset;
}

/* "count" of something, as a record gives it; never negative. */
static uint64
checked_count(const WalRecord *record, int count)
{
	if (count < 0)
		pg_fatal("the WAL record at %X/%X (%s) has a count of %d",
				 LSN_FORMAT_ARGS(record->lsn), record_rmgr_name(record->rmid), count);
	return (uint64) count;
}

/* Is it this kind of record? */
static bool
is_a(const WalRecord *record, RmgrId rmid, uint8 info)
{
	return record->rmid == rmid && (record->info & XLR_RMGR_INFO_MASK) == info;
}

/* ---- Transactions -------------------------------------------------------- */

static void
read_prepare(const WalRecord *record, RecordXact *xact)
{
	xl_xact_prepare prepare;
	uint64		offset;

	memcpy(&prepare, bytes_at(record, 0, sizeof(prepare)), sizeof(prepare));
	xact->prepare = true;
	xact->xid = prepare.xid;
	xact->time = prepare.prepared_at;
	xact->origin_lsn = prepare.origin_lsn;
	xact->nsubxacts = prepare.nsubxacts;
	offset = MAXALIGN(sizeof(prepare)) + MAXALIGN(prepare.gidlen);
	xact->subxacts = (const TransactionId *)
		bytes_at(record, offset,
				 checked_count(record, prepare.nsubxacts) * sizeof(TransactionId));
}

/* The parts that "xinfo" announces, in the order of access/xact.h. */
static void
read_end(const WalRecord *record, RecordXact *xact)
{
	uint64		offset = sizeof(TimestampTz);
	uint32		xinfo = 0;
	int			count;

	memcpy(&xact->time, bytes_at(record, 0, sizeof(TimestampTz)), sizeof(TimestampTz));
	if (record->info & XLOG_XACT_HAS_INFO)
	{
		memcpy(&xinfo, bytes_at(record, offset, sizeof(xinfo)), sizeof(xinfo));
		offset += sizeof(xl_xact_xinfo);
	}
	if (xinfo & XACT_XINFO_HAS_DBINFO)
		offset += sizeof(xl_xact_dbinfo);
	if (xinfo & XACT_XINFO_HAS_SUBXACTS)
	{
		uint64		size;

		memcpy(&count, bytes_at(record, offset, sizeof(count)), sizeof(count));
		offset += MinSizeOfXactSubxacts;
		size = checked_count(record, count) * sizeof(TransactionId);
		xact->nsubxacts = count;
		xact->subxacts = (const TransactionId *) bytes_at(record, offset, size);
		offset += size;
	}
	if (xinfo & TANDEM_XACT_HAS_RELATIONS)
	{
		uint64		size;

		memcpy(&count, bytes_at(record, offset, sizeof(count)), sizeof(count));
		offset += sizeof(count);
		size = checked_count(record, count) * sizeof(RelFile);
		xact->nrels = count;
		xact->rels = (const RelFile *) bytes_at(record, offset, size);
		offset += size;
	}
	if (xinfo & XACT_XINFO_HAS_DROPPED_STATS)
	{
		memcpy(&count, bytes_at(record, offset, sizeof(count)), sizeof(count));
		offset += MinSizeOfXactStatsItems +
			checked_count(record, count) * sizeof(xl_xact_stats_item);
	}
	if (xinfo & XACT_XINFO_HAS_INVALS)
	{
		memcpy(&count, bytes_at(record, offset, sizeof(count)), sizeof(count));
		offset += MinSizeOfXactInvals +
			checked_count(record, count) * sizeof(SharedInvalidationMessage);
	}
	if (xinfo & XACT_XINFO_HAS_TWOPHASE)
	{
		memcpy(&xact->xid, bytes_at(record, offset, sizeof(xact->xid)), sizeof(xact->xid));
		offset += sizeof(xl_xact_twophase);
		if (xinfo & XACT_XINFO_HAS_GID)
		{
			const char *gid = bytes_at(record, offset, 1);

			offset += strnlen(gid, record->data_len - offset) + 1;
		}
	}
	if (xinfo & XACT_XINFO_HAS_ORIGIN)
	{
		xl_xact_origin origin;

		memcpy(&origin, bytes_at(record, offset, sizeof(origin)), sizeof(origin));
		xact->origin_lsn = origin.origin_lsn;
	}
}

bool
record_xact(const WalRecord *record, RecordXact *xact)
{
	if (record->rmid != RM_XACT_ID)
		return false;

	memset(xact, 0, sizeof(*xact));
	xact->xid = record->xid;
	xact->origin = record->origin;
	switch (record->info & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_PREPARE:
			read_prepare(record, xact);
			return true;
		case XLOG_XACT_COMMIT:
		case XLOG_XACT_COMMIT_PREPARED:
			xact->commit = true;
			break;
		case XLOG_XACT_ABORT:
		case XLOG_XACT_ABORT_PREPARED:
			break;
		default:
			return false;
	}
	xact->prepared = (record->info & XLOG_XACT_OPMASK) == XLOG_XACT_COMMIT_PREPARED ||
		(record->info & XLOG_XACT_OPMASK) == XLOG_XACT_ABORT_PREPARED;
	read_end(record, xact);
	return true;
}

/* ---- Storage and folders ------------------------------------------------- */

bool
record_storage_create(const WalRecord *record, RelFile *rel, ForkNumber *fork)
{
	if (!is_a(record, RM_SMGR_ID, XLOG_SMGR_CREATE))
		return false;
	memcpy(rel, bytes_at(record, 0, sizeof(xl_smgr_create)), sizeof(RelFile));
	memcpy(fork, record->data + offsetof(xl_smgr_create, forkNum), sizeof(ForkNumber));
	return true;
}

bool
record_storage_truncate(const WalRecord *record, RelFile *rel, BlockNumber *blocks, int *flags)
{
	if (!is_a(record, RM_SMGR_ID, XLOG_SMGR_TRUNCATE))
		return false;
	memcpy(blocks, bytes_at(record, 0, sizeof(xl_smgr_truncate)), sizeof(BlockNumber));
	memcpy(rel, record->data + sizeof(BlockNumber), sizeof(RelFile));
	memcpy(flags, record->data + offsetof(xl_smgr_truncate, flags), sizeof(int));
	return true;
}

bool
record_database_create(const WalRecord *record, Oid *database, Oid *tablespace)
{
	if (is_a(record, RM_DBASE_ID, XLOG_DBASE_CREATE_FILE_COPY))
	{
		xl_dbase_create_file_copy_rec copy;

		memcpy(&copy, bytes_at(record, 0, sizeof(copy)), sizeof(copy));
		*database = copy.db_id;
		*tablespace = copy.tablespace_id;
		return true;
	}
	if (is_a(record, RM_DBASE_ID, XLOG_DBASE_CREATE_WAL_LOG))
	{
		xl_dbase_create_wal_log_rec empty;

		memcpy(&empty, bytes_at(record, 0, sizeof(empty)), sizeof(empty));
		*database = empty.db_id;
		*tablespace = empty.tablespace_id;
		return true;
	}
	return false;
}

/* Created by copying a folder file by file: which. */
bool
record_database_copied(const WalRecord *record, Oid *from_database, Oid *from_tablespace)
{
	xl_dbase_create_file_copy_rec copy;

	if (!is_a(record, RM_DBASE_ID, XLOG_DBASE_CREATE_FILE_COPY))
		return false;
	memcpy(&copy, bytes_at(record, 0, sizeof(copy)), sizeof(copy));
	*from_database = copy.src_db_id;
	*from_tablespace = copy.src_tablespace_id;
	return true;
}

bool
record_database_drop(const WalRecord *record, Oid *database, int *ntablespaces,
					 const Oid **tablespaces)
{
	if (!is_a(record, RM_DBASE_ID, XLOG_DBASE_DROP))
		return false;
	memcpy(database, bytes_at(record, 0, MinSizeOfDbaseDropRec), sizeof(Oid));
	memcpy(ntablespaces, record->data + offsetof(xl_dbase_drop_rec, ntablespaces), sizeof(int));
	*tablespaces = (const Oid *)
		bytes_at(record, MinSizeOfDbaseDropRec,
				 checked_count(record, *ntablespaces) * sizeof(Oid));
	return true;
}

bool
record_tablespace_create(const WalRecord *record, Oid *tablespace, const char **location)
{
	uint32		offset = offsetof(xl_tblspc_create_rec, ts_path);

	if (!is_a(record, RM_TBLSPC_ID, XLOG_TBLSPC_CREATE))
		return false;
	memcpy(tablespace, bytes_at(record, 0, sizeof(Oid)), sizeof(Oid));
	*location = bytes_at(record, offset, 1);
	bytes_at(record, offset, strnlen(*location, record->data_len - offset) + 1);
	return true;
}

bool
record_tablespace_drop(const WalRecord *record, Oid *tablespace)
{
	if (!is_a(record, RM_TBLSPC_ID, XLOG_TBLSPC_DROP))
		return false;
	memcpy(tablespace, bytes_at(record, 0, sizeof(Oid)), sizeof(Oid));
	return true;
}

bool
record_relation_map(const WalRecord *record, Oid *database, Oid *tablespace)
{
	xl_relmap_update update;

	if (!is_a(record, RM_RELMAP_ID, XLOG_RELMAP_UPDATE))
		return false;
	memcpy(&update, bytes_at(record, 0, MinSizeOfRelmapUpdate), MinSizeOfRelmapUpdate);
	*database = update.dbid;
	*tablespace = update.tsid;
	return true;
}

/* ---- Transaction logs ---------------------------------------------------- */

bool
record_multixact(const WalRecord *record, MultiXactId *multi, MultiXactOffset *offset,
				 int *nmembers)
{
	xl_multixact_create create;

	if (!is_a(record, RM_MULTIXACT_ID, XLOG_MULTIXACT_CREATE_ID))
		return false;
	memcpy(&create, bytes_at(record, 0, SizeOfMultiXactCreate), SizeOfMultiXactCreate);
	*multi = create.mid;
	*offset = create.moff;
	*nmembers = create.nmembers;
	return true;
}

bool
record_slru_truncate(const WalRecord *record, RecordSlru *slru)
{
	if (is_a(record, RM_CLOG_ID, CLOG_TRUNCATE))
		*slru = SLRU_XACT;
	else if (is_a(record, RM_COMMIT_TS_ID, COMMIT_TS_TRUNCATE))
		*slru = SLRU_COMMIT_TS;
	else if (is_a(record, RM_MULTIXACT_ID, XLOG_MULTIXACT_TRUNCATE_ID))
		*slru = SLRU_MULTIXACT;
	else
		return false;
	return true;
}

bool
record_origin(const WalRecord *record, RepOriginId *origin, bool *dropped)
{
	if (is_a(record, RM_REPLORIGIN_ID, XLOG_REPLORIGIN_SET))
	{
		xl_replorigin_set set;

		memcpy(&set, bytes_at(record, 0, sizeof(set)), sizeof(set));
		*origin = set.node_id;
		*dropped = false;
		return true;
	}
	if (is_a(record, RM_REPLORIGIN_ID, XLOG_REPLORIGIN_DROP))
	{
		xl_replorigin_drop drop;

		memcpy(&drop, bytes_at(record, 0, sizeof(drop)), sizeof(drop));
		*origin = drop.node_id;
		*dropped = true;
		return true;
	}
	return false;
}

/* ---- The WAL's own records ----------------------------------------------- */

bool
record_checkpoint(const WalRecord *record, CheckPoint *checkpoint, bool *shutdown)
{
	*shutdown = is_a(record, RM_XLOG_ID, XLOG_CHECKPOINT_SHUTDOWN);
	if (!*shutdown && !is_a(record, RM_XLOG_ID, XLOG_CHECKPOINT_ONLINE))
		return false;
	memcpy(checkpoint, bytes_at(record, 0, sizeof(CheckPoint)), sizeof(CheckPoint));
	return true;
}

bool
record_full_page_writes(const WalRecord *record, bool *on)
{
	if (!is_a(record, RM_XLOG_ID, XLOG_FPW_CHANGE))
		return false;
	memcpy(on, bytes_at(record, 0, sizeof(bool)), sizeof(bool));
	return true;
}

bool
record_settings(const WalRecord *record, RecordSettings *settings)
{
	xl_parameter_change change;

	if (!is_a(record, RM_XLOG_ID, XLOG_PARAMETER_CHANGE))
		return false;
	memcpy(&change, bytes_at(record, 0, sizeof(change)), sizeof(change));
	settings->wal_level = change.wal_level;
	settings->wal_log_hints = change.wal_log_hints;
	settings->track_commit_timestamp = change.track_commit_timestamp;
	return true;
}

bool
record_next_oid(const WalRecord *record, Oid *next)
{
	if (!is_a(record, RM_XLOG_ID, XLOG_NEXTOID))
		return false;
	memcpy(next, bytes_at(record, 0, sizeof(Oid)), sizeof(Oid));
	return true;
}

bool
record_end_of_recovery(const WalRecord *record, TimeLineID *tli, TimeLineID *prev_tli)
{
	xl_end_of_recovery end;

	if (!is_a(record, RM_XLOG_ID, XLOG_END_OF_RECOVERY))
		return false;
	memcpy(&end, bytes_at(record, 0, sizeof(end)), sizeof(end));
	*tli = end.ThisTimeLineID;
	*prev_tli = end.PrevTimeLineID;
	return true;
}
