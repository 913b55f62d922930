# The machine loses power: what was not flushed to disk is there, is not, or is
# half there.  First under the old primary, with and without checksums; then
# under "tandem rejoin" itself.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

use PostgreSQL::Test::Utils qw(append_to_file slurp_file system_or_bail);

my $block = 8192;
my $fill = 'SELECT g AS id, md5(g::text) AS x FROM generate_series(%d, %d) g';

srand(my $seed = $ENV{TANDEM_TEST_SEED} // time);
note("seed $seed");

# Writes into a file what a machine may leave of a change from one content to
# another: of each page the old one, the new one, or the first sectors of one
# and the rest of the other; and none of the pages at the end.  Returns how many
# pages are of two parts.
sub tear_file
{
	my ($path, $before, $after) = @_;
	my ($left, $torn) = ('', 0);
	for (my $at = 0; $at < length $after; $at += $block)
	{
		my $new = substr $after, $at, $block;
		my $old = $at < length $before ? substr($before, $at, $block) : "\0" x $block;
		my $way = $new eq $old ? 'same' : ('old', 'new', 'torn', 'torn')[ rand 4 ];
		$new = $old if $way eq 'old';
		if ($way eq 'torn')
		{
			my $sector = 512 * (1 + int rand 15);
			$new = substr($new, 0, $sector) . substr($old, $sector);
			$torn++;
		}
		$left .= $new;
	}
	# a file grown since may be as short as it was
	$left = substr $left, 0, length $before if length $before < length $left && rand > 0.5;
	open my $file, '>:raw', $path or die "$path: $!";
	print {$file} $left;
	close $file or die "$path: $!";
	return $torn;
}

# The files of relations, path to content.
sub contents
{
	my ($dir) = @_;
	my %size = Tandem::Pages::relation_files($dir);
	return { map { $_ => slurp_file("$dir/$_") } grep { !/_(fsm|vm)/ } keys %size };
}

# ---- Under the old primary ---------------------------------------------------------

# What was on disk at the last checkpoint before the fork is durable.  Everything
# since then is not, except WAL.
for my $checksums (0, 1)
{
	my $name = $checksums ? 'with checksums' : 'without checksums';
	my $pair = Tandem::Rejoin->new(initdb => $checksums ? ['--data-checksums'] : []);
	my $durable;
	my $torn = 0;
	$pair->story("power cut, $name",
		before => sub {
			my $node = $pair->primary;
			$node->query($_) for "CREATE TABLE t AS " . sprintf($fill, 1, 20000), 'CREATE INDEX ON t (id)', 'CHECKPOINT';
			$durable = contents($node->data_dir);
			# common to both: after the checkpoint, replicated
			$node->query($_) for q{UPDATE t SET x = 'common' WHERE id % 3 = 0}, 'CREATE TABLE young AS ' . sprintf($fill, 1, 3000),
			  'CREATE INDEX ON young (x)';
		},
		checkpoint_before => 0,
		lost => [ q{UPDATE t SET x = 'lost' WHERE id % 7 = 0}, q{DELETE FROM young WHERE id % 2 = 0}, 'VACUUM young' ],
		checkpoint_after => 0,
		damaged => sub {
			# the pages that its memory had were on their way to the disk: get them
			# from the server that has them, by crash recovery of a copy
			my $node = $pair->old_primary;
			my $copy = $node->basedir . '/recovered';
			system_or_bail('cp', '-a', $node->data_dir, $copy);
			unlink "$copy/postmaster.pid";
			append_to_file("$copy/postgresql.conf", "listen_addresses = ''\ntandem.synchronous_transfer = none\n");
			system_or_bail('pg_ctl', '-s', '-w', '-D', $copy, '-l', "$copy.log", 'start');
			system_or_bail('pg_ctl', '-s', '-w', '-D', $copy, '-m', 'fast', 'stop');
			my $written = contents($copy);
			for my $path (sort keys %{$written})
			{
				next if $path =~ /^global/ || ($durable->{$path} // '') eq $written->{$path};
				$torn += tear_file($node->data_dir . "/$path", $durable->{$path} // '', $written->{$path});
			}
			# the machine booted after the server started
			my $lock = $node->data_dir . '/postmaster.pid';
			unlink $lock;
			cmp_ok($torn, '>', 20, "$name: pages are torn");
		},
		gained => [ q{UPDATE t SET x = 'gained' WHERE id % 11 = 0}, q{INSERT INTO young SELECT id + 10000, x FROM young} ],
		repaired => sub { is($pair->standby->query(q{SELECT count(*) FROM t WHERE x = 'lost'}), 0, "$name: nothing lost is back") });
	$_->stop for $pair->standby, $pair->primary;
}

# ---- Under the command ---------------------------------------------------------------

# The old primary was stopped cleanly, so its own pages are whole; no checksums.
{
	my $pair = Tandem::Rejoin->new;
	my ($primary, $standby) = ($pair->primary, $pair->standby);
	$primary->query('CREATE TABLE t AS ' . sprintf $fill, 1, 20000);
	$pair->part;
	# every page changes, and its version at the fork is what has to come back
	$primary->query(q{UPDATE t SET x = 'lost'});
	$primary->query('CHECKPOINT');
	my $data = $primary->data_dir;
	my $path = $primary->query(q{SELECT pg_relation_filepath('t')});
	$primary->stop('fast');
	$standby->promote;
	$standby->set(primary_conninfo => undef);
	$pair->{fork} = Tandem::Pages::fork_point($standby);

	my $lost = slurp_file("$data/$path");
	my (undef, undef, $err) = do {
		local $ENV{TANDEM_REJOIN_STOP_AT} = 'copy_blocks';
		$pair->rejoin;
	};
	like($err, qr/^stopped at copy_blocks$/m, 'the command ends while it writes pages');
	my $copied = slurp_file("$data/$path");
	cmp_ok(tear_file("$data/$path", $lost, $copied . "\0" x (length($lost) - length $copied)), '>', 20, 'its pages are torn');
	my ($code, $out, $errors) = $pair->rejoin;
	is($code, 0, 'the same command goes on') or diag("$out$errors");
	$pair->caught_up;
	$pair->is_equal('power cut under rejoin');
}

# ---- A damaged page ------------------------------------------------------------------

# Nothing tells before the server reads it: the page isn't ahead, and there are
# no checksums.
{
	my $pair = Tandem::Rejoin->new;
	my ($primary, $standby) = ($pair->primary, $pair->standby);
	$primary->query('CREATE TABLE t AS ' . sprintf $fill, 1, 1000);
	$primary->query('CHECKPOINT');
	my $path = $primary->data_dir . '/' . $primary->query(q{SELECT pg_relation_filepath('t')});
	my $page = substr slurp_file($path), 0, $block;
	$pair->part;
	$primary->query(q{UPDATE t SET x = 'lost' WHERE id = 1});
	$primary->stop('fast');
	$standby->promote;
	$standby->set(primary_conninfo => undef);

	substr $page, 12, 4, pack 'S2', 8000, 100;	# free space from 8000 to 100
	open my $file, '+<:raw', $path or die "$path: $!";
	print {$file} $page;
	close $file or die "$path: $!";
	my ($code, $out, $err) = $pair->rejoin;
	is($code, 1, 'a node with a damaged page is no success');
	like($err, qr/^tandem: error: page that was to be compared is damaged: invalid page in block 0/m, 'with the reason');
	like($err, qr/^tandem: hint: Do not use this node/m, 'and what it means');
}

done_testing();
