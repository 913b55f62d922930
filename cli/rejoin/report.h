/*-------------------------------------------------------------------------
 *
 * report.h
 *	  What "tandem rejoin" tells while it works and at its end; report.c.
 *
 * cli/rejoin/report.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_REPORT_H
#define TANDEM_REJOIN_REPORT_H

#include "portability/instr_time.h"
#include "rejoin/rejoin.h"

typedef enum Outcome
{
	OUTCOME_PLANNED,			/* --dry-run */
	OUTCOME_FOLLOWING,			/* it was a standby, and merely behind */
	OUTCOME_REJOINED
} Outcome;

#define MOST_STEPS 16

typedef struct Verified
{
	bool		done;
	const char *why_not;
	int64		same;			/* pages equal on both nodes */
	int64		changing;		/* changed on the source each time they were looked at */
} Verified;

typedef struct Report
{
	bool		json;
	bool		terminal;
	bool		dry_run;
	const Target *target;
	const Source *source;
	const Facts *facts;			/* NULL if WAL wasn't read */
	const Plan *plan;			/* NULL if there was none */
	const RepairResult *result;
	bool		resumed;
	bool		started;
	Outcome		outcome;
	XLogRecPtr	recovery_point;
	uint64		wal_read;
	Verified	verified;
	const char *slot;
	const char *note;			/* what is left to do, or NULL */

	int			nsteps;
	const char *steps[MOST_STEPS];
	double		seconds[MOST_STEPS];
	instr_time	begun;
} Report;

extern void report_init(Report *report, const Options *options);

/* One step after the other; a step ends where the next begins. */
extern void report_step(Report *report, const char *name);
extern void report_step_end(Report *report);

/* On a terminal, how far the step is; total 0 = unknown. */
extern void report_progress(Report *report, uint64 done, uint64 total, const char *unit);

extern void report_plan(Report *report);
extern void report_end(Report *report);

#endif							/* TANDEM_REJOIN_REPORT_H */
