# Our subscription and the server's own one side by side: two databases of one
# subscriber, "postgres" (ours) and "core", with the same tables, subscribed to the
# same publications.
#
#   my $beside = Tandem::Beside->new($publisher, $subscriber);
#   $beside->here('CREATE TABLE t (id int PRIMARY KEY)');     # in both
#   $beside->subscribe('pub');                                # and wait for the copies
#   $publisher->query('INSERT INTO t VALUES (1)');
#   $beside->applied;
#   $beside->both('SELECT * FROM t', '1', 'an insert');       # as expected, and as the server does
#   $beside->unsubscribe('pub');                              # drops the publication, too
package Tandem::Beside;

use strict;
use warnings;

use Tandem::Wait;
use Test::More ();

sub new
{
	my ($class, $publisher, $node) = @_;
	(my $conninfo = $publisher->connstr('postgres')) =~ s/'/''/g;
	$node->query('CREATE DATABASE core');
	return bless { publisher => $publisher, node => $node, conninfo => $conninfo }, $class;
}

sub here
{
	my ($self, $sql) = @_;
	$self->{node}->query($sql, $_) for 'postgres', 'core';
	return;
}

# Further options of CREATE SUBSCRIPTION in $with.
sub subscribe
{
	my ($self, $publications, $with) = @_;
	my $create = "CONNECTION '$self->{conninfo}' PUBLICATION $publications WITH (" . ($with ? "$with, " : '');
	$self->{node}->query("CREATE SUBSCRIPTION ours $create enabled = false)");
	$self->{node}->query(q{SELECT tandem.adopt('ours')});
	$self->{node}->query("CREATE SUBSCRIPTION core $create enabled = true)", 'core');
	$self->copied;
	return;
}

sub copied
{
	my ($self) = @_;
	poll_for(sub { $self->{node}->query(q{SELECT bool_and(state = 'ready') FROM tandem.tables}) eq 't' }, 'our copies');
	poll_for(sub { $self->{node}->query(q{SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'}, 'core') eq '0' }, "the server's copies");
	return;
}

sub refresh
{
	my ($self) = @_;
	$self->{node}->query('ALTER SUBSCRIPTION ours REFRESH PUBLICATION');
	$self->{node}->query('ALTER SUBSCRIPTION core REFRESH PUBLICATION', 'core');
	$self->copied;
	return;
}

sub unsubscribe
{
	my ($self, @publications) = @_;
	$self->{node}->query('DROP SUBSCRIPTION ours');
	$self->{node}->query('DROP SUBSCRIPTION core', 'core');
	$self->{publisher}->query("DROP PUBLICATION $_") for @publications;
	return;
}

sub applied
{
	my ($self) = @_;
	$self->{node}->wait_subscription($_, $self->{publisher}) for 'ours', 'core';
	return;
}

# What a query gives in our database is as expected, and as in the server's.
sub both
{
	my ($self, $sql, $expected, $title) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ours = $self->{node}->query($sql) =~ s/\n/;/gr;
	Test::More::is($ours, $expected, $title);
	Test::More::is($ours, $self->{node}->query($sql, 'core') =~ s/\n/;/gr, '... and as the server does');
	return;
}

1;
