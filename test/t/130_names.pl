# Names that nobody should use: quotes, dots, newlines, percent signs, upper
# case, 63 bytes of multibyte.  For the database, the schema, tables, columns, the
# subscription and the publication; through copy, apply, resync, the views, the
# command and release.

use strict;
use warnings;
use utf8;

use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0, initdb => [ '--encoding=UTF8', '--locale=C' ]);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1, initdb => [ '--encoding=UTF8', '--locale=C' ]);
my @at = at($node);

# what psql and the command get and give is bytes
sub bytes { my $text = shift; utf8::encode($text); return $text; }
sub text { my $bytes = shift; utf8::decode($bytes); return $bytes; }
sub ident { return '"' . ($_[0] =~ s/"/""/gr) . '"'; }
sub literal { return "'" . ($_[0] =~ s/'/''/gr) . "'"; }

my $database = q{Data'base "x"};
my @names = ('Upper', 'quo"te', q{apo'strophe}, 'dot.ted', "new\nline", 'per%s%n%d', 'back\\slash', '$1', 'a b', 'select', ('ä' x 31) . 'x', ('漢' x 21), '{br,ace}');
my $schema = q{Sche."ma'};
my $subscription = q{Sub "scrip.tion' %s} . "\n" . 'é';
my $publication = q{Pub, "lica.tion' } . 'ü';

sub run_sql
{
	my ($server, $sql) = @_;
	return text($server->query(bytes($sql), $database));
}

$_->query('CREATE DATABASE ' . ident($database)) for $publisher, $node;
$node->query('CREATE EXTENSION pg_tandem', $database);
for my $server ($publisher, $node)
{
	run_sql($server, 'CREATE SCHEMA ' . ident($schema));
	run_sql($server, join ';', map { 'CREATE TABLE ' . ident($schema) . '.' . ident($_) . ' (' . ident($_) . ' int PRIMARY KEY, ' . ident("$names[0]?") . ' text)' } @names);
}
run_sql($publisher, join ';', map { 'INSERT INTO ' . ident($schema) . '.' . ident($_) . ' SELECT g, ' . literal($_) . ' FROM generate_series(1, 20) g' } @names);
run_sql($publisher, 'CREATE PUBLICATION ' . ident($publication) . ' FOR ALL TABLES');

my $conninfo = $publisher->connstr($database);
run_sql($node, 'CREATE SUBSCRIPTION ' . ident($subscription) . ' CONNECTION ' . literal($conninfo) . ' PUBLICATION ' . ident($publication)
	  . ' WITH (enabled = false, slot_name = odd)');

my ($code, $out, $err) = tandem('adopt', bytes($subscription), @at);
is($code, 0, 'adopted by the command, which finds the database') or diag text($err);

# ---- Copy ----------------------------------------------------------------------------

my $unready = '';
eval {
	poll_for(sub { ($unready = run_sql($node, q{SELECT string_agg(name || ' ' || state || ': ' || coalesce(last_error, '-'), '; ') FROM tandem.tables WHERE state <> 'ready'})) eq '' },
		'all tables to be ready');
} or diag $unready;
is(run_sql($node, q{SELECT count(*) FROM tandem.tables WHERE state = 'ready'}), scalar @names, 'all tables are copied');

sub same
{
	my ($when) = @_;
	for my $name (@names)
	{
		my $sql = 'SELECT * FROM ' . ident($schema) . '.' . ident($name) . ' ORDER BY 1';
		is(run_sql($node, $sql), run_sql($publisher, $sql), bytes("$when: the same in table " . ($name =~ s/\n/\\n/r)));
	}
	return;
}
same('copy');

# ---- Apply, and copies again ---------------------------------------------------------------

sub applied
{
	run_sql($publisher, q{SELECT pg_logical_emit_message(true, 'test', 'end')});
	my $lsn = run_sql($publisher, 'SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { run_sql($publisher, "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'odd'") eq 't' }, 'the changes to be applied');
	return;
}

for my $name (@names)
{
	my $table = ident($schema) . '.' . ident($name);
	my ($key, $value) = (ident($name), ident("$names[0]?"));
	run_sql($publisher, "INSERT INTO $table VALUES (100, 'new'); UPDATE $table SET $value = 'changed' WHERE $key = 1;
		DELETE FROM $table WHERE $key = 2; UPDATE $table SET $key = 200 WHERE $key = 3");
}
run_sql($publisher, 'TRUNCATE ' . ident($schema) . '.' . ident($names[1]));
applied();
same('apply');

# regclass quotes what has to be quoted
run_sql($node, 'SELECT tandem.resync(' . literal($subscription) . ', relid::regclass::text::regclass) FROM tandem.tables');
poll_for(sub { run_sql($node, q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'all tables to be copied again');
same('resync');

# what differs is said with names that can be used as they stand
my $first = ident($schema) . '.' . ident($names[1]);
run_sql($publisher, "ALTER TABLE $first ADD " . ident('per%s"x') . ' int');
run_sql($node, 'SELECT tandem.resync(' . literal($subscription) . ', ' . literal($first) . ')');
poll_for(sub { run_sql($node, q{SELECT count(*) FROM tandem.tables WHERE state = 'failed'}) eq '1' }, 'the table to fail');
run_sql($node, run_sql($node, q{SELECT hint FROM tandem.tables WHERE state = 'failed'}));
run_sql($node, 'SELECT tandem.resync(' . literal($subscription) . ', ' . literal($first) . ')');
poll_for(sub { run_sql($node, q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'the hint to help');
pass('a hint for odd names helps as it stands');

# ---- The command, the views, statements, and back --------------------------------------------

my ($exit, $object) = tandem_json('status', @at);
is($object->{nodes}[0]{subscriptions}[0]{subscription}, $subscription, 'status --json has the name');
($exit, $object) = tandem_json('doctor', @at);
is_deeply([ grep { /^(?:missing|column|subscription_)/ } map { $_->{code} } @{ $object->{findings} } ], [], 'doctor finds nothing');
run_sql($node, 'DROP TABLE ' . ident($schema) . '.' . ident($names[4]));
($exit, $object) = tandem_json('doctor', @at);
my ($found) = grep { $_->{code} eq 'missing_table' } @{ $object->{findings} };
like($found->{fix}[0]{line}, qr/CREATE TABLE/, 'but a table that is gone');
run_sql($node, $found->{fix}[0]{line});
run_sql($node, 'ALTER SUBSCRIPTION ' . ident($subscription) . ' REFRESH PUBLICATION');
poll_for(sub { run_sql($node, q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'it to be copied');
same('after doctor');
($code, $out, $err) = tandem('sync', bytes($subscription), @at);
is($code, 0, 'tandem sync');
unlike($out, qr/\n\n?line/, '... no name breaks a line');
run_sql($node, 'ALTER SUBSCRIPTION ' . ident($subscription) . ' RENAME TO ' . ident("$subscription 2"));
poll_for(sub { run_sql($node, q{SELECT state FROM tandem.subscriptions}) eq 'streaming' }, 'the renamed one');
($code, $out, $err) = tandem('release', bytes("$subscription 2"), @at);
is($code, 0, 'released') or diag text($err);
run_sql($node, 'ALTER SUBSCRIPTION ' . ident("$subscription 2") . ' ENABLE');
run_sql($publisher, "INSERT INTO $first VALUES (1000)");
poll_for(sub { run_sql($node, "SELECT count(*) FROM $first WHERE " . ident($names[1]) . ' = 1000') eq '1' }, 'the server to go on');
pass('the server goes on');
run_sql($node, 'DROP SUBSCRIPTION ' . ident("$subscription 2"));

done_testing();
