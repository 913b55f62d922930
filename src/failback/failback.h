/*-------------------------------------------------------------------------
 *
 * failback.h
 *	  Failback inside of the server: wiring, the worker, commits.
 *
 * guard.h has when data pages wait, smgr_table.h how that is called.
 *
 * src/failback/failback.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_FAILBACK_H
#define TANDEM_FAILBACK_H

#include "access/xlogdefs.h"
#include "replication/slot.h"

#include "common/compat.h"

/* ---- retention.c: slots that keep WAL for a node to be rejoined ---- */

typedef struct TandemRetention
{
	bool		exists;			/* the slot */
	XLogRecPtr	restart_lsn;	/* from here on WAL is kept; invalid = nothing is */
	bool		active;			/* somebody streams from it */
	bool		in_use;			/* TANDEM_REJOIN_SLOT on a primary: a node has streamed
								 * from it, so it is that node's and not ours */
} TandemRetention;

/* State of one of the slots TANDEM_FAILBACK_SLOT and TANDEM_REJOIN_SLOT. */
extern void tandem_retention_state(const char *name, TandemRetention *state);

/* One turn of the worker; raises errors of the server's slot functions. */
extern void tandem_retention_run(void);

/* ---- forget.c ---- */

extern void tandem_failback_check_forget(void);
extern void tandem_failback_forget(void);

/* ---- wiring ---- */

extern void tandem_commit_init(void);
extern void tandem_failback_init(void);
extern PGDLLEXPORT void tandem_failback_worker_main(Datum main_arg) pg_attribute_noreturn();

#endif							/* TANDEM_FAILBACK_H */
