/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  What the parts of the plan share; see plan.c.
 *
 * cli/rejoin/plan.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_REJOIN_PLAN_H
#define TANDEM_REJOIN_PLAN_H

#include "rejoin/rejoin.h"

/* Files of a database that the new primary copied since the fork. */
typedef struct FolderCopy
{
	OidPair		from;
	OidPair		to;
} FolderCopy;

typedef struct Planning
{
	Plan	   *plan;
	Facts	   *facts;
	const Target *target;
	Source	   *source;
	WalReader  *reader;

	/* both sorted by path */
	SourceFile *here;
	int			nhere;
	SourceFile *there;
	int			nthere;

	relset_hash *settled;		/* relations whose files are deleted or copied
								 * whole: their pages need no look */
	PairList	folders_settled;	/* the same of databases' folders */

	/* what the new primary did to databases since the fork */
	PairList	created_there;
	PairList	dropped_there;
	int			ncopies;
	FolderCopy *copies;
} Planning;

extern Action *plan_add(Plan *plan, ActionKind kind, Reason reason, const char *path);

/* plan_pages.c: pages ahead of the fork, torn, or cut off after it */
extern void plan_pages(Planning *p);

/*
 * What the pages of a relation's main fork tell of its age: one is from before
 * the fork, or some are from after it and none from before, or neither.  Reads
 * up to the first page from before.
 */
typedef enum RelAge
{
	REL_OLD,
	REL_NEW,
	REL_AGELESS
} RelAge;
extern RelAge rel_age(const Planning *p, RelFile rel);

/* plan_files.c: relations, folders of databases, tablespaces */
extern void plan_tablespaces(Planning *p);
extern void plan_folders(Planning *p);
extern void plan_relations(Planning *p);

/* plan_databases.c: what the new primary did to databases since the fork */
extern void plan_read_databases(Planning *p, const History *source_history);
extern bool folder_was_dropped_there(const Planning *p, Oid database, Oid tablespace);
extern void plan_check_copies(const Planning *p);

/* plan_rest.c: everything that isn't a relation */
extern void plan_rest(Planning *p);

#endif							/* TANDEM_REJOIN_PLAN_H */
