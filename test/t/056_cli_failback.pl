# What "tandem status" and "tandem doctor" say of failback: who could come back,
# whether the guard works, what would be missing.  Each finding is provoked,
# found, and gone after doing exactly what it says.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', recipe => 1, conf => 'wal_log_hints = on');
my $standby = $primary->new_standby('standby');
my @nodes = ($primary, $standby);
my @all = (at($primary), also($standby));

sub finding
{
	my ($code, $node, @args) = @_;
	my ($exit, $object) = tandem_json('doctor', @args ? @args : @all);
	my ($found) = grep {
		$_->{code} eq $code && (!defined $node || ($_->{node} // '') eq label($node))
	} @{ $object->{findings} };
	return $found;
}

# provoke, find, do what it says, gone
sub check
{
	my ($code, $node, $severity, $provoke) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(finding($code, $node), undef, "$code: not found before") if $provoke;
	$provoke->() if $provoke;
	my $found = poll_for(sub { scalar finding($code, $node) }, "finding $code");
	is($found->{severity}, $severity, "$code: found as $severity: $found->{what}");
	ok($found->{what} && $found->{cost}, "$code: says what is wrong and what it costs");
	ok(@{ $found->{fix} } > 0, "$code: has a line to change");
	apply_fixes($found, @nodes);
	ok(poll_for(sub { !finding($code, $node) }, "finding $code to go away"),
		"$code: gone after " . join(' and ', map { $_->{line} } @{ $found->{fix} }));
	return $found;
}

sub node_of
{
	my ($object, $node) = @_;
	my ($found) = grep { $_->{node} eq label($node) } @{ $object->{nodes} };
	return $found;
}

sub guard_state
{
	my ($state) = @_;
	poll_for(sub { $primary->query('SELECT state FROM tandem.failback') eq $state }, "the guard to be $state");
	return;
}

# ---- all is well ---------------------------------------------------------------------

poll_for(sub { $standby->slot_value('tandem_rejoin', 'count(*)') == 1 }, 'the slot tandem_rejoin');
my ($exit, $object) = tandem_json('status', @all);
is($exit, 0, 'a primary and its standby: healthy');
is(node_of($object, $primary)->{timeline}, 1, 'the timeline');
is(node_of($object, $standby)->{timeline}, 1, '... of the standby');
is(node_of($object, $primary)->{guard}{state}, 'off', 'the guard is off');
for my $node (@nodes)
{
	ok(node_of($object, $node)->{rejoin_ready}, 'could be rejoined: ' . $node->name)
	  or diag explain node_of($object, $node);
}
my ($code, $out) = tandem('status', @all);
like($out, qr/^NODE +ROLE +STATE +TLI .*REJOIN/m, 'the screen has timeline and rejoin');
like($out, qr/^GUARD OF .*\n.*\boff +none\b/m, '... and the guard');
my ($width) = sort { $b <=> $a } map { length } split /\n/, $out;
cmp_ok($width, '<=', 100, '... and is no wider than 100 columns');

# ---- the guard ------------------------------------------------------------------------

# turned on with the lines that doctor shows
my $found = check('no_guard', $primary, 'note');
is(join(' ', map { $_->{line} } @{ $found->{fix} }),
	q{ALTER SYSTEM SET tandem.failback_standbys = 'standby'; ALTER SYSTEM SET tandem.synchronous_transfer = 'data_flush';},
	'no_guard: the two settings');
guard_state('armed');
poll_for(sub { ($exit, $object) = tandem_json('status', @all); $exit == 0 }, 'a healthy topology with the guard on');
is($exit, 0, 'armed: healthy');
is(node_of($object, $primary)->{guard}{mode}, 'data_flush', 'the mode');
ok((grep { $_->{slot} eq 'standby' && $_->{in_guard} } @{ $object->{standbys} }), 'the standby is in the guard');
check('restart_after_crash', $primary, 'note',
	sub { $primary->set(restart_after_crash => 'on') });
check('failback_keep_size', $primary, 'warning',
	sub { $primary->set('tandem.failback_keep_size' => '100MB') });
check('failback_keep_size', $primary, 'warning',
	sub { $primary->set('tandem.failback_keep_size' => '0') });
check('failback_keep_size', $primary, 'warning',
	sub { $primary->set('tandem.failback_keep_size' => '10GB', max_slot_wal_keep_size => '500MB') });
$primary->set(max_slot_wal_keep_size => undef);

# names that are no standby
$found = check('failback_standbys', $primary, 'problem',
	sub { $primary->set('tandem.failback_standbys' => 'standby, ghost') });
like($found->{what}, qr/names "ghost", which does not exist/, 'the name');
guard_state('armed');
ok(!finding('standby_away', $primary), 'the slot tandem_failback is not taken for a standby');

# a standby that stalls
my $receiver = stall($standby->pid_of(qr/walreceiver/));
$primary->set('tandem.failback_timeout' => '1s');
$primary->query('CREATE TABLE t AS SELECT g FROM generate_series(1, 1000) g; CHECKPOINT');
guard_state('degraded');
$found = poll_for(sub { scalar finding('guard_degraded', $primary) }, 'finding guard_degraded');
like($found->{what}, qr/^The guard is degraded since /, "degraded: $found->{what}");
is($found->{severity}, 'warning', '... a warning');
is((tandem_json('status', @all))[0], 1, '... which status shows too');
resume($receiver);
guard_state('armed');
ok(poll_for(sub { !finding('guard_degraded', $primary) }, 'guard_degraded to go away'), 'armed again: gone');

# the list taken away
$found = check('guard_off', $primary, 'problem',
	sub { $primary->set('tandem.failback_standbys' => '') });
guard_state('armed');

# the standby stopped
$standby->stop;
$found = poll_for(sub { scalar finding('guard_waits', $primary, at($primary), '--no-discover') }, 'finding guard_waits');
like($found->{what}, qr/armed, but .*"standby"/, "a standby that is away: $found->{what}");
$standby->start;
ok(poll_for(sub { !finding('guard_waits', $primary) }, 'guard_waits to go away'), 'back: gone');

# a library that can't guard
$primary->append_conf('postgresql.conf', q{tandem.debug_guard_failure = uncalled});
$primary->restart;
$found = poll_for(sub { scalar finding('guard_off', $primary) }, 'finding guard_off');
like($found->{what}, qr/^The guard is off: data pages can't be guarded/, "a failed self test: $found->{what}");
$primary->adjust_conf('postgresql.conf', 'tandem.debug_guard_failure', undef);
$primary->restart;

# ---- what rejoin needs ------------------------------------------------------------------

check('wal_log_hints', $primary, 'warning', sub {
	$primary->safe_psql('postgres', 'ALTER SYSTEM SET wal_log_hints = off');
	$primary->restart;
	($exit, $object) = tandem_json('status', @all);
	is(node_of($object, $primary)->{rejoin_reason}, 'neither wal_log_hints nor data checksums are on', 'status has the reason');
});
check('full_page_writes', $primary, 'warning', sub { $primary->set(full_page_writes => 'off') });
check('failback_keep_size', $standby, 'note', sub { $standby->set('tandem.failback_keep_size' => '0') });
check('rejoin_grant', $standby, 'warning', sub {
	$primary->query('REVOKE EXECUTE ON FUNCTION tandem.source_blocks FROM repl; REVOKE pg_checkpoint FROM repl');
});
check('restore_off', $standby, 'warning', sub {
	$standby->append_conf('postgresql.conf', q{restore_command = '/bin/false'});
	$standby->set(restore_command => '');
});
$standby->adjust_conf('postgresql.conf', 'restore_command', undef);
$standby->reload;

# no room for the slot
$standby->safe_psql('postgres', q{ALTER SYSTEM SET tandem.failback_keep_size = 0});
$standby->reload;
poll_for(sub { $standby->slot_value('tandem_rejoin', 'count(*)') == 0 }, 'tandem_rejoin to go');
$standby->safe_psql('postgres', q{ALTER SYSTEM SET max_replication_slots = 1});
$standby->restart;
$standby->query(q{SELECT pg_create_physical_replication_slot('in_the_way')});
$standby->set('tandem.failback_keep_size' => undef);
$found = poll_for(sub { scalar finding('rejoin_slot', $standby) }, 'finding rejoin_slot');
like($found->{hint}, qr/max_replication_slots/, 'rejoin_slot: found, with a hint');
($exit, $object) = tandem_json('status', @all);
like(node_of($object, $primary)->{rejoin_reason}, qr/ keeps no WAL for it$/, 'so the primary could not be rejoined');
$standby->query(q{SELECT pg_drop_replication_slot('in_the_way')});
ok(poll_for(sub { !finding('rejoin_slot', $standby) }, 'rejoin_slot to go away'), 'rejoin_slot: gone with room for it');
$standby->safe_psql('postgres', q{ALTER SYSTEM RESET max_replication_slots});
$standby->restart;

# no room for the worker
$standby->safe_psql('postgres', q{ALTER SYSTEM SET max_worker_processes = 1});
$primary->safe_psql('postgres', q{ALTER SYSTEM SET max_worker_processes = 1});
$primary->restart;
$primary->wait_replayed($standby);	# it starts with no less than the primary had
$standby->restart;
$found = poll_for(sub { scalar finding('failback_worker', $standby) }, 'finding failback_worker');
like($found->{what}, qr/worker "tandem failback" does not run/, 'failback_worker: found');
ok(finding('max_worker_processes', $standby), '... and so is the cause');
for my $node ($standby, $primary)
{
	$node->safe_psql('postgres', q{ALTER SYSTEM RESET max_worker_processes});
	$node->restart;
}
ok(poll_for(sub { !finding('failback_worker', $standby) }, 'failback_worker to go away'), 'failback_worker: gone');

# ---- an old primary that runs on ----------------------------------------------------------

$primary->wait_replayed($standby);
$standby->promote;
$standby->query('CREATE TABLE new_timeline ()');
$found = poll_for(sub { scalar finding('old_primary', $primary) }, 'finding old_primary');
like($found->{what}, qr/takes writes on timeline 1, which \S+ has left: that is on timeline 2/, 'old_primary: found');
my $data_dir = $primary->data_dir;
like($found->{hint}, qr/tandem rejoin -D \Q$data_dir\E --source "host=\S+ port=${\$standby->port}"/, '... and the way back');
is(finding('old_primary', $standby), undef, 'not of the new one');
($exit, $object) = tandem_json('status', @all);
is(node_of($object, $standby)->{timeline}, 2, 'status has both timelines');
is(node_of($object, $primary)->{timeline}, 1, '... of both');
is($exit, 1, '... and needs attention');

ok(finding('rejoin_waits', $standby), 'rejoin_waits: the new one keeps WAL for it');

# by the line that was shown
$primary->stop('immediate');
my ($rejoin) = $found->{hint} =~ /tandem (rejoin .*)$/;
$standby->append_conf('pg_hba.conf', 'local all all trust');
($code, $out, my $err) = tandem(map { s/^"(.*)"$/$1/r } $rejoin =~ /("[^"]*"|\S+)/g);
is($code, 0, "it works: $rejoin") or diag $out . $err;
$primary->_update_pid(1);
poll_for(sub { !finding('old_primary') }, 'old_primary to go away');
is(finding('rejoin_waits', $standby), undef, 'rejoin_waits: gone');
($exit, $object) = tandem_json('status', at($standby), also($primary));
is(node_of($object, $primary)->{role}, 'standby', 'the old primary is a standby');
is(node_of($object, $primary)->{timeline}, 2, '... on the new timeline');
is(node_of($object, $primary)->{primary_slot_name}, 'tandem_rejoin', '... through the slot that had waited for it');
ok((grep { $_->{slot} eq 'tandem_rejoin' && $_->{connected} && $_->{slot_exists} } @{ $object->{standbys} }),
	'... as which the new primary lists it');

done_testing();
