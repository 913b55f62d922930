/*-------------------------------------------------------------------------
 *
 * log.c
 *	  Conflicts, told.
 *
 * For now in the server's log only.
 *
 * Called by whoever finds one.
 *
 * src/conflict/log.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/conflict.h"

void
tandem_conflict_record(const TandemConflict *conflict)
{
	ereport(LOG,
			(errmsg("conflict detected on relation \"%s\": conflict=%s",
					RelationGetRelationName(conflict->rel), tandem_conflict_name(conflict->type))));
}

void
tandem_conflict_record_failed(const TandemConflict *conflict)
{
	tandem_conflict_record(conflict);
}

void
tandem_conflict_write_failed(void)
{
}
