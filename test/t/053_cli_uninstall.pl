# "tandem uninstall": afterwards nothing of ours is left, neither on the primary
# nor on a standby, and both start without the library.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary');
my $standby = $primary->new_standby('standby');
my @all = (at($primary), also($standby));

$primary->query('CREATE DATABASE second');
$primary->safe_psql('second', 'CREATE EXTENSION pg_tandem');
$primary->query(q{SELECT pg_create_logical_replication_slot('app', 'test_decoding')});
$primary->set('tandem.slot_sync_interval' => '500ms');
$standby->set('tandem.hold_timeout' => '1h');
$primary->set('tandem.failback_standbys' => 'standby', 'tandem.synchronous_transfer' => 'data_flush');
$standby->wait_slot_ready('app');
ok(-e $standby->data_dir . '/pg_tandem/slots', 'the standby remembers its slots');
is($primary->slot_value('tandem_hold_standby', 'count(*)'), '1', 'the primary has a hold');
poll_for(sub { $primary->slot_value('tandem_failback', 'count(*)') == 1 }, 'the slot tandem_failback');
poll_for(sub { $standby->slot_value('tandem_rejoin', 'count(*)') == 1 }, 'the slot tandem_rejoin');

# ---- Refusals change nothing --------------------------------------------------

my ($code, $out, $err) = tandem('uninstall', at($primary), '--no-discover', '--yes');
is($code, 1, 'refused while a standby is not named');
like($err, qr/slot "standby" was not named\n.*hint: /, 'and says which');

$primary->query('CREATE ROLE plain LOGIN');
($code, $out, $err) = tandem('uninstall', @all, '-U', 'plain', '--yes');
is($code, 1, 'refused without the right to do it');
like($err, qr/not a superuser/, 'and says so');

($code, $out, $err) = tandem('uninstall', @all);
is($code, 1, 'refused without confirmation');
like($err, qr/nothing was changed/, 'and says so');

($code, $out) = tandem('uninstall', @all, '--dry-run');
is($code, 0, '--dry-run works');
like($out, qr/^  \S+: SELECT tandem\.forget\(\);$/m, '--dry-run shows what would be run');
like($out, qr/database "second": DROP EXTENSION pg_tandem;/, '--dry-run: in every database');
is($standby->query('SHOW tandem.sync_slots'), 'on', '--dry-run changes nothing');

$err = $standby->query_error('SELECT tandem.forget()');
like($err, qr/being synchronized.*HINT:/s, 'tandem.forget() refuses while slots are synced');

like($primary->query_error('SELECT tandem.forget()'), qr/the guard is on.*HINT:  First set tandem.synchronous_transfer/s,
	'... and with the guard on');
$primary->set('tandem.synchronous_transfer' => 'none');
like($primary->query_error('SELECT tandem.forget()'), qr/WAL is kept for nodes.*HINT:  First set tandem.failback_keep_size/s,
	'... and while WAL is kept');

# something of a user's depends on the extension
$primary->safe_psql('second', 'CREATE VIEW mine AS SELECT * FROM tandem.slots');
($code, $out, $err) = tandem('uninstall', @all, '--yes');
is($code, 1, 'a step that fails ends it');
like($err, qr/DROP EXTENSION pg_tandem failed: .*\n.*hint: Drop or change what depends/, 'with the cause and a hint');
$primary->safe_psql('second', 'DROP VIEW mine');

# ---- The real thing -----------------------------------------------------------

($code, $out, $err) = tandem('uninstall', @all, '--yes');
is($code, 0, 'uninstall works, also after one that failed half way') or diag $err;
like($out, qr/postgresql\.conf, line \d+: remove shared_preload_libraries$/m,
	'names the line that people have to change');

$primary->wait_replayed($standby);
for my $node ($primary, $standby)
{
	my $name = $node->name;
	ok(!-e $node->data_dir . '/pg_tandem', "$name: no folder");
	for my $database (qw(postgres second))
	{
		is($node->query(q{SELECT count(*) FROM pg_extension WHERE extname = 'pg_tandem'}, $database),
			'0', "$name: no extension in $database");
		is($node->query(q{SELECT count(*) FROM pg_namespace WHERE nspname = 'tandem'}, $database),
			'0', "$name: no schema in $database");
	}
	unlike(slurp_file($node->data_dir . '/postgresql.auto.conf'), qr/tandem/, "$name: no setting by ALTER SYSTEM");
	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', undef);
	$node->restart;
	is($node->query('SHOW shared_preload_libraries'), '', "$name: starts without the library");
	is($node->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'tandem%'}), '0',
		"$name: no worker");
}
is($primary->query('SELECT string_agg(slot_name, \',\' ORDER BY slot_name) FROM pg_replication_slots'),
	'app,standby', 'primary: the user\'s slots are left, and no hold');
is($standby->query('SELECT count(*) FROM pg_replication_slots'), '0', 'standby: no slot of ours');
($code, $out) = tandem('uninstall', @all, '--yes');
is($code, 0, 'once more: nothing to do');
like($out, qr/^Nothing of pg_tandem is on these 2 nodes/, 'and it says so');

done_testing();
