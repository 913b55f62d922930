# Every delete is remembered: which row, when, by whom, and nothing that wasn't
# one.  Without the collector each verdict is "unknown".

use strict;
use warnings;

use Tandem::Test;
use Tandem::Tombstones;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_primary('node', conf => "track_commit_timestamp = on\nmax_prepared_transactions = 10\n");
my $tombs = Tandem::Tombstones->new($publisher, $node);

my $tables = q{
	CREATE TABLE plain (id int PRIMARY KEY, v text);
	CREATE TABLE amounts (amount numeric PRIMARY KEY, v text);
	CREATE TABLE floats (f float8 PRIMARY KEY);
	CREATE TABLE padded (c char(8) PRIMARY KEY);
	CREATE TABLE two (b text, a int, v text, PRIMARY KEY (b, a));
	CREATE TABLE byindex (id int, u text NOT NULL, v text);
	CREATE UNIQUE INDEX byindex_u ON byindex (u);
	ALTER TABLE byindex REPLICA IDENTITY USING INDEX byindex_u;
	CREATE TABLE whole (a int, b text);
	ALTER TABLE whole REPLICA IDENTITY FULL;
	CREATE TABLE full_key (id int PRIMARY KEY, v text);
	ALTER TABLE full_key REPLICA IDENTITY FULL;
	CREATE TABLE nothing (id int PRIMARY KEY);
	ALTER TABLE nothing REPLICA IDENTITY NOTHING;
	CREATE TABLE keyless (id int);
	CREATE TABLE unhashed (a xid, v money PRIMARY KEY);
	CREATE TABLE parts (id int, region text, v text) PARTITION BY LIST (region);
	CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
	CREATE TABLE parts_b (v text, region text, id int);
	ALTER TABLE parts ATTACH PARTITION parts_b FOR VALUES IN ('b');
	ALTER TABLE parts_a ADD PRIMARY KEY (id);
	ALTER TABLE parts_b ADD PRIMARY KEY (id)};
$_->query($tables) for $publisher, $node;
$node->query('CREATE TABLE elsewhere (id int PRIMARY KEY)');
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)');
$tombs->subscribe;

# Changes here are not the publisher's: nobody has these rows but we.
sub verdict { return $tombs->verdict(@_) }

$node->query(q{
	INSERT INTO plain SELECT i, 'x' FROM generate_series(1, 100) i;
	INSERT INTO elsewhere VALUES (1)});
is(verdict('plain', '{"id": 1}'), 'missing', 'a row that is there was not deleted');
my $before = $node->query('SELECT clock_timestamp()');
my $xid = $node->query(q{BEGIN; DELETE FROM plain WHERE id = 1; SELECT pg_current_xact_id()::xid; COMMIT});
is(verdict('plain', '{"id": 1}'), 'deleted deleted', 'a deleted row');
is($node->query(qq{SELECT deleted_at BETWEEN '$before' AND clock_timestamp(), deleted_at = pg_xact_commit_timestamp(xid),
	xid, origin IS NULL FROM tandem.tombstone_find('plain', '{"id": 1}')}), "t|t|$xid|t", 'when, and by which transaction');
is(verdict('plain', '{"id": 2}'), 'missing', 'its neighbour was not');

# what isn't a delete
$node->query(q{BEGIN; DELETE FROM plain WHERE id = 3; ROLLBACK});
is(verdict('plain', '{"id": 3}'), 'missing', 'rolled back');
$node->query(q{BEGIN; SAVEPOINT a; DELETE FROM plain WHERE id = 4; ROLLBACK TO a; SAVEPOINT b;
	DELETE FROM plain WHERE id = 5; RELEASE b; COMMIT});
is(verdict('plain', '{"id": 4}'), 'missing', 'an aborted subtransaction');
is(verdict('plain', '{"id": 5}'), 'deleted deleted', 'a committed one');
$node->query(q{BEGIN; DELETE FROM plain WHERE id = 6; PREPARE TRANSACTION 'p'; BEGIN; DELETE FROM plain WHERE id = 7; PREPARE TRANSACTION 'q'});
is(verdict('plain', '{"id": 6}'), 'missing', 'prepared only');
$node->query(q{COMMIT PREPARED 'p'});
$node->query(q{ROLLBACK PREPARED 'q'});
is(verdict('plain', '{"id": 6}'), 'deleted deleted', 'COMMIT PREPARED');
is(verdict('plain', '{"id": 7}'), 'missing', 'ROLLBACK PREPARED');
$node->query(q{UPDATE plain SET v = 'y' WHERE id = 8});
is(verdict('plain', '{"id": 8}'), 'missing', 'an update is none');
$node->query(q{INSERT INTO plain VALUES (9, 'z') ON CONFLICT (id) DO UPDATE SET v = 'z'; INSERT INTO plain VALUES (109, 'z') ON CONFLICT DO NOTHING});
is(verdict('plain', '{"id": 109}'), 'missing', 'speculative insertion');

# keys
$node->query(q{UPDATE plain SET id = 1010 WHERE id = 10});
is(verdict('plain', '{"id": 10}'), 'deleted moved', 'a row that has another key now');
is(verdict('plain', '{"id": 1010}'), 'missing', 'its new key was not deleted');
$node->query(q{INSERT INTO amounts VALUES (1.00), (2.5); DELETE FROM amounts WHERE amount = 1});
is(verdict('amounts', '{"amount": "1.0"}'), 'deleted deleted', '1.0 = 1.00');
is(verdict('amounts', '{"amount": "2.50"}'), 'missing', '2.50');
$node->query(q{INSERT INTO floats VALUES ('-0'); DELETE FROM floats});
is(verdict('floats', '{"f": 0}'), 'deleted deleted', '-0 = 0');
$node->query(q{INSERT INTO padded VALUES ('a'); DELETE FROM padded});
is(verdict('padded', '{"c": "a  "}'), 'deleted deleted', 'padding');
$node->query(q{INSERT INTO two VALUES ('x', 1), ('x', 2); DELETE FROM two WHERE a = 1});
is(verdict('two', '{"a": 1, "b": "x"}'), 'deleted deleted', 'two columns');
is(verdict('two', '{"a": 2, "b": "x"}'), 'missing', 'another one with the same first column');
$node->query(q{INSERT INTO byindex VALUES (1, 'one', 'v'), (2, 'two', 'v'); DELETE FROM byindex WHERE id = 1; UPDATE byindex SET id = 3});
is(verdict('byindex', '{"u": "one"}'), 'deleted deleted', 'REPLICA IDENTITY USING INDEX');
is(verdict('byindex', '{"u": "two"}'), 'missing', 'of which an update leaves the key alone');
$node->query(q{INSERT INTO whole VALUES (1, 'x'), (2, NULL), (3, 'z'); DELETE FROM whole WHERE a < 3; UPDATE whole SET b = 'zz'});
is(verdict('whole', '{"a": 1, "b": "x"}'), 'deleted deleted', 'REPLICA IDENTITY FULL: the whole row');
is(verdict('whole', '{"a": 2, "b": null}'), 'deleted deleted', 'NULL in it');
is(verdict('whole', '{"a": 1, "b": "y"}'), 'missing', 'another row');
is(verdict('whole', '{"a": 3, "b": "z"}'), 'deleted moved', 'a row that was changed has another key');
$node->query(q{INSERT INTO full_key VALUES (1, 'x'), (2, 'x'), (3, 'x'); UPDATE full_key SET v = 'y'; DELETE FROM full_key WHERE id = 1; UPDATE full_key SET id = 4 WHERE id = 3});
is(verdict('full_key', '{"id": 1}'), 'deleted deleted', 'FULL with a primary key: that is the key');
is(verdict('full_key', '{"id": 2}'), 'missing', 'and an update leaves it alone');
is(verdict('full_key', '{"id": 3}'), 'deleted moved', 'or not');
$node->query(q{INSERT INTO unhashed VALUES ('1', 5), ('1', 6); DELETE FROM unhashed WHERE v = '5'::money});
is(verdict('unhashed', '{"v": "5"}'), 'deleted deleted', 'a type that has no hash function');
is(verdict('unhashed', '{"v": "6"}'), 'missing', 'another value of it');
like(verdict('nothing', '{"id": 1}'), qr/^unknown .*NOTHING/, 'REPLICA IDENTITY NOTHING');
like(verdict('keyless', '{"id": 1}'), qr/^unknown .*no replica identity/, 'no key');
like(verdict('elsewhere', '{"id": 1}'), qr/^unknown .*not collected/, 'a table that nobody publishes');
like($node->query_error(q{SELECT tandem.tombstone_find('two', '{"a": 1}')}), qr/needs column "b"/, 'a key that is not whole');

# partitions
$node->query(q{INSERT INTO parts VALUES (1, 'a', 'v'), (2, 'a', 'v'), (3, 'b', 'v'), (4, 'b', 'v'), (5, 'a', 'v')});
$node->query(q{UPDATE parts SET region = 'b' WHERE id = 1; DELETE FROM parts WHERE id IN (2, 3)});
is(verdict('parts_a', '{"id": 1}'), 'missing', 'moved to another partition with the same key: not deleted');
is(verdict('parts_a', '{"id": 2}'), 'deleted deleted', 'deleted in a partition');
is(verdict('parts_b', '{"id": 2}'), 'deleted deleted', 'whichever it is looked for in');
is(verdict('parts_a', '{"id": 3}'), 'deleted deleted', 'though its columns are ordered otherwise');
$node->query(q{DELETE FROM parts WHERE id = 1});
is(verdict('parts_a', '{"id": 1}'), 'deleted deleted', 'deleted there afterwards');
$node->query(q{ALTER TABLE parts DETACH PARTITION parts_b; DROP TABLE parts_b});
is(verdict('parts_a', '{"id": 4}'), 'missing', 'DETACH and DROP are no deletes');

# TRUNCATE
$node->query(q{TRUNCATE parts_a});
is(verdict('parts_a', '{"id": 5}'), 'deleted truncated', 'TRUNCATE of a partition');
$node->query(q{TRUNCATE plain, amounts});
is(verdict('plain', '{"id": 50}'), 'deleted truncated', 'TRUNCATE');
is(verdict('plain', '{"id": 777}'), 'deleted truncated', 'a row nobody knows may have been there');
is(verdict('amounts', '{"amount": 2.5}'), 'deleted truncated', 'of several tables');
$node->query(q{INSERT INTO plain VALUES (50, 'again'); DELETE FROM plain WHERE id = 50});
is(verdict('plain', '{"id": 50}'), 'deleted deleted', 'a delete after it is the newer one');

# DDL
$node->query(q{ALTER TABLE two ADD c int});
is(verdict('two', '{"a": 1, "b": "x"}'), 'deleted deleted', 'a new column changes no key');
$node->query(q{ALTER TABLE two ALTER a TYPE bigint});
like(verdict('two', '{"a": 1, "b": "x"}'), qr/^unknown .*key has changed/, 'the type of a key column does');
$node->query(q{INSERT INTO two VALUES ('x', 9); DELETE FROM two WHERE a = 9});
is(verdict('two', '{"a": 9, "b": "x"}'), 'deleted deleted', 'deletes since are known');

done_testing();
