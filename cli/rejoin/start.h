/*-------------------------------------------------------------------------
 *
 * start.h
 *	  Starting the rejoined server and comparing it; start.c, verify.c.
 *
 * cli/rejoin/start.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_START_H
#define TANDEM_REJOIN_START_H

#include "rejoin/report.h"

/* Starts the server and waits until it runs.  Refuses with the log's last lines. */
extern void start_server(const Target *target, const Options *options);

/*
 * Waits until the standby has flushed all that the source had flushed when the
 * wait began.  Refuses if there is no progress for a while.
 */
extern void wait_streaming(const Target *target, Source *source, const char *slot, Report *report);

/* A connection to the server just started, or NULL and why. */
extern PGconn *connect_local(const Target *target, const Options *options, const char **why_not);

/* Waits until the standby has replayed up to lsn. */
extern bool wait_replayed(PGconn *local, XLogRecPtr lsn);

/* Compares the pages that were in question on both nodes. */
extern void verify_pages(PGconn *local, Source *source, const Facts *facts, const Plan *plan,
						 Verified *verified);

/*
 * Makes a restartpoint past the fork and switches restore_command on again.
 * Returns NULL, or what is left to do.
 */
extern const char *allow_restore(PGconn *local, XLogRecPtr fork);

#endif							/* TANDEM_REJOIN_START_H */
