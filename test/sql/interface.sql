-- What CREATE EXTENSION makes is an interface: names, columns, who may use it.
CREATE SCHEMA tandem;
CREATE EXTENSION pg_tandem;	-- somebody else's schema is left alone
DROP SCHEMA tandem;
SET client_min_messages = warning;
CREATE EXTENSION pg_tandem;

SELECT tandem.library_version() = extversion AS same_version
FROM pg_extension WHERE extname = 'pg_tandem';

SELECT pg_describe_object(classid, objid, objsubid) AS object
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_tandem')
ORDER BY 1;

SELECT table_name, string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
FROM information_schema.columns
WHERE table_schema = 'tandem' GROUP BY 1 ORDER BY 1;

-- Everything can be restored by pg_dump and dropped.
DROP EXTENSION pg_tandem;
CREATE EXTENSION pg_tandem;

-- Who may do what.  Only superusers and those they grant it to may act; those
-- who watch may look.
CREATE ROLE regress_tandem_nobody;
CREATE ROLE regress_tandem_watcher IN ROLE pg_monitor;
SELECT p.proname,
	has_function_privilege('regress_tandem_nobody', p.oid, 'EXECUTE') AS nobody,
	has_function_privilege('regress_tandem_watcher', p.oid, 'EXECUTE') AS watcher
FROM pg_proc p WHERE p.pronamespace = 'tandem'::regnamespace
ORDER BY 1;

SET ROLE regress_tandem_watcher;
SELECT count(*) FROM tandem.slots WHERE slot_name = 'no such slot';
SELECT count(*) FROM tandem.standbys WHERE slot_name = 'no such slot';
SELECT count(*) FROM tandem.sync_status;
SELECT state, reason, hint FROM tandem.failback;
SELECT tandem.drop_hold('standby');
SET ROLE regress_tandem_nobody;
SELECT count(*) FROM tandem.slots;
SELECT state FROM tandem.failback;
SELECT ready FROM tandem.failover_ready();
SELECT tandem.source_wal('000000010000000000000001', 0, 1);
RESET ROLE;
DROP ROLE regress_tandem_nobody, regress_tandem_watcher;
