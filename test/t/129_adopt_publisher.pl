# Bad input to tandem.adopt, by SQL and by the command: one sentence and a hint
# each.  What the publisher is asked first is whether it could ever work; a
# publisher that doesn't answer, or something that may still come, is a warning.
# After doing what the hint says it works.

use strict;
use warnings;

use IO::Socket::INET;
use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $standby = $publisher->new_standby('standby');
my @at = at($node);

sub conninfo
{
	my ($server, $dbname) = @_;
	(my $conninfo = $server->connstr($dbname // 'postgres')) =~ s/'/''/g;
	return $conninfo;
}

# Both ways: an error and a hint, and nothing is adopted.
sub refused
{
	my ($title, $error, $hint, $options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $sql = "SELECT tandem.adopt('sub'" . ($options ? ", '$options'" : '') . ')';
	my $message = $node->query_error($sql);
	like($message, qr/ERROR:  $error\n(?:DETAIL[^\n]*\n)?HINT:  $hint/, "$title: SQL");
	my ($code, $out, $err) = tandem('adopt', 'sub', ($options ? ('--options', $options) : ()), @at, '-d', 'postgres');
	is($code, 1, "$title: exit code 1");
	like($err, qr/error: $error\n.*hint: $hint/s, "$title: tandem adopt");
	is($node->query(q{SELECT count(*) FROM pg_shseclabel WHERE provider = 'tandem'}), '0', "$title: not adopted");
	return;
}

sub adopted
{
	my ($title, $warning) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($code, $out, $err) = $node->psql('postgres', q{SELECT tandem.adopt('sub')});
	is($code, 0, "$title: adopted");
	if ($warning) { like($err, $warning, "$title: with a warning"); }
	else { is($err, '', "$title: in silence"); }
	return;
}

sub streams
{
	poll_for(sub { $node->query('SELECT state FROM tandem.subscriptions') eq 'streaming' }, 'the apply worker');
	return;
}

$publisher->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE DATABASE other');
$node->query('CREATE TABLE t (id int PRIMARY KEY, v text)');
$publisher->publish('pub', 't');

# ---- What is wrong here ------------------------------------------------------------

$node->query("CREATE SUBSCRIPTION sub CONNECTION '" . conninfo($publisher) . "' PUBLICATION pub WITH (enabled = false)");
refused('an unknown option', 'unrecognized option "colour"', 'The options are', 'colour = red');
$node->query('ALTER SUBSCRIPTION sub ENABLE');
refused('an enabled one', 'cannot adopt subscription "sub": it is enabled, so the server\'s own worker runs it', 'Run ALTER SUBSCRIPTION sub DISABLE first');
$node->wait_tables('sub', $publisher);
$node->query('ALTER SUBSCRIPTION sub DISABLE');
$node->query('CREATE ROLE somebody LOGIN; GRANT EXECUTE ON FUNCTION tandem.adopt TO somebody');
like($node->query_error(q{SET ROLE somebody; SELECT tandem.adopt('sub')}),
	qr/must be owner of subscription sub\nHINT:  Connect as its owner, role "postgres"/, 'somebody else: SQL');
{
	# the command looks the subscription up first, which needs rights of its own
	local $ENV{TANDEM_TEST_USER} = 'somebody';
	my ($code, $out, $err) = tandem('adopt', 'sub', @at, '-d', 'postgres');
	is($code, 1, 'somebody else: exit code 1');
	like($err, qr/error: .*(?:must be owner|permission denied).*hint: /s, 'somebody else: tandem adopt');
}

# ---- What is wrong there -----------------------------------------------------------

$node->query("ALTER SUBSCRIPTION sub CONNECTION '" . conninfo($standby) . "'");
refused('a standby of 15', 'cannot adopt subscription "sub": its publisher is a standby',
	'PostgreSQL 15 decodes changes on a primary only; lead the subscription there');
$node->query("ALTER SUBSCRIPTION sub CONNECTION '" . conninfo($publisher, 'other') . "'");
refused('another database', 'cannot adopt subscription "sub": slot "sub" of its publisher belongs to database "postgres", and it connects to "other"',
	'Run ALTER SUBSCRIPTION sub CONNECTION with');
$node->query("ALTER SUBSCRIPTION sub CONNECTION '" . conninfo($publisher) . "'");

$publisher->query(q{SELECT pg_create_logical_replication_slot('plugin', 'test_decoding'), pg_create_physical_replication_slot('physical')});
for my $slot (qw(plugin physical))
{
	$node->query("ALTER SUBSCRIPTION sub SET (slot_name = $slot)");
	refused("slot $slot", "cannot adopt subscription \"sub\": slot \"$slot\" of its publisher is not one of a subscription",
		'Run ALTER SUBSCRIPTION sub SET \(slot_name');
	$publisher->query("SELECT pg_drop_replication_slot('$slot')");
}
$node->query('ALTER SUBSCRIPTION sub SET (slot_name = sub)');

$node->append_conf('postgresql.conf', 'tandem.debug_publisher_version = 130012');
$node->reload;
refused('13', 'cannot adopt subscription "sub": its publisher has PostgreSQL 13', 'pg_tandem reads from PostgreSQL 14 and newer');
$node->append_conf('postgresql.conf', 'tandem.debug_publisher_version = 0');
$node->reload;

$publisher->query(q{SELECT pg_drop_replication_slot('sub')});
refused('no slot', 'cannot adopt subscription "sub": its publisher has no slot "sub"', 'Create it there with SELECT pg_create_logical');
$publisher->append_conf('postgresql.conf', 'wal_level = replica');
$publisher->restart;
refused('wal_level', 'cannot adopt subscription "sub": wal_level is "replica" on its publisher', 'Set wal_level = logical there and restart');
$publisher->append_conf('postgresql.conf', 'wal_level = logical');
$publisher->restart;

# as the hint says
my ($hint) = $node->query_error(q{SELECT tandem.adopt('sub')}) =~ /HINT:  Create it there with (SELECT pg_create\S+ 'pgoutput'\))/;
$publisher->query($hint);
adopted('with the slot');
streams();
$node->query(q{SELECT tandem.release('sub')});

# ---- What may still come ---------------------------------------------------------------

$node->query('ALTER SUBSCRIPTION sub SET PUBLICATION pub, later, "Not yet" WITH (refresh = false)');
adopted('a publication that does not exist yet', qr/WARNING:  the publisher of subscription "sub" has no publication "Not yet", "later"\nHINT:  Create what is missing/);
$node->query(q{SELECT tandem.release('sub')});
$node->query('ALTER SUBSCRIPTION sub SET PUBLICATION pub WITH (refresh = false)');

# somebody reads from the slot
poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');
my $reader = IPC::Run::start([ $publisher->installed_command('pg_recvlogical'), '-d', $publisher->connstr('postgres'),
	'--slot', 'sub', '--start', '-f', '-', '-o', 'proto_version=1', '-o', 'publication_names=pub' ], '>', '/dev/null', '2>', '/dev/null');
poll_for(sub { $publisher->slot_value('sub', 'active') eq 't' }, 'a reader of the slot');
adopted('a slot in use', qr/WARNING:  slot "sub" of subscription "sub" is in use on the publisher, by process \d+\nHINT:  If another server reads from it/);
$reader->signal('INT');
$reader->finish;
streams();

# an adopted one has its options changed without asking anybody
$publisher->stop;
my ($code, $out, $err) = $node->psql('postgres', q{SELECT tandem.adopt('sub', 'workers = 3')});
is("$code $err", '0 ', 'options of an adopted one: nobody is asked');
$node->query(q{SELECT tandem.release('sub')});
adopted('a publisher that is down', qr/WARNING:  could not ask the publisher of subscription "sub": .*\nHINT:  It is adopted, and connects as soon as it can/s);
$publisher->start;
streams();
$publisher->query(q{INSERT INTO t VALUES (1, 'one')});
poll_for(sub { $node->query('SELECT v FROM t') eq 'one' }, 'a change to arrive');

# one that is there and says nothing: bounded, and can be cancelled
$node->query(q{SELECT tandem.release('sub')});
my $silent = IO::Socket::INET->new(Listen => 10, LocalAddr => '127.0.0.1', Proto => 'tcp') or die "a socket: $!";
$node->query("ALTER SUBSCRIPTION sub CONNECTION 'host=127.0.0.1 port=" . $silent->sockport . " dbname=postgres'");
like($node->query_error(q{SET statement_timeout = '500ms'; SELECT tandem.adopt('sub')}), qr/canceling statement due to statement timeout/, 'a publisher that says nothing: cancelled');
is($node->query('SELECT count(*) FROM pg_shseclabel'), '0', '... and not adopted');
is(($node->psql('postgres', q{SELECT tandem.adopt('sub', 'enabled = off'); SELECT 'usable'}))[1], "\nusable", '... adopted after some seconds');
$node->query(q{SELECT tandem.release('sub')});
($code, $out, $err) = tandem('adopt', 'sub', '--options', 'enabled = off', @at, '-d', 'postgres');
is($code, 0, '... also by the command');
like($err, qr/could not ask the publisher of subscription "sub": no answer within 5 s/, '... which shows the warning');
close $silent;
$node->query("ALTER SUBSCRIPTION sub CONNECTION '" . conninfo($publisher) . "'");
$node->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
streams();

# ---- A slot that is lost, and a standby that decodes ------------------------------------

$node->query(q{SELECT tandem.release('sub')});
$publisher->set(max_slot_wal_keep_size => '1MB');
$publisher->switch_wal(3);
$publisher->query('CHECKPOINT');
refused('a lost slot', 'cannot adopt subscription "sub": slot "sub" is lost: its publisher has removed WAL that it needs', 'Drop the subscription and create it anew');

# the answer of a standby, as if it had 16
$node->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub');
$publisher->query(q{SELECT pg_drop_replication_slot('sub')});
$node->query("CREATE SUBSCRIPTION sub CONNECTION '" . conninfo($publisher) . "' PUBLICATION pub WITH (enabled = false)");
$node->query("ALTER SUBSCRIPTION sub CONNECTION '" . conninfo($standby) . "'");
$node->append_conf('postgresql.conf', 'tandem.debug_publisher_version = 160000');
$node->reload;
refused('a standby of 16, with tables to copy', 'cannot adopt subscription "sub": its publisher is a standby, and tables are yet to be copied: 1',
	'Tables are copied from a primary; lead the subscription there with ALTER SUBSCRIPTION sub CONNECTION, or let');

done_testing();
