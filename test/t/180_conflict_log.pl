# Conflicts are told: in tandem.conflicts, in counters, in the server's log.  Without
# the log a change that finds no row leaves no trace but a number.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => 'track_commit_timestamp = on');

$_->query(q{
	CREATE TYPE mood AS ENUM ('glad', 'sad');
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE wide (id int, n numeric, f float8, b bool, d date, at timestamptz, span interval,
		j jsonb, plain json, tags text[], m mood, bytes bytea, long text, nothing int);
	ALTER TABLE wide REPLICA IDENTITY FULL})
  for $publisher, $subscriber;
$_->query(q{INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 20000) g})
  for $publisher, $subscriber;
# a row that is only there
$publisher->query(q{INSERT INTO wide VALUES (1, 1.50, 'NaN', true, '2024-02-03', '2024-02-03 04:05:06+00', '1 day 02:03:04',
	'{"a": [1, null]}', '{"b":  2}', '{x,"y z"}', 'sad', '\xdeadbeef', repeat('ä', 100000), NULL)});
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

sub conflicts
{
	return $subscriber->query("SELECT $_[0] FROM tandem.conflicts" . ($_[1] ? " WHERE $_[1]" : '') . ' ORDER BY id');
}

sub applied
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# ---- One conflict ------------------------------------------------------------------

$subscriber->query('DELETE FROM t WHERE id <= 2');
my $mark = $subscriber->log_mark;
my $xid = $publisher->query(q{BEGIN; UPDATE t SET v = 'new' WHERE id = 1; SELECT pg_current_xact_id()::xid; COMMIT});
$publisher->query('DELETE FROM t WHERE id = 2');
applied();

is(conflicts(q{concat_ws(' ', subscription, schema, "table", type, operation, outcome, resolution, state, attempts)}),
	"sub public t update_missing update skip skipped open 1\nsub public t delete_missing delete skip skipped open 1",
	'both are there, with what was done');
is(conflicts('key', q{type = 'update_missing'}), '{"id": 1}', 'by its key');
is(conflicts('remote_xid', q{type = 'update_missing'}), $xid, 'with the transaction of the publisher');
is(conflicts(q{remote_time > now() - interval '1 minute' AND remote_time <= "time" AND remote_lsn > '0/0'}, q{type = 'update_missing'}),
	't', '... its commit time and its end');
is(conflicts(q{remote_origin = 'pg_' || (SELECT oid FROM pg_subscription WHERE subname = 'sub') AND remote_node IS NOT NULL}, q{type = 'update_missing'}),
	't', '... and where it came from');
is(conflicts('relid = to_regclass(schema || $$.$$ || "table")', q{type = 'update_missing'}), 't', 'and the table');
like($subscriber->log_since($mark),
	qr/LOG:  conflict detected on relation "public\.t": conflict=update_missing\n.*DETAIL:  Could not find the row to be updated: .*replica identity \(id\)=\(1\)\. The remote change of transaction $xid, committed at [-0-9: .a-zA-Z+]+, was skipped \(skip\)/,
	'the log says it in the words of the server');
is($subscriber->query(q{SELECT string_agg(concat_ws(' ', subscription, schema, "table", type, resolution, conflicts, since = "last"), '; ' ORDER BY type)
	FROM tandem.conflict_stats}), 'sub public t delete_missing skipped 1 t; sub public t update_missing skipped 1 t', 'they are counted');

# ---- Values ---------------------------------------------------------------------------

$publisher->query('DELETE FROM wide');
applied();
my %expected = (
	id => '1', n => '1.50', f => '"NaN"', b => 'true', d => '"2024-02-03"', span => '"1 day 02:03:04"',
	j => '{"a": [1, null]}', plain => '"{\"b\":  2}"', tags => '"{x,\"y z\"}"', m => '"sad"',
	bytes => '"\\\\xdeadbeef"', nothing => 'null');
is(conflicts("key -> '$_'", q{"table" = 'wide'}), $expected{$_}, "value of column $_") for sort keys %expected;
is(conflicts(q{(key ->> 'at')::timestamptz = '2024-02-03 04:05:06+00'}, q{"table" = 'wide'}), 't', 'value of column at');
is(conflicts(q{concat_ws(' ', length(key -> 'long' ->> 'tandem_cut'), key -> 'long' ->> 'bytes')}, q{"table" = 'wide'}),
	'32768 200000', 'a very large one is cut, which it says, at a whole character');

# ---- Many, and what is rolled back -----------------------------------------------------

$subscriber->query('DELETE FROM t');
my $before = $subscriber->query(q{SELECT coalesce(sum(conflicts), 0) FROM tandem.conflict_stats});
$mark = $subscriber->log_mark;
$publisher->query(q{UPDATE t SET v = 'many' WHERE id > 10 AND id <= 2510});
applied();
is($subscriber->query(q{SELECT count(DISTINCT key) FROM tandem.conflicts WHERE "table" = 't' AND (key ->> 'id')::int > 10}), '2500',
	'each row of a transaction is there');
is($subscriber->query(q{SELECT sum(conflicts) FROM tandem.conflict_stats}) - $before, 2500, 'and counted');
is($subscriber->query('SELECT stored FROM tandem.conflict_storage'), $subscriber->query('SELECT count(*) FROM tandem.conflicts'), 'as many are stored');
my @said = $subscriber->log_since($mark) =~ /LOG:  conflict detected/g;
cmp_ok(scalar @said, '<', 500, 'the log has not all of them');
$subscriber->wait_log(qr/more conflicts are not in this log/, $mark);

# ---- One that stops the subscription ----------------------------------------------------

# what was recorded in the same transaction before it is rolled back with it
my $stored = $subscriber->query('SELECT count(*) FROM tandem.conflicts');
$subscriber->query(q{INSERT INTO t VALUES (30000, 'here')});
$publisher->query(q{BEGIN; DELETE FROM t WHERE id = 9999; INSERT INTO t VALUES (30000, 'there'); COMMIT});
poll_for(sub { ($subscriber->query(q{SELECT max(attempts) FROM tandem.conflicts WHERE resolution = 'error'}) || 0) >= 2 }, 'two attempts');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts') - $stored, 1, 'one row for all attempts');
is(conflicts(q{concat_ws(' ', type, outcome, local_row ->> 'v', remote_row ->> 'v', last_attempt > "time")}, q{resolution = 'error'}),
	'insert_exists error here there t', '... with what it was');
$subscriber->query('DELETE FROM t WHERE id = 30000');
applied();
is($subscriber->query('SELECT v FROM t WHERE id = 30000'), 'there', 'it goes on when the cause is gone');
is($subscriber->query('SELECT count(*) FROM tandem.conflicts') - $stored, 2, '... and the other is there, once');
is($subscriber->query(q{SELECT conflicts FROM tandem.conflict_stats WHERE resolution = 'error'}), 1, 'the attempts count as one');

done_testing();
