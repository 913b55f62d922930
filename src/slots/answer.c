/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  The conversation of a standby with its primary.
 *
 * Keeps the connection, says what this standby has, and reads the answer of
 * tandem.source_slots() into the cycle.  Whatever the primary sends is checked
 * before it is believed: the cluster it belongs to here, names and files where
 * they are used.
 *
 * Errors of the connection or the query concern all slots and are raised.
 *
 * src/slots/answer.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "replication/walreceiver.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "common/remote.h"
#include "common/settings.h"
#include "slots/cycle.h"

#define CYCLE_QUERY \
	"SELECT kind, name, database, plugin, flags, restart_lsn, confirmed_lsn," \
	" two_phase_at, catalog_xmin, content" \
	" FROM tandem.source_slots($1, $2, $3, $4, $5, $6)"

#define CONNECT_TIMEOUT 10000	/* ms */
#define QUERY_TIMEOUT 30000		/* ms */

static TandemRemote *remote = NULL;
static char *remote_conninfo = NULL;	/* what it was made with ... */
static bool remote_own = false; /* ... and whether that was tandem.primary_conninfo */
static TransactionId relied_hold = InvalidTransactionId;	/* for the primary's log */


const char *
tandem_promoted(void)
{
	return RecoveryInProgress() ? NULL : "this server has been promoted";
}

/* Does tandem.primary_conninfo say how to reach the primary? */
static bool
own_conninfo(void)
{
	return tandem_primary_conninfo[0] != '\0';
}

/* How the primary is reached by the present settings; may be null or empty. */
static const char *
current_conninfo(void)
{
	return own_conninfo() ? tandem_primary_conninfo : PrimaryConnInfo;
}

/* Was the connection made by the present settings? */
static bool
conninfo_is_current(void)
{
	const char *conninfo = current_conninfo();

	return remote_conninfo != NULL && conninfo != NULL &&
		strcmp(remote_conninfo, conninfo) == 0 && remote_own == own_conninfo();
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
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		if (!conninfo_is_current())
			return "the connection settings have changed";
	}
	return tandem_promoted();
}

/*
 * What to do about an error of the connection or the query that comes without
 * a hint of its own; null if it isn't one of those.
 */
const char *
tandem_connection_hint(int sqlerrcode)
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
void
tandem_connect_primary(void)
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
		!conninfo_is_current())
		tandem_cycle_disconnect();
	if (remote == NULL)
	{
		remote_conninfo = MemoryContextStrdup(TopMemoryContext, conninfo);
		remote_own = own_conninfo();
		remote = tandem_remote_connect(remote_conninfo, tandem_database,
									   !remote_own, CONNECT_TIMEOUT,
									   stop_waiting);
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
void
tandem_ask_primary(Cycle *cycle, TransactionId saved_xmin)
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
	relied_hold = cycle->hold;
	if (!told)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the primary's answer is not one of pg_tandem")));
}

/* The connection to the primary; NULL if there is none. */
TandemRemote *
tandem_primary(void)
{
	return remote;
}
