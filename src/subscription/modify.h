/*-------------------------------------------------------------------------
 *
 * modify.h
 *	  Inserting, updating, deleting, truncating as the publisher did.
 *
 * src/subscription/modify.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_MODIFY_H
#define TANDEM_MODIFY_H

#include "subscription/target.h"

/*
 * One row.  The target is open, a transaction too, nothing is in the batch
 * (except rows of the same table, for an insert).  old: as it was, NULL if the
 * publisher sent only the new one.
 */
extern void tandem_modify_insert(TandemTarget *target, LogicalRepTupleData *row, Size size);
extern void tandem_modify_update(TandemTarget *target, LogicalRepTupleData *old, LogicalRepTupleData *row);
extern void tandem_modify_delete(TandemTarget *target, LogicalRepTupleData *old);

/*
 * Deletes a row again that this transaction has inserted, or changed since, if it
 * is still there.  row: of the leaf, its identity columns are set.
 */
extern void tandem_modify_undo_insert(TandemTarget *leaf, TupleTableSlot *row);

/*
 * Truncates tables of the publisher, none of which is open.  elsewhere: others of
 * the same TRUNCATE, whose references don't count, since they are emptied at
 * another time.
 */
extern void tandem_modify_truncate(List *remoteids, List *elsewhere, bool restart_sequences);

#endif							/* TANDEM_MODIFY_H */
