# A table that somebody has locked, on the publisher or here, waits alone; all
# others are copied and get their changes.  Without that, the leader's one
# question about all tables of a wave would wait for the lock, and so would they.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "tandem.sync_workers = 1\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);
my @plain = qw(free locked awaited late here);
my @tables = (@plain, qw(empty toasted slow filtered listed either));

for my $node ($publisher, $subscriber)
{
	$node->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, v int, t text);" } @tables);
	$node->query(q{
		CREATE TABLE parts (id int PRIMARY KEY, v int, t text) PARTITION BY RANGE (id);
		CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (1000);
		CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (1000) TO (100000);
		CREATE TABLE root (id int PRIMARY KEY, v int, t text) PARTITION BY RANGE (id);
		CREATE TABLE root_low PARTITION OF root FOR VALUES FROM (0) TO (1000);
		CREATE TABLE root_high PARTITION OF root FOR VALUES FROM (1000) TO (100000);
		CREATE SCHEMA whole; CREATE TABLE whole.twice (id int PRIMARY KEY, v int, t text)});
}
$publisher->query("INSERT INTO $_ SELECT g, g, 'x' FROM generate_series(1, 2000) g")
	for grep({ $_ !~ /empty|slow/ } @tables), qw(parts root whole.twice);
$publisher->query(q{INSERT INTO slow SELECT g, g, repeat('x', 100) FROM generate_series(1, 20000) g});

# The first wave after a start of the apply worker waits for all transactions
# that are open there, so that one is over when locks are taken.
$publisher->query('CREATE PUBLICATION pub FOR TABLE free');
$publisher->query('CREATE PUBLICATION roots WITH (publish_via_partition_root); CREATE PUBLICATION whole');
$waves->{publication} = 'pub, roots, whole';
$waves->subscribe;
$waves->wait_ready;
# publications that agree, and that don't, on what they send of a table
$publisher->query($_) for
	'ALTER PUBLICATION pub SET TABLE ' . join(', ', @plain, qw(empty toasted slow parts)) . ', filtered WHERE (v > 1500), listed (id, v), either WHERE (v > 1500), whole.twice WHERE (v > 1500)',
	q{ALTER PUBLICATION roots ADD TABLE root WHERE (v > 1500), either WHERE (v < 100)},
	'ALTER PUBLICATION whole ADD TABLES IN SCHEMA whole';

# ---- Locked on the publisher when the wave is planned -----------------------------------------

my @locks = map { $waves->session($publisher, "BEGIN; LOCK TABLE $_") } qw(locked parts_low root_low);
# one that only waits for its lock holds up whoever comes after it
my $reader = $waves->session($publisher, 'BEGIN; SELECT count(*) FROM awaited');
my $out = q{};
my $waiting = IPC::Run::start([ $publisher->installed_command('psql'), '-XAtq', '-d', $publisher->connstr('postgres'), '-c', 'BEGIN; LOCK TABLE awaited' ],
	'<', \undef, '>', \$out, '2>&1');
poll_for(sub { $publisher->query(q{SELECT count(*) FROM pg_locks WHERE relation = 'awaited'::regclass AND NOT granted}) eq '1' }, 'the lock to be waited for');
my $mark = $publisher->log_mark;
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
$waves->wait_state($_, 'ready') for qw(free empty toasted slow filtered listed either late here parts_high twice);
for my $table (qw(locked parts_low root awaited))
{
	$waves->wait_state($table, q{failed: the publisher's table is locked ACCESS EXCLUSIVE});
}
is($subscriber->query(q{SELECT string_agg(name, ' ' ORDER BY name) FROM tandem.tables
	WHERE state = 'failed' AND next_retry IS NOT NULL AND attempts > 0}), 'awaited locked parts_low root', 'only these wait, each with the time of its next try');
unlike($publisher->log_since($mark), qr/canceling statement due to lock timeout/, 'nobody waited for a lock there');

$publisher->query(q{INSERT INTO free VALUES (-1, 1, 'while others are locked')});
poll_for(sub { $subscriber->query('SELECT count(*) FROM free WHERE id = -1') eq '1' }, 'a change of another table');

is($subscriber->query('SELECT count(*), min(v) FROM filtered'), '500|1501', 'a row filter');
is($subscriber->query('SELECT count(*), count(t), count(v) FROM listed'), '2000|0|2000', 'a column list');
is($subscriber->query('SELECT count(*) FROM either'), '599', 'what one of two filters lets through');
is($subscriber->query('SELECT count(*) FROM whole.twice'), '2000', 'a filter is void if another publication has the whole schema');

$waves->end_session($_) for @locks, $reader;
$waiting->finish;
$waves->wait_ready(retry => 1);
is_same_table($publisher, $subscriber, $_) for qw(free locked awaited parts slow);
is($subscriber->query('SELECT count(*), min(v) FROM root'), '500|1501', 'a root with its filter');

# ---- Locked in mid-wave -----------------------------------------------------------------------

$subscriber->query('DROP SUBSCRIPTION sub');
$subscriber->query('TRUNCATE ' . join ', ', @tables, qw(parts root whole.twice));
$waves->pause('slow');
$waves->subscribe;
$waves->wait_paused;
my $lock = $waves->session($publisher, 'BEGIN; LOCK TABLE late');
my $here = $waves->session($subscriber, 'BEGIN; LOCK TABLE here');
$waves->resume;
$waves->wait_state($_, qr/^failed: .*lock timeout/) for qw(late here);
$waves->wait_state($_, 'ready') for qw(slow free locked awaited parts_low parts_high root filtered);
$publisher->query(q{INSERT INTO free VALUES (-2, 1, 'while others are locked')});
poll_for(sub { $subscriber->query('SELECT count(*) FROM free WHERE id = -2') eq '1' }, 'a change of another table');
$waves->end_session($_) for $lock, $here;
$waves->wait_ready(retry => 1);
is_same_table($publisher, $subscriber, $_) for qw(free late here slow);

done_testing();
