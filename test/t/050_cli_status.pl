# "tandem status" and "tandem slots": what they print, and the exit codes that
# scripts rely on.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

# ---- Usage: no server needed --------------------------------------------------

my ($code, $out, $err) = tandem('--version');
is($code, 0, '--version exits with 0');
like($out, qr/^tandem \(pg_tandem\) \d+\.\d+/, '--version prints it');
($code, $out) = tandem('--help');
is($code, 0, '--help exits with 0');
like($out, qr/^  $_ /m, "--help names $_") for qw(status doctor slots uninstall);
for my $command (qw(status doctor slots uninstall))
{
	($code, $out, $err) = tandem($command, '--help');
	is($code, 0, "$command --help exits with 0");
	like($out, qr/^Usage:\n  tandem $command /m, "$command --help shows how to call it");
	is((grep { length > 100 } split /\n/, $out), 0, "$command --help fits 100 columns");
}
for my $wrong (
	[], ['frobnicate'], [ 'status', '--frobnicate' ], [ 'status', 'extra' ],
	[ 'status', '--ready' ], [ 'doctor', '--watch', '1' ], [ 'status', '--watch', 'x' ],
	[ 'status', '--watch', '-1' ], [ 'status', '--watch', 'nan' ], [ 'status', '--watch' ],
	[ 'status', '--node', 'no such=' ], [ 'status', '-w', '-W' ], [ 'slots', '--yes' ],
	[ 'status', '--timeout', '0' ])
{
	($code, $out, $err) = tandem(@$wrong);
	is($code, 2, "wrong usage exits with 2: tandem @$wrong");
	is($out, '', 'and prints nothing on standard output');
	like($err, qr/\bhint: /, 'but a hint on standard error');
}
($code, $out, $err) = tandem("\e[31mred\n");
is($code, 2, 'an odd command is wrong usage');
unlike($err, qr/\e/, 'and is not sent to the terminal as it is');

# ---- A primary and its standby ------------------------------------------------

my $primary = Tandem::Node->new_primary('primary');
my $standby = $primary->new_standby('standby');
my @all = (at($primary), also($standby));

$primary->query(q{SELECT pg_create_logical_replication_slot('app', 'test_decoding')});
$standby->wait_slot_ready('app');

my $object;
poll_for(sub { ($code, $object) = tandem_json('status', @all); $code == 0 }, 'a healthy topology');
is($object->{healthy}, JSON::PP::true, 'status: healthy');
is($object->{exit_code}, 0, 'status: exit code 0');
is(scalar @{ $object->{nodes} }, 2, 'status: two nodes');
my %node = map { $_->{node} => $_ } @{ $object->{nodes} };
is($node{ label($primary) }{role}, 'primary', 'status: the primary is one');
is($node{ label($standby) }{role}, 'standby', 'status: the standby is one');
is($node{ label($standby) }{state}, 'streaming', 'status: the standby streams');
is($node{ label($standby) }{failover_ready}, JSON::PP::true, 'status: a failover would lose nothing');
is($node{ label($standby) }{slots_ready}, 1, 'status: one slot is ready there');
is($object->{standbys}[0]{slot}, 'standby', 'status: the primary knows its standby');
like($object->{standbys}[0]{hold_xmin} // '', qr/^\d+$/, 'status: and holds catalog rows for it');

($code, $out, $err) = tandem('status', @all);
is($code, 0, 'status: exit code 0 for people too');
is($err, '', 'status: nothing on standard error');
like($out, qr/^healthy: 2 nodes/m, 'status: says so');
unlike($out, qr/\e/, 'status: no colours unless on a terminal');

# A standby tells where its primary is; named twice it counts once.
($code, $object) = tandem_json('status', at($standby));
is(scalar @{ $object->{nodes} }, 2, 'status: the primary is found from the standby');
($code, $object) = tandem_json('status', at($standby), also($standby, $primary, $primary));
is(scalar @{ $object->{nodes} }, 2, 'status: a node named twice counts once');
($code, $object) = tandem_json('status', at($standby), '--no-discover');
is(scalar @{ $object->{nodes} }, 1, 'status: not with --no-discover');

# Connection conventions
{
	local $ENV{TANDEM_TEST_USER} = 'nobody_like_this';
	($code) = tandem('status', @all);
	is($code, 3, 'status: PGUSER counts');
	($code) = tandem('status', @all, '-U', 'postgres');
	is($code, 0, 'status: -U wins over it, for each node');
}
($code) = tandem('status', '-d', $primary->connstr('postgres') . ' user=postgres', also($standby));
is($code, 0, 'status: -d takes a connection string');

# ---- slots --------------------------------------------------------------------

($code, $out) = tandem('slots', @all);
is($code, 0, 'slots: exit code 0');
like($out, qr/^\S+ +app +postgres +ready /m, 'slots: a row of the table');
($code, $object) = tandem_json('slots', @all);
my ($here) = grep { $_->{node} eq label($standby) } @{ $object->{nodes} };
is($here->{slots}[0]{slot}, 'app', 'slots --json: the slot');
is($here->{slots}[0]{state}, 'ready', 'slots --json: is ready');
like($here->{slots}[0]{confirmed_lsn}, qr{^[0-9A-F]+/[0-9A-F]+$}, 'slots --json: its position');

($code, $out) = tandem('slots', '--ready', at($standby));
is($code, 0, 'slots --ready: 0 if a failover now would lose nothing');
like($out, qr/: ready$/m, 'slots --ready: says so');
($code, $out) = tandem('slots', '--ready', at($primary), '--no-discover');
is($code, 1, 'slots --ready: 1 when a primary is asked');
like($out, qr/not ready\n +this server is a primary/, 'slots --ready: and why');

# A slot that the standby doesn't know yet: failover_ready() can't know, the
# command asks the primary too.
$standby->set('tandem.sync_slots' => 'off');
$primary->query(q{SELECT pg_create_logical_replication_slot('newer', 'test_decoding')});
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 't',
	'the standby has not heard of the new slot');
($code, $object) = tandem_json('slots', '--ready', at($standby));
is($code, 1, 'slots --ready: 1 if the primary has a slot the standby does not know');
like($object->{nodes}[0]{reason}, qr/"newer"/, 'slots --ready: names it');
$standby->set('tandem.sync_slots' => 'on');
$standby->wait_slot_ready('newer');
($code) = tandem('slots', '--ready', at($standby));
is($code, 0, 'slots --ready: 0 again');

# ---- Odd names ------------------------------------------------------------------

my $odd = qq{we"ird\n\e[31m\x{e4}\x{202e}\x{65e5}'\\};
my $odd_sql = $odd;
utf8::encode($odd_sql);
my $quoted = $odd_sql =~ s/"/""/gr;
$primary->query(qq{CREATE DATABASE "$quoted"});
$primary->safe_psql($odd_sql, q{SELECT pg_create_logical_replication_slot('odd', 'test_decoding')});
$standby->wait_slot_ready('odd');
for my $lang ('C.UTF-8', 'C')
{
	local $ENV{LC_ALL} = $lang;
	($code, $out, $err) = tandem('slots', @all);
	is($code, 0, "odd names: slots works ($lang)");
	unlike($out, qr/\e/, "odd names: no escape sequence reaches the terminal ($lang)");
	like($out, qr/^\S+ +odd +we"ird\\n\\x1b/m, "odd names: shown on one line ($lang)");
	unlike($out, qr/\xe2\x80\xae/, "odd names: nothing turns the writing direction ($lang)");
	unlike($out, qr/[\x80-\xff]/, 'odd names: nothing but ASCII in the C locale') if $lang eq 'C';
}
($code, $object) = tandem_json('slots', @all);
my ($row) = grep { $_->{slot} eq 'odd' } @{ $object->{nodes}[0]{slots} };
is($row->{database}, $odd, 'odd names: JSON has them exactly');
$primary->query(q{SELECT pg_drop_replication_slot('odd')});

# ---- Something is wrong -----------------------------------------------------------

$primary->set('tandem.standby_slots' => 'ghost');
($code, $out) = tandem('status', @all);
is($code, 1, 'status: 1 if something needs attention');
like($out, qr/^needs attention: /m, 'status: says so');
like($out, qr/"ghost"/, 'status: and what');
$primary->set('tandem.standby_slots' => undef);

# --watch: until it is interrupted; one object a line
{
	my $lines = '';
	my $run = IPC::Run::start([ 'tandem', 'status', '-U', 'postgres', @all, '--json', '--watch', '0.2' ],
		'<', \undef, '>', \$lines);
	poll_for(sub { $run->pump_nb; ($lines =~ tr/\n//) >= 3 }, 'three screens');
	$run->signal('INT');
	$run->finish;
	my @objects = map { JSON::PP->new->utf8->decode($_) } split /\n/, $lines;
	cmp_ok(scalar @objects, '>=', 3, '--watch --json: one object a line');
	is($? & 127, 0, '--watch: Ctrl-C ends it in an orderly way');
	is($? >> 8, $objects[-1]{exit_code}, '--watch: exits with the code of the last screen');
}

# ---- Nodes that don't answer --------------------------------------------------------

$standby->stall_all;
my $began = time;
($code, $out) = tandem('status', '--timeout', '2', @all);
is($code, 3, 'status: 3 if a node hangs');
cmp_ok(time - $began, '<', 20, 'status: and does not hang with it');
like($out, qr/unreachable/, 'status: says which');
$standby->resume_server;

$standby->stop;
($code, $object) = tandem_json('status', @all);
is($code, 3, 'status: 3 if a node is down');
($row) = grep { $_->{node} eq label($standby) } @{ $object->{nodes} };
is($row->{state}, 'unreachable', 'status: says which');
ok($row->{error}, 'status: and why');
($code, $out, $err) = tandem('slots', @all);
is($code, 1, 'slots: 1 if a node could not be asked');
like($err, qr/error: .*\n.*hint: /, 'slots: the cause and a hint on standard error');
($code) = tandem('slots', '--ready', at($standby));
is($code, 1, 'slots --ready: 1 if the standby is down');
$standby->start;

# The primary dies: that is when one asks, and it is no reason for a no.
poll_for(sub { (tandem('slots', '--ready', at($standby)))[0] == 0 }, 'the standby to be ready');
$primary->stop('immediate');
($code, $out) = tandem('slots', '--ready', at($standby));
is($code, 0, 'slots --ready: 0 also when the primary is gone');
($code) = tandem('status', at($standby));
is($code, 3, 'status: 3 then, found from the standby');

done_testing();
