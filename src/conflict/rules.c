/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  The outcome for a table and type.
 *
 * For now the subscription's.
 *
 * Called by src/subscription/modify.c.
 *
 * src/conflict/rules.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "conflict/conflict.h"

const TandemTableRules *
tandem_table_rules(Oid relid)
{
	static TandemTableRules rules;

	rules.outcomes = tandem_conflict_session.outcomes;
	rules.deltas = NULL;
	return &rules;
}
