# Partitioned targets, triggers and privileges: changes are applied as the
# server's own worker would, partition by partition, with the triggers that fire
# on a replica, and with the privileges of the subscription's owner.

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

$publisher->query(q{
	CREATE TABLE parts (id int PRIMARY KEY, a text, b int);
	CREATE TABLE fired (id int PRIMARY KEY, a text);
	CREATE TABLE guarded (id int PRIMARY KEY, a text);
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
	CREATE PUBLICATION pub FOR ALL TABLES});

# the target is partitioned, with other column orders, two levels and a default
$subscriber->query(q{
	CREATE TABLE parts (id int PRIMARY KEY, a text, b int, more int DEFAULT 7) PARTITION BY RANGE (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE parts_2 (b int, junk int, more int DEFAULT 8, a text, id int NOT NULL);
	ALTER TABLE parts_2 DROP junk;
	ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (100) TO (200);
	CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (200) TO (400) PARTITION BY RANGE (id);
	CREATE TABLE parts_31 PARTITION OF parts_3 FOR VALUES FROM (200) TO (300);
	CREATE TABLE parts_d PARTITION OF parts DEFAULT;

	CREATE TABLE fired (id int PRIMARY KEY, a text);
	CREATE TABLE guarded (id int PRIMARY KEY, a text);
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);

	CREATE TABLE fires (what text, id int, a text);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.fires VALUES (TG_NAME || ' ' || TG_OP, coalesce(NEW.id, OLD.id), NEW.a);
		IF TG_WHEN = 'BEFORE' AND TG_OP = 'INSERT' THEN
			IF NEW.id = 13 THEN RETURN NULL; END IF;
			NEW.a := NEW.a || ' seen';
		END IF;
		RETURN coalesce(NEW, OLD);
	END $$;
	CREATE TRIGGER before_row BEFORE INSERT OR UPDATE OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION note();
	CREATE TRIGGER after_row AFTER INSERT OR UPDATE OF a OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION note();
	CREATE TRIGGER origin_only AFTER INSERT ON fired FOR EACH ROW EXECUTE FUNCTION note();
	ALTER TABLE fired ENABLE REPLICA TRIGGER before_row;
	ALTER TABLE fired ENABLE ALWAYS TRIGGER after_row;
	CREATE TRIGGER after_part AFTER INSERT OR DELETE ON parts_2 FOR EACH ROW EXECUTE FUNCTION note();
	ALTER TABLE parts_2 ENABLE ALWAYS TRIGGER after_part});
$subscriber->subscribe_adopted('sub', $publisher, 'pub');

# ---- partitions ----
$publisher->query(q{INSERT INTO parts SELECT i, 'a' || i, i FROM generate_series(1, 299) i; INSERT INTO parts VALUES (1000, 'far', 0)});
caught_up();
is_same_table($publisher, $subscriber, 'SELECT id, a, b FROM parts', 'inserts routed');
is($subscriber->query('SELECT tableoid::regclass, count(*) FROM parts GROUP BY 1 ORDER BY 1'),
	"parts_1|99\nparts_2|100\nparts_31|100\nparts_d|1", 'to their partitions');
is($subscriber->query('SELECT min(more), max(more) FROM parts'), '7|7', 'with the root\'s default');

$publisher->query(q{
	UPDATE parts SET a = a || '!' WHERE id % 3 = 0;
	UPDATE parts SET id = id + 1000 WHERE id % 10 = 0 AND id < 300;
	UPDATE parts SET id = 150000 WHERE id = 151;
	UPDATE parts SET id = 151 WHERE id = 51;
	DELETE FROM parts WHERE id % 7 = 0});
caught_up();
is_same_table($publisher, $subscriber, 'SELECT id, a, b FROM parts', 'updated, moved and deleted');
is($subscriber->query(q{SELECT a FROM fires WHERE what = 'after_part INSERT' AND id = 151 ORDER BY a}), "a151\na51!", 'triggers of a partition fire, also when a row moves');
$subscriber->query('ALTER TABLE parts_3 DETACH PARTITION parts_31');
$publisher->query('TRUNCATE parts; INSERT INTO parts SELECT i FROM generate_series(1, 150) i');
caught_up();
is_same_table($publisher, $subscriber, 'SELECT id, a, b FROM parts', 'truncated with all partitions');

# no partition for it: an error until there is one
$subscriber->query('ALTER TABLE parts DETACH PARTITION parts_d');
$publisher->query('INSERT INTO parts VALUES (5000), (1001)');
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~
		/no partition of relation "parts" found for row/ }, 'the error of a missing partition');
$subscriber->query('ALTER TABLE parts ATTACH PARTITION parts_d DEFAULT');
caught_up();
is_same_table($publisher, $subscriber, 'SELECT id, a, b FROM parts', 'all there when the partition is');

# ---- triggers ----
$publisher->query(q{
	INSERT INTO fired VALUES (12, 'a'), (13, 'b'), (14, 'c');
	UPDATE fired SET a = 'changed' WHERE id = 12;
	DELETE FROM fired WHERE id = 14});
caught_up();
is($subscriber->query('SELECT * FROM fired'), '12|changed', 'BEFORE triggers decide about rows');
is($subscriber->query(q{SELECT what, id, a FROM fires WHERE what NOT LIKE 'after_part%' ORDER BY what, id}),
	"after_row DELETE|14|\nafter_row INSERT|12|a seen\nafter_row INSERT|14|c seen\nafter_row UPDATE|12|changed\n"
	  . "before_row DELETE|14|\nbefore_row INSERT|12|a\nbefore_row INSERT|13|b\nbefore_row INSERT|14|c\nbefore_row UPDATE|12|changed",
	'REPLICA and ALWAYS triggers fire, others do not');

# foreign keys aren't checked on a replica: a child may come before its parent
$publisher->query('INSERT INTO parent SELECT generate_series(1, 100); INSERT INTO child SELECT i, i FROM generate_series(1, 100) i');
caught_up();
is_same_table($publisher, $subscriber, 'child', 'rows with foreign keys');

# ---- privileges ----
$subscriber->query(q{
	CREATE ROLE applier LOGIN SUPERUSER;
	ALTER SUBSCRIPTION sub OWNER TO applier});
poll_for(sub { $subscriber->query(q{SELECT state FROM tandem.subscriptions WHERE owner = 'applier'}) eq 'streaming' }, 'the new owner');
$subscriber->query('ALTER ROLE applier NOSUPERUSER');
$publisher->query(q{INSERT INTO guarded VALUES (1, 'a')});
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~ /permission denied for table guarded/ }, 'no INSERT privilege');
$subscriber->query('GRANT INSERT ON guarded TO applier');
caught_up();
$publisher->query(q{UPDATE guarded SET a = 'b'});
poll_for(sub { $subscriber->query('SELECT last_error, error_count > 1 FROM tandem.subscriptions') =~ /permission denied for table guarded/ }, 'no SELECT privilege');
$subscriber->query('GRANT SELECT, UPDATE ON guarded TO applier');
caught_up();
is_same_table($publisher, $subscriber, 'guarded', 'with the privileges it goes on');
$subscriber->query('ALTER TABLE guarded ENABLE ROW LEVEL SECURITY');
$publisher->query(q{INSERT INTO guarded VALUES (2, 'c')});
poll_for(sub { $subscriber->query('SELECT last_error FROM tandem.subscriptions') =~ /user "applier" cannot replicate into relation with row-level security/ }, 'row-level security is refused');
$subscriber->query('ALTER TABLE guarded DISABLE ROW LEVEL SECURITY');
caught_up();
is_same_table($publisher, $subscriber, 'guarded', 'and goes on without it');

done_testing();
