# Whoever asks waits until the collector has passed, but never for long: what it
# can't know it says.  And what was collected is there after any crash, once.

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Tandem::Test;
use Tandem::Tombstones;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_primary('node', conf => "track_commit_timestamp = on\ntandem.detection_timeout = 300ms\nautovacuum = off\n");
my $tombs = Tandem::Tombstones->new($publisher, $node);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text)') for $publisher, $node;
$publisher->query('CREATE PUBLICATION pub FOR TABLE t');
$tombs->subscribe;
$node->query('INSERT INTO t SELECT generate_series(1, 10000)');

sub verdict { return $tombs->verdict('t', qq({"id": $_[0]})) }

# a collector that hangs
$node->query('DELETE FROM t WHERE id = 1');
is(verdict(1), 'deleted deleted', 'found');
my $collector = $tombs->status('pid');
stall($collector);
$node->query('DELETE FROM t WHERE id = 2');
like(verdict(2), qr/^unknown .*detection_timeout/, 'not collected yet: unknown, not missing') for 1 .. 3;
is($tombs->status('expired'), 3, 'three waits ended');
like(verdict(2), qr/^unknown .*lags behind/, 'after that nobody waits');
is($tombs->status('expired'), 3, 'really not');
is($tombs->verdict('t', '{"id": 1}', wait => 0), 'deleted deleted', 'what is there can be seen without waiting');
like($tombs->verdict('t', '{"id": 2}', wait => 0), qr/^unknown deleted|^unknown .*may be missing/, 'what may not be there is unknown');
resume($collector);
poll_for(sub { verdict(2) eq 'deleted deleted' }, 'the verdict when the collector has caught up');
is(verdict(3), 'missing', 'and there is proof of absence again');

# a collector that ends
$node->query("SELECT pg_terminate_backend($collector)");
poll_for(sub { $tombs->status('coalesce(pid, 0)') ne $collector }, 'the collector to end');
$node->query('DELETE FROM t WHERE id = 4');
poll_for(sub { verdict(4) eq 'deleted deleted' }, 'a delete made meanwhile');

# a position behind a page's header, where no record is and nobody writes
my $page = 8192;
sub insert_lsn { return $node->query('SELECT pg_current_wal_insert_lsn()') }
sub place { return hex((split m{/}, $_[0])[1]) % $page }
my $fill = sub {
	my $message = sub { return "SELECT pg_logical_emit_message(false, 'test', repeat('x', $_[0]))" };
	my $probe = 304;
	my $before = place(insert_lsn());
	$node->query($message->($probe));
	my $at = place(insert_lsn());
	my $length = $page - $at - ($at - $before - $probe);
	return 0 if $at <= $before || $length < $probe;
	$node->query($message->($length));
	return place(insert_lsn()) == 24;
};
poll_for($fill, 'a record to end with its page');
is(verdict(5), 'missing', 'the last record ends with its page');

# whose delete it was
$node->query(q{SELECT pg_replication_origin_create('elsewhere')});
$node->query(q{SELECT pg_replication_origin_session_setup('elsewhere');
	BEGIN; SELECT pg_replication_origin_xact_setup('0/1', '2020-02-02 02:02:02+00'); DELETE FROM t WHERE id = 6; COMMIT});
is($node->query(q{SELECT origin, deleted_at = '2020-02-02 02:02:02+00' FROM tandem.tombstone_find('t', '{"id": 6}')}), 'elsewhere|t', 'origin and its commit time');
is($node->query(q{SELECT pg_replication_origin_session_setup('elsewhere');
	SELECT verdict FROM tandem.tombstone_find('t', '{"id": 6}')}), "\ndeleted", 'asked by a session with an origin');

# a message of ours that anybody could write
$node->query(q{SELECT pg_logical_emit_message(true, 'tandem.deleted', repeat('x', 200))});
is(verdict(7), 'missing', 'a forged message is none');

# many at once, each sure of its own
my $script = $node->basedir . '/probe.sql';
append_to_file($script, q{
\set id random(20000, 2000000000)
INSERT INTO t VALUES (:id);
DELETE FROM t WHERE id = :id;
SELECT 1 / (verdict = 'deleted')::int FROM tandem.tombstone_find('t', jsonb_build_object('id', :id));
});
command_ok([ $node->installed_command('pgbench'), '-h', $node->host, '-p', $node->port, '-n', '-c', 8, '-t', 25, '-f', $script, 'postgres' ],
	'eight sessions ask at once');
is($tombs->status('state'), 'collecting', 'collecting goes on');

# crashes at any time; one transaction a delete
my $n = 2000;
for my $round (1 .. 3)
{
	$node->query("TRUNCATE t; INSERT INTO t SELECT generate_series($round * 100000 + 1, $round * 100000 + $n)");
	verdict(0);
	my $out = '';
	my $run = IPC::Run::start([ $node->installed_command('psql'), '-XAtq', '-d', $node->connstr('postgres'), '-c',
		"DO \$\$ BEGIN FOR i IN 1 .. $n BY 2 LOOP DELETE FROM t WHERE id = $round * 100000 + i; COMMIT; END LOOP; END \$\$" ],
		'>', \$out, '2>&1');
	my $until = int(rand(900)) + 1;
	poll_for(sub { $node->query("SELECT count(*) <= $n - $until FROM t") eq 't' }, "$until deletes");
	$node->kill9_all;
	$run->finish;
	$node->start;
	$tombs->wait_collecting;
	verdict(0);
	is($node->query(qq{SELECT count(*) FROM generate_series($round * 100000 + 1, $round * 100000 + $n) i LEFT JOIN t ON t.id = i,
		LATERAL tandem.tombstone_find('t', jsonb_build_object('id', i), false) f
		WHERE (t.id IS NULL) <> (f.kind IS NOT DISTINCT FROM 'deleted')}), 0, "round $round: each missing row is a deleted one, no other is");
	is($node->query(qq{SELECT verdict FROM tandem.tombstone_find('t', '{"id": ${round}00001}')}), 'deleted', 'certainly');
}

done_testing();
