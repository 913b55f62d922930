/*-------------------------------------------------------------------------
 *
 * session.c
 *	  What is being applied, and for whom.
 *
 * Set by the workers of src/subscription, read by everything here.
 *
 * Called by nobody: it is data.
 *
 * src/conflict/session.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/conflict.h"

TandemConflictSession tandem_conflict_session;
