# Runs the command "tandem" as a user would.
#
#   my ($code, $out, $err) = tandem('status', at($primary), '--json');
#   my ($code, $object) = tandem_json('doctor', at($primary), also($standby));
package Tandem::Command;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use IPC::Run ();
use JSON::PP ();

our @EXPORT = qw(tandem tandem_json at also label apply_fixes);

# Exit code, standard output, standard error.  Nothing of the environment that
# libpq looks at gets in the way.
sub tandem
{
	my (@args) = @_;
	my ($out, $err) = ('', '');
	local %ENV = %ENV;
	delete $ENV{$_} for grep { /^PG(?!REGRESS|CONNECT_TIMEOUT|_)/ } keys %ENV;
	$ENV{PGUSER} = 'postgres' if !defined $ENV{TANDEM_TEST_USER};
	$ENV{PGUSER} = $ENV{TANDEM_TEST_USER} if defined $ENV{TANDEM_TEST_USER};
	IPC::Run::run([ 'tandem', @args ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(120));
	return ($? >> 8, $out, $err);
}

# The same with --json: exit code and the object.  A real parser reads it.
sub tandem_json
{
	my ($command, @args) = @_;
	my ($code, $out, $err) = tandem($command, '--json', @args);
	my $object = eval { JSON::PP->new->utf8->decode($out) }
	  or croak "tandem $command --json printed no JSON ($@): $out$err";
	return ($code, $object, $err);
}

# Options that make a node the first one / one more.
sub at
{
	my ($node) = @_;
	return ('-h', $node->host, '-p', $node->port);
}

sub also
{
	return map { "--node=host='" . $_->host . '\' port=' . $_->port } @_;
}

# How the command names this node.
sub label
{
	my ($node) = @_;
	return ($node->host =~ m{^/} ? 'local' : $node->host) . ':' . $node->port;
}

# Does exactly what a finding says: each line, on its node, then reload or
# restart.
sub apply_fixes
{
	my ($finding, @nodes) = @_;
	my %restart;
	my %reload;
	for my $fix (@{ $finding->{fix} })
	{
		my ($node) = grep { label($_) eq $fix->{node} } @nodes
		  or croak "finding $finding->{code} names node $fix->{node}";
		if ($fix->{kind} eq 'sql')
		{
			$node->safe_psql($fix->{database} // 'postgres', $fix->{line});
		}
		else
		{
			$node->append_conf($fix->{kind}, $fix->{line});
		}
		my $then = $fix->{then} // '';
		$restart{ $node->name } = $node if $then eq 'restart';
		$reload{ $node->name } = $node if $then eq 'reload';
	}
	$_->reload for values %reload;
	$_->restart for values %restart;
	return;
}

1;
