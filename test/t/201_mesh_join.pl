# How nodes that all write are built: the second from the first one's rows, while
# the first writes; the third while only the first writes.  Then all write, each
# to its own rows, and all have the same.  One of them fails over to its standby,
# where the slots with the origin filter go on.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Mesh;
use Test::More;

my $mesh = Tandem::Mesh->new(nodes => [ 'a', 'b', 'c' ],
	tables => q{
		CREATE TABLE t (node text, n int, v int, PRIMARY KEY (node, n));
		CREATE TABLE log (node text, n int);
	}, publication => 'FOR TABLE t, log',
	conf => q{
		wal_log_hints = on
	});
my ($a, $b, $c) = $mesh->nodes;
my %no_options = (enabled => 'on');

# log has no key: what came twice would be seen
sub writes
{
	my ($node, $name) = @_;
	$name //= $node->name;
	return $node->start_load(clients => 1, script => qq{
		\\set n random(1, 1000000)
		\\set old random(1, 1000)
		BEGIN;
		INSERT INTO t VALUES ('$name', :n, 0) ON CONFLICT (node, n) DO UPDATE SET v = t.v + 1;
		UPDATE t SET v = v + 1 WHERE node = '$name' AND n = :old;
		DELETE FROM t WHERE node = '$name' AND n = :old + 1;
		INSERT INTO log VALUES ('$name', :n);
		COMMIT;
	});
}

sub wait_copied
{
	my ($node, $from) = @_;
	return poll_for(sub {
		$node->query("SELECT count(*) = 2 AND bool_and(state = 'ready') FROM tandem.tables WHERE subscription = '$from'") eq 't' },
		'the copies of ' . $node->name);
}

$a->query(q{INSERT INTO t SELECT 'a', n, 0 FROM generate_series(1, 20000) n;
	INSERT INTO log SELECT 'a', -n FROM generate_series(1, 20000) n});
my $writes = writes($a);

note 'the second node, while the first one writes';
$mesh->make_slot($a, $b);
$mesh->make_slot($b, $a);
$mesh->subscribe($a, $b, %no_options);
$mesh->subscribe($b, $a, %no_options, copy => 1);
wait_copied($b, 'from_a');

note 'both write';
my $more = writes($b);
poll_for(sub { $a->query(q{SELECT count(*) > 100 FROM log WHERE node = 'b'}) eq 't' }, 'rows of b on a');

note 'the third: b pauses until its tables are copied from a';
$b->stop_load($more);
$a->wait_subscription('from_b', $b);
$mesh->make_slot($c, $b);
$mesh->make_slot($c, $a);
$mesh->make_slot($a, $c);
$mesh->make_slot($b, $c);
$mesh->subscribe($a, $c, %no_options);
$mesh->subscribe($b, $c, %no_options);
$mesh->subscribe($c, $b, %no_options);
$mesh->subscribe($c, $a, %no_options, copy => 1);
wait_copied($c, 'from_a');

note 'all write';
my @loads = ($writes, writes($b), writes($c));
poll_for(sub { $a->query(q{SELECT count(*) > 100 FROM log WHERE node = 'c'}) eq 't' }, 'rows of c on a');
poll_for(sub { $b->query(q{SELECT count(*) > 100 FROM log WHERE node = 'c'}) eq 't' }, 'rows of c on b');

note 'b fails over';
my $standby = $b->new_standby('b_standby');
$standby->wait_slot_ready($_) for 'to_a', 'to_c';
$b->set('tandem.standby_slots' => 'b_standby');
poll_for(sub { my $before = $c->query(q{SELECT count(*) FROM log WHERE node = 'b'});
	poll_for(sub { $c->query(q{SELECT count(*) FROM log WHERE node = 'b'}) > $before }, 'another row') }, 'rows that have passed the gate');
$loads[1]{node}->stop_load($loads[1]);
$b->wait_replayed($standby);
poll_for(sub { $standby->query('SELECT ready FROM tandem.failover_ready()') eq 't' }, 'the standby to be ready');
$b->kill9_all;
$standby->set('tandem.standby_slots' => '');
$standby->promote;
$a->resubscribe('from_b', $standby);
$c->resubscribe('from_b', $standby);
$loads[1] = writes($standby, 'b');
poll_for(sub { my $node = $_; $node->query(q{SELECT pid IS NOT NULL FROM tandem.subscriptions WHERE subscription = 'from_b'}) eq 't' },
	'the connection to the new b') for $a, $c;
my $before = $a->query(q{SELECT count(*) FROM log WHERE node = 'b'});
poll_for(sub { $a->query(q{SELECT count(*) FROM log WHERE node = 'b'}) > $before + 100 }, 'new rows of b on a');

$_->{node}->stop_load($_) for @loads;
$mesh->{nodes} = [ $a, $standby, $c ];
for my $pair ([ $a, 'from_b', $standby ], [ $a, 'from_c', $c ], [ $standby, 'from_a', $a ], [ $standby, 'from_c', $c ],
	[ $c, 'from_a', $a ], [ $c, 'from_b', $standby ])
{
	$pair->[0]->wait_subscription(@$pair[ 1, 2 ]);
}
$mesh->is_same($_) for 't', 'log';
cmp_ok($a->query('SELECT count(DISTINCT node) FROM t'), '==', 3, 'rows of all three');
is($_->query(q{SELECT count(*) FROM log WHERE node = 'a' AND n < 0}), 20000, 'the first rows once on ' . $_->name)
  for $a, $standby, $c;

done_testing();
