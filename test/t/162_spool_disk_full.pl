# The disk is full where changes of tables that are being copied are kept: the
# subscription says so and tries again, nothing is lost, and it goes on by itself
# when there is room.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $disk = small_disk()
  or plan skip_all => 'no small file system: make check as root provides one';

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
my $where = "$disk/spool.$$";
mkdir $where, 0700 or die "$where: $!";
# outside of a transaction each
$subscriber->query("CREATE TABLESPACE small LOCATION '$where'");
$subscriber->query('ALTER MATERIALIZED VIEW tandem.spool SET TABLESPACE small');

$_->query('CREATE TABLE held (id int PRIMARY KEY, n int DEFAULT 0, filler text); CREATE TABLE other (id int PRIMARY KEY)')
  for $publisher, $subscriber;
$publisher->query(q{INSERT INTO held SELECT g, 0, repeat('x', 200) FROM generate_series(1, 10000) g});
$publisher->publish('pub');
my $waves = Tandem::Waves->new($publisher, $subscriber);

sub subscription
{
	return $subscriber->query("SELECT $_[0] FROM tandem.subscriptions");
}

$waves->pause('held');
$waves->subscribe;
$waves->wait_paused;
$waves->wait_state('other', 'ready');
$publisher->query('UPDATE held SET n = 1 WHERE id <= 100');
$waves->wait_applied;
my $kept = $subscriber->query(q{SELECT spool_bytes FROM tandem.tables WHERE name = 'held'});
cmp_ok($kept, '>', 0, 'changes are kept');

# ---- Full ----------------------------------------------------------------------

fill_disk($disk);
my $mark = $subscriber->log_mark;
$publisher->query('UPDATE held SET n = n + 1');
$publisher->query('INSERT INTO other VALUES (1)');
poll_for(sub { subscription('error_count') >= 2 }, 'two tries');
like(subscription('last_error'), qr/could not (?:extend|write).*No space left on device/, 'a full disk is said');
like(subscription('state'), qr/^(?:retrying|starting|streaming)$/, 'and tried again');
is($subscriber->query('SELECT count(*) FROM other'), '0', 'nothing behind it is applied');
is($subscriber->query(q{SELECT spool_bytes FROM tandem.tables WHERE name = 'held'}), $kept, 'and nothing of it is kept by half');

# the copy itself goes on, and the server as well
$waves->resume;
$waves->wait_state('held', qr/^(?:catching up|ready)$/);

# ---- Room again ------------------------------------------------------------------

free_disk();
$waves->wait_applied;
$waves->wait_ready;
is_same_table($publisher, $subscriber, $_) for qw(held other);
is($subscriber->query(q{SELECT attempts || ' ' || wave FROM tandem.tables WHERE name = 'held'}), '0 1', 'and nothing was copied again');
unlike($subscriber->log_since($mark), qr/PANIC/, 'no panic');

$subscriber->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $where);

done_testing();
