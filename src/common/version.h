/*-------------------------------------------------------------------------
 *
 * version.h
 *	  Do the library and the SQL objects of this database belong together?
 *
 * src/common/version.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_VERSION_H
#define TANDEM_VERSION_H

extern void tandem_check_sql_version(void);

#endif							/* TANDEM_VERSION_H */
