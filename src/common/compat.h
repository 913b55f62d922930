/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every difference between the server versions we build for.
 *
 * Code elsewhere has no version conditionals; it asks for a capability named
 * here.  Supported: 15, 16, 17, 18.
 *
 * src/common/compat.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_COMPAT_H
#define TANDEM_COMPAT_H

#include "pg_config.h"

#if PG_VERSION_NUM < 150000
#error "pg_tandem needs PostgreSQL 15 or newer"
#endif

/* Version number that opens pg_logical/snapshots files (snapbuild.c). */
#if PG_VERSION_NUM >= 170000
#define TANDEM_SNAPBUILD_VERSION 6
#elif PG_VERSION_NUM >= 160000
#define TANDEM_SNAPBUILD_VERSION 5
#else
#define TANDEM_SNAPBUILD_VERSION 4
#endif

/* Memory for the "extra" of a setting. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_GUC_MALLOC(size) guc_malloc(LOG, size)
#else
#define TANDEM_GUC_MALLOC(size) malloc(size)
#endif

/*
 * Has a slot with this persistent data lost WAL or rows that it needs?  Caller
 * holds the slot's mutex, or has copied the data under it.
 */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SLOT_INVALIDATED(data) ((data)->invalidated != RS_INVAL_NONE)
#else
#define TANDEM_SLOT_INVALIDATED(data) \
	((data)->invalidated_at != InvalidXLogRecPtr && \
	 (data)->restart_lsn == InvalidXLogRecPtr)
#endif

/* A commit or abort record names relations whose storage is dropped. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_XACT_HAS_RELATIONS XACT_XINFO_HAS_RELFILELOCATORS
#else
#define TANDEM_XACT_HAS_RELATIONS XACT_XINFO_HAS_RELFILENODES
#endif

/* This process's number among all PGPROCs. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_MY_PROCNO MyProcNumber
#else
#define TANDEM_MY_PROCNO (MyProc->pgprocno)
#endif

#endif							/* TANDEM_COMPAT_H */
