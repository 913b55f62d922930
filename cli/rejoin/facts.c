/*-------------------------------------------------------------------------
 *
 * facts.c
 *	  What local WAL says about the data directory, before and after the fork.
 *
 *	 redo of the start checkpoint          fork                 end of local WAL
 *	   |------ read once, verified ---------|------- read once -------|
 *	   |- again, only for doubtful pages ---|
 *
 * Before the fork both nodes have the same WAL, and replay will go through it
 * again.  What it makes right by itself needs no repair: pages with an image
 * or an initialisation, relation maps, prepared transactions.  After the fork
 * every page that may be ahead on disk is named by a record, and so is every
 * transaction status, file and folder; what isn't (see files in plan.c) is
 * found by comparing with the new primary.
 *
 * One thing changes without being named: an insert, update or delete clears
 * bits of a visibility map page.  A cleared bit is always safe, and a replay of
 * a record before the fork clears it as well, so that page needs no repair.
 *
 * Full-page images are what makes replay from the start checkpoint right.
 * They have to have been on all the time, and hint bits must have been logged
 * (wal_log_hints or checksums): a hint bit may tell of a commit after the fork
 * on a page whose LSN lies before it.  Such a page was changed since the start
 * checkpoint, or setting the bit would have logged it; so it has an image.
 *
 * cli/rejoin/facts.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>

#include "access/multixact.h"
#include "access/transam.h"
#include "common/hashfn.h"
#include "rejoin/record.h"
#include "rejoin/rejoin.h"

static inline bool
same_rel(RelFile a, RelFile b)
{
	return a.node == b.node && a.database == b.database && a.tablespace == b.tablespace;
}

#define SH_PREFIX relset
#define SH_ELEMENT_TYPE RelFacts
#define SH_KEY_TYPE RelFile
#define SH_KEY rel
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) &(key), sizeof(RelFile))
#define SH_EQUAL(tb, a, b) same_rel(a, b)
#define SH_SCOPE extern
#define SH_RAW_ALLOCATOR pg_malloc0
#define SH_DEFINE
#include "lib/simplehash.h"

#define SH_PREFIX pageset
#define SH_ELEMENT_TYPE PageFacts
#define SH_KEY_TYPE PageKey
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) &(key), sizeof(PageKey))
#define SH_EQUAL(tb, a, b) \
	((a).block == (b).block && (a).fork == (b).fork && same_rel((a).rel, (b).rel))
#define SH_SCOPE extern
#define SH_RAW_ALLOCATOR pg_malloc0
#define SH_DEFINE
#include "lib/simplehash.h"

/* ---- small lists --------------------------------------------------------------- */

void
pairs_add(PairList *list, Oid database, Oid tablespace)
{
	if (pairs_have(list, database, tablespace))
		return;
	if (list->n == list->room)
	{
		list->room = Max(16, list->room * 2);
		list->pairs = pg_realloc(list->pairs, list->room * sizeof(OidPair));
	}
	list->pairs[list->n].database = database;
	list->pairs[list->n++].tablespace = tablespace;
}

bool
pairs_have(const PairList *list, Oid database, Oid tablespace)
{
	for (int i = 0; i < list->n; i++)
		if (list->pairs[i].database == database && list->pairs[i].tablespace == tablespace)
			return true;
	return false;
}

static void
xids_add(XidList *list, TransactionId xid)
{
	if (list->n == list->room)
	{
		list->room = Max(64, list->room * 2);
		list->xids = pg_realloc(list->xids, list->room * sizeof(TransactionId));
	}
	list->xids[list->n++] = xid;
}

bool
xids_have(const XidList *list, TransactionId xid)
{
	for (int i = 0; i < list->n; i++)
		if (list->xids[i] == xid)
			return true;
	return false;
}

/* The newest segment file in pg_wal: nothing was written past it. */
static XLogSegNo
newest_segment(uint32 segment_size)
{
	DIR		   *dir = opendir(XLOGDIR);
	struct dirent *entry;
	XLogSegNo	newest = 0;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		TimeLineID	tli;
		XLogSegNo	segno;

		if (!IsXLogFileName(entry->d_name))
			continue;
		XLogFromFileName(entry->d_name, &tli, &segno, segment_size);
		newest = Max(newest, segno);
	}
	if (dir)
		closedir(dir);
	return newest;
}

void
facts_init(Facts *facts, uint32 segment_size)
{
	memset(facts, 0, sizeof(*facts));
	facts->segment_size = segment_size;
	facts->newest_segment = newest_segment(segment_size);
	facts->rels = relset_create(1024, NULL);
	facts->pages = pageset_create(4096, NULL);
}

RelFacts *
facts_rel(const Facts *facts, RelFile rel)
{
	return relset_lookup(facts->rels, rel);
}

static RelFacts *
note_rel(Facts *facts, RelFile rel)
{
	bool		found;
	RelFacts   *entry = relset_insert(facts->rels, rel, &found);

	if (!found)
	{
		entry->created_before = entry->created_after = entry->dropped_after = false;
		entry->copy_again = false;
		entry->truncated_after = InvalidBlockNumber;
	}
	return entry;
}

void
facts_copy_again(Facts *facts, RelFile rel)
{
	note_rel(facts, rel)->copy_again = true;
}

void
facts_copy_folder_again(Facts *facts, Oid database, Oid tablespace)
{
	pairs_add(&facts->folders_again, database, tablespace);
}

/* ---- refusals ------------------------------------------------------------------- */

#define BACKUP_HINT "A new base backup is the way that remains."

static void
check_settings(const WalRecord *record, bool checksums)
{
	RecordSettings settings;
	bool		on;

	if (record_full_page_writes(record, &on) && !on)
		rejoin_refuse(BACKUP_HINT, "full_page_writes was switched off at %X/%X, so replay cannot make pages right",
					  LSN_ARGS(record->lsn));
	if (record_settings(record, &settings))
	{
		if (settings.wal_level < RECORD_WAL_LEVEL_REPLICA)
			rejoin_refuse(BACKUP_HINT, "wal_level was set to minimal at %X/%X", LSN_ARGS(record->lsn));
		if (!settings.wal_log_hints && !checksums)
			rejoin_refuse(BACKUP_HINT, "wal_log_hints was switched off at %X/%X, so pages may differ unseen",
						  LSN_ARGS(record->lsn));
	}
}

/*
 * A segment that isn't there: local WAL ends, if nothing newer is there
 * either; else it has a gap.
 */
static WalResult
check_missing(const Facts *facts, const WalReader *reader, WalResult result, const char *what)
{
	TimeLineID	tli;
	XLogSegNo	segno;

	if (result != WAL_MISSING)
		return result;
	XLogFromFileName(wal_missing_segment(reader), &tli, &segno, facts->segment_size);
	if (segno >= facts->newest_segment)
		return WAL_END;
	rejoin_refuse("Give --restore-command if the archive has it; else a new base backup is the way that remains.",
				  "WAL segment %s, needed to read %s, is neither here nor on the source",
				  wal_missing_segment(reader), what);
}

/* ---- the start -------------------------------------------------------------------- */

void
facts_find_start(Facts *facts, WalReader *reader, const ControlFileData *control)
{
	XLogRecPtr	lsn = control->checkPoint;

	for (;;)
	{
		WalRecord	record;
		WalResult	result = check_missing(facts, reader, wal_read_at(reader, lsn, &record),
										   "back to a checkpoint before the fork");

		if (result == WAL_END)
			rejoin_refuse(BACKUP_HINT, "local WAL is damaged at %X/%X: %s", LSN_ARGS(lsn),
						  wal_error(reader));
		if (record.end <= facts->fork &&
			record_checkpoint(&record, &facts->checkpoint, &facts->checkpoint_shutdown))
		{
			facts->checkpoint_lsn = record.lsn;
			break;
		}
		if (XLogRecPtrIsInvalid(record.prev) || record.prev >= lsn)
			rejoin_refuse(BACKUP_HINT, "no checkpoint before the fork at %X/%X can be found",
						  LSN_ARGS(facts->fork));
		lsn = record.prev;
	}
	if (!facts->checkpoint.fullPageWrites)
		rejoin_refuse("Keep full_page_writes on; for this node a new base backup is the way that remains.",
					  "full_page_writes was off, so replay cannot make pages right");

	facts->next_xid = facts->checkpoint.nextXid;
	facts->next_oid = facts->checkpoint.nextOid;
	facts->next_multi = facts->checkpoint.nextMulti;
	facts->next_multi_offset = facts->checkpoint.nextMultiOffset;
}

/* ---- before the fork --------------------------------------------------------------- */

/* The next id is past this one; as AdvanceNextFullTransactionIdPastXid() does in replay. */
static void
advance_xid(Facts *facts, TransactionId xid)
{
	TransactionId next = XidFromFullTransactionId(facts->next_xid);
	uint32		epoch = EpochFromFullTransactionId(facts->next_xid);

	if (!TransactionIdIsNormal(xid) || (int32) (xid - next) < 0)
		return;
	if (xid + 1 < next)
		epoch++;
	facts->next_xid = FullTransactionIdFromEpochAndXid(epoch, Max(xid + 1, FirstNormalTransactionId));
}

static void
note_counters(Facts *facts, const WalRecord *record)
{
	CheckPoint	checkpoint;
	bool		shutdown;
	Oid			next_oid;
	MultiXactId multi;
	MultiXactOffset offset;
	int			nmembers;

	advance_xid(facts, record->xid);
	if (record_next_oid(record, &next_oid))
	{
		if (next_oid < facts->next_oid)
			facts->oids_wrapped = true;
		facts->next_oid = next_oid;
	}
	if (record_multixact(record, &multi, &offset, &nmembers))
	{
		if ((int32) (multi + 1 - facts->next_multi) > 0)
			facts->next_multi = multi + 1;
		if ((int32) (offset + nmembers - facts->next_multi_offset) > 0)
			facts->next_multi_offset = offset + nmembers;
	}
	if (record_checkpoint(record, &checkpoint, &shutdown))
	{
		if (U64FromFullTransactionId(checkpoint.nextXid) > U64FromFullTransactionId(facts->next_xid))
			facts->next_xid = checkpoint.nextXid;
		if ((int32) (checkpoint.nextMulti - facts->next_multi) > 0)
			facts->next_multi = checkpoint.nextMulti;
		if ((int32) (checkpoint.nextMultiOffset - facts->next_multi_offset) > 0)
			facts->next_multi_offset = checkpoint.nextMultiOffset;
		if (shutdown)
			facts->next_oid = checkpoint.nextOid;
	}
}

static void
note_before(Facts *facts, const WalRecord *record)
{
	RecordXact	xact;
	RelFile		rel;
	ForkNumber	fork;
	Oid			database;
	Oid			tablespace;

	note_counters(facts, record);
	if (record_xact(record, &xact))
	{
		advance_xid(facts, xact.xid);
		for (int i = 0; i < xact.nsubxacts; i++)
			advance_xid(facts, xact.subxacts[i]);
		if (xact.prepare)
			xids_add(&facts->prepared_before, xact.xid);
		if (xact.commit)
			facts->last_commit_before = xact.time;
	}
	else if (record_storage_create(record, &rel, &fork))
		note_rel(facts, rel)->created_before = true;
	else if (record_database_create(record, &database, &tablespace))
		pairs_add(&facts->databases_created_before, database, tablespace);
	else if (record_relation_map(record, &database, &tablespace))
		pairs_add(&facts->maps_before, database, tablespace);
}

void
facts_read_before(Facts *facts, WalReader *reader, bool checksums)
{
	WalRecord	record;
	WalResult	result;

	wal_seek(reader, facts->checkpoint.redo);
	for (;;)
	{
		result = check_missing(facts, reader, wal_read(reader, &record),
							   "from the start checkpoint to the fork");
		if (result == WAL_END)
		{
			if (wal_position(reader) <= facts->checkpoint_lsn)
				rejoin_refuse(BACKUP_HINT, "local WAL is damaged at %X/%X: %s",
							  LSN_ARGS(wal_position(reader)), wal_error(reader));
			facts->end = Min(wal_position(reader), facts->fork);
			return;
		}
		if (record.lsn >= facts->fork)
		{
			facts->end = InvalidXLogRecPtr; /* there is more */
			return;
		}
		if (record.end > facts->fork)
			rejoin_refuse(BACKUP_HINT, "the fork at %X/%X lies inside of a local record",
						  LSN_ARGS(facts->fork));
		check_settings(&record, checksums);
		note_before(facts, &record);
		facts->records_before++;
	}
}

/* ---- after the fork ------------------------------------------------------------------ */

static void
note_status(Facts *facts, TransactionId xid)
{
	xids_add(&facts->ended_after, xid);
	if (!TransactionIdIsValid(facts->newest_xid_after) ||
		(int32) (xid - facts->newest_xid_after) > 0)
		facts->newest_xid_after = xid;
}

static void
note_xact_after(Facts *facts, const RecordXact *xact)
{
	note_status(facts, xact->xid);
	for (int i = 0; i < xact->nsubxacts; i++)
		note_status(facts, xact->subxacts[i]);
	for (int i = 0; i < xact->nrels; i++)
		note_rel(facts, xact->rels[i])->dropped_after = true;
	if (xact->prepare)
		xids_add(&facts->prepared_after, xact->xid);
	if (xact->prepared)
		xids_add(&facts->finished_after, xact->xid);
	if (xact->origin != 0)
		facts->origins_after = true;
}

static void
note_after(Facts *facts, const WalRecord *record)
{
	RecordXact	xact;
	RelFile		rel;
	ForkNumber	fork;
	BlockNumber blocks;
	int			flags;
	Oid			database;
	Oid			tablespace;
	int			ntablespaces;
	const Oid  *tablespaces;
	const char *location;
	RecordSlru	slru;

	if (TransactionIdIsNormal(record->xid) &&
		(!TransactionIdIsValid(facts->newest_xid_after) ||
		 (int32) (record->xid - facts->newest_xid_after) > 0))
		facts->newest_xid_after = record->xid;

	if (record_xact(record, &xact))
		note_xact_after(facts, &xact);
	else if (record_storage_create(record, &rel, &fork))
	{
		/* a fork added to an old relation doesn't make the relation new */
		if (fork == MAIN_FORKNUM)
			note_rel(facts, rel)->created_after = true;
	}
	else if (record_storage_truncate(record, &rel, &blocks, &flags))
	{
		RelFacts   *entry = note_rel(facts, rel);

		entry->truncated_after = Min(entry->truncated_after, blocks);
	}
	else if (record_database_create(record, &database, &tablespace))
		pairs_add(&facts->databases_created_after, database, tablespace);
	else if (record_database_drop(record, &database, &ntablespaces, &tablespaces))
	{
		for (int i = 0; i < ntablespaces; i++)
			pairs_add(&facts->databases_dropped_after, database, tablespaces[i]);
	}
	else if (record_tablespace_create(record, &tablespace, &location))
		pairs_add(&facts->tablespaces_created_after, InvalidOid, tablespace);
	else if (record_tablespace_drop(record, &tablespace))
		pairs_add(&facts->tablespaces_dropped_after, InvalidOid, tablespace);
	else if (record_relation_map(record, &database, &tablespace))
		pairs_add(&facts->maps_after, database, tablespace);
	else if (record_slru_truncate(record, &slru))
		facts->slru_truncated_after = true;
	else if (record->rmid == RM_REPLORIGIN_ID)
		facts->origins_after = true;
}

void
facts_read_after(Facts *facts, WalReader *reader, bool checksums)
{
	WalRecord	record;
	WalResult	result;

	wal_seek(reader, facts->fork);
	while ((result = wal_read(reader, &record)) == WAL_RECORD)
	{
		check_settings(&record, checksums);
		note_after(facts, &record);
		facts->records_after++;
		for (int i = 0; i < record.nblocks; i++)
		{
			const WalBlock *block = &record.blocks[i];
			PageKey		key = {block->rel, block->fork, block->block};
			PageFacts  *page;
			bool		found;

			page = pageset_insert(facts->pages, key, &found);
			if (!found)
				page->healed = page->doubtful = page->comparable = page->sequence = false;
			if (record.rmid == RM_SEQ_ID)
				page->sequence = true;
			/*
			 * A bare image doesn't say of what.  Sequences are ahead of their
			 * LSN where they are used, SP-GiST metapages behind or ahead.
			 */
			if (record.rmid != RM_XLOG_ID && block->fork != FSM_FORKNUM &&
				record.rmid != RM_SEQ_ID &&
				!(record.rmid == RM_SPGIST_ID && block->block == 0))
			{
				page->rmid = record.rmid;
				page->comparable = true;
			}
		}
	}
	(void) check_missing(facts, reader, result, "what happened after the fork");
	facts->end = wal_position(reader);
}

void
facts_mark_healed(Facts *facts, WalReader *reader)
{
	WalRecord	record;

	wal_seek(reader, facts->checkpoint.redo);
	while (wal_read(reader, &record) == WAL_RECORD && record.lsn < facts->fork)
	{
		for (int i = 0; i < record.nblocks; i++)
		{
			const WalBlock *block = &record.blocks[i];
			PageKey		key = {block->rel, block->fork, block->block};
			PageFacts  *page;

			if (!block->image && !block->init)
				continue;
			page = pageset_lookup(facts->pages, key);
			if (page)
				page->healed = true;
		}
	}
}
