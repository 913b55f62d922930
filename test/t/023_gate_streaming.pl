# The gate with built-in subscriptions that see transactions before their commit:
# streaming = on (large transactions in progress) and two_phase = on.  Nothing of
# them is visible on the subscriber before the standby has it; all of it is after.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => q{
logical_decoding_work_mem = 64kB
max_prepared_transactions = 10
});
my $standby = $primary->new_standby('standby');
my $subscriber = Tandem::Node->new_subscriber('subscriber', conf => "max_prepared_transactions = 10\n");

for my $node ($primary, $subscriber)
{
	$node->query('CREATE TABLE large (id int PRIMARY KEY, filler text)');
	$node->query('CREATE TABLE prepared (id int PRIMARY KEY)');
}
$primary->publish('pub_large', 'large');
$primary->publish('pub_prepared', 'prepared');
$subscriber->subscribe('streamed', $primary, 'pub_large', 'streaming = on');
$subscriber->subscribe('two_phase', $primary, 'pub_prepared', 'two_phase = on');
poll_for(sub { $subscriber->query(q{SELECT subtwophasestate FROM pg_subscription WHERE subname = 'two_phase'}) eq 'e' },
	'two_phase to be enabled');
$primary->set('tandem.standby_slots' => 'standby');
$primary->query('INSERT INTO large VALUES (0); INSERT INTO prepared VALUES (0)');
poll_for(sub { $subscriber->query('SELECT (SELECT count(*) FROM large) + (SELECT count(*) FROM prepared)') eq '2' },
	'the gate to pass what the standby has');

# the standby gets nothing any more
my $receiver = stall($standby->pid_of(qr/walreceiver/));
$primary->query(q{INSERT INTO large SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 20000) i});
$primary->query(q{BEGIN; INSERT INTO prepared VALUES (1); PREPARE TRANSACTION 'gid'});
my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');

sub wait_held
{
	my ($senders) = @_;
	poll_for(sub { $primary->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'
		AND application_name IN ('streamed', 'two_phase') AND wait_event = 'Extension'}) >= $senders },
		"$senders walsender(s) to be held");
	return;
}

wait_held(2);
is($subscriber->query('SELECT count(*) FROM large'), '1', 'no streamed row is visible while the standby lacks them');
is($subscriber->query('SELECT count(*) FROM pg_prepared_xacts'), '0', 'nor is the prepared transaction there');
is($primary->query(qq{SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical'
	AND confirmed_flush_lsn > (SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'standby')}),
	'0', 'no slot is confirmed beyond what the standby has flushed');

resume($receiver);
poll_for(sub { $subscriber->query('SELECT count(*) FROM large') eq '20001' }, 'the large transaction to arrive');
poll_for(sub { $subscriber->query('SELECT count(*) FROM pg_prepared_xacts') eq '1' }, 'the prepared one to arrive');

# its commit waits as well
stall($receiver);
$primary->query(q{COMMIT PREPARED 'gid'});
wait_held(1);
is($subscriber->query('SELECT count(*) FROM prepared'), '1', 'COMMIT PREPARED waits for the standby');
resume($receiver);
poll_for(sub { $subscriber->query('SELECT count(*) FROM prepared') eq '2' }, 'the commit to arrive');

$subscriber->wait_subscription('streamed', $primary);
is_same_table($primary, $subscriber, $_) for qw(large prepared);

# A listed slot that is invalidated holds, and says so.
$primary->set('tandem.standby_slots' => undef);
$primary->query(q{SELECT pg_create_physical_replication_slot('gone', true)});
$primary->switch_wal(3);
$primary->wait_replayed($standby);
$primary->set('max_slot_wal_keep_size' => '16MB');
poll_for(sub { $primary->query('CHECKPOINT'); $primary->slot_value('gone', 'wal_status') eq 'lost' }, 'a slot to be invalidated');
$primary->set('tandem.standby_slots' => 'ANY 1 (gone)');
my $mark = $primary->log_mark;
$primary->query('INSERT INTO prepared VALUES (3)');
$primary->wait_log(qr/"gone", named in tandem\.standby_slots, is invalidated/, $mark);
is($subscriber->query('SELECT count(*) FROM prepared'), '2', 'an invalidated listed slot holds subscribers');
like($primary->query(q{SELECT state || ' ' || reason FROM tandem.slots WHERE slot_name = 'two_phase'}),
	qr/^pending .*"gone".* is invalidated/, 'and the view says why');
$primary->set('tandem.standby_slots' => 'standby');
poll_for(sub { $subscriber->query('SELECT count(*) FROM prepared') eq '3' }, 'a reload to let it pass');
pass('a reload lets it pass');

done_testing();
