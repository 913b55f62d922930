# Checkpoints remove WAL and snapshot files; slots that are being made must not
# be called ready on the strength of what a restartpoint is about to remove.
#
# A restartpoint under way has decided what to remove: while there was no logical
# slot, all snapshot files; WAL older than its redo pointer.  Here its process is
# stopped in the middle of that while slots are made.  Also restartpoints in a
# loop against slots made in a loop.
#
# Cycles are made by hand, so that a wrong "ready" isn't mended by the next one
# before it is seen.  Without the look at the running restartpoint, slots are
# ready whose snapshots are removed a moment later.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
	tandem.slot_sync_interval = 1h
	max_replication_slots = 40
});
$primary->query('CREATE TABLE t (id int)');
my $standby = $primary->new_standby('standby');
my $snapshots = $standby->data_dir . '/pg_logical/snapshots';

sub cycle
{
	return $standby->query(q{SELECT count(*) FILTER (WHERE state = 'ready') || ' of ' || count(*)
		FROM tandem.sync_slots()});
}

# Slots that are called ready but lack the snapshot that the primary has.
sub unsound
{
	return $standby->query(q{
		SELECT string_agg(slot_name || ' ' || s.restart_lsn, ', ' ORDER BY slot_name)
		FROM pg_replication_slots s JOIN tandem.slots t USING (slot_name)
		WHERE t.state = 'ready' AND NOT EXISTS (SELECT 1 FROM pg_ls_logicalsnapdir() f
			WHERE f.name = ltrim(replace(s.restart_lsn::text, '/', '-'), '0') || '.snap'
			OR f.name = replace(s.restart_lsn::text, '/', '-') || '.snap')});
}

# Slots whose restart_lsn is at a snapshot of their own.
sub make_slots
{
	my ($count) = @_;
	$primary->query(qq{SELECT pg_create_logical_replication_slot('slot_' || i, 'test_decoding')
		FROM generate_series(1, $count) i});
	$primary->advance_slot("slot_$_") for 1 .. $count;
	$primary->wait_replayed($standby);
	return;
}

sub drop_slots
{
	$primary->query(q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_type = 'logical'});
	return;
}

# ---- The first slots, while a restartpoint removes all snapshot files ----------------

is(cycle(), '0 of 0', 'no slot yet');
my $checkpointer = $standby->pid_of(qr/checkpointer/);

# Enough files that their removal can be interrupted.
my $files = 20000;
for my $i (1 .. $files)
{
	open my $file, '>', sprintf('%s/0-%X.snap', $snapshots, $i) or die $!;
	close $file;
}
$primary->query('CHECKPOINT');
$primary->wait_replayed($standby);

sub files_left
{
	opendir my $dir, $snapshots or die "$snapshots: $!";
	return scalar(() = grep { /snap$/ } readdir $dir);
}

my $session = $standby->background_psql('postgres');
$session->query_until(qr/started/, "\\echo started\nCHECKPOINT;\n\\echo done\n");
poll_for(sub { files_left() < $files }, 'the restartpoint to remove files', 60);
stall_working($checkpointer);
my $left = files_left();
ok($left > 100 && $left < $files, "the restartpoint is stopped while it removes files ($left left)");

# The new slots are younger than that restartpoint, so all they need is here.
make_slots(8);
my @cycles = map { cycle() } 1 .. 2;
my $during = $standby->query(q{SELECT string_agg(DISTINCT state || ': ' || coalesce(reason, '-'), '; ') FROM tandem.slots});
resume($checkpointer);
$session->query_until(qr/done/, '');
$session->quit;
is(unsound(), '', 'no slot was called ready whose snapshot has been removed')
  or diag("cycles @cycles, $during");
like($during, qr/^pending: waiting for a restartpoint/, 'the slots waited for the restartpoint, and said so');
poll_for(sub { cycle() eq '8 of 8' }, 'all slots to be ready');
is(unsound(), '', 'afterwards all are ready with their snapshots');

# ---- WAL older than the redo pointer of a restartpoint --------------------------------

drop_slots();
cycle();
make_slots(3);
$standby->restartpoint($primary);
stall_working($checkpointer);
@cycles = map { cycle() } 1 .. 3;
is("@cycles", '0 of 3 0 of 3 0 of 3', 'slots older than the last restartpoint are not ready at once');
is($standby->query('SELECT DISTINCT reason FROM tandem.slots'),
	'waiting for a restartpoint that may have begun before its WAL was reserved',
	'they wait for one that knows of them');
resume($checkpointer);
poll_for(sub { cycle() eq '3 of 3' }, 'then they are ready');
$standby->restartpoint($primary);
is(unsound(), '', 'with their snapshots');
is(cycle(), '3 of 3', 'and WAL, also after another restartpoint');

# ---- In a loop -----------------------------------------------------------------------

# Restartpoints are made on one side as fast as checkpoints on the other.
my $checkpoints = $primary->start_load(script => "CHECKPOINT;\n", clients => 1);
my $restartpoints = $standby->start_load(script => "CHECKPOINT;\n", clients => 1);
my $wrong = '';
my $made = 0;
for my $round (1 .. 12)
{
	drop_slots();
	cycle() if $round % 2;
	make_slots(2);
	for (1 .. 6)
	{
		my $result = cycle();
		$wrong .= unsound();
		$made += $result eq '2 of 2';
	}
}
$standby->stop_load($restartpoints);
$primary->stop_load($checkpoints);
is($wrong, '', 'restartpoints in a loop: no slot was ready without its snapshot');
cmp_ok($made, '>', 12, "and slots did become ready meanwhile ($made times)");

# ---- The worker stopped anywhere in a cycle ---------------------------------------------

# Meanwhile the primary's slots move on, and both servers remove WAL and files:
# what the worker has been told is no longer true when it goes on.
my $worker = $standby->pid_of(qr/tandem worker/);
my $removed = 0;
$wrong = '';
for my $round (1 .. 6)
{
	drop_slots();
	make_slots(4);
	$session = $standby->background_psql('postgres');
	$session->query_until(qr/started/,
		"\\echo started\nSELECT count(*) FROM tandem.sync_slots();\n\\echo done\n");
	Time::HiRes::sleep(rand 0.02);    # the moment of the stop, not a wait
	stall_working($worker);
	$primary->advance_slot("slot_$_") for 1 .. 3;
	$primary->switch_wal(1);
	$primary->query('CHECKPOINT');
	$primary->wait_replayed($standby);

	# it can't end if the worker was stopped with a lock of the slots
	my $redo = $primary->query('SELECT redo_lsn FROM pg_control_checkpoint()');
	$restartpoints = $standby->start_load(script => "CHECKPOINT;\n", clients => 1);
	eval {
		poll_for(sub { $standby->query(
			"SELECT redo_lsn >= '$redo' FROM pg_control_checkpoint()") eq 't' }, 'a restartpoint', 2);
		$removed++;
	};
	resume($worker);
	$session->query_until(qr/done/, '');
	$session->quit;
	$standby->stop_load($restartpoints);
	$wrong .= unsound();
	cycle();
	$wrong .= unsound();
}
is($wrong, '', 'the worker stopped within a cycle: no slot is ready without its snapshot');
cmp_ok($removed, '>', 0, "restartpoints were made meanwhile ($removed times)");
is($standby->pid_of(qr/tandem worker/), $worker, 'the worker goes on');

drop_slots();
cycle();
is($standby->query('SELECT count(*) FROM pg_replication_slots WHERE slot_type = \'logical\''), '0', 'without slots on the primary nothing is left here');
is($primary->slot_value('tandem_hold_standby', 'slot_name'), '', 'and no hold there');

done_testing();
