/*-------------------------------------------------------------------------
 *
 * gate.h
 *	  Holding logical walsenders back; see gate.c.
 *
 * src/slots/gate.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_GATE_H
#define TANDEM_GATE_H

extern void tandem_gate_init(void);

/*
 * Called by the tandem worker of a primary when it gets SIGTERM (true) and
 * when it starts (false): held walsenders must not stop a fast shutdown.
 */
extern void tandem_gate_set_shutdown(bool shutting_down);

/*
 * Does a listed standby slot that doesn't exist, is logical or is invalid hold
 * everything back?  If so, *reason and *hint (palloc'd) say which.
 */
extern bool tandem_gate_blocked(const char **reason, const char **hint);

#endif							/* TANDEM_GATE_H */
