# tandem.spool_limit: a table that changes too much while it is copied gives its
# spool up, within a transaction and while the copy runs, says so, and is copied
# in a later wave.  All other tables go on.
#
# Without the limit the spool would grow as long as the copy lasts.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "tandem.spool_limit = 1MB\ntandem.sync_workers = 2\n");

for my $node ($publisher, $subscriber)
{
	$node->query('CREATE TABLE held (id int PRIMARY KEY, n int DEFAULT 0, filler text)');
	$node->query('CREATE TABLE other (id int PRIMARY KEY, n int DEFAULT 0)');
}
$publisher->query(q{INSERT INTO held SELECT g, 0, repeat('x', 200) FROM generate_series(1, 10000) g});
$publisher->query('INSERT INTO other SELECT g FROM generate_series(1, 1000) g');
$publisher->publish('pub');

my $waves = Tandem::Waves->new($publisher, $subscriber);
my $said = qr/its spool grew beyond tandem.spool_limit \(1 MB\)/;

sub column_of
{
	my ($column, $table) = @_;
	return $subscriber->query("SELECT $column FROM tandem.tables WHERE name = '$table'");
}

# Changes some rows of "held", about 250 bytes of spool each.
sub change
{
	my ($rows) = @_;
	$publisher->query("UPDATE held SET n = n + 1 WHERE id <= $rows");
	$publisher->query('UPDATE other SET n = n + 1 WHERE id = 1');
	$waves->wait_applied;
	return;
}

# ---- One large transaction, while the copy runs ---------------------------------

$waves->pause('held');
$waves->subscribe;
$waves->wait_paused;
$waves->wait_state('other', 'ready');
change(2000);
my $bytes = column_of('spool_bytes', 'held');
cmp_ok($bytes, '>', 200_000, 'changes are kept');
is($waves->state_of('held'), 'copying', 'and below the limit nothing is said');

my $mark = $subscriber->log_mark;
change(10000);
like($waves->state_of('held'), qr/^copying: $said/, 'beyond the limit: said while the copy still runs');
like($subscriber->log_since($mark), qr/LOG:  table "held" of subscription "sub" will be copied again: $said/, 'and in the log');
poll_for(sub { column_of('spool_bytes', 'held') eq '0' }, 'the spool to be dropped');
change(100);
is(column_of('spool_bytes', 'held'), '0', 'changes of it are no longer kept');
is_same_table($publisher, $subscriber, 'other', 'other tables are applied to');

$mark = $subscriber->log_mark;
my $wave = column_of('wave', 'held');
$waves->resume;
$subscriber->wait_log(qr/could not copy table "held" of subscription "sub": $said/, $mark);
$waves->wait_state('held', 'ready', 60);
cmp_ok(column_of('wave', 'held'), '>', $wave, 'it was copied in a later wave');
is_same_table($publisher, $subscriber, 'held');
is(column_of('wave', 'other'), $wave, 'other tables were not copied again');

# ---- The spool is counted, not what one process has written ----------------------

$waves->pause('held');
$waves->resync('held');
$waves->wait_paused;
change(2500);
is($waves->state_of('held'), 'copying', 'below the limit');
my $worker = $subscriber->pid_of(qr/tandem apply/);
kill_process($worker, 'TERM');
poll_for(sub { $subscriber->query("SELECT pid <> $worker AND state = 'streaming' FROM tandem.subscriptions") eq 't' }, 'another apply worker');
change(2500);
like($waves->state_of('held'), qr/^copying: $said/, 'another worker knows what is there');
$waves->resume;
$waves->wait_ready(retry => 1, timeout => 60);
is_same_table($publisher, $subscriber, 'held');

# ---- After the copy ------------------------------------------------------------------

# a lock keeps the changes from being applied
$waves->pause('held');
$waves->resync('held');
$waves->wait_paused;
my $lock = $waves->start_session($subscriber, 'BEGIN; LOCK TABLE held IN SHARE MODE');
poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_locks WHERE relation = 'held'::regclass AND NOT granted}) eq '1' },
	'the lock to wait for the copy');
change(2000);
$waves->resume;
$waves->wait_session($lock);
is($waves->state_of('held'), 'catching up', 'copied, and changes are not applied');
$wave = column_of('wave', 'held');
change(10000);
$waves->wait_state('held', qr/^(?:failed|copying): $said/);
is_same_table($publisher, $subscriber, 'other', 'other tables are applied to');
$waves->end_session($lock);
$waves->wait_ready(retry => 1, timeout => 60);
cmp_ok(column_of('wave', 'held'), '>', $wave, 'it was copied in a later wave');
is_same_table($publisher, $subscriber, 'held');
is(column_of('wave', 'other'), 1, 'other tables were copied once');
is($subscriber->query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 'tandem.copies'::regclass}), '0',
	'nobody holds a lock on a copy');

done_testing();
