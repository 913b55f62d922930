/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  The apply worker: one process an adopted subscription.
 *
 *	 attach to the slot in shared memory
 *		-> connect to the database as the subscription's owner
 *		-> take the origin, which is where we are
 *		-> connect to the publisher, start replication there
 *		-> receive and apply, until asked to stop or an error
 *
 * It ends at a transaction boundary when asked to (stop_requested), and in the
 * middle, which loses nothing, by SIGTERM.  After an error it says so in shared
 * memory and ends; the launcher starts another with a growing delay.  The
 * origin is taken before the connection is made, so that two can't apply the
 * same.
 *
 * src/subscription/apply.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "commands/subscriptioncmds.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/walwriter.h"
#include "replication/logicalproto.h"
#include "replication/origin.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "common/compat.h"
#include "conflict/conflict.h"
#include "subscription/apply.h"
#include "subscription/dispatch.h"
#include "subscription/resolve.h"
#include "subscription/route.h"
#include "subscription/subscription.h"
#include "subscription/waves.h"

#define NAP 1000				/* ms; idle, nothing to confirm */

/* One change may take seconds (a scan of a large table), a streamed transaction hours. */
#define KEEP_ALIVE_CHANGES 8
#define KEEP_ALIVE_INTERVAL 500 /* ms */

static WalReceiverConn *publisher = NULL;
static char origin_name[NAMEDATALEN];

/* ---- Errors --------------------------------------------------------------------- */

/* Has the connection failed, and not a change? */
static bool
is_connection_error(const ErrorData *error)
{
	return ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_CONNECTION_EXCEPTION ||
		error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN;
}

/*
 * disable_on_error: pauses the subscription, as the server disables it.  In
 * shared memory it is stopped before the pause is committed, so that the
 * launcher can't start a worker in between.
 */
static void
pause_subscription(void)
{
	tandem_subscription_set_state(TANDEM_SUBSCRIPTION_STOPPED, "disable_on_error: an error has paused it");
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_subscription_pause(tandem_apply.sub->oid);
	PopActiveSnapshot();
	CommitTransactionCommand();
	ereport(LOG,
			(errmsg("subscription \"%s\" has been paused because of an error", tandem_apply.sub->name),
			 errhint("When the cause is removed, let it go on with tandem.adopt(..., 'enabled = on').")));
}

/* Reports the error that has been caught, and ends the process. */
static void pg_attribute_noreturn()
end_after_error(void)
{
	ErrorData  *error;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	HOLD_INTERRUPTS();
	EmitErrorReport();
	error = CopyErrorData();
	FlushErrorState();
	tandem_explain_remember(error);
	MemoryContextSwitchTo(old);
	tandem_apply_at.origin = NULL;
	AbortOutOfAnyTransaction();

	/*
	 * It may be the commit that has failed, and what is committed from here on
	 * must not carry the position of what has not been applied.
	 */
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
	RESUME_INTERRUPTS();

	tandem_subscription_failed(error);
	tandem_explain();
	if (tandem_apply.sub)
	{
		pgstat_report_subscription_error(tandem_apply.sub->oid, true);
		if (tandem_apply.sub->disableonerr && !is_connection_error(error))
			pause_subscription();
	}
	proc_exit(1);
}

/* ---- Starting ---------------------------------------------------------------------- */

/* Takes the origin; returns where it is. */
static XLogRecPtr
take_origin(void)
{
	RepOriginId origin;
	XLogRecPtr	position;

	StartTransactionCommand();
	snprintf(origin_name, sizeof(origin_name), "pg_%u", tandem_apply.sub->oid);
	origin = replorigin_by_name(origin_name, true);
	if (origin == InvalidRepOriginId)
		origin = replorigin_create(origin_name);
	TANDEM_ORIGIN_SETUP(origin);
	replorigin_session_origin = origin;
	position = replorigin_session_get_progress(false);
	CommitTransactionCommand();
	return position;
}

/* Asks the publisher for its identifier in conflicts, unless option node_id says it. */
static void
learn_node(const char *system)
{
	const Oid	types[] = {TEXTOID};
	TandemSubscriptionOptions options;
	WalRcvExecResult *result;
	TupleTableSlot *slot;
	bool		isnull;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tandem_options_init(&options);
	(void) tandem_subscription_adopted(tandem_apply.sub->oid, &options);
	if (options.node_id[0] == '\0')
	{
		result = tandem_publisher_query(publisher,
										"SELECT pg_catalog.current_setting('tandem.node_id', true)",
										lengthof(types), types);
		slot = MakeSingleTupleTableSlot(result->tupledesc, &TTSOpsMinimalTuple);
		if (!tuplestore_gettupleslot(result->tuplestore, true, false, slot))
			elog(ERROR, "the publisher sent no answer");
		slot_getallattrs(slot);
		isnull = slot->tts_isnull[0];
		if (!isnull)
			strlcpy(options.node_id, TextDatumGetCString(slot->tts_values[0]), NAMEDATALEN);
		ExecDropSingleTupleTableSlot(slot);
		walrcv_clear_result(result);
	}
	tandem_rules_write_node(tandem_apply.sub->oid,
							options.node_id[0] != '\0' ? options.node_id : system);
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* Returns the publisher's timeline. */
static TimeLineID
connect_to_publisher(void)
{
	TimeLineID	timeline;
	char	   *error;

	publisher = TANDEM_WALRCV_CONNECT(tandem_apply.sub->conninfo, tandem_apply.sub->name,
									  TANDEM_MUST_USE_PASSWORD(tandem_apply.sub), &error);
	if (publisher == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not connect to the publisher: %s", error)));
	learn_node(walrcv_identify_system(publisher, &timeline));
	return timeline;
}

/*
 * Shows whose changes come.  What a worker before us confirmed may have been to
 * another server.
 */
static void
report_connected(XLogRecPtr position, TimeLineID timeline)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;

	SpinLockAcquire(&slot->mutex);
	slot->flushed_lsn = position;
	slot->timeline = timeline;
	SpinLockRelease(&slot->mutex);
}

/* Starts replication; two_phase becomes effective here. */
static void
start_streaming(XLogRecPtr position, TimeLineID timeline)
{
	Subscription *sub = tandem_apply.sub;
	WalRcvStreamOptions options;
	int			version = walrcv_server_version(publisher);
	bool		enable_two_phase = false;

	if (sub->twophasestate == LOGICALREP_TWOPHASE_STATE_PENDING)
	{
		StartTransactionCommand();
		enable_two_phase = tandem_row_all_ready();
		CommitTransactionCommand();
	}

	tandem_route_start(publisher, timeline);
	memset(&options, 0, sizeof(options));
	options.logical = true;
	options.startpoint = position;
	options.slotname = sub->slotname;
	options.proto.logical.proto_version =
		version >= 150000 ? LOGICALREP_PROTO_TWOPHASE_VERSION_NUM :
		version >= 140000 ? LOGICALREP_PROTO_STREAM_VERSION_NUM : LOGICALREP_PROTO_VERSION_NUM;
	options.proto.logical.publication_names = sub->publications;
	options.proto.logical.binary = sub->binary;
	options.proto.logical.twophase = enable_two_phase;
	TANDEM_STREAM_OPTIONS(&options, sub, version);
	walrcv_startstreaming(publisher, &options);

	if (enable_two_phase)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		UpdateTwoPhaseState(sub->oid, LOGICALREP_TWOPHASE_STATE_ENABLED);
		PopActiveSnapshot();
		CommitTransactionCommand();
		sub->twophasestate = LOGICALREP_TWOPHASE_STATE_ENABLED;
	}
}

/* ---- Receiving ----------------------------------------------------------------------- */

/* Shows what has arrived. */
static void
report_received(XLogRecPtr received, XLogRecPtr remote_end)
{
	TandemSubscriptionSlot *slot = tandem_my_subscription;
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&slot->mutex);
	slot->received_lsn = received;
	if (remote_end > slot->remote_end_lsn)
		slot->remote_end_lsn = remote_end;
	slot->last_message = now;
	SpinLockRelease(&slot->mutex);
}

void
tandem_apply_keep_alive(void)
{
	static int	changes = 0;

	if (++changes % KEEP_ALIVE_CHANGES == 0)
		tandem_apply_still_alive();
}

void
tandem_apply_still_alive(void)
{
	static TimestampTz last = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (publisher == NULL)
		return;
	if (!TimestampDifferenceExceeds(last, now, KEEP_ALIVE_INTERVAL))
		return;
	last = now;
	tandem_feedback_send(publisher, InvalidXLogRecPtr, false, false);
}

/* One message of the replication protocol. */
static void
handle_message(char *data, int len, XLogRecPtr *received)
{
	StringInfoData message;
	XLogRecPtr	start;
	XLogRecPtr	end;

	message.data = data;
	message.len = len;
	message.maxlen = -1;
	message.cursor = 0;
	switch (pq_getmsgbyte(&message))
	{
		case 'w':
			start = pq_getmsgint64(&message);
			end = pq_getmsgint64(&message);
			(void) pq_getmsgint64(&message);	/* when it was sent */
			*received = Max(*received, Max(start, end));
			tandem_transaction_message(&message);
			break;

		case 'k':
			end = pq_getmsgint64(&message);
			(void) pq_getmsgint64(&message);
			*received = Max(*received, end);
			tandem_feedback_send(publisher, *received, pq_getmsgbyte(&message), false);
			report_received(*received, end);
			break;

		default:
			break;
	}
}

/* May this process end here without losing work? */
static inline bool
at_boundary(void)
{
	return !tandem_apply.in_transaction && !tandem_apply.in_stream;
}

static void
end_if_stopping(XLogRecPtr received)
{
	if (!tandem_subscription_stopping() || !at_boundary())
		return;
	tandem_feedback_send(publisher, received, true, false);
	ereport(LOG,
			(errmsg("tandem apply worker for subscription \"%s\" ends as requested",
					tandem_apply.sub->name)));
	proc_exit(0);
}

/* Receives and applies all there is.  Returns false at the end of the stream. */
static bool
receive_all(XLogRecPtr *received, pgsocket *fd, bool *any)
{
	int			count = 0;

	for (;;)
	{
		char	   *data;
		int			len;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(tandem_apply.message_context);
		len = walrcv_receive(publisher, &data, fd);
		if (len == 0)
			return true;
		if (len < 0)
			return false;
		*any = true;
		handle_message(data, len, received);
		MemoryContextReset(tandem_apply.message_context);

		/* the publisher must hear of us, and we of requests, however much there is */
		if (++count % 1024 == 0)
		{
			tandem_feedback_send(publisher, *received, false, false);
			report_received(*received, InvalidXLogRecPtr);
		}
		end_if_stopping(*received);
	}
}

/* Notices a publisher that is silent for too long. */
static void
check_silence(TimestampTz last_heard, bool *pinged, XLogRecPtr received)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		ping = false;

	if (wal_receiver_timeout > 0)
	{
		if (now >= TimestampTzPlusMilliseconds(last_heard, wal_receiver_timeout))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("the publisher has sent nothing for %d ms", wal_receiver_timeout),
					 errhint("The limit is wal_receiver_timeout.")));
		if (!*pinged && now >= TimestampTzPlusMilliseconds(last_heard, wal_receiver_timeout / 2))
			ping = *pinged = true;
	}
	tandem_feedback_send(publisher, received, ping, ping);
}

static void
run(XLogRecPtr received)
{
	TimestampTz last_heard = GetCurrentTimestamp();
	bool		pinged = false;

	for (;;)
	{
		pgsocket	fd = PGINVALID_SOCKET;
		bool		any = false;
		bool		more;
		int			events;

		pgstat_report_activity(STATE_RUNNING, NULL);
		more = receive_all(&received, &fd, &any);
		if (any)
		{
			last_heard = GetCurrentTimestamp();
			pinged = false;
			report_received(received, InvalidXLogRecPtr);
		}
		tandem_feedback_send(publisher, received, false, false);
		if (at_boundary())
		{
			AcceptInvalidationMessages();
			tandem_row_reread();
			tandem_row_check_two_phase();
			tandem_route_boundary(received);
			if (tandem_route_wants_position())
				tandem_feedback_send(publisher, received, true, true);
			if (!IsTransactionState())
				tandem_conflict_housekeeping();
		}
		MemoryContextReset(tandem_apply.message_context);
		MemoryContextSwitchTo(TopMemoryContext);
		end_if_stopping(received);
		if (!more)
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("the publisher has ended the replication stream")));

		if (!IsTransactionState())
		{
			pgstat_report_activity(STATE_IDLE, NULL);
			pgstat_report_stat(!any);
		}
		events = WaitLatchOrSocket(MyLatch,
								   WL_SOCKET_READABLE | WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
								   fd, Min(tandem_feedback_pending() ? WalWriterDelay : NAP, tandem_route_nap()),
								   WAIT_EVENT_LOGICAL_APPLY_MAIN);
		if (events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (events & WL_TIMEOUT)
			check_silence(last_heard, &pinged, received);
	}
}

/* ---- The process ----------------------------------------------------------------------- */

/* All that may fail. */
static void
apply(void)
{
	ErrorContextCallback context;
	XLogRecPtr	position;
	TimeLineID	timeline;

	StartTransactionCommand();
	tandem_row_read();
	CommitTransactionCommand();
	SetConfigOption("synchronous_commit", tandem_apply.sub->synccommit, PGC_BACKEND, PGC_S_OVERRIDE);

	position = take_origin();
	timeline = connect_to_publisher();
	report_connected(position, timeline);
	StartTransactionCommand();
	tandem_apply_begin_session(tandem_apply.sub);
	CommitTransactionCommand();
	start_streaming(position, timeline);

	ereport(LOG,
			(errmsg("tandem apply worker for subscription \"%s\" has started", tandem_apply.sub->name)));
	tandem_subscription_set_state(TANDEM_SUBSCRIPTION_STREAMING, NULL);

	tandem_apply_at.origin = origin_name;
	context.callback = tandem_apply_error_context;
	context.arg = NULL;
	context.previous = error_context_stack;
	error_context_stack = &context;
	run(position);
}

void
tandem_apply_main(Datum index)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	tandem_subscription_attach(DatumGetInt32(index), true);
	load_file("libpqwalreceiver", false);

	tandem_subscription_connect();

	tandem_apply.message_context = AllocSetContextCreate(TopMemoryContext, "tandem apply message",
														 ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		apply();
	}
	PG_CATCH();
	{
		end_after_error();
	}
	PG_END_TRY();
	proc_exit(0);
}
