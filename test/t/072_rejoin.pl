# An old primary comes back: crashed with pages ahead of the fork, cleanly
# stopped, or merely behind; with a role that is no superuser; what is printed;
# a second time; back and forth.

use strict;
use warnings;

use Fcntl qw(O_RDONLY LOCK_EX LOCK_NB);
use Tandem::Command;
use Tandem::Test;
use Test::More;

my $conf = q{
shared_buffers = 1MB
wal_log_hints = on
autovacuum = off
wal_keep_size = 256MB
};

# From here on the standby gets nothing more.
sub cut_off
{
	my ($standby) = @_;
	$standby->set(primary_conninfo => '');
	poll_for(sub { !$standby->pids_of(qr/walreceiver/) }, 'the receiver to end');
	return;
}

my $a = Tandem::Node->new_primary('a', conf => $conf, recipe => 1);
$a->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text, pad text);
	INSERT INTO t SELECT g, 'old', repeat('x', 200) FROM generate_series(1, 20000) g;
	CHECKPOINT});
my $b = $a->new_standby('b');

# ---- a crash with pages ahead of the fork ----------------------------------------

$a->wait_replayed($b);
cut_off($b);
$a->safe_psql('postgres', q{
	UPDATE t SET v = 'lost' WHERE id % 7 = 0;
	CREATE TABLE lost AS SELECT * FROM t;
	CREATE INDEX ON lost (v);
	CHECKPOINT});
$a->kill9_all;
$b->promote;
$b->safe_psql('postgres', q{UPDATE t SET v = 'new' WHERE id % 11 = 0; CREATE TABLE kept AS SELECT * FROM t});

my @rejoin = ('rejoin', '-D', $a->data_dir, '--source', $b->conninfo_for($a));
my ($code, $out, $err) = tandem(@rejoin, '--dry-run');
is($code, 0, 'dry run') or diag $err;
note $out;
($code, $out, $err) = tandem(@rejoin);
is($code, 0, 'rejoin') or diag $err . $a->log_since(0);
note $out;
$a->_update_pid(1);
is($a->query(q{SELECT count(*) FROM t WHERE v = 'lost'}), 0, 'nothing of the lost timeline');
is($a->query(q{SELECT count(*) FROM pg_class WHERE relname = 'lost'}), 0, 'nor its table');
$b->wait_replayed($a);
is_same_table($a, $b, 't');
is_same_table($a, $b, 'kept');

# The server must not have inherited the lock that keeps a second rejoin out.
sysopen my $dir, $a->data_dir, O_RDONLY or die "$!";
ok(flock($dir, LOCK_EX | LOCK_NB), 'the lock of the rejoin is gone');
close $dir;

done_testing();
