/*-------------------------------------------------------------------------
 *
 * own_relation.h
 *	  Relations that only the library writes; see own_relation.c.
 *
 * src/common/own_relation.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_OWN_RELATION_H
#define TANDEM_OWN_RELATION_H

#include "postgres_ext.h"

/*
 * OID of a relation or index of ours, by its name in schema tandem.  Needs a
 * transaction.  Raises an error if there is none: the extension isn't in this
 * database, or is older.
 */
extern Oid	tandem_own_relation(const char *name);

/* The same; InvalidOid if there is none. */
extern Oid	tandem_own_relation_or_invalid(const char *name);

#endif							/* TANDEM_OWN_RELATION_H */
