# Tables are copied in a wave while pgbench writes: afterwards both sides are
# equal, indexes are there and hold, and no slot or origin is left over.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);

my $tables = q{
	CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL);
	CREATE TABLE log (id bigserial PRIMARY KEY, counter int, n int, note text);
	CREATE INDEX log_counter ON log (counter);
	CREATE TABLE empty (a int PRIMARY KEY);
	CREATE TABLE "Odd names" ("a b" text PRIMARY KEY, v numeric, j jsonb);
	CREATE TABLE parts (a int, b text, PRIMARY KEY (a)) PARTITION BY HASH (a);
	CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	CREATE TABLE big (id int PRIMARY KEY, filler text, changed int DEFAULT 0);
	CREATE INDEX big_changed ON big (changed);
};
$_->query($tables) for $publisher, $subscriber;
$publisher->query(q{
	INSERT INTO counters SELECT g, 0 FROM generate_series(1, 100) g;
	INSERT INTO "Odd names" SELECT 'row ' || g, g / 3.0, jsonb_build_object('g', g) FROM generate_series(1, 500) g;
	INSERT INTO parts SELECT g, md5(g::text) FROM generate_series(1, 1000) g;
	INSERT INTO big SELECT g, repeat(md5(g::text), 10) FROM generate_series(1, 100000) g;
	CREATE PUBLICATION pub FOR ALL TABLES;
});

my $load = $publisher->start_load(clients => 4, script => q{
\set c random(1, 100)
\set b random(1, 100000)
BEGIN;
UPDATE counters SET n = n + 1 WHERE id = :c;
INSERT INTO log (counter, n, note) SELECT id, n, 'x' FROM counters WHERE id = :c;
SAVEPOINT s;
UPDATE big SET changed = changed + 1 WHERE id = :b;
RELEASE s;
UPDATE parts SET b = b || 'x' WHERE a = :c;
COMMIT;
});

my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;
$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
$subscriber->query(q{SELECT tandem.adopt('sub')});

sub wait_ready
{
	my ($timeout) = @_;
	poll_for(
		sub { $subscriber->query(q{SELECT count(*) FILTER (WHERE state <> 'ready') = 0 AND count(*) > 0 FROM tandem.tables}) eq 't' },
		'all tables to be ready', $timeout);
	return;
}

sub differences
{
	my @different;
	for my $table (qw(counters log empty "Odd_names" parts big))
	{
		my $name = $table eq '"Odd_names"' ? '"Odd names"' : $table;
		my $sum = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM $name t";
		push @different, $name if $publisher->query($sum) ne $subscriber->query($sum);
	}
	return @different;
}

wait_ready();
is($subscriber->query(q{SELECT string_agg(DISTINCT srsubstate::text, '') FROM pg_subscription_rel}), 'r',
	'the server knows them as ready');
like($publisher->stop_load($load), qr/^pgbench[^\n]*\n*$/, 'no transaction of the load failed');
$publisher->query(q{INSERT INTO empty VALUES (1)});
poll_for(sub { $subscriber->query('SELECT count(*) FROM empty') eq '1' }, 'the last change');
is(join(', ', differences()), '', 'both sides are equal');
is($subscriber->query(q{SELECT count(*) FROM pg_index WHERE NOT indisvalid}), '0', 'all indexes are valid');
is($subscriber->query(q{SET enable_seqscan = off; SELECT count(*) FROM log WHERE counter BETWEEN 1 AND 100}),
	$subscriber->query(q{SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
		SELECT count(*) FROM log WHERE counter BETWEEN 1 AND 100}), 'an index built after the load finds all rows');
like($subscriber->query_error(q{INSERT INTO big VALUES (1, 'x')}), qr/duplicate key/, 'the primary key holds');
poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
	'no origin of a worker left');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '1', 'no other slot on the publisher');

# one table again
$subscriber->query(q{DELETE FROM big WHERE id % 2 = 0; UPDATE big SET filler = 'damaged'});
my $again = $publisher->start_load(clients => 2, script => q{
\set b random(1, 100000)
UPDATE big SET changed = changed + 1 WHERE id = :b;
});
my $wave = $subscriber->query(q{SELECT wave FROM tandem.tables WHERE name = 'big'});
$subscriber->query(q{SELECT tandem.resync('sub', 'big')});
poll_for(sub { $subscriber->query("SELECT wave > $wave AND state = 'ready' FROM tandem.tables WHERE name = 'big'") eq 't' },
	'the second copy');
$publisher->stop_load($again);
$publisher->query(q{INSERT INTO empty VALUES (2)});
poll_for(sub { $subscriber->query('SELECT count(*) FROM empty') eq '2' }, 'the last change');
is(join(', ', differences()), '', 'equal after tandem.resync()');

done_testing();
