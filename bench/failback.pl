#!/usr/bin/perl
# make bench-failback: what the guard costs while nothing happens, and how long
# an old primary takes to come back, by "tandem rejoin", pg_rewind and
# pg_basebackup.
#
# The guard: pgbench with a synchronous and with an asynchronous standby, which
# is the failback standby in both cases, in each of the four modes; and the time
# of pgbench -i.  Modes alternate within a repeat, each repeat in the opposite
# order; a ratio is a mode's figure over that of "none" in the same repeat.
#
# Coming back: a primary is killed while its standby lags under load; the standby
# is promoted and written to.  Each way then works on its own copy of the same
# data directory.  Starting the server and catching up, which all need, is timed
# apart.
#
# SIZE=small (default) or full; REPEATS=n; SECONDS_EACH=n of pgbench; PARTS="guard
# rejoin"; VOLUMES="100 1000" in MB.  Writes bench/results/failback-VERSION-SIZE.json and .svg.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Bench;
use PostgreSQL::Test::Utils qw(append_to_file slurp_file);
use File::Basename ();
use IPC::Run ();
use JSON::PP;
use Tandem::Pages;
use Tandem::Test;
use Test::More;
use Time::HiRes qw(time);

my $size = $ENV{SIZE} || 'small';
my $full = $size eq 'full';
my $repeats = $ENV{REPEATS} || 5;
my $seconds = $ENV{SECONDS_EACH} || ($full ? 60 : 8);
my $parts = $ENV{PARTS} || 'guard rejoin';
my $clients = 8;
my $scale = $full ? 100 : 20;
my $load_scale = $full ? 200 : 40;
my @volumes = $ENV{VOLUMES} ? split / /, $ENV{VOLUMES} : $full ? (100, 1000, 4000) : (100, 1000);
my @modes = qw(none commit data_flush all);
my $screen = Test::More->builder->output;

# Little memory: pages are written all the time, by backends as well.
my $conf = q{
fsync = on
wal_log_hints = on
log_statement = none
log_checkpoints = off
shared_buffers = 64MB
max_wal_size = 1GB
wal_keep_size = 4GB
checkpoint_timeout = 60s
autovacuum = on
tandem.sync_slots = off
tandem.failback_standbys = 'standby'
tandem.failback_timeout = 30s
};

# Runs a program; its output, or death.
sub run_program
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err)
	  or die "@command failed: $err$out";
	return $out . $err;
}

# ---- The guard ------------------------------------------------------------------

sub set_mode
{
	my ($primary, $mode) = @_;
	$primary->set('tandem.synchronous_transfer' => $mode);
	poll_for(
		sub {
			$primary->query('SELECT state FROM tandem.failback') eq ($mode eq 'none' ? 'off' : 'armed');
		},
		"the guard in mode $mode");
	return;
}

sub tps
{
	my ($primary) = @_;
	$primary->query('CHECKPOINT');
	my $out = run_program('pgbench', '-n', '-c', $clients, '-j', 2, '-T', $seconds,
		'-h', $primary->host, '-p', $primary->port, 'bench');
	my ($tps) = $out =~ /tps = ([\d.]+)/ or die "no TPS in $out";
	return $tps;
}

sub load_seconds
{
	my ($primary) = @_;
	$primary->query('CHECKPOINT');
	my $start = time;
	run_program('pgbench', '-i', '-q', '-s', $load_scale,
		'-h', $primary->host, '-p', $primary->port, 'load');
	return time - $start;
}

# All modes in one repeat, and in the next one backwards.
sub alternate
{
	my ($primary, $measure, $n) = @_;
	my %runs;
	for my $repeat (1 .. $n)
	{
		my %figure;
		for my $mode ($repeat % 2 ? @modes : reverse @modes)
		{
			set_mode($primary, $mode);
			$figure{$mode} = $measure->($primary);
		}
		for my $mode (@modes)
		{
			push @{ $runs{$mode}{figure} }, $figure{$mode};
			push @{ $runs{$mode}{ratio} }, $figure{$mode} / $figure{none};
		}
	}
	return { map { my $m = $_; ($m => { map { $_ => summary(@{ $runs{$m}{$_} }) } qw(figure ratio) }) } @modes };
}

sub bench_guard
{
	my @results;
	my $primary = Tandem::Node->new_primary('guarded', conf => $conf);
	my $standby = $primary->new_standby('standby');
	$primary->query('CREATE DATABASE bench');
	$primary->query('CREATE DATABASE load');
	run_program('pgbench', '-i', '-q', '-s', $scale, '-h', $primary->host, '-p', $primary->port, 'bench');
	tps($primary);				# warm

	print $screen "\npgbench -c $clients, scale $scale, $seconds s each, $repeats repeats; pgbench -i, scale $load_scale\n";
	print $screen sprintf "%-6s %-11s %-26s %-22s %-20s %-22s\n", '', 'mode', 'TPS (min-max)', 'ratio to none',
	  'load s (min-max)', 'ratio to none';
	for my $replication (qw(sync async))
	{
		$primary->set(synchronous_standby_names => $replication eq 'sync' ? 'standby' : '');
		my $tps = alternate($primary, \&tps, $repeats);
		my $load = alternate($primary, \&load_seconds, $repeats);
		for my $mode (@modes)
		{
			print $screen sprintf "%-6s %-11s %-26s %-22s %-20s %-22s\n", $replication, $mode,
			  spread($tps->{$mode}{figure}, '%.0f'), spread($tps->{$mode}{ratio}, '%.3f'),
			  spread($load->{$mode}{figure}, '%.2f'), spread($load->{$mode}{ratio}, '%.3f');
			push @results, { replication => $replication, mode => $mode, tps => $tps->{$mode}, load => $load->{$mode} };
		}
	}
	my ($waits, $degradations) = split /\|/, $primary->query('SELECT data_waits, degradations FROM tandem.failback');
	print $screen "the guard waited $waits times and degraded $degradations times\n";
	$_->stop('fast') for $standby, $primary;
	$_->clean_node for $standby, $primary;
	return \@results;
}

# ---- Coming back -------------------------------------------------------------------

# A crashed primary and its promoted standby.  Returns both.
sub crash
{
	my ($volume, $guard) = @_;
	my $name = "${volume}_$guard";
	my $old = Tandem::Node->new_primary("old_$name", conf => $conf);
	my $new = $old->new_standby("new_$name", slot => 'standby');
	my @to = ('-h', $old->host, '-p', $old->port, 'postgres');

	run_program('pgbench', '-i', '-q', '-s', int($volume / 15) || 1, @to);
	$old->query('CHECKPOINT');
	$old->wait_replayed($new);
	set_mode($old, $guard eq 'on' ? 'data_flush' : 'none');
	run_program('pgbench', '-n', '-c', $clients, '-j', 2, '-T', 5, @to);

	# the standby falls behind, the primary works on, then dies
	my $load = IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-j', 2, '-T', 600, @to ],
		'<', \undef, '&>', '/dev/null');
	my $receiver = stall($new->pid_of(qr/walreceiver/));
	my $lag = $old->query('SELECT pg_current_wal_insert_lsn()');
	if ($guard eq 'on')
	{
		poll_for(sub { $old->query('SELECT waiting > 0 FROM tandem.failback') eq 't' }, 'somebody to wait');
	}
	else
	{
		poll_for(sub { $old->query("SELECT pg_current_wal_insert_lsn() - '$lag' > 30000000") eq 't' },
			'the standby to lag');
		$old->query('CHECKPOINT');
	}
	my $lock_file = slurp_file($old->data_dir . '/postmaster.pid');
	$old->kill9_all;
	$load->finish;
	# It stays after a crash.  Where the dead are not reaped the test library
	# removes it, since their process ids are taken for living.
	$lock_file =~ s/^\d+/4194303/;
	append_to_file($old->data_dir . '/postmaster.pid', $lock_file) if !-e $old->data_dir . '/postmaster.pid';
	resume($receiver);
	$new->promote;
	run_program('pgbench', '-n', '-c', $clients, '-j', 2, '-T', 5, '-h', $new->host, '-p', $new->port, 'postgres');
	$new->query('CHECKPOINT');
	return ($old, $new);
}

sub copy_dir
{
	my ($from, $to) = @_;
	system('cp', '-a', '--reflink=auto', $from, $to) == 0 or die "cp $from";
	system('sync', '-f', $to);
	return;
}

# Starts the server of a directory and waits until it has what the primary has.
sub start_and_catch_up
{
	my ($new, $dir) = @_;
	my $start = time;
	my $goal = $new->query('SELECT pg_current_wal_flush_lsn()');
	my $node = $new->{bench_old};
	# pg_rewind and pg_basebackup bring the new primary's configuration
	append_to_file("$dir/postgresql.conf",
		"port = " . $node->port . "\nunix_socket_directories = '" . $node->host . "'\nprimary_slot_name = ''\n");
	run_program('pg_ctl', 'start', '-w', '-s', '-D', $dir, '-l', "$dir.log");
	poll_for(
		sub {
			my $at = eval { $node->query("SELECT coalesce(pg_last_wal_replay_lsn() >= '$goal', false)") };
			defined $at && $at eq 't';
		},
		'the node to catch up', 600);
	my $seconds = time - $start;
	run_program('pg_ctl', 'stop', '-w', '-s', '-m', 'immediate', '-D', $dir);
	return $seconds;
}

my %ways = (
	rejoin => sub {
		my ($old, $new, $dir) = @_;
		copy_dir($old->data_dir, $dir);
		my $start = time;
		my $out = run_program('tandem', 'rejoin', '-D', $dir, '--source', $new->connstr, '--slot', 'back',
			'--no-start', '--json');
		my $s = time - $start;
		my $result = decode_json($out =~ s/^.*?(?=\{)//sr);
		return (seconds => $s, pages => $result->{done}{pages_copied}, bytes => $result->{done}{bytes_fetched},
			healed => $result->{plan}{pages_healed}, wal => $result->{wal_bytes_read});
	},
	pg_rewind => sub {
		my ($old, $new, $dir) = @_;
		copy_dir($old->data_dir, $dir);
		my $start = time;
		my $out = run_program('pg_rewind', '-D', $dir, '--source-server', $new->connstr('postgres'), '-R', '--progress');
		my $s = time - $start;
		my ($mb) = $out =~ /need to copy (\d+) MB/;
		return (seconds => $s, bytes => ($mb // 0) * 1024 * 1024);
	},
	pg_basebackup => sub {
		my ($old, $new, $dir) = @_;
		my $start = time;
		run_program('pg_basebackup', '-D', $dir, '-d', $new->connstr('postgres'), '-R', '-X', 'stream', '-c', 'fast');
		my $s = time - $start;
		my ($kb) = run_program('du', '-sk', $dir) =~ /^(\d+)/;
		return (seconds => $s, bytes => $kb * 1024);
	});

sub bench_rejoin
{
	my @results;
	my $n = $repeats > 3 ? 3 : $repeats;
	print $screen "\ncoming back, $n repeats\n";
	print $screen sprintf "%-8s %-6s %-14s %-22s %-22s %9s %9s\n", 'MB', 'guard', 'way', 'seconds (min-max)',
	  'start, catch up s', 'pages', 'MB moved';
	for my $volume (@volumes)
	{
		for my $guard (qw(on off))
		{
			my ($old, $new) = crash($volume, $guard);
			my $scan = scan_pages($old->data_dir, fork_point($new), $new->data_dir);
			$new->{bench_old} = $old;
			my %runs;
			for my $repeat (1 .. $n)
			{
				my @order = sort keys %ways;
				for my $way ($repeat % 2 ? @order : reverse @order)
				{
					my $dir = $old->basedir . "/copy_${way}_$repeat";
					my %figures = $ways{$way}->($old, $new, $dir);
					$figures{start} = start_and_catch_up($new, $dir);
					push @{ $runs{$way} }, \%figures;
					File::Path::rmtree($dir);
					$new->query("SELECT pg_drop_replication_slot('back') FROM pg_replication_slots WHERE slot_name = 'back' AND NOT active");
				}
			}
			for my $way (qw(rejoin pg_rewind pg_basebackup))
			{
				my @runs = @{ $runs{$way} };
				my %result = (
					volume_mb => $volume, guard => $guard, way => $way, ahead => $scan->{ahead},
					seconds => summary(map { $_->{seconds} } @runs), start => summary(map { $_->{start} } @runs),
					ratio_to_rejoin => summary(map { $runs[$_]{seconds} / $runs{rejoin}[$_]{seconds} } 0 .. $#runs),
					bytes => middle(map { $_->{bytes} } @runs),
					defined $runs[0]{pages} ? (pages => middle(map { $_->{pages} } @runs), healed => $runs[0]{healed}) : ());
				push @results, \%result;
				print $screen sprintf "%-8s %-6s %-14s %-22s %-22s %9s %9.1f\n", $volume, $guard, $way,
				  spread($result{seconds}, '%.2f'), spread($result{start}, '%.2f'), $result{pages} // '-',
				  $result{bytes} / 1048576;
			}
			print $screen "         $scan->{ahead} of $scan->{pages} pages were ahead of the fork\n";
			$new->stop('immediate');
			$_->clean_node for $old, $new;
		}
	}
	return \@results;
}

# ---- Telling -----------------------------------------------------------------------

sub draw
{
	my ($name, $results) = @_;
	return unless -x '/usr/bin/gnuplot' && @$results;
	my $data = "$ENV{TESTDIR}/failback.dat";
	open my $file, '>', $data or die "$data: $!";
	my %cell = map { ("$_->{volume_mb} $_->{guard} $_->{way}" => $_->{seconds}) } @$results;
	for my $volume (@volumes)
	{
		for my $guard (qw(on off))
		{
			print $file join(' ', qq{"$volume MB\\nguard $guard"},
				map { @{ $cell{"$volume $guard $_"} }{qw(median min max)} } qw(rejoin pg_rewind pg_basebackup)), "\n";
		}
	}
	close $file;
	open my $gnuplot, '|-', 'gnuplot' or die "gnuplot: $!";
	print $gnuplot <<"END";
set terminal svg size 900,480 noenhanced font "sans-serif,12" background "white"
set output "$name"
set title "Bringing an old primary back, before its start: median, with minimum and maximum"
set style data histogram
set style histogram errorbars gap 1 lw 1.5
set style fill solid 0.9 noborder
set logscale y
set ylabel "seconds (logarithmic)"
set grid ytics lc rgb "#dddddd"
set key outside top center horizontal
set bmargin 4
plot "$data" using 2:3:4:xtic(1) title "tandem rejoin" lc rgb "#1b6ca8", \\
     "" using 5:6:7 title "pg_rewind" lc rgb "#d08c3e", \\
     "" using 8:9:10 title "pg_basebackup" lc rgb "#8a8a8a"
END
	close $gnuplot or die "gnuplot failed";
	return;
}

my $machine = machine();
print $screen machine_line($machine) . ", SIZE=$size\n";
my $guard = $parts =~ /guard/ ? bench_guard() : [];
my $rejoin = $parts =~ /rejoin/ ? bench_rejoin() : [];

my $name = results_name('failback', $machine, $size);
write_results($name, { machine => $machine, size => $size, repeats => $repeats, seconds => $seconds,
	guard => $guard, rejoin => $rejoin });
draw("$name.svg", $rejoin);
print $screen "\nwritten: bench/results/" . File::Basename::basename($name) . ".json, .svg\n";

# A bench has no timed assertion, but with the guard no page may be copied.
is($_->{pages}, 0, "$_->{volume_mb} MB with the guard: no page copied")
  for grep { $_->{guard} eq 'on' && $_->{way} eq 'rejoin' } @$rejoin;
ok(1, 'measured') if !@$rejoin;
done_testing();
