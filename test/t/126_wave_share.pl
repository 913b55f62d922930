# A wave has as many bytes as its workers copy in a while, so that no snapshot
# lives too long, and the largest table first.  Without the bound all tables
# would be in one wave; a large table doesn't keep the other workers idle.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "tandem.debug_wave_share = 3MB\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

# kB on the publisher, not in the order of their names
my %size = (a => 1000, b => 2400, c => 400, d => 1700, e => 1300);
for my $table (sort keys %size)
{
	$_->query("CREATE TABLE $table (id int PRIMARY KEY, v text)") for $publisher, $subscriber;
	$publisher->query("INSERT INTO $table SELECT g, repeat('x', 950) FROM generate_series(1, $size{$table}) g");
}
$publisher->publish('pub');
$waves->subscribe(options => 'workers = 1');
$waves->wait_ready;
is($subscriber->query('SELECT string_agg(name, $$ $$ ORDER BY wave, started) FROM tandem.tables WHERE wave = 1'), 'b c',
	'3 MB: the largest, and what fits beside it');
is($subscriber->query('SELECT string_agg(name, $$ $$ ORDER BY wave, started) FROM tandem.tables WHERE wave = 2'), 'd e',
	'the largest of the rest');
is($subscriber->query('SELECT string_agg(name, $$ $$ ORDER BY wave, started) FROM tandem.tables WHERE wave = 3'), 'a', 'the rest');
is_same_table($publisher, $subscriber, $_) for sort keys %size;

# one that is larger than that: both workers have something to do meanwhile
$_->query('CREATE TABLE large (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO large SELECT g, repeat('x', 950) FROM generate_series(1, 8000) g});
$subscriber->query(q{SELECT tandem.adopt('sub', 'workers = 2, enabled = off')});
$subscriber->query('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
$subscriber->query(q{SELECT tandem.resync('sub', relid) FROM tandem.tables WHERE name <> 'large'});
$subscriber->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
$waves->wait_ready;
is($subscriber->query(q{SELECT count(DISTINCT wave) FROM tandem.tables}), '1', 'all beside a table that is larger than that');
is_same_table($publisher, $subscriber, 'large');

done_testing();
