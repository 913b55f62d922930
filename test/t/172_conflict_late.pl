# Rows that were deleted meanwhile: updates of them, late inserts, changes that come
# with a publisher's clock ahead.  Each outcome by a deterministic interleaving; without
# tombstones an update is "missing", and a late insert brings a deleted row back.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Mesh;
use Tandem::Tombstones;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "track_commit_timestamp = on\n");
my $node = Tandem::Node->new_primary('node', conf => "track_commit_timestamp = on\ntandem.node_id = 'node'\n");
my $tombs = Tandem::Tombstones->new($publisher, $node);

$_->query(q{CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE parts (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1)}) for $publisher, $node;
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)');
$tombs->subscribe;

sub adopt { return $node->query("SELECT tandem.adopt('sub', '$_[0]')") }

sub pause
{
	adopt('enabled = off');
	poll_for(sub { $node->query(q{SELECT state = 'paused' AND pid IS NULL FROM tandem.subscriptions}) eq 't' }, 'paused');
	return;
}

sub caught_up
{
	$node->wait_subscription('sub', $publisher);
	return;
}

my $seen = 0;

# What was recorded since: "type resolution detection kind-of-row", one a line.
sub recorded
{
	my $new = $node->query(qq{SELECT string_agg(concat_ws(' ', type, resolution, detection, coalesce(local_origin, '-'),
		coalesce(key->>'id', remote_row->>'id')), E'\n' ORDER BY id) FROM tandem.conflicts WHERE id > $seen});
	$seen = $node->query('SELECT coalesce(max(id), 0) FROM tandem.conflicts');
	return $new;
}

# Before; then here and there while paused, in this order; then all is applied.
sub meets
{
	my ($title, %case) = @_;

	$publisher->query($case{before}) if $case{before};
	caught_up();
	pause();
	recorded();
	$publisher->query($case{first_there}) if $case{first_there};
	$node->query($case{here}) if $case{here};
	$publisher->query($case{there}) if $case{there};
	adopt("enabled = on, $case{options}");
	caught_up();
	is($node->query($case{look} // 'SELECT id, v FROM t ORDER BY id'), $case{rows}, "$title: the rows");
	is(recorded(), $case{says}, "$title: what is recorded");
	return;
}

# ---- Updates of deleted rows ----------------------------------------------------------

my $defaults = 'update_deleted = skip, update_missing = skip, insert_deleted = apply';
meets('deleted here, updated there', before => q{INSERT INTO t VALUES (1, 'a')}, here => q{DELETE FROM t WHERE id = 1}, there => q{UPDATE t SET v = 'b' WHERE id = 1},
	options => "$defaults", rows => '', says => 'update_deleted skipped certain local 1');
is($node->query(q{SELECT c.local_time = pg_xact_commit_timestamp(local_xid), c.local_time < c.remote_time FROM tandem.conflicts c WHERE id = } . $seen), 't|t', 'when, and by which transaction');
meets('the same outcome for both: nobody waits', before => q{INSERT INTO t VALUES (2, 'a')}, here => q{DELETE FROM t WHERE id = 2}, there => q{UPDATE t SET v = 'b' WHERE id = 2},
	options => 'update_deleted = insert_or_skip, update_missing = insert_or_skip', rows => '2|b', says => 'update_deleted inserted certain local 2');
meets('update_deleted, insert_or_skip', before => q{INSERT INTO t VALUES (3, 'a')}, here => q{DELETE FROM t}, there => q{UPDATE t SET v = 'b' WHERE id = 3},
	options => 'update_deleted = insert_or_skip, update_missing = skip', rows => '3|b', says => 'update_deleted inserted certain local 3');
meets('update_deleted, the update is later', before => q{INSERT INTO t VALUES (4, 'a')}, here => q{DELETE FROM t}, there => q{UPDATE t SET v = 'b' WHERE id = 4},
	options => 'update_deleted = last_update_wins', rows => '4|b', says => 'update_deleted inserted certain local 4');
meets('update_deleted, the delete is later', before => q{INSERT INTO t VALUES (5, 'a')}, first_there => q{UPDATE t SET v = 'b' WHERE id = 5}, here => q{DELETE FROM t},
	options => 'update_deleted = last_update_wins', rows => '', says => 'update_deleted skipped certain local 5');
meets('never been here', before => q{ALTER TABLE t DISABLE TRIGGER ALL}, there => q{ALTER PUBLICATION pub SET (publish = 'update,delete,truncate'); INSERT INTO t VALUES (6, 'a'); ALTER PUBLICATION pub SET (publish = 'insert,update,delete,truncate'); UPDATE t SET v = 'b' WHERE id = 6},
	options => 'update_deleted = insert_or_skip, update_missing = skip', rows => '', says => 'update_missing skipped certain - 6');
meets('deleted by the same transaction', before => q{INSERT INTO parts VALUES (7, 1, 'a')}, here => q{DELETE FROM parts}, there => q{UPDATE parts SET v = 'b'},
	options => $defaults, look => 'SELECT id, v FROM parts', rows => '', says => 'update_deleted skipped certain local 7');
meets('truncated here', before => q{INSERT INTO parts VALUES (8, 1, 'a')}, here => q{TRUNCATE parts}, there => q{UPDATE parts SET v = 'b' WHERE id = 8},
	options => $defaults, look => 'SELECT id, v FROM parts', rows => '', says => 'update_deleted skipped certain local 8');

# ---- Late inserts ----------------------------------------------------------------------

# the row is inserted there first, by the clock; here it was there already, and was deleted since
my %late = (first_there => q{INSERT INTO t VALUES (%d, 'there')}, here => q{INSERT INTO t VALUES (%d, 'here'); DELETE FROM t WHERE id = %1$d});
sub late
{
	my ($id, $title, %case) = @_;
	return meets($title, (map { $_ => sprintf $late{$_}, $id, $id } keys %late), %case);
}
late(20, 'insert_deleted, apply', options => 'insert_deleted = apply', rows => '20|there', says => 'insert_deleted applied certain local 20');
$node->query('DELETE FROM t');
late(21, 'insert_deleted, skip', options => 'insert_deleted = skip', rows => '', says => 'insert_deleted skipped certain local 21');
late(22, 'insert_deleted, the delete is later', options => 'insert_deleted = last_update_wins', rows => '', says => 'insert_deleted skipped certain local 22');
meets('a key that is used again', here => q{INSERT INTO t VALUES (23, 'here'); DELETE FROM t WHERE id = 23}, there => q{INSERT INTO t VALUES (23, 'again')},
	options => 'insert_deleted = last_update_wins', rows => '23|again', says => '');
# more than are looked at together; two of three were deleted
$publisher->query('DELETE FROM t');
caught_up();
$node->query('DELETE FROM t');
pause();
recorded();
$publisher->query(q{INSERT INTO t SELECT i, 'there' FROM generate_series(1001, 4000) i});
$node->query(q{INSERT INTO t SELECT i, 'here' FROM generate_series(1001, 4000) i; DELETE FROM t WHERE id % 3 <> 2});
my $probes = $node->query('SELECT probes FROM tandem.collector_status()');
adopt('enabled = on, insert_deleted = last_update_wins, insert_exists = last_update_wins');
caught_up();
is($node->query(q{SELECT count(*), count(*) FILTER (WHERE v = 'here'), count(*) FILTER (WHERE id % 3 = 2) FROM t}), '1000|1000|1000', 'many of them in one transaction: the rows');
is($node->query(qq{SELECT string_agg(concat_ws(' ', type, resolution, detection, n), ', ' ORDER BY type)
	FROM (SELECT type, resolution, detection, count(*) AS n FROM tandem.conflicts WHERE id > $seen GROUP BY 1, 2, 3) s}),
	'insert_deleted skipped certain 2000, insert_exists skipped certain 1000', 'many of them: what is recorded');
is($node->query('SELECT probes FROM tandem.collector_status()') - $probes, 2, 'many of them: one wait for each thousand');
$publisher->query('DELETE FROM t');
$node->query('DELETE FROM t');
caught_up();
recorded();
pause();
$publisher->query(q{INSERT INTO t VALUES (24, 'there')});
$node->query(q{INSERT INTO t VALUES (24, 'here'); DELETE FROM t});
adopt('enabled = on, insert_deleted = error');
poll_for(sub { $node->query('SELECT last_error FROM tandem.subscriptions') =~ /conflict=insert_deleted/ }, 'the subscription to stop');
is($node->query('SELECT count(*) FROM t'), '0', 'insert_deleted, error: nothing is inserted');
is(recorded(), 'insert_deleted error certain local 24', 'and it is recorded');
adopt('insert_deleted = skip');
caught_up();
is(recorded(), 'insert_deleted skipped certain local 24', 'the outcome changed: it goes on');

# ---- A delete that found nothing is a tombstone, too -------------------------------------

pause();
$publisher->query(q{INSERT INTO t VALUES (30, 'a')});
my $insert = $publisher->query('SELECT pg_current_wal_lsn()');
adopt('enabled = on');
caught_up();
$node->query('DELETE FROM t');
$publisher->query('DELETE FROM t');
caught_up();
is(recorded(), "delete_missing skipped certain - 24\ndelete_missing skipped certain - 30", 'deletes that found nothing');
is($tombs->verdict('t', '{"id": 30}'), 'deleted deleted', 'the row counts as deleted');
is($node->query(q{SELECT origin IS NOT NULL FROM tandem.tombstone_find('t', '{"id": 30}')}), 't', 'by the later of the two, the publisher');

# ---- The publisher's clock is ahead -------------------------------------------------------

adopt('update_origin_differs = last_update_wins');
caught_up();
$node->append_conf('postgresql.conf', "tandem.debug_clock_offset = -3000\n");
$node->reload;
$publisher->query(q{INSERT INTO t VALUES (40, 'a')});
my $begun = Time::HiRes::time();
poll_for(sub { $node->query(q{SELECT reason FROM tandem.subscriptions}) =~ /clock is .* s ahead/ }, 'the wait to be shown');
caught_up();
cmp_ok(Time::HiRes::time() - $begun, '>', 2, 'a change is applied when its time has come');
is($node->query('SELECT id FROM t'), '40', 'then it is');
is($node->query(q{SELECT state, reason IS NULL FROM tandem.subscriptions}), 'streaming|t', 'and the view says no more of it');
$node->append_conf('postgresql.conf', "tandem.debug_clock_offset = -3600000\n");
$node->reload;
my $mark = $node->log_mark;
$publisher->query(q{INSERT INTO t VALUES (41, 'a')});
caught_up();
like($node->log_since($mark), qr/publisher's clock is \d+ s ahead of this server's, changes are applied without waiting/, 'an hour is not waited for, but said');
like($node->query(q{SELECT reason FROM tandem.subscriptions}), qr/too far to wait, so nodes may come to differ/, 'and shown');
$node->append_conf('postgresql.conf', "tandem.debug_clock_offset = 0\n");
$node->reload;
$publisher->query(q{INSERT INTO t VALUES (42, 'a')});
caught_up();
is($node->query(q{SELECT reason IS NULL FROM tandem.subscriptions}), 't', 'until the clocks agree again');

done_testing();
