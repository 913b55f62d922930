/*-------------------------------------------------------------------------
 *
 * late.h
 *	  Inserts that come late: of rows that have been deleted meanwhile.
 *
 * src/subscription/late.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_LATE_H
#define TANDEM_LATE_H

#include "subscription/target.h"

/* ---- late.c ---- */

/*
 * Before a row with this key is looked for to be deleted, or is inserted: waits
 * for other apply workers that do one or the other, and holds them off until the
 * transaction ends.  Does nothing for tables whose late inserts are applied.
 */
extern void tandem_late_lock(TandemTarget *leaf, TupleTableSlot *row);

/* A row was inserted, and has to be looked at before the commit; if the target is "late". */
extern void tandem_late_remember(TandemTarget *leaf, TupleTableSlot *row);

/*
 * Before tables are closed: looks for tombstones of the rows remembered, and deletes
 * again those that were deleted later, as insert_deleted demands.  Waits for the
 * collector, see tandem_tombstone_find().  Raises the error of outcome "error".
 */
extern void tandem_late_check(void);

/* The same, if they are many: between two changes. */
extern void tandem_late_check_many(void);

/* Forgets them: the transaction has failed. */
extern void tandem_late_forget(void);

/* ---- clock.c ---- */

/*
 * Before the first change of a transaction to a table where the last update wins:
 * waits until this server's clock has passed the commit time of the remote
 * transaction, for at most a minute.  Cancellable.
 */
extern void tandem_clock_wait(void);

#endif							/* TANDEM_LATE_H */
