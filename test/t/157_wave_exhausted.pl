# Something is used up when tables are to be copied: replication origins or
# background workers here, walsenders there.  tandem.tables names what is short and when it is tried again, no table
# fails for it, and the copy goes on by itself when there is room.  At last one
# table whose rows don't fit: only that one waits.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "max_wal_senders = 6\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => q{
max_worker_processes = 7
max_logical_replication_workers = 1
max_replication_slots = 3
tandem.sync_workers = 2
});
my $waves = Tandem::Waves->new($publisher, $subscriber);
my @tables = map { "t$_" } 1 .. 6;
$_->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, v int);" } @tables) for $publisher, $subscriber;
$publisher->query(join '', map { "INSERT INTO $_ SELECT g, g FROM generate_series(1, 1000) g;" } @tables);
$publisher->publish('pub');
$publisher->query('CREATE ROLE repl LOGIN REPLICATION; GRANT SELECT ON ALL TABLES IN SCHEMA public TO repl');

sub reset_subscription
{
	$subscriber->query('DROP SUBSCRIPTION sub');
	$subscriber->query('TRUNCATE ' . join ', ', @tables);
	return;
}

# Waits for the message in one of the views, and a hint with it.
sub wait_message
{
	my ($message, $hint, $what) = @_;
	my $last = '';
	eval {
		poll_for(
			sub {
				$last = $subscriber->query(q{
					SELECT DISTINCT concat_ws(' / ', t.last_error, t.hint, s.last_error, s.reason)
					FROM tandem.subscriptions s LEFT JOIN tandem.tables t USING (subscription)});
				return $last =~ $message && $last =~ $hint;
			},
			"the message $message with $hint");
		1;
	} or die "$@\tit was: $last\n";
	pass("$what is said");
	is($subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE state NOT IN ('waiting', 'copying') OR attempts > 0}), '0',
		'no table has failed for it');
	return;
}

sub check_copied
{
	my ($what) = @_;
	$waves->wait_ready;
	is($subscriber->query('SELECT ' . join ' + ', map { "(SELECT count(*) FROM $_)" } @tables), '6000', "$what: all is copied when there is room");
	is($subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE last_error IS NOT NULL OR hint IS NOT NULL OR next_retry IS NOT NULL}),
		'0', 'and no message stays');
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
		'no origin of a worker left');
	return;
}

# ---- Origins here: three, for the subscription, the leader, and one of no use ---------------

$subscriber->query(q{SELECT pg_replication_origin_create('other')});
my $other = $waves->session($subscriber, "SELECT pg_replication_origin_session_setup('other')");
$waves->subscribe;
wait_message(qr/could not find free replication state/, qr/max_(replication_slots|active_replication_origins)/, 'the lack of origins');
poll_for(sub { $subscriber->query(q{SELECT bool_and(next_retry > started OR next_retry > now() - interval '1 min') FROM tandem.tables}) eq 't' },
	'the time of the next try');
$waves->end_session($other);
$subscriber->query(q{SELECT pg_replication_origin_drop('other')});
check_copied('origins');
reset_subscription();

# ---- Background workers here: slots, guard, subscriptions and core's own launcher need four --

for my $room (4, 5, 6)
{
	my $mark = $subscriber->log_mark;

	$subscriber->query("ALTER SYSTEM SET max_worker_processes = $room");
	$subscriber->restart;
	$waves->subscribe if $room == 4;
	wait_message(
		$room == 4 ? qr/no background worker is free/ : $room == 5 ? qr/no background worker is free for a wave/ : qr/no background worker is free for a copy/,
		qr/max_worker_processes/, 'the lack of workers with ' . $room);
	# the launcher tries again each second
	poll_for(sub { $subscriber->query("SELECT now() > pg_postmaster_start_time() + interval '3 s'") eq 't' }, 'some more tries') if $room == 4;
	my $said = () = $subscriber->log_since($mark) =~ / waits?: no background worker is free/g;
	is($said, 1, 'which is logged once') if $room < 6;
}
$subscriber->query('ALTER SYSTEM SET max_worker_processes = 7');
$subscriber->restart;
check_copied('background workers');
reset_subscription();

# ---- Connections there: ours are walsenders, for which limits of roles and databases don't count

$publisher->query('ALTER ROLE repl CONNECTION LIMIT 1; ALTER DATABASE postgres CONNECTION LIMIT 1');
$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '" . $waves->conninfo . " user=repl' PUBLICATION pub WITH (enabled = false)");
$subscriber->query(q{SELECT tandem.adopt('sub')});
check_copied('limits of connections');
reset_subscription();

# ---- Walsenders there: six, one for the stream, two for the wave, none for a copy ------------

my @walsenders = map { $waves->session($publisher, 'IDENTIFY_SYSTEM', 'dbname=postgres replication=database') } 1 .. 3;
$waves->subscribe;
wait_message(qr/max_wal_senders/, qr/increase max_wal_senders there/, 'the lack of walsenders');
my ($code, $out) = tandem('sync', at($subscriber));
like($out =~ s/\s+/ /gr, qr/number of requested standby connections exceeds max_wal_senders .* hint: .*increase max_wal_senders there/, '... also by "tandem sync"');
$waves->end_session($_) for @walsenders;
check_copied('walsenders');
reset_subscription();

# no slot is needed for a copy
is($publisher->query(q{SELECT count(*) FROM pg_replication_slots}), '0', 'no slot is left');

# ---- One table whose rows don't fit ------------------------------------------------------------

$subscriber->query('ALTER TABLE t3 ADD CHECK (v < 500)');
$waves->subscribe;
$waves->wait_state('t3', qr/^failed: .*violates check constraint/);
$waves->wait_state($_, 'ready') for qw(t1 t2 t4 t5 t6);
is($subscriber->query(q{SELECT attempts > 0 AND next_retry > now() - interval '1 min' FROM tandem.tables WHERE name = 't3'}), 't', 'its next try is shown');
$publisher->query(q{INSERT INTO t1 VALUES (5000, 1); INSERT INTO t3 VALUES (5000, 1)});
poll_for(sub { $subscriber->query('SELECT count(*) FROM t1') eq '1001' }, 'changes of the others');
is($subscriber->query('SELECT count(*) FROM t3'), '0', 'nothing of the failed one is here');
$subscriber->query('ALTER TABLE t3 DROP CONSTRAINT t3_v_check');
$waves->wait_ready;
is($subscriber->query('SELECT count(*) FROM t3'), '1001', 'mended, it is copied by itself');

done_testing();
