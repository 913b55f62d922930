# Who may do what, and what bad input is told.
#
# A standby needs a replication role with one GRANT, no superuser; hostile
# objects in "public" of the primary, where its query runs, change nothing.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', recipe => 1);

# ---- 17: hostile objects on the primary, before the standby's first query ----------

$primary->query(q{
	CREATE TABLE loot (who text);
	GRANT INSERT ON loot TO PUBLIC;
	GRANT CREATE ON SCHEMA public TO PUBLIC;
	CREATE SCHEMA tandem_look_alike;
	CREATE ROLE villain LOGIN;
	GRANT CREATE ON DATABASE postgres TO villain;
});
$primary->query(q{
	SET ROLE villain;
	CREATE FUNCTION public.steal(anyelement) RETURNS anyelement LANGUAGE plpgsql AS
		$$BEGIN INSERT INTO public.loot VALUES (session_user); RETURN $1; END$$;
	CREATE FUNCTION public.steal2(text, text) RETURNS bool LANGUAGE plpgsql AS
		$$BEGIN INSERT INTO public.loot VALUES (session_user); RETURN true; END$$;
	CREATE FUNCTION public.source_slots(integer, text, xid, xid, bytea, text[]) RETURNS SETOF record
		LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.loot VALUES (session_user); END$$;
	CREATE FUNCTION public.source_slots(integer, text, integer, integer, bytea, text[]) RETURNS SETOF record
		LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.loot VALUES (session_user); END$$;
	CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.steal2);
	CREATE OPERATOR public.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = public.steal2);
});
$primary->query(q{ALTER ROLE repl SET search_path = public, pg_catalog});

my $standby = $primary->new_standby('standby',
	conf => 'tandem.slot_sync_interval = 100ms');
$primary->query(q{SELECT pg_create_logical_replication_slot('one', 'test_decoding')});
$standby->wait_slot_ready('one');
is($primary->query(q{SELECT usename, usesuper FROM pg_stat_activity JOIN pg_user USING (usename)
	WHERE application_name = 'standby' AND backend_type = 'client backend'}),
	'repl|f', 'a replication role with one GRANT suffices, over scram-sha-256');
$standby->query('SELECT count(*) FROM tandem.sync_slots()') for 1 .. 3;
is($primary->query('SELECT count(*) FROM loot'), '0', 'hostile objects in public are not called');

# WAL from before the standby is fetched by the same role (the slot is older)
$primary->query(q{SELECT pg_create_logical_replication_slot('old', 'test_decoding')});
$primary->switch_wal(3);
my $late = $primary->new_standby('late', conf => 'tandem.slot_sync_interval = 100ms');
$late->wait_slot_ready('old');
ok($late->query('SELECT wal_fetched > 0 FROM tandem.sync_status') eq 't',
	'the role may fetch WAL too');
$late->stop;

# ---- What others may do --------------------------------------------------------------

$primary->query(q{CREATE ROLE nobody LOGIN; CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher;
	CREATE ROLE half LOGIN; GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal TO half});
$primary->wait_replayed($standby);

my %functions = (
	'tandem.source_slots(1, \'x\', \'0\', \'0\', \'\', \'{}\')' => 'source_slots',
	'tandem.source_wal(\'000000010000000000000001\', 0, 1)' => 'source_wal',
	'tandem.sync_slots()' => 'sync_slots',
	'tandem.drop_hold(\'standby\')' => 'drop_hold',
	'tandem.failover_ready()' => 'failover_ready',
	'tandem.slots' => 'slots',
	'tandem.standbys' => 'standbys',
	'tandem.sync_status' => 'sync_status');
for my $call (sort keys %functions)
{
	like($primary->query_error("SET ROLE nobody; SELECT * FROM $call"),
		qr/permission denied for (function|view) \Q$functions{$call}\E/,
		"nobody may not: $functions{$call}");
}
for my $view (qw(slots standbys sync_status failover_ready()))
{
	is($_->query_error("SET ROLE watcher; SELECT * FROM tandem.$view"), '',
		"pg_monitor may read $view on " . $_->name) for $primary, $standby;
}
like($primary->query_error("SET ROLE half; SELECT tandem.source_wal('000000010000000000000001', 0, 1)"),
	qr/must be superuser or replication role/, 'EXECUTE alone does not give WAL away');

# ---- Wrong connection, wrong role: what the standby says -----------------------------

sub says
{
	my ($pattern, $name, %settings) = @_;
	$standby->set(%settings) if %settings;
	my $last;
	my $done = eval {
		poll_for(
			sub {
				$last = $standby->query(q{SELECT coalesce(error, '-') || ' / ' || coalesce(hint, '-')
					FROM tandem.sync_status});
				return $last =~ $pattern;
			},
			$name);
	};
	ok($done, "the standby says: $name") or diag("it said: $last");
	return;
}

my $good = $primary->conninfo_for($standby);
my $socket = $primary->connstr('postgres');
says(qr/could not connect to the primary: .*no pg_hba\.conf entry.* \/ .*pg_hba\.conf lets this role connect/,
	'no pg_hba entry for the database', 'tandem.primary_conninfo' => "$good dbname=template1");
says(qr/could not connect to the primary: .*role "ghost" does not exist.* \/ Check host, role/,
	'a role that does not exist', 'tandem.primary_conninfo' => "$socket user=ghost");
says(qr/could not connect to the primary: .*password.* \/ Check host, role and password/,
	'a wrong password', 'tandem.primary_conninfo' => "$good dbname=postgres passfile=/dev/null");
says(qr/permission denied for function source_slots \/ .*GRANT EXECUTE ON FUNCTION tandem\.source_slots/,
	'a role without the GRANT', 'tandem.primary_conninfo' => "$socket user=nobody");
says(qr/must be superuser or replication role.* \/ The role needs REPLICATION/,
	'a role without REPLICATION', 'tandem.primary_conninfo' => "$socket user=half");
$primary->query('CREATE DATABASE without_extension');
(my $without = $socket) =~ s/dbname=\S+/dbname=without_extension/;
says(qr/schema "tandem" does not exist \/ On the primary, run CREATE EXTENSION pg_tandem/,
	'no extension there', 'tandem.primary_conninfo' => $without);
says(qr/invalid connection string.* \/ Correct tandem\.primary_conninfo/,
	'a malformed connection string', 'tandem.primary_conninfo' => 'host=a b c');
my $stranger = Tandem::Node->new_primary('stranger');
says(qr/is not the primary of this standby \/ Correct tandem\.primary_conninfo/,
	'another cluster', 'tandem.primary_conninfo' => $stranger->connstr('postgres'));
my $stock = Tandem::Node->new_subscriber('stock');
$stock->stop;
$stranger->stop;
(my $no_dbname = $socket) =~ s/dbname=\S+//;
says(qr/^- \/ -$/, 'nothing, without a dbname', 'tandem.primary_conninfo' => $no_dbname);
$standby->set('tandem.primary_conninfo' => undef);
says(qr/^- \/ -$/, 'nothing, once it is right again');
$standby->wait_slot_ready('one');

# Versions that don't belong together name the command that mends it.
$primary->query(q{UPDATE pg_extension SET extversion = '0.0.9' WHERE extname = 'pg_tandem'});
like($primary->query_error('SELECT * FROM tandem.slots'),
	qr/library has version .*, but its SQL objects in this database have version 0\.0\.9.*HINT:  .*ALTER EXTENSION pg_tandem UPDATE/s,
	'SQL objects of another version are refused');
my $mark = $standby->log_mark;
$standby->restart;    # a session remembers a match
$standby->wait_log(qr/the primary answered: pg_tandem's library has version .*0\.0\.9.*HINT:  .*ALTER EXTENSION pg_tandem UPDATE/s, $mark);
$primary->query(q{UPDATE pg_extension SET extversion = tandem.library_version() WHERE extname = 'pg_tandem'});
like($primary->query_error(q{SELECT * FROM tandem.source_slots(99, 'x', '0', '0', '', '{}')}),
	qr/the standby speaks protocol 99.*HINT:  Install the same version/s, 'another protocol is refused');

# ---- Bad input -------------------------------------------------------------------------

my @bad = (
	[ $primary, 'SELECT * FROM tandem.sync_slots()',
		qr/ERROR:  failover slots can be synchronized only on a standby.*HINT:  Call/s ],
	[ $primary, q{SELECT tandem.drop_hold('ghost')},
		qr/ERROR:  there is no hold for standby "ghost".*HINT:  Holds are listed/s ],
	[ $primary, q{SELECT tandem.drop_hold('')}, qr/ERROR:  .*primary_slot_name.*HINT:  /s ],
	[ $primary, q{SELECT tandem.drop_hold('Not A Slot')}, qr/ERROR:  .*invalid character.*HINT:  /s ],
	[ $primary, q{SELECT tandem.drop_hold(repeat('x', 60))}, qr/ERROR:  .*too long.*HINT:  /s ],
	[ $primary, q{SELECT * FROM tandem.source_slots(1, 'x', '0', '0', '\x00', '{}')},
		qr/ERROR:  malformed inventory of a standby.*HINT:  /s ],
	[ $primary, q{SELECT * FROM tandem.source_slots(1, 'x', '0', '0', '', '{NULL}')},
		qr/ERROR:  malformed inventory of a standby.*HINT:  /s ],
	[ $primary, q{SELECT tandem.source_wal('../global/pg_control', 0, 10)},
		qr/ERROR:  "..\/global\/pg_control" is not the name of a WAL segment/ ],
	[ $primary, q{SELECT tandem.source_wal('000000010000000000000001', -1, 10)},
		qr/ERROR:  cannot read 10 bytes at offset -1 of WAL.*HINT:  /s ],
	[ $primary, q{SELECT tandem.source_wal('000000010000000000000001', 0, 2000000000)},
		qr/ERROR:  cannot read 2000000000 bytes.*HINT:  /s ],
	[ $standby, q{SELECT * FROM tandem.source_slots(1, 'x', '0', '0', '', '{}')},
		qr/ERROR:  this server is a standby and cannot serve failover slots.*HINT:  /s ],
	[ $primary, q{ALTER SYSTEM SET tandem.failover_slots = 'a,,b'},
		qr/ERROR:  invalid value for parameter "tandem\.failover_slots".*DETAIL:  The list has an empty element.*HINT:  /s ],
	[ $primary, q{ALTER SYSTEM SET tandem.failover_slots = 'App*'},
		qr/ERROR:  invalid value.*DETAIL:  Pattern "App\*" has the character "A".*HINT:  /s ],
	[ $primary, q{ALTER SYSTEM SET tandem.slot_sync_interval = '1ms'}, qr/ERROR:  1 ms is outside the valid range/ ],
	[ $primary, q{SET tandem.no_such_setting = 1}, qr/ERROR:  invalid configuration parameter name/ ]);
like($_->[0]->query_error($_->[1]), $_->[2], "refused: $_->[1]") for @bad;

# Without shared_preload_libraries the extension says what is missing.
$primary->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$primary->restart;
like($primary->query_error("SELECT * FROM tandem.$_"),
	qr/ERROR:  pg_tandem must be loaded via shared_preload_libraries.*HINT:  Add pg_tandem/s,
	"not preloaded: $_") for qw(slots sync_status failover_ready());

done_testing();
