# A standby that is stalled or gone never stops the primary for longer than
# tandem.failback_timeout: the guard degrades, says so, and arms again by itself
# without flapping.
#
# Without the bound the first write of a page would hang for ever; without the
# back-off each of the "not again" tests would wait another second.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
shared_buffers = 16MB
wal_log_hints = on
autovacuum = off
wal_sender_timeout = 0
tandem.synchronous_transfer = data_flush
tandem.failback_standbys = 'standby'
tandem.failback_timeout = 1s
});

sub guard
{
	my ($columns) = @_;
	return $primary->query("SELECT $columns FROM tandem.failback");
}

sub wait_state
{
	my ($state, $timeout) = @_;
	poll_for(sub { guard('state') eq $state }, "the guard to be $state", $timeout);
	return;
}

sub seconds
{
	my ($code) = @_;
	my $start = Time::HiRes::time();
	$code->();
	return Time::HiRes::time() - $start;
}

# A page that no standby has, and a checkpoint that writes it.
my $row = 0;
sub write_page
{
	$row++;
	$primary->query("INSERT INTO story VALUES ($row)");
	return;
}

sub write_and_checkpoint
{
	write_page();
	return seconds(sub { $primary->query('CHECKPOINT') });
}

# ---- Arming -------------------------------------------------------------------

is(guard('state'), 'arming', 'before there is a standby the guard is arming');
like(guard('reason'), qr/slot "standby".* does not exist/, 'and says why');
$primary->query('CREATE TABLE story (id int)');
cmp_ok(write_and_checkpoint(), '<', 0.9, 'nothing waits for a standby that never was');
$primary->query(q{SELECT pg_create_physical_replication_slot('standby', true)});
cmp_ok(write_and_checkpoint(), '<', 0.9, 'nor for a slot that nobody has used');
like(guard('reason'), qr/slot "standby" is not connected/, 'the reason changes');
is($primary->query(q{SELECT in_guard || ' ' || warning FROM tandem.standbys WHERE slot_name = 'standby'}),
	'true it is not connected; data pages and commits can\'t wait for it', 'tandem.standbys shows it');
$primary->query(q{SELECT pg_drop_replication_slot('standby')});

my $standby = $primary->new_standby('standby');
wait_state('armed');
is(guard(q{coalesce(reason, '-')}), '-', 'an armed guard needs no reason');
is($primary->query(q{SELECT coalesce(warning, '-') FROM tandem.standbys WHERE slot_name = 'standby'}), '-', 'nor a warning');
cmp_ok(write_and_checkpoint(), '<', 0.9, 'with the standby there a checkpoint is quick');
is(guard('timeouts || \' \' || degradations'), '0 0', 'and nothing was let go');
is($primary->query(q{SELECT count(*) FROM tandem.standbys WHERE slot_name LIKE 'tandem%'}), '0',
	'slots of our own are no standbys');

# ---- A stalled standby --------------------------------------------------------

my $mark = $primary->log_mark;
my $receiver = stall($standby->pid_of(qr/walreceiver/));
write_page();
my $checkpoint = $primary->background_psql('postgres');
my $watch = $primary->background_psql('postgres');
$checkpoint->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n");
poll_for(sub { guard('waiting') eq '1' }, 'the checkpointer to wait');
is($watch->query(q{
	SELECT wait_event_type FROM pg_stat_activity WHERE backend_type = 'checkpointer'}),
	'Extension', 'the wait has a wait event');
like(guard('clock_timestamp() - waiting_since'), qr/^00:00:0/, 'and is shown with its age');
my $took = seconds(sub { $checkpoint->query('SELECT 1') });
cmp_ok($took, '<', 3, 'a checkpoint waits for failback_timeout, then goes on');
is(guard('state'), 'degraded', 'the guard is degraded');
like(guard('reason'), qr/standby slot "standby", which is connected, has flushed up to .* within 1000 ms/,
	'with the reason');
is(guard('degradations || \' \' || (last_degraded > now() - interval \'1 minute\')::text'), '1 true', 'counted, with the time');
cmp_ok(guard('timeouts'), '>=', 1, 'so is what was let go');
cmp_ok(guard('longest_wait_ms'), '>=', 1000, 'and the longest wait');
like($primary->log_since($mark), qr/guard is degraded.*\n.*DETAIL:.*standby slot "standby"/, 'and logged');

cmp_ok(write_and_checkpoint(), '<', 0.9, 'a degraded guard keeps nobody waiting');
$took = seconds(sub { write_page(), $primary->query('CHECKPOINT') for 1 .. 3 });
cmp_ok($took, '<', 0.9, 'not again, either');

# ---- Arming again, later each time ----------------------------------------------

resume($receiver);
$mark = $primary->log_mark;
wait_state('armed');
is(guard(q{coalesce(reason, '-')}), '-', 'armed again by itself once the standby keeps up');
$primary->wait_log(qr/guard is armed/, 0);

stall($receiver);
write_and_checkpoint();
wait_state('degraded');
my $first = guard('extract(epoch FROM rearm_after - since)');
resume($receiver);
wait_state('armed');
stall($receiver);
write_and_checkpoint();
wait_state('degraded');
my $second = guard('extract(epoch FROM rearm_after - since)');
cmp_ok($second, '>=', 2 * $first - 0.01, "the back-off doubles ($first s, $second s)");
resume($receiver);
$primary->wait_replayed($standby);
is(guard('state'), 'degraded', 'until then the guard stays degraded, though the standby keeps up');

# a change of the settings is a reason to try at once
$primary->set('tandem.failback_timeout' => '1500ms');
wait_state('armed', 3);
$primary->set('tandem.failback_timeout' => '1s');

# ---- A standby that is gone ----------------------------------------------------

my $degradations = guard('degradations');
$standby->stop('immediate');
write_page();
$took = seconds(sub { $primary->query('CHECKPOINT') });
cmp_ok($took, '>', 0.5, 'a standby that is gone is waited for');
cmp_ok($took, '<', 3, 'no longer than failback_timeout');
wait_state('degraded');
like(guard('reason'), qr/which is not connected/, 'the reason says that it is gone');
is(guard('degradations'), $degradations + 1, 'one degradation');
$standby->start;
wait_state('armed');

# its slot dropped: nothing will ever be confirmed, so there is nothing to wait for
$standby->stop;
$primary->query(q{SELECT pg_drop_replication_slot('standby')});
wait_state('degraded', 3);
like(guard('reason'), qr/does not exist/, 'a dropped slot degrades the guard at once');
cmp_ok(write_and_checkpoint(), '<', 0.9, 'without anybody waiting');
$primary->query(q{SELECT pg_create_physical_replication_slot('standby', true)});
$standby->start;
wait_state('armed');

# ---- Who else waits, who doesn't --------------------------------------------------

# a backend that must evict, the rings of VACUUM and COPY, each once
$primary->query(q{
	CREATE TABLE wide (id int PRIMARY KEY, filler text);
	INSERT INTO wide SELECT i, repeat('x', 700) FROM generate_series(1, 30000) i});
$primary->wait_replayed($standby);
for my $case (
	['an evicting backend', 'UPDATE wide SET filler = repeat(\'y\', 700)'],
	['COPY', q{COPY wide FROM PROGRAM 'seq 40000 200000 | sed "s/.*/&\t& copied/"'}],
	['VACUUM', 'VACUUM (FREEZE) wide'],
	['an index build', 'CREATE INDEX ON wide USING hash (filler)'])
{
	my ($who, $sql) = @$case;
	$primary->query('CHECKPOINT') ;
	wait_state('armed');
	stall($standby->pid_of(qr/walreceiver/));
	my $before = guard('data_waits');
	$took = seconds(sub { $primary->query($sql) });
	cmp_ok($took, '<', 10, "$who comes to an end");
	my $waits = guard('data_waits') - $before;
	note sprintf '%s took %.1f s, %d waits', $who, $took, $waits;
	cmp_ok($waits, '>', 0, "$who waits") if $who ne 'an index build';
	resume_all();
	$primary->wait_replayed($standby);
	$primary->set('tandem.failback_timeout' => '1001ms');
	$primary->set('tandem.failback_timeout' => '1s');
}
wait_state('armed');

# the standby's connection is lost while everything waits: the new walsender
# must not wait for what only it can bring
$primary->set('tandem.failback_timeout' => '60s', wal_sender_timeout => '1s');
# whoever has to read catalogs may have to evict, and waits as well
my $connected = q{SELECT connected FROM tandem.standbys WHERE slot_name = 'standby'};
$watch->query($_) for $connected, 'SELECT waiting FROM tandem.failback';
stall($standby->pid_of(qr/walreceiver/));
my $load = $primary->start_load(clients => 6, script => q{
	\set id random(1, 30000)
	UPDATE wide SET filler = filler || 'z' WHERE id = :id;});
my $writer = $primary->start_load(clients => 1, script => 'CHECKPOINT');
poll_for(sub { $watch->query('SELECT waiting FROM tandem.failback') >= 2 }, 'several to wait');
poll_for(sub { $watch->query($connected) eq 'f' }, 'its walsender to give up');
cmp_ok($watch->query('SELECT waiting FROM tandem.failback'), '>=', 2, 'the writes go on waiting');
resume_all();
$took = seconds(sub { poll_for(sub {
	$watch->query($connected) eq 't' },
	'the standby to be back') });
cmp_ok($took, '<', 30, 'a standby reconnects while writes wait for it');
wait_state('armed');
is(guard('state'), 'armed', 'and nothing was degraded by it');
unlike($primary->stop_load($load), qr/ERROR|aborted/, 'no transaction failed');
$primary->stop_load($writer);
$watch->quit;
$checkpoint->quit;

# ---- Shutdown -----------------------------------------------------------------

$primary->set('tandem.failback_timeout' => '2s');
stall($standby->pid_of(qr/walreceiver/));
write_page();
$mark = $primary->log_mark;
$took = seconds(sub { $primary->stop('fast') });
cmp_ok($took, '<', 15, 'a shutdown ends although the standby is stalled');
like($primary->log_since($mark), qr/guard is degraded/, 'and says what it gave up');
resume_all();

# after the restart the guard protects from the first write on
$standby->stop;
$primary->start;
cmp_ok(write_and_checkpoint(), '>', 1, 'after a restart a standby that was there before is waited for');
wait_state('degraded');
$standby->start;
wait_state('armed');

$primary->stop;
done_testing();
