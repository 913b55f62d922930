# A transaction that deletes many rows: memory stays within the setting, and each
# of them is found afterwards.  TOMBSTONE_ROWS=10000000 is the long form.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Tombstones;
use Test::More;

my $rows = $ENV{TOMBSTONE_ROWS} // 150_000;
my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_primary('node', conf => q{
track_commit_timestamp = on
autovacuum = off
max_wal_size = 10GB
tandem.tombstone_memory = 4MB
tandem.detection_timeout = 1min
});
my $tombs = Tandem::Tombstones->new($publisher, $node);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text)') for $publisher, $node;
$publisher->query('CREATE PUBLICATION pub FOR TABLE t');
$tombs->subscribe;
$node->query("INSERT INTO t SELECT generate_series(1, $rows)");
$tombs->verdict('t', '{"id": 0}');

# private memory, in kB: not what it shares with others
my $collector = $tombs->status('pid');
sub memory
{
	open my $in, '<', "/proc/$collector/smaps" or return 0;
	my ($sum, $shared) = (0, 0);
	while (my $line = <$in>)
	{
		$shared = ($line =~ m{/dev/zero|/dev/shm|PostgreSQL|SYSV}) if $line =~ /^[0-9a-f]+-/;
		$sum += $1 if !$shared && $line =~ /^Private_(?:Clean|Dirty): +(\d+)/;
	}
	return $sum;
}
my $before = memory();
my $most = $before;

$node->query(q{BEGIN; SAVEPOINT a; DELETE FROM t WHERE id % 2 = 0; RELEASE a; DELETE FROM t; COMMIT});
poll_for(
	sub {
		my $now = memory();
		$most = $now if $now > $most;
		return $tombs->status("tombstones >= $rows") eq 't';
	},
	'all of them to be collected', 3600);
note("memory: $before kB before, $most kB at most, $rows rows");
SKIP:
{
	skip 'no /proc/PID/smaps', 1 if $before == 0;
	skip 'a sanitizer keeps memory of its own', 1 if $ENV{TANDEM_SERVER_PRELOAD};
	cmp_ok($most - $before, '<', 12 * 1024, 'memory stays within the setting, and what a process needs anyway');
}
is($node->query(qq{SELECT count(*) FILTER (WHERE verdict = 'deleted'), count(DISTINCT deleted_at), count(DISTINCT xid::text)
	FROM generate_series(1, $rows, $rows / 500) i, LATERAL tandem.tombstone_find('t', jsonb_build_object('id', i)) f}),
	'500|1|1', 'each is found, all of one transaction');
is($tombs->verdict('t', sprintf('{"id": %d}', $rows + 1)), 'missing', 'and none that was not there');

done_testing();
