/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The store of tombstones: writing and reading its relations.
 *
 * What they are for is in store.h.  The collector writes entries many at a time.
 * They are in the logical log, since the server can't write many at a time without
 * it; but no publication has a relation of this kind, and the collector itself
 * passes them by.
 *
 * Readers take a fresh snapshot first and AccessShareLock on one relation of the
 * ring after the other, each only while they look.  An epoch that is dropped in
 * between is one that nobody needs any more.
 *
 * Called by collector.c, tombstone.c and the files of retention.
 *
 * src/conflict/store.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "catalog/pg_subscription_rel.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/own_relation.h"
#include "conflict/collector.h"
#include "conflict/key.h"

enum
{
	COL_ROOT = 1,
	COL_LEAF,
	COL_VERSION,
	COL_HASH,
	COL_KEY,
	COL_LSN,
	COL_N,
	COL_XID,
	COL_TIME,
	COL_ORIGIN,
	COL_KIND,
	NUM_COLS = COL_KIND
};

enum
{
	EPOCH_RING = 1,
	EPOCH_EPOCH,
	EPOCH_STATE,
	EPOCH_OPENED,
	EPOCH_CLOSED,
	EPOCH_FIRST_LSN,
	EPOCH_LAST_LSN,
	EPOCH_MAX_TIME,
	EPOCH_ENTRIES,
	EPOCH_BYTES,
	NUM_EPOCH_COLS = EPOCH_BYTES
};

enum
{
	STATE_SYSTEM = 1,
	STATE_TIMELINE,
	STATE_STARTED,
	STATE_LSN,
	STATE_TIME,
	STATE_RING,
	STATE_EPOCH,
	NUM_STATE_COLS = STATE_EPOCH
};

enum
{
	TABLE_SUBID = 1,
	TABLE_ROOT,
	TABLE_LSN,
	TABLE_TIME,
	NUM_TABLE_COLS = TABLE_TIME
};

#define AT_ONCE 500				/* entries inserted together */

static Oid
ring_relation(int ring, bool index)
{
	char		name[NAMEDATALEN];

	snprintf(name, sizeof(name), index ? "deleted_%d_key" : "deleted_%d", ring);
	return tandem_own_relation(name);
}

/* Reads all rows of one of the small relations: calls back with each. */
static void
for_each_row(const char *name, LOCKMODE lock, void (*call) (Relation rel, HeapTuple tuple, void *arg), void *arg)
{
	Relation	rel = table_open(tandem_own_relation(name), lock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		call(rel, tuple, arg);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, lock);
}

static void
delete_row(Relation rel, HeapTuple tuple, void *arg)
{
	CatalogTupleDelete(rel, &tuple->t_self);
}

/* ---- The state -------------------------------------------------------------------- */

static void
read_state(Relation rel, HeapTuple tuple, void *arg)
{
	TandemDeletionState *state = arg;
	Datum		v[NUM_STATE_COLS + 1];
	bool		n[NUM_STATE_COLS + 1];

	heap_deform_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1);
	state->system = (uint64) DatumGetInt64(v[STATE_SYSTEM]);
	state->timeline = (uint32) DatumGetInt32(v[STATE_TIMELINE]);
	state->started = DatumGetTimestampTz(v[STATE_STARTED]);
	state->collected_lsn = DatumGetLSN(v[STATE_LSN]);
	state->collected_time = DatumGetTimestampTz(v[STATE_TIME]);
	state->ring = DatumGetInt32(v[STATE_RING]);
	state->epoch = DatumGetInt64(v[STATE_EPOCH]);
}

bool
tandem_deletion_state(TandemDeletionState *state)
{
	memset(state, 0, sizeof(*state));
	for_each_row("deletion_state", AccessShareLock, read_state, state);
	return state->epoch != 0;
}

/* Inserts or replaces the row. */
static void
write_state(const TandemDeletionState *state)
{
	Relation	rel = table_open(tandem_own_relation("deletion_state"), RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	old = systable_getnext(scan);
	Datum		v[NUM_STATE_COLS + 1];
	bool		n[NUM_STATE_COLS + 1] = {false};
	HeapTuple	tuple;

	v[STATE_SYSTEM] = Int64GetDatum((int64) state->system);
	v[STATE_TIMELINE] = Int32GetDatum((int32) state->timeline);
	v[STATE_STARTED] = TimestampTzGetDatum(state->started);
	v[STATE_LSN] = LSNGetDatum(state->collected_lsn);
	v[STATE_TIME] = TimestampTzGetDatum(state->collected_time);
	v[STATE_RING] = Int32GetDatum(state->ring);
	v[STATE_EPOCH] = Int64GetDatum(state->epoch);
	tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
}

/* ---- Epochs -------------------------------------------------------------------------- */

static void
read_epoch(Relation rel, HeapTuple tuple, void *arg)
{
	List	  **epochs = arg;
	TandemEpoch *epoch = palloc0(sizeof(TandemEpoch));
	Datum		v[NUM_EPOCH_COLS + 1];
	bool		n[NUM_EPOCH_COLS + 1];

	heap_deform_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1);
	epoch->ring = DatumGetInt32(v[EPOCH_RING]);
	epoch->epoch = DatumGetInt64(v[EPOCH_EPOCH]);
	epoch->open = DatumGetChar(v[EPOCH_STATE]) == 'o';
	epoch->opened = DatumGetTimestampTz(v[EPOCH_OPENED]);
	epoch->closed = n[EPOCH_CLOSED] ? 0 : DatumGetTimestampTz(v[EPOCH_CLOSED]);
	epoch->first_lsn = n[EPOCH_FIRST_LSN] ? InvalidXLogRecPtr : DatumGetLSN(v[EPOCH_FIRST_LSN]);
	epoch->last_lsn = n[EPOCH_LAST_LSN] ? InvalidXLogRecPtr : DatumGetLSN(v[EPOCH_LAST_LSN]);
	epoch->max_time = n[EPOCH_MAX_TIME] ? 0 : DatumGetTimestampTz(v[EPOCH_MAX_TIME]);
	epoch->entries = DatumGetInt64(v[EPOCH_ENTRIES]);
	epoch->bytes = DatumGetInt64(v[EPOCH_BYTES]);
	*epochs = lappend(*epochs, epoch);
}

static int
by_number(const ListCell *a, const ListCell *b)
{
	int64		x = ((TandemEpoch *) lfirst(a))->epoch;
	int64		y = ((TandemEpoch *) lfirst(b))->epoch;

	return x < y ? -1 : x > y;
}

List *
tandem_epochs(void)
{
	List	   *epochs = NIL;

	for_each_row("deletion_epochs", AccessShareLock, read_epoch, &epochs);
	list_sort(epochs, by_number);
	return epochs;
}

/* The row of an epoch by its relation in the ring; NULL: there is none. */
static TandemEpoch *
epoch_of_ring(int ring)
{
	ListCell   *lc;

	foreach(lc, tandem_epochs())
	{
		if (((TandemEpoch *) lfirst(lc))->ring == ring)
			return lfirst(lc);
	}
	return NULL;
}

/* Inserts or replaces an epoch's row, or (remove) deletes it. */
static void
write_epoch(const TandemEpoch *epoch, bool remove)
{
	Relation	rel = table_open(tandem_own_relation("deletion_epochs"), RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	old;

	ScanKeyInit(&key, EPOCH_RING, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(epoch->ring));
	scan = systable_beginscan(rel, tandem_own_relation("deletion_epochs_key"), true, snapshot, 1, &key);
	old = systable_getnext(scan);
	if (remove)
	{
		if (HeapTupleIsValid(old))
			CatalogTupleDelete(rel, &old->t_self);
	}
	else
	{
		Datum		v[NUM_EPOCH_COLS + 1];
		bool		n[NUM_EPOCH_COLS + 1] = {false};
		HeapTuple	tuple;

		v[EPOCH_RING] = Int32GetDatum(epoch->ring);
		v[EPOCH_EPOCH] = Int64GetDatum(epoch->epoch);
		v[EPOCH_STATE] = CharGetDatum(epoch->open ? 'o' : 'c');
		v[EPOCH_OPENED] = TimestampTzGetDatum(epoch->opened);
		v[EPOCH_CLOSED] = TimestampTzGetDatum(epoch->closed);
		n[EPOCH_CLOSED] = epoch->closed == 0;
		v[EPOCH_FIRST_LSN] = LSNGetDatum(epoch->first_lsn);
		n[EPOCH_FIRST_LSN] = epoch->first_lsn == InvalidXLogRecPtr;
		v[EPOCH_LAST_LSN] = LSNGetDatum(epoch->last_lsn);
		n[EPOCH_LAST_LSN] = epoch->last_lsn == InvalidXLogRecPtr;
		v[EPOCH_MAX_TIME] = TimestampTzGetDatum(epoch->max_time);
		n[EPOCH_MAX_TIME] = epoch->max_time == 0;
		v[EPOCH_ENTRIES] = Int64GetDatum(epoch->entries);
		v[EPOCH_BYTES] = Int64GetDatum(epoch->bytes);
		tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);
		if (HeapTupleIsValid(old))
			CatalogTupleUpdate(rel, &old->t_self, tuple);
		else
			CatalogTupleInsert(rel, tuple);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

static void
open_epoch(TandemDeletionState *state, int ring)
{
	TandemEpoch epoch = {0};

	state->ring = epoch.ring = ring;
	epoch.epoch = ++state->epoch;
	epoch.open = true;
	epoch.opened = GetCurrentTimestamp();
	write_epoch(&epoch, false);
}

void
tandem_store_init(TandemDeletionState *state)
{
	state->epoch = 0;
	open_epoch(state, 0);
	write_state(state);
}

void
tandem_store_close_epoch(TandemDeletionState *state)
{
	TandemEpoch *current = epoch_of_ring(state->ring);

	if (current == NULL || current->entries == 0)
		return;
	for (int i = 1; i < TANDEM_RINGS; i++)
	{
		int			ring = (state->ring + i) % TANDEM_RINGS;

		if (epoch_of_ring(ring) != NULL)
			continue;
		current->open = false;
		current->closed = GetCurrentTimestamp();
		write_epoch(current, false);
		open_epoch(state, ring);
		write_state(state);
		return;
	}
}

/* Gives a relation of the ring new, empty files. */
static void
empty_ring(int ring)
{
	Relation	rel = table_open(ring_relation(ring, false), AccessExclusiveLock);
	ReindexParams params = {0};
	Oid			toast = rel->rd_rel->reltoastrelid;

	TANDEM_NEW_FILES(rel);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	if (OidIsValid(toast))
	{
		rel = table_open(toast, AccessExclusiveLock);
		TANDEM_NEW_FILES(rel);
		table_close(rel, NoLock);
		CommandCounterIncrement();
	}
	/* the toast table's as well */
	(void) TANDEM_REINDEX_RELATION(ring_relation(ring, false), REINDEX_REL_PROCESS_TOAST, &params);
	CommandCounterIncrement();
}

static Oid	recount_dbid = InvalidOid;

/* A dropped epoch's tables are counted again. */
static void
at_end(XactEvent event, void *arg)
{
	if (!OidIsValid(recount_dbid))
		return;
	if (event == XACT_EVENT_COMMIT)
	{
		TandemCollector *collector = tandem_collector_find(recount_dbid, false);

		if (collector)
			collector->recount = true;
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		recount_dbid = InvalidOid;
}

void
tandem_epoch_drop(const TandemEpoch *epoch)
{
	static bool registered = false;

	Assert(!epoch->open);
	if (!registered)
		RegisterXactCallback(at_end, NULL);
	registered = true;
	empty_ring(epoch->ring);
	write_epoch(epoch, true);
	recount_dbid = MyDatabaseId;
}

void
tandem_store_clear(void)
{
	static const char *const names[] = {"deletion_epochs", "deletion_state", "deletion_tables", "deletion_windows"};

	for (int i = 0; i < lengthof(names); i++)
		for_each_row(names[i], RowExclusiveLock, delete_row, NULL);
	for (int ring = 0; ring < TANDEM_RINGS; ring++)
		empty_ring(ring);
}

int64
tandem_store_size(void)
{
	int64		size = 0;

	for (int i = 0; i < TANDEM_RINGS * 2; i++)
	{
		Relation	rel = relation_open(ring_relation(i / 2, i % 2), AccessShareLock);

		size += (int64) RelationGetNumberOfBlocks(rel) * BLCKSZ;
		relation_close(rel, AccessShareLock);
	}
	return size;
}

/* ---- Writing entries ------------------------------------------------------------------- */

typedef struct Writer
{
	Relation	rel;
	Relation	index;
	IndexInfo  *index_info;
	BulkInsertState bistate;
	CommandId	cid;
	TupleTableSlot *slots[AT_ONCE];
	int			nslots;
	MemoryContext context;		/* of the tuples */
	Oid			last_root;
	int32		last_version;
	int64		written;
	int64		bytes;
} Writer;

static void
flush_slots(Writer *writer)
{
	if (writer->nslots == 0)
		return;
	heap_multi_insert(writer->rel, writer->slots, writer->nslots, writer->cid, 0,
					  writer->bistate);
	for (int i = 0; i < writer->nslots; i++)
	{
		Datum		values[2];
		bool		isnull[2];

		values[0] = slot_getattr(writer->slots[i], COL_ROOT, &isnull[0]);
		values[1] = slot_getattr(writer->slots[i], COL_HASH, &isnull[1]);
		(void) index_insert(writer->index, values, isnull, &writer->slots[i]->tts_tid, writer->rel,
							UNIQUE_CHECK_NO, false, writer->index_info);
		ExecClearTuple(writer->slots[i]);
	}
	writer->nslots = 0;
	MemoryContextReset(writer->context);
}

static void
write_entry(Writer *writer, const TandemEntry *entry, const char *key)
{
	MemoryContext old = MemoryContextSwitchTo(writer->context);
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1] = {false};
	HeapTuple	tuple;

	v[COL_ROOT] = ObjectIdGetDatum(entry->root);
	v[COL_LEAF] = ObjectIdGetDatum(entry->leaf);
	v[COL_VERSION] = Int32GetDatum(entry->version);
	v[COL_HASH] = Int64GetDatum(entry->hash);
	n[COL_KEY] = entry->length < 0;
	v[COL_KEY] = entry->length < 0 ? (Datum) 0 : PointerGetDatum(cstring_to_text_with_len(key, entry->length));
	v[COL_LSN] = LSNGetDatum(entry->lsn);
	v[COL_N] = Int64GetDatum(entry->n);
	v[COL_XID] = TransactionIdGetDatum(entry->xid);
	v[COL_TIME] = TimestampTzGetDatum(entry->time);
	v[COL_ORIGIN] = Int32GetDatum((int32) entry->origin);
	v[COL_KIND] = CharGetDatum(entry->kind);
	tuple = heap_form_tuple(RelationGetDescr(writer->rel), v + 1, n + 1);
	writer->bytes += tuple->t_len;
	writer->written++;
	ExecStoreHeapTuple(tuple, writer->slots[writer->nslots++], false);
	MemoryContextSwitchTo(old);
	if (writer->nslots == AT_ONCE)
		flush_slots(writer);
}

/* Says once in an epoch that a table has keys of this version. */
static void
mark_version(Writer *writer, const TandemEntry *entry)
{
	/* of the epochs that this process has seen begin */
	static int64 epoch = 0;
	static List *marks = NIL;	/* of {root, version} */
	TandemEntry mark = {0};
	ListCell   *lc;

	if (writer == NULL)
	{
		epoch = 0;
		return;
	}
	if (entry->root == writer->last_root && entry->version == writer->last_version)
		return;
	writer->last_root = entry->root;
	writer->last_version = entry->version;
	if (epoch == 0)
	{
		list_free_deep(marks);
		marks = NIL;
		epoch = 1;
	}
	foreach(lc, marks)
	{
		TandemEntry *known = lfirst(lc);

		if (known->root == entry->root && known->version == entry->version)
			return;
	}
	mark.root = mark.leaf = entry->root;
	mark.version = entry->version;
	mark.lsn = entry->lsn;
	mark.time = entry->time;
	mark.kind = 'v';
	mark.length = -1;
	write_entry(writer, &mark, NULL);
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		marks = lappend(marks, memcpy(palloc(sizeof(mark)), &mark, sizeof(mark)));
		MemoryContextSwitchTo(old);
	}
}

void
tandem_store_write(TandemCollector *collector, TandemDeletionState *state)
{
	static int64 marked_epoch = 0;
	TandemBatch *batch = tandem_batch_pending();
	Snapshot	snapshot;

	if (batch->entries > 0)
	{
		Writer		writer = {0};
		TandemEpoch *epoch = epoch_of_ring(state->ring);
		TandemEntry *entry;
		char	   *key;

		if (epoch == NULL || epoch->epoch != state->epoch)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("tandem.deletion_epochs doesn't have the open epoch " INT64_FORMAT, state->epoch)));
		if (marked_epoch != state->epoch)
			mark_version(NULL, NULL);
		marked_epoch = 0;		/* until this has been written */

		writer.rel = table_open(ring_relation(state->ring, false), RowExclusiveLock);
		writer.index = index_open(ring_relation(state->ring, true), RowExclusiveLock);
		writer.index_info = BuildIndexInfo(writer.index);
		writer.bistate = GetBulkInsertState();
		writer.cid = GetCurrentCommandId(true);
		writer.context = AllocSetContextCreate(CurrentMemoryContext, "tombstones to be written",
											   ALLOCSET_DEFAULT_SIZES);
		for (int i = 0; i < AT_ONCE; i++)
			writer.slots[i] = MakeSingleTupleTableSlot(RelationGetDescr(writer.rel), &TTSOpsHeapTuple);

		/* who writes what may be toasted has to have one */
		snapshot = RegisterSnapshot(GetTransactionSnapshot());
		tandem_batch_rewind();
		while ((entry = tandem_batch_next(&key)) != NULL)
		{
			CHECK_FOR_INTERRUPTS();
			if (entry->length >= 0)
				mark_version(&writer, entry);
			if (entry->kind != 's')
				tandem_any_add(collector, entry->root);
			write_entry(&writer, entry, key);
		}
		flush_slots(&writer);
		UnregisterSnapshot(snapshot);
		for (int i = 0; i < AT_ONCE; i++)
			ExecDropSingleTupleTableSlot(writer.slots[i]);
		FreeBulkInsertState(writer.bistate);
		MemoryContextDelete(writer.context);
		index_close(writer.index, RowExclusiveLock);
		table_close(writer.rel, RowExclusiveLock);

		epoch->entries += writer.written;
		epoch->bytes += writer.bytes;
		if (epoch->first_lsn == InvalidXLogRecPtr)
			epoch->first_lsn = batch->first_lsn;
		epoch->last_lsn = batch->last_lsn;
		epoch->max_time = Max(epoch->max_time, batch->max_time);
		write_epoch(epoch, false);
		marked_epoch = state->epoch;
	}
	write_state(state);
}

/* ---- Tables whose deletes are collected ------------------------------------------------- */

typedef struct KnownTable
{
	Oid			subid;
	Oid			root;
	ItemPointerData tid;
	bool		wanted;
} KnownTable;

static void
read_table(Relation rel, HeapTuple tuple, void *arg)
{
	List	  **tables = arg;
	KnownTable *table = palloc0(sizeof(KnownTable));
	bool		isnull;

	table->subid = DatumGetObjectId(heap_getattr(tuple, TABLE_SUBID, RelationGetDescr(rel), &isnull));
	table->root = DatumGetObjectId(heap_getattr(tuple, TABLE_ROOT, RelationGetDescr(rel), &isnull));
	table->tid = tuple->t_self;
	*tables = lappend(*tables, table);
}

List *
tandem_store_tables(List *subids, XLogRecPtr lsn)
{
	List	   *known = NIL;
	List	   *roots = NIL;
	TimestampTz now = GetCurrentTimestamp();
	Relation	rel = table_open(tandem_own_relation("deletion_tables"), RowExclusiveLock);
	HASHCTL		ctl = {.keysize = 2 * sizeof(Oid), .entrysize = sizeof(KnownTable), .hcxt = CurrentMemoryContext};
	HTAB	   *by_key = hash_create("known tables", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ListCell   *lc;

	for_each_row("deletion_tables", RowExclusiveLock, read_table, &known);
	foreach(lc, known)
	{
		KnownTable *table = lfirst(lc);
		Oid			key[2] = {table->subid, table->root};

		memcpy(hash_search(by_key, key, HASH_ENTER, NULL), table, sizeof(*table));
	}
	foreach(lc, subids)
	{
		ListCell   *cell;

		foreach(cell, TANDEM_SUBSCRIPTION_RELATIONS(lfirst_oid(lc)))
		{
			Oid			root = ((SubscriptionRelState *) lfirst(cell))->relid;
			Oid			key[2] = {lfirst_oid(lc), root};
			bool		found;
			KnownTable *table = hash_search(by_key, key, HASH_ENTER, &found);

			roots = list_append_unique_oid(roots, root);
			table->wanted = true;
			if (!found)
			{
				Datum		v[NUM_TABLE_COLS + 1];
				bool		n[NUM_TABLE_COLS + 1] = {false};

				v[TABLE_SUBID] = ObjectIdGetDatum(lfirst_oid(lc));
				v[TABLE_ROOT] = ObjectIdGetDatum(root);
				v[TABLE_LSN] = LSNGetDatum(lsn);
				v[TABLE_TIME] = TimestampTzGetDatum(now);
				CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1));
				tandem_batch_mark(root, lfirst_oid(lc), 's', lsn, now);
			}
		}
	}
	foreach(lc, known)
	{
		KnownTable *table = lfirst(lc);
		Oid			key[2] = {table->subid, table->root};

		if (!((KnownTable *) hash_search(by_key, key, HASH_FIND, NULL))->wanted)
			CatalogTupleDelete(rel, &table->tid);
	}
	hash_destroy(by_key);
	table_close(rel, RowExclusiveLock);
	return roots;
}

bool
tandem_store_has_table(Oid subid, Oid root)
{
	List	   *known = NIL;
	ListCell   *lc;

	for_each_row("deletion_tables", AccessShareLock, read_table, &known);
	foreach(lc, known)
	{
		KnownTable *table = lfirst(lc);

		if (table->root == root && (table->subid == subid || !OidIsValid(subid)))
			return true;
	}
	return false;
}

/* ---- Looking ----------------------------------------------------------------------------- */

static void
read_entry(Relation rel, HeapTuple tuple, TandemEntry *entry, bytea **key)
{
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];

	heap_deform_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1);
	entry->root = DatumGetObjectId(v[COL_ROOT]);
	entry->leaf = DatumGetObjectId(v[COL_LEAF]);
	entry->version = DatumGetInt32(v[COL_VERSION]);
	entry->hash = DatumGetInt64(v[COL_HASH]);
	entry->lsn = DatumGetLSN(v[COL_LSN]);
	entry->n = DatumGetInt64(v[COL_N]);
	entry->xid = DatumGetTransactionId(v[COL_XID]);
	entry->time = DatumGetTimestampTz(v[COL_TIME]);
	entry->origin = (RepOriginId) DatumGetInt32(v[COL_ORIGIN]);
	entry->kind = DatumGetChar(v[COL_KIND]);
	*key = n[COL_KEY] ? NULL : DatumGetByteaPP(v[COL_KEY]);
}

/*
 * Of several tombstones of a key the one of the latest commit time counts, as
 * for who wins; of the same time the last.
 */
static void
keep_newest(TandemFound *found, const TandemEntry *entry)
{
	const TandemEntry *newest = &found->newest;

	if (!found->any || entry->time > newest->time ||
		(entry->time == newest->time &&
		 (entry->lsn > newest->lsn || (entry->lsn == newest->lsn && entry->n > newest->n))))
		found->newest = *entry;
	found->any = true;
}

/* Is "leaf" this table, or does it contain it as a partition? */
static bool
covers(Oid leaf, const TandemKey *key)
{
	return leaf == key->relid || leaf == key->root ||
		list_member_oid(get_partition_ancestors(key->relid), leaf);
}

/* One relation of the ring. */
static void
look_into(int ring, Snapshot snapshot, TandemKey *key, const TandemKeyValues *values, int64 hash,
		  Oid subid, TandemFound *found)
{
	Relation	rel = table_open(ring_relation(ring, false), AccessShareLock);
	Oid			index = ring_relation(ring, true);

	for (int pass = 0; pass < 2 && RelationGetNumberOfBlocks(rel) > 0; pass++)
	{
		ScanKeyData keys[2];
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&keys[0], COL_ROOT, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(key->root));
		ScanKeyInit(&keys[1], COL_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(pass == 0 ? 0 : hash));
		keys[1].sk_attno = COL_HASH;
		scan = systable_beginscan(rel, index, true, snapshot, 2, keys);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			TandemEntry entry;
			bytea	   *packed;

			CHECK_FOR_INTERRUPTS();
			read_entry(rel, tuple, &entry, &packed);
			switch (entry.kind)
			{
				case 't':
					if (covers(entry.leaf, key))
						keep_newest(found, &entry);
					break;
				case 'v':
					if (entry.version != key->version)
						found->other_version = true;
					break;
				case 's':
					if (!OidIsValid(subid) || entry.leaf == subid)
					{
						found->began = true;
						found->began_at = Max(found->began_at, entry.time);
					}
					break;
				default:
					if (packed != NULL && entry.version == key->version &&
						tandem_key_equal(key, VARDATA_ANY(packed), VARSIZE_ANY_EXHDR(packed), values))
						keep_newest(found, &entry);
			}
		}
		systable_endscan(scan);
	}
	table_close(rel, AccessShareLock);
}

void
tandem_store_look(TandemKey *key, const TandemKeyValues *values, int64 hash, Oid subid, TandemFound *found)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	memset(found, 0, sizeof(*found));
	for (int ring = 0; ring < TANDEM_RINGS; ring++)
		look_into(ring, snapshot, key, values, hash, subid, found);
	UnregisterSnapshot(snapshot);
}

void
tandem_store_count_roots(TandemCollector *collector)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	tandem_any_begin(collector);
	for (int ring = 0; ring < TANDEM_RINGS; ring++)
	{
		Relation	rel = table_open(ring_relation(ring, false), AccessShareLock);
		Relation	index = index_open(ring_relation(ring, true), AccessShareLock);
		Oid			last = InvalidOid;
		HeapTuple	tuple;

		/* from one table's first entry to the next one's */
		do
		{
			ScanKeyData key;
			SysScanDesc scan;

			ScanKeyInit(&key, COL_ROOT, BTGreaterStrategyNumber, F_OIDGT, ObjectIdGetDatum(last));
			scan = systable_beginscan_ordered(rel, index, snapshot, 1, &key);
			tuple = systable_getnext_ordered(scan, ForwardScanDirection);
			if (HeapTupleIsValid(tuple))
			{
				bool		isnull;

				last = DatumGetObjectId(heap_getattr(tuple, COL_ROOT, RelationGetDescr(rel), &isnull));
				tandem_any_add(collector, last);
			}
			systable_endscan_ordered(scan);
		} while (HeapTupleIsValid(tuple));
		index_close(index, AccessShareLock);
		table_close(rel, AccessShareLock);
	}
	UnregisterSnapshot(snapshot);
	tandem_any_end(collector);
}
