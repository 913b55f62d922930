/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Transactions that the publisher sends while they are in progress.
 *
 * Their changes come in blocks (STREAM START ... STREAM STOP) and are kept in
 * a temporary file for each; at STREAM COMMIT or STREAM PREPARE the file is
 * read and applied like any transaction.  Where each subtransaction begins is
 * remembered, so that its abort cuts the file there: whatever came later was
 * done inside of it, or by subtransactions that were aborted before.
 *
 *	 (none) --START--> block --STOP--> kept --COMMIT, PREPARE--> applied, removed
 *						 ^				|  |
 *						 +----START-----+  +--ABORT--> cut, or removed
 *
 * Files are open only inside a transaction, whose end closes them.  Nothing of
 * this outlives the process: a transaction that wasn't committed here is sent
 * again from its beginning.
 *
 * Called by transaction.c.
 *
 * src/subscription/stream.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "storage/buffile.h"
#include "storage/fileset.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "common/compat.h"
#include "subscription/apply.h"
#include "subscription/dispatch.h"

typedef struct Subtransaction
{
	TransactionId xid;
	int			fileno;			/* where its first change is */
	off_t		offset;
} Subtransaction;

typedef struct Stream
{
	TransactionId xid;			/* hash key: top transaction there */
	int			nsubs;
	int			max_subs;
	TransactionId last_sub;		/* of the last change */
	Subtransaction *subs;		/* in order of their first change */
} Stream;

static FileSet *files = NULL;
static HTAB *streams = NULL;
static Stream *current = NULL;	/* whose block is open */
static BufFile *current_file = NULL;

static void
file_name(char *name, TransactionId xid)
{
	snprintf(name, MAXPGPATH, "tandem-%u-%u.changes", tandem_apply.sub->oid, xid);
}

/* The stream of a top transaction, or NULL. */
static Stream *
find_stream(TransactionId xid)
{
	return streams ? hash_search(streams, &xid, HASH_FIND, NULL) : NULL;
}

static Stream *
add_stream(TransactionId xid)
{
	Stream	   *stream;
	bool		found;

	if (files == NULL)
	{
		HASHCTL		ctl;

		files = MemoryContextAlloc(TopMemoryContext, sizeof(FileSet));
		FileSetInit(files);
		memset(&ctl, 0, sizeof(ctl));
		ctl.keysize = sizeof(TransactionId);
		ctl.entrysize = sizeof(Stream);
		ctl.hcxt = TopMemoryContext;
		streams = hash_create("tandem streams", 32, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	stream = hash_search(streams, &xid, HASH_ENTER, &found);
	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("transaction %u is streamed from its beginning twice", xid)));
	stream->nsubs = 0;
	stream->max_subs = 0;
	stream->last_sub = InvalidTransactionId;
	stream->subs = NULL;
	return stream;
}

/* Removes a stream and its file. */
static void
drop_stream(TransactionId xid)
{
	Stream	   *stream = find_stream(xid);
	char		name[MAXPGPATH];

	if (stream == NULL)
		return;
	file_name(name, xid);
	BufFileDeleteFileSet(files, name, true);
	if (stream->subs)
		pfree(stream->subs);
	hash_search(streams, &xid, HASH_REMOVE, NULL);
}

/* ---- Keeping ---------------------------------------------------------------------------- */

void
tandem_stream_start(StringInfo message)
{
	TransactionId xid;
	bool		first;
	char		name[MAXPGPATH];
	MemoryContext old;

	if (tandem_apply.in_stream || tandem_apply.in_transaction)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("STREAM START message out of order")));

	xid = logicalrep_read_stream_start(message, &first);
	tandem_apply_at.xid = xid;
	tandem_apply_at.finish_lsn = InvalidXLogRecPtr;
	tandem_transaction_ensure();

	current = first ? add_stream(xid) : find_stream(xid);
	if (current == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("transaction %u is streamed without its beginning", xid)));

	file_name(name, xid);
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (first)
		current_file = BufFileCreateFileSet(files, name);
	else
	{
		current_file = BufFileOpenFileSet(files, name, O_RDWR, false);
		BufFileSeek(current_file, 0, 0, SEEK_END);
	}
	MemoryContextSwitchTo(old);
	tandem_apply.in_stream = true;
}

/* A subtransaction's first change begins here. */
static void
add_subtransaction(Stream *stream, TransactionId xid)
{
	/* the top one is never cut, and most changes follow one of the same */
	if (xid == stream->xid || xid == stream->last_sub)
		return;
	stream->last_sub = xid;
	for (int i = stream->nsubs - 1; i >= 0; i--)
	{
		if (stream->subs[i].xid == xid)
			return;
	}

	if (stream->nsubs == stream->max_subs)
	{
		stream->max_subs = Max(64, stream->max_subs * 2);
		stream->subs = stream->subs ?
			repalloc_huge(stream->subs, stream->max_subs * sizeof(Subtransaction)) :
			MemoryContextAlloc(TopMemoryContext, stream->max_subs * sizeof(Subtransaction));
	}
	stream->subs[stream->nsubs].xid = xid;
	BufFileTell(current_file, &stream->subs[stream->nsubs].fileno, &stream->subs[stream->nsubs].offset);
	stream->nsubs++;
}

void
tandem_stream_change(StringInfo message)
{
	char		action = pq_getmsgbyte(message);
	TransactionId xid = pq_getmsgint(message, 4);
	int			size;

	if (!TransactionIdIsValid(xid))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("invalid transaction ID in streamed replication transaction")));
	add_subtransaction(current, xid);

	/* as it would have come in an ordinary transaction, without the id */
	size = 1 + message->len - message->cursor;
	BufFileWrite(current_file, &size, sizeof(size));
	BufFileWrite(current_file, &action, 1);
	BufFileWrite(current_file, message->data + message->cursor, size - 1);
}

void
tandem_stream_stop(StringInfo message)
{
	if (!tandem_apply.in_stream)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("STREAM STOP message without STREAM START")));
	BufFileClose(current_file);
	current_file = NULL;
	current = NULL;
	tandem_apply.in_stream = false;
	CommitTransactionCommand();
	tandem_apply_at.xid = InvalidTransactionId;
	MemoryContextSwitchTo(tandem_apply.message_context);
}

void
tandem_stream_abort(StringInfo message)
{
	TransactionId xid;
	TransactionId subxid;
	Stream	   *stream;

	if (tandem_apply.in_stream)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("STREAM ABORT message without STREAM STOP")));

	TANDEM_READ_STREAM_ABORT(message, &xid, &subxid);
	if (xid == subxid)
	{
		drop_stream(xid);
		return;
	}

	stream = find_stream(xid);
	for (int i = stream ? stream->nsubs - 1 : -1; i >= 0; i--)
	{
		if (stream->subs[i].xid == subxid)
		{
			char		name[MAXPGPATH];
			BufFile    *file;

			tandem_transaction_ensure();
			file_name(name, xid);
			file = BufFileOpenFileSet(files, name, O_RDWR, false);
			BufFileTruncateFileSet(file, stream->subs[i].fileno, stream->subs[i].offset);
			BufFileClose(file);
			CommitTransactionCommand();
			MemoryContextSwitchTo(tandem_apply.message_context);
			stream->nsubs = i;
			stream->last_sub = InvalidTransactionId;
			return;
		}
	}
	/* it changed nothing for us */
}

/* ---- Applying ------------------------------------------------------------------------------ */

/* Applies what was kept of a transaction that was committed, or prepared. */
static void
replay(TransactionId xid, XLogRecPtr finish_lsn, TimestampTz time, bool committed)
{
	MemoryContext context = tandem_apply.message_context;
	MemoryContext outer;
	StringInfoData message;
	char		name[MAXPGPATH];
	BufFile    *file;

	if (tandem_apply.in_stream)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("end of a streamed transaction without STREAM STOP")));
	if (find_stream(xid) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("transaction %u ends, but was not streamed", xid)));

	tandem_transaction_begin(xid, finish_lsn, time);
	if (!committed)
		tandem_apply_begin_transaction(xid, finish_lsn, 0);
	tandem_transaction_ensure();

	/* what is needed from message to message */
	outer = MemoryContextSwitchTo(TopTransactionContext);
	file_name(name, xid);
	file = BufFileOpenFileSet(files, name, O_RDONLY, false);
	initStringInfo(&message);

	/* the message that we are in must stay, so the changes have a context of their own */
	tandem_apply.message_context = AllocSetContextCreate(TopTransactionContext, "tandem replay",
														 ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		int			size;
		size_t		got;

		CHECK_FOR_INTERRUPTS();
		got = BufFileRead(file, &size, sizeof(size));
		if (got == 0)
			break;
		if (got != sizeof(size) || size <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("could not read from streaming transaction's changes file \"%s\"", name)));
		resetStringInfo(&message);
		enlargeStringInfo(&message, size);
		if (BufFileRead(file, message.data, size) != (size_t) size)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read from streaming transaction's changes file \"%s\"", name)));
		message.len = size;
		message.data[size] = '\0';

		MemoryContextSwitchTo(tandem_apply.message_context);
		tandem_transaction_change(&message);
		MemoryContextReset(tandem_apply.message_context);
	}
	BufFileClose(file);
	tandem_apply.message_context = context;
	MemoryContextSwitchTo(outer);
}

void
tandem_stream_commit(StringInfo message)
{
	LogicalRepCommitData commit;
	TransactionId xid = logicalrep_read_stream_commit(message, &commit);

	replay(xid, commit.commit_lsn, commit.committime, true);
	tandem_transaction_commit(&commit);
	drop_stream(xid);
}

void
tandem_stream_prepare(StringInfo message)
{
	LogicalRepPreparedTxnData data;

	logicalrep_read_stream_prepare(message, &data);
	replay(data.xid, data.prepare_lsn, data.prepare_time, false);
	tandem_prepared_finish(&data);
	drop_stream(data.xid);
}
