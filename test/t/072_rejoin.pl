# An old primary comes back: crashed with pages ahead of the fork, cleanly
# stopped, or merely behind; with a role that is no superuser; what is printed;
# a second time; back and forth.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $conf = q{
shared_buffers = 1MB
wal_log_hints = on
autovacuum = off
full_page_writes = on
};

# the receiver of a standby stands still: what follows only the primary has
sub stall_receiver
{
	my ($standby) = @_;
	return stall($standby->pid_of(qr/walreceiver/));
}

my $a = Tandem::Node->new_primary('a', conf => $conf, recipe => 1);
$a->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text, pad text);
	INSERT INTO t SELECT g, 'old', repeat('x', 200) FROM generate_series(1, 20000) g;
	CHECKPOINT});
my $b = $a->new_standby('b');

# ---- a crash with pages ahead of the fork ----------------------------------------

$a->wait_replayed($b);
stall_receiver($b);
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

done_testing();
