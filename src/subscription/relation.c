/*-------------------------------------------------------------------------
 *
 * relation.c
 *	  The publisher's tables, and the local tables their changes go to.
 *
 * An entry is made by the publisher's RELATION message, which precedes the
 * first change of a table in a session and comes again after it was altered
 * there.  Its local half is made when the table is first opened, and again
 * after an invalidation: found by schema and name, columns matched by name.
 *
 *	 unmapped ----------> valid, closed <-----------> valid, open
 *				 open		   |						|
 *		 ^					   | invalidation,			|
 *		 +---------------------+ RELATION message		+---> still open, its
 *																map stays until
 *																it is closed
 *
 * Only the owner of the open table may close it, so an invalidation never frees
 * a map somebody reads.  What it marks takes effect at the next opening.
 *
 * The server's own logicalrep_rel_open() isn't used: it remembers "ready", and
 * locks the table before it looks whether the change is to be applied.
 *
 * Called by dispatch.c, target.c and modify.c, in any of our workers that apply
 * changes.
 *
 * src/subscription/relation.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "executor/executor.h"
#include "nodes/bitmapset.h"
#include "nodes/makefuncs.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "common/compat.h"
#include "subscription/dispatch.h"
#include "subscription/relation.h"

static HTAB *relations = NULL;
static MemoryContext relations_context = NULL;

/* ---- The publisher's half ------------------------------------------------------ */

static void
forget_all(Datum arg, int cacheid, uint32 hash)
{
	HASH_SEQ_STATUS status;
	TandemRelation *relation;

	hash_seq_init(&status, relations);
	while ((relation = hash_seq_search(&status)) != NULL)
		relation->valid = false;
}

static void
forget_table(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	TandemRelation *relation;

	hash_seq_init(&status, relations);
	while ((relation = hash_seq_search(&status)) != NULL)
	{
		if (!OidIsValid(relid) || relation->localoid == relid)
			relation->valid = false;
	}
}

static void
init(void)
{
	HASHCTL		ctl;

	relations_context = AllocSetContextCreate(TopMemoryContext, "tandem relations",
											  ALLOCSET_DEFAULT_SIZES);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(LogicalRepRelId);
	ctl.entrysize = sizeof(TandemRelation);
	ctl.hcxt = relations_context;
	relations = hash_create("tandem relations", 128, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	CacheRegisterRelcacheCallback(forget_table, (Datum) 0);
	/* a schema renamed: found by name, tables are now others */
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_all, (Datum) 0);
}

TandemRelation *
tandem_relation_read(StringInfo message)
{
	LogicalRepRelation *remote;
	TandemRelation *relation;
	MemoryContext context;
	MemoryContext old;
	bool		found;

	if (relations == NULL)
		init();

	context = AllocSetContextCreate(relations_context, "tandem relation", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	remote = logicalrep_read_rel(message);
	MemoryContextSwitchTo(old);

	relation = hash_search(relations, &remote->remoteid, HASH_ENTER, &found);
	if (!found)
	{
		memset(relation, 0, sizeof(TandemRelation));
		relation->remoteid = remote->remoteid;
	}
	else
	{
		/* the caller has closed it */
		Assert(relation->rel == NULL && relation->target == NULL);
		MemoryContextDelete(relation->context);
		if (relation->map)
			MemoryContextDelete(relation->map->context);
	}
	relation->remote = remote;
	relation->context = context;
	relation->map = NULL;
	relation->valid = false;
	return relation;
}

TandemRelation *
tandem_relation_find_or_null(LogicalRepRelId remoteid)
{
	return relations ? hash_search(relations, &remoteid, HASH_FIND, NULL) : NULL;
}

TandemRelation *
tandem_relation_find(LogicalRepRelId remoteid)
{
	TandemRelation *relation = tandem_relation_find_or_null(remoteid);

	if (relation == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("no relation message named the remote relation ID %u", remoteid)));
	return relation;
}

/* ---- The map -------------------------------------------------------------------- */

/* The publisher's column of this name, or -1. */
static int
remote_column(const LogicalRepRelation *remote, const char *name)
{
	for (int i = 0; i < remote->natts; i++)
	{
		if (strcmp(remote->attnames[i], name) == 0)
			return i;
	}
	return -1;
}

/* Raises an error that names the publisher's columns that are missing here. */
static void
check_missing_columns(const LogicalRepRelation *remote, const TandemMap *map)
{
	Bitmapset  *mapped = NULL;
	StringInfoData missing;
	int			nmissing = 0;

	for (int i = 0; i < map->natts; i++)
	{
		if (map->columns[i].remote >= 0)
			mapped = bms_add_member(mapped, map->columns[i].remote);
	}

	initStringInfo(&missing);
	for (int i = 0; i < remote->natts; i++)
	{
		if (!bms_is_member(i, mapped))
			appendStringInfo(&missing, "%s\"%s\"", nmissing++ > 0 ? ", " : "", remote->attnames[i]);
	}
	if (nmissing > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("logical replication target relation \"%s.%s\" is missing replicated column: %s",
							   "logical replication target relation \"%s.%s\" is missing replicated columns: %s",
							   nmissing, remote->nspname, remote->relname, missing.data),
				 errhint("Add what is missing with ALTER TABLE; a generated column can't take a published one's values.")));
	bms_free(mapped);
	pfree(missing.data);
}

/* Sets what a row is found by, and whether the publisher sends it. */
static void
set_identity(TandemMap *map, Relation rel)
{
	Bitmapset  *key;
	int			i = -1;

	map->identity = RelationGetReplicaIndex(rel);
	if (OidIsValid(map->identity))
		key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY);
	else
	{
		map->identity = TANDEM_PRIMARY_KEY_INDEX(rel);
		key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	}

	map->updatable = OidIsValid(map->identity) || map->remote->replident == REPLICA_IDENTITY_FULL;
	while ((i = bms_next_member(key, i)) >= 0)
	{
		AttrNumber	attnum = i + FirstLowInvalidHeapAttributeNumber;
		int			remote;

		if (!AttrNumberIsForUserDefinedAttr(attnum))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("logical replication target relation \"%s.%s\" uses system columns in REPLICA IDENTITY index",
							map->remote->nspname, map->remote->relname)));
		remote = map->columns[attnum - 1].remote;
		if (remote < 0 || !bms_is_member(remote, map->remote->attkeys))
			map->updatable = false;
	}
	bms_free(key);
}

TandemMap *
tandem_map_build(const LogicalRepRelation *remote, Relation rel,
				 const TandemMap *parent, const AttrMap *attrmap)
{
	TupleDesc	desc = RelationGetDescr(rel);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tandem map",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	TandemMap  *map = palloc0(sizeof(TandemMap));

	map->context = context;
	map->remote = remote;
	map->natts = desc->natts;
	map->columns = palloc0(Max(desc->natts, 1) * sizeof(TandemColumn));
	map->complete = true;
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		TandemColumn *column = &map->columns[i];

		column->dropped = att->attisdropped;
		column->generated = att->attgenerated != '\0';
		column->type = att->atttypid;
		column->typmod = att->atttypmod;
		if (column->dropped || column->generated)
			column->remote = -1;
		else if (parent == NULL)
			column->remote = remote_column(remote, NameStr(att->attname));
		else
		{
			AttrNumber	of_parent = attrmap ? attrmap->attnums[i] : i + 1;

			column->remote = of_parent > 0 ? parent->columns[of_parent - 1].remote : -1;
		}
		if (column->remote < 0 && !column->dropped && !column->generated)
			map->complete = false;
	}
	if (parent == NULL)
		check_missing_columns(remote, map);
	set_identity(map, rel);
	MemoryContextSwitchTo(old);
	return map;
}

void
tandem_map_check_updatable(const TandemMap *map)
{
	if (map->updatable)
		return;
	if (OidIsValid(map->identity))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publisher did not send replica identity column expected by the logical replication target relation \"%s.%s\"",
						map->remote->nspname, map->remote->relname),
				 errhint("Give the table the same replica identity on both sides.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("logical replication target relation \"%s.%s\" has neither REPLICA IDENTITY index nor PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL",
					map->remote->nspname, map->remote->relname),
			 errhint("Give the table a primary key, or set REPLICA IDENTITY on both sides.")));
}

/* ---- The local half ------------------------------------------------------------ */

/* Finds, locks and maps the table by its name. */
static void
open_by_name(TandemRelation *relation, LOCKMODE lockmode)
{
	const LogicalRepRelation *remote = relation->remote;
	MemoryContext old;
	Oid			relid;

	relid = RangeVarGetRelid(makeRangeVar(remote->nspname, remote->relname, -1), lockmode, true);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("logical replication target relation \"%s.%s\" does not exist",
						remote->nspname, remote->relname),
				 errhint("Create it, then the subscription goes on by itself.")));
	relation->rel = table_open(relid, NoLock);
	relation->localoid = relid;
	CheckSubscriptionRelkind(relation->rel->rd_rel->relkind, remote->nspname, remote->relname);

	if (relation->map)
		MemoryContextDelete(relation->map->context);
	relation->map = NULL;

	/* what invalidates from now on is seen at the next opening */
	relation->valid = true;
	old = MemoryContextSwitchTo(relations_context);
	relation->map = tandem_map_build(remote, relation->rel, NULL, NULL);
	relation->generation++;
	MemoryContextSwitchTo(old);
}

TandemRelation *
tandem_relation_open(LogicalRepRelId remoteid, LOCKMODE lockmode)
{
	TandemRelation *relation = tandem_relation_find(remoteid);

	if (relation->rel)
		elog(ERROR, "remote relation ID %u is already open", remoteid);

	/* locking it processes invalidations, which may void what we know */
	if (relation->valid && relation->map)
	{
		relation->rel = try_table_open(relation->localoid, lockmode);
		if (relation->rel && !relation->valid)
		{
			table_close(relation->rel, lockmode);
			relation->rel = NULL;
		}
	}
	if (relation->rel == NULL)
		open_by_name(relation, lockmode);
	relation->lockmode = lockmode;
	return relation;
}

void
tandem_relation_close(TandemRelation *relation, LOCKMODE lockmode)
{
	table_close(relation->rel, lockmode);
	relation->rel = NULL;
}

void
tandem_relations_abort(void)
{
	HASH_SEQ_STATUS status;
	TandemRelation *relation;

	if (relations == NULL)
		return;
	hash_seq_init(&status, relations);
	while ((relation = hash_seq_search(&status)) != NULL)
	{
		relation->rel = NULL;
		relation->valid = false;
	}
}

/* ---- Values ----------------------------------------------------------------------- */

/* The value of a local column; not for those that the publisher left unchanged. */
static inline Datum
read_value(TandemMap *map, TandemColumn *column, LogicalRepTupleData *row, bool *isnull)
{
	StringInfo	value = &row->colvalues[column->remote];
	Datum		datum;

	if (unlikely(column->remote >= row->ncols))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg_internal("a row of \"%s.%s\" has %d columns", map->remote->nspname,
								 map->remote->relname, row->ncols)));

	tandem_apply_at.column = column->remote;
	*isnull = false;
	switch (row->colstatus[column->remote])
	{
		case LOGICALREP_COLUMN_TEXT:
			if (!column->text_known)
			{
				Oid			function;

				getTypeInputInfo(column->type, &function, &column->text_param);
				fmgr_info_cxt(function, &column->text, map->context);
				column->text_known = true;
			}
			datum = InputFunctionCall(&column->text, value->data, column->text_param, column->typmod);
			break;

		case LOGICALREP_COLUMN_BINARY:
			if (!column->binary_known)
			{
				Oid			function;

				getTypeBinaryInputInfo(column->type, &function, &column->binary_param);
				fmgr_info_cxt(function, &column->binary, map->context);
				column->binary_known = true;
			}
			value->cursor = 0;	/* the same row may be read twice */
			datum = ReceiveFunctionCall(&column->binary, value, column->binary_param, column->typmod);
			if (value->cursor != value->len)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
						 errmsg("incorrect binary data format in logical replication column %d",
								column->remote + 1)));
			break;

		default:
			/* null, or a value not sent where one is needed, which counts as null */
			*isnull = true;
			datum = (Datum) 0;
			break;
	}
	tandem_apply_at.column = -1;
	return datum;
}

void
tandem_map_store(TandemMap *map, TupleTableSlot *slot, LogicalRepTupleData *row,
				 const AttrNumber *keys, int nkeys)
{
	ExecClearTuple(slot);
	if (keys)
	{
		memset(slot->tts_values, 0, map->natts * sizeof(Datum));
		memset(slot->tts_isnull, true, map->natts * sizeof(bool));
		for (int i = 0; i < nkeys; i++)
		{
			int			att = keys[i] - 1;

			if (map->columns[att].remote >= 0)
				slot->tts_values[att] = read_value(map, &map->columns[att], row,
												   &slot->tts_isnull[att]);
		}
	}
	else
	{
		for (int att = 0; att < map->natts; att++)
		{
			if (map->columns[att].remote >= 0)
				slot->tts_values[att] = read_value(map, &map->columns[att], row,
												   &slot->tts_isnull[att]);
			else
			{
				slot->tts_values[att] = (Datum) 0;
				slot->tts_isnull[att] = true;
			}
		}
	}
	ExecStoreVirtualTuple(slot);
}

void
tandem_map_modify(TandemMap *map, TupleTableSlot *slot, TupleTableSlot *old,
				  LogicalRepTupleData *row)
{
	ExecClearTuple(slot);
	slot_getallattrs(old);
	memcpy(slot->tts_values, old->tts_values, map->natts * sizeof(Datum));
	memcpy(slot->tts_isnull, old->tts_isnull, map->natts * sizeof(bool));
	for (int att = 0; att < map->natts; att++)
	{
		TandemColumn *column = &map->columns[att];

		if (column->remote >= 0 && column->remote < row->ncols &&
			row->colstatus[column->remote] != LOGICALREP_COLUMN_UNCHANGED)
			slot->tts_values[att] = read_value(map, column, row, &slot->tts_isnull[att]);
	}
	ExecStoreVirtualTuple(slot);
}
