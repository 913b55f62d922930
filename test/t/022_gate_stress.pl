# The gate under load: two subscriptions and two pg_recvlogical, pgbench with
# short and long transactions and rollbacks, and a standby whose walreceiver is
# stopped and resumed at random.  Never may a consumer have confirmed more than
# the standby has flushed; at the end everything has arrived, once.
#
# Without the gate the first look at a stalled standby finds a consumer ahead.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $rounds = $ENV{TANDEM_STRESS_ROUNDS} // 12;
my $seed = $ENV{TANDEM_STRESS_SEED} // time;
srand $seed;
note("TANDEM_STRESS_SEED=$seed");

my $primary = Tandem::Node->new_primary('primary', conf => q{
tandem.standby_slots = 'standby'
logical_decoding_work_mem = 64kB
log_statement = none
});
my $standby = $primary->new_standby('standby');
my $subscriber = Tandem::Node->new_subscriber('subscriber');

for my $node ($primary, $subscriber)
{
	$node->query('CREATE TABLE story (id bigint PRIMARY KEY, line text)');
	$node->query('CREATE TABLE letters (id bigint PRIMARY KEY, line text)');
}
$primary->query('CREATE SEQUENCE ids');
$primary->publish('pub1', 'story');
$primary->publish('pub2', 'letters');
$subscriber->subscribe('sub1', $primary, 'pub1');
$subscriber->subscribe('sub2', $primary, 'pub2', 'streaming = on');

my %recv;
for my $slot (qw(recv1 recv2))
{
	$primary->query("SELECT pg_create_logical_replication_slot('$slot', 'test_decoding')");
	my $file = $primary->basedir . "/$slot.out";
	my $output = '';
	$recv{$slot} = {
		file => $file,
		run => IPC::Run::start(
			[ $primary->installed_command('pg_recvlogical'), '-d', $primary->connstr('postgres'),
				'--slot', $slot, '--start', '-f', $file, '-F', '1', '-s', '1', '-o', 'include-xids=0' ],
			'>', \$output, '2>&1')
	};
}
my @consumers = qw(sub1 sub2 recv1 recv2);
poll_for(sub { $primary->query('SELECT count(*) FROM pg_replication_slots WHERE active') eq '5' },
	'all consumers to be connected');

my $short = $primary->start_load(clients => 3, script => q{
INSERT INTO story VALUES (nextval('ids'), 'short');
INSERT INTO letters VALUES (nextval('ids'), 'short');
});
my $long = $primary->start_load(clients => 1, script => q{
BEGIN;
INSERT INTO letters SELECT nextval('ids'), repeat('long', 50) FROM generate_series(1, 2000);
INSERT INTO story SELECT nextval('ids'), repeat('long', 50) FROM generate_series(1, 200);
COMMIT;
BEGIN;
INSERT INTO letters SELECT nextval('ids'), 'never' FROM generate_series(1, 1000);
ROLLBACK;
});

# The confirmed positions are read before the standby's, which does not go
# back here, so a consumer found ahead was ahead.
my ($looks, $ahead, $moved) = (0, 0, 0);
my $consumer_list = join(',', map { "'$_'" } @consumers);
sub look
{
	my $confirmed = $primary->query(
		"SELECT max(confirmed_flush_lsn) FROM pg_replication_slots WHERE slot_name IN ($consumer_list)");
	$looks++;
	return if $primary->query("SELECT '$confirmed'::pg_lsn <= restart_lsn
		FROM pg_replication_slots WHERE slot_name = 'standby'") eq 't';
	$ahead++;
	diag("a consumer has confirmed $confirmed, the standby has less");
	return;
}

for my $round (1 .. $rounds)
{
	my $flushed = $primary->slot_value('standby', 'restart_lsn');
	my $receiver = $standby->pid_of(qr/walreceiver/);
	stall($receiver);
	my $until = Time::HiRes::time() + rand(1.2);
	do { look() } while Time::HiRes::time() < $until;
	resume($receiver);
	$until = Time::HiRes::time() + rand(0.8);
	do { look() } while Time::HiRes::time() < $until;
	poll_for(sub { $primary->slot_value('standby', 'restart_lsn') ne $flushed }, 'the standby to go on');
	look();
	$moved++;
}
unlike($primary->stop_load($_), qr/error|abort|fatal/i, 'the load ran to its end') for $short, $long;

is($ahead, 0, "no consumer was ahead of the standby in $looks looks");
is($moved, $rounds, "the standby was stopped and resumed $rounds times");

$subscriber->wait_subscription($_, $primary) for qw(sub1 sub2);
is_same_table($primary, $subscriber, $_) for qw(story letters);

my $rows = $primary->query('SELECT (SELECT count(*) FROM story) + (SELECT count(*) FROM letters)');
my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
cmp_ok($rows, '>', 2000, "there was load: $rows rows");
for my $slot (qw(recv1 recv2))
{
	my $count = 0;
	poll_for(
		sub {
			$count = () = slurp_file($recv{$slot}{file}) =~ /: INSERT: id\[bigint\]:\d+/g;
			return $count >= $rows;
		},
		"$slot to get all rows");
	my %seen;
	$seen{$_}++ for slurp_file($recv{$slot}{file}) =~ /: INSERT: id\[bigint\]:(\d+)/g;
	is(scalar(keys %seen), $rows, "$slot got every row");
	is(scalar(grep { $_ > 1 } values %seen), 0, 'and none twice');
	unlike(slurp_file($recv{$slot}{file}), qr/never/, 'and none that was rolled back');
	$recv{$slot}{run}->signal('INT');
	$recv{$slot}{run}->finish;
}

is($primary->query(q{SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE 'sub_'}), '2',
	'the subscriptions are still connected');

$subscriber->stop;
my $start = Time::HiRes::time();
$primary->stop('fast');
cmp_ok(Time::HiRes::time() - $start, '<', 20, 'a fast shutdown ends');

done_testing();
