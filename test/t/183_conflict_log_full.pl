# The conflict log can't be written: replication goes on as configured, the server's log
# and the counters say so, and conflicts are stored again when there is room.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $disk = small_disk()
  or plan skip_all => 'no small file system: make check as root provides one';

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => 'track_commit_timestamp = on');
my $where = "$disk/conflicts.$$";
mkdir $where, 0700 or die "$where: $!";
$_->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO t SELECT g, 'row' FROM generate_series(1, 20000) g});
# outside of a transaction each
$subscriber->query("CREATE TABLESPACE small LOCATION '$where'");
$subscriber->query('ALTER MATERIALIZED VIEW tandem.conflict_log SET TABLESPACE small');
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

sub applied
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

sub storage
{
	return $subscriber->query("SELECT $_[0] FROM tandem.conflict_storage");
}

$publisher->query('DELETE FROM t WHERE id <= 10');
applied();
is(storage(q{concat_ws(' ', stored, not_stored)}), '10 0', 'stored as long as there is room');

# ---- Full -----------------------------------------------------------------------

fill_disk($disk);
my $mark = $subscriber->log_mark;
my $pid = $subscriber->query('SELECT pid FROM tandem.subscriptions');
# one transaction with more than are written at once, and a change that is none
$publisher->query('BEGIN; DELETE FROM t WHERE id BETWEEN 1001 AND 6000; INSERT INTO other VALUES (1); COMMIT');
applied();
is($subscriber->query('SELECT count(*) FROM other'), 1, 'the transaction is applied');
is($subscriber->query('SELECT pid FROM tandem.subscriptions'), $pid, 'by the same worker');
is($subscriber->query('SELECT error_count FROM tandem.subscriptions'), 0, 'without an error');
my $lost = storage('not_stored');
cmp_ok($lost, '>', 3000, 'what could not be stored is counted');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts') + $lost, 5010, '... exactly');
is($subscriber->query('SELECT sum(conflicts) FROM tandem.conflict_stats') + $lost, 5010, '... and in the counters');
like(storage('last_error'), qr/No space left on device/, 'with the reason');
like($subscriber->log_since($mark), qr/LOG:  \d+ conflicts could not be stored: .*No space left on device/, "the server's log says so");

# ---- Room again -------------------------------------------------------------------

free_disk();
# it is tried again after a moment
my $next = 6001;
poll_for(sub {
	$publisher->query("DELETE FROM t WHERE id = $next");
	applied();
	$subscriber->query(qq{SELECT count(*) FROM tandem.conflicts WHERE key = '{"id": $next}'}) eq '1' || !$next++;
}, 'a conflict is stored');

# ---- No log -------------------------------------------------------------------------

$subscriber->query('ALTER MATERIALIZED VIEW tandem.conflict_log RENAME TO hidden');
$mark = $subscriber->log_mark;
$publisher->query('DELETE FROM t WHERE id = 20000; INSERT INTO other VALUES (2)');
applied();
is($subscriber->query('SELECT count(*) FROM other'), 2, 'replication does without');
$subscriber->wait_log(qr/conflicts? could not be stored: relation "tandem.conflict_log" does not exist/, $mark);
$subscriber->query('ALTER MATERIALIZED VIEW tandem.hidden RENAME TO conflict_log');
unlike($subscriber->log_since(0), qr/PANIC/, 'no panic');
unlike($subscriber->log_since($mark), qr/apply worker.*has started/, 'nothing had to be restarted');

$subscriber->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $where);

done_testing();
