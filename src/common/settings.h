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

/* developer settings: switch one protection off so that a test can prove itself */
extern bool tandem_debug_ship_snapshots;

extern void tandem_define_settings(void);

/* does a failover slot pattern (tandem.failover_slots) match this name? */
extern bool tandem_failover_slot_matches(const char *slot_name);

#endif							/* TANDEM_SETTINGS_H */
