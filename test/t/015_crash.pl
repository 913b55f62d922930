# Kill -9 at any point of a cycle leaves slots that are proven, or none.
#
# A standby is killed while it makes, moves and drops slots; a primary is killed
# whose slots, back from disk, are older than those of the standby.  No
# leftovers, nothing goes backwards, no error repeats.
#
# Without the order of writes (file of ours, slot, effective values) a killed
# standby would come back with slots it takes for somebody else's, or with a
# restart_lsn whose snapshot is gone.

use strict;
use warnings;

use Tandem::Test;
use Test::More;
use Time::HiRes ();

my $seed = $ENV{TANDEM_SEED} // time;
srand $seed;
diag("TANDEM_SEED=$seed");

my $primary = Tandem::Node->new_primary('primary', conf => q{
	tandem.slot_sync_interval = 10ms
	max_replication_slots = 40
});
my $standby = $primary->new_standby('standby');
$standby->expect_crash;
$primary->query('CREATE TABLE t (id serial PRIMARY KEY)');

sub same_positions
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $query = q{SELECT string_agg(slot_name || ' ' || confirmed_flush_lsn, E'\n' ORDER BY slot_name)
		FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary};
	my ($here, $there);
	poll_for(
		sub {
			$here = $standby->query($query);
			$there = $primary->query($query);
			$here eq $there
			  && $standby->query(q{SELECT count(*) FROM tandem.slots WHERE state <> 'ready'}) eq '0';
		},
		'the slots of both servers to agree') or return;
	is($here, $there, $name);
	return;
}

# ---- The standby killed during cycles --------------------------------------------

my %restart;
my $backwards = 0;
my $mark = $standby->log_mark;
my $rounds = 8;
for my $round (1 .. $rounds)
{
	# Work for the cycles that follow: slots to make, to move and to drop.
	$primary->query(qq{
		SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name LIKE 'slot_%' AND random() < 0.4;
		SELECT pg_create_logical_replication_slot('slot_${round}_' || i, 'test_decoding')
		FROM generate_series(1, 4) i});
	$primary->advance_slot("slot_${round}_1");
	$primary->query(q{INSERT INTO t DEFAULT VALUES});
	$primary->query(q{SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn())
		FROM pg_replication_slots WHERE slot_name LIKE 'slot_%' AND random() < 0.5});
	Time::HiRes::sleep(rand 0.08);    # the moment of the crash, not a wait
	$standby->kill9_all;
	$standby->start;

	my @foreign = split /\n/, $standby->query(
		q{SELECT slot_name || ': ' || reason FROM tandem.slots WHERE state = 'foreign'});
	is("@foreign", '', "round $round: no slot is taken for somebody else's");

	# What is here is proven: each slot has its snapshot, or a proof without.
	my %now = map { split / / } split /\n/, $standby->query(
		q{SELECT slot_name, restart_lsn FROM pg_replication_slots WHERE NOT temporary})
	  =~ s/\|/ /gr;
	for my $slot (keys %now)
	{
		$backwards++ if $restart{$slot}
		  && $standby->query("SELECT '$now{$slot}'::pg_lsn < '$restart{$slot}'::pg_lsn") eq 't';
	}
	%restart = %now;
}
is($backwards, 0, 'no restart_lsn has gone backwards');
same_positions('after the crashes the slots are those of the primary');

my $data = $standby->data_dir;
is(join(' ', glob "$data/pg_replslot/*.tmp $data/pg_wal/xlogtemp* $data/pg_tandem/*.tmp"), '',
	'no temporary files are left');
poll_for(sub { $standby->query('SELECT count(*) FROM pg_replication_slots WHERE temporary') eq '0' },
	'the reserve to be released when all is proven');
my $ondisk = join ' ', sort map { m{([^/]+)$} } glob "$data/pg_replslot/*";
is($ondisk, $standby->query(q{SELECT string_agg(slot_name, ' ' ORDER BY slot_name COLLATE "C")
	FROM pg_replication_slots}), 'no slots are left on disk');

# ---- The primary's slots older than ours ------------------------------------------

$primary->query(q{SELECT pg_create_logical_replication_slot('main', 'test_decoding')});
$primary->advance_slot('main');
$standby->wait_slot_ready('main');
$primary->query('CHECKPOINT');

# confirmed_flush alone is in the primary's memory only, until a checkpoint.
$primary->query('INSERT INTO t DEFAULT VALUES');
$primary->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('main', NULL, NULL)});
my $confirmed = $primary->slot_value('main', 'confirmed_flush_lsn');
poll_for(sub { $standby->slot_value('main', 'confirmed_flush_lsn') eq $confirmed },
	'the standby to follow');
my $restart = $standby->slot_value('main', 'restart_lsn');
$mark = $standby->log_mark;
$primary->kill9_all;
$primary->start;
my $older = $primary->slot_value('main', 'confirmed_flush_lsn');
is($primary->query("SELECT '$older'::pg_lsn < '$confirmed'::pg_lsn"), 't',
	"the primary's slot is back at an older position");

my $cycles = $standby->query('SELECT cycles FROM tandem.sync_status');
poll_for(sub { $standby->query("SELECT cycles > $cycles + 5 FROM tandem.sync_status") eq 't' },
	'cycles with the restarted primary');
is($standby->slot_value('main', 'confirmed_flush_lsn'), $confirmed, 'the slot here stays where its consumer was');
is($standby->slot_value('main', 'restart_lsn'), $restart, 'with its restart_lsn');
is($standby->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'main'}), 'ready', 'and is ready');
unlike($standby->log_since($mark), qr/dropped failover slot/, 'it was not made anew');
my @errors = $standby->log_since($mark) =~ /(tandem worker.*ERROR:.*|\bERROR:  (?!could not connect|lost the connection).*)/g;
cmp_ok(scalar(@errors), '<=', 1, 'no error loop') or diag(join "\n", @errors);

# The consumer goes on and the slot follows.
$primary->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('main', NULL, NULL)});
$primary->query('INSERT INTO t DEFAULT VALUES');
$primary->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('main', NULL, NULL)});
same_positions('then both agree again');

done_testing();
