# What the publisher changes is changed here: every kind of change, on tables
# whose columns and identities aren't quite the same on both sides.  Without the
# apply worker the tables here stay empty.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher');
my $subscriber = Tandem::Node->new_primary('subscriber');

sub caught_up
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# Both give the same answer.
sub same
{
	my ($query, $what, $here) = @_;
	is($subscriber->query($here // $query), $publisher->query($query), $what);
	return;
}

for my $node ($publisher, $subscriber)
{
	$node->query(q{
		CREATE TABLE plain (id int PRIMARY KEY, a text, b numeric);
		CREATE TABLE keyless (a int, b text);
		CREATE TABLE byindex (a int, b int NOT NULL, c text);
		CREATE UNIQUE INDEX byindex_b ON byindex (b);
		ALTER TABLE byindex REPLICA IDENTITY USING INDEX byindex_b;
		ALTER TABLE keyless REPLICA IDENTITY FULL;
		CREATE TABLE toasted (id int PRIMARY KEY, big text, n int);
		ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE seconds (id int PRIMARY KEY, u int UNIQUE, t timestamptz)});
}
$publisher->query(q{
	CREATE TABLE shaped (id int PRIMARY KEY, gone int, a text, b int);
	ALTER TABLE shaped DROP gone;
	CREATE PUBLICATION pub FOR ALL TABLES});
# other order, more columns, generated ones, a wider type
$subscriber->query(q{
	CREATE TABLE shaped (b bigint, more text DEFAULT 'default', twice bigint GENERATED ALWAYS AS (b * 2) STORED,
		gone text, numbered serial, a varchar, id int PRIMARY KEY CHECK (id < 1000000), empty int);
	ALTER TABLE shaped DROP gone});
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

# many rows go through the batch, one at a time doesn't
$publisher->query(q{
	INSERT INTO plain SELECT i, 'row ' || i, i / 7.0 FROM generate_series(1, 5000) i;
	INSERT INTO plain VALUES (5001, NULL, NULL);
	INSERT INTO keyless SELECT i % 10, 'x' || i FROM generate_series(1, 50) i;
	INSERT INTO keyless VALUES (NULL, NULL), (1, NULL), (1, 'twice'), (1, 'twice');
	INSERT INTO byindex SELECT i, -i, 'c' FROM generate_series(1, 100) i;
	INSERT INTO shaped SELECT i, 'a' || i, i FROM generate_series(1, 2000) i;
	INSERT INTO toasted SELECT i, repeat(md5(i::text), 1000), i FROM generate_series(1, 20) i});
caught_up();
is_same_table($publisher, $subscriber, $_, "$_ after inserts") for qw(plain keyless byindex toasted);
same('SELECT count(*), sum(id), sum(b), min(a), sum(b * 2) FROM shaped', 'columns by name, generated ones too',
	q{SELECT count(*), sum(id), sum(b), min(a), sum(twice) FROM shaped WHERE more = 'default' AND empty IS NULL});
is($subscriber->query('SELECT count(DISTINCT numbered), min(numbered) FROM shaped'), '2000|1', 'default from a sequence');
is($subscriber->query('SELECT inserts FROM tandem.subscriptions'), 5001 + 54 + 100 + 2000 + 20, 'rows are counted');

$publisher->query(q{
	UPDATE plain SET a = a || '!', b = NULL WHERE id % 3 = 0;
	UPDATE plain SET id = id + 10000 WHERE id % 50 = 0;
	DELETE FROM plain WHERE id % 7 = 0;
	UPDATE keyless SET b = 'changed' WHERE a = 3 OR a IS NULL;
	DELETE FROM keyless WHERE a = 4;
	DELETE FROM keyless WHERE ctid = (SELECT max(ctid) FROM keyless WHERE b = 'twice');
	UPDATE byindex SET b = b - 1000, c = 'd' WHERE a < 50;
	DELETE FROM byindex WHERE a > 90;
	UPDATE toasted SET n = -n WHERE id < 10;
	UPDATE toasted SET id = id + 100 WHERE id > 15;
	UPDATE shaped SET b = 1, a = 'new' WHERE id < 100;
	DELETE FROM shaped WHERE id > 1990});
caught_up();
is_same_table($publisher, $subscriber, $_, "$_ after updates and deletes") for qw(plain keyless byindex toasted);
same('SELECT count(*), sum(id), sum(b), min(a), sum(b * 2) FROM shaped', 'updated columns by name',
	q{SELECT count(*), sum(id), sum(b), min(a), sum(twice) FROM shaped WHERE more = 'default'});
like($subscriber->query('SELECT updates > 0, deletes > 0, transactions FROM tandem.subscriptions'), qr/^t\|t\|\d+$/, 'counted');

# changes of one row in one transaction, and inserts of several tables mixed
$publisher->query(q{
	BEGIN;
	INSERT INTO seconds VALUES (1, 1, now()), (2, 2, now());
	UPDATE seconds SET u = 3 WHERE id = 1;
	INSERT INTO seconds VALUES (3, 1, now());
	INSERT INTO plain VALUES (-1, 'a', 1);
	INSERT INTO seconds VALUES (4, 4, now());
	DELETE FROM seconds WHERE id = 2;
	INSERT INTO seconds VALUES (2, 2, NULL);
	COMMIT});
caught_up();
is_same_table($publisher, $subscriber, $_, "$_ after a mixed transaction") for qw(plain seconds);

# a row that isn't here is skipped and counted
$subscriber->query('DELETE FROM plain WHERE id IN (1, 2)');
my $mark = $subscriber->log_mark;
$publisher->query(q{UPDATE plain SET a = 'missing' WHERE id = 1; DELETE FROM plain WHERE id = 2; INSERT INTO plain VALUES (-2, 'after', 0)});
caught_up();
like($subscriber->log_since($mark), qr/conflict detected on relation "public\.plain": conflict=update_missing/, 'a missing row is logged');
is($subscriber->query('SELECT a FROM plain WHERE id = -2'), 'after', 'and the stream goes on');
is($subscriber->query('SELECT update_missing, delete_missing FROM tandem.subscriptions'), '1|1', 'missing rows are counted by kind');
my $counted = 'SELECT updates, deletes FROM tandem.subscriptions';
my $before = $subscriber->query($counted);
$publisher->query('DELETE FROM plain WHERE id = 1');
caught_up();
is($subscriber->query($counted), $before, 'a change that is skipped does not count as applied');
is($subscriber->query('SELECT update_missing, delete_missing FROM tandem.subscriptions'), '1|2', 'each is counted');
is_same_table($publisher, $subscriber, 'plain', 'plain');

# DDL between changes, on both sides
$subscriber->query('ALTER TABLE plain ADD c text');
$publisher->query(q{INSERT INTO plain VALUES (-3, 'ddl', 0)});
caught_up();
$publisher->query(q{ALTER TABLE plain ADD c text DEFAULT 'c'; UPDATE plain SET b = b WHERE id < 1000; INSERT INTO plain VALUES (-4, 'ddl', 0, 'd')});
caught_up();
$subscriber->query(q{UPDATE plain SET c = 'c' WHERE c IS NULL});
is_same_table($publisher, $subscriber, 'plain', 'plain with a new column');
$subscriber->query('CREATE INDEX plain_a ON plain (a)');
$publisher->query(q{UPDATE plain SET a = 'indexed' WHERE id BETWEEN 1000 AND 1500});
caught_up();
is($subscriber->query(q{SET enable_seqscan = off; SELECT count(*) FROM plain WHERE a = 'indexed'}),
	$publisher->query(q{SELECT count(*) FROM plain WHERE a = 'indexed'}), 'a new index is maintained');

# what can't be applied is said, and goes on when it is mended
$subscriber->query('ALTER TABLE seconds RENAME TO hidden');
$publisher->query(q{INSERT INTO seconds VALUES (10, 10, NULL)});
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~
		/^logical replication target relation "public.seconds" does not exist/ }, 'the error of a missing table');
$subscriber->query('ALTER TABLE hidden RENAME TO seconds; ALTER TABLE seconds RENAME t TO s');
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~
		/relation "public.seconds" is missing replicated column: "t"/ }, 'the error of a missing column');
$subscriber->query('ALTER TABLE seconds RENAME s TO t');
caught_up();
is_same_table($publisher, $subscriber, 'seconds', 'seconds after its errors');

$publisher->query('BEGIN; INSERT INTO byindex VALUES (1000, 1000); TRUNCATE byindex; INSERT INTO byindex VALUES (7, 7, NULL); COMMIT');
caught_up();
is_same_table($publisher, $subscriber, 'byindex', 'byindex after TRUNCATE in mid-transaction');

done_testing();
