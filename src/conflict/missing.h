/*-------------------------------------------------------------------------
 *
 * missing.h
 *	  What is done when the row that a change is for isn't as expected.
 *
 * src/conflict/missing.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_MISSING_H
#define TANDEM_MISSING_H

#include "executor/tuptable.h"
#include "nodes/nodes.h"
#include "utils/rel.h"

/*
 * The row to be updated or deleted isn't here.  sent: the row as the publisher
 * described it, perhaps only its identity columns.  Returns; the caller then
 * skips the change, and counts it.
 */
extern void tandem_conflict_missing(Relation rel, CmdType operation, TupleTableSlot *sent);

#endif							/* TANDEM_MISSING_H */
