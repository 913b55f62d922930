/*-------------------------------------------------------------------------
 *
 * wave_snapshot.c
 *	  Which transactions a wave's copy contains.
 *
 * A wave copies all its tables with one snapshot of the publisher.  A
 * transaction is in the copy exactly if the snapshot sees its top id, which
 * the stream carries with each transaction.  What the snapshot sees is skipped
 * at replay, all else is replayed.  That is right for transactions that were
 * spooled.  Those received before spooling began were not: the snapshot must
 * see every one of them.  It may not, although it was taken later: a
 * transaction that waits for a synchronous standby is streamed before it is
 * visible, and may even be above the snapshot's xmax.
 *
 * So the apply worker remembers, as bits, the ids it has received.  At the
 * moment from which the wave's tables are spooled the bits are frozen; the
 * leader takes snapshots until one sees all of them.  Ids received by earlier
 * sessions are forgotten: all ids below "horizon", an id the publisher assigned
 * when this session began, must have ended before the snapshot.
 *
 * Also here: the leader's and the copy workers' connections to the publisher.
 *
 * src/subscription/wave_snapshot.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/compat.h"
#include "common/settings.h"
#include "subscription/waves.h"

#define TRANSACTION_TIMEOUT_SINCE 170000	/* publisher's version */

/* ---- Snapshots ------------------------------------------------------------- */

static int
compare_ids(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y;
}

void
tandem_snapshot_parse(const char *text, TandemWaveSnapshot *snapshot)
{
	const char *p = text;
	char	   *end;
	int			room = 1;

	for (const char *c = text; *c; c++)
		room += *c == ',';
	memset(snapshot, 0, sizeof(*snapshot));
	snapshot->xip = palloc(sizeof(uint64) * room);

	snapshot->xmin = strtou64(p, &end, 10);
	if (end == p || *end != ':')
		goto invalid;
	p = end + 1;
	snapshot->xmax = strtou64(p, &end, 10);
	if (end == p || *end != ':')
		goto invalid;
	p = end + 1;
	while (*p)
	{
		snapshot->xip[snapshot->nxip++] = strtou64(p, &end, 10);
		if (end == p || (*end != ',' && *end != '\0'))
			goto invalid;
		p = *end == ',' ? end + 1 : end;
	}
	qsort(snapshot->xip, snapshot->nxip, sizeof(uint64), compare_ids);
	return;

invalid:
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("the publisher sent \"%s\" as a snapshot", text)));
}

uint64
tandem_widen_xid(TransactionId xid, uint64 reference)
{
	/* the nearest: at most half of the circle away in either direction */
	int32		distance = (int32) (xid - (TransactionId) reference);

	return reference + (int64) distance;
}

bool
tandem_snapshot_sees(const TandemWaveSnapshot *snapshot, uint64 xid)
{
	if (xid < snapshot->xmin)
		return true;
	if (xid >= snapshot->xmax)
		return false;
	return bsearch(&xid, snapshot->xip, snapshot->nxip, sizeof(uint64), compare_ids) == NULL;
}

/* ---- tandem.wave_snapshots --------------------------------------------------- */

enum
{
	COL_SUBID = 1,
	COL_WAVE,
	COL_SNAPSHOT,
	COL_LSN,
	COL_TIMELINE,
	COL_TAKEN,
	NUM_COLS = COL_TAKEN
};

static SysScanDesc
begin_scan(Relation rel, Oid subid, int64 wave, ScanKeyData *keys)
{
	ScanKeyInit(&keys[0], COL_SUBID, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(subid));
	ScanKeyInit(&keys[1], COL_WAVE, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wave));
	InvalidateCatalogSnapshot();
	return systable_beginscan(rel, tandem_own_relation("wave_snapshots_key"), true, NULL,
							  wave ? 2 : 1, keys);
}

void
tandem_snapshot_store(Oid subid, int64 wave, const char *text, XLogRecPtr lsn,
					  uint32 timeline, TimestampTz taken)
{
	Relation	rel = table_open(tandem_own_relation("wave_snapshots"), RowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, wave, keys);
	HeapTuple	old = systable_getnext(scan);
	HeapTuple	tuple;
	Datum		v[NUM_COLS + 1];
	bool		n[NUM_COLS + 1];

	memset(n, 0, sizeof(n));
	v[COL_SUBID] = ObjectIdGetDatum(subid);
	v[COL_WAVE] = Int64GetDatum(wave);
	v[COL_SNAPSHOT] = CStringGetTextDatum(text);
	v[COL_LSN] = LSNGetDatum(lsn);
	v[COL_TIMELINE] = Int32GetDatum((int32) timeline);
	v[COL_TAKEN] = TimestampTzGetDatum(taken);
	tuple = heap_form_tuple(RelationGetDescr(rel), v + 1, n + 1);
	if (HeapTupleIsValid(old))
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	systable_endscan(scan);
	table_close(rel, RowExclusiveLock);
	CommandCounterIncrement();
}

TandemWaveSnapshot *
tandem_snapshot_load(Oid subid, int64 wave)
{
	Relation	rel = table_open(tandem_own_relation("wave_snapshots"), AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, wave, keys);
	HeapTuple	tuple = systable_getnext(scan);
	TandemWaveSnapshot *snapshot = NULL;

	if (HeapTupleIsValid(tuple))
	{
		Datum		v[NUM_COLS + 1];
		bool		n[NUM_COLS + 1];

		heap_deform_tuple(tuple, RelationGetDescr(rel), v + 1, n + 1);
		snapshot = palloc(sizeof(TandemWaveSnapshot));
		tandem_snapshot_parse(TextDatumGetCString(v[COL_SNAPSHOT]), snapshot);
		snapshot->lsn = DatumGetLSN(v[COL_LSN]);
		snapshot->timeline = (uint32) DatumGetInt32(v[COL_TIMELINE]);
		snapshot->taken = DatumGetTimestampTz(v[COL_TAKEN]);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return snapshot;
}

/* The highest number of a wave that has a snapshot, or 0. */
int64
tandem_snapshot_last_wave(Oid subid)
{
	Relation	rel = table_open(tandem_own_relation("wave_snapshots"), AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, 0, keys);
	HeapTuple	tuple;
	int64		last = 0;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int64		wave = DatumGetInt64(heap_getattr(tuple, COL_WAVE, RelationGetDescr(rel), &isnull));

		last = Max(last, wave);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return last;
}

/* Removes snapshots of waves that no table needs; "needed" is a list of pointers to int64. */
void
tandem_snapshots_prune(Oid subid, List *needed)
{
	Relation	rel = table_open(tandem_own_relation("wave_snapshots"), RowExclusiveLock);
	ScanKeyData keys[2];
	SysScanDesc scan = begin_scan(rel, subid, 0, keys);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int64		wave = DatumGetInt64(heap_getattr(tuple, COL_WAVE, RelationGetDescr(rel), &isnull));
		bool		keep = false;
		ListCell   *lc;

		foreach(lc, needed)
			keep = keep || *(int64 *) lfirst(lc) == wave;
		if (!keep)
			CatalogTupleDelete(rel, &tuple->t_self);
	}
	systable_endscan(scan);
	table_close(rel, RowExclusiveLock);
}

/* ---- Ids received, in the apply worker ----------------------------------------- */

#define CHUNK_BITS 16
#define MAX_CHUNKS 1024			/* of each set: 8 MB for 64 million ids */

typedef struct Chunk
{
	uint64		number;			/* hash key: id >> CHUNK_BITS */
	uint8		bits[(1 << CHUNK_BITS) / 8];
} Chunk;

static HTAB *received_before = NULL;	/* until the freeze */
static HTAB *received_since = NULL;
static uint64 received_horizon = 0; /* ids below may have been received */
static uint64 received_reference = 0;	/* to widen ids */

static HTAB *
new_set(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(Chunk);
	ctl.hcxt = TopMemoryContext;
	return hash_create("tandem received ids", 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Keeps a set small: the lowest chunk goes, and all its ids count as received. */
static void
trim_set(HTAB *set)
{
	while (hash_get_num_entries(set) > MAX_CHUNKS)
	{
		HASH_SEQ_STATUS status;
		Chunk	   *chunk;
		uint64		lowest = PG_UINT64_MAX;

		hash_seq_init(&status, set);
		while ((chunk = hash_seq_search(&status)) != NULL)
			lowest = Min(lowest, chunk->number);
		received_horizon = Max(received_horizon, (lowest + 1) << CHUNK_BITS);
		hash_search(set, &lowest, HASH_REMOVE, NULL);
	}
}

static Chunk *
get_chunk(HTAB *set, uint64 number)
{
	bool		found;
	Chunk	   *chunk = hash_search(set, &number, HASH_ENTER, &found);

	if (!found)
		memset(chunk->bits, 0, sizeof(chunk->bits));
	return chunk;
}

void
tandem_received_reset(uint64 horizon)
{
	if (received_before)
		hash_destroy(received_before);
	if (received_since)
		hash_destroy(received_since);
	received_before = new_set();
	received_since = new_set();
	received_horizon = received_reference = horizon;
}

void
tandem_received_add(TransactionId xid)
{
	uint64		id = tandem_widen_xid(xid, received_reference);
	uint32		bit = id & ((1 << CHUNK_BITS) - 1);
	Chunk	   *chunk = get_chunk(received_since, id >> CHUNK_BITS);

	chunk->bits[bit / 8] |= 1 << (bit % 8);
	received_reference = Max(received_reference, id);
	if (hash_get_num_entries(received_since) > MAX_CHUNKS)
		trim_set(received_since);
}

void
tandem_received_freeze(void)
{
	HASH_SEQ_STATUS status;
	Chunk	   *chunk;

	hash_seq_init(&status, received_since);
	while ((chunk = hash_seq_search(&status)) != NULL)
	{
		Chunk	   *into = get_chunk(received_before, chunk->number);

		for (int i = 0; i < sizeof(chunk->bits); i++)
			into->bits[i] |= chunk->bits[i];
	}
	trim_set(received_before);
	hash_destroy(received_since);
	received_since = new_set();
}

bool
tandem_received_visible(const TandemWaveSnapshot *snapshot)
{
	HASH_SEQ_STATUS status;
	Chunk	   *chunk;

	if (received_horizon == 0 || snapshot->xmin < received_horizon)
		return false;
	hash_seq_init(&status, received_before);
	while ((chunk = hash_seq_search(&status)) != NULL)
	{
		uint64		first = chunk->number << CHUNK_BITS;

		if (first + (1 << CHUNK_BITS) <= snapshot->xmin)
			continue;			/* all of it is seen */
		for (int bit = 0; bit < 1 << CHUNK_BITS; bit++)
		{
			if ((chunk->bits[bit / 8] & (1 << (bit % 8))) != 0 &&
				!tandem_snapshot_sees(snapshot, first + bit))
			{
				hash_seq_term(&status);
				return false;
			}
		}
	}
	return true;
}

/* Every later snapshot sees what is before this one's xmin. */
void
tandem_received_forget(const TandemWaveSnapshot *snapshot)
{
	HASH_SEQ_STATUS status;
	Chunk	   *chunk;

	hash_seq_init(&status, received_before);
	while ((chunk = hash_seq_search(&status)) != NULL)
	{
		if ((chunk->number + 1) << CHUNK_BITS <= snapshot->xmin)
			hash_search(received_before, &chunk->number, HASH_REMOVE, NULL);
	}
}

/* ---- The publisher --------------------------------------------------------------- */

/*
 * Connects as core's table synchronisation does.  The connection is closed by
 * walrcv_disconnect() or the end of the process.
 */
WalReceiverConn *
tandem_publisher_connect(const Subscription *sub, const char *purpose)
{
	char	   *error = NULL;
	WalReceiverConn *conn;
	char		name[NAMEDATALEN];
	MemoryContext old;

	snprintf(name, sizeof(name), "pg_tandem %s %u", purpose, sub->oid);
	load_file("libpqwalreceiver", false);
	old = MemoryContextSwitchTo(TopMemoryContext);
	conn = TANDEM_WALRCV_CONNECT(sub->conninfo, name, TANDEM_MUST_USE_PASSWORD(sub), &error);
	MemoryContextSwitchTo(old);
	if (conn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher for the copy: %s", error),
				 errhint("If it has no room, increase max_wal_senders there: a wave needs two, and one for each copy worker.")));

	/*
	 * Nothing of ours may wait for long or stay for ever there.  What is idle
	 * in a transaction builds indexes here.
	 */
	tandem_publisher_exec(conn, "SET lock_timeout = '2s'");
	tandem_publisher_exec(conn, "SET statement_timeout = 0");
	tandem_publisher_exec(conn, "SET idle_in_transaction_session_timeout = '4h'");
	tandem_publisher_exec(conn, "SET idle_session_timeout = '1d'");
	if (tandem_publisher_version(conn) >= TRANSACTION_TIMEOUT_SINCE)
		tandem_publisher_exec(conn, "SET transaction_timeout = 0");
	tandem_publisher_exec(conn, "SET row_security = off");
	return conn;
}

int
tandem_publisher_version(WalReceiverConn *conn)
{
	return tandem_debug_publisher_version ? tandem_debug_publisher_version : walrcv_server_version(conn);
}

/* An end of the session or its statement that nobody here has asked for is a lost connection. */
static int
publisher_sqlstate(int sqlstate)
{
	if (sqlstate == 0 || ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_OPERATOR_INTERVENTION)
		return ERRCODE_CONNECTION_FAILURE;
	return sqlstate;
}

void
tandem_publisher_raise(const WalRcvExecResult *res)
{
	ereport(ERROR,
			(errcode(publisher_sqlstate(res->sqlstate)),
			 errmsg("the publisher answered: %s", res->err ? res->err : "unexpected result")));
}

void
tandem_publisher_exec(WalReceiverConn *conn, const char *command)
{
	WalRcvExecResult *res = walrcv_exec(conn, command, 0, NULL);

	if (res->status != WALRCV_OK_COMMAND)
		tandem_publisher_raise(res);
	walrcv_clear_result(res);
}

WalRcvExecResult *
tandem_publisher_query(WalReceiverConn *conn, const char *query, int ncolumns, const Oid *types)
{
	MemoryContext context = CurrentMemoryContext;
	bool		started = !IsTransactionState();
	WalRcvExecResult *res;

	/* types are looked up; a result without a transaction has to be small */
	if (started)
	{
		StartTransactionCommand();
		MemoryContextSwitchTo(context);
	}
	res = walrcv_exec(conn, query, ncolumns, types);
	if (res->status != WALRCV_OK_TUPLES)
		tandem_publisher_raise(res);
	if (started)
	{
		CommitTransactionCommand();
		MemoryContextSwitchTo(context);
	}
	return res;
}

bool
tandem_publisher_flushed(WalReceiverConn *conn, XLogRecPtr lsn)
{
	Oid			types[] = {LSNOID};
	WalRcvExecResult *res = tandem_publisher_query(conn, "SELECT pg_catalog.pg_current_wal_flush_lsn()",
												   lengthof(types), types);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	XLogRecPtr	flushed;
	bool		isnull;

	if (!tuplestore_gettupleslot(res->tuplestore, true, false, slot))
		elog(ERROR, "the publisher sent no flush position");
	flushed = DatumGetLSN(slot_getattr(slot, 1, &isnull));
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);
	return flushed >= lsn;
}
