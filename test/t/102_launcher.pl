# The launcher: apply workers start, stop, wait for a free background worker,
# and never hold a statement up for ever.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
# four static workers, and one for us or for core's apply worker
my $node = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => 'max_worker_processes = 5');
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s{'}{''}g;

for my $server ($publisher, $node)
{
	$server->query("CREATE TABLE $_ (id int PRIMARY KEY, v text)") for 't', 'c';
}
$publisher->publish('pub', 't');
$publisher->publish('pub_core', 'c');

sub wait_state
{
	my ($name, $state) = @_;
	my $row = '';
	my $done = eval {
		poll_for(
			sub {
				$row = $node->query(qq{SELECT state || ': ' || coalesce(reason, '-') || ' / ' || coalesce(last_error, '-')
					FROM tandem.subscriptions WHERE subscription = '$name'});
				return $row =~ $state;
			},
			"subscription $name to be $state");
	};
	ok($done, "$name: $state") or diag("it is: $row\n$@");
	return;
}

sub caught_up
{
	my ($name) = @_;
	my $lsn = $publisher->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { $publisher->query("SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = '$name'") eq 't' },
		"$name to confirm $lsn");
	return;
}

# ---- No worker is free ------------------------------------------------------------

$node->subscribe('core', $publisher, 'pub_core', 'copy_data = false');
$node->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false, copy_data = false)");
my $mark = $node->log_mark;
$node->query("SELECT tandem.adopt('sub')");
wait_state('sub', qr/^stopped: no background worker is free \(max_worker_processes = 5\)/);
like($node->log_since($mark), qr/subscription "sub" waits: no background worker is free.*HINT:  Increase max_worker_processes, which is 5/s,
	'the log says so, too');
$node->query('ALTER SUBSCRIPTION core DISABLE');
wait_state('sub', qr/^streaming/);
is(() = $node->log_since($mark) =~ /waits: no background worker is free/g, 1, '... once');

# ---- Streaming ---------------------------------------------------------------------

$publisher->query("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g");
caught_up('sub');
is($node->query('SELECT count(*) FROM t'), 100, 'it applies');
is($node->query('SELECT inserts, transactions > 0, lag_bytes IS NOT NULL, pid IS NOT NULL, owner = current_user FROM tandem.subscriptions'),
	'100|t|t|t|t', 'counted');

# ---- Paused and resumed --------------------------------------------------------------

$node->query("SELECT tandem.adopt('sub', 'enabled = off')");
wait_state('sub', qr/^paused: option enabled is off/);
is($node->query('SELECT pid IS NULL FROM tandem.subscriptions'), 't', 'no worker');
$publisher->query("INSERT INTO t VALUES (101, 'x')");
$node->query("SELECT tandem.adopt('sub', 'enabled = on')");
caught_up('sub');
is($node->query('SELECT count(*) FROM t'), 101, 'resumed');

# ---- The launcher goes and comes -----------------------------------------------------

my $apply = $node->pid_of(qr/tandem apply/);
$node->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'tandem subscriptions'});
$node->pid_of(qr/tandem subscriptions/);
is($node->pid_of(qr/tandem apply/), $apply, 'the apply worker outlives the launcher');
$node->query("SELECT tandem.adopt('sub', 'enabled = off')");
wait_state('sub', qr/^paused/);
$node->query("SELECT tandem.adopt('sub', 'enabled = on')");
wait_state('sub', qr/^streaming/);

# the apply worker goes: it is started again
$apply = $node->pid_of(qr/tandem apply/);
$node->query("SELECT pg_terminate_backend($apply)");
poll_for(sub { my @pids = $node->pids_of(qr/tandem apply/); @pids == 1 && $pids[0] != $apply }, 'another apply worker');
wait_state('sub', qr/^streaming/);

# ---- Statements while it streams --------------------------------------------------------

$node->query(q{SET statement_timeout = '60s'; ALTER SUBSCRIPTION sub SET (binary = on)});
wait_state('sub', qr/^streaming/);
$publisher->query("INSERT INTO t VALUES (102, 'x')");
caught_up('sub');
$node->query(q{SET statement_timeout = '60s'; ALTER SUBSCRIPTION sub RENAME TO sub2});
wait_state('sub2', qr/^streaming/);
$node->query('CREATE ROLE boss LOGIN SUPERUSER');
$node->query(q{SET statement_timeout = '60s'; ALTER SUBSCRIPTION sub2 OWNER TO boss});
wait_state('sub2', qr/^streaming/);
is($node->query(q{SELECT usename FROM pg_stat_activity WHERE backend_type = 'tandem apply'}), 'boss', 'it runs as its new owner');
$node->query('REASSIGN OWNED BY boss TO CURRENT_USER');
poll_for(sub { $node->query(q{SELECT usename = current_user FROM pg_stat_activity WHERE backend_type = 'tandem apply'}) eq 't' },
	'REASSIGN OWNED to be noticed');
$publisher->query("INSERT INTO t VALUES (103, 'x')");
caught_up('sub');
is($node->query('SELECT count(*) FROM t'), 103, 'all of that lost nothing');

# a lock that the same transaction holds: no detector sees that the worker waits
# for it while the statement waits for the worker
$node->query(q{
	SET statement_timeout = '60s';
	BEGIN;
	LOCK TABLE t;
	ALTER SUBSCRIPTION sub2 SET (disable_on_error = off);
	COMMIT;});
wait_state('sub2', qr/^streaming/);

# ---- The server's own worker, behind our back ---------------------------------------------

$node->query('UPDATE pg_subscription SET subenabled = true WHERE subname = \'sub2\'');
$node->query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'tandem apply'");
wait_state('sub2', qr/^stopped: it is enabled, so the server's own worker runs it/);
$node->query('UPDATE pg_subscription SET subenabled = false WHERE subname = \'sub2\'');
$node->query("SELECT tandem.adopt('sub2')");
wait_state('sub2', qr/^streaming/);

# ---- A worker that ends and doesn't say why ------------------------------------------------

# it isn't started over and over at once
$mark = $node->log_mark;
for (1 .. 2)
{
	$apply = $node->pid_of(qr/tandem apply/);
	$node->query("SELECT pg_terminate_backend($apply)");
	poll_for(sub { my @pids = $node->pids_of(qr/tandem apply/); @pids == 1 && $pids[0] != $apply }, 'another apply worker');
	wait_state('sub2', qr/^streaming/);
}
my $log = $node->log_since($mark);
my @ended = $log =~ /^(\S+ \S+ \S+) .*terminating background worker "tandem apply"/mg;
my @started = $log =~ /^(\S+ \S+ \S+) .*tandem apply worker for subscription "sub2" has started/mg;
is($node->query("SELECT '$started[0]'::timestamptz - '$ended[0]' > '0.9 s', '$started[1]'::timestamptz - '$ended[1]' > '1.9 s'"),
	't|t', 'the launcher waits longer each time');

# ---- DROP while it streams --------------------------------------------------------------

$node->query(q{SET statement_timeout = '60s'; DROP SUBSCRIPTION sub2});
is($node->query('SELECT count(*) FROM tandem.subscriptions'), 0, 'DROP does not hang');
is($publisher->query(q{SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'sub'}), 0, '... and drops the slot');
poll_for(sub { !$node->pids_of(qr/tandem apply/) }, 'the apply worker to be gone');
$node->query('DROP SUBSCRIPTION core');

done_testing();
