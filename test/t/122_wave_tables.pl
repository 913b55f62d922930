# What a wave copies of each table: row filters, column lists, partition roots;
# a table that fails shows its error alone, and a table without its columns, too.
# A table that is locked here delays neither the stream nor other tables.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);

$publisher->query(q{
	CREATE TABLE filtered (id int PRIMARY KEY, keep boolean);
	CREATE TABLE listed (id int PRIMARY KEY, secret text, open text);
	CREATE TABLE rooted (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
	CREATE TABLE rooted_low PARTITION OF rooted FOR VALUES FROM (0) TO (100);
	CREATE TABLE rooted_high PARTITION OF rooted FOR VALUES FROM (100) TO (1000);
	CREATE TABLE twice (id int PRIMARY KEY, v int);
	CREATE TABLE wider (id int PRIMARY KEY, more int);
	CREATE TABLE good (id int PRIMARY KEY, t timestamptz, a int[], m money, e text);
	INSERT INTO filtered SELECT g, g % 3 = 0 FROM generate_series(1, 300) g;
	INSERT INTO listed SELECT g, 'secret', 'open' FROM generate_series(1, 300) g;
	INSERT INTO rooted SELECT g, 'x' || g FROM generate_series(1, 500) g;
	INSERT INTO twice SELECT g, g / 2 FROM generate_series(1, 300) g;
	INSERT INTO wider SELECT g, g FROM generate_series(1, 300) g;
	INSERT INTO good SELECT g, now(), ARRAY[g, g], g, E'tab\there' FROM generate_series(1, 300) g;
	CREATE PUBLICATION pub FOR TABLE filtered WHERE (keep), listed (id, open), rooted, twice, wider, good
		WITH (publish_via_partition_root = true);
});
$subscriber->query(q{
	CREATE TABLE filtered (id int PRIMARY KEY, keep boolean);
	CREATE TABLE listed (id int PRIMARY KEY, open text, extra int DEFAULT 7, twice int GENERATED ALWAYS AS (id * 2) STORED);
	CREATE TABLE rooted (b text, a int PRIMARY KEY);
	CREATE TABLE twice (id int PRIMARY KEY, v int UNIQUE);
	CREATE TABLE wider (id int PRIMARY KEY);
	CREATE TABLE good (id int PRIMARY KEY, t timestamptz, a int[], m money, e text);
});
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;
$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
$subscriber->query(q{SELECT tandem.adopt('sub')});

sub state_of
{
	my ($table) = @_;
	return $subscriber->query("SELECT state || coalesce(': ' || last_error, '') FROM tandem.tables WHERE name = '$table'");
}

for my $table (qw(filtered listed rooted good))
{
	poll_for(sub { state_of($table) eq 'ready' }, "$table to be ready");
}
is($subscriber->query('SELECT count(*), bool_and(keep) FROM filtered'), '100|t', 'row filter');
is($subscriber->query('SELECT count(*), min(open), min(extra), sum(twice) FROM listed'), '300|open|7|90300',
	'column list, default and generated column');
is($subscriber->query('SELECT count(*), sum(a) FROM rooted'), '500|125250', 'partition root, other column order');
is($subscriber->query('SELECT count(*), sum(hashtextextended(g::text, 0)) FROM good g'),
	$publisher->query('SELECT count(*), sum(hashtextextended(g::text, 0)) FROM good g'), 'text format for other types');

poll_for(sub { state_of('twice') =~ /^failed: .*(duplicate|unique)/ }, 'the error of the one table');
poll_for(sub { state_of('wider') =~ /^failed: .*"more"/ }, 'the missing column');
is($subscriber->query('SELECT count(*) FROM twice'), '0', 'nothing of it is here');

# mended on both sides, it goes by itself or on request
$subscriber->query('ALTER TABLE twice DROP CONSTRAINT twice_v_key; ALTER TABLE wider ADD more int');
$subscriber->query(q{SELECT tandem.resync('sub', 'twice'), tandem.resync('sub', 'wider')});
poll_for(sub { state_of('twice') eq 'ready' && state_of('wider') eq 'ready' }, 'the mended tables');
is($subscriber->query('SELECT count(*) FROM twice'), '300', 'copied then');
is($subscriber->query('SELECT sum(more) FROM wider'), '45150', 'with all columns');

# a new table by REFRESH is a further wave
$_->query('CREATE TABLE later (id int PRIMARY KEY)') for $publisher, $subscriber;
$publisher->query('INSERT INTO later SELECT generate_series(1, 50); ALTER PUBLICATION pub ADD TABLE later');
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll_for(sub { state_of('later') eq 'ready' }, 'the new table');
is($subscriber->query('SELECT count(*) FROM later'), '50', 'REFRESH PUBLICATION copies');

$publisher->query('INSERT INTO later VALUES (100)');
poll_for(sub { $subscriber->query('SELECT count(*) FROM later') eq '51' }, 'a change');

like($subscriber->query_error(q{SELECT tandem.resync('nosub', 'later')}), qr/subscription "nosub" does not exist/, 'no such subscription');
$subscriber->query('CREATE TABLE mine (a int)');
like($subscriber->query_error(q{SELECT tandem.resync('sub', 'mine')}), qr/table "mine" is not part of subscription "sub".*HINT/s,
	'not a table of the subscription');

# a table that somebody reads can't be replaced; others don't wait for it
my ($in, $out) = ('', '');
my $locker = IPC::Run::start([ $subscriber->installed_command('psql'), '-XAtq', '-d', $subscriber->connstr('postgres') ],
	'<', \$in, '>', \$out, '2>&1');
$in .= "BEGIN; LOCK TABLE good IN ACCESS SHARE MODE; SELECT 'locked';\n";
poll_for(sub { $locker->pump_nb; $out =~ /locked/ }, 'the lock');
$subscriber->query(q{SELECT tandem.resync('sub', 'good')});
poll_for(sub { state_of('good') =~ /^failed: .*lock timeout/ }, 'the copy to give up the lock');
$publisher->query('INSERT INTO later VALUES (101)');
poll_for(sub { $subscriber->query('SELECT count(*) FROM later') eq '52' }, 'changes of others meanwhile');
$in .= "COMMIT;\n\\q\n";
$locker->finish;
$subscriber->query(q{SELECT tandem.resync('sub', 'good')});
poll_for(sub { state_of('good') eq 'ready' }, 'the copy afterwards');
is($subscriber->query('SELECT count(*), sum(hashtextextended(g::text, 0)) FROM good g'),
	$publisher->query('SELECT count(*), sum(hashtextextended(g::text, 0)) FROM good g'), 'equal again');

# ---- How far one is ----------------------------------------------------------------

($in, $out) = ('', '');
$locker = IPC::Run::start([ $subscriber->installed_command('psql'), '-XAtq', '-d', $subscriber->connstr('postgres') ],
	'<', \$in, '>', \$out, '2>&1');
$in .= "SELECT pg_advisory_lock(1), 'locked';\n";
poll_for(sub { $locker->pump_nb; $out =~ /locked/ }, 'the lock');
$_->query('CREATE TABLE watched (id int PRIMARY KEY, filler text)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO watched SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g});
$publisher->query('VACUUM ANALYZE watched');
$publisher->query('ALTER PUBLICATION pub ADD TABLE watched');
$subscriber->query(q{
	CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.id = 15000 THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER stop_here BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION stop_here();
	ALTER TABLE watched ENABLE ALWAYS TRIGGER stop_here;
});
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
poll_for(sub { $subscriber->query(q{SELECT rows_done > 10000 AND bytes_done > 1000000 AND rows_estimated = 20000
	FROM tandem.tables WHERE name = 'watched'}) eq 't' }, 'most of it');
is($subscriber->query(q{SELECT state, estimated_end > started AND estimated_end < started + 4 * (now() - started) + interval '1 s',
	finished IS NULL FROM tandem.tables WHERE name = 'watched'}), 'copying|t|t', 'its end is estimated');
$in .= "\\q\n";
$locker->finish;
poll_for(sub { state_of('watched') eq 'ready' }, 'its end');
is($subscriber->query(q{SELECT rows_done, estimated_end, finished >= started FROM tandem.tables WHERE name = 'watched'}),
	'20000||t', 'then there is nothing to estimate');

done_testing();
