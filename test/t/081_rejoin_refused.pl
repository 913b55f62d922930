# What "tandem rejoin" can't do or can't prove it refuses: one sentence, one
# hint, exit code 1 (2 for wrong usage), and the directory is byte for byte what
# it was.

use strict;
use warnings;

use Fcntl qw(SEEK_SET);
use Tandem::Command;
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Tandem::Wal ();
use Test::More;

delete @ENV{qw(PGDATA PGDATABASE)};

my $segment_size = 1 << 20;
my $pair = Tandem::Rejoin->new(initdb => ['--wal-segsize=1'], conf => "wal_keep_size = 200MB\n");
my $primary = $pair->primary;
$primary->query('CREATE TABLE t AS SELECT g AS id, md5(g::text) AS x FROM generate_series(1, 3000) g');
$primary->query('CHECKPOINT');
$primary->query(q{INSERT INTO t SELECT g, 'common' FROM generate_series(3001, 3500) g});
$primary->switch_wal(2);
$primary->query(q{INSERT INTO t SELECT g, 'common' FROM generate_series(3501, 4000) g});
$pair->part(checkpoint => 0);
$primary->query(q{UPDATE t SET x = 'lost' WHERE id % 3 = 0});
$pair->fail_over;
my ($old, $new) = ($pair->old_primary, $pair->new_primary);
$new->query(q{INSERT INTO t VALUES (5000, 'gained')});
$new->query($_) for 'CREATE ROLE nothing LOGIN', 'CREATE ROLE replicates LOGIN REPLICATION',
  'CREATE DATABASE elsewhere';

my $data = $old->data_dir;
my $source = $pair->source;
my $wreck = $old->basedir . '/wreck';
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $data, $wreck);

# One refusal: the directory, further options, what the sentence and the hint
# have to say; options code (default 1), source, dir.
sub is_refused
{
	my ($name, $sentence, $hint, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $dir = $how{dir} // $data;
	my $before = -d $dir && -r $dir && !$how{running} ? Tandem::Rejoin::tree($dir) : undef;
	my ($code, $out, $err) = tandem('rejoin',
		$how{bare} ? () : ('-D', $dir, '--source', $how{source} // $source),
		@{ $how{options} // [] });

	is($code, $how{code} // 1, "$name: exit code");
	my @errors = $err =~ /^tandem: error: (.*)$/mg;
	my @hints = $err =~ /^tandem: hint: (.*)$/mg;
	is(scalar(@errors), 1, "$name: one sentence") or diag("$out$err");
	is(scalar(@hints), 1, "$name: one hint") or diag($err);
	is($err =~ s/^tandem: (error|hint): .*\n//mgr, '', "$name: and nothing else");
	like($errors[0] // '', $sentence, "$name: says what");
	like($hints[0] // '', $hint, "$name: says what to do");
	unlike($out, qr/^(repair files|cut WAL)/m, "$name: nothing was begun");
	Tandem::Rejoin::is_unchanged($dir, $before, "$name: the directory is unchanged") if $before;
	return;
}

# Changes the directory for one refusal, then puts it back.
sub with_change
{
	my ($change, @refusal) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$change->();
	is_refused(@refusal);
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $data);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $wreck, $data);
	return;
}

sub write_file
{
	my ($path, $content) = @_;
	open my $file, '>:raw', $path or die "could not open $path: $!";
	print {$file} $content;
	close $file or die $!;
	return;
}

sub flip_byte
{
	my ($path, $at) = @_;
	open my $file, '+<:raw', $path or die "could not open $path: $!";
	seek $file, $at, SEEK_SET;
	my $byte;
	read $file, $byte, 1;
	seek $file, $at, SEEK_SET;
	print {$file} chr(ord($byte) ^ 0xFF);
	close $file or die $!;
	return;
}

# ---- Usage ---------------------------------------------------------------------

is_refused('no directory', qr/no data directory/, qr/-D/, bare => 1, code => 2, options => [ '--source', $source ]);
is_refused('no source', qr/no source/, qr/--source/, bare => 1, code => 2, options => [ '-D', $data ]);
is_refused('not a connection string', qr/is not a connection string/, qr/--source=/, code => 2, source => 'host');
is((tandem('rejoin', '--no-such-option'))[0], 2, 'an unknown option: exit code');

# ---- Directories -----------------------------------------------------------------

my $empty = PostgreSQL::Test::Utils::tempdir();
is_refused('no such directory', qr/could not open directory .*No such file/, qr/-D/, dir => "$empty/missing");
is_refused('an empty directory', qr/not a data directory.*PG_VERSION/, qr/-D/, dir => $empty);
is_refused('a file', qr/is not a directory/, qr/-D/, dir => "$data/PG_VERSION");
is_refused('somebody else\'s directory', qr/belongs to another user/, qr/as the user/, dir => '/', running => 1);
with_change(sub { write_file("$data/PG_VERSION", "14\n") },
	'another version', qr/PostgreSQL 14/, qr/tandem/);
with_change(sub { unlink "$data/global/pg_control" },
	'half a directory', qr/pg_control/, qr/-D/);
with_change(sub { flip_byte("$data/global/pg_control", 100) },
	'a damaged pg_control', qr/pg_control" is damaged/, qr/base backup/);
with_change(sub { write_file("$data/backup_label", "START WAL LOCATION: 0/2000028\n") },
	'a base backup', qr/base backup/, qr/standby/);

is_refused('a running server', qr/a server is running in/, qr/pg_ctl stop/, dir => $new->data_dir, running => 1);
my $alive = $new->postmaster_pid;
with_change(sub { write_file("$data/postmaster.pid", "$alive\n$data\n1\n") },
	'a lock file of a living process', qr/a server is running in .*process $alive/, qr/postmaster\.pid/);

my $wal = Tandem::Wal->new("$data/pg_wal", $segment_size);
my $fork = lsn_number($pair->fork_lsn);
my $fork_file = $wal->file_name(1, Tandem::Wal::lsn($fork - 1));

# ---- Permissions -------------------------------------------------------------------

my $table = $new->query(q{SELECT pg_relation_filepath('t')});
my @changes = (
	[ 'the directory', '', oct '500', qr/could not|permission/i ],
	[ 'pg_control', 'global/pg_control', 0, qr/pg_control.*Permission denied/ ],
	[ 'pg_wal', 'pg_wal', 0, qr/Permission denied/ ],
	[ 'a WAL segment', "pg_wal/$fork_file", 0, qr/Permission denied/ ],
	[ 'a table', $table, 0, qr/Permission denied/ ]);
for my $change (@changes)
{
	my ($what, $path, $mode, $sentence) = @{$change};
	my $before = (stat "$data/$path")[2] & oct 7777;
	chmod $mode, "$data/$path" or die $!;
	is_refused("no permission for $what", $sentence, qr/./);
	chmod $before, "$data/$path" or die $!;
}

# ---- Sources --------------------------------------------------------------------------

my $host = $new->host;
my $port = $new->port;
is_refused('nobody there', qr/could not connect to the source/, qr/--source/, source => "host=$empty port=$port user=repl");
is_refused('a role that may nothing', qr/permission denied/, qr/docs\/failback\.md/,
	source => "host=$host port=$port dbname=postgres user=nothing");
is_refused('a role without the grants', qr/permission denied/, qr/docs\/failback\.md/,
	source => "host=$host port=$port dbname=postgres user=replicates");
is_refused('a database without the extension', qr/tandem/, qr/tandem\.database/,
	source => "host=$host port=$port dbname=elsewhere user=repl");

my $standby = $new->new_standby('c');
is_refused('a standby', qr/is a standby/, qr/promote/,
	source => 'host=' . $standby->host . ' port=' . $standby->port . ' dbname=postgres user=repl');
$standby->stop;

my $foreign = Tandem::Node->new_primary('foreign', initdb => ['--wal-segsize=1']);
$foreign->query($_) for 'CREATE ROLE repl LOGIN REPLICATION',
  'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tandem TO repl', 'GRANT USAGE ON SCHEMA tandem TO repl';
is_refused('another cluster', qr/another cluster.*system identifier/, qr/promoted in place/,
	source => 'host=' . $foreign->host . ' port=' . $foreign->port . ' dbname=postgres user=repl');
$foreign->stop;

$new->query(q{SELECT pg_create_logical_replication_slot('decodes', 'test_decoding')});
is_refused('a logical slot', qr/"decodes".* is a logical slot/, qr/--slot/, options => [ '--slot', 'decodes' ]);
$new->query(q{SELECT pg_drop_replication_slot('decodes')});

$new->append_conf('pg_hba.conf', '');
my $hba = slurp_file($new->data_dir . '/pg_hba.conf');
write_file($new->data_dir . '/pg_hba.conf', "local all all trust\n");
$new->reload;
poll_for(sub { ($new->psql('postgres', 'SELECT 1', replication => 'true', extra_params => [ '-U', 'repl' ]))[0] != 0 },
	'the new pg_hba.conf');
is_refused('no replication connection', qr/replication connection was refused/, qr/pg_hba\.conf/);
write_file($new->data_dir . '/pg_hba.conf', $hba);
$new->reload;
poll_for(sub { ($new->psql('postgres', 'IDENTIFY_SYSTEM', replication => 'true', extra_params => [ '-U', 'repl' ]))[0] == 0 },
	'the old pg_hba.conf');

# ---- WAL ----------------------------------------------------------------------------------

my $amid = $wal->file_name(1, Tandem::Wal::lsn($fork - $segment_size));
ok(-e "$data/pg_wal/$amid" && -e $new->data_dir . "/pg_wal/$amid", 'a segment between the checkpoint and the fork');

# Missing here, but the new primary has it: that is no reason.
unlink "$data/pg_wal/$amid";
my ($code, $out, $err) = tandem('rejoin', '-D', $data, '--source', $source, '--dry-run');
is($code, 0, 'a segment that only the new primary has is read from there') or diag($err);
ok(!-e "$data/pg_wal/$amid", 'a dry run changes nothing');

my $archive = PostgreSQL::Test::Utils::tempdir();
rename $new->data_dir . "/pg_wal/$amid", "$archive/$amid" or die $!;
is_refused('a segment that nobody has', qr/$amid/, qr/--restore-command/, options => ['--dry-run']);
is_refused('a segment that nobody has', qr/$amid/, qr/--restore-command/);
is_refused('a restore command that fails', qr/$amid/, qr/./, options => [ '--restore-command', 'false' ]);
is_refused('a restore command with a wrong placeholder', qr/--restore-command/, qr/%f/,
	options => [ '--restore-command', 'cp %x' ]) if 0;
($code, $out, $err) = tandem('rejoin', '-D', $data, '--source', $source, '--dry-run',
	'--restore-command', "cp $archive/%f %p");
is($code, 0, 'a segment that the archive has is read from there') or diag($err);
rename "$archive/$amid", $new->data_dir . "/pg_wal/$amid" or die $!;
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', "$wreck/pg_wal/$amid", "$data/pg_wal/$amid");

# Damage before the fork would hide what comes after it.
my ($lines) = $wal->ours('0/' . sprintf '%X', $fork - $fork % $segment_size);
my @records = map { Tandem::Wal::split_ours($_) } @{$lines};
my ($before_fork) = reverse grep { lsn_number($_->{end}) < $fork } @records;
my ($after_fork) = grep { lsn_number($_->{lsn}) > $fork } @records;
sub damage
{
	my ($record) = @_;
	my $at = lsn_number($record->{lsn});
	flip_byte("$data/pg_wal/" . $wal->file_name(1, $record->{lsn}), $at % $segment_size + 20);
	return;
}
with_change(sub { damage($before_fork) }, 'WAL damaged before the fork', qr/damaged|ends at/, qr/base backup/);
with_change(sub { damage($after_fork) }, 'WAL damaged after the fork', qr/damaged|ends at/, qr/base backup/);

# The new primary has lost the fork's segment.
$new->switch_wal(3);
$new->query('CHECKPOINT');
my @fork_files = grep { -e } map { $new->data_dir . '/pg_wal/' . $wal->file_name($_, Tandem::Wal::lsn($fork - 1)) } 1, 2;
rename $_, "$archive/" . s{.*/}{}r for @fork_files;
is_refused('a source without the fork\'s WAL', qr/no longer has the WAL from the fork/, qr/base backup.*failback_keep_size/);
rename "$archive/" . s{.*/}{}r, $_ for @fork_files;

# ---- And it would have worked -----------------------------------------------------------

($code, $out, $err) = $pair->rejoin;
is($code, 0, 'with nothing in its way the same directory is rejoined') or diag("$out$err");
$pair->caught_up;
$pair->is_equal('at last');

# ---- What was never logged ----------------------------------------------------------------

# Damage that no checkpoint lies behind: without noticing it, the lost stretch
# would seem not to exist.
$pair = Tandem::Rejoin->new;
$pair->primary->query('CREATE TABLE t AS SELECT generate_series(1, 100) AS id');
$pair->primary->query('CHECKPOINT');
$pair->primary->query('INSERT INTO t VALUES (101)');
$pair->part(checkpoint => 0);
my $here = $pair->primary->query('SELECT pg_current_wal_insert_lsn()');
$pair->primary->query('UPDATE t SET id = id + 1');
$pair->fail_over(checkpoint => 0);
flip_byte($pair->old_primary->data_dir . '/pg_wal/' . $pair->new_primary->query("SELECT '00000001' || substr(pg_walfile_name('$here'), 9)"),
	lsn_number($pair->fork_lsn) % (16 << 20) - 10);
is_refused('WAL damaged just before the fork', qr/local WAL is damaged: it ends at/, qr/base backup/,
	dir => $pair->old_primary->data_dir, source => $pair->source);
$pair->new_primary->stop;

# Another pair: hint bits that weren't logged, or full-page images.
for my $case (
	[ 'hint bits were not logged', 'wal_log_hints = off', [], qr/wal_log_hints/ ],
	[ 'full pages were not written', '', [ q{ALTER SYSTEM SET full_page_writes = off}, 'SELECT pg_reload_conf()' ],
		qr/full_page_writes was/ ])
{
	my ($name, $conf, $statements, $sentence) = @{$case};
	$pair = Tandem::Rejoin->new(conf => "$conf\n");
	$pair->primary->query('CREATE TABLE t AS SELECT generate_series(1, 100) AS id');
	$pair->part;
	$pair->primary->query($_) for @{$statements};
	poll_for(sub { $pair->primary->query('SHOW full_page_writes') eq 'off' }, 'full_page_writes off') if @{$statements};
	$pair->primary->query('UPDATE t SET id = id + 1');
	$pair->primary->query('CHECKPOINT');
	$pair->fail_over;
	is_refused($name, $sentence, qr/base backup/, dir => $pair->old_primary->data_dir, source => $pair->source);
	$pair->new_primary->stop;
}

done_testing();
