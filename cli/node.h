/*-------------------------------------------------------------------------
 *
 * node.h
 *	  The servers of a topology and what each says about itself; see node.c.
 *
 * cli/node.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_NODE_H
#define TANDEM_NODE_H

#include "command.h"
#include "libpq-fe.h"
#include "result.h"

#define MOST_NODES 32

typedef struct Node
{
	/* how to reach it; these live as long as the program */
	const char *conninfo;		/* -d or --node: database name or conninfo */
	bool		is_first;		/* takes -h and -p */
	bool		named;			/* by the user, not discovered */
	char	   *host;			/* discovered: where it is */
	char	   *port;
	char	   *database;		/* where the extension is, once known */
	char	   *password;		/* typed by the user */
	struct NodeDatabase *databases; /* more connections of ours, see subscription.c */
	PGconn	   *conn;

	/* what it said for this screen; until topology_forget() */
	const char *label;			/* host:port, safe to print */
	const char *error;			/* why it is unreachable, or NULL */
	const char *database_error; /* tandem.database can't be entered */
	bool		in_recovery;
	bool		is_monitor;		/* may see what pg_monitor sees */
	bool		is_superuser;
	int			version_num;
	const char *version;
	const char *user;
	const char *system_identifier;	/* NULL if not visible */
	uint64		lsn;			/* written, or replayed on a standby */
	int			timeline;		/* written or received; 0 = not visible */
	int			checkpoint_timeline;	/* of the last checkpoint or restartpoint */
	bool		preloaded;		/* the library is in the server */
	const char *tandem_database;
	const char *extension;		/* version in the catalog, or NULL */
	const char *available;		/* version of the files, or NULL */
	const char *library;		/* version of the loaded library, or NULL */

	/* results; NULL if the query failed or made no sense here */
	PGresult   *settings;		/* pg_settings */
	PGresult   *slots;			/* pg_replication_slots */
	PGresult   *walsenders;		/* pg_stat_replication */
	PGresult   *walreceiver;	/* pg_stat_wal_receiver */
	PGresult   *failover_slots; /* tandem.slots */
	PGresult   *ready;			/* tandem.failover_ready() */
	PGresult   *sync;			/* tandem.sync_status */
	PGresult   *standbys;		/* tandem.standbys */
	PGresult   *failback;		/* tandem.failback */
	const char *tandem_error;	/* why the tandem results are missing */
	bool		tandem_denied;	/* ... and it was a matter of privilege */
	const struct Subscriptions *subscriptions;	/* once asked for, see subscription.h */
} Node;

typedef struct Topology
{
	const Options *options;
	int			nnodes;
	Node	   *nodes[MOST_NODES];
	Node	   *primary;		/* NULL unless exactly one was reached */
	int			nprimaries;
	int			nunreachable;
} Topology;

/* Names the servers given by the options; connects to none. */
extern Topology *topology_create(const Options *options);

/* Asks every node; reconnects where needed; finds the primaries of standbys. */
extern void topology_read(Topology *topology);

/* Drops what topology_read() learned; connections stay. */
extern void topology_forget(Topology *topology);

/* Closes every connection. */
extern void topology_close(Topology *topology);

/*
 * Runs SQL on a node, bounded by --timeout.  NULL on error: *error then says
 * why and *sqlstate (five characters) which, both may be passed as NULL.  The
 * result lives until topology_forget().  A node that does not answer becomes
 * unreachable.
 */
extern PGresult *node_query(Node *node, const char *sql, const char **error,
							const char **sqlstate);

/* The bound of --timeout, for conn_query(). */
extern int	node_timeout_ms(void);

/* One more connection to another database of the node, or NULL and *error. */
extern PGconn *node_connect_database(Node *node, const char *dbname, const char **error);

/* As node_query, on such a connection. */
extern PGresult *conn_query(PGconn *conn, int timeout_ms, const char *sql,
							const char **error, const char **sqlstate);

/* A setting, in its base unit; NULL if it isn't there or may not be seen. */
extern const char *node_setting(const Node *node, const char *name);
extern int64 node_setting_int(const Node *node, const char *name, int64 otherwise);
extern bool node_setting_is(const Node *node, const char *name, const char *value);

/*
 * The value of a keyword in the standby's connection to its upstream, and of
 * the connection that is open now; NULL if not set or not visible.
 */
extern const char *node_upstream(const Node *node, const char *keyword);

/* Slots of ours for failback: what keeps WAL, but is no standby's. */
#define FAILBACK_SLOT "tandem_failback"
#define REJOIN_SLOT "tandem_rejoin"
extern bool node_slot_only_keeps_wal(const Node *node, int slot_row);

/* NULL if empty or not visible. */
extern const char *node_primary_slot_name(const Node *node);

/* Steps through shared_preload_libraries; NULL at its end; screen memory. */
extern const char *next_library(const char **list);

/* SQL quoting; screen memory. */
extern const char *quote_literal(const char *text);
extern const char *quote_identifier(const char *text);

#endif							/* TANDEM_NODE_H */
