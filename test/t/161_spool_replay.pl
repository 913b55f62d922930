# Changes that were spooled and can't be applied: that table says so and is copied
# again, the others go on.  A TRUNCATE of tables that refer to each other, of
# which some are being copied.  A spool that two processes apply, each a part.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "tandem.sync_workers = 4\nwal_level = logical\n");

for my $node ($publisher, $subscriber)
{
	$node->query(q{
		CREATE TABLE parent (id int PRIMARY KEY, n int DEFAULT 0, s serial);
		CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, filler text);
		CREATE TABLE grandchild (id int PRIMARY KEY, child int REFERENCES child) PARTITION BY RANGE (id);
		CREATE TABLE grandchild_1 PARTITION OF grandchild FOR VALUES FROM (0) TO (50);
		CREATE TABLE grandchild_2 PARTITION OF grandchild FOR VALUES FROM (50) TO (1000);
		CREATE TABLE hot (id int PRIMARY KEY, n int DEFAULT 0, filler text);
		CREATE TABLE other (id int PRIMARY KEY);
	});
}
my @family = qw(parent child grandchild);

sub fill
{
	$publisher->query(q{
		INSERT INTO parent (id) SELECT g FROM generate_series(1, 100) g;
		INSERT INTO child SELECT g, g, repeat('x', 100) FROM generate_series(1, 100) g;
		INSERT INTO grandchild SELECT g, g FROM generate_series(1, 100) g});
	return;
}
fill();
$publisher->query(q{INSERT INTO hot SELECT g, 0, repeat('x', 500) FROM generate_series(1, 10000) g});
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)');
my $waves = Tandem::Waves->new($publisher, $subscriber);
my $again = qr/LOG:  changes made while table "(\w+)" was copied could not be applied, it will be copied again: ([^\n]+)/;

# Copies tables, and keeps their changes from being applied until "let_go": by a
# lock that waits for the copy.
my @locks;

sub copy_and_hold
{
	my ($subscribe, @tables) = @_;
	$waves->pause(@tables);
	$subscribe ? $waves->subscribe : $waves->resync(@tables);
	$waves->wait_paused;
	for my $table (@tables)
	{
		poll_for(sub { $waves->state_of($table) eq 'copying' }, "$table to be copied");
		poll_for(sub { $subscriber->query("SELECT count(*) FROM pg_locks WHERE relation = '$table'::regclass AND granted AND mode ~ 'Exclusive'") > 0 },
			"the copy of $table to have its lock");
		push @locks, $waves->start_session($subscriber, "BEGIN; LOCK TABLE $table IN SHARE MODE");
		poll_for(sub { $subscriber->query("SELECT count(*) FROM pg_locks WHERE relation = '$table'::regclass AND NOT granted AND mode = 'ShareLock'") > 0 },
			"the lock to wait for the copy of $table");
		$publisher->query("UPDATE $table SET id = id WHERE id = 1");
	}
	$waves->wait_applied;
	$waves->resume;
	$waves->wait_session($_) for @locks;
	for my $table (@tables)
	{
		is($waves->state_of($table), 'catching up', "$table is copied, its changes wait");
	}
	return;
}

sub let_go
{
	$waves->end_session($_) for splice @locks;
	return;
}

sub other_goes_on
{
	$publisher->query('INSERT INTO other SELECT count(*) FROM other');
	$waves->wait_applied;
	is_same_table($publisher, $subscriber, 'other', 'other tables go on');
	return;
}

# ---- TRUNCATE of tables whose changes are spooled ---------------------------------

copy_and_hold(1, @family);
$waves->wait_state('other', 'ready');
my $mark = $subscriber->log_mark;
$publisher->query('TRUNCATE parent, child, grandchild RESTART IDENTITY');
$publisher->query('INSERT INTO parent (id) VALUES (7); INSERT INTO child VALUES (8, 7)');
$publisher->query('TRUNCATE parent CASCADE');
$publisher->query('INSERT INTO parent (id) VALUES (9); INSERT INTO child VALUES (10, 9)');
other_goes_on();
let_go();
$waves->wait_ready(retry => 1);
my %failed = $subscriber->log_since($mark) =~ /$again/g;
like($failed{parent}, qr/cannot truncate a table referenced in a foreign key constraint/,
	'a TRUNCATE of a table that others refer to can not be replayed by itself');
ok(!exists $failed{grandchild}, 'that of one that only refers can');
is_same_table($publisher, $subscriber, $_) for @family;
is($subscriber->query(q{SELECT attempts || ' ' || wave FROM tandem.tables WHERE name = 'other'}), '0 1', 'other tables were copied once');

# ---- TRUNCATE while some of them are copied ---------------------------------------------

# the others are emptied with the stream, whatever refers to them
$publisher->query('TRUNCATE parent, child, grandchild RESTART IDENTITY');
fill();
$waves->wait_applied;
$subscriber->query(q{SELECT pg_create_logical_replication_slot('downstream', 'test_decoding')});
copy_and_hold(0, 'child');
my $worker = $subscriber->pid_of(qr/tandem apply/);
$publisher->query('TRUNCATE parent, child, grandchild RESTART IDENTITY');
$publisher->query('INSERT INTO parent (id) SELECT g FROM generate_series(200, 210) g; INSERT INTO child VALUES (1, 200); INSERT INTO grandchild VALUES (1, 1), (60, 1)');
other_goes_on();
is_same_table($publisher, $subscriber, $_, "$_ is truncated at once") for qw(parent grandchild);
is($subscriber->query(q{SELECT last_value FROM parent_s_seq}), '1', 'its sequence, too');
is($subscriber->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('downstream', NULL, NULL)
	WHERE data ~ '^table public.parent, public.grandchild,.*: TRUNCATE: restart_seqs'}), '1', 'and those who subscribe to this node are told');
let_go();
$waves->wait_ready(retry => 1);
is_same_table($publisher, $subscriber, $_) for @family;
is($subscriber->pid_of(qr/tandem apply/), $worker, 'the apply worker has not failed');
$subscriber->query(q{SELECT pg_drop_replication_slot('downstream')});

# what refers to a table only here still counts
$subscriber->query('CREATE TABLE local (id int REFERENCES hot)');
copy_and_hold(0, 'child');
$mark = $subscriber->log_mark;
$publisher->query('TRUNCATE child, grandchild, hot');
$subscriber->wait_log(qr/ERROR:  cannot truncate a table referenced in a foreign key constraint/, $mark);
$subscriber->query('DROP TABLE local');
let_go();
$waves->wait_ready(retry => 1);
$waves->wait_applied;
is_same_table($publisher, $subscriber, $_) for @family, 'hot';

# ---- An error in replay --------------------------------------------------------------------

$publisher->query(q{INSERT INTO hot SELECT g, 0, repeat('x', 500) FROM generate_series(1, 10000) g});
$waves->wait_applied;
$subscriber->query('ALTER TABLE hot ADD CONSTRAINT small CHECK (n < 5)');
$waves->pause('hot');
$waves->resync('hot');
$waves->wait_paused;
$mark = $subscriber->log_mark;
$publisher->query('UPDATE hot SET n = 5 WHERE id = 1');
$publisher->query('UPDATE hot SET n = 1 WHERE id = 1');
other_goes_on();
$waves->resume;
$subscriber->wait_log($again, $mark);
%failed = $subscriber->log_since($mark) =~ /$again/g;
like($failed{hot}, qr/violates check constraint "small"/, 'a change that violates a constraint here');
$waves->wait_ready(retry => 1);
is_same_table($publisher, $subscriber, 'hot');

# ---- The leader applies a part, another apply worker the rest ----------------------------------

$waves->pause('hot');
$waves->resync('hot');
$waves->wait_paused;
$publisher->query('UPDATE hot SET n = n + 1 WHERE id <= 8000');
$publisher->query('UPDATE hot SET n = n + 1 WHERE id <= 500');
$waves->wait_applied;
my $before = $subscriber->query(q{SELECT spool_bytes FROM tandem.tables WHERE name = 'hot'});
$worker = stall($subscriber->pid_of(qr/tandem apply/));
$mark = $subscriber->log_mark;
$waves->resume;
my $left;
poll_for(sub { ($left = $subscriber->query(q{SELECT spool_bytes FROM tandem.tables WHERE name = 'hot' AND state = 'catching up'})) ne '' && $left < 512 * 1024 },
	'the leader to apply the most');
cmp_ok($left, '>', 0, "of $before bytes $left are left");
kill_process($worker, 'TERM');
$waves->wait_ready;
is_same_table($publisher, $subscriber, 'hot');
unlike($subscriber->log_since($mark), qr/copied again/, 'and it was not copied again');

done_testing();
