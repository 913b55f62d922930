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
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "max_wal_size = 8GB\n");

$_->query('CREATE TABLE hot (id int PRIMARY KEY, n int DEFAULT 0, filler text); CREATE TABLE heartbeat (id bigserial PRIMARY KEY, sent timestamptz DEFAULT clock_timestamp())')
  for $publisher, $subscriber;
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
poll_for(sub { last_heartbeat() > 100 }, 'heartbeats');
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
$publisher->stop_load($_) for $load, $heart;
$waves->wait_applied;
is_same_table($publisher, $subscriber, 'hot');
is($subscriber->query(q{SELECT attempts FROM tandem.tables WHERE name = 'hot'}), '0', 'it was copied once');
is($subscriber->query('SELECT count(*) FROM heartbeat'), $publisher->query('SELECT count(*) FROM heartbeat'), 'every heartbeat has arrived');

done_testing();
