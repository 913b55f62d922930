# A dump of an adopted subscription means nothing elsewhere: on the server it is
# restored on no worker starts, whichever way it was dumped and restored; the view,
# status and doctor say why and what to do.  The server it was taken from goes on.
# Where the library isn't loaded the rest of the dump is restored all the same.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my $other = Tandem::Node->new_primary('other', library => 0, conf => q{shared_preload_libraries = 'pg_tandem'});
my $stock = Tandem::Node->new_primary('stock', library => 0);

for my $server ($publisher, $node)
{
	$server->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE late (id int PRIMARY KEY)');
}
$publisher->query(q{INSERT INTO t SELECT g, 'row' FROM generate_series(1, 50) g; INSERT INTO late SELECT generate_series(1, 5000)});
$publisher->publish('pub');
my $waves = Tandem::Waves->new($publisher, $node);
# one table, the first in the queue, isn't copied yet when the dump is taken
$waves->pause('late');
$waves->subscribe(options => 'workers = 2, node_id = east');
$waves->wait_state('t', 'ready');
$waves->wait_paused;

my $dump = $node->basedir . '/dump';
command_ok([ 'pg_dump', '-Fc', '-d', $node->connstr('postgres'), '-f', "$dump.custom" ], 'pg_dump in the middle of a copy');
command_ok([ 'pg_dump', '-Fp', '-d', $node->connstr('postgres'), '-f', "$dump.sql" ], '... as text');
like(slurp_file("$dump.sql"), qr/SECURITY LABEL FOR tandem ON SUBSCRIPTION sub/, 'the label is in it');
unlike(slurp_file("$dump.sql"), qr/REFRESH MATERIALIZED VIEW tandem|COPY tandem\./, 'our own tables are not');
$waves->resume;
$waves->wait_state('late', 'ready');

# ---- On another server with the library ---------------------------------------------

command_ok([ 'pg_restore', '--exit-on-error', '-d', $other->connstr('postgres'), "$dump.custom" ], 'pg_restore');
is($other->query('SELECT count(*) FROM t'), '50', 'the tables are there');
like($other->query(q{SELECT state || ': ' || reason || ' / ' || hint FROM tandem.subscriptions}), qr/^not adopted: .*(?:system|server).* \/ .*tandem\.adopt/s, 'the view says why it is not adopted, and what to do');
like($other->query('SELECT subenabled FROM pg_subscription'), qr/^f$/, 'the subscription is disabled');

# the launcher has looked at it: another one that it starts comes later
$other->query('CREATE DATABASE second');
$other->query('CREATE EXTENSION pg_tandem; CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE late (id int PRIMARY KEY)', 'second');
my $second = Tandem::Waves->new($publisher, $other, name => 'second', database => 'second');
$second->subscribe;
$second->wait_state('late', 'ready');
is($other->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'tandem apply%' AND datname = 'postgres'}), '0', 'no worker runs for it');
is($other->query('SELECT count(*) FROM tandem.tables'), '0', 'and its tables are not ours');

my ($exit, $object) = tandem_json('doctor', at($other));
my ($found) = grep { $_->{code} eq 'subscription_label' } @{ $object->{findings} };
is($found->{severity}, 'problem', "doctor: $found->{what}");
like($found->{hint}, qr/After restoring a dump: .*tandem\.release\('sub'\)/, '... and tells both ways out');
my ($code, $out, $err) = tandem('status', at($other));
like($out, qr/^sub +postgres .*not adopted/m, 'status too');

# where it came from nothing has changed
$publisher->query(q{INSERT INTO t VALUES (100, 'on')});
$node->wait_subscription('sub', $publisher);
is_same_table($publisher, $node, $_) for qw(t late);
is($other->query('SELECT count(*) FROM t'), '50', 'the restored one has nothing of it');

# ---- Both ways out ---------------------------------------------------------------------

# it doesn't take the slot by mistake: it is in use
like(($other->psql('postgres', q{SELECT tandem.adopt('sub')}))[2], qr/WARNING:  slot "sub" of subscription "sub" is in use on the publisher, by process \d+\nHINT:  If another server reads from it, as when this one was restored from a dump, release/,
	'adopting it warns that another server reads from the slot');
poll_for(sub { $other->query(q{SELECT last_error FROM tandem.subscriptions WHERE subscription = 'sub'}) =~ /is active for PID/ }, 'its worker to be refused');
$other->query(q{SELECT tandem.release('sub')});
$publisher->query(q{INSERT INTO t VALUES (101, 'on')});
$node->wait_subscription('sub', $publisher);
is_same_table($publisher, $node, 't', 'the owner of the slot was not disturbed');
is($other->query(q{SELECT count(*) FROM pg_shseclabel WHERE label LIKE '%name=sub'}), '0', 'released: no label is left');

# the other way: the first server is gone, and this one takes over
$other->query('ALTER SUBSCRIPTION sub SET (slot_name = NONE)');
$other->query('DROP SUBSCRIPTION sub; CREATE DATABASE third');
$node->stop;
command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $other->connstr('third'), '-f', "$dump.sql" ], 'the text, restored by psql');
poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');
my $adopting = ($other->psql('third', q{SELECT tandem.adopt('sub')}))[2];
like($adopting, qr/^\S+ WARNING:  subscription "sub" knows no table\nHINT:  As after restoring a dump: run ALTER SUBSCRIPTION sub REFRESH PUBLICATION; tables that it is to copy have to be empty\.$/,
	'adopted, now that nobody reads from the slot; a dump has no list of tables');
$other->query('TRUNCATE t, late', 'third');
$other->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION', 'third');
poll_for(sub { $other->query(q{SELECT count(*) FROM tandem.tables WHERE state = 'ready'}, 'third') eq '2' }, 'its tables');
$publisher->query(q{INSERT INTO t VALUES (102, 'there')});
$other->wait_subscription('sub', $publisher);
is($other->query($_, 'third'), $publisher->query($_), "it has what the publisher has: $_")
  for 'SELECT count(*), sum(id) FROM t', 'SELECT count(*), sum(id) FROM late';

# ---- Without the library ------------------------------------------------------------------

($code, $out) = (0, '');
IPC::Run::run([ 'pg_restore', '-d', $stock->connstr('postgres'), "$dump.custom" ], '>', \$out, '2>', \$err);
like($err, qr/security label provider "tandem" is not loaded/, 'without the library the label is refused');
is($stock->query('SELECT count(*) FROM t'), '50', '... and the tables are restored all the same');
is($stock->query('SELECT subenabled FROM pg_subscription'), 'f', '... the subscription, disabled, too');
command_ok([ 'pg_dump', '--no-security-labels', '-Fc', '-d', $other->connstr('third'), '-f', "$dump.unlabelled" ], 'or it is dumped without');
IPC::Run::run([ 'pg_restore', '-l', "$dump.unlabelled" ], '>', \$out);
unlike($out, qr/SECURITY LABEL/, '... then there is none');

done_testing();
