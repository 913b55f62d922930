/*-------------------------------------------------------------------------
 *
 * gate.h
 *	  Holding logical walsenders back; see gate.c.
 *
 * src/slots/gate.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_GATE_H
#define TANDEM_GATE_H

#include "access/xlogdefs.h"
#include "c.h"
#include "datatype/timestamp.h"

extern void tandem_gate_shmem_request(void);
extern void tandem_gate_shmem_startup(void);
extern void tandem_gate_init(void);

/*
 * Called by the tandem worker of a primary when it gets SIGTERM (true) and
 * when it starts (false): held walsenders must not stop a fast shutdown.
 */
extern void tandem_gate_set_shutdown(bool shutting_down);

/*
 * Does a listed standby that can't confirm anything keep every logical
 * walsender waiting?  Then true, with a sentence and a hint, allocated in the
 * current memory context.  False in recovery, without a list, and when
 * standbys are only slow or away.
 */
extern bool tandem_gate_blocked(const char **reason, const char **hint);

/*
 * Is the walsender of this logical slot held now?  since: from when; wanted:
 * the WAL position that standbys must flush first.
 */
extern bool tandem_gate_slot_held(const char *slot_name, TimestampTz *since,
								  XLogRecPtr *wanted);

/* number of walsenders held now, and since when the longest of them is */
extern int	tandem_gate_count_held(TimestampTz *since, XLogRecPtr *wanted);

#endif							/* TANDEM_GATE_H */
