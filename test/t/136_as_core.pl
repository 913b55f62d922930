# What the server's own tests of subscriptions go through and no other file of ours
# does: each story beside the server's own worker, with the same end.

use strict;
use warnings;
use utf8;

use Tandem::Beside;
use Tandem::Test;
use Test::More;

my @initdb = ('--encoding=UTF8', '--locale=C');
my $publisher = Tandem::Node->new_primary('publisher', library => 0, initdb => \@initdb,
	conf => 'logical_decoding_work_mem = 64kB');
my $node = Tandem::Node->new_subscriber('subscriber', library => 1, initdb => \@initdb);
my $beside = Tandem::Beside->new($publisher, $node);

sub bytes { my $text = shift; utf8::encode($text); return $text; }

my $icu = $publisher->query(q{SELECT count(*) > 0 FROM pg_collation WHERE collprovider = 'i'}) eq 't';

# ---- Constraints, triggers, columns ---------------------------------------------------

my $checks = q{
	CREATE FUNCTION is_small(int) RETURNS boolean LANGUAGE sql AS $$ SELECT $1 <= coalesce((SELECT max(100) FROM pg_catalog.pg_class), 0) $$;
	CREATE DOMAIN small AS int CHECK (public.is_small(VALUE));
	CREATE TABLE checked (id int PRIMARY KEY, v small);
};
$publisher->query($checks . q{
	INSERT INTO checked VALUES (1, 1);
	CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, parent int);
	INSERT INTO child VALUES (1, 77);
	CREATE TABLE skips (id int PRIMARY KEY, a int, b int); INSERT INTO skips VALUES (1, 1, 1), (2, 2, 2);
	CREATE TABLE extra (id int PRIMARY KEY, v text); INSERT INTO extra VALUES (1, 'a'), (2, 'b');
	CREATE TABLE grows (id int, v text); ALTER TABLE grows REPLICA IDENTITY FULL; INSERT INTO grows VALUES (1, 'a');
	CREATE TABLE rewritten (id int PRIMARY KEY, v text); INSERT INTO rewritten VALUES (1, 'a');
	CREATE TABLE toasted (id int, v text, n int); ALTER TABLE toasted REPLICA IDENTITY FULL;
	INSERT INTO toasted SELECT 1, string_agg(md5(g::text), ''), 1 FROM generate_series(1, 1000) g;
	CREATE TABLE some_kept (id int PRIMARY KEY); CREATE TABLE not_there (id int PRIMARY KEY);
	INSERT INTO some_kept VALUES (1); INSERT INTO not_there VALUES (1);
	CREATE PUBLICATION pub FOR TABLE checked, parent, child, skips, extra, grows, rewritten, toasted, some_kept});
$beside->here($checks . q{
	CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (parent int REFERENCES parent, id int PRIMARY KEY);
	CREATE TABLE skips (id int PRIMARY KEY, a int, b int);
	CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN IF TG_OP = 'INSERT' AND NEW.id > 10 THEN RETURN NULL; END IF;
		IF TG_OP = 'UPDATE' THEN NEW.b := NEW.b + 1000; END IF; RETURN NEW; END $$;
	CREATE TRIGGER skip BEFORE INSERT ON skips FOR EACH ROW EXECUTE FUNCTION skip();
	CREATE TRIGGER skip_a BEFORE UPDATE OF a ON skips FOR EACH ROW EXECUTE FUNCTION skip();
	ALTER TABLE skips ENABLE REPLICA TRIGGER skip, ENABLE REPLICA TRIGGER skip_a;
	CREATE TABLE extra (own int DEFAULT 7, id int PRIMARY KEY, born timestamptz DEFAULT 'epoch', v text);
	CREATE TABLE grows (id int, v text); ALTER TABLE grows REPLICA IDENTITY FULL;
	CREATE TABLE rewritten (id int PRIMARY KEY, v text);
	CREATE TABLE toasted (id int, v text, n int); ALTER TABLE toasted REPLICA IDENTITY FULL;
	CREATE TABLE some_kept (id int PRIMARY KEY); CREATE TABLE not_there (id int PRIMARY KEY); INSERT INTO not_there VALUES (1)});
$beside->subscribe('pub', 'streaming = on');

$beside->both('SELECT * FROM checked', '1|1', 'copy: a domain whose check runs a query');
$beside->both('SELECT id, parent FROM child', '1|77', 'copy: foreign keys are not checked');
$beside->both('SELECT * FROM skips ORDER BY id', '1|1|1;2|2|2', 'copy: a trigger that may skip rows');
$publisher->query('INSERT INTO checked VALUES (2, 50); UPDATE checked SET v = 60 WHERE id = 1; INSERT INTO child VALUES (2, 88)');
$publisher->query('INSERT INTO skips VALUES (3, 3, 3), (11, 11, 11); UPDATE skips SET b = 5 WHERE id = 2; UPDATE skips SET a = 9 WHERE id = 1');
$beside->applied;
$beside->both('SELECT * FROM checked ORDER BY id', '1|60;2|50', 'apply: a domain whose check runs a query');
$beside->both('SELECT id, parent FROM child ORDER BY id', '1|77;2|88', 'apply: foreign keys are not checked');
$beside->both('SELECT * FROM skips ORDER BY id', '1|9|1001;2|2|1005;3|3|3', 'apply: a trigger skips a row, one of a column fires for each update');

# columns of its own keep what they have
$beside->here('UPDATE extra SET own = 8 WHERE id = 1');
$publisher->query(q{UPDATE extra SET v = v || '!'; INSERT INTO extra VALUES (3, 'c')});
$beside->applied;
$beside->both('SELECT id, own, v, born = \'epoch\' FROM extra ORDER BY id', '1|8|a!|t;2|7|b!|t;3|7|c|t', 'columns of its own keep their values');

# a key that the publisher doesn't send
$beside->here('ALTER TABLE grows ADD key serial PRIMARY KEY, REPLICA IDENTITY DEFAULT');
$publisher->query(q{INSERT INTO grows VALUES (2, 'b')});
$beside->applied;
$beside->both('SELECT id, v, key FROM grows ORDER BY id', '1|a|1;2|b|2', 'a replica identity of its own doesn\'t keep rows from being inserted');

# TOASTed values that don't change, found by the whole row
$publisher->query('UPDATE toasted SET n = 2; UPDATE toasted SET n = n + 1');
$beside->applied;
$beside->both('SELECT n, md5(v) FROM toasted', $publisher->query('SELECT n, md5(v) FROM toasted'), 'TOASTed values, found by the whole row');

# ---- DDL on the publisher, and what is no change -----------------------------------------

$beside->here('ALTER TABLE rewritten ADD c int DEFAULT 5, ADD d timestamptz');
$publisher->query(q{
	BEGIN; INSERT INTO rewritten VALUES (2, 'b'); ALTER TABLE rewritten ADD c int DEFAULT 5; INSERT INTO rewritten VALUES (3, 'c', 6);
	ALTER TABLE rewritten ADD d timestamptz DEFAULT now(); INSERT INTO rewritten VALUES (4, 'd'); COMMIT;
	CREATE MATERIALIZED VIEW mv AS SELECT * FROM rewritten; REFRESH MATERIALIZED VIEW mv;
	SELECT pg_logical_emit_message(true, 'x', 'y'), pg_logical_emit_message(false, 'x', 'y');
	INSERT INTO rewritten VALUES (5, 'e')});
$beside->applied;
$beside->both('SELECT id, v, c FROM rewritten ORDER BY id', '1|a|5;2|b|5;3|c|6;4|d|5;5|e|5', 'a table that is rewritten in the transaction; materialized views; messages');

# the same in a transaction that is streamed, with subtransactions that come back and go
$beside->here('ALTER TABLE rewritten ADD e int, ADD f text');
$publisher->query(q{
	BEGIN;
	INSERT INTO rewritten SELECT g, md5(g::text) FROM generate_series(100, 2000) g;
	ALTER TABLE rewritten ADD e int;
	SAVEPOINT s1; INSERT INTO rewritten SELECT g, md5(g::text), 1, NULL, -g FROM generate_series(2001, 4000) g;
	ALTER TABLE rewritten ADD f text;
	ROLLBACK TO s1; INSERT INTO rewritten SELECT g, md5(g::text), 1, NULL, 0 FROM generate_series(4001, 5000) g;
	SAVEPOINT s2; UPDATE rewritten SET v = 'u' || id WHERE id BETWEEN 100 AND 900; RELEASE s2;
	SAVEPOINT s3; DELETE FROM rewritten WHERE id > 4500; ROLLBACK TO s3;
	COMMIT});
$beside->applied;
my $sum = 'SELECT count(*), sum(id), md5(string_agg(id || v || coalesce(e, 9), \',\' ORDER BY id)) FROM rewritten';
$beside->both($sum, $publisher->query($sum), 'a streamed transaction with DDL and subtransactions');
cmp_ok($publisher->query(q{SELECT sum(stream_txns) FROM pg_stat_replication_slots}), '>=', 2, '... was streamed to both');

# TRUNCATE of tables of which one isn't published
$publisher->query('TRUNCATE some_kept, not_there');
$beside->applied;
$beside->both('SELECT (SELECT count(*) FROM some_kept), (SELECT count(*) FROM not_there)', '0|1', 'TRUNCATE of tables that are not all published');
$beside->unsubscribe('pub');

# ---- Equal in another way: a collation that isn't deterministic ---------------------------

SKIP:
{
	skip 'this server has no ICU', 4 if !$icu;
	my $collation = q{CREATE COLLATION loose (provider = icu, locale = 'und', deterministic = false);
		CREATE TABLE by_key (a text COLLATE loose PRIMARY KEY, b text);
		CREATE TABLE by_row (a text COLLATE loose, b text); ALTER TABLE by_row REPLICA IDENTITY FULL;};
	# the same letter in two normal forms
	$publisher->query(qq{$collation INSERT INTO by_key VALUES (U&'\\00E4bc', 'foo'); INSERT INTO by_row VALUES (U&'\\00E4bc', 'foo'); CREATE PUBLICATION loose FOR TABLE by_key, by_row});
	$beside->here(qq{$collation INSERT INTO by_key VALUES (U&'\\0061\\0308bc', 'foo'); INSERT INTO by_row VALUES (U&'\\0061\\0308bc', 'foo')});
	$beside->subscribe('loose', 'copy_data = false');
	$publisher->query(q{UPDATE by_key SET b = 'bar'; UPDATE by_row SET b = 'bar'});
	$beside->applied;
	$beside->both('SELECT b FROM by_key', 'bar', 'equal, not the same: found by key');
	$beside->both('SELECT b FROM by_row', 'bar', '... and by the whole row');
	$beside->unsubscribe('loose');
}

# ---- Two subscriptions of one table; a copy that fails --------------------------------------

$publisher->query('CREATE TABLE shared (id int); CREATE PUBLICATION first FOR TABLE shared; CREATE PUBLICATION second FOR TABLE shared');
$node->query('CREATE TABLE shared (id int)');
for my $name (qw(first second))
{
	$node->query("CREATE SUBSCRIPTION $name CONNECTION '$beside->{conninfo}' PUBLICATION $name WITH (enabled = false)");
	$node->query("SELECT tandem.adopt('$name')");
}
poll_for(sub { $node->query(q{SELECT count(*) FROM tandem.tables WHERE state = 'ready'}) eq '2' }, 'both');
$publisher->query('INSERT INTO shared VALUES (1), (2)');
$node->wait_subscription($_, $publisher) for qw(first second);
is($node->query('SELECT count(*) FROM shared'), '4', 'two subscriptions of one table: each brings its rows');
$publisher->query('TRUNCATE shared; INSERT INTO shared VALUES (3); TRUNCATE shared');
$node->wait_subscription($_, $publisher) for qw(first second);
is($node->query('SELECT count(*) FROM shared'), '0', '... and TRUNCATE from both blocks neither');
$node->query("DROP SUBSCRIPTION $_") for qw(first second);

$publisher->query('CREATE TABLE clash (id int PRIMARY KEY); INSERT INTO clash VALUES (1); CREATE PUBLICATION clash FOR TABLE clash');
$node->query('CREATE TABLE clash (id int PRIMARY KEY); INSERT INTO clash VALUES (1)');
$node->query("CREATE SUBSCRIPTION clash CONNECTION '$beside->{conninfo}' PUBLICATION clash WITH (enabled = false)");
$node->query(q{SELECT tandem.adopt('clash')});
poll_for(sub { $node->query('SELECT last_error FROM tandem.tables') =~ /duplicate key/ }, 'the copy to fail');
is($node->query_error('DROP SUBSCRIPTION clash'), '', 'a subscription whose copy fails is dropped');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', '... and leaves no slot there');
is($node->query('SELECT count(*) FROM pg_replication_origin'), '0', '... and no origin here');
is($node->query('SELECT (SELECT count(*) FROM pg_shseclabel) + (SELECT count(*) FROM pg_subscription_rel)'), '0', '... nor anything else');

# ---- On from here: A to B to C -----------------------------------------------------------------

$node->append_conf('postgresql.conf', 'max_prepared_transactions = 10');
$node->restart;
$publisher->append_conf('postgresql.conf', 'max_prepared_transactions = 10');
$publisher->restart;
my $last = Tandem::Node->new_subscriber('last', library => 1, initdb => \@initdb, conf => 'max_prepared_transactions = 10');
$_->query('CREATE TABLE chain (id int PRIMARY KEY, v text)') for $publisher, $node, $last;
$publisher->query(q{INSERT INTO chain VALUES (1, 'copied')});
$_->query('CREATE PUBLICATION chain FOR TABLE chain') for $publisher, $node;
for my $pair ([ $publisher, $node, 'ab' ], [ $node, $last, 'bc' ])
{
	my ($from, $to, $name) = @$pair;
	(my $conninfo = $from->connstr('postgres')) =~ s/'/''/g;
	$to->query("CREATE SUBSCRIPTION $name CONNECTION '$conninfo' PUBLICATION chain WITH (enabled = false, two_phase = on, streaming = on)");
	$to->query("SELECT tandem.adopt('$name')");
	poll_for(sub { $to->query('SELECT subtwophasestate FROM pg_subscription WHERE subname = \'' . $name . q{'}) eq 'e' }, "two_phase of $name");
}
sub through
{
	$node->wait_subscription('ab', $publisher);
	$last->wait_subscription('bc', $node);
	return;
}
$publisher->query(q{BEGIN; INSERT INTO chain SELECT g, md5(g::text) FROM generate_series(2, 3000) g; PREPARE TRANSACTION 'big';});
$publisher->query(q{BEGIN; INSERT INTO chain VALUES (10000, 'small'); SAVEPOINT s; INSERT INTO chain VALUES (10001, 'no'); ROLLBACK TO s; PREPARE TRANSACTION 'small';});
through();
is($_->query('SELECT count(*) FROM pg_prepared_xacts'), '2', 'prepared on ' . $_->name) for $node, $last;
$publisher->query(q{COMMIT PREPARED 'big'; ROLLBACK PREPARED 'small'});
through();
is($_->query('SELECT count(*) FROM pg_prepared_xacts'), '0', 'decided on ' . $_->name) for $node, $last;
is_same_table($publisher, $_, 'chain', 'A to B to C: the same on ' . $_->name) for $node, $last;

done_testing();
