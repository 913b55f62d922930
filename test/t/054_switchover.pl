# The planned switchover of docs/switchover.md, every command as it stands
# there.  A page that has become wrong fails here.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};

my $a = Tandem::Node->new_primary('a');
my $b = $a->new_standby('b');
my $s = Tandem::Node->new_subscriber('s');
$a->set('tandem.standby_slots' => 'b');

$_->query('CREATE TABLE t (i int PRIMARY KEY, x text)') for $a, $s;
$a->query(q{INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 100) i});
$a->publish('pub');
$s->subscribe('sub', $a, 'pub');
$a->query(q{INSERT INTO t SELECT i, 'streamed' FROM generate_series(101, 200) i});
$s->wait_subscription('sub', $a);
$b->wait_slot_ready('sub');
poll_for(sub { (tandem('status', at($a), also($b)))[0] == 0 }, 'a healthy topology');

# ---- The page --------------------------------------------------------------------

my ($page) = grep { -e } 'docs/switchover.md', '../docs/switchover.md';
ok($page, 'the page is there') or BAIL_OUT('docs/switchover.md not found');
my $text = slurp_file($page);
my ($setup) = $text =~ /^```sh setup\n(.*?)^```/ms;
my @names = $setup =~ /^(\w+)=/mg;
my $socket = $a->host;
my %value = (
	(map { uc($_->name) => "host=$socket port=" . $_->port . ' dbname=postgres user=postgres' } $a, $b, $s),
	A_DATA => $a->data_dir, B_DATA => $b->data_dir,
	A_FOR_STANDBY => "host=$socket port=" . $a->port . ' user=postgres',
	B_FOR_STANDBY => "host=$socket port=" . $b->port . ' user=postgres',
	B_FOR_SUBSCRIBER => "host=$socket port=" . $b->port . ' dbname=postgres user=postgres');
is_deeply([ sort @names ], [ sort keys %value ], 'the names that the page uses');
my $assign = join '', map { "$_='$value{$_}'\n" } sort keys %value;

my $section = '';
my $steps = 0;
my $variables = '';
while ($text =~ /^(?:## ([^\n]*)|```sh( until)?\n(.*?)^```)$/msg)
{
	my ($title, $until, $block) = ($1, $2, $3);
	if (defined $title) { $section = $title; next; }
	my $output = '';
	my $run = sub {
		return IPC::Run::run([ 'bash', '-euo', 'pipefail', '-c', "$assign$block" ],
			'<', \undef, '>', \$output, '2>&1', IPC::Run::timeout(180));
	};
	my $ok = $until ? eval { poll_for($run, $section) } : $run->();
	ok($ok, "step $section") or diag "$block\n$output";
	last unless $ok;
	$steps++;

	if ($section =~ /^3\./)
	{
		$a->{_pid} = undef;
	}
	elsif ($section =~ /^5\./)
	{
		$b->query(q{INSERT INTO t SELECT i, 'on b' FROM generate_series(201, 300) i});
	}
	elsif ($section =~ /^7\./)
	{
		$a->_update_pid(-1);
	}
}
is($steps, 10, 'all steps of the page were run');

# ---- And it did what it says -------------------------------------------------------

$s->wait_subscription('sub', $b);
is_same_table($b, $s, 't', 'no row is lost, none doubled');
is($s->query('SELECT count(*) FROM t'), '300', 'and all are there');
is($a->query('SELECT pg_is_in_recovery()'), 't', 'A is a standby');
$b->wait_replayed($a);
is_same_table($b, $a, 't', 'A has it all too');
poll_for(sub { (tandem('status', at($b), also($a)))[0] == 0 }, 'a healthy topology after the switchover');
# its slot for a rejoin comes within a turn of the worker
my @doctor;
my $quiet = eval {
	poll_for(sub { @doctor = tandem('doctor', at($b), also($a)); $doctor[0] == 0 }, 'doctor to be content', 30);
};
ok($quiet, 'doctor has nothing to say about it') or diag @doctor;

done_testing();
