/*-------------------------------------------------------------------------
 *
 * source.c
 *	  The new primary, as "tandem rejoin" asks it.
 *
 * Everything comes through the SQL functions of src/failback/reader.c and
 * slots/source.c, over one connection as an ordinary role with REPLICATION.
 * Answers that may be large arrive row by row, in binary.
 *
 * cli/rejoin/source.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/compat.h"
#include "common/file_perm.h"
#include "port/pg_bswap.h"
#include "result.h"
#include "rejoin/rejoin.h"
#include "text.h"

#define WAL_CHUNK (4 * 1024 * 1024)
#define FILE_CHUNK (1024 * 1024)
#define REQUESTS_AT_ONCE 4096
#define BLOCKS_AT_ONCE 4096		/* 32 MB: what one answer holds */
#define DEFAULT_DATABASE "postgres" /* default of tandem.database */
#define GRANTS_HINT "docs/failback.md lists what the role has to be granted."

/* ---- connection ------------------------------------------------------------- */

/* "keyword" of a connection string, or NULL */
static char *
conninfo_value(PQconninfoOption *options, const char *keyword)
{
	for (; options && options->keyword; options++)
		if (strcmp(options->keyword, keyword) == 0)
			return options->val;
	return NULL;
}

static PGconn *
connect_source(const Source *source, const char *replication)
{
	PQconninfoOption *parsed;
	char	   *error = NULL;
	const char *keywords[6];
	const char *values[6];
	int			n = 0;

	parsed = PQconninfoParse(source->conninfo, &error);
	if (parsed == NULL)
	{
		pg_log_error("\"%s\" is not a connection string: %s", text_clean(source->conninfo),
					 text_clean(error ? error : ""));
		pg_log_error_hint("Write it as in --source=\"host=db2 user=repl\".");
		exit(EXIT_USAGE);
	}
	/* the later one wins; dbname comes first, for it is what is expanded */
	keywords[n] = "dbname";
	values[n++] = source->conninfo;
	if (replication)
	{
		keywords[n] = "replication";
		values[n++] = replication;
	}
	else if (conninfo_value(parsed, "dbname") == NULL && conninfo_value(parsed, "service") == NULL)
	{
		keywords[n] = "dbname";
		values[n++] = DEFAULT_DATABASE;
	}
	keywords[n] = "fallback_application_name";
	values[n++] = "tandem rejoin";
	keywords[n] = values[n] = NULL;
	return PQconnectdbParams(keywords, values, 1);
}

pg_attribute_noreturn() static void source_failed(const Source *source, const PGresult *res)
{
	const char *hint = res ? PQresultErrorField(res, PG_DIAG_MESSAGE_HINT) : NULL;
	const char *state = res ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;
	const char *primary = res ? PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY) : NULL;

	if (primary == NULL)
		primary = text_message(PQerrorMessage(source->conn));
	if (state && (strcmp(state, "42883") == 0 || strcmp(state, "3F000") == 0))
		hint = "Let --source name the database that has the extension (tandem.database), and update the extension there.";
	else if (state && strcmp(state, "42501") == 0)
		hint = GRANTS_HINT;
	rejoin_refuse(hint ? text_clean(hint) : NULL, "%s: %s", source->label, text_clean(primary));
}

static PGresult *
query(Source *source, const char *sql, int nparams, const char *const *params)
{
	PGresult   *res = PQexecParams(source->conn, sql, nparams, NULL, params, NULL, NULL, 0);

	if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
		source_failed(source, res);
	return res;
}

void
source_refresh(Source *source)
{
	PGresult   *res = query(source, "SELECT * FROM tandem.rejoin_source()", 0, NULL);

	source->tli = (TimeLineID) atoi(field(res, 0, "timeline"));
	source->flush = field_lsn(res, 0, "flush_lsn");
	source->checkpoint_tli = (TimeLineID) atoi(field(res, 0, "checkpoint_timeline"));
	source->checkpoint_redo = field_lsn(res, 0, "checkpoint_redo");
	source->history = pg_strdup(field(res, 0, "history") ? field(res, 0, "history") : "");
	PQclear(res);
}

void
source_open(Source *source, const Options *options, const Target *target)
{
	PGresult   *res;
	char		sysid[32];

	memset(source, 0, sizeof(*source));
	source->conninfo = options->source;
	source->label = "the source";
	source->conn = connect_source(source, NULL);
	if (PQstatus(source->conn) != CONNECTION_OK)
		rejoin_refuse("Check --source, and that the new primary runs.",
					  "could not connect to the source: %s",
					  text_message(PQerrorMessage(source->conn)));
	source->label = psprintf("%s:%s", PQhost(source->conn), PQport(source->conn));
	if (PQserverVersion(source->conn) / 10000 != PG_VERSION_NUM / 10000)
		rejoin_refuse("Give the node that was promoted in place of this one.",
					  "%s runs PostgreSQL %d, this data directory needs %d", source->label,
					  PQserverVersion(source->conn) / 10000, PG_VERSION_NUM / 10000);
	PQclear(query(source, "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)", 0, NULL));
	PQclear(query(source, "SELECT pg_catalog.set_config('statement_timeout', '0', false)", 0, NULL));
	PQclear(query(source, "SELECT pg_catalog.set_config('work_mem', '64MB', false)", 0, NULL));

	res = query(source, "SELECT * FROM tandem.rejoin_source()", 0, NULL);
	snprintf(sysid, sizeof(sysid), UINT64_FORMAT, target->control.system_identifier);
	if (strcmp(field(res, 0, "system_identifier"), sysid) != 0)
		rejoin_refuse("Give the node that was promoted in place of this one.",
					  "%s is another cluster: its system identifier is %s, the one of \"%s\" is %s",
					  source->label, field(res, 0, "system_identifier"), target->dir, sysid);
	if (field_is_true(res, 0, "in_recovery"))
		rejoin_refuse("Give the new primary, or promote that node first.",
					  "%s is a standby", source->label);
	if (atoi(field(res, 0, "wal_segment_size")) != (int) target->segment_size ||
		atoi(field(res, 0, "block_size")) != BLCKSZ ||
		atoi(field(res, 0, "relation_segment_blocks")) != RELSEG_SIZE)
		rejoin_refuse(NULL, "%s was built or made with other sizes than this data directory",
					  source->label);
	if (field_is_true(res, 0, "data_checksums") != target->checksums)
		rejoin_refuse("Switch checksums the same way with pg_checksums on the node that is stopped.",
					  "data checksums are on on one of the two nodes only");
	PQclear(res);
	source_refresh(source);
}

XLogRecPtr
source_flushed(Source *source)
{
	source_refresh(source);
	return source->flush;
}

/* ---- WAL ----------------------------------------------------------------------- */

/* One chunk, or NULL if the file isn't there. */
static PGresult *
wal_chunk(Source *source, const char *name, uint32 offset, int length)
{
	const char *params[3];
	PGresult   *res;

	params[0] = name;
	params[1] = psprintf("%u", offset);
	params[2] = psprintf("%d", length);
	res = PQexecParams(source->conn, "SELECT tandem.source_wal($1, $2::pg_catalog.int8, $3::pg_catalog.int4)",
					   3, NULL, params, NULL, NULL, 1);
	if (PQresultStatus(res) != PGRES_TUPLES_OK)
	{
		const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		/* removed while it was read */
		if (state == NULL || strcmp(state, "58P01") != 0)
			source_failed(source, res);
		PQclear(res);
		return NULL;
	}
	if (PQntuples(res) != 1 || PQgetisnull(res, 0, 0))
	{
		PQclear(res);
		return NULL;
	}
	return res;
}

char *
source_read_wal(Source *source, const char *name, uint32 offset, int length)
{
	PGresult   *res = wal_chunk(source, name, offset, length);
	char	   *copy;

	if (res == NULL)
		return NULL;
	if (PQgetlength(res, 0, 0) != length)
	{
		PQclear(res);
		return NULL;
	}
	copy = pg_malloc(length);
	memcpy(copy, PQgetvalue(res, 0, 0), length);
	PQclear(res);
	return copy;
}

bool
source_fetch_wal(Source *source, const char *name, const char *to, uint32 size)
{
	int			fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY, pg_file_create_mode);
	uint32		done = 0;

	if (fd < 0)
		rejoin_refuse(NULL, "could not create file \"%s\": %m", to);
	while (done < size)
	{
		PGresult   *res = wal_chunk(source, name, done, Min(WAL_CHUNK, size - done));
		int			n = res ? PQgetlength(res, 0, 0) : 0;

		if (n <= 0)
			break;
		if (write(fd, PQgetvalue(res, 0, 0), n) != n)
			rejoin_refuse(NULL, "could not write file \"%s\": %m", to);
		done += n;
		PQclear(res);
	}
	if (fsync(fd) != 0 || close(fd) != 0)
		rejoin_refuse(NULL, "could not write file \"%s\": %m", to);
	if (done < size)
		unlink(to);
	return done == size;
}

/* ---- files ------------------------------------------------------------------------ */

static int
compare_files(const void *a, const void *b)
{
	return strcmp(((const SourceFile *) a)->path, ((const SourceFile *) b)->path);
}

SourceFile *
source_files(Source *source, int *count)
{
	PGresult   *res = query(source, "SELECT path, size FROM tandem.source_files()", 0, NULL);
	SourceFile *files;

	*count = PQntuples(res);
	files = pg_malloc((*count + 1) * sizeof(SourceFile));
	for (int i = 0; i < *count; i++)
	{
		files[i].path = PQgetvalue(res, i, 0);
		files[i].size = PQgetisnull(res, i, 1) ? -1 : strtoll(PQgetvalue(res, i, 1), NULL, 10);
	}
	qsort(files, *count, sizeof(SourceFile), compare_files);
	return files;				/* res lives as long as the process */
}

bool
source_file(Source *source, const char *path, PQExpBuffer content)
{
	resetPQExpBuffer(content);
	for (;;)
	{
		const char *params[3];
		PGresult   *res;
		int			n;

		params[0] = path;
		params[1] = psprintf("%zu", content->len);
		params[2] = psprintf("%d", FILE_CHUNK);
		res = PQexecParams(source->conn,
						   "SELECT tandem.source_file($1, $2::pg_catalog.int8, $3::pg_catalog.int4)",
						   3, NULL, params, NULL, NULL, 1);
		if (PQresultStatus(res) != PGRES_TUPLES_OK)
			source_failed(source, res);
		if (PQntuples(res) != 1 || PQgetisnull(res, 0, 0))
		{
			PQclear(res);
			return false;
		}
		n = PQgetlength(res, 0, 0);
		appendBinaryPQExpBuffer(content, PQgetvalue(res, 0, 0), n);
		PQclear(res);
		if (PQExpBufferBroken(content))
			rejoin_refuse(NULL, "out of memory");
		if (n < FILE_CHUNK)
			return true;
	}
}

/* ---- blocks ------------------------------------------------------------------------ */

static int64
binary_int(const PGresult *res, int column)
{
	uint64		value = 0;

	memcpy(&value, PQgetvalue(res, 0, column), PQgetlength(res, 0, column) == 8 ? 8 : 4);
	if (PQgetlength(res, 0, column) == 8)
		return (int64) pg_ntoh64(value);
	return (int32) pg_ntoh32((uint32) value);
}

static void
append_element(PQExpBuffer array, int i, unsigned value)
{
	appendPQExpBuffer(array, "%c%u", i == 0 ? '{' : ',', value);
}

/* Some of the requests; their numbers in the answer count from 1. */
static void
read_blocks(Source *source, const BlockRequest *requests, int n, const BlockSink *sink)
{
	PQExpBufferData arrays[6];
	const char *params[6];
	PGresult   *res;
	int			done = 0;

	for (int a = 0; a < 6; a++)
		initPQExpBuffer(&arrays[a]);
	for (int i = 0; i < n; i++)
	{
		append_element(&arrays[0], i, requests[i].rel.tablespace);
		append_element(&arrays[1], i, requests[i].rel.database);
		append_element(&arrays[2], i, requests[i].rel.node);
		append_element(&arrays[3], i, requests[i].fork);
		append_element(&arrays[4], i, requests[i].first);
		append_element(&arrays[5], i, Min(requests[i].count, (BlockNumber) PG_INT32_MAX));
	}
	for (int a = 0; a < 6; a++)
	{
		appendPQExpBufferChar(&arrays[a], '}');
		params[a] = arrays[a].data;
	}
	if (!PQsendQueryParams(source->conn,
						   /* in the select list: row by row, in FROM it is collected first */
						   "SELECT (b).request, (b).first_block, (b).content, (b).relation_blocks"
						   " FROM (SELECT tandem.source_blocks($1, $2, $3, $4, $5, $6) AS b) AS a",
						   6, NULL, params, NULL, NULL, 1) ||
		!PQsetSingleRowMode(source->conn))
		source_failed(source, NULL);
	while ((res = PQgetResult(source->conn)) != NULL)
	{
		if (PQresultStatus(res) == PGRES_SINGLE_TUPLE)
		{
			const BlockRequest *request;
			int64		number = binary_int(res, 0);

			if (number < 1 || number > n)
				rejoin_refuse(NULL, "%s: unexpected answer", source->label);
			request = &requests[number - 1];
			if (!PQgetisnull(res, 0, 2))
				sink->blocks(sink->arg, request, (BlockNumber) binary_int(res, 1),
							 PQgetvalue(res, 0, 2), PQgetlength(res, 0, 2) / BLCKSZ);
			else
			{
				sink->end(sink->arg, request, PQgetisnull(res, 0, 3) ? -1 : binary_int(res, 3));
				done++;
			}
		}
		else if (PQresultStatus(res) != PGRES_TUPLES_OK)
			source_failed(source, res);
		PQclear(res);
	}
	if (done != n)
		rejoin_refuse(NULL, "%s: the answer ended early", source->label);
	for (int a = 0; a < 6; a++)
		termPQExpBuffer(&arrays[a]);
}

/*
 * What is asked for at a time is bounded, so that neither server keeps much.
 * A request for more, or to the end of a fork of unknown length, is cut into
 * parts; the parts after the first come one by one, until the fork ends.
 */
typedef struct PartSink
{
	const BlockSink *to;
	const BlockRequest *whole;	/* what the parts belong to; NULL = not cut */
	int64		relation_blocks;
} PartSink;

static void
part_blocks(void *arg, const BlockRequest *request, BlockNumber first,
			const char *content, int nblocks)
{
	PartSink   *part = arg;

	part->to->blocks(part->to->arg, part->whole, first, content, nblocks);
}

static void
part_end(void *arg, const BlockRequest *request, int64 relation_blocks)
{
	((PartSink *) arg)->relation_blocks = relation_blocks;
}

static void
read_large(Source *source, const BlockRequest *request, const BlockSink *sink)
{
	PartSink	part = {sink, request, 0};
	BlockSink	part_sink = {part_blocks, part_end, &part};
	BlockRequest next = *request;
	int64		end = (int64) request->first + request->count;

	for (;;)
	{
		next.count = (BlockNumber) Min(BLOCKS_AT_ONCE, end - next.first);
		read_blocks(source, &next, 1, &part_sink);
		if ((int64) next.first + next.count >= Min(end, part.relation_blocks))
			break;
		next.first += next.count;
	}
	sink->end(sink->arg, request, part.relation_blocks);
}

void
source_blocks(Source *source, const BlockRequest *requests, int nrequests, const BlockSink *sink)
{
	int			i = 0;

	while (i < nrequests)
	{
		int			n = 0;
		int64		blocks = 0;

		while (i + n < nrequests && n < REQUESTS_AT_ONCE &&
			   blocks + requests[i + n].count <= BLOCKS_AT_ONCE)
			blocks += requests[i + n++].count;
		if (n > 0)
			read_blocks(source, &requests[i], n, sink);
		else
			read_large(source, &requests[i], sink);
		i += Max(n, 1);
	}
}

/* ---- checkpoint, streaming ----------------------------------------------------------- */

void
source_checkpoint(Source *source)
{
	PGresult   *res = PQexec(source->conn, "CHECKPOINT");

	if (PQresultStatus(res) != PGRES_COMMAND_OK)
		rejoin_refuse("Run CHECKPOINT there yourself and repeat, or grant the role pg_checkpoint.",
					  "%s: files have to be copied, which needs a checkpoint there: %s",
					  source->label, text_clean(PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY)));
	PQclear(res);
	source_refresh(source);
}

/* The row of a slot, or one with nulls. */
static PGresult *
slot_row(Source *source, const char *slot)
{
	return query(source,
				 "SELECT s.slot_name, slot_type, active, active_pid, restart_lsn, wal_status"
				 " FROM (VALUES ($1)) v (name)"
				 " LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name::text = v.name",
				 1, &slot);
}

void
source_check_streaming(Source *source, const char *slot, bool own)
{
	PGconn	   *conn = connect_source(source, "true");
	PGresult   *res;

	if (PQstatus(conn) != CONNECTION_OK)
		rejoin_refuse("This node will stream from there as the same role; allow it in pg_hba.conf (database \"replication\").",
					  "%s: a replication connection was refused: %s", source->label,
					  text_message(PQerrorMessage(conn)));
	PQfinish(conn);

	res = slot_row(source, slot);
	if (field(res, 0, "slot_name") != NULL)
	{
		if (strcmp(field(res, 0, "slot_type"), "physical") != 0)
			rejoin_refuse("Name a physical slot with --slot.", "slot \"%s\" on %s is a logical slot",
						  slot, source->label);
		if (field_is_true(res, 0, "active"))
			rejoin_refuse("Name another one with --slot; it will be made if it isn't there.",
						  "slot \"%s\" on %s is in use by process %s", slot, source->label,
						  field(res, 0, "active_pid"));
		if (!own && field(res, 0, "wal_status") && strcmp(field(res, 0, "wal_status"), "lost") == 0)
			rejoin_refuse("Drop it there, it will be made anew.",
						  "slot \"%s\" on %s has lost its WAL", slot, source->label);
	}
	PQclear(res);
}

void
source_ensure_slot(Source *source, const char *slot, bool own)
{
	PGresult   *res = slot_row(source, slot);
	bool		there = field(res, 0, "slot_name") != NULL;

	if (there && own && field(res, 0, "wal_status") && strcmp(field(res, 0, "wal_status"), "lost") == 0)
	{
		PQclear(query(source, "SELECT pg_catalog.pg_drop_replication_slot($1)", 1, &slot));
		there = false;
	}
	PQclear(res);
	if (!there)
		PQclear(query(source, "SELECT pg_catalog.pg_create_physical_replication_slot($1, true)", 1, &slot));
}

bool
source_slot_position(Source *source, const char *slot, XLogRecPtr *lsn)
{
	PGresult   *res = slot_row(source, slot);
	bool		active = field_is_true(res, 0, "active");

	*lsn = field_lsn(res, 0, "restart_lsn");
	PQclear(res);
	return active;
}
