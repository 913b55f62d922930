# Somebody updates the same rows here while changes of them are applied.  A
# dirty snapshot alone, which is how the server's worker looks for a row, may see
# neither the old nor the new version of it; then the change is skipped (seen in this
# test when lookup.c has only that).

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher');
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "synchronous_commit = off\n");

$publisher->query(q{
	CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL);
	INSERT INTO t SELECT i, 0 FROM generate_series(1, 2) i});
$publisher->publish('pub');
# every local update makes new index entries
$subscriber->query(q{
	CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, n int NOT NULL DEFAULT 0, pad text);
	ALTER TABLE t ALTER pad SET STORAGE PLAIN;
	CREATE INDEX t_n ON t (n);
	INSERT INTO t SELECT i, 0, 0, repeat('x', 3000) FROM generate_series(1, 2) i});
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

my $mark = $subscriber->log_mark;
my $load = $subscriber->start_load(clients => 4, script => q{\set id random(1, 2)
UPDATE t SET n = n + 1 WHERE id = :id;
});
my $vacuum = $subscriber->start_load(clients => 1, script => "VACUUM t;\n");
my $changes = $publisher->start_load(clients => 2, script => q{\set id random(1, 2)
UPDATE t SET a = a + 1 WHERE id = :id;
});
poll_for(sub { $publisher->query('SELECT sum(a) > 3000 FROM t') eq 't' }, 'some changes');
$publisher->stop_load($changes);
$subscriber->wait_subscription('sub', $publisher);
$subscriber->stop_load($_) for $load, $vacuum;

is_same_table($publisher, $subscriber, 'SELECT id, a FROM t', 'no change is lost');
unlike($subscriber->log_since($mark), qr/conflict detected/, 'no row is missing');
cmp_ok($subscriber->query('SELECT sum(n) FROM t'), '>', 100, 'the rows were updated here too');

done_testing();
