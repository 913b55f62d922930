# Memory of the apply worker doesn't grow with a transaction: whole or sent while
# in progress; inserted, updated, deleted.  TANDEM_ROWS=10000000 is the promise.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $rows = $ENV{TANDEM_ROWS} || 300_000;
my $limit = 64 * 1024;			# kB
my $patience = 180 + $rows / 2000;

my $publisher = Tandem::Node->new_primary('publisher', conf => "max_wal_size = 4GB\nsynchronous_commit = off\n");
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "max_wal_size = 4GB\nshared_buffers = 64MB\n");

$_->query('CREATE TABLE t (id int PRIMARY KEY, a text)') for $publisher, $subscriber;
$publisher->publish('pub');

# Private memory of a process in kB.
sub private_memory
{
	my ($pid) = @_;
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+)/m;
	return $kb;
}

for my $streaming (qw(off on))
{
	$publisher->query('ALTER SYSTEM SET logical_decoding_work_mem = ' . ($streaming eq 'on' ? q{'1MB'} : q{'64MB'}));
	$publisher->query('SELECT pg_reload_conf()');
	$_->query('TRUNCATE t') for $publisher, $subscriber;
	my $name = "sub_$streaming";
	$subscriber->subscribe_adopted($name, $publisher, 'pub', "streaming = $streaming");
	$subscriber->wait_subscription($name, $publisher);
	my $pid = $subscriber->pid_of(qr/tandem apply/);

	my %change = (
		insert => "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, $rows) i",
		update => q{UPDATE t SET a = a || '!'},
		delete => 'DELETE FROM t');
	for my $kind (qw(insert update delete))
	{
		$publisher->query($change{$kind});
		my $lsn = $publisher->query('SELECT pg_current_wal_insert_lsn()');
		my $most = 0;
		poll_for(
			sub {
				my $now = private_memory($pid);
				$most = $now if $now > $most;
				return $publisher->query("SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = '$name'") eq 't';
			},
			"$kind to be applied", $patience);
		SKIP:
		{
			skip 'a sanitizer keeps memory of its own', 1 if $ENV{TANDEM_SERVER_PRELOAD};
			cmp_ok($most, '<', $limit, "$rows rows, $kind, streaming $streaming: at most $most kB");
		}
		is($subscriber->query("SELECT ${kind}s FROM tandem.subscriptions WHERE subscription = '$name'"), $rows, "$kind: all were applied");
	}
	is($subscriber->pid_of(qr/tandem apply/), $pid, 'by one process');
	if ($streaming eq 'on')
	{
		$publisher->query('SELECT pg_stat_force_next_flush()');
		cmp_ok($publisher->query("SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '$name'"), '>', 0, 'they have been streamed');
	}
	$subscriber->query("DROP SUBSCRIPTION $name");
}

done_testing();
