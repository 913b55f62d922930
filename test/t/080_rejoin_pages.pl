# "tandem rejoin" repairs what a lost stretch of WAL left in pages and relation
# files, one kind after the other.  Each story first shows on the crashed node's
# disk what would be wrong without the repair; at the end both nodes are equal,
# by dumps, file lists and pg_amcheck.

use strict;
use warnings;

use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $pair = Tandem::Rejoin->new;
my $block_size = 8192;

# The path of a relation's file.
sub path_of
{
	my ($node, $relation, $fork) = @_;
	return $node->query("SELECT pg_relation_filepath('$relation')") . ($fork ? "_$fork" : '');
}

sub blocks_on_disk
{
	my ($node, $path) = @_;
	my $size = -s $node->data_dir . "/$path";
	return defined $size ? $size / $block_size : undef;
}

sub control
{
	my ($node, $what) = @_;
	my ($value) = (PostgreSQL::Test::Utils::run_command([ 'pg_controldata', $node->data_dir ]))[0] =~
	  /^\Q$what\E:\s+(\S+)/m;
	return $value;
}

# How many pages of a relation's file on the dead node are ahead of the fork.
sub pages_ahead
{
	my ($path) = @_;
	my $scan = scan_pages($pair->old_primary->data_dir, $pair->fork_lsn);
	return scalar @{ $scan->{files}{$path} // [] };
}

my $rows = 'SELECT g, g %% 100, repeat(md5(g::text), 4) FROM generate_series(%d, %d) g';
$pair->primary->query('CREATE TABLE t (id int PRIMARY KEY, k int, x text)');
$pair->primary->query('INSERT INTO t ' . sprintf $rows, 1, 3000);
my %path;

# ---- pg_control ---------------------------------------------------------------

$pair->story('pg_control ahead',
	lost => ['CHECKPOINT'],
	gained => [ 'INSERT INTO t ' . sprintf $rows, 3001, 3010 ],
	damaged => sub {
		cmp_ok(lsn_number(control($pair->old_primary, 'Latest checkpoint location')),
			'>', lsn_number($pair->fork_lsn), 'the last checkpoint lies past the fork');
	});

# ---- Data pages ---------------------------------------------------------------

$pair->story('changed pages',
	before => [ 'CREATE INDEX ON t (k)', 'CREATE INDEX ON t USING hash (k)',
		q{CREATE INDEX ON t USING gin (to_tsvector('simple', x))}, 'CREATE INDEX ON t USING brin (id)',
		'CREATE INDEX ON t USING gist (box(point(id, k), point(id, k)))',
		'CREATE INDEX ON t USING spgist (x)' ],
	lost => [ q{UPDATE t SET k = k + 1000, x = x || 'lost' WHERE id % 3 = 0} ],
	gained => [ q{UPDATE t SET x = x || 'gained' WHERE id % 50 = 0} ],
	damaged => sub {
		$path{t} = path_of($pair->new_primary, 't');
		cmp_ok(pages_ahead($path{t}), '>', 50, 'pages of the table are ahead of the fork');
		cmp_ok(pages_ahead(path_of($pair->new_primary, 't_k_idx')), '>', 3, 'and pages of its indexes');
	},
	repaired => sub {
		is($pair->standby->query(q{SELECT count(*) FROM t WHERE x LIKE '%lost%' OR k >= 1000}), 0,
			'nothing of the lost update is there');
	});

$pair->story('changed pages, many of them with images before the fork',
	before => ['CHECKPOINT'],
	checkpoint_before => 0,
	lost => [ q{UPDATE t SET x = x || 'lost' WHERE id % 2 = 0} ],
	gained => [ q{DELETE FROM t WHERE id % 70 = 0} ]);

$pair->story('nothing of it written before the crash',
	lost => [ q{UPDATE t SET k = k + 1}, 'INSERT INTO t ' . sprintf $rows, 50001, 50100 ],
	checkpoint_after => 0,
	gained => [ 'INSERT INTO t ' . sprintf $rows, 50050, 50200 ]);

$pair->story('pages beyond the source\'s end of the file',
	before => [ 'CREATE TABLE grows (id int PRIMARY KEY, k int, x text)',
		'INSERT INTO grows ' . sprintf $rows, 1, 100 ],
	lost => [ 'INSERT INTO grows ' . sprintf $rows, 101, 9000 ],
	gained => [ 'INSERT INTO grows ' . sprintf $rows, 201, 203 ],
	damaged => sub {
		$path{grows} = path_of($pair->new_primary, 'grows');
		cmp_ok(blocks_on_disk($pair->old_primary, $path{grows}), '>', 100, 'the file has grown');
	},
	repaired => sub {
		$pair->primary->query('CHECKPOINT');
		is(blocks_on_disk($pair->standby, $path{grows}), blocks_on_disk($pair->primary, $path{grows}),
			'the file has the size that it has on the primary');
	});

# A hint bit is no change that moves a page's LSN; it tells of a commit that is
# lost now, and the transaction id will be used again.
$pair->story('hint bits',
	before => [ 'CREATE TABLE hinted (id int)', 'INSERT INTO hinted SELECT generate_series(1, 50)', 'CHECKPOINT' ],
	lost => [ 'DELETE FROM hinted WHERE id <= 10', 'INSERT INTO hinted VALUES (999)',
		'SELECT count(*) FROM hinted', 'CHECKPOINT' ],
	gained => [ 'BEGIN; DELETE FROM hinted WHERE id <= 10; ROLLBACK', 'SELECT count(*) FROM hinted' ],
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM hinted'), 50, 'no row is taken for deleted or inserted');
	});

# ---- Free space and visibility maps ---------------------------------------------

$pair->story('visibility map',
	before => [ 'CREATE TABLE seen (id int PRIMARY KEY) WITH (autovacuum_enabled = off)',
		'INSERT INTO seen SELECT generate_series(1, 5000)' ],
	lost => [ 'VACUUM seen', 'CHECKPOINT' ],
	gained => [ 'DELETE FROM seen WHERE id <= 4000' ],
	damaged => sub {
		my $map = path_of($pair->new_primary, 'seen', 'vm');
		ok(-s $pair->old_primary->data_dir . "/$map", 'the lost vacuum left a visibility map');
		ok(!-e $pair->new_primary->data_dir . "/$map", 'that the new primary has not');
	},
	repaired => sub {
		is($pair->standby->query(q{
			SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(id) FROM seen}), 1000,
			'an index-only scan sees no deleted rows');
	});

$pair->story('free space map',
	before => [ 'INSERT INTO seen SELECT generate_series(10001, 20000)', 'VACUUM seen' ],
	lost => [ 'DELETE FROM seen WHERE id BETWEEN 10001 AND 19000', 'VACUUM seen' ],
	gained => [ 'INSERT INTO seen SELECT generate_series(30001, 31000)' ]);

# ---- Files that were cut, dropped, rewritten --------------------------------------

$pair->story('truncated by VACUUM',
	before => [ 'CREATE TABLE shrinks (id int PRIMARY KEY, k int, x text)',
		'INSERT INTO shrinks ' . sprintf $rows, 1, 5000 ],
	lost => [ 'DELETE FROM shrinks WHERE id > 100', 'VACUUM shrinks' ],
	gained => [ q{UPDATE shrinks SET x = 'gained' WHERE id > 4990} ],
	damaged => sub {
		my $path = path_of($pair->new_primary, 'shrinks');
		cmp_ok(blocks_on_disk($pair->old_primary, $path), '<', 10, 'the tail of the file is gone');
	});

$pair->story('truncated by TRUNCATE',
	lost => ['TRUNCATE shrinks'],
	gained => [ q{UPDATE shrinks SET x = 'gained again' WHERE id > 4980} ],
	damaged => sub {
		my $path = path_of($pair->new_primary, 'shrinks');
		ok(!-s $pair->old_primary->data_dir . "/$path", 'the file is gone');
	});

$pair->story('dropped',
	before => [ 'CREATE TABLE dropped (id int PRIMARY KEY, k int, x text)',
		'INSERT INTO dropped ' . sprintf($rows, 1, 2000), 'CREATE SEQUENCE dropped_too' ],
	lost => [ 'DROP TABLE dropped', 'DROP SEQUENCE dropped_too' ],
	damaged => sub {
		ok(!-s $pair->old_primary->data_dir . '/' . path_of($pair->new_primary, $_), "the file of $_ is gone")
		  for qw(dropped dropped_pkey dropped_too);
	},
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM dropped'), 2000, 'the table is back');
	});

$pair->story('rewritten',
	before => [ 'CREATE TABLE rewritten (id int PRIMARY KEY, k int, x text)',
		'INSERT INTO rewritten ' . sprintf($rows, 1, 2000), 'CREATE INDEX ON rewritten (k)' ],
	lost => [ 'ALTER TABLE rewritten ALTER k TYPE bigint', 'VACUUM FULL t', 'CLUSTER grows USING grows_pkey',
		'REINDEX TABLE seen' ],
	gained => [ 'CLUSTER rewritten USING rewritten_k_idx', q{UPDATE t SET x = 'gained' WHERE id = 5} ],
	damaged => sub {
		ok(!-s $pair->old_primary->data_dir . '/' . path_of($pair->new_primary, 't'), 'the old file is gone');
	});

# ---- Relation maps ----------------------------------------------------------------

$pair->story('relation maps',
	lost => [ 'VACUUM FULL pg_class', 'VACUUM FULL pg_database', 'REINDEX TABLE pg_type' ],
	gained => [ 'CREATE TABLE mapped (a int)' ],
	damaged => sub {
		my $database = $pair->new_primary->query(q{SELECT oid FROM pg_database WHERE datname = 'postgres'});
		for my $map ("base/$database/pg_filenode.map", 'global/pg_filenode.map')
		{
			isnt(slurp_file($pair->old_primary->data_dir . "/$map"),
				slurp_file($pair->new_primary->data_dir . "/$map"), "$map differs");
		}
	});

# ---- New relations ----------------------------------------------------------------

# The old primary has to use up the numbers that it has taken at once, 8192, so
# that it takes more after the fork, as the new primary will.
my $use_up = q{
	DO $$
	DECLARE
		next oid := (SELECT next_oid FROM pg_control_checkpoint());
	BEGIN
		LOOP
			EXIT WHEN lo_create(0)::bigint >= next::bigint;
		END LOOP;
	END $$};
$pair->story('created, and the file number used again',
	lost => [ $use_up, map { "CREATE TABLE lost$_ AS " . sprintf $rows, 1, 300 } 1 .. 10 ],
	gained => [ map { ("CREATE TABLE gained$_ (a) AS SELECT $_", "CREATE SEQUENCE counts$_") } 1 .. 10 ],
	damaged => sub {
		my @same = grep { -s $pair->old_primary->data_dir . '/' . path_of($pair->new_primary, $_) }
		  map { ("gained$_", "counts$_") } 1 .. 10;
		ok(@same > 0, "file numbers are used again: @same");
	},
	repaired => sub {
		is($pair->standby->query("SELECT a FROM gained$_"), $_, "gained$_ has its own row and no other")
		  for 1 .. 10;
	});

# ---- Where the fork may lie ---------------------------------------------------------

$pair->story('a fork at the start of a segment',
	before => [ q{UPDATE t SET x = 'common' WHERE id % 9 = 0}, 'CHECKPOINT', 'SELECT pg_switch_wal()' ],
	checkpoint_before => 0,
	lost => [ q{UPDATE t SET x = 'lost' WHERE id % 2 = 0} ],
	gained => [ q{UPDATE t SET x = 'gained' WHERE id % 3 = 0} ],
	# a record that nobody asked for may follow
	damaged => sub { cmp_ok(lsn_number($pair->fork_lsn) % (16 << 20), '<', $block_size, 'the fork is there') });

# Nobody kept the old primary from starting again after the failover.
$pair->story('an old primary that went on',
	lost => [ q{UPDATE t SET x = 'lost' WHERE id % 2 = 0} ],
	gained => sub {
		$pair->new_primary->query(q{UPDATE t SET x = 'gained' WHERE id % 3 = 0});
		my $old = $pair->old_primary;
		$old->start;
		$old->query('CREATE TABLE went_on AS ' . sprintf $rows, 1, 1000);
		$old->query(q{UPDATE t SET x = 'lost too' WHERE id % 5 = 0});
		$old->query('VACUUM FULL shrinks');
		$old->stop('fast');
	},
	damaged => sub {
		is(control($pair->old_primary, 'Database cluster state'), 'shut', 'it was stopped cleanly');
	});

# A primary initializes some pages without WAL (for later use by SP-GiST, or when
# it extends a heap for many); on a standby they are zero.  That is no difference.
# Made by hand here.
$pair->story('a page that a primary initialized without WAL',
	before => ['CREATE TABLE extended (x text)'],
	lost => [q{INSERT INTO extended VALUES ('lost')}],
	checkpoint_after => 0,
	damaged => sub {
		my $path = path_of($pair->new_primary, 'extended');
		is(PostgreSQL::Test::Utils::slurp_file($pair->old_primary->data_dir . "/$path"), "\0" x $block_size,
			'on the old primary the page was never written');
	},
	gained => sub {
		my $node = $pair->new_primary;
		my $path = $node->data_dir . '/' . path_of($node, 'extended');
		$node->stop('fast');
		PostgreSQL::Test::Utils::append_to_file($path,
			pack('Q S6 L', 0, 0, 0, 24, $block_size, $block_size, $block_size | 4, 0) . "\0" x ($block_size - 24));
		$node->start;
	},
	repaired => sub { is($pair->standby->query('SELECT count(*) FROM extended'), 0, 'nothing is in it') });

# Writers of whole files don't write WAL first.
{
	my $session;
	$pair->story('files whose WAL was never written',
		lost => sub {
			$session = $pair->primary->background_psql('postgres');
			$session->query_safe('BEGIN');
			$session->query_safe('CREATE TABLE never AS ' . sprintf $rows, 1, 20000);
			$session->query_safe('CREATE INDEX never_k ON never (g)');
			$path{never} = $session->query_safe(q{SELECT pg_relation_filepath('never_k')});
		},
		checkpoint_after => 0,
		damaged => sub {
			$session->{run}->kill_kill;
			ok(-s $pair->old_primary->data_dir . "/$path{never}", 'the file of an index that never was is there');
			ok(!-e $pair->new_primary->data_dir . "/$path{never}", 'on the new primary not');
		},
		repaired => sub {
			ok(!-e $pair->standby->data_dir . "/$path{never}", 'and not any more');
		});
}

done_testing();
