/*-------------------------------------------------------------------------
 *
 * waves_shared.c
 *	  Shared memory of the wave engine: one structure a subscription.
 *
 * It has the same number as the subscription's slot (shared.c), and only
 * carries what a running wave needs: requests and answers between leader and
 * apply worker, the queue's position, progress.  All that must outlive a crash
 * is in tandem.copies, tandem.wave_snapshots and tandem.spool.
 *
 * src/subscription/waves_shared.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "common/settings.h"
#include "subscription/waves.h"

TandemWaveShared *tandem_waves = NULL;

/* as many as there are subscription slots, at most (shared.c) */
#define NUMBER_OF_WAVES (max_worker_processes + 64)

void
tandem_waves_shmem_request(void)
{
	RequestAddinShmemSpace(mul_size(NUMBER_OF_WAVES, sizeof(TandemWaveShared)));
}

void
tandem_waves_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	tandem_waves = ShmemInitStruct("pg_tandem waves",
								   mul_size(NUMBER_OF_WAVES, sizeof(TandemWaveShared)), &found);
	if (!found)
	{
		memset(tandem_waves, 0, mul_size(NUMBER_OF_WAVES, sizeof(TandemWaveShared)));
		for (int i = 0; i < NUMBER_OF_WAVES; i++)
		{
			SpinLockInit(&tandem_waves[i].mutex);
			pg_atomic_init_u32(&tandem_waves[i].next, 0);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

TandemWaveShared *
tandem_my_wave(void)
{
	return &tandem_waves[tandem_my_subscription - tandem_subscriptions->slots];
}

int
tandem_wave_workers(void)
{
	int			n = tandem_my_subscription->options.workers;

	return Min(n > 0 ? n : tandem_sync_workers, TANDEM_MAX_SYNC_WORKERS);
}

void
tandem_wake_apply(void)
{
	tandem_subscription_wake(tandem_my_subscription->subid);
}
