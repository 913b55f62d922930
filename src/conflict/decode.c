/*-------------------------------------------------------------------------
 *
 * decode.c
 *	  What the collector makes of WAL: entries for the store, in a batch.
 *
 * Decoding is the server's own, with a persistent logical slot.  Its plugin is
 * named pgoutput, but that is never called: the context is made without a plugin
 * (as if only to advance the slot), and then gets callbacks in this process.
 *
 * What is passed by.  Most records are of no interest, so they are not given to
 * the server's decoder at all, which would keep each change until the commit and
 * then look at it: inserts, and updates that log no old key.  Only records that
 * log rows of ordinary tables are passed by; all that builds snapshots, above all
 * every change of a catalog, goes the usual way.  A subtransaction whose first
 * record is passed by must still be assigned to its transaction, for no later
 * record says so.  A transaction without a record of interest then has no changes,
 * no base snapshot and no cost.
 *
 * Inserts are of interest after a delete that moved a row to another partition,
 * in the same (sub)transaction: if the key is the same the row isn't deleted.
 *
 * What is counted.  A transaction counts at its commit, one that was prepared at
 * COMMIT PREPARED (we decode without two phases).  Subtransactions that were
 * rolled back don't.  Commit time and origin are those of the commit record.
 *
 * Callbacks run in a transaction of the decoder that must not write; so entries
 * go to a batch, which the collector writes between two records.  It is in memory
 * up to half of tandem.tombstone_memory (the other half is the decoder's), beyond
 * that in a temporary file.
 *
 * Messages of tandem_tombstone_leave() count only from transactions that have the
 * origin of a subscription: everybody may write a message, but not with an origin.
 *
 * Called by collector.c.
 *
 * src/conflict/decode.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/xact.h"
#include "access/xlogutils.h"
#include "catalog/partition.h"
#include "miscadmin.h"
#include "replication/decode.h"
#include "replication/origin.h"
#include "replication/reorderbuffer.h"
#include "replication/slot.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "common/compat.h"
#include "common/settings.h"
#include "conflict/collector.h"
#include "conflict/key.h"

uint64		tandem_decode_transactions = 0;

static TandemBatch batch;
static int	file_segment;		/* where the file is read */
static int64 read_at;			/* in data */

/* Tables of interest; in "interest_context". */
static MemoryContext interest_context = NULL;
static HTAB *interest_roots = NULL;
static List *interest_origins = NIL;

/* What is known of a table that had a change: made when one comes. */
typedef struct KnownRelation
{
	Oid			relid;
	int			nkeys;			/* 0 = of no interest */
	TandemKey **keys;			/* by root; in key_context */
} KnownRelation;

static HTAB *known_relations = NULL;
static MemoryContext key_context = NULL;
static bool known_stale = true;

/* Transactions that moved rows between partitions: their inserts are looked at. */
static HTAB *movers = NULL;
static int64 number;			/* of the next entry in the transaction */

/* ---- The batch ------------------------------------------------------------------ */

TandemBatch *
tandem_batch_pending(void)
{
	return &batch;
}

void
tandem_batch_reset(void)
{
	if (batch.context == NULL)
		batch.context = AllocSetContextCreate(TopMemoryContext, "tombstones collected", ALLOCSET_DEFAULT_SIZES);
	if (batch.file)
		BufFileClose(batch.file);
	MemoryContextReset(batch.context);
	{
		MemoryContext context = batch.context;
		MemoryContext old = MemoryContextSwitchTo(context);

		memset(&batch, 0, sizeof(batch));
		batch.context = context;
		initStringInfo(&batch.data);
		MemoryContextSwitchTo(old);
	}
}

static void
to_file(void)
{
	MemoryContext old = MemoryContextSwitchTo(batch.context);

	if (batch.file == NULL)
		batch.file = BufFileCreateTemp(true);
	BufFileWrite(batch.file, batch.data.data, batch.data.len);
	resetStringInfo(&batch.data);
	MemoryContextSwitchTo(old);
}

static void
add_entry(const TandemEntry *entry, const char *key)
{
	Size		limit = Min((Size) tandem_tombstone_memory * 1024 / 4, MaxAllocSize / 4);	/* doubling it needs twice */

	appendBinaryStringInfo(&batch.data, (const char *) entry, sizeof(*entry));
	if (entry->length > 0)
		appendBinaryStringInfo(&batch.data, key, entry->length);
	batch.entries++;
	batch.bytes += sizeof(*entry) + Max(entry->length, 0);
	if (batch.first_lsn == InvalidXLogRecPtr)
		batch.first_lsn = entry->lsn;
	batch.last_lsn = entry->lsn;
	batch.max_time = Max(batch.max_time, entry->time);
	if (batch.data.len >= limit)
		to_file();
}

void
tandem_batch_mark(Oid root, Oid leaf, char kind, XLogRecPtr lsn, TimestampTz time)
{
	TandemEntry entry = {0};

	entry.root = root;
	entry.leaf = leaf;
	entry.kind = kind;
	entry.lsn = lsn;
	entry.time = time;
	entry.length = -1;
	add_entry(&entry, NULL);
}

void
tandem_batch_rewind(void)
{
	file_segment = batch.file ? 0 : -1;
	read_at = 0;
	if (batch.file && BufFileSeek(batch.file, 0, 0, SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not rewind the temporary file of tombstones: %m")));
}

static void
read_from_file(void *to, size_t size)
{
	if (TANDEM_BUFFILE_READ(batch.file, to, size) != size)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read the temporary file of tombstones: %m")));
}

TandemEntry *
tandem_batch_next(char **key)
{
	static TandemEntry entry;
	static char *room = NULL;
	static int	room_size = 0;

	if (file_segment >= 0)
	{
		size_t		got = TANDEM_BUFFILE_READ(batch.file, &entry, sizeof(entry));

		if (got == sizeof(entry))
		{
			if (entry.length > room_size)
			{
				room = room ? repalloc(room, entry.length) : MemoryContextAlloc(TopMemoryContext, entry.length);
				room_size = entry.length;
			}
			if (entry.length > 0)
				read_from_file(room, entry.length);
			*key = room;
			return &entry;
		}
		if (got != 0)
			read_from_file(&entry, sizeof(entry));
		file_segment = -1;
	}
	if (read_at >= batch.data.len)
		return NULL;
	memcpy(&entry, batch.data.data + read_at, sizeof(entry));
	*key = batch.data.data + read_at + sizeof(entry);
	read_at += sizeof(entry) + Max(entry.length, 0);
	return &entry;
}

/* ---- Tables of interest --------------------------------------------------------------- */

static void
relation_changed(Datum arg, Oid relid)
{
	known_stale = true;
}

void
tandem_decode_set_roots(List *roots, List *origins)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(Oid)};
	MemoryContext old;
	ListCell   *lc;

	if (interest_context)
		MemoryContextReset(interest_context);
	else
		interest_context = AllocSetContextCreate(TopMemoryContext, "tables with tombstones", ALLOCSET_DEFAULT_SIZES);
	ctl.hcxt = interest_context;
	interest_roots = hash_create("tables with tombstones", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	foreach(lc, roots)
		(void) hash_search(interest_roots, &lfirst_oid(lc), HASH_ENTER, NULL);
	old = MemoryContextSwitchTo(interest_context);
	interest_origins = list_copy(origins);
	MemoryContextSwitchTo(old);
	known_stale = true;
}

/* The keys of a table, one for each root of interest. */
static KnownRelation *
known_relation(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	KnownRelation *known;
	bool		found;

	if (known_stale)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(KnownRelation)};

		if (key_context)
			MemoryContextReset(key_context);
		else
			key_context = AllocSetContextCreate(TopMemoryContext, "keys of tombstones", ALLOCSET_DEFAULT_SIZES);
		ctl.hcxt = key_context;
		known_relations = hash_create("keys of tombstones", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		known_stale = false;
	}
	known = hash_search(known_relations, &relid, HASH_FIND, NULL);
	if (known == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(key_context);
		List	   *roots = list_make1_oid(relid);
		List	   *keys = NIL;
		ListCell   *lc;

		if (rel->rd_rel->relispartition)
			roots = list_concat(roots, get_partition_ancestors(relid));
		foreach(lc, roots)
		{
			if (hash_search(interest_roots, &lfirst_oid(lc), HASH_FIND, NULL))
				keys = lappend(keys, tandem_key_of(rel, lfirst_oid(lc)));
		}

		/* reading catalogs may have made it all stale again; then it is made anew next time */
		known = hash_search(known_relations, &relid, HASH_ENTER, &found);
		known->nkeys = list_length(keys);
		known->keys = palloc(sizeof(TandemKey *) * Max(known->nkeys, 1));
		foreach(lc, keys)
			known->keys[foreach_current_index(lc)] = lfirst(lc);
		MemoryContextSwitchTo(old);
	}
	return known;
}

/* ---- Callbacks -------------------------------------------------------------------------- */

static void
begin_entry(TandemEntry *entry, ReorderBufferTXN *txn, char kind)
{
	memset(entry, 0, sizeof(*entry));
	entry->lsn = txn->final_lsn;
	entry->n = number++;
	entry->xid = txn->xid;
	entry->time = TANDEM_TXN_COMMIT_TIME(txn);
	entry->origin = txn->origin_id;
	entry->kind = kind;
}

static void
begin_transaction(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	number = 0;
}

static void
commit_transaction(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn)
{
}

/* Does an update leave all columns of the key as they were?  False if that can't be told. */
static bool
same_key(TandemKey *key, const TandemKeyValues *old_values, const TandemKeyValues *new_values)
{
	for (int i = 0; i < key->ncolumns; i++)
	{
		TandemKeyColumn *column = &key->columns[i];

		if (old_values->isnull[i] || new_values->isnull[i])
			return false;
		if (column->typlen == -1 && VARATT_IS_EXTERNAL(DatumGetPointer(new_values->values[i])))
			return false;
	}
	return tandem_key_hash(key, old_values) == tandem_key_hash(key, new_values);
}

static void
change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation rel, ReorderBufferChange *change)
{
	KnownRelation *known = known_relation(rel);
	HeapTuple	old_tuple;
	HeapTuple	new_tuple;
	MemoryContext old = CurrentMemoryContext;

	if (known->nkeys == 0)
		return;
	old_tuple = TANDEM_CHANGE_TUPLE(change->data.tp.oldtuple);
	new_tuple = TANDEM_CHANGE_TUPLE(change->data.tp.newtuple);
	for (int i = 0; i < known->nkeys; i++)
	{
		TandemKey  *key = known->keys[i];
		TandemKeyValues values;
		TandemEntry entry;
		char	   *packed;
		static MemoryContext change_context = NULL;

		if (key->unsupported)
			continue;
		if (change_context == NULL)
			change_context = AllocSetContextCreate(TopMemoryContext, "tombstone", ALLOCSET_DEFAULT_SIZES);
		MemoryContextSwitchTo(change_context);
		if (change->action == REORDER_BUFFER_CHANGE_INSERT)
		{
			/* a row that came back, perhaps: see the head of this file */
			begin_entry(&entry, txn, 'i');
			tandem_key_from_tuple(key, new_tuple, RelationGetDescr(rel), &values);
		}
		else if (old_tuple != NULL)
		{
			begin_entry(&entry, txn, change->action == REORDER_BUFFER_CHANGE_UPDATE ? 'm' : 'd');
			tandem_key_from_tuple(key, old_tuple, RelationGetDescr(rel), &values);
			if (change->action == REORDER_BUFFER_CHANGE_UPDATE && new_tuple != NULL && !key->whole)
			{
				TandemKeyValues new_values;

				tandem_key_from_tuple(key, new_tuple, RelationGetDescr(rel), &new_values);
				if (same_key(key, &values, &new_values))
				{
					MemoryContextReset(change_context);
					continue;
				}
			}
		}
		else
			continue;
		entry.root = key->root;
		entry.leaf = key->relid;
		entry.version = key->version;
		entry.hash = tandem_key_hash(key, &values);
		packed = tandem_key_pack(key, &values, &entry.length);
		add_entry(&entry, packed);
		MemoryContextReset(change_context);
	}
	MemoryContextSwitchTo(old);
}

static void
truncated(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, int nrelations, Relation relations[],
		  ReorderBufferChange *change)
{
	for (int i = 0; i < nrelations; i++)
	{
		KnownRelation *known = known_relation(relations[i]);

		for (int j = 0; j < known->nkeys; j++)
		{
			TandemEntry entry;

			begin_entry(&entry, txn, 't');
			entry.root = known->keys[j]->root;
			entry.leaf = RelationGetRelid(relations[i]);
			entry.length = -1;
			add_entry(&entry, NULL);
		}
	}
}

static void
message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn, bool transactional,
		const char *prefix, Size size, const char *text)
{
	TandemEntry sent;
	TandemEntry entry;

	if (!transactional || strcmp(prefix, TANDEM_DELETED_PREFIX) != 0 || size < sizeof(sent) ||
		txn->origin_id == InvalidRepOriginId || !list_member_int(interest_origins, txn->origin_id))
		return;
	memcpy(&sent, text, sizeof(sent));
	if (sent.length < 0 || size != sizeof(sent) + sent.length ||
		!hash_search(interest_roots, &sent.root, HASH_FIND, NULL))
		return;
	begin_entry(&entry, txn, 'd');
	entry.root = sent.root;
	entry.leaf = sent.leaf;
	entry.version = sent.version;
	entry.hash = sent.hash;
	entry.length = sent.length;
	if (sent.time != 0)
		entry.time = sent.time; /* from a spool: not the transaction that replays it */
	add_entry(&entry, text + sizeof(sent));
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* Reads a page of WAL, -1 if it hasn't been flushed yet. */
static int
read_page(XLogReaderState *reader, XLogRecPtr page, int length, XLogRecPtr record, char *to)
{
	ReadLocalXLogPageNoWaitPrivate end = {0};
	void	   *ours = reader->private_data;
	int			count;

	/* the context is the decoder's, the function's is another */
	reader->private_data = &end;
	count = read_local_xlog_page_no_wait(reader, page, length, record, to);
	reader->private_data = ours;
	return end.end_of_wal ? -1 : count;
}

LogicalDecodingContext *
tandem_decode_begin(XLogRecPtr start_lsn, MemoryContext context)
{
	static bool registered = false;
	HASHCTL		ctl = {.keysize = sizeof(TransactionId), .entrysize = sizeof(TransactionId)};
	MemoryContext old = MemoryContextSwitchTo(context);
	LogicalDecodingContext *ctx;

	if (!registered)
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	registered = true;
	ctx = CreateDecodingContext(start_lsn, NIL, true,
								XL_ROUTINE(.page_read = read_page,
										   .segment_open = wal_segment_open,
										   .segment_close = wal_segment_close),
								NULL, NULL, NULL);
	ctx->fast_forward = false;
	ctx->callbacks.begin_cb = begin_transaction;
	ctx->callbacks.change_cb = change;
	ctx->callbacks.truncate_cb = truncated;
	ctx->callbacks.commit_cb = commit_transaction;
	ctx->callbacks.message_cb = message;
	XLogBeginRead(ctx->reader, ctx->slot->data.restart_lsn);
	ctl.hcxt = context;
	movers = hash_create("transactions that move rows", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	tandem_batch_reset();
	MemoryContextSwitchTo(old);
	InvalidateSystemCaches();
	return ctx;
}

static bool
is_mover(TransactionId xid)
{
	return hash_get_num_entries(movers) > 0 && hash_search(movers, &xid, HASH_FIND, NULL) != NULL;
}

/* May this record be passed by? */
static bool
of_no_interest(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & XLOG_HEAP_OPMASK;
	TransactionId xid = XLogRecGetXid(record);

	if (XLogRecGetRmid(record) == RM_HEAP_ID)
	{
		switch (info)
		{
			case XLOG_HEAP_INSERT:
				{
					xl_heap_insert *insert = (xl_heap_insert *) XLogRecGetData(record);

					return (insert->flags & XLH_INSERT_CONTAINS_NEW_TUPLE) &&
						((insert->flags & XLH_INSERT_IS_SPECULATIVE) || !is_mover(xid));
				}
			case XLOG_HEAP_CONFIRM:
				/* of a speculative insert; catalogs have none */
				return true;
			case XLOG_HEAP_UPDATE:
			case XLOG_HEAP_HOT_UPDATE:
				{
					xl_heap_update *update = (xl_heap_update *) XLogRecGetData(record);

					return (update->flags & XLH_UPDATE_CONTAINS_NEW_TUPLE) &&
						!(update->flags & XLH_UPDATE_CONTAINS_OLD);
				}
			case XLOG_HEAP_DELETE:
				{
					xl_heap_delete *delete = (xl_heap_delete *) XLogRecGetData(record);

					/* a speculative insert that was taken back */
					if (delete->flags & XLH_DELETE_IS_SUPER)
						return true;
					if (delete->flags & XLH_DELETE_IS_PARTITION_MOVE)
						(void) hash_search(movers, &xid, HASH_ENTER, NULL);
					return false;
				}
		}
	}
	else if (XLogRecGetRmid(record) == RM_HEAP2_ID && info == XLOG_HEAP2_MULTI_INSERT)
	{
		xl_heap_multi_insert *insert = (xl_heap_multi_insert *) XLogRecGetData(record);

		return (insert->flags & XLH_INSERT_CONTAINS_NEW_TUPLE) != 0;
	}
	return false;
}

static void
forget_mover(TransactionId xid, TransactionId prepared, int nsubxacts, TransactionId *subxacts)
{
	(void) hash_search(movers, &xid, HASH_REMOVE, NULL);
	(void) hash_search(movers, &prepared, HASH_REMOVE, NULL);
	for (int i = 0; i < nsubxacts; i++)
		(void) hash_search(movers, &subxacts[i], HASH_REMOVE, NULL);
}

/* The end of a transaction, for what we keep of it. */
static void
at_transaction_end(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & XLOG_XACT_OPMASK;
	bool		commit = info == XLOG_XACT_COMMIT || info == XLOG_XACT_COMMIT_PREPARED;

	if (commit)
		tandem_decode_transactions++;
	if (hash_get_num_entries(movers) == 0)
		return;
	if (commit)
	{
		xl_xact_parsed_commit parsed;

		ParseCommitRecord(XLogRecGetInfo(record), (xl_xact_commit *) XLogRecGetData(record), &parsed);
		forget_mover(XLogRecGetXid(record), parsed.twophase_xid, parsed.nsubxacts, parsed.subxacts);
	}
	else if (info == XLOG_XACT_ABORT || info == XLOG_XACT_ABORT_PREPARED)
	{
		xl_xact_parsed_abort parsed;

		ParseAbortRecord(XLogRecGetInfo(record), (xl_xact_abort *) XLogRecGetData(record), &parsed);
		forget_mover(XLogRecGetXid(record), parsed.twophase_xid, parsed.nsubxacts, parsed.subxacts);
	}
}

bool
tandem_decode_next(LogicalDecodingContext *ctx, bool *foreign)
{
	char	   *error = NULL;
	XLogRecord *record = XLogReadRecord(ctx->reader, &error);

	if (error)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL while collecting tombstones: %s", error)));
	if (record == NULL)
		return false;

	if (of_no_interest(ctx->reader))
	{
		TransactionId top = XLogRecGetTopXid(ctx->reader);

		if (TransactionIdIsValid(top))
			ReorderBufferAssignChild(ctx->reorder, top, XLogRecGetXid(ctx->reader), ctx->reader->ReadRecPtr);
	}
	else
		LogicalDecodingProcessRecord(ctx, ctx->reader);

	switch (XLogRecGetRmid(ctx->reader))
	{
		case RM_XACT_ID:
			at_transaction_end(ctx->reader);
			break;
		case RM_XLOG_ID:
		case RM_STANDBY_ID:
			return true;
	}
	*foreign = true;
	return true;
}
