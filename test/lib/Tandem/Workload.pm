# Everything at once, on a primary: several sessions that each run a random mix
# of what changes files, until they are stopped or the server dies.
#
#   my $load = Tandem::Workload->new(seed => 42);
#   $load->prepare($primary);          # once for a cluster
#   $load->start($primary);
#   ...
#   $load->stop;                       # returns when no session is left
#
# The statements follow from the seed and from how often start was called; what
# becomes of them also from the moment, as sessions block each other.
package Tandem::Workload;

use strict;
use warnings;

use Carp;
use IPC::Run ();
use PostgreSQL::Test::Utils ();
use Tandem::Wait;

my $tables = 4;
my $statements = 3000;

# Parameters: seed (of all that is random), sessions, moves => 0 (databases keep
# their tablespace).
sub new
{
	my ($class, %params) = @_;
	return bless {
		seed => $params{seed} // 1, sessions => $params{sessions} // 4, moves => $params{moves} // 1,
		runs => [], started => 0 }, $class;
}

# Tables and functions that the mix uses.
sub prepare
{
	my ($self, $node) = @_;
	for my $n (1 .. $tables)
	{
		$node->safe_psql('postgres', qq{
			CREATE TABLE w$n (id serial PRIMARY KEY, k int, v text, a int[], p point, r int4range);
			INSERT INTO w$n (k, v, a, p, r)
				SELECT g, md5(g::text), ARRAY[g % 10, g % 7], point(g % 50, g % 30), int4range(g, g + 10)
				FROM generate_series(1, 2000) g;
			CREATE INDEX w${n}_k ON w$n (k);
			CREATE INDEX w${n}_a ON w$n USING gin (a);
			CREATE INDEX w${n}_p ON w$n USING gist (p);
			CREATE INDEX w${n}_r ON w$n USING spgist (r);
			CREATE INDEX w${n}_v ON w$n USING hash (v);
			CREATE INDEX w${n}_b ON w$n USING brin (k) WITH (pages_per_range = 2, autosummarize = on);});
	}
	$node->safe_psql('postgres', q{
		CREATE UNLOGGED TABLE wu (id int PRIMARY KEY, v text);
		CREATE SEQUENCE ws;
		CREATE TABLE wseq (n bigint DEFAULT nextval('ws'), v text);
		CREATE TABLE wtoast (id int PRIMARY KEY, big text);
		ALTER TABLE wtoast ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE wparts (id int, k int) PARTITION BY RANGE (id);
		CREATE TABLE wtype (id int, v text);
		INSERT INTO wtype SELECT g, g::text FROM generate_series(1, 1000) g;});
	return;
}

# One statement (or a few) of the mix as a line of a psql script.
sub _statement
{
	my ($self, $session) = @_;
	my $r = sub { int rand $_[0] };
	my $w = 'w' . (1 + $r->($tables));
	my $id = 1 + $r->(3000);
	my $x = $r->(1000000);
	my $own = "s${session}_" . $r->(6);
	my $db = "db${session}_" . $r->(2);
	my $space = "ts${session}_" . $r->(2);
	# the same names on both sides of a fork
	my $gid = "g${session}_" . $r->(4);
	my $part = $r->(8);
	my $strategy = (qw(wal_log file_copy))[ $r->(2) ];
	my $end = (qw(COMMIT ROLLBACK))[ $r->(2) ];
	my $rows = "SELECT g, md5(g::text), ARRAY[g], point(g % 100, g % 77), int4range(g, g + 5) FROM generate_series";
	my @mix = (
		# rows
		[ 30, "UPDATE $w SET k = k + 1, v = md5('$x') WHERE id = $id;" ],
		[ 10, "UPDATE $w SET a = ARRAY[$x % 100, $x % 17], p = point($x % 100, $x % 40), r = int4range($x % 1000, $x % 1000 + 20) WHERE id BETWEEN $id AND $id + 30;" ],
		[ 15, "INSERT INTO $w (k, v, a, p, r) $rows($x, $x + 50) g;" ],
		[ 8, "DELETE FROM $w WHERE id BETWEEN $id AND $id + 40;" ],
		[ 2, "COPY $w (k, v) FROM stdin;\n" . join('', map { "$_\tcopied$x\n" } 1 .. 60) . '\\.' ],
		[ 4, "INSERT INTO wtoast SELECT $x, string_agg(md5(g::text), '') FROM generate_series(1, 400) g ON CONFLICT (id) DO UPDATE SET big = excluded.big || 'x';" ],
		[ 3, "DELETE FROM wtoast WHERE id % 10 = $x % 10;" ],
		[ 3, "INSERT INTO wu SELECT g, 'u' FROM generate_series($x, $x + 100) g ON CONFLICT DO NOTHING;" ],
		[ 4, "SELECT nextval('ws');" ],
		[ 3, "INSERT INTO wseq (v) SELECT 'x' FROM generate_series(1, 40);" ],
		[ 1, "SELECT setval('ws', " . (1 + $r->(1000)) . ');' ],
		[ 1, 'ALTER SEQUENCE ws RESTART;' ],
		# transactions
		[ 3, "BEGIN; SELECT count(*) FROM (SELECT 1 FROM $w WHERE id BETWEEN $id AND $id + 5 FOR SHARE) s; SAVEPOINT a; UPDATE $w SET k = 0 WHERE id = $id; ROLLBACK TO a; SELECT 1 FROM $w WHERE id = $id FOR KEY SHARE; UPDATE $w SET v = 'mx' WHERE id = $id + 1; $end;" ],
		[ 3, "BEGIN; SELECT count(*) FROM (SELECT 1 FROM $w WHERE id < 20 FOR KEY SHARE) s; $end;" ],
		[ 3, "BEGIN; INSERT INTO $w (k) VALUES ($x); SAVEPOINT a; DELETE FROM $w WHERE id = $id; SAVEPOINT b; UPDATE $w SET k = -1 WHERE id = $id + 2; ROLLBACK TO b; RELEASE a; $end;" ],
		[ 1, "BEGIN; " . join(' ', map { "SAVEPOINT s$_; UPDATE $w SET k = $_ WHERE id = $id + $_;" } 1 .. 80) . " $end;" ],
		[ 2, "BEGIN; INSERT INTO $w (k, v) VALUES ($x, '$gid'); UPDATE $w SET k = $x WHERE id = $id; PREPARE TRANSACTION '$gid';" ],
		[ 1, "BEGIN; CREATE TABLE p_$own AS SELECT * FROM $w; PREPARE TRANSACTION '$gid';" ],
		[ 1, "BEGIN; DROP TABLE IF EXISTS $own; SAVEPOINT a; INSERT INTO $w (k) VALUES ($x); PREPARE TRANSACTION '$gid';" ],
		[ 5, "COMMIT PREPARED '$gid';" ],
		[ 2, "ROLLBACK PREPARED '$gid';" ],
		[ 1, "DROP TABLE IF EXISTS p_$own;" ],
		# the life of files
		[ 2, "DROP TABLE IF EXISTS $own; CREATE TABLE $own AS SELECT * FROM $w; CREATE INDEX ON $own (k);" ],
		[ 2, "BEGIN; TRUNCATE $own; INSERT INTO $own SELECT * FROM $w LIMIT 100; $end;" ],
		[ 2, "TRUNCATE $own;" ],
		[ 2, "INSERT INTO $own SELECT * FROM $w LIMIT 500;" ],
		[ 1, "DROP TABLE IF EXISTS $own;" ],
		[ 1, "DELETE FROM $own WHERE id > $id; VACUUM $own;" ],
		[ 1, "BEGIN; CREATE TABLE roll_$session AS SELECT * FROM $w; CREATE INDEX ON roll_$session USING gin (a); ROLLBACK;" ],
		[ 1, "CREATE UNLOGGED TABLE IF NOT EXISTS u_$own AS SELECT * FROM $w LIMIT 200;" ],
		[ 1, "ALTER TABLE IF EXISTS u_$own SET LOGGED;" ],
		[ 1, "DROP TABLE IF EXISTS u_$own;" ],
		[ 1, "CREATE TABLE wparts_$part PARTITION OF wparts FOR VALUES FROM (${part}000) TO (${part}999);" ],
		[ 1, "INSERT INTO wparts SELECT ${part}000 + g, g FROM generate_series(0, 900) g;" ],
		[ 1, "DROP TABLE IF EXISTS wparts_$part;" ],
		[ 1, "ALTER TABLE wtype ALTER id TYPE " . (qw(int bigint))[ $r->(2) ] . ';' ],
		[ 2, "DROP INDEX IF EXISTS ${w}_x; CREATE INDEX ${w}_x ON $w "
			  . ('(v)', 'USING gin (a)', 'USING gist (p)', 'USING brin (id)', 'USING hash (k)', 'USING spgist (p)')[ $r->(6) ] . ';' ],
		[ 1, "DROP INDEX IF EXISTS ${w}_c; CREATE INDEX CONCURRENTLY ${w}_c ON $w (id, k);" ],
		[ 2, "REINDEX TABLE $w;" ],
		[ 1, "REINDEX INDEX CONCURRENTLY ${w}_k;" ],
		[ 1, "CLUSTER $w USING ${w}_k;" ],
		# upkeep
		[ 3, "VACUUM $w;" ],
		[ 1, "VACUUM FREEZE $w;" ],
		[ 1, "VACUUM FULL $w;" ],
		[ 1, 'VACUUM FREEZE pg_class;' ],
		[ 1, 'VACUUM FULL ' . (qw(pg_attribute pg_class pg_type pg_database))[ $r->(4) ] . ';' ],
		[ 1, "DELETE FROM $w WHERE id > " . (2000 + $r->(5000)) . "; VACUUM $w;" ],
		[ 1, "ANALYZE $w;" ],
		[ 1, "SELECT brin_summarize_new_values('${w}_b'), gin_clean_pending_list('${w}_a');" ],
		[ 1, 'CHECKPOINT;' ],
		[ 1, 'SELECT pg_switch_wal();' ],
		# databases and tablespaces
		[ 1, "CREATE DATABASE $db STRATEGY = $strategy;" ],
		[ 1, "DROP DATABASE IF EXISTS $db WITH (FORCE);" ],
		$self->{moves} ? [ 1, "ALTER DATABASE $db SET TABLESPACE $space;" ] : (),
		[ 1, "SET allow_in_place_tablespaces = on; CREATE TABLESPACE $space LOCATION '';" ],
		[ 1, "ALTER TABLE IF EXISTS $own SET TABLESPACE $space;" ],
		[ 1, "CREATE DATABASE $db TABLESPACE $space STRATEGY = $strategy;" ],
		[ 1, "ALTER TABLE IF EXISTS $own SET TABLESPACE pg_default; DROP TABLESPACE IF EXISTS $space;" ]);
	my $total = 0;
	$total += $_->[0] for @mix;
	my $pick = $r->($total);
	for my $entry (@mix)
	{
		return $entry->[1] if ($pick -= $entry->[0]) < 0;
	}
	croak 'no statement picked';
}

# Starts all sessions; each ends when its script does or its server dies.
sub start
{
	my ($self, $node) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	$self->{node} = $node;
	$self->{started}++;
	for my $session (1 .. $self->{sessions})
	{
		# on its own, whatever else is random in the test
		my $state = rand 2**31;
		srand(($self->{seed} * 1000 + $self->{started}) * 100 + $session);
		my $file = "$dir/session$session.sql";
		open my $out, '>', $file or croak "could not write $file: $!";
		# a lock that a prepared transaction holds must not end a session
		print $out "SET lock_timeout = '300ms';\nSET application_name = 'workload';\n";
		print $out $self->_statement($session) . "\n" for 1 .. $statements;
		close $out or croak "could not write $file: $!";
		srand $state;
		push @{ $self->{runs} },
		  IPC::Run::start([ 'psql', '-X', '-q', '-o', '/dev/null', '-d', $node->connstr('postgres'), '-f', $file ],
			'<', \undef, '&>', '/dev/null');
	}
	return;
}

# Ends the sessions and waits for them, also for what they run in the server if
# that is alive.
sub stop
{
	my ($self) = @_;
	for my $run (@{ $self->{runs} })
	{
		$run->kill_kill(grace => 1);
	}
	$self->{runs} = [];
	return unless defined $self->{node}{_pid};
	poll_for(
		sub {
			$self->{node}->query(q{
				SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE application_name = 'workload'}) == 0;
		},
		'the sessions of the workload to end');
	return;
}

1;
