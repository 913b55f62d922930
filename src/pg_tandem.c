/*-------------------------------------------------------------------------
 *
 * pg_tandem.c
 *	  Entry point of the server library: wiring only.
 *
 * The library must be loaded by shared_preload_libraries.  Loaded later (by
 * CREATE EXTENSION in a server that does not preload it) it defines its
 * settings and functions, and every function that needs shared memory says
 * what is missing.
 *
 * src/pg_tandem.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "common/settings.h"
#include "common/standby.h"
#include "conflict/conflict.h"
#include "conflict/retention.h"
#include "conflict/store.h"
#include "failback/failback.h"
#include "failback/guard.h"
#include "slots/gate.h"
#include "slots/slots.h"
#include "subscription/subscription.h"
#include "subscription/waves.h"

PG_MODULE_MAGIC;

extern void _PG_init(void);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
tandem_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	tandem_standby_shmem_request();
	tandem_gate_shmem_request();
	tandem_slots_shmem_request();
	tandem_guard_shmem_request();
	tandem_subscriptions_shmem_request();
	tandem_waves_shmem_request();
	tandem_retention_shmem_request();
	tandem_conflict_shmem_request();
	tandem_tombstones_shmem_request();
}

static void
tandem_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	tandem_standby_shmem_startup();
	tandem_gate_shmem_startup();
	tandem_slots_shmem_startup();
	tandem_guard_shmem_startup();
	tandem_subscriptions_shmem_startup();
	tandem_waves_shmem_startup();
	tandem_retention_shmem_startup();
	tandem_conflict_shmem_startup();
	tandem_tombstones_shmem_startup();
}

void
_PG_init(void)
{
	tandem_define_settings();

	if (!process_shared_preload_libraries_in_progress)
		return;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = tandem_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = tandem_shmem_startup;

	tandem_standby_init();
	tandem_gate_init();
	tandem_slots_init();
	tandem_failback_init();
	tandem_subscriptions_init();
	tandem_waves_init();
}
