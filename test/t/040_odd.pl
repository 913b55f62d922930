# Odd names, exhausted resources, sessions that get in each other's way: what a
# year of production brings.  Nothing here may stop the worker, crash a server,
# or leave a slot behind that nobody explains.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => "max_replication_slots = 8\n");
my $standby = $primary->new_standby('standby',
	conf => "tandem.slot_sync_interval = 100ms\nmax_replication_slots = 9\n");

sub sync_error
{
	return $standby->query(q{SELECT coalesce(error, '') || ' / ' || coalesce(hint, '') FROM tandem.sync_status});
}

# ---- Names ----------------------------------------------------------------------------

my $odd = q{My "odd" data'base, ünï};
(my $quoted = $odd) =~ s/"/""/g;
my $longest = 'x' x 63;
$primary->query(qq{CREATE DATABASE "$quoted"});
my $host = $primary->host;
my $port = $primary->port;
(my $escaped = $odd) =~ s/([\\'])/\\$1/g;
my $there = "host=$host port=$port dbname='$escaped'";
PostgreSQL::Test::Utils::system_or_bail('psql', '-XAtqc',
	"SELECT pg_create_logical_replication_slot('$longest', 'pgoutput')", '-d', $there);
$standby->wait_slot_ready($longest);
is($standby->query("SELECT database FROM tandem.slots WHERE slot_name = '$longest'"), $odd,
	'the longest name of a slot, an odd one of a database');
$primary->query("SELECT pg_drop_replication_slot('$longest')");

# A primary_slot_name that no hold can be named after.
my $too_long = 'y' x 60;
$primary->query("SELECT pg_create_physical_replication_slot('$too_long', true)");
$standby->set('primary_slot_name' => $too_long);
poll_for(sub { sync_error() =~ /"y+" is too long for a hold slot.* \/ Use a name of at most 51/ },
	'a primary_slot_name that is too long to be reported');
$standby->set('primary_slot_name' => undef);
poll_for(sub { sync_error() eq ' / ' }, 'the worker to go on');
$primary->wait_replayed($standby);
poll_for(sub { $primary->slot_value($too_long, 'active') eq 'f' }, 'the other slot to be free');
$primary->query("SELECT pg_drop_replication_slot('$too_long')");
pass('a primary_slot_name of 60 characters is refused with a hint');

# A hold's name taken by something else.
$primary->query(q{SELECT tandem.drop_hold(slot_name) FROM tandem.standbys WHERE hold_xmin IS NOT NULL});
$primary->query(q{SELECT pg_create_physical_replication_slot('tandem_hold_standby', true)});
$primary->query(q{SELECT pg_create_logical_replication_slot('one', 'test_decoding')});
poll_for(sub { sync_error() =~ /"tandem_hold_standby" is not a hold \/ Drop the slot or give it another name/ },
	'a slot with the name of the hold to be reported');
$primary->query(q{SELECT pg_drop_replication_slot('tandem_hold_standby')});
$standby->wait_slot_ready('one');
pass("a slot that has the hold's name is left alone and named");

# ---- An output plugin that isn't installed here -------------------------------------------

# The same installation serves both, so the standby is told to look elsewhere.
my $elsewhere = $standby->basedir . '/plugins';
mkdir $elsewhere;
my $libdir = $primary->config_data('--pkglibdir');
PostgreSQL::Test::Utils::system_or_bail('cp', "$libdir/test_decoding.so", "$elsewhere/my_plugin.so");
$primary->set('dynamic_library_path' => "\$libdir:$elsewhere");
# the latest minor releases want plugins listed
my $listed = $primary->query(q{SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'}) eq '1';
$primary->query(q{ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, my_plugin}) if $listed;
$primary->set();
$primary->query(q{SELECT pg_create_logical_replication_slot('strange', 'my_plugin')});
$standby->wait_slot_state('strange', 'pending', qr/"my_plugin" is not installed on this standby .* Install/);
is($standby->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'one'}), 'ready',
	'a missing output plugin holds up its own slot only');
$standby->set('dynamic_library_path' => "\$libdir:$elsewhere");
if ($listed)
{
	$standby->wait_slot_state('strange', 'pending', qr/output_plugin_libraries does not allow its output plugin "my_plugin"/);
	$standby->query(q{ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, my_plugin});
	$standby->set();
	$standby->wait_slot_ready('strange');
	$standby->set('output_plugin_libraries' => undef);
	$standby->wait_slot_state('strange', 'pending', qr/does not allow its output plugin/);
	is($standby->slot_value('strange', 'slot_name'), 'strange', 'a plugin not allowed any more costs nothing but readiness');
	$standby->query(q{ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, my_plugin});
	$standby->set();
}
$standby->wait_slot_ready('strange');
$primary->query(q{SELECT pg_drop_replication_slot('strange')});

# ---- No slot left -----------------------------------------------------------------------

# on the standby: 9 places; 'one', 'tandem_rejoin', full1..5 and these two
$primary->query(q{SELECT pg_create_logical_replication_slot('full' || i, 'test_decoding')
	FROM generate_series(1, 5) i});    # 8 on the primary: standby, hold, one, full1..5
$standby->wait_slot_ready("full$_") for 1 .. 5;
poll_for(sub { $standby->query('SELECT count(*) FROM pg_replication_slots') eq '7' }, 'the worker to drop its reserve');
$standby->query(q{SELECT pg_create_physical_replication_slot('cascade' || i) FROM generate_series(1, 2) i});
$primary->query(q{SELECT pg_drop_replication_slot('full5')});
poll_for(sub { $standby->slot_value('full5', 'slot_name') eq '' }, 'full5 to go');
$standby->query(q{SELECT pg_create_physical_replication_slot('cascade3')});
$primary->query(q{SELECT pg_create_logical_replication_slot('full6', 'test_decoding')});
$standby->wait_slot_state('full6', 'pending', qr/replication slots of this standby are in use .* Raise max_replication_slots/);
is($standby->query(q{SELECT count(*) FROM tandem.slots WHERE state = 'ready'}), '5', 'the others stay ready');
$standby->query(q{SELECT pg_drop_replication_slot('cascade' || i) FROM generate_series(1, 3) i});
$standby->wait_slot_ready('full6');

# on the primary: no place for the hold
poll_for(sub { $primary->query_error(q{SELECT tandem.drop_hold('standby');
	SELECT pg_create_physical_replication_slot('greedy')}) eq '' }, 'somebody to be faster than the hold');
poll_for(sub { sync_error() =~ /all replication slots are in use \/ / }, 'the missing place to be reported');
$primary->query(q{SELECT pg_drop_replication_slot('greedy')});
poll_for(sub { sync_error() eq ' / ' }, 'a hold, once there is a place');
$standby->wait_slot_ready('one');
pass('slots used up on either side are reported and heal');
$primary->query("SELECT pg_drop_replication_slot('full$_')") for 1 .. 4, 6;

# ---- Sessions -------------------------------------------------------------------------------

# ten at once ask for a cycle; each gets its answer
my @sessions = map { $standby->background_psql('postgres') } 1 .. 10;
$_->query_until(qr/asked/, "\\echo asked\nSELECT count(*) FROM tandem.sync_slots() WHERE slot_name = 'one';\n")
  for @sessions;
is(join(' ', map { my $n = $_->query_safe('SELECT 1'); $n =~ /1/ ? 1 : 0 } @sessions),
	join(' ', (1) x 10), 'ten sessions ask at once');
$_->quit for @sessions;

# a primary that hangs: the caller can cancel, the worker can be ended
$primary->stall_all;
like($standby->query_error(q{SET statement_timeout = '500ms'; SELECT * FROM tandem.sync_slots()}),
	qr/canceling statement due to statement timeout/, 'sync_slots() can be cancelled');
my $worker = $standby->query(q{SELECT worker_pid FROM tandem.sync_status});
$standby->query("SELECT pg_terminate_backend($worker)");
poll_for(sub { !process_alive($worker) }, 'the worker to end while it waits');
$primary->resume_server;
poll_for(sub { $standby->query(q{SELECT worker_pid FROM tandem.sync_status}) =~ /^\d+$/ },
	'another worker');
$standby->wait_slot_ready('one');
poll_for(sub { $standby->query('SELECT max(last_sync) > now() - interval \'5 s\' FROM tandem.slots') eq 't' },
	'it to work');
is($standby->query(q{SELECT count(*) FROM pg_replication_slots WHERE temporary}), '0',
	'a worker that was ended leaves no slot');

# source_slots in a failing block, and by two standbys of one name
is($primary->query(q{
	DO $$
	BEGIN
		PERFORM * FROM tandem.source_slots(1, 'standby', '0', '0', '', '{}');
		RAISE EXCEPTION 'on purpose';
	EXCEPTION WHEN raise_exception THEN
		PERFORM * FROM tandem.source_slots(1, 'standby', '0', '0', '', '{}');
	END $$;
	SELECT active FROM pg_replication_slots WHERE slot_name = 'tandem_hold_standby'}),
	'f', 'a failed block does not keep the hold');

# ---- The extension gone, the database gone ---------------------------------------------------

$primary->query('DROP EXTENSION pg_tandem');
poll_for(sub { $standby->log_since(0) =~ /schema "tandem" does not exist/ }, 'the worker to say so');
$primary->query('CREATE EXTENSION pg_tandem');
$primary->wait_replayed($standby);
poll_for(sub { sync_error() eq ' / ' }, 'the worker to go on');
$standby->wait_slot_ready('one');
pass('the extension can be dropped and made again');

my $mark = $standby->log_mark;
$standby->append_conf('postgresql.conf', "tandem.database = 'no such database'");
$standby->restart;
$standby->wait_log(qr/FATAL:  database "no such database" does not exist/, $mark);
like($standby->query_error('SELECT * FROM tandem.sync_slots()'),
	qr/ERROR:  the tandem worker is not running.*HINT:  .*tandem\.database/s,
	'a tandem.database that does not exist: the functions say where to look');
is($standby->query(q{SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'one'}), 'one',
	'and slots stay');

done_testing();
