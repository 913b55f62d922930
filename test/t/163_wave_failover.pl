# The publisher fails over while tables are being copied.  What was copied before
# the point at which the standby took over goes on, with the changes that come
# from there; what was copied after it may have rows that exist nowhere any more,
# and is copied again.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher');
my $standby = $publisher->new_standby('standby', conf => "hot_standby_feedback = on\ntandem.slot_sync_interval = 100ms\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
$publisher->expect_crash;

my @tables = qw(before after other);
$_->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0);" } @tables) for $publisher, $subscriber;
$publisher->query("INSERT INTO $_ SELECT g FROM generate_series(1, 1000) g") for @tables;
$publisher->publish('pub', @tables);
my $waves = Tandem::Waves->new($publisher, $subscriber);
$waves->subscribe;
$waves->wait_ready;
$waves->wait_applied;
$standby->wait_slot_ready('sub');

# the stream stands still: nothing that is copied now can be finished
stall($publisher->slot_value('sub', 'active_pid'));

sub copy_again
{
	my ($table) = @_;
	# so that the copy's position is behind that of the stream
	$publisher->query(q{SELECT pg_logical_emit_message(false, 'test', 'x')});
	$waves->resync($table);
	$waves->wait_state($table, 'catching up');
	return $subscriber->query("SELECT wave FROM tandem.tables WHERE name = '$table'");
}

my $before = copy_again('before');
$publisher->query('UPDATE before SET n = 1 WHERE id = 1');
$publisher->wait_replayed($standby);

# from here on the standby gets nothing more
$standby->append_conf('postgresql.conf', "primary_conninfo = 'host=/nonexistent'\ntandem.sync_slots = off");
$standby->reload;
poll_for(sub { $standby->query('SELECT count(*) FROM pg_stat_wal_receiver') eq '0' }, 'the standby to be cut off');
$publisher->query('INSERT INTO after VALUES (2000)');
$publisher->query('DELETE FROM after WHERE id = 1');
my $after = copy_again('after');
is($subscriber->query('SELECT count(*) FROM after WHERE id = 2000'), '1', 'the copy has a row that the standby has not');

$publisher->kill9_all;
$standby->promote;
$standby->query('UPDATE before SET n = n + 10 WHERE id <= 2');
$standby->query('INSERT INTO after VALUES (3000)');
$standby->query('INSERT INTO other VALUES (3000)');
my $mark = $subscriber->log_mark;
$subscriber->resubscribe('sub', $standby);
$waves = Tandem::Waves->new($standby, $subscriber);
$waves->wait_ready(retry => 1);
$waves->wait_applied;

is_same_table($standby, $subscriber, $_) for @tables;
is($subscriber->query(q{SELECT wave FROM tandem.tables WHERE name = 'before'}), $before,
	'what was copied before the switch was not copied again');
cmp_ok($subscriber->query(q{SELECT wave FROM tandem.tables WHERE name = 'after'}), '>', $after,
	'what was copied behind it was');
my @again = $subscriber->log_since($mark) =~ /table "(\w+)" of subscription "sub" will be copied again: the publisher has failed over/g;
is("@again", 'after', 'and it was said why');

done_testing();
