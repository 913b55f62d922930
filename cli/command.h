/*-------------------------------------------------------------------------
 *
 * command.h
 *	  What every subcommand of "tandem" gets and gives back.
 *
 * cli/command.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_COMMAND_H
#define TANDEM_COMMAND_H

#include "postgres_fe.h"

#include "common/logging.h"
#include "fe_utils/simple_list.h"

/* Exit codes; documented in docs/command.md. */
#define EXIT_HEALTHY 0
#define EXIT_ATTENTION 1		/* also: an action failed */
#define EXIT_USAGE 2
#define EXIT_UNREACHABLE 3

/* Which of the options below a subcommand takes, as a bit mask. */
#define TAKES_JSON 0x01
#define TAKES_WATCH 0x02
#define TAKES_READY 0x04
#define TAKES_YES 0x08
#define TAKES_DRY_RUN 0x10
#define TAKES_REJOIN 0x20
#define TAKES_NODES 0x40		/* works on a topology */
#define TAKES_OPTIONS 0x80
#define TAKES_FORCE 0x100
#define TAKES_LIVE 0x200		/* --watch, its seconds may be left out */
#define TAKES_CONFLICTS 0x400

typedef struct Options
{
	/* connection; NULL where not given */
	const char *dbname;			/* a name or a connection string */
	const char *host;
	const char *port;
	const char *user;
	bool		never_password; /* -w */
	bool		force_password; /* -W */
	SimpleStringList nodes;		/* each --node, a connection string */
	bool		discover;		/* also ask the servers that nodes follow */
	int			timeout_ms;		/* for connecting and for each answer */

	bool		json;
	double		watch;			/* seconds between screens, 0 = once */
	bool		ready;
	bool		yes;
	bool		dry_run;

	/* subscriptions */
	const char *subscription;	/* the argument, or NULL */
	const char *adopt_options;
	bool		force;

	/* conflicts; numbers as the user wrote them */
	const char *argument;		/* as subscription */
	const char *of_subscription;
	const char *table;
	const char *type;
	const char *since;
	const char *most;
	const char *diff;
	const char *replay;
	const char *dismiss;

	/* rejoin */
	const char *program;		/* argv[0] */
	const char *data_dir;
	const char *source;
	const char *slot;
	const char *restore_command;
	const char *config_file;
	const char *log_file;
	bool		no_start;
} Options;

typedef struct Command
{
	const char *name;
	int			takes;			/* TAKES_... */
	int			least_arguments;	/* 0 or 1: the name of a subscription, or the number of a conflict */
	int			most_arguments;
	const char *synopsis;		/* the options that only this one has */
	const char *summary;		/* one line, for "tandem --help" */
	const char *help;			/* what "tandem NAME --help" adds */
	int			(*run)(const Options *options); /* returns the exit code */
} Command;

extern const Command status_command;
extern const Command doctor_command;
extern const Command slots_command;
extern const Command rejoin_command;
extern const Command adopt_command;
extern const Command release_command;
extern const Command sync_command;
extern const Command conflicts_command;
extern const Command uninstall_command;

#endif							/* TANDEM_COMMAND_H */
