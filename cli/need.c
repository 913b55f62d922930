/*-------------------------------------------------------------------------
 *
 * need.c
 *	  Counts what failover slots need on a node: slots, walsenders, workers,
 *	  WAL.
 *
 * "needed" is what works today and right after a failover; "advised" adds
 * room for the usual: a base backup (two walsenders, one slot) and the slots
 * that subscriptions create while they copy a table.
 *
 * cli/need.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "check.h"

#define HOLD_PREFIX "tandem_hold_"
#define RESERVE_SLOTS 2			/* advised beyond what is needed */
#define OWN_SLOTS 2				/* tandem_reserve and tandem_proof on a standby */
#define OWN_WORKERS 4			/* the three workers, and a helper of one */

/* Slots on the primary, by kind. */
typedef struct SlotCount
{
	int			all;
	int			physical;		/* holds not counted, nor what follows */
	int			holds;
	int			keeping;		/* slots that only keep WAL for failback */
	int			logical;
	int			failover;		/* rows of tandem.slots */
	int			missing;		/* slots and holds that standbys still lack */
} SlotCount;

static SlotCount
count_primary_slots(const Topology *topology, const Node *primary)
{
	SlotCount	c = {0};

	c.all = nrows(primary->slots);
	c.failover = nrows(primary->failover_slots);
	for (int i = 0; i < c.all; i++)
	{
		const char *name = field(primary->slots, i, "slot_name");

		if (strcmp(field(primary->slots, i, "slot_type"), "logical") == 0)
			c.logical++;
		else if (strncmp(name, HOLD_PREFIX, strlen(HOLD_PREFIX)) == 0)
			c.holds++;
		else if (node_slot_only_keeps_wal(primary, i))
			c.keeping++;
		else
			c.physical++;
	}
	if (!node_setting_is(primary, "tandem.failback_standbys", "") &&
		node_setting_int(primary, "tandem.failback_keep_size", 0) > 0 &&
		find_row(primary->slots, "slot_name", FAILBACK_SLOT) < 0)
		c.missing++;
	for (int i = 0; i < topology->nnodes; i++)
	{
		const Node *node = topology->nodes[i];
		const char *slot = node->conn && node->in_recovery ? node_primary_slot_name(node) : NULL;

		if (node->conn == NULL || !node->in_recovery)
			continue;
		if (slot == NULL || find_row(primary->slots, "slot_name", slot) < 0)
			c.missing++;
		if (slot == NULL ||
			find_row(primary->slots, "slot_name", screen_printf(HOLD_PREFIX "%s", slot)) < 0)
			c.missing++;
	}
	return c;
}

/* The most WAL that a slot of this node keeps, bytes. */
static int64
wal_kept(const Node *node)
{
	int64		most = 0;

	for (int i = 0; i < nrows(node->slots); i++)
	{
		uint64		restart = field_lsn(node->slots, i, "restart_lsn");

		if (restart != 0 && restart < node->lsn)
			most = Max(most, (int64) (node->lsn - restart));
	}
	return most;
}

int
node_needs(const Topology *topology, const Node *node, Need *needs)
{
	const Node *primary = topology->primary;
	int			n = 0;
	int64		keep = node_setting_int(node, "max_slot_wal_keep_size", -1);	/* MB */
	int64		kept_mb = (wal_kept(node) + 1024 * 1024 - 1) / (1024 * 1024);
	int64		logical_workers = node_setting_int(node, "max_logical_replication_workers", 0);
	int			own_workers = OWN_WORKERS + subscription_processes(node);

	if (node->settings == NULL)
		return 0;

	if (!node->in_recovery)
	{
		SlotCount	c = count_primary_slots(topology, node);

		needs[n++] = (Need){
			node, "max_replication_slots",
			node_setting_int(node, "max_replication_slots", 0),
			c.all + c.missing, c.all + c.missing + RESERVE_SLOTS,
			screen_printf("%d logical, %d physical, %d holds, %d for failback, %d still missing; advised: %d spare",
						  c.logical, c.physical, c.holds, c.keeping, c.missing, RESERVE_SLOTS)};
		needs[n++] = (Need){
			node, "max_wal_senders",
			node_setting_int(node, "max_wal_senders", 0),
			c.logical + c.physical, c.logical + c.physical + RESERVE_SLOTS,
			screen_printf("%d for logical slots, %d for standbys; advised: %d for a base backup",
						  c.logical, c.physical, RESERVE_SLOTS)};
	}
	else if (primary)
	{
		SlotCount	c = count_primary_slots(topology, primary);
		int			own = 0;	/* local slots that are not the primary's failover slots */
		int			followers = Max(1, c.physical);

		for (int i = 0; i < nrows(node->slots); i++)
		{
			const char *name = field(node->slots, i, "slot_name");

			if (find_row(primary->failover_slots, "slot_name", name) < 0 &&
				strcmp(name, "tandem_reserve") != 0 && strcmp(name, "tandem_proof") != 0)
				own++;
		}
		if (node_setting_int(node, "tandem.failback_keep_size", 0) > 0 &&
			find_row(node->slots, "slot_name", REJOIN_SLOT) < 0)
			own++;
		needs[n++] = (Need){
			node, "max_replication_slots",
			node_setting_int(node, "max_replication_slots", 0),
			c.failover + own + OWN_SLOTS, c.failover + own + OWN_SLOTS + 2 * followers,
			screen_printf("%d failover, %d others, %d for syncing; advised: slot and hold of %d after a failover",
						  c.failover, own, OWN_SLOTS, followers)};
		needs[n++] = (Need){
			node, "max_wal_senders",
			node_setting_int(node, "max_wal_senders", 0),
			c.failover + followers, c.failover + followers + RESERVE_SLOTS,
			screen_printf("after a failover: %d for failover slots, %d for standbys; advised: %d for a base backup",
						  c.failover, followers, RESERVE_SLOTS)};
	}

	needs[n++] = (Need){
		node, "max_worker_processes",
		node_setting_int(node, "max_worker_processes", 0),
		own_workers + (logical_workers > 0 ? 1 + logical_workers : 0),
		own_workers + (logical_workers > 0 ? 1 + logical_workers : 0),
		screen_printf("%d for pg_tandem, %d for logical replication; parallel queries use what is left",
					  own_workers, (int) (logical_workers > 0 ? 1 + logical_workers : 0))};
	needs[n++] = (Need){
		node, "max_slot_wal_keep_size", keep, kept_mb, 2 * kept_mb,
		screen_printf("MB; the slot furthest behind keeps %d now; advised: twice that; -1 = no limit",
					  (int) kept_mb)};
	return n;
}
