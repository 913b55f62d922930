# What publications say, for the copy and for the stream: row filters and column
# lists in several publications, tables of a schema, all tables, publish = ...,
# partitions published as themselves and as their root.  Beside ours the server's
# own worker runs the same subscription in another database: both end alike, and as
# expected.

use strict;
use warnings;

use Tandem::Beside;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $beside = Tandem::Beside->new($publisher, $node);

# ---- Row filters -------------------------------------------------------------------

$publisher->query(q{
	CREATE TABLE low_high (id int PRIMARY KEY, v int); INSERT INTO low_high SELECT g, g FROM generate_series(1, 10) g;
	CREATE TABLE one_all (id int PRIMARY KEY, v int); INSERT INTO one_all SELECT g, g FROM generate_series(1, 10) g;
	CREATE TABLE text_filter (id int PRIMARY KEY, v text);
	INSERT INTO text_filter VALUES (1, 'it''s'), (2, 'x'), (3, NULL);
	ALTER TABLE low_high REPLICA IDENTITY FULL; ALTER TABLE text_filter REPLICA IDENTITY FULL;
	CREATE PUBLICATION low FOR TABLE low_high WHERE (v <= 2), one_all WHERE (v = 1), text_filter WHERE (v = 'it''s' AND id IS NOT NULL);
	CREATE PUBLICATION high FOR TABLE low_high WHERE (v >= 9), one_all;
	CREATE SCHEMA whole; CREATE TABLE whole.t (id int PRIMARY KEY, v int); INSERT INTO whole.t VALUES (1, 1), (2, 2);
	CREATE PUBLICATION filtered FOR TABLE whole.t WHERE (v = 1);
	CREATE PUBLICATION schema FOR TABLES IN SCHEMA whole});
$beside->here(q{
	CREATE TABLE low_high (v int, id int PRIMARY KEY); CREATE TABLE one_all (id int PRIMARY KEY, v int);
	CREATE TABLE text_filter (id int PRIMARY KEY, v text); ALTER TABLE low_high REPLICA IDENTITY FULL;
	CREATE SCHEMA whole; CREATE TABLE whole.t (id int PRIMARY KEY, v int); CREATE TABLE whole.later (id int PRIMARY KEY)});
$beside->subscribe('low, high, filtered, schema');
$beside->both(q{SELECT string_agg(id::text, ',' ORDER BY id) FROM low_high}, '1,2,9,10', 'copy: a row that one of the filters lets through');
$beside->both(q{SELECT count(*) FROM one_all}, '10', 'copy: one publication without a filter has all rows');
$beside->both(q{SELECT id FROM text_filter}, '1', 'copy: a filter with quotes');
$beside->both(q{SELECT count(*) FROM whole.t}, '2', 'copy: a schema has no filters');
$publisher->query(q{
	UPDATE low_high SET v = 5 WHERE id = 1; UPDATE low_high SET v = 1 WHERE id = 5; UPDATE low_high SET v = 10 WHERE id = 9;
	INSERT INTO low_high VALUES (20, 1), (21, 5), (22, 100); DELETE FROM low_high WHERE id = 2; DELETE FROM low_high WHERE id = 6;
	INSERT INTO one_all VALUES (11, 11); INSERT INTO text_filter VALUES (4, 'it''s'), (5, 'y'); UPDATE text_filter SET v = 'z' WHERE id = 1;
	INSERT INTO whole.t VALUES (3, 3); CREATE TABLE whole.later (id int PRIMARY KEY); INSERT INTO whole.later VALUES (1)});
$beside->applied();
$beside->both(q{SELECT string_agg(id || '=' || v, ',' ORDER BY id) FROM low_high}, '5=1,9=10,10=10,20=1,22=100', 'apply: rows come into a filter and leave it');
$beside->both(q{SELECT count(*) FROM one_all}, '11', 'apply: all rows');
$beside->both(q{SELECT id FROM text_filter}, '4', 'apply: a filter with quotes');
$beside->both(q{SELECT count(*) FROM whole.t}, '3', 'apply: a schema');
$beside->refresh;
$beside->both('SELECT count(*) FROM whole.later', '1', 'a table that is new in the schema');
$node->query(q{SELECT tandem.resync('ours', 'low_high')});
$beside->copied;
$beside->both(q{SELECT string_agg(id || '=' || v, ',' ORDER BY id) FROM low_high}, '5=1,9=10,10=10,20=1,22=100', 'resync: the same rows');
$beside->unsubscribe(qw(low high filtered schema));

# ---- Column lists -------------------------------------------------------------------

$publisher->query(q{
	CREATE TABLE listed (a int, id int PRIMARY KEY, secret text, b text, dropped int); ALTER TABLE listed DROP dropped;
	INSERT INTO listed VALUES (1, 1, 's', 'b1');
	CREATE TABLE every (id int PRIMARY KEY, v text, gone int); ALTER TABLE every DROP gone; INSERT INTO every VALUES (1, 'v');
	CREATE PUBLICATION list1 FOR TABLE listed (id, b), every;
	CREATE PUBLICATION list2 FOR TABLE listed (b, id) WHERE (id < 100), every});
$beside->here(q{CREATE TABLE listed (b text, id int PRIMARY KEY, a int DEFAULT -1, secret text DEFAULT 'none'); CREATE TABLE every (id int PRIMARY KEY, v text)});
$beside->subscribe('list1, list2');
$publisher->query(q{INSERT INTO listed VALUES (2, 2, 's', 'b2'); UPDATE listed SET b = 'b3', secret = 'x' WHERE id = 1; INSERT INTO every VALUES (2, 'w')});
$beside->applied();
$beside->both(q{SELECT id, a, b, secret FROM listed ORDER BY id}, '1|-1|b3|none;2|-1|b2|none', 'the same list twice, in another order');
$beside->both(q{SELECT * FROM every ORDER BY id}, '1|v;2|w', 'no list, and a dropped column');

# lists that differ are one table's error, with a hint; the others go on
my $waves = Tandem::Waves->new($publisher, $node, name => 'ours');
$publisher->query('ALTER PUBLICATION list2 SET TABLE listed (id), every');
$waves->resync('every', 'listed');
$waves->wait_state('listed', 'failed: its column lists differ between publications');
like($node->query(q{SELECT hint FROM tandem.tables WHERE name = 'listed'}), qr/same column list in all/, 'lists that differ: a hint');
$waves->wait_state('every', 'ready');
$publisher->query('ALTER PUBLICATION list2 SET TABLE listed (id, b), every');
$waves->resync('listed');
$waves->wait_state('listed', 'ready');
pass('... and when they are alike again it is copied');
$beside->unsubscribe(qw(list1 list2));

# ---- All tables, and publish = ... -----------------------------------------------------

$publisher->query(q{
	CREATE TABLE kinds (id int PRIMARY KEY, v text); INSERT INTO kinds VALUES (1, 'a'), (2, 'b'), (3, 'c');
	CREATE PUBLICATION inserts FOR TABLE kinds WITH (publish = 'insert');
	CREATE PUBLICATION deletes FOR TABLE kinds WITH (publish = 'delete')});
$beside->here('CREATE TABLE kinds (id int PRIMARY KEY, v text)');
$beside->subscribe('inserts, deletes');
$publisher->query(q{UPDATE kinds SET v = 'x'; DELETE FROM kinds WHERE id = 1; INSERT INTO kinds VALUES (4, 'd')});
$beside->applied();
$beside->both(q{SELECT id, v FROM kinds ORDER BY id}, '2|b;3|c;4|d', 'publish = insert, delete');
$publisher->query('TRUNCATE kinds');
$beside->applied();
$beside->both(q{SELECT count(*) FROM kinds}, '3', '... no truncate');
$beside->unsubscribe(qw(inserts deletes));
$publisher->query('DROP TABLE kinds, listed, every, one_all, low_high, text_filter; DROP SCHEMA whole CASCADE');
$beside->here('DROP TABLE kinds, listed, every, one_all, low_high, text_filter; DROP SCHEMA whole CASCADE');

# ---- Partitions --------------------------------------------------------------------------

$publisher->query(q{
	CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE part1 PARTITION OF root FOR VALUES FROM (0) TO (10);
	CREATE TABLE part2 (v text, x int, id int NOT NULL); ALTER TABLE part2 DROP x; ALTER TABLE part2 ADD PRIMARY KEY (id);
	ALTER TABLE root ATTACH PARTITION part2 FOR VALUES FROM (10) TO (20);
	INSERT INTO root SELECT g, 'row ' || g FROM generate_series(1, 19) g;
	CREATE PUBLICATION via_root FOR TABLE root WHERE (id <> 3) WITH (publish_via_partition_root = true);
	CREATE PUBLICATION as_parts FOR TABLE root});

sub partition_changes
{
	$publisher->query(q{UPDATE root SET v = 'changed' WHERE id IN (1, 11); DELETE FROM root WHERE id IN (2, 12);
		UPDATE root SET id = 15 - id WHERE id IN (0, 15); INSERT INTO root VALUES (2, 'again')});
	$beside->applied();
	return;
}
my $all = q{SELECT count(*), min(id), max(id), md5(string_agg(id || v, ',' ORDER BY id)) FROM };

# as the root: into one table, and into other partitions
$beside->here('CREATE TABLE root (v text, id int PRIMARY KEY)');
$beside->subscribe('via_root');
$beside->both("$all root", $publisher->query("$all root WHERE id <> 3"), 'via root, copy: one table, with the filter of the root');
partition_changes();
$beside->both("$all root", $publisher->query("$all root WHERE id <> 3"), 'via root, apply: one table');
$publisher->query('CREATE TABLE part3 PARTITION OF root FOR VALUES FROM (20) TO (30); INSERT INTO root VALUES (25, \'new\')');
$beside->applied();
$beside->both('SELECT v FROM root WHERE id = 25', 'new', 'via root: a partition that is new needs nothing');
$publisher->query('ALTER TABLE root DETACH PARTITION part3; DROP TABLE part3');
$beside->unsubscribe;
$beside->here(q{DROP TABLE root; CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY HASH (id);
	CREATE TABLE h0 PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE h1 PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 1)});
$beside->subscribe('via_root');
$beside->both("$all root", $publisher->query("$all root WHERE id <> 3"), 'via root, copy: other partitions');
partition_changes();
$beside->both("$all root", $publisher->query("$all root WHERE id <> 3"), 'via root, apply: other partitions');
$beside->unsubscribe;

# as themselves: into tables of their own, and into partitions
$beside->here('DROP TABLE root; CREATE TABLE part1 (id int PRIMARY KEY, v text); CREATE TABLE part2 (id int PRIMARY KEY, v text)');
$beside->subscribe('as_parts');
$beside->both("$all part1", $publisher->query("$all part1"), 'as parts, copy: the first');
$beside->both("$all part2", $publisher->query("$all part2"), 'as parts, copy: the second');
partition_changes();
$beside->both("$all part1", $publisher->query("$all part1"), 'as parts, apply: the first');
$beside->both("$all part2", $publisher->query("$all part2"), 'as parts, apply: the second');
$beside->unsubscribe(qw(via_root as_parts));

done_testing();
