# Catalog rows that slots on a standby need are held on the primary, or the slot
# is not ready.
#
# The hold slot is dropped, by hand and by its timeout, and the primary is killed
# right after an answer; each time vacuum removes catalog rows at once.
# hot_standby_feedback is off.  A slot that relied on rows that are gone must
# not stay ready; it comes back by itself, and decodes.
#
# Without the hold, vacuum would remove the rows while the slot is ready, and
# the comparison in each cycle is what notices its loss.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => q{
	autovacuum = off
	tandem.slot_sync_interval = 1h
});
my $standby = $primary->new_standby('standby', conf => 'hot_standby_feedback = off');

# Rows of changing tables: decoded wrongly or not at all with catalog rows from
# another time.
$primary->query(q{
	CREATE TABLE t (id int PRIMARY KEY, c0 text DEFAULT 'x');
	SELECT pg_create_logical_replication_slot('lagging', 'test_decoding');
	SELECT pg_create_logical_replication_slot('busy', 'test_decoding')});
$primary->advance_slot($_) for qw(lagging busy);

my $row = 0;

# Columns come and go; each leaves dead rows in pg_attribute and pg_attrdef.
sub change_catalogs
{
	my ($times) = @_;
	for (1 .. $times // 3)
	{
		$row++;
		$primary->query("INSERT INTO t (id) VALUES ($row)");
		$primary->query("ALTER TABLE t ADD COLUMN c$row text DEFAULT 'y$row'");
		$primary->query('ALTER TABLE t DROP COLUMN c' . ($row - 1));
	}
	return;
}

# Lets vacuum remove all it may from the catalogs, and the standby replay it.
# Returns how many dead rows it could not remove from pg_attribute.
sub vacuum_catalogs
{
	$primary->query('SELECT pg_current_xact_id()');
	my ($code, $out, $err) = $primary->psql('postgres',
		'VACUUM (VERBOSE, FREEZE) pg_attribute; VACUUM (FREEZE) pg_class; VACUUM (FREEZE) pg_attrdef; VACUUM (FREEZE) pg_type');
	$primary->wait_replayed($standby);
	my ($kept) = $err =~ /(\d+) are dead but not yet removable/
	  or die "unexpected output of VACUUM VERBOSE: $err";
	return $kept;
}

sub cycle
{
	return $standby->query(q{SELECT string_agg(slot_name || ' ' || state, ', ' ORDER BY slot_name)
		FROM tandem.sync_slots()});
}

# The hold covers each slot here and is what the standby believes it to be.
sub hold_covers
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $hold = $primary->slot_value('tandem_hold_standby', 'catalog_xmin');
	my $oldest = $standby->query('SELECT min(catalog_xmin::text::int) FROM pg_replication_slots');
	ok($hold ne '' && $oldest ne '' && $hold <= $oldest,
		"$name: the hold ($hold) covers the slots of the standby ($oldest)");
	return;
}

# ---- A hold that works -------------------------------------------------------------

$primary->wait_replayed($standby);
cycle();
is(cycle(), 'busy ready, lagging ready', 'the slots are ready');
is($primary->query(q{SELECT slot_type, restart_lsn, xmin FROM pg_replication_slots
	WHERE slot_name = 'tandem_hold_standby'}), 'physical||', 'the hold keeps neither WAL nor rows of tables');
hold_covers('at first');

# The primary's own slots move on, those here lag: the hold alone keeps the rows.
change_catalogs();
$primary->advance_slot($_) for qw(lagging busy);
change_catalogs(1);
my $local = $standby->slot_value('lagging', 'catalog_xmin');
cmp_ok($primary->slot_value('lagging', 'catalog_xmin'), '>', $local,
	"the primary's slot has moved beyond the catalog_xmin here ($local)");
cmp_ok(vacuum_catalogs(), '>', 0, 'vacuum leaves dead catalog rows for the standby');
is(cycle(), 'busy ready, lagging ready', 'the slots stay ready');
hold_covers('behind the primary');

# ---- tandem.drop_hold ---------------------------------------------------------------

my $mark = $standby->log_mark;
$primary->query(q{SELECT tandem.drop_hold('standby')});
is($primary->slot_value('tandem_hold_standby', 'slot_name'), '', 'the hold is dropped');
change_catalogs();
$primary->advance_slot($_) for qw(lagging busy);
vacuum_catalogs();
is(cycle(), 'busy ready, lagging ready', 'one cycle after, the slots are ready again');
for my $slot (qw(lagging busy))
{
	like($standby->log_since($mark), qr/dropped failover slot "$slot" on this standby: the primary no longer held its catalog rows/,
		"$slot has been made anew: the old one could not be relied on");
}
hold_covers('made anew');

# ---- tandem.hold_timeout --------------------------------------------------------------

# The worker is silent while WAL flows on.
my $worker = $standby->pid_of(qr/tandem worker/);
stall($worker);
$primary->set('tandem.hold_timeout' => '1s');
poll_for(sub { $primary->slot_value('tandem_hold_standby', 'slot_name') eq '' }, 'the hold to expire');
$primary->wait_log(qr/dropped hold "tandem_hold_standby": its standby has not reported for tandem\.hold_timeout/, 0);
change_catalogs();
$primary->advance_slot($_) for qw(lagging busy);
vacuum_catalogs();
$primary->set('tandem.hold_timeout' => undef);
$mark = $standby->log_mark;
resume($worker);
is(cycle(), 'busy ready, lagging ready', 'after the timeout they are ready again with the next cycle');
like($standby->log_since($mark), qr/dropped failover slot "lagging" on this standby: the primary no longer held/,
	'made anew');
hold_covers('after the timeout');

# Out of touch for longer than that, while WAL flows on: this server notices
# by itself, from the times of the commits it replays.
$primary->set('tandem.hold_timeout' => '2s');
cycle();
$standby->set('tandem.primary_conninfo' => 'host=' . $primary->host . ' port=1 dbname=postgres');
poll_for(sub { $standby->query('SELECT error FROM tandem.sync_status') =~ /could not connect/ },
	'the contact to be lost');
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 't',
	'out of touch, the last proof stays valid');
poll_for(sub { $primary->slot_value('tandem_hold_standby', 'slot_name') eq '' }, 'the hold to expire');
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 't',
	'also later, as long as nothing comes from the primary');
change_catalogs();
vacuum_catalogs();
$standby->wait_slot_state($_, 'pending', qr/no contact with the primary for longer than its tandem\.hold_timeout/)
  for qw(lagging busy);
is($standby->query('SELECT count(*) FROM pg_replication_slots WHERE slot_type = \'logical\''), '0',
	'when WAL from after the end of the hold is replayed, the slots are given up');
like($standby->query('SELECT ready, reason FROM tandem.failover_ready()'),
	qr/^f\|2 of 2 failover slots are not ready/, 'and failover_ready() says so');
$standby->restart;
is($standby->query('SELECT ready FROM tandem.failover_ready()'), 'f', 'also after a restart');
$primary->set('tandem.hold_timeout' => undef);
$standby->set('tandem.primary_conninfo' => undef);
poll_for(sub { cycle() eq 'busy ready, lagging ready' }, 'both to be ready when the contact is back');
hold_covers('back in touch');
$primary->advance_slot('lagging');
my $first = $row + 1;
cycle();

# ---- The primary killed right after its answer ------------------------------------------

for my $round (1 .. 3)
{
	change_catalogs();
	$primary->advance_slot('busy');
	cycle();
	$primary->kill9_all;
	$primary->start;
	change_catalogs(1);
	vacuum_catalogs();
	cycle();
	is(cycle(), 'busy ready, lagging ready', "killed after an answer, round $round: ready");
	hold_covers("round $round");
}

# The same when the hold itself is as new as can be.
$primary->query(q{SELECT tandem.drop_hold('standby')});
cycle();
my $hold = $primary->slot_value('tandem_hold_standby', 'catalog_xmin');
$primary->kill9_all;
$primary->start;
is($primary->slot_value('tandem_hold_standby', 'catalog_xmin'), $hold,
	'a hold is durable before its standby is told');

change_catalogs(2);
vacuum_catalogs();
is(cycle(), 'busy ready, lagging ready', 'ready before the failover');

# ---- Failover: rows that really need the old catalogs ---------------------------------------

$primary->kill9_all;
$standby->promote;
my %rows = map {
	$_ => $standby->query(qq{
		SELECT string_agg(substring(data from 'id\\[integer\\]:(\\d+)'), ' ')
		FROM pg_logical_slot_get_changes('$_', NULL, NULL) WHERE data ~ '^table public.t'})
} qw(lagging busy);
is($rows{lagging}, join(' ', $first .. $row), 'the lagging slot decodes each row since it was last confirmed');
is($rows{busy}, join(' ', $row - 2 .. $row), 'and the busy one');

done_testing();
