# Many tables, most of them empty, some changed meanwhile: one wave copies them
# with the default max_locks_per_transaction on both sides, no process needs more than
# 64 MiB, and what shows them answers.  TANDEM_TABLES=10000 is the promise: there
# the leader needed 90 MB for what its caches had of each table, and the publisher
# a minute for the question about them.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $tables = $ENV{TANDEM_TABLES} || 1000;
my $limit = 64 * 1024;			# kB

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1);
is($_->query('SHOW max_locks_per_transaction'), '64', 'as many locks as by default') for $publisher, $subscriber;

$_->query(qq{
	DO \$\$ BEGIN
		FOR i IN 1 .. $tables LOOP
			EXECUTE format('CREATE TABLE t%s (id bigserial PRIMARY KEY, v text)', i);
			IF i % 100 = 0 THEN COMMIT; END IF;
		END LOOP;
	END \$\$;}) for $publisher, $subscriber;
$_->query(q{
	CREATE FUNCTION sums() RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		name text;
		n bigint;
		rows bigint;
		sum numeric := 0;
		more numeric;
	BEGIN
		rows := 0;
		FOR name IN SELECT relname FROM pg_class WHERE relname ~ '^t\d+$' ORDER BY oid LOOP
			EXECUTE format('SELECT count(*), coalesce(sum(hashtextextended(%L || t::text, 0)), 0) FROM %I t', name, name) INTO n, more;
			rows := rows + n;
			sum := sum + more;
		END LOOP;
		RETURN rows || ' ' || sum;
	END $$}) for $publisher, $subscriber;
$publisher->query(qq{
	INSERT INTO t1 (v) SELECT repeat('x', 100) FROM generate_series(1, 2000);
	DO \$\$ BEGIN
		FOR i IN 2 .. $tables BY 10 LOOP
			EXECUTE format('INSERT INTO t%s (v) SELECT repeat(''y'', 10) FROM generate_series(1, 10)', i);
			IF i % 100 = 2 THEN COMMIT; END IF;
		END LOOP;
	END \$\$;});
$publisher->publish('pub');

my $load = $publisher->start_load(clients => 1, options => [ '--rate', 100 ], script => qq{
\\set a random(1, $tables)
\\set b random(1, $tables)
BEGIN;
INSERT INTO t:a (v) VALUES ('new');
UPDATE t:b SET v = v || 'u';
COMMIT;
});
my %most;

# The most memory of its own that a process of each kind had.
sub look_at_memory
{
	for my $kind ('apply', 'wave', 'copy')
	{
		for my $pid ($subscriber->pids_of(qr/tandem $kind/))
		{
			my ($kb) = (eval { slurp_file("/proc/$pid/status") } // '') =~ /^RssAnon:\s+(\d+)/m;
			$most{$kind} = $kb if $kb && $kb > ($most{$kind} // 0);
		}
	}
	return;
}

my $waves = Tandem::Waves->new($publisher, $subscriber);
$waves->pause('t1');			# the largest, so the first
$waves->subscribe(options => 'workers = 1');
poll_for(sub { look_at_memory(); $subscriber->query(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) > 0 },
	'the first table to be copied', 300);

# ---- What one sees of them -----------------------------------------------------------

my ($code, $sync) = tandem_json('sync', at($subscriber));
is($code, 1, 'not all are ready');
is($sync->{subscriptions}[0]{tables}, $tables, 'sync knows all of them');
cmp_ok($sync->{subscriptions}[0]{running}, '>=', $tables / 10, 'those with rows are running');
is($sync->{subscriptions}[0]{failed}, 0, 'none has failed');
my ($text_code, $text) = tandem('sync', at($subscriber));
like($text, qr/^and \d+ more that run$/m, 'some of them are shown');
is((split /\n/, $text) < 30, 1, 'on one screen');
($code, my $status) = tandem_json('status', at($subscriber));
cmp_ok($code, '<=', 1, 'status answers');
($code, my $doctor, my $err) = tandem_json('doctor', at($subscriber));
cmp_ok($code, '<=', 1, 'doctor answers');

# ---- All of them ----------------------------------------------------------------------

$waves->resume;
poll_for(sub { look_at_memory(); $subscriber->query(q{SELECT count(*) FROM tandem.tables WHERE state <> 'ready'}) eq '0' },
	'all tables to be ready', 300);
$publisher->stop_load($load);
$waves->wait_applied;
is($subscriber->query('SELECT sums()'), $publisher->query('SELECT sums()'), 'equal');
is($subscriber->query('SELECT count(DISTINCT wave), max(attempts) FROM tandem.tables'), '1|0', 'in one wave, at the first attempt');
for my $kind ('apply', 'wave', 'copy')
{
	SKIP:
	{
		skip 'a sanitizer keeps memory of its own', 1 if $ENV{TANDEM_SERVER_PRELOAD};
		cmp_ok($most{$kind} // 0, '<', $limit, "memory of tandem $kind, kB");
	}
	cmp_ok($most{$kind} // 0, '>', 0, '... was looked at');
}
is($subscriber->query(q{SELECT string_agg(DISTINCT srsubstate::text, '') FROM pg_subscription_rel}), 'r', 'the server knows them as ready');

done_testing();
