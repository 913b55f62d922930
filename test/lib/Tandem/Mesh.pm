# Several nodes that all write, each subscribed to each other one.
#
#   my $mesh = Tandem::Mesh->new(nodes => [ 'a', 'b' ], tables => 'CREATE TABLE t (...)');
#   my ($a, $b) = $mesh->nodes;
#   $mesh->connect;                       # subscriptions each way, adopted
#   $mesh->pause($b, $a);                 # b applies nothing of a
#   $mesh->resume($b, $a);
#   $mesh->converge;                      # all that was written is everywhere
#   $mesh->is_same('t');                  # the same rows, shown if not
#
# Parameters of new: conf; clocks => { b => '+3s' } (needs libfaketime, see
# can_fake_time); publication (default "FOR ALL TABLES", which must leave out
# what is each node's own).  Of connect: options of tandem.adopt(), by default
# those that make nodes converge.
#
# The subscription on b to a is from_a, its slot on a to_b.
package Tandem::Mesh;

use strict;
use warnings;

use Carp;
use Tandem::Node;
use Tandem::Test ();
use Tandem::Wait;
use Test::More ();

# What converges: the last one to write a row wins, wherever it wrote.
our %last_update_wins = (
	(map { $_ => 'last_update_wins' }
		qw(insert_exists update_origin_differs update_exists update_deleted delete_origin_differs
		multiple_unique_conflicts insert_deleted)),
	update_missing => 'insert_or_skip',
	tombstones => 'on');

my $faketime = (glob '/usr/lib/*/faketime/libfaketime.so.1')[0];

# Can nodes have clocks of their own?
sub can_fake_time
{
	return defined $faketime && !$ENV{TANDEM_SERVER_PRELOAD};
}

# Lets roles use the plugin, where the server has such a setting.
my $lists_plugins;

sub lists_plugins
{
	$lists_plugins //= `postgres --describe-config` =~ /^output_plugin_libraries\t/m ? 1 : 0;
	return $lists_plugins;
}

sub plugin_conf
{
	return lists_plugins() ? "output_plugin_libraries = 'pgoutput, test_decoding, pg_tandem_output'\n" : '';
}

sub new
{
	my ($class, %params) = @_;
	my $self = bless { nodes => [] }, $class;

	for my $name (@{ $params{nodes} })
	{
		my $clock = $params{clocks}{$name};
		if (defined $clock)
		{
			croak 'no libfaketime' unless can_fake_time();
			$self->{preload}{$name} = { LD_PRELOAD => $faketime, FAKETIME => $clock,
				FAKETIME_DONT_FAKE_MONOTONIC => 1, FAKETIME_DISABLE_SHM => 1 };
		}
		my $node = $self->_with_clock($name, sub {
			Tandem::Node->new_primary($name, conf => plugin_conf() . qq{
				track_commit_timestamp = on
				tandem.node_id = '$name'
				synchronous_commit = off
				} . ($params{conf} // ''));
		});
		$node->query($params{tables});
		$node->query('CREATE PUBLICATION mesh ' . ($params{publication} // 'FOR ALL TABLES'));
		push @{ $self->{nodes} }, $node;
	}
	return $self;
}

sub nodes
{
	my ($self) = @_;
	return @{ $self->{nodes} };
}

# Each [ subscriber, publisher ].
sub pairs
{
	my ($self) = @_;
	my @pairs;
	for my $here ($self->nodes)
	{
		push @pairs, map { [ $here, $_ ] } grep { $_ != $here } $self->nodes;
	}
	return @pairs;
}

# Runs a sub with the environment of a node's clock.
sub _with_clock
{
	my ($self, $name, $sub) = @_;
	local %ENV = (%ENV, %{ $self->{preload}{$name} // {} });
	return $sub->();
}

sub start
{
	my ($self, $node) = @_;
	return $self->_with_clock($node->name, sub { $node->start });
}

# Signal 9 for all of a node's processes, and it starts again.
sub crash
{
	my ($self, $node) = @_;
	$node->kill9_all;
	$self->start($node);
	return;
}

# All slots first, so that no change falls between; then all subscriptions.
sub connect
{
	my ($self, %options) = @_;
	$self->make_slot(@$_) for $self->pairs;
	$self->subscribe(@$_, %options) for $self->pairs;
	return;
}

sub make_slot
{
	my ($self, $here, $there) = @_;
	my $plugin = $there->pg_version >= 16 ? 'pgoutput' : 'pg_tandem_output';
	$there->query("SELECT pg_create_logical_replication_slot('to_" . $here->name . "', '$plugin')");
	return;
}

# Options of tandem.adopt(); also copy => 1: rows that are there are copied.
sub subscribe
{
	my ($self, $here, $there, %options) = @_;
	my $name = $there->name;
	my $conninfo = $there->connstr('postgres') =~ s/'/''/gr;
	my $copy = delete $options{copy} ? 'true' : 'false';
	my $origin = $here->pg_version >= 16 ? ', origin = none' : '';

	%options = %last_update_wins unless %options;
	$here->query("CREATE SUBSCRIPTION from_$name CONNECTION '$conninfo' PUBLICATION mesh WITH (enabled = false, "
		. "create_slot = false, copy_data = $copy, slot_name = 'to_" . $here->name . "'$origin)");
	$self->adopt($here, $there, %options, node_id => $name);
	return;
}

sub adopt
{
	my ($self, $here, $there, %options) = @_;
	my $list = join ', ', map { "$_ = $options{$_}" } sort keys %options;
	$here->query('SELECT tandem.adopt(\'from_' . $there->name . "', '$list')");
	return;
}

sub pause
{
	my ($self, $here, $there) = @_;
	$self->adopt($here, $there, enabled => 'off');
	poll_for(sub { $here->query("SELECT state = 'paused' AND pid IS NULL FROM tandem.subscriptions
			WHERE subscription = 'from_" . $there->name . q{'}) eq 't' },
		'the subscription on ' . $here->name . ' to pause');
	return;
}

sub resume
{
	my ($self, $here, $there) = @_;
	$self->adopt($here, $there, enabled => 'on');
	return;
}

# Nobody writes any more: waits until everything is everywhere.
sub converge
{
	my ($self, $timeout) = @_;
	for my $pair ($self->pairs)
	{
		my ($here, $there) = @$pair;
		next if eval { $here->wait_subscription('from_' . $there->name, $there, $timeout); 1 };
		croak "$@" . $here->query('SELECT * FROM tandem.subscriptions');
	}
	return;
}

sub is_same
{
	my ($self, $table, $title) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($first, @others) = $self->nodes;
	my $same = 1;
	for my $other (@others)
	{
		$same &= Tandem::Test::is_same_table($first, $other, $table,
			($title // $table) . ': the same on ' . $first->name . ' and ' . $other->name);
	}
	return $same;
}

1;
