# Deletes that can't be decoded any more are a blind window: it is recorded, and a
# verdict that could be wrong because of it says "unknown", until no change can come
# any more for which that matters.  Where the collector's slot is kept by a standby
# there is no such window.

use strict;
use warnings;

use File::Path qw(remove_tree);
use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0,
	conf => "track_commit_timestamp = on\nautovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "track_commit_timestamp = on\nautovacuum = off\ntandem.debug_epoch_age = 0\ntandem.slot_sync_interval = 100ms\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO t SELECT i, 'old' FROM generate_series(1, 100) i});
$publisher->publish('pub');
$waves->subscribe(options => 'tombstones = on');
$waves->wait_ready;

sub column { my ($node, $what) = @_; return $node->query("SELECT $what FROM tandem.tombstones") }
sub verdict { my ($node, $id) = @_; return $node->query(qq{SELECT verdict, coalesce(reason, '') FROM tandem.tombstone_find('t', '{"id": $id}')}) }

sub wait_none
{
	my ($node) = @_;
	poll_for(sub { column($node, q{tombstones = 0 AND waits_for IS NULL AND state = 'collecting'}) eq 't' },
		'nothing to be left on ' . $node->name);
	return;
}

sub windows { return $_[0]->query(q{SELECT string_agg(reason, ',' ORDER BY recorded) FROM tandem.tombstone_windows}) }

wait_none($subscriber);
my $slot = $subscriber->query(q{SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'tandem_tombstones_%'});
isnt($slot, '', 'the collector has a slot');
is(windows($subscriber), '', 'no window at the start');

# ---- The slot is gone ---------------------------------------------------------------

# A transaction on the publisher keeps all that follows from being passed.
my $writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 10});
$subscriber->stop;
remove_tree($subscriber->data_dir . "/pg_replslot/$slot");
$subscriber->start;
poll_for(sub { column($subscriber, 'state') eq 'stopped' }, 'the view to say that deletes are not known');
is($subscriber->query('SELECT count(*) FROM tandem.tombstone_windows WHERE passed IS NULL AND to_lsn >= from_lsn'), '1', 'a window is recorded');
like(verdict($subscriber, 10), qr/^unknown\|.*not all known/, 'a missing row may have been deleted in it');
$subscriber->query('DELETE FROM t WHERE id = 11');
like(verdict($subscriber, 11), qr/^deleted\|/, 'what is deleted after it is found');
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
wait_none($subscriber);
like(verdict($subscriber, 101), qr/^missing\|/, 'all is certain again when the subscription has caught up');
my $reasons = windows($subscriber);

# ---- A failover with the slot ---------------------------------------------------------

my $standby = $subscriber->new_standby('standby');
$standby->wait_slot_ready($slot);
$writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 20});
stall($subscriber->pid_of(qr/tandem collector/));
$subscriber->query('DELETE FROM t WHERE id = 20');
$subscriber->wait_replayed($standby);
$subscriber->kill9_all;
$standby->promote;
poll_for(sub { column($standby, 'state') eq 'collecting' }, 'deletes to be collected on the promoted standby');
like(verdict($standby, 20), qr/^deleted\|/, 'a delete that was not collected before the failover is found after it');
is(windows($standby), $reasons, 'no window');
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
wait_none($standby);

# ---- A failover without the slot ----------------------------------------------------------

$standby->set('tandem.failover_slots' => '');
my $second = $standby->new_standby('second');
$writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 30});
stall($standby->pid_of(qr/tandem collector/));
$standby->query('DELETE FROM t WHERE id = 30');
$standby->wait_replayed($second);
$standby->kill9_all;
$second->promote;
poll_for(sub { column($second, 'state') eq 'stopped' }, 'the view to say that deletes are not known');
is($second->query(q{SELECT count(*) FROM tandem.tombstone_windows WHERE passed IS NULL AND from_time < to_time}), '1',
	'a window is recorded');
like(verdict($second, 30), qr/^unknown\|.*not all known/, 'the delete was lost, and the verdict says that it may be');
$second->query('DELETE FROM t WHERE id = 31');
like(verdict($second, 31), qr/^deleted\|/, 'later ones are found');
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
wait_none($second);

done_testing();
