# Objects in the way: functions, operators and casts that shadow those of
# pg_catalog, search_path of roles and databases, event triggers, rules, row-level
# security, triggers of each kind, views where a table is expected.  Apply, copies, the views and the command do
# the same as if they weren't there, or as the server's own worker would.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my @at = at($node);

# ---- Everything lies ---------------------------------------------------------------

# Each function notes that it was called by somebody.  Roles look here before
# pg_catalog.
my $lies = q{
	CREATE SCHEMA evil;
	CREATE TABLE evil.called (what text);
	CREATE FUNCTION evil.note(what text) RETURNS void LANGUAGE sql AS $$ INSERT INTO evil.called VALUES (what) $$;
	CREATE FUNCTION evil.format_type(oid, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('format_type'); RETURN 'xml'; END $$;
	CREATE FUNCTION evil.pg_current_snapshot() RETURNS pg_catalog.pg_snapshot LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('snapshot'); RETURN '1:1:'; END $$;
	CREATE FUNCTION evil.pg_relation_size(regclass) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('size'); RETURN 0; END $$;
	CREATE FUNCTION evil.pg_relation_filenode(regclass) RETURNS oid LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('filenode'); RETURN 1; END $$;
	CREATE FUNCTION evil.pg_get_publication_tables(text) RETURNS SETOF oid LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('tables'); END $$;
	CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('setting'); RETURN 'x'; END $$;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('clock'); RETURN 'epoch'; END $$;
	CREATE FUNCTION evil.lie(oid, oid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('oid = oid'); RETURN false; END $$;
	CREATE FUNCTION evil.lie(name, name) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('name = name'); RETURN false; END $$;
	CREATE FUNCTION evil.lie(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('name = text'); RETURN false; END $$;
	CREATE FUNCTION evil.lie(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('text = text'); RETURN false; END $$;
	CREATE FUNCTION evil.lie(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('int = int'); RETURN false; END $$;
	CREATE FUNCTION evil.lie("char", "char") RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('char = char'); RETURN false; END $$;
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = oid, RIGHTARG = oid);
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = name, RIGHTARG = name);
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = name, RIGHTARG = text);
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = text, RIGHTARG = text);
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = int, RIGHTARG = int);
	CREATE OPERATOR evil.= (FUNCTION = evil.lie, LEFTARG = "char", RIGHTARG = "char");
	CREATE AGGREGATE evil.count(*) (SFUNC = int8inc, STYPE = bigint, INITCOND = '1000');
	CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false);
	CREATE TABLE evil.pg_class (oid oid);
	CREATE TABLE evil.pg_publication (oid oid);
	CREATE TABLE evil.pg_subscription (oid oid);
};
my $tables = q{
	CREATE TABLE plain (id int PRIMARY KEY, v text);
	CREATE TABLE big (id int PRIMARY KEY, v text);
	CREATE TABLE fires (id int PRIMARY KEY, v text);
	CREATE TABLE ruled (id int PRIMARY KEY, v text);
	CREATE TABLE secured (id int PRIMARY KEY, v text);
	CREATE TABLE parts (id int PRIMARY KEY, v text);
};
for my $server ($publisher, $node)
{
	$server->query($tables) if $server == $publisher;
	$server->query($tables =~ s/CREATE TABLE parts \(id int PRIMARY KEY, v text\)/CREATE TABLE parts (v text, id int PRIMARY KEY) PARTITION BY RANGE (id)/r) if $server == $node;
	$server->query($lies);
}
$node->query('CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10); CREATE TABLE parts_rest PARTITION OF parts DEFAULT');
$publisher->query("INSERT INTO $_ SELECT g, 'row ' || g FROM generate_series(1, 20) g") for qw(plain fires ruled secured parts);
$publisher->query(q{INSERT INTO big SELECT g, repeat('x', 100) FROM generate_series(1, 10000) g});
$publisher->query('CREATE PUBLICATION pub FOR TABLE plain, big, fires, ruled, secured, parts');

$node->query(q{
	-- what fires, and what doesn't
	CREATE TABLE fired (what text);
	CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN INSERT INTO public.fired VALUES (TG_NAME); RETURN NEW; END $$;
	CREATE TRIGGER origin BEFORE INSERT OR UPDATE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
	CREATE TRIGGER replica BEFORE INSERT OR UPDATE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
	CREATE TRIGGER always AFTER INSERT OR UPDATE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
	CREATE TRIGGER disabled AFTER INSERT OR UPDATE ON fires FOR EACH ROW EXECUTE FUNCTION fire();
	ALTER TABLE fires ENABLE REPLICA TRIGGER replica, ENABLE ALWAYS TRIGGER always, DISABLE TRIGGER disabled;
	-- rules and row-level security bind neither a copy nor a superuser
	CREATE RULE nothing AS ON INSERT TO ruled DO INSTEAD NOTHING;
	ALTER TABLE ruled ENABLE ALWAYS RULE nothing;
	ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
	ALTER TABLE secured FORCE ROW LEVEL SECURITY;
	CREATE POLICY none ON secured USING (false);
	-- no statement of ours is DDL
	CREATE FUNCTION no_ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no DDL (%)', TG_TAG; END $$;
});
my $waves = Tandem::Waves->new($publisher, $node);
$node->query("CREATE SUBSCRIPTION sub CONNECTION '" . $waves->conninfo . "' PUBLICATION pub WITH (enabled = false)");

$node->query(qq{CREATE EVENT TRIGGER no_$_ ON $_ EXECUTE FUNCTION no_ddl(); ALTER EVENT TRIGGER no_$_ ENABLE ALWAYS})
  for qw(ddl_command_end sql_drop table_rewrite);
for my $server ($publisher, $node)
{
	$server->query('ALTER ROLE postgres SET search_path = evil, pg_catalog, public; ALTER DATABASE postgres SET search_path = evil, pg_catalog');
}
# settings that would bite
plain($publisher, $_) for 'ALTER ROLE postgres SET statement_timeout = 1500', 'ALTER ROLE postgres SET default_transaction_read_only = on',
  q{ALTER ROLE postgres SET datestyle = 'German, DMY'}, q{ALTER ROLE postgres SET intervalstyle = 'sql_standard'}, 'ALTER ROLE postgres SET extra_float_digits = -3',
  q{ALTER ROLE postgres SET bytea_output = 'escape'}, 'ALTER ROLE postgres SET row_security = off', q{ALTER ROLE postgres SET lock_timeout = '1ms'};
plain($node, $_) for 'ALTER ROLE postgres SET statement_timeout = 1500', q{ALTER ROLE postgres SET datestyle = 'SQL, MDY'},
  'ALTER ROLE postgres SET default_transaction_read_only = on',
  q{ALTER ROLE postgres SET default_transaction_isolation = 'serializable'}, 'ALTER ROLE postgres SET session_replication_role = local';

# The tests' own sessions are plain ones.
sub plain
{
	my ($server, $sql) = @_;
	local $ENV{PGOPTIONS} = '-c search_path=public -c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0'
	  . ' -c session_replication_role=origin -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1';
	return $server->query($sql);
}

sub same
{
	my ($when) = @_;
	for my $table (qw(plain big fires ruled secured parts))
	{
		my $sql = "SELECT md5(string_agg(id || v, ',' ORDER BY id)) FROM $table";
		is(plain($node, $sql), plain($publisher, $sql), "$when: the same in $table");
	}
	return;
}

my ($code, $out, $err) = tandem('adopt', 'sub', @at, '-d', 'postgres');
is($code, 0, 'adopted by the command') or diag $err;
my $unready = '';
eval {
	poll_for(sub { ($unready = plain($node, q{SELECT string_agg(name || ' ' || state || ': ' || coalesce(last_error, '-'), '; ') FROM tandem.tables WHERE state <> 'ready'})) eq '' },
		'all tables to be ready');
} or diag $unready;
same('copy');
is(plain($node, 'SELECT string_agg(what || n, \' \' ORDER BY what) FROM (SELECT what, count(*) n FROM fired GROUP BY 1) f'), 'always20 replica20', 'copy: triggers REPLICA and ALWAYS fire, no others');

plain($publisher, qq{INSERT INTO $_ VALUES (20000, 'new'); UPDATE $_ SET v = 'changed' WHERE id = 1; DELETE FROM $_ WHERE id = 2; UPDATE $_ SET id = 5000000 + id WHERE id = 3})
  for qw(plain big fires ruled secured parts);
plain($publisher, q{SELECT pg_logical_emit_message(true, 'test', 'end')});
my $lsn = plain($publisher, 'SELECT pg_current_wal_flush_lsn()');
poll_for(sub { plain($node, "SELECT flushed_lsn >= '$lsn' FROM tandem.subscriptions") eq 't' }, 'the changes to be applied');
same('apply');
is(plain($node, 'SELECT string_agg(what || n, \' \' ORDER BY what) FROM (SELECT what, count(*) n FROM fired GROUP BY 1) f'), 'always23 replica23', 'apply: the same triggers');

plain($node, "SELECT tandem.resync('sub', 'big'), tandem.resync('sub', 'parts'), tandem.resync('sub', 'fires')");
poll_for(sub { plain($node, q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'tables to be copied again');
same('resync');

# ---- Views and the command ----------------------------------------------------------------

my ($exit, $object) = tandem_json('sync', @at);
is($exit, 0, 'tandem sync: ready');
is($object->{subscriptions}[0]{ready}, 6, '... and counts rightly');
($exit, $object) = tandem_json('doctor', @at);
is_deeply([ grep { /table|column|subscription/ } map { $_->{code} } @{ $object->{findings} } ], [], 'doctor is not deceived');
# a session with the lies in front sees the same
is($node->query(q{SELECT pg_catalog.string_agg(state, ',') FROM tandem.tables}), join(',', ('ready') x 6), 'so does somebody who has the lies in front');
is($node->query(q{SELECT state FROM tandem.subscriptions}), 'streaming', '... also of the subscription');
is(plain($_, 'SELECT count(*) FROM evil.called'), '0', 'nothing of what lies was called on ' . $_->name) for $publisher, $node;

($code, $out, $err) = tandem('release', 'sub', @at, '-d', 'postgres');
is($code, 0, 'released') or diag $err;

done_testing();
