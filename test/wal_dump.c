/*-------------------------------------------------------------------------
 *
 * wal_dump.c
 *	  Prints what the WAL reader of "tandem rejoin" reads; for tests only.
 *
 *	wal_dump PG_WAL SEGMENT_SIZE HISTORY START [FETCH_DIR]
 *
 * HISTORY lists timelines from the oldest on, each with where it begins:
 * "1@0/0,2@0/5000028".  START may be amid WAL, where a record or page begins.
 * Segments that PG_WAL lacks are taken from FETCH_DIR.  One line a record:
 *
 *	LSN END TIMELINE PREV RMGR INFO XID TOP_XID ORIGIN DATA_LENGTH|BLOCK...|MEANING
 *
 * BLOCK is ID:TABLESPACE/DATABASE/NODE:FORK:BLOCK[:image][:init].  The last
 * line is "end LSN REASON" or "missing SEGMENT".
 *
 * test/wal_dump.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "common/logging.h"
#include "rejoin/record.h"
#include "rejoin/wal.h"

#define MAX_TIMELINES 32

static char *
fetch_from(void *arg, const char *name)
{
	char	   *path = psprintf("%s/%s", (const char *) arg, name);

	if (access(path, R_OK) == 0)
		return path;
	pg_free(path);
	return NULL;
}

static XLogRecPtr
parse_lsn(const char *text)
{
	uint32		high;
	uint32		low;

	if (sscanf(text, "%X/%X", &high, &low) != 2)
		pg_fatal("invalid LSN \"%s\"", text);
	return ((uint64) high) << 32 | low;
}

static int
parse_history(char *text, TimeLineHistoryEntry *history)
{
	int			n = 0;

	for (char *item = strtok(text, ","); item; item = strtok(NULL, ","))
	{
		char	   *at = strchr(item, '@');

		if (n == MAX_TIMELINES || !at)
			pg_fatal("invalid history item \"%s\"", item);
		history[n].tli = (TimeLineID) strtoul(item, NULL, 10);
		history[n].begin = parse_lsn(at + 1);
		history[n].end = InvalidXLogRecPtr;
		if (n > 0)
			history[n - 1].end = history[n].begin;
		n++;
	}
	return n;
}

static void
print_rel(const RelFile *rel)
{
	printf("%u/%u/%u", rel->tablespace, rel->database, rel->node);
}

static void
print_xact(const RecordXact *xact)
{
	const char *what = xact->prepare ? "prepare" : xact->commit ? "commit" : "abort";

	printf("%s%s xid %u", what, xact->prepared ? " prepared" : "", xact->xid);
	for (int i = 0; i < xact->nsubxacts; i++)
		printf("%s%u", i == 0 ? " subxacts " : " ", xact->subxacts[i]);
	for (int i = 0; i < xact->nrels; i++)
	{
		printf(i == 0 ? " drops " : " ");
		print_rel(&xact->rels[i]);
	}
	if (xact->origin_lsn != InvalidXLogRecPtr)
		printf(" origin %u at %X/%X", xact->origin, LSN_FORMAT_ARGS(xact->origin_lsn));
}

static void
print_meaning(const WalRecord *record)
{
	RecordXact	xact;
	CheckPoint	checkpoint;
	RecordSettings settings;
	RecordSlru	slru;
	RelFile		rel;
	ForkNumber	fork;
	BlockNumber blocks;
	MultiXactOffset offset;
	TimeLineID	tli;
	TimeLineID	prev_tli;
	RepOriginId origin;
	Oid			oid;
	Oid			tablespace;
	uint32		multi;
	int			number;
	bool		flag;
	const Oid  *tablespaces;
	const char *location;

	if (record_xact(record, &xact))
		print_xact(&xact);
	if (record_checkpoint(record, &checkpoint, &flag))
		printf("checkpoint %s redo %X/%X tli %u oid %u", flag ? "shutdown" : "online",
			   LSN_FORMAT_ARGS(checkpoint.redo), checkpoint.ThisTimeLineID, checkpoint.nextOid);
	if (record_storage_create(record, &rel, &fork))
	{
		printf("create ");
		print_rel(&rel);
		printf(" fork %d", fork);
	}
	if (record_storage_truncate(record, &rel, &blocks, &number))
	{
		printf("truncate ");
		print_rel(&rel);
		printf(" to %u flags %d", blocks, number);
	}
	if (record_database_create(record, &oid, &tablespace))
		printf("create database %u/%u", tablespace, oid);
	if (record_database_drop(record, &oid, &number, &tablespaces))
	{
		printf("drop database");
		for (int i = 0; i < number; i++)
			printf(" %u/%u", tablespaces[i], oid);
	}
	if (record_tablespace_create(record, &oid, &location))
		printf("create tablespace %u %s", oid, location);
	if (record_tablespace_drop(record, &oid))
		printf("drop tablespace %u", oid);
	if (record_relation_map(record, &oid, &tablespace))
		printf("relation map %u/%u", tablespace, oid);
	if (record_multixact(record, &multi, &offset, &number))
		printf("multixact %u offset %u members %d", multi, offset, number);
	if (record_slru_truncate(record, &slru))
		printf("truncate slru %d", slru);
	if (record_full_page_writes(record, &flag))
		printf("full_page_writes %s", flag ? "on" : "off");
	if (record_settings(record, &settings))
		printf("settings wal_level %d wal_log_hints %s track_commit_timestamp %s",
			   settings.wal_level, settings.wal_log_hints ? "on" : "off",
			   settings.track_commit_timestamp ? "on" : "off");
	if (record_next_oid(record, &oid))
		printf("next oid %u", oid);
	if (record_end_of_recovery(record, &tli, &prev_tli))
		printf("end of recovery tli %u prev tli %u", tli, prev_tli);
	if (record_origin(record, &origin, &flag))
		printf("%s origin %u", flag ? "drop" : "set", origin);
}

int
main(int argc, char **argv)
{
	TimeLineHistoryEntry history[MAX_TIMELINES];
	WalReader  *reader;
	WalRecord	record;
	WalResult	result;
	int			nhistory;

	pg_logging_init(argv[0]);
	if (argc < 5)
		pg_fatal("usage: wal_dump PG_WAL SEGMENT_SIZE HISTORY START [FETCH_DIR]");
	nhistory = parse_history(argv[3], history);
	reader = wal_open(argv[1], history, nhistory, (uint32) strtoul(argv[2], NULL, 10),
					  argc > 5 ? fetch_from : NULL, argc > 5 ? argv[5] : NULL);

	wal_seek(reader, parse_lsn(argv[4]));
	while ((result = wal_read(reader, &record)) == WAL_RECORD)
	{
		printf("%X/%08X %X/%08X %u %X/%08X %s %02X %u %u %u %u|",
			   LSN_FORMAT_ARGS(record.lsn), LSN_FORMAT_ARGS(record.end), record.tli,
			   LSN_FORMAT_ARGS(record.prev), record_rmgr_name(record.rmid), record.info,
			   record.xid, record.top_xid, record.origin, record.data_len);
		for (int i = 0; i < record.nblocks; i++)
		{
			const WalBlock *block = &record.blocks[i];

			printf("%s%d:", i == 0 ? "" : " ", block->id);
			print_rel(&block->rel);
			printf(":%s:%u%s%s", forkNames[block->fork], block->block,
				   block->image ? ":image" : "", block->init ? ":init" : "");
		}
		printf("|");
		print_meaning(&record);
		printf("\n");
	}
	if (result == WAL_MISSING)
		printf("missing %s\n", wal_missing_segment(reader));
	else
		printf("end %X/%08X %s\n", LSN_FORMAT_ARGS(wal_position(reader)), wal_error(reader));
	wal_close(reader);
	return 0;
}
