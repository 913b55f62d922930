# What was built is what the server loads, and the test library does what the
# other tests rely on.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

# ---- A primary, its standby, a standby of that, and a subscriber ------------

my $primary = Tandem::Node->new_primary('primary');
my $standby = $primary->new_standby('standby');
my $cascade = $standby->new_standby('cascade');
my $subscriber = Tandem::Node->new_subscriber('subscriber');

is($primary->query(q{SELECT tandem.library_version() = extversion
	FROM pg_extension WHERE extname = 'pg_tandem'}),
	't', 'library and extension have the same version');
is($standby->query('SELECT tandem.library_version()'),
	$primary->query('SELECT tandem.library_version()'),
	'the standby has loaded the library too');

$primary->query('CREATE TABLE story (id bigserial PRIMARY KEY, line text)');
$subscriber->query('CREATE TABLE story (id bigint PRIMARY KEY, line text)');
$primary->query(q{INSERT INTO story (line) SELECT 'once ' || i FROM generate_series(1, 100) i});
$primary->publish('pub', 'story');
$subscriber->subscribe('sub', $primary, 'pub');

my $load = $primary->start_load(script => "INSERT INTO story (line) VALUES ('more');\n");
poll_for(sub { $primary->query('SELECT count(*) > 300 FROM story') eq 't' },
	'pgbench to write');
unlike($primary->stop_load($load), qr/error|abort|fatal/i,
	'pgbench ran in the background until it was stopped');

$primary->wait_replayed($standby);
$standby->wait_replayed($cascade);
$subscriber->wait_subscription('sub', $primary);
is_same_table($primary, $_, 'story') for $standby, $cascade, $subscriber;

# ---- Moving WAL and slots ---------------------------------------------------

my $segment = $primary->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
isnt($primary->switch_wal(2), $segment, 'WAL switches');

$primary->query(q{SELECT pg_create_logical_replication_slot('idle', 'test_decoding')});
my $restart = $primary->slot_value('idle', 'restart_lsn');
my $moved = $primary->advance_slot('idle');
is($primary->query("SELECT '$moved'::pg_lsn > '$restart'::pg_lsn"), 't',
	'restart_lsn of a slot moves');
ok($standby->restartpoint($primary), 'the standby makes a restartpoint');

# ---- Faults -----------------------------------------------------------------

my $receiver = $standby->pid_of(qr/walreceiver/);
stall($receiver);
$primary->query(q{INSERT INTO story (line) VALUES ('behind a stalled receiver')});
is($standby->query(q{SELECT count(*) FROM story WHERE line LIKE 'behind%'}), '0',
	'nothing arrives through a stalled walreceiver');
resume($receiver);
$primary->wait_replayed($standby);
is($standby->query(q{SELECT count(*) FROM story WHERE line LIKE 'behind%'}), '1',
	'it arrives when the walreceiver goes on');

kill_process($standby->pid_of(qr/walreceiver/), 'TERM');
isnt($standby->pid_of(qr/walreceiver/), $receiver, 'a killed walreceiver is replaced');

my @processes = ($primary->postmaster_pid, child_pids($primary->postmaster_pid));
$primary->kill9_all;
is(scalar(grep { process_alive($_) } @processes), 0, 'the primary is dead, with all its children');

$standby->promote;
$standby->query(q{INSERT INTO story (line) VALUES ('after the failover')});
$standby->wait_replayed($cascade);
is_same_table($standby, $cascade, 'story', 'the cascading standby follows the promotion');

$primary->start;
is($primary->query('SELECT pg_is_in_recovery()'), 'f', 'a killed server starts again');

SKIP:
{
	my $disk = small_disk()
	  or skip 'no small file system: make check as root provides one', 2;
	fill_disk($disk);
	open my $file, '>', "$disk/one_more" or die "$disk/one_more: $!";
	ok(!defined syswrite($file, 'x' x 8192) && $!{ENOSPC}, 'a full disk takes nothing');
	free_disk();
	ok(syswrite($file, 'x'), 'and takes again when there is room');
	close $file;
	unlink "$disk/one_more";
}

# ---- The documented role ----------------------------------------------------

my $careful = Tandem::Node->new_primary('careful', recipe => 1);
my $follower = $careful->new_standby('follower');
is($careful->query(q{SELECT usename || ' ' || host(client_addr) FROM pg_stat_replication}),
	'repl 127.0.0.1', 'a standby streams over TCP as the replication role');
is($careful->query(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'repl'}), 'f',
	'which is no superuser');
is($careful->query(q{SELECT has_function_privilege('repl', oid, 'EXECUTE')
	FROM pg_proc WHERE proname = 'source_slots'}), 't', 'and may ask for slots');

done_testing();
