# A consumer can be ahead of the standby: it has confirmed WAL that the standby
# has not received, or not replayed.  Its slot waits, says so, and follows.
#
# Without the comparison the slot would be called ready with a position that the
# standby doesn't have; after a promotion its consumer would miss what is
# written there next.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => 'tandem.slot_sync_interval = 100ms');
my $standby = $primary->new_standby('standby');

$primary->query(q{
	CREATE TABLE t (id serial PRIMARY KEY);
	SELECT pg_create_logical_replication_slot('fast', 'test_decoding');
	SELECT pg_create_logical_replication_slot('slow', 'test_decoding')});
$standby->wait_slot_ready($_) for qw(fast slow);

# The consumer of "fast" reads all there is; returns its position.
sub consume
{
	$primary->query('INSERT INTO t DEFAULT VALUES');
	$primary->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('fast', NULL, NULL)});
	return $primary->slot_value('fast', 'confirmed_flush_lsn');
}

sub stays_behind
{
	my ($name, $position) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $before = $standby->slot_value('fast', 'confirmed_flush_lsn');
	$standby->wait_slot_state('fast', 'pending',
		qr/its consumer has confirmed \Q$position\E, but this standby has replayed only .*tandem\.standby_slots/);
	pass("$name: pending, with positions and a hint");
	is($standby->slot_value('fast', 'confirmed_flush_lsn'), $before, "$name: the slot stays where it was proven");
	is($standby->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'slow'}), 'ready',
		"$name: the other slot is ready");
	like($standby->query('SELECT * FROM tandem.failover_ready()'),
		qr/^f\|1 of 2 failover slots is not ready; "fast": its consumer has confirmed/,
		"$name: failover_ready() says no");
	return;
}

sub follows
{
	my ($name, $position) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	poll_for(sub { $standby->slot_value('fast', 'confirmed_flush_lsn') eq $position },
		"the slot to follow to $position");
	$standby->wait_slot_ready('fast');
	pass("$name: then it follows");
	return;
}

# ---- Not received --------------------------------------------------------------

my $receiver = $standby->pid_of(qr/walreceiver/);
stall($receiver);
my $position = consume();
stays_behind('not received', $position);

# A slot that is new meanwhile waits as well.
$primary->query(q{SELECT pg_create_logical_replication_slot('new', 'test_decoding')});
$standby->wait_slot_state('new', 'pending', qr/its consumer has confirmed/);
is($standby->slot_value('new', 'slot_name'), '', 'a new slot is not created ahead of replay');
resume($receiver);
follows('not received', $position);
$standby->wait_slot_ready('new');
$primary->query(q{SELECT pg_drop_replication_slot('new')});

# ---- Not replayed ----------------------------------------------------------------

$standby->query('SELECT pg_wal_replay_pause()');
poll_for(sub { $standby->query('SELECT pg_get_wal_replay_pause_state()') eq 'paused' },
	'replay to pause');
$position = consume();
poll_for(sub { $standby->query("SELECT pg_last_wal_receive_lsn() >= '$position'") eq 't' },
	'the standby to receive all');
stays_behind('not replayed', $position);

# A cycle waits for replay only for a moment.
my $cycles = $standby->query('SELECT cycles FROM tandem.sync_status');
poll_for(sub { $standby->query("SELECT cycles > $cycles + 3 FROM tandem.sync_status") eq 't' },
	'more cycles');
is($standby->query('SELECT failed_cycles FROM tandem.sync_status'), '0', 'cycles go on without error');
$standby->query('SELECT pg_wal_replay_resume()');
follows('not replayed', $position);

# ---- A catalog rewritten while replay is behind -------------------------------------

# The files of the rewrite grow here by replay; they are no reason to lose it.
$standby->query('SELECT pg_wal_replay_pause()');
$primary->query('VACUUM FULL pg_class');
$position = consume();
stays_behind('catalog rewritten', $position);
$standby->query('SELECT pg_wal_replay_resume()');
follows('catalog rewritten', $position);

# ---- Promoted while it is behind: said in the log -------------------------------------

stall($standby->pid_of(qr/walreceiver/));
$position = consume();
$standby->wait_slot_state('fast', 'pending', qr/its consumer has confirmed/);
$primary->kill9_all;
resume_all();
$standby->promote;
$standby->wait_log(qr/failover slot "fast" was not ready when this server was promoted: its consumer has confirmed \Q$position\E/);
pass('a promotion that loses something is logged');

done_testing();
