# Adopt, apply, release, let the server go on, and again, under load and with
# the apply worker killed -9 in between: no row is lost and none doubled.  Table
# "log" has no key, so a change applied twice shows there.

use strict;
use warnings;

use Tandem::Test;
use IPC::Run;
use Test::More;
use Time::HiRes;

my $rounds = $ENV{TANDEM_ROUNDS} // 6;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "restart_after_crash = on\nwal_retrieve_retry_interval = 100ms");
$node->expect_crash;
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s{'}{''}g;

for my $server ($publisher, $node)
{
	$server->query('CREATE TABLE accounts (id int PRIMARY KEY, v bigint NOT NULL)');
	$server->query('CREATE TABLE log (id int, delta int, at timestamptz)');
}
$publisher->query('INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 2000) g');
$publisher->publish('pub', 'accounts', 'log');
$node->subscribe('sub', $publisher, 'pub');
# 's' has to become 'r', for which the server's worker waits for something to come
poll_for(
	sub {
		$publisher->query(q{SELECT pg_logical_emit_message(true, 'tandem test', 'x')});
		$node->query(q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}) eq 't';
	},
	'all tables to be ready');
$node->query('ALTER SUBSCRIPTION sub DISABLE');

my $script = $publisher->basedir . '/load.sql';
PostgreSQL::Test::Utils::append_to_file($script, q{
\set id random(1, 2000)
\set new random(10000, 1000000000)
\set delta random(-500, 500)
BEGIN;
UPDATE accounts SET v = v + :delta WHERE id = :id;
INSERT INTO log VALUES (:id, :delta, now());
INSERT INTO accounts VALUES (:new, :delta) ON CONFLICT (id) DO NOTHING;
DELETE FROM accounts WHERE id = :new AND :delta % 2 = 0;
END;
});
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', '3', '-R', '400', '-T', '600', '-f', $script, '-d', $publisher->connstr('postgres') ],
	'<', \undef, '&>', '/dev/null');

# Waits until rows arrive on the subscriber, by whatever worker.
sub progress
{
	my ($what) = @_;
	my $count = sub {
		my ($code, $n) = $node->psql('postgres', 'SELECT count(*) FROM log');
		return $code == 0 ? $n : -1;
	};
	my $before;
	poll_for(sub { $before = $count->(); $before >= 0 }, 'the subscriber to answer');
	poll_for(sub { $count->() > $before + 50 }, $what);
	return;
}

for my $round (1 .. $rounds)
{
	$node->query("SELECT tandem.adopt('sub')");
	progress("changes to arrive through pg_tandem, round $round");
	if ($round % 2 == 0)
	{
		my $pid = $node->pid_of(qr/tandem apply/);
		kill 'KILL', $pid;
		poll_for(
			sub { my ($code, $n) = $node->psql('postgres', "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = $pid)"); $code == 0 && $n eq '1' },
			'the server to be back');
		progress("changes to arrive after the crash, round $round");
	}
	if ($round % 3 == 0)
	{
		# only the worker, no crash
		$node->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'tandem apply'});
		progress("changes to arrive after the worker was ended, round $round");
	}
	$node->query(q{SET statement_timeout = '60s'; SELECT tandem.release('sub')});
	is($node->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'tandem apply'}), 0,
		"round $round: released, no worker of ours");
	$node->query('ALTER SUBSCRIPTION sub ENABLE');
	progress("changes to arrive through the server's own worker, round $round");
	$node->query('ALTER SUBSCRIPTION sub DISABLE');
}

$load->signal('INT');
$load->finish;
$node->query("SELECT tandem.adopt('sub')");
my $lsn = $publisher->query('SELECT pg_current_wal_flush_lsn()');
poll_for(sub { $publisher->query("SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'") eq 't' },
	"all to be confirmed ($lsn)");

for my $sum ('SELECT count(*), sum(v), md5(string_agg(id || \'=\' || v, \',\' ORDER BY id)) FROM accounts',
	'SELECT count(*), sum(delta), md5(string_agg(log::text, \',\' ORDER BY at, id, delta)) FROM log')
{
	my $there = $publisher->query("SET timezone = 'UTC'; $sum");
	is($node->query("SET timezone = 'UTC'; $sum"), $there, "equal: $there");
}
$node->query('DROP SUBSCRIPTION sub');
done_testing();
