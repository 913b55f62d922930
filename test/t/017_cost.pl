# What a cycle costs: 100 slots in 20 databases, each at a position of its own.
#
# A cycle in which nothing moved transfers less than 64 KiB; the worker's private
# memory stays under 20 MiB and flat.  Times are shown, not judged: make
# bench-slots measures.
#
# Without the inventory each cycle would transfer all snapshot files; with
# anything kept per cycle, memory would grow.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $databases = 20;
my $per_database = 5;
my $slots = $databases * $per_database;
my $cycles = $ENV{TANDEM_CYCLES} // 300;

my $conf = q{
	tandem.slot_sync_interval = 1h
	max_replication_slots = 120
	checkpoint_timeout = 1h
	max_wal_size = 4GB
};
my $primary = Tandem::Node->new_primary('primary', conf => $conf);
my $standby = $primary->new_standby('standby');
my $worker = $standby->pid_of(qr/tandem worker/);

# Private memory of a process, in kB.
sub private_memory
{
	my ($pid) = @_;
	my %kb = slurp_file("/proc/$pid/smaps_rollup") =~ /^(\w+):\s+(\d+) kB/mg;
	return $kb{Private_Clean} + $kb{Private_Dirty};
}

sub status
{
	my ($what) = @_;
	my @names = qw(cycle_ms cycle_cpu_ms bytes_sent bytes_received slots_created slots_moved slots_saved restart_lag);
	my %status;
	@status{@names} = split /\|/, $standby->query(
		'SELECT ' . join(', ', @names) . ' FROM tandem.sync_status');
	diag(sprintf('%-34s %7.1f ms, %6.1f ms CPU, %7d bytes; %d created, %d moved, %d saved',
		$what, @status{qw(cycle_ms cycle_cpu_ms)}, $status{bytes_sent} + $status{bytes_received},
		@status{qw(slots_created slots_moved slots_saved)}));
	return \%status;
}

sub cycle
{
	return $standby->query(q{SELECT count(*) FILTER (WHERE state = 'ready') FROM tandem.sync_slots()});
}

# Moves each slot to a running-transactions record of its own.
sub move_slots
{
	my $script = '';
	for my $d (1 .. $databases)
	{
		$script .= "\\connect db$d\n";
		$script .= "CHECKPOINT;\nSELECT pg_replication_slot_advance('slot_${d}_$_', pg_current_wal_flush_lsn());\n"
		  for 1 .. $per_database;
	}
	$primary->query($script);
	$primary->wait_replayed($standby);
	return;
}

$primary->query('CREATE TABLE t (id int, filler text)');
for my $d (1 .. $databases)
{
	$primary->query("CREATE DATABASE db$d");
	$primary->query(qq{SELECT pg_create_logical_replication_slot('slot_${d}_' || i, 'test_decoding')
		FROM generate_series(1, $per_database) i}, "db$d");
}
move_slots() for 1 .. 2;

# ---- First sync, much WAL, idle ------------------------------------------------------

cycle();
status('first cycle');
poll_for(sub { cycle() eq $slots }, 'all slots to be ready');

cycle() for 1 .. 3;
is($standby->query(q{SELECT count(DISTINCT restart_lsn) > 90 FROM pg_replication_slots
	WHERE NOT temporary}), 't', 'the slots have positions of their own');
my $idle = status('nothing moved');
cmp_ok($idle->{bytes_sent} + $idle->{bytes_received}, '<', 64 * 1024,
	'a cycle in which nothing moved transfers less than 64 KiB');
is($idle->{slots_saved}, '0', 'and saves nothing');

for my $mb (4, 32)
{
	my $before = $primary->query('SELECT pg_current_wal_insert_lsn()');
	$primary->query(qq{INSERT INTO t SELECT i, repeat(md5(i::text), 30)
		FROM generate_series(1, $mb * 900) i});
	my $written = $primary->query("SELECT (pg_current_wal_insert_lsn() - '$before') / 1048576");
	cmp_ok($written, '>', $mb * 0.8, "$mb MB of WAL are written");
	move_slots() for 1 .. 2;
	is(cycle(), $slots, "after $mb MB of WAL all slots are ready in one cycle");
	my $after = status("after $mb MB of WAL");
	is($after->{slots_moved}, $slots, 'and all have moved');
	cmp_ok($after->{bytes_sent} + $after->{bytes_received}, '<', 256 * 1024,
		'what is transferred does not depend on the WAL');
	is(cycle(), $slots, 'the next has nothing to do');
}
# ---- Memory ----------------------------------------------------------------------------

my $loop = q{DO $$ BEGIN FOR i IN 1 .. %d LOOP PERFORM count(*) FROM tandem.sync_slots(); END LOOP; END $$};
$standby->query(sprintf $loop, 50);
my $before = private_memory($worker);
my $count = $standby->query('SELECT cycles FROM tandem.sync_status');
$standby->query(sprintf $loop, $cycles);
my $after = private_memory($worker);
is($standby->query("SELECT cycles - $count >= $cycles FROM tandem.sync_status"), 't', "$cycles cycles were made");
diag("private memory of the worker: $before kB, after $cycles cycles $after kB");
SKIP:
{
	skip 'a sanitizer keeps memory of its own', 2 if $ENV{TANDEM_SERVER_PRELOAD};
	cmp_ok($after, '<', 20 * 1024, 'the worker has less than 20 MiB of private memory');
	cmp_ok($after - $before, '<', 256, 'and it does not grow');
}
$idle = status('nothing moved');
cmp_ok($idle->{bytes_sent} + $idle->{bytes_received}, '<', 64 * 1024,
	'a cycle in which nothing moved still transfers less than 64 KiB');
is($standby->pid_of(qr/tandem worker/), $worker, 'it is the same worker');

done_testing();
