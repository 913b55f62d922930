# Tombstones in tests: a subscription that collects them, and what is known.
#
#   my $tombs = Tandem::Tombstones->new($publisher, $node);
#   $tombs->subscribe;                              # subscription "sub", publication "pub"
#   $tombs->verdict('t', '{"id": 1}');              # "deleted moved", "missing", "unknown why"
package Tandem::Tombstones;

use strict;
use warnings;

use Tandem::Wait;

sub new
{
	my ($class, $publisher, $node, %params) = @_;
	return bless { publisher => $publisher, node => $node,
		name => $params{name} // 'sub', publication => $params{publication} // 'pub',
		options => $params{options} // 'tombstones = on' }, $class;
}

# Subscribes, and waits until deletes are collected, since when nothing that
# happened before matters any more.
sub subscribe
{
	my ($self) = @_;
	$self->{node}->subscribe_adopted($self->{name}, $self->{publisher}, $self->{publication});
	$self->{node}->query("SELECT tandem.adopt('$self->{name}', '$self->{options}')");
	$self->wait_collecting;
	$self->forget_beginning;
	return;
}

sub wait_collecting
{
	my ($self) = @_;
	poll_for(sub { $self->{node}->query('SELECT state FROM tandem.collector_status()') eq 'collecting' }, 'the collector');
	return;
}

# "Known only since" ends when all that the publisher did before has come.  Epochs
# are closed at once for that, and then no more while the test runs.
sub forget_beginning
{
	my ($self) = @_;
	my $node = $self->{node};
	$node->append_conf('postgresql.conf', "tandem.debug_epoch_age = 0\n");
	$node->reload;
	poll_for(sub { $node->query('SELECT bool_and(epochs_dropped > 0) FROM tandem.tombstones') eq 't' },
		'the epoch in which collecting began to be dropped', 60);
	$node->append_conf('postgresql.conf', "tandem.debug_epoch_age = 3600000\n");
	$node->reload;
	return;
}

# What is known of a row; with wait => 0, without waiting for the collector.
sub verdict
{
	my ($self, $table, $key, %params) = @_;
	my $wait = ($params{wait} // 1) ? 'true' : 'false';
	my $answer = $self->{node}->query("SELECT concat_ws(' ', verdict, kind, reason) FROM tandem.tombstone_find('$table', '$key', $wait)",
		$params{database});
	return $answer;
}

sub status
{
	my ($self, $column) = @_;
	return $self->{node}->query("SELECT $column FROM tandem.collector_status()");
}

1;
