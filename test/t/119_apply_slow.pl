# A transaction that takes longer to apply than the publisher waits for a sign of
# life (wal_sender_timeout): streamed, when all is applied at its end, and whole,
# when all its messages have come at once.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', conf => "wal_sender_timeout = 3s\nlogical_decoding_work_mem = 64kB\n");
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "wal_receiver_status_interval = 1s\n");

$_->query('CREATE TABLE t (id int PRIMARY KEY, a text)') for $publisher, $subscriber;
# each row takes 10 ms here
$subscriber->query(q{
	CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
	CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow();
	ALTER TABLE t ENABLE ALWAYS TRIGGER slow});
$publisher->publish('pub');

for my $streaming (qw(on off))
{
	$subscriber->subscribe_adopted("sub_$streaming", $publisher, 'pub', "streaming = $streaming");
	$subscriber->wait_subscription("sub_$streaming", $publisher);
	my $pid = $subscriber->pid_of(qr/tandem apply/);
	my $mark = $publisher->log_mark;
	$publisher->query(q{INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 900) i});
	$subscriber->wait_subscription("sub_$streaming", $publisher);
	unlike($publisher->log_since($mark), qr/due to replication timeout/, "streaming $streaming: the publisher heard of us in time");
	is($subscriber->pid_of(qr/tandem apply/), $pid, 'the same worker has applied it');
	is_same_table($publisher, $subscriber, 't', 'all of it');
	$subscriber->query("DROP SUBSCRIPTION sub_$streaming");
	$_->query('TRUNCATE t') for $publisher, $subscriber;
}

done_testing();
