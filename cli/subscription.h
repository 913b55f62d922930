/*-------------------------------------------------------------------------
 *
 * subscription.h
 *	  The subscriptions of a node, those of all databases; see subscription.c.
 *
 * cli/subscription.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SUBSCRIPTION_CLI_H
#define TANDEM_SUBSCRIPTION_CLI_H

#include "node.h"

typedef struct Subscription
{
	const char *name;
	const char *subid;			/* OID, as text */
	const char *database;
	const char *slot;			/* on the publisher; NULL for none */
	bool		enabled;		/* core may run it */
	bool		labelled;		/* has a label of ours, whether it fits or not */
	const char *error;			/* why the views of its database can't be read, or NULL */
	const PGresult *view;		/* tandem.subscriptions, one row; NULL if not there */
	const PGresult *tombstones; /* tandem.tombstones, one row; NULL if not there */
	bool		needs_timestamps;	/* its options ask who wrote a row, and when */
	const PGresult *conflicts;	/* tandem.conflict_storage of its database; NULL if not there */
	const PGresult *tables;		/* per state: state, tables, and sums; NULL if not there */
} Subscription;

typedef struct Subscriptions
{
	int			n;
	int			nlabelled;
	Subscription *list;			/* ordered by database and name */
} Subscriptions;

/*
 * The subscriptions of a node with what pg_tandem says of those that have its
 * label.  A standby has none that run.  Asks once a screen, lives as long.
 */
extern const Subscriptions *node_subscriptions(Node *node);

/*
 * A connection to a database of the node that stays open between screens, or
 * NULL and *error.
 */
extern PGconn *node_database(Node *node, const char *database, const char **error);
extern void node_close_databases(Node *node);

/* A field of tandem.subscriptions, NULL if it is null or not known. */
extern const char *subscription_field(const Subscription *s, const char *column);

/* Sum of a column over the states of its tables, or over those that are named. */
extern int64 subscription_sum(const Subscription *s, const char *state, const char *column);

/* The database that -d or PGDATABASE names, or NULL. */
extern const char *asked_database(const Options *options);

/*
 * Runs a statement that writes and may take long, until Ctrl-C, in a database of
 * the node.  own_path: with the search_path that the user's sessions have.
 * Returns its result, for PQclear(); ends the program on error.
 */
extern PGresult *node_run(Node *node, const char *database, const char *sql, bool own_path);

/* The connection of a command that works on one server: the one it was given. */
extern Node *only_node(const Options *options);

/*
 * The subscription that the user named, in the database that -d names if it
 * does.  Ends the program with a message if there is none or more than one.
 */
extern const Subscription *must_find_subscription(Node *node, const Options *options);

#endif							/* TANDEM_SUBSCRIPTION_CLI_H */
