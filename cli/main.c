/*-------------------------------------------------------------------------
 *
 * main.c
 *	  The command "tandem": finds the subcommand and reads its options.
 *
 * Each subcommand lives in a file of its own, together with its help; the
 * table below is the only place that knows them all.
 *
 * Errors go to standard error: one sentence, then a hint.  Wrong usage exits
 * with 2.
 *
 * cli/main.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <locale.h>
#include <math.h>

#include "command.h"
#include "getopt_long.h"
#include "text.h"

static const Command *const commands[] = {
	&status_command,
	&doctor_command,
	&slots_command,
	&rejoin_command,
	&adopt_command,
	&release_command,
	&sync_command,
	&conflicts_command,
	&uninstall_command,
	NULL};

enum
{
	OPT_NODE = 256,
	OPT_NO_DISCOVER,
	OPT_TIMEOUT,
	OPT_JSON,
	OPT_WATCH,
	OPT_READY,
	OPT_YES,
	OPT_DRY_RUN,
	OPT_OPTIONS,
	OPT_FORCE,
	OPT_SUBSCRIPTION,
	OPT_TABLE,
	OPT_TYPE,
	OPT_SINCE,
	OPT_LIMIT,
	OPT_DIFF,
	OPT_REPLAY,
	OPT_DISMISS,
	OPT_SOURCE,
	OPT_SLOT,
	OPT_RESTORE_COMMAND,
	OPT_CONFIG_FILE,
	OPT_LOG,
	OPT_NO_START
};

static const struct
{
	int			takes;			/* 0 = every subcommand */
	struct option option;
	const char *help;
} option_table[] = {
	{TAKES_JSON, {"json", no_argument, NULL, OPT_JSON}, "      --json               print one JSON object"},
	{TAKES_WATCH, {"watch", required_argument, NULL, OPT_WATCH}, "      --watch=SECONDS      print it again every SECONDS until Ctrl-C"},
	{TAKES_LIVE, {"watch", optional_argument, NULL, OPT_WATCH}, "      --watch[=SECONDS]    go on until all is ready, a screen every SECONDS (default 1)"},
	{TAKES_READY, {"ready", no_argument, NULL, OPT_READY}, "      --ready              only say whether a failover now would lose nothing"},
	{TAKES_YES, {"yes", no_argument, NULL, OPT_YES}, "      --yes                don't ask for confirmation"},
	{TAKES_DRY_RUN, {"dry-run", no_argument, NULL, OPT_DRY_RUN}, "      --dry-run            show what would be done, change nothing"},
	{TAKES_OPTIONS, {"options", required_argument, NULL, OPT_OPTIONS}, "      --options=LIST       options of tandem.adopt(), such as \"workers = 4\""},
	{TAKES_FORCE, {"force", no_argument, NULL, OPT_FORCE}, "      --force              empty tables that are copied halfway instead of waiting"},
	{TAKES_CONFLICTS, {"subscription", required_argument, NULL, OPT_SUBSCRIPTION}, "      --subscription=NAME  only those of this subscription"},
	{TAKES_CONFLICTS, {"table", required_argument, NULL, OPT_TABLE}, "      --table=NAME         only those of this table, in SQL's way: orders or public.orders"},
	{TAKES_CONFLICTS, {"type", required_argument, NULL, OPT_TYPE}, "      --type=TYPE          only those of this type, such as update_missing"},
	{TAKES_CONFLICTS, {"since", required_argument, NULL, OPT_SINCE}, "      --since=TIME         only those since a time, or an interval ago: \"2 hours\""},
	{TAKES_CONFLICTS, {"limit", required_argument, NULL, OPT_LIMIT}, "      --limit=N            the newest N of a database (default 50), 0 = all"},
	{TAKES_CONFLICTS, {"diff", required_argument, NULL, OPT_DIFF}, "      --diff=ID            the rows of one conflict, as ID alone"},
	{TAKES_CONFLICTS, {"replay", required_argument, NULL, OPT_REPLAY}, "      --replay=ID          apply its remote change, if it was skipped or has failed"},
	{TAKES_CONFLICTS, {"dismiss", required_argument, NULL, OPT_DISMISS}, "      --dismiss=ID         mark it as seen to"},
	{TAKES_REJOIN, {"pgdata", required_argument, NULL, 'D'}, "  -D, --pgdata=DIR         data directory of the old primary (default: PGDATA)"},
	{TAKES_REJOIN, {"source", required_argument, NULL, OPT_SOURCE}, "      --source=CONNINFO    connection string of the new primary"},
	{TAKES_REJOIN, {"slot", required_argument, NULL, OPT_SLOT}, "      --slot=NAME          physical slot to stream with, made if missing (default tandem_rejoin)"},
	{TAKES_REJOIN, {"restore-command", required_argument, NULL, OPT_RESTORE_COMMAND}, "      --restore-command=C  how to get WAL that is missing here from the archive (%f, %p)"},
	{TAKES_REJOIN, {"config-file", required_argument, NULL, OPT_CONFIG_FILE}, "      --config-file=FILE   the server's configuration, if it isn't in DIR (default: as last started)"},
	{TAKES_REJOIN, {"log", required_argument, NULL, OPT_LOG}, "      --log=FILE           where the server writes until its own log is open (default DIR/tandem_rejoin.log)"},
	{TAKES_REJOIN, {"no-start", no_argument, NULL, OPT_NO_START}, "      --no-start           don't start the server"},

	{0, {"host", required_argument, NULL, 'h'}, "  -h, --host=HOSTNAME      server host or socket directory"},
	{0, {"port", required_argument, NULL, 'p'}, "  -p, --port=PORT          server port"},
	{0, {"username", required_argument, NULL, 'U'}, "  -U, --username=USERNAME  user name to connect as"},
	{0, {"dbname", required_argument, NULL, 'd'}, "  -d, --dbname=DBNAME      database name or connection string"},
	{0, {"no-password", no_argument, NULL, 'w'}, "  -w, --no-password        never ask for a password"},
	{0, {"password", no_argument, NULL, 'W'}, "  -W, --password           ask for a password first"},
	{TAKES_NODES, {"node", required_argument, NULL, OPT_NODE}, "      --node=CONNINFO      one more server of the topology (may be repeated)"},
	{TAKES_NODES, {"no-discover", no_argument, NULL, OPT_NO_DISCOVER}, "      --no-discover        don't look for the primary of a standby"},
	{0, {"timeout", required_argument, NULL, OPT_TIMEOUT}, "      --timeout=SECONDS    longest wait for a connection or an answer (default 5)"},
};

static void
print_help(void)
{
	printf(_("tandem looks after failover slots, failback and subscriptions of PostgreSQL servers that run pg_tandem.\n\n"));
	printf(_("Usage:\n  tandem COMMAND [OPTION]...\n\nCommands:\n"));
	for (int i = 0; commands[i] != NULL; i++)
		printf("  %-11s %s\n", commands[i]->name, commands[i]->summary);
	printf(_("\nOptions:\n"
			 "  -V, --version    print the version, then exit\n"
			 "  -?, --help       print this help, then exit; after a COMMAND, the help of that command\n"
			 "\nExit codes:\n"
			 "  0 healthy or done, 1 needs attention or failed, 2 wrong usage, 3 a node is unreachable\n"));
}

static void
print_command_help(const Command *command)
{
	printf(_("tandem %s: %s\n\n"), command->name, command->summary);
	printf(_("Usage:\n  tandem %s %s [CONNECTION OPTION]...\n\n%s\n"),
		   command->name, command->synopsis, command->help);
	printf(_("Options:\n"));
	for (int i = 0; i < (int) lengthof(option_table); i++)
		if (option_table[i].takes & command->takes)
			printf("%s\n", option_table[i].help);
	printf(_("  -?, --help               print this help, then exit\n"
			 "\nConnection options:\n"));
	for (int i = 0; i < (int) lengthof(option_table); i++)
		if (option_table[i].takes == 0)
			printf("%s\n", option_table[i].help);
	printf(_("\nThe environment (PGHOST, PGPORT, PGUSER, PGSERVICE,...), service files and .pgpass count as\n"
			 "for psql.  What a --node does not say is taken from -U and -d.\n"));
}

static void
usage_error(const Command *command)
{
	if (command)
		pg_log_error_hint("Try \"tandem %s --help\" for more information.", command->name);
	else
		pg_log_error_hint("Try \"tandem --help\" for more information.");
	exit(EXIT_USAGE);
}

/* A positive number of seconds up to a day, or wrong usage. */
static double
parse_seconds(const Command *command, const char *option, const char *arg, double least)
{
	char	   *end;
	double		seconds;

	errno = 0;
	seconds = strtod(arg, &end);
	if (errno != 0 || end == arg || *end != '\0' ||
		isnan(seconds) || seconds < least || seconds > 86400)
	{
		pg_log_error("\"%s\" is not a valid value of --%s", text_clean(arg), option);
		pg_log_error_hint("Give seconds between %g and 86400.", least);
		exit(EXIT_USAGE);
	}
	return seconds;
}

static void
parse_options(const Command *command, int argc, char **argv, Options *options)
{
	struct option long_options[lengthof(option_table) + 2];
	int			n = 0;
	int			c;

	/* An option that this command doesn't take is unknown to it. */
	for (int i = 0; i < (int) lengthof(option_table); i++)
		if (option_table[i].takes == 0 || (option_table[i].takes & command->takes))
			long_options[n++] = option_table[i].option;
	long_options[n++] = (struct option){"help", no_argument, NULL, '?'};
	long_options[n] = (struct option){NULL, 0, NULL, 0};

	while ((c = getopt_long(argc, argv, command->takes & TAKES_REJOIN ? "h:p:U:d:wWD:" : "h:p:U:d:wW",
							long_options, NULL)) != -1)
	{
		switch (c)
		{
			case 'h':
				options->host = optarg;
				break;
			case 'p':
				options->port = optarg;
				break;
			case 'U':
				options->user = optarg;
				break;
			case 'd':
				options->dbname = optarg;
				break;
			case 'w':
				options->never_password = true;
				break;
			case 'W':
				options->force_password = true;
				break;
			case 'D':
				options->data_dir = optarg;
				break;
			case OPT_SUBSCRIPTION:
				options->of_subscription = optarg;
				break;
			case OPT_TABLE:
				options->table = optarg;
				break;
			case OPT_TYPE:
				options->type = optarg;
				break;
			case OPT_SINCE:
				options->since = optarg;
				break;
			case OPT_LIMIT:
				options->most = optarg;
				break;
			case OPT_DIFF:
				options->diff = optarg;
				break;
			case OPT_REPLAY:
				options->replay = optarg;
				break;
			case OPT_DISMISS:
				options->dismiss = optarg;
				break;
			case OPT_SOURCE:
				options->source = optarg;
				break;
			case OPT_SLOT:
				options->slot = optarg;
				break;
			case OPT_RESTORE_COMMAND:
				options->restore_command = optarg;
				break;
			case OPT_CONFIG_FILE:
				options->config_file = make_absolute_path(optarg);
				break;
			case OPT_LOG:
				options->log_file = make_absolute_path(optarg);
				break;
			case OPT_NO_START:
				options->no_start = true;
				break;
			case OPT_NODE:
				simple_string_list_append(&options->nodes, optarg);
				break;
			case OPT_NO_DISCOVER:
				options->discover = false;
				break;
			case OPT_TIMEOUT:
				options->timeout_ms = (int) (1000 * parse_seconds(command, "timeout", optarg, 1));
				break;
			case OPT_JSON:
				options->json = true;
				break;
			case OPT_WATCH:
				options->watch = optarg ? parse_seconds(command, "watch", optarg, 0.1) : 1;
				break;
			case OPT_READY:
				options->ready = true;
				break;
			case OPT_YES:
				options->yes = true;
				break;
			case OPT_DRY_RUN:
				options->dry_run = true;
				break;
			case OPT_OPTIONS:
				options->adopt_options = optarg;
				break;
			case OPT_FORCE:
				options->force = true;
				break;
			default:
				/* getopt_long has named the wrong option */
				usage_error(command);
		}
	}
	if (argc - optind > command->most_arguments)
	{
		pg_log_error("too many arguments: \"%s\" is one too many",
					 text_clean(argv[optind + command->most_arguments]));
		usage_error(command);
	}
	if (argc - optind < command->least_arguments)
	{
		pg_log_error("the name of the subscription is missing");
		usage_error(command);
	}
	if (optind < argc)
		options->subscription = options->argument = argv[optind];
	if (options->never_password && options->force_password)
	{
		pg_log_error("options -w and -W can't be used together");
		usage_error(command);
	}
}

int
main(int argc, char **argv)
{
	const Command *command = NULL;
	Options		options = {.discover = true, .timeout_ms = 5000, .program = argv[0], .data_dir = getenv("PGDATA")};

	pg_logging_init(argv[0]);
	set_pglocale_pgservice(argv[0], PG_TEXTDOMAIN("tandem"));
	text_init();

	if (argc < 2)
	{
		pg_log_error("no command given");
		usage_error(NULL);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
		strcmp(argv[1], "help") == 0)
	{
		print_help();
		return EXIT_HEALTHY;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
	{
		printf("tandem (pg_tandem) %s\n", TANDEM_VERSION);
		return EXIT_HEALTHY;
	}

	for (int i = 0; commands[i] != NULL; i++)
		if (strcmp(argv[1], commands[i]->name) == 0)
			command = commands[i];
	if (command == NULL)
	{
		pg_log_error("\"%s\" is not a command of tandem", text_clean(argv[1]));
		pg_log_error_hint("The first argument names the command; try \"tandem --help\".");
		exit(EXIT_USAGE);
	}

	for (int i = 2; i < argc; i++)
	{
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-?") == 0)
		{
			print_command_help(command);
			return EXIT_HEALTHY;
		}
		if (strcmp(argv[i], "--") == 0)
			break;
	}

	/* the command's name takes the place of argv[0] */
	parse_options(command, argc - 1, argv + 1, &options);
	return command->run(&options);
}
