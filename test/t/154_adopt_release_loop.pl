# A subscription is adopted and released again and again under load, at random
# moments: while tables are being copied or copied again, with and without force,
# while our processes or the whole subscriber are killed; and the server's own
# worker runs in between.  Whoever goes on finds a state that it can go on from:
# at the end each row is there exactly once, and nothing of ours is left.
#
# A release that leaves what the server couldn't go on with shows as a duplicate
# key, as rows that differ, or as a row twice in "log", which has no key.
#
# TANDEM_ROUNDS is the number of times, TANDEM_SEED repeats a run's choices.

use strict;
use warnings;

use IPC::Run ();
use List::Util qw(shuffle);
use Tandem::Test;
use Tandem::Waves;
use Test::More;
use Time::HiRes;

my $rounds = $ENV{TANDEM_ROUNDS} // 4;
my $seed = $ENV{TANDEM_SEED} // int(Time::HiRes::time() * 1000) % 1000000;
srand($seed);
note "TANDEM_SEED=$seed TANDEM_ROUNDS=$rounds";

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "restart_after_crash = on\nwal_retrieve_retry_interval = 100ms\ntandem.sync_workers = 2\n");
$subscriber->expect_crash;

my @keyed = map { "t$_" } 1 .. 8;
my @tables = (@keyed, 'log', 'slow');
for my $node ($publisher, $subscriber)
{
	$node->query(join('', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0, filler text);" } @keyed, 'slow') . 'CREATE TABLE log (x int)');
}
$publisher->query(join '', map { "INSERT INTO $_ SELECT g, 0, repeat('x', 100) FROM generate_series(1, 5000) g;" } @keyed);
$publisher->query(q{INSERT INTO slow SELECT g, 0, repeat('x', 500) FROM generate_series(1, 5000) g});
$publisher->publish('pub', @tables);

my $script = "BEGIN;\n\\set r random(1, 1000)\nINSERT INTO log VALUES (:r);\n" . join('', map {
	"\\set i random(1, 6000)\nINSERT INTO $_ AS o VALUES (:i, 1) ON CONFLICT (id) DO UPDATE SET n = o.n + 1;\n\\set d random(1, 6000)\nDELETE FROM $_ WHERE id = :d;\n" }
	@keyed[ 0 .. 3 ], 'slow') . "END;\n";

sub sums
{
	my ($node) = @_;
	return $node->query(join(' UNION ALL ', map { "SELECT '$_', count(*), sum(hashtextextended(t::text, 0)::numeric) FROM $_ t" } @tables) . ' ORDER BY 1');
}

# A moment that has nothing to do with what goes on.
sub random_moment
{
	my ($most) = @_;
	my $until = Time::HiRes::time() + rand($most);
	poll_for(sub { Time::HiRes::time() > $until }, 'a random moment');
	return;
}

my %kill = (
	nothing => sub { },
	(map { my $pattern = qr/tandem $_/; ($_ => sub { my ($pid) = shuffle $subscriber->pids_of($pattern); kill 'TERM', $pid if $pid }) } qw(apply wave copy)),
	'a worker, by signal 9' => sub { my ($pid) = shuffle $subscriber->pids_of(qr/tandem (apply|wave|copy)/); kill 'KILL', $pid if $pid },
	subscriber => sub { $subscriber->kill9_all; $subscriber->start });

sub adopted
{
	return $subscriber->query(q{SELECT count(*) FROM tandem.subscriptions}) eq '1';
}

# Releases in a session of its own, while somebody is killed.
sub release
{
	my ($force, $victim) = @_;
	my $output = '';
	{
		local %ENV = $subscriber->_get_env;
		my $run = IPC::Run::start([ $subscriber->installed_command('psql'), '-XAtq', '-d', 'postgres',
				'-c', "SELECT tandem.release('sub', $force)" ], '<', \undef, '>', \$output, '2>&1');
		random_moment(0.3);
		$kill{$victim}->();
		$run->finish;
	}
	# if it was killed itself
	poll_for(sub { adopted() ? do { $subscriber->query("SELECT tandem.release('sub', $force)"); !adopted() } : 1 },
		"the release; the first try said: $output");
	return;
}

my $waves = Tandem::Waves->new($publisher, $subscriber);
my $conninfo = $waves->conninfo;
my $load = $publisher->start_load(clients => 2, script => $script);
$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");

for my $round (1 .. $rounds)
{
	my $force = rand() < 0.5 ? 'true' : 'false';
	my $half = $round % 2 == 1;         # a table is half copied when it is released
	my $victim = (sort keys %kill)[ int(rand(keys %kill)) ];
	my $by_core = rand() < 0.6 || $round == $rounds;

	# a plain release waits for what is copied halfway: not for one that waits for us
	$force = 'true' if $half;
	note "round $round: force $force, killed: $victim, half copied: " . ($half ? 'yes' : 'no') . ', the server in between: ' . ($by_core ? 'yes' : 'no');
	$waves->pause('slow') if $half;
	$subscriber->query(q{SELECT tandem.adopt('sub')});
	poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'streaming' }, 'our worker');
	if ($half)
	{
		$subscriber->query(q{SELECT tandem.resync('sub', 'slow')});
		$waves->wait_paused;
	}
	$waves->resync((shuffle @keyed, 'log')[ 0 .. 3 ]) if rand() < 0.7;
	random_moment(1.5);
	release($force, $victim);
	$waves->resume if $half;
	$subscriber->query('DROP TRIGGER IF EXISTS wait_for_test ON slow');

	is($subscriber->query(q{SELECT string_agg(DISTINCT srsubstate::text, '') FROM pg_subscription_rel WHERE srsubstate NOT IN ('i', 'r')}), '',
		"round $round: released, and the server knows what to do with each table");
	next unless $by_core;
	$subscriber->query('ALTER SUBSCRIPTION sub ENABLE');
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'}) eq '0' }, 'the server to have copied all tables', 90);
	random_moment(0.5);
	last if $round == $rounds;
	$subscriber->query('ALTER SUBSCRIPTION sub DISABLE');
	poll_for(sub { $publisher->slot_value('sub', 'active') eq 'f' }, 'the slot to be free');
}

$publisher->stop_load($load);
$subscriber->wait_subscription('sub', $publisher);
is(sums($subscriber), sums($publisher), 'all tables are equal');
is($publisher->query(q{SELECT string_agg(slot_name, ', ') FROM pg_replication_slots}), 'sub', 'one slot is left');
is($subscriber->query(q{SELECT count(*) FROM pg_replication_origin}), '1', 'one origin is left');
is($subscriber->query(q{SELECT count(*) FROM tandem.tables}), '0', 'nothing is left in tandem.tables');

done_testing();
