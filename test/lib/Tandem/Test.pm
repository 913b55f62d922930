# The test library: everything a TAP test of pg_tandem says starts here.
#
#   use strict;
#   use warnings;
#   use Tandem::Test;
#   use Test::More;
#
#   my $primary = Tandem::Node->new_primary('primary');
#   my $standby = $primary->new_standby('standby');
#   my $subscriber = Tandem::Node->new_subscriber('subscriber');
#
# Tandem::Node    servers and topologies (a subclass of PostgreSQL::Test::Cluster,
#                 whose methods all work too)
# Tandem::Wait    poll_for(): the only way to wait
# Tandem::Fault   kill, stall, resume, fill a disk
# Tandem::Pages   the LSN of every page on disk (not loaded by itself)
#
# Two rules.  A wait names what it waits for and has a bound; nothing sleeps.
# A test that passes without the code it tests is a defect: say in its opening
# comment what it would look like without the fix.
package Tandem::Test;

use strict;
use warnings;

use Exporter 'import';
use Test::More ();

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Tandem::Fault;
use Tandem::Node;
use Tandem::Wait;

our @EXPORT = (
	@Tandem::Fault::EXPORT, @Tandem::Wait::EXPORT,
	qw(is_same_table table_checksum slurp_file append_to_file));

# Servers take ports from here up, so that several test runs share a machine.
INIT
{
	$PostgreSQL::Test::Cluster::last_port_assigned =
	  $ENV{TANDEM_TEST_PORT} + $$ % 400
	  if $ENV{TANDEM_TEST_PORT};
}

# Number of rows of a table or query and a sum over their contents that doesn't
# depend on their order.
sub table_checksum
{
	my ($node, $table, $dbname) = @_;

	$table = "($table)" if $table =~ /^\s*select\s/i;
	return $node->safe_psql(
		$dbname // 'postgres',
		"SELECT count(*) || ' rows, sum ' ||
			coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)
		FROM $table AS t");
}

# Test: the table (or query) has the same rows on both nodes.  When it has not,
# shows the first rows that only one of them has.
sub is_same_table
{
	my ($left, $right, $table, $name, $dbname) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return 1
	  if Test::More::is(
		table_checksum($right, $table, $dbname),
		table_checksum($left, $table, $dbname),
		$name // "$table is the same on " . $left->name . ' and ' . $right->name);

	my $from = $table =~ /^\s*select\s/i ? "($table)" : $table;
	my @rows =
	  map { [ split /\n/, $_->safe_psql($dbname // 'postgres', "SELECT t::text FROM $from AS t") ] }
	  ($left, $right);
	my %balance;
	$balance{$_}++ for @{ $rows[0] };
	$balance{$_}-- for @{ $rows[1] };
	my @different = grep { $balance{$_} != 0 } sort keys %balance;
	for my $row (splice @different, 0, 10)
	{
		my $node = $balance{$row} > 0 ? $left : $right;
		Test::More::diag(abs($balance{$row}) . "x only on " . $node->name . ": $row");
	}
	Test::More::diag("... and " . scalar(@different) . " more") if @different;
	return 0;
}

# A server that crashed, an assertion that failed or a sanitizer's finding is a
# failure, whatever the test itself was looking at.  A test that provokes one
# says so: $node->expect_crash.
END
{
	my $exit_code = $?;

	for my $node (@PostgreSQL::Test::Cluster::all_nodes)
	{
		next if $node->{tandem_crash_expected};
		for my $log (glob "$node->{_logfile_base}*.log")
		{
			my @findings = grep {
				/TRAP: |was terminated by signal (?:4|6|7|8|11)\b
				|ERROR:\ AddressSanitizer|runtime\ error:|AddressSanitizer:DEADLYSIGNAL/x
			} split /\n/, slurp_file($log);
			next unless @findings;
			Test::More::diag("server \"" . $node->name . "\" crashed or was found at fault, see $log:");
			Test::More::diag($_) for splice @findings, 0, 5;
			$exit_code ||= 1;
		}
	}
	$? = $exit_code;
}

1;
