# The conflict log is bounded in size and in age, the oldest go first, and the counters
# stay.  It is as durable as what was applied, is on standbys, and in no publication.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $rows = 4000;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "track_commit_timestamp = on\ntandem.debug_clean_interval = 100ms\n");
$_->query(q{CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE kept (id int)}) for $publisher, $subscriber;
$publisher->query("INSERT INTO t SELECT g, 'row' FROM generate_series(1, $rows) g");
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

sub stored
{
	return $subscriber->query("SELECT $_[0] FROM tandem.conflict_storage");
}

sub counted
{
	return $subscriber->query('SELECT coalesce(sum(conflicts), 0) FROM tandem.conflict_stats');
}

# $n conflicts, one transaction each
sub quarrel
{
	my ($first, $n) = @_;
	$publisher->query("DO \$\$ BEGIN FOR i IN $first .. $first + $n - 1 LOOP UPDATE t SET v = 'x' WHERE id = i; COMMIT; END LOOP; END \$\$");
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# ---- Durable ----------------------------------------------------------------------

quarrel(1, 300);
my $all = stored('stored');
is($all, 300, 'each is stored');
is(counted(), 300, 'and counted');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts'), 300, 'and shown');
my $standby = $subscriber->new_standby('standby', conf => "shared_preload_libraries = 'pg_tandem'\n");
$subscriber->wait_replayed($standby);
is($standby->query('SELECT count(*) FROM tandem.conflicts'), 300, 'a standby has them');
is($standby->query('SELECT sum(conflicts) FROM tandem.conflict_stats'), 300, '... and the counters');
like($standby->query_error('SELECT tandem.conflict_dismiss(1)'), qr/cannot execute tandem.conflict_dismiss\(\) (?:during recovery|in a read-only transaction)/, '... which it can only show');
$subscriber->kill9_all;
$subscriber->start;
is($subscriber->query('SELECT count(*) FROM tandem.conflicts'), 300, 'and a crash leaves them');
is(counted(), 300, '... and the counters');
is($subscriber->query(q{CREATE PUBLICATION everything FOR ALL TABLES; SELECT count(*) FROM pg_publication_tables WHERE schemaname = 'tandem'}),
	0, 'no publication has any');

# ---- Size ---------------------------------------------------------------------------

# sums are put together, however many transactions there were
poll_for(sub { $subscriber->query(q{VACUUM tandem.conflict_counts; SELECT pg_relation_size('tandem.conflict_counts') <= 65536}) eq 't' }, 'few rows of counters');
$subscriber->set('tandem.conflict_limit' => '1MB');
quarrel(301, $rows - 300);
is(counted(), $rows, 'all are counted');
poll_for(sub { stored('bytes <= 1024 * 1024') eq 't' }, 'no more than the limit');
cmp_ok(stored('stored'), '<', $rows, 'some were removed');
cmp_ok(stored('bytes'), '>', 700 * 1024, 'but no more than had to be');
is($subscriber->query(q{SELECT min((key ->> 'id')::int) = max((key ->> 'id')::int) - count(*) + 1 AND max((key ->> 'id')::int) = } . $rows . ' FROM tandem.conflicts'),
	't', 'the oldest ones');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts'), stored('stored'), 'what it says is what there is');
is(counted(), $rows, 'the counters stay');

# vacuum makes their room usable again, also by itself
is($subscriber->query(q{SELECT n_dead_tup > 1000 FROM pg_stat_all_tables WHERE relid = 'tandem.conflict_log'::regclass}), 't', 'dead rows are known to autovacuum');
my $size = $subscriber->query(q{VACUUM tandem.conflict_log; SELECT pg_relation_size('tandem.conflict_log')});
quarrel(1, 1000);
poll_for(sub { stored('bytes <= 1024 * 1024') eq 't' }, 'the limit again');
cmp_ok($subscriber->query(q{SELECT pg_relation_size('tandem.conflict_log')}), '<=', $size, 'the file does not grow');

# ---- Age ------------------------------------------------------------------------------

$subscriber->set('tandem.conflict_retention' => '1s');
poll_for(sub { stored('stored') == 0 }, 'all are too old');
is(stored('bytes'), 0, 'nothing is left');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts'), 0, '... in the view either');
is(counted(), $rows + 1000, 'but the counters');

# ---- A subscription that is gone -------------------------------------------------------

$subscriber->set('tandem.conflict_retention' => undef);
quarrel(1, 10);
$subscriber->query('DROP SUBSCRIPTION sub');
is($subscriber->query('SELECT count(*) FROM tandem.conflict_stats'), 0, 'its counters go');
is($subscriber->query(q{SELECT count(*) FROM tandem.conflicts WHERE subscription = 'sub'}), 10, 'its conflicts stay');
is($subscriber->query('SELECT tandem.conflict_dismiss(max(id)) FROM tandem.conflicts'), '', 'a superuser may dismiss them');

done_testing();
