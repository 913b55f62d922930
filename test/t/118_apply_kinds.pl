# TRUNCATE with all it can have, and rows that are told apart by nothing but all
# their columns; in text and in binary.

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

my $tables = q{
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
	CREATE TABLE alone (id serial PRIMARY KEY, a text);
	CREATE TABLE full_rows (a int, b text, c float8, d jsonb, e int[]);
	ALTER TABLE full_rows REPLICA IDENTITY FULL;
	CREATE TABLE wide (id int PRIMARY KEY, n int, one text, two text);
	ALTER TABLE wide ALTER one SET STORAGE EXTERNAL, ALTER two SET STORAGE EXTERNAL;
	CREATE TABLE wide_full (id int, n int, one text);
	ALTER TABLE wide_full ALTER one SET STORAGE EXTERNAL, REPLICA IDENTITY FULL};
$_->query($tables) for $publisher, $subscriber;
$publisher->query('CREATE TABLE computed (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)');
# computed here as well, in another way
$subscriber->query(q{CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (n * 20) STORED, n int CHECK (n < 1000));
	CREATE UNIQUE INDEX computed_twice ON computed (twice)});
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

for my $binary (qw(off on))
{
	$subscriber->query("ALTER SUBSCRIPTION sub SET (binary = $binary)");

	# ---- TRUNCATE ----
	$publisher->query(q{
		INSERT INTO parent SELECT generate_series(1, 10);
		INSERT INTO child SELECT i, i FROM generate_series(1, 10) i;
		INSERT INTO alone (a) SELECT 'a' FROM generate_series(1, 10)});
	caught_up();
	is_same_table($publisher, $subscriber, $_, "$_, binary $binary") for qw(parent child alone);
	$subscriber->query(q{SELECT setval('alone_id_seq', 500)});
	my $truncates = $subscriber->query('SELECT truncates FROM tandem.subscriptions');
	$publisher->query('TRUNCATE parent, alone RESTART IDENTITY CASCADE; INSERT INTO parent VALUES (77); INSERT INTO child VALUES (7, 77)');
	caught_up();
	is_same_table($publisher, $subscriber, $_, "$_ after TRUNCATE of several, with CASCADE and RESTART IDENTITY") for qw(parent child alone);
	is($subscriber->query(q{SELECT nextval('alone_id_seq')}), 1, 'sequences restart here, too');
	is($subscriber->query('SELECT truncates FROM tandem.subscriptions') - $truncates, 3, 'each table is counted');
	$publisher->query('TRUNCATE alone CONTINUE IDENTITY');
	caught_up();
	is($subscriber->query(q{SELECT nextval('alone_id_seq')}), 2, 'or go on');
	$publisher->query('TRUNCATE parent CASCADE');
	caught_up();

	# ---- REPLICA IDENTITY FULL: equal rows, nulls ----
	$publisher->query(q{
		INSERT INTO full_rows SELECT i % 3, CASE WHEN i % 2 = 0 THEN 'b' END, NULLIF(i % 4, 0) / 3.0, NULL, ARRAY[i % 2] FROM generate_series(1, 48) i;
		INSERT INTO full_rows VALUES (NULL, NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL, NULL), (1, 'j', 'NaN', '{"a": [1, 2]}', NULL)});
	caught_up();
	# one of several equal ones
	$publisher->query(q{
		UPDATE full_rows SET b = 'one of two' WHERE ctid = (SELECT min(ctid) FROM full_rows WHERE a IS NULL);
		DELETE FROM full_rows WHERE ctid IN (SELECT min(ctid) FROM full_rows WHERE a IS NOT NULL AND d IS NULL GROUP BY a, b, c, e);
		UPDATE full_rows SET d = d || '{"b": null}' WHERE d IS NOT NULL;
		UPDATE full_rows SET c = -1 WHERE c = 'NaN';
		UPDATE full_rows SET a = NULL WHERE b IS NULL});
	caught_up();
	is_same_table($publisher, $subscriber, 'full_rows', "equal rows and nulls, one by one, binary $binary");
	$publisher->query('DELETE FROM full_rows');
	caught_up();
	is($subscriber->query('SELECT count(*) FROM full_rows'), 0, 'none is left');

	# ---- unchanged TOASTed values ----
	$publisher->query(q{
		INSERT INTO wide SELECT i, i, repeat(md5(i::text), 200), repeat(md5((i + 1)::text), 200) FROM generate_series(1, 20) i;
		INSERT INTO wide_full SELECT i % 5, i, repeat(md5(i::text), 200) FROM generate_series(1, 20) i});
	caught_up();
	$publisher->query(q{
		UPDATE wide SET n = -n;
		UPDATE wide SET two = NULL WHERE id % 3 = 0;
		UPDATE wide SET one = 'short', n = 0 WHERE id % 4 = 0;
		UPDATE wide SET id = id + 1000 WHERE id % 5 = 0;
		UPDATE wide_full SET n = n + 100 WHERE id = 2;
		DELETE FROM wide_full WHERE id = 3});
	caught_up();
	is_same_table($publisher, $subscriber, $_, "$_: what the publisher did not send stays, binary $binary") for qw(wide wide_full);
	$publisher->query('TRUNCATE wide, wide_full');

	# ---- generated columns ----
	$publisher->query('INSERT INTO computed (id, n) SELECT i, i FROM generate_series(1, 50) i; UPDATE computed SET n = n + 100 WHERE id % 2 = 0; DELETE FROM computed WHERE id > 40');
	caught_up();
	is_same_table($publisher, $subscriber, 'SELECT id, n FROM computed', "columns beside a generated one, binary $binary");
	is($subscriber->query('SELECT count(*) FROM computed WHERE twice IS DISTINCT FROM n * 20'), 0, 'which is computed here');
	is($subscriber->query('SET enable_seqscan = off; SELECT id FROM computed WHERE twice = 2040'), 2, 'its index as well');
	$publisher->query('DELETE FROM computed');
	caught_up();
}

# what refers to an emptied table only here stands in the way, as with core's worker, and is said
$publisher->query('INSERT INTO parent VALUES (1)');
caught_up();
$subscriber->query('CREATE TABLE refers (id int PRIMARY KEY, parent int REFERENCES parent)');
$publisher->query('TRUNCATE parent CASCADE');
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~ /cannot truncate a table referenced in a foreign key constraint/ },
	'the error of a reference that only this side has');
$subscriber->query('DROP TABLE refers');
caught_up();
is($subscriber->query('SELECT count(*) FROM parent'), 0, 'it goes on when that is gone');
is($subscriber->query('SELECT update_missing, delete_missing FROM tandem.subscriptions'), '0|0', 'no row was missing in all this');

done_testing();
