# A standby keeps the ACCESS EXCLUSIVE lock of a transaction that the crash cut off
# until no older transaction runs, and a prepared one is older.  If the lock is on
# a catalog that each session reads when it begins, nobody can connect to the
# rejoined node.  "tandem rejoin" must end, and say that it compared nothing.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $pair = Tandem::Rejoin->new;
my ($old, $new) = ($pair->primary, $pair->standby);
$old->query('CREATE TABLE t AS SELECT g AS id FROM generate_series(1, 1000) g');
$old->query('CHECKPOINT');

# what can't be asked in a new session is asked in these
my $watch_old = $old->background_psql('postgres');
my $watch_new = $new->background_psql('postgres');
my $session = $old->background_psql('postgres');
$old->query(q{BEGIN; INSERT INTO t VALUES (0); PREPARE TRANSACTION 'before'});
$session->query_safe(q{BEGIN; INSERT INTO t VALUES (-1); LOCK TABLE pg_db_role_setting IN ACCESS EXCLUSIVE MODE});
my $lsn = $watch_old->query_safe(q{BEGIN; INSERT INTO t VALUES (1001); COMMIT; SELECT pg_current_wal_insert_lsn()});
poll_for(sub { $watch_new->query_safe("SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' },
	'the standby to hold the lock');

# only the old primary has this; the new one must not be told by a new session
$watch_new->query_safe(q{ALTER SYSTEM SET primary_conninfo = ''});
$watch_new->query_safe('SELECT pg_reload_conf()');
poll_for(sub { !$new->pids_of(qr/walreceiver/) }, 'the walreceiver to end');
$watch_old->query_safe('UPDATE t SET id = id + 10000 WHERE id BETWEEN 1 AND 500');
$watch_old->query_safe('CHECKPOINT');
$old->expect_crash;
$old->kill9_all;
$watch_new->quit;
$new->promote;
$new->set(primary_conninfo => undef);
$pair->{fork} = fork_point($new);
eval { $_->quit } for $session, $watch_old;

my ($code, $out, $err);
{
	local $ENV{PGCONNECT_TIMEOUT} = 3;
	($code, $out, $err) = $pair->rejoin;
}
is($code, 0, 'it ends well: the node streams');
like($out, qr/^Pages were not compared: no connection to the local server: .*a lock of a transaction that the crash cut off/m,
	'and says that and why nothing was compared');

$new->query(q{COMMIT PREPARED 'before'});
$new->log_standby_snapshot;
$pair->caught_up;
is($pair->standby->query('SELECT count(*), min(id), max(id) FROM t'), '1002|0|1001', 'afterwards sessions can begin');
$pair->is_equal('the nodes');

done_testing();
