# The WAL reader of "tandem rejoin" reads what recovery would read: every record
# of a rich workload as pg_waldump shows it, over crashes, timelines, records cut
# by a crash, switched and recycled segments.  On damaged files it stops where
# the damage is.
#
# A reader that misses records plans too little repair, and the node comes back
# corrupt.

use strict;
use warnings;

use File::Copy qw(copy);
use Tandem::Test;
use Tandem::Wal;
use Test::More;

my $segment_size = 1 << 20;

my $node = Tandem::Node->new_primary('primary',
	library => 0,
	initdb => ['--wal-segsize=1'],
	conf => q{
wal_keep_size = 2GB
max_prepared_transactions = 10
track_commit_timestamp = on
wal_log_hints = on
autovacuum = off
allow_in_place_tablespaces = on
max_wal_size = 4GB
});
my $wal_dir = $node->data_dir . '/pg_wal';
my $start = $node->query('SELECT pg_current_wal_insert_lsn()');

# ---- The workload -----------------------------------------------------------

$node->safe_psql('postgres', q{
CREATE EXTENSION bloom;
CREATE TABLE t (id int PRIMARY KEY, k int, words tsvector, p point, txt text, arr int[]);
CREATE INDEX ON t USING hash (k);
CREATE INDEX ON t USING gin (words);
CREATE INDEX ON t USING gin (arr) WITH (fastupdate = off);
CREATE INDEX ON t USING gist (p);
CREATE INDEX ON t USING spgist (p);
CREATE INDEX ON t USING spgist (txt);
CREATE INDEX ON t USING brin (id) WITH (pages_per_range = 1);
CREATE INDEX ON t USING bloom (k);
CREATE SEQUENCE s;
CREATE UNLOGGED TABLE u (a int PRIMARY KEY);
});
my $fill = q{
INSERT INTO t SELECT g, g %% 97, to_tsvector('simple', md5(g::text) || ' ' || g %% 7),
	point(g %% 31, g %% 57), repeat(md5((g * 7)::text), 1 + g %% 80), ARRAY[g, g %% 5]
FROM generate_series(%d, %d) g;
SELECT nextval('s') FROM generate_series(1, 100);
};
$node->safe_psql('postgres', sprintf $fill, 1, 2000);
for my $setting ('wal_compression = pglz', q{wal_consistency_checking = 'all'}, 'full_page_writes = off')
{
	my ($name, $value) = split / = /, $setting =~ s/'//gr;
	$node->set($name => $value);
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', sprintf $fill, $value =~ /pglz/ ? (2001, 3500) : $value eq 'all' ? (3501, 3700) : (3701, 4500));
	$node->safe_psql('postgres', q{UPDATE t SET k = k + 1, txt = txt || 'x' WHERE id % 3 = 0});
	$node->set($name => undef) if $name ne 'wal_compression';
}
my ($ok, $lz4) = $node->psql('postgres', q{ALTER SYSTEM SET wal_compression = 'lz4'});
$node->set(wal_compression => 'lz4') if $ok == 0;
$node->safe_psql('postgres', $_) for
  'CHECKPOINT', 'DELETE FROM t WHERE id % 5 = 0', 'VACUUM t', 'VACUUM FREEZE t', 'VACUUM FULL t',
  'REINDEX TABLE t', 'CLUSTER t USING t_pkey', 'TRUNCATE u', 'VACUUM FULL pg_class',
  sprintf($fill, 10001, 12000), 'DELETE FROM t WHERE id > 6000', 'VACUUM t',
  q{BEGIN; CREATE TABLE gone (a int); INSERT INTO gone SELECT generate_series(1, 500); ROLLBACK},
  q{BEGIN; TRUNCATE t; SELECT 1; ROLLBACK},
  q{CREATE TABLE dropped AS SELECT * FROM t; DROP TABLE dropped},
  q{CREATE DATABASE logged STRATEGY wal_log}, q{CREATE DATABASE copied STRATEGY file_copy},
  q{DROP DATABASE logged}, q{DROP DATABASE copied},
  q{CREATE TABLESPACE space LOCATION ''}, 'CREATE TABLE inspace (a int PRIMARY KEY) TABLESPACE space',
  q{CREATE DATABASE inspace TABLESPACE space STRATEGY file_copy}, 'DROP DATABASE inspace',
  'DROP TABLE inspace', 'DROP TABLESPACE space',
  q{DO $$ BEGIN FOR i IN 1..150 LOOP BEGIN INSERT INTO u VALUES (i); INSERT INTO t (id) VALUES (100000 + i);
	EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$},
  q{BEGIN; SAVEPOINT a; DELETE FROM t WHERE id = 3; ROLLBACK TO a; DELETE FROM t WHERE id = 4; ABORT},
  q{BEGIN; SAVEPOINT a; DELETE FROM t WHERE id = 7; CREATE TABLE p1 (a int); PREPARE TRANSACTION 'one'},
  q{BEGIN; DROP TABLE u; SAVEPOINT a; DELETE FROM t WHERE id = 8; PREPARE TRANSACTION 'two'},
  q{ROLLBACK PREPARED 'one'}, q{COMMIT PREPARED 'two'},
  q{SELECT pg_replication_origin_create('there');
	SELECT pg_replication_origin_session_setup('there');
	BEGIN; SELECT pg_replication_origin_xact_setup('7/89ABCDEF', now()); DELETE FROM t WHERE id = 11; COMMIT;
	BEGIN; SELECT pg_replication_origin_xact_setup('7/89ABCDFF', now()); DELETE FROM t WHERE id = 12;
	PREPARE TRANSACTION 'three'; SELECT pg_replication_origin_session_reset()},
  q{COMMIT PREPARED 'three'},
  q{SELECT pg_replication_origin_advance('there', '7/90000000')}, q{SELECT pg_replication_origin_drop('there')},
  q{SELECT pg_logical_emit_message(false, 'blkref #0: rel 1/2/3 blk 4', repeat('long', 200000))},
  q{SELECT pg_switch_wal()}, q{SELECT pg_create_restore_point('here')}, 'CHECKPOINT';

# two sessions lock the same rows
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; SELECT id FROM t WHERE id BETWEEN 20 AND 60 FOR KEY SHARE');
$node->safe_psql('postgres', 'BEGIN; SELECT id FROM t WHERE id BETWEEN 20 AND 60 FOR SHARE; COMMIT');
$locker->quit;

# ---- Crashes and timelines --------------------------------------------------

# A crash in the midst of a record that crosses segments; its end is lost.
sub cut_record
{
	my ($tag) = @_;
	$node->safe_psql('postgres', q{
		SELECT pg_switch_wal();
		SELECT pg_logical_emit_message(true, 'fill', repeat('x', 900000));
		SELECT pg_logical_emit_message(true, 'cut', repeat('y', 700000))});
	my $file = $node->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
	$node->stop('immediate');
	unlink "$wal_dir/$file" or die "could not unlink $file: $!";
	return;
}

# Recovery to the end of WAL, then a new timeline: at once, or by promotion.
sub new_timeline
{
	my ($how) = @_;
	open my $signal, '>', $node->data_dir . "/$how.signal" or die $!;
	close $signal;
	$node->start;
	$node->safe_psql('postgres', 'SELECT pg_promote()') if $how eq 'standby';
	poll_for(sub { $node->query('SELECT NOT pg_is_in_recovery()') eq 't' }, 'the new timeline');
	return;
}

$node->append_conf('postgresql.conf', q{restore_command = 'false'});
cut_record();
$node->start;
$node->safe_psql('postgres', sprintf $fill, 20001, 21000);
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 12');
$node->restart;
$node->safe_psql('postgres', sprintf $fill, 21001, 21200);
$node->stop('immediate');
new_timeline('standby');
$node->safe_psql('postgres', sprintf $fill, 21201, 22000);
cut_record();
$node->start;
$node->safe_psql('postgres', sprintf $fill, 22001, 22100);
cut_record();
new_timeline('recovery');
$node->safe_psql('postgres', sprintf $fill, 22101, 22500);
$node->kill9_all;

# ---- Everything as pg_waldump and the bytes say -----------------------------

my $wal = Tandem::Wal->new($wal_dir, $segment_size);
is(scalar($wal->history), 3, 'WAL of three timelines');

my ($lines, $end) = $wal->ours($start);
my @ours = map { Tandem::Wal::split_ours($_) } @{$lines};
my $theirs = $wal->theirs($start);
cmp_ok(scalar(@{$theirs}), '>', 20_000, 'pg_waldump reads many records');
is(scalar(@ours), scalar(@{$theirs}), 'our reader reads as many');

my (%differing, %kinds, %inits, $different);
for my $i (0 .. $#{$theirs})
{
	my ($ours, $theirs) = ($ours[$i] // {}, $theirs->[$i]);
	my $raw = $wal->dissect($theirs->{lsn}, $theirs->{len});
	my ($record_end, $pieces) = $wal->pieces($theirs->{lsn}, $theirs->{len});
	$record_end += -$record_end % $segment_size if $theirs->{kind} eq 'SWITCH';
	my %expected = (
		(map { $_ => $theirs->{$_} } qw(lsn prev rmgr xid meaning)),
		(map { $_ => $raw->{$_} } qw(top_xid origin data_len)),
		blocks => join(' ', @{ $raw->{blocks} }),
		end => lsn($record_end));
	for my $field (sort keys %expected)
	{
		next if ($ours->{$field} // '') eq $expected{$field};
		$different //= "$theirs->{lsn} $theirs->{rmgr} $theirs->{kind} $field: "
		  . ($ours->{$field} // 'nothing') . " instead of $expected{$field}";
		$differing{$field}++;
	}
	# the bytes read here are those that pg_waldump shows
	if ($theirs->{blocks} ne $expected{blocks} =~ s/:init(?= |$)//gr)
	{
		$differing{waldump}++;
		$different //= "$theirs->{lsn} $theirs->{rmgr} $theirs->{kind}: pg_waldump has blocks $theirs->{blocks}, "
		  . "the bytes $expected{blocks}";
	}
	# the server's own word for a page made anew
	$differing{init}++
	  if ($theirs->{kind} =~ /\+INIT/) != ($theirs->{rmgr} =~ /^Heap2?$/ && $ours->{blocks} =~ /:init(?: |$)/)
	  && $theirs->{rmgr} =~ /^Heap/;
	$kinds{"$theirs->{rmgr} $theirs->{kind}"}++;
	$inits{ $theirs->{rmgr} }++ if $expected{blocks} =~ /:init(?: |$)/;
}
is_deeply(\%differing, {}, 'all fields of all records agree') or diag($different);

# The workload is as rich as it claims.
my %rmgrs = map { (split / /)[0] => 1 } keys %kinds;
is_deeply(
	[ grep { !$rmgrs{$_} } qw(XLOG Transaction Storage Database Tablespace MultiXact RelMap Standby
		Heap2 Heap Btree Hash Gin Gist Sequence SPGist BRIN ReplicationOrigin Generic LogicalMessage) ],
	[], 'records of all resource managers');
ok($kinds{$_}, "records of the kind $_") for 'XLOG OVERWRITE_CONTRECORD', 'XLOG SWITCH',
  'XLOG FPW_CHANGE', 'XLOG END_OF_RECOVERY', 'XLOG PARAMETER_CHANGE', 'Transaction PREPARE',
  'Transaction COMMIT_PREPARED', 'Transaction ABORT_PREPARED', 'Storage TRUNCATE';
is($kinds{'XLOG OVERWRITE_CONTRECORD'}, 2, 'two records were cut by a crash');
ok((grep { /:image/ } map { $_->{blocks} } @ours), 'images to apply');
ok((grep { $_->{top_xid} } @ours), 'transactions that name their top level');
cmp_ok(scalar(keys %inits), '>=', 6, 'six resource managers make pages anew');
like($end, qr{^end \Q$ours[-1]{end}\E }, 'the end of WAL is the end of the last record');

# ---- Beginning elsewhere ----------------------------------------------------

srand(my $seed = $ENV{TANDEM_TEST_SEED} // time);
note("seed $seed");

my @differ;
for (1 .. 8)
{
	my $i = int rand @ours;
	my ($from) = $wal->ours($ours[$i]{lsn});
	push @differ, "from $ours[$i]{lsn}" unless "@{$from}" eq "@{$lines}[$i .. $#{$lines}]";

	# from a page's start: what begins at or after it
	my $page = number($ours[$i]{lsn}) - number($ours[$i]{lsn}) % 8192;
	next if $page < number($start);
	my $first = 0;
	$first++ while number($ours[$first]{lsn}) < $page;
	($from, my $last) = $wal->ours(lsn($page));
	push @differ, 'from page ' . lsn($page) . ": $last"
	  unless "@{$from}" eq "@{$lines}[$first .. $#{$lines}]";
}
is_deeply(\@differ, [], 'reading from any record or page on gives the same records');

my (undef, $nothing) = $wal->ours(lsn(number($ours[100]{lsn}) + 8));
like($nothing, qr/^end /, 'where no record begins there is none');

# ---- Segments that are missing, old or damaged ------------------------------

my $copy_dir = PostgreSQL::Test::Utils::tempdir();
my $other_dir = PostgreSQL::Test::Utils::tempdir();
my @files = map { s{.*/}{}r } sort grep { /[0-9A-F]{24}$/ } glob "$wal_dir/*";

sub fresh_copy
{
	my (@names) = @_;
	unlink glob "$copy_dir/*";
	copy("$wal_dir/$_", "$copy_dir/$_") for @names, map { s{.*/}{}r } glob "$wal_dir/*.history";
	return Tandem::Wal->new($copy_dir, $segment_size);
}

# The file of a segment amid timeline 1, and how many records end before it.
my $amid = $wal->file_name(1, $ours[ @ours / 2 ]{lsn});
my $copied = fresh_copy(@files);
rename "$copy_dir/$amid", "$other_dir/$amid" or die $!;
my ($some, $last) = $copied->ours($start);
is($last, "missing $amid", 'a missing segment is named');
is("@{$some}", "@{$lines}[0 .. $#{$some}]", 'all records before it were read');
my ($all) = $copied->ours($start, $other_dir);
ok("@{$all}" eq "@{$lines}", 'with a copy from elsewhere all records are read');

# At a fork: the parent's file has the records before it, and nothing after.
my ($first, $second) = $wal->history;
my $forked = $wal->file_name(2, lsn($second->{begin}));
$copied = fresh_copy(grep { $_ ne $forked } @files);
($some, $last) = $copied->ours($start);
is($last, "missing $forked", 'the segment of a fork is missed on the new timeline');
is(Tandem::Wal::split_ours($some->[-1])->{end}, lsn($first->{end}),
	'the parent\'s file was read up to the fork');

# Old content after the end, as recycled files and pages have.
my $last_file = $files[-1];
my $end_number = number($ours[-1]{end});
$copied = fresh_copy(@files);
copy("$wal_dir/$files[3]", "$copy_dir/" . $wal->file_name(3, lsn($end_number + $segment_size)));
{
	open my $from, '<:raw', "$wal_dir/$files[3]" or die $!;
	open my $to, '+<:raw', "$copy_dir/" . $wal->file_name(3, lsn($end_number)) or die $!;
	my $offset = $end_number % $segment_size;
	seek $from, $offset, 0;
	seek $to, $offset, 0;
	local $/ = undef;
	print {$to} scalar <$from>;
	close $to or die $!;
}
($some, $last) = $copied->ours($start);
ok("@{$some}" eq "@{$lines}", 'old pages after the end change nothing');
like($last, qr/^end \Q$ours[-1]{end}\E /, 'and the end is where it was');

# Damage: whatever comes out was there, in order, and nothing past the damage.
# Two segments, so that it is quick, the first one with the most records.
my %in_segment;
$in_segment{ number($_->{lsn}) - number($_->{lsn}) % $segment_size }++
  for grep { $_->{timeline} == 1 } @{$theirs};
my ($early) = sort { $in_segment{$b} <=> $in_segment{$a} } keys %in_segment;
my @two = map { $wal->file_name(1, lsn($early + $_ * $segment_size)) } 0, 1;
$copied = fresh_copy(@two);
my $from = lsn($early);
my ($good) = $copied->ours($from);
cmp_ok(scalar(@{$good}), '>', 50, 'two segments to damage');
my @wrong;
for my $round (1 .. 60)
{
	my $path = "$copy_dir/$two[$round % 2]";
	my $at = int rand $segment_size;
	my $damage;
	if ($round % 6 == 0)
	{
		$damage = "cut at $at";
		truncate $path, $at or die $!;
	}
	else
	{
		open my $file, '+<:raw', $path or die $!;
		# headers of pages are hit more often than by chance
		$at -= $at % 8192 - int rand 40 if $round % 3 == 0;
		seek $file, $at, 0;
		read $file, my $byte, 1;
		seek $file, $at, 0;
		my $bit = 1 << int rand 8;
		print {$file} chr(ord($byte) ^ $bit);
		close $file or die $!;
		$damage = "bit $bit at $at";
	}
	my ($read, $said) = eval { $copied->ours($from) };
	push @wrong, "$two[$round % 2] $damage: " . ($@ || $said)
	  unless $read && $said =~ /^(end|missing) / && @{$read} <= @{$good}
	  && "@{$read}" eq "@{$good}[0 .. $#{$read}]";
	copy("$wal_dir/$two[$round % 2]", $path);
}
is_deeply(\@wrong, [], 'damaged WAL gives only records that were there, then ends');

# A right checksum over nonsense: no crash, no endless loop.
my @crc_table = map {
	my $c = $_;
	$c = $c & 1 ? $c >> 1 ^ 0x82F63B78 : $c >> 1 for 1 .. 8;
	$c
} 0 .. 255;

sub crc32c
{
	my $crc = 0xFFFFFFFF;
	$crc = $crc_table[ ($crc ^ $_) & 0xFF ] ^ $crc >> 8 for unpack 'C*', join '', @_;
	return $crc ^ 0xFFFFFFFF;
}

my @whole = grep {
	my (undef, $pieces) = $wal->pieces($_->{lsn}, $_->{len});
	@{$pieces} == 1 && $_->{len} < 400 && $wal->file_name(1, $_->{lsn}) eq $two[0]
	  && $_->{timeline} == 1
} @{$theirs};
cmp_ok(scalar(@whole), '>', 20, 'records to fill with nonsense');
@wrong = ();
for my $round (1 .. 40)
{
	my $record = $whole[ rand @whole ];
	my $bytes = $wal->record_bytes($record->{lsn}, $record->{len});
	if ($round == 1)
	{
		is(crc32c(substr($bytes, 24), substr($bytes, 0, 20)), unpack('V', substr $bytes, 20, 4),
			'this test computes checksums as the server does');
	}
	for (1 .. 1 + rand 8)
	{
		substr($bytes, 24 + rand(length($bytes) - 24), 1) = chr rand 256;
		substr($bytes, 16, 2) = pack 'CC', int(rand 16) << 4, rand 24 if rand(4) < 1;
	}
	substr($bytes, 20, 4) = pack 'V', crc32c(substr($bytes, 24), substr($bytes, 0, 20));
	open my $file, '+<:raw', "$copy_dir/$two[0]" or die $!;
	seek $file, number($record->{lsn}) % $segment_size, 0;
	print {$file} $bytes;
	close $file or die $!;
	my ($read, $said) = eval { $copied->ours($from) };
	push @wrong, "$record->{lsn}: " . ($@ || $said)
	  unless $said && $said =~ /^(end|missing|exit .*(too short|has a count))/;
	copy("$wal_dir/$two[0]", "$copy_dir/$two[0]");
}
is_deeply(\@wrong, [], 'nonsense with a right checksum does no harm');

done_testing();
