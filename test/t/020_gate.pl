# The gate: nothing leaves through a failover slot before the standbys of
# tandem.standby_slots have flushed it.
#
# Without it a consumer gets rows while the standby is away, and every "held"
# test below sees them.  The topology: a primary with standbys a and b, a
# subscriber, and pg_recvlogical.

use strict;
use warnings;

use IO::Socket::UNIX;
use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $primary = Tandem::Node->new_primary('primary', conf => q{
wal_sender_timeout = 60s
autovacuum = off
});
my $standby_a = $primary->new_standby('a');
my $standby_b = $primary->new_standby('b');
my $subscriber = Tandem::Node->new_subscriber('subscriber');

$primary->query('CREATE TABLE story (id bigserial PRIMARY KEY, line text)');
$primary->query('CREATE TABLE other (id bigserial PRIMARY KEY, line text)');
$subscriber->query('CREATE TABLE story (id bigint PRIMARY KEY, line text)');
$primary->publish('pub', 'story');
$subscriber->subscribe('sub', $primary, 'pub');

# ---- Helpers ----------------------------------------------------------------

sub arrived
{
	my ($line) = @_;
	return $subscriber->query("SELECT count(*) FROM story WHERE line = '$line'") ne '0';
}

sub wait_arrived
{
	my ($line, $timeout) = @_;
	return poll_for(sub { arrived($line) }, "row \"$line\" to reach the subscriber", $timeout);
}

sub insert
{
	my ($line) = @_;
	$primary->query("INSERT INTO story (line) VALUES ('$line')");
	return;
}

# The walsender of the subscription sleeps in the gate: it has read the change.
sub wait_held
{
	my ($slot) = @_;
	$slot //= 'sub';
	poll_for(
		sub {
			$primary->query(qq{
				SELECT count(*) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
				WHERE s.slot_name = '$slot' AND wait_event = 'Extension'}) eq '1';
		},
		"the walsender of \"$slot\" to be held");
	return;
}

# Is everything that a slot's consumer confirmed on disk on a standby?
sub within
{
	my ($slot, $standby) = @_;
	my $confirmed = $primary->slot_value($slot, 'confirmed_flush_lsn');
	return $primary->query(
		"SELECT '$confirmed'::pg_lsn <= restart_lsn FROM pg_replication_slots WHERE slot_name = '$standby'");
}

sub standby_row
{
	my ($slot, $column) = @_;
	return $primary->query("SELECT $column FROM tandem.standbys WHERE slot_name = '$slot'");
}

sub seconds
{
	my ($code) = @_;
	my $start = Time::HiRes::time();
	$code->();
	return Time::HiRes::time() - $start;
}

# A client that speaks the protocol itself, since pg_recvlogical decides when it
# ends a stream.
sub start_stream
{
	my ($slot) = @_;
	return send_query(connect_replication(),
		"START_REPLICATION SLOT \"$slot\" LOGICAL 0/0 (\"skip-empty-xacts\" '1')");
}

sub connect_replication
{
	my $socket = IO::Socket::UNIX->new(Peer => $primary->host . '/.s.PGSQL.' . $primary->port)
	  or die "could not connect: $!";
	my $user = getpwuid $<;
	my $startup = pack('N', 196608)
	  . join("\0", 'user', $user, 'database', 'postgres', 'replication', 'database', '', '');
	print $socket pack('N', 4 + length $startup) . $startup;
	read_until($socket, 'Z');
	return $socket;
}

sub send_query
{
	my ($socket, $query) = @_;
	print $socket 'Q' . pack('N', 5 + length $query) . "$query\0";
	read_until($socket, 'W');
	return $socket;
}

# What a standby sends: it has written, flushed and replayed up to here.
sub send_status
{
	my ($socket, $lsn) = @_;
	my $position = pack 'NN', map { hex } split m{/}, $lsn;
	my $body = 'r' . $position x 3 . pack('NN', 0, 0) . "\0";
	print $socket 'd' . pack('N', 4 + length $body) . $body;
	return;
}

# Sends CopyDone; returns the types of all messages up to ReadyForQuery, where
# a keepalive counts as k and data of the row that is held as D.
sub end_stream
{
	my ($socket) = @_;
	print $socket 'c' . pack('N', 4);
	my $types = read_until($socket, 'Z');
	close $socket;
	return $types;
}

sub read_until
{
	my ($socket, $last) = @_;
	my $types = '';
	local $SIG{ALRM} = sub { die "no message $last from the server, got \"$types\"\n" };
	alarm 30;
	while ($types !~ /$last$/)
	{
		read($socket, my $head, 5) == 5 or die 'connection closed';
		my ($type, $length) = unpack 'aN', $head;
		my $body = '';
		read($socket, $body, $length - 4) == $length - 4 or die 'connection closed' if $length > 4;
		die "server error: $body" if $type eq 'E';
		$type = 'k' if $type eq 'd' && substr($body, 0, 1) eq 'k';
		$type = 'D' if $type eq 'd' && $body =~ /recv 2/;
		$types .= $type;
	}
	alarm 0;
	return $types;
}

# ---- The tests ----------------------------------------------------------------

subtest 'all standbys up' => sub {
	insert('before the gate');
	wait_arrived('before the gate');
	$primary->set('tandem.standby_slots' => 'a, b');
	insert('through the gate');
	wait_arrived('through the gate', 10);
	is(within('sub', 'a'), 't', 'the consumer has no more than standby a');
	is(within('sub', 'b'), 't', 'the consumer has no more than standby b');
	is(standby_row('a', 'in_gate AND connected AND warning IS NULL'), 't', 'tandem.standbys shows it');
};

subtest 'standby down' => sub {
	$standby_a->stop;
	poll_for(sub { standby_row('a', 'connected') eq 'f' }, 'standby a to be gone');
	insert('while a is down');
	wait_held();
	ok(!arrived('while a is down'), 'the row is held');
	is(within('sub', 'a'), 't', 'and not confirmed');
	like(standby_row('a', 'warning'), qr/not connected; 1 logical walsender waits/, 'tandem.standbys says so');
	like(standby_row('a', 'hint'), qr/^Start the standby/, 'with a hint');

	# other WAL: keepalives must not tell more than a has flushed
	$primary->query(q{INSERT INTO other (line) SELECT 'x' FROM generate_series(1, 1000)});
	is(within('sub', 'a'), 't', 'nor is anything after it');

	$standby_a->start;
	wait_arrived('while a is down', 10);
	is(within('sub', 'a'), 't', 'released when a has flushed it');
};

subtest 'idle subscriber' => sub {
	$standby_a->stop;
	poll_for(sub { standby_row('a', 'connected') eq 'f' }, 'standby a to be gone');
	# nothing published: only keepalives could move the slot
	$primary->query(q{INSERT INTO other (line) VALUES ('unpublished')}) for 1 .. 20;
	my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
	my $walsender = $primary->slot_value('sub', 'active_pid');
	poll_for(
		sub { $primary->query("SELECT sent_lsn >= '$end' FROM pg_stat_replication WHERE pid = $walsender") eq 't' },
		'the walsender to pass unpublished changes');
	is(within('sub', 'a'), 't', 'keepalives are capped at what a has flushed');

	$standby_a->start;
	# wal_sender_timeout / 2 would be 30 s: the position must be told when it is reached
	my $took = seconds(sub {
		poll_for(sub { $primary->query("SELECT '$end'::pg_lsn <= confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'sub'") eq 't' },
			'the idle subscriber to confirm', 30);
	});
	cmp_ok($took, '<', 10, 'the idle subscriber confirms as soon as a is back');
	is(within('sub', 'a'), 't', 'but no more');
};

subtest 'wal_sender_timeout shorter than the hold' => sub {
	$primary->set('wal_sender_timeout' => '2s');
	stall($standby_a->pid_of(qr/walreceiver/));
	my $walsender = $primary->slot_value('sub', 'active_pid');
	my $mark = $primary->log_mark;
	insert('a long hold');
	wait_held();
	# the stalled standby's own walsender times out; ours must not
	$primary->wait_log(qr/terminating walsender process due to replication timeout/, $mark, 30);
	my $since = $primary->query('SELECT now()');
	poll_for(sub { $primary->query("SELECT now() - '$since' > interval '6 s'") eq 't' }, 'a hold of 6 s');
	is($primary->slot_value('sub', 'active_pid'), $walsender, 'the held walsender lives through three timeouts');
	ok(!arrived('a long hold'), 'and holds');
	resume_all();
	wait_arrived('a long hold', 20);
	$primary->set('wal_sender_timeout' => undef);
};

subtest 'listed slot missing' => sub {
	my $mark = $primary->log_mark;
	$primary->set('tandem.standby_slots' => 'a, nowhere');
	insert('with a slot missing');
	wait_held();
	ok(!arrived('with a slot missing'), 'held');
	$primary->wait_log(qr/replication slot "nowhere", named in tandem.standby_slots, does not exist/, $mark);
	is(standby_row('nowhere', 'in_gate AND NOT slot_exists AND flush_lsn IS NULL'), 't', 'it has a row in tandem.standbys');
	like(standby_row('nowhere', 'warning'), qr/does not exist; logical walsenders wait for it/, 'with a warning');
	is($primary->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'sub'}), 'pending', 'tandem.slots says pending');
	like($primary->query(q{SELECT reason FROM tandem.slots WHERE slot_name = 'sub'}), qr/"nowhere"/, 'and why');

	# a logical slot of that name is as bad
	$primary->query(q{SELECT pg_create_logical_replication_slot('nowhere', 'test_decoding')});
	poll_for(sub { standby_row('nowhere', 'warning') =~ /is a logical slot/ }, 'the other warning');
	ok(!arrived('with a slot missing'), 'still held');
	$primary->query(q{SELECT pg_drop_replication_slot('nowhere')});

	# once a minute and server, not once a walsender or sleep
	my $lines = () = $primary->log_since($mark) =~ /named in tandem.standby_slots/g;
	is($lines, 1, 'one log line');

	my $took = seconds(sub {
		$primary->set('tandem.standby_slots' => 'a');
		wait_arrived('with a slot missing', 10);
	});
	cmp_ok($took, '<', 2, 'a reload takes effect at once');
};

subtest 'ANY and FIRST with one standby down' => sub {
	$standby_b->stop;
	poll_for(sub { standby_row('b', 'connected') eq 'f' }, 'standby b to be gone');

	$primary->set('tandem.standby_slots' => 'ANY 1 (b, a)');
	insert('any');
	wait_arrived('any', 10);
	is(within('sub', 'a'), 't', 'ANY 1: a has it');

	$primary->set('tandem.standby_slots' => 'FIRST 1 (b, a)');
	insert('first');
	wait_arrived('first', 10);
	is(within('sub', 'a'), 't', 'FIRST 1: a takes the place of b');

	$primary->set('tandem.standby_slots' => 'ANY 2 (a, b)');
	insert('both');
	wait_held();
	ok(!arrived('both'), 'ANY 2: held');
	$standby_b->start;
	wait_arrived('both', 10);
	is(within('sub', 'b'), 't', 'until b has it too');
};

subtest 'reload opens and closes the gate' => sub {
	$standby_a->stop;
	$primary->set('tandem.standby_slots' => 'a');
	insert('reload');
	wait_held();
	ok(!arrived('reload'), 'held');
	$primary->set('tandem.standby_slots' => '');
	wait_arrived('reload', 2);
	insert('open');
	wait_arrived('open', 10);
	$primary->set('tandem.standby_slots' => 'a');
	insert('closed');
	wait_held();
	ok(!arrived('closed'), 'held again');
	# slots that are no failover slots pass
	$primary->set('tandem.failover_slots' => 'app_*');
	wait_arrived('closed', 2);
	$primary->set('tandem.failover_slots' => undef);
	$standby_a->start;
};

subtest 'consumer reconnects while held' => sub {
	$standby_a->stop;
	insert('reconnect');
	wait_held();
	my $walsender = $primary->slot_value('sub', 'active_pid');
	my ($apply) = $subscriber->pids_of(qr/logical replication worker for subscription/);
	kill_process($apply, 'TERM');
	ok(poll_for(sub { !process_alive($walsender) }, 'the held walsender to notice', 5),
		'a client that is gone ends its walsender');
	poll_for(sub { my $new = $primary->slot_value('sub', 'active_pid'); $new ne '' && $new ne $walsender },
		'the subscriber to reconnect');
	wait_held();
	ok(!arrived('reconnect'), 'held for the new connection too');
	$standby_a->start;
	wait_arrived('reconnect', 10);
	is($subscriber->query(q{SELECT count(*) FROM story WHERE line = 'reconnect'}), '1', 'once');
};

subtest 'table copy through a held publisher' => sub {
	$primary->query('CREATE TABLE late (id bigserial PRIMARY KEY, line text)');
	# first bytes like those of our messages
	$primary->query(q{INSERT INTO late (id, line)
		SELECT i, repeat('w', 100) FROM generate_series(1, 1000) i});
	$primary->query('CREATE TABLE letters (line text PRIMARY KEY)');
	$primary->query(q{INSERT INTO letters SELECT chr(97 + i % 26) || 'ABCDEFGHIJKLMNOPQRSTUVWXYZ' || i FROM generate_series(1, 1000) i});
	$subscriber->query('CREATE TABLE late (id bigint PRIMARY KEY, line text); CREATE TABLE letters (line text PRIMARY KEY)');
	$primary->query('ALTER PUBLICATION pub ADD TABLE late, letters');
	$primary->wait_replayed($standby_a);
	$standby_a->stop;
	insert('before the copy');
	wait_held();
	$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	poll_for(sub { $subscriber->query('SELECT count(*) FROM late') eq '1000' &&
			$subscriber->query('SELECT count(*) FROM letters') eq '1000' },
		'the copy of two tables');
	ok(!arrived('before the copy'), 'the copy passes, changes are held');
	$standby_a->start;
	wait_arrived('before the copy', 10);
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'}) eq '0' },
		'the tables to be ready');
	$primary->query(q{INSERT INTO late (id, line) VALUES (2000, 'after')});
	$subscriber->wait_subscription('sub', $primary);
	is_same_table($primary, $subscriber, $_) for qw(late letters story);
};

subtest 'pg_recvlogical, another output plugin' => sub {
	$primary->query(q{SELECT pg_create_logical_replication_slot('recv', 'test_decoding')});
	my ($out, $err) = ('', '');
	my $file = $primary->basedir . '/recv.out';
	my @command = ($primary->installed_command('pg_recvlogical'), '-d', $primary->connstr('postgres'),
		'--slot', 'recv', '--start', '--no-loop', '-f', $file, '-F', '1', '-s', '1',
		'-o', 'skip-empty-xacts=1');
	my $recv = IPC::Run::start(\@command, '>', \$out, '2>', \$err);
	insert('recv 1');
	poll_for(sub { -e $file && slurp_file($file) =~ /recv 1/ }, 'pg_recvlogical to write');
	$standby_a->stop;
	poll_for(sub { standby_row('a', 'connected') eq 'f' }, 'standby a to be gone');
	insert('recv 2');
	wait_held('recv');
	unlike(slurp_file($file), qr/recv 2/, 'not even the rows leave before the commit may');

	# the client dies
	my $walsender = $primary->slot_value('recv', 'active_pid');
	$recv->kill_kill;
	ok(poll_for(sub { !process_alive($walsender) }, 'the held walsender to notice', 5),
		'a client that dies ends its walsender');
	poll_for(sub { $primary->slot_value('recv', 'active') eq 'f' }, 'the slot to be released');

	# a client ends its stream: it must not wait for the standby, and nothing
	# may follow the server's CopyDone but the end of the command
	my $client = start_stream('recv');
	wait_held('recv');
	my $got = '';
	my $took = seconds(sub { $got = end_stream($client) });
	cmp_ok($took, '<', 5, 'a client can end its stream while held');
	like($got, qr/^[kd]*cC+Z$/, 'as the protocol demands');
	poll_for(sub { $primary->slot_value('recv', 'active') eq 'f' }, 'the slot to be released');

	$standby_a->start;
	insert('recv 3');
	my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
	$primary->wait_replayed($standby_a);
	ok(IPC::Run::run([ @command, '--endpos', $end ]), 'pg_recvlogical goes on');
	my $count = () = slurp_file($file) =~ /recv 2/g;
	is($count, 1, 'with what was held, once');
	$primary->query(q{SELECT pg_drop_replication_slot('recv')});
};

subtest 'a standby goes back' => sub {
	# made anew from an older backup, say; played by a client of our own
	$primary->query(q{SELECT pg_create_physical_replication_slot('reborn', true)});
	my $start = $primary->query('SELECT pg_current_wal_flush_lsn()');
	my $reborn = send_query(connect_replication(), "START_REPLICATION SLOT \"reborn\" PHYSICAL $start");
	send_status($reborn, $start);
	$primary->set('tandem.standby_slots' => 'reborn');
	insert('first life');
	wait_held();
	ok(!arrived('first life'), 'held');
	my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
	send_status($reborn, $end);
	wait_arrived('first life', 5);
	poll_for(sub { standby_row('reborn', 'flush_lsn') eq $end }, 'the position in tandem.standbys');
	send_status($reborn, $start);
	poll_for(sub { standby_row('reborn', 'flush_lsn') eq $start }, 'the lower position');
	insert('second life');
	wait_held();
	ok(!arrived('second life'), 'a position that went down counts');
	# a position between the two opens nothing
	send_status($reborn, $end);
	poll_for(sub { standby_row('reborn', 'flush_lsn') eq $end }, 'the position before');
	ok(!arrived('second life'), 'nothing is released early');
	send_status($reborn, $primary->query('SELECT pg_current_wal_flush_lsn()'));
	wait_arrived('second life', 5);
	close $reborn;
	$primary->set('tandem.standby_slots' => 'a');
	poll_for(sub { $primary->slot_value('reborn', 'active') eq 'f' }, 'the slot to be free');
	$primary->query(q{SELECT pg_drop_replication_slot('reborn')});
};

subtest 'fast shutdown, standby down' => sub {
	$standby_a->stop;
	poll_for(sub { standby_row('a', 'connected') eq 'f' }, 'standby a to be gone');
	insert('over the restart');
	wait_held();
	my $took = seconds(sub { $primary->stop('fast') });
	cmp_ok($took, '<', 10, 'a held walsender does not stop a fast shutdown');
	ok(!arrived('over the restart'), 'and does not send');
	$primary->start;
	wait_held();
	ok(!arrived('over the restart'), 'still held after the restart');
	$standby_a->start;
	wait_arrived('over the restart', 30);

	# idle, but its keepalives are capped
	$standby_a->stop;
	poll_for(sub { standby_row('a', 'connected') eq 'f' }, 'standby a to be gone');
	$primary->query(q{INSERT INTO other (line) VALUES ('unpublished')});
	my $end = $primary->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(sub { $primary->query(qq{SELECT sent_lsn >= '$end' FROM pg_stat_replication WHERE application_name = 'sub'}) eq 't' },
		'the walsender to pass it');
	$took = seconds(sub { $primary->stop('fast') });
	cmp_ok($took, '<', 10, 'nor does an idle one');
	$primary->start;
	$standby_a->start;

	# with all standbys up a shutdown still sends everything
	poll_for(sub { standby_row('a', 'connected') eq 't' && $primary->slot_value('sub', 'active') eq 't' },
		'everybody to be back');
	insert('last words');
	$took = seconds(sub { $primary->stop('fast') });
	cmp_ok($took, '<', 10, 'a shutdown with the standby up');
	ok(arrived('last words'), 'sends everything first');
	$primary->start;
};

$primary->stop;
done_testing();
