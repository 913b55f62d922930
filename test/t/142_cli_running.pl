# A subscription that pg_tandem runs, seen by the command: streaming is healthy,
# an error is a problem with its cause until it is mended, and "tandem uninstall"
# leaves it with the server, which goes on without losing or doubling a row.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
$_->query('CREATE TABLE t (id bigserial PRIMARY KEY, v int)') for $publisher, $node;
$publisher->publish('pub');
# the server itself copies what is there
$publisher->query('INSERT INTO t (v) SELECT i FROM generate_series(1, 100) i');
$node->subscribe('sub', $publisher, 'pub');
$node->query('ALTER SUBSCRIPTION sub DISABLE');
poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');

my ($code, $out, $err) = tandem('adopt', 'sub', at($node));
is($code, 0, 'adopted') or diag $err;
$publisher->query('INSERT INTO t (v) SELECT i FROM generate_series(1, 50) i');

sub subscription
{
	my ($exit, $object) = tandem_json('status', at($node));
	my ($row) = @{ $object->{nodes}[0]{subscriptions} };
	my ($problem) = grep { $_->{code} eq 'subscription_error' } @{ $object->{findings} };
	return ($exit, $row, $problem);
}

my ($exit, $row, $problem);
poll_for(sub { ($exit, $row, $problem) = subscription(); $row->{state} eq 'streaming' && $row->{inserts} == 50 },
	'the changes to be applied');
is($exit, 0, 'streaming is healthy');
is($row->{transactions}, 1, 'what was applied is counted');
is($row->{last_error}, undef, 'no error');
($code, $out) = tandem('status', at($node));
like($out, qr/^sub +postgres +\S+ +pg_tandem +streaming /m, 'status: a line says so');

# ---- An error ------------------------------------------------------------------

$node->query('INSERT INTO t VALUES (151, 0)');
$publisher->query('INSERT INTO t (v) VALUES (1)');
poll_for(sub { ($exit, $row, $problem) = subscription(); $problem }, 'the error to be found');
is($exit, 1, 'an error needs attention');
is($problem->{severity}, 'problem', "subscription_error: $problem->{what}");
like($problem->{what}, qr/"sub" of database "postgres" is retrying: .*t_pkey/, '... with the cause');
ok($problem->{hint}, "... and a hint: $problem->{hint}");
($code, $out) = tandem('status', at($node));
like($out, qr/^problem: subscription_error on /m, 'for people too');
$node->query('DELETE FROM t WHERE id = 151');
poll_for(sub { ($exit, $row, $problem) = subscription(); !$problem && $row->{state} eq 'streaming' }, 'it to be mended');
is($exit, 0, 'healthy again, when the cause is gone');

# ---- Rows that are not here ------------------------------------------------------

is("$row->{update_missing} $row->{delete_missing}", '0 0', 'no row is missing');
$node->query('DELETE FROM t WHERE id IN (10, 11)');
$publisher->query('UPDATE t SET v = -1 WHERE id = 10');
$publisher->query('DELETE FROM t WHERE id IN (10, 11)');
my $missing;
poll_for(
	sub {
		my ($code, $object) = tandem_json('status', at($node));
		($exit, $row) = ($code, $object->{nodes}[0]{subscriptions}[0]);
		($missing) = grep { $_->{code} eq 'rows_missing' } @{ $object->{findings} };
		return $row->{delete_missing} == 2;
	},
	'missing rows to be counted');
is($row->{update_missing}, 1, 'by kind');
is("$exit $missing->{severity}", '1 warning', "rows_missing: $missing->{what}");
like($missing->{what}, qr/"sub".*not here: 3\./, '... with their number');
ok($missing->{hint}, "... and a hint: $missing->{hint}");

# ---- Leaving under load -----------------------------------------------------------

my $load = $publisher->start_load(script => "INSERT INTO t (v) VALUES (1);\n");
poll_for(sub { $node->query('SELECT count(*) > 500 FROM t') eq 't' }, 'rows of the load');
($code, $out, $err) = tandem('uninstall', at($node), '--yes');
is($code, 0, 'uninstall works') or diag "$out$err";
is($node->query('SELECT subenabled FROM pg_subscription'), 't', 'the subscription is enabled');
is($node->query('SELECT count(*) FROM pg_shseclabel'), '0', 'and has no label');
my $rows = $node->query('SELECT count(*) FROM t');
poll_for(sub { $node->query("SELECT count(*) > $rows + 200 FROM t") eq 't' }, 'the server to go on');
$publisher->stop_load($load);
$node->wait_subscription('sub', $publisher);
is_same_table($publisher, $node, 't', 'no row lost, none doubled');

done_testing();
