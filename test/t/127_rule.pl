# The rule: at every commit pg_subscription_rel is a state that the server can
# go on from.  A table that is copied again (tandem.resync) is 'i' there as soon
# as a change may be in our spool only, or nowhere; and 'r' until then, so that it
# gets its changes while it waits.  The library is taken away in the middle: the
# server's own worker goes on and both sides become equal.  The same with a
# release by force.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
$subscriber->expect_crash;

for my $node ($publisher, $subscriber)
{
	$node->query("CREATE TABLE $_ (id int, n int DEFAULT 0, filler text); ALTER TABLE $_ REPLICA IDENTITY FULL")
	  for qw(one two);
}
$publisher->query("INSERT INTO $_ SELECT g, 0, repeat('x', 100) FROM generate_series(1, 20000) g") for qw(one two);
$publisher->publish('pub');
my $waves = Tandem::Waves->new($publisher, $subscriber);
$waves->subscribe;

# state in tandem.tables and in pg_subscription_rel: "ready r"
sub state_of
{
	my ($table) = @_;
	return $subscriber->query(qq{SELECT state || ' ' || srsubstate::text FROM tandem.tables JOIN pg_subscription_rel ON srrelid = relid
		WHERE name = '$table'});
}

sub wait_state
{
	my ($table, $pattern) = @_;
	poll_for(sub { state_of($table) =~ $pattern }, "table $table to be $pattern");
	return;
}

sub last_error
{
	return $subscriber->query("SELECT last_error FROM tandem.tables WHERE name = '$_[0]'");
}

wait_state($_, qr/^ready r$/) for qw(one two);

# ---- A copy that can't be made -----------------------------------------------

# not before it begins: changes go on
$publisher->query('ALTER TABLE one ADD more int');
$subscriber->query(q{SELECT tandem.resync('sub', 'one')});
wait_state('one', qr/^failed /);
is(state_of('one'), 'failed r', 'nothing has been left out: the server may apply');
$publisher->query('ALTER TABLE one DROP more');
$publisher->query('INSERT INTO one VALUES (30000)');
poll_for(sub { $subscriber->query('SELECT count(*) FROM one') eq '20001' }, 'a change, which is applied');

# and in the middle: a reader keeps it from being replaced
my $reader = $waves->session($subscriber, 'BEGIN; LOCK TABLE one IN ACCESS SHARE MODE');
$subscriber->query(q{SELECT tandem.resync('sub', 'one')});
poll_for(sub { last_error('one') =~ /lock timeout/ }, 'the copy to give up');
is(state_of('one'), 'failed i', 'changes may have been left out: the server must not apply');
$publisher->query('INSERT INTO one VALUES (30001)');
$subscriber->wait_subscription('sub', $publisher);
is($subscriber->query('SELECT count(*) FROM one'), '20001', 'as this one is');
$waves->end_session($reader);
$subscriber->query(q{SELECT tandem.resync('sub', 'one')});
wait_state('one', qr/^ready r$/);
is_same_table($publisher, $subscriber, 'one');

# ---- Given back, or left alone, while changes are in the spool ----------------------

# Both tables are being copied again, and changed meanwhile.
sub in_the_middle
{
	$waves->pause(qw(one two));
	$subscriber->query(q{SELECT tandem.resync('sub', 'one'), tandem.resync('sub', 'two')});
	wait_state($_, qr/^copying i$/) for qw(one two);
	$waves->wait_paused;
	$publisher->query("INSERT INTO $_ VALUES (40000, 1); UPDATE $_ SET n = n + 1 WHERE id < 100; DELETE FROM $_ WHERE id = 200")
	  for qw(one two);
	$waves->wait_applied;
	is($subscriber->query('SELECT min(spool_bytes) > 0 FROM tandem.tables'), 't', 'changes are in the spool, the tables are locked');
	return;
}

sub core_goes_on
{
	$subscriber->query("DROP TRIGGER IF EXISTS wait_for_test ON $_") for qw(one two);
	$subscriber->query('ALTER SUBSCRIPTION sub ENABLE');
	$subscriber->wait_tables('sub', $publisher);
	is_same_table($publisher, $subscriber, $_) for qw(one two);
	return;
}

in_the_middle();
$subscriber->query(q{SELECT tandem.release('sub', true)});
$waves->resume;
is($subscriber->query(q{SELECT string_agg(srsubstate::text, '') FROM pg_subscription_rel}), 'ii',
	'released with force: the server has to copy');
is($subscriber->query('SELECT (SELECT count(*) FROM one) + (SELECT count(*) FROM two)'), '0', 'into empty tables');
core_goes_on();

$subscriber->query('ALTER SUBSCRIPTION sub DISABLE');
poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');
$subscriber->query(q{SELECT tandem.adopt('sub')});
poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'streaming' }, 'our worker');
in_the_middle();
$subscriber->kill9_all;
$subscriber->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$subscriber->start;
is($subscriber->query(q{SELECT string_agg(srsubstate::text, '') FROM pg_subscription_rel}), 'ii',
	'without the library the server sees tables that it has to copy');
# as docs/subscriptions.md says
$subscriber->query('TRUNCATE one, two');
core_goes_on();

done_testing();
