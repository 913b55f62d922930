# When tombstones go: each clause of the rule (src/conflict/epoch.c) keeps them by
# itself, is named by tandem.tombstones while it does, and lets them go when it is
# met.  Without the clause they would be gone while they are needed.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0,
	conf => "track_commit_timestamp = on\nmax_prepared_transactions = 5\nautovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "track_commit_timestamp = on\nautovacuum = off\ntandem.debug_epoch_age = 0\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO t SELECT i, 'old' FROM generate_series(1, 100) i; INSERT INTO other VALUES (1)});
$publisher->publish('pub');
$waves->subscribe(options => 'tombstones = on');
$waves->wait_ready;

sub column { return $subscriber->query("SELECT $_[0] FROM tandem.tombstones") }

# Until the collector has all that is committed here, and all epochs have gone.
sub wait_none
{
	my ($why) = @_;
	poll_for(sub { column('tombstones = 0 AND waits_for IS NULL') eq 't' }, "no tombstone to be left $why");
	return;
}

poll_for(sub { column('state') eq 'collecting' }, 'deletes to be collected');
wait_none('after the start');

# Deletes the next row here, which must leave a tombstone that stays: once a pass
# has come to what it waits for, nothing changes by itself.
my $next = 0;

sub delete_one
{
	my ($waits_for) = @_;
	$next++;
	$subscriber->query("DELETE FROM t WHERE id = $next");
	my $last = '';
	eval {
		poll_for(sub { ($last = column(q{tombstones > 0 AND waits_for IS NOT NULL, waits_for})) =~ /^t\|.*$waits_for/ },
			"a tombstone that waits for \"$waits_for\"");
		1;
	} or die "$@\tlast: $last\n";
	return;
}

# Turns that the worker makes; it looks at each of them again.
sub wait_turns
{
	my $sql = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tandem retention'
		AND state_change > '%s'};
	my $now = $subscriber->query('SELECT clock_timestamp()');
	for (1 .. 3)
	{
		poll_for(sub { $subscriber->query(sprintf $sql, $now) eq '1' }, 'a turn of the worker');
		$now = $subscriber->query('SELECT clock_timestamp()');
	}
	return;
}

sub stays
{
	my ($name) = @_;
	wait_turns();
	is(column('tombstones > 0'), 't', "$name: the tombstone stays");
	return;
}

# ---- Transactions that had begun ------------------------------------------------

# It is the only one that runs, with the newest id: a snapshot's xmax is that id.
my $writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 1});
delete_one('must end on the publisher');
stays('a transaction that has begun to write there');
like(column('coalesce(hint, waits_for)'), qr/transactions|must end/, 'the view says so');
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
wait_none('when it has committed');

# a prepared one counts as running
$publisher->query(q{BEGIN; UPDATE t SET v = 'new' WHERE id = 2; PREPARE TRANSACTION 'p'});
delete_one('must end on the publisher');
stays('a prepared transaction');
$publisher->query(q{COMMIT PREPARED 'p'});
wait_none('when it has been committed');

# ---- The publisher's clock --------------------------------------------------------

$subscriber->append_conf('postgresql.conf', 'tandem.debug_publisher_clock = -1h');
$subscriber->reload;
wait_turns();
delete_one(q{publisher's clock});
stays('a clock that is behind');
$subscriber->append_conf('postgresql.conf', 'tandem.debug_publisher_clock = 0');
$subscriber->reload;
wait_none('when it has passed');

# ---- What is not applied yet -----------------------------------------------------

# evaluated also while apply is down
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = off')});
poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'paused' }, 'the subscription to be paused');
$publisher->query(q{UPDATE t SET v = 'new' WHERE id = 4});
delete_one('must be applied and confirmed');
stays('a change that is not applied');
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
wait_none('when it is applied');

# ---- A table that is copied ---------------------------------------------------------

$waves->pause('other');
$waves->resync('other');
$waves->wait_paused;
delete_one('being copied');
stays('a table that is being copied');
$waves->resume;
$waves->wait_ready;
wait_none('when it is copied');

# ---- Publishers that prove nothing ------------------------------------------------------

$publisher->query(q{CREATE SUBSCRIPTION elsewhere CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false)});
delete_one('forwards');
stays('a publisher that forwards what others did');
isnt(column('hint'), '', 'with a hint');
$publisher->query('ALTER SUBSCRIPTION elsewhere SET (slot_name = NONE); DROP SUBSCRIPTION elsewhere');

# one that doesn't answer; what is deleted meanwhile is collected
$publisher->stop('immediate');
poll_for(sub { column('waits_for') =~ /connect|connection|publisher/ }, 'the view to say that it is gone', 60);
$subscriber->query('DELETE FROM t WHERE id BETWEEN 50 AND 59');
poll_for(sub { column('tombstones') >= 11 }, 'more tombstones');
$publisher->start;
wait_none('when it is there again');

# ---- A restart forgets where passes are, and nothing is dropped for that ------------------

$writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 60});
delete_one('must end on the publisher');
$subscriber->restart;
poll_for(sub { (column(q{coalesce(waits_for, '-')}) // '') =~ /must end on the publisher/ }, 'the pass to be there again');
is(column('tombstones > 0'), 't', 'after a restart the tombstone is there');
$waves->end_session($writer);
wait_none('when the transaction has ended');

is(column('windows'), $subscriber->query('SELECT count(*) FROM tandem.tombstone_windows'), 'windows are counted');
is(column('epochs_ended_early'), '0', 'nothing has been dropped early');

done_testing();
