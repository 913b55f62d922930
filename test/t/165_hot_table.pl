# A table is changed heavily while it is copied: it becomes ready, and equal.  The
# changes of other tables never wait for it longer than 2 s: a row written there
# with the time arrives here, where its time of arrival is noted.
#
# TANDEM_ROWS=10000000 is the promise.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $rows = $ENV{TANDEM_ROWS} || 200_000;
my $rate = $ENV{TANDEM_RATE} || 1000;
my $patience = 180 + $rows / 2000;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "max_wal_size = 8GB\nsynchronous_commit = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "max_wal_size = 8GB\nmax_worker_processes = 30\nlog_lock_waits = on\ndeadlock_timeout = 50ms\ntandem.sync_workers = 6\n");

my @locked = map { "locked_$_" } 1 .. 6;
$_->query('CREATE TABLE hot (id int PRIMARY KEY, n int DEFAULT 0, filler text); CREATE TABLE heartbeat (id bigserial PRIMARY KEY, sent timestamptz DEFAULT clock_timestamp())')
  for $publisher, $subscriber;
$_->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0);" } @locked) for $publisher, $subscriber;
$publisher->query("INSERT INTO $_ VALUES (1)") for @locked;
$subscriber->query('ALTER TABLE heartbeat ADD arrived timestamptz DEFAULT clock_timestamp()');
$publisher->query("INSERT INTO hot SELECT g, 0, repeat('x', 100) FROM generate_series(1, $rows) g");
$publisher->publish('pub', 'heartbeat');
my $waves = Tandem::Waves->new($publisher, $subscriber);
$waves->subscribe;
$waves->wait_ready;

# seconds from sending to arrival since a heartbeat: the longest, the average; how many
sub lateness
{
	my ($since) = @_;
	return split /\|/, $subscriber->query(qq{
		SELECT round(max(extract(epoch FROM arrived - sent)), 3), round(avg(extract(epoch FROM arrived - sent)), 3), count(*)
		FROM heartbeat WHERE id > $since});
}

sub last_heartbeat
{
	return $subscriber->query('SELECT coalesce(max(id), 0) FROM heartbeat');
}

my $heart = $publisher->start_load(clients => 1, time => 6000, script => "INSERT INTO heartbeat DEFAULT VALUES;\n\\sleep 20 ms\n");
my $load = $publisher->start_load(clients => 4, time => 6000, options => [ '--rate', $rate ], script => qq{
\\set a random(1, $rows)
\\set b random(1, $rows)
\\set c random(1, $rows)
BEGIN;
UPDATE hot SET n = n + 1 WHERE id IN (:a, :b, :c);
DELETE FROM hot WHERE id = :a;
INSERT INTO hot VALUES (:a, 1, 'again') ON CONFLICT (id) DO UPDATE SET n = 1;
COMMIT;
});
poll_for(sub { last_heartbeat() > 50 }, 'heartbeats');
my ($usual) = lateness(0);
my $since = last_heartbeat();
my $changes = $publisher->query('SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = $$hot$$');

$publisher->query('ALTER PUBLICATION pub ADD TABLE hot');
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
my $spool = 0;
poll_for(
	sub {
		my ($state, $bytes) = split /\|/, $subscriber->query(q{SELECT state, spool_bytes FROM tandem.tables WHERE name = 'hot'});
		$spool = $bytes if ($bytes // 0) > $spool;
		return ($state // '') eq 'ready';
	},
	'the table to be ready while it is changed', $patience);
my ($longest, $average, $beats) = lateness($since);
my ($seconds) = $subscriber->query(q{SELECT round(extract(epoch FROM finished - started)) FROM tandem.tables WHERE name = 'hot'});
$changes = $publisher->query('SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = $$hot$$') - $changes;
note("$rows rows, ready after $seconds s; $changes changes meanwhile, at most $spool bytes of them kept; $beats heartbeats, $average s on average, at most $longest s (before: $usual s)");

cmp_ok($spool, '>', 0, 'it was changed while it was copied');
cmp_ok($longest, '<', 2 + $usual, 'the changes of another table never waited for it longer than 2 s');

# ---- Copied tables that somebody has locked here --------------------------------

# their changes wait, nothing else does
$publisher->stop_load($load);
$publisher->query('ALTER PUBLICATION pub ADD TABLE ' . join ', ', @locked);
$waves->pause(@locked);
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
my $locks = q{SELECT count(DISTINCT relation) FROM pg_locks WHERE relation::regclass::text ~ '^locked_\d$' AND};
poll_for(sub { $subscriber->query("$locks granted AND mode = 'RowExclusiveLock'") == @locked }, 'their copies');
my @sessions = map { $waves->start_session($subscriber, "BEGIN; LOCK TABLE $_ IN SHARE MODE") } @locked;
poll_for(sub { $subscriber->query("$locks NOT granted AND mode = 'ShareLock'") == @locked }, 'locks to wait for the copies');
$publisher->query(join '', map { "UPDATE $_ SET n = 1;" } @locked);
$waves->wait_applied;
$waves->resume;
$waves->wait_session($_) for @sessions;
is($subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE state = 'catching up'}), scalar(@locked), 'tables are copied, their changes wait');
my $mark = $subscriber->log_mark;
$since = last_heartbeat();
poll_for(sub { last_heartbeat() > $since + 50 }, '50 heartbeats');
($longest, $average) = lateness($since);
cmp_ok($average, '<', 1, "meanwhile the changes of another table come after $average s, at most $longest s");
my $apply = $subscriber->pid_of(qr/tandem apply/);
unlike($subscriber->log_since($mark), qr/process $apply still waiting for/, 'the apply worker does not wait for the locks');
$waves->end_session($_) for @sessions;
$waves->wait_ready(retry => 1);

$publisher->stop_load($heart);
$waves->wait_applied;
is_same_table($publisher, $subscriber, $_) for 'hot', $locked[0];
is($subscriber->query(q{SELECT attempts FROM tandem.tables WHERE name = 'hot'}), '0', 'it was copied once');
is($subscriber->query('SELECT count(*) FROM heartbeat'), $publisher->query('SELECT count(*) FROM heartbeat'), 'every heartbeat has arrived');

done_testing();
