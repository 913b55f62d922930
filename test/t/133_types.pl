# Types and shapes of tables, copied and followed, in text and in binary: domains,
# enums, composites, arrays, ranges, generated and identity columns, tables
# without columns and with 1,600, unlogged targets, wide values.  Then encodings:
# from LATIN1 to UTF8 and back, a character that isn't there, and SQL_ASCII.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, initdb => [ '--encoding=UTF8', '--locale=C' ]);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1, initdb => [ '--encoding=UTF8', '--locale=C' ]);

# user types have other OIDs on the two sides
$node->query('CREATE TYPE before AS (x int)');
for my $server ($publisher, $node)
{
	$server->query(q{
		CREATE EXTENSION hstore;
		CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', 'happy');
		CREATE DOMAIN positive AS int CHECK (VALUE > 0);
		CREATE DOMAIN moods AS mood[];
		CREATE TYPE pair AS (n positive, m mood, t text);
		CREATE TYPE nested AS (p pair, ps pair[]);
		CREATE TYPE spread AS RANGE (subtype = numeric);
		CREATE TABLE kinds (id int PRIMARY KEY, e mood, ea mood[], d positive, da moods, c pair, ca pair[], n nested,
			r spread, m spread_multirange, h hstore, i int4range[], b bytea, j jsonb, x xml, t tsvector, bits bit(5), vb varbit,
			ch char(5), nm name, "c1" "char", mo money, f8 float8, f4 float4, nu numeric, iv interval, tz timestamptz, u uuid, ip inet,
			o oid, rc regclass, p point, arr int[][])});
	$server->query('CREATE TABLE none (); ALTER TABLE none REPLICA IDENTITY FULL');
	$server->query('CREATE TABLE many (' . join(', ', map { "c$_ " . ($_ % 3 == 0 ? 'text' : 'smallint') } 1 .. 1600) . ', PRIMARY KEY (c1))');
	$server->query('CREATE TABLE wide (id int PRIMARY KEY, a text, b bytea)');
	$server->query('CREATE ' . ($server == $node ? 'UNLOGGED ' : '') . 'TABLE unlogged (id int PRIMARY KEY, v text)');
}
$publisher->query(q{
	CREATE TABLE gen (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)});
$node->query(q{
	CREATE TABLE gen (own text DEFAULT 'mine', g int GENERATED ALWAYS AS (a * 100) STORED, a int, id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)});

my $row = q{'it''s "ok"', '{sad,"it''s \"ok\"",NULL}', 5, '{happy}', ROW(3, 'happy', E'a,"(b)\\\\\n'), ARRAY[ROW(1, NULL, ''), NULL]::pair[],
	ROW(ROW(1, 'sad', 'x'), ARRAY[ROW(2, 'happy', NULL)]::pair[]), '[1.5,)', '{[1,2),[5,7]}', 'a=>1,"b c"=>NULL', '{"[1,5)",empty}', '\x00ff5c', '{"a":[1,null,"x"]}',
	'<a>b</a>', 'x:1A y', B'10101', B'1', 'ab', 'some name', 'c', 12.34, 'NaN', '-Infinity', 12345678901234567890.123456789, '1 mon -2 days 03:04:05.000006',
	'2024-02-29 12:34:56.789012+05', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.0/8', 4294967295, 'pg_class', '(1,-2)', '[0:1][2:3]={{1,2},{3,NULL}}'};

sub change
{
	my ($n) = @_;
	$publisher->query("INSERT INTO kinds VALUES ($n, $row); INSERT INTO kinds (id) VALUES ($n + 1)");
	$publisher->query('INSERT INTO none DEFAULT VALUES');
	$publisher->query("INSERT INTO many (c1, c2, c3, c1599, c1600) VALUES ($n, 2, 'three', 'last but one', 1600)");
	$publisher->query("INSERT INTO wide SELECT $n, string_agg(md5(g::text), ''), decode(string_agg(md5((-g)::text), ''), 'hex') FROM generate_series(1, 40000) g");
	$publisher->query("INSERT INTO unlogged VALUES ($n, 'x')");
	$publisher->query("INSERT INTO gen (a) VALUES ($n)");
	return;
}

sub same
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_same_table($publisher, $node, $_, "$when: $_") for qw(kinds many wide unlogged), 'SELECT id, a FROM gen';
	is($node->query('SELECT count(*) FROM none'), $publisher->query('SELECT count(*) FROM none'), "$when: a table without columns");
	is($node->query('SELECT bool_and(g = a * 100 AND own = \'mine\') FROM gen'), 't', "$when: generated and default columns are computed here");
	return;
}

for my $binary ('off', 'on')
{
	change(1) if $binary eq 'off';
	# types whose binary form holds OIDs or can't be received are not for binary = true, as in core
	$publisher->query('CREATE PUBLICATION pub FOR TABLE ' . ($binary eq 'on' ? '' : 'kinds, ') . 'none, many, wide, unlogged, gen');
	my $waves = Tandem::Waves->new($publisher, $node);
	$waves->subscribe(with => "binary = $binary");
	$waves->wait_ready;
	same("binary $binary, copy");

	change(11) if $binary eq 'off';
	if ($binary eq 'on')
	{
		$publisher->query(q{INSERT INTO gen (a) VALUES (21); INSERT INTO unlogged VALUES (21, 'y'); INSERT INTO none DEFAULT VALUES;
			INSERT INTO many (c1, c3) VALUES (21, 'x'); INSERT INTO wide VALUES (21, 'a', 'b')});
	}
	else
	{
		$publisher->query(q{UPDATE kinds SET e = 'sad', d = NULL, c = ROW(7, 'sad', 'new') WHERE id = 1; DELETE FROM kinds WHERE id = 2});
	}
	$publisher->query(q{UPDATE many SET c3 = 'changed', c1600 = NULL WHERE c1 = 1; UPDATE wide SET b = 'short' WHERE id = 1;
		UPDATE gen SET a = a + 1000; UPDATE unlogged SET v = NULL WHERE id = 1});
	$node->wait_subscription('sub', $publisher);
	same("binary $binary, apply");

	$node->query('DROP SUBSCRIPTION sub');
	$publisher->query('DROP PUBLICATION pub');
	$node->query('TRUNCATE none, many, wide, unlogged, gen');
}

# ---- Encodings -----------------------------------------------------------------------

# $from and $to: databases; the text is "a-umlaut", as bytes of its encoding.
$_->query("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'") for $publisher, $node;
$_->query("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'") for $publisher, $node;
$node->query('CREATE EXTENSION pg_tandem', $_) for 'latin', 'ascii';

sub encoded
{
	my ($from, $to, $sql, $expected, $title) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# a name with a character, too
	my $table = $from eq 'ascii' || $to eq 'ascii' ? 'plain' : 'U&"t\\00E4ble"';
	$_->[0]->query("CREATE TABLE $table (id int PRIMARY KEY, v text)", $_->[1]) for [ $publisher, $from ], [ $node, $to ];
	$publisher->query("INSERT INTO $table VALUES (1, $sql)", $from);
	$publisher->query("CREATE PUBLICATION enc FOR TABLE $table", $from);
	my $waves = Tandem::Waves->new($publisher, $node, name => "enc_${from}_$to", publication => 'enc', publisher_database => $from, database => $to);
	$waves->subscribe;
	$waves->wait_ready;
	$publisher->query("INSERT INTO $table VALUES (2, $sql)", $from);
	$node->wait_subscription("enc_${from}_$to", $publisher) if $to eq 'postgres';
	poll_for(sub { $node->query("SELECT count(*) FROM $table", $to) eq '2' }, "$title: the second row");
	# as bytes, whatever the client's encoding
	is($node->query("SELECT string_agg(encode(convert_to(v, 'SQL_ASCII'), 'hex'), ' ' ORDER BY id) FROM $table", $to),
		"$expected $expected", $title);
	return ($waves, $table);
}

sub gone
{
	my ($from, $to, $table) = @_;
	$node->query("DROP SUBSCRIPTION enc_${from}_$to", $to);
	$publisher->query("DROP PUBLICATION enc; DROP TABLE $table", $from);
	$node->query("DROP TABLE $table", $to);
	return;
}

my ($waves, $table) = encoded('latin', 'postgres', q{chr(228)}, 'c3a4', 'from LATIN1 to UTF8');
gone('latin', 'postgres', $table);
($waves, $table) = encoded('postgres', 'latin', q{chr(228)}, 'e4', 'from UTF8 to LATIN1');
# the publisher sends in our encoding, and can't send a character that it doesn't have
$publisher->query("INSERT INTO $table VALUES (3, chr(9731))");
poll_for(sub { $node->query('SELECT last_error FROM tandem.subscriptions', 'latin') =~ /no equivalent in encoding "LATIN1"/ }, 'apply to stop');
pass('a character without equivalent stops apply, and is told');
gone('postgres', 'latin', $table);

($waves, $table) = encoded('ascii', 'ascii', q{convert_from('\xff', 'SQL_ASCII')}, 'ff', 'SQL_ASCII: any byte');
gone('ascii', 'ascii', $table);
($waves, $table) = encoded('postgres', 'ascii', q{chr(228)}, 'c3a4', 'from UTF8 to SQL_ASCII: the bytes as they are');
gone('postgres', 'ascii', $table);

# what is no UTF8 fails that table only
$publisher->query(q{CREATE TABLE bad (id int PRIMARY KEY, v text); CREATE TABLE good (id int PRIMARY KEY, v text);
	INSERT INTO bad VALUES (1, convert_from('\xff', 'SQL_ASCII')); INSERT INTO good VALUES (1, 'plain');
	CREATE PUBLICATION enc FOR TABLE bad, good}, 'ascii');
$node->query('CREATE TABLE bad (id int PRIMARY KEY, v text); CREATE TABLE good (id int PRIMARY KEY, v text)');
$waves = Tandem::Waves->new($publisher, $node, name => 'enc', publication => 'enc', publisher_database => 'ascii');
$waves->subscribe;
$waves->wait_state('good', 'ready');
$waves->wait_state('bad', qr/^failed: .*invalid byte sequence for encoding "UTF8": 0xff/);
is($node->query('SELECT v FROM good'), 'plain', 'bytes that are no UTF8 fail their table, the other is copied');

done_testing();
