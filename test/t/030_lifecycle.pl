# What becomes of a failover slot on a standby when things happen to it:
# invalidated, dropped, recreated as another one, its name taken, its database
# dropped.  Without the rule under test the standby keeps a slot that decodes
# something else, or nothing, after a failover - or dies itself.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary');
my $standby = $primary->new_standby('standby',
	conf => 'tandem.slot_sync_interval = 100ms');

sub create_slot
{
	my ($name, $plugin, $database, $two_phase) = @_;
	$primary->query(
		"SELECT pg_create_logical_replication_slot('$name', '"
		  . ($plugin // 'test_decoding') . "', false, " . ($two_phase // 'false') . ')',
		$database);
	return;
}

sub drop_slot
{
	my ($name) = @_;
	$primary->query("SELECT pg_drop_replication_slot('$name')");
	return;
}

# Waits until a slot here has, or hasn't, the value of a column.
sub wait_slot_value
{
	my ($slot, $column, $value) = @_;
	poll_for(
		sub { ($standby->slot_value($slot, $column) // '') eq $value },
		"$column of slot \"$slot\" on the standby to be \"$value\"");
	return;
}

# ---- Plain life --------------------------------------------------------------

create_slot('plain');
$standby->wait_slot_ready('plain');
pass('a new slot becomes ready');
is($standby->query("SELECT ready, reason ~ '^the only failover slot is ready; last contact' FROM tandem.failover_ready()"),
	't|t', 'failover_ready says so');
is($primary->query("SELECT ready, reason FROM tandem.failover_ready()"),
	'f|this server is a primary', 'a primary is not ready to be promoted');

my $hold = $primary->slot_value('tandem_hold_standby', 'catalog_xmin');
ok($hold, 'the primary holds catalog rows for the standby');
is($primary->slot_value('tandem_hold_standby', 'restart_lsn'), '', 'but no WAL');

$primary->query('CREATE TABLE t (id int)');
$primary->query('INSERT INTO t SELECT generate_series(1, 10)');
$primary->query("SELECT count(*) FROM pg_logical_slot_get_changes('plain', NULL, NULL)");
wait_slot_value('plain', 'confirmed_flush_lsn', $primary->slot_value('plain', 'confirmed_flush_lsn'));
pass('confirmed_flush follows');

# ---- Patterns ----------------------------------------------------------------

create_slot('other');
$standby->wait_slot_ready('other');
$primary->set('tandem.failover_slots' => 'pl*, app_?');
poll_for(sub { $standby->slot_value('other', 'slot_name') eq '' },
	'a slot that is no failover slot any more to go');
is($standby->slot_value('plain', 'slot_name'), 'plain', 'a matching one stays');
$primary->set('tandem.failover_slots' => undef);
$standby->wait_slot_ready('other');

# ---- 7: dropped and invalidated ------------------------------------------------

drop_slot('other');
poll_for(sub { $standby->slot_value('other', 'slot_name') eq '' },
	'a slot dropped on the primary to go');
is($standby->query("SELECT count(*) FROM tandem.slots WHERE slot_name = 'other'"), '0',
	'a slot dropped on the primary is dropped here, and gone from the view');

create_slot('lost');
$standby->wait_slot_ready('lost');
$primary->switch_wal(3);
$primary->advance_slot('plain') for 1 .. 3;    # into the current segment
$primary->set('max_slot_wal_keep_size' => '1MB');
$primary->query('CHECKPOINT');
$primary->set('max_slot_wal_keep_size' => undef);
is($primary->slot_value('lost', 'wal_status'), 'lost', 'the primary has invalidated a slot');
$standby->wait_slot_state('lost', 'invalid', qr/max_slot_wal_keep_size/);
is($standby->slot_value('lost', 'slot_name'), '', 'it does not stay here');
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 'f', 'and failover_ready says no');
drop_slot('lost');

# Invalidated only here: made anew.  The WAL is gone here, but the primary has it.
create_slot('local_loss');
$standby->wait_slot_ready('local_loss');
$primary->switch_wal(4);
$primary->query('CREATE TABLE more (id int)');
$standby->set('max_slot_wal_keep_size' => '1MB');
my $mark = $standby->log_mark;
$standby->restartpoint($primary);
$standby->wait_log(qr/invalidating slot "local_loss"/, $mark);
$standby->wait_log(qr/dropped failover slot "local_loss".*invalidated on this standby/, $mark);
$standby->wait_slot_state('local_loss', 'pending', qr/max_slot_wal_keep_size/);
$standby->set('max_slot_wal_keep_size' => undef);
$standby->wait_slot_state('local_loss', 'pending', qr/has been removed here.*Restart this standby/);
$standby->restart;
$standby->wait_slot_ready('local_loss');
pass('a slot invalidated only here comes back');
$standby->wait_slot_ready('plain');
drop_slot('local_loss');

# ---- 8: recreated under the same name -------------------------------------------

$primary->query('CREATE DATABASE elsewhere');
create_slot('again');
$standby->wait_slot_ready('again');

drop_slot('again');
create_slot('again', 'pgoutput');
wait_slot_value('again', 'plugin', 'pgoutput');
$standby->wait_slot_ready('again');
pass('recreated with another plugin');

drop_slot('again');
create_slot('again', 'pgoutput', 'elsewhere');
wait_slot_value('again', 'database', 'elsewhere');
$standby->wait_slot_ready('again');
pass('recreated in another database');

drop_slot('again');
create_slot('again', 'pgoutput', 'elsewhere', 'true');
wait_slot_value('again', 'two_phase', 't');
$standby->wait_slot_ready('again');
drop_slot('again');
create_slot('again', 'pgoutput', 'elsewhere', 'false');
wait_slot_value('again', 'two_phase', 'f');
$standby->wait_slot_ready('again');
pass('recreated with another two_phase setting');
drop_slot('again');

# An older copy under the same name: ours would be ahead of its consumer.
create_slot('template');
my $old = $primary->slot_value('template', 'confirmed_flush_lsn');
$primary->query("SELECT pg_copy_logical_replication_slot('template', 'ahead')");
$primary->query('INSERT INTO t VALUES (11)');
$primary->advance_slot('ahead');
$standby->wait_slot_ready('ahead');
$standby->query('SELECT count(*) FROM tandem.sync_slots()');
drop_slot('ahead');
$primary->query("SELECT pg_copy_logical_replication_slot('template', 'ahead')");
wait_slot_value('ahead', 'confirmed_flush_lsn', $old);
$standby->wait_slot_ready('ahead');
pass('recreated at an older position: ours is made anew there');
drop_slot('ahead');
drop_slot('template');

# ---- 11: temporary and half-created slots ----------------------------------------

my $session = $primary->background_psql('postgres');
$session->query_safe(q{SELECT pg_create_logical_replication_slot('temporary', 'test_decoding', true)});
my $blocker = $primary->background_psql('postgres');
$blocker->query_safe('BEGIN; CREATE TABLE blocker (id int)');
my $creator = $primary->background_psql('postgres');
$creator->query_until(qr/started/,
	q{\echo started
SELECT pg_create_logical_replication_slot('half', 'test_decoding');
});
poll_for(sub { $primary->slot_value('half', 'slot_name') eq 'half' }, 'a slot under construction');
is($standby->query(q{SELECT string_agg(slot_name, ' ' ORDER BY slot_name COLLATE "C")
	FROM tandem.sync_slots()}), 'plain', 'temporary and half-created slots are ignored');
$blocker->query_safe('COMMIT');
$blocker->quit;
$creator->quit;
$session->quit;
$standby->wait_slot_ready('half');
pass('a slot that was under construction becomes ready when it is finished');
drop_slot('half');

# ---- 12: its database dropped -----------------------------------------------------

# Replay of the drop meets the worker while it creates slots of that database.
# Without a lock on the database the startup process finds one in use and dies,
# and the standby with it.
my $postmaster = $standby->postmaster_pid;
$standby->set('tandem.slot_sync_interval' => '10ms');
for my $round (1 .. 6)
{
	$primary->query('CREATE DATABASE doomed');
	$primary->query(q{SELECT pg_create_logical_replication_slot('doomed_' || i, 'test_decoding')
		FROM generate_series(1, 10) i}, 'doomed');
	poll_for(sub { $standby->slot_value('doomed_1', 'slot_name') eq 'doomed_1' },
		'the first of its slots to be there');
	$primary->query('DROP DATABASE doomed WITH (FORCE)');
	$primary->query('INSERT INTO t VALUES (100)');
	$primary->wait_replayed($standby);
}
$standby->set('tandem.slot_sync_interval' => undef);
poll_for(sub { $standby->query(q{SELECT count(*) FROM tandem.slots WHERE database = 'doomed'}) eq '0' },
	'the view to forget the slots of the dropped database');
is($standby->query(q{SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'doomed%'
	OR database = 'doomed'}), '0', 'slots of a dropped database are gone');
is($standby->postmaster_pid, $postmaster, 'and the standby lives');
$standby->wait_slot_ready('plain');

# ---- 9: a slot that isn't ours ---------------------------------------------------

# An old primary, made a standby by hand, still has its own slots.
$primary->query(q{SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')});
$standby->wait_slot_ready('theirs');
$standby->wait_slot_ready('plain');
$primary->wait_replayed($standby);
$primary->stop;
$standby->promote;
$standby->query(q{SELECT pg_create_logical_replication_slot('new_here', 'test_decoding')});
$primary->append_conf('postgresql.conf', $primary->_follow_conf($standby, 'primary'));
$standby->query(q{SELECT pg_create_physical_replication_slot('primary', true)});
$primary->set_standby_mode;
$primary->start;
$primary->wait_slot_ready('new_here');
$primary->wait_slot_state('theirs', 'foreign', qr/did not make .*pg_drop_replication_slot\('theirs'\)/);
pass('a slot that is not ours is reported, and the others go on');
is($primary->query("SELECT ready FROM tandem.failover_ready()"), 'f', 'but not called ready');
$primary->query(q{SELECT pg_drop_replication_slot('theirs'), pg_drop_replication_slot('plain')});
$primary->wait_slot_ready('theirs');
$primary->wait_slot_ready('plain');
pass('once it is dropped, ours takes its place');

done_testing();
