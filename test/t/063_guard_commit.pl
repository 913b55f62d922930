# tandem.synchronous_transfer = commit: a commit returns when the failback
# standbys have flushed it, can be cancelled, and never waits longer than
# tandem.failback_timeout.
#
# Without it each commit below returns although the standby is stalled; if the
# wait raised an error the server would go down with a PANIC.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
autovacuum = off
max_prepared_transactions = 10
wal_sender_timeout = 0
tandem.synchronous_transfer = commit
tandem.failback_standbys = 'standby'
tandem.failback_timeout = 60s
});
my $standby = $primary->new_standby('standby');
$primary->query('CREATE TABLE story (line text)');

sub guard
{
	my ($columns) = @_;
	return $primary->query("SELECT $columns FROM tandem.failback");
}

sub wait_state
{
	my ($state) = @_;
	poll_for(sub { guard('state') eq $state }, "the guard to be $state");
	return;
}

sub count
{
	my ($line) = @_;
	return $primary->query("SELECT count(*) FROM story WHERE line = '$line'");
}

sub seconds
{
	my ($code) = @_;
	my $start = Time::HiRes::time();
	$code->();
	return Time::HiRes::time() - $start;
}

# Runs statements in a session of their own; returns it when they wait.
sub start_waiting
{
	my ($sql) = @_;
	my $session = $primary->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query_until(qr/started/, "\\echo started\n$sql\n\\echo done\n");
	poll_for(
		sub {
			$primary->query("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid AND state = 'active'") eq 'Extension'
			  && guard('waiting') > 0;
		},
		"\"$sql\" to wait");
	return ($session, $pid);
}

sub wait_done
{
	my ($session) = @_;
	poll_for(sub { $session->{run}->pump_nb; $session->{stdout} =~ /done\n/ }, 'the statement to return');
	$session->{stdout} = '';
	return;
}

wait_state('armed');
my $receiver = stall($standby->pid_of(qr/walreceiver/));

# ---- What waits -----------------------------------------------------------------

my ($session) = start_waiting(q{INSERT INTO story VALUES ('waiting');});
is(count('waiting'), '1', 'others see a row before it is confirmed, as documented');
my ($prepare) = start_waiting(q{BEGIN; INSERT INTO story VALUES ('prepared'); PREPARE TRANSACTION 'p';});
is(guard('waiting'), '2', 'PREPARE TRANSACTION waits as well');
resume($receiver);
wait_done($_) for $session, $prepare;
is(guard('waiting'), '0', 'both return when the standby is back');
is(guard('state || \' \' || timeouts || \' \' || cancels'), 'armed 0 0', 'and nothing else has happened');
$_->quit for $session, $prepare;
$primary->wait_replayed($standby);

stall($receiver);
($session) = start_waiting(q{COMMIT PREPARED 'p';});
ok(1, 'COMMIT PREPARED waits');
resume($receiver);
wait_done($session);
$session->quit;
is(count('prepared'), '1', 'and has committed');

# ---- What doesn't ------------------------------------------------------------------

stall($receiver);
for my $case (
	['synchronous_commit = off', q{SET synchronous_commit = off; INSERT INTO story VALUES ('off')}],
	['synchronous_commit = local', q{SET synchronous_commit = local; INSERT INTO story VALUES ('local')}],
	['a rollback', q{BEGIN; INSERT INTO story VALUES ('nothing'); ROLLBACK}],
	['a read', q{SELECT count(*) FROM story}],
	['a read after a commit that did not', q{SET synchronous_commit = local; INSERT INTO story VALUES ('local'); SET synchronous_commit = on; SELECT 1}],
	['a checkpoint', q{CHECKPOINT}])
{
	my ($what, $sql) = @$case;
	cmp_ok(seconds(sub { $primary->query($sql) }), '<', 5, "$what does not wait");
}

# ---- Cancel and terminate --------------------------------------------------------------

my $pid;
($session, $pid) = start_waiting(q{INSERT INTO story VALUES ('cancelled');});
$primary->query("SELECT pg_cancel_backend($pid)");
wait_done($session);
like($session->{stderr}, qr/WARNING:  canceling the wait for failback standbys due to user request\nDETAIL:  The transaction has already committed locally/,
	'a cancelled commit says what that means');
is(count('cancelled'), '1', 'it has committed');
is($session->query('SELECT 1'), '1', 'and its session goes on');
$session->quit;
is(guard('cancels'), '1', 'it is counted');

($session, $pid) = start_waiting(q{INSERT INTO story VALUES ('terminated');});
$primary->query("SELECT pg_terminate_backend($pid)");
poll_for(sub { !process_alive($pid) }, 'the session to end');
eval { $session->quit };
is(count('terminated'), '1', 'a terminated one has committed as well');

unlike($primary->log_since(0), qr/PANIC|was terminated by signal/, 'nobody has panicked');

# a fast shutdown does not wait for standbys that don't answer
($session) = start_waiting(q{INSERT INTO story VALUES ('shutdown');});
resume($receiver);
$standby->stop('immediate');
cmp_ok(seconds(sub { $primary->stop('fast') }), '<', 10, 'a fast shutdown ends the waits');
eval { $session->quit };
$primary->start;
$standby->start;
is(count('shutdown'), '1', 'and the commit stays');
wait_state('armed');

# ---- The bound ------------------------------------------------------------------------------

$primary->set('tandem.failback_timeout' => '1s');
stall($standby->pid_of(qr/walreceiver/));
my $took = seconds(sub { $primary->query(q{INSERT INTO story VALUES ('bounded')}) });
cmp_ok($took, '>', 0.9, 'a commit waits for failback_timeout');
cmp_ok($took, '<', 3, 'and no longer');
is(guard('state'), 'degraded', 'then the guard is degraded');
cmp_ok(seconds(sub { $primary->query(q{INSERT INTO story VALUES ('degraded')}) }), '<', 0.9,
	'and the next one does not wait');
resume_all();
wait_state('armed');

# ---- Many at once -----------------------------------------------------------------------------

my $before = guard('commit_waits');
my $load = $primary->start_load(clients => 16, script => q{INSERT INTO story VALUES ('many');});
poll_for(sub { guard('commit_waits') > $before + 500 }, 'hundreds of commits');
unlike($primary->stop_load($load), qr/ERROR|aborted|WARNING/, 'all of them return');
is(guard('state'), 'armed', 'the guard stays armed');
note 'longest wait ' . guard('longest_wait_ms') . ' ms, mean '
  . guard('round((commit_wait_ms / commit_waits)::numeric, 3)') . ' ms';

$primary->stop;
done_testing();
