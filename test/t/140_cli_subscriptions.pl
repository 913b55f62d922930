# The command and subscriptions: "tandem adopt" and "release", what "status" and
# "doctor" say, and that "uninstall" hands every subscription back.  Each
# difference between the two sides is made, found, and gone after doing exactly
# what the finding says.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my @nodes = ($publisher, $node);
my @at = at($node);
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;

$node->query('CREATE DATABASE shop');
$node->query('CREATE EXTENSION pg_tandem', 'shop');
$publisher->query('CREATE TABLE t (id int PRIMARY KEY, v text)');
$publisher->publish('pub');
$node->query('CREATE TABLE t (id int PRIMARY KEY, v text)', $_) for qw(postgres shop);

sub subscribe_disabled
{
	my ($name, $database, $options) = @_;
	$node->query("CREATE SUBSCRIPTION $name CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false"
		  . ($options ? ", $options" : '') . ')', $database);
	return;
}

# ---- Usage ------------------------------------------------------------------------

my ($code, $out, $err);
for my $command (qw(adopt release sync))
{
	($code, $out) = tandem($command, '--help');
	is($code, 0, "$command --help exits with 0");
	like($out, qr/^Usage:\n  tandem $command /m, '... and shows how to call it');
	is((grep { length > 100 } split /\n/, $out), 0, '... in 100 columns');
}
for my $wrong (['adopt'], ['release'], [ 'adopt', 'a', 'b' ], [ 'sync', 'a', 'b' ], [ 'sync', '--watch=x' ],
	[ 'release', 'a', '--options', 'x' ], [ 'adopt', 'a', '--force' ], [ 'status', 'a' ])
{
	($code, $out, $err) = tandem(@$wrong);
	is($code, 2, "wrong usage exits with 2: tandem @$wrong");
	like($err, qr/\bhint: /, '... with a hint');
}

# One sentence and a hint on standard error, exit code 1.
sub refused
{
	my ($title, $error, $hint, @args) = @_;
	($code, $out, $err) = tandem(@args);
	is($code, 1, "$title: exit code 1");
	is($out, '', '... nothing on standard output');
	like($err, qr/error: $error[^\n]*\n.*hint: $hint/s, '... the cause and a hint');
	return;
}

refused('no subscription at all', 'subscription "sub" does not exist on \S+', 'There is no subscription', 'adopt', 'sub', @at);
refused('nothing to sync', 'no subscription of \S+ is adopted', 'Run "tandem adopt', 'sync', @at);
subscribe_disabled('sub', 'shop');
refused('unknown subscription', 'subscription "other" does not exist', '"tandem status" lists', 'adopt', 'other', @at);
refused('the wrong database', 'subscription "sub" does not exist', '', 'adopt', 'sub', @at, '-d', 'postgres');
refused('not adopted', 'subscription "sub" is not adopted', '', 'release', 'sub', @at);
refused('nothing to watch', 'subscription "sub" is not adopted', 'Run "tandem adopt sub"', 'sync', 'sub', @at);
refused('unknown option', 'unrecognized option "colour"', 'The options are', 'adopt', 'sub', '--options', 'colour = red', @at);
$node->query('ALTER SUBSCRIPTION sub ENABLE', 'shop');
refused('enabled', 'cannot adopt subscription "sub": it is enabled', 'Run ALTER SUBSCRIPTION sub DISABLE', 'adopt', 'sub', @at);
$node->query('ALTER SUBSCRIPTION sub DISABLE', 'shop');
($code, $out, $err) = tandem('adopt', 'sub', '-h', $node->host, '-p', 1);
is($code, 3, 'adopt: 3 if the server is unreachable');

# the same name in two databases
subscribe_disabled('sub', 'postgres', 'slot_name = second');
refused('a name twice', '2 databases of \S+ have a subscription "sub"', 'Name the database with -d', 'adopt', 'sub', @at);
$node->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
$node->query('DROP SUBSCRIPTION sub');
$publisher->query(q{SELECT pg_drop_replication_slot('second')});

# ---- Adopted ------------------------------------------------------------------------

($code, $out, $err) = tandem('adopt', 'sub', '--options', 'enabled = off', @at);
is($code, 0, 'adopt works, and finds the database') or diag $err;
like($out, qr/^Subscription "sub" of database "shop" is now run by pg_tandem/, '... and says so');
is($node->query('SELECT state FROM tandem.subscriptions', 'shop'), 'paused', '... it is adopted, with its options');

# Finding by code of doctor.
sub finding
{
	my ($name, $command, @args) = @_;
	my ($exit, $object) = tandem_json($command // 'doctor', @at, @args);
	my ($found) = grep { $_->{code} eq $name } @{ $object->{findings} };
	return wantarray ? ($found, $exit, $object) : $found;
}

# provoke, find, do what it says, gone
sub check
{
	my ($name, $severity, $provoke, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(finding($name), undef, "$name: not found when all is well") if $provoke;
	$provoke->() if $provoke;
	my $found = poll_for(sub { scalar finding($name) }, "finding $name");
	is($found->{severity}, $severity, "$name: $found->{what}");
	ok($found->{cost}, "$name: says what it costs");
	return $found if $params{by_hand};
	ok(@{ $found->{fix} } > 0, "$name: has a line to change") or return $found;
	apply_fixes($found, @nodes);
	ok(poll_for(sub { !finding($name) }, "$name to go away"), "$name: gone after $found->{fix}[0]{line}");
	return $found;
}

my ($found, $exit, $object) = finding('subscription_paused');
is($found->{severity}, 'note', 'paused is a note');
($exit, $object) = tandem_json('status', @at);
my ($row) = @{ $object->{nodes}[0]{subscriptions} };
is($row->{subscription}, 'sub', 'status --json: the subscription');
is($row->{database}, 'shop', '... its database');
is($row->{state}, 'paused', '... its state');
is($row->{labelled}, JSON::PP::true, '... whose it is');
is($row->{enabled}, JSON::PP::false, '... and that it is paused');
($code, $out) = tandem('status', @at);
like($out, qr/^SUBSCRIPTION +DATABASE .*\n^sub +shop +\S+ +pg_tandem +paused /m, 'status: a line for it');
unlike($out, qr/\e/, '... without colours');
is((grep { length > 100 } split /\n/, $out), 0, '... in 100 columns');

# changed by hand, behind our hooks: allowed only so
$node->query(q{UPDATE pg_subscription SET subenabled = true}, 'shop');
$found = finding('subscription_enabled', 'status');
is($found->{severity}, 'problem', "subscription_enabled: $found->{what}");
like($found->{fix}[0]{line}, qr/^ALTER SUBSCRIPTION sub DISABLE;$/, '... with the line to run');
$node->query(q{UPDATE pg_subscription SET subenabled = false}, 'shop');
is(finding('subscription_enabled', 'status'), undef, 'subscription_enabled: gone');

# a label that doesn't fit, as after restoring a dump elsewhere
my $label = $node->query(q{SELECT label FROM pg_shseclabel WHERE provider = 'tandem'}, 'shop');
$node->query(q{UPDATE pg_shseclabel SET label = regexp_replace(label, '\d{15,}', '1234567890123456789') WHERE provider = 'tandem'}, 'shop');
isnt($node->query(q{SELECT label FROM pg_shseclabel WHERE provider = 'tandem'}, 'shop'), $label, 'a label of another server');
$found = finding('subscription_label', 'status');
is($found->{severity}, 'problem', "subscription_label: $found->{what}");
apply_fixes($found, @nodes);
is(finding('subscription_label', 'status'), undef, "subscription_label: gone after $found->{fix}[0]{line}");
tandem('adopt', 'sub', '--options', 'enabled = off', @at);

# ---- The two sides ------------------------------------------------------------------

$publisher->query('CREATE TABLE "Odd Name" (id int PRIMARY KEY, "Col" varchar(10), n numeric(8,2))');
$found = check('missing_table', 'problem', undef);
like($found->{fix}[0]{line}, qr/^CREATE TABLE public\."Odd Name" \(id integer, "Col" character varying\(10\), n numeric\(8,2\), PRIMARY KEY \(id\)\);$/,
	'... the whole table');
$publisher->query(sprintf 'CREATE TABLE many%d (id int PRIMARY KEY)', $_) for 1 .. 7;
$found = check('missing_table', 'problem', undef, by_hand => 1);
like($found->{what}, qr/many1, .* and 2 more\.$/, 'many of a kind are one finding');
for (1 .. 3)
{
	my $todo = finding('missing_table') or last;
	apply_fixes($todo, @nodes);
}
is(finding('missing_table'), undef, '... gone after doing it again and again');

check('missing_column', 'problem', sub { $publisher->query('ALTER TABLE t ADD extra date') });
check('column_type', 'warning', sub { $publisher->query('ALTER TABLE t ALTER id TYPE bigint') });
check('extra_column', 'problem', sub { $node->query('ALTER TABLE t ADD own int NOT NULL', 'shop') });
check('replica_identity', 'problem', sub {
	$publisher->query('CREATE TABLE keyless (i int)');
	$node->query('CREATE TABLE keyless (i int)', 'shop');
});
$node->query('ALTER TABLE t ADD with_default int NOT NULL DEFAULT 1, ADD optional int', 'shop');
is(finding('extra_column'), undef, 'more columns with a default are no finding');
check('no_key', 'problem', sub { $node->query('ALTER TABLE t DROP CONSTRAINT t_pkey', 'shop') });
$publisher->query('CREATE TABLE g (id int PRIMARY KEY, v int)');
$node->query('CREATE TABLE g (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) STORED)', 'shop');
check('missing_column', 'problem', undef);

# a column list, and a table that isn't published
$publisher->query('CREATE TABLE listed (id int PRIMARY KEY, there int, secret int)');
$publisher->query('CREATE PUBLICATION narrow FOR TABLE listed (id, there)');
$node->query('CREATE TABLE listed (id int PRIMARY KEY, there int)', 'shop');
$node->query(q{UPDATE pg_subscription SET subpublications = '{narrow}'}, 'shop');
is(finding('missing_column'), undef, 'what a column list leaves out is not missing');
$node->query(q{UPDATE pg_subscription SET subpublications = '{pub}'}, 'shop');
check('missing_column', 'problem', undef);

# a type with more room is no finding
$node->query('ALTER TABLE g ALTER v TYPE bigint', 'shop');
is(finding('column_type'), undef, 'bigint takes every integer');

# binary: types must be the same
$node->query('UPDATE pg_subscription SET subbinary = true', 'shop');
check('column_type', 'problem', undef);
$node->query('UPDATE pg_subscription SET subbinary = false', 'shop');

# the publisher's settings
$publisher->query(q{SELECT pg_drop_replication_slot('sub')});
check('subscription_slot', 'problem', undef);
$publisher->query('ALTER SYSTEM SET max_replication_slots = 1');
$publisher->restart;
check('publisher_slots', 'warning', undef);
$publisher->query('ALTER SYSTEM SET max_wal_senders = 0');
$publisher->restart;
check('publisher_senders', 'problem', undef);
{
	$node->query('ALTER SYSTEM SET max_replication_slots = 1');
	$node->restart;
	$node->query(q{SELECT tandem.adopt('sub', 'enabled = off')}, 'shop');
	is(finding('origins'), undef, 'origins: one suffices while it is paused');
	$node->query('ALTER SYSTEM RESET max_replication_slots');
	$node->restart;
}

# another encoding, and a publisher that isn't there
$publisher->query(q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
$publisher->query('CREATE PUBLICATION pub', 'latin');
$node->query(q{UPDATE pg_subscription SET subconninfo = replace(subconninfo, 'dbname=postgres', 'dbname=latin')}, 'shop')
  if $conninfo =~ /dbname=postgres/;
$node->query(q{UPDATE pg_subscription SET subconninfo = replace(subconninfo, 'dbname=''postgres''', 'dbname=latin')}, 'shop');
$found = check('encoding', 'warning', undef, by_hand => 1);
like($found->{what}, qr/encoding UTF8, .* LATIN1/, '... both are named');
$node->query(q{UPDATE pg_subscription SET subconninfo = replace(subconninfo, 'dbname=latin', 'dbname=postgres')}, 'shop');

$publisher->stop;
($found, $exit) = finding('publisher');
is($found->{severity}, 'unchecked', 'publisher: one that is down is not checked');
is($exit, 1, '... and that is exit code 1');
$publisher->start;

$node->query('CREATE ROLE plain LOGIN IN ROLE pg_monitor');
$found = finding('publisher', 'doctor', '-U', 'plain');
is($found->{severity}, 'unchecked', 'publisher: who may not see the connection string can not check');
like($found->{hint}, qr/superuser/, '... and is told so');

# ---- Handing back -----------------------------------------------------------------------

($code, $out, $err) = tandem('release', 'sub', @at);
is($code, 0, 'release works') or diag $err;
like($out, qr/the server's own again, and disabled/, '... and says how it is now');
is($node->query('SELECT count(*) FROM tandem.subscriptions', 'shop'), '0', '... it is not adopted any more');
($code, $out) = tandem('status', @at);
like($out, qr/^sub +shop +\S+ +server +disabled /m, 'status: knows it as the server\'s');

# ---- Uninstall ----------------------------------------------------------------------------

tandem('adopt', 'sub', '--options', 'enabled = off', @at);
($code, $out) = tandem('uninstall', @at, '--dry-run');
like($out, qr/database "shop": SELECT tandem\.release\('sub'\);/, 'uninstall: would release it');
unlike($out, qr/ALTER SUBSCRIPTION sub ENABLE/, '... and leave one that was paused alone');
$node->query(q{SELECT tandem.adopt('sub', 'enabled = on')}, 'shop');
($code, $out) = tandem('uninstall', @at, '--dry-run');
like($out, qr/release\('sub'\);\n.*database "shop": ALTER SUBSCRIPTION sub ENABLE;\n.*DROP EXTENSION/s,
	'... and let the server go on with one that was running');
$node->query(q{SELECT tandem.adopt('sub', 'enabled = off')}, 'shop');
($code, $out, $err) = tandem('uninstall', @at, '--yes');
is($code, 0, 'uninstall works') or diag "$out$err";
is($node->query('SELECT count(*) FROM pg_shseclabel'), '0', '... no label is left');
is($node->query('SELECT subname FROM pg_subscription'), 'sub', '... but the subscription');
is($node->query(q{SELECT count(*) FROM pg_extension WHERE extname = 'pg_tandem'}, 'shop'), '0', '... and no extension');

$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', undef);
$node->restart;
$publisher->query('INSERT INTO t VALUES (1)');
$node->query('ALTER SUBSCRIPTION sub ENABLE', 'shop');
poll_for(sub { $node->query('SELECT count(*) FROM t', 'shop') == 1 }, 'the server to go on with the subscription');
ok(1, 'without the library the server goes on with the subscription');

done_testing();
