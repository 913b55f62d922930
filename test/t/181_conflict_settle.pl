# Who may see values of conflicts, and what becomes of one that somebody replays or
# dismisses.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "track_commit_timestamp = on\n");
my $node = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "track_commit_timestamp = on\n");

$_->query(q{
	CREATE TYPE mood AS ENUM ('glad', 'sad');
	CREATE TABLE t (id int PRIMARY KEY, v text, d date, tags text[], j jsonb, n numeric, m mood, twice int GENERATED ALWAYS AS (id * 2) STORED);
	CREATE TABLE odd (id int PRIMARY KEY, j jsonb, big text);
	ALTER TABLE odd ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE keyless (a int, b text);
	ALTER TABLE keyless REPLICA IDENTITY FULL;
	CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
	CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
	CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
	CREATE TABLE gone (id int PRIMARY KEY);
	CREATE SCHEMA hidden;
	CREATE TABLE hidden.t (id int PRIMARY KEY, v text)})
  for $publisher, $node;
$node->query(q{
	CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
	CREATE ROLE reader LOGIN IN ROLE pg_monitor;
	CREATE ROLE column_reader LOGIN IN ROLE pg_monitor;
	CREATE ROLE limited LOGIN IN ROLE pg_monitor;
	CREATE ROLE boss LOGIN SUPERUSER;
	CREATE ROLE nobody LOGIN;
	GRANT SELECT ON t, p, hidden.t TO reader;
	GRANT SELECT (id) ON t TO column_reader;
	GRANT SELECT ON t TO limited});
$publisher->query(q{
	INSERT INTO t SELECT g, 'row', '2024-02-03', '{a,"b c"}', '{"a": 1}', 1.50, 'sad' FROM generate_series(1, 20) g;
	INSERT INTO odd SELECT g, 'null', repeat('x', 5000) FROM generate_series(1, 5) g;
	INSERT INTO keyless VALUES (1, NULL), (1, NULL), (2, 'b');
	INSERT INTO p SELECT g, 1, 'p' FROM generate_series(1, 5) g;
	INSERT INTO gone VALUES (1);
	INSERT INTO hidden.t VALUES (1, 'secret')});
$publisher->publish('pub');
$node->subscribe_adopted('sub', $publisher, 'pub');
$node->query('ALTER SUBSCRIPTION sub OWNER TO boss');
$node->query('ALTER ROLE boss NOSUPERUSER; GRANT EXECUTE ON FUNCTION tandem.conflict_replay(bigint), tandem.conflict_dismiss(bigint) TO boss, nobody; GRANT USAGE ON SCHEMA tandem TO boss, nobody; GRANT pg_monitor TO boss');
$node->query('ALTER ROLE boss SUPERUSER');

# The number of the conflict that this change there gives.
sub conflict
{
	my ($sql) = @_;
	my $last = $node->query('SELECT coalesce(max(id), 0) FROM tandem.conflicts');
	$publisher->query($sql);
	$node->wait_subscription('sub', $publisher);
	my @new = split /\n/, $node->query("SELECT id FROM tandem.conflicts WHERE id > $last ORDER BY id");
	is(scalar @new, 1, "one conflict by $sql");
	return $new[0];
}

# What a role gets.
sub as
{
	my ($role, $sql) = @_;
	my ($code, $out, $err) = $node->psql('postgres', $sql, connstr => $node->connstr('postgres') . " user=$role");
	chomp $out;
	return $code == 0 ? $out : $err;
}

sub replay
{
	my ($id, $role) = @_;
	# with objects of others before the server's own
	return as($role // 'postgres', "SET search_path = public, pg_catalog; SELECT tandem.conflict_replay($id)");
}

# ---- Values ------------------------------------------------------------------------

my $id = conflict(q{UPDATE t SET v = 'new' WHERE id = 1});
my $look = "SELECT concat_ws('|', key, remote_row, hidden) FROM tandem.conflicts WHERE id = $id";
my $all = '{"id": 1}|{"d": "2024-02-03", "j": {"a": 1}, "m": "sad", "n": 1.50, "v": "new", "id": 1, "tags": "{a,\"b c\"}"}';
is(as('postgres', $look), $all, 'a superuser sees all');
is(as('reader', $look), $all, 'so does who may read the table');
is(as('watcher', $look), 'no privilege to read all columns', 'who may not sees no value');
is(as('column_reader', $look), '{"id": 1}|{"id": 1}|no privilege to read all columns', 'who may read a column sees that');
like(as('nobody', $look), qr/permission denied for view conflicts/, 'the view is for pg_monitor');
$node->query('ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON t TO limited USING (false)');
is(as('limited', $look), 'row level security', 'row level security hides all');
is(as('postgres', $look), $all, '... but not from whom it does not bind');
$node->query('ALTER TABLE t DISABLE ROW LEVEL SECURITY');
my $secret = conflict(q{UPDATE hidden.t SET v = 'new' WHERE id = 1});
is(as('reader', "SELECT concat_ws('|', key, hidden) FROM tandem.conflicts WHERE id = $secret"), 'no privilege to read all columns',
	'no value of a table in a schema that one may not use');
my $partition = conflict(q{UPDATE p SET v = 'new' WHERE id = 1});
is(as('reader', qq{SELECT concat_ws('|', "table", key) FROM tandem.conflicts WHERE id = $partition}), 'p1|{"k": 1, "id": 1}',
	'a privilege on the partitioned table is enough');
my $gone = conflict('DELETE FROM gone');
$node->query('ALTER SUBSCRIPTION sub OWNER TO postgres');
$node->query('DROP TABLE gone');
is(as('reader', "SELECT concat_ws('|', key, hidden) FROM tandem.conflicts WHERE id = $gone"), 'the table does not exist any more', 'of a table that is gone no values');
is(as('postgres', "SELECT key FROM tandem.conflicts WHERE id = $gone"), '{"id": 1}', '... but for superusers');

# objects of others are not in the way
$node->query(q{
	CREATE FUNCTION public.evil(int, int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
	CREATE OPERATOR public.= (LEFTARG = int, RIGHTARG = int, FUNCTION = public.evil)});

# ---- Replay ---------------------------------------------------------------------------

is(replay($id), 'inserted', 'a row that is not here is inserted');
is($node->query(q{SELECT concat_ws('|', id, v, d, tags, j, n, m, twice) FROM t}), '1|new|2024-02-03|{a,"b c"}|{"a": 1}|1.50|sad|2', '... as it was sent');
is($node->query("SELECT concat_ws('|', state, settled_by, settled_at > time) FROM tandem.conflicts WHERE id = $id"), 'replayed|postgres|t', '... which the view says');
like(replay($id), qr/ERROR:  conflict $id has been replayed already\n.*HINT:  /s, 'not twice');
$id = conflict(q{UPDATE t SET v = 'newer' WHERE id = 2});
$node->query(q{INSERT INTO t VALUES (2, 'here')});
is(replay($id), 'updated', 'one that is here is updated');
is($node->query('SELECT v FROM t WHERE id = 2'), 'newer', '... it is');
$id = conflict('DELETE FROM t WHERE id = 3');
is(replay($id), 'not there', 'one that is gone is gone');
$id = conflict('DELETE FROM t WHERE id = 4');
$node->query('INSERT INTO t VALUES (4)');
is($node->query("BEGIN; SELECT tandem.conflict_replay($id); ROLLBACK; SELECT state FROM tandem.conflicts WHERE id = $id"), "deleted\nopen", 'it is part of the transaction');
is(replay($id), 'deleted', 'one that is here is deleted');
is($node->query('SELECT count(*) FROM t WHERE id = 4'), '0', '... it is');
is(replay($partition), 'inserted', 'into a partitioned table');
is($node->query('SELECT tableoid::regclass FROM p WHERE id = 1'), 'p1', '... it is there');
$node->query(q{INSERT INTO keyless VALUES (1, NULL), (1, NULL), (2, 'b'), (2, 'b')});
$node->query('DELETE FROM keyless');
$id = conflict(q{DELETE FROM keyless WHERE a = 2});
$node->query(q{INSERT INTO keyless VALUES (1, NULL), (2, 'b'), (2, 'b')});
is(replay($id), 'deleted', 'without a key');
is($node->query('SELECT count(*) FROM keyless'), '2', '... one row only');

# a row that lost is made to win
$node->query(q{SELECT tandem.adopt('sub', 'insert_exists = skip, update_origin_differs = skip')});
$node->query(q{INSERT INTO t VALUES (100, 'here')});
$id = conflict(q{INSERT INTO t VALUES (100, 'there')});
is($node->query("SELECT concat_ws('|', type, local_origin, local_row ->> 'v', remote_row ->> 'v', result_row ->> 'v') FROM tandem.conflicts WHERE id = $id"),
	'insert_exists|local|here|there|here', 'both rows are shown, and what is here');
is(replay($id), 'updated', 'a row that is here becomes the remote one');
is($node->query('SELECT v FROM t WHERE id = 100'), 'there', '... it does');

# ---- What can't be replayed --------------------------------------------------------------

like(replay($gone), qr/ERROR:  conflict $gone cannot be replayed: table "public.gone" does not exist any more\n.*HINT:  /s, 'a table that is gone');
$id = conflict(q{UPDATE odd SET id = 11 WHERE id = 1});
like(replay($id), qr/ERROR:  conflict $id cannot be replayed: the value of column "j" was not kept as a whole\n.*HINT:  /s, 'a value that can not be told');
$publisher->query(q{UPDATE odd SET j = '[]'});
$node->wait_subscription('sub', $publisher);
$id = conflict(q{UPDATE odd SET j = '[1]' WHERE id = 2});
is($node->query("SELECT remote_row ? 'big' FROM tandem.conflicts WHERE id = $id"), 'f', 'what was not sent is not there');
like(replay($id), qr/ERROR:  conflict $id cannot be replayed: the row is not here, and the value of its column "big" was not sent\n.*HINT:  /s, 'a row of which not all was sent');
$node->query(q{INSERT INTO odd VALUES (2, '{}', 'mine')});
is(replay($id), 'updated', '... but it can be updated');
is($node->query('SELECT j, big FROM odd WHERE id = 2'), '[1]|mine', '... which leaves the rest');
$id = conflict(q{UPDATE odd SET big = repeat('y', 100000) WHERE id = 3});
like(replay($id), qr/the value of column "big" was not kept as a whole/, 'a value that is too large');
$id = conflict(q{UPDATE t SET v = 'new' WHERE id = 5});
$node->query('ALTER TABLE t RENAME v TO w');
like(replay($id), qr/ERROR:  conflict $id cannot be replayed: the table has no column "v" any more\n.*HINT:  /s, 'a column that is gone');
$node->query('ALTER TABLE t RENAME w TO v; ALTER TABLE t ADD CONSTRAINT not_five CHECK (id <> 5)');
like(replay($id), qr/ERROR:  new row for relation "t" violates check constraint .*CONTEXT:  .*replaying conflict $id on relation "public\.t"/s, 'constraints count');
$node->query(q{SELECT tandem.adopt('sub', 'update_missing = insert_or_skip')});
$id = conflict(q{UPDATE t SET v = 'new' WHERE id = 6});
like(replay($id), qr/ERROR:  the remote change of conflict $id was inserted\n.*HINT:  /s, 'what was applied');
like(replay(99999), qr/ERROR:  conflict 99999 does not exist\n.*HINT:  /s, 'what is not there');

# ---- Who may --------------------------------------------------------------------------------

my $open = $node->query("SELECT min(id) FROM tandem.conflicts WHERE resolution = 'skipped' AND state = 'open'");
like(replay($open, 'reader'), qr/permission denied for function conflict_replay/, 'nobody may without EXECUTE');
like(replay($open, 'nobody'), qr/must be owner of subscription sub/, 'nor who does not own the subscription');
like(as('nobody', "SELECT tandem.conflict_dismiss($open)"), qr/must be owner of subscription sub/, '... nor dismiss it');
$node->query('ALTER SUBSCRIPTION sub OWNER TO boss');
$node->query('ALTER ROLE boss NOSUPERUSER');
$node->query('ALTER TABLE t DROP CONSTRAINT not_five');
my ($denied) = $node->query(q{SELECT id FROM tandem.conflicts WHERE key = '{"id": 5}' AND "table" = 't'});
like(replay($denied, 'boss'), qr/permission denied for table t/, 'an owner needs rights on the table');
$node->query('GRANT SELECT, INSERT ON t TO boss');
is(replay($denied, 'boss'), 'inserted', '... and does with them');
is(as('boss', "SELECT tandem.conflict_dismiss($open)"), '', 'an owner may dismiss');
is($node->query("SELECT concat_ws('|', state, settled_by) FROM tandem.conflicts WHERE id = $open"), 'dismissed|boss', '... it is');
like(as('boss', "SELECT tandem.conflict_dismiss($open)"), qr/^$/, 'twice does no harm');

# ---- A value that can't be printed ------------------------------------------------------------

# it is not stored, the others of its transaction are
$node->query('ALTER ROLE boss SUPERUSER; ALTER SUBSCRIPTION sub OWNER TO postgres');
$node->query(q{SELECT tandem.adopt('sub', 'update_origin_differs = skip, update_missing = skip')});
$node->query(q{INSERT INTO t (id, m) VALUES (7, 'glad')});
$node->query(q{SET allow_system_table_mods = on; DELETE FROM pg_enum WHERE enumlabel = 'glad'});
my $before = $node->query('SELECT count(*) FROM tandem.conflicts');
$publisher->query(q{UPDATE t SET v = 'new' WHERE id IN (7, 8, 9)});
$node->wait_subscription('sub', $publisher);
is($node->query('SELECT count(*) FROM tandem.conflicts') - $before, 2, 'two are stored');
is($node->query(q{SELECT concat_ws('|', not_stored, last_error LIKE 'invalid internal value for enum%') FROM tandem.conflict_storage}), '1|t', 'the third is counted as not stored');

done_testing();
