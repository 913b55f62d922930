# Who waits for whom: tandem.failback_standbys and synchronous_standby_names are
# independent, lists may leave one of several standbys out, and each mode is
# taken over by a reload.
#
# The primary has standbys a and b.  Every case stalls one of them or both and
# looks whether a commit waits, and whether a checkpoint that must write an
# unconfirmed page does.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => q{
autovacuum = off
shared_buffers = 32MB
wal_log_hints = on
wal_sender_timeout = 0
tandem.failback_timeout = 60s
});
my %standby = map { $_ => $primary->new_standby($_) } qw(a b);
$primary->query('CREATE TABLE story (line text)');

sub guard
{
	my ($columns) = @_;
	return $primary->query("SELECT $columns FROM tandem.failback");
}

# Starts a statement in a session of its own; returns whether it waits (and the
# session).
sub waits
{
	my ($sql) = @_;
	my $session = $primary->background_psql('postgres');
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->{stdout} = '';
	$session->{stdin} .= "$sql\n\\echo done\n";
	my $result = poll_for(
		sub {
			$session->{run}->pump_nb;
			return 'no' if $session->{stdout} =~ /done\n/;
			# in the guard, or in core's synchronous replication
			return 'guard' if guard('waiting') > 0;
			return 'core' if $primary->query(
				"SELECT wait_event FROM pg_stat_activity WHERE pid = $pid") eq 'SyncRep';
			return 0;
		},
		"\"$sql\" to return or to wait");
	return ($result, $session);
}

# With these standbys stalled: does a commit wait, does a checkpoint?
sub what_waits
{
	my (@stalled) = @_;
	poll_for(sub { guard(q{state IN ('armed', 'off')}) eq 't' }, 'the guard to be armed');
	# the checkpoint has a page to write that nobody else is to wait for
	$primary->wait_replayed($_) for values %standby;
	stall($standby{$_}->pid_of(qr/walreceiver/)) for @stalled;

	my ($commit, $committing) = waits(q{INSERT INTO story VALUES ('x');});
	my ($data, $writing) = ('?', undef);
	if ($commit eq 'guard')
	{
		# cancelled, so that what waits next is the checkpoint
		$primary->query(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'INSERT%' AND state = 'active'});
		poll_for(sub { guard('waiting') eq '0' }, 'nobody to wait');
	}
	($data, $writing) = waits('CHECKPOINT;');
	resume_all();
	for my $session (grep { defined } $committing, $writing)
	{
		poll_for(sub { $session->{run}->pump_nb; $session->{stdout} =~ /done\n/ }, 'the statement to end');
		$session->quit;
	}
	return "commit $commit, data $data";
}

# ---- Modes, by reload ------------------------------------------------------------------

$primary->set('tandem.failback_standbys' => 'a');
my %expected = (
	none => 'commit no, data no',
	commit => 'commit guard, data no',
	data_flush => 'commit no, data guard',
	all => 'commit guard, data guard');
for my $mode (qw(data_flush none all commit none data_flush all))
{
	$primary->set('tandem.synchronous_transfer' => $mode);
	poll_for(sub { guard('mode || state') eq $mode . ($mode eq 'none' ? 'off' : 'armed') }, "mode $mode");
	is(what_waits('a'), $expected{$mode}, "mode $mode, taken over by a reload");
}

# switched off while somebody waits
stall($standby{a}->pid_of(qr/walreceiver/));
my ($waits, $session) = waits(q{INSERT INTO story VALUES ('switched off');});
is($waits, 'guard', 'a commit waits');
$primary->set('tandem.synchronous_transfer' => 'none');
poll_for(sub { $session->{run}->pump_nb; $session->{stdout} =~ /done\n/ }, 'it to return');
ok(1, 'and returns when the guard is switched off');
$session->quit;
resume_all();
$primary->set('tandem.synchronous_transfer' => 'data_flush');

# ---- An asynchronous standby and a separate failback standby ---------------------------------

is(what_waits('b'), 'commit no, data no', 'a standby that is not listed is not waited for');
is(what_waits('a'), 'commit no, data guard', 'the failback standby is');
is($primary->query('SELECT string_agg(slot_name || \' \' || in_guard, \', \' ORDER BY slot_name) FROM tandem.standbys'),
	'a true, b false', 'tandem.standbys shows which');

# ---- A synchronous standby and a separate failback standby ------------------------------------

$primary->set(synchronous_standby_names => 'b');
poll_for(sub { $primary->query(q{SELECT sync_state FROM pg_stat_replication WHERE application_name = 'b'}) eq 'sync' },
	'b to be synchronous');
is(what_waits('a'), 'commit no, data guard', 'failback standby stalled: commits go on, pages wait');
is(what_waits('b'), 'commit core, data no', 'synchronous standby stalled: commits wait, pages go to disk');
is(what_waits('a', 'b'), 'commit core, data guard', 'both stalled: each waits for its own');
$primary->set('tandem.synchronous_transfer' => 'commit');
is(what_waits('a'), 'commit guard, data no', 'commits may wait for both kinds of standby');
$primary->set(synchronous_standby_names => '', 'tandem.synchronous_transfer' => 'data_flush');

# ---- Two failback standbys ----------------------------------------------------------------------

$primary->set('tandem.failback_standbys' => 'ANY 1 (a, b)');
poll_for(sub { guard('standbys') eq 'ANY 1 (a, b)' }, 'the new list');
is(what_waits('a'), 'commit no, data no', 'ANY 1: one of two stalled');
is(what_waits('b'), 'commit no, data no', 'ANY 1: the other one');
is(what_waits('a', 'b'), 'commit no, data guard', 'ANY 1: both');
$primary->set('tandem.failback_standbys' => 'a, b');
poll_for(sub { guard('standbys') eq 'a, b' }, 'the new list');
is(what_waits('b'), 'commit no, data guard', 'all: one of two stalled');
$primary->set('tandem.failback_standbys' => 'FIRST 1 (a, b)');
poll_for(sub { guard('standbys') eq 'FIRST 1 (a, b)' }, 'the new list');
is(what_waits('b'), 'commit no, data no', 'FIRST 1: the second stalled');
is(what_waits('a'), 'commit no, data guard', 'FIRST 1: the first stalled');
$standby{a}->stop;
delete $standby{a};
$primary->query(q{INSERT INTO story VALUES ('x')});
$primary->query('CHECKPOINT');
is(what_waits('b'), 'commit no, data guard', 'FIRST 1: the first away, the second stalled');

is(guard('timeouts || \' \' || degradations'), '0 0', 'nothing was let go in any of this');

$primary->stop;
done_testing();
