-- The settings are an interface: their names, defaults and units.
SELECT name, setting, unit, context FROM pg_settings
WHERE name LIKE 'tandem.%' ORDER BY name;

-- A prefix of our own: a misspelt setting is refused.
ALTER SYSTEM SET tandem.slot_sync_intervall = '1s';

-- tandem.failover_slots: patterns of slot names.
ALTER SYSTEM SET tandem.failover_slots = 'app_*, billing, shard?_x';
ALTER SYSTEM SET tandem.failover_slots = '';
ALTER SYSTEM SET tandem.failover_slots = 'a,,b';
ALTER SYSTEM SET tandem.failover_slots = 'a b';
ALTER SYSTEM SET tandem.failover_slots = 'App';
ALTER SYSTEM SET tandem.failover_slots = '[ab]*';
ALTER SYSTEM SET tandem.failover_slots = 'a123456789b123456789c123456789d123456789e123456789f123456789g123';
ALTER SYSTEM RESET tandem.failover_slots;

-- Bounds.
ALTER SYSTEM SET tandem.slot_sync_interval = '1ms';
ALTER SYSTEM SET tandem.wal_fetch_limit = '-1';
ALTER SYSTEM SET tandem.hold_timeout = '7d';
ALTER SYSTEM RESET tandem.hold_timeout;
ALTER SYSTEM SET tandem.failback_timeout = '999ms';
ALTER SYSTEM SET tandem.failback_timeout = '61s';
ALTER SYSTEM SET tandem.failback_timeout = '0';
ALTER SYSTEM SET tandem.failback_keep_size = '-1';
ALTER SYSTEM SET tandem.failback_standbys = 'a b';
ALTER SYSTEM SET tandem.synchronous_transfer = 'sometimes';
ALTER SYSTEM SET tandem.synchronous_transfer = 'data_flush';
ALTER SYSTEM RESET tandem.synchronous_transfer;
