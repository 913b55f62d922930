# Statements on adopted subscriptions: the server refuses to refresh a disabled
# subscription, so pg_tandem does it; what would hang or leave something behind
# does neither; the subscription stays adopted through all that it may change.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s{'}{''}g;

for my $server ($publisher, $node)
{
	$server->query("CREATE TABLE t$_ (id int PRIMARY KEY, v text)") for 1 .. 4;
}
$publisher->publish('pub', 't1', 't2');
$publisher->publish('more', 't4');
$node->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
$node->query("SELECT tandem.adopt('sub', 'enabled = off')");

sub tables
{
	return $node->query(q{SELECT string_agg(srrelid::regclass || srsubstate::text, ' ' ORDER BY srrelid::regclass::text)
		FROM pg_subscription_rel});
}

sub adopted
{
	my ($name) = @_;
	return $node->query("SELECT state FROM tandem.subscriptions WHERE subscription = '$name'") eq 'paused';
}

is(tables(), 't1i t2i', 'tables to be copied');

# ---- REFRESH ------------------------------------------------------------------

$publisher->query('ALTER PUBLICATION pub SET TABLE t1, t3');
$node->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
is(tables(), 't1i t3i', 'REFRESH adds and removes tables');
$publisher->query('ALTER PUBLICATION pub ADD TABLE t2');
$node->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = false)');
is(tables(), 't1i t2r t3i', '... and with copy_data = false they count as ready');
like($node->query_error('ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (refresh = false)'),
	qr/unrecognized subscription parameter: "refresh"/, 'an unknown parameter');
like($node->query_error('ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = maybe)'),
	qr/copy_data requires a Boolean value/, 'a value that is none');
like($node->query_error("BEGIN;\nALTER SUBSCRIPTION sub REFRESH PUBLICATION;"),
	qr/cannot run inside a transaction block/, 'not inside a transaction block, as in core');

$publisher->query('CREATE TABLE nowhere (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE nowhere');
like($node->query_error('ALTER SUBSCRIPTION sub REFRESH PUBLICATION'),
	qr/the publisher has 1 table that does not exist here: "public.nowhere"/, 'a table that is missing here');
$publisher->query('DROP TABLE nowhere');
$node->query('CREATE VIEW v1 AS SELECT 1 AS id');
$publisher->query('CREATE TABLE v1 (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE v1');
like($node->query_error('ALTER SUBSCRIPTION sub REFRESH PUBLICATION'),
	qr/cannot use relation "public.v1" as logical replication target/, '... or a view');
$publisher->query('DROP TABLE v1');
$node->query('DROP VIEW v1');

$publisher->query('CREATE PUBLICATION narrow FOR TABLE t1 (id)');
like($node->query_error('ALTER SUBSCRIPTION sub ADD PUBLICATION narrow'),
	qr/cannot use different column lists for table "public.t1"/, 'column lists that differ');
is($node->query('SELECT subpublications FROM pg_subscription'), '{pub}', '... change nothing');

# ---- SET, ADD, DROP PUBLICATION -------------------------------------------------

$node->query('ALTER SUBSCRIPTION sub ADD PUBLICATION more');
is(tables(), 't1i t2r t3i t4i', 'ADD PUBLICATION refreshes');
is($node->query('SELECT subpublications FROM pg_subscription'), '{pub,more}', '... and lists it');
$node->query('ALTER SUBSCRIPTION sub DROP PUBLICATION more WITH (refresh = false)');
is(tables(), 't1i t2r t3i t4i', 'without refresh the tables stay');
$node->query('ALTER SUBSCRIPTION sub SET PUBLICATION more WITH (copy_data = false)');
is(tables(), 't4i', 'SET PUBLICATION refreshes');
my ($code, $out, $warning) = $node->psql('postgres', 'ALTER SUBSCRIPTION sub SET PUBLICATION pub, absent WITH (copy_data = false)');
like($warning, qr/WARNING:  publication 'absent' does not exist on the publisher/, 'a missing publication is warned of');
is(tables(), 't1r t2r t3r', '... the others count');
like($node->query_error('ALTER SUBSCRIPTION sub SET PUBLICATION pub WITH (refresh = off, refresh = off)'),
	qr/conflicting or redundant options/, 'an option twice');
$node->query('ALTER SUBSCRIPTION sub SET PUBLICATION pub');

$node->query("ALTER SUBSCRIPTION sub CONNECTION 'host=/nonexistent'");
like($node->query_error('ALTER SUBSCRIPTION sub REFRESH PUBLICATION'),
	qr/could not connect to the publisher/, 'a publisher that is not there');
$node->query("ALTER SUBSCRIPTION sub CONNECTION '$conninfo'");

# ---- What may change ---------------------------------------------------------------

$node->query('ALTER SUBSCRIPTION sub SET (binary = on, streaming = on)');
$node->query("ALTER SUBSCRIPTION sub SKIP (lsn = '1/1')");
$node->query('ALTER SUBSCRIPTION sub SKIP (lsn = NONE)');
$node->query('CREATE ROLE other SUPERUSER; ALTER SUBSCRIPTION sub OWNER TO other');
ok(adopted('sub'), 'adopted through SET, SKIP and OWNER');
is($node->query('SELECT owner FROM tandem.subscriptions'), 'other', 'the view shows the owner');
$node->query('ALTER SUBSCRIPTION sub RENAME TO renamed');
ok(adopted('renamed'), '... and RENAME');
like($node->query('SELECT label FROM pg_seclabels'), qr/ name=renamed$/, 'the label has the new name');
$node->query("BEGIN; ALTER SUBSCRIPTION renamed RENAME TO nothing; ROLLBACK");
ok(adopted('renamed'), 'also when it is rolled back');
$node->query('CREATE ROLE weak LOGIN');
like($node->query_error('SET ROLE weak; ALTER SUBSCRIPTION renamed REFRESH PUBLICATION'),
	qr/must be owner of subscription renamed/, 'only the owner refreshes');
like($node->query_error('SET ROLE weak; ALTER SUBSCRIPTION renamed ENABLE'),
	qr/must be owner of subscription renamed/, '... or is told about ENABLE');
like($node->query_error('SET ROLE weak; DROP SUBSCRIPTION renamed'),
	qr/must be owner of subscription renamed/, '... or drops');
ok(adopted('renamed'), 'nothing of that has changed it');

# ---- Labels by hand ----------------------------------------------------------------

is($node->query_error('SECURITY LABEL FOR tandem ON SUBSCRIPTION renamed IS NULL'), '', 'no label is a release');
is($node->query('SELECT count(*) FROM tandem.subscriptions'), 0, '... indeed');
$node->query("SELECT tandem.adopt('renamed', 'enabled = off')");

# ---- DROP ---------------------------------------------------------------------------

$node->query('SET statement_timeout = 60000; DROP SUBSCRIPTION renamed');
is($node->query('SELECT count(*) FROM pg_shseclabel'), 0, 'DROP leaves no label');
is($node->query('SELECT count(*) FROM pg_replication_origin'), 0, '... no origin');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), 0, '... and no slot on the publisher');

# statements on others are none of our business
$node->query("CREATE SUBSCRIPTION plain CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
is($node->query_error('ALTER SUBSCRIPTION plain ENABLE'), '', 'ENABLE of one that is not adopted');
is($node->query_error('ALTER SUBSCRIPTION plain REFRESH PUBLICATION'), '', '... and its REFRESH');
$node->query('DROP SUBSCRIPTION plain');

done_testing();
