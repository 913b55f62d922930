/*-------------------------------------------------------------------------
 *
 * cycle.c
 *	  One cycle of the slot sync worker on a standby.
 *
 * Invariant: a persistent slot of ours on the standby is a proven slot.  Never
 * proven: there is none.  Disproved (WAL, snapshot file or hold lost): dropped
 * at once and made anew.  Primary unreachable: the last proof stays valid and
 * its age is shown.  So nothing is left for promotion to decide.
 *
 * A slot with restart_lsn R, confirmed_flush C and catalog_xmin X is proven if
 *
 * - every snapshot file that the primary has in [R, C] is here, R's among
 *   them (or decoding from R is proven to be consistent by C in another way,
 *   see prove.c), and, when the slot is made, the mapping files from R on;
 * - WAL from R on is here, and it can't be removed: no restartpoint that began
 *   before the reservation is still running;
 * - C has been replayed here;
 * - the primary holds catalog rows from X or older for this standby;
 * - this server can keep and use it: wal_level, a free slot, the plugin.
 *
 * Steps of a cycle:
 *
 *	 1. one query: positions, and the files that differ here
 *	 2. reserve WAL and files for slots that don't exist here yet
 *	 3. install files (at or below the replayed position), one fsync of the folder
 *	 4. slot by slot, each with its own error handling: drop, create, move
 *	 5. for what is missing: the helper, or a slice of WAL to fetch
 *	 6. publish what the views show
 *
 * Only confirmed_flush moves in every cycle, unsaved, as in core.  restart_lsn
 * and catalog_xmin need a durable save and move only when more than a segment
 * or a minute behind; an older restart_lsn with its file is still proven.
 *
 * Everything here runs in the worker.  Memory is in a context of the cycle,
 * except the table of what is remembered per slot.
 *
 * src/slots/cycle.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "replication/walreceiver.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/controldata_utils.h"
#include "common/remote.h"
#include "common/settings.h"
#include "slots/slots.h"

#define CYCLE_QUERY \
	"SELECT kind, name, database, plugin, flags, restart_lsn, confirmed_lsn," \
	" two_phase_at, catalog_xmin, content" \
	" FROM tandem.source_slots($1, $2, $3, $4, $5, $6)"

#define CONNECT_TIMEOUT 10000	/* ms */
#define QUERY_TIMEOUT 30000		/* ms */
#define REPLAY_WAIT 300			/* ms: most waiting for replay in one cycle */
#define LAZY_MOVE 60000			/* ms: longest lag of a restart_lsn */
#define FETCH_SLICE (128 * 1024 * 1024)	/* bytes of WAL fetched in one cycle */
#define HELPER_RETRY 10000		/* ms between two attempts to prove a slot */

/* What is remembered of a slot from cycle to cycle. */
typedef struct SlotMemory
{
	NameData	name;			/* key */
	uint64		seen;			/* cycle that last saw it */
	XLogRecPtr	remote_confirmed;	/* as last told by the primary ... */
	int64		remote_started; /* ... in this incarnation */
	TimestampTz moved;			/* when restart_lsn last moved */
	XLogRecPtr	proven_from;	/* a restart point the helper has proven ... */
	XLogRecPtr	proven_decoded; /* ... without a file there: its LSN, or 0 */
	TimestampTz helper_tried;
	XLogRecPtr	disproved_from; /* decoding from here ... */
	XLogRecPtr	disproved_upto; /* ... is not consistent by then */
	char		helper_error[TANDEM_TEXT_LEN];
	char		error[TANDEM_TEXT_LEN]; /* last one logged */
} SlotMemory;

static HTAB *memory = NULL;

static TandemRemote *remote = NULL;
static char *remote_conninfo = NULL;
static TransactionId relied_hold = InvalidTransactionId;
static XLogRecPtr barrier_lsn = InvalidXLogRecPtr;	/* reserved before the last barrier */
static XLogRecPtr barrier_pending = InvalidXLogRecPtr;
static bool files_kept = false; /* by each restartpoint that may be running */
static uint64 cycle_number = 0;

/* The cycle under way. */
typedef struct Cycle
{
	/* from the primary */
	int64		started;
	TimeLineID	timeline;
	XLogRecPtr	flushed;
	TransactionId hold;
	TimestampTz held_until;		/* by the primary's clock; 0 = for ever */
	TandemRemoteSlot *slots;
	int			nslots;
	TandemSnapshotFile *files;	/* sent, or at least told of */
	char	  **contents;
	int		   *lengths;
	int			nfiles;
	TandemMappingFile *mappings;
	XLogRecPtr *mapping_asof;
	char	  **mapping_contents;
	int		   *mapping_lengths;
	int			nmappings;

	/* here */
	XLogRecPtr	replayed;
	TimeLineID	replay_timeline;
	XLogSegNo	oldest;			/* of the WAL here */
	bool		wrong_timeline;
	char	   *install_error;

	uint64		sent_before;	/* bytes over this connection before the cycle */
	uint64		received_before;
	bool		reserved;		/* the reserve slot is in force */

	/* outcome */
	TandemSlotEntry *entries;
	int			nentries;
	XLogRecPtr	reserve;		/* oldest that is needed by a pending slot */
	XLogRecPtr	fetch_from;		/* oldest WAL to fetch; 0 = none */
	int			created;
	int			moved;
	int			saved;
	int			dropped;
	int			installed;
	int			unproven;
	uint64		fetched;
	uint64		restart_lag;
	bool		progress;		/* something moved: don't stretch the pause */
} Cycle;

static void pending(TandemSlotEntry *entry, const char *hint, const char *fmt,...) pg_attribute_printf(3, 4);

/* ---- small things ----------------------------------------------------------- */

static const char *
promoted(void)
{
	return RecoveryInProgress() ? NULL : "this server has been promoted";
}

/* How the primary is reached by the present settings; may be null or empty. */
static const char *
current_conninfo(void)
{
	return tandem_primary_conninfo[0] != '\0' ?
		tandem_primary_conninfo : PrimaryConnInfo;
}

/*
 * give_up function of the connection: neither a promotion nor a correction of
 * the settings waits for a primary that hangs.
 */
static const char *
stop_waiting(void)
{
	if (ConfigReloadPending)
	{
		const char *conninfo;

		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		conninfo = current_conninfo();
		if (remote_conninfo &&
			(conninfo == NULL || strcmp(conninfo, remote_conninfo) != 0))
			return "the connection settings have changed";
	}
	return promoted();
}

static SlotMemory *
slot_memory(const char *name)
{
	NameData	key;
	bool		found;
	SlotMemory *m;

	if (memory == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = sizeof(NameData);
		ctl.entrysize = sizeof(SlotMemory);
		ctl.hcxt = TopMemoryContext;
		memory = hash_create("tandem slots", 128, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	memset(&key, 0, sizeof(key));
	namestrcpy(&key, name);
	m = hash_search(memory, &key, HASH_ENTER, &found);
	if (!found)
		memset((char *) m + sizeof(NameData), 0, sizeof(SlotMemory) - sizeof(NameData));
	return m;
}

/* Forgets slots that this cycle hasn't seen. */
static void
forget_unseen(void)
{
	HASH_SEQ_STATUS seq;
	SlotMemory *m;

	if (memory == NULL)
		return;
	hash_seq_init(&seq, memory);
	while ((m = hash_seq_search(&seq)) != NULL)
	{
		if (m->seen != cycle_number)
			hash_search(memory, &m->name, HASH_REMOVE, NULL);
	}
}

/* Marks an entry as pending, with a reason and (null for none) a hint. */
static void
pending(TandemSlotEntry *entry, const char *hint, const char *fmt,...)
{
	va_list		args;

	entry->state = TANDEM_PENDING;
	va_start(args, fmt);
	vsnprintf(entry->reason, sizeof(entry->reason), fmt, args);
	va_end(args);
	strlcpy(entry->hint, hint ? hint : "No action is needed.",
			sizeof(entry->hint));
}

/*
 * Is the library of an output plugin installed?  Looks where the server would,
 * along dynamic_library_path.
 */
static bool
plugin_present(const char *plugin)
{
	const char *path = Dynamic_library_path;
	char		file[MAXPGPATH];
	struct stat st;

	if (strcmp(plugin, "pgoutput") == 0)
		return true;
	if (strchr(plugin, '/') != NULL)
		return stat(plugin, &st) == 0;
	while (path && *path)
	{
		size_t		len = strcspn(path, ":");

		if (len >= 7 && strncmp(path, "$libdir", 7) == 0)
			snprintf(file, sizeof(file), "%s%.*s/%s%s", pkglib_path,
					 (int) (len - 7), path + 7, plugin, DLSUFFIX);
		else
			snprintf(file, sizeof(file), "%.*s/%s%s", (int) len, path,
					 plugin, DLSUFFIX);
		if (stat(file, &st) == 0)
			return true;
		path += len;
		if (*path == ':')
			path++;
	}
	snprintf(file, sizeof(file), "%s/%s%s", pkglib_path, plugin, DLSUFFIX);
	return stat(file, &st) == 0;
}

/*
 * What to do about an error of the connection or the query that comes without
 * a hint of its own; null if it isn't one of those.
 */
static const char *
connection_hint(int sqlerrcode)
{
	const char *database = tandem_primary_conninfo[0] ? "the database of tandem.primary_conninfo" :
		tandem_database;

	switch (sqlerrcode)
	{
		case ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION:
			return psprintf("Check host, role and password, and that the primary's pg_hba.conf lets this role connect to database \"%s\" (an entry for \"replication\" does not cover it).",
							database);
		case ERRCODE_UNDEFINED_SCHEMA:
		case ERRCODE_UNDEFINED_FUNCTION:
			return psprintf("On the primary, run CREATE EXTENSION pg_tandem in database \"%s\".",
							database);
		case ERRCODE_UNDEFINED_FILE:
			return "Install pg_tandem on the primary.";
		case ERRCODE_INSUFFICIENT_PRIVILEGE:
			return "The role needs REPLICATION and, on the primary, GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal TO that role.";
		default:
			return NULL;
	}
}

/* ---- the query ---------------------------------------------------------------- */

static XLogRecPtr
result_lsn(PGresult *res, int row, int col)
{
	uint64		value;

	if (PQgetisnull(res, row, col) || PQgetlength(res, row, col) != 8)
		return InvalidXLogRecPtr;
	memcpy(&value, PQgetvalue(res, row, col), 8);
	return pg_ntoh64(value);
}

static uint32
result_int(PGresult *res, int row, int col)
{
	uint32		value;

	if (PQgetisnull(res, row, col) || PQgetlength(res, row, col) != 4)
		return 0;
	memcpy(&value, PQgetvalue(res, row, col), 4);
	return pg_ntoh32(value);
}

static char *
result_content(PGresult *res, int row, int col, int *length)
{
	char	   *copy;

	*length = PQgetlength(res, row, col);
	if (PQgetisnull(res, row, col))
		return NULL;
	copy = palloc(*length + 1);
	memcpy(copy, PQgetvalue(res, row, col), *length);
	return copy;
}

/* (Re)connects if there is no connection or the settings have changed. */
static void
ensure_connection(void)
{
	const char *conninfo = current_conninfo();

	if (conninfo == NULL || conninfo[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this standby doesn't know how to reach its primary"),
				 errhint("Set primary_conninfo, or tandem.primary_conninfo if it needs other parameters.")));
	if (PrimarySlotName == NULL || PrimarySlotName[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this standby has no primary_slot_name"),
				 errhint("Create a physical replication slot on the primary and set primary_slot_name to it here.")));

	if (remote == NULL || !tandem_remote_is_alive(remote) ||
		strcmp(remote_conninfo, conninfo) != 0)
		tandem_cycle_disconnect();
	if (remote == NULL)
	{
		remote_conninfo = MemoryContextStrdup(TopMemoryContext, conninfo);
		remote = tandem_remote_connect(remote_conninfo,
									   tandem_primary_conninfo[0] != '\0' ?
									   NULL : tandem_database,
									   CONNECT_TIMEOUT, stop_waiting);
	}
}

void
tandem_cycle_disconnect(void)
{
	tandem_remote_close(remote);
	remote = NULL;
	if (remote_conninfo)
		pfree(remote_conninfo);
	remote_conninfo = NULL;
}

/* What this standby has: snapshot files, as source_slots wants them. */
static StringInfo
snapshot_inventory(void)
{
	StringInfo	buf = makeStringInfo();
	int			n;
	TandemSnapshotFile *files = tandem_list_snapshots(InvalidXLogRecPtr, &n);
	int			i;

	for (i = 0; i < n; i++)
	{
		uint64		lsn = pg_hton64(files[i].lsn);
		uint32		crc = pg_hton32(files[i].crc);

		appendBinaryStringInfo(buf, (char *) &lsn, sizeof(lsn));
		appendBinaryStringInfo(buf, (char *) &crc, sizeof(crc));
	}
	return buf;
}

/* The same for mapping files, as a text array. */
static char *
mapping_inventory(void)
{
	StringInfoData buf;
	int			n;
	TandemMappingFile *files = tandem_list_mappings(InvalidXLogRecPtr, &n);
	int			i;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '{');
	for (i = 0; i < n; i++)
		appendStringInfo(&buf, "%s\"%s:%lld:%u\"", i ? "," : "",
						 files[i].name, (long long) files[i].size, files[i].crc);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}

/* Reads the answer's first row and compares it with this server. */
static void
read_info(Cycle *cycle, PGresult *res, int row)
{
	char	   *sysid = PQgetvalue(res, row, 2);

	if (strtoull(sysid, NULL, 10) != GetSystemIdentifier())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the server that the connection string leads to is not the primary of this standby"),
				 errdetail("Its system identifier is %s, this server's is " UINT64_FORMAT ".",
						   sysid, GetSystemIdentifier()),
				 errhint("Correct tandem.primary_conninfo, or primary_conninfo if that is empty.")));
	cycle->started = strtoll(PQgetvalue(res, row, 3), NULL, 10);
	cycle->timeline = result_int(res, row, 4);
	cycle->flushed = result_lsn(res, row, 5);
	cycle->held_until = (TimestampTz) result_lsn(res, row, 7);
	cycle->hold = result_int(res, row, 8);
}

/* Asks the primary; fills the cycle from its answer. */
static void
ask_primary(Cycle *cycle, TransactionId saved_xmin)
{
	const Oid	types[6] = {INT4OID, TEXTOID, XIDOID, XIDOID, BYTEAOID, TEXTARRAYOID};
	const char *values[6];
	int			lengths[6] = {0};
	int			formats[6] = {0, 0, 0, 0, 1, 0};
	char		protocol[16];
	char		relied[16];
	char		saved[16];
	StringInfo	snapshots = snapshot_inventory();
	PGresult   *res;
	bool		told = false;
	int			n;
	int			i;

	snprintf(protocol, sizeof(protocol), "%d", TANDEM_PROTOCOL);
	snprintf(relied, sizeof(relied), "%u", relied_hold);
	snprintf(saved, sizeof(saved), "%u", saved_xmin);
	values[0] = protocol;
	values[1] = PrimarySlotName;
	values[2] = relied;
	values[3] = saved;
	values[4] = snapshots->data;
	lengths[4] = snapshots->len;
	values[5] = mapping_inventory();

	res = tandem_remote_query(remote, CYCLE_QUERY, 6, types, values, lengths,
							  formats, QUERY_TIMEOUT);
	PG_TRY();
	{
		n = PQntuples(res);
		cycle->slots = palloc0((n + 1) * sizeof(TandemRemoteSlot));
		cycle->files = palloc0((n + 1) * sizeof(TandemSnapshotFile));
		cycle->contents = palloc0((n + 1) * sizeof(char *));
		cycle->lengths = palloc0((n + 1) * sizeof(int));
		cycle->mappings = palloc0(sizeof(TandemMappingFile));
		cycle->mapping_asof = palloc0((n + 1) * sizeof(XLogRecPtr));
		cycle->mapping_contents = palloc0((n + 1) * sizeof(char *));
		cycle->mapping_lengths = palloc0((n + 1) * sizeof(int));

		for (i = 0; i < n; i++)
		{
			char		kind = PQgetvalue(res, i, 0)[0];

			if (kind == 'i')
			{
				read_info(cycle, res, i);
				told = true;
			}
			else if (kind == 's')
			{
				TandemRemoteSlot *s = &cycle->slots[cycle->nslots++];

				namestrcpy(&s->name, PQgetvalue(res, i, 1));
				namestrcpy(&s->database, PQgetvalue(res, i, 2));
				namestrcpy(&s->plugin, PQgetvalue(res, i, 3));
				s->flags = result_int(res, i, 4);
				s->restart_lsn = result_lsn(res, i, 5);
				s->confirmed_lsn = result_lsn(res, i, 6);
				s->two_phase_at = result_lsn(res, i, 7);
				s->catalog_xmin = result_int(res, i, 8);
				if (!ReplicationSlotValidateName(NameStr(s->name), WARNING))
					cycle->nslots--;
			}
			else if (kind == 'f')
			{
				cycle->files[cycle->nfiles].lsn = result_lsn(res, i, 5);
				cycle->contents[cycle->nfiles] =
					result_content(res, i, 9, &cycle->lengths[cycle->nfiles]);
				cycle->nfiles++;
			}
			else if (kind == 'm')
			{
				int			m = cycle->nmappings;

				cycle->mappings = repalloc(cycle->mappings,
										   (m + 1) * sizeof(TandemMappingFile));
				if (!tandem_parse_mapping_name(PQgetvalue(res, i, 1),
											   &cycle->mappings[m]))
					continue;
				cycle->mapping_asof[m] = result_lsn(res, i, 6);
				cycle->mapping_contents[m] =
					result_content(res, i, 9, &cycle->mapping_lengths[m]);
				cycle->nmappings++;
			}
		}
	}
	PG_CATCH();
	{
		PQclear(res);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PQclear(res);
	if (!told)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the primary's answer is not one of pg_tandem")));
}

/* ---- positions here -------------------------------------------------------------- */

/*
 * Takes the replayed position; waits a little if slots are just ahead of it,
 * as they are when a standby follows within milliseconds.
 */
static void
read_replay_position(Cycle *cycle)
{
	XLogRecPtr	wanted = InvalidXLogRecPtr;
	TimestampTz deadline;
	int			i;

	for (i = 0; i < cycle->nslots; i++)
		wanted = Max(wanted, cycle->slots[i].confirmed_lsn);
	for (i = 0; i < cycle->nmappings; i++)
	{
		if (cycle->mapping_contents[i] != NULL)
			wanted = Max(wanted, cycle->mapping_asof[i]);
	}
	deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										   Min(REPLAY_WAIT, tandem_slot_sync_interval));
	for (;;)
	{
		cycle->replayed = GetXLogReplayRecPtr(&cycle->replay_timeline);
		if (cycle->replayed >= wanted || promoted() != NULL ||
			GetCurrentTimestamp() >= deadline)
			break;
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	cycle->wrong_timeline = cycle->timeline != cycle->replay_timeline;
	cycle->oldest = tandem_oldest_wal(cycle->replay_timeline, cycle->replayed);
}

/* ---- files ------------------------------------------------------------------------ */

/*
 * Installs one file: the mapping file of that name, or (null) the snapshot
 * file at lsn.  On failure logs it, remembers the message as the cycle's
 * install_error and returns false.
 */
static bool
install_one(Cycle *cycle, const char *mapping, XLogRecPtr lsn,
			const char *data, int len)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool installed = false;

	PG_TRY();
	{
		if (mapping)
			tandem_install_mapping(mapping, data, len);
		else
			tandem_install_snapshot(lsn, data, len);
		installed = true;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (cycle->install_error == NULL)
			EmitErrorReport();
		FlushErrorState();
		cycle->install_error = edata->message;
	}
	PG_END_TRY();
	if (installed)
		cycle->installed++;
	return installed;
}

/*
 * Installs what the primary sent.  A file that can't be installed keeps those
 * slots from being proven that need it, and no others.  Afterwards the cycle's
 * lists hold what is missing.
 */
static void
install_files(Cycle *cycle)
{
	int			left = 0;
	int			i;

	if (cycle->wrong_timeline || !tandem_debug_ship_snapshots)
		return;
	for (i = 0; i < cycle->nfiles; i++)
	{
		XLogRecPtr	lsn = cycle->files[i].lsn;
		bool		ok = false;

		if (cycle->contents[i] != NULL && lsn <= cycle->replayed)
		{
			pg_crc32c	crc;
			const char *why;

			if (tandem_snapshot_check(cycle->contents[i], cycle->lengths[i],
									  &crc, &why))
				ok = install_one(cycle, NULL, lsn, cycle->contents[i],
								 cycle->lengths[i]);
			else
				cycle->install_error =
					psprintf("the snapshot file at %X/%X that the primary sent can't be used: %s",
							 LSN_FORMAT_ARGS(lsn), why);
		}
		if (!ok)
			cycle->files[left++] = cycle->files[i];
	}
	cycle->nfiles = left;
	if (cycle->installed > 0)
		tandem_flush_snapshot_dir();

	left = 0;
	for (i = 0; i < cycle->nmappings; i++)
	{
		if (cycle->mapping_contents[i] == NULL ||
			cycle->mapping_asof[i] > cycle->replayed ||
			!install_one(cycle, cycle->mappings[i].name, InvalidXLogRecPtr,
						 cycle->mapping_contents[i],
						 cycle->mapping_lengths[i]))
			cycle->mappings[left++] = cycle->mappings[i];
	}
	cycle->nmappings = left;
}

/*
 * Are all files here that a slot needs?  Otherwise the entry says what is
 * missing.  exists: the slot is here already, and keeps its files.
 */
static bool
files_complete(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
			   bool exists, TandemSlotEntry *entry)
{
	int			i;

	if (!tandem_debug_ship_snapshots)
		return true;
	for (i = 0; i < cycle->nfiles; i++)
	{
		XLogRecPtr	lsn = cycle->files[i].lsn;

		if (lsn < slot->restart_lsn || lsn > slot->confirmed_lsn)
			continue;
		if (cycle->install_error)
			pending(entry, "Free disk space or mend the file system; the next cycle tries again.",
					"%s", cycle->install_error);
		else
			pending(entry, NULL, "the snapshot file at %X/%X has not been received yet",
					LSN_FORMAT_ARGS(lsn));
		return false;
	}

	/*
	 * Replay writes mapping files itself.  Only what a restartpoint has removed
	 * before there was a slot must be sent; and what replay has not reached
	 * isn't needed yet.
	 */
	for (i = 0; i < cycle->nmappings && !exists; i++)
	{
		const TandemMappingFile *file = &cycle->mappings[i];

		if (file->lsn < slot->restart_lsn || file->lsn > cycle->replayed ||
			(OidIsValid(file->database) && file->database != database))
			continue;
		if (cycle->install_error)
			pending(entry, "Free disk space or mend the file system; the next cycle tries again.",
					"%s", cycle->install_error);
		else
			pending(entry, NULL,
					"a catalog table is being rewritten (VACUUM FULL or CLUSTER) on the primary");
		return false;
	}
	return true;
}

/*
 * Would keeping WAL from restart on exceed what this standby may keep?  Then
 * the entry (if not null) says so.  A reserve beyond that would be invalidated
 * by the next restartpoint, which ends the process that holds it.
 */
static bool
wal_limit_exceeded(Cycle *cycle, XLogRecPtr restart, TandemSlotEntry *entry)
{
	XLogSegNo	segno;
	XLogSegNo	current;
	uint64		kept;
	uint64		missing;

	XLByteToSeg(restart, segno, wal_segment_size);
	XLByteToSeg(cycle->replayed, current, wal_segment_size);
	kept = (current >= segno ? current - segno + 1 : 0) *
		(uint64) wal_segment_size;
	missing = (cycle->oldest > segno ? cycle->oldest - segno : 0) *
		(uint64) wal_segment_size;

	if (max_slot_wal_keep_size_mb >= 0 &&
		kept > (uint64) max_slot_wal_keep_size_mb * 1024 * 1024)
	{
		if (entry)
			pending(entry, "Raise max_slot_wal_keep_size on this standby, or let the slot's consumer catch up.",
					"it needs %llu MB of WAL, max_slot_wal_keep_size of this standby is %d MB",
					(unsigned long long) (kept / (1024 * 1024)),
					max_slot_wal_keep_size_mb);
		return true;
	}
	if (missing > (uint64) tandem_wal_fetch_limit * 1024 * 1024)
	{
		if (entry)
			pending(entry, "Raise tandem.wal_fetch_limit on this standby, or let the slot's consumer catch up.",
					"%llu MB of WAL from before this standby are needed, tandem.wal_fetch_limit is %d MB",
					(unsigned long long) (missing / (1024 * 1024)),
					tandem_wal_fetch_limit);
		return true;
	}
	return false;
}

/* ---- reserving -------------------------------------------------------------- */

/* Reserves from lsn on; false, with the error logged, if that fails. */
static bool
try_reserve(XLogRecPtr lsn)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool reserved = false;

	PG_TRY();
	{
		tandem_reserve(lsn);
		reserved = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		LWLockReleaseAll();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
	}
	PG_END_TRY();
	return reserved;
}

/*
 * Keeps WAL and files from lsn on as well: a slot is about to be dropped and
 * made anew.
 */
static void
reserve_also(Cycle *cycle, XLogRecPtr lsn)
{
	if (cycle->reserved && cycle->reserve <= lsn)
		return;
	if (try_reserve(lsn))
	{
		cycle->reserve = lsn;
		cycle->reserved = true;
	}
}

/*
 * Is a restartpoint under way that may be removing files?  It sets the redo
 * pointer in shared memory first, removes snapshot and mapping files, and
 * then writes the control file.
 */
static bool
restartpoint_running(void)
{
	ControlFileData *control;
	bool		sound;
	bool		running;

	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &sound);
	running = !sound || control->checkPointCopy.redo != GetRedoRecPtr();
	LWLockRelease(ControlFileLock);
	pfree(control);
	return running;
}

/* ---- one slot ----------------------------------------------------------------------- */

/*
 * Is a persistent slot of ours still proven, as far as this server alone can
 * tell?  Returns NULL if so, else why not.
 */
static const char *
local_disproof(const TandemLocalSlot *local, XLogSegNo oldest)
{
	TandemOwnedSlot *own = tandem_owned(NameStr(local->name));
	XLogSegNo	segno;

	if (local->invalid)
		return "it was invalidated on this standby";
	XLByteToSeg(local->restart_lsn, segno, wal_segment_size);
	if (segno < oldest || segno <= XLogGetLastRemovedSegno())
		return "WAL that it needs is no longer here";
	if (tandem_debug_ship_snapshots &&
		!(own && own->decoded_lsn == local->restart_lsn) &&
		!tandem_snapshot_exists(local->restart_lsn))
		return "the snapshot file that it needs is no longer here";
	return NULL;
}

static void
drop_slot(Cycle *cycle, const char *name, const char *why)
{
	tandem_local_drop(name);
	tandem_owned_remove(name);
	cycle->dropped++;
	cycle->progress = true;
	ereport(LOG,
			(errmsg("dropped failover slot \"%s\" on this standby: %s", name, why)));
}

/* Puts what a local slot has into its entry. */
static void
show_local(TandemSlotEntry *entry)
{
	TandemLocalSlot local;

	if (tandem_local_slot(NameStr(entry->name), &local))
	{
		entry->restart_lsn = local.restart_lsn;
		entry->confirmed_lsn = local.confirmed_lsn;
		entry->catalog_xmin = local.catalog_xmin;
	}
}

/*
 * Brings an existing slot of ours along.  It is proven for what it has; the
 * entry says whether that is as far as its consumer.
 */
static void
follow_slot(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
			const TandemLocalSlot *local, TandemSlotEntry *entry, SlotMemory *m)
{
	XLogRecPtr	restart = InvalidXLogRecPtr;
	TimestampTz now = GetCurrentTimestamp();
	bool		two_phase = (slot->flags & TANDEM_SLOT_TWO_PHASE) != 0;

	if (slot->confirmed_lsn > cycle->replayed)
	{
		pending(entry, "No action is needed if the standby catches up; tandem.standby_slots on the primary keeps subscribers from getting ahead of it.",
				"its consumer has confirmed %X/%X, but this standby has replayed only %X/%X",
				LSN_FORMAT_ARGS(slot->confirmed_lsn),
				LSN_FORMAT_ARGS(cycle->replayed));
		return;
	}
	if (!files_complete(cycle, slot, database, true, entry))
		return;

	if (m->moved == 0)
		m->moved = now;
	if (slot->restart_lsn > local->restart_lsn &&
		((slot->flags & TANDEM_SLOT_HAS_FILE) || !tandem_debug_ship_snapshots) &&
		(slot->restart_lsn - local->restart_lsn > (XLogRecPtr) wal_segment_size ||
		 TimestampDifferenceExceeds(m->moved, now, LAZY_MOVE)))
		restart = slot->restart_lsn;
	else if (TransactionIdIsValid(slot->catalog_xmin) &&
			 TransactionIdFollows(slot->catalog_xmin, local->catalog_xmin) &&
			 TimestampDifferenceExceeds(m->moved, now, LAZY_MOVE))
		restart = local->restart_lsn;

	if (!XLogRecPtrIsInvalid(restart) ||
		slot->confirmed_lsn > local->confirmed_lsn ||
		(two_phase && !local->two_phase))
	{
		if (restart > local->restart_lsn && tandem_debug_ship_snapshots &&
			!tandem_snapshot_exists(restart))
			restart = InvalidXLogRecPtr;
		if (tandem_local_move(slot, restart))
		{
			cycle->saved++;
			m->moved = now;
			if (restart > local->restart_lsn)
				tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
		}
		cycle->moved++;
		cycle->progress = true;
	}
	entry->state = TANDEM_READY;
}

/*
 * Can the slot's WAL be relied on?  Otherwise the entry says what is missing
 * and the cycle what to do about it.
 */
static bool
wal_complete(Cycle *cycle, XLogRecPtr restart, TandemSlotEntry *entry)
{
	XLogSegNo	segno;
	uint64		missing;
	bool		barrier;

	XLByteToSeg(restart, segno, wal_segment_size);
	if (wal_limit_exceeded(cycle, restart, entry))
		return false;
	if (segno <= XLogGetLastRemovedSegno())
	{
		pending(entry, "Restart this standby; then the WAL can be fetched from the primary.",
				"WAL from %X/%X on has been removed here, and this server remembers that until its next start",
				LSN_FORMAT_ARGS(restart));
		return false;
	}
	if (segno < cycle->oldest)
	{
		missing = (cycle->oldest - segno) * (uint64) wal_segment_size;
		pending(entry, NULL,
				"fetching %llu MB of WAL from before this standby",
				(unsigned long long) (missing / (1024 * 1024)));
	}

	/*
	 * A restartpoint that began before the reservation may still remove WAL
	 * and files below its redo pointer, or all files.
	 */
	barrier = restart < GetRedoRecPtr() &&
		(XLogRecPtrIsInvalid(barrier_lsn) || restart < barrier_lsn);
	if (barrier || !files_kept)
	{
		if (!cycle->reserved)
			pending(entry, "Raise max_replication_slots on this standby and restart it.",
					"no replication slot of this standby could be used to reserve its WAL");
		else if (segno >= cycle->oldest)
			pending(entry, NULL,
					"waiting for a restartpoint that may have begun before its WAL was reserved");
		if (barrier && cycle->reserved && XLogRecPtrIsInvalid(barrier_pending) &&
			tandem_helper_start(TANDEM_HELPER_BARRIER, InvalidOid, NULL))
			barrier_pending = cycle->reserve;
		return false;
	}
	if (segno >= cycle->oldest)
		return true;
	if (XLogRecPtrIsInvalid(cycle->fetch_from) || restart < cycle->fetch_from)
		cycle->fetch_from = restart;
	entry->waits_for_wal = true;
	return false;
}

/* Creates a slot that doesn't exist here, if it can be proven now. */
static void
adopt_slot(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
		   TandemSlotEntry *entry, SlotMemory *m)
{
	XLogRecPtr	restart = slot->restart_lsn;
	XLogRecPtr	decoded = InvalidXLogRecPtr;
	bool		has_file = (slot->flags & TANDEM_SLOT_HAS_FILE) != 0;
	bool		disproved;
	TimestampTz now = GetCurrentTimestamp();

	if (wal_level < WAL_LEVEL_LOGICAL)
	{
		pending(entry, "Set wal_level = logical on this standby and restart it.",
				"this standby's wal_level is lower than logical");
		return;
	}
	if (!plugin_present(NameStr(slot->plugin)))
	{
		pending(entry, "Install the output plugin's package on this standby.",
				"its output plugin \"%s\" is not installed on this standby",
				NameStr(slot->plugin));
		return;
	}
	if (tandem_free_slots() == 0)
	{
		pending(entry, "Raise max_replication_slots on this standby and restart it.",
				"all %d replication slots of this standby are in use",
				max_replication_slots);
		return;
	}
	if (!TransactionIdIsValid(cycle->hold) ||
		TransactionIdFollows(cycle->hold, slot->catalog_xmin))
	{
		pending(entry, NULL, "the primary holds no catalog rows for this standby yet");
		return;
	}

	if (!tandem_debug_ship_snapshots)
	{
		/* the way of tools that copy positions only; for tests */
		if (slot->confirmed_lsn > cycle->replayed)
		{
			pending(entry, NULL, "waiting for replay");
			return;
		}
		tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
		tandem_owned_save();
		tandem_local_create(slot, database, restart, false);
		cycle->created++;
		cycle->progress = true;
		entry->state = TANDEM_READY;
		return;
	}

	/* a proof from before the slot moved on is no use any more */
	if (has_file || m->proven_from < slot->restart_lsn)
		m->proven_from = InvalidXLogRecPtr;
	if (!XLogRecPtrIsInvalid(m->proven_from))
	{
		restart = m->proven_from;
		decoded = m->proven_decoded;
	}
	if (!wal_complete(cycle, restart, entry))
		return;
	if (slot->confirmed_lsn > cycle->replayed)
	{
		pending(entry, NULL,
				"its consumer has confirmed %X/%X, but this standby has replayed only %X/%X",
				LSN_FORMAT_ARGS(slot->confirmed_lsn),
				LSN_FORMAT_ARGS(cycle->replayed));
		return;
	}
	if (!files_complete(cycle, slot, database, false, entry))
		return;

	/* the same WAL decoded again gives the same verdict */
	disproved = m->disproved_from == slot->restart_lsn &&
		m->disproved_upto == slot->confirmed_lsn;
	if (!has_file && XLogRecPtrIsInvalid(m->proven_from) && !disproved &&
		tandem_scan_proves(restart, slot->confirmed_lsn))
	{
		m->proven_from = restart;
		decoded = restart;
	}
	if (!has_file && XLogRecPtrIsInvalid(m->proven_from))
	{
		bool		due = !disproved &&
			(m->helper_tried == 0 ||
			 TimestampDifferenceExceeds(m->helper_tried, now, HELPER_RETRY));

		if (due && tandem_helper_start(TANDEM_HELPER_DECODE, database, slot))
			m->helper_tried = now;
		if (m->helper_error[0])
			pending(entry, "It becomes ready by itself once its consumer has moved on.",
					"the primary has no snapshot for its position, and %s",
					m->helper_error);
		else
			pending(entry, "It becomes ready by itself; a transaction that has been running for long may delay it.",
					"the primary has no snapshot for its position, so its WAL is decoded as a proof");
		return;
	}

	/* the file first: after a crash, an entry without a slot is harmless */
	tandem_owned_add(NameStr(slot->name), decoded);
	tandem_owned_save();
	tandem_local_create(slot, database, restart,
						XLogRecPtrIsInvalid(decoded));
	cycle->created++;
	cycle->progress = true;
	m->moved = now;
	entry->state = TANDEM_READY;
}

/* One slot of the primary; errors are the caller's to catch. */
static void
process_slot(Cycle *cycle, const TandemRemoteSlot *slot, TandemSlotEntry *entry)
{
	const char *name = NameStr(slot->name);
	SlotMemory *m = slot_memory(name);
	TandemLocalSlot local;
	bool		exists = tandem_local_slot(name, &local);
	bool		invalid = (slot->flags & TANDEM_SLOT_INVALID) != 0;
	Oid			database;
	const char *why = NULL;

	m->seen = cycle_number;
	if (exists && tandem_owned(name) == NULL)
	{
		entry->state = TANDEM_FOREIGN;
		strlcpy(entry->reason, "a slot of this name exists on this standby that pg_tandem did not make",
				sizeof(entry->reason));
		snprintf(entry->hint, sizeof(entry->hint),
				 "If nothing uses it, run SELECT pg_drop_replication_slot('%s') on this standby.",
				 name);
		return;
	}
	if (cycle->wrong_timeline)
	{
		pending(entry, NULL, "this standby follows timeline %u, the primary is on %u",
				cycle->replay_timeline, cycle->timeline);
		return;
	}

	/*
	 * Replay of DROP DATABASE takes this lock exclusively before it looks for
	 * slots; an active one would make it fail, and the standby with it.
	 */
	database = get_database_oid(NameStr(slot->database), true);
	if (OidIsValid(database))
	{
		LockSharedObject(DatabaseRelationId, database, 0, AccessShareLock);
		if (!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)))
			database = InvalidOid;
	}
	if (!OidIsValid(database))
	{
		pending(entry, NULL, "its database does not exist on this standby (yet)");
		return;
	}

	exists = tandem_local_slot(name, &local);
	if (exists)
	{
		if (invalid)
			why = "the primary's slot has been invalidated";
		else if (local.database != database ||
				 strcmp(NameStr(local.plugin), NameStr(slot->plugin)) != 0 ||
				 (local.two_phase && !(slot->flags & TANDEM_SLOT_TWO_PHASE)))
			why = "the primary's slot of this name is another one now";
		else if (m->remote_started == cycle->started &&
				 slot->confirmed_lsn < m->remote_confirmed)
			why = "the primary's slot has been recreated at an older position";
		else if (!TransactionIdIsValid(cycle->hold) ||
				 TransactionIdFollows(cycle->hold, local.catalog_xmin))
			why = "the primary no longer held its catalog rows";
		else
			why = local_disproof(&local, cycle->oldest);

		if (why)
		{
			if (!invalid && !wal_limit_exceeded(cycle, slot->restart_lsn, NULL))
				reserve_also(cycle, slot->restart_lsn);
			drop_slot(cycle, name, why);
			exists = false;
			m->proven_from = InvalidXLogRecPtr;
			m->moved = 0;
		}
	}
	m->remote_confirmed = slot->confirmed_lsn;
	m->remote_started = cycle->started;

	if (invalid)
	{
		entry->state = TANDEM_INVALID;
		strlcpy(entry->reason, "the primary has invalidated it: it needed more WAL than max_slot_wal_keep_size allows",
				sizeof(entry->reason));
		strlcpy(entry->hint, "Its consumer has lost changes; recreate slot and subscription, and raise max_slot_wal_keep_size.",
				sizeof(entry->hint));
	}
	else if (exists)
		follow_slot(cycle, slot, database, &local, entry, m);
	else
	{
		adopt_slot(cycle, slot, database, entry, m);
		if (entry->state == TANDEM_READY)
		{
			ereport(LOG,
					(errmsg("failover slot \"%s\" is ready on this standby", name),
					 errdetail("It is confirmed to %X/%X and restarts at %X/%X.",
							   LSN_FORMAT_ARGS(slot->confirmed_lsn),
							   LSN_FORMAT_ARGS(slot->restart_lsn))));
			m->proven_from = InvalidXLogRecPtr;
		}
	}

	if (entry->state == TANDEM_PENDING && !tandem_local_slot(name, &local))
		cycle->unproven++;
}

/*
 * Runs one step on a slot in a transaction of its own.  An error is logged
 * (once, not every second) and becomes the slot's reason.
 */
static void
isolated(Cycle *cycle, MemoryContext context, const TandemRemoteSlot *slot,
		 TandemSlotEntry *entry)
{
	SlotMemory *m = slot_memory(NameStr(slot->name));
	TandemLocalSlot local;

	PG_TRY();
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		process_slot(cycle, slot, entry);
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		m->error[0] = '\0';
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (strcmp(edata->message, m->error) != 0)
		{
			EmitErrorReport();
			strlcpy(m->error, edata->message, sizeof(m->error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		MemoryContextSwitchTo(context);
		pending(entry, edata->hint ? edata->hint : "The next cycle tries again; see this server's log if it stays.",
				"%s", edata->message);
		if (!tandem_local_slot(NameStr(slot->name), &local))
			cycle->unproven++;
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

/* ---- the whole cycle ------------------------------------------------------------------ */

static TandemSlotEntry *
new_entry(Cycle *cycle, const char *name, const char *database,
		  const char *plugin)
{
	TandemSlotEntry *entry = &cycle->entries[cycle->nentries++];

	memset(entry, 0, sizeof(*entry));
	namestrcpy(&entry->name, name);
	if (database)
		namestrcpy(&entry->database, database);
	namestrcpy(&entry->plugin, plugin);
	return entry;
}

/*
 * Local logical slots that the primary's answer doesn't have: ours are
 * dropped, others are shown.
 */
static void
process_leftovers(Cycle *cycle, MemoryContext context)
{
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;
	int			j;

	if (cycle->wrong_timeline)
		return;
	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);

		for (j = 0; j < cycle->nslots; j++)
		{
			if (strcmp(NameStr(cycle->slots[j].name), name) == 0)
				break;
		}
		if (j < cycle->nslots)
			continue;

		PG_TRY();
		{
			StartTransactionCommand();
			MemoryContextSwitchTo(context);
			if (tandem_owned(name) != NULL)
			{
				LockSharedObject(DatabaseRelationId, locals[i].database, 0,
								 AccessShareLock);
				if (tandem_local_slot(name, &locals[i]))
					drop_slot(cycle, name, "the primary has no failover slot of this name");
				else
					tandem_owned_remove(name);
			}
			else
			{
				TandemSlotEntry *entry =
				new_entry(cycle, name, get_database_name(locals[i].database),
						  NameStr(locals[i].plugin));

				entry->state = TANDEM_FOREIGN;
				strlcpy(entry->reason, "this slot exists only on this standby, and pg_tandem did not make it",
						sizeof(entry->reason));
				snprintf(entry->hint, sizeof(entry->hint),
						 "If nothing uses it, run SELECT pg_drop_replication_slot('%s') on this standby.",
						 name);
				show_local(entry);
			}
			CommitTransactionCommand();
			MemoryContextSwitchTo(context);
		}
		PG_CATCH();
		{
			HOLD_INTERRUPTS();
			MemoryContextSwitchTo(context);
			EmitErrorReport();
			FlushErrorState();
			AbortCurrentTransaction();
			if (MyReplicationSlot != NULL)
				ReplicationSlotRelease();
			MemoryContextSwitchTo(context);
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();
	}
}

/* Takes the helper's result, if there is one, into memory. */
static void
take_helper_result(void)
{
	TandemHelper result;
	TandemHelperState state = tandem_helper_poll(&result);

	if (state != TANDEM_HELPER_SUCCEEDED && state != TANDEM_HELPER_FAILED)
		return;
	if (result.task == TANDEM_HELPER_BARRIER)
	{
		if (state == TANDEM_HELPER_SUCCEEDED)
			barrier_lsn = barrier_pending;
		barrier_pending = InvalidXLogRecPtr;
	}
	else
	{
		SlotMemory *m = slot_memory(NameStr(result.slot));

		m->seen = cycle_number;
		m->helper_error[0] = '\0';
		if (state == TANDEM_HELPER_SUCCEEDED)
		{
			m->proven_from = result.restart_lsn;
			m->proven_decoded = tandem_snapshot_exists(result.restart_lsn) ?
				InvalidXLogRecPtr : result.restart_lsn;
		}
		else
		{
			strlcpy(m->helper_error, result.error, sizeof(m->helper_error));
			if (result.inconsistent)
			{
				m->disproved_from = result.restart_lsn;
				m->disproved_upto = result.confirmed_lsn;
			}
		}
	}
}

/*
 * Reserves WAL and files for the slots that don't exist here yet, before
 * anything of them is installed.
 */
static void
reserve_for_new_slots(Cycle *cycle)
{
	int			i;

	cycle->reserve = InvalidXLogRecPtr;
	if (cycle->wrong_timeline || wal_level < WAL_LEVEL_LOGICAL)
		return;
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];
		TandemLocalSlot local;
		SlotMemory *m = slot_memory(NameStr(slot->name));
		XLogRecPtr	lsn = slot->restart_lsn;

		m->seen = cycle_number;
		if ((slot->flags & TANDEM_SLOT_INVALID) ||
			tandem_local_slot(NameStr(slot->name), &local) ||
			wal_limit_exceeded(cycle, lsn, NULL))
			continue;
		if (!XLogRecPtrIsInvalid(cycle->reserve) && cycle->reserve <= lsn)
			continue;
		cycle->reserve = lsn;
	}

	/*
	 * A restartpoint that found no logical slot removes all files, also those
	 * younger than itself.
	 */
	if (!tandem_any_logical_slot())
		files_kept = false;

	if (XLogRecPtrIsInvalid(cycle->reserve))
	{
		tandem_unreserve();
		barrier_lsn = InvalidXLogRecPtr;
		barrier_pending = InvalidXLogRecPtr;
	}
	else if (tandem_free_slots() > 1 ||
			 SearchNamedReplicationSlot(TANDEM_RESERVE_SLOT, true) != NULL)
	{
		cycle->reserved = try_reserve(cycle->reserve);

		/* what lies below has not been kept all the time since the barrier */
		if (!XLogRecPtrIsInvalid(barrier_lsn))
			barrier_lsn = Max(barrier_lsn, cycle->reserve);
		if (!XLogRecPtrIsInvalid(barrier_pending))
			barrier_pending = Max(barrier_pending, cycle->reserve);
	}
	if (!files_kept && tandem_any_logical_slot())
		files_kept = !restartpoint_running();
}

static void
publish(Cycle *cycle, double ms, double cpu_ms)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	TimestampTz now = GetCurrentTimestamp();
	int			i;

	for (i = 0; i < cycle->nentries; i++)
		cycle->entries[i].last_sync = now;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->nentries = cycle->nentries;
	memcpy(shared->entries, cycle->entries,
		   Min(cycle->nentries, shared->max_entries) * sizeof(TandemSlotEntry));
	shared->cycles++;
	shared->last_cycle = now;
	shared->last_success = now;
	shared->cycle_ms = ms;
	shared->cycle_cpu_ms = cpu_ms;
	shared->bytes_sent = tandem_remote_bytes_sent(remote) - cycle->sent_before;
	shared->bytes_received = tandem_remote_bytes_received(remote) - cycle->received_before;
	shared->slots_created = cycle->created;
	shared->slots_moved = cycle->moved;
	shared->slots_saved = cycle->saved;
	shared->slots_dropped += cycle->dropped;
	shared->files_installed += cycle->installed;
	shared->wal_fetched += cycle->fetched;
	shared->restart_lag = cycle->restart_lag;
	shared->hold_xmin = cycle->hold;
	strlcpy(NameStr(shared->primary_slot_name), PrimarySlotName, NAMEDATALEN);
	shared->error[0] = '\0';
	shared->hint[0] = '\0';
	LWLockRelease(shared->lock);
}

/*
 * Enters the slots that this cycle is likely to create into the file of ours:
 * one durable write instead of one for each.
 */
static void
expect_slots(Cycle *cycle)
{
	TandemLocalSlot local;
	int			i;

	if (cycle->wrong_timeline)
		return;
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];

		if (slot->confirmed_lsn <= cycle->replayed &&
			!(slot->flags & TANDEM_SLOT_INVALID) &&
			!tandem_local_slot(NameStr(slot->name), &local))
			tandem_owned_add(NameStr(slot->name), InvalidXLogRecPtr);
	}
	tandem_owned_save();
}

/* Takes those back that could not be created. */
static void
forget_expected(Cycle *cycle)
{
	TandemLocalSlot local;
	int			i;

	for (i = 0; i < cycle->nslots; i++)
	{
		const char *name = NameStr(cycle->slots[i].name);

		if (tandem_owned(name) && !tandem_local_slot(name, &local))
			tandem_owned_remove(name);
	}
}

/*
 * Fetches a slice of the WAL that slots wait for.  An error is logged once and
 * becomes the reason of those slots; the others don't suffer from it.
 */
static void
fetch_missing_wal(Cycle *cycle, MemoryContext context)
{
	static char last_error[TANDEM_TEXT_LEN];
	XLogSegNo	from;
	int			i;

	XLByteToSeg(cycle->fetch_from, from, wal_segment_size);
	PG_TRY();
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context);
		cycle->fetched = tandem_fetch_wal(remote, cycle->replay_timeline, from,
										  &cycle->oldest, FETCH_SLICE);
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
		last_error[0] = '\0';
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (strcmp(edata->message, last_error) != 0)
		{
			EmitErrorReport();
			strlcpy(last_error, edata->message, sizeof(last_error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(context);
		for (i = 0; i < cycle->nentries; i++)
		{
			if (cycle->entries[i].waits_for_wal)
				pending(&cycle->entries[i],
						edata->hint ? edata->hint : "The next cycle tries again; see this server's log if it stays.",
						"%s", edata->message);
		}
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
}

/* The cycle proper; errors that concern all slots are raised. */
static void
run_cycle(Cycle *cycle, MemoryContext context)
{
	TransactionId saved_xmin = InvalidTransactionId;
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;

	ensure_connection();
	cycle->sent_before = tandem_remote_bytes_sent(remote);
	cycle->received_before = tandem_remote_bytes_received(remote);
	take_helper_result();

	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		if (tandem_owned(NameStr(locals[i].name)) &&
			TransactionIdIsValid(locals[i].catalog_xmin) &&
			(!TransactionIdIsValid(saved_xmin) ||
			 TransactionIdPrecedes(locals[i].catalog_xmin, saved_xmin)))
			saved_xmin = locals[i].catalog_xmin;
	}

	ask_primary(cycle, saved_xmin);
	relied_hold = cycle->hold;
	tandem_owned_set_held_until(cycle->held_until);
	read_replay_position(cycle);
	reserve_for_new_slots(cycle);
	install_files(cycle);

	cycle->entries = palloc((cycle->nslots + max_replication_slots + 1) *
							sizeof(TandemSlotEntry));

	expect_slots(cycle);
	for (i = 0; i < cycle->nslots; i++)
	{
		TandemRemoteSlot *slot = &cycle->slots[i];
		TandemSlotEntry *entry = new_entry(cycle, NameStr(slot->name),
										   NameStr(slot->database),
										   NameStr(slot->plugin));

		if (promoted() != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gave up syncing slots: %s", promoted())));
		entry->primary_restart_lsn = slot->restart_lsn;
		entry->primary_confirmed_lsn = slot->confirmed_lsn;
		entry->primary_catalog_xmin = slot->catalog_xmin;
		isolated(cycle, context, slot, entry);
		show_local(entry);
		if (entry->restart_lsn && slot->restart_lsn > entry->restart_lsn)
			cycle->restart_lag = Max(cycle->restart_lag,
									 slot->restart_lsn - entry->restart_lsn);
	}
	forget_expected(cycle);
	process_leftovers(cycle, context);
	tandem_owned_set_unproven(cycle->unproven);
	tandem_owned_save();

	if (!XLogRecPtrIsInvalid(cycle->fetch_from))
		fetch_missing_wal(cycle, context);
	forget_unseen();
}

/*
 * Has replay come to a time when the primary may have ended our hold, without
 * a contact in between?  Then catalog rows that our slots need may be gone.
 *
 * The times of replayed commits tell, not this server's clock: when nothing
 * more comes from the primary, nothing more is removed either, and the last
 * proof stays valid however old it is.
 */
static bool
hold_ended(void)
{
	TimestampTz until = tandem_owned_held_until();

	return until != 0 && GetLatestXTime() > until;
}

/*
 * Gives up our slots if the primary may no longer hold catalog rows for them.
 * Called by the worker between cycles, not in a transaction.
 */
void
tandem_cycle_check_hold(void)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	TandemLocalSlot *locals;
	int			nlocals;
	int			ndropped = 0;
	int			i;
	int			j;

	if (!hold_ended() || tandem_owned_count() == 0)
		return;
	StartTransactionCommand();
	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);

		if (tandem_owned(name) == NULL)
			continue;
		LockSharedObject(DatabaseRelationId, locals[i].database, 0,
						 AccessShareLock);
		if (!tandem_local_slot(name, &locals[i]))
			continue;
		tandem_local_drop(name);
		tandem_owned_remove(name);
		ndropped++;
		ereport(LOG,
				(errmsg("dropped failover slot \"%s\" on this standby: the primary may no longer hold its catalog rows",
						name),
				 errdetail("Replay has passed %s, up to when the primary had promised to hold them.",
						   timestamptz_to_str(tandem_owned_held_until())),
				 errhint("Restore the contact with the primary; tandem.sync_status shows the error.")));

		LWLockAcquire(shared->lock, LW_EXCLUSIVE);
		for (j = 0; j < Min(shared->nentries, shared->max_entries); j++)
		{
			TandemSlotEntry *entry = &shared->entries[j];

			if (strcmp(NameStr(entry->name), name) != 0)
				continue;
			entry->restart_lsn = entry->confirmed_lsn = InvalidXLogRecPtr;
			entry->catalog_xmin = InvalidTransactionId;
			pending(entry, "Restore the contact with the primary; tandem.sync_status shows the error.",
					"there was no contact with the primary for longer than its tandem.hold_timeout, so it may no longer hold the catalog rows of this slot");
		}
		LWLockRelease(shared->lock);
	}
	tandem_owned_set_unproven(tandem_owned_unproven() + ndropped);
	tandem_owned_save();
	CommitTransactionCommand();
}

/*
 * Runs one cycle and publishes its outcome.  Returns whether something moved
 * or is on its way, so that the pause before the next cycle is the short one.
 */
bool
tandem_cycle_run(void)
{
	MemoryContext context;
	Cycle	   *cycle;
	TimestampTz began = GetCurrentTimestamp();
	struct rusage before;
	struct rusage after;
	volatile bool progress = false;

	context = AllocSetContextCreate(TopMemoryContext, "tandem cycle",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	cycle = palloc0(sizeof(Cycle));
	cycle_number++;
	getrusage(RUSAGE_SELF, &before);

	PG_TRY();
	{
		run_cycle(cycle, context);
		getrusage(RUSAGE_SELF, &after);
		publish(cycle,
				(GetCurrentTimestamp() - began) / 1000.0,
				(after.ru_utime.tv_sec - before.ru_utime.tv_sec +
				 after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000.0 +
				(after.ru_utime.tv_usec - before.ru_utime.tv_usec +
				 after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1000.0);
		progress = cycle->progress || cycle->unproven > 0;
	}
	PG_CATCH();
	{
		static char last_error[TANDEM_TEXT_LEN];
		ErrorData  *edata;
		const char *hint;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		hint = edata->hint ? edata->hint : connection_hint(edata->sqlerrcode);
		if (strcmp(edata->message, last_error) != 0 ||
			tandem_slots_shared->error[0] == '\0')
		{
			EmitErrorReport();
			strlcpy(last_error, edata->message, sizeof(last_error));
		}
		FlushErrorState();
		AbortCurrentTransaction();
		LWLockReleaseAll();
		if (MyReplicationSlot != NULL)
			ReplicationSlotRelease();
		MemoryContextSwitchTo(context);

		if (!tandem_remote_is_alive(remote))
			tandem_cycle_disconnect();

		LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
		tandem_slots_shared->failed_cycles++;
		tandem_slots_shared->last_cycle = GetCurrentTimestamp();
		strlcpy(tandem_slots_shared->error, edata->message,
				sizeof(tandem_slots_shared->error));
		strlcpy(tandem_slots_shared->hint, hint ? hint : "",
				sizeof(tandem_slots_shared->hint));
		LWLockRelease(tandem_slots_shared->lock);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
	return progress;
}

/*
 * When the worker of a standby starts: checks our slots with what this server
 * knows alone, before the primary has answered, and shows those that hold.
 */
void
tandem_cycle_start(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "tandem start",
												  ALLOCSET_DEFAULT_SIZES);
	Cycle		cycle;
	TandemLocalSlot *locals;
	int			nlocals;
	int			i;

	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	tandem_helper_stop();
	tandem_owned_load();

	memset(&cycle, 0, sizeof(cycle));
	cycle.replayed = GetXLogReplayRecPtr(&cycle.replay_timeline);
	cycle.oldest = tandem_oldest_wal(cycle.replay_timeline, cycle.replayed);
	cycle.entries = palloc((max_replication_slots + 1) * sizeof(TandemSlotEntry));

	locals = tandem_local_slots(&nlocals);
	for (i = 0; i < nlocals; i++)
	{
		const char *name = NameStr(locals[i].name);
		TandemSlotEntry *entry;
		const char *why;

		if (tandem_owned(name) == NULL)
			continue;
		LockSharedObject(DatabaseRelationId, locals[i].database, 0,
						 AccessShareLock);
		if (!tandem_local_slot(name, &locals[i]))
			continue;
		why = hold_ended() ? "the primary may no longer hold its catalog rows" :
			local_disproof(&locals[i], cycle.oldest);
		if (why)
		{
			drop_slot(&cycle, name, why);
			continue;
		}
		entry = new_entry(&cycle, name, get_database_name(locals[i].database),
						  NameStr(locals[i].plugin));
		entry->state = TANDEM_READY;
		show_local(entry);
	}
	tandem_owned_set_unproven(tandem_owned_unproven() + cycle.dropped);
	tandem_owned_save();

	LWLockAcquire(tandem_slots_shared->lock, LW_EXCLUSIVE);
	tandem_slots_shared->nentries = cycle.nentries;
	memcpy(tandem_slots_shared->entries, cycle.entries,
		   Min(cycle.nentries, tandem_slots_shared->max_entries) *
		   sizeof(TandemSlotEntry));
	tandem_slots_shared->slots_dropped += cycle.dropped;
	tandem_slots_shared->unproven_at_start = tandem_owned_unproven();
	LWLockRelease(tandem_slots_shared->lock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	MemoryContextDelete(context);
}

/*
 * This server has been promoted: one log line a slot, then the slots are its
 * own.
 */
void
tandem_cycle_promoted(void)
{
	TandemSlotsShared *shared = tandem_slots_shared;
	int			i;

	tandem_helper_stop();
	tandem_cycle_disconnect();
	tandem_unreserve();

	LWLockAcquire(shared->lock, LW_SHARED);
	for (i = 0; i < Min(shared->nentries, shared->max_entries); i++)
	{
		TandemSlotEntry *entry = &shared->entries[i];

		if (entry->state == TANDEM_READY)
			ereport(LOG,
					(errmsg("failover slot \"%s\" goes on from %X/%X on this new primary",
							NameStr(entry->name),
							LSN_FORMAT_ARGS(entry->confirmed_lsn)),
					 entry->last_sync ?
					 errdetail("It was last compared with the old primary at %s.",
							   timestamptz_to_str(entry->last_sync)) : 0));
		else
			ereport(LOG,
					(errmsg("failover slot \"%s\" was not ready when this server was promoted: %s",
							NameStr(entry->name), entry->reason),
					 errhint("%s", entry->restart_lsn ?
							 "Its consumer may have received changes that this server doesn't have." :
							 "It does not exist on this server; its consumer needs a new slot and a new copy of its tables.")));
	}
	LWLockRelease(shared->lock);
	tandem_owned_discard_all();
}
