/*-------------------------------------------------------------------------
 *
 * journal.h
 *	  What makes a rejoin that was killed go on; journal.c.  And the last part
 *	  of the work, which is done from the journal alone; settle.c.
 *
 * cli/rejoin/journal.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_JOURNAL_H
#define TANDEM_REJOIN_JOURNAL_H

#include "rejoin/rejoin.h"

typedef enum Phase
{
	PHASE_NONE,
	PHASE_REPAIR,				/* files are being repaired: plan again */
	PHASE_SETTLE				/* files are right: cut WAL, switch pg_control */
} Phase;

typedef struct Journal
{
	Phase		phase;
	TimeLineID	source_tli;
	XLogRecPtr	fork;
	TimeLineID	fork_tli;
	XLogRecPtr	checkpoint_lsn; /* the start checkpoint */
	CheckPoint	checkpoint;
	XLogRecPtr	recovery_point; /* minRecoveryPoint, on source_tli */
} Journal;

/* False if there is none.  Refuses one that it can't read. */
extern bool journal_read(Journal *journal);

/*
 * Begins repairs: writes the journal and moves pg_control out of the way.
 * Refuses, with everything as it was, if a server has run since the directory
 * was looked at.
 */
extern void journal_begin(const Journal *journal, const Plan *plan, Target *target);

/* What an interrupted repair was copying as a whole, into the facts. */
extern void journal_load_copies(Facts *facts);

extern void journal_write(const Journal *journal);
extern void journal_remove(void);

/* Developer option for tests: die here if TANDEM_REJOIN_STOP_AT names it. */
extern void stop_point(const char *name);

/* settle.c: WAL, slots, configuration, pg_control.  Idempotent. */
typedef struct SettleInput
{
	const Journal *journal;
	const char *history;		/* content of the source's history file */
	const History *source_history;
	uint32		segment_size;
	const char *conninfo_lines; /* what GenerateRecoveryConfig made */
	bool		switch_off_restore;
	ControlFileData control;
} SettleInput;
extern void settle(const SettleInput *input);

#endif							/* TANDEM_REJOIN_JOURNAL_H */
