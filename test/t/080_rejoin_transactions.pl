# "tandem rejoin" repairs what a lost stretch of WAL left in the files that tell
# of transactions: statuses, commit timestamps, multixacts, prepared
# transactions, replication progress.  None of them has page LSNs.  Each story
# first shows on the crashed node's disk what would be wrong without the repair.

use strict;
use warnings;

use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $pair = Tandem::Rejoin->new;

# The two status bits of a transaction in a stopped or checkpointed node's files.
sub status_on_disk
{
	my ($node, $xid) = @_;
	my $path = sprintf '%s/pg_xact/%04X', $node->data_dir, $xid / (32 * 32768);
	my $bytes = slurp_file($path);
	my $at = $xid % (32 * 32768);
	return $at / 4 < length $bytes ? ord(substr $bytes, $at / 4, 1) >> 2 * ($at % 4) & 3 : 0;
}
my ($in_progress, $committed, $aborted) = (0, 1, 2);

sub twophase_files
{
	my ($node) = @_;
	return join ' ', sort map { s{.*/}{}r } glob $node->data_dir . '/pg_twophase/*';
}

# Commit timestamps of all transactions that both may have.
sub is_same_timestamps
{
	my ($name) = @_;
	my $sql = q{
		SELECT string_agg(x || ' ' || coalesce(pg_xact_commit_timestamp(x::text::xid)::text, '-'), ', ' ORDER BY x)
		FROM generate_series(750, %d) x};
	my $last = $pair->primary->query('SELECT pg_current_xact_id()') - 1;
	$pair->primary->wait_replayed($pair->standby);
	is($pair->standby->query(sprintf $sql, $last), $pair->primary->query(sprintf $sql, $last), $name);
	return;
}

$pair->primary->query('CREATE TABLE t (id int PRIMARY KEY, x text)');
$pair->primary->query(q{INSERT INTO t SELECT g, 'before' FROM generate_series(1, 1000) g});

# ---- pg_xact --------------------------------------------------------------------

# The same transaction id commits on the old primary, and on the new one never
# ends: it dies in a crash that writes no abort record.
{
	my $xid;
	$pair->story('status of a transaction that committed in vain',
		lost => sub {
			$xid = $pair->primary->query(
				q{INSERT INTO t SELECT g, 'lost' FROM generate_series(2001, 2010) g; SELECT pg_current_xact_id()});
			$xid = $pair->primary->query(q{BEGIN; INSERT INTO t VALUES (2011, 'lost'); SELECT pg_current_xact_id(); COMMIT});
			# some more, one of which the new primary will use
			$pair->primary->query(q{INSERT INTO t VALUES (2011 + 1 + } . $_ . q{, 'lost')}) for 1 .. 5;
		},
		gained => sub {
			my $node = $pair->new_primary;
			my $session = $node->background_psql('postgres');
			$session->query_safe('BEGIN');
			my $never = $session->query_safe(
				q{INSERT INTO t SELECT g, 'never' FROM generate_series(3001, 3010) g; SELECT pg_current_xact_id()});
			while ($never < $xid)
			{
				$session->query_safe('COMMIT');
				$session->query_safe('DELETE FROM t WHERE id > 3000');
				$session->query_safe('BEGIN');
				$never = $session->query_safe(
					q{INSERT INTO t SELECT g, 'never' FROM generate_series(3001, 3010) g; SELECT pg_current_xact_id()});
			}
			$xid = $never;
			# makes its WAL durable
			$node->query(q{INSERT INTO t VALUES (4001, 'gained')});
			$node->query('CHECKPOINT');
			$node->expect_crash;
			$node->kill9_all;
			$session->{run}->kill_kill;
			$node->start;
		},
		damaged => sub {
			is(status_on_disk($pair->old_primary, $xid), $committed,
				'the old primary has the transaction for committed');
			is(status_on_disk($pair->new_primary, $xid), $in_progress, 'it never ended on the new one');
		},
		repaired => sub {
			is($pair->standby->query(q{SELECT count(*) FROM t WHERE x = 'never'}), 0,
				'its rows are not visible on the rejoined node');
			is($pair->standby->query("SELECT pg_xact_status('$xid'::text::xid8)"),
				$pair->primary->query("SELECT pg_xact_status('$xid'::text::xid8)"), 'it has the same status');
		});
}

# Under way at the fork, the transaction commits after it.
{
	my ($session, $xid);
	$pair->story('status of a transaction under way at the fork',
		before => sub {
			$session = $pair->primary->background_psql('postgres');
			$session->query_safe('BEGIN');
			$xid = $session->query_safe(q{UPDATE t SET x = 'spans' WHERE id <= 20; SELECT pg_current_xact_id()});
			$session->query_safe('SAVEPOINT s');
			$session->query_safe(q{UPDATE t SET x = 'spans too' WHERE id BETWEEN 21 AND 40});
		},
		lost => sub {
			$session->query_safe('COMMIT');
			$session->quit;
			# sets hint bits, on pages whose last change was before the fork
			$pair->primary->query('SELECT count(*) FROM t');
		},
		gained => [ q{UPDATE t SET x = 'gained' WHERE id BETWEEN 15 AND 25} ],
		damaged => sub {
			is(status_on_disk($pair->old_primary, $xid), $committed, 'it is committed on the old primary');
		},
		repaired => sub {
			is($pair->standby->query(q{SELECT count(*) FROM t WHERE x LIKE 'spans%'}), 0, 'what it did is undone');
			is($pair->standby->query(q{SELECT count(*) FROM t}), $pair->primary->query('SELECT count(*) FROM t'),
				'no row is doubled or lost');
		});
}

$pair->story('subtransactions',
	lost => [ q{DO $$ BEGIN FOR i IN 1..200 LOOP BEGIN INSERT INTO t VALUES (5000 + i, 'lost');
		EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$} ],
	gained => [ q{DO $$ BEGIN FOR i IN 1..150 LOOP BEGIN INSERT INTO t VALUES (5000 + i, 'gained');
		IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$} ]);

# ---- commit timestamps ------------------------------------------------------------

$pair->story('commit timestamps',
	lost => [ map { "INSERT INTO t VALUES (6000 + $_, 'lost')" } 1 .. 20 ],
	gained => [ map { "BEGIN; INSERT INTO t VALUES (6100 + $_, 'gone'); ROLLBACK" } 1 .. 10 ],
	damaged => sub {
		my ($old, $new) = map { Tandem::Rejoin::log_pages($_, 'pg_commit_ts') } $pair->old_primary, $pair->new_primary;
		isnt($old->{'0000'}, $new->{'0000'}, 'they differ');
	},
	repaired => sub { is_same_timestamps('both nodes have the same commit timestamps'); });

# ---- multixacts --------------------------------------------------------------------

# Each of the sessions locks the same rows, which makes a multixact.
sub lock_rows
{
	my ($node, $rows, $sessions) = @_;
	my @sessions = map { $node->background_psql('postgres') } 1 .. $sessions;
	for my $session (@sessions)
	{
		$session->query_safe('BEGIN');
		$session->query_safe("SELECT count(*) FROM (SELECT 1 FROM t WHERE id IN ($rows) FOR KEY SHARE) l");
	}
	# the last one updates without touching the key
	$sessions[-1]->query_safe("UPDATE t SET x = x || ' locked' WHERE id IN ($rows)");
	$_->query_safe('COMMIT') for @sessions;
	$_->quit for @sessions;
	return;
}

$pair->story('multixacts',
	before => sub { lock_rows($pair->primary, '101, 102', 2) },
	lost => sub {
		lock_rows($pair->primary, $_, 4) for '103, 104, 105', '101, 106', '107, 108, 109, 110';
	},
	gained => sub {
		lock_rows($pair->new_primary, $_, 2) for '107, 111', '101, 103';
		$pair->new_primary->query(q{UPDATE t SET x = x || ' gained' WHERE id BETWEEN 100 AND 112});
	},
	damaged => sub {
		$pair->new_primary->query('CHECKPOINT');
		my ($old, $new) = map { Tandem::Rejoin::log_pages($_, 'pg_multixact/members') } $pair->old_primary, $pair->new_primary;
		isnt($old->{'0000'}, $new->{'0000'}, 'the same multixacts have other members');
	},
	repaired => sub {
		my $sql = q{SELECT string_agg(id || x, ' ' ORDER BY id) FROM t WHERE id BETWEEN 100 AND 112};
		is($pair->standby->query($sql), $pair->primary->query($sql), 'the rows are the same');
	});

# ---- prepared transactions -----------------------------------------------------------

$pair->story('prepared after the fork',
	lost => [ q{BEGIN; UPDATE t SET x = 'prepared' WHERE id = 201; PREPARE TRANSACTION 'lost'} ],
	gained => [ q{UPDATE t SET x = 'gained' WHERE id = 201} ],
	damaged => sub { isnt(twophase_files($pair->old_primary), '', 'the old primary has its file') },
	repaired => sub {
		is(twophase_files($pair->standby), '', 'the file is gone');
	});

{
	my $file;
	$pair->story('prepared before the fork, finished after it',
		before => [
			q{BEGIN; UPDATE t SET x = 'one' WHERE id = 301; PREPARE TRANSACTION 'one'},
			q{BEGIN; UPDATE t SET x = 'two' WHERE id = 302; PREPARE TRANSACTION 'two'},
			q{BEGIN; UPDATE t SET x = 'three' WHERE id = 303; PREPARE TRANSACTION 'three'},
			q{BEGIN; UPDATE t SET x = 'four' WHERE id = 304; PREPARE TRANSACTION 'four'},
		],
		lost => [ q{COMMIT PREPARED 'one'}, q{ROLLBACK PREPARED 'two'}, q{COMMIT PREPARED 'three'} ],
		gained => [ q{ROLLBACK PREPARED 'one'}, q{COMMIT PREPARED 'two'} ],
		damaged => sub {
			$file = twophase_files($pair->old_primary);
			isnt($file, twophase_files($pair->new_primary), 'files of prepared transactions are missing');
		},
		repaired => sub {
			is($pair->standby->query(q{SELECT string_agg(x, ' ' ORDER BY id) FROM t WHERE id BETWEEN 301 AND 304}),
				'before two before before', 'the old primary\'s ends are undone');
		});
}
# what is still prepared can be finished, here and after the next failover
$pair->primary->query(q{COMMIT PREPARED 'three'});
$pair->story('prepared transactions after that',
	lost => [ q{INSERT INTO t VALUES (7001, 'lost')} ],
	gained => [ q{COMMIT PREPARED 'four'} ],
	repaired => sub {
		is($pair->standby->query(q{SELECT string_agg(x, ' ' ORDER BY id) FROM t WHERE id BETWEEN 301 AND 304}),
			'before two three four', 'they were finished');
	});

# Prepared and finished between the start checkpoint and the fork, or across it,
# with nothing written by a checkpoint.
$pair->story('prepared transactions without a checkpoint',
	before => [
		'CHECKPOINT',
		q{BEGIN; UPDATE t SET x = 'five' WHERE id = 305; PREPARE TRANSACTION 'five'},
		q{BEGIN; UPDATE t SET x = 'six' WHERE id = 306; PREPARE TRANSACTION 'six'},
	],
	checkpoint_before => 0,
	lost => [ q{COMMIT PREPARED 'five'},
		q{BEGIN; UPDATE t SET x = 'seven' WHERE id = 307; PREPARE TRANSACTION 'seven'} ],
	checkpoint_after => 0,
	gained => [ q{ROLLBACK PREPARED 'five'} ],
	repaired => sub {
		is($pair->standby->query(q{SELECT string_agg(x, ' ' ORDER BY id) FROM t WHERE id BETWEEN 305 AND 307}),
			'before before before', 'none of it happened');
		$pair->primary->query(q{COMMIT PREPARED 'six'});
	});

# The state file is written by checkpoints only, and the one after the promotion
# takes its time: rejoin has to ask for another.
$pair->story('a prepared transaction that the new primary has not written yet',
	before => [ 'CREATE TABLE dirty AS SELECT g AS id, repeat(md5(g::text), 20) AS x FROM generate_series(1, 10000) g',
		q{BEGIN; UPDATE t SET x = 'held' WHERE id = 401; PREPARE TRANSACTION 'held'} ],
	lost => [ q{COMMIT PREPARED 'held'} ],
	damaged => sub {
		is(twophase_files($pair->new_primary), '', 'the new primary has no file of it');
	},
	repaired => sub {
		is($pair->primary->query(q{SELECT gid FROM pg_prepared_xacts}), 'held', 'it is prepared');
	});
# Had the rejoined node forgotten it, it could not be finished after a failover.
$pair->story('finished after the next failover',
	gained => [ q{COMMIT PREPARED 'held'} ],
	repaired => sub {
		is($pair->standby->query('SELECT x FROM t WHERE id = 401'), 'held', 'it is');
	});

# ---- replication progress ---------------------------------------------------------------

my $progress = q{SELECT string_agg(coalesce(external_id, local_id::text) || ' ' || remote_lsn, ', ' ORDER BY external_id)
	FROM pg_replication_origin_status};
sub replicate
{
	my ($lsn, $id) = @_;
	return qq{
		SELECT pg_replication_origin_session_setup('there');
		BEGIN;
		SELECT pg_replication_origin_xact_setup('$lsn', '2030-01-01');
		INSERT INTO t VALUES ($id, 'replicated');
		COMMIT;
		SELECT pg_replication_origin_session_reset()};
}
$pair->story('replication origins',
	before => [ q{SELECT pg_replication_origin_create('there')}, replicate('1/1000', 8001),
		q{SELECT pg_replication_origin_create('moved')}, q{SELECT pg_replication_origin_advance('moved', '5/100')} ],
	lost => [ replicate('1/2000', 8002), q{SELECT pg_replication_origin_advance('moved', '5/900')},
		q{SELECT pg_replication_origin_create('lost')}, q{SELECT pg_replication_origin_advance('lost', '5/900')} ],
	gained => [ replicate('1/1500', 8002) ],
	repaired => sub {
		is($pair->primary->query($progress), 'moved 5/100, there 1/1500',
			'progress on the new primary');
		is($pair->standby->query($progress), $pair->primary->query($progress), 'and on the rejoined node');
	});

done_testing();
