/*-------------------------------------------------------------------------
 *
 * pg_tandem_output.c
 *	  pgoutput, and a filter by origin on top of it.
 *
 * Two writable nodes that subscribe to each other must not send back what they
 * have received.  From PostgreSQL 16 on pgoutput does that itself (origin =
 * none); that of 15 sends everything and refuses the option.  So this output
 * plugin takes over all of pgoutput's callbacks, takes the option out of the
 * list before pgoutput sees it, and filters.
 *
 *	origin = none	what has an origin is not sent (the default: it is what
 *					this plugin is for, and a subscription of 15 has no way
 *					to ask for it)
 *	origin = any	everything is sent, as pgoutput does
 *
 * A change has an origin if it was applied from another node: by a subscription
 * of the server or of ours, also by an initial copy.  Logical messages of ours
 * ("tandem." and what follows) are sent to nobody: they are for this node's own decoders.
 *
 * It is a library of its own since a library is one plugin, and knows nothing
 * of pg_tandem.so, which a publisher need not load.
 *
 * Called by logical decoding, for slots made with plugin pg_tandem_output.
 *
 * src/output/pg_tandem_output.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "replication/logical.h"
#include "replication/origin.h"
#include "replication/output_plugin.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *cb);

/* what their prefixes begin with */
#define OUR_MESSAGES "tandem."

static OutputPluginCallbacks pgoutput;

/* Of the stream that this process decodes; there is one at a time. */
static bool local_only = true;

/* Takes "origin" out of the options; the caller's list stays as it is. */
static void
take_origin_option(LogicalDecodingContext *ctx)
{
	List	   *rest = NIL;
	ListCell   *cell;
	bool		given = false;

	local_only = true;
	foreach(cell, ctx->output_plugin_options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);
		const char *value;

		if (strcmp(option->defname, "origin") != 0)
		{
			rest = lappend(rest, option);
			continue;
		}
		if (given)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("option \"%s\" is given more than once", "origin")));
		given = true;
		value = option->arg ? strVal(option->arg) : "";
		if (pg_strcasecmp(value, "any") == 0)
			local_only = false;
		else if (pg_strcasecmp(value, "none") != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value for option \"%s\": \"%s\"", "origin", value),
					 errhint("It can be none or any.")));
	}
	ctx->output_plugin_options = rest;
}

static void
startup(LogicalDecodingContext *ctx, OutputPluginOptions *options, bool is_init)
{
	take_origin_option(ctx);
	pgoutput.startup_cb(ctx, options, is_init);
}

static bool
filter_by_origin(LogicalDecodingContext *ctx, RepOriginId origin)
{
	if (local_only && origin != InvalidRepOriginId)
		return true;
	return pgoutput.filter_by_origin_cb && pgoutput.filter_by_origin_cb(ctx, origin);
}

static bool
is_ours(const char *prefix)
{
	return strncmp(prefix, OUR_MESSAGES, strlen(OUR_MESSAGES)) == 0;
}

static void
message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn, bool transactional,
		const char *prefix, Size size, const char *content)
{
	if (!is_ours(prefix))
		pgoutput.message_cb(ctx, txn, lsn, transactional, prefix, size, content);
}

static void
stream_message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr lsn, bool transactional,
			   const char *prefix, Size size, const char *content)
{
	if (!is_ours(prefix))
		pgoutput.stream_message_cb(ctx, txn, lsn, transactional, prefix, size, content);
}

void
_PG_output_plugin_init(OutputPluginCallbacks *cb)
{
	LogicalOutputPluginInit init;

	init = (LogicalOutputPluginInit)
		load_external_function("$libdir/pgoutput", "_PG_output_plugin_init", true, NULL);
	memset(&pgoutput, 0, sizeof(pgoutput));
	init(&pgoutput);

	*cb = pgoutput;
	cb->startup_cb = startup;
	cb->filter_by_origin_cb = filter_by_origin;
	if (pgoutput.message_cb)
		cb->message_cb = message;
	if (pgoutput.stream_message_cb)
		cb->stream_message_cb = stream_message;
}
