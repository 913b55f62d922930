# A copy's lock on the publisher's table lasts as long as rows are read, not as
# long as the subscriber builds indexes: otherwise DDL there would wait for that.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $key = 125125;
my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
my $waves = Tandem::Waves->new($publisher, $subscriber);

$_->query('CREATE TABLE indexed (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
$publisher->query(q{INSERT INTO indexed SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g});
$publisher->publish('pub');
$subscriber->query(qq{
	CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql SET lock_timeout = 0 AS \$\$
	BEGIN
		IF \$1 = 10000 THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared($key); END IF;
		RETURN \$1;
	END \$\$;
	CREATE INDEX slowly ON indexed (slow(id))});
my $holder = $waves->session($subscriber, "SELECT pg_advisory_lock($key)");
$waves->subscribe;
poll_for(sub { $subscriber->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $key AND NOT granted") eq '1' },
	'the index to be built');
is($waves->state_of('indexed'), 'copying', 'its copy is under way');
$publisher->query(q{SET lock_timeout = '5s'; ALTER TABLE indexed ADD later int; VACUUM FULL indexed});
pass('the publisher may change and rewrite the table');
$waves->end_session($holder);
$waves->wait_state('indexed', 'ready');
is_same_table($publisher, $subscriber, 'SELECT id, v FROM indexed');
is($subscriber->query('SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '0', 'the index is valid');

done_testing();
