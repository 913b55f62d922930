/*-------------------------------------------------------------------------
 *
 * cycle.h
 *	  What the files share that make up a cycle of the slot sync worker.
 *
 * Private to cycle.c, answer.c, install.c, reserve.c and follow.c.
 *
 * src/slots/cycle.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_CYCLE_H
#define TANDEM_CYCLE_H

#include "slots/slots.h"

/* What is remembered of a slot from cycle to cycle. */
typedef struct SlotMemory
{
	NameData	name;			/* key */
	uint64		seen;			/* cycle that last saw it */
	XLogRecPtr	remote_confirmed;	/* as last told by the primary ... */
	int64		remote_started; /* ... in this incarnation */
	TimestampTz moved;			/* when restart_lsn last moved */
	XLogRecPtr	proven_from;	/* a restart point the helper has proven ... */
	XLogRecPtr	proven_decoded; /* ... without a file there: its LSN, or 0 */
	TimestampTz helper_tried;
	XLogRecPtr	disproved_from; /* decoding from here ... */
	XLogRecPtr	disproved_upto; /* ... is not consistent by then */
	char		helper_error[TANDEM_TEXT_LEN];
	char		error[TANDEM_TEXT_LEN]; /* last one logged */
} SlotMemory;

/* The cycle under way. */
typedef struct Cycle
{
	/* from the primary */
	int64		started;
	TimeLineID	timeline;
	XLogRecPtr	flushed;
	TransactionId hold;
	TimestampTz held_until;		/* by the primary's clock; 0 = for ever */
	TandemRemoteSlot *slots;
	int			nslots;
	TandemSnapshotFile *files;	/* sent, or at least told of */
	char	  **contents;
	int		   *lengths;
	int			nfiles;
	TandemMappingFile *mappings;
	XLogRecPtr *mapping_asof;
	char	  **mapping_contents;
	int		   *mapping_lengths;
	int			nmappings;

	/* here */
	XLogRecPtr	replayed;
	TimeLineID	replay_timeline;
	XLogSegNo	oldest;			/* of the WAL here */
	bool		wrong_timeline;
	char	   *install_error;

	uint64		sent_before;	/* bytes over this connection before the cycle */
	uint64		received_before;
	bool		reserved;		/* the reserve slot is in force */

	/* outcome */
	TandemSlotEntry *entries;
	int			nentries;
	XLogRecPtr	reserve;		/* oldest that is needed by a pending slot */
	XLogRecPtr	fetch_from;		/* oldest WAL to fetch; 0 = none */
	int			created;
	int			moved;
	int			saved;
	int			dropped;
	int			installed;
	int			unproven;
	uint64		fetched;
	uint64		restart_lag;
	bool		progress;		/* something moved: don't stretch the pause */
} Cycle;

/* answer.c */
extern const char *tandem_promoted(void);
extern const char *tandem_connection_hint(int sqlerrcode);
extern void tandem_connect_primary(void);
extern void tandem_ask_primary(Cycle *cycle, TransactionId saved_xmin);
extern struct TandemRemote *tandem_primary(void);

/* install.c */
extern void tandem_install_files(Cycle *cycle);
extern bool tandem_files_complete(Cycle *cycle, const TandemRemoteSlot *slot,
								  Oid database, bool exists, TandemSlotEntry *entry);

/* reserve.c */
extern bool tandem_wal_limit_exceeded(Cycle *cycle, XLogRecPtr restart,
									  TandemSlotEntry *entry);
extern void tandem_reserve_also(Cycle *cycle, XLogRecPtr lsn);
extern void tandem_reserve_for_new_slots(Cycle *cycle);
extern bool tandem_wal_complete(Cycle *cycle, XLogRecPtr restart,
								TandemSlotEntry *entry);
extern void tandem_fetch_missing_wal(Cycle *cycle, MemoryContext context);
extern void tandem_barrier_ended(bool succeeded);

/* follow.c */
extern SlotMemory *tandem_slot_memory(const char *name);
extern void tandem_forget_unseen(void);
extern void tandem_pending(TandemSlotEntry *entry, const char *hint,
						   const char *fmt,...) pg_attribute_printf(3, 4);
extern const char *tandem_local_disproof(const TandemLocalSlot *local,
										 XLogSegNo oldest);
extern void tandem_drop_slot(Cycle *cycle, const char *name, const char *why);
extern void tandem_show_local(TandemSlotEntry *entry);
extern void tandem_process_slot(Cycle *cycle, MemoryContext context,
								const TandemRemoteSlot *slot, TandemSlotEntry *entry);
extern TandemSlotEntry *tandem_new_entry(Cycle *cycle, const char *name,
										 const char *database, const char *plugin);
extern void tandem_process_leftovers(Cycle *cycle, MemoryContext context);
extern void tandem_take_helper_result(void);
extern uint64 tandem_cycle_number;

#endif							/* TANDEM_CYCLE_H */
