/*-------------------------------------------------------------------------
 *
 * forget.c
 *	  SQL function tandem.forget(): leaving without a trace; wiring only.
 *
 * What there is to drop, and how, is known by slots/forget.c and
 * failback/forget.c.  Nothing is dropped unless both agree.
 *
 * src/forget.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "common/settings.h"
#include "common/version.h"
#include "failback/failback.h"
#include "slots/slots.h"

PG_FUNCTION_INFO_V1(tandem_forget);

/* Returns the number of failover slots dropped on this standby. */
Datum
tandem_forget(PG_FUNCTION_ARGS)
{
	tandem_require_shmem();
	tandem_check_sql_version();
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to remove what pg_tandem keeps on this server")));
	tandem_slots_check_forget();
	tandem_failback_forget();
	PG_RETURN_INT32(tandem_slots_forget());
}
