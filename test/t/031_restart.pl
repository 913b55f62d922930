# Restarts, reloads and promotions of a standby with failover slots.
#
# Without the state file, a restarted standby would take its own slots for
# somebody else's; without the bound waits, promotion would hang on a primary
# that hangs.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => q{
max_prepared_transactions = 10
});
my $standby = $primary->new_standby('standby',
	conf => 'tandem.slot_sync_interval = 100ms');
$primary->query('CREATE TABLE t (id int PRIMARY KEY, who text)');
$primary->query(q{SELECT pg_create_logical_replication_slot('one', 'test_decoding')});
$primary->query(q{SELECT pg_create_logical_replication_slot('two', 'test_decoding', false, true)});
$standby->wait_slot_ready('one');
$standby->wait_slot_ready('two');

# ---- 18: restart ------------------------------------------------------------------

$primary->stop;
$standby->restart;
$standby->wait_slot_ready('one');
$standby->wait_slot_ready('two');
is($standby->query('SELECT ready, reason FROM tandem.failover_ready()'),
	't|all 2 failover slots are ready; this server has had no contact with the primary since its start',
	'ready slots stay ready over a restart without a primary');
$standby->kill9_all;
$standby->start;
$standby->wait_slot_ready('one');
$standby->wait_slot_ready('two');
pass('and over a crash');
like($standby->query_error('SELECT * FROM tandem.sync_slots()'),
	qr/ERROR:  slot synchronization failed: could not connect to the primary.*HINT:  Check/s,
	'a cycle without a primary says what is wrong');
$primary->start;
poll_for(sub { $standby->query('SELECT count(*) FROM tandem.slots WHERE last_sync IS NOT NULL') eq '2' },
	'contact with the primary');
is($standby->query(q{SELECT count(*) FROM tandem.slots WHERE state = 'ready'}), '2',
	'the slots are still ours when the primary is back');

# Entries without a slot, as pg_basebackup of a standby brings them, are discarded.
$standby->stop;
my @slots = glob $standby->data_dir . '/pg_replslot/{one,two}';
is(scalar(@slots), 2, 'the slots are on disk');
PostgreSQL::Test::Utils::system_or_bail('rm', '-r', @slots);
$standby->start;
$standby->wait_slot_ready('one');
$standby->wait_slot_ready('two');
pass('a state file without slots is no obstacle');

# A damaged state file: the slots are somebody's, and we say so.
$standby->stop;
my $file = $standby->data_dir . '/pg_tandem/slots';
ok(-s $file, 'there is a state file');
open my $fh, '+<', $file or die $!;
seek $fh, 12, 0;
print $fh 'XXXX';
close $fh;
my $mark = $standby->log_mark;
$standby->start;
$standby->wait_log(qr/file "pg_tandem\/slots" is damaged and is ignored/, $mark);
$standby->wait_slot_state('one', 'foreign', qr/did not make.*pg_drop_replication_slot/);
$standby->query(q{SELECT pg_drop_replication_slot('one'), pg_drop_replication_slot('two')});
$standby->wait_slot_ready('one');
$standby->wait_slot_ready('two');
pass('after a damaged state file the hint leads back to ready slots');

# ---- 14: settings changed by reload ------------------------------------------------

my $port = $primary->port;
my $host = $primary->host;
$standby->set('tandem.primary_conninfo' => "host=$host port=1 dbname=postgres");
poll_for(sub { $standby->query('SELECT error FROM tandem.sync_status') =~ /could not connect/ },
	'the worker to use the new tandem.primary_conninfo');
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 't',
	'a primary out of reach leaves the last proof valid');
$standby->set('tandem.primary_conninfo' => 'nonsense');
poll_for(sub { $standby->query('SELECT error FROM tandem.sync_status') =~ /invalid connection string/ },
	'a malformed one to be reported');
$standby->set('tandem.primary_conninfo' => undef);
poll_for(sub { $standby->query('SELECT error IS NULL FROM tandem.sync_status') eq 't' },
	'the worker to reconnect by itself');
pass('primary_conninfo can be changed by reload');

$primary->query(q{SELECT pg_create_physical_replication_slot('renamed', true)});
$standby->set('primary_slot_name' => 'renamed');
poll_for(sub { $primary->slot_value('tandem_hold_renamed', 'catalog_xmin') ne '' },
	'a hold under the new name');
$standby->wait_slot_ready('one');
poll_for(sub { $primary->query(q{SELECT connected, hold_xmin IS NOT NULL FROM tandem.standbys
	WHERE slot_name = 'standby'}) eq 'f|t' }, 'the old hold to be shown as that of a standby not connected');
$primary->query(q{SELECT tandem.drop_hold('standby')});
$standby->set('primary_slot_name' => '');
poll_for(sub { $standby->query('SELECT error FROM tandem.sync_status') =~ /no primary_slot_name/ },
	'a missing primary_slot_name to be reported');
$standby->set('primary_slot_name' => undef);
poll_for(sub { $standby->query('SELECT error IS NULL FROM tandem.sync_status') eq 't' },
	'the worker to go on');
$standby->wait_slot_ready('one');

# tandem.sync_slots = off: cycles only on request
$standby->set('tandem.sync_slots' => 'off');
$primary->query(q{SELECT pg_create_logical_replication_slot('three', 'test_decoding')});
$primary->wait_replayed($standby);
is($standby->query(q{SELECT count(*) FROM tandem.slots WHERE slot_name = 'three'}), '0',
	'off means off');
is($standby->query(q{SELECT state FROM tandem.sync_slots() WHERE slot_name = 'three'}), 'ready',
	'but a cycle can be asked for');
$standby->set('tandem.sync_slots' => undef);

# ---- 16: a cascading standby --------------------------------------------------------

my $cascade = $standby->new_standby('cascade', conf => 'tandem.slot_sync_interval = 100ms');
poll_for(
	sub {
		$cascade->query(q{SELECT error || ' / ' || hint FROM tandem.sync_status})
		  =~ /is a standby and cannot serve failover slots.*tandem\.primary_conninfo/;
	},
	'a clear message on a cascading standby');
is($cascade->query('SELECT ready FROM tandem.failover_ready()'), 'f',
	'a cascading standby without slots is not ready');
$cascade->set('tandem.primary_conninfo' => "host=$host port=$port dbname=postgres");
$cascade->wait_slot_ready('one');
$cascade->wait_slot_ready('two');
pass('with tandem.primary_conninfo a cascading standby keeps the slots too');

# ---- 15: prepared before, committed after the failover; 10: the primary hangs --------

$primary->query(q{BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION 'p'});
like($primary->query(q{SELECT string_agg(data, '; ') FROM pg_logical_slot_get_changes('two', NULL, NULL, 'include-xids', '0')}),
	qr/'prepared'.*PREPARE TRANSACTION 'p'/, 'the consumer has seen the prepared transaction');
$primary->advance_slot('one');
$primary->wait_replayed($standby);
poll_for(sub {
		$standby->slot_value('two', 'confirmed_flush_lsn') eq
		  $primary->slot_value('two', 'confirmed_flush_lsn') },
	'the slot to follow');

# the primary hangs, with the worker waiting for its answer
$primary->query(q{INSERT INTO t VALUES (2, 'last')});
$primary->wait_replayed($standby);
$primary->stall_all;
poll_for(sub { $standby->query('SELECT pg_stat_activity.state FROM pg_stat_activity
	WHERE backend_type = \'tandem worker\'') eq 'active' }, 'a cycle to wait for the primary');
$mark = $standby->log_mark;
$standby->promote;
pass('promotion does not wait for a primary that hangs');
$standby->wait_log(qr/failover slot "$_" goes on from [0-9A-F]+\/[0-9A-F]+ on this new primary/, $mark)
  for 'one', 'two', 'three';
poll_for(sub { $standby->query(q{SELECT role FROM tandem.sync_status WHERE worker_pid IS NOT NULL}) eq 'primary' },
	'the worker to be that of a primary');
is($standby->query(q{SELECT count(*) FROM pg_replication_slots WHERE temporary}), '0',
	'no temporary slot is left');

$standby->query(q{COMMIT PREPARED 'p'});
my $changes = $standby->query(
	q{SELECT string_agg(data, '; ') FROM pg_logical_slot_get_changes('two', NULL, NULL, 'include-xids', '0')});
unlike($changes, qr/'prepared'/, 'what the consumer had is not sent again');
is(() = $changes =~ /COMMIT PREPARED 'p'/g, 1, 'the commit of a prepared transaction arrives exactly once');
like($changes, qr/'last'/, 'and what came after');
unlike($standby->query(
	q{SELECT string_agg(data, '; ') FROM pg_logical_slot_get_changes('two', NULL, NULL)}),
	qr/COMMIT PREPARED/, 'and not once more');

# B follows A: proven again by its next cycles with A
$cascade->set('tandem.primary_conninfo' => undef);
poll_for(sub { $standby->slot_value('tandem_hold_cascade', 'catalog_xmin') ne '' },
	'the new primary to hold catalog rows for the other standby');
$cascade->wait_slot_ready('one');
$cascade->wait_slot_ready('two');
$cascade->wait_slot_ready('three');
pass('another standby gets its slots proven by the new primary');

$primary->resume_server;
$primary->stop('immediate');
done_testing();
