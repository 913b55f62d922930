#!/usr/bin/perl
# make bench-slots: what keeping 100 failover slots costs, ours against the way
# of existing tools on the same servers, alternately, and what each loses.
#
# The peer, called "advance" below, is what one can do without server code
# before PostgreSQL 17: the slots' state files are copied to the stopped standby,
# then each cycle compares positions and calls pg_replication_slot_advance there,
# which decodes all WAL in between.  For that the standby needs
# hot_standby_feedback and slots of its own to be kept by hand.
#
# SIZE=small (default): 100 MB of WAL; SIZE=full: 100, 250 and 1000 MB.
# REPEATS=n (3).  PEER_MB=n: above n MB only ours is measured, since the peer
# takes many minutes there; its columns are then empty.
# Needs nothing but another PG_CONFIG for another server.  Prints a table, and
# writes bench/results/slots-VERSION-SIZE.json and .svg.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Bench;
use File::Basename ();
use Tandem::Test;
use Test::More;
use Time::HiRes qw(time);

my $size = $ENV{SIZE} || 'small';
my @volumes = $size eq 'full' ? (100, 250, 1000) : (100);
my $repeats = $ENV{REPEATS} || 3;
my $peer_mb = $ENV{PEER_MB} // 1000;
my $nslots = 100;
my $screen = Test::More->builder->output;

my $conf = q{
fsync = on
log_statement = none
max_replication_slots = 130
max_wal_senders = 20
max_connections = 60
max_worker_processes = 30
max_wal_size = 8GB
checkpoint_timeout = 1h
shared_buffers = 128MB
autovacuum = off
};

# ---- Servers ------------------------------------------------------------------

my ($primary, $ours, $peer, %slots_of, $layout);

# Primary, one standby for each way, and the slots spread over databases.
sub set_up
{
	my ($name, $ndatabases) = @_;

	$layout = $name;
	$primary = Tandem::Node->new_primary("primary_$name", conf => $conf);
	%slots_of = ();
	for my $d (1 .. $ndatabases)
	{
		my $database = $ndatabases == 1 ? 'postgres' : "db$d";
		$primary->query("CREATE DATABASE $database") unless $database eq 'postgres';
		$slots_of{$database} =
		  [ map { sprintf 's%03d', ($d - 1) * $nslots / $ndatabases + $_ } 1 .. $nslots / $ndatabases ];
	}
	$primary->query('CREATE TABLE filler (line text)');
	# cycles when we ask for one
	$ours = $primary->new_standby("ours_$name", conf => 'tandem.sync_slots = off');
	$peer = $primary->new_standby("peer_$name",
		conf => "shared_preload_libraries = ''\nhot_standby_feedback = on");
	for my $database (sort keys %slots_of)
	{
		$primary->query(
			"SELECT pg_create_logical_replication_slot(s, 'test_decoding')
			FROM unnest(ARRAY['" . join("','", @{ $slots_of{$database} }) . "']) s", $database);
	}
	# slots as consumers that work have them: moved past their creation
	move_all() for 1 .. 2;
	settle();
	copy_state_files();
	return;
}

sub tear_down
{
	for my $node ($ours, $peer, $primary)
	{
		$node->stop('fast');
		$node->clean_node;
	}
	return;
}

sub settle
{
	$primary->wait_replayed($_) for $ours, $peer;
	$_->query('CHECKPOINT') for $ours, $peer;
	return;
}

# Megabytes of WAL from rows of a kilobyte.
sub write_wal
{
	my ($megabytes) = @_;
	my $end = $primary->query("SELECT pg_current_wal_insert_lsn() + $megabytes * 1024 * 1024::numeric");
	while ($primary->query("SELECT pg_current_wal_insert_lsn() < '$end'") eq 't')
	{
		my $rows = $megabytes < 10 ? 400 : 8000;
		$primary->query("INSERT INTO filler SELECT repeat(md5(i::text), 31) FROM generate_series(1, $rows) i;
			TRUNCATE filler");
	}
	return;
}

sub advance_on
{
	my ($node, $database, $targets) = @_;
	$node->query(
		"SELECT count(pg_replication_slot_advance(s, l::pg_lsn)) FROM (VALUES "
		  . join(', ', map { "('$_', '$targets->{$_}')" } sort keys %$targets)
		  . ') AS t(s, l)', $database);
	return;
}

# What a hundred consumers do: all slots to the end of WAL, their restart_lsn too.
sub move_all
{
	for (1 .. 2)
	{
		$primary->log_standby_snapshot;
		my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
		advance_on($primary, $_, { map { $_ => $end } @{ $slots_of{$_} } })
		  for sort keys %slots_of;
	}
	return;
}

# The same with each slot at a place of its own, evenly spread over the volume.
sub write_and_spread
{
	my ($megabytes) = @_;
	my %database_of;
	for my $database (keys %slots_of) { $database_of{$_} = $database for @{ $slots_of{$database} } }
	for my $slot (sort keys %database_of)
	{
		write_wal($megabytes / $nslots);
		for (1 .. 2)
		{
			$primary->log_standby_snapshot;
			advance_on($primary, $database_of{$slot},
				{ $slot => $primary->query('SELECT pg_current_wal_flush_lsn()') });
		}
	}
	return;
}

# ---- The two ways -------------------------------------------------------------

# One cycle of ours.  Seconds on the clock, and what the worker says of it.
sub cycle_ours
{
	my $start = time;
	my $ready = $ours->query(q{SELECT count(*) FILTER (WHERE state = 'ready') FROM tandem.sync_slots()});
	my $seconds = time - $start;
	my ($cycle, $cpu, $bytes, $saved, $lag) = split /\|/, $ours->query(
		'SELECT cycle_ms, cycle_cpu_ms, bytes_sent + bytes_received, slots_saved, restart_lag FROM tandem.sync_status');
	return (ms => 1000 * $seconds, cycle_ms => $cycle, cpu_ms => $cpu, bytes => $bytes,
		saved => $saved, restart_lag => $lag, ready => $ready);
}

# One cycle of the peer: read positions there and here, advance what differs.
sub cycle_peer
{
	my $start = time;
	my $query = q{SELECT slot_name, database, confirmed_flush_lsn FROM pg_replication_slots
		WHERE slot_type = 'logical'};
	my %here = map { my @r = split /\|/; $r[0] => $r[2] } split /\n/, $peer->query($query);
	my %targets;
	for (split /\n/, $primary->query($query))
	{
		my ($slot, $database, $lsn) = split /\|/;
		$targets{$database}{$slot} = $lsn if $here{$slot} && $here{$slot} ne $lsn;
	}
	advance_on($peer, $_, $targets{$_}) for sort keys %targets;
	return (ms => 1000 * (time - $start));
}

# The peer's first sync: no slot can be made on a standby before 16, so its files
# are copied while it is down.
sub copy_state_files
{
	my $start = time;
	$peer->stop('fast');
	for my $slot (map { @$_ } values %slots_of)
	{
		my ($from, $to) = map { $_->data_dir . "/pg_replslot/$slot" } $primary, $peer;
		mkdir $to;
		system('cp', "$from/state", "$to/state") == 0 or die "cp $from/state";
	}
	system('sync', '-f', $peer->data_dir);
	$peer->start;
	return (ms => 1000 * (time - $start));
}

# Everything of ours gone from the standby, for another first sync.
sub forget_ours
{
	$primary->set('tandem.failover_slots' => 'none_at_all');
	cycle_ours() for 1 .. 2;
	my $left = $ours->query(q{SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'});
	die "the standby keeps $left slots" unless $left == 0;
	$primary->set('tandem.failover_slots' => undef);
	return;
}

# ---- Measuring ----------------------------------------------------------------

my (@results, %row);

sub record
{
	my ($case, $way, %figures) = @_;
	push @{ $row{$case}{$way} }, \%figures;
	return;
}

# Runs both ways, in the order of the repeat's number, after what prepare does.
sub alternate
{
	my ($case, $repeat, %ways) = @_;
	my @ways = sort keys %ways;
	@ways = reverse @ways if $repeat % 2;
	record($case, $_, $ways{$_}->()) for @ways;
	return;
}

# The ways that are measured at a volume.
sub both_up_to
{
	my ($volume) = @_;
	return (ours => \&cycle_ours, $volume > $peer_mb ? () : (advance => \&cycle_peer));
}

sub finish
{
	my ($case) = @_;
	my %result = (layout => $layout, case => $case);
	for my $way (keys %{ $row{$case} })
	{
		my @runs = @{ $row{$case}{$way} };
		my @ms = map { $_->{ms} } @runs;
		$result{$way} = {
			median => middle(@ms), min => (sort { $a <=> $b } @ms)[0], max => (sort { $b <=> $a } @ms)[0],
			runs => \@runs };
		for my $figure (qw(cycle_ms cpu_ms bytes saved restart_lag ready))
		{
			my @values = grep { defined && /\d/ } map { $_->{$figure} } @runs;
			$result{$way}{$figure} = middle(@values) if @values;
		}
	}
	$result{ratio} = $result{ours}{median} / $result{advance}{median} if $result{advance};
	push @results, \%result;
	%row = ();
	my ($ours_ms, $peer_ms) = map {
		my $r = $result{$_};
		$r ? sprintf('%.1f (%.1f-%.1f)', @{$r}{qw(median min max)}) : '-'
	} qw(ours advance);
	print $screen sprintf "%-6s %-24s %-24s %-26s %8s %7.1f %9d %5d\n",
	  $layout, $case, $ours_ms, $peer_ms,
	  defined $result{ratio} ? sprintf('%.3f', $result{ratio}) : '-',
	  @{ $result{ours} }{qw(cpu_ms bytes ready)};
	return;
}

sub measure
{
	for my $repeat (1 .. $repeats)
	{
		forget_ours() if $ours->query(
			q{SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'}) > 0;
		alternate('initial', $repeat, ours => \&cycle_ours, advance => \&copy_state_files);
	}
	finish('initial');
	# both hold all slots from here on
	until_ready();
	cycle_peer();

	for my $repeat (1 .. 2 * $repeats)
	{
		alternate('idle', $repeat, ours => \&cycle_ours, advance => \&cycle_peer);
	}
	finish('idle');

	for my $volume (@volumes)
	{
		for my $repeat (1 .. $repeats)
		{
			write_wal($volume);
			move_all();
			settle();
			alternate("$volume MB, one position", $repeat, both_up_to($volume));
		}
		finish("$volume MB, one position");
	}
	for my $volume (@volumes)
	{
		for my $repeat (1 .. $repeats)
		{
			write_and_spread($volume);
			settle();
			alternate("$volume MB, distinct", $repeat, both_up_to($volume));
		}
		finish("$volume MB, distinct");
	}
	return;
}

sub until_ready
{
	poll_for(sub { my %c = cycle_ours(); $c{ready} == $nslots }, 'all slots to be ready', 120);
	return;
}

# ---- What is lost -------------------------------------------------------------

# Overlapping transactions, as in test/t/010_overlap.pl, and a standby that first
# syncs the slot while they run.  Committed rows of those that the consumer gets
# neither before nor after the failover.
sub rows_lost
{
	my ($way) = @_;
	my $old = Tandem::Node->new_primary("lost_$way", conf => $conf);
	my $new = $old->new_standby("lost_standby_$way", conf => $way eq 'ours'
		? 'tandem.sync_slots = off' : "shared_preload_libraries = ''\nhot_standby_feedback = on");
	$old->query('CREATE TABLE t (id int PRIMARY KEY)');
	$old->query(q{SELECT pg_create_logical_replication_slot('consumer', 'test_decoding')});
	$old->advance_slot('consumer');
	$old->wait_replayed($new);

	($primary, $ours, $peer, %slots_of) = ($old, $new, $new, postgres => ['consumer']);
	my $read = q{SELECT data FROM pg_logical_slot_get_changes('consumer', NULL, NULL)};

	my $a = $old->background_psql('postgres');
	my $b = $old->background_psql('postgres');
	$a->query_safe('BEGIN; INSERT INTO t VALUES (1)');
	$old->query('CHECKPOINT');
	$b->query_safe('BEGIN; INSERT INTO t SELECT generate_series(2, 11)');
	$old->query('CHECKPOINT');
	$a->query_safe('COMMIT');
	$a->quit;
	$old->query('CHECKPOINT');
	my $seen = $old->query($read);
	$old->query('CHECKPOINT');
	$seen .= $old->query($read);
	$old->wait_replayed($new);
	# each way meets the slot for the first time here
	if ($way eq 'ours')
	{
		poll_for(sub { my %c = cycle_ours(); $c{ready} == 1 }, 'the slot to be ready');
	}
	else
	{
		# to advance it now would block until B ends
		copy_state_files();
	}
	$b->query_safe('COMMIT');
	$b->quit;
	$old->query('INSERT INTO t VALUES (12)');
	$old->wait_replayed($new);
	$way eq 'ours' ? cycle_ours() : cycle_peer();

	$old->kill9_all;
	$new->promote;
	$seen .= $new->query($read);
	my $lost = grep { $seen !~ /\[integer\]:$_\b/ } 1 .. 12;
	$new->stop('fast');
	$_->clean_node for $new, $old;
	return $lost;
}

# ---- Telling ------------------------------------------------------------------

sub draw
{
	my ($name) = @_;
	return unless -x '/usr/bin/gnuplot';
	my $data = "$ENV{TESTDIR}/slots.dat";
	open my $file, '>', $data or die "$data: $!";
	for my $r (@results)
	{
		my $label = "$r->{case}\\n$r->{layout}";
		print $file join(' ', qq{"$label"},
			map { my $w = $r->{$_}; $w ? @{$w}{qw(median min max)} : ('?') x 3 } qw(ours advance)), "\n";
	}
	close $file;
	open my $gnuplot, '|-', 'gnuplot' or die "gnuplot: $!";
	print $gnuplot <<"END";
set terminal svg size 1000,520 noenhanced font "sans-serif,12" background "white"
set output "$name"
set title "One cycle for $nslots failover slots: median, with minimum and maximum"
set datafile missing "?"
set style data histogram
set style histogram errorbars gap 1 lw 1.5
set style fill solid 0.9 noborder
set logscale y
set ylabel "milliseconds (logarithmic)"
set grid ytics lc rgb "#dddddd"
set key outside top center horizontal
set xtics rotate by -30 font ",10"
set bmargin 7
plot "$data" using 2:3:4:xtic(1) title "pg_tandem" lc rgb "#1b6ca8", \\
     "" using 5:6:7 title "positions copied, pg_replication_slot_advance" lc rgb "#d08c3e"
END
	close $gnuplot or die "gnuplot failed";
	return;
}

my $machine = machine();
print $screen machine_line($machine) . ", SIZE=$size, $repeats repeats\n\n";
print $screen sprintf "%-6s %-24s %-24s %-26s %8s %7s %9s %5s\n", 'slots', 'case',
  'ours ms (min-max)', 'advance ms (min-max)', 'ratio', 'CPU ms', 'bytes', 'ready';
for my $setup ([ '1x100', 1 ], [ '20x5', 20 ])
{
	set_up(@$setup);
	measure();
	tear_down();
}
my %lost = map { $_ => rows_lost($_) } qw(ours advance);
print $screen "\noverlapping transactions, committed rows lost of 12: ours $lost{ours}, advance $lost{advance}\n";

my $name = results_name('slots', $machine, $size);
write_results($name,
	{ machine => $machine, size => $size, repeats => $repeats, results => \@results, rows_lost => \%lost });
draw("$name.svg");
print $screen "\nwritten: bench/results/" . File::Basename::basename($name) . ".json, .svg\n";

# A bench has no timed assertion, but losing rows is a failure.
is($lost{ours}, 0, 'no row lost');
done_testing();
