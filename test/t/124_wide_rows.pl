# Memory of a copy worker with wide rows: what one row needs, and not a batch of
# them.  TANDEM_ROWS=200 is the issue's case, TANDEM_MB the width of a value.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $rows = $ENV{TANDEM_ROWS} || 10;
my $mb = $ENV{TANDEM_MB} || 8;
my $limit = 64 * 1024;			# kB

my $publisher = Tandem::Node->new_primary('publisher', library => 0, conf => "max_wal_size = 4GB\n");
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1, conf => "max_wal_size = 4GB\n");
my $waves = Tandem::Waves->new($publisher, $subscriber);

# fast load, and COPY's own way because of a trigger; bytea, and text that isn't sent in binary
for my $node ($publisher, $subscriber)
{
	$node->query(q{
		CREATE TYPE mood AS ENUM ('well');
		CREATE TABLE fast (id int PRIMARY KEY, v bytea);
		CREATE TABLE plain (id int PRIMARY KEY, v bytea);
		CREATE TABLE words (id int PRIMARY KEY, m mood, v text);
		ALTER TABLE fast ALTER v SET STORAGE EXTERNAL;
		ALTER TABLE plain ALTER v SET STORAGE EXTERNAL;
		ALTER TABLE words ALTER v SET STORAGE EXTERNAL});
}
my $bytes = $mb * 1024 * 1024;
$publisher->query(qq{
	INSERT INTO fast SELECT g, decode(repeat(md5(g::text), $bytes / 16), 'hex') FROM generate_series(1, $rows) g;
	INSERT INTO plain SELECT * FROM fast;
	INSERT INTO words SELECT g, 'well', repeat(md5(g::text), $bytes / 32) FROM generate_series(1, $rows) g});
$subscriber->query(q{
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
	CREATE TRIGGER nothing AFTER INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION nothing();
	ALTER TABLE plain ENABLE ALWAYS TRIGGER nothing});

for my $table (qw(fast plain words))
{
	my $most = 0;
	$publisher->query("CREATE PUBLICATION pub_$table FOR TABLE $table");
	my $wave = Tandem::Waves->new($publisher, $subscriber, name => "sub_$table", publication => "pub_$table");
	$wave->subscribe;
	poll_for(
		sub {
			for my $pid ($subscriber->pids_of(qr/tandem copy/))
			{
				my ($kb) = (eval { slurp_file("/proc/$pid/status") } // '') =~ /^RssAnon:\s+(\d+)/m;
				$most = $kb if $kb && $kb > $most;
			}
			return $wave->state_of($table) eq 'ready';
		},
		"$table to be ready");
	note("$table: at most $most kB");
	SKIP:
	{
		skip 'a sanitizer keeps memory of its own', 1 if $ENV{TANDEM_SERVER_PRELOAD};
		cmp_ok($most, '<', $limit, "$rows rows of $mb MB, $table: memory, kB") or diag("$most kB");
	}
	cmp_ok($most, '>', 0, '... was looked at');
	is($subscriber->query("SELECT count(*), sum(hashtextextended(md5(v), 0)) FROM $table"),
		$publisher->query("SELECT count(*), sum(hashtextextended(md5(v), 0)) FROM $table"), "$table is equal");
	$subscriber->query("DROP SUBSCRIPTION sub_$table");
}

done_testing();
