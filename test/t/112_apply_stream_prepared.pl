# Transactions that come while they are in progress, with subtransactions that
# are rolled back, and transactions in two phases.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', conf => q{
logical_decoding_work_mem = 64kB
max_prepared_transactions = 10
});
my $subscriber = Tandem::Node->new_primary('subscriber', conf => 'max_prepared_transactions = 10');

sub caught_up
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

sub prepared
{
	my ($count) = @_;
	poll_for(sub { $subscriber->query('SELECT count(*) FROM pg_prepared_xacts') eq $count }, "$count prepared transactions");
	return;
}

$_->query('CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE u (a text); ALTER TABLE u REPLICA IDENTITY FULL') for $publisher, $subscriber;
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub', 'streaming = on, two_phase = on, binary = on');

my $big = q{INSERT INTO t SELECT i, repeat('x', 100) || i FROM generate_series(%d, %d) i;};

# rows of rolled back subtransactions, nested ones too, aren't here
$publisher->query(sprintf("BEGIN; $big SAVEPOINT a; $big ROLLBACK TO a; $big SAVEPOINT b; $big SAVEPOINT c; $big RELEASE c; $big ROLLBACK TO b; $big SAVEPOINT d; $big RELEASE d; DELETE FROM t WHERE id %% 5 = 0; COMMIT",
		1, 3000, 3001, 6000, 3001, 4000, 4001, 7000, 7001, 9000, 9001, 10000, 5000, 5500, 6000, 9500));
caught_up();
is_same_table($publisher, $subscriber, 't', 'subtransactions rolled back');
cmp_ok($publisher->query(q{SELECT pg_stat_force_next_flush(); SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = 'sub'}) =~ s/\s//gr, '>', 0, 'they have been streamed');

# many, one rolled back whole, a table created and one truncated in it
$publisher->query(sprintf("BEGIN; TRUNCATE t; $big SAVEPOINT a; INSERT INTO u SELECT 'u' || i FROM generate_series(1, 3000) i; ROLLBACK TO a; INSERT INTO u SELECT 'v' || i FROM generate_series(1, 3000) i; UPDATE u SET a = a || 'w' WHERE a < 'v11'; COMMIT", 1, 5000));
$publisher->query(sprintf("BEGIN; $big ROLLBACK", 20000, 30000));
$publisher->query(q{
	DO $$
	BEGIN
		FOR i IN 1 .. 2000 LOOP
			BEGIN
				INSERT INTO t VALUES (100000 + i, repeat('s', 200));
				IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF;
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END LOOP;
	END $$});
caught_up();
is_same_table($publisher, $subscriber, $_, "$_ after streamed transactions") for qw(t u);

# two of them at once
my @sessions = map { $publisher->background_psql('postgres') } 1 .. 2;
for my $round (0 .. 3)
{
	$sessions[$_]->query_safe(($round ? '' : 'BEGIN; ') . sprintf($big, 200000 + $_ * 100000 + $round * 1000, 200999 + $_ * 100000 + $round * 1000)) for 0, 1;
}
$sessions[1]->query_safe('COMMIT');
$sessions[0]->query_safe('COMMIT');
$_->quit for @sessions;
caught_up();
is_same_table($publisher, $subscriber, 't', 'interleaved transactions');

# the server's restart in the middle of one
my $session = $publisher->background_psql('postgres');
$session->query_safe('BEGIN; ' . sprintf($big, 500000, 505000));
my $pid = $subscriber->pid_of(qr/tandem apply/);
kill_process($pid, 'TERM') if $pid;
poll_for(sub { my @pids = $subscriber->pids_of(qr/tandem apply/); @pids == 1 && $pids[0] != $pid }, 'another apply worker');
$session->query_safe(sprintf($big, 505001, 506000) . 'COMMIT');
$session->quit;
caught_up();
is_same_table($publisher, $subscriber, 't', 'a transaction that was half received comes again');

# ---- two phases ----
is($subscriber->query('SELECT subtwophasestate FROM pg_subscription'), 'e', 'two_phase is enabled');
$publisher->query(q{BEGIN; INSERT INTO t VALUES (-1, 'p'); UPDATE t SET a = 'p' WHERE id = 1; PREPARE TRANSACTION 'small'});
prepared(1);
like($subscriber->query('SELECT gid FROM pg_prepared_xacts'), qr/^pg_gid_\d+_\d+$/, 'named as the server does');
is($subscriber->query('SELECT count(*) FROM t WHERE id = -1'), '0', 'not visible');
$publisher->query(q{COMMIT PREPARED 'small'});
caught_up();
is_same_table($publisher, $subscriber, 't', 'prepared and committed');

$publisher->query(sprintf("BEGIN; $big SAVEPOINT a; $big ROLLBACK TO a; DELETE FROM t WHERE id < 10; PREPARE TRANSACTION 'large'", 600000, 605000, 605001, 609000));
prepared(1);
$subscriber->expect_crash;
$subscriber->kill9_all;
$subscriber->start;
prepared(1);
$publisher->query(q{COMMIT PREPARED 'large'});
caught_up();
is_same_table($publisher, $subscriber, 't', 'a streamed one, prepared, with a crash in between');

$publisher->query(q{BEGIN; INSERT INTO t VALUES (-2, 'no'); PREPARE TRANSACTION 'rolled back'});
prepared(1);
$publisher->query(q{ROLLBACK PREPARED 'rolled back'});
caught_up();
prepared(0);
is_same_table($publisher, $subscriber, 't', 'rolled back');

done_testing();
