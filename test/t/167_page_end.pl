# The publisher's last record ends with its page, and nobody writes.  The position
# for the next record is then behind the next page's header, where nothing that is
# flushed or sent gets to before there is another record: a copied table must not
# wait for that.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "autovacuum = off\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE t (id int PRIMARY KEY)') for $publisher, $subscriber;
$publisher->query('INSERT INTO t SELECT generate_series(1, 10)');
$publisher->publish('pub');
$waves->subscribe;
$waves->wait_ready;

my $page = 8192;
my $header = 24;

# The insert position, as its place in its page.
sub insert_lsn { return $publisher->query('SELECT pg_current_wal_insert_lsn()') }

sub place
{
	my ($lsn) = @_;
	return hex((split m{/}, $lsn)[1]) % $page;
}

# Writes a record that fills the page; returns the insert position.
sub fill_page
{
	my $message = sub { return "SELECT pg_logical_emit_message(false, 'test', repeat('x', $_[0]))" };
	poll_for(
		sub {
			# the first tells how much longer than its text a record is
			my $probe = 304;
			my $before = place(insert_lsn());
			$publisher->query($message->($probe));
			my $at = place(insert_lsn());
			my $length = $page - $at - ($at - $before - $probe);
			return 0 if $at <= $before || $length < $probe;
			$publisher->query($message->($length));
			return place(insert_lsn()) == $header;
		},
		'a record to end with its page');
	my $lsn = insert_lsn();
	poll_for(sub { $publisher->query(qq{SELECT pg_wal_lsn_diff('$lsn', pg_current_wal_flush_lsn()) <= $header}) eq 't' },
		'it to be flushed');
	return $lsn;
}

# the background writer may write a record meanwhile, which proves nothing
my ($lsn, $after);
for (1 .. 5)
{
	$lsn = fill_page();
	next if insert_lsn() ne $lsn;
	$waves->resync('t');
	$waves->wait_ready;
	$after = insert_lsn();
	last if $after eq $lsn;
}
is($after, $lsn, 'the table is ready though the publisher has written nothing since');
is_same_table($publisher, $subscriber, 'SELECT * FROM t');

done_testing();
