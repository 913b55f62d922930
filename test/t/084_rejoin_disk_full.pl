# "tandem rejoin" on a full disk: before anything is begun the directory stays as
# it was; later the same command goes on when there is room.

use strict;
use warnings;

use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $disk = small_disk()
  or plan skip_all => 'no small file system: make check as root provides one';

my $pair = Tandem::Rejoin->new(initdb => ['--wal-segsize=1'], conf => "wal_keep_size = 64MB\nmin_wal_size = 2MB\nmax_wal_size = 8MB\n");
$pair->primary->query('CREATE TABLE t AS SELECT g AS id, md5(g::text) AS x FROM generate_series(1, 20000) g');
$pair->primary->query('CREATE TABLE dropped AS SELECT g AS id, repeat(md5(g::text), 10) AS x FROM generate_series(1, 20000) g');
$pair->part;
$pair->primary->query(q{UPDATE t SET x = 'lost' WHERE id % 5 = 0});
$pair->primary->query('DROP TABLE dropped');
$pair->fail_over;
$pair->new_primary->query(q{INSERT INTO t VALUES (0, 'gained')});

# The data directory moves to the small disk; a link leads there.
my $data = $pair->old_primary->data_dir;
my $where = "$disk/pgdata.$$";
unlink glob "$data/tandem_rejoin.log";
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $data, $where);
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $data);
symlink $where, $data or die $!;

fill_disk($disk);
my $before = Tandem::Rejoin::tree($where);
my ($code, $out, $err) = $pair->rejoin;
is($code, 1, 'on a full disk: exit code');
like($err, qr/^tandem: error: .*No space left on device$/m, 'the sentence');
like($err, qr/^tandem: hint: Make room/m, 'the hint');
Tandem::Rejoin::is_unchanged($where, $before, 'the directory is unchanged');

# Room for the journal, and not for what has to be copied.
free_disk();
{
	my ($free) = (split ' ', (PostgreSQL::Test::Utils::run_command([ 'df', '--output=avail', '-B1', $disk ]))[0])[-1];
	open my $file, '>', "$disk/filler.$$" or die $!;
	print {$file} "\0" x 65536 for 1 .. ($free - 2_000_000) / 65536;
	close $file or die $!;
}
($code, $out, $err) = $pair->rejoin;
is($code, 1, 'full in the midst: exit code');
like($err, qr/^tandem: error: .*No space left on device$/m, 'the sentence');
like($err, qr/half repaired and cannot be started; the same command goes on/, 'the state of the directory');
ok(!-e "$where/global/pg_control", 'no server can start');

unlink "$disk/filler.$$";
($code, $out, $err) = $pair->rejoin;
is($code, 0, 'with room the same command goes on') or diag("$out$err");
$pair->caught_up;
$pair->is_equal('after a full disk');

done_testing();
