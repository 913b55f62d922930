/*-------------------------------------------------------------------------
 *
 * statefile.h
 *	  Small durable files of ours in the data directory; see statefile.c.
 *
 * src/common/statefile.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_STATEFILE_H
#define TANDEM_STATEFILE_H

#define TANDEM_STATE_DIR "pg_tandem"

extern void tandem_statefile_write(const char *name, uint32 magic,
								   const void *content, size_t len);
extern void *tandem_statefile_read(const char *name, uint32 magic, size_t *len);

extern void tandem_statefile_remove_all(void);

#endif							/* TANDEM_STATEFILE_H */
