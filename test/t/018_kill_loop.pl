# Worker, standby and primary killed at random while slots are synced under load;
# afterwards every slot is ready or explained, and a failover loses nothing.
#
# TANDEM_KILLS is the number of kills (default 6), TANDEM_SEED repeats a run.
# Transactions overlap all the time, so that a slot without its snapshot would
# lose rows.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $kills = $ENV{TANDEM_KILLS} // 6;
my $seed = $ENV{TANDEM_SEED} // time;
srand $seed;
diag("TANDEM_SEED=$seed TANDEM_KILLS=$kills");

my $primary = Tandem::Node->new_primary('primary', conf => q{
	tandem.slot_sync_interval = 20ms
	wal_receiver_status_interval = 100ms
	wal_retrieve_retry_interval = 100ms
});
my $standby = $primary->new_standby('standby', conf => 'restart_after_crash = on');
my $subscriber = Tandem::Node->new_subscriber('subscriber', conf => 'wal_retrieve_retry_interval = 100ms');
$standby->expect_crash;
$_->query('CREATE TABLE t (id bigint PRIMARY KEY, who int)') for $primary, $subscriber;
$primary->query('CREATE SEQUENCE s CACHE 1');
$primary->publish('pub', 't');
$subscriber->subscribe('sub', $primary, 'pub');
$primary->query(q{SELECT pg_create_logical_replication_slot(name, 'test_decoding')
	FROM unnest('{idle,reader}'::text[]) name});
$primary->set('tandem.standby_slots' => 'standby');
$standby->wait_slot_ready($_) for qw(sub idle reader);

# Some transactions are short, some overlap many others.
my $script = q{\set ms random(0, 120)
BEGIN;
INSERT INTO t VALUES (nextval('s'), :client_id);
\sleep :ms ms
INSERT INTO t VALUES (nextval('s'), :client_id);
COMMIT;
};

# What a slot decodes from here on: for each transaction the end of its commit,
# as a number, and the rows.
sub decode
{
	my ($node, $slot) = @_;
	my (@transactions, @ids);
	for (split /\n/, $node->query(qq{
		SELECT lsn - '0/0', data FROM pg_logical_slot_get_changes('$slot', NULL, NULL)}))
	{
		my ($lsn, $data) = split /\|/;
		push @ids, $1 if $data =~ /^table public\.t: INSERT: id\[bigint\]:(\d+)/;
		next unless $data =~ /^COMMIT/ && @ids;
		push @transactions, { end => $lsn, ids => [ splice @ids ] };
	}
	return @transactions;
}

sub ids_of
{
	return join ' ', sort { $a <=> $b } map { @{ $_->{ids} } } @_;
}

# Rows that the consumer of slot "reader" has received.
my %received;

sub read_some
{
	my ($node) = @_;
	$received{$_} = 1 for map { @{ $_->{ids} } } decode($node, 'reader');
	return;
}

# A consumer that has come to a point where others are in the middle of
# transactions: the snapshot there is what its slot needs.
sub new_consumer
{
	my ($slot) = @_;
	$primary->query(qq{SELECT pg_create_logical_replication_slot('$slot', 'test_decoding')});
	for (1 .. 2)
	{
		$primary->query('CHECKPOINT');
		decode($primary, $slot);
	}
	return;
}

# The standby makes all its slots anew, where those of the primary are now.
sub lose_slots
{
	# an error if the worker uses one just now: then some are left
	$standby->query_error(q{SELECT pg_drop_replication_slot(slot_name)
		FROM pg_replication_slots WHERE NOT temporary});
	return;
}

my $load = $primary->start_load(script => $script, clients => 5);
my %killed;
for my $kill (1 .. $kills)
{
	$primary->query('CHECKPOINT') if rand() < 0.6;
	read_some($primary) if rand() < 0.7;
	$standby->query('CHECKPOINT') if rand() < 0.3;
	if (rand() < 0.4)
	{
		$primary->query(q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
			WHERE slot_name LIKE 'extra%' AND NOT active AND random() < 0.5});
		new_consumer("extra_$kill");
	}

	lose_slots() if rand() < 0.3;
	Time::HiRes::sleep(rand 0.3);    # the moment of the kill, not a wait

	my $victim = (qw(worker standby primary))[ rand 3 ];
	$killed{$victim}++;
	if ($victim eq 'primary')
	{
		$primary->kill9_all;
		$primary->stop_load($load);
		$primary->start;
		$load = $primary->start_load(script => $script, clients => 5);
	}
	elsif ($victim eq 'standby')
	{
		$standby->kill9_all;
		$standby->start;
	}
	else
	{
		# the server restarts all its processes after that
		my ($worker) = $standby->pids_of(qr/tandem worker/);
		kill_process($worker) if $worker;
	}
	poll_for(sub { $standby->query('SELECT 1') }, 'the standby to be back');
	is($standby->query(q{SELECT count(*) FROM tandem.slots WHERE state <> 'ready' AND (reason IS NULL OR hint IS NULL)}),
		'0', "after kill $kill ($victim) every slot is ready or explained");
	is($standby->query(q{SELECT count(*) FROM tandem.slots WHERE state = 'foreign'}), '0',
		'and ours are still ours');
}
diag(join ', ', map { "$_ killed $killed{$_} times" } sort keys %killed);

# ---- All is ready again, under load ------------------------------------------------

poll_for(
	sub {
		$standby->query('SELECT ready, reason FROM tandem.failover_ready()') =~
		  /^t\|all \d+ failover slots are ready; last contact/;
	},
	'all slots to be ready');
pass('under load, all slots become ready again');
is($standby->query(q{SELECT count(*) >= 3 FROM tandem.slots WHERE state = 'ready'}), 't',
	'and none is missing');
read_some($primary);
new_consumer('extra_last');
lose_slots();
poll_for(sub { $standby->slot_value('extra_last', 'slot_name') }, 'the last slot');

# ---- The last kill is a failover ------------------------------------------------------

poll_for(sub { $standby->query('SELECT ready FROM tandem.failover_ready()') eq 't' },
	'a moment when a failover loses nothing');
$primary->kill9_all;
$primary->stop_load($load);
$standby->promote;
$standby->query(q{INSERT INTO t VALUES (0, -1)});

# First the slots that need a snapshot: decoding from the beginning would write
# snapshots on its way.
my %confirmed = map { split /\|/ } split /\n/, $standby->query(
	q{SELECT slot_name, confirmed_flush_lsn - '0/0' FROM pg_replication_slots
	WHERE plugin = 'test_decoding'});
my %decoded = map { $_ => ids_of(decode($standby, $_)) } grep { /^extra/ } keys %confirmed;
read_some($standby);
my @story = decode($standby, 'idle');

my $all = join ' ', sort { $a <=> $b } split /\n/, $standby->query('SELECT id FROM t');
is(ids_of(@story), $all, 'a slot never read decodes each row of the whole story exactly once');
for my $slot (sort keys %decoded)
{
	my @expected = grep { $_->{end} > $confirmed{$slot} } @story;
	is($decoded{$slot}, ids_of(@expected),
		"slot $slot decodes exactly the transactions after its position");
}
my @missing = grep { !$received{$_} } split / /, $all;
is("@missing", '', 'the consumer of "reader" has missed none');
my %there = map { $_ => 1 } split / /, $all;
my @surplus = grep { !$there{$_} } keys %received;
is("@surplus", '', 'and has none that the new primary lacks');
diag(scalar(split / /, $all) . ' rows');

$subscriber->resubscribe('sub', $standby);
$subscriber->wait_subscription('sub', $standby);
is_same_table($standby, $subscriber, 't', 'the subscription has all rows of the new primary, and no other');

done_testing();
