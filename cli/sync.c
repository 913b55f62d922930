/*-------------------------------------------------------------------------
 *
 * sync.c
 *	  "tandem sync": the initial copy of adopted subscriptions, with bars, rates
 *	  and the estimated end.
 *
 * Once: a screen.  With --watch until every table is ready: on a terminal one
 * screen replaces the other; elsewhere lines follow one another, one a table
 * that became ready or failed, and one in total each time something moved.
 * Rates are those between two screens, smoothed; on the first screen the
 * average since the copy began.  A failed table is tried again by the server;
 * --watch ends when nothing else is left, and each has failed GIVE_UP times.
 *
 * cli/sync.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include <time.h>

#include "common/hashfn.h"

#include "json.h"
#include "subscription.h"
#include "table.h"
#include "watch.h"

#define BAR_MOST 10
#define NARROW 90				/* columns; below, bars are short and no whole is shown */
#define MOST_SHOWN 15			/* running tables on a terminal, and failed ones */
#define MOST_EVENTS 50			/* lines for tables that became ready, per turn */
#define GIVE_UP 2				/* attempts: the first may have met a lock */
#define SMOOTHING 0.4			/* weight of the newest rate */
#define BUCKETS 1024

/* What an earlier screen saw, to tell rates; lives as long as the program. */
typedef struct Seen
{
	struct Seen *next;
	char	   *key;			/* database/subid, and /relid for a table */
	double		at;				/* seconds on the clock */
	int64		bytes;
	double		rate;			/* bytes a second; < 0 while unknown */
	int			ready;			/* tables, of a subscription */
	char	   *since;			/* the server's clock, of a subscription */
	char	   *told;			/* last error that was printed, of a table */
} Seen;

static Seen *seen_before[BUCKETS];	/* by the key's hash: there may be many tables */
static bool seen_any = false;

static double
clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static Seen *
seen_entry(const char *key)
{
	Seen	  **bucket = &seen_before[hash_bytes((const unsigned char *) key, strlen(key)) % BUCKETS];
	Seen	   *seen = *bucket;

	while (seen && strcmp(seen->key, key) != 0)
		seen = seen->next;
	if (seen == NULL)
	{
		seen = pg_malloc0(sizeof(Seen));
		seen->key = pg_strdup(key);
		seen->rate = -1;
		seen->next = *bucket;
		*bucket = seen;
		seen_any = true;
	}
	return seen;
}

/*
 * Bytes a second of what has done "bytes" now; "age" is how long ago it began,
 * seconds, or negative.
 */
static double
rate_of(Seen *seen, int64 bytes, double age)
{
	double		now = clock_now();

	if (seen->at > 0 && now - seen->at > 0.01)
	{
		double		rate = (double) Max(bytes - seen->bytes, 0) / (now - seen->at);

		seen->rate = seen->rate < 0 ? rate : SMOOTHING * rate + (1 - SMOOTHING) * seen->rate;
	}
	else if (seen->at == 0 && age > 0.05)
		seen->rate = (double) bytes / age;
	seen->at = now;
	seen->bytes = bytes;
	return seen->rate;
}

/* ---- what there is --------------------------------------------------------- */

/* The copy of one subscription, as of now. */
typedef struct Copy
{
	const Subscription *s;
	int64		total;			/* tables */
	int64		ready;
	int64		failed;
	int64		waiting;
	int64		running;
	int64		rows_done;
	int64		bytes_done;
	int64		bytes_estimated;
	double		rate;			/* bytes a second; < 0 unknown */
	double		seconds_left;	/* < 0 unknown */
	int64		hopeless;		/* failed, GIVE_UP times or more */
	const char *obstacle;		/* why it doesn't get on as a whole, or NULL */
	const PGresult *tables;		/* those that run or have failed */
	const PGresult *events;		/* those that became ready since the last turn */
	Seen	   *seen;
} Copy;

static double
field_number(const PGresult *res, int row, const char *column, double otherwise)
{
	const char *value = field(res, row, column);

	return value ? atof(value) : otherwise;
}

static bool
is_failed(const PGresult *res, int row)
{
	return strcmp(field(res, row, "state"), "failed") == 0;
}

/* Why a subscription as a whole doesn't get on, or NULL. */
static const char *
obstacle(const Subscription *s)
{
	const char *reason = subscription_field(s, "reason");
	const char *state = subscription_field(s, "state");

	if (s->error)
		return s->error;
	/* an error that is over stays in the view */
	return reason || strcmp(state ? state : "", "retrying") != 0 ? reason : subscription_field(s, "last_error");
}

/* Why the wave as a whole doesn't get on, or NULL: what tables say that have not failed. */
static const char *
wave_obstacle(PGconn *conn, const Subscription *s)
{
	const char *error;
	const PGresult *res = conn_query(conn, node_timeout_ms(),
									 screen_printf("SELECT pg_catalog.concat_ws('; hint: ', t.last_error, t.hint) AS why FROM tandem.tables t"
												   " WHERE t.subscription = %s AND t.state IN ('waiting', 'copying')"
												   " AND t.last_error IS NOT NULL LIMIT 1",
												   quote_literal(s->name)),
									 &error, NULL);

	return nrows(res) > 0 ? field(res, 0, "why") : NULL;
}

static void
read_copy(Node *node, const Subscription *s, Copy *copy, bool want_events)
{
	const char *error;
	PGconn	   *conn;
	double		age = -1;

	memset(copy, 0, sizeof(*copy));
	copy->s = s;
	copy->seen = seen_entry(screen_printf("%s/%s", s->database, s->subid));
	copy->rate = copy->seconds_left = -1;
	copy->obstacle = obstacle(s);
	if (s->tables == NULL)
		return;
	copy->total = subscription_sum(s, NULL, "tables");
	copy->ready = subscription_sum(s, "ready", "tables");
	copy->failed = subscription_sum(s, "failed", "tables");
	copy->waiting = subscription_sum(s, "waiting", "tables");
	copy->running = copy->total - copy->ready - copy->failed - copy->waiting;
	copy->rows_done = subscription_sum(s, NULL, "rows_done");
	copy->bytes_done = subscription_sum(s, NULL, "bytes_done");
	copy->bytes_estimated = Max(subscription_sum(s, NULL, "bytes_estimated"), copy->bytes_done);
	for (int i = 0; i < nrows(s->tables); i++)
		age = Max(age, field_number(s->tables, i, "age", -1));
	copy->rate = rate_of(copy->seen, copy->bytes_done, age);
	if (copy->ready == copy->total)
		copy->seconds_left = 0;
	else if (copy->rate > 0 && copy->running + copy->waiting > 0 && copy->bytes_estimated > copy->bytes_done)
		copy->seconds_left = (double) (copy->bytes_estimated - copy->bytes_done) / copy->rate;

	conn = node_database(node, s->database, &error);
	if (conn == NULL)
		return;
	if (copy->obstacle == NULL && copy->waiting + copy->running > 0)
		copy->obstacle = wave_obstacle(conn, s);
	copy->tables = conn_query(conn, node_timeout_ms(),
							  screen_printf("SELECT t.*, extract(epoch FROM pg_catalog.clock_timestamp() - t.started) AS age,"
											" extract(epoch FROM t.next_retry - pg_catalog.clock_timestamp()) AS retry_in"
											" FROM tandem.tables t WHERE t.subscription = %s AND t.state NOT IN ('ready', 'waiting')"
											" ORDER BY t.state = 'failed', t.bytes_estimated DESC NULLS LAST, t.schema, t.name",
											quote_literal(s->name)),
							  &error, NULL);
	for (int i = 0; i < nrows(copy->tables); i++)
		copy->hopeless += is_failed(copy->tables, i) && field_number(copy->tables, i, "attempts", 0) >= GIVE_UP;
	if (want_events)
	{
		const char *now;

		copy->events = conn_query(conn, node_timeout_ms(),
								  screen_printf("SELECT t.schema, t.name, t.rows_done, t.bytes_done,"
												" extract(epoch FROM t.finished - t.started) AS took"
												" FROM tandem.tables t WHERE t.subscription = %s AND t.state = 'ready'"
												" AND t.finished > %s ORDER BY t.finished",
												quote_literal(s->name),
												copy->seen->since ? quote_literal(copy->seen->since) : "'infinity'"),
								  &error, NULL);
		/* what is ready when the watching begins is no news */
		now = copy->seen->since == NULL || nrows(copy->events) > 0 ?
			field(conn_query(conn, node_timeout_ms(),
							 screen_printf("SELECT coalesce(pg_catalog.max(t.finished), '-infinity') AS now"
										   " FROM tandem.tables t WHERE t.subscription = %s",
										   quote_literal(s->name)),
							 &error, NULL),
				  0, "now") :
			NULL;
		if (now)
		{
			free(copy->seen->since);
			copy->seen->since = pg_strdup(now);
		}
	}
}

/* ---- for people ------------------------------------------------------------- */

/* Part of the whole, 0 to 1; a table without an estimate has none. */
static double
part(double done, double whole)
{
	return whole <= 0 ? 0 : Min(done / whole, 1);
}

static const char *
bar(double filled)
{
	bool		pretty = text_is_utf8();
	int			width = text_screen_width() < NARROW ? BAR_MOST / 2 : BAR_MOST;
	int			full = (int) (filled * width + 0.5);
	char	   *text = screen_alloc(BAR_MOST * 3 + 1);

	for (int i = 0; i < width; i++)
		strcat(text, i < full ? (pretty ? "\xe2\x96\x88" : "#") : (pretty ? "\xe2\x96\x91" : "."));
	return text;
}

static const char *
table_name(const PGresult *res, int row)
{
	return screen_printf("%s.%s", field(res, row, "schema"), field(res, row, "name"));
}

/* A name that takes one line: the middle of a long one is left out. */
static const char *
short_name(const PGresult *res, int row)
{
	const char *name = text_clean(table_name(res, row));
	int			most = text_screen_width() < NARROW ? 14 : 26;
	int			head;
	int			tail;

	if (text_width(name) <= most)
		return name;
	head = text_bytes_of(name, (most - 2) / 2);
	tail = head;
	while (text_width(name + tail) > (most - 2) / 2)
		tail += text_bytes_of(name + tail, 1);
	return screen_printf("%.*s..%s", head, name, name + tail);
}

/* "1,234,567" */
static const char *
grouped(int64 n)
{
	char	   *digits = screen_printf(INT64_FORMAT, n);
	int			len = strlen(digits);
	char	   *text = screen_alloc(len + len / 3 + 2);
	char	   *p = text;

	for (int i = 0; i < len; i++)
	{
		if (i > 0 && (len - i) % 3 == 0 && text[0] != '-')
			*p++ = ',';
		*p++ = digits[i];
	}
	return text;
}

static const char *
amount(int64 done, int64 whole)
{
	if (whole <= done || text_screen_width() < NARROW)
		return text_bytes(done);
	return screen_printf("%s of %s", text_bytes(done), text_bytes(whole));
}

static const char *
speed(double rate)
{
	return rate < 0 ? NULL : screen_printf("%s/s", text_bytes((int64) rate));
}

static const char *
left(const Copy *copy)
{
	if (copy->seconds_left < 0 || copy->ready == copy->total)
		return NULL;
	return screen_printf("%s left", text_duration(copy->seconds_left));
}

/* The whole copy, 0 to 1: bytes, or tables where there is nothing in them. */
static double
copy_part(const Copy *copy)
{
	double		tables = part((double) copy->ready, (double) copy->total);

	if (copy->total > 0 && copy->ready == copy->total)
		return 1;
	if (copy->bytes_estimated == 0)
		return tables;
	/* bytes that are there don't make a table ready */
	return Min(part((double) copy->bytes_done, (double) copy->bytes_estimated), 0.999);
}

static const char *
counts(const Copy *copy)
{
	return screen_printf("%s of %s tables ready, %s running, %s failed, %s waiting",
						 grouped(copy->ready), grouped(copy->total), grouped(copy->running),
						 grouped(copy->failed), grouped(copy->waiting));
}

static const char *
failure(const PGresult *res, int row)
{
	const char *error = field(res, row, "last_error");
	double		retry = field_number(res, row, "retry_in", -1);

	return screen_printf("%s (attempt %s%s)", error ? error : "no reason given",
						 field(res, row, "attempts") ? field(res, row, "attempts") : "1",
						 retry > 0 ? screen_printf(", next in %s", text_duration(retry)) : "");
}

static void
print_copy(const Copy *copy, PQExpBuffer out)
{
	static const char *const columns[] = {"TABLE", "STATE", "", ">%", ">ROWS", ">BYTES", ">RATE", "", NULL};
	Table	   *table = table_new(columns);
	int			shown = 0;
	int			failed = 0;
	double		done = copy_part(copy);
	const char *what = copy->obstacle;

	text_wrap(out, text_clean(screen_printf("Subscription \"%s\" of database \"%s\": %s", copy->s->name, copy->s->database, copy->s->tables ? counts(copy) : "not known")),
			  0, text_screen_width());
	if (what)
		text_wrap(out, text_clean(what), 4, text_screen_width());
	if (copy->s->tables == NULL)
		return;

	for (int i = 0; i < nrows(copy->tables); i++)
	{
		int64		bytes = (int64) field_number(copy->tables, i, "bytes_done", 0);
		int64		whole = (int64) field_number(copy->tables, i, "bytes_estimated", 0);
		int64		spool = (int64) field_number(copy->tables, i, "spool_bytes", 0);
		double		p = part((double) bytes, (double) whole);
		Seen	   *seen;

		if (is_failed(copy->tables, i))
			continue;
		seen = seen_entry(screen_printf("%s/%s/%s", copy->s->database, copy->s->subid, field(copy->tables, i, "relid")));
		if (++shown > MOST_SHOWN)
			continue;
		table_row(table, "", field(copy->tables, i, "state"), NULL,
				  screen_printf("%.0f", 100 * p),
				  grouped((int64) field_number(copy->tables, i, "rows_done", 0)), amount(bytes, whole),
				  speed(rate_of(seen, bytes, field_number(copy->tables, i, "age", -1))),
				  spool > 0 ? screen_printf("spool %s", text_bytes(spool)) : "");
		table_cell_raw(table, 0, short_name(copy->tables, i), COLOUR_NONE);
		table_cell_raw(table, 2, bar(p), COLOUR_GOOD);
	}
	table_row(table, "total", "", NULL, screen_printf("%.0f", 100 * done), grouped(copy->rows_done),
			  amount(copy->bytes_done, copy->bytes_estimated), speed(copy->rate), left(copy));
	table_cell_raw(table, 2, bar(done), COLOUR_GOOD);
	table_blank_missing(table);
	table_print(table, out);
	if (shown > MOST_SHOWN)
		appendPQExpBuffer(out, "and %d more that run\n", shown - MOST_SHOWN);

	for (int i = 0; i < nrows(copy->tables); i++)
	{
		if (!is_failed(copy->tables, i) || ++failed > MOST_SHOWN)
			continue;
		text_paint(out, COLOUR_BAD, "failed", 6);
		appendPQExpBuffer(out, ": %s\n", text_clean(table_name(copy->tables, i)));
		text_wrap(out, text_clean(failure(copy->tables, i)), 4, text_screen_width());
		if (field(copy->tables, i, "hint"))
			text_wrap(out, text_clean(screen_printf("hint: %s", field(copy->tables, i, "hint"))), 4, text_screen_width());
	}
	if (failed > MOST_SHOWN)
		appendPQExpBuffer(out, "and %d more that failed\n", failed - MOST_SHOWN);
}

/* Lines of a log: what happened since the last turn. */
static void
log_copy(const Copy *copy, PQExpBuffer out)
{
	char		clock[16];
	time_t		now = time(NULL);
	int			nevents = nrows(copy->events);
	const char *rate = speed(copy->rate);
	const char *end = left(copy);
	const char *line;
	const char *what = copy->obstacle;

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime(&now));
	for (int i = 0; i < nevents && i < MOST_EVENTS; i++)
	{
		const char *took = field(copy->events, i, "took");

		appendPQExpBuffer(out, "%s %s ready, %s rows, %s%s\n", clock, text_clean(table_name(copy->events, i)),
						  grouped((int64) field_number(copy->events, i, "rows_done", 0)),
						  text_bytes((int64) field_number(copy->events, i, "bytes_done", 0)),
						  took ? screen_printf(" in %s", text_duration(atof(took))) : "");
	}
	if (nevents > MOST_EVENTS)
		appendPQExpBuffer(out, "%s %d more tables ready\n", clock, nevents - MOST_EVENTS);
	for (int i = 0; i < nrows(copy->tables); i++)
	{
		Seen	   *seen;
		const char *text;

		if (!is_failed(copy->tables, i))
			continue;
		seen = seen_entry(screen_printf("%s/%s/%s", copy->s->database, copy->s->subid, field(copy->tables, i, "relid")));
		text = screen_printf("%s/%s", field(copy->tables, i, "attempts"), field(copy->tables, i, "last_error"));
		if (seen->told && strcmp(seen->told, text) == 0)
			continue;
		free(seen->told);
		seen->told = pg_strdup(text);
		appendPQExpBuffer(out, "%s %s failed: %s\n", clock, text_clean(table_name(copy->tables, i)),
						  text_clean(failure(copy->tables, i)));
		if (field(copy->tables, i, "hint"))
			appendPQExpBuffer(out, "%s %s hint: %s\n", clock, text_clean(table_name(copy->tables, i)),
							  text_clean(field(copy->tables, i, "hint")));
	}
	line = screen_printf("%s: %s, %s%s%s%s%s%s", copy->s->name, counts(copy),
						 amount(copy->bytes_done, copy->bytes_estimated),
						 rate ? ", " : "", rate ? rate : "", end ? ", " : "", end ? end : "",
						 what ? screen_printf("; %s", what) : "");
	/* without the rate, which always changes */
	if (copy->seen->told == NULL ||
		strcmp(copy->seen->told, screen_printf("%s %s %s", counts(copy), text_bytes(copy->bytes_done), what ? what : "")) != 0)
	{
		free(copy->seen->told);
		copy->seen->told = pg_strdup(screen_printf("%s %s %s", counts(copy), text_bytes(copy->bytes_done), what ? what : ""));
		appendPQExpBuffer(out, "%s %s\n", clock, text_clean(line));
	}
}

/* ---- for programs ------------------------------------------------------------ */

static void
json_double(Json *json, const char *key, double value)
{
	json_number(json, key, value < 0 ? NULL : screen_printf("%.1f", value));
}

static void
json_copy(const Copy *copy, Json *json)
{
	static const char *const texts[] = {"schema", "name", "state", "started", "last_error", "hint", "next_retry"};
	static const char *const numbers[] = {"relid", "wave", "pid", "rows_done", "rows_estimated",
										  "bytes_done", "bytes_estimated", "spool_bytes", "attempts"};

	json_open_object(json, NULL);
	json_string(json, "subscription", copy->s->name);
	json_string(json, "database", copy->s->database);
	json_string(json, "state", subscription_field(copy->s, "state"));
	json_string(json, "problem", copy->obstacle);
	json_int(json, "tables", copy->total);
	json_int(json, "ready", copy->ready);
	json_int(json, "running", copy->running);
	json_int(json, "failed", copy->failed);
	json_int(json, "waiting", copy->waiting);
	json_int(json, "rows_done", copy->rows_done);
	json_int(json, "bytes_done", copy->bytes_done);
	json_int(json, "bytes_estimated", copy->bytes_estimated);
	json_double(json, "bytes_per_second", copy->rate);
	json_double(json, "seconds_left", copy->seconds_left);
	json_open_array(json, "unfinished");
	for (int i = 0; i < nrows(copy->tables); i++)
	{
		json_open_object(json, NULL);
		for (int j = 0; j < (int) lengthof(texts); j++)
			json_string(json, texts[j], field(copy->tables, i, texts[j]));
		for (int j = 0; j < (int) lengthof(numbers); j++)
			json_number(json, numbers[j], field(copy->tables, i, numbers[j]));
		json_close(json);
	}
	json_close(json);
	json_close(json);
}

/* ---- the command --------------------------------------------------------------- */

static int
sync_screen(Topology *topology, PQExpBuffer out)
{
	const Options *options = topology->options;
	Node	   *node = topology->nodes[0];
	bool		is_log = options->watch > 0 && !options->json && !text_is_terminal();
	int			exit_code = EXIT_HEALTHY;
	int			n = 0;
	Copy	   *copies;
	const Subscriptions *all;

	if (node->conn == NULL)
	{
		/* a server that restarts comes back; the first time it is a mistake */
		if (!seen_any)
		{
			pg_log_error("%s: %s", node->label, node->error);
			pg_log_error_hint("Check that the server runs and that -h, -p and -U name it rightly.");
			watch_finished = true;
		}
		else if (!options->json)
			appendPQExpBuffer(out, "%s: %s\n", node->label, node->error);
		return EXIT_UNREACHABLE;
	}
	all = node_subscriptions(node);
	copies = screen_alloc(Max(all->n, 1) * sizeof(Copy));
	if (options->subscription)
	{
		const Subscription *s = must_find_subscription(node, options);

		if (!s->labelled)
		{
			pg_log_error("subscription \"%s\" is not adopted", text_clean(s->name));
			pg_log_error_hint("Run \"tandem adopt %s\"; the server's own copies are seen in pg_stat_progress_copy.",
							  text_clean(s->name));
			exit(EXIT_ATTENTION);
		}
		read_copy(node, s, &copies[n++], is_log);
	}
	else
	{
		for (int i = 0; i < all->n; i++)
			if (all->list[i].labelled)
				read_copy(node, &all->list[i], &copies[n++], is_log);
		if (n == 0)
		{
			pg_log_error("no subscription of %s is adopted", node->label);
			pg_log_error_hint("Run \"tandem adopt SUBSCRIPTION\".");
			exit(EXIT_ATTENTION);
		}
	}

	watch_finished = true;
	for (int i = 0; i < n; i++)
	{
		if (copies[i].s->tables == NULL || copies[i].ready < copies[i].total)
		{
			exit_code = EXIT_ATTENTION;
			/* the waiting doesn't end by itself, somebody has to act */
			if (copies[i].s->tables == NULL || copies[i].hopeless == 0 ||
				copies[i].ready + copies[i].hopeless < copies[i].total)
				watch_finished = false;
		}
	}
	if (options->json)
	{
		Json		json;

		json_init(&json, out, options->watch == 0);
		json_open_object(&json, NULL);
		json_string(&json, "command", "sync");
		json_string(&json, "version", TANDEM_VERSION);
		json_bool(&json, "ready", exit_code == EXIT_HEALTHY);
		json_int(&json, "exit_code", exit_code);
		json_open_array(&json, "subscriptions");
		for (int i = 0; i < n; i++)
			json_copy(&copies[i], &json);
		json_close(&json);
		json_close(&json);
		return exit_code;
	}
	for (int i = 0; i < n; i++)
	{
		if (is_log)
		{
			log_copy(&copies[i], out);
			continue;
		}
		if (i > 0)
			appendPQExpBufferChar(out, '\n');
		print_copy(&copies[i], out);
	}
	return exit_code;
}

static int
run_sync(const Options *options)
{
	return watch_run(options, sync_screen, true);
}

const Command sync_command = {
	.name = "sync",
	.takes = TAKES_JSON | TAKES_LIVE,
	.most_arguments = 1,
	.synopsis = "[SUBSCRIPTION] [--watch[=SECONDS]] [--json]",
	.summary = "the initial copy of adopted subscriptions, and when it will end",
	.help = "A line a table that is being copied, a line in total, and what failed.  Without SUBSCRIPTION all\n"
			"adopted ones of the server.  With --watch it goes on until every table is ready, or has failed\n"
			"twice; where the output is no terminal it prints a line for each table that became ready or\n"
			"failed.  Exits with 0 if every table is ready, 1 if not, 3 if the server is unreachable.\n",
	.run = run_sync};
