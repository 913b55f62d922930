/*-------------------------------------------------------------------------
 *
 * store_none.c
 *	  Stands in for store.c until that is there; then this file goes.
 *
 * src/conflict/store_none.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/store.h"

__attribute__((weak)) List *
tandem_epochs(void)
{
	return NIL;
}

__attribute__((weak)) void
tandem_epoch_drop(const TandemEpoch *epoch)
{
}

__attribute__((weak)) int64
tandem_store_size(void)
{
	return 0;
}

__attribute__((weak)) void
tandem_epoch_request_close(Oid dbid)
{
}

__attribute__((weak)) bool
tandem_collector_info(Oid dbid, TandemCollectorInfo *info)
{
	memset(info, 0, sizeof(*info));
	return false;
}

__attribute__((weak)) bool
tandem_deletion_state(TandemDeletionState *state)
{
	return false;
}
