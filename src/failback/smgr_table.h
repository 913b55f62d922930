/*-------------------------------------------------------------------------
 *
 * smgr_table.h
 *	  How the guard is called; see smgr_table.c.
 *
 * src/failback/smgr_table.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_SMGR_TABLE_H
#define TANDEM_SMGR_TABLE_H

/*
 * Replaces the functions and proves that they are called.  Called once, by
 * the postmaster, at load.  Failure is logged; the server works as without us.
 */
extern void tandem_smgr_install(void);

/* NULL if it worked, else why not, and what to do about it. */
extern const char *tandem_smgr_refusal(const char **hint);

/*
 * The rest of the proof, what needs shared memory: called by a background
 * worker when it starts.  Returns false if a replaced function isn't called.
 */
extern bool tandem_smgr_self_test(void);

#endif							/* TANDEM_SMGR_TABLE_H */
