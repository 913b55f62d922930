/*-------------------------------------------------------------------------
 *
 * standby.c
 *	  Standby lists and what standbys have confirmed.
 *
 * src/common/standby.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/standby.h"

bool
tandem_check_standby_list(char **newval, void **extra, GucSource source)
{
	return true;
}

void
tandem_assign_standby_slots(const char *newval, void *extra)
{
}

void
tandem_standby_shmem_request(void)
{
}

void
tandem_standby_shmem_startup(void)
{
}

void
tandem_standby_init(void)
{
}
