# The only way to wait in a test: for a condition, with a bound and a name.
package Tandem::Wait;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use PostgreSQL::Test::Utils ();
use Time::HiRes ();

our @EXPORT = qw(poll_for);

# Calls the sub until it returns something true, and returns that.  A sub that
# dies isn't there yet: a server may be starting.  After the timeout (seconds,
# by default that of PostgreSQL's own tests) croaks, saying what was waited for
# and what the last try gave.
#
#   poll_for(sub { $standby->query('SELECT ...') eq 't' }, 'the slot to move');
sub poll_for
{
	my ($condition, $description, $timeout) = @_;
	croak 'poll_for needs a condition and a description'
	  unless ref $condition eq 'CODE' && $description;
	$timeout //= $PostgreSQL::Test::Utils::timeout_default;

	my $deadline = Time::HiRes::time() + $timeout;
	my $pause = 0.02;
	my $last;
	while (1)
	{
		my $result;
		if (eval { $result = $condition->(); 1 })
		{
			return $result if $result;
			$last = defined $result ? "last result \"$result\"" : 'no result';
		}
		else
		{
			chomp($last = "last error: $@");
		}
		last if Time::HiRes::time() >= $deadline;
		Time::HiRes::sleep($pause);
		$pause = $pause < 0.1 ? $pause * 1.5 : 0.1;
	}
	croak "timed out after $timeout s waiting for $description ($last)";
}

1;
