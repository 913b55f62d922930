/*-------------------------------------------------------------------------
 *
 * slots.h
 *	  Failover slots: what the files of this folder share.
 *
 * sync.c   worker and cycle on the standby
 * source.c the primary's side: slot query, hold slots, WAL reader
 * ship.c   snapshot and mapping files
 * gate.c   holding logical walsenders back
 *
 * src/slots/slots.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SLOTS_H
#define TANDEM_SLOTS_H

#include "access/xlogdefs.h"
#include "c.h"

/* Version of the conversation between tandem.source_slots and its caller. */
#define TANDEM_PROTOCOL 1

#define TANDEM_HOLD_PREFIX "tandem_hold_"

extern void tandem_slots_shmem_request(void);
extern void tandem_slots_shmem_startup(void);
extern void tandem_slots_init(void);

#endif							/* TANDEM_SLOTS_H */
