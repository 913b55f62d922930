/*-------------------------------------------------------------------------
 *
 * own_relation.c
 *	  Relations that only the library writes.
 *
 * State that has to be in WAL and part of a transaction is in materialized views
 * that are never populated: relations with storage that no publication can
 * contain, nobody can write with SQL, and a standby has.  They are written as
 * the server writes its catalogs (catalog/indexing.h), and are never in the
 * logical log.
 *
 * Called by subscription and conflict.
 *
 * src/common/own_relation.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "utils/lsyscache.h"

#include "common/own_relation.h"

Oid
tandem_own_relation_or_invalid(const char *name)
{
	Oid			schema = get_namespace_oid("tandem", true);

	return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

Oid
tandem_own_relation(const char *name)
{
	Oid			oid = tandem_own_relation_or_invalid(name);

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("relation \"tandem.%s\" does not exist", name),
				 errhint("Create the extension pg_tandem in this database, or update it.")));
	return oid;
}
