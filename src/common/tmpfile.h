/*-------------------------------------------------------------------------
 *
 * tmpfile.h
 *	  Files written under a temporary name; see tmpfile.c.
 *
 * src/common/tmpfile.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_TMPFILE_H
#define TANDEM_TMPFILE_H

extern int	tandem_tmpfile_create(const char *path);
extern void tandem_tmpfile_write(int fd, const char *path, const void *data,
								 size_t len, off_t offset);
extern void tandem_tmpfile_close(int fd, const char *path);

#endif							/* TANDEM_TMPFILE_H */
