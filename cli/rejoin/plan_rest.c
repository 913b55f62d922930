/*-------------------------------------------------------------------------
 *
 * plan_rest.c
 *	  Everything that is not a relation: maps, transaction statuses, prepared
 *	  transactions, replication progress, decoding snapshots, slots.
 *
 * Statuses, commit timestamps and multixacts of ids from after the fork are
 * erased in place, see slru.c; only segments that were removed after the fork
 * have to be fetched.
 *
 * cli/rejoin/plan_rest.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "rejoin/plan.h"

/*
 * How a slot's state file begins (ReplicationSlotOnDisk in the server's
 * slot.c, then ReplicationSlotPersistentData); the same in all versions.
 */
typedef struct SlotFileStart
{
	uint32		magic;
	uint32		checksum;
	uint32		version;
	uint32		length;
	NameData	name;
	Oid			database;
	int			persistency;
	TransactionId xmin;
	TransactionId catalog_xmin;
} SlotFileStart;

/*
 * Maps are written when they change.  The other files are written by
 * checkpoints only, and must have everything from before the start checkpoint.
 */
static void
copy_file(Planning *p, Reason reason, const char *path)
{
	const SourceFile *there = find_file(p->there, p->nthere, path);

	if (there == NULL)
		return;
	plan_add(p->plan, ACTION_COPY_FILE, reason, path)->bytes = there->size;
	if (reason != REASON_MAP)
		p->plan->needs_checkpoint = true;
}

static void
plan_maps(Planning *p)
{
	for (int i = 0; i < p->facts->maps_after.n; i++)
	{
		OidPair		map = p->facts->maps_after.pairs[i];

		if (pairs_have(&p->facts->maps_before, map.database, map.tablespace) ||
			pairs_have(&p->folders_settled, map.database, map.tablespace))
			continue;			/* replay writes it */
		copy_file(p, REASON_MAP, map.database == InvalidOid ? "global/pg_filenode.map" :
					  psprintf("%s/pg_filenode.map", GetDatabasePath(map.database, map.tablespace)));
	}
}

/* Segments from before the fork that were removed after it. */
static void
plan_slru(Planning *p)
{
	for (int i = 0; i < p->nthere; i++)
	{
		const char *path = p->there[i].path;

		if ((strncmp(path, "pg_xact/", 8) == 0 || strncmp(path, "pg_multixact/", 13) == 0 ||
			 strncmp(path, "pg_commit_ts/", 13) == 0) &&
			find_file(p->here, p->nhere, path) == NULL &&
			slru_segment_before_fork(p->facts, path))
			copy_file(p, REASON_SLRU, path);
	}
}

/* The transaction that a file in pg_twophase is of. */
static TransactionId
twophase_xid(const char *path)
{
	return (TransactionId) strtoull(path + strlen("pg_twophase/"), NULL, 16);
}

static void
plan_prepared(Planning *p)
{
	const Facts *facts = p->facts;

	for (int i = 0; i < p->nhere; i++)
	{
		TransactionId xid;

		if (strncmp(p->here[i].path, "pg_twophase/", 12) != 0)
			continue;
		xid = twophase_xid(p->here[i].path);
		/* one prepared before the fork, but after the redo, replay makes anew */
		if (xids_have(&facts->prepared_after, xid) || xids_have(&facts->prepared_before, xid) ||
			(int32) (xid - XidFromFullTransactionId(facts->next_xid)) >= 0)
			plan_add(p->plan, ACTION_DELETE_FILE, REASON_PREPARED, p->here[i].path);
	}
	for (int i = 0; i < p->nthere; i++)
	{
		TransactionId xid;

		if (strncmp(p->there[i].path, "pg_twophase/", 12) != 0)
			continue;
		xid = twophase_xid(p->there[i].path);
		if (xids_have(&facts->finished_after, xid) && !xids_have(&facts->prepared_before, xid) &&
			!xids_have(&facts->prepared_after, xid))
			copy_file(p, REASON_PREPARED, p->there[i].path);
	}
	/* its state file may exist on the source only after a checkpoint */
	for (int i = 0; i < facts->finished_after.n; i++)
	{
		TransactionId xid = facts->finished_after.xids[i];

		if (!xids_have(&facts->prepared_before, xid) && !xids_have(&facts->prepared_after, xid))
			p->plan->needs_checkpoint = true;
	}
}

/* LSN in a name as "1-A2B3C4.snap"; InvalidXLogRecPtr if it isn't one */
static XLogRecPtr
snapshot_lsn(const char *name)
{
	unsigned	high;
	unsigned	low;

	return sscanf(name, "%X-%X.snap", &high, &low) == 2 ? ((uint64) high << 32) | low : InvalidXLogRecPtr;
}

static XLogRecPtr
mapping_lsn(const char *name)
{
	unsigned	part[6];

	return sscanf(name, "map-%x-%x-%X_%X-%x-%x", &part[0], &part[1], &part[2], &part[3],
				  &part[4], &part[5]) == 6
			   ? ((uint64) part[2] << 32) | part[3]
			   : InvalidXLogRecPtr;
}

static void
plan_decoding(Planning *p, const char *folder, XLogRecPtr (*lsn_of) (const char *))
{
	DIR		   *dir = opendir(folder);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL)
		if (lsn_of(entry->d_name) >= p->facts->fork)
			plan_add(p->plan, ACTION_DELETE_FILE, REASON_SNAPSHOT,
					 psprintf("%s/%s", folder, entry->d_name));
	if (dir)
		closedir(dir);
}

static bool
read_slot(const char *name, SlotFileStart *slot)
{
	int			fd = open(psprintf("pg_replslot/%s/state", name), O_RDONLY | PG_BINARY);
	bool		ok = fd >= 0 && read(fd, slot, sizeof(*slot)) == sizeof(*slot);

	if (fd >= 0)
		close(fd);
	return ok;
}

/*
 * Logical slots are stale: the failover slots of this node are now those that
 * the slot sync worker makes.  A physical slot with an xmin would reach the
 * new primary through feedback.  Others may belong to standbys of this node.
 */
static void
plan_slots(Planning *p)
{
	DIR		   *dir = opendir("pg_replslot");
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL)
	{
		SlotFileStart slot;

		if (entry->d_name[0] == '.')
			continue;
		if (!read_slot(entry->d_name, &slot) || slot.database != InvalidOid ||
			TransactionIdIsValid(slot.xmin) || TransactionIdIsValid(slot.catalog_xmin) ||
			strncmp(entry->d_name, "tandem_", 7) == 0)
			plan_add(p->plan, ACTION_DELETE_FOLDER, REASON_SLOT,
					 psprintf("pg_replslot/%s", entry->d_name));
		else
		{
			p->plan->kept_slots = pg_realloc(p->plan->kept_slots,
											 (p->plan->nkept_slots + 1) * sizeof(char *));
			p->plan->kept_slots[p->plan->nkept_slots++] = pg_strdup(entry->d_name);
		}
	}
	if (dir)
		closedir(dir);
}

void
plan_rest(Planning *p)
{
	plan_maps(p);
	plan_slru(p);
	plan_prepared(p);
	if (p->facts->origins_after)
		copy_file(p, REASON_ORIGIN, "pg_logical/replorigin_checkpoint");
	plan_decoding(p, "pg_logical/snapshots", snapshot_lsn);
	plan_decoding(p, "pg_logical/mappings", mapping_lsn);
	plan_slots(p);
}
