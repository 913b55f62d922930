# A subscription that is dropped, released or paused in the middle of a wave, and
# a leader that is ended at any moment: no origin of a worker stays behind.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);

for my $node ($publisher, $subscriber)
{
	$node->query('CREATE TABLE small (id int PRIMARY KEY); CREATE TABLE big (id int PRIMARY KEY, filler text)');
}
$publisher->query(q{INSERT INTO big SELECT g, repeat('x', 300) FROM generate_series(1, 20000) g});
$publisher->publish('pub');
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;

# A copy that waits: somebody has locked the table here.
sub stuck_copy
{
	my $lock = $subscriber->background_psql('postgres');
	$lock->query_safe('BEGIN; LOCK TABLE big IN SHARE MODE; SELECT 1');
	$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
	$subscriber->query(q{SELECT tandem.adopt('sub')});
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) >= 2 },
		'leader and copy worker to run');
	return $lock;
}

sub no_origin
{
	my ($after) = @_;
	is($subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}), '0', "no origin of a worker after $after");
	return;
}

my $lock = stuck_copy();
$subscriber->query('DROP SUBSCRIPTION sub');
$lock->quit;
no_origin('DROP SUBSCRIPTION');
is($subscriber->query('SELECT count(*) FROM pg_replication_origin'), '0', 'nor the server\'s');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', 'no slot');

$lock = stuck_copy();
$subscriber->query(q{SELECT tandem.release('sub', true)});
$lock->quit;
no_origin('a forced release');
is($subscriber->query('SELECT count(*) FROM big'), '0', 'and no row');
$subscriber->query(q{SELECT tandem.adopt('sub')});
poll_for(sub { $subscriber->query(q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'all tables');
is_same_table($publisher, $subscriber, 'big');

# left by a leader that has ended just before it dropped them
poll_for(sub { !$subscriber->pids_of(qr/tandem wave/) }, 'the leader to end');
$subscriber->query(q{SELECT pg_replication_origin_create('tandem_copy_' || oid || '_' || n) FROM pg_subscription, generate_series(0, 2) n});
poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
	'the origins to go');
no_origin('the end of a leader');
$subscriber->query('DROP SUBSCRIPTION sub');

done_testing();
