# Truncation and removal of files wait like pages do; what nobody could miss
# does not: temporary and unlogged relations, files of aborted transactions.
# And logical walsenders wait, which the gate of failover slots holds as well.
#
# Without the guard of removals the files that the standby still needs are gone
# or empty while it is stalled; were each file waited for by itself, the drop of
# 1,000 partitions would take 1,000 round trips.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
autovacuum = off
shared_buffers = 64MB
wal_log_hints = on
wal_sender_timeout = 0
max_prepared_transactions = 5
max_locks_per_transaction = 2000
tandem.synchronous_transfer = data_flush
tandem.failback_standbys = 'standby'
tandem.failback_timeout = 60s
});
my $standby = $primary->new_standby('standby', conf => 'max_locks_per_transaction = 2000');

sub guard
{
	my ($columns) = @_;
	return $primary->query("SELECT $columns FROM tandem.failback");
}

sub seconds
{
	my ($code) = @_;
	my $start = Time::HiRes::time();
	$code->();
	return Time::HiRes::time() - $start;
}

sub file_of
{
	my ($table) = @_;
	return $primary->data_dir . '/' . $primary->query("SELECT pg_relation_filepath('$table')");
}

# Runs statements in a session of their own and returns when they wait.
sub start_waiting
{
	my ($sql) = @_;
	my $session = $primary->background_psql('postgres');
	$session->{stdout} = '';
	$session->{stdin} .= "$sql\n\\echo done\n";
	poll_for(
		sub {
			$session->{run}->pump_nb;
			die "\"$sql\" does not wait" if $session->{stdout} =~ /done\n/;
			return guard('waiting') > 0;
		},
		"\"$sql\" to wait");
	return $session;
}

sub wait_done
{
	my ($session) = @_;
	poll_for(sub { $session->{run}->pump_nb; $session->{stdout} =~ /done\n/ }, 'the statement to return');
	$session->quit;
	return;
}

sub stall_standby
{
	$primary->wait_replayed($standby);
	poll_for(sub { guard(q{state = 'armed' AND lag_bytes = 0}) eq 't' }, 'the standby to have all');
	return stall($standby->pid_of(qr/walreceiver/));
}

poll_for(sub { guard('state') eq 'armed' }, 'the guard to be armed');

# ---- Each way to lose a file --------------------------------------------------------

for my $case (
	['DROP TABLE', 'DROP TABLE story;'],
	['TRUNCATE', 'TRUNCATE story;'],
	['COMMIT PREPARED of a drop', q{COMMIT PREPARED 'drop';}, q{BEGIN; DROP TABLE story; PREPARE TRANSACTION 'drop'}],
	['VACUUM that shortens the file', 'VACUUM story;', 'DELETE FROM story WHERE id > 10'],
	['CLUSTER', 'CLUSTER story USING story_pkey;'],
	['DROP INDEX', 'ALTER TABLE story DROP CONSTRAINT story_pkey;', undef, 'story_pkey'])
{
	my ($what, $sql, $before, $relation) = @$case;
	$primary->query(q{
		DROP TABLE IF EXISTS story;
		CREATE TABLE story (id int PRIMARY KEY, filler text);
		INSERT INTO story SELECT i, repeat('x', 500) FROM generate_series(1, 1000) i;
		VACUUM story});
	# its pages are on disk before and nothing else waits
	$primary->query('CHECKPOINT');
	my $file = file_of($relation // 'story');
	my $size = -s $file;
	$primary->query($before) if $before;
	$primary->query('CHECKPOINT') if $before;
	my $receiver = stall_standby();
	my $session = start_waiting($sql);
	is(-s $file, $size, "$what: the file is as it was while the standby lacks the record");
	resume($receiver);
	wait_done($session);
	ok(!-s $file || -s $file < $size, "$what: then it is gone, or shorter");
}

# ---- Many at once ---------------------------------------------------------------------

$primary->query(q{
	CREATE TABLE parts (id int) PARTITION BY LIST (id);
	SELECT format('CREATE TABLE part_%s PARTITION OF parts FOR VALUES IN (%s)', i, i) FROM generate_series(1, 1000) i \gexec
	CHECKPOINT});
my $receiver = stall_standby();
my $before = guard('data_waits');
my $session = start_waiting('DROP TABLE parts;');
resume($receiver);
my $took = seconds(sub { wait_done($session) });
my $waits = guard('data_waits') - $before;
note sprintf '1,000 partitions dropped %.2f s after the standby was back, %d waits', $took, $waits;
cmp_ok($waits, '<', 10, 'the drop of 1,000 partitions waits once, not for each file');

# ---- What doesn't wait -------------------------------------------------------------------

$primary->query(q{CREATE UNLOGGED TABLE unlogged (id int)});
$primary->query('CHECKPOINT');
$receiver = stall_standby();
$before = guard('data_waits');
for my $case (
	['a temporary table', q{CREATE TEMP TABLE t AS SELECT generate_series(1, 100000); TRUNCATE t; DROP TABLE t}],
	['a rollback of CREATE TABLE', q{BEGIN; CREATE TABLE aborted AS SELECT generate_series(1, 1000); ROLLBACK}],
	['a subtransaction\'s rollback', q{BEGIN; SAVEPOINT s; CREATE TABLE aborted AS SELECT generate_series(1, 1000); ROLLBACK TO s; COMMIT}],
	['an unlogged table\'s rows', q{INSERT INTO unlogged SELECT generate_series(1, 100000)}])
{
	my ($what, $sql) = @$case;
	cmp_ok(seconds(sub { $primary->query($sql) }), '<', 10, "$what does not wait");
}
is(guard('data_waits') - $before, 0, 'none of them waited at all');
resume($receiver);

is(guard('state || \' \' || timeouts || \' \' || degradations'), 'armed 0 0', 'nothing was let go');

# ---- Timing out in a critical section, where nothing may need memory -----------------------

$primary->query(q{
	CREATE TABLE shrinking AS SELECT i AS id, repeat('x', 500) FROM generate_series(1, 1000) i;
	VACUUM shrinking;
	DELETE FROM shrinking WHERE id > 10});
$primary->query('CHECKPOINT');
$primary->set('tandem.failback_timeout' => '1s');
my $file = file_of('shrinking');
my $size = -s $file;
my $mark = $primary->log_mark;
$receiver = stall_standby();
$took = seconds(sub { $primary->query('VACUUM shrinking') });
cmp_ok($took, '>', 0.9, 'a truncation waits for failback_timeout');
cmp_ok(-s $file, '<', $size, 'and is done then');
$primary->wait_log(qr/guard is degraded/, $mark);
unlike($primary->log_since($mark), qr/PANIC/, 'and logged without a panic');
resume($receiver);
$primary->stop;
$standby->stop;

# ---- Gate and guard together: logical walsenders wait in both -----------------------------

my $small = Tandem::Node->new_primary('small', conf => q{
autovacuum = off
shared_buffers = 2MB
wal_log_hints = on
tandem.synchronous_transfer = all
tandem.failback_standbys = 'both'
tandem.standby_slots = 'both'
tandem.failback_timeout = 30s
});
my $both = $small->new_standby('both');
my $subscriber = Tandem::Node->new_subscriber('subscriber');
my $table = q{CREATE TABLE wide (id bigserial PRIMARY KEY, n int NOT NULL DEFAULT 0, filler text)};
$_->query($table) for $small, $subscriber;
$small->query(q{INSERT INTO wide (filler) SELECT repeat('x', 700) FROM generate_series(1, 8000)});
$small->publish('pub', 'wide');
$subscriber->subscribe('sub', $small, 'pub');
my $watch = $small->background_psql('postgres');
$watch->query('SELECT waiting FROM tandem.failback');
poll_for(sub { $watch->query('SELECT state FROM tandem.failback') eq 'armed' }, 'the guard to be armed');

my $load = $small->start_load(clients => 6, script => q{
	\set id random(1, 8000)
	UPDATE wide SET n = n + 1 WHERE id = :id;});
for my $round (1 .. 5)
{
	my $lsn = $watch->query('SELECT pg_current_wal_lsn()');
	poll_for(sub { $watch->query("SELECT pg_current_wal_lsn() > '$lsn'::pg_lsn + 500000") eq 't' }, 'some load');
	stall($both->pid_of(qr/walreceiver/));
	poll_for(sub { $watch->query('SELECT waiting FROM tandem.failback') >= 2 }, 'several to wait');
	resume_all();
}
unlike($small->stop_load($load), qr/ERROR|aborted/, 'with gate and guard on, no transaction fails');
poll_for(sub { table_checksum($small, 'wide') eq table_checksum($subscriber, 'wide') }, 'the subscriber to have all');
ok(1, 'and the subscriber gets everything');
is($watch->query('SELECT degradations FROM tandem.failback'), '0', 'and the guard stays armed');
$watch->quit;
$small->stop;
done_testing();
