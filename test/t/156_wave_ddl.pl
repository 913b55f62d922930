# Tables are altered, rewritten, renamed, moved, dropped on either side after a
# wave has taken its snapshot and before they are copied: each is copied right
# in the end or says what stands in its way, and no other table waits for it.
#
# Statements on the publisher don't wait for the wave: without the savepoint around
# its questions they would, for the partitions of all its tables.
#
# Without the check of the files a COPY under a snapshot older than a rewrite
# returns no rows and no error: a table would be ready and empty.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => 'autovacuum = off');
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "tandem.sync_workers = 1\nautovacuum = off");
my $waves = Tandem::Waves->new($publisher, $subscriber);

my @there = qw(dropped renamed replaced added added_both dropcol retyped vacuumed clustered truncated moved
	unpublished filtered rewritten_later);
my @here = qw(l_renamed l_moved l_added l_dropcol l_retyped l_vacuumed l_indexed l_locked l_parts_detached);
my $plain = join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, v int, t text);" }
	'slow', @there, grep { $_ ne 'l_parts_detached' } @here;
for my $node ($publisher, $subscriber)
{
	$node->query($plain . q{
		CREATE SCHEMA elsewhere;
		CREATE TABLE parts (id int PRIMARY KEY, v int, t text) PARTITION BY RANGE (id);
		CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (1000);
		CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (1000) TO (2000);
		CREATE TABLE l_parts_detached (id int PRIMARY KEY, v int, t text) PARTITION BY RANGE (id);
		CREATE TABLE l_low PARTITION OF l_parts_detached FOR VALUES FROM (0) TO (1000);
		CREATE TABLE l_rest PARTITION OF l_parts_detached DEFAULT;
	});
}
$publisher->query(join '', map { "INSERT INTO $_ SELECT g, g, 'row ' || g FROM generate_series(1, 1500) g; ANALYZE $_;" } @there, @here, 'parts');
$publisher->query(q{INSERT INTO slow SELECT g, g, repeat('x', 500) FROM generate_series(1, 5000) g; ANALYZE slow});
$publisher->query('CREATE PUBLICATION pub FOR TABLE slow, parts, ' . join(', ', map { $_ eq 'filtered' ? 'filtered WHERE (id <= 1000)' : $_ } @there, @here)
	  . ' WITH (publish_via_partition_root = true)');

$waves->pause('slow');
$waves->subscribe;
$waves->wait_paused;
is($subscriber->query(q{SELECT string_agg(DISTINCT state, ', ') FROM tandem.tables}), 'copying', 'all are in the wave, none is copied');

# ---- On the publisher -----------------------------------------------------------------

$publisher->query($_) for
	'DROP TABLE dropped',
	'ALTER TABLE renamed RENAME TO renamed_since',
	q{BEGIN; ALTER TABLE replaced RENAME TO replaced_old;
		CREATE TABLE replaced (id int PRIMARY KEY, v int, t text); INSERT INTO replaced VALUES (1, 1, 'the new one');
		ALTER PUBLICATION pub ADD TABLE replaced; COMMIT},
	'ALTER TABLE added ADD more int DEFAULT 7',
	'ALTER TABLE added_both ADD more int',
	'ALTER TABLE dropcol DROP COLUMN v',
	'ALTER TABLE retyped ALTER v TYPE bigint',
	'VACUUM FULL vacuumed',
	'DELETE FROM clustered WHERE id % 3 = 0',
	'CLUSTER clustered USING clustered_pkey',
	q{BEGIN; TRUNCATE truncated; INSERT INTO truncated VALUES (5, 5, 'after'); COMMIT},
	'ALTER TABLE moved SET SCHEMA elsewhere',
	'ALTER PUBLICATION pub DROP TABLE unpublished',
	'ALTER PUBLICATION pub SET TABLE slow, parts, filtered WHERE (id <= 500), '
		. join(', ', map { $_ eq 'renamed' ? 'renamed_since' : $_ eq 'moved' ? 'elsewhere.moved' : $_ } grep { !/^(dropped|filtered|unpublished)$/ } @there, @here),
	'ALTER TABLE parts DETACH PARTITION parts_high',
	q{CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM (2000) TO (3000)},
	q{INSERT INTO parts VALUES (2500, 1, 'in a new partition')},
	map { "UPDATE $_ SET t = 'changed' WHERE id = 10; INSERT INTO $_ VALUES (9001, 1, 'late')" }
		qw(added added_both retyped vacuumed clustered rewritten_later), @here;
$publisher->query(q{UPDATE renamed_since SET t = 'changed' WHERE id = 10; INSERT INTO dropcol VALUES (9001, 'late')});

# ---- Here -----------------------------------------------------------------------------

$subscriber->query($_) for
	'ALTER TABLE added_both ADD more int',
	'ALTER TABLE l_renamed RENAME TO l_renamed_since',
	'ALTER TABLE l_moved SET SCHEMA elsewhere',
	'ALTER TABLE l_added ADD more int DEFAULT 8',
	'ALTER TABLE l_dropcol DROP COLUMN v',
	'ALTER TABLE l_retyped ALTER v TYPE text',
	'VACUUM FULL l_vacuumed',
	'CREATE INDEX l_late ON l_indexed (t)',
	'ALTER TABLE l_parts_detached DETACH PARTITION l_low',
	'CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM (2000) TO (3000)';
like($subscriber->query_error('DROP TABLE l_added'), qr/could not drop relation mapping|cannot drop table "l_added": subscription "sub" is yet to copy it/, 'a table that is being copied is not dropped, as in core');
my $lock = $waves->session($subscriber, 'BEGIN; LOCK TABLE l_locked');

$waves->resume;

# ---- What becomes of each -----------------------------------------------------------------

sub same
{
	my ($table, $other, $columns) = @_;
	$other //= $table;
	$columns //= '*';
	$waves->wait_applied;
	my $sum = 'SELECT count(*), sum(hashtextextended(x::text, 0)) FROM (SELECT %s FROM %s) x';
	return is($subscriber->query(sprintf $sum, $columns, $table), $publisher->query(sprintf $sum, $columns, $other), "$table is equal");
}

# those that are well need no help
$waves->wait_state($_, 'ready') for qw(slow added_both unpublished filtered l_added l_retyped l_vacuumed l_indexed rewritten_later);
same($_) for qw(slow added_both l_vacuumed l_indexed rewritten_later);
same('l_added', 'l_added', 'id, v, t');
same('l_retyped', 'l_retyped', 'id, v::text, t');
is($subscriber->query('SELECT count(*), max(id) FROM filtered'), '1000|1000', 'the filter of the time of the snapshot');

# those that were rewritten are copied again by themselves
$waves->wait_state($_, 'ready', 60) for qw(retyped vacuumed clustered truncated dropcol replaced parts);
same($_) for qw(vacuumed clustered truncated replaced parts);
same('retyped', 'retyped', 'id, v::int, t');
same('dropcol', 'dropcol', 'id, t');

# the others say why
$waves->wait_state('dropped', qr/^failed: .*(no table of this name|replaced|does not exist)/);
$waves->wait_state('renamed', qr/^failed: .*(no table of this name|replaced|does not exist)/);
$waves->wait_state('moved', qr/^failed: .*(no table of this name|replaced|does not exist)/);
$waves->wait_state('added', qr/^failed: .*"more"/);
$waves->wait_state('l_renamed_since', qr/^failed: .*(named|no table of this name)/);
$waves->wait_state('l_moved', qr/^failed: .*(named|no table of this name)/);
$waves->wait_state('l_dropcol', qr/^failed: .*"v"/);
$waves->wait_state('l_locked', qr/^failed: .*lock timeout/);
is($subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE state = 'failed' AND (next_retry IS NULL OR attempts = 0)}), '0',
	'each with the time of its next try');

# a change of another table does not wait for the locked one
$publisher->query(q{INSERT INTO slow VALUES (-1, 1, 'passes')});
poll_for(sub { $subscriber->query('SELECT count(*) FROM slow WHERE id = -1') eq '1' }, 'a change of another table');

# ---- Mended -----------------------------------------------------------------------------

$waves->end_session($lock);
$subscriber->query('ALTER TABLE added ADD more int');
$subscriber->query('ALTER TABLE renamed RENAME TO renamed_since');
$subscriber->query('ALTER TABLE moved SET SCHEMA elsewhere');
$subscriber->query('ALTER TABLE l_renamed_since RENAME TO l_renamed');
$subscriber->query('ALTER TABLE elsewhere.l_moved SET SCHEMA public');
$subscriber->query('ALTER TABLE l_dropcol ADD v int');
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
is($subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE name IN ('dropped', 'unpublished')}), '0', 'REFRESH forgets what is gone');
$waves->wait_ready(retry => 1, timeout => 90);
same($_) for qw(added renamed_since elsewhere.moved l_renamed l_moved l_locked);
same('l_dropcol', 'l_dropcol', 'id, v, t');
is($subscriber->query(q{SELECT string_agg(DISTINCT srsubstate::text, '') FROM pg_subscription_rel}), 'r', 'the server knows them as ready');

done_testing();
