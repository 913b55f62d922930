# Two nodes, and three, write at random to few keys while subscriptions pause and
# servers are killed; the last update wins.  When all is applied, each node must
# have the rows that an oracle computes from what each of them did.
#
# TANDEM_OPERATIONS: statements in all, by default 2,000 for each number of nodes; TANDEM_SEED repeats a run's
# statements and faults, as far as the time they take allows.  With libfaketime the
# clocks are seconds apart.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Mesh;
use Tandem::Oracle;
use Test::More;

my $operations = $ENV{TANDEM_OPERATIONS} // 2000;
my $keys = $ENV{TANDEM_KEYS} // 20;
my $seed = $ENV{TANDEM_SEED} // int(rand(1_000_000));
my @sizes = split /,/, $ENV{TANDEM_NODES} // '2,3';
my $deletes = $ENV{TANDEM_DELETES} // 1;
my $rounds = $ENV{TANDEM_ROUNDS} // 8;

sub pick
{
	my (@list) = @_;
	return $list[ int(rand(@list)) ];
}

# Statements on all nodes at once, from two sessions each.
sub write_all
{
	my ($mesh, $count) = @_;
	my @runs;
	for my $node ($mesh->nodes)
	{
		for my $session (1 .. 2)
		{
			my ($name, $draw) = ($node->name, sprintf '%.6f', rand());
			my ($in, $output) = ("CALL work('$name', $draw, $count, $keys, '$deletes')", '');
			push @runs, { node => $node, output => \$output,
				run => IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c', $in ],
					'<', \undef, '>', \$output, '2>&1') };
		}
	}
	return @runs;
}

sub run_mesh
{
	my ($size) = @_;
	my @names = map { "$_$size" } ('a' .. 'z')[ 0 .. $size - 1 ];
	my %clocks = Tandem::Mesh::can_fake_time() ? ("b$size" => '+2.5s', "c$size" => '-1.5s') : ();
	my $title = "$size nodes, seed $seed" . (%clocks ? ', clocks apart' : '');
	srand($seed);

	my $mesh = Tandem::Mesh->new(nodes => \@names, tables => Tandem::Oracle::tables($size == 2 ? 'DEFAULT' : 'FULL'),
		publication => Tandem::Oracle::publication(), clocks => \%clocks);
	$mesh->connect;

	my $count = int($operations / $rounds / 2 / $size) + 1;
	my %paused;
	for my $round (1 .. $rounds)
	{
		my @runs = write_all($mesh, $count);
		my $event = $round == 1 ? 'nothing' : pick(qw(pause pause resume resume crash nothing));
		my $pair = pick($mesh->pairs);
		my $name = $pair->[0]->name . ' of ' . $pair->[1]->name;
		note "round $round: $event $name";
		if ($event eq 'pause' && !$paused{$name})
		{
			$mesh->pause(@$pair);
			$paused{$name} = $pair;
		}
		elsif ($event eq 'crash')
		{
			$mesh->crash($pair->[0]);
		}
		elsif ($event eq 'resume' && %paused)
		{
			my $which = pick(sort keys %paused);
			$mesh->resume(@{ delete $paused{$which} });
		}
		for my $run (@runs)
		{
			$run->{run}->finish;
			die ${ $run->{output} } if ${ $run->{output} } && $event ne 'crash';
		}
	}
	$mesh->resume(@$_) for values %paused;
	$mesh->converge;

	my $oracle = Tandem::Oracle->new($mesh);
	note $oracle->changes . ' changes';
	cmp_ok($oracle->changes, '>', $operations / 10, "$title: rows were changed");
	$mesh->is_same('t', $title);
	for my $node ($mesh->nodes)
	{
		my @wrong = $oracle->wrong_rows($node);
		is(scalar(@wrong), 0, "$title: as the oracle says on " . $node->name);
		diag($_) for splice @wrong, 0, 2;
		(my $count, @wrong) = $oracle->conflicts($node);
		is(scalar(@wrong), 0, "$title: conflicts as the oracle says on " . $node->name);
		diag($_) for splice @wrong, 0, 3;
		note join ', ', map { "$_ $count->{$_}" } sort keys %$count;
		is($node->query(q{SELECT subscription, last_error FROM tandem.subscriptions
				WHERE last_error !~ 'WAL stream|could not connect|shutting down|starting up|recovery|deadlock detected'}), '',
			'no error of a subscription, but what comes of killed servers and of two workers in each other\'s way, on ' . $node->name);
	}
	$_->stop('immediate') for $mesh->nodes;
	return;
}

note "seed $seed";
run_mesh($_) for @sizes;
done_testing();
