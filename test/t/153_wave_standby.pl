# The subscriber is lost in the middle of a wave under load, and replaced by its
# standby, then that one by a base backup: spools, copied rows and the origin's
# position are in one WAL, so each change is there exactly once, and no table is
# copied again whose copy had committed.
#
# The standby is synchronous, and the apply worker stands still from before the
# backup: what the publisher was told is flushed must be in what goes on.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $first = Tandem::Node->new_subscriber('first', library => 1, conf => "tandem.sync_workers = 1\nhot_standby = on\n");
my $second = $first->new_standby('second');
my $third = Tandem::Node->new('third');
$first->set(synchronous_standby_names => 'second');
$_->expect_crash for $first, $second;

# "slow" waits with its first row, "wait" too when "slow" is done; then come a and b
my @copied = qw(slow wait a b);
my @tables = (@copied, qw(none log));
for my $node ($publisher, $first)
{
	$node->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0, filler text);" } grep { $_ ne 'log' } @tables);
	$node->query('CREATE TABLE log (x int)');
}
# a worker commits after 16 MB, which "slow" has even if the load has replaced all rows that it may
$publisher->query(q{INSERT INTO slow SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 24000) g;
	INSERT INTO wait SELECT g, 0, repeat('x', 1000) FROM generate_series(1, 4000) g;
	INSERT INTO a SELECT g, 0, 'a' FROM generate_series(1, 2000) g; INSERT INTO b SELECT g, 0, 'b' FROM generate_series(1, 1000) g});
$publisher->publish('pub', @tables);

my $script = "BEGIN;\n\\set r random(1, 1000)\nINSERT INTO log VALUES (:r);\n" . join('', map {
	"\\set i random(1, 6000)\nINSERT INTO $_ AS o VALUES (:i, 1) ON CONFLICT (id) DO UPDATE SET n = o.n + 1;\n\\set d random(1, 6000)\nDELETE FROM $_ WHERE id = :d;\n" }
	@copied) . "END;\n";

sub sums
{
	my ($node) = @_;
	return $node->query(join(' UNION ALL ', map { "SELECT '$_', count(*), sum(hashtextextended(t::text, 0)::numeric) FROM $_ t" } @tables) . ' ORDER BY 1');
}

# The state of each table: copied or not, and in which wave.
sub states
{
	my ($node) = @_;
	return { map { my ($name, @rest) = split /\|/; $name => \@rest }
		  split /\n/, $node->query('SELECT name, state, wave, spool_bytes FROM tandem.tables') };
}

# In the middle: slow has to catch up, the others are being copied, all four have spools.
sub into_the_middle
{
	my ($waves) = @_;
	my $node = $waves->{subscriber};

	poll_for(sub { my $state = states($node); !grep { $state->{$_}[2] == 0 } @copied }, 'changes in all spools');
	my ($apply) = $node->pid_of(qr/tandem apply/);
	stall($apply);
	$waves->resume;
	poll_for(sub { states($node)->{slow}[0] eq 'catching up' }, 'one table to be copied');
	my $state = states($node);
	is(join(', ', map { "$_ $state->{$_}[0]" } @copied, 'none'),
		'slow catching up, wait copying, a copying, b copying, none ready', 'in the middle of the wave');
	return $state;
}

# Another node goes on.
sub check
{
	my ($what, $node, $load, $before) = @_;
	my $waves = Tandem::Waves->new($publisher, $node);

	$waves->wait_ready(retry => 1, timeout => 90);
	$publisher->stop_load($load);
	$node->wait_subscription('sub', $publisher);
	is(sums($node), sums($publisher), "$what: all tables are equal");
	my $now = states($node);
	is($now->{$_}[1], $before->{$_}[1], "$what: $_ was not copied again")
	  for grep { $before->{$_}[0] =~ /^(catching up|ready)$/ } @tables;
	poll_for(sub { $node->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
		'the origins of the workers to go');
	return;
}

# A second trigger, as of Tandem::Waves, with a lock of its own.
sub pause_second
{
	my ($node) = @_;
	$node->query(q{
		CREATE OR REPLACE FUNCTION public.wait_too() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
			BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(153); RETURN NULL; END $$;
		CREATE OR REPLACE TRIGGER wait_too BEFORE INSERT ON wait FOR EACH STATEMENT EXECUTE FUNCTION public.wait_too();
		ALTER TABLE wait ENABLE ALWAYS TRIGGER wait_too});
	return Tandem::Waves->session($node, 'SELECT pg_advisory_lock(153)');
}

# ---- Its standby is promoted ------------------------------------------------------

my $load = $publisher->start_load(clients => 2, script => $script);
my $waves = Tandem::Waves->new($publisher, $first);
my $pause = pause_second($first);
$waves->pause('slow');
$waves->subscribe(with => 'synchronous_commit = on');
$waves->wait_paused;
$waves->wait_state('none', 'ready');
my $before = into_the_middle($waves);
$first->kill9_all;
$second->promote;
check('promoted standby', $second, $load, $before);
Tandem::Waves->end_session($pause);

# ---- A base backup in its place ------------------------------------------------------

$load = $publisher->start_load(clients => 2, script => $script);
$second->query(q{ALTER SYSTEM RESET synchronous_standby_names});
$second->reload;
$waves = Tandem::Waves->new($publisher, $second);
$pause = pause_second($second);
$waves->pause('slow');
# in one transaction, so that they are in one wave
$second->query('SELECT ' . join ', ', map { "tandem.resync('sub', '$_')" } @copied);
$waves->wait_paused;
$before = into_the_middle($waves);
$second->backup('middle');
$second->kill9_all;
$third->init_from_backup($second, 'middle');
$third->start;
check('base backup', $third, $load, $before);
Tandem::Waves->end_session($pause);

# the slot is taken by the new one, and by nobody else
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '1', 'one slot');
$third->query('DROP SUBSCRIPTION sub');
is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', 'which goes with the subscription');
is($third->query('SELECT count(*) FROM pg_replication_origin'), '0', 'and its origin');

done_testing();
