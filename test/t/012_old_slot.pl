# Slots that are older than the standby: their WAL is fetched from the primary.
#
# An idle slot was made several WAL segments before the base backup.  It becomes
# ready within three cycles and holds up nobody.  After the promotion it is read
# through walsenders, which compare with the last removed segment where SQL
# functions don't.  What was fetched isn't archived again.  Limits are
# respected, with the reason.
#
# Without fetching, the slot would never be ready; without the reservation and
# its barrier, a restartpoint under way would remove what has been fetched.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

# Cycles are made by hand.
my $primary = Tandem::Node->new_primary('primary', conf => q{
	tandem.slot_sync_interval = 1h
	wal_keep_size = 0
});

# One cycle; what it has set in motion ends before the next.
sub cycle
{
	my ($standby) = @_;
	$standby->query('SELECT count(*) FROM tandem.sync_slots()');
	poll_for(sub { !$standby->pids_of(qr/tandem helper/) }, 'the helper to end');
	return;
}

sub state_of
{
	my ($standby, $slot) = @_;
	return $standby->query("SELECT concat_ws(': ', state, reason, hint) FROM tandem.slots WHERE slot_name = '$slot'");
}

# The ids that a client gets that reads the slot through a walsender until now.
sub receive
{
	my ($node, $slot) = @_;
	my $end = $node->query('SELECT pg_current_wal_flush_lsn()');
	my $output = $node->pg_recvlogical_upto('postgres', $slot, $end, 60,
		'skip-empty-xacts' => 1);
	return join ' ', $output =~ /^table public\.t: INSERT: id\[integer\]:(\d+)/mg;
}

# Two idle consumers: a client, and a subscription.
$primary->query('CREATE TABLE t (id int PRIMARY KEY)');
my $subscriber = Tandem::Node->new_subscriber('subscriber');
$subscriber->query('CREATE TABLE t (id int PRIMARY KEY)');
$primary->publish('pub', 't');
$subscriber->subscribe('sub', $primary, 'pub');

$primary->query(q{SELECT pg_create_logical_replication_slot('idle', 'test_decoding')});
$primary->advance_slot('idle');
$primary->query('INSERT INTO t VALUES (1)');
$subscriber->wait_subscription('sub', $primary);
$subscriber->query('ALTER SUBSCRIPTION sub DISABLE');
poll_for(sub { $primary->slot_value('sub', 'active') eq 'f' }, 'the subscription to pause');
$primary->query('INSERT INTO t VALUES (2)');
$primary->switch_wal(6);

# A slot in the present.
$primary->query(q{SELECT pg_create_logical_replication_slot('young', 'test_decoding')});
$primary->advance_slot('young');

my $oldest = $primary->query(q{SELECT pg_walfile_name(min(restart_lsn))
	FROM pg_replication_slots WHERE slot_type = 'logical'});
my $standby = $primary->new_standby('standby', conf => q{
	archive_mode = on
	archive_command = 'echo %f >>archived'
	tandem.wal_fetch_limit = 16MB
	tandem.sync_slots = off
});
ok(!-e $standby->data_dir . "/pg_wal/$oldest", 'the standby begins after the WAL of the idle slots');

# ---- Limits that are too low -----------------------------------------------------

cycle($standby) for 1 .. 3;
is(state_of($standby, 'young'), 'ready', 'a slot in the present is ready');
like(state_of($standby, $_),
	qr/^pending: \d+ MB of WAL from before this standby are needed, tandem\.wal_fetch_limit is 16 MB: Raise tandem\.wal_fetch_limit/,
	"tandem.wal_fetch_limit is respected for $_, with reason and hint") for qw(idle sub);

$standby->set('tandem.wal_fetch_limit' => '1GB', 'max_slot_wal_keep_size' => '48MB');
cycle($standby);
like(state_of($standby, 'idle'),
	qr/^pending: .*max_slot_wal_keep_size of this standby is 48 MB: Raise max_slot_wal_keep_size/,
	'max_slot_wal_keep_size is respected, with reason and hint');
cmp_ok($standby->query('SELECT wal_fetched FROM tandem.sync_status'), '<=', 16 * 1024 * 1024,
	'no more than the limit has been fetched');

# A restartpoint invalidates what exceeds it, and ends the process that holds it.
my $worker = $standby->pid_of(qr/tandem worker/);
$standby->restartpoint($primary);
cycle($standby);
is($standby->pid_of(qr/tandem worker/), $worker, 'the worker survives a restartpoint');
is(state_of($standby, 'young'), 'ready', 'and so does the slot in the present');
$standby->set('max_slot_wal_keep_size' => undef);

# ---- Fetched within three cycles ---------------------------------------------------

my $mark = $standby->log_mark;
$primary->query('INSERT INTO t VALUES (3)');
$primary->wait_replayed($standby);
my @cycles = map {
	cycle($standby);
	{ idle => state_of($standby, 'idle'), young => state_of($standby, 'young') };
} 1 .. 3;
is($cycles[2]{idle}, 'ready', 'an idle slot from before the standby is ready within three cycles')
  or diag explain \@cycles;
is(state_of($standby, 'sub'), 'ready', 'and that of the subscription');
is(join(' ', map { $_->{young} } @cycles), 'ready ready ready', 'the others are not held up');
ok(-e $standby->data_dir . "/pg_wal/$oldest", 'its WAL is here now');
my $fetched = $standby->query('SELECT wal_fetched FROM tandem.sync_status');
cmp_ok($fetched, '>=', 5 * 16 * 1024 * 1024, "several segments have been fetched ($fetched bytes)");
ok(!-e $standby->data_dir . '/pg_wal/xlogtemp.tandem', 'no temporary file is left');
cycle($standby);
is($standby->query('SELECT wal_fetched FROM tandem.sync_status'), $fetched, 'and not once more');

# A restartpoint keeps it; so does a restart, which reads everything anew.
$standby->restartpoint($primary);
ok(-e $standby->data_dir . "/pg_wal/$oldest", 'a restartpoint keeps it');
$standby->restart;
$standby->wait_slot_ready('idle');
unlike($standby->log_since($mark), qr/dropped failover slot/, 'it stays ready all the time');

# ---- WAL removed here: a restart is needed, and helps --------------------------------

# This one has removed segments of its own, and remembers that it can't serve
# older ones to walsenders.
my $late = $primary->new_standby('late', backup => 'for_standby',
	conf => "tandem.sync_slots = off\n");
$primary->switch_wal(3);
$late->restartpoint($primary);
$primary->switch_wal(1);
$late->restartpoint($primary);
cycle($late) for 1 .. 3;
like(state_of($late, 'idle'), qr/^pending: WAL from \S+ on has been removed here, .*: Restart this standby/,
	'after WAL was removed here the hint is to restart the standby');
is($late->slot_value('idle', 'restart_lsn'), '', 'and the slot does not exist here');
$late->restart;
$primary->query(q{SELECT pg_logical_emit_message(true, 'tandem test', 'x')});
$primary->wait_replayed($late);

# Its WAL can't be had for a while: the slot says so, the others go on.
my $path = $primary->data_dir . "/pg_wal/$oldest";
rename $path, "$path.away" or die "$path: $!";
cycle($late) for 1 .. 5;
like(state_of($late, 'idle'), qr/^pending: the primary no longer has WAL segment $oldest/,
	'a segment that the primary does not have is named');
is(state_of($late, 'young'), 'ready', 'and does not hold up the others');
is($late->query('SELECT error FROM tandem.sync_status'), '', 'nor fail the cycle');
rename "$path.away", $path or die "$path: $!";
cycle($late) for 1 .. 3;
is(state_of($late, 'idle'), 'ready', 'after the restart it becomes ready');

# ---- Failover -------------------------------------------------------------------------

$primary->wait_replayed($standby);
cycle($standby);
$primary->kill9_all;
$standby->promote;
$standby->query('INSERT INTO t VALUES (4)');
is(receive($standby, 'idle'), '1 2 3 4', 'a client reads the idle slot through a walsender');

$subscriber->resubscribe('sub', $standby);
$subscriber->query('ALTER SUBSCRIPTION sub ENABLE');
$subscriber->wait_subscription('sub', $standby);
is_same_table($standby, $subscriber, 't', 'the subscription has lost nothing');

# The other standby could have been promoted as well.
$late->promote;
is(receive($late, 'idle'), '1 2 3', 'the restarted standby serves the idle slot through a walsender, too');

# ---- The archive ------------------------------------------------------------------------

my $last = $standby->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
$standby->query('SELECT pg_switch_wal()');
my $archived = $standby->data_dir . '/archived';
poll_for(sub { -e $archived && slurp_file($archived) =~ /^$last$/m },
	"the new primary to archive $last");
unlike(slurp_file($archived), qr/^$oldest$/m, 'what was fetched is not archived again');
is($standby->query('SELECT failed_count FROM pg_stat_archiver'), '0', 'the archiver had no failure');

done_testing();
