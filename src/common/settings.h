/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  All settings of pg_tandem; defined and described in settings.c.
 *
 * src/common/settings.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SETTINGS_H
#define TANDEM_SETTINGS_H

extern char *tandem_database;
extern bool tandem_sync_slots_enabled;
extern char *tandem_failover_slots;
extern int	tandem_slot_sync_interval;	/* ms */
extern char *tandem_primary_conninfo;
extern int	tandem_wal_fetch_limit; /* MB */
extern int	tandem_hold_timeout;	/* s, 0 = never */
extern char *tandem_standby_slots;
extern int	tandem_synchronous_transfer;	/* a TandemTransfer */
extern char *tandem_failback_standbys;
extern int	tandem_failback_timeout;	/* ms */
extern int	tandem_failback_keep_size;	/* MB, 0 = keep nothing */

extern int	tandem_sync_workers;	/* copy workers of a subscription */
extern int	tandem_spool_limit; /* MB, of one table */
extern int	tandem_tombstone_memory;	/* kB, of a database's collector */
extern int	tandem_detection_timeout;	/* ms */

extern char *tandem_node_id;	/* empty = the system identifier */

#define TANDEM_NODE_ID_VALUES "up to 63 letters, digits, \"_\", \"-\" and \".\""

/* Can this be a node's identifier, or none (empty)? */
extern bool tandem_node_id_valid(const char *text);

extern int	tandem_conflict_retention;	/* s, 0 = for ever */
extern int	tandem_conflict_limit;	/* MB, of a database */

/* What of the primary waits for the failback standbys; bits. */
typedef enum TandemTransfer
{
	TANDEM_TRANSFER_NONE = 0,
	TANDEM_TRANSFER_COMMIT = 1,
	TANDEM_TRANSFER_DATA_FLUSH = 2,
	TANDEM_TRANSFER_ALL = 3
} TandemTransfer;

/* the name of a mode, as in tandem.synchronous_transfer */
extern const char *tandem_transfer_name(int mode);

/* Ways in which replacing the storage manager's functions may fail. */
typedef enum TandemSmgrFailure
{
	TANDEM_SMGR_WORKS,
	TANDEM_SMGR_MINOR,			/* library and server differ in a function */
	TANDEM_SMGR_MISSING,		/* the table is not found */
	TANDEM_SMGR_UNCALLED,		/* the replaced functions are not called */
	TANDEM_SMGR_PARTIAL			/* some of them are not */
} TandemSmgrFailure;

/* developer settings: switch one protection off so that a test can prove itself */
extern bool tandem_debug_ship_snapshots;
extern bool tandem_fast_copy;	/* copies may give empty tables new files */
extern int	tandem_tombstone_limit; /* MB */
extern int	tandem_max_retention;	/* s; 0 = until it is safe */
extern int	tandem_debug_epoch_age; /* ms */
extern int	tandem_debug_publisher_clock;	/* ms; negative = behind */
extern int	tandem_debug_guard_failure; /* a TandemSmgrFailure */
extern int	tandem_debug_publisher_version; /* 0 = what it is */
extern int	tandem_debug_wave_share;	/* kB */
extern int	tandem_debug_range_size;	/* kB */
extern int	tandem_debug_clock_offset;	/* ms */
extern int	tandem_debug_clean_interval;	/* ms */

extern void tandem_define_settings(void);

/* does a failover slot pattern (tandem.failover_slots) match this name? */
extern bool tandem_failover_slot_matches(const char *slot_name);

#endif							/* TANDEM_SETTINGS_H */
