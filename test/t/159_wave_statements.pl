# Statements on an adopted subscription, and around it, in the middle of a wave.
# A copy waits for a lock, so without its worker being ended each statement that
# needs the workers to stop would hang.  After each of them a wave goes on (or
# the view says why not), and at the end nothing is left behind.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "tandem.sync_workers = 1\n");
$subscriber->query('CREATE DATABASE shop');
$subscriber->query('CREATE EXTENSION pg_tandem', 'shop');
my $waves = Tandem::Waves->new($publisher, $subscriber, database => 'shop');

my @tables = qw(slow a b c d gone narrowed);
$publisher->query("CREATE TABLE $_ (id int PRIMARY KEY, v text)") for @tables;
$subscriber->query("CREATE TABLE $_ (id int PRIMARY KEY, v text)", 'shop') for @tables;
$publisher->query("INSERT INTO $_ SELECT g, 'x' FROM generate_series(1, 100) g") for grep { $_ ne 'slow' } @tables;
$publisher->query(q{INSERT INTO slow SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g});
$publisher->query('CREATE PUBLICATION pub FOR TABLE slow, a, b, gone, narrowed; CREATE PUBLICATION more FOR TABLE d');

sub sql
{
	my ($sql) = @_;
	# nothing may hang
	return $subscriber->query("SET statement_timeout = '30s'; $sql", 'shop');
}

sub refused
{
	my ($sql, $message, $name) = @_;
	like($subscriber->query_error("SET statement_timeout = '30s';\n$sql", 'shop'), $message, $name // $sql);
	return;
}

sub tables
{
	return sql(q{SELECT string_agg(srrelid::regclass::text, ' ' ORDER BY srrelid::regclass::text) FROM pg_subscription_rel});
}

# The statement does not hang, and then there is a wave again that waits with "slow".
sub goes_on
{
	my ($sql, $name) = @_;
	my $wave = sql(q{SELECT max(wave) FROM tandem.tables});
	sql($sql);
	poll_for(sub { sql("SELECT max(wave) > $wave FROM tandem.tables WHERE name = 'slow' AND state = 'copying' AND pid IS NOT NULL") eq 't' },
		"another wave after $sql");
	$waves->wait_paused;
	is(sql('SELECT state FROM tandem.subscriptions'), 'streaming', $name // $sql);
	return;
}

$waves->pause('slow');
$waves->subscribe;
$waves->wait_paused;

# ---- What needs no worker to stop -------------------------------------------------------------

my $copier = sql(q{SELECT pid FROM tandem.tables WHERE name = 'slow'});
$publisher->query('ALTER PUBLICATION pub ADD TABLE c');
sql('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
is(tables(), 'a b c gone narrowed slow', 'REFRESH adds a table');
is($waves->state_of('c'), 'waiting', 'it waits for the next wave, and no statement for the lock of the copy');
refused('ALTER SUBSCRIPTION sub ENABLE', qr/cannot enable subscription "sub": it is adopted by pg_tandem.*HINT/s);
sql('ALTER SUBSCRIPTION sub DISABLE');
refused('DROP TABLE a', qr/cannot drop table "a": subscription "sub" is yet to copy it.*HINT/s);
refused('DROP EXTENSION pg_tandem CASCADE', qr/cannot drop extension pg_tandem: subscription "sub" is adopted.*HINT/s);
like($subscriber->query_error('DROP DATABASE shop'), qr/database "shop" is being used by logical replication subscription/, 'DROP DATABASE');
like($subscriber->query_error('DROP DATABASE shop WITH (FORCE)'), qr/database "shop" is being used by logical replication subscription/, '... by force');
refused("SELECT tandem.resync('sub', 'nothing')", qr/relation "nothing" does not exist/);
sql(q{SELECT tandem.resync('sub', 'slow')});
$publisher->query(q{INSERT INTO a VALUES (1000, 'spooled')});
is(sql(q{SELECT pid FROM tandem.tables WHERE name = 'slow'}), $copier, 'the copy did not notice');

# ---- What stops the workers -------------------------------------------------------------------

$publisher->query('ALTER PUBLICATION pub DROP TABLE b');
goes_on('ALTER SUBSCRIPTION sub REFRESH PUBLICATION', 'REFRESH removes a table');
goes_on('ALTER SUBSCRIPTION sub ADD PUBLICATION more');
is(tables(), 'a c d gone narrowed slow', 'its table is there');
goes_on('ALTER SUBSCRIPTION sub DROP PUBLICATION more');
is(tables(), 'a c gone narrowed slow', '... and away');
goes_on('ALTER SUBSCRIPTION sub SET PUBLICATION pub, more');
goes_on('ALTER SUBSCRIPTION sub SET (binary = on, streaming = on)');
goes_on(q{ALTER SUBSCRIPTION sub SKIP (lsn = '0/1')}) if $publisher->query(q{SELECT pg_current_wal_lsn() < '0/1'}) eq 't';
goes_on('ALTER SUBSCRIPTION sub SKIP (lsn = NONE)');
goes_on(q{ALTER SUBSCRIPTION sub CONNECTION '} . $waves->conninfo . q{ application_name=again'});
goes_on('CREATE ROLE boss SUPERUSER LOGIN; ALTER SUBSCRIPTION sub OWNER TO boss');
goes_on('BEGIN; ALTER SUBSCRIPTION sub SET (binary = off); ROLLBACK', 'rolled back');
goes_on('ALTER SUBSCRIPTION sub RENAME TO renamed');
is(sql('SELECT subscription FROM tandem.subscriptions'), 'renamed', 'under its new name');
goes_on('ALTER SUBSCRIPTION renamed RENAME TO sub', 'and back');

# ---- What leaves them stopped -----------------------------------------------------------------

sub stopped
{
	my ($sql, $row) = @_;
	sql($sql);
	poll_for(sub { $subscriber->pids_of(qr/tandem (apply|wave|copy)/) == 0 }, 'all workers to end');
	poll_for(sub { sql(q{SELECT concat_ws(': ', state, reason) FROM tandem.subscriptions}) =~ $row }, "the view to say $row");
	pass("$sql: $row");
	return;
}

stopped(q{SELECT tandem.adopt('sub', 'enabled = off')}, qr/^paused: option enabled is off/);
is(sql('SELECT count(*) FROM slow'), '0', 'nothing half copied');
goes_on(q{SELECT tandem.adopt('sub', 'enabled = on')});
stopped('ALTER SUBSCRIPTION sub SET (slot_name = NONE)', qr/^stopped: it has no slot name/);
goes_on(q{ALTER SUBSCRIPTION sub SET (slot_name = 'sub')});
sql('CREATE ROLE guest SUPERUSER');
stopped('ALTER SUBSCRIPTION sub OWNER TO guest', qr/^stopped: its owner may not log in/);
goes_on(q{ALTER ROLE guest LOGIN; SELECT tandem.adopt('sub')}, 'when it may, at once with adopt');

# ---- The publication changes in mid-wave ------------------------------------------------------

$publisher->query($_) for
	'ALTER PUBLICATION pub DROP TABLE gone',
	'ALTER PUBLICATION pub DROP TABLE narrowed',
	'ALTER PUBLICATION pub ADD TABLE narrowed WHERE (id < 50)',
	q{INSERT INTO narrowed VALUES (1000, 'not sent'), (0, 'sent')},
	q{INSERT INTO gone VALUES (1000, 'not sent')},
	'DROP PUBLICATION more',
	q{INSERT INTO a VALUES (1001, 'late')};
poll_for(sub { sql('SELECT last_error FROM tandem.subscriptions') =~ /publication "more" does not exist/ }, 'the missing publication to be named');
goes_on('ALTER SUBSCRIPTION sub DROP PUBLICATION more WITH (refresh = off)', 'a publication that is gone is left out');
$waves->resume;
$waves->wait_state($_, 'ready') for qw(slow a c narrowed);
$waves->wait_applied;
is(sql('SELECT count(*) FROM a'), '102', 'a has all changes');
is(sql('SELECT count(*) FROM narrowed'), '50', 'what the filter lets through');
is(sql('SELECT count(*) FROM slow'), '2000', 'the table whose copy was begun so often');
sql('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
is(tables(), 'a c narrowed slow', 'REFRESH forgets what is no longer published');
$waves->wait_ready;

# ---- DROP, with and without its publisher -----------------------------------------------------

sub nothing_left
{
	my ($after) = @_;
	is(sql(q{SELECT (SELECT count(*) FROM pg_replication_origin), (SELECT count(*) FROM pg_shseclabel), (SELECT count(*) FROM pg_subscription_rel)}),
		'0|0|0', "$after leaves no origin, label or table");
	is($subscriber->pids_of(qr/tandem (apply|wave|copy)/), 0, 'no worker');
	is(rows_left(), 0, 'and no row of ours');
	return;
}

# ours are relations that SQL can't read: their files say whether there are rows after VACUUM
sub rows_left
{
	sql("VACUUM tandem.$_") for qw(copies spool wave_snapshots);
	return sql(q{SELECT sum(pg_relation_size('tandem.' || x)) FROM unnest(ARRAY['copies', 'spool', 'wave_snapshots']) x});
}

sql('DROP SUBSCRIPTION sub; TRUNCATE slow, a, c, narrowed');
nothing_left('DROP of one that is ready');
$waves->pause('slow');
$waves->subscribe;
$waves->wait_paused;
sql(q{ALTER SUBSCRIPTION sub CONNECTION 'host=/nonexistent dbname=none'});
poll_for(sub { sql('SELECT last_error FROM tandem.subscriptions') =~ /could not connect to the publisher/ }, 'the error');
refused('DROP SUBSCRIPTION sub', qr/could not connect to publisher.*HINT:.*slot_name = NONE/s, 'DROP without its publisher, as in core');
sql('ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
sql('DROP SUBSCRIPTION sub');
nothing_left('DROP without its publisher');
is($publisher->query(q{SELECT pg_drop_replication_slot('sub'), count(*) FROM pg_replication_slots}), '|1', 'but the slot, as core says');
$waves->subscribe;
$waves->wait_paused;
sql('DROP SUBSCRIPTION sub');
nothing_left('DROP in mid-wave');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', 'no slot');
$waves->resume;
$subscriber->query('DROP DATABASE shop');

done_testing();
