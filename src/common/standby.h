/*-------------------------------------------------------------------------
 *
 * standby.h
 *	  Standby lists and what standbys have confirmed; see standby.c.
 *
 * src/common/standby.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_STANDBY_H
#define TANDEM_STANDBY_H

#include "utils/guc.h"

extern bool tandem_check_standby_list(char **newval, void **extra, GucSource source);
extern void tandem_assign_standby_slots(const char *newval, void *extra);

extern void tandem_standby_shmem_request(void);
extern void tandem_standby_shmem_startup(void);
extern void tandem_standby_init(void);

#endif							/* TANDEM_STANDBY_H */
