# "tandem status" and "tandem doctor" know of tombstones: that a bound has ended their
# retention, that they can't be collected, and for which tables they never are.  Each
# finding is gone when its cause is.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

delete $ENV{PGDATABASE};

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "track_commit_timestamp = on\nautovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => "wal_level = replica\ntrack_commit_timestamp = off\nautovacuum = off\ntandem.debug_epoch_age = 0\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE bare (id int)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO t SELECT i, 'old' FROM generate_series(1, 10) i});
$publisher->publish('pub');
$waves->subscribe(options => 'tombstones = off');
$waves->wait_ready;

sub finding
{
	my ($command, $code) = @_;
	my ($exit, $object) = tandem_json($command, at($subscriber));
	my ($found) = grep { $_->{code} eq $code } @{ $object->{findings} };
	return $found ? "$found->{severity}: $found->{what}" : '';
}

is(finding('doctor', $_), '', "without tombstones there is no finding $_")
  for qw(tombstones_timestamps tombstones_identity tombstones_stopped tombstones_failed);

$subscriber->query(q{SELECT tandem.adopt('sub', 'tombstones = on')});
poll_for(sub { finding('status', 'tombstones_failed') =~ /^problem: Deleted rows are not remembered for subscription "sub": .*wal_level/ },
	'status to say that nothing can be collected');
like(finding('doctor', 'tombstones_wal_level'), qr/^problem: wal_level is replica/, 'and doctor what to change');
$subscriber->append_conf('postgresql.conf', 'wal_level = logical');
$subscriber->restart;
poll_for(sub { $subscriber->query(q{SELECT state = 'collecting' AND waits_for IS NULL FROM tandem.tombstones}) eq 't' },
	'deletes to be collected');
is(finding('doctor', $_), '', "after that no finding $_") for qw(tombstones_failed tombstones_wal_level);
like(finding('doctor', 'tombstones_timestamps'), qr/^warning: track_commit_timestamp is off/, 'what is not known without commit timestamps');
like(finding('doctor', 'tombstones_identity'), qr/^note: .*no replica identity here: 1; the first is public\.bare/, 'a table without identity');
is(finding('status', 'tombstones_stopped'), '', 'retention goes on');

my $writer = $waves->session($publisher, q{BEGIN; UPDATE t SET v = 'new' WHERE id = 1});
$subscriber->set('tandem.max_retention' => '1s');
$subscriber->query('DELETE FROM t WHERE id = 1');
poll_for(sub { finding('status', 'tombstones_stopped') =~ /^warning: Not all deleted rows are remembered for subscription "sub": deletes before .* are not all known: stopped/ },
	'status to say that retention has ended early');
$subscriber->set('tandem.max_retention' => undef);
$writer->{in} .= "COMMIT;\n";
$waves->end_session($writer);
poll_for(sub { finding('status', 'tombstones_stopped') eq '' }, 'the finding to be gone');

done_testing();
