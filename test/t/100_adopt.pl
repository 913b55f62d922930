# Taking over a built-in subscription: every refusal says why and what to do,
# the label means nothing where it doesn't fit, and the launcher starts and
# stops the apply worker as the label says.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s{'}{''}g;

$publisher->query('CREATE TABLE t (id int PRIMARY KEY, v text)');
$publisher->publish('pub', 't');
$node->query('CREATE TABLE t (id int PRIMARY KEY, v text)');

sub create
{
	my ($name, $options, $dbname) = @_;
	$node->query("CREATE SUBSCRIPTION $name CONNECTION '$conninfo' PUBLICATION pub WITH ($options)", $dbname);
	return;
}

sub state_of
{
	my ($name) = @_;
	return $node->query("SELECT state || ': ' || coalesce(reason, '-') FROM tandem.subscriptions WHERE subscription = '$name'");
}

sub wait_state
{
	my ($name, $state) = @_;
	my $row = '';
	poll_for(sub { $row = state_of($name); $row =~ $state }, "subscription $name to be $state");
	return $row;
}

sub refused
{
	my ($sql, $error, $hint, $title) = @_;
	my $message = $node->query_error($sql);
	like($message, qr/ERROR:  $error/, $title);
	like($message, $hint, '... with a hint') if $hint;
	return;
}

# ---- Refusals ---------------------------------------------------------------

create('sub', 'enabled = false');
refused("SELECT tandem.adopt('nosuch')", 'subscription "nosuch" does not exist', qr/HINT:  Create it/, 'unknown subscription');
refused("SELECT tandem.adopt('sub', 'colour = red')", 'unrecognized option "colour"',
	qr/HINT:  The options are enabled, workers, node_id, tombstones, insert_exists, .* and insert_deleted\./, 'unknown option');
refused("SELECT tandem.adopt('sub', 'enabled')", 'invalid option list: "enabled" has no value', qr/HINT:  Write options as/, 'option without value');
refused("SELECT tandem.adopt('sub', 'workers = many')", 'invalid value for option "workers": "many"', qr/HINT:  It can be 0 .* to 64/, 'bad number');
refused("SELECT tandem.adopt('sub', 'workers = 65')", 'invalid value for option "workers"', qr/HINT/, 'too large a number');
refused("SELECT tandem.adopt('sub', 'node_id = a b')", 'invalid value for option "node_id"', qr/HINT:  It can be up to 63/, 'bad node_id');
refused("SELECT tandem.adopt('sub', 'enabled = on, enabled = off')", 'option "enabled" is given more than once', undef, 'option twice');
refused("SELECT tandem.release('sub')", 'subscription "sub" is not adopted', qr/HINT:  The view/, 'release of one that isn\'t adopted');
refused("SELECT tandem.release('nosuch')", 'subscription "nosuch" does not exist', qr/HINT/, 'release of none');

$node->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
refused("SELECT tandem.adopt('sub')", 'cannot adopt subscription "sub": it has no slot name', qr/HINT:  Run ALTER SUBSCRIPTION sub SET \(slot_name/, 'no slot name');
$node->query("ALTER SUBSCRIPTION sub SET (slot_name = 'sub')");

$node->query('CREATE ROLE somebody LOGIN');
$node->query('GRANT EXECUTE ON FUNCTION tandem.adopt, tandem.release TO somebody');
like($node->query_error("SET ROLE somebody; SELECT tandem.adopt('sub')"),
	qr/must be owner of subscription sub/, 'only the owner adopts');
$node->query('REVOKE EXECUTE ON FUNCTION tandem.adopt, tandem.release FROM somebody');
like($node->query_error("SET ROLE somebody; SELECT tandem.adopt('sub')"),
	qr/permission denied for function adopt/, 'not for PUBLIC');
like($node->query_error('SET ROLE somebody; SELECT * FROM tandem.subscriptions'),
	qr/permission denied/, 'nor is the view');
is($node->query('SET ROLE pg_monitor; SELECT count(*) FROM tandem.subscriptions'), "0", 'but for pg_monitor');

$node->query('ALTER SUBSCRIPTION sub ENABLE');
refused("SELECT tandem.adopt('sub')", 'cannot adopt subscription "sub": it is enabled', qr/HINT:  Run ALTER SUBSCRIPTION sub DISABLE/, 'an enabled one');
$node->wait_tables('sub', $publisher);
$node->query('ALTER SUBSCRIPTION sub DISABLE');

# ---- Adopted ------------------------------------------------------------------

$node->query("SELECT tandem.adopt('sub', 'enabled = off, workers = 3')");
wait_state('sub', qr/^paused: option enabled is off/);
is($node->query("SELECT enabled, workers, database, pid IS NULL FROM tandem.subscriptions"),
	'f|3|postgres|t', 'adopted, but paused: no worker');
like($node->query("SELECT label FROM pg_seclabels WHERE provider = 'tandem'"),
	qr/^pg_tandem 1 system=\d+ oid=\d+ enabled=off workers=3 node_id= name=sub$/, 'the label');

refused('ALTER SUBSCRIPTION sub ENABLE', 'cannot enable subscription "sub": it is adopted by pg_tandem',
	qr/HINT:  To hand it back first, use SELECT tandem\.release\('sub'\)/, 'ENABLE is refused');
is($node->query_error('ALTER SUBSCRIPTION sub DISABLE'), '', 'DISABLE is not');
refused('DROP EXTENSION pg_tandem', 'cannot drop extension pg_tandem: subscription "sub" is adopted',
	qr/HINT:  Use SELECT tandem\.release\('sub'\)/, 'the extension stays while it is');
refused('DROP SCHEMA tandem CASCADE', 'cannot drop', undef, '... and its schema');

# changing one option leaves the others
$node->query("SELECT tandem.adopt('sub', 'node_id = east')");
like($node->query("SELECT label FROM pg_seclabels WHERE provider = 'tandem'"),
	qr/enabled=off workers=3 node_id=east/, 'options named are changed, others kept');

# ---- Labels by hand -------------------------------------------------------------

my $label = $node->query("SELECT label FROM pg_seclabels WHERE provider = 'tandem'");
refused("SECURITY LABEL FOR tandem ON TABLE t IS 'x'", 'label provider "tandem" labels only subscriptions', undef, 'no label on a table');
refused("SECURITY LABEL FOR tandem ON SUBSCRIPTION sub IS 'x'", 'invalid label for subscription "sub"', qr/HINT:  .*written by tandem\.adopt/, 'no label of another kind');
(my $resumed = $label) =~ s/enabled=off/enabled=on/;
refused("SECURITY LABEL FOR tandem ON SUBSCRIPTION sub IS '$resumed'", 'subscription "sub" can\'t be adopted by a label', qr/HINT:  Use SELECT tandem\.adopt/, 'no label that fits');
is($node->query_error("SECURITY LABEL FOR tandem ON SUBSCRIPTION sub IS '$label'"), '', 'but the one it has');
(my $foreign = $label) =~ s/system=\d+/system=1/;
refused("SECURITY LABEL FOR tandem ON SUBSCRIPTION sub IS '$foreign'", 'subscription "sub" is adopted, and this label isn\'t its own', qr/HINT:  Use SELECT tandem\.release/, 'nor one that would end it');

# ---- A dump, restored on another server and in another database -------------------

my $dump = $node->basedir . '/dump.sql';
PostgreSQL::Test::Utils::command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'dump');
like(PostgreSQL::Test::Utils::slurp_file($dump), qr/SECURITY LABEL FOR tandem ON SUBSCRIPTION sub/, 'the dump has the label');

$node->query('CREATE DATABASE copy');
PostgreSQL::Test::Utils::command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('copy'), '-f', $dump ], 'restored in another database of the server');
my $other = Tandem::Node->new_subscriber('other', library => 1);
$other->query('CREATE DATABASE copy');
PostgreSQL::Test::Utils::command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-d', $other->connstr('copy'), '-f', $dump ], 'restored on another server');
like($other->query("SELECT state || ': ' || reason || '; ' || hint FROM tandem.subscriptions", 'copy'),
	qr/^not adopted: its label was made on another server, with system identifier \d+; To adopt it, use SELECT tandem\.adopt\('sub'\)/, 'not adopted there, and why');
like($node->query("SELECT state || ': ' || reason FROM tandem.subscriptions WHERE database = 'copy'"),
	qr/^not adopted: its label was made for a subscription with OID \d+/, 'nor in the other database');
my $mark = $other->log_mark;
is($other->query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'tandem apply'"), 0, 'nothing started');
my ($code, $out, $notice) = $other->psql('copy', "SELECT tandem.release('sub')");
like($notice, qr/NOTICE:  subscription "sub" was not adopted here; its label is removed/, 'its label can be removed');
is($other->query("SELECT count(*) FROM pg_shseclabel"), 0, '... and is');
$node->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub', 'copy');
is($node->query("SELECT count(*) FROM pg_shseclabel"), 1, 'a label that does not fit goes with its subscription, too');

# ---- Release ------------------------------------------------------------------------

($code, $out, $notice) = $node->psql('postgres', "SELECT tandem.release('sub')");
like($notice, qr/NOTICE:  subscription "sub" is released, and disabled.*HINT:  .*run ALTER SUBSCRIPTION sub ENABLE/s, 'released');
is($node->query("SELECT count(*) FROM tandem.subscriptions"), 0, '... gone from the view');
is($node->query("SELECT count(*) FROM pg_shseclabel"), 0, '... without its label');
$node->query('ALTER SUBSCRIPTION sub ENABLE');
$publisher->query("INSERT INTO t VALUES (1, 'core')");
$node->wait_subscription('sub', $publisher);
is($node->query('SELECT count(*) FROM t'), 1, 'the server goes on');
$node->query('DROP SUBSCRIPTION sub');
is($node->query_error('DROP EXTENSION pg_tandem'), '', 'now the extension can go');

done_testing();
