/*-------------------------------------------------------------------------
 *
 * version.c
 *	  Do the library and the SQL objects of this database belong together?
 *
 * The library is replaced by a package upgrade and a restart, the SQL objects
 * by ALTER EXTENSION.  Between the two, functions refuse and name the command
 * that mends it.
 *
 * src/common/version.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "common/version.h"

PG_FUNCTION_INFO_V1(tandem_library_version);

/* The extension's version in this database (palloc'd), or NULL. */
static char *
extension_version(void)
{
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key[1];
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key[0], Anum_pg_extension_extname, BTEqualStrategyNumber,
				F_NAMEEQ, CStringGetDatum("pg_tandem"));
	rel = table_open(ExtensionRelationId, AccessShareLock);
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tuple, Anum_pg_extension_extversion,
								   RelationGetDescr(rel), &isnull);

		if (!isnull)
			version = TextDatumGetCString(datum);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

/*
 * Raises an error when this database's extension isn't the library's version.
 * Needs a transaction.  A match is remembered for the session.
 */
void
tandem_check_sql_version(void)
{
	static bool matched = false;
	char	   *version;

	if (matched)
		return;
	version = extension_version();
	if (version == NULL || strcmp(version, TANDEM_VERSION) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_tandem's library has version %s, but its SQL objects in this database have version %s",
						TANDEM_VERSION, version ? version : "(none)"),
				 version ?
					 errhint("On the primary, run ALTER EXTENSION pg_tandem UPDATE in this database; if the library is the older one, restart the server.") :
					 errhint("On the primary, run CREATE EXTENSION pg_tandem in this database.")));
	matched = true;
	pfree(version);
}

Datum
tandem_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(TANDEM_VERSION));
}
