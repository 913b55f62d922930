/* sql/pg_tandem--0.1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_tandem" to load this file. \quit

-- Created here rather than through the control file: CREATE EXTENSION must
-- fail when somebody else already owns a schema of this name.
CREATE SCHEMA tandem;
GRANT USAGE ON SCHEMA tandem TO PUBLIC;

/* ---- what this server is ------------------------------------------------ */

CREATE FUNCTION tandem.library_version() RETURNS text
AS 'MODULE_PATHNAME', 'tandem_library_version' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION tandem.library_version() IS
'version of the library this server has loaded';

/* ---- wire functions: called by the other node --------------------------- */

-- One standby cycle: takes or moves the standby's hold, then returns the
-- eligible slots and every snapshot and mapping file the standby lacks.
CREATE FUNCTION tandem.source_slots(
	protocol integer,
	standby text,
	relied_hold xid,
	saved_xmin xid,
	snapshots bytea,
	mappings text[],
	OUT kind "char",
	OUT name text,
	OUT database name,
	OUT plugin name,
	OUT flags integer,
	OUT restart_lsn pg_lsn,
	OUT confirmed_lsn pg_lsn,
	OUT two_phase_at pg_lsn,
	OUT catalog_xmin xid,
	OUT content bytea)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_source_slots' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.source_slots(integer, text, xid, xid, bytea, text[]) IS
'called by a standby: failover slots and the files that differ there';

-- Part of one WAL segment or timeline history file.
CREATE FUNCTION tandem.source_wal(file text, start bigint, length integer)
RETURNS bytea
AS 'MODULE_PATHNAME', 'tandem_source_wal' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.source_wal(text, bigint, integer) IS
'called by a standby: part of a WAL segment or timeline history file';

REVOKE ALL ON FUNCTION tandem.source_slots(integer, text, xid, xid, bytea, text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.source_wal(text, bigint, integer) FROM PUBLIC;

/* ---- wire functions of "tandem rejoin" ------------------------------------ */

CREATE FUNCTION tandem.rejoin_source(
	OUT library text,
	OUT system_identifier text,
	OUT server_version integer,
	OUT in_recovery boolean,
	OUT timeline integer,
	OUT insert_lsn pg_lsn,
	OUT flush_lsn pg_lsn,
	OUT checkpoint_lsn pg_lsn,
	OUT checkpoint_redo pg_lsn,
	OUT checkpoint_timeline integer,
	OUT wal_segment_size integer,
	OUT block_size integer,
	OUT relation_segment_blocks integer,
	OUT data_checksums boolean,
	OUT history text)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_rejoin_source' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION tandem.rejoin_source() IS
'called by "tandem rejoin": what this server is and where its WAL ends';

CREATE FUNCTION tandem.source_files(OUT path text, OUT size bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_source_files' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.source_files() IS
'called by "tandem rejoin": files of the data directory; folders have no size';

CREATE FUNCTION tandem.source_file(path text, start bigint, length integer)
RETURNS bytea
AS 'MODULE_PATHNAME', 'tandem_source_file' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.source_file(text, bigint, integer) IS
'called by "tandem rejoin": part of a file that is not a relation''s';

-- In the select list it returns row by row; in FROM the whole answer is
-- collected first.
CREATE FUNCTION tandem.source_blocks(
	tablespace oid[],
	database oid[],
	filenode oid[],
	fork integer[],
	first bigint[],
	count integer[],
	OUT request integer,
	OUT first_block bigint,
	OUT content bytea,
	OUT relation_blocks bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_source_blocks' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.source_blocks(oid[], oid[], oid[], integer[], bigint[], integer[]) IS
'called by "tandem rejoin": pages as they are now, then the length of the fork, for each request';

CREATE FUNCTION tandem.page_digests(
	tablespace oid[],
	database oid[],
	filenode oid[],
	fork integer[],
	block bigint[],
	rmgr integer[],
	OUT request integer,
	OUT lsn pg_lsn,
	OUT digest bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_page_digests' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.page_digests(oid[], oid[], oid[], integer[], bigint[], integer[]) IS
'called by "tandem rejoin": LSN and digest of pages, to compare two nodes';

REVOKE ALL ON FUNCTION tandem.rejoin_source() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.source_files() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.source_file(text, bigint, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.source_blocks(oid[], oid[], oid[], integer[], bigint[], integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.page_digests(oid[], oid[], oid[], integer[], bigint[], integer[]) FROM PUBLIC;

/* ---- failover slots ----------------------------------------------------- */

CREATE FUNCTION tandem.slots_status(
	OUT slot_name name,
	OUT database name,
	OUT plugin name,
	OUT state text,
	OUT reason text,
	OUT hint text,
	OUT restart_lsn pg_lsn,
	OUT confirmed_lsn pg_lsn,
	OUT catalog_xmin xid,
	OUT primary_restart_lsn pg_lsn,
	OUT primary_confirmed_lsn pg_lsn,
	OUT primary_catalog_xmin xid,
	OUT last_sync timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_slots_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;

CREATE VIEW tandem.slots AS SELECT * FROM tandem.slots_status();
COMMENT ON VIEW tandem.slots IS
'one row a failover slot: is it ready here, and if not why and what to do';

CREATE FUNCTION tandem.sync_slots() RETURNS SETOF tandem.slots
AS 'MODULE_PATHNAME', 'tandem_sync_slots' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION tandem.sync_slots() IS
'runs one slot sync cycle now and waits for it; standby only';

-- What "tandem uninstall" calls on every server before DROP EXTENSION.
CREATE FUNCTION tandem.forget() RETURNS integer
AS 'MODULE_PATHNAME', 'tandem_forget' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.forget() IS
'drops the slots that pg_tandem made on this server and removes its folder from the data directory; returns how many failover slots';

CREATE FUNCTION tandem.failover_ready(OUT ready boolean, OUT reason text, OUT hint text)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_failover_ready' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION tandem.failover_ready() IS
'would promoting this standby now lose nothing of any failover slot?';

CREATE FUNCTION tandem.sync_status_row(
	OUT role text,
	OUT worker_pid integer,
	OUT primary_slot_name name,
	OUT hold_name name,
	OUT hold_xmin xid,
	OUT cycles bigint,
	OUT failed_cycles bigint,
	OUT last_cycle timestamptz,
	OUT last_success timestamptz,
	OUT cycle_ms float8,
	OUT cycle_cpu_ms float8,
	OUT bytes_sent bigint,
	OUT bytes_received bigint,
	OUT slots_created integer,
	OUT slots_moved integer,
	OUT slots_saved integer,
	OUT slots_dropped bigint,
	OUT files_installed bigint,
	OUT wal_fetched bigint,
	OUT restart_lag bigint,
	OUT error text,
	OUT hint text)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_sync_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW tandem.sync_status AS SELECT * FROM tandem.sync_status_row();
COMMENT ON VIEW tandem.sync_status IS
'one row: the slot sync worker of this server and its last cycle';

/* ---- standbys, seen from the primary ------------------------------------ */

CREATE FUNCTION tandem.standbys_status(
	OUT slot_name name,
	OUT slot_exists boolean,
	OUT connected boolean,
	OUT pid integer,
	OUT flush_lsn pg_lsn,
	OUT in_gate boolean,
	OUT hold_xmin xid,
	OUT hold_age bigint,
	OUT hold_reported timestamptz,
	OUT warning text,
	OUT hint text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_standbys_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE FUNCTION tandem.failback_standbys_status(
	OUT slot_name name,
	OUT warning text,
	OUT hint text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_failback_standbys_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE VIEW tandem.standbys AS
SELECT slot_name,
	coalesce(s.slot_exists, false) AS slot_exists,
	coalesce(s.connected, false) AS connected,
	s.pid,
	s.flush_lsn,
	coalesce(s.in_gate, false) AS in_gate,
	f.slot_name IS NOT NULL AS in_guard,
	s.hold_xmin,
	s.hold_age,
	s.hold_reported,
	coalesce(s.warning, f.warning) AS warning,
	CASE WHEN s.warning IS NOT NULL THEN s.hint ELSE f.hint END AS hint
FROM tandem.standbys_status() AS s
	FULL JOIN tandem.failback_standbys_status() AS f USING (slot_name);
COMMENT ON VIEW tandem.standbys IS
'one row a physical slot or name listed in a setting: what it has confirmed, what waits for it';

CREATE FUNCTION tandem.drop_hold(standby text) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_drop_hold' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.drop_hold(text) IS
'ends at once what the primary holds for a standby; argument is the standby''s primary_slot_name';

/* ---- failback ------------------------------------------------------------ */

CREATE FUNCTION tandem.failback_status(
	OUT state text,
	OUT mode text,
	OUT standbys text,
	OUT reason text,
	OUT hint text,
	OUT since timestamptz,
	OUT confirmed_lsn pg_lsn,
	OUT lag_bytes bigint,
	OUT waiting integer,
	OUT waiting_since timestamptz,
	OUT data_waits bigint,
	OUT data_wait_ms float8,
	OUT commit_waits bigint,
	OUT commit_wait_ms float8,
	OUT longest_wait_ms float8,
	OUT timeouts bigint,
	OUT cancels bigint,
	OUT degradations bigint,
	OUT last_degraded timestamptz,
	OUT rearm_after timestamptz,
	OUT wal_kept_by name,
	OUT wal_kept_from pg_lsn,
	OUT wal_kept_bytes bigint,
	OUT wal_problem text,
	OUT worker_pid integer)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_failback_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW tandem.failback AS SELECT * FROM tandem.failback_status();
COMMENT ON VIEW tandem.failback IS
'one row: does the guard of data pages work, what does it cost, how much WAL is kept for a node to be rejoined';

/* ---- subscriptions ------------------------------------------------------- */

CREATE FUNCTION tandem.adopt(subscription name, options text DEFAULT '') RETURNS void
AS 'MODULE_PATHNAME', 'tandem_adopt' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.adopt(name, text) IS
'takes over a disabled subscription of this database, or changes options of an adopted one';

CREATE FUNCTION tandem.release(subscription name, force boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_release' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.release(name, boolean) IS
'hands a subscription back to the server, disabled; force empties tables that are copied halfway';

CREATE FUNCTION tandem.subscriptions_status(
	OUT subscription name,
	OUT subid oid,
	OUT owner name,
	OUT enabled boolean,
	OUT state text,
	OUT reason text,
	OUT pid integer,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT flushed_lsn pg_lsn,
	OUT lag_bytes bigint,
	OUT lag interval,
	OUT inserts bigint,
	OUT updates bigint,
	OUT deletes bigint,
	OUT truncates bigint,
	OUT transactions bigint,
	OUT last_error text,
	OUT last_error_at timestamptz,
	OUT error_count integer,
	OUT next_retry timestamptz,
	OUT database name,
	OUT hint text,
	OUT workers integer,
	OUT update_missing bigint,
	OUT delete_missing bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_subscriptions_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE VIEW tandem.subscriptions AS SELECT * FROM tandem.subscriptions_status();
COMMENT ON VIEW tandem.subscriptions IS
'one row a subscription with a label of pg_tandem: does it run, how far is it, what was the last error';

/* ---- copies of tables ------------------------------------------------------ */

-- Storage that no publication can contain and no SQL can write: materialized
-- views that are never populated.  Written by the library.

-- State of each table's copy; see src/subscription/waves.h.
CREATE MATERIALIZED VIEW tandem.copies AS SELECT
	NULL::oid AS subid,
	NULL::oid AS relid,
	NULL::"char" AS state,
	NULL::bigint AS wave,
	NULL::integer AS ordinal,
	NULL::oid AS remote_relid,
	NULL::boolean AS resync,
	NULL::boolean AS content,
	NULL::boolean AS stale,
	NULL::integer AS attempts,
	NULL::timestamptz AS next_retry,
	NULL::timestamptz AS started,
	NULL::timestamptz AS finished,
	NULL::bigint AS rows_done,
	NULL::bigint AS rows_estimated,
	NULL::bigint AS bytes_done,
	NULL::bigint AS bytes_estimated,
	NULL::text AS error,
	NULL::text AS hint,
	NULL::text AS remote_name,
	NULL::text AS columns,
	NULL::text AS query,
	NULL::boolean AS "binary"
WITH NO DATA;
CREATE UNIQUE INDEX copies_key ON tandem.copies (subid, relid);

-- The publisher's snapshot of each wave that has tables catching up.
CREATE MATERIALIZED VIEW tandem.wave_snapshots AS SELECT
	NULL::oid AS subid,
	NULL::bigint AS wave,
	NULL::text AS snapshot,
	NULL::pg_lsn AS lsn,
	NULL::integer AS timeline,
	NULL::timestamptz AS taken
WITH NO DATA;
CREATE UNIQUE INDEX wave_snapshots_key ON tandem.wave_snapshots (subid, wave);

-- Changes of tables that are being copied.  total: bytes of the table's entries up
-- to this one.  An entry at position 0: the spool has been given up for wave "seq".
CREATE MATERIALIZED VIEW tandem.spool AS SELECT
	NULL::oid AS subid,
	NULL::oid AS relid,
	NULL::pg_lsn AS commit_lsn,
	NULL::bigint AS seq,
	NULL::xid AS xid,
	NULL::timestamptz AS commit_time,
	NULL::integer AS bytes,
	NULL::bigint AS total,
	NULL::bytea AS messages
WITH NO DATA;
CREATE UNIQUE INDEX spool_key ON tandem.spool (subid, relid, commit_lsn, seq);
ALTER MATERIALIZED VIEW tandem.spool ALTER COLUMN messages SET STORAGE EXTERNAL;

CREATE FUNCTION tandem.tables_status(
	OUT subscription name,
	OUT schema name,
	OUT name name,
	OUT relid oid,
	OUT state text,
	OUT wave bigint,
	OUT pid integer,
	OUT rows_done bigint,
	OUT rows_estimated bigint,
	OUT bytes_done bigint,
	OUT bytes_estimated bigint,
	OUT started timestamptz,
	OUT finished timestamptz,
	OUT spool_bytes bigint,
	OUT last_error text,
	OUT hint text,
	OUT attempts integer,
	OUT next_retry timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_tables_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;

CREATE VIEW tandem.tables AS
SELECT subscription, schema, name, relid, state, wave, pid,
	rows_done, rows_estimated, bytes_done, bytes_estimated, started,
	-- at the speed of this table so far
	CASE WHEN state = 'copying' AND bytes_done > 0 AND bytes_estimated > bytes_done
		THEN started + (clock_timestamp() - started) * (bytes_estimated::float8 / bytes_done)
	END AS estimated_end,
	finished, spool_bytes, last_error, hint, attempts, next_retry
FROM tandem.tables_status();
COMMENT ON VIEW tandem.tables IS
'one row a table of an adopted subscription of this database: is it copied, how far, what was the last error';

CREATE FUNCTION tandem.resync(subscription name, "table" regclass) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_resync' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.resync(name, regclass) IS
'copies one table of an adopted subscription again; its readers wait while that happens';

/* ---- tombstones ------------------------------------------------------------ */

-- A ring of eight relations; what one holds is an epoch.  See src/conflict/store.h.
-- hash 0: entries about a whole table.
CREATE MATERIALIZED VIEW tandem.deleted_0 AS SELECT
	NULL::oid AS root,
	NULL::oid AS leaf,
	NULL::integer AS version,
	NULL::bigint AS hash,
	NULL::bytea AS key,
	NULL::pg_lsn AS lsn,
	NULL::bigint AS n,
	NULL::xid AS xid,
	NULL::timestamptz AS "time",
	NULL::integer AS origin,
	NULL::"char" AS kind
WITH NO DATA;
CREATE INDEX deleted_0_key ON tandem.deleted_0 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_1 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_1_key ON tandem.deleted_1 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_2 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_2_key ON tandem.deleted_2 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_3 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_3_key ON tandem.deleted_3 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_4 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_4_key ON tandem.deleted_4 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_5 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_5_key ON tandem.deleted_5 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_6 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_6_key ON tandem.deleted_6 (root, hash);
CREATE MATERIALIZED VIEW tandem.deleted_7 AS SELECT * FROM tandem.deleted_0 WITH NO DATA;
CREATE INDEX deleted_7_key ON tandem.deleted_7 (root, hash);

-- One row an epoch that has a relation of the ring.
CREATE MATERIALIZED VIEW tandem.deletion_epochs AS SELECT
	NULL::integer AS ring,
	NULL::bigint AS epoch,
	NULL::"char" AS state,
	NULL::timestamptz AS opened,
	NULL::timestamptz AS closed,
	NULL::pg_lsn AS first_lsn,
	NULL::pg_lsn AS last_lsn,
	NULL::timestamptz AS max_time,
	NULL::bigint AS entries,
	NULL::bigint AS bytes
WITH NO DATA;
CREATE UNIQUE INDEX deletion_epochs_key ON tandem.deletion_epochs (ring);

-- One row: how far deletes have been collected.
CREATE MATERIALIZED VIEW tandem.deletion_state AS SELECT
	NULL::bigint AS system,
	NULL::integer AS timeline,
	NULL::timestamptz AS started,
	NULL::pg_lsn AS collected_lsn,
	NULL::timestamptz AS collected_time,
	NULL::integer AS ring,
	NULL::bigint AS epoch
WITH NO DATA;
CREATE UNIQUE INDEX deletion_state_key ON tandem.deletion_state (system);

-- Tables whose deletes are collected, for which subscription, since when.
CREATE MATERIALIZED VIEW tandem.deletion_tables AS SELECT
	NULL::oid AS subid,
	NULL::oid AS root,
	NULL::pg_lsn AS lsn,
	NULL::timestamptz AS "time"
WITH NO DATA;
CREATE UNIQUE INDEX deletion_tables_key ON tandem.deletion_tables (subid, root);

-- Times of which deletes are not known; subid 0 = for all subscriptions.
CREATE MATERIALIZED VIEW tandem.deletion_windows AS SELECT
	NULL::oid AS subid,
	NULL::pg_lsn AS from_lsn,
	NULL::pg_lsn AS to_lsn,
	NULL::timestamptz AS from_time,
	NULL::timestamptz AS to_time,
	NULL::text AS reason,
	NULL::timestamptz AS recorded,
	NULL::timestamptz AS passed
WITH NO DATA;
CREATE INDEX deletion_windows_key ON tandem.deletion_windows (subid, to_time);
/* ---- the conflict log ------------------------------------------------------- */

-- Storage as that of copies; columns as in src/conflict/log.h.
CREATE SEQUENCE tandem.conflict_id;
REVOKE ALL ON SEQUENCE tandem.conflict_id FROM PUBLIC;

CREATE MATERIALIZED VIEW tandem.conflict_log AS SELECT
	NULL::bigint AS id,
	NULL::timestamptz AS "time",
	NULL::oid AS subid,
	NULL::name AS subscription,
	NULL::oid AS relid,
	NULL::name AS schema,
	NULL::name AS "table",
	NULL::text AS type,
	NULL::"char" AS operation,
	NULL::text AS configured,
	NULL::text AS resolution,
	NULL::text AS detection,
	NULL::text AS reason,
	NULL::text AS local_origin,
	NULL::xid AS local_xid,
	NULL::timestamptz AS local_time,
	NULL::text AS remote_origin,
	NULL::text AS remote_node,
	NULL::xid AS remote_xid,
	NULL::timestamptz AS remote_time,
	NULL::pg_lsn AS remote_lsn,
	NULL::jsonb AS key,
	NULL::jsonb AS local_row,
	NULL::jsonb AS remote_row,
	NULL::jsonb AS result_row,
	NULL::integer AS attempts,
	NULL::timestamptz AS last_attempt,
	NULL::"char" AS settled,
	NULL::timestamptz AS settled_at,
	NULL::name AS settled_by,
	NULL::integer AS bytes
WITH NO DATA;
CREATE UNIQUE INDEX conflict_log_id ON tandem.conflict_log (id);
CREATE INDEX conflict_log_time ON tandem.conflict_log ("time", id);

-- Sums are what counts: each transaction with conflicts adds rows, the cleaning of
-- the log puts them together.
CREATE MATERIALIZED VIEW tandem.conflict_counts AS SELECT
	NULL::oid AS subid,
	NULL::oid AS relid,
	NULL::text AS type,
	NULL::text AS resolution,
	NULL::bigint AS conflicts,
	NULL::bigint AS stored,
	NULL::bigint AS bytes,
	NULL::timestamptz AS since,
	NULL::timestamptz AS "last"
WITH NO DATA;

-- Newest first.  NULL: whatever it is.  Shows of rows what the caller may read.
CREATE FUNCTION tandem.find_conflicts(
	only_id bigint DEFAULT NULL,
	not_before timestamptz DEFAULT NULL,
	of_subscription name DEFAULT NULL,
	of_table text DEFAULT NULL,
	of_type text DEFAULT NULL,
	most integer DEFAULT NULL,
	OUT id bigint,
	OUT "time" timestamptz,
	OUT subscription name,
	OUT schema name,
	OUT "table" name,
	OUT relid oid,
	OUT type text,
	OUT operation text,
	OUT outcome text,
	OUT resolution text,
	OUT detection text,
	OUT reason text,
	OUT local_origin text,
	OUT local_xid xid,
	OUT local_time timestamptz,
	OUT remote_origin text,
	OUT remote_node text,
	OUT remote_xid xid,
	OUT remote_time timestamptz,
	OUT remote_lsn pg_lsn,
	OUT key jsonb,
	OUT local_row jsonb,
	OUT remote_row jsonb,
	OUT result_row jsonb,
	OUT hidden text,
	OUT attempts integer,
	OUT last_attempt timestamptz,
	OUT state text,
	OUT settled_at timestamptz,
	OUT settled_by name)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_find_conflicts' LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100;

CREATE VIEW tandem.conflicts AS SELECT * FROM tandem.find_conflicts();
COMMENT ON VIEW tandem.conflicts IS
'one row a conflict of this database: what it was, who wrote which row when, and what was done';

CREATE FUNCTION tandem.conflict_counters(
	OUT subscription name,
	OUT schema name,
	OUT "table" name,
	OUT relid oid,
	OUT type text,
	OUT resolution text,
	OUT conflicts bigint,
	OUT since timestamptz,
	OUT "last" timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_conflict_counters' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 100;

CREATE VIEW tandem.conflict_stats AS SELECT * FROM tandem.conflict_counters();
COMMENT ON VIEW tandem.conflict_stats IS
'how many conflicts there have been, by subscription, table, type and what was done';

CREATE FUNCTION tandem.conflict_storage_row(
	OUT stored bigint,
	OUT bytes bigint,
	OUT oldest timestamptz,
	OUT newest timestamptz,
	OUT open_last_day bigint,
	OUT failed_last_day bigint,
	OUT not_stored bigint,
	OUT last_error text,
	OUT last_error_at timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_conflict_storage' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

CREATE VIEW tandem.conflict_storage AS SELECT * FROM tandem.conflict_storage_row();
COMMENT ON VIEW tandem.conflict_storage IS
'one row: how much the conflict log of this database holds, and what it could not';

CREATE FUNCTION tandem.conflict_dismiss(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_conflict_dismiss' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.conflict_dismiss(bigint) IS
'marks a conflict as seen to';

CREATE FUNCTION tandem.conflict_replay(id bigint) RETURNS text
AS 'MODULE_PATHNAME', 'tandem_conflict_replay' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.conflict_replay(bigint) IS
'applies the remote change of a conflict that was skipped or has failed, in this transaction and with the caller''s rights; returns what it did';

REVOKE ALL ON FUNCTION tandem.find_conflicts(bigint, timestamptz, name, text, text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.conflict_counters() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.conflict_storage_row() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.conflict_dismiss(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.conflict_replay(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
	tandem.find_conflicts(bigint, timestamptz, name, text, text, integer),
	tandem.conflict_counters(), tandem.conflict_storage_row() TO pg_monitor;
GRANT SELECT ON tandem.conflicts, tandem.conflict_stats, tandem.conflict_storage TO pg_monitor;

/* ---- how long tombstones are kept ------------------------------------------- */

CREATE FUNCTION tandem.tombstones_status(
	OUT subscription name,
	OUT subid oid,
	OUT state text,
	OUT reason text,
	OUT hint text,
	OUT kept_since timestamptz,
	OUT tombstones bigint,
	OUT bytes bigint,
	OUT epochs integer,
	OUT collected_lsn pg_lsn,
	OUT collector_lag bigint,
	OUT waits_for text,
	OUT waits_since timestamptz,
	OUT passed timestamptz,
	OUT unknown_before timestamptz,
	OUT windows integer,
	OUT probes bigint,
	OUT probes_expired bigint,
	OUT probes_ms float8,
	OUT epochs_dropped bigint,
	OUT epochs_ended_early bigint,
	OUT collector_pid integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_tombstones_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE VIEW tandem.tombstones AS SELECT * FROM tandem.tombstones_status();
COMMENT ON VIEW tandem.tombstones IS
'one row an adopted subscription of this database: are deletes remembered for it, since when, what keeps them';

CREATE FUNCTION tandem.tombstone_windows_list(
	OUT subid oid,
	OUT reason text,
	OUT from_lsn pg_lsn,
	OUT to_lsn pg_lsn,
	OUT from_time timestamptz,
	OUT to_time timestamptz,
	OUT recorded timestamptz,
	OUT passed timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_tombstone_windows_list' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 10;

CREATE VIEW tandem.tombstone_windows AS
SELECT s.subname AS subscription, w.*
FROM tandem.tombstone_windows_list() AS w
	LEFT JOIN pg_catalog.pg_subscription AS s ON s.oid OPERATOR(pg_catalog.=) w.subid;
COMMENT ON VIEW tandem.tombstone_windows IS
'times of which deletes are not known (passed is null: a change from before may be for one of them), and verdicts that came too late';

REVOKE ALL ON FUNCTION tandem.tombstones_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.tombstone_windows_list() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tandem.tombstones_status(), tandem.tombstone_windows_list() TO pg_monitor;
GRANT SELECT ON tandem.tombstones, tandem.tombstone_windows TO pg_monitor;

/* ---- tombstones: looking ------------------------------------------------ */

CREATE FUNCTION tandem.tombstone_find("table" regclass, key jsonb, wait boolean DEFAULT true,
	OUT verdict text,
	OUT kind text,
	OUT deleted_at timestamptz,
	OUT origin text,
	OUT xid xid,
	OUT reason text)
RETURNS record
AS 'MODULE_PATHNAME', 'tandem_tombstone_find_sql' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.tombstone_find(regclass, jsonb, boolean) IS
'was the row with this key deleted, when and by whom? What an apply worker asks when a row is missing';

CREATE FUNCTION tandem.collector_status(
	OUT pid integer,
	OUT state text,
	OUT reason text,
	OUT hint text,
	OUT collected_lsn pg_lsn,
	OUT transactions bigint,
	OUT tombstones bigint,
	OUT batches bigint,
	OUT cpu_ms float8,
	OUT probes bigint,
	OUT expired bigint,
	OUT probe_ms float8,
	OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'tandem_collector_status' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED ROWS 1;
COMMENT ON FUNCTION tandem.collector_status() IS
'the process that collects deletes of this database: how far it is and what it costs';

REVOKE ALL ON FUNCTION tandem.tombstone_find(regclass, jsonb, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.collector_status() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tandem.collector_status() TO pg_monitor;

/* ---- privileges ---------------------------------------------------------- */

REVOKE ALL ON FUNCTION tandem.slots_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.sync_slots() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.forget() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.failover_ready() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.sync_status_row() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.standbys_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.failback_standbys_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.failback_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.drop_hold(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.adopt(name, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.release(name, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.subscriptions_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.tables_status() FROM PUBLIC;
REVOKE ALL ON FUNCTION tandem.resync(name, regclass) FROM PUBLIC;

-- A view checks the caller's right to execute the function beneath it.
GRANT EXECUTE ON FUNCTION
	tandem.slots_status(), tandem.failover_ready(), tandem.sync_status_row(),
	tandem.standbys_status(), tandem.failback_standbys_status(),
	tandem.failback_status(), tandem.subscriptions_status(), tandem.tables_status() TO pg_monitor;
GRANT SELECT ON tandem.slots, tandem.sync_status, tandem.standbys,
	tandem.failback, tandem.subscriptions, tandem.tables TO pg_monitor;

/* ---- conflicts: rules of tables ---------------------------------------------- */

-- What holds for single tables; see src/conflict/rules.c.
CREATE MATERIALIZED VIEW tandem.conflict_rules AS SELECT
	NULL::oid AS subid,
	NULL::oid AS relid,
	NULL::"char" AS kind,
	NULL::text AS name,
	NULL::text AS value
WITH NO DATA;
CREATE INDEX conflict_rules_key ON tandem.conflict_rules (subid, relid);

CREATE FUNCTION tandem.set_conflict(subscription name, "table" regclass, type text, outcome text) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_set_conflict' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.set_conflict(name, regclass, text, text) IS
'what is done about one type of conflict in one table; outcome NULL = as in other tables of the subscription';
REVOKE ALL ON FUNCTION tandem.set_conflict(name, regclass, text, text) FROM PUBLIC;

CREATE FUNCTION tandem.set_delta(subscription name, "table" regclass, "column" name, "on" boolean) RETURNS void
AS 'MODULE_PATHNAME', 'tandem_set_delta' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION tandem.set_delta(name, regclass, name, boolean) IS
'makes a column a counter: updates add the difference that they made on the publisher';
REVOKE ALL ON FUNCTION tandem.set_delta(name, regclass, name, boolean) FROM PUBLIC;
