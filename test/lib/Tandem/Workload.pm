# Everything at once, on a primary: several sessions that each run a random mix
# of what changes files, until they are stopped or the server dies.
#
#   my $load = Tandem::Workload->new(seed => 42);
#   $load->prepare($primary);          # once for a cluster
#   $load->start($primary);
#   ...
#   $load->stop;
package Tandem::Workload;

use strict;
use warnings;

use Carp;
use IPC::Run ();
use PostgreSQL::Test::Utils ();

my $tables = 4;
my $statements = 4000;

# Parameters: seed (of all that is random), sessions.
sub new
{
	my ($class, %params) = @_;
	return bless { seed => $params{seed} // 1, sessions => $params{sessions} // 4, runs => [], round => 0 },
	  $class;
}

# Tables and functions that the mix uses.
sub prepare
{
	my ($self, $node) = @_;
	$node->safe_psql('postgres', q{CREATE EXTENSION IF NOT EXISTS amcheck});
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
			CREATE INDEX w${n}_b ON w$n USING brin (k);});
	}
	$node->safe_psql('postgres', q{
		CREATE UNLOGGED TABLE wu (id int, v text);
		CREATE SEQUENCE ws;
		CREATE TABLE wtoast (id int PRIMARY KEY, big text);
		ALTER TABLE wtoast ALTER big SET STORAGE EXTERNAL;});
	return;
}

# One random statement (or a few) as a line of a psql script.
sub _statement
{
	my ($self, $session, $i) = @_;
	my $r = sub { int rand $_[0] };
	my $w = 'w' . (1 + $r->($tables));
	my $id = 1 + $r->(3000);
	my $x = $r->(1000000);
	my $own = "s${session}_" . $r->(6);
	my $gid = "g$self->{seed}_$self->{round}_${session}_" . $r->(8);
	my @mix = (
		[ 30, "UPDATE $w SET k = k + 1, v = md5('$x') WHERE id = $id;" ],
		[ 10, "UPDATE $w SET a = ARRAY[$x % 100, $x % 17], p = point($x % 100, $x % 40), r = int4range($x % 1000, $x % 1000 + 20) WHERE id BETWEEN $id AND $id + 30;" ],
		[ 15, "INSERT INTO $w (k, v, a, p, r) SELECT g, md5(g::text), ARRAY[g], point(g % 100, g % 77), int4range(g, g + 5) FROM generate_series($x, $x + 50) g;" ],
		[ 8, "DELETE FROM $w WHERE id BETWEEN $id AND $id + 40;" ],
		[ 4, "SELECT nextval('ws');" ],
		[ 5, "INSERT INTO wtoast SELECT $x, string_agg(md5(g::text), '') FROM generate_series(1, 400) g ON CONFLICT (id) DO UPDATE SET big = excluded.big || 'x';" ],
		[ 4, "DELETE FROM wtoast WHERE id % 10 = $x % 10;" ],
		[ 3, "INSERT INTO wu SELECT g, 'u' FROM generate_series(1, 100) g;" ],
		[ 3, "VACUUM $w;" ],
		[ 1, "VACUUM FULL $w;" ],
		[ 1, "VACUUM FREEZE pg_class;" ],
		[ 1, "VACUUM FULL pg_attribute;" ],
		[ 1, "CLUSTER $w USING ${w}_k;" ],
		[ 2, "REINDEX TABLE $w;" ],
		[ 2, "DROP INDEX IF EXISTS ${w}_x; CREATE INDEX ${w}_x ON $w "
			  . ('(v)', 'USING gin (a)', 'USING gist (p)', 'USING brin (id)', 'USING hash (k)', 'USING spgist (p)')[ $r->(6) ] . ';' ],
		[ 2, "DROP TABLE IF EXISTS $own; CREATE TABLE $own AS SELECT * FROM $w; CREATE INDEX ON $own (k);" ],
		[ 2, "TRUNCATE $own;" ],
		[ 2, "INSERT INTO $own SELECT * FROM $w LIMIT 500;" ],
		[ 1, "DROP TABLE IF EXISTS $own;" ],
		[ 1, "DELETE FROM $own WHERE id > $id; VACUUM $own;" ],
		[ 3, "BEGIN; SELECT count(*) FROM (SELECT 1 FROM $w WHERE id BETWEEN $id AND $id + 5 FOR SHARE) s; SAVEPOINT a; UPDATE $w SET k = 0 WHERE id = $id; ROLLBACK TO a; SELECT 1 FROM $w WHERE id = $id FOR KEY SHARE; UPDATE $w SET v = 'mx' WHERE id = $id + 1; COMMIT;" ],
		[ 3, "BEGIN; INSERT INTO $w (k) VALUES ($x); SAVEPOINT a; DELETE FROM $w WHERE id = $id; SAVEPOINT b; UPDATE $w SET k = -1 WHERE id = $id + 2; ROLLBACK TO b; RELEASE a; "
			  . ('COMMIT;', 'ROLLBACK;')[ $r->(2) ] ],
		[ 2, "BEGIN; CREATE TABLE roll_${session} AS SELECT * FROM $w; ROLLBACK;" ],
		[ 2, "BEGIN; INSERT INTO $w (k, v) VALUES ($x, '$gid'); PREPARE TRANSACTION '$gid';" ],
		[ 2, "COMMIT PREPARED '$gid';" ],
		[ 1, "ROLLBACK PREPARED '$gid';" ],
		[ 1, "COPY (SELECT k, v FROM $w LIMIT 300) TO '/dev/null'; CREATE TABLE IF NOT EXISTS $own (LIKE $w); INSERT INTO $own SELECT * FROM $w LIMIT 1000;" ],
		[ 1, "CHECKPOINT;" ],
		[ 1, "CREATE DATABASE db_$own STRATEGY = " . ('wal_log', 'file_copy')[ $r->(2) ] . ';' ],
		[ 1, "DROP DATABASE IF EXISTS db_$own WITH (FORCE);" ],
		[ 1, "SET allow_in_place_tablespaces = on; CREATE TABLESPACE ts_$own LOCATION '';" ],
		[ 1, "ALTER TABLE IF EXISTS $own SET TABLESPACE ts_$own;" ],
		[ 1, "ALTER TABLE IF EXISTS $own SET TABLESPACE pg_default; DROP TABLESPACE IF EXISTS ts_$own;" ],
		[ 1, "SELECT pg_switch_wal();" ],
		[ 1, "ANALYZE $w;" ]);
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

	$self->{round}++;
	srand($self->{seed} * 1000 + $self->{round});
	for my $session (1 .. $self->{sessions})
	{
		my $file = "$dir/session$session.sql";
		open my $out, '>', $file or croak "could not write $file: $!";
		# a lock that a prepared transaction holds must not end a session
		print $out "SET lock_timeout = '500ms';\n";
		print $out $self->_statement($session, $_) . "\n" for 1 .. $statements;
		close $out;
		my $output = '';
		push @{ $self->{runs} },
		  IPC::Run::start([ 'psql', '-X', '-q', '-o', '/dev/null', '-d', $node->connstr('postgres'), '-f', $file ],
			'<', \undef, '&>', '/dev/null');
	}
	return;
}

# Ends the sessions and waits for them.
sub stop
{
	my ($self) = @_;
	for my $run (@{ $self->{runs} })
	{
		$run->kill_kill(grace => 1);
	}
	$self->{runs} = [];
	return;
}

1;
