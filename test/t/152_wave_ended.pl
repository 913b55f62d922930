# One process of a copy at a time is ended, on either side, while the copy is in
# the middle: each is noticed within seconds whatever the others are waiting for,
# and both sides are equal in the end.
#
# Copy workers wait for a local lock here: without the leader's signal they would
# wait on when their wave is over, and no other could begin.  What is set for the
# role on the publisher doesn't end a copy either.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $noticed = 5;    # s; a copy that isn't paused would take less than one

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => 'autovacuum = off');
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "autovacuum = off\ntandem.sync_workers = 2");
my $waves = Tandem::Waves->new($publisher, $subscriber);

my @tables = qw(slow a b c none);
for my $node ($publisher, $subscriber)
{
	$node->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0, filler text);" } @tables);
}
# more than the kernel takes: the publisher's COPY of it waits, too
$publisher->query(q{INSERT INTO slow SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 20000) g});
$publisher->query("INSERT INTO $_ SELECT g, 0, 'row ' || g FROM generate_series(1, 1000) g") for qw(a b c);
$publisher->publish('pub', @tables);

# the sessions of the copy on the publisher
my $sessions = q{FROM pg_stat_activity WHERE application_name LIKE 'pg_tandem%'};

# A wave with its snapshot whose first table waits, and changes after that.
sub begin
{
	$waves->pause('slow');
	if ($subscriber->query('SELECT count(*) FROM pg_subscription') eq '0')
	{
		$waves->subscribe;
	}
	else
	{
		$subscriber->query(q{SELECT tandem.resync('sub', 'slow'), tandem.resync('sub', 'a'), tandem.resync('sub', 'none')});
	}
	$waves->wait_paused;
	poll_for(sub { $subscriber->query(q{SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM tandem.tables WHERE state !~ '^(catching up|ready)$'}) eq 'slow copying' },
		'the other tables to be copied');
	change();
	$waves->wait_applied;
	return;
}

sub change
{
	$publisher->query(join '', map { "UPDATE $_ SET n = n + 1 WHERE id % 10 = 0; DELETE FROM $_ WHERE id % 97 = 1; INSERT INTO $_ SELECT max(id) + 1, 7 FROM $_;" }
		grep { $_ ne 'none' } @tables);
	$publisher->query('INSERT INTO none SELECT count(*) FROM none');
	return;
}

sub sums
{
	my ($node) = @_;
	return $node->query(join(' UNION ALL ', map { "SELECT '$_', count(*), sum(hashtextextended(t::text, 0)::numeric) FROM $_ t" } @tables) . ' ORDER BY 1');
}

sub finish
{
	my ($what) = @_;
	$waves->resume if $waves->{pausing};
	$waves->wait_ready(retry => 1);
	$subscriber->wait_subscription('sub', $publisher);
	is(sums($subscriber), sums($publisher), "$what: all tables are equal");
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
		"$what: the origins of the workers to go");
	is($publisher->query("SELECT count(*) $sessions"), '0', "$what: no session is left there");
	return;
}

sub wait_ended
{
	my ($what, @pids) = @_;
	poll_for(sub { !grep { process_alive($_) } @pids }, "$what to end", $noticed);
	return;
}

# ---- The session that holds the snapshot ------------------------------------------

begin();
my $leader = $subscriber->pid_of(qr/tandem wave/);
my @workers = $subscriber->pids_of(qr/tandem copy/);
is(scalar(@workers), 1, 'one worker waits, the other has found nothing left');
is($publisher->query(qq{SELECT count(pg_terminate_backend(pid)) $sessions AND application_name LIKE 'pg_tandem wave%' AND state = 'idle in transaction'}),
	'1', 'the session with the snapshot is ended');
wait_ended('leader and worker', $leader, @workers);
like($waves->state_of('slow'), qr/^(copying|waiting)/, 'no table has failed for it');
finish('holder');

# ---- A copy worker's session --------------------------------------------------------

begin();
is($publisher->query(qq{SELECT count(pg_terminate_backend(pid)) $sessions AND application_name LIKE 'pg_tandem copy%'}),
	'1', 'the session of the copy is ended');
my $mark = $subscriber->log_mark;
$waves->resume;
$subscriber->wait_log(qr/could not copy table "slow".*(terminating connection|closed the connection|lost|no COPY in progress)/, $mark);
finish('session of a copy');

# ---- Leader, copy worker, apply worker ------------------------------------------------

begin();
$leader = $subscriber->pid_of(qr/tandem wave/);
@workers = $subscriber->pids_of(qr/tandem copy/);
$subscriber->query("SELECT pg_terminate_backend($leader)");
wait_ended('leader and worker', $leader, @workers);
finish('leader');

begin();
my $worker = $subscriber->pid_of(qr/tandem copy/);
$subscriber->query("SELECT pg_terminate_backend($worker)");
$waves->wait_state('slow', 'failed: its copy worker has ended', $noticed);
finish('copy worker');

begin();
my $apply = $subscriber->pid_of(qr/tandem apply/);
$leader = $subscriber->pid_of(qr/tandem wave/);
$subscriber->query("SELECT pg_terminate_backend($apply)");
wait_ended('the apply worker', $apply);
change();
ok(process_alive($leader), 'the wave goes on without the apply worker');
finish('apply worker');

# ---- Somebody wants the workers stopped -------------------------------------------------

begin();
@workers = $subscriber->pids_of(qr/tandem (copy|wave|apply)/);
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = off')});
wait_ended('all workers', @workers);
$waves->resume;
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
finish('paused');

begin();
@workers = $subscriber->pids_of(qr/tandem (copy|wave|apply)/);
$subscriber->query(q{DROP SUBSCRIPTION sub});
wait_ended('the workers of a subscription that is dropped', @workers);
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', 'dropped in the middle: no slot is left');
is($subscriber->query('SELECT count(*) FROM pg_replication_origin'), '0', 'nor an origin');
$waves->resume;
$subscriber->query('TRUNCATE ' . join(', ', @tables));

# ---- Settings of the role on the publisher ------------------------------------------------

$publisher->query('CREATE ROLE copier SUPERUSER REPLICATION LOGIN; ' . join '', map { "ALTER ROLE copier SET $_;" }
	"statement_timeout = '300ms'", "idle_in_transaction_session_timeout = '200ms'", "idle_session_timeout = '200ms'",
	"lock_timeout = '100ms'", 'default_transaction_read_only = on', 'search_path = nowhere',
	'default_transaction_isolation = serializable', "datestyle = 'SQL, DMY'");
$mark = $subscriber->log_mark;
$waves->pause('slow');
$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '" . $waves->conninfo . " user=copier' PUBLICATION pub WITH (enabled = false)");
$subscriber->query(q{SELECT tandem.adopt('sub')});
$waves->wait_paused;
poll_for(sub { $publisher->query("SELECT min(now() - state_change) > '600 ms' $sessions AND application_name LIKE '%copy%'") eq 't' },
	'the session of the copy to be idle, or at its statement, for longer than that');
# another wave needs the session that asks, which is idle meanwhile
$waves->resync('a');
change();
$waves->resume;
$waves->wait_ready;
$subscriber->wait_subscription('sub', $publisher);
is($subscriber->log_since($mark) =~ /((ERROR|FATAL):.*|could not copy.*)/ ? $1 : '', '', 'settings of the role: no session was ended');
is(sums($subscriber), sums($publisher), 'settings of the role: all tables are equal');

done_testing();
