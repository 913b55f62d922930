# A slot counts as ready only when it has been proven able to decode.
#
# A tool that copies positions only leaves slots without a snapshot file behind.
# After a failover such a slot is the primary's, and looks like any other.  One
# whose restart_lsn lies within a transaction that ends after confirmed_flush
# can't decode that transaction: no cycle may call it ready, also not the second
# one, in which nothing has moved and nothing seems to be left to do.  One that
# was idle at a quiet moment can: it becomes ready by decoding, not before.
#
# Without the proof both would be ready at once, and rows would be lost in
# silence.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $old = Tandem::Node->new_primary('old', conf => 'tandem.slot_sync_interval = 100ms');
my $primary = $old->new_standby('naive_standby',
	conf => "tandem.debug_ship_snapshots = off\ntandem.sync_slots = off\n");

$old->query('CREATE TABLE t (id int PRIMARY KEY)');
$old->query("SELECT pg_create_logical_replication_slot('$_', 'test_decoding')")
  for qw(gap quiet);
$old->advance_slot($_) for qw(gap quiet);

# The restart_lsn of "gap" is a record at which "b" runs; the snapshot that
# knows of b lies there, on this server only.
my $a = $old->background_psql('postgres');
my $b = $old->background_psql('postgres');
$a->query_safe('BEGIN; INSERT INTO t VALUES (1)');
$old->query('CHECKPOINT');
$b->query_safe('BEGIN; INSERT INTO t VALUES (2)');
$old->query('CHECKPOINT');
$a->query_safe('COMMIT');
$a->quit;
for (1 .. 2)
{
	$old->query('CHECKPOINT');
	$old->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('gap', NULL, NULL)});
}
$old->wait_replayed($primary);
$primary->set('tandem.sync_slots' => 'on');
for my $slot (qw(gap quiet))
{
	my $confirmed = $old->slot_value($slot, 'confirmed_flush_lsn');
	poll_for(sub { $primary->slot_value($slot, 'confirmed_flush_lsn') eq $confirmed },
		"the position of $slot to be copied");
}
$old->kill9_all;
$b->{run}->kill_kill;
$primary->promote;

my $restart = $primary->slot_value('gap', 'restart_lsn');
my ($high, $low) = split m{/}, $restart;
ok(!-e $primary->data_dir . "/pg_logical/snapshots/$high-$low.snap",
	'the new primary has a slot whose snapshot it lacks');

# ---- A standby of that primary ------------------------------------------------

my $standby = $primary->new_standby('standby',
	conf => 'tandem.debug_ship_snapshots = on');
$standby->wait_slot_state('gap', 'pending', qr/decoding from \S+ is not consistent before/);
is($standby->slot_value('gap', 'restart_lsn'), '', 'a slot that can not be proven does not exist here');

$standby->wait_slot_ready('quiet');
like($standby->log_since(0), qr/failover slot "quiet" is ready on this standby/,
	'a slot that was idle at a quiet moment is proven by decoding');

# Cycles in which nothing moves don't change the verdict.
my $cycles = $standby->query('SELECT cycles FROM tandem.sync_status');
my @states = map {
	$standby->query(q{SELECT state FROM tandem.sync_slots() WHERE slot_name = 'gap'})
} 1 .. 4;
is("@states", 'pending pending pending pending', 'idle cycles leave it pending');
is($standby->query("SELECT cycles - $cycles >= 4 FROM tandem.sync_status"), 't',
	'and these were cycles');
like($standby->query('SELECT * FROM tandem.failover_ready()'),
	qr/^f\|1 of 2 failover slots is not ready; "gap": the primary has no snapshot.*\|.+/,
	'failover_ready() says which slot and why');

# A new slot has no file at its restart_lsn either, and is sound.
$primary->query(q{SELECT pg_create_logical_replication_slot('fresh', 'test_decoding')});
$standby->wait_slot_ready('fresh');
is($standby->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'gap'}), 'pending',
	'a fresh slot becomes ready beside it');

# Recreated with nothing else changed: the earlier proof isn't its own.
$primary->query(q{SELECT pg_drop_replication_slot('fresh')});
$primary->query(q{SELECT pg_create_logical_replication_slot('fresh', 'test_decoding')});
my $position = $primary->slot_value('fresh', 'confirmed_flush_lsn');
poll_for(sub { $standby->slot_value('fresh', 'confirmed_flush_lsn') eq $position },
	'the recreated slot to be followed');

# ---- The consumer moves on: there is a snapshot, and the slot is ready ----------

$primary->advance_slot('gap');
$standby->wait_slot_ready('gap');
like($standby->query('SELECT ready, reason FROM tandem.failover_ready()'),
	qr/^t\|all 3 failover slots are ready/, 'then all are ready');

$primary->query('INSERT INTO t VALUES (3)');
$primary->wait_replayed($standby);
$primary->kill9_all;
$standby->promote;
$standby->query('INSERT INTO t VALUES (4)');
for my $slot (qw(gap fresh))
{
	my $rows = $standby->query(qq{
		SELECT string_agg(substring(data from '\\[integer\\]:(\\d+)'), ' ')
		FROM pg_logical_slot_get_changes('$slot', NULL, NULL) WHERE data ~ '^table'});
	is($rows, '3 4', "$slot goes on from where it was");
}

# Three timelines, read by a walsender.
my $end = $standby->query('SELECT pg_current_wal_flush_lsn()');
my $output = $standby->pg_recvlogical_upto('postgres', 'quiet', $end, 60);
is(join(' ', $output =~ /^table public\.t: INSERT: id\[integer\]:(\d+)/mg), '1 3 4',
	'quiet goes on from where it was, over three timelines');

done_testing();
