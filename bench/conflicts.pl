#!/usr/bin/perl
# make bench-conflicts: what it costs a node that is written to that it remembers
# deleted rows, so that an update to one can be told from an update to a row that
# never was.
#
# Two nodes, the same tables, pgbench on both, each on rows of its own, so that
# there are no conflicts; the subscriber applies what the publisher commits.  The
# same run with
#
#	off		tombstones = off
#	on		tombstones = on
#	held	tombstones = off, and a snapshot that is as old as apply lags, held on the
#			subscriber: what keeping dead rows costs (the peer, before 19)
#
# alternately; judged are the subscriber's transactions a second and the processor
# time of all its processes for each, as ratios to "off" of the same round.  A row
# is WORKLOAD:CLIENTS[+lag]: "tpcb" has no deletes, of "delete" each transaction
# deletes a row and inserts it again.  "+lag": apply has been stopped LAG seconds
# before and during the run.
#
# Retention that is ended by a bound under steady load comes back by itself: TPS
# meanwhile.  And, under load, the time from asking for a missing row to the proof that it
# was not deleted; and what the store holds after DELETES deletes: WAL, disk,
# memory.
#
# SIZE=small (default, minutes) or full; ROWS="tpcb:10 delete:10+lag"; WAYS="off on
# held"; REPEATS=rounds; SECONDS=of a run; LAG=seconds; PROBES=n; DELETES=n; BOUNDS=0.
# Writes bench/results/conflicts-VERSION-SIZE.json and .svg.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Bench;
use File::Basename ();
use IPC::Run ();
use PostgreSQL::Test::Utils qw(slurp_file);
use Tandem::Test;
use Test::More;
use Time::HiRes qw(time sleep);

my $size = $ENV{SIZE} || 'small';
my $full = $size eq 'full';
my @rows = split / /, $ENV{ROWS} // ($full
	? 'tpcb:10 tpcb:20 tpcb:40 tpcb:10+lag tpcb:20+lag tpcb:40+lag delete:10 delete:20 delete:40 delete:20+lag'
	: 'tpcb:10 tpcb:10+lag delete:10 delete:10+lag');
my @ways = split / /, $ENV{WAYS} // 'off on held';
my $repeats = $ENV{REPEATS} || ($full ? 10 : 3);
my $seconds = $ENV{SECONDS} || ($full ? 60 : 5);
my $lag = $ENV{LAG} // ($full ? 60 : 5);
my $probes = $ENV{PROBES} // ($full ? 5000 : 500);
my $deletes = $ENV{DELETES} // ($full ? 1_000_000 : 100_000);
my $bounds = $ENV{BOUNDS} // 1;
my $scale = $full ? 20 : 4;			# a node's half of the branches
my $items = $full ? 200_000 : 50_000;	# a node's half of the rows of "delete"
my $screen = Test::More->builder->output;
my $machine = machine();
my $name = results_name('conflicts', $machine, $size);
my @results;
my %extra;

my $conf = qq{
fsync = on
log_statement = none
log_min_messages = warning
track_commit_timestamp = on
max_connections = 120
max_wal_senders = 20
max_replication_slots = 20
max_worker_processes = 20
max_wal_size = 8GB
min_wal_size = 2GB
checkpoint_timeout = 1h
shared_buffers = 256MB
autovacuum = on
autovacuum_naptime = 5s
};

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => $conf);
my $subscriber = Tandem::Node->new_primary('subscriber', conf => $conf);
my $has_probe = $subscriber->query(q{SELECT count(*) FROM pg_proc WHERE proname = 'tombstone_find'}) > 0;

# ---- Tables and programs ------------------------------------------------------------

sub run_program
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err) or die "@command failed: $err$out";
	return $out . $err;
}

sub connection { return ('-h', $_[0]->host, '-p', $_[0]->port) }

sub set_up
{
	for my $node ($publisher, $subscriber)
	{
		run_program('pgbench', '-i', '-q', '-s', 2 * $scale, connection($node), 'postgres');
		$node->query(q{CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE many (id int PRIMARY KEY)});
		$node->query('INSERT INTO items SELECT i, md5(i::text) FROM generate_series(1, ' . 2 * $items . ') i');
		$node->query('VACUUM ANALYZE');
	}
	$publisher->publish('pub');
	my $conninfo = $publisher->connstr('postgres') =~ s/'/''/gr;
	$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false, copy_data = false)");
	$subscriber->query(q{SELECT tandem.adopt('sub', '')});
	wait_applied();
	return;
}

# Scripts of a node: its half of the rows.
my %script;

sub script_of
{
	my ($workload, $node) = @_;
	my $half = $node == $publisher ? 0 : 1;
	my $path = "$ENV{TESTDIR}/$workload.$half.sql";
	return $path if $script{$path}++;
	my ($first, $last) = ($half * $scale + 1, ($half + 1) * $scale);
	my $text = $workload eq 'tpcb' ? sprintf(q{
\set aid random(%d, %d)
\set bid random(%d, %d)
\set tid random(%d, %d)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
}, ($first - 1) * 100000 + 1, $last * 100000, $first, $last, ($first - 1) * 10 + 1, $last * 10)
	  : $workload eq 'delete' ? sprintf(q{
\set id random(%d, %d)
BEGIN;
DELETE FROM items WHERE id = :id;
INSERT INTO items VALUES (:id, 'again') ON CONFLICT DO NOTHING;
END;
}, $half * $items + 1, ($half + 1) * $items)
	  : die "\"$workload\" is no workload\n";
	open my $file, '>', $path or die "$path: $!";
	print $file $text;
	close $file;
	return $path;
}

sub start_pgbench
{
	my ($node, $workload, $clients, $time, @options) = @_;
	my %load = (out => '');
	$load{run} = IPC::Run::start([ 'pgbench', '-n', '-M', 'prepared', '-c', $clients, '-j', 2, '-T', $time, @options,
			'-f', script_of($workload, $node), connection($node), 'postgres' ],
		'<', \undef, '>', \$load{out}, '2>&1');
	return \%load;
}

# TPS and transactions.
sub finish_pgbench
{
	my ($load) = @_;
	$load->{run}->finish or die "pgbench failed: $load->{out}";
	my ($n) = $load->{out} =~ /number of transactions actually processed: (\d+)/ or die $load->{out};
	my ($tps) = $load->{out} =~ /^tps = ([\d.]+)/m or die $load->{out};
	return ($tps, $n);
}

# Processor seconds of a server: its processes, and those that have ended.
sub cpu_of
{
	my ($node) = @_;
	my $postmaster = $node->postmaster_pid;
	my $ticks = 0;
	for my $pid ($postmaster, child_pids($postmaster))
	{
		my $stat = eval { slurp_file("/proc/$pid/stat") } or next;
		$stat =~ s/^.*\) //s;
		my @field = split ' ', $stat;
		$ticks += $field[11] + $field[12];
		$ticks += $field[13] + $field[14] if $pid == $postmaster;
	}
	return $ticks / 100;
}

# ---- A run -----------------------------------------------------------------------------

sub wait_applied
{
	$publisher->query(q{SELECT pg_logical_emit_message(true, 'bench', 'x')});
	my $lsn = $publisher->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { $subscriber->query("SELECT flushed_lsn >= '$lsn' FROM tandem.subscriptions") eq 't' },
		'changes to be applied', 1800);
	return;
}

sub adopt { $subscriber->query("SELECT tandem.adopt('sub', '$_[0]')"); return }

sub set_way
{
	my ($way) = @_;
	adopt('tombstones = ' . ($way eq 'on' ? 'on' : 'off'));
	poll_for(sub { $subscriber->query(q{SELECT state IN ('off', 'collecting', 'stopped') FROM tandem.tombstones}) eq 't' },
		'the collector', 120);
	poll_for(sub { $subscriber->query(q{SELECT state = 'off' OR unknown_before IS NULL FROM tandem.tombstones}) eq 't' },
		'the collector to know all', 120) if $way eq 'on';
	return;
}

my $holder;

sub hold_snapshot
{
	my %session = (in => '', out => '');
	$session{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $subscriber->connstr('postgres') ],
		'<', \$session{in}, '>', \$session{out}, '2>&1');
	$session{in} .= "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 'held' FROM pg_class LIMIT 1;\n";
	poll_for(sub { $session{run}->pump_nb; $session{out} =~ /held/ }, 'a snapshot to be held');
	$holder = \%session;
	return;
}

sub release_snapshot
{
	return unless $holder;
	$holder->{in} .= "\\q\n";
	$holder->{run}->finish;
	undef $holder;
	return;
}

sub one_run
{
	my ($workload, $clients, $lagging, $way) = @_;
	my $before = $lagging ? $lag : 0;
	my %run;

	set_way($way);
	$subscriber->query('VACUUM pgbench_branches, pgbench_tellers, items; CHECKPOINT');
	$publisher->query('VACUUM pgbench_branches, pgbench_tellers, items; CHECKPOINT');
	if ($lagging)
	{
		adopt('enabled = off');
		poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'paused' }, 'apply to stop');
	}
	hold_snapshot() if $way eq 'held';
	# what comes before counts for the lag only
	if ($before)
	{
		my @loads = map { start_pgbench($_, $workload, $clients, $before) } $publisher, $subscriber;
		finish_pgbench($_) for @loads;
	}
	my $wal = $subscriber->query('SELECT pg_current_wal_insert_lsn()');
	my $cpu = cpu_of($subscriber);
	my @loads = map { start_pgbench($_, $workload, $clients, $seconds) } $publisher, $subscriber;
	($run{publisher_tps}) = finish_pgbench($loads[0]);
	($run{tps}, my $n) = finish_pgbench($loads[1]);
	# the ended ones are counted when the postmaster has waited for them
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'}) eq '0' },
		'the clients to be gone');
	$run{cpu_us} = 1e6 * (cpu_of($subscriber) - $cpu) / $n;
	$run{wal_bytes} = $subscriber->query("SELECT pg_current_wal_insert_lsn() - '$wal'::pg_lsn") / $n;
	$run{store_bytes} = $subscriber->query('SELECT bytes FROM tandem.tombstones') + 0;
	release_snapshot();
	adopt('enabled = on') if $lagging;
	wait_applied();
	return \%run;
}

sub bench_row
{
	my ($row) = @_;
	my ($workload, $clients, $lagging) = $row =~ /^(\w+):(\d+)(\+lag)?$/ or die "row \"$row\" is not WORKLOAD:CLIENTS[+lag]\n";
	my %runs;
	for my $repeat (1 .. $repeats)
	{
		for my $way ($repeat % 2 ? @ways : reverse @ways)
		{
			push @{ $runs{$way} }, one_run($workload, $clients, $lagging, $way);
		}
	}
	my %result = (name => $row);
	for my $way (@ways)
	{
		for my $figure (qw(tps publisher_tps cpu_us wal_bytes store_bytes))
		{
			$result{$way}{$figure} = summary(map { $_->{$figure} } @{ $runs{$way} });
			next if $way eq 'off' || !$runs{off} || $figure eq 'store_bytes';
			$result{$way}{"${figure}_ratio"} = summary(
				map { $runs{$way}[$_]{$figure} / ($runs{off}[$_]{$figure} || 1) } 0 .. $repeats - 1);
		}
	}
	push @results, \%result;
	keep_results();
	for my $way (@ways)
	{
		my $r = $result{$way};
		print $screen sprintf "%-16s %-5s %-24s %-20s %-20s %s\n", $row, $way, spread($r->{tps}, '%.0f'),
		  spread($r->{tps_ratio}, '%.2f'), spread($r->{cpu_us}, '%.0f'), spread($r->{cpu_us_ratio}, '%.2f');
	}
	return;
}

# ---- The verdict, and the store ------------------------------------------------------------

# Milliseconds that a proof takes, under load of the subscriber.
sub bench_probes
{
	return if !$has_probe || $probes <= 0;
	set_way('on');
	my $load = start_pgbench($subscriber, 'delete', 10, $full ? 120 : 15);
	my $out = $subscriber->query(qq{
		CREATE TEMP TABLE took (ms float8);
		DO \$\$
		DECLARE
			begun timestamptz;
		BEGIN
			FOR i IN 1 .. $probes LOOP
				begun := clock_timestamp();
				PERFORM tandem.tombstone_find('items', jsonb_build_object('id', -i), true);
				INSERT INTO took VALUES (1000 * extract(epoch FROM clock_timestamp() - begun));
				COMMIT;
			END LOOP;
		END \$\$;
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), max(ms) FROM took});
	finish_pgbench($load);
	my ($median, $p99, $max) = split /\|/, $out;
	$extra{verdict_ms} = { probes => $probes, median => $median + 0, p99 => $p99 + 0, max => $max + 0 };
	print $screen sprintf "\nverdict under load: median %.2f ms, 99th percentile %.2f ms, longest %.2f ms\n", $median, $p99, $max;
	keep_results();
	return;
}

sub memory_of_collector
{
	my $pid = $subscriber->query('SELECT collector_pid FROM tandem.tombstones');
	my $smaps = eval { slurp_file("/proc/$pid/smaps_rollup") } // return;
	my ($kb) = $smaps =~ /^Private_Dirty:\s+(\d+)/m;
	return $kb * 1024;
}

# What is held for many deletes while apply stands still.
sub bench_store
{
	return if $deletes <= 0;
	set_way('on');
	adopt('enabled = off');
	$subscriber->query("INSERT INTO many SELECT generate_series(1, $deletes)");
	# a change that is waited for, so that nothing is dropped
	my $before = $subscriber->query('SELECT bytes FROM tandem.tombstones');
	my $wal = $subscriber->query('SELECT pg_current_wal_insert_lsn()');
	my $start = time;
	$subscriber->query('DELETE FROM many');
	my $deleted = $subscriber->query('SELECT pg_current_wal_insert_lsn()');
	poll_for(sub { $subscriber->query("SELECT collected_lsn >= '$deleted' FROM tandem.tombstones") eq 't' },
		'the deletes to be collected', 600);
	my $seconds_all = time - $start;
	my $after = $subscriber->query('SELECT bytes FROM tandem.tombstones');
	my $own = $subscriber->query("SELECT pg_current_wal_insert_lsn() - '$deleted'::pg_lsn");
	my $theirs = $subscriber->query("SELECT '$deleted'::pg_lsn - '$wal'::pg_lsn");
	$extra{store} = { deletes => $deletes, seconds => $seconds_all, disk_bytes => ($after - $before) / $deletes,
		wal_bytes => $own / $deletes, wal_of_delete_bytes => $theirs / $deletes,
		collector_memory_bytes => memory_of_collector() };
	print $screen sprintf "store, per tombstone: %.0f bytes on disk, %.0f bytes of WAL (the delete itself: %.0f); collector's own memory: %.1f MB\n",
	  $extra{store}{disk_bytes}, $extra{store}{wal_bytes}, $extra{store}{wal_of_delete_bytes},
	  ($extra{store}{collector_memory_bytes} // 0) / 1048576;
	adopt('enabled = on');
	wait_applied();
	keep_results();
	return;
}

# Under steady load apply is stopped and goes on, so that tandem.max_retention ends
# the retention of tombstones and it comes back by itself: the subscriber's
# transactions a second meanwhile.
sub bench_bounds
{
	return if !$bounds;
	my $third = $full ? 30 : 8;
	my (@states, %by_state);

	set_way('on');
	$subscriber->set('tandem.max_retention' => '2s');
	my $other = start_pgbench($publisher, 'delete', 4, 3 * $third + 5);
	my $load = start_pgbench($subscriber, 'delete', 4, 3 * $third, '-P', 1, '--progress-timestamp');
	my $start = time;
	my $phase = 0;
	while ((my $now = time) < $start + 3 * $third)
	{
		if ($phase < 2 && $now > $start + ($phase + 1) * $third)
		{
			adopt('enabled = ' . ($phase == 0 ? 'off' : 'on'));
			$phase++;
		}
		push @states, [ $now, $subscriber->query('SELECT state FROM tandem.tombstones') ];
		sleep 0.1;
	}
	finish_pgbench($load);
	finish_pgbench($other);
	my $order = '';
	for my $state (map { $_->[1] } @states)
	{
		$order .= ($order eq '' ? '' : ', ') . $state if $order !~ /\Q$state\E$/;
	}
	while ($load->{out} =~ /^progress: ([\d.]+) s, ([\d.]+) tps/mg)
	{
		my ($at, $tps) = ($1, $2);
		my %during = map { $_->[1] => 1 } grep { $_->[0] > $at - 1 && $_->[0] <= $at } @states;
		push @{ $by_state{ (keys %during)[0] } }, $tps if keys %during == 1;
	}
	my $ended = $subscriber->query('SELECT epochs_ended_early FROM tandem.tombstones');
	$extra{bounds} = { order => $order, ended_early => $ended + 0, map { $_ => summary(@{ $by_state{$_} }) } keys %by_state };
	print $screen "\nretention over its bound under steady load: $order; epochs ended early: $ended\n";
	print $screen sprintf "  %-12s TPS of a second %s\n", $_, spread($extra{bounds}{$_}, '%.0f') for sort keys %by_state;
	$subscriber->set('tandem.max_retention' => undef);
	wait_applied();
	keep_results();
	return;
}

# A checksum of the rows that the publisher writes.
sub half_of
{
	my ($node) = @_;
	return $node->query("SELECT (SELECT sum(hashtext(a::text)) FROM pgbench_accounts a WHERE aid <= $scale * 100000),
		(SELECT sum(hashtext(i::text)) FROM items i WHERE id <= $items)");
}

# ---- Telling ---------------------------------------------------------------------------------

sub draw
{
	my ($name) = @_;
	return unless -x '/usr/bin/gnuplot' && @results;
	my $data = "$ENV{TESTDIR}/conflicts.dat";
	open my $file, '>', $data or die "$data: $!";
	for my $r (@results)
	{
		print $file join(' ', qq{"$r->{name}"},
			map { my $w = $r->{$_}{tps_ratio}; $w ? @{$w}{qw(median min max)} : ('?') x 3 } qw(on held)), "\n";
	}
	close $file;
	open my $gnuplot, '|-', 'gnuplot' or die "gnuplot: $!";
	print $gnuplot <<"END";
set terminal svg size 900,460 noenhanced font "sans-serif,12" background "white"
set encoding utf8
set output "$name"
set title "Transactions a second of the subscriber, of those without detection: median, with minimum and maximum"
set datafile missing "?"
set style data histogram
set style histogram errorbars gap 1 lw 1.5
set style fill solid 0.9 noborder
set yrange [0:1.3]
set grid ytics lc rgb "#dddddd"
set key outside top center horizontal
plot "$data" using 2:3:4:xtic(1) title "pg_tandem: tombstones" lc rgb "#1b6ca8", \\
     "" using 5:6:7 title "dead rows kept (snapshot held)" lc rgb "#d08c3e"
END
	close $gnuplot or die "gnuplot failed";
	return;
}

sub keep_results
{
	write_results($name, { machine => $machine, size => $size, repeats => $repeats, seconds => $seconds, lag => $lag,
		rows => \@results, %extra });
	draw("$name.svg");
	return;
}

print $screen machine_line($machine) . ", SIZE=$size, $repeats rounds of $seconds s, lag $lag s\n";
set_up();
print $screen sprintf "%-16s %-5s %-24s %-20s %-20s %s\n", 'row', 'way', 'TPS (min-max)', 'of off', 'CPU us/transaction', 'of off';
bench_row($_) for @rows;
bench_probes();
bench_store();
bench_bounds();
print $screen "\nwritten: bench/results/" . File::Basename::basename($name) . ".json, .svg\n";
# A bench has no timed assertion, but a node that lacks changes of the other is a failure.
is(half_of($subscriber), half_of($publisher), 'what the publisher has written is on the subscriber');
done_testing();
