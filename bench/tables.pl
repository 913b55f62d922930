#!/usr/bin/perl
# make bench-tables: what the initial copy of a subscription's tables costs, ours
# and core's on the same servers, alternately, beside what COPY piped by hand
# can do at best; then how fast changes are applied, ours and core's.
#
# The clock runs from ALTER SUBSCRIPTION ... ENABLE (core) or tandem.adopt (ours)
# until the last table is ready; the subscription and its slot are made before.
# "piped" is the limit of the machine: psql into psql, two at a time, for large
# tables in binary and frozen, with the indexes built afterwards; for one large
# table its two halves.  It has no stream of changes to join.
#
# A row is KIND:COUNT[+LOAD][*RUNS].  KIND is empty, or a table's size such as 10rows,
# 10MB, 1GB; with primary key and one more index.  LOAD is "pgbench" (TPC-B at a
# fixed rate beside, and updates of the copied rows) or "slow" (4 clients whose
# writing transactions take 0.2 s).  RUNS is how often, if not REPEATS.
#
# After each run the tables are compared by checksum, pg_amcheck looks at every
# heap and index, and indexes and constraints are counted.
#
# SIZE=small (default, minutes) or full; ROWS="empty:100 10MB:10+pgbench";
# WAYS="core ours piped"; REPEATS=n (3); STREAMS="tpcb insert update delete" or
# "none"; LIMIT=seconds for one copy.  Writes bench/results/tables-VERSION-SIZE.json
# and .svg.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Bench;
use File::Basename ();
use IPC::Run ();
use Tandem::Test;
use Test::More;
use Time::HiRes qw(time);

my $size = $ENV{SIZE} || 'small';
my $full = $size eq 'full';
my @rows = split / /, $ENV{ROWS} // ($full
	? 'empty:10 empty:100 empty:1000 empty:10000*1 empty:200+slow 10rows:100 10MB:10 10MB:100 100MB:10 1GB:1 '
	  . 'empty:100+pgbench 10rows:100+pgbench 10MB:10+pgbench 100MB:10+pgbench 1GB:1+pgbench'
	: 'empty:10 empty:100 empty:1000 empty:50+slow 10rows:100 10MB:10 100MB:2 empty:100+pgbench 10MB:10+pgbench');
my @streams = grep { $_ ne 'none' } split / /, $ENV{STREAMS} // 'tpcb insert update delete';
my $repeats = $ENV{REPEATS} || 3;
my $limit = $ENV{LIMIT} || 1800;
my $workers = 2;
my $stream_rows = $full ? 1_000_000 : 100_000;
my $stream_tpcb = $full ? 160_000 : 20_000;
my $rate = 200;					# transactions a second of "+pgbench"
my $screen = Test::More->builder->output;
my $machine = machine();
my $name = results_name('tables', $machine, $size);

# No run pays for new WAL segments, and core starts its workers at once: its
# launcher starts one each wal_retrieve_retry_interval, which is 5 s.
my $conf = qq{
fsync = on
log_statement = none
log_min_messages = warning
max_connections = 60
max_wal_senders = 20
max_replication_slots = 20
max_worker_processes = 20
max_logical_replication_workers = 10
max_sync_workers_per_subscription = $workers
max_locks_per_transaction = 1024
max_wal_size = 8GB
min_wal_size = 3GB
wal_retrieve_retry_interval = 100ms
checkpoint_timeout = 1h
shared_buffers = 256MB
autovacuum = off
};

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => $conf);
my $subscriber = Tandem::Node->new_primary('subscriber', conf => $conf);
my $adoptable = $subscriber->query(q{SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
	WHERE nspname = 'tandem' AND proname = 'adopt'}) > 0;
my @ways = grep { $_ ne 'ours' || $adoptable } split / /, $ENV{WAYS} // 'core ours piped';
# a version that applies changes, but copies no tables
my $copies = $subscriber->query(q{SELECT to_regclass('tandem.tables') IS NOT NULL}) eq 't';

# ---- Programs --------------------------------------------------------------------

sub psql_options
{
	my ($node, $database) = @_;
	return ('-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database));
}

# A script of several statements, each in a transaction of its own, in one session.
sub script
{
	my ($node, $database, $sql) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', psql_options($node, $database) ], '<', \$sql, '>', \$out, '2>', \$err)
	  or die "$sql\nfailed: $err";
	chomp $out;
	return $out;
}

sub run_program
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err) or die "@command failed: $err$out";
	return $out . $err;
}

# Seconds from before a statement until a condition holds, by one session's
# clock, so that no start of a program counts.
sub seconds_until
{
	my ($node, $database, $statement, $condition) = @_;
	my $out = script($node, $database, qq{
		SELECT clock_timestamp() AS begun \\gset
		\\o /dev/null
		$statement;
		\\o
		DO \$\$
		DECLARE
			deadline timestamptz := clock_timestamp() + interval '$limit s';
		BEGIN
			WHILE NOT ($condition) LOOP
				IF clock_timestamp() > deadline THEN
					RAISE 'not done within $limit s';
				END IF;
				PERFORM pg_sleep(0.01);
			END LOOP;
		END \$\$;
		SELECT extract(epoch FROM clock_timestamp() - :'begun'::timestamptz);});
	return $out;
}

# ---- Tables ----------------------------------------------------------------------

my %bytes_of = (kB => 1024, MB => 1024**2, GB => 1024**3);
my $row_bytes = 126;			# of the heap, a row below

# What a row's name says.
sub parse_row
{
	my ($row) = @_;
	my ($kind, $count, $load, $runs) = $row =~ /^(\w+):(\d+)(?:\+(pgbench|slow))?(?:\*([1-9]\d*))?$/
	  or die "row \"$row\" is not KIND:COUNT[+LOAD][*RUNS]\n";
	my $n =
	    $kind eq 'empty' ? 0
	  : $kind =~ /^(\d+)rows$/ ? $1
	  : $kind =~ /^(\d+)([kMG]B)$/ ? int($1 * $bytes_of{$2} / $row_bytes)
	  : die "\"$kind\" is not a kind of table\n";
	return {
		name => $row =~ s/\*.*//r,
		count => $count,
		rows => $n,
		load => $load // '',
		runs => $runs // $repeats
	};
}

# The publisher's tables bench.t1 and so on, filled; the subscriber's, empty, in a
# database that runs are copied from.
sub set_up
{
	my ($row) = @_;
	$publisher->query('CREATE DATABASE source');
	script($publisher, 'source', qq{
		CREATE SCHEMA bench;
		DO \$\$ BEGIN
			FOR i IN 1 .. $row->{count} LOOP
				EXECUTE format('CREATE TABLE bench.t%s (id bigint PRIMARY KEY, k int, v text)', i);
				EXECUTE format('CREATE INDEX ON bench.t%s (k)', i);
				IF i % 100 = 0 THEN
					COMMIT;
				END IF;
			END LOOP;
		END \$\$;
		CREATE TABLE outside (line text);
		CREATE PUBLICATION pub FOR TABLES IN SCHEMA bench;});
	script($publisher, 'source', qq{
		DO \$\$ BEGIN
			FOR i IN 1 .. $row->{count} LOOP
				EXECUTE format('INSERT INTO bench.t%s SELECT g, hashint4(g), md5(g::text) || md5((g + %s)::text)
					FROM generate_series(1, $row->{rows}) g', i, i);
				COMMIT;
			END LOOP;
		END \$\$;}) if $row->{rows};
	run_program('pgbench', '-i', '-q', '-s', 2, '-h', $publisher->host, '-p', $publisher->port, 'source')
	  if $row->{load} eq 'pgbench';
	script($publisher, 'source', 'VACUUM ANALYZE');

	$subscriber->query('CREATE DATABASE empty_tables');
	my $dump = $publisher->basedir . '/schema.sql';
	run_program('pg_dump', '-s', '-n', 'bench', '--no-publications', '-f', $dump, '-d', $publisher->connstr('source'));
	run_program('psql', psql_options($subscriber, 'empty_tables'), '-o', '/dev/null', '-f', $dump);
	script($subscriber, 'empty_tables', 'CREATE EXTENSION pg_tandem; CREATE EXTENSION amcheck');
	return;
}

sub tear_down
{
	$subscriber->query('DROP DATABASE empty_tables');
	$publisher->query('DROP DATABASE source');
	return;
}

sub start_load
{
	my ($row) = @_;
	return undef if !$row->{load};
	my @to = ('-h', $publisher->host, '-p', $publisher->port, 'source');
	my @command = ('pgbench', '-n', '-T', 100_000, '-c', 4);
	if ($row->{load} eq 'slow')
	{
		my $file = $publisher->basedir . '/slow.sql';
		write_file($file, "BEGIN; INSERT INTO outside VALUES ('x'); SELECT pg_sleep(0.2); COMMIT;\n");
		push @command, '-f', $file;
	}
	else
	{
		push @command, '-R', $rate, '-b', 'tpcb-like@4';
		if ($row->{rows})
		{
			my $file = $publisher->basedir . '/updates.sql';
			write_file($file, "\\set t random(1, $row->{count})\n\\set i random(1, $row->{rows})\n"
				  . "UPDATE bench.t:t SET v = 'changed ' || random() WHERE id = :i;\n");
			push @command, '-f', "$file\@1";
		}
	}
	local $ENV{PGAPPNAME} = 'load';
	my $run = IPC::Run::start([ @command, @to ], '<', \undef, '&>', '/dev/null');
	poll_for(sub { $publisher->query(q{SELECT count(*) >= 4 FROM pg_stat_activity WHERE application_name = 'load'}) eq 't' },
		'the load');
	return $run;
}

sub stop_load
{
	my ($run) = @_;
	return if !$run;
	$run->signal('INT');
	$run->finish;
	poll_for(sub { $publisher->query(q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'load'}) eq 't' },
		'the end of the load');
	return;
}

sub write_file
{
	my ($path, $text) = @_;
	unlink $path;
	append_to_file($path, $text);
	return;
}

# ---- Ways of copying -------------------------------------------------------------

sub subscribe_disabled
{
	my ($database, $publication) = @_;
	my $conninfo = $publisher->connstr('source');
	$conninfo =~ s/'/''/g;
	# under a load the slot waits for transactions to end, for both ways alike
	script($subscriber, $database,
		"CREATE SUBSCRIPTION $database CONNECTION '$conninfo' PUBLICATION $publication WITH (enabled = false)");
	return;
}

my $ready = q{NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r')};

my %copy = (
	core => sub {
		my ($database) = @_;
		return seconds_until($subscriber, $database, "ALTER SUBSCRIPTION $database ENABLE", $ready);
	},
	ours => sub {
		my ($database) = @_;
		return seconds_until($subscriber, $database, "SELECT tandem.adopt('$database', 'workers = $workers')", $ready);
	},
	piped => \&copy_piped);

# Two shells at work until both are done; seconds.
sub run_shells
{
	my (@scripts) = @_;
	my $start = time;
	my @runs = map { IPC::Run::start([ 'bash', '-euo', 'pipefail', '-c', $_ ], '<', \undef, '>', '/dev/null') } @scripts;
	$_->finish or die "a copy by hand failed\n" for @runs;
	return time - $start;
}

# psql for a shell: quoted, and nothing it finds in the environment counts.
sub psql_word
{
	my ($node, $database) = @_;
	my $conninfo = $node->connstr($database);
	$conninfo =~ s/'/'\\''/g;
	return "psql -XAtq -v ON_ERROR_STOP=1 -d '$conninfo'";
}

sub copy_piped
{
	my ($database, $row) = @_;
	my ($from, $to) = (psql_word($publisher, 'source'), psql_word($subscriber, $database));
	my @tables = map { "bench.t$_" } 1 .. $row->{count};
	my @shares = map { my $w = $_; [ grep { (/(\d+)$/)[0] % $workers == $w } @tables ] } 0 .. $workers - 1;

	if ($row->{rows} < 1000)
	{
		# one session there, one here: a script that the first one writes
		my @scripts;
		for my $w (0 .. $workers - 1)
		{
			my $file = $publisher->basedir . "/piped$w.sql";
			my ($sql, $n) = ("\\echo BEGIN;\n", 0);
			for my $table (@{ $shares[$w] })
			{
				$sql .= "\\echo 'COPY $table FROM STDIN;'\nCOPY $table TO STDOUT;\n\\echo '\\\\.'\n";
				$sql .= "\\echo 'COMMIT; BEGIN;'\n" if ++$n % 500 == 0;
			}
			write_file($file, $sql . "\\echo COMMIT;\n");
			push @scripts, "$from -f '$file' | $to -f -";
		}
		return run_shells(@scripts);
	}

	# a file of constraints and indexes for each table, which are built after it
	for my $table (@tables)
	{
		my $indexes = script($subscriber, $database, qq{
			SELECT pg_get_indexdef(indexrelid) || ';' FROM pg_index WHERE indrelid = '$table'::regclass ORDER BY indexrelid;
			SELECT 'ALTER TABLE $table ADD CONSTRAINT ' || conname || ' PRIMARY KEY USING INDEX ' || conname || ';'
			FROM pg_constraint WHERE conrelid = '$table'::regclass});
		write_file($publisher->basedir . "/$table.sql", "$indexes\n");
		script($subscriber, $database, qq{
			SELECT format('ALTER TABLE $table DROP CONSTRAINT %I;', conname)
			FROM pg_constraint WHERE conrelid = '$table'::regclass \\gexec
			SELECT format('DROP INDEX %s;', indexrelid::regclass) FROM pg_index WHERE indrelid = '$table'::regclass \\gexec});
	}
	my $folder = $publisher->basedir;
	if ($row->{count} > 1)
	{
		return run_shells(map {
			join '', map {
				"$from -c 'COPY $_ TO STDOUT (FORMAT binary)' | $to -c BEGIN -c 'TRUNCATE $_'"
				  . " -c 'COPY $_ FROM STDIN (FORMAT binary, FREEZE)' -f '$folder/$_.sql' -c COMMIT\n"
			} @$_
		} @shares);
	}
	my $half = int(script($publisher, 'source', q{SELECT pg_relation_size('bench.t1') / 8192}) / 2);
	my @indexes = split /\n/, slurp_file("$folder/bench.t1.sql");
	my $constraint = pop @indexes;
	my $seconds = run_shells(map {
		"$from -c \"COPY (SELECT * FROM bench.t1 WHERE ctid $_ '($half,0)') TO STDOUT (FORMAT binary)\""
		  . " | $to -c 'COPY bench.t1 FROM STDIN (FORMAT binary)'"
	} '<', '>=');
	$seconds += run_shells(map { "$to -c '$_'" } @indexes);
	return $seconds + run_shells("$to -c '$constraint'");
}

# ---- Was it right? ---------------------------------------------------------------

# Rows and checksum of each table.
sub contents
{
	my ($node, $database, @tables) = @_;
	return script($node, $database, join '', map {
		"SELECT '$_', count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM $_ t;\n"
	} @tables);
}

# Indexes and constraints, with their state.
sub structure
{
	my ($database) = @_;
	return script($subscriber, $database, q{
		SELECT 'indexes', count(*), count(*) FILTER (WHERE indisvalid AND indisready AND indislive)
		FROM pg_index i JOIN pg_class c ON c.oid = indrelid WHERE relnamespace = 'bench'::regnamespace;
		SELECT 'constraints', count(*), count(*) FILTER (WHERE convalidated)
		FROM pg_constraint WHERE connamespace = 'bench'::regnamespace});
}

sub caught_up
{
	my ($slot) = @_;
	my $lsn = $publisher->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { ($publisher->query(qq{SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots
		WHERE slot_name = '$slot'})) eq 't' }, "\"$slot\" to catch up", 300);
	return;
}

# Looks at a copy from all sides; what is wrong, or ''.
sub judge
{
	my ($way, $database, $row) = @_;
	my @wrong;
	my @tables = map { "bench.t$_" } 1 .. $row->{count};
	if ($way ne 'piped')
	{
		caught_up($database);
	}
	push @wrong, 'the tables differ'
	  if ($way ne 'piped' || !$row->{load})
	  && contents($publisher, 'source', @tables) ne contents($subscriber, $database, @tables);
	push @wrong, 'indexes or constraints differ' if structure($database) ne structure('empty_tables');
	my $amcheck = eval {
		run_program('pg_amcheck', '-h', $subscriber->host, '-p', $subscriber->port, '--heapallindexed',
			'--no-dependent-toast', '--schema=bench', $database);
		'';
	} // $@;
	push @wrong, "pg_amcheck: $amcheck" if $amcheck;
	return join '; ', @wrong;
}

sub drop_subscription
{
	my ($database) = @_;
	# whoever has just ended may still be at the slot
	script($subscriber, $database, "DROP SUBSCRIPTION $database");
	poll_for(sub { $publisher->query('SELECT count(*) FROM pg_replication_slots') == 0 }, 'the slot to go');
	return;
}

# ---- The copies ------------------------------------------------------------------

my (@results, @faults);

# One way once: seconds.
sub measure
{
	my ($way, $row) = @_;
	my $database = "by_$way";
	$subscriber->query("CREATE DATABASE $database TEMPLATE empty_tables STRATEGY file_copy");
	my $load = start_load($row);
	subscribe_disabled($database, 'pub') if $way ne 'piped';
	$_->query('CHECKPOINT') for $publisher, $subscriber;
	my $seconds = $copy{$way}->($database, $row);
	stop_load($load);
	my $wrong = judge($way, $database, $row);
	push @faults, "$row->{name} $way: $wrong" if $wrong;
	drop_subscription($database) if $way ne 'piped';
	$subscriber->query("DROP DATABASE $database");
	return $seconds;
}

sub bench_copies
{
	print $screen sprintf "\n%-20s %-24s %-24s %-24s %-20s %s\n", 'tables', 'core s (min-max)', 'ours s (min-max)',
	  'piped s (min-max)', 'core / ours', 'ours / piped';
	for my $row (map { parse_row($_) } @rows)
	{
		my %runs;
		my @ways = grep { $_ ne 'ours' || $copies } @ways;
		set_up($row);
		for my $repeat (1 .. $row->{runs})
		{
			push @{ $runs{$_} }, measure($_, $row) for $repeat % 2 ? @ways : reverse @ways;
		}
		tear_down();
		my $ratio = sub {
			my ($over, $under) = @_;
			return undef unless $runs{$over} && $runs{$under};
			return summary(map { $runs{$over}[$_] / $runs{$under}[$_] } 0 .. $row->{runs} - 1);
		};
		my %result = (%$row, (map { $_ => summary(@{ $runs{$_} }) } @ways),
			core_to_ours => $ratio->('core', 'ours'), ours_to_piped => $ratio->('ours', 'piped'),
			core_to_piped => $ratio->('core', 'piped'));
		push @results, \%result;
		keep_results();
		print $screen sprintf "%-20s %-24s %-24s %-24s %-20s %s\n", $row->{name},
		  (map { spread($result{$_}, '%.3f') } qw(core ours piped)), spread($result{core_to_ours}, '%.1f'),
		  spread($result{ours_to_piped}, '%.2f');
	}
	return;
}

# ---- Applying changes ------------------------------------------------------------

# What is written while nobody applies, and how many rows or transactions it is.
my $bulk = 'bench.bulk';
my %stream = (
	tpcb => {
		unit => 'transactions', amount => $stream_tpcb,
		write => sub {
			run_program('pgbench', '-n', '-c', 4, '-j', 2, '-t', $stream_tpcb / 4,
				'-h', $publisher->host, '-p', $publisher->port, 'source');
		} },
	insert => {
		unit => 'rows', amount => $stream_rows, prepare => "TRUNCATE $bulk",
		write => sub { script($publisher, 'source', fill()) } },
	update => {
		unit => 'rows', amount => $stream_rows, prepare => "TRUNCATE $bulk; " . fill(),
		write => sub { script($publisher, 'source', "UPDATE $bulk SET v = v || 'x'") } },
	delete => {
		unit => 'rows', amount => $stream_rows, prepare => "TRUNCATE $bulk; " . fill(),
		write => sub { script($publisher, 'source', "DELETE FROM $bulk") } });

sub fill
{
	return "INSERT INTO $bulk SELECT g, hashint4(g), md5(g::text) FROM generate_series(1, $stream_rows) g";
}

# Each way has a subscription of its own, in its own database, to the same tables.
sub set_up_streams
{
	$publisher->query('CREATE DATABASE source');
	$publisher->query('ALTER DATABASE source SET synchronous_commit = off');
	run_program('pgbench', '-i', '-q', '-s', 10, '-h', $publisher->host, '-p', $publisher->port, 'source');
	script($publisher, 'source', qq{
		CREATE SCHEMA bench;
		CREATE TABLE $bulk (id bigint PRIMARY KEY, k int, v text);
		CREATE TABLE bench.marker (n int PRIMARY KEY);
		CREATE PUBLICATION all_of_it FOR ALL TABLES;});
	my $dump = $publisher->basedir . '/schema.sql';
	run_program('pg_dump', '-s', '--no-publications', '-f', $dump, '-d', $publisher->connstr('source'));
	for my $way (@_)
	{
		my $database = "by_$way";
		$subscriber->query("CREATE DATABASE $database");
		run_program('psql', psql_options($subscriber, $database), '-o', '/dev/null', '-f', $dump);
		script($subscriber, $database, 'CREATE EXTENSION pg_tandem; CREATE EXTENSION amcheck');
		subscribe_disabled($database, 'all_of_it');
		# the tables are copied by core for both
		seconds_until($subscriber, $database, "ALTER SUBSCRIPTION $database ENABLE", $ready);
		wait_inactive($database, "ALTER SUBSCRIPTION $database DISABLE");
	}
	return;
}

sub go
{
	my ($way) = @_;
	return $way eq 'core' ? 'ALTER SUBSCRIPTION by_core ENABLE' : q{SELECT tandem.adopt('by_ours', 'enabled = on')};
}

sub pause
{
	my ($way) = @_;
	wait_inactive("by_$way",
		$way eq 'core' ? 'ALTER SUBSCRIPTION by_core DISABLE' : q{SELECT tandem.adopt('by_ours', 'enabled = off')});
	return;
}

# Runs what ends the use of a slot, and waits for that.
sub wait_inactive
{
	my ($database, $sql) = @_;
	script($subscriber, $database, $sql);
	poll_for(sub { $publisher->query("SELECT active FROM pg_replication_slots WHERE slot_name = '$database'") eq 'f' },
		"\"$database\" to pause");
	return;
}

my $marker = 0;

# Seconds until a way has applied all that is there.
sub apply_all
{
	my ($way) = @_;
	return seconds_until($subscriber, "by_$way", go($way), "EXISTS (SELECT FROM bench.marker WHERE n = $marker)");
}

sub write_marker
{
	script($publisher, 'source', 'INSERT INTO bench.marker VALUES (' . ++$marker . ')');
	# asynchronous: durable before anybody is told to read it
	script($publisher, 'source', q{SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'bench', 'x')});
	return;
}

my @applied;

sub bench_streams
{
	my @who = grep { $_ ne 'piped' } @ways;
	return if !@who || !@streams;
	set_up_streams(@who);
	print $screen sprintf "\n%-10s %-30s %-30s %s\n", 'stream', 'core a second (min-max)', 'ours a second (min-max)', 'ours / core';
	for my $name (@streams)
	{
		my $stream = $stream{$name} // die "\"$name\" is not a stream\n";
		my %rates;
		for my $repeat (1 .. $repeats)
		{
			if ($stream->{prepare})
			{
				script($publisher, 'source', $stream->{prepare});
				write_marker();
				for my $way (@who)
				{
					apply_all($way);
					pause($way);
				}
			}
			$stream->{write}->();
			write_marker();
			for my $way ($repeat % 2 ? @who : reverse @who)
			{
				$subscriber->query('CHECKPOINT');
				push @{ $rates{$way} }, $stream->{amount} / apply_all($way);
				pause($way);
			}
		}
		my %result = (stream => $name, unit => $stream->{unit}, amount => $stream->{amount},
			(map { $_ => summary(@{ $rates{$_} }) } @who),
			@who < 2 ? () : (ours_to_core => summary(map { $rates{ours}[$_] / $rates{core}[$_] } 0 .. $repeats - 1)));
		push @applied, \%result;
		keep_results();
		print $screen sprintf "%-10s %-30s %-30s %s\n", $name, (map { spread($result{$_}, '%.0f') } qw(core ours)),
		  spread($result{ours_to_core}, '%.2f');
	}
	my @tables = ($bulk, map { "pgbench_$_" } qw(accounts branches tellers history));
	for my $way (@who)
	{
		push @faults, "streams $way: the tables differ"
		  if contents($subscriber, "by_$way", @tables) ne contents($publisher, 'source', @tables);
		drop_stream($way);
	}
	return;
}

sub drop_stream
{
	my ($way) = @_;
	my $n = $publisher->query('SELECT count(*) FROM pg_replication_slots') - 1;
	script($subscriber, "by_$way", "DROP SUBSCRIPTION by_$way");
	poll_for(sub { $publisher->query('SELECT count(*) FROM pg_replication_slots') == $n }, 'the slot to go');
	$subscriber->query("DROP DATABASE by_$way");
	return;
}

# ---- Telling ---------------------------------------------------------------------

sub draw
{
	my ($name) = @_;
	return unless -x '/usr/bin/gnuplot' && @results;
	my $data = "$ENV{TESTDIR}/tables.dat";
	open my $file, '>', $data or die "$data: $!";
	for my $r (@results)
	{
		my $label = $r->{name} =~ s/(\w+):(\d+)/$2 × $1/r =~ s/\+/\\n+ /r;
		print $file join(' ', qq{"$label"},
			map { my $w = $r->{$_}; $w ? @{$w}{qw(median min max)} : ('?') x 3 } qw(core ours piped)), "\n";
	}
	close $file;
	open my $gnuplot, '|-', 'gnuplot' or die "gnuplot: $!";
	print $gnuplot <<"END";
set terminal svg size 1000,520 noenhanced font "sans-serif,12" background "white"
set encoding utf8
set output "$name"
set title "Initial copy of tables with $workers workers: median, with minimum and maximum"
set datafile missing "?"
set style data histogram
set style histogram errorbars gap 1 lw 1.5
set style fill solid 0.9 noborder
set logscale y
set ylabel "seconds (logarithmic)"
set grid ytics lc rgb "#dddddd"
set key outside top center horizontal
set xtics rotate by -30 font ",10"
set bmargin 6
plot "$data" using 2:3:4:xtic(1) title "core" lc rgb "#d08c3e", \\
     "" using 5:6:7 title "pg_tandem" lc rgb "#1b6ca8", \\
     "" using 8:9:10 title "COPY piped by hand" lc rgb "#8a8a8a"
END
	close $gnuplot or die "gnuplot failed";
	return;
}

# All there is so far, so that a run that is cut short leaves what it measured.
sub keep_results
{
	write_results($name, { machine => $machine, size => $size, repeats => $repeats, workers => $workers,
		copies => \@results, streams => \@applied });
	draw("$name.svg");
	return;
}

print $screen machine_line($machine) . ", SIZE=$size, $repeats repeats, $workers workers\n";
bench_copies();
bench_streams();
print $screen "\nwritten: bench/results/" . File::Basename::basename($name) . ".json, .svg\n";
# A bench has no timed assertion, but a copy that is wrong is a failure.
is(join("\n", @faults), '', 'after each run the tables were equal, every index and constraint right');
done_testing();
