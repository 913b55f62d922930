/*-------------------------------------------------------------------------
 *
 * watch.c
 *	  Prints a screen once, or with --watch again and again until Ctrl-C.
 *
 * On a terminal each screen replaces the one before; line by line, so that
 * nothing flickers.  Elsewhere screens follow one another, with --json one
 * object a line.  Connections stay open between screens.
 *
 * cli/watch.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "text.h"
#include "watch.h"

volatile sig_atomic_t watch_interrupted = 0;
bool		watch_finished = false;

static void
handle_sigint(SIGNAL_ARGS)
{
	/* libpq may be waiting for a connection: the second one doesn't ask */
	if (watch_interrupted)
		_exit(130);
	watch_interrupted = 1;
}

static void
show(PQExpBuffer screen, bool redraw)
{
	if (PQExpBufferBroken(screen))
		pg_fatal("out of memory");
	if (redraw)
	{
		fputs("\033[H", stdout);
		for (const char *line = screen->data; *line; line = strchr(line, '\n') + 1)
			printf("%.*s\033[K\n", (int) strcspn(line, "\n"), line);
		fputs("\033[J", stdout);
	}
	else
		fputs(screen->data, stdout);
	if (fflush(stdout) != 0)
		exit(EXIT_ATTENTION);	/* nobody reads any more */
}

int
watch_run(const Options *options, ScreenFunction screen, bool is_log)
{
	Topology   *topology = topology_create(options);
	bool		redraw = options->watch > 0 && text_is_terminal() && !options->json;
	PQExpBufferData out;
	int			exit_code = 0;
	bool		first = true;

	initPQExpBuffer(&out);
	if (options->watch > 0)
		pqsignal(SIGINT, handle_sigint);
	if (redraw)
		fputs("\033[2J", stdout);

	for (;;)
	{
		struct timespec pause = {(time_t) options->watch,
								 (long) ((options->watch - (time_t) options->watch) * 1e9)};

		topology_read(topology);
		if (watch_interrupted)
			break;
		resetPQExpBuffer(&out);
		if (options->watch > 0 && !options->json && (redraw || !is_log))
		{
			time_t		now = time(NULL);
			char		clock[32];

			strftime(clock, sizeof(clock), "%Y-%m-%d %H:%M:%S", localtime(&now));
			if (!redraw && !first)
				appendPQExpBufferChar(&out, '\n');
			appendPQExpBuffer(&out, "%s, every %g s\n", clock, options->watch);
		}
		exit_code = screen(topology, &out);
		show(&out, redraw);
		topology_forget(topology);
		first = false;

		if (options->watch == 0 || watch_interrupted || watch_finished)
			break;
		nanosleep(&pause, NULL);
		if (watch_interrupted)
			break;
	}
	termPQExpBuffer(&out);
	topology_close(topology);
	return exit_code;
}
