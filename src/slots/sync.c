/*-------------------------------------------------------------------------
 *
 * sync.c
 *	  The slot sync worker.
 *
 * src/slots/sync.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "slots/slots.h"

void
tandem_slots_shmem_request(void)
{
}

void
tandem_slots_shmem_startup(void)
{
}

void
tandem_slots_init(void)
{
}
