/*-------------------------------------------------------------------------
 *
 * remote.h
 *	  Connections from this server to another node; see remote.c.
 *
 * src/common/remote.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REMOTE_H
#define TANDEM_REMOTE_H

#include "libpq-fe.h"
#include "nodes/pg_list.h"

/* Should a wait for the other node end?  Returns a reason, or NULL to go on. */
typedef const char *(*TandemGiveUp)(void);

typedef struct TandemRemote TandemRemote;

extern TandemRemote *tandem_remote_connect(const char *conninfo,
										   const char *dbname, bool override,
										   int timeout_ms, TandemGiveUp give_up);
extern TandemRemote *tandem_remote_connect_publisher(const char *conninfo,
													 bool must_use_password,
													 int timeout_ms, TandemGiveUp give_up);
extern void tandem_remote_close(TandemRemote *remote);
extern bool tandem_remote_is_alive(TandemRemote *remote);
extern PGresult *tandem_remote_query(TandemRemote *remote, const char *query,
									 int nparams, const Oid *types,
									 const char *const *values,
									 const int *lengths, const int *formats,
									 int timeout_ms);
extern uint64 tandem_remote_bytes_sent(TandemRemote *remote);
extern uint64 tandem_remote_bytes_received(TandemRemote *remote);

#endif							/* TANDEM_REMOTE_H */
