# Odd moments of adopted subscriptions: tables that the server has begun to
# copy, its own worker still running, errors, standbys, transactions that are
# rolled back.

use strict;
use warnings;

use IPC::Run;
use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s{'}{''}g;

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE big (id int PRIMARY KEY)') for $publisher, $node;
$publisher->query('INSERT INTO big SELECT g FROM generate_series(1, 10) g');
$publisher->publish('pub', 't');

sub wait_row
{
	my ($expected, $server) = @_;
	my $row = '';
	my $done = eval {
		poll_for(
			sub {
				$row = ($server // $node)->query(q{SELECT concat_ws(' / ', state, coalesce(reason, '-'), coalesce(last_error, '-')) FROM tandem.subscriptions});
				return $row =~ $expected;
			},
			"the subscription to be $expected");
	};
	ok($done, "the view: $expected") or diag("it is: $row\n$@");
	return;
}

# ---- Begun by the server --------------------------------------------------------

$publisher->query('ALTER PUBLICATION pub ADD TABLE big');
my $holder = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'BEGIN; LOCK TABLE big IN SHARE MODE; SELECT pg_sleep(600)' ], '<', \undef, '&>', '/dev/null');
poll_for(sub { $node->query(q{SELECT count(*) FROM pg_locks WHERE relation = 'big'::regclass AND mode = 'ShareLock' AND granted}) }, 'the lock');
$node->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub");
poll_for(sub { $node->query(q{SELECT count(*) FROM pg_locks WHERE relation = 'big'::regclass AND NOT granted}) },
	'the copy to wait for the lock');
$node->query('ALTER SUBSCRIPTION sub DISABLE');
like($node->query_error("SELECT tandem.adopt('sub')"),
	qr/cannot adopt subscription "sub": the server's own worker still runs.*HINT:  It may be waiting for a lock/s, 'a worker of the server that does not end');
$node->query(q{SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE backend_type = 'logical replication worker'});
is($node->query(q{SELECT srsubstate FROM pg_subscription_rel WHERE srrelid = 'big'::regclass}), 'd', 'a table that the server has begun to copy');
like($node->query_error("SELECT tandem.adopt('sub')"),
	qr/cannot adopt subscription "sub": the server has begun to copy \d tables?.*HINT:  Run ALTER SUBSCRIPTION sub ENABLE/s, '... is refused');
$node->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LOCK TABLE big%' AND pid <> pg_backend_pid()});
$holder->finish;
$node->query('ALTER SUBSCRIPTION sub ENABLE');
poll_for(sub { $node->query(q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}) eq 't' }, 'all tables to be ready');
$node->query('ALTER SUBSCRIPTION sub DISABLE');

# ---- Rolled back -----------------------------------------------------------------

$node->query("BEGIN; SELECT tandem.adopt('sub'); ROLLBACK");
is($node->query('SELECT count(*) FROM tandem.subscriptions'), 0, 'an adoption that is rolled back is none');
$node->query("SELECT tandem.adopt('sub')");
wait_row(qr/^streaming/);
$node->query("BEGIN; SELECT tandem.release('sub'); ROLLBACK");
wait_row(qr/^streaming/);
$node->query("BEGIN; SAVEPOINT a; SELECT tandem.release('sub'); ROLLBACK TO a; COMMIT");
wait_row(qr/^streaming/);
like($node->query_error('BEGIN; DROP SUBSCRIPTION sub; COMMIT'), qr/cannot run inside a transaction block/, 'a DROP that fails');
wait_row(qr/^streaming/);

# ---- Errors ------------------------------------------------------------------------

$node->query("INSERT INTO t VALUES (1, 'here')");
$publisher->query("INSERT INTO t VALUES (1, 'there')");
wait_row(qr/^retrying .*duplicate key value violates unique constraint "t_pkey"/);
is($node->query('SELECT next_retry > last_error_at AND error_count > 0 AND enabled FROM tandem.subscriptions'), 't', 'with the next try');
poll_for(sub { $node->query('SELECT error_count > 2 FROM tandem.subscriptions') eq 't' }, 'more tries');
is($node->query(q{SELECT next_retry - last_error_at >= '2s' FROM tandem.subscriptions WHERE state = 'retrying'}) ne 'f', 1, '... further and further apart');
$node->query('ALTER SUBSCRIPTION sub SET (disable_on_error = on)');
wait_row(qr/^paused .*duplicate key/);
$node->query('DELETE FROM t');
$node->query("SELECT tandem.adopt('sub', 'enabled = on')");
poll_for(sub { $node->query("SELECT v FROM t WHERE id = 1") eq 'there' }, 'the change to be applied');
wait_row(qr/^streaming/);
$node->query('ALTER SUBSCRIPTION sub SET (disable_on_error = off)');

# the slot is missing on the publisher
$node->query("SELECT tandem.adopt('sub', 'enabled = off')");
wait_row(qr/^paused/);
poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');
$publisher->query("SELECT pg_drop_replication_slot('sub')");
$node->query("SELECT tandem.adopt('sub', 'enabled = on')");
wait_row(qr/^retrying .*replication slot "sub" does not exist/);
like($node->query_error("SET statement_timeout = '60s'; DROP SUBSCRIPTION sub"), qr/could not drop replication slot "sub"/, 'DROP says what core says');
$publisher->query("SELECT pg_create_logical_replication_slot('sub', 'pgoutput')");
wait_row(qr/^streaming/);

# no slot name any more
$node->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
wait_row(qr/^stopped .*it has no slot name/);
$node->query("ALTER SUBSCRIPTION sub SET (slot_name = 'sub')");
wait_row(qr/^streaming/);

# ---- A standby of the subscriber ------------------------------------------------------

my $standby = $node->new_standby('standby');
wait_row(qr/^stopped .*this server is a standby/, $standby);
like($standby->query_error("SELECT tandem.adopt('sub')"), qr/cannot execute tandem.adopt\(\) during recovery/, 'no adopt there');
# the subscriber is lost, its standby takes over
$node->kill9_all;
$standby->promote;
wait_row(qr/^streaming/, $standby);
$publisher->query("INSERT INTO t VALUES (2, 'after')");
poll_for(sub { $standby->query("SELECT v FROM t WHERE id = 2") eq 'after' }, 'changes to arrive after the promotion');
is($standby->query('SELECT count(*) FROM t'), 2, 'a promoted standby goes on');
$standby->query(q{SET statement_timeout = '60s'; DROP SUBSCRIPTION sub});

done_testing();
