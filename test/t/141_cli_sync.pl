# "tandem sync": what it prints of an initial copy, for people, for a log and for
# programs, and that --watch ends when every table is ready, or nothing is left
# that could get on by itself.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

delete $ENV{PGDATABASE};
$ENV{LC_ALL} = 'C';

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;

plan skip_all => 'tables are not copied by this version: there is no view tandem.tables'
  if $node->query(q{SELECT to_regclass('tandem.tables') IS NULL}) eq 't';

for my $server ($publisher, $node)
{
	$server->query('CREATE TABLE big (id int PRIMARY KEY, v text)');
	$server->query("CREATE TABLE small$_ (id int PRIMARY KEY)") for 1 .. 5;
	$server->query('CREATE TABLE twice (id int)');
}
$publisher->query(q{INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i});
$publisher->query("INSERT INTO small$_ SELECT generate_series(1, 10)") for 1 .. 5;
# fails here until the constraint goes
$publisher->query('INSERT INTO twice VALUES (1), (1)');
$node->query('ALTER TABLE twice ADD CONSTRAINT once UNIQUE (id)');
$publisher->publish('pub');
$node->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");

my ($code, $out, $err) = tandem('adopt', 'sub', at($node));
is($code, 0, 'adopted') or diag $err;

# ---- While one table fails -------------------------------------------------------

my $object;
poll_for(sub {
	($code, $object) = tandem_json('sync', at($node));
	$object->{subscriptions}[0]{ready} == 6 && $object->{subscriptions}[0]{failed} == 1;
}, 'all tables but one');
is($code, 1, 'not all ready: exit code 1');
is($object->{ready}, JSON::PP::false, '... and so says the object');
my ($copy) = @{ $object->{subscriptions} };
is($copy->{tables}, 7, 'all tables are counted');
is($copy->{unfinished}[0]{name}, 'twice', 'the failed one is named');
like($copy->{unfinished}[0]{last_error}, qr/once/, '... with its error');
cmp_ok($copy->{rows_done}, '>=', 100050, 'rows are counted');

($code, $out) = tandem('sync', 'sub', at($node));
is($code, 1, 'for people too');
like($out, qr/^Subscription "sub" of database "postgres": 6 of 7 tables ready, 0 running, 1 failed, 0 waiting$/m, 'the counts');
like($out, qr/^total +[#.]+ +\d+ /m, 'the total has a bar');
like($out, qr/^failed: public\.twice\n +.*once/m, 'what failed, and why');
unlike($out, qr/\e/, 'no colours unless on a terminal');
is((grep { length > 100 } split /\n/, $out), 0, 'in 100 columns');

my ($status, $report) = tandem_json('status', at($node));
my ($finding) = grep { $_->{code} eq 'table_failed' } @{ $report->{findings} };
is($finding->{severity}, 'warning', 'status knows of it too');

# ---- Until it is done --------------------------------------------------------------

# one table is being copied meanwhile, so that there is something to wait for
my $waves = Tandem::Waves->new($publisher, $node);
$waves->pause('small5');
# both in one wave
$node->query(q{SELECT tandem.resync('sub', 'small5'), tandem.resync('sub', 'twice')});
$waves->wait_paused;

my $log = '';
my $watch = IPC::Run::start([ 'tandem', 'sync', '-U', 'postgres', at($node), '--watch=0.2' ],
	'<', \undef, '>', \$log, '2>&1');
poll_for(sub { $watch->pump_nb; $log =~ /twice failed: .*once/ }, 'the failure in the log');
$node->query('ALTER TABLE twice DROP CONSTRAINT once');
$waves->resync('twice');
$waves->resume;
poll_for(sub { !$watch->pumpable || do { $watch->pump_nb; $log =~ /7 of 7 tables ready/ } }, 'the end', 120);
$watch->finish;
is($? >> 8, 0, '--watch ends with 0 when every table is ready');
like($log, qr/^\d\d:\d\d:\d\d public\.twice ready, 2 rows/m, 'a line when it became ready');
like($log, qr/7 of 7 tables ready, 0 running, 0 failed, 0 waiting[^\n]*\n\z/, 'and the total at the end');
unlike($log, qr/\e/, 'no escape sequences in a log');

($code, $object) = tandem_json('sync', '--watch=1', at($node));
is($code, 0, '--watch of what is ready ends at once');
is($object->{ready}, JSON::PP::true, '... and says so');
is_same_table($publisher, $node, $_) for 'big', 'small1', 'small5', 'twice';

# ---- Until nothing gets on by itself --------------------------------------------------

$node->query('TRUNCATE twice; ALTER TABLE twice ADD CONSTRAINT once UNIQUE (id)');
$waves->resync('twice');
($code, $out, $err) = tandem('sync', 'sub', '--watch=0.2', at($node));
is($code, 1, '--watch ends with 1 when all others are ready and one has failed twice');
like($out, qr/public\.twice failed: [^\n]*once[^\n]* \(attempt 2/, '... it names it');
like($out, qr/6 of 7 tables ready, 0 running, 1 failed, 0 waiting/, '... and says what is ready');

# ---- A table that is yet to be copied can't be dropped ----------------------------------

like($node->query_error('DROP TABLE twice'), qr/cannot drop table "twice": subscription "sub" is yet to copy it\nHINT:  Wait until tandem\.tables shows it ready; or take it out/,
	'DROP TABLE says what helps');
$publisher->query('DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE big');
$node->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
is($node->query_error('DROP TABLE twice'), '', 'after doing that it works');
is($node->query_error('DROP TABLE big'), '', 'as for one that is ready');

done_testing();
