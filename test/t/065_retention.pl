# WAL kept for a node to be rejoined: tandem_failback on a primary back to the
# last checkpoint that the failback standbys have confirmed, tandem_rejoin on a
# standby, which a promotion leaves standing before the fork.
#
# Without the slots the segments asked for below are removed by the checkpoints
# of this test.

use strict;
use warnings;

use Tandem::Pages;
use Tandem::Test;
use Test::More;

my $conf = q{
autovacuum = off
wal_log_hints = on
wal_keep_size = 0
max_wal_size = 32MB
min_wal_size = 32MB
checkpoint_timeout = 1h
wal_sender_timeout = 0
};
my $primary = Tandem::Node->new_primary('primary', initdb => ['--wal-segsize=1'], conf => "$conf
tandem.failback_standbys = 'standby'
tandem.failback_keep_size = 64MB
");

sub kept
{
	my ($node, $columns) = @_;
	return $node->query("SELECT $columns FROM tandem.failback");
}

sub last_redo
{
	my ($node) = @_;
	return $node->query('SELECT redo_lsn FROM pg_control_checkpoint()');
}

sub restart_lsn
{
	my ($node, $slot) = @_;
	return $node->query("SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = '$slot'");
}

# The WAL file with this position, is it there?
sub has_wal
{
	my ($node, $lsn, $timeline) = @_;
	my $segment = lsn_number($lsn) >> 20;
	return -e sprintf '%s/pg_wal/%08X%08X%08X', $node->data_dir, $timeline // 1,
	  $segment / 4096, $segment % 4096;
}

# Writes some MB of WAL.
sub write_wal
{
	my ($node, $mb) = @_;
	$node->query(qq{SELECT count(pg_logical_emit_message(false, 'tandem test', repeat('x', 1000000)))
		FROM generate_series(1, $mb)});
	$node->query('SELECT pg_switch_wal()');
	return;
}

is(kept($primary, q{coalesce(wal_kept_by, '-') || ' ' || wal_kept_bytes}), '- 0', 'without a standby nothing is kept');
my $standby = $primary->new_standby('standby', conf => 'tandem.failback_keep_size = 64MB');

# ---- On the primary -------------------------------------------------------------

poll_for(sub { restart_lsn($primary, 'tandem_failback') ne '' }, 'the slot on the primary');
is(restart_lsn($primary, 'tandem_failback'), last_redo($primary), 'it keeps WAL from the redo of the last checkpoint');
is(kept($primary, 'wal_kept_by'), 'tandem_failback', 'tandem.failback says what keeps WAL');
is($primary->query(q{SELECT string_agg(slot_name, ',') FROM tandem.standbys}), 'standby', 'it is no standby');

write_wal($primary, 2);
$primary->query('CHECKPOINT');
my $confirmed = last_redo($primary);
poll_for(sub { restart_lsn($primary, 'tandem_failback') eq $confirmed }, 'the slot to follow a confirmed checkpoint');

# a stalled standby confirms no checkpoint, so the slot stays, whatever pg_control says
my $receiver = stall($standby->pid_of(qr/walreceiver/));
# more than the standby's socket takes
for (1 .. 4)
{
	write_wal($primary, 8);
	$primary->query('CHECKPOINT');
}
isnt(last_redo($primary), $confirmed, 'there are later checkpoints');
is(restart_lsn($primary, 'tandem_failback'), $confirmed, 'but the slot stands at the one that was confirmed');
ok(has_wal($primary, $confirmed), 'and its WAL is there');
is(kept($primary, 'wal_kept_from'), $confirmed, 'tandem.failback shows from where');
cmp_ok(kept($primary, 'wal_kept_bytes'), '>', 30_000_000, 'and how much');

# it survives a crash: what is kept may be older then, never newer
$primary->kill9_all;
$primary->start;
ok(has_wal($primary, $confirmed), 'still there after a crash');
is(restart_lsn($primary, 'tandem_failback'), $confirmed, 'and the slot, too');

# the bound
my $mark = $primary->log_mark;
for (1 .. 6)
{
	write_wal($primary, 8);
	$primary->query('CHECKPOINT');
}
poll_for(sub { restart_lsn($primary, 'tandem_failback') ne $confirmed }, 'the bound to be kept');
cmp_ok(kept($primary, 'wal_kept_bytes'), '<=', 64 * 1024 * 1024, 'no more than tandem.failback_keep_size is kept');
like(kept($primary, 'wal_problem'), qr/last checkpoint that the standbys have confirmed exceeds/, 'the view says what that means');
$primary->wait_log(qr/exceeds tandem.failback_keep_size/, $mark);
$primary->query('CHECKPOINT');
resume_all();
$primary->wait_replayed($standby);
poll_for(sub { kept($primary, q{coalesce(wal_problem, '-')}) eq '-' }, 'the problem to go away');
poll_for(sub { restart_lsn($primary, 'tandem_failback') eq last_redo($primary) }, 'the slot to follow');
ok(1, 'a standby that has caught up has confirmed the last one');

# released when nobody is listed
$primary->set('tandem.failback_standbys' => '');
poll_for(sub { restart_lsn($primary, 'tandem_failback') eq '' }, 'the slot to be dropped');
is(kept($primary, q{coalesce(wal_kept_by, '-')}), '-', 'with no standby listed nothing is kept');
$primary->set('tandem.failback_standbys' => undef, 'tandem.failback_keep_size' => '0');
ok(restart_lsn($primary, 'tandem_failback') eq '', 'nor with tandem.failback_keep_size = 0');
$primary->set('tandem.failback_keep_size' => undef);

$standby->teardown_node;
$primary->query(q{SELECT pg_drop_replication_slot('standby')});

# ---- On the standby -----------------------------------------------------------------

my $next = $primary->new_standby('next', conf => 'tandem.failback_keep_size = 64MB');
poll_for(sub { restart_lsn($next, 'tandem_rejoin') ne '' }, 'the slot on the standby');
for my $round (1 .. 2)
{
	write_wal($primary, 3);
	$next->restartpoint($primary);
	my $replayed = $primary->wait_replayed($next);
	poll_for(sub { $next->query("SELECT restart_lsn >= '$replayed' FROM pg_replication_slots WHERE slot_name = 'tandem_rejoin'") eq 't' },
		'the slot to follow replay');
}
ok(1, 'the slot on the standby follows replay');
is(kept($next, 'wal_kept_by || \' \' || (wal_kept_bytes < 2000000)'), 'tandem_rejoin true', 'and keeps next to nothing');
is(kept($next, 'state || \': \' || reason'), 'off: this server is a standby', 'the guard is off there');

# killed and started again it is still there
$next->kill9_all;
$next->start;
poll_for(sub { restart_lsn($next, 'tandem_rejoin') ne '' }, 'the slot after a crash of the standby');

# promotion leaves it standing before the fork, whatever the new primary does
$primary->kill9_all;
$next->promote;
my $fork = fork_point($next);
my $standing = restart_lsn($next, 'tandem_rejoin');
cmp_ok(lsn_number($standing), '<=', lsn_number($fork), "promoted at $fork, the slot stands at $standing");
for (1 .. 4)
{
	write_wal($next, 8);
	$next->query('CHECKPOINT');
}
is(restart_lsn($next, 'tandem_rejoin'), $standing, 'and stays there');
ok(has_wal($next, $fork, 2), 'WAL of the fork is there');
$next->restart;
$next->query('CHECKPOINT');
is(restart_lsn($next, 'tandem_rejoin'), $standing, 'also after a restart');
is(kept($next, 'wal_kept_by || \' \' || wal_kept_from'), "tandem_rejoin $standing", 'tandem.failback shows it');

# the bound
$mark = $next->log_mark;
write_wal($next, 40);
poll_for(sub { restart_lsn($next, 'tandem_rejoin') eq '' }, 'the slot to go when it keeps too much');
$next->wait_log(qr/dropped replication slot "tandem_rejoin" because it kept more WAL than tandem.failback_keep_size/, $mark);
$next->query('CHECKPOINT');
ok(!has_wal($next, $fork, 2), 'and the WAL with it');

# a node that streams from it makes it an ordinary slot, which we leave alone
$next->query(q{SELECT pg_create_physical_replication_slot('tandem_rejoin', true)});
$next->set('tandem.failback_standbys' => 'tandem_rejoin');
is($next->query(q{SELECT slot_name || ' ' || slot_exists || ' ' || in_guard FROM tandem.standbys}), 'tandem_rejoin true true',
	'the slot that a rejoined node uses is a standby\'s');
write_wal($next, 80);
$next->restart;
poll_for(sub { kept($next, 'worker_pid IS NOT NULL') eq 't' }, 'the worker');
write_wal($next, 2);
isnt(restart_lsn($next, 'tandem_rejoin'), '', 'it is not dropped');
is(kept($next, q{coalesce(wal_kept_by, '-')}), '-', 'and not taken for one of ours');

$next->stop;
done_testing();
