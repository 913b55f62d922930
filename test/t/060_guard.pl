# The guard: no data page reaches the disk before the failback standbys have
# flushed its WAL.
#
# A standby's receiver is stopped while the primary is written to, the primary
# dies, the standby is promoted.  Then every page on the old primary's disk is
# looked at.  With the guard off many of them are ahead of the fork: that is
# what the test finds without the code it tests.

use strict;
use warnings;

use Tandem::Pages;
use Tandem::Test;
use Test::More;

my $case = 0;

# Returns the scan of the dead primary's pages.
sub crash_with_stalled_standby
{
	my (%params) = @_;
	my $slot = 'standby_' . ++$case;
	my $primary = Tandem::Node->new_primary("primary_$case", initdb => $params{initdb}, conf => qq{
shared_buffers = 2MB
wal_log_hints = on
autovacuum_naptime = 1s
bgwriter_delay = 10ms
tandem.failback_timeout = 60s
tandem.synchronous_transfer = $params{mode}
tandem.failback_standbys = '$slot'
});
	my $standby = $primary->new_standby($slot);
	my $state = $params{mode} eq 'none' ? 'off' : 'armed';
	poll_for(sub { $primary->query('SELECT state FROM tandem.failback') eq $state },
		"the guard to be $state");
	$primary->query(q{
		CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, filler text);
		INSERT INTO wide SELECT i, 0, repeat('x', 700) FROM generate_series(1, 8000) i;
		CREATE TABLE copied (id int, filler text);
		CREATE INDEX ON copied (id)});
	$primary->query('CHECKPOINT');
	$primary->wait_replayed($standby);

	# a session that has read all it needs: one that reads more waits itself
	my $watch = $primary->background_psql('postgres');
	my $written = q{SELECT waiting FROM tandem.failback};
	$written = q{SELECT pg_current_wal_lsn() - '} . $primary->lsn('insert') . q{'}
	  if $params{mode} eq 'none';
	$watch->query($written);

	my $receiver = stall($standby->pid_of(qr/walreceiver/));
	my @loads = (
		$primary->start_load(clients => 6, script => q{
			\set id random(1, 8000)
			UPDATE wide SET n = n + 1 WHERE id = :id;}),
		# the rings of COPY and VACUUM, dropped and shortened files, checkpoints
		$primary->start_load(clients => 1, script => q{
			COPY copied FROM PROGRAM 'seq 1 2000 | sed "s/$/\tsome text/"';
			DELETE FROM copied WHERE id > 100;
			VACUUM copied;}),
		$primary->start_load(clients => 1, script => q{
			CREATE TABLE short_lived AS SELECT generate_series(1, 2000) AS i;
			CHECKPOINT;
			TRUNCATE short_lived;
			DROP TABLE short_lived;}));
	my $enough = $params{mode} eq 'none' ? 30_000_000 : 4;
	poll_for(sub { $watch->query($written) >= $enough }, 'the load to get somewhere');
	# what it has confirmed is less than it may still find in its socket
	my $confirmed = $watch->query(q{SELECT confirmed_lsn FROM tandem.failback});
	$primary->kill9_all;
	eval { $watch->quit };
	$primary->stop_load($_) for @loads;
	resume($receiver);
	$standby->promote;

	my $fork = fork_point($standby);
	my $scan = scan_pages($primary->data_dir, $fork, $standby->data_dir);
	$scan->{unconfirmed} = scan_pages($primary->data_dir, $confirmed, $standby->data_dir)->{ahead};
	note "confirmed $confirmed, fork $fork, $scan->{pages} pages, $scan->{ahead} ahead";
	$standby->stop('immediate');
	return $scan;
}

sub is_clean
{
	my ($scan, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($scan->{pages}, '>', 1000, "$name: pages were there to look at");
	is($scan->{ahead}, 0, "$name: no page is ahead of the fork") or diag explain $scan->{files};
	is($scan->{unconfirmed}, 0, "$name: nor of what the standby had confirmed");
	return;
}

is_clean(crash_with_stalled_standby(mode => 'data_flush'), 'hint bits logged');
is_clean(crash_with_stalled_standby(mode => 'data_flush', initdb => ['--data-checksums']), 'checksums');
is_clean(crash_with_stalled_standby(mode => 'all'), 'commits wait too');

my $unguarded = crash_with_stalled_standby(mode => 'none');
cmp_ok($unguarded->{ahead}, '>', 100, 'many pages are ahead with the guard off');

done_testing();
