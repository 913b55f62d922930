# Every transaction is applied exactly once, however the apply worker, the
# server and the publisher are killed.  Each transaction of the load adds one to
# the number in a row and inserts one that has no key, so what is lost and what is
# applied twice both show.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $rounds = $ENV{TANDEM_ROUNDS} // 3;

my $publisher = Tandem::Node->new_primary('publisher');
my $subscriber = Tandem::Node->new_primary('subscriber', conf => 'restart_after_crash = on');

for my $node ($publisher, $subscriber)
{
	$node->query(q{
		CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL);
		INSERT INTO counter SELECT i, 0 FROM generate_series(1, 20) i;
		CREATE TABLE log (id int, at int);
		ALTER TABLE log REPLICA IDENTITY FULL});
}
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');
$subscriber->expect_crash;
$publisher->expect_crash;

my $script = q{\set id random(1, 20)
BEGIN;
UPDATE counter SET n = n + 1 WHERE id = :id;
INSERT INTO log SELECT :id, n FROM counter WHERE id = :id;
INSERT INTO log SELECT :id, n FROM counter WHERE id = :id;
COMMIT;
};

# applied in a transaction that is just half through, wherever the signal hits
sub progress
{
	my $before = $subscriber->query('SELECT sum(n) FROM counter');
	poll_for(sub { $subscriber->query('SELECT sum(n) FROM counter') > $before + 20 }, 'some transactions');
	return;
}

for my $round (1 .. $rounds)
{
	my $load = $publisher->start_load(script => $script, clients => 2);
	progress();
	kill_process($subscriber->pid_of(qr/tandem apply/), 'KILL');
	poll_for(sub { ($subscriber->psql('postgres', 'SELECT 1'))[0] == 0 }, 'the server to recover');
	progress();
	$subscriber->kill9_all;
	$subscriber->start;
	progress();
	kill_process($subscriber->pid_of(qr/tandem apply/), 'TERM');
	progress();
	$publisher->stop_load($load);

	$publisher->kill9_all;
	$publisher->start;
	$subscriber->wait_subscription('sub', $publisher);
	is_same_table($publisher, $subscriber, $_, "round $round: $_") for qw(counter log);
}
is($subscriber->query('SELECT count(*) FROM log'), $subscriber->query('SELECT 2 * sum(n) FROM counter'), 'no row more or less');

# handed back and taken over again under load
my $load = $publisher->start_load(script => $script, clients => 2);
for (1 .. 2)
{
	progress();
	$subscriber->query(q{SELECT tandem.release('sub')});
	$subscriber->query('ALTER SUBSCRIPTION sub ENABLE');
	progress();
	$subscriber->query('ALTER SUBSCRIPTION sub DISABLE');
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'logical replication worker'}) eq '0' }, 'the end of the server\'s worker');
	$subscriber->query(q{SELECT tandem.adopt('sub')});
}
progress();
$publisher->stop_load($load);
$subscriber->wait_subscription('sub', $publisher);
is_same_table($publisher, $subscriber, $_, "after adopt and release: $_") for qw(counter log);

done_testing();
