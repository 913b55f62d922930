# Everything "tandem doctor" can find is provoked, found, and gone after doing
# exactly what the finding says.  Without the check the finding does not appear;
# with a wrong line it does not go away.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Tandem::Command;
use Tandem::Test;
use Test::More;

# the servers' libpq shall look at nothing but conninfos
delete $ENV{PGDATABASE};

my $primary = Tandem::Node->new_primary('primary');
my $standby = $primary->new_standby('standby');
my @nodes = ($primary, $standby);
my @all = (at($primary), also($standby));

# Quotes for regular expressions and SQL alike.
sub finding
{
	my ($code, $node, @args) = @_;
	my ($exit, $object) = tandem_json('doctor', @args ? @args : @all);
	my ($found) = grep {
		$_->{code} eq $code && (!defined $node || ($_->{node} // '') eq label($node))
	} @{ $object->{findings} };
	return wantarray ? ($found, $exit, $object) : $found;
}

sub wait_finding
{
	my ($code, $node, @args) = @_;
	return poll_for(sub { scalar finding($code, $node, @args) }, "finding $code");
}

sub wait_gone
{
	my ($code, $node, @args) = @_;
	return poll_for(sub { !finding($code, $node, @args) }, "finding $code to go away");
}

# provoke, find, do what it says, gone
sub check
{
	my ($code, $node, $severity, $provoke, @args) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $early = finding($code, $node, @args);
	is($early && $early->{what}, undef, "$code: not found when all is well") if $provoke;
	$provoke->() if $provoke;
	my $found = wait_finding($code, $node, @args);
	is($found->{severity}, $severity, "$code: found as $severity: $found->{what}");
	ok($found->{what} && $found->{cost}, "$code: says what is wrong and what it costs");
	ok(@{ $found->{fix} } > 0, "$code: has a line to change");
	apply_fixes($found, @nodes);
	ok(wait_gone($code, $node, @args), "$code: gone after "
		  . join(' and ', map { $_->{line} } @{ $found->{fix} }));
	return $found;
}

sub set_and_restart
{
	my ($node, %settings) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET $_ = '$settings{$_}'") for sort keys %settings;
	$node->restart;
	return;
}

# ---- A healthy topology -----------------------------------------------------

my ($exit, $object);
poll_for(sub { ($exit, $object) = tandem_json('doctor', @all); $exit == 0 },
	'a healthy topology');
is($exit, 0, 'doctor exits with 0 when all is well');
is(scalar(grep { $_->{severity} ne 'note' } @{ $object->{findings} }), 0, 'and has at most notes');
cmp_ok($object->{checks}, '>', 30, 'after many checks');
ok((grep { $_->{setting} eq 'max_replication_slots' && $_->{node} eq label($primary)
			  && $_->{needed} == 2 && $_->{now} == 20 } @{ $object->{needs} }),
	'slots are counted: one standby and its hold')
  or diag explain $object->{needs};

# ---- Settings, no slot there yet --------------------------------------------

ok(finding('no_failover_slots', $primary), 'no_failover_slots: a note');

check('wal_level', $standby, 'problem', sub { set_and_restart($standby, wal_level => 'replica') });
check('max_replication_slots', $standby, 'problem',
	sub { set_and_restart($standby, max_replication_slots => 1) });
check('max_replication_slots', $primary, 'warning',
	sub { set_and_restart($primary, max_replication_slots => 2) });
set_and_restart($primary, max_replication_slots => 20);
check('max_wal_senders', $primary, 'warning', sub { set_and_restart($primary, max_wal_senders => 2) });
{
	set_and_restart($primary, max_worker_processes => 0);
	ok(wait_finding('worker', $primary), 'worker: found when it can not start');
	check('max_worker_processes', $primary, 'problem', undef);
	ok(wait_gone('worker', $primary), 'worker: gone with it');
}
check('recovery_setting', $standby, 'problem', sub { set_and_restart($primary, max_connections => 70) });
check('wal_log_hints', $primary, 'warning', sub { set_and_restart($primary, wal_log_hints => 'off') });
check('track_commit_timestamp', $primary, 'note', undef);
check('slot_wal_unlimited', $primary, 'note', undef);
ok(finding('slot_wal_limited', $primary), 'slot_wal_limited: a note afterwards');
check('hold_timeout', $primary, 'note', sub { $primary->set('tandem.hold_timeout' => 0) });
check('hot_standby', $primary, 'note', sub { set_and_restart($primary, hot_standby => 'off') });
check('sync_off', $standby, 'problem', sub { $standby->set('tandem.sync_slots' => 'off') });
check('tandem_database', $standby, 'problem',
	sub { set_and_restart($standby, 'tandem.database' => 'template1') });
SKIP:
{
	skip 'native slot sync came with PostgreSQL 17', 5 if $primary->pg_version < 17;
	check('native_sync', $standby, 'warning', sub { $standby->set(sync_replication_slots => 'on') });
}

# ---- Library and extension --------------------------------------------------

check('not_preloaded', $standby, 'problem',
	sub { set_and_restart($standby, shared_preload_libraries => 'auto_explain') });
is($standby->query('SHOW shared_preload_libraries'), 'auto_explain, pg_tandem',
	'not_preloaded: what was preloaded before still is');
check('extension_missing', $primary, 'problem',
	sub { $primary->query('DROP EXTENSION pg_tandem') });
{
	$primary->query(q{UPDATE pg_extension SET extversion = '0.0.9' WHERE extname = 'pg_tandem'});
	my $found = wait_finding('version_mismatch', $primary);
	like($found->{fix}[0]{line}, qr/^ALTER EXTENSION pg_tandem UPDATE TO '\d/,
		'version_mismatch: found, with the command that mends it');
	$primary->query(sprintf q{UPDATE pg_extension SET extversion = '%s' WHERE extname = 'pg_tandem'},
		$primary->query('SELECT tandem.library_version()'));
	ok(wait_gone('version_mismatch', $primary), 'version_mismatch: gone');
}

# ---- The way to the primary -------------------------------------------------

check('primary_slot_name', $standby, 'problem', sub { $standby->set(primary_slot_name => '') });
check('primary_slot_name_long', $standby, 'problem', sub {
	my $long = 'x' x 60;
	$primary->query("SELECT pg_create_physical_replication_slot('$long', true)");
	$standby->set(primary_slot_name => $long);
});
{
	$standby->set(primary_slot_name => 'not_there');
	ok(wait_finding('not_streaming', $standby), 'not_streaming: found');
	check('physical_slot_missing', $standby, 'problem', undef);
	ok(wait_gone('not_streaming', $standby), 'not_streaming: gone with it');
}
$primary->query(q{SELECT pg_create_logical_replication_slot('app', 'test_decoding')});
check('physical_slot_logical', $standby, 'problem', sub { $standby->set(primary_slot_name => 'app') });
$standby->set(primary_slot_name => undef);

# slots of names that were tried out: nobody is connected to them
for (1 .. 10)
{
	my $found = finding('standby_away', $primary) or last;
	apply_fixes($found, @nodes);
}
ok(wait_gone('standby_away', $primary), 'standby_away: gone after dropping what it names');
for (1 .. 10)
{
	my $found = finding('stale_hold', $primary) or last;
	apply_fixes($found, @nodes);
}
ok(wait_gone('stale_hold', $primary), 'stale_hold: gone after ending what it names');

check('standby_away', $primary, 'warning',
	sub { $primary->query(q{SELECT pg_create_physical_replication_slot('gone', true)}) });
check('stale_hold', $primary, 'warning',
	sub { $primary->query(q{SELECT pg_create_physical_replication_slot('tandem_hold_gone')}) });

# its own connection for slots, with a role of its own
my $to_primary = $primary->connstr;
check('role', $standby, 'problem', sub {
	$standby->set('tandem.primary_conninfo' => "$to_primary user=stranger dbname=postgres") });
check('role', $standby, 'problem', sub { $primary->query('ALTER ROLE stranger NOLOGIN') });
check('grant', $standby, 'problem', sub {
	$primary->query('REVOKE EXECUTE ON FUNCTION tandem.source_slots FROM stranger') });
check('dbname', $standby, 'problem', sub {
	$standby->set('tandem.primary_conninfo' => "$to_primary user=stranger dbname=template1") });
{
	$standby->set('tandem.primary_conninfo' => 'host=127.0.0.1 port=1 user=stranger');
	my $found = wait_finding('sync_error', $standby);
	ok($found->{what} && $found->{hint}, "sync_error: $found->{what}");
	$standby->set('tandem.primary_conninfo' => undef);
	ok(wait_gone('sync_error', $standby), 'sync_error: gone');
}

# ---- Slots ------------------------------------------------------------------

$standby->wait_slot_ready('app');
check('standby_slots', $primary, 'problem', sub { $primary->set('tandem.standby_slots' => 'ANY 2 (standby, ghost)') });
is($primary->query('SHOW tandem.standby_slots'), 'ANY 1 (standby)', 'standby_slots: only the wrong name went');
$primary->set('tandem.standby_slots' => 'ANY 1 (standby, ghost)');
is(wait_finding('standby_slots', $primary)->{severity}, 'note', 'standby_slots: a note if enough others can confirm');
$primary->set('tandem.standby_slots' => undef);
{
	$standby->set('tandem.standby_slots' => 'elsewhere');
	my $found = wait_finding('standby_slots_after_failover', $standby);
	is($found->{severity}, 'note', 'standby_slots_after_failover: a note');
	$standby->set('tandem.standby_slots' => undef);
}
{
	my $writer = $primary->background_psql('postgres');
	$writer->query_safe('BEGIN; CREATE TABLE unfinished (i int)');
	my $creator = $primary->background_psql('postgres');
	$creator->query_until(qr/started/,
		"\\echo started\nSELECT pg_create_logical_replication_slot('half', 'test_decoding');\n");
	my $found = wait_finding('slot_not_ready', $primary);
	like($found->{what}, qr/"half" is pending/, "slot_not_ready: $found->{what}");
	ok($found->{hint}, 'slot_not_ready: has a hint');
	$writer->query_safe('COMMIT');
	ok(wait_gone('slot_not_ready', $primary), 'slot_not_ready: gone when it is made');
	$writer->quit;
	$creator->quit;
	$standby->wait_slot_ready('half');
	$primary->query(q{SELECT pg_drop_replication_slot('half')});
}
{
	$primary->query(q{SELECT pg_drop_replication_slot('app')});
	$primary->query(q{SELECT pg_create_physical_replication_slot('slow', true)});
	$primary->switch_wal(3);
	$primary->wait_replayed($standby);
	check('slot_wal_short', $primary, 'warning', sub { $primary->set(max_slot_wal_keep_size => '64MB') });
	$primary->set(max_slot_wal_keep_size => '1MB');
	check('slot_unreserved', $primary, 'warning', undef);
	$primary->set(max_slot_wal_keep_size => '1MB');
	$primary->query('CHECKPOINT');
	my $found = wait_finding('slot_lost', $primary);
	like($found->{what}, qr/"slow" is lost/, "slot_lost: $found->{what}");
	apply_fixes($found, @nodes);
	ok(wait_gone('slot_lost', $primary), 'slot_lost: gone');
	$primary->set(max_slot_wal_keep_size => undef);
	$primary->query(q{SELECT pg_create_logical_replication_slot('app', 'test_decoding')});
	$standby->wait_slot_ready('app');
}

# ---- Several nodes, and nodes that aren't there -----------------------------

{
	my $twin = $primary->new_standby('twin', slot => undef, start => 0,
		conf => "primary_slot_name = 'standby'\n");
	$twin->start;
	push @nodes, $twin;
	check('primary_slot_shared', $twin, 'problem', undef, @all, also($twin));
	$twin->stop;
	my ($found, $code) = finding('unreachable', $twin, @all, also($twin));
	ok($found, 'unreachable: found');
	is($code, 3, 'unreachable: exit code 3');
}
{
	my ($found, $code) = finding('standby_not_asked', $primary, at($primary));
	is($found->{severity}, 'unchecked', 'standby_not_asked: a standby nobody asked is not checked');
	is($code, 1, 'standby_not_asked: exit code 1');
	($found, $code) = finding('no_primary', undef, at($standby), '--no-discover');
	ok($found, 'no_primary: found');
}
{
	$standby->append_conf('postgresql.conf', 'hot_standby = off');
	$standby->stop;
	PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $standby->data_dir, '-l',
		$standby->logfile, '-W', 'start');
	poll_for(sub { -s $standby->data_dir . '/postmaster.pid' }, 'the standby to start');
	$standby->_update_pid(1);
	poll_for(sub { finding('hot_standby', $standby) }, 'finding hot_standby');
	my ($found, $code) = finding('hot_standby', $standby);
	is($code, 3, 'hot_standby off on a standby: exit code 3');
	apply_fixes($found, @nodes);
	ok(wait_gone('hot_standby', $standby), 'hot_standby: gone');
}
{
	my $other = Tandem::Node->new_primary('other', recipe => 1);
	my $follower = $other->new_standby('follower');
	push @nodes, $other, $follower;
	my @recipe = (at($other), also($follower));
	ok(finding('primaries', undef, @all, also($other)), 'primaries: two nodes that take writes are found');
	ok(finding('system_identifier', $follower, @all, also($follower), '--no-discover'),
		'system_identifier: a standby of another cluster is found');

	poll_for(sub { $follower->query('SELECT last_success IS NOT NULL FROM tandem.sync_status') eq 't' },
		'the recipe to work');
	my $hba = $other->data_dir . '/pg_hba.conf';
	check('pg_hba', $follower, 'problem', sub {
		my $rules = slurp_file($hba);
		$rules =~ s/^host +postgres.*\n//m;
		unlink $hba;
		append_to_file($hba, $rules);
		$other->reload;
		poll_for(sub {
			$other->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE usename = 'repl' AND backend_type = 'client backend'});
			$follower->query('SELECT error IS NOT NULL FROM tandem.sync_status') eq 't';
		}, 'the follower to be turned away');
	}, @recipe);

	my $passfile = $follower->basedir . '/pgpass';
	my $passwords = slurp_file($passfile);
	unlink $passfile;
	append_to_file($passfile, $passwords =~ s/:\*:\*:/:*:replication:/r);
	chmod 0600, $passfile;
	$other->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE usename = 'repl' AND backend_type = 'client backend'});
	my $found = wait_finding('password', $follower, @recipe);
	like($found->{hint}, qr/replication.*"postgres"/, 'password: the .pgpass trap is named');
	unlink $passfile;
	append_to_file($passfile, $passwords);
	chmod 0600, $passfile;
	ok(wait_gone('password', $follower, @recipe), 'password: gone');
}

# ---- Doing all that it says leads to health -----------------------------------

my @done;
my $healthy = eval {
	poll_for(sub {
		($exit, $object) = tandem_json('doctor', @all);
		my ($todo) = grep { $_->{severity} ne 'note' && @{ $_->{fix} } } @{ $object->{findings} };
		if ($todo)
		{
			push @done, $todo->{code};
			apply_fixes($todo, @nodes);
		}
		return $exit == 0;
	}, 'health', 90);
};
ok($healthy, 'doing all that doctor says leads to health') or diag explain $object->{findings};
cmp_ok(scalar @done, '<', 20, "in few steps: @done");

# ---- Without the rights to look ---------------------------------------------

{
	$primary->query('CREATE ROLE plain LOGIN');
	$primary->wait_replayed($standby);
	my $code;
	(my $found, $code) = finding('privilege', $primary, @all, '-U', 'plain');
	is($found->{severity}, 'unchecked', 'privilege: what can not be seen is not checked, never fine');
	is($code, 1, 'privilege: exit code 1');
	my ($status) = tandem('status', @all, '-U', 'plain');
	is($status, 1, 'privilege: status exits with 1 too');
	apply_fixes($found, @nodes);
	$primary->wait_replayed($standby);
	($found, $code, $object) = finding('privilege', undef, @all, '-U', 'plain');
	is($found, undef, 'privilege: gone after the GRANT it names');
	my ($all_fine, $report) = (0, '');
	eval { poll_for(sub { ($code, $report) = tandem('doctor', @all, '-U', 'plain'); $all_fine = $code == 0 },
		'all to be fine') };
	ok($all_fine, 'privilege: a member of pg_monitor sees that all is well') or diag $report;
}

# ---- For people -------------------------------------------------------------

my ($code, $out, $err) = tandem('doctor', @all);
is($code, 0, 'in the end all is well');
is($err, '', 'nothing on standard error');
like($out, qr/^note: track_commit_timestamp on /m, 'a finding starts with its severity, code and node');
is((grep { length > 100 && !/^ {8}/ } split /\n/, $out), 0, 'no line is wider than 100 columns');
unlike($out, qr/\e/, 'no colours unless on a terminal');

done_testing();
