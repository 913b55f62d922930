# The gate for consumers that decode with SQL functions, and what it is for: a
# failover after which no consumer has a row that the new primary lacks.
#
# Without the gate get_changes returns at once while the standby is down.  If it
# waited only with its result, a cancelled call would lose the changes: the slot
# has moved by then.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
autovacuum = off
tandem.standby_slots = 'standby'
tandem.slot_sync_interval = 100ms
wal_receiver_timeout = 5s
});
my $standby = $primary->new_standby('standby');
$primary->query('CREATE TABLE story (id bigserial PRIMARY KEY, line text)');
$primary->query("SELECT pg_create_logical_replication_slot('$_', 'test_decoding')") for qw(app other);

sub insert
{
	my ($line) = @_;
	$primary->query("INSERT INTO story (line) VALUES ('$line')");
	return;
}

sub changes
{
	my ($function, $slot, $setting) = @_;
	my $data = $function =~ /binary/ ? q{convert_from(data, 'UTF8')} : 'data';
	return ($setting // '') . "SELECT $data FROM $function('$slot', NULL, NULL, 'skip-empty-xacts', '1')";
}

# Starts a query in the background; finish it with ->finish.
sub start_query
{
	my ($sql, $output) = @_;
	$$output = '';
	return IPC::Run::start(
		[ $primary->installed_command('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $primary->connstr('postgres'), '-c', $sql ],
		'>', $output, '2>&1');
}

sub wait_waiting
{
	my ($pattern) = @_;
	poll_for(
		sub {
			$primary->query(qq{SELECT count(*) FROM pg_stat_activity
				WHERE query LIKE '%$pattern%' AND wait_event = 'Extension' AND pid <> pg_backend_pid()}) eq '1';
		},
		"$pattern to wait");
	return;
}

my @functions = qw(pg_logical_slot_peek_changes pg_logical_slot_peek_binary_changes
  pg_logical_slot_get_changes pg_logical_slot_get_binary_changes);

subtest 'standby up' => sub {
	insert('standby up');
	like($primary->query(changes($_, 'app')), qr/standby up/, $_)
	  for qw(pg_logical_slot_peek_changes pg_logical_slot_get_changes);
};

subtest 'standby down' => sub {
	$standby->stop;
	insert('standby down');
	my $before = $primary->slot_value('app', 'confirmed_flush_lsn');

	like($primary->query_error(changes($_, 'app', q{SET statement_timeout = '300ms'; })),
		qr/canceling statement due to statement timeout/, "$_ waits, and can be cancelled")
	  for @functions;
	is($primary->slot_value('app', 'confirmed_flush_lsn'), $before, 'a cancelled call has not moved the slot');

	like($primary->query_error(q{SET statement_timeout = '300ms';
		SELECT pg_replication_slot_advance('app', pg_current_wal_flush_lsn())}),
		qr/statement timeout/, 'pg_replication_slot_advance waits');
	is($primary->slot_value('app', 'confirmed_flush_lsn'), $before, 'and does not move the slot');

	# other ways out of the server than a result
	like($primary->query_error("SET statement_timeout = '300ms'; COPY ("
			. changes('pg_logical_slot_get_changes', 'app') . ') TO STDOUT'),
		qr/statement timeout/, 'COPY waits');
	like($primary->query_error(q{SET statement_timeout = '300ms'; DO $$ DECLARE r record; BEGIN
			FOR r IN SELECT data FROM pg_logical_slot_get_changes('app', NULL, NULL) LOOP
				RAISE NOTICE '%', r.data; END LOOP; END $$}),
		qr/^(?!.*NOTICE).*statement timeout/s, 'a loop with notices waits');

	# slots that no standby keeps
	$primary->set('tandem.failover_slots' => 'app');
	like($primary->query(changes('pg_logical_slot_get_changes', 'other')), qr/standby down/,
		'a slot that is no failover slot passes');
	$primary->set('tandem.failover_slots' => undef);
	like($primary->query(q{SELECT pg_create_logical_replication_slot('temp', 'test_decoding', true);
			INSERT INTO story (line) VALUES ('temporary');
			SELECT data FROM pg_logical_slot_get_changes('temp', NULL, NULL)}),
		qr/temporary/, 'so does a temporary slot');

	# cancelled from outside
	my $output;
	my $run = start_query(changes('pg_logical_slot_get_changes', 'app'), \$output);
	wait_waiting('pg_logical_slot_get_changes');
	$primary->query(q{SELECT pg_cancel_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'app'});
	$run->finish;
	like($output, qr/canceling statement due to user request/, 'pg_cancel_backend');

	# a reload opens the gate for a call that waits
	$run = start_query(changes('pg_logical_slot_peek_changes', 'app'), \$output);
	wait_waiting('pg_logical_slot_peek_changes');
	my $start = Time::HiRes::time();
	$primary->set('tandem.standby_slots' => '');
	$run->finish;
	like($output, qr/standby down/, 'a reload opens the gate');
	cmp_ok(Time::HiRes::time() - $start, '<', 3, 'at once');
	$primary->set('tandem.standby_slots' => 'standby');

	# the standby comes back
	$run = start_query(changes('pg_logical_slot_get_changes', 'app'), \$output);
	wait_waiting('pg_logical_slot_get_changes');
	$standby->start;
	$run->finish;
	like($output, qr/standby down/, 'the standby back, the call returns');
	my $count = () = $output =~ /standby down/g;
	is($count, 1, 'what all the cancelled calls did not take');
};

subtest 'get_changes after advance in one transaction' => sub {
	# advance does not show its end to the gate
	my ($in, $out) = (q{BEGIN;
		SELECT pg_replication_slot_advance('app', confirmed_flush_lsn)
		FROM pg_replication_slots WHERE slot_name = 'app';
		SELECT 'advanced';
	}, '');
	my $psql = IPC::Run::start(
		[ $primary->installed_command('psql'), '-XAtq', '-d', $primary->connstr('postgres'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>&1');
	poll_for(sub { $psql->pump_nb; $out =~ /^advanced/m }, 'the slot to be advanced');
	$standby->stop;
	insert('after advance');
	$in .= q{SET LOCAL statement_timeout = '300ms';
		SELECT data FROM pg_logical_slot_get_changes('app', NULL, NULL);
	};
	$psql->finish;
	like($out, qr/^(?!.*after advance).*statement timeout/s, 'the second call waits');
	$standby->start;
};

subtest 'a session goes on after a cancelled wait' => sub {
	$standby->stop;
	insert('same session');
	my $output = $primary->query_error(q{
		SET statement_timeout = '200ms';
		\set ON_ERROR_STOP off
		SELECT data FROM pg_logical_slot_get_changes('app', NULL, NULL);
		SELECT data FROM pg_logical_slot_get_changes('app', NULL, NULL);
		\set ON_ERROR_STOP on
		SELECT data FROM pg_logical_slot_get_changes('app', NULL, NULL)});
	my $times = () = $output =~ /statement timeout/g;
	is($times, 3, 'each call waits anew');
	$standby->start;
	like($primary->query(changes('pg_logical_slot_get_changes', 'app')), qr/same session/, 'nothing is lost');
};

subtest 'failover' => sub {
	$primary->query(q{SELECT pg_drop_replication_slot(name) FROM (VALUES ('app'), ('other')) v(name)});
	$primary->query(q{SELECT pg_create_logical_replication_slot('recv', 'test_decoding')});
	$primary->query('TRUNCATE story');
	my $file = $primary->basedir . '/recv.out';
	my $output;
	my @command = ($primary->installed_command('pg_recvlogical'), '--slot', 'recv', '--start',
		'-f', $file, '-F', '1', '-s', '1', '-o', 'include-xids=0', '-o', 'skip-empty-xacts=1');
	my $recv = IPC::Run::start([ @command, '-d', $primary->connstr('postgres') ], '>', \$output, '2>&1');
	my $load = $primary->start_load(script => "INSERT INTO story (line) VALUES ('x');\n", clients => 4);
	poll_for(sub { -e $file && -s $file > 10_000 }, 'changes to arrive');
	$standby->wait_slot_ready('recv');

	# the standby falls behind, then the primary dies
	stall($standby->pid_of(qr/walreceiver/));
	my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { $primary->query("SELECT pg_current_wal_flush_lsn() > '$end'::pg_lsn + 100000") eq 't' },
		'the primary to go ahead');
	poll_for(sub { $primary->query(q{SELECT count(*) FROM pg_stat_activity a JOIN pg_replication_slots s ON active_pid = pid
				WHERE slot_name = 'recv' AND wait_event = 'Extension'}) eq '1' },
		'the walsender to be held');
	$primary->kill9_all;
	$primary->stop_load($load);
	$recv->kill_kill;
	resume_all();
	$standby->promote;

	# once more, from the new primary
	$standby->query(q{INSERT INTO story (line) VALUES ('after the failover')});
	$standby->set('tandem.standby_slots' => '');
	$end = $standby->query('SELECT pg_current_wal_flush_lsn()');
	ok(IPC::Run::run([ @command, '-d', $standby->connstr('postgres'), '--endpos', $end ], '>', \$output, '2>&1'),
		'pg_recvlogical goes on at the new primary')
	  or diag($output);

	my %received;
	$received{$_}++ for slurp_file($file) =~ /id\[bigint\]:(\d+)/g;
	my %there = map { $_ => 1 } split /\n/, $standby->query('SELECT id FROM story');
	cmp_ok(scalar(keys %there), '>', 100, 'there was load');
	is(scalar(grep { !$there{$_} } keys %received), 0, 'the consumer has no row that the new primary lacks');
	is(scalar(grep { !$received{$_} } keys %there), 0, 'and has every row of it');
};

done_testing();
