# What a node that rejoins is told and given by the new primary.
#
# Pages come as they are in shared buffers, of any database, and none is loaded
# for it; only files that have to do with it can be read; nobody but a
# replication role with the grants gets anything.

use strict;
use warnings;

use File::Find ();
use Tandem::Test;
use Test::More;

my $block = 8192;
my $primary = Tandem::Node->new_primary('primary', recipe => 1, conf => q{
	shared_buffers = 64MB
	checkpoint_timeout = 1h
	max_wal_size = 4GB
	autovacuum = off
	wal_writer_delay = 10s
	bgwriter_lru_maxpages = 0
	max_prepared_transactions = 10
	work_mem = 64kB
});
$primary->query('CREATE EXTENSION pageinspect; CREATE EXTENSION pg_buffercache');
$primary->query(q{GRANT EXECUTE ON FUNCTION tandem.rejoin_source, tandem.source_files,
	tandem.source_file, tandem.source_blocks, tandem.page_digests TO repl});

# Arguments of one request for a relation of any database.
sub request
{
	my ($relation, $fork, $first, $count, $dbname) = @_;
	my ($tablespace, $database, $node) = split /\|/, $primary->query(qq{
		SELECT CASE WHEN relisshared THEN 1664 WHEN c.reltablespace <> 0 THEN c.reltablespace ELSE d.dattablespace END,
			CASE WHEN relisshared THEN 0 ELSE d.oid END, pg_relation_filenode(c.oid)
		FROM pg_class c, pg_database d
		WHERE c.oid = '$relation'::regclass AND d.datname = current_database()}, $dbname);
	return "'{$tablespace}', '{$database}', '{$node}', '{$fork}', '{$first}', '{$count}'";
}

# The rows of an answer: request|first block|bytes|length.
sub blocks
{
	my (@arguments) = @_;
	my $request = request(@arguments);
	return $primary->query(qq{SELECT request, first_block, length(content), relation_blocks
		FROM tandem.source_blocks($request)});
}

# ---- who may ------------------------------------------------------------------------

my @calls = ('tandem.rejoin_source()', 'tandem.source_files()',
	q{tandem.source_file('pg_xact/0000', 0, 10)},
	q{tandem.source_blocks('{1664}', '{0}', '{1262}', '{0}', '{0}', '{1}')},
	q{tandem.page_digests('{1664}', '{0}', '{1262}', '{0}', '{0}', '{10}')});
$primary->query(q{CREATE ROLE nobody; CREATE ROLE half; GRANT EXECUTE ON FUNCTION tandem.rejoin_source,
	tandem.source_files, tandem.source_file, tandem.source_blocks, tandem.page_digests TO half});
for my $call (@calls)
{
	my ($name) = $call =~ /tandem\.(\w+)/;
	is($primary->query("SET ROLE repl; SELECT count(*) > 0 FROM $call"), 't',
		"the replication role may: $name");
	like($primary->query_error("SET ROLE half; SELECT * FROM $call"), qr/replication role|REPLICATION/,
		"EXECUTE without REPLICATION doesn't suffice: $name");
	like($primary->query_error("SET ROLE nobody; SELECT * FROM $call"),
		qr/permission denied for function $name/, "nobody may not: $name");
}

# ---- pages that were never written ---------------------------------------------------

$primary->query(q{
	CREATE TABLE t (id integer, filler text) WITH (fillfactor = 50);
	INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 2000) g;
	VACUUM t;
	CHECKPOINT;
	UPDATE t SET filler = 'dirty' WHERE id % 10 = 0;
});
my $length = $primary->query(q{SELECT pg_relation_size('t') / 8192});
my $request = request('t', 0, 0, $length);
my $pages = qq{
	SELECT first_block + i AS block, substr(content, i * $block + 1, $block) AS page
	FROM tandem.source_blocks($request), generate_series(0, length(content) / $block - 1) i};
is($primary->query(qq{
	SELECT count(*), count(*) FILTER (WHERE page = get_raw_page('t', block::int)),
		count(*) FILTER (WHERE page <> pg_read_binary_file(pg_relation_filepath('t'), block * $block, $block)) > 10
	FROM ($pages) p}), "$length|$length|t",
	'pages are those in shared buffers, which the file on disk lacks');

is($primary->query(qq{
	SELECT b.request, sum(length(content)) / $block, max(relation_blocks), count(*)
	FROM tandem.source_blocks($request) b GROUP BY 1}),
	"1|$length|$length|" . (int(($length + 63) / 64) + 1), 'rows of 64 blocks, then one with the length');

is(blocks('t', 0, $length - 1, 10), '1|' . ($length - 1) . "|$block|\n1|$length||$length",
	'blocks end where the relation ends');
is(blocks('t', 0, $length + 7, 10), '1|' . ($length + 7) . "||$length", 'nothing beyond the end');
is(blocks('t', 0, 3, 0), "1|3||$length", 'no block asked for');
is(blocks('t', 3, 0, 10), '1|0||', 'a fork that does not exist');
is(blocks('t', 0, 4294967294, 2147483647), "1|4294967294||$length", 'the last block there could be');

my ($tablespace, $database, $node) = map { "$_" } $request =~ /\{(\d+)\}/g;
is($primary->query(qq{SELECT request, first_block, length(content), relation_blocks FROM tandem.source_blocks(
		'{$tablespace,$tablespace,$tablespace,$tablespace}', '{$database,$database,$database,$database}',
		'{$node,$node,$node,99999999}', '{0,1,0,0}', '{0,0,5,0}', '{2,1,1,1}')}),
	"1|0|16384|\n1|2||$length\n2|0|8192|\n2|1||3\n3|5|8192|\n3|6||$length\n4|0||",
	'several requests, one after the other');

# A page never leaves before its WAL is on disk here.
is($primary->query(qq{
	BEGIN;
	SET LOCAL synchronous_commit = off;
	UPDATE t SET filler = 'not flushed' WHERE id = 1;
	SELECT pg_current_wal_flush_lsn() < max(lsn)
		FROM generate_series(0, $length - 1) b, page_header(get_raw_page('t', b::int));
	SELECT count(*) > 0 FROM tandem.source_blocks($request);
	SELECT pg_current_wal_flush_lsn() >= max(lsn)
		FROM generate_series(0, $length - 1) b, page_header(get_raw_page('t', b::int));
	COMMIT}), "t\nt\nt", 'WAL is flushed before a page is handed out');

# ---- any relation ---------------------------------------------------------------------

my $folder = $primary->basedir . '/elsewhere';
mkdir $folder or die "$folder: $!";
$primary->query("CREATE TABLESPACE elsewhere LOCATION '$folder'");
$primary->query('CREATE DATABASE other');
$primary->query('CREATE DATABASE moved TABLESPACE elsewhere');
$primary->query('CREATE EXTENSION pageinspect', $_) for qw(other moved);

sub is_same_pages
{
	my ($relation, $fork, $number, $dbname, $name) = @_;
	my $arguments = request($relation, $number, 0, 1000, $dbname);
	my $there = $primary->query(qq{SELECT count(*), string_agg(md5(get_raw_page('$relation', '$fork', b::int)), ' ' ORDER BY b)
		FROM generate_series(0, pg_relation_size('$relation', '$fork') / $block - 1) b}, $dbname);
	is($primary->query(qq{SELECT count(*), string_agg(md5(substr(content, i * $block + 1, $block)), ' ' ORDER BY first_block + i)
		FROM tandem.source_blocks($arguments), generate_series(0, length(content) / $block - 1) i}), $there, $name);
	return;
}

for my $dbname (qw(other moved))
{
	$primary->query(q{CREATE TABLE far AS SELECT g AS id, repeat('y', 100) FROM generate_series(1, 3000) g;
		VACUUM far; CHECKPOINT; UPDATE far SET id = -id; CREATE UNLOGGED TABLE fast (id integer primary key)}, $dbname);
	is_same_pages('far', 'main', 0, $dbname, "database $dbname: a table");
	is_same_pages('far', 'fsm', 1, $dbname, "database $dbname: its free space map");
	is_same_pages('far', 'vm', 2, $dbname, "database $dbname: its visibility map");
	is_same_pages('fast_pkey', 'init', 3, $dbname, "database $dbname: an initialisation fork");
}
is_same_pages('pg_database', 'main', 0, 'postgres', 'a shared catalog');
$primary->query(q{CREATE TABLE here (id integer) TABLESPACE elsewhere; INSERT INTO here SELECT 1});
is_same_pages('here', 'main', 0, 'postgres', 'a table in a tablespace');

# Nothing of it is loaded into shared buffers.
my $far = request('far', 0, 0, 1000, 'other');
my ($far_node) = $far =~ /'\{(\d+)\}', '\{0\}'/;
$primary->restart;
is($primary->query(qq{
	SELECT count(content) > 1 FROM tandem.source_blocks($far);
	SELECT count(*) FROM pg_buffercache WHERE relfilenode = $far_node}),
	"t\n0", 'pages of another database are not loaded into shared buffers');

# ---- an answer is not collected --------------------------------------------------------

$primary->query(q{CREATE TABLE big (id integer, filler text) WITH (fillfactor = 10);
	ALTER TABLE big ALTER filler SET STORAGE PLAIN;
	INSERT INTO big SELECT g, repeat('z', 3000) FROM generate_series(1, 1500) g});
my $big = request('big', 0, 0, 100000);
my $temp = q{SELECT pg_stat_force_next_flush(); SELECT temp_files FROM pg_stat_database WHERE datname = 'postgres'};
my $before = $primary->query($temp);
$primary->query(qq{SELECT sum(length((b).content)) FROM (SELECT tandem.source_blocks($big) AS b) a});
is($primary->query($temp), $before, 'row by row: no temporary file');
$primary->query(qq{SELECT sum(length(content)) FROM tandem.source_blocks($big)});
isnt($primary->query($temp), $before, '... and in FROM there is one');

# ---- dropped and truncated meanwhile ---------------------------------------------------

$primary->query('CHECKPOINT');
for my $change ('DROP TABLE big_copy', 'TRUNCATE big_copy', 'VACUUM big_copy')
{
	my ($verb) = split ' ', $change;
	$primary->query('CREATE TABLE big_copy (LIKE big INCLUDING STORAGE) WITH (fillfactor = 10); INSERT INTO big_copy TABLE big');
	$primary->query('DELETE FROM big_copy WHERE id > 300') if $verb eq 'VACUUM';
	my $all = request('big_copy', 0, 0, 100000);
	my ($copy_node) = $all =~ /'\{(\d+)\}', '\{0\}'/;
	my $session = $primary->background_psql('postgres', on_error_stop => 1);
	$session->query_safe("BEGIN; DECLARE c NO SCROLL CURSOR FOR
		SELECT (b).request, (b).first_block, (b).relation_blocks FROM (SELECT tandem.source_blocks($all) AS b) a");
	is($session->query_safe(q{FETCH 1 FROM c}), '1|0|', "$verb: an answer has begun");
	$primary->query($change);
	my $rest = $session->query_safe(q{FETCH ALL FROM c});
	$session->query_safe('COMMIT');
	$session->quit;
	my ($end) = $rest =~ /1\|\d+\|(\d+)\s*\z/;
	ok(defined $end && $end < 1500, "$verb: the answer ends without an error, at " . ($end // 'no end'));
	is($primary->query("SELECT count(*) FROM pg_buffercache WHERE relfilenode = $copy_node"), '0',
		"$verb: no buffer is left behind") unless $verb eq 'VACUUM';
	$primary->query('DROP TABLE IF EXISTS big_copy; CHECKPOINT');
	is($primary->query("SELECT request, first_block, length(content), relation_blocks FROM tandem.source_blocks($all)"),
		'1|0||', "$verb: then it is absent");
}

# ---- what is wrong on disk ----------------------------------------------------------------

sub overwrite
{
	my ($path, $at, $bytes) = @_;
	open my $file, '+<', $primary->data_dir . "/$path" or die "$path: $!";
	binmode $file;
	seek $file, $at, 0 or die "$path: $!";
	print {$file} $bytes;
	close $file or die "$path: $!";
	return;
}

sub read_at
{
	my ($path, $at, $length_wanted) = @_;
	my $bytes;
	open my $file, '<', $primary->data_dir . "/$path" or die "$path: $!";
	binmode $file;
	seek $file, $at, 0 or die "$path: $!";
	read $file, $bytes, $length_wanted;
	close $file;
	return $bytes;
}

my $path = $primary->query(q{SELECT pg_relation_filepath('big')});
$primary->query('CHECKPOINT');
$primary->stop;
my $good = read_at($path, 0, $block);
overwrite($path, 5 * $block + 12, "\xff\xff\xff\xff");	# pd_lower, pd_upper
overwrite($path, 7 * $block, pack 'VV', 0x7fff, 0);	# LSN
$primary->start;
like($primary->query_error(qq{SELECT count(*) FROM tandem.source_blocks($big)}),
	qr/invalid page in block 5 of relation base\/\d+\/\d+/, 'a broken page is refused by name');
my $seven = request('big', 0, 7, 1);
like($primary->query_error(qq{SELECT count(*) FROM tandem.source_blocks($seven)}),
	qr/block 7 of relation base\/\d+\/\d+ has LSN 7FFF\/0, beyond the end of WAL/, 'so is a page from the future');
my $six = request('big', 0, 6, 1);
is($primary->query(qq{SELECT count(*) FROM tandem.source_blocks($six)}), '2', 'its neighbour is given');

# A buffer that could not be read stays mapped, without being valid.
like($primary->query_error('SELECT count(*) FROM big'), qr/invalid page in block 5/, 'a query can not read it either');
like($primary->query_error(qq{SET statement_timeout = '30s'; SELECT count(*) FROM tandem.source_blocks($big)}),
	qr/invalid page in block 5 of/, '... which leaves a buffer that is not waited for');
overwrite($path, 5 * $block, $good);
my $five = request('big', 0, 5, 1);
is($primary->query(qq{SET statement_timeout = '30s'; SELECT md5(content) FROM tandem.source_blocks($five) WHERE content IS NOT NULL}),
	$primary->query(q{SELECT md5('\x} . unpack('H*', $good) . q{'::bytea)}), '... nor believed');

# Two segments: the first one is a hole.
my $segment = $primary->query('SELECT relation_segment_blocks FROM tandem.rejoin_source()');
SKIP:
{
	$primary->stop;
	my $file = $primary->data_dir . "/$path";
	overwrite($path, 5 * $block, $good);
	overwrite($path, 7 * $block, $good);
	skip 'no sparse files of a gigabyte here', 3 unless truncate $file, $segment * $block;
	append_to_file("$file.1", $good x 3);
	$primary->start;
	my $edge = $segment - 2;
	is(blocks('big', 0, $edge, 1000),
		"1|$edge|" . 2 * $block . "|\n1|$segment|" . 3 * $block . "|\n1|" . ($segment + 3) . '||' . ($segment + 3),
		'blocks over the edge of a segment');
	my $whole = request('big', 0, 0, $segment);
	is($primary->query(qq{SELECT count(*), sum(length((b).content)) FROM (SELECT tandem.source_blocks($whole) AS b) a
		WHERE (b).first_block >= $segment - 64}), '2|' . 64 * $block, 'zero pages are pages');
	like($primary->query_error(qq{SET statement_timeout = '20ms';
		SELECT count(*) FROM (SELECT tandem.source_blocks($whole) AS b) a}),
		qr/canceling statement due to statement timeout/, 'an answer can be cancelled');
	is($primary->query('SELECT 1'), '1', '... and the server goes on');
	$primary->stop;
	truncate $file, 1500 * $block or die "$file: $!";
	unlink "$file.1" or die "$file.1: $!";
}
$primary->start if !defined $primary->{_pid};

# ---- files -----------------------------------------------------------------------------

$primary->query(q{BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'later'});
$primary->query('CHECKPOINT');
my %disk;
File::Find::find({
	follow_fast => 1,
	no_chdir => 1,
	wanted => sub {
		my $name = substr $File::Find::name, length($primary->data_dir) + 1;
		my $db = qr{base/\d+|pg_tblspc/\d+/PG_[^/]+/\d+};
		if (-d $File::Find::name)
		{
			$disk{$name} = '' if $name =~ m{^$db$};
		}
		elsif ($name =~ m{^(?:global|$db)/(?:\d+(?:_(?:fsm|vm|init))?(?:\.\d+)?|pg_filenode\.map)$}
			|| $name =~ m{^$db/PG_VERSION$}
			|| $name =~ m{^(?:pg_xact|pg_multixact/(?:offsets|members)|pg_commit_ts|pg_twophase)/}
			|| $name eq 'pg_logical/replorigin_checkpoint')
		{
			$disk{$name} = -s $File::Find::name;
		}
	}
}, $primary->data_dir . '/');
my %listed = map { /^(.*)\|(.*)$/ ? ($1 => $2) : () }
  split /\n/, $primary->query('SELECT path, size FROM tandem.source_files()');
is_deeply(\%listed, \%disk, 'the list has each file and folder, with its size, and no other');
ok(!grep({ m{t\d+_|pg_control|pgsql_tmp|pg_internal} } keys %listed), 'no temporary file, no pg_control');

my ($two_phase) = grep { m{^pg_twophase/} } keys %listed;
my ($init) = grep { /_init$/ && $listed{$_} > 0 } keys %listed;
my ($map) = grep { m{^pg_tblspc/.*/pg_filenode.map$} } keys %listed;
for my $name ('pg_xact/0000', 'global/pg_filenode.map', $map, $two_phase, $init)
{
	my $content = slurp_file($primary->data_dir . "/$name");
	is($primary->query("SELECT md5(tandem.source_file('$name', 0, 1000000))"),
		$primary->query(q{SELECT md5('\x} . unpack('H*', $content) . q{'::bytea)}), "content of $name");
}
is($primary->query(q{SELECT length(tandem.source_file('pg_xact/0000', 100, 20)),
	length(tandem.source_file('pg_xact/0000', 8190, 20)), length(tandem.source_file('pg_xact/0000', 100000000, 20)),
	tandem.source_file('pg_xact/0FFF', 0, 20) IS NULL, tandem.source_file('base/1/424242_init', 0, 20) IS NULL,
	tandem.source_file('base/424242/pg_filenode.map', 0, 20) IS NULL}), '20|2|0|t|t|t', 'parts, and files that are not there');
for my $name ('PG_VERSION', 'global/pg_control', 'postgresql.conf', '/etc/passwd', 'base', 'base/1', 'base/1/', 'base/01/PG_VERSION',
	'base/1/../../postgresql.conf', 'pg_xact/../postgresql.conf', 'pg_xact/0000x', 'pg_xact/', 'pg_xact/0000/', './pg_xact/0000',
	'pg_tblspc/1/../pg_wal/x', 'base/1/t3_1', 'base/1/1_foo', 'pg_wal/000000010000000000000001', '')
{
	like($primary->query_error("SELECT tandem.source_file('$name', 0, 10)"),
		qr/is not a file that tandem.source_files\(\) would list/, "can't be read: \"$name\"");
}
like($primary->query_error(q{SELECT tandem.source_file('base/1/1259', 0, 10)}),
	qr/is a relation's file\nHINT:  Use tandem.source_blocks/, 'a relation is not read as a file');

# ---- where the server stands; standbys ---------------------------------------------------

is($primary->query(q{SELECT r.system_identifier = s.system_identifier::text, library = tandem.library_version(),
	server_version = current_setting('server_version_num')::int, in_recovery, timeline, flush_lsn <= insert_lsn,
	r.checkpoint_lsn = c.checkpoint_lsn, checkpoint_redo = redo_lsn, checkpoint_timeline = timeline_id, block_size,
	r.wal_segment_size = pg_size_bytes(current_setting('wal_segment_size')), data_checksums, history = ''
	FROM tandem.rejoin_source() r, pg_control_system() s, pg_control_checkpoint() c}),
	't|t|t|f|1|t|t|t|t|8192|t|f|t', 'what is said of a primary');

$primary->query('DROP TABLE here');
$primary->query('DROP DATABASE moved');
$primary->query('DROP TABLESPACE elsewhere');	# pg_basebackup would need another place for it
my $standby = $primary->new_standby('standby');
is($standby->query('SELECT in_recovery, timeline, history FROM tandem.rejoin_source()'), 't|1|', '... of a standby');
for my $call (@calls[ 1 .. 3 ])
{
	like($standby->query_error("SELECT * FROM $call"),
		qr/this server is a standby and cannot give pages or files/, "a standby refuses: $call");
}
is($standby->query("SELECT count(lsn) FROM $calls[4]"), '1', '... but it has digests');
$standby->promote;
like($standby->query(q{SELECT timeline || ' ' || history FROM tandem.rejoin_source()}),
	qr/^2 1\t[0-9A-F]+\/[0-9A-F]+\tno recovery target specified/, 'a new primary knows where it forked');

done_testing();
