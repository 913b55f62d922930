# What holds for one table, and counters; what can't be configured is refused when
# it is configured, and leaves all as it was.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "track_commit_timestamp = on\n");
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "track_commit_timestamp = on\nmax_prepared_transactions = 5\n");

$_->query(q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE other (id int PRIMARY KEY, v text);
	CREATE TABLE c (id int PRIMARY KEY, n int, m numeric, v text);
	ALTER TABLE c REPLICA IDENTITY FULL;
	CREATE TABLE nokey (n int); ALTER TABLE nokey REPLICA IDENTITY FULL;
	CREATE TABLE parts (v text, id int, k int, n int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
	CREATE TABLE parts_1 (n int, k int NOT NULL, id int NOT NULL, v text);
	ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES IN (1);
	ALTER TABLE parts REPLICA IDENTITY FULL; ALTER TABLE parts_1 REPLICA IDENTITY FULL}) for $publisher, $subscriber;
$subscriber->query('CREATE TABLE mine (id int PRIMARY KEY)');
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

sub refused
{
	my ($sql, $error, $hint, $title) = @_;
	my $said = $subscriber->query_error($sql);
	like($said, $error, $title);
	like($said, $hint, "$title: the hint");
	return;
}

sub caught_up
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# ---- What is refused ----------------------------------------------------------

refused(q{SELECT tandem.adopt('sub', 'update_gone = skip')}, qr/unrecognized option "update_gone"/, qr/HINT: .*update_missing/, 'unknown type');
refused(q{SELECT tandem.adopt('sub', 'update_missing = never')}, qr/invalid value for option "update_missing": "never"/,
	qr/HINT: .*error, skip (and|or) insert_or_skip/, 'unknown outcome');
refused(q{SELECT tandem.adopt('sub', 'delete_missing = last_update_wins')}, qr/invalid value for option "delete_missing"/,
	qr/HINT: .*error (and|or) skip/, 'an outcome of another type');
refused(q{SELECT tandem.set_conflict('sub', 't', 'update_gone', 'skip')}, qr/unrecognized type of conflict "update_gone"/,
	qr/HINT: .*update_missing/, 'of a table: unknown type');
refused(q{SELECT tandem.set_conflict('sub', 't', 'update_missing', 'never')}, qr/unrecognized outcome "never"/, qr/HINT: .*insert_or_skip/, 'of a table: unknown outcome');
refused(q{SELECT tandem.set_conflict('sub', 't', 'delete_missing', 'apply')}, qr/outcome "apply" is not one of delete_missing/, qr/HINT: .*error (and|or) skip/, 'of a table: impossible');
refused(q{SELECT tandem.set_conflict('sub', 'mine', 'update_missing', 'error')}, qr/"mine" is not a table of subscription "sub"/, qr/HINT: .*tandem\.tables/, 'a table that is not subscribed');
refused(q{SELECT tandem.set_conflict('nosub', 't', 'update_missing', 'error')}, qr/subscription "nosub" does not exist/, qr/./, 'unknown subscription');
refused(q{SELECT tandem.set_delta('sub', 'c', 'v', true)}, qr/column "v" of relation "c" can't be a counter: its type is text/, qr/HINT: .*numeric/, 'a delta on text');
refused(q{SELECT tandem.set_delta('sub', 'c', 'id', true)}, qr/it is in the primary key/, qr/HINT/, 'a delta on the key');
refused(q{SELECT tandem.set_delta('sub', 'c', 'nothing', true)}, qr/column "nothing" of relation "c" does not exist/, qr/HINT/, 'a delta on nothing');
refused(q{SELECT tandem.set_delta('sub', 'nokey', 'n', true)}, qr/has no primary key/, qr/HINT/, 'a delta without a key');
refused(q{SELECT tandem.set_delta('sub', 't', 'id', true)}, qr/can't be a counter/, qr/HINT/, 'a delta without old rows');
$subscriber->query('ALTER TABLE t ADD n int');
refused(q{SELECT tandem.set_delta('sub', 't', 'n', true)}, qr/its replica identity is not FULL/, qr/HINT: .*REPLICA IDENTITY FULL/, 'a delta without REPLICA IDENTITY FULL');
$subscriber->query('CREATE ROLE stranger');
like($subscriber->query_error(q{SET ROLE stranger; SELECT tandem.set_conflict('sub', 't', 'update_missing', 'error')}), qr/permission denied/, 'not by anybody');

# two nodes that can't be told apart
my $node_id = $subscriber->query('SELECT system_identifier FROM pg_control_system()');
$subscriber->query(qq{SELECT tandem.adopt('sub', 'node_id = $node_id, update_origin_differs = last_update_wins')});
$publisher->query(q{INSERT INTO other VALUES (0, 'x')});
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~ /same node identifier "$node_id".*tandem\.node_id/ }, 'equal node identifiers to be refused');
$subscriber->query(q{SELECT tandem.adopt('sub', 'node_id = there, update_origin_differs = apply')});
caught_up();
is($subscriber->query('SELECT count(*) FROM other'), '1', 'with another one it goes on');

# prepared transactions have no commit time
$subscriber->query(q{CREATE SUBSCRIPTION two CONNECTION 'host=/nowhere' PUBLICATION pub WITH (connect = false, two_phase = true, slot_name = 'two')});
refused(q{SELECT tandem.adopt('two', 'insert_exists = last_update_wins')}, qr/last_update_wins can't be used for subscription "two": it has two_phase/, qr/HINT: .*without two_phase/, 'last_update_wins with two_phase');
$subscriber->query(q{ALTER SUBSCRIPTION two SET (slot_name = NONE); DROP SUBSCRIPTION two});

# ---- For one table, without a restart --------------------------------------------

my $pid = $subscriber->query('SELECT pid FROM tandem.subscriptions');
$publisher->query(q{INSERT INTO t VALUES (1, 'a'); INSERT INTO other VALUES (1, 'a')});
caught_up();
$subscriber->query(q{SELECT tandem.set_conflict('sub', 't', 'update_missing', 'insert_or_skip')});
$subscriber->query('DELETE FROM t; DELETE FROM other');
$publisher->query(q{UPDATE t SET v = 'b'; UPDATE other SET v = 'b'});
caught_up();
is($subscriber->query('SELECT id, v FROM t'), '1|b', 'the rule of the table');
is($subscriber->query('SELECT count(*) FROM other'), '0', 'and of no other');
is($subscriber->query('SELECT pid FROM tandem.subscriptions'), $pid, 'by the same worker');
$subscriber->query(q{SELECT tandem.set_conflict('sub', 't', 'update_missing', NULL); DELETE FROM t});
$publisher->query(q{UPDATE t SET v = 'c'});
caught_up();
is($subscriber->query('SELECT count(*) FROM t'), '0', 'taken back: that of the subscription');

# ---- Counters -----------------------------------------------------------------------

$subscriber->query(q{SELECT tandem.set_delta('sub', 'c', 'n', true), tandem.set_delta('sub', 'c', 'm', true), tandem.set_delta('sub', 'parts', 'n', true),
	tandem.set_conflict('sub', 'c', 'update_origin_differs', 'last_update_wins')});
$publisher->query(q{INSERT INTO c VALUES (1, 10, 1.5, 'a'); INSERT INTO parts VALUES ('a', 1, 1, 100)});
caught_up();
$subscriber->query(q{UPDATE c SET n = n + 5, m = m + 0.25, v = 'here'; UPDATE parts SET n = n + 1});
$publisher->query(q{UPDATE c SET n = n + 100, m = m - 1, v = 'there'; UPDATE parts SET n = n + 20});
caught_up();
is($subscriber->query('SELECT n, m, v FROM c'), '115|0.75|there', 'both differences count, the rest is the later one\'s');
is($subscriber->query('SELECT n FROM parts'), '121', 'in a partition with its columns in another order');
$publisher->query(q{UPDATE c SET v = 'again'});
caught_up();
is($subscriber->query('SELECT n, m, v FROM c'), '115|0.75|again', 'no difference, no change');
$publisher->query(q{UPDATE c SET n = NULL});
caught_up();
is($subscriber->query('SELECT n FROM c'), '', 'NULL has no difference: it is what was sent');
$publisher->query(q{UPDATE c SET n = 7});
caught_up();
$subscriber->query(q{SELECT tandem.set_delta('sub', 'c', 'n', false)});
$subscriber->query(q{UPDATE c SET n = 1000});
$publisher->query(q{UPDATE c SET n = n + 1});
caught_up();
is($subscriber->query('SELECT n FROM c'), '8', 'taken back: what was sent');

# the publisher no longer sends old rows
$publisher->query('ALTER TABLE c REPLICA IDENTITY DEFAULT');
$publisher->query('UPDATE c SET m = m + 1');
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~ /has counters, but the publisher does not send old rows/ },
	'the subscription to say so');
$subscriber->query(q{SELECT tandem.set_delta('sub', 'c', 'm', false)});
caught_up();
pass('and it goes on when the counter is taken back');

# ---- They go with the subscription ---------------------------------------------------

$subscriber->query(q{SELECT tandem.set_conflict('sub', 't', 'update_missing', 'error')});
$subscriber->query(q{SELECT tandem.release('sub')});
$subscriber->query(q{SELECT tandem.adopt('sub')});
$publisher->query(q{UPDATE t SET v = 'd'});
caught_up();
is($subscriber->query('SELECT last_error IS NULL FROM tandem.subscriptions'), 't', 'after tandem.release() no rule is left');

done_testing();
