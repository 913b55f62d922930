/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every difference between the server versions we build for.
 *
 * Code elsewhere has no version conditionals; it asks for a capability named
 * here.  Supported: 15, 16, 17, 18.
 *
 * src/common/compat.h
 *-------------------------------------------------------------------------
 */
#ifndef TANDEM_COMPAT_H
#define TANDEM_COMPAT_H

#include "pg_config.h"

#if PG_VERSION_NUM < 150000
#error "pg_tandem needs PostgreSQL 15 or newer"
#endif

/* Version number that opens pg_logical/snapshots files (snapbuild.c). */
#if PG_VERSION_NUM >= 170000
#define TANDEM_SNAPBUILD_VERSION 6
#elif PG_VERSION_NUM >= 160000
#define TANDEM_SNAPBUILD_VERSION 5
#else
#define TANDEM_SNAPBUILD_VERSION 4
#endif

/* 18 has pg_noreturn instead, which stands elsewhere in a declaration. */
#if PG_VERSION_NUM >= 180000
#define pg_attribute_noreturn() __attribute__((noreturn))
#endif

/* VARSIZE and its like. */
#if PG_VERSION_NUM >= 160000 && !defined(FRONTEND)
#include "varatt.h"
#endif

/* Memory for the "extra" of a setting. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_GUC_MALLOC(size) guc_malloc(LOG, size)
#else
#define TANDEM_GUC_MALLOC(size) malloc(size)
#endif

/*
 * Has a slot with this persistent data lost WAL or rows that it needs?  Caller
 * holds the slot's mutex, or has copied the data under it.
 */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SLOT_INVALIDATED(data) ((data)->invalidated != RS_INVAL_NONE)
#else
#define TANDEM_SLOT_INVALIDATED(data) \
	((data)->invalidated_at != InvalidXLogRecPtr && \
	 (data)->restart_lsn == InvalidXLogRecPtr)
#endif

/* Creates a slot of this server's own: not a failover slot, not a synced one. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_SLOT_CREATE(name, logical, persistency, two_phase) \
	ReplicationSlotCreate(name, logical, persistency, two_phase, false, false)
#else
#define TANDEM_SLOT_CREATE(name, logical, persistency, two_phase) \
	ReplicationSlotCreate(name, logical, persistency, two_phase)
#endif

/* Acquires a slot without waiting; an invalidated one, too. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_SLOT_ACQUIRE(name) ReplicationSlotAcquire(name, true, false)
#else
#define TANDEM_SLOT_ACQUIRE(name) ReplicationSlotAcquire(name, true)
#endif

/* A commit or abort record names relations whose storage is dropped. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_XACT_HAS_RELATIONS XACT_XINFO_HAS_RELFILELOCATORS
#else
#define TANDEM_XACT_HAS_RELATIONS XACT_XINFO_HAS_RELFILENODES
#endif

/* This process's number among all PGPROCs. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_MY_PROCNO MyProcNumber
#else
#define TANDEM_MY_PROCNO (MyProc->pgprocno)
#endif

/* The path of a relation's fork, palloc'd (common/relpath.h). */
#if PG_VERSION_NUM >= 180000
#define TANDEM_FILE_PATH(db, spc, rel, fork) pstrdup(GetRelationPath(db, spc, rel, -1, fork).str)
#else
#define TANDEM_FILE_PATH(db, spc, rel, fork) GetRelationPath(db, spc, rel, -1, fork)
#endif

/*
 * The settings of a new standby for a connection (fe_utils/recovery_gen.h), without the
 * database that slot synchronization would use: we can't name it.
 */
#if PG_VERSION_NUM >= 170000
#define TANDEM_RECOVERY_CONFIG(conn, slot) GenerateRecoveryConfig(conn, slot, NULL)
#else
#define TANDEM_RECOVERY_CONFIG(conn, slot) GenerateRecoveryConfig(conn, slot)
#endif

/* ---- the storage manager ---------------------------------------------------- */

/*
 * The functions in smgrsw, the table in smgr.c through which every page, every
 * truncation and every removal of a relation passes.  16 is right by reading.
 */
#if PG_VERSION_NUM >= 180000
#define TANDEM_SMGR_TABLE \
	{mdinit, NULL, mdopen, mdclose, mdcreate, mdexists, mdunlink, mdextend, \
	 mdzeroextend, mdprefetch, mdmaxcombine, mdreadv, mdstartreadv, mdwritev, \
	 mdwriteback, mdnblocks, mdtruncate, mdimmedsync, mdregistersync, mdfd}
#elif PG_VERSION_NUM >= 170000
#define TANDEM_SMGR_TABLE \
	{mdinit, NULL, mdopen, mdclose, mdcreate, mdexists, mdunlink, mdextend, \
	 mdzeroextend, mdprefetch, mdreadv, mdwritev, \
	 mdwriteback, mdnblocks, mdtruncate, mdimmedsync, mdregistersync}
#elif PG_VERSION_NUM >= 160000
#define TANDEM_SMGR_TABLE \
	{mdinit, NULL, mdopen, mdclose, mdcreate, mdexists, mdunlink, mdextend, \
	 mdzeroextend, mdprefetch, mdread, mdwrite, \
	 mdwriteback, mdnblocks, mdtruncate, mdimmedsync}
#else
#define TANDEM_SMGR_TABLE \
	{mdinit, NULL, mdopen, mdclose, mdcreate, mdexists, mdunlink, mdextend, \
	 mdprefetch, mdread, mdwrite, \
	 mdwriteback, mdnblocks, mdtruncate, mdimmedsync}
#endif

/* Writes take an array of pages. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_SMGR_WRITES_VECTORS
#endif

/* A page as it is handed to the storage manager, and room for one. */
#if PG_VERSION_NUM >= 160000
typedef const void *TandemPage;
#define TANDEM_PAGE_ROOM PGIOAlignedBlock
#define TANDEM_RELFILE RelFileLocatorBackend
#define TANDEM_SMGR_RELFILE(reln) ((reln)->smgr_rlocator)
#define TANDEM_RELFILE_IS_TEMP(relfile) RelFileLocatorBackendIsTemp(relfile)
#else
typedef char *TandemPage;
#define TANDEM_PAGE_ROOM PGAlignedBlock
#define TANDEM_RELFILE RelFileNodeBackend
#define TANDEM_SMGR_RELFILE(reln) ((reln)->smgr_rnode)
#define TANDEM_RELFILE_IS_TEMP(relfile) RelFileNodeBackendIsTemp(relfile)
#endif

/*
 * Truncation has got the old length as an argument in a minor release.  What
 * was built on one side of it can't replace the function on the other.
 */
#define TANDEM_TRUNCATE_HAS_OLD_LENGTH(version) \
	((version) >= 180000 || \
	 ((version) >= 170003 && (version) < 180000) || \
	 ((version) >= 160007 && (version) < 170000) || \
	 ((version) >= 150011 && (version) < 160000))
#if TANDEM_TRUNCATE_HAS_OLD_LENGTH(PG_VERSION_NUM)
#define TANDEM_TRUNCATE_OLD_LENGTH
#endif

/* Truncates the main fork, whose old length is known. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_SMGRTRUNCATE(reln, old, new) \
	smgrtruncate(reln, &(ForkNumber){MAIN_FORKNUM}, 1, &(BlockNumber){old}, &(BlockNumber){new})
#elif defined(TANDEM_TRUNCATE_OLD_LENGTH)
#define TANDEM_SMGRTRUNCATE(reln, old, new) \
	smgrtruncate2(reln, &(ForkNumber){MAIN_FORKNUM}, 1, &(BlockNumber){old}, &(BlockNumber){new})
#else
#define TANDEM_SMGRTRUNCATE(reln, old, new) \
	smgrtruncate(reln, &(ForkNumber){MAIN_FORKNUM}, 1, &(BlockNumber){new})
#endif

/* ---- reading pages ------------------------------------------------------------ */

/* The files of one relation. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_RELFILE_ID RelFileLocator
#define TANDEM_SET_RELFILE_ID(rel, tablespace, database, node) \
	((rel).spcOid = (tablespace), (rel).dbOid = (database), (rel).relNumber = (node))
#define TANDEM_RELFILE_ID_EQUALS(a, b) RelFileLocatorEquals(a, b)
#define TANDEM_INIT_BUFFER_TAG(tag, rel, fork, block) InitBufferTag(&(tag), &(rel), fork, block)
#else
#define TANDEM_RELFILE_ID RelFileNode
#define TANDEM_SET_RELFILE_ID(rel, tablespace, database, node) \
	((rel).spcNode = (tablespace), (rel).dbNode = (database), (rel).relNode = (node))
#define TANDEM_RELFILE_ID_EQUALS(a, b) RelFileNodeEquals(a, b)
#define TANDEM_INIT_BUFFER_TAG(tag, rel, fork, block) INIT_BUFFERTAG(tag, rel, fork, block)
#endif

/* Path of a fork's first segment. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_RELATION_PATH(path, size, rel, fork) strlcpy(path, relpathperm(rel, fork).str, size)
#else
#define TANDEM_RELATION_PATH(path, size, rel, fork) strlcpy(path, relpathperm(rel, fork), size)
#endif

/* Is this a page?  Reports nothing. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_PAGE_IS_VERIFIED(page, block) PageIsVerified(page, block, 0, NULL)
#else
#define TANDEM_PAGE_IS_VERIFIED(page, block) PageIsVerifiedExtended(page, block, 0)
#endif

/* ---- subscriptions ------------------------------------------------------------ */

/* Does this role own the subscription? */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SUBSCRIPTION_OWNERCHECK(subid, role) \
	object_ownercheck(SubscriptionRelationId, subid, role)
#else
#define TANDEM_SUBSCRIPTION_OWNERCHECK(subid, role) pg_subscription_ownercheck(subid, role)
#endif

/* State to recheck rows that others have changed, without a plan. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_EPQ_INIT(epqstate, estate) EvalPlanQualInit(epqstate, estate, NULL, NIL, -1, NIL)
#else
#define TANDEM_EPQ_INIT(epqstate, estate) EvalPlanQualInit(epqstate, estate, NULL, NIL, -1)
#endif

/* A role's privilege on a schema. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SCHEMA_ACLCHECK(schema, role, mode) \
	object_aclcheck(NamespaceRelationId, schema, role, mode)
#else
#define TANDEM_SCHEMA_ACLCHECK(schema, role, mode) pg_namespace_aclcheck(schema, role, mode)
#endif

/* The server's own workers of a subscription; caller has LogicalRepWorkerLock. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_CORE_WORKERS(subid) logicalrep_workers_find(subid, false, false)
#else
#define TANDEM_CORE_WORKERS(subid) logicalrep_workers_find(subid, false)
#endif

/* All tables of a subscription, as a list of SubscriptionRelState. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SUBSCRIPTION_RELATIONS(subid) GetSubscriptionRelations(subid, false)
#else
#define TANDEM_SUBSCRIPTION_RELATIONS(subid) GetSubscriptionRelations(subid)
#endif

/* Adds a table without an LSN. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_ADD_SUBSCRIPTION_REL(subid, relid, state) \
	AddSubscriptionRelState(subid, relid, state, InvalidXLogRecPtr, true)
#else
#define TANDEM_ADD_SUBSCRIPTION_REL(subid, relid, state) \
	AddSubscriptionRelState(subid, relid, state, InvalidXLogRecPtr)
#endif

/* Changes a table's state; takes the lock itself. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_UPDATE_SUBSCRIPTION_REL(subid, relid, state, lsn) \
	UpdateSubscriptionRelState(subid, relid, state, lsn, false)
#else
#define TANDEM_UPDATE_SUBSCRIPTION_REL(subid, relid, state, lsn) \
	UpdateSubscriptionRelState(subid, relid, state, lsn)
#endif

/* A connection to the publisher for logical replication. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_WALRCV_CONNECT(conninfo, name, password, error) \
	walrcv_connect(conninfo, true, true, password, name, error)
#elif PG_VERSION_NUM >= 160000
#define TANDEM_WALRCV_CONNECT(conninfo, name, password, error) \
	walrcv_connect(conninfo, true, password, name, error)
#else
#define TANDEM_WALRCV_CONNECT(conninfo, name, password, error) \
	walrcv_connect(conninfo, true, name, error)
#endif
#if PG_VERSION_NUM >= 160000
#define TANDEM_MUST_USE_PASSWORD(sub) ((sub)->passwordrequired && !(sub)->ownersuperuser)
#else
#define TANDEM_MUST_USE_PASSWORD(sub) false
#endif

#if PG_VERSION_NUM >= 170000
#define TANDEM_CREATE_WAIT_EVENT_SET(n) CreateWaitEventSet(CurrentResourceOwner, n)
#else
#define TANDEM_CREATE_WAIT_EVENT_SET(n) CreateWaitEventSet(CurrentMemoryContext, n)
#endif

/* ---- applying changes --------------------------------------------------------- */

/* The primary key's index, if it isn't deferrable. */
#if PG_VERSION_NUM >= 180000
#define TANDEM_PRIMARY_KEY_INDEX(rel) RelationGetPrimaryKeyIndex(rel, false)
#else
#define TANDEM_PRIMARY_KEY_INDEX(rel) RelationGetPrimaryKeyIndex(rel)
#endif

/*
 * Gives an executor state its only table; the columns that an update changes;
 * index entries, those in "indexes" only unless another row has the same.
 */
#if PG_VERSION_NUM >= 160000
#if PG_VERSION_NUM >= 180000
#define TANDEM_INIT_RANGE_TABLE(estate, rte) \
	do { \
		List	   *permissions = NIL; \
		addRTEPermissionInfo(&permissions, rte); \
		ExecInitRangeTable(estate, list_make1(rte), permissions, bms_make_singleton(1)); \
	} while (0)
#else
#define TANDEM_INIT_RANGE_TABLE(estate, rte) \
	do { \
		List	   *permissions = NIL; \
		addRTEPermissionInfo(&permissions, rte); \
		ExecInitRangeTable(estate, list_make1(rte), permissions); \
	} while (0)
#endif
#define TANDEM_UPDATED_COLUMNS(estate) \
	(((RTEPermissionInfo *) linitial((estate)->es_rteperminfos))->updatedCols)
#define TANDEM_ROOT_TO_PARTITION(relinfo, estate) ExecGetRootToChildMap(relinfo, estate)
#define TANDEM_INSERT_INDEX_TUPLES(relinfo, slot, estate) \
	ExecInsertIndexTuples(relinfo, slot, estate, false, false, NULL, NIL, false)
#define TANDEM_INSERT_INDEX_TUPLES_UNLESS(relinfo, slot, estate, conflict, indexes) \
	ExecInsertIndexTuples(relinfo, slot, estate, false, true, conflict, indexes, false)
#else
#define TANDEM_INIT_RANGE_TABLE(estate, rte) ExecInitRangeTable(estate, list_make1(rte))
#define TANDEM_UPDATED_COLUMNS(estate) \
	(((RangeTblEntry *) linitial((estate)->es_range_table))->updatedCols)
#define TANDEM_ROOT_TO_PARTITION(relinfo, estate) ((relinfo)->ri_RootToPartitionMap)
#define TANDEM_INSERT_INDEX_TUPLES(relinfo, slot, estate) \
	ExecInsertIndexTuples(relinfo, slot, estate, false, false, NULL, NIL)
#define TANDEM_INSERT_INDEX_TUPLES_UNLESS(relinfo, slot, estate, conflict, indexes) \
	ExecInsertIndexTuples(relinfo, slot, estate, false, true, conflict, indexes)
#endif

#if PG_VERSION_NUM >= 180000
#define TANDEM_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, NULL, nkeys, 0)
#else
#define TANDEM_INDEX_BEGINSCAN(rel, index, snapshot, nkeys) \
	index_beginscan(rel, index, snapshot, nkeys, 0)
#endif

/* TRUNCATE by the subscription's owner. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_TRUNCATE(rels, relids, logged, restart) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, restart, false)
#else
#define TANDEM_TRUNCATE(rels, relids, logged, restart) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, restart)
#endif

/* Makes the origin this process's. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_ORIGIN_SETUP(node) replorigin_session_setup(node, 0)
#else
#define TANDEM_ORIGIN_SETUP(node) replorigin_session_setup(node)
#endif

/* Options of START_REPLICATION that depend on the subscription. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_STREAM_OPTIONS(options, sub, version) \
	do { \
		(options)->proto.logical.streaming_str = \
			(sub)->stream != LOGICALREP_STREAM_OFF && (version) >= 140000 ? "on" : NULL; \
		(options)->proto.logical.origin = \
			(version) >= 160000 ? pstrdup((sub)->origin) : NULL; \
	} while (0)
#else
#define TANDEM_STREAM_OPTIONS(options, sub, version) \
	((options)->proto.logical.streaming = (sub)->stream)
#endif

/* Is the publisher asked for its own changes only, and not for those it forwards? */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SUBSCRIPTION_FILTERS_ORIGIN(sub) \
	((sub)->origin != NULL && pg_strcasecmp((sub)->origin, LOGICALREP_ORIGIN_NONE) == 0)
#else
#define TANDEM_SUBSCRIPTION_FILTERS_ORIGIN(sub) ((void) (sub), false)
#endif

/* A STREAM ABORT message; we ask for no parallel streaming. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_READ_STREAM_ABORT(in, top, sub) \
	do { \
		LogicalRepStreamAbortData abort_data; \
		logicalrep_read_stream_abort(in, &abort_data, false); \
		*(top) = abort_data.xid; \
		*(sub) = abort_data.subxid; \
	} while (0)
#else
#define TANDEM_READ_STREAM_ABORT(in, top, sub) logicalrep_read_stream_abort(in, top, sub)
#endif

/* ---- copies of tables ---------------------------------------------------------- */

/* Those of its tables that core doesn't apply to yet. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_SUBSCRIPTION_NOT_READY(subid) GetSubscriptionRelations(subid, true)
#else
#define TANDEM_SUBSCRIPTION_NOT_READY(subid) GetSubscriptionNotReadyRelations(subid)
#endif

/* Gives a relation new, empty files; builds a relation's indexes anew. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_NEW_FILES(rel) RelationSetNewRelfilenumber(rel, (rel)->rd_rel->relpersistence)
#else
#define TANDEM_NEW_FILES(rel) RelationSetNewRelfilenode(rel, (rel)->rd_rel->relpersistence)
#endif
#if PG_VERSION_NUM >= 170000
#define TANDEM_REINDEX_RELATION(relid, flags, params) reindex_relation(NULL, relid, flags, params)
#else
#define TANDEM_REINDEX_RELATION(relid, flags, params) reindex_relation(relid, flags, params)
#endif

/* ---- tombstones ----------------------------------------------------------------- */

/* A logical message, not flushed; returns its end. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_LOG_MESSAGE(prefix, message, size, transactional) \
	LogLogicalMessage(prefix, message, size, transactional, false)
#else
#define TANDEM_LOG_MESSAGE(prefix, message, size, transactional) \
	LogLogicalMessage(prefix, message, size, transactional)
#endif

/* Reads from a temporary file; less than asked for at its end. */
#if PG_VERSION_NUM >= 160000
#define TANDEM_BUFFILE_READ(file, to, size) BufFileReadMaybeEOF(file, to, size, true)
#else
#define TANDEM_BUFFILE_READ(file, to, size) BufFileRead(file, to, size)
#endif

/* A tuple of a decoded change. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_CHANGE_TUPLE(buffer) (buffer)
#else
#define TANDEM_CHANGE_TUPLE(buffer) ((buffer) ? &(buffer)->tuple : NULL)
#endif

/* Commit time of a transaction that is decoded. */
#if PG_VERSION_NUM >= 190000
#define TANDEM_TXN_COMMIT_TIME(txn) ((txn)->commit_time)
#else
#define TANDEM_TXN_COMMIT_TIME(txn) ((txn)->xact_time.commit_time)
#endif

/* ---- waiting ------------------------------------------------------------------ */

/* A wait event of our own where the server has them; called at startup. */
#if PG_VERSION_NUM >= 170000
#define TANDEM_NEW_WAIT_EVENT(name) WaitEventExtensionNew(name)
#else
#define TANDEM_NEW_WAIT_EVENT(name) PG_WAIT_EXTENSION
#endif

#endif							/* TANDEM_COMPAT_H */
