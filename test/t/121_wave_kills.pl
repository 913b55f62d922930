# Whoever ends in the middle of a copy under load, by a signal copy worker, leader,
# apply worker, by signal 9 the whole subscriber or publisher: in the end both sides are equal,
# and no origin or slot is left over.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $restart = "restart_after_crash = on\n";
my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => $restart);
$subscriber->expect_crash;
$publisher->expect_crash;

my @tables = map { "t$_" } 1 .. 12;
for my $node ($publisher, $subscriber)
{
	$node->query(join '', map { "CREATE TABLE $_ (id int PRIMARY KEY, n int DEFAULT 0, filler text);" } @tables);
}
$publisher->query(join '', map { "INSERT INTO $_ SELECT g, 0, repeat('x', 100) FROM generate_series(1, 20000) g;" } @tables);
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES');

my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;
my $script = '';
$script .= "\\set i random(1, 25000)\nINSERT INTO $_ VALUES (:i, 1) ON CONFLICT (id) DO UPDATE SET n = $_.n + 1;\n\\set d random(1, 25000)\nDELETE FROM $_ WHERE id = :d;\n"
  for @tables[ 0 .. 3 ];

my %victims = (
	'copy worker' => qr/tandem copy/,
	'leader' => qr/tandem wave/,
	'apply worker' => qr/tandem apply/);

sub fresh_subscription
{
	$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false)");
	$subscriber->query(q{SELECT tandem.adopt('sub')});
	return;
}

sub check_equal
{
	my ($after) = @_;
	poll_for(
		sub {
			($subscriber->psql('postgres',
				q{SELECT tandem.resync('sub', relid) FROM tandem.tables WHERE state = 'failed'}))[0] == 0
			  and $subscriber->query(q{SELECT count(*) FILTER (WHERE state <> 'ready') FROM tandem.tables}) eq '0';
		},
		"all tables ready after $after", 60);
	return;
}

sub differences
{
	my @different;
	for my $table (@tables)
	{
		my $sum = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM $table t";
		push @different, $table if $publisher->query($sum) ne $subscriber->query($sum);
	}
	return join ', ', @different;
}

for my $victim ('copy worker', 'leader', 'apply worker', 'subscriber', 'publisher')
{
	my $load = $publisher->start_load(clients => 2, script => $script);
	fresh_subscription();
	poll_for(sub { $subscriber->query(q{SELECT count(*) FILTER (WHERE state IN ('copying', 'catching up')) > 0 FROM tandem.tables}) eq 't' },
		'the copy to run');
	if ($victim eq 'subscriber')
	{
		$subscriber->kill9_all;
		$subscriber->start;
	}
	elsif ($victim eq 'publisher')
	{
		$publisher->kill9_all;
		$publisher->stop_load($load);
		$publisher->start;
		$load = $publisher->start_load(clients => 2, script => $script);
	}
	else
	{
		my ($pid) = $subscriber->pids_of($victims{$victim});
		kill 'TERM', $pid if $pid;
	}
	check_equal($victim);
	$publisher->stop_load($load);
	$publisher->query('INSERT INTO t12 SELECT max(id) + 1 FROM t12');
	my $last = $publisher->query('SELECT max(id) FROM t12');
	poll_for(sub { $subscriber->query('SELECT max(id) FROM t12') eq $last }, 'the last change');
	is(differences(), '', "equal after the end of the $victim");
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
		'no origin of a worker left');
	$subscriber->query('DROP SUBSCRIPTION sub');
	is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', 'no slot left');
	is($subscriber->query('SELECT count(*) FROM pg_replication_origin'), '0', 'no origin left');
	$subscriber->query('TRUNCATE ' . join(', ', @tables));
}

done_testing();
