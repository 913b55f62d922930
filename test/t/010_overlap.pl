# The scenario that positions alone can't survive.
#
# Transactions A and B overlap.  A running-transactions record is written while
# A runs; the consumer reads past A's commit, so that its restart_lsn is at that
# record: only the snapshot serialized there lets a decoder start without
# waiting for another one.  Without it, B is gone in silence.  The same with a
# subtransaction, with DDL under way, and with a rewritten catalog.
#
# The test proves itself: with shipping switched off by a developer setting, the
# same steps lose rows.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

# Runs the story and returns the rows that the consumer gets after the failover,
# and those it should get.
sub story
{
	my ($name, %params) = @_;

	# No cycle before the story has come to its point: a slot synced earlier
	# restarts where nothing ran, and would do without a snapshot.
	my $primary = Tandem::Node->new_primary("${name}_primary");
	my $standby = $primary->new_standby("${name}_standby",
		conf => "tandem.sync_slots = off\n" . ($params{conf} // ''));

	$primary->query('CREATE TABLE t (id int PRIMARY KEY, who text)');
	$primary->query('CREATE TABLE u (id int PRIMARY KEY, who text)');
	$primary->query(q{SELECT pg_create_logical_replication_slot('consumer', 'test_decoding')});

	# settle: the slot's restart_lsn is a record with a snapshot file
	$primary->advance_slot('consumer');

	my $a = $primary->background_psql('postgres');
	my $b = $primary->background_psql('postgres');
	$a->query_safe('BEGIN');
	$a->query_safe(q{INSERT INTO t VALUES (1, 'A')});
	$params{during_a}->($a) if $params{during_a};
	$primary->query('CHECKPOINT');    # a record with A running
	$b->query_safe('BEGIN');
	$b->query_safe('SAVEPOINT s') if $params{savepoint};
	$b->query_safe(q{INSERT INTO t VALUES (2, 'B')});
	$params{during_b}->($b) if $params{during_b};
	$primary->query('CHECKPOINT');    # a record with A and B running
	$params{rewrite}->($primary) if $params{rewrite};
	$a->query_safe('COMMIT');
	$a->quit;
	$primary->query('CHECKPOINT');    # a record with B running

	# the consumer reads past A; B still runs
	my $read = $primary->query(
		q{SELECT data FROM pg_logical_slot_get_changes('consumer', NULL, NULL, 'include-xids', '0')});
	like($read, qr/\[integer\]:1 .*'A'/, "$name: the consumer has read A");
	$primary->query('CHECKPOINT');
	$primary->query(
		q{SELECT data FROM pg_logical_slot_get_changes('consumer', NULL, NULL)});

	$primary->wait_replayed($standby);
	my $confirmed = $primary->slot_value('consumer', 'confirmed_flush_lsn');
	poll_for(
		sub {
			$standby->query(q{SELECT state FROM tandem.sync_slots()
				WHERE slot_name = 'consumer'}) eq 'ready';
		},
		'the slot to be ready on the standby');
	is($standby->slot_value('consumer', 'restart_lsn') . ' '
		  . $standby->slot_value('consumer', 'confirmed_flush_lsn'),
		$primary->slot_value('consumer', 'restart_lsn') . " $confirmed",
		"$name: the standby has the slot where the primary has it");

	$b->query_safe('COMMIT');
	$b->quit;
	$primary->query(q{INSERT INTO t VALUES (3, 'after')});
	$primary->wait_replayed($standby);

	$primary->kill9_all;
	$standby->promote;
	$standby->wait_log(qr/failover slot "consumer" goes on from/);
	$standby->query(q{INSERT INTO t VALUES (4, 'new primary')});
	my $rows = $standby->query(
		q{SELECT string_agg(substring(data from '\[integer\]:(\d+)'), ' ')
		FROM pg_logical_slot_get_changes('consumer', NULL, NULL, 'include-xids', '0')
		WHERE data ~ '^table public\.[tu]:'});
	my $log = slurp_file($standby->logfile);
	$primary->clean_node;
	$standby->stop;
	$standby->clean_node;
	return ($rows, $log);
}

my ($rows, $log) = story('plain');
is($rows, '2 3 4', 'after the failover B and all after it arrive');
like($log, qr/failover slot "consumer" goes on from/, 'promotion has logged one line for the slot');

($rows) = story('subtransaction', savepoint => 1);
is($rows, '2 3 4', 'the same with a subtransaction');

($rows) = story('ddl',
	during_a => sub { $_[0]->query_safe('CREATE TABLE from_a (x int); INSERT INTO from_a VALUES (1)') },
	during_b => sub {
		$_[0]->query_safe(q{ALTER TABLE u ADD COLUMN note text; INSERT INTO u VALUES (21, 'B', 'ddl')});
	});
is($rows, '2 21 3 4', 'the same with DDL under way');

($rows) = story('rewrite',
	rewrite => sub {
		$_[0]->query('VACUUM FULL pg_class');
		$_[0]->query('VACUUM FULL pg_attribute');
	});
is($rows, '2 3 4', 'the same with catalogs rewritten in between');

# The proof: positions alone lose rows, in silence.
($rows) = story('unsafe', conf => "tandem.debug_ship_snapshots = off\n");
isnt($rows, '2 3 4', "positions without snapshots lose rows (arrived: $rows)");

done_testing();
