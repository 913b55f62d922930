# A large table is read by several sessions on the publisher, each a range of its
# pages, and all is written in one transaction: no row lost or doubled, in binary
# and text format, with a filter, columns, TOAST, empty pages, triggers, and while it
# changes.  Nobody rewrites the table between two ranges.  Without room for more
# sessions it is read by fewer.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "autovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => q{
tandem.sync_workers = 4
tandem.debug_range_size = 64kB
log_min_messages = debug1
});
my $waves = Tandem::Waves->new($publisher, $subscriber);

# How many sessions read a table, by the log.
sub readers
{
	my ($table, $mark) = @_;
	my ($n) = $subscriber->log_since($mark) =~ /table \S*\b$table is read by (\d+) sessions, about/;
	return $n // 1;
}

my %columns = (
	binary_t => 'id int PRIMARY KEY, v text',
	text_t => 'id int PRIMARY KEY, v text, m mood',
	filtered => 'id int PRIMARY KEY, v text, w int',
	listed => 'id int PRIMARY KEY, v text, secret text',
	toasted => 'id int PRIMARY KEY, v text',
	gaps => 'id int, v text',
	triggered => 'id int PRIMARY KEY, v text',
	small => 'id int PRIMARY KEY, v text');
for my $node ($publisher, $subscriber)
{
	$node->query(q{CREATE TYPE mood AS ENUM ('sad', 'ok')});
	$node->query("CREATE TABLE $_ ($columns{$_})") for sort keys %columns;
	$node->query('ALTER TABLE toasted ALTER v SET STORAGE EXTERNAL');
}
$subscriber->query('ALTER TABLE listed DROP secret');
$publisher->query(q{
	INSERT INTO binary_t SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 5000) g;
	INSERT INTO text_t SELECT g, repeat(E'a\\b\t' || g, 20), 'ok' FROM generate_series(1, 5000) g;
	INSERT INTO filtered SELECT g, repeat('f', 150), g % 7 FROM generate_series(1, 5000) g;
	INSERT INTO listed SELECT g, repeat('l', 150), 'hidden' FROM generate_series(1, 5000) g;
	INSERT INTO toasted SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 5000) g;
	INSERT INTO gaps SELECT g, repeat('g', 150) FROM generate_series(1, 5000) g;
	DELETE FROM gaps WHERE id BETWEEN 500 AND 4900;
	INSERT INTO triggered SELECT g, repeat('t', 150) FROM generate_series(1, 5000) g;
	INSERT INTO small SELECT g, 'x' FROM generate_series(1, 10) g;
	ALTER TABLE gaps REPLICA IDENTITY FULL});
# pages without any row, the first and the last among them
$publisher->query('DELETE FROM gaps WHERE id < 200');
$publisher->query('VACUUM (TRUNCATE off) gaps');
$publisher->query(q{CREATE PUBLICATION pub FOR TABLE binary_t, text_t, filtered WHERE (w < 3), listed (id, v), toasted, gaps, triggered, small});

# ---- Each alone in a wave, so that three workers are idle --------------------------------

my %what = (
	binary_t => 'binary format', text_t => 'text format', filtered => 'a row filter', listed => 'a column list',
	toasted => 'a TOAST table', gaps => 'pages without rows', triggered => "COPY's own way, with a trigger");
my %rows = (filtered => 'SELECT * FROM filtered WHERE w < 3', listed => 'SELECT id, v FROM listed');
$subscriber->query(q{
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
	CREATE TRIGGER nothing BEFORE INSERT ON triggered FOR EACH ROW EXECUTE FUNCTION nothing();
	ALTER TABLE triggered ENABLE ALWAYS TRIGGER nothing});
$waves->subscribe;
$waves->wait_ready;
for my $table (sort keys %what)
{
	my $mark = $subscriber->log_mark;
	$waves->resync($table);
	$waves->wait_ready;
	is(readers($table, $mark), 4, "$what{$table}: four sessions");
	is_same_table($publisher, $subscriber, $rows{$table} // "SELECT * FROM $table");
}
my $mark = $subscriber->log_mark;
$waves->resync('small');
$waves->wait_ready;
is(readers('small', $mark), 1, 'a small table has one');

# ---- While it changes, and somebody wants to rewrite it ------------------------------------

$waves->pause('triggered');
$waves->resync('triggered');
$waves->wait_paused;
is($publisher->query(q{SELECT count(*) FROM pg_locks WHERE relation = 'triggered'::regclass AND mode = 'AccessShareLock'}),
	'4', 'each session has locked the table while it is read');
like($publisher->query_error(q{SET lock_timeout = '100ms'; VACUUM FULL triggered}), qr/lock timeout/,
	'so nobody can rewrite it between two ranges');
$publisher->query(q{
	UPDATE triggered SET v = 'changed' WHERE id % 3 = 0;
	DELETE FROM triggered WHERE id % 5 = 0;
	INSERT INTO triggered SELECT g, 'new' FROM generate_series(5001, 6000) g});
$waves->resume;
$waves->wait_ready;
$waves->wait_applied;
is_same_table($publisher, $subscriber, 'SELECT * FROM triggered');
is($publisher->query(q{SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE 'pg_tandem copy%'}), '0',
	'no session is left');

# one of the sessions ends: the copy begins again
$waves->pause('triggered');
$waves->resync('triggered');
$waves->wait_paused;
$publisher->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_replication
	WHERE application_name LIKE 'pg_tandem copy%' ORDER BY backend_start DESC LIMIT 1});
$waves->resume;
$waves->wait_ready(retry => 1);
is_same_table($publisher, $subscriber, 'SELECT * FROM triggered');

# ---- No room for more -------------------------------------------------------------------------

$publisher->set(max_wal_senders => 5);
$publisher->restart;    # the stream, two of the wave, its worker, and one more
$waves->wait_applied;
$mark = $subscriber->log_mark;
$waves->resync('binary_t');
$waves->wait_ready(retry => 1);
is(readers('binary_t', $mark), 2, 'with room for one session more two read it');
is_same_table($publisher, $subscriber, 'SELECT * FROM binary_t');

done_testing();
