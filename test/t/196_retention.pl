# Bounds end the retention of tombstones early: that is recorded as a window, so that
# verdicts say "unknown" where they can't be sure and nowhere else, and it ends by
# itself.  Collecting goes on all the time, so there is nothing to resume.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0,
	conf => "track_commit_timestamp = on\nautovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "track_commit_timestamp = on\nautovacuum = off\ntandem.debug_epoch_age = 0\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO t SELECT i, 'old' FROM generate_series(1, 60000) i});
$publisher->publish('pub');
$waves->subscribe(options => 'tombstones = on');
$waves->wait_ready;

sub column { return $subscriber->query("SELECT $_[0] FROM tandem.tombstones") }
sub verdict { return $subscriber->query(qq{SELECT verdict, coalesce(reason, '') FROM tandem.tombstone_find('t', '{"id": $_[0]}')}) }

sub wait_none
{
	poll_for(sub { column(q{tombstones = 0 AND waits_for IS NULL AND state = 'collecting'}) eq 't' }, 'nothing to be left');
	return;
}
wait_none();
like(verdict(1), qr/^missing\|/, 'nothing was deleted: proven');

# ---- tandem.max_retention -----------------------------------------------------------

my $writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 1});
my $mark = $subscriber->log_mark;
$subscriber->set('tandem.max_retention' => '1s');
$subscriber->query('DELETE FROM t WHERE id = 1');
like(verdict(1), qr/^deleted\|/, 'a delete is found');
poll_for(sub { column('state') eq 'stopped' }, 'the bound to end retention');
$subscriber->wait_log(qr/LOG:  epoch \d+ with \d+ tombstones has been dropped early: tandem\.max_retention/, $mark);
is(column('epochs_ended_early > 0 AND unknown_before IS NOT NULL'), 't', 'counted, and the view says up to when nothing is sure');
like(column(q{reason || ' ' || hint}), qr/not all known: stopped .*max_retention/, 'and why');
is($subscriber->query(q{SELECT count(*) FROM tandem.tombstone_windows WHERE reason = 'stopped' AND passed IS NULL
	AND from_time < to_time AND from_lsn <= to_lsn}), '1', 'a window is recorded');
like(verdict(1), qr/^unknown\|.*not all known: stopped/, 'the delete is not found, and the verdict says so');

# what is deleted now is collected, and found
$subscriber->set('tandem.max_retention' => '1h');
$subscriber->query('DELETE FROM t WHERE id = 2');
like(verdict(2), qr/^deleted\|/, 'collecting has not stopped');
is(column('state'), 'stopped', 'though the window is still there');

# it ends when the subscription has caught up past it
$mark = $subscriber->log_mark;
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
wait_none();
$subscriber->wait_log(qr/LOG:  all subscriptions have caught up past 1 window/, $mark);
is($subscriber->query(q{SELECT count(*) FROM tandem.tombstone_windows WHERE reason = 'stopped' AND passed IS NOT NULL}), '1',
	'the window is history');
like(verdict(1), qr/^missing\|/, 'no change can come any more for which it matters');

# ---- tandem.tombstone_limit ------------------------------------------------------------

$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = off')});
poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'paused' }, 'apply to stop');
$publisher->query(q{UPDATE t SET v = 'new' WHERE id = 3});
$mark = $subscriber->log_mark;
$subscriber->set('tandem.tombstone_limit' => '1MB');
for my $i (1 .. 5)
{
	$subscriber->query("DELETE FROM t WHERE id BETWEEN $i * 10000 AND $i * 10000 + 9999");
}
$subscriber->wait_log(qr/LOG:  epoch \d+ with \d+ tombstones has been dropped early: tandem\.tombstone_limit/, $mark);
poll_for(sub { $subscriber->query(q{SELECT bytes < 1024 * 1024 FROM tandem.tombstones}) eq 't' }, 'the store to be small');
is($subscriber->query(q{SELECT count(*) FROM tandem.tombstone_windows WHERE passed IS NULL}), '1', 'one window for all of them');
like(verdict(10000), qr/^(unknown|deleted)\|/, 'no delete is called missing');
like(verdict(59999), qr/^(unknown|deleted)\|/, 'nor a later one');

$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
wait_none();
like(verdict(10000), qr/^missing\|/, 'at the end all is certain');

# ---- Standbys and restarts --------------------------------------------------------------

$subscriber->restart;
is($subscriber->query(q{SELECT count(*) FROM tandem.tombstone_windows WHERE passed IS NOT NULL AND reason = 'stopped'}), '2',
	'windows survive a restart');
poll_for(sub { column('state') eq 'collecting' }, 'deletes to be collected again');

# ---- Roles ----------------------------------------------------------------------------

$subscriber->query('CREATE ROLE watcher IN ROLE pg_monitor; CREATE ROLE nobody');
is($subscriber->query('SET ROLE watcher; SELECT count(*) FROM tandem.tombstones, tandem.tombstone_windows'), '2',
	'those who watch may read the views');
like($subscriber->query_error('SET ROLE nobody; SELECT * FROM tandem.tombstones'), qr/permission denied/, 'others may not');

# switched off, nothing is kept and nobody asks the publisher
$subscriber->query(q{SELECT tandem.adopt('sub', 'tombstones = off')});
poll_for(sub { column('state') eq 'off' }, 'the view to say so');
poll_for(sub { !$subscriber->pids_of(qr/tandem retention/) }, 'the worker to end');

done_testing();
