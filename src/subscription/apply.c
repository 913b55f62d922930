/* Placeholder, replaced by the apply worker: lets the launcher be linked and tested. */
#include "postgres.h"

#include "fmgr.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"

#include "subscription/subscription.h"

void
tandem_apply_main(Datum index)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	tandem_subscription_attach(DatumGetInt32(index), true);
	BackgroundWorkerInitializeConnectionByOid(tandem_my_subscription->dbid,
											  tandem_my_subscription->owner, 0);
	ereport(FATAL, (errmsg("the apply worker is not built yet")));
	pg_unreachable();
}
