# "tandem rejoin" killed at every step, and at random moments: the same command
# goes on, and the node is right in the end.  In between no server can start on
# a directory that is half repaired.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;
use Time::HiRes qw(sleep);

my $pair = Tandem::Rejoin->new(initdb => ['--wal-segsize=1'], conf => "wal_keep_size = 2GB\n");

# ---- A directory that needs everything -----------------------------------------

my $fill = 'SELECT g AS id, md5(g::text) AS x FROM generate_series(%d, %d) g';
my $primary = $pair->primary;
$primary->query("CREATE TABLE $_ AS " . sprintf $fill, 1, 5000) for qw(t dropped shrinks);
$primary->query('CREATE DATABASE dropped');
$primary->query('CREATE TABLE t AS ' . sprintf($fill, 1, 1000), 'dropped');
$primary->query(q{BEGIN; UPDATE t SET x = 'prepared' WHERE id = 5; PREPARE TRANSACTION 'ends'});
$pair->part;
$primary->query($_) for q{UPDATE t SET x = 'lost' WHERE id > 4000}, 'DROP TABLE dropped',
  'DELETE FROM shrinks WHERE id > 100', 'VACUUM shrinks', 'DROP DATABASE dropped', 'CREATE DATABASE lost',
  'CREATE TABLE lost AS ' . sprintf($fill, 1, 5000), 'VACUUM FULL pg_class', q{COMMIT PREPARED 'ends'},
  q{BEGIN; UPDATE t SET x = 'prepared' WHERE id = 6; PREPARE TRANSACTION 'lost'};
$pair->fail_over;
my ($old, $new) = ($pair->old_primary, $pair->new_primary);
$new->query(q{INSERT INTO t VALUES (9001, 'gained')});
$new->query(q{UPDATE t SET x = 'gained' WHERE id = 4500});
$new->query(q{ROLLBACK PREPARED 'ends'});

# Everything begins again from the same wreck.
my $data = $old->data_dir;
my $wreck = $old->basedir . '/wreck';
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $data, $wreck);

sub restore_wreck
{
	$old->stop('immediate') if defined $old->{_pid};
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $data);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $wreck, $data);
	return;
}

# One more write on the new primary, so that each round has something to fetch.
my $writes = 0;
sub is_rejoined
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($code, $out, $err) = $pair->rejoin;
	is($code, 0, "$name: the same command succeeds") or return diag("$out$err");
	poll_for(sub { $old->query('SELECT pg_is_in_recovery()') eq 't' }, 'the rejoined node to answer');
	$new->query("INSERT INTO t VALUES (10000 + " . ++$writes . ", 'later')");
	$new->wait_replayed($old);
	is(Tandem::Rejoin::dump_all($old), Tandem::Rejoin::dump_all($new), "$name: equal dumps");
	ok(!-e "$data/tandem_rejoin", "$name: nothing of the journal is left");
	is_deeply([ sort keys %{ Tandem::Rejoin::files($old) } ], [ sort keys %{ Tandem::Rejoin::files($new) } ],
		"$name: the same files");
	return 1;
}

sub server_starts
{
	my ($out, $err) = PostgreSQL::Test::Utils::run_command(
		[ 'pg_ctl', '-D', $data, '-l', $old->logfile, '-w', '-t', 30, 'start' ]);
	my $started = $? == 0;
	PostgreSQL::Test::Utils::run_command([ 'pg_ctl', '-D', $data, '-m', 'immediate', '-w', 'stop' ]) if $started;
	return $started;
}

# ---- At every step -----------------------------------------------------------------

my $before = Tandem::Rejoin::tree($wreck);
my @steps = qw(journal begun repair delete copy_file copy_blocks slru install_wal settle cut_wal recovery_conf
	control switched);
for my $step (@steps)
{
	restore_wreck();
	my (undef, undef, $err) = do {
		local $ENV{TANDEM_REJOIN_STOP_AT} = $step;
		$pair->rejoin;
	};
	like($err, qr/^stopped at $step$/m, "killed at $step");
	if ($step eq 'journal')
	{
		PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', "$data/tandem_rejoin");
		Tandem::Rejoin::is_unchanged($data, $before, "$step: nothing else has changed");
	}
	elsif ($step ne 'switched')
	{
		ok(!server_starts(), "$step: no server starts on a half repaired directory");
	}
	is_rejoined($step);
}

# Twice in a row, later and earlier.
restore_wreck();
for my $step (qw(copy_blocks slru cut_wal settle))
{
	local $ENV{TANDEM_REJOIN_STOP_AT} = $step;
	$pair->rejoin;
}
is_rejoined('killed four times');

# ---- At random moments ---------------------------------------------------------------

srand(my $seed = $ENV{TANDEM_TEST_SEED} // time);
note("seed $seed");
for my $round (1 .. 4)
{
	restore_wreck();
	my @moments;
	for (1 .. 3)
	{
		my $pid = fork // die "could not fork: $!";
		if ($pid == 0)
		{
			open STDOUT, '>', '/dev/null';
			open STDERR, '>', '/dev/null';
			exec 'tandem', 'rejoin', '-D', $data, '--source', $pair->source, '--log', $old->logfile, '--no-start'
			  or POSIX::_exit(1);
		}
		my $moment = rand 0.15;
		sleep $moment;
		push @moments, sprintf '%.3f', $moment;
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	is_rejoined("killed after @moments s");
}

# ---- Twice, and back and forth -----------------------------------------------------------

my ($code, $out, $err) = $pair->rejoin;
is($code, 1, 'a second rejoin of a running standby is refused');
like($err, qr/a server is running in/, 'with the reason');
$old->stop('fast');
is_rejoined('again, of a standby that was stopped');
$old->stop('fast');
($code, $out, $err) = $pair->rejoin('--dry-run');
is($code, 0, 'a dry run of it');
like($out, qr/behind|nothing/i, 'says that there is nothing to do');
$old->start;

$pair->caught_up;
for my $round (1 .. 3)
{
	$pair->story("forth and back $round",
		before => [ "INSERT INTO t VALUES (20000 + $round, 'common')" ],
		lost => [ "UPDATE t SET x = 'lost $round' WHERE id % 7 = 0", "CREATE TABLE lost_$round AS " . sprintf $fill, 1, 100 ],
		gained => [ "UPDATE t SET x = 'gained $round' WHERE id % 11 = 0", "CREATE TABLE gained_$round (a int)" ]);
}

# A planned switch: stopped cleanly, nothing lost.
$pair->primary->query(q{INSERT INTO t VALUES (30000, 'last')});
$pair->primary->wait_replayed($pair->standby);
$pair->primary->stop('fast');
$pair->standby->promote;
$pair->standby->query(q{INSERT INTO t VALUES (30001, 'first')});
($code, $out, $err) = $pair->rejoin;
is($code, 0, 'a primary that was stopped cleanly comes back') or diag("$out$err");
$pair->caught_up;
$pair->is_equal('clean stop');

done_testing();
