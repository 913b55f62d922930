/*-------------------------------------------------------------------------
 *
 * source.c
 *	  The primary's side of a cycle: slots, files and WAL for a standby.
 *
 * tandem.source_slots() answers one cycle of one standby with one result:
 *
 *	 kind 'i'	one row: name = library version, database = system identifier,
 *				plugin = this server's start time (microseconds since 2000),
 *				flags = timeline, restart_lsn = flushed WAL,
 *				catalog_xmin = the standby's hold, or null,
 *				two_phase_at = when the hold ends if the standby doesn't report
 *				again (microseconds since 2000; 0 = never)
 *	 kind 's'	a failover slot (flags: TANDEM_SLOT_...)
 *	 kind 'f'	a snapshot file at restart_lsn that the standby lacks
 *	 kind 'm'	a mapping file (name) that differs there
 * A null content of 'f' or 'm' means: exists, but is not in this answer (too
 * much for one answer, or its rewrite is still under way).
 *
 * The snapshot files of a slot are all that lie in [restart_lsn,
 * confirmed_flush_lsn]; with them the standby is what this server is after a
 * crash.  A checkpoint may remove a file, and a consumer may move a slot,
 * between reading the row and reading the file; then all is read again.
 *
 * Nothing here needs superuser: the caller has EXECUTE and REPLICATION.
 * Nothing is looked up by name in SQL, so search_path doesn't matter.
 *
 * src/slots/source.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "replication/slot.h"
#include "storage/fd.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/settings.h"
#include "common/version.h"
#include "slots/slots.h"

PG_FUNCTION_INFO_V1(tandem_source_slots);
PG_FUNCTION_INFO_V1(tandem_source_wal);

#define SOURCE_COLS 10
#define MAX_ANSWER (32 * 1024 * 1024)	/* bytes of file content in one answer */
#define MAX_ATTEMPTS 10
#define MAX_WAL_CHUNK (4 * 1024 * 1024)

/* A slot as it was at one moment. */
typedef struct SourceSlot
{
	NameData	name;
	Oid			database;
	NameData	plugin;
	bool		two_phase;
	bool		invalid;
	bool		has_file;
	XLogRecPtr	restart_lsn;
	XLogRecPtr	confirmed_lsn;
	XLogRecPtr	two_phase_at;
	TransactionId catalog_xmin;
} SourceSlot;

/* What the standby says it has. */
typedef struct Inventory
{
	int			nsnapshots;
	TandemSnapshotFile *snapshots;	/* in order of lsn */
	int			nmappings;
	char	  **mappings;		/* "name:size:crc" */
} Inventory;

static void
require_source(void)
{
	tandem_require_shmem();
	tandem_check_sql_version();
	CheckSlotPermissions();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this server is a standby and cannot serve failover slots"),
				 errhint("Let tandem.primary_conninfo of the other standby point to the primary.")));
}

/*
 * Copies one failover slot if it is one: logical, persistent, fully created,
 * and matched by tandem.failover_slots.  Caller holds
 * ReplicationSlotControlLock.
 */
static bool
copy_slot(ReplicationSlot *s, SourceSlot *copy)
{
	ReplicationSlotPersistentData data;
	TransactionId xmin;

	if (!s->in_use || !SlotIsLogical(s))
		return false;
	SpinLockAcquire(&s->mutex);
	data = s->data;
	xmin = s->effective_catalog_xmin;
	SpinLockRelease(&s->mutex);

	if (data.persistency != RS_PERSISTENT ||
		!tandem_failover_slot_matches(NameStr(data.name)))
		return false;

	memset(copy, 0, sizeof(*copy));
	copy->name = data.name;
	copy->database = data.database;
	copy->plugin = data.plugin;
	copy->two_phase = data.two_phase;
	copy->two_phase_at = data.two_phase_at;
	copy->restart_lsn = data.restart_lsn;
	copy->confirmed_lsn = data.confirmed_flush;
	/* the effective value: data.catalog_xmin may not be saved yet */
	copy->catalog_xmin = xmin;
	copy->invalid = TANDEM_SLOT_INVALIDATED(&data);
	if (!copy->invalid && (XLogRecPtrIsInvalid(data.restart_lsn) || XLogRecPtrIsInvalid(data.confirmed_flush)))
		return false;			/* still being created */
	return true;
}

/* All failover slots; palloc'd. */
static SourceSlot *
collect_slots(int *count)
{
	SourceSlot *slots = palloc(max_replication_slots * sizeof(SourceSlot));
	int			i;

	*count = 0;
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		if (copy_slot(&ReplicationSlotCtl->replication_slots[i],
					  &slots[*count]))
			(*count)++;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return slots;
}

/* Does any of the slots need the snapshot file at lsn? */
static bool
snapshot_needed(const SourceSlot *slots, int nslots, XLogRecPtr lsn)
{
	int			i;

	for (i = 0; i < nslots; i++)
	{
		if (!slots[i].invalid && slots[i].restart_lsn <= lsn &&
			lsn <= slots[i].confirmed_lsn)
			return true;
	}
	return false;
}

static bool
standby_has_snapshot(const Inventory *have, const TandemSnapshotFile *file)
{
	int			low = 0;
	int			high = have->nsnapshots;

	while (low < high)
	{
		int			mid = (low + high) / 2;

		if (have->snapshots[mid].lsn == file->lsn)
			return have->snapshots[mid].crc == file->crc;
		if (have->snapshots[mid].lsn < file->lsn)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}

/*
 * Reads slots and snapshot files that belong together.  Returns the slots;
 * *files and *contents (null where not sent) are what the standby lacks.
 */
static SourceSlot *
read_slots_and_snapshots(const Inventory *have, int *nslots,
						 TandemSnapshotFile **files, bytea ***contents,
						 int *nfiles, Size *budget)
{
	int			attempt;

	for (attempt = 0; attempt < MAX_ATTEMPTS; attempt++)
	{
		SourceSlot *slots = collect_slots(nslots);
		XLogRecPtr	oldest = PG_UINT64_MAX;
		TandemSnapshotFile *all;
		int			nall;
		Size		left = *budget;
		bool		changed = false;
		int			i;
		int			j;

		for (i = 0; i < *nslots; i++)
		{
			if (!slots[i].invalid && slots[i].restart_lsn < oldest)
				oldest = slots[i].restart_lsn;
		}

		all = tandem_list_snapshots(oldest, &nall);
		*files = palloc((nall + 1) * sizeof(TandemSnapshotFile));
		*contents = palloc((nall + 1) * sizeof(bytea *));
		*nfiles = 0;

		/* all is in order, so is the search for each slot's own file */
		for (i = 0; i < *nslots; i++)
		{
			TandemSnapshotFile key;

			if (slots[i].invalid)
				continue;
			key.lsn = slots[i].restart_lsn;
			for (j = 0; j < nall && all[j].lsn < key.lsn; j++)
				;
			slots[i].has_file = j < nall && all[j].lsn == key.lsn;
			if (!slots[i].has_file)
			{
				/* a slot that has moved meanwhile may have left its file */
				SourceSlot	again;
				ReplicationSlot *s;

				LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
				s = SearchNamedReplicationSlot(NameStr(slots[i].name), false);
				if (s == NULL || !copy_slot(s, &again) ||
					again.restart_lsn != slots[i].restart_lsn)
					changed = true;
				LWLockRelease(ReplicationSlotControlLock);
			}
		}

		for (j = 0; j < nall && !changed; j++)
		{
			bytea	   *content = NULL;

			if (!snapshot_needed(slots, *nslots, all[j].lsn) ||
				standby_has_snapshot(have, &all[j]))
				continue;
			if (left > 0)
			{
				pg_crc32c	crc;
				const char *why;

				content = tandem_read_snapshot(all[j].lsn);
				if (content == NULL ||
					!tandem_snapshot_check(VARDATA(content),
										   VARSIZE(content) - VARHDRSZ,
										   &crc, &why))
				{
					changed = true;
					break;
				}
				left -= Min(left, VARSIZE(content));
			}
			(*files)[*nfiles] = all[j];
			(*contents)[*nfiles] = content;
			(*nfiles)++;
		}
		pfree(all);
		if (!changed)
		{
			*budget = left;
			return slots;
		}
		CHECK_FOR_INTERRUPTS();
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("slots moved faster than their snapshot files could be read"),
			 errhint("The standby tries again by itself.")));
	return NULL;				/* keep compiler quiet */
}

/* Unpacks the arguments that say what the standby has. */
static void
read_inventory(bytea *snapshots, ArrayType *mappings, Inventory *have)
{
	const int	width = sizeof(uint64) + sizeof(uint32);
	Datum	   *elems;
	int			i;

	if (ARR_HASNULL(mappings) || ARR_NDIM(mappings) > 1 ||
		(VARSIZE_ANY_EXHDR(snapshots) % width) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("malformed inventory of a standby"),
				 errhint("This function is called by the pg_tandem library of a standby.")));

	have->nsnapshots = VARSIZE_ANY_EXHDR(snapshots) / width;
	have->snapshots = palloc((have->nsnapshots + 1) * sizeof(TandemSnapshotFile));
	for (i = 0; i < have->nsnapshots; i++)
	{
		uint64		lsn;
		uint32		crc;
		char	   *p = VARDATA_ANY(snapshots) + (Size) i * width;

		memcpy(&lsn, p, sizeof(lsn));
		memcpy(&crc, p + sizeof(lsn), sizeof(crc));
		have->snapshots[i].lsn = pg_ntoh64(lsn);
		have->snapshots[i].crc = pg_ntoh32(crc);
	}

	deconstruct_array(mappings, TEXTOID, -1, false, TYPALIGN_INT,
					  &elems, NULL, &have->nmappings);
	have->mappings = palloc((have->nmappings + 1) * sizeof(char *));
	for (i = 0; i < have->nmappings; i++)
		have->mappings[i] = TextDatumGetCString(elems[i]);
}

/* One row of the result; name may be null for none. */
static void
put_row(ReturnSetInfo *rsinfo, char kind, const char *name,
		const char *database, const char *plugin, int flags,
		XLogRecPtr restart_lsn, XLogRecPtr confirmed_lsn,
		XLogRecPtr two_phase_at, TransactionId xmin, bytea *content)
{
	Datum		values[SOURCE_COLS];
	bool		nulls[SOURCE_COLS];
	NameData	dbname;
	NameData	plugname;

	memset(nulls, 0, sizeof(nulls));
	values[0] = CharGetDatum(kind);
	if (name)
		values[1] = CStringGetTextDatum(name);
	else
		nulls[1] = true;
	if (database)
	{
		namestrcpy(&dbname, database);
		values[2] = NameGetDatum(&dbname);
	}
	else
		nulls[2] = true;
	if (plugin)
	{
		namestrcpy(&plugname, plugin);
		values[3] = NameGetDatum(&plugname);
	}
	else
		nulls[3] = true;
	values[4] = Int32GetDatum(flags);
	values[5] = LSNGetDatum(restart_lsn);
	values[6] = LSNGetDatum(confirmed_lsn);
	values[7] = LSNGetDatum(two_phase_at);
	if (TransactionIdIsValid(xmin))
		values[8] = TransactionIdGetDatum(xmin);
	else
		nulls[8] = true;
	if (content)
		values[9] = PointerGetDatum(content);
	else
		nulls[9] = true;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Rows for mapping files that some slot's decoding may read and that differ
 * on the standby.
 */
static void
put_mappings(ReturnSetInfo *rsinfo, const Inventory *have,
			 const SourceSlot *slots, int nslots, Size budget)
{
	XLogRecPtr	oldest = PG_UINT64_MAX;
	TandemMappingFile *files;
	int			nfiles;
	int			i;
	int			j;

	for (i = 0; i < nslots; i++)
	{
		if (!slots[i].invalid && slots[i].restart_lsn < oldest)
			oldest = slots[i].restart_lsn;
	}
	if (oldest == PG_UINT64_MAX)
		return;

	files = tandem_list_mappings(oldest, &nfiles);
	for (i = 0; i < nfiles; i++)
	{
		char		text[TANDEM_MAPPING_TEXT_LEN];
		bool		needed = false;
		bytea	   *content = NULL;

		for (j = 0; j < nslots && !needed; j++)
			needed = !slots[j].invalid &&
				slots[j].restart_lsn <= files[i].lsn &&
				(!OidIsValid(files[i].database) ||
				 files[i].database == slots[j].database);
		if (!needed)
			continue;

		snprintf(text, sizeof(text), "%s:%lld:%u", files[i].name,
				 (long long) files[i].size, files[i].crc);
		for (j = 0; j < have->nmappings; j++)
		{
			if (strcmp(have->mappings[j], text) == 0)
				break;
		}
		if (j < have->nmappings)
			continue;

		/*
		 * While the rewrite runs, the file grows, here and by replay there.
		 * Once it has ended, all of it is in WAL before the insert position
		 * that we report (confirmed_lsn), so a standby that has replayed that
		 * far may replace its copy.
		 */
		if (budget > 0 && !TransactionIdIsInProgress(files[i].create_xid))
		{
			content = tandem_read_mapping(&files[i]);
			if (content == NULL)
				continue;		/* removed: no slot needs it any more */
			budget -= Min(budget, VARSIZE(content));
		}
		put_row(rsinfo, 'm', files[i].name, NULL, NULL, 0, files[i].lsn,
				GetXLogInsertRecPtr(), InvalidXLogRecPtr, InvalidTransactionId,
				content);
	}
}

/*
 * SQL function tandem.source_slots(protocol, standby, relied_hold, saved_xmin,
 * snapshots, mappings); see the header of this file.
 *
 * relied_hold is the hold that the standby's slots rely on (0: none); it is
 * for the log only, the standby itself compares.  saved_xmin is the oldest
 * catalog_xmin among its saved slots (0: none).  snapshots: for each file the
 * standby has, LSN (8 bytes) and CRC (4 bytes) in network order, ordered.
 */
Datum
tandem_source_slots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			protocol = PG_GETARG_INT32(0);
	char	   *standby = text_to_cstring(PG_GETARG_TEXT_PP(1));
	TransactionId relied = PG_GETARG_TRANSACTIONID(2);
	TransactionId saved_xmin = PG_GETARG_TRANSACTIONID(3);
	Inventory	have;
	TransactionId hold;
	SourceSlot *slots;
	int			nslots;
	TandemSnapshotFile *files;
	bytea	  **contents;
	int			nfiles;
	Size		budget = MAX_ANSWER;
	char		sysid[32];
	char		started[32];
	TimestampTz held_until = 0;
	int			i;

	require_source();
	if (protocol != TANDEM_PROTOCOL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the standby speaks protocol %d of pg_tandem, this server %d",
						protocol, TANDEM_PROTOCOL),
				 errhint("Install the same version of pg_tandem on both servers.")));
	read_inventory(PG_GETARG_BYTEA_PP(4), PG_GETARG_ARRAYTYPE_P(5), &have);
	InitMaterializedSRF(fcinfo, 0);

	/* no later than the report that tandem_hold_update is about to note */
	if (tandem_hold_timeout > 0)
		held_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 tandem_hold_timeout * INT64CONST(1000));

	/* first the hold, then the rows: their xmin is then no older than it */
	hold = tandem_hold_update(standby, saved_xmin);
	if (TransactionIdIsValid(relied) && relied != hold)
		elog(DEBUG1, "standby \"%s\" relied on hold %u, now %u",
			 standby, relied, hold);

	slots = read_slots_and_snapshots(&have, &nslots, &files, &contents,
									 &nfiles, &budget);

	snprintf(sysid, sizeof(sysid), UINT64_FORMAT, GetSystemIdentifier());
	snprintf(started, sizeof(started), INT64_FORMAT, (int64) PgStartTime);
	put_row(rsinfo, 'i', TANDEM_VERSION, sysid, started,
			(int) GetWALInsertionTimeLine(), GetFlushRecPtr(NULL),
			InvalidXLogRecPtr, (XLogRecPtr) held_until, hold, NULL);

	for (i = 0; i < nslots; i++)
	{
		SourceSlot *s = &slots[i];
		char	   *database = get_database_name(s->database);

		if (database == NULL)
			continue;			/* being dropped */
		put_row(rsinfo, 's', NameStr(s->name), database, NameStr(s->plugin),
				(s->two_phase ? TANDEM_SLOT_TWO_PHASE : 0) |
					(s->invalid ? TANDEM_SLOT_INVALID : 0) |
					(s->has_file ? TANDEM_SLOT_HAS_FILE : 0),
				s->restart_lsn, s->confirmed_lsn, s->two_phase_at,
				s->catalog_xmin, NULL);
	}
	for (i = 0; i < nfiles; i++)
		put_row(rsinfo, 'f', NULL, NULL, NULL, 0, files[i].lsn,
				InvalidXLogRecPtr, InvalidXLogRecPtr, InvalidTransactionId,
				contents[i]);
	put_mappings(rsinfo, &have, slots, nslots, budget);

	return (Datum) 0;
}

/*
 * SQL function tandem.source_wal(file, start, length): up to length bytes of a
 * WAL segment or timeline history file, from byte start on; null if there is
 * no such file.  Raises an error if the segment has been or may have been
 * removed (and recycled) while it was read.
 */
Datum
tandem_source_wal(PG_FUNCTION_ARGS)
{
	char	   *file = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int64		start = PG_GETARG_INT64(1);
	int32		length = PG_GETARG_INT32(2);
	char		path[MAXPGPATH];
	bytea	   *result;
	int			fd;
	int			done = 0;

	require_source();
	if (!IsXLogFileName(file) && !IsTLHistoryFileName(file))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" is not the name of a WAL segment or timeline history file",
						file)));
	if (start < 0 || length <= 0 || length > MAX_WAL_CHUNK)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot read %d bytes at offset %lld of WAL",
						length, (long long) start),
				 errhint("Read at most %d bytes at a time.", MAX_WAL_CHUNK)));

	snprintf(path, sizeof(path), XLOGDIR "/%s", file);
	fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	if (fd < 0)
	{
		if (errno == ENOENT)
			PG_RETURN_NULL();
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	}
	result = palloc(length + VARHDRSZ);
	while (done < length)
	{
		ssize_t		n = pg_pread(fd, VARDATA(result) + done, length - done,
							 start + done);

		if (n < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", path)));
		if (n == 0)
			break;
		done += n;
		CHECK_FOR_INTERRUPTS();
	}
	CloseTransientFile(fd);
	SET_VARSIZE(result, done + VARHDRSZ);

	if (IsXLogFileName(file))
	{
		TimeLineID	tli;
		XLogSegNo	segno;

		/* marked as removed before it is recycled: check after reading */
		XLogFromFileName(file, &tli, &segno, wal_segment_size);
		if (segno <= XLogGetLastRemovedSegno())
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("requested WAL segment %s has already been removed",
							file)));
	}
	PG_RETURN_BYTEA_P(result);
}
