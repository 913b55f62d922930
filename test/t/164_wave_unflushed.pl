# What a snapshot of the publisher sees, and what it doesn't see yet.
#
# A transaction that was committed with synchronous_commit = off can be seen, be
# copied, and then be lost in a crash of the publisher: no copied row commits
# before all that the snapshot sees is flushed there.
#
# A transaction that waits for a synchronous standby has been sent to us, and is
# not seen yet: no snapshot is good before it is.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

# nothing but a commit that insists flushes WAL, nor does a page that has to make room
my $publisher = Tandem::Node->new_primary('publisher', library => 0,
	conf => "synchronous_commit = off\nautovacuum = off\nwal_writer_delay = 10s\nshared_buffers = 64MB\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
$publisher->expect_crash;

$_->query('CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)') for $publisher, $subscriber;
$publisher->query('INSERT INTO t SELECT g FROM generate_series(1, 1000) g');
$publisher->publish('pub');
my $waves = Tandem::Waves->new($publisher, $subscriber);
$waves->subscribe;
$waves->wait_ready;
my $wave = $subscriber->query(q{SELECT wave FROM tandem.tables WHERE name = 't'});

# ---- Seen, and not flushed ------------------------------------------------------

stall($publisher->pid_of(qr/walwriter/));
$publisher->query('INSERT INTO t VALUES (2000)');
is($publisher->query('SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()'), 't', 'a commit is not flushed');
$waves->resync('t');
poll_for(sub { $subscriber->query("SELECT wave > $wave AND state IN ('catching up', 'ready') FROM tandem.tables WHERE name = 't'") eq 't' },
	'the copy to commit');
$publisher->kill9_all;
$publisher->start;
is($publisher->query('SELECT count(*) FROM t WHERE id = 2000'), '1', 'what has been copied was not lost');
$publisher->query('INSERT INTO t VALUES (3000)');
$waves->wait_ready(retry => 1);
$publisher->set(synchronous_commit => 'on');
$waves->wait_applied;
is_same_table($publisher, $subscriber, 't');

# ---- Sent, and not seen ------------------------------------------------------------

my $standby = $publisher->new_standby('standby');
$publisher->set(synchronous_standby_names => 'standby');
poll_for(sub { $publisher->query('SELECT sync_state FROM pg_stat_replication WHERE application_name = $$standby$$') eq 'sync' }, 'the synchronous standby');
stall($standby->pid_of(qr/walreceiver/));
my $session = $waves->start_session($publisher, 'INSERT INTO t VALUES (4000)');
poll_for(sub { $subscriber->query('SELECT count(*) FROM t WHERE id = 4000') eq '1' }, 'the row to be applied');
is($publisher->query('SELECT count(*) FROM t WHERE id = 4000'), '0', 'which nobody sees on the publisher');

$wave = $subscriber->query(q{SELECT wave FROM tandem.tables WHERE name = 't'});
$waves->resync('t');
$waves->wait_state('t', qr/^copying: waits for transactions on the publisher .*synchronous standby/);
is($subscriber->query('SELECT count(*) FROM t'), '1003', 'it is not copied with a snapshot that does not see it');
resume_all();
$waves->wait_session($session);
$waves->end_session($session);
poll_for(sub { $subscriber->query("SELECT wave > $wave AND state = 'ready' FROM tandem.tables WHERE name = 't'") eq 't' }, 'the copy');
$waves->wait_applied;
is_same_table($publisher, $subscriber, 't');

done_testing();
