/*-------------------------------------------------------------------------
 *
 * watch.h
 *	  Prints a screen once or again and again; see watch.c.
 *
 * cli/watch.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_WATCH_H
#define TANDEM_WATCH_H

#include <signal.h>

#include "node.h"
#include "pqexpbuffer.h"

/* Ctrl-C was pressed during --watch. */
extern volatile sig_atomic_t watch_interrupted;

/*
 * Set by a screen function: this was the last screen.  For --watch that waits
 * for an end.
 */
extern bool watch_finished;

/* Composes one screen from what the nodes said; returns the exit code. */
typedef int (*ScreenFunction)(Topology *topology, PQExpBuffer out);

/*
 * Runs the whole subcommand; returns the exit code of the last screen.  With
 * "is_log" what is no terminal gets screens without headings: lines to keep.
 */
extern int	watch_run(const Options *options, ScreenFunction screen, bool is_log);

#endif							/* TANDEM_WATCH_H */
