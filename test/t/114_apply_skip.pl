# An error doesn't crash-loop: it is shown with the next try, it can be skipped
# with ALTER SUBSCRIPTION ... SKIP, and disable_on_error pauses.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', conf => "logical_decoding_work_mem = 64kB\n");
my $subscriber = Tandem::Node->new_primary('subscriber');

sub caught_up
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# The end of the failing transaction, as the log says.
sub finish_lsn
{
	my ($mark) = @_;
	$subscriber->wait_log(qr/duplicate key value violates unique constraint "t_pkey"(?s:.*?)finished at/, $mark);
	my ($lsn) = $subscriber->log_since($mark) =~ qr/processing remote data for replication origin "pg_\d+" during message type "INSERT" for replication target relation "public.t" in transaction \d+, finished at ([0-9A-F\/]+)/;
	return $lsn;
}

$_->query('CREATE TABLE t (id int PRIMARY KEY, a text)') for $publisher, $subscriber;
$publisher->publish('pub');
$subscriber->subscribe_adopted('sub', $publisher, 'pub', 'streaming = on');

my $mark = $subscriber->log_mark;
$subscriber->query(q{INSERT INTO t VALUES (5, 'here')});
$publisher->query('INSERT INTO t SELECT i FROM generate_series(1, 10) i');
my $lsn = finish_lsn($mark);
ok($lsn, 'the log says where the transaction ends');
poll_for(sub { $subscriber->query(q{SELECT state FROM tandem.subscriptions}) eq 'retrying' }, 'state retrying');
like($subscriber->query('SELECT last_error FROM tandem.subscriptions'), qr/duplicate key value violates unique constraint "t_pkey"; Key \(id\)=\(5\) already exists/, 'the cause is in the view');
poll_for(sub { $subscriber->query('SELECT error_count >= 3 FROM tandem.subscriptions') eq 't' }, 'three tries');
is($subscriber->query('SELECT next_retry - last_error_at > interval \'3 s\' FROM tandem.subscriptions'), 't', 'with a growing delay');

$subscriber->query("ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
$publisher->query(q{INSERT INTO t VALUES (20, 'after')});
caught_up();
is($subscriber->query('SELECT string_agg(id::text, \',\' ORDER BY id) FROM t'), '5,20', 'skipped, and nothing else');
is($subscriber->query('SELECT subskiplsn FROM pg_subscription'), '0/0', 'once');
like($subscriber->log_since($mark), qr/completed skipping transaction at LSN \Q$lsn/, 'said so');

# the same for one that comes while it is in progress
$mark = $subscriber->log_mark;
$publisher->query(q{DELETE FROM t; INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1000, 5000) i});
caught_up();
$subscriber->query(q{INSERT INTO t VALUES (9999, 'here')});
$publisher->query(q{INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(5001, 10000) i});
$lsn = finish_lsn($mark);
$subscriber->query("ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
caught_up();
is($subscriber->query('SELECT count(*), max(id) FROM t WHERE id > 20'), '4002|9999', 'a streamed transaction is skipped');

# ---- disable_on_error ----
$subscriber->query('ALTER SUBSCRIPTION sub SET (disable_on_error = on)');
$subscriber->query(q{INSERT INTO t VALUES (20000, 'here')});
$publisher->query(q{INSERT INTO t VALUES (20000, 'there')});
poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'paused' }, 'a pause');
is($subscriber->query('SELECT enabled FROM tandem.subscriptions'), 'f', 'not enabled');
is(scalar($subscriber->pids_of(qr/tandem apply/)), 0, 'no worker');
$subscriber->query('DELETE FROM t WHERE id = 20000');
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
caught_up();
is($subscriber->query('SELECT a FROM t WHERE id = 20000'), 'there', 'resumed');

# a lost connection isn't an error of a change
$publisher->stop('immediate');
poll_for(sub { $subscriber->query('SELECT state FROM tandem.subscriptions') eq 'retrying' }, 'a retry, no pause');
$publisher->start;
$publisher->query(q{INSERT INTO t VALUES (20001, 'again')});
caught_up();
is($subscriber->query('SELECT a FROM t WHERE id = 20001'), 'again', 'connected again');

done_testing();
