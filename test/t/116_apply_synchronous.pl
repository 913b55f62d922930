# A subscriber that the publisher's commits wait for.  A worker that confirms
# late keeps each of them waiting; one that confirms what isn't flushed here
# breaks the promise that they waited for.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes qw(time);

my $publisher = Tandem::Node->new_primary('publisher');
# nothing is flushed here but by the apply worker or the WAL writer
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "wal_writer_delay = 100ms\n");

$_->query('CREATE TABLE t (id int PRIMARY KEY, a text)') for $publisher, $subscriber;
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');
$subscriber->wait_subscription('sub', $publisher);

# The standby's name is the one of the connection: the subscription's.
$publisher->query(q{ALTER SYSTEM SET synchronous_standby_names = 'sub'});
$publisher->query('SELECT pg_reload_conf()');
poll_for(sub { $publisher->query(q{SELECT sync_state FROM pg_stat_replication WHERE application_name = 'sub'}) eq 'sync' },
	'the subscriber to be synchronous');

my $id = 0;
for my $synccommit (qw(off on remote_apply))
{
	$subscriber->query("ALTER SUBSCRIPTION sub SET (synchronous_commit = $synccommit)");
	for my $level (qw(on remote_write remote_apply))
	{
		my $start = time;
		$publisher->query("SET synchronous_commit = $level; SET statement_timeout = '60s'; INSERT INTO t VALUES (" . ++$id . ", '$level')")
		  for 1 .. 5;
		# wal_receiver_status_interval is 10 s: these don't wait for it, nor for an idle worker's nap
		cmp_ok(time - $start, '<', 4, "5 commits at level $level, synchronous_commit = $synccommit here");
		is($subscriber->query("SELECT count(*) FROM t"), $id, "are visible here when they return ($level)") if $level eq 'remote_apply';
	}
}
# nothing for us in them: they return as well
$publisher->query(q{SET statement_timeout = '60s'; CREATE UNLOGGED TABLE other (id int); INSERT INTO other SELECT 1; DROP TABLE other});
pass('transactions that change nothing here return');

# Without a flush here, a commit there that asks for one must not return.
$subscriber->query('ALTER SUBSCRIPTION sub SET (synchronous_commit = off)');
$subscriber->query(q{ALTER SYSTEM SET wal_writer_delay = '10s'});
$subscriber->query('SELECT pg_reload_conf()');
for my $round (1 .. 5)
{
	$publisher->query("SET synchronous_commit = on; INSERT INTO t VALUES (" . ++$id . ", 'kept')");
	$subscriber->kill9_all;
	$subscriber->start;
	is($subscriber->query("SELECT a FROM t WHERE id = $id"), 'kept', "a commit that returned is here after a crash ($round)");
	poll_for(sub { $publisher->query(q{SELECT count(*) FROM pg_stat_replication WHERE application_name = 'sub' AND sync_state = 'sync'}) eq '1' },
		'the subscriber to come back');
}
is_same_table($publisher, $subscriber, 't', 'in the end all is here, once');

done_testing();
