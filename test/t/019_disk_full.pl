# A disk that is full where the standby keeps its slots or snapshots: the slots
# concerned say so, nothing is called ready that isn't durable, and all becomes
# ready when there is room again.
#
# Without undoing what could not be saved, a slot would be there, and ready, that
# a crash takes away.

use strict;
use warnings;

use File::Copy qw(move);
use Tandem::Test;
use Test::More;

my $disk = small_disk()
  or plan skip_all => 'no small file system: make check as root provides one';

my $primary = Tandem::Node->new_primary('primary', conf => 'tandem.slot_sync_interval = 1h');
my $standby = $primary->new_standby('standby', start => 0);
my $data = $standby->data_dir;
my $where = "$disk/" . $standby->name . ".$$";
mkdir $where or die "$where: $!";
for my $dir (qw(pg_replslot pg_logical/snapshots))
{
	(my $name = $dir) =~ s{.*/}{};
	move("$data/$dir", "$data/$dir.old") or die $!;
	mkdir "$where/$name", 0700 or die $!;
	move($_, "$where/$name/") for glob "$data/$dir.old/*";
	symlink "$where/$name", "$data/$dir" or die $!;
}
$standby->start;

sub cycle
{
	return $standby->query(q{SELECT string_agg(slot_name || ' ' || state, ', ' ORDER BY slot_name)
		FROM tandem.sync_slots()});
}

$primary->query('CREATE TABLE t (id int)');
$primary->query(q{SELECT pg_create_logical_replication_slot('old', 'test_decoding')});
$primary->advance_slot('old');
$primary->wait_replayed($standby);
poll_for(sub { cycle() eq 'old ready' }, 'the first slot');

# ---- Full ------------------------------------------------------------------------

fill_disk($disk);
$primary->query(q{SELECT pg_create_logical_replication_slot('new', 'test_decoding')});
$primary->advance_slot('new');
$primary->switch_wal(2);
$primary->advance_slot('old') for 1 .. 2;
$primary->wait_replayed($standby);
my $restart = $standby->slot_value('old', 'restart_lsn');
my $mark = $standby->log_mark;
like(cycle(), qr/new pending/, 'on a full disk a new slot is pending') for 1 .. 3;
my $reason = $standby->query(q{SELECT reason || ' / ' || hint FROM tandem.slots WHERE slot_name = 'new'});
like($reason, qr/No space left on device.* \/ ./, 'with the reason and a hint');
is($standby->slot_value('new', 'slot_name'), '', 'and does not exist');
is($standby->slot_value('old', 'restart_lsn'), $restart, 'an old slot does not move in memory only');
my @errors = $standby->log_since($mark) =~ /ERROR:.*No space left.*/g;
cmp_ok(scalar(@errors), '<=', 4, 'errors are logged once, not in each cycle') or diag explain \@errors;

# What is there survives a crash, and nothing else appears.
$standby->set('tandem.sync_slots' => 'off');
$standby->expect_crash;
$standby->kill9_all;
free_disk();
$standby->start;
is($standby->query(q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE slot_type = 'logical'}), 'old',
	'after a crash the slots are those that were ready');
is($standby->query(q{SELECT state FROM tandem.slots WHERE slot_name = 'old'}), 'ready', 'and still are');

# ---- Room again ---------------------------------------------------------------------

$primary->wait_replayed($standby);
poll_for(sub { cycle() eq 'new ready, old ready' }, 'all slots to be ready');
is($standby->query("SELECT restart_lsn > '$restart' FROM pg_replication_slots WHERE slot_name = 'old'"),
	't', 'with room again all are ready and move');
$standby->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $where);

done_testing();
