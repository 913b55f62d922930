/*-------------------------------------------------------------------------
 *
 * check.h
 *	  What can be wrong with a topology; see check.c.
 *
 * cli/check.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_CHECK_H
#define TANDEM_CHECK_H

#include "json.h"
#include "node.h"
#include "text.h"

typedef enum Severity
{
	PROBLEM,					/* something does not work */
	WARNING,					/* it works, but not for ever or not always */
	UNCHECKED,					/* we could not look */
	NOTE						/* a choice one should know of; healthy */
} Severity;

#define MOST_FIXES 4

typedef struct Fix
{
	const Node *node;			/* where */
	const char *database;		/* for SQL; NULL = any database */
	const char *kind;			/* "sql", "postgresql.conf", "pg_hba.conf", "shell" */
	const char *line;			/* exactly what to run or write */
	const char *then;			/* "reload", "restart" or NULL */
} Fix;

typedef struct Finding
{
	struct Finding *next;
	Severity	severity;
	const Node *node;			/* NULL = the topology as a whole */
	const char *code;
	const char *what;			/* sentences */
	const char *cost;
	const char *hint;			/* if there is no exact line, or more to say */
	int			nfixes;
	Fix			fixes[MOST_FIXES];
} Finding;

typedef struct Diagnosis
{
	Topology   *topology;
	Finding	   *findings;		/* in the order of the checks */
	Finding	   *last;
	int			nchecks;		/* run, over all nodes */
	int			nclean;			/* of these, found nothing */
	int			count[NOTE + 1];
} Diagnosis;

/* Which nodes a check looks at, and whether "tandem status" runs it too. */
#define AT_PRIMARY 0x01
#define AT_STANDBY 0x02
#define AT_EVERY (AT_PRIMARY | AT_STANDBY)
#define AT_WHOLE 0x04			/* once, node is NULL */
#define AT_RUNTIME 0x10			/* part of "status" */

typedef struct Check
{
	int			where;
	void		(*run)(Diagnosis *d, Node *node);
} Check;

/* NULL-terminated by run == NULL; one table a file of checks. */
extern const Check setting_checks[];
extern const Check extension_checks[];
extern const Check link_checks[];
extern const Check slot_checks[];
extern const Check failback_checks[];
extern const Check subscription_checks[];
extern const Check tombstone_checks[];
extern const Check conflict_checks[];

/* Background workers that the adopted subscriptions of a node use at most. */
extern int	subscription_processes(const Node *node);

/* Does a publisher that subscribes to this node send back what came from it?  conn: to its database. */
struct Subscription;
extern void check_mesh(Diagnosis *d, Node *node, Node *publisher, PGconn *conn,
					   const struct Subscription *s);

/* May a node come back after it was replaced?  NULL if so, else why not. */
extern const char *rejoin_obstacle(const Topology *topology, const Node *node);

/* Runs all checks, or only those with AT_RUNTIME. */
extern Diagnosis *diagnose(Topology *topology, bool runtime_only);

/* Exit code of status and doctor. */
extern int	diagnosis_exit_code(const Diagnosis *d);

/* Adds a finding; strings are kept, not copied. */
extern Finding *finding_add(Diagnosis *d, Severity severity, const Node *node,
							const char *code, const char *what, const char *cost);
extern void finding_fix(Finding *f, const Node *node, const char *kind,
						const char *line, const char *then);
extern void finding_fix_sql(Finding *f, const Node *node, const char *database,
							const char *sql);

/*
 * The common case: one setting on one node.  "value" is as SQL wants it, with
 * quotes if needed.
 */
extern Finding *finding_setting(Diagnosis *d, Severity severity, const Node *node,
								const char *code, const char *setting, const char *value,
								const char *then, const char *what, const char *cost);

extern const char *severity_name(Severity severity);
extern TextColour severity_colour(Severity severity);
extern void findings_print(const Diagnosis *d, PQExpBuffer out);
extern void findings_json(const Diagnosis *d, Json *json, const char *key);

/* ---- shared by checks and the list of needs (need.c) -------------------- */

typedef struct Need
{
	const Node *node;
	const char *setting;
	int64		now;
	int64		needed;			/* without this it does not work */
	int64		advised;		/* with room for the usual */
	const char *counted;		/* how it adds up */
} Need;

/* Fills needs[] for a node, returns how many. */
extern int	node_needs(const Topology *topology, const Node *node, Need *needs);
#define MOST_NEEDS 5

#endif							/* TANDEM_CHECK_H */
