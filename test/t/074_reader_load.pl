# Pages read while they are changed, evicted, truncated and dropped.
#
# Shared buffers are tiny, so that each page comes now from a buffer, now from
# its file.  Whole pages only (checksums say so), never older than what was
# there before the call, no buffer left of a dropped relation; and at the same
# LSN a standby's page has the same digest, though not the same bytes.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $rounds = 60;
my $primary = Tandem::Node->new_primary('primary', initdb => ['--data-checksums'], conf => q{
	shared_buffers = 1MB
	checkpoint_timeout = 30s
	autovacuum_naptime = 1s
	max_wal_size = 4GB
});
my $standby = $primary->new_standby('standby', conf => 'shared_buffers = 8MB');
$primary->query('CREATE EXTENSION pageinspect; CREATE EXTENSION pg_buffercache');

$primary->query(q{
	CREATE TABLE counter (id integer PRIMARY KEY, n integer, filler text) WITH (fillfactor = 40);
	INSERT INTO counter SELECT g, 0, repeat('c', 200) FROM generate_series(1, 3000) g;
	CREATE TABLE shrinks (id serial, filler text);
	CREATE TABLE comes (id serial, filler text);
	-- What "tandem rejoin" sends: all forks of all of them, as they are at this moment.
	CREATE VIEW requests AS
		SELECT array_agg(1663::oid) AS tablespace, array_agg(d.oid) AS database, array_agg(pg_relation_filenode(c.oid)) AS node,
			array_agg(fork) AS fork, array_agg(0::bigint) AS first, array_agg(1000000) AS count
		FROM pg_class c, pg_database d, generate_series(0, 2) fork
		WHERE datname = current_database() AND relnamespace = 'public'::regnamespace AND pg_relation_filenode(c.oid) IS NOT NULL;
	CREATE VIEW pages AS
		SELECT (b).request, (b).first_block + i AS block, substr((b).content, i * 8192 + 1, 8192) AS page
		FROM (SELECT tandem.source_blocks(tablespace, database, node, fork, first, count) AS b FROM requests OFFSET 0) a,
			generate_series(0, length((b).content) / 8192 - 1) i;
});

my $load = $primary->start_load(clients => 3, script => q{
\set id random(1, 3000)
\set what random(1, 60)
UPDATE counter SET n = n + 1, filler = repeat('c', :what * 6) WHERE id = :id;
INSERT INTO shrinks (filler) SELECT repeat('s', 500) FROM generate_series(1, 20);
\if :what = 1
DELETE FROM shrinks;
\elif :what = 2
BEGIN;
SELECT pg_advisory_xact_lock(1);
TRUNCATE comes;
COMMIT;
\elif :what = 3
BEGIN;
SELECT pg_advisory_xact_lock(1);
DROP TABLE comes;
CREATE TABLE comes (id serial, filler text);
COMMIT;
\else
INSERT INTO shrinks (filler) VALUES ('x');
\endif
});

my $pages = 0;
my $broken = 0;
my $old = 0;
my $failed = '';
for my $round (1 .. $rounds)
{
	my ($code, $out, $err) = $primary->psql('postgres', q{
		SELECT count(*), count(*) FILTER (WHERE page <> decode(repeat('00', 8192), 'hex')
			AND page_checksum(page, block::int) <> (page_header(page)).checksum) FROM pages});
	$failed .= $err if $code != 0;
	my ($all, $bad) = $out =~ /^(\d+)\|(\d+)/;
	$pages += $all // 0;
	$broken += $bad // 0;

	# The page of a row that was just updated has that, or something newer.
	my $id = 1 + int rand 3000;
	($code, $out, $err) = $primary->psql('postgres', qq{
		UPDATE counter SET n = n + 1 WHERE id = $id RETURNING (ctid::text::point)[0]::int \\gset line_
		SELECT lsn FROM page_header(get_raw_page('counter', :line_ctid)) \\gset before_
		SELECT (page_header((b).content)).lsn >= :'before_lsn'
		FROM (SELECT tandem.source_blocks(ARRAY[1663::oid], ARRAY[oid], ARRAY[pg_relation_filenode('counter')], '{0}', ARRAY[:line_ctid]::bigint[], '{1}') AS b
			FROM pg_database WHERE datname = current_database()) a WHERE (b).content IS NOT NULL});
	$failed .= $err if $code != 0;
	$old++ unless $out =~ /^t$/m;
}
is($failed, '', "$rounds reads of all relations under load: no error");
cmp_ok($pages, '>', $rounds * 100, "$pages pages read");
is($broken, 0, 'all of them whole');
is($old, 0, 'none older than what was there before the call');
unlike($primary->stop_load($load), qr/aborted|ERROR/, 'the load has not noticed');

is($primary->query(q{
	CHECKPOINT;
	SELECT count(*) FROM pg_buffercache b WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')
		AND relfilenode >= 16384 AND NOT EXISTS (SELECT 1 FROM pg_class WHERE pg_relation_filenode(oid) = b.relfilenode)}),
	'0', 'no buffer is left of a relation that was dropped');

# ---- primary and standby -------------------------------------------------------------------

# vacuum would come between the two looks
$primary->set(autovacuum => 'off');
poll_for(sub { !$primary->pids_of(qr/autovacuum worker/) }, 'the last autovacuum worker to end');
$primary->query(q{
	CREATE TABLE other (id integer, words text[], at point, span int4range, filler text);
	CREATE INDEX other_btree ON other USING btree (id);
	CREATE INDEX other_hash ON other USING hash (id);
	CREATE INDEX other_gin ON other USING gin (words);
	CREATE INDEX other_gist ON other USING gist (at);
	CREATE INDEX other_spgist ON other USING spgist (at);
	CREATE INDEX other_brin ON other USING brin (id);
	CREATE SEQUENCE numbers;
	CREATE TABLE arguments AS SELECT c.relname, array_agg(ARRAY[1663, d.oid, pg_relation_filenode(c.oid), 0]) AS a,
		max(CASE amname WHEN 'heap' THEN 10 WHEN 'btree' THEN 11 WHEN 'hash' THEN 12 WHEN 'gin' THEN 13 WHEN 'gist' THEN 14
			WHEN 'spgist' THEN 16 WHEN 'brin' THEN 17 ELSE 15 END) AS rmgr
	FROM pg_class c LEFT JOIN pg_am a ON relam = a.oid, pg_database d
	WHERE datname = current_database() AND relname ~ '^(other|counter|numbers)' AND pg_relation_filenode(c.oid) IS NOT NULL GROUP BY 1;
});
# some churn: deletes that leave hints, an aborted transaction, indexes with dead entries
$primary->query($_) for q{INSERT INTO other SELECT g % 700, ARRAY['w' || g % 50, 'v' || g % 7], point(g % 100, g % 37), int4range(g, g + 5), 'x'
	FROM generate_series(1, 5000) g}, q{BEGIN; DELETE FROM other WHERE id % 3 = 0; ROLLBACK}, q{DELETE FROM other WHERE id % 5 = 0},
	q{VACUUM other}, q{SELECT nextval('numbers') FROM generate_series(1, 50)}, q{UPDATE other SET id = id + 1 WHERE id % 7 = 0},
	q{DELETE FROM other WHERE id % 11 = 0}, q{SELECT count(*) FROM other}, q{SET enable_seqscan = off; SELECT count(*) FROM other WHERE id BETWEEN 1 AND 300};
$primary->wait_replayed($standby);

my $digests = q{
	SELECT relname || '/' || block || ' ' || coalesce(lsn || ' ' || digest, 'absent') FROM arguments,
		LATERAL (SELECT array_agg(g) AS blocks FROM generate_series(0, 300) g) g,
		LATERAL tandem.page_digests(array_fill(a[1][1]::oid, ARRAY[301]), array_fill(a[1][2]::oid, ARRAY[301]), array_fill(a[1][3]::oid, ARRAY[301]),
			array_fill(0, ARRAY[301]), blocks, array_fill(rmgr, ARRAY[301])) d, LATERAL (SELECT blocks[request] AS block) b
	ORDER BY relname, block};
my $here = $primary->query($digests);
my $there = $standby->query($digests);
my $absent = () = $here =~ /absent/g;
my @rows = split /\n/, $here;
cmp_ok(@rows - $absent, '>', 300, (@rows - $absent) . ' pages of every access method');
is($there, $here, 'their LSNs and digests are the same on primary and standby');

my $raw = q{SELECT string_agg(md5(get_raw_page('other', b)), ' ') FROM generate_series(0, pg_relation_size('other') / 8192 - 1) b};
$raw =~ s/, b\)/, b::int)/;
isnt($standby->query($raw), $primary->query($raw), '... which their bytes are not');

# Under load too: where the LSN is the same, the digest is.
$load = $primary->start_load(clients => 2, script => q{
\set id random(1, 700)
UPDATE other SET filler = filler || 'y' WHERE id = :id;
DELETE FROM other WHERE id = :id AND length(filler) > 20;
INSERT INTO other VALUES (:id, ARRAY['w', 'z'], point(:id, 1), int4range(:id, :id + 1), '');
SELECT count(*) FROM other WHERE id = :id;
});
my %seen = (same => 0, differs => 0, other_lsn => 0);
for (1 .. 10)
{
	my %lsn = map { /^(\S+) (.*)$/ ? ($1 => $2) : () } split /\n/, $primary->query($digests);
	for (split /\n/, $standby->query($digests))
	{
		my ($page, $lsn) = /^(\S+) (.*)$/ or next;
		next if $lsn eq 'absent' || $lsn{$page} eq 'absent';
		my ($a) = split / /, $lsn;
		my ($b) = split / /, $lsn{$page};
		$seen{ $a ne $b ? 'other_lsn' : $lsn eq $lsn{$page} ? 'same' : 'differs' }++;
	}
}
$primary->stop_load($load);
cmp_ok($seen{same}, '>', 100, "under load $seen{same} pages with the same LSN, $seen{other_lsn} with another");
is($seen{differs}, 0, 'none of the same LSN differs');

done_testing();
