# "tandem rejoin" of data directories as people have them: tablespaces and pg_wal
# elsewhere, configuration outside and read-only, checksums, a source under full
# load.  What the plan doesn't name stays as it was.

use strict;
use warnings;

use File::Copy qw(move);
use Tandem::Command;
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $fill = 'SELECT g AS id, md5(g::text) AS x FROM generate_series(%d, %d) g';

# ---- Tablespaces and pg_wal elsewhere ---------------------------------------------

# Both nodes live on one machine, so each has the tablespace in another place.
{
	my $pair = Tandem::Rejoin->new(initdb => ['--data-checksums']);
	my ($primary, $standby) = ($pair->primary, $pair->standby);

	# pg_wal on another disk
	for my $node ($primary, $standby)
	{
		$node->stop;
		my $elsewhere = $node->basedir . '/wal_elsewhere';
		move($node->data_dir . '/pg_wal', $elsewhere) or die $!;
		symlink $elsewhere, $node->data_dir . '/pg_wal' or die $!;
	}
	$_->start for $primary, $standby;

	# made in place, then turned into links
	$primary->query(q{CREATE TABLESPACE space LOCATION ''});
	$primary->query('CREATE TABLE in_space (id int PRIMARY KEY USING INDEX TABLESPACE space, x text) TABLESPACE space');
	$primary->query('INSERT INTO in_space ' . sprintf $fill, 1, 2000);
	$primary->query('CREATE DATABASE in_space TABLESPACE space');
	$primary->query('CREATE TABLE t AS ' . sprintf($fill, 1, 1000), 'in_space');
	$primary->query('CREATE TABLE in_space_kept TABLESPACE space AS ' . sprintf $fill, 1, 100);
	$primary->wait_replayed($standby);
	my ($oid) = $primary->query(q{SELECT oid FROM pg_tablespace WHERE spcname = 'space'});
	for my $node ($primary, $standby)
	{
		$node->stop;
		my $elsewhere = $node->basedir . '/space_elsewhere';
		move($node->data_dir . "/pg_tblspc/$oid", $elsewhere) or die $!;
		symlink $elsewhere, $node->data_dir . "/pg_tblspc/$oid" or die $!;
	}
	$_->start for $primary, $standby;

	$pair->story('tablespace and pg_wal elsewhere',
		lost => sub {
			my $node = $pair->primary;
			$node->query(q{UPDATE in_space SET x = 'lost' WHERE id % 2 = 0});
			$node->query('DROP TABLE in_space_kept');
			$node->query('CREATE TABLE in_space_lost TABLESPACE space AS ' . sprintf $fill, 1, 500);
			$node->query(q{UPDATE t SET x = 'lost'}, 'in_space');
			$node->query('DROP DATABASE in_space');
		},
		gained => sub {
			my $node = $pair->new_primary;
			$node->query(q{UPDATE in_space SET x = 'gained' WHERE id % 5 = 0});
			$node->query(q{UPDATE t SET x = 'gained' WHERE id < 10}, 'in_space');
			$node->switch_wal(2);
		},
		repaired => sub {
			my $node = $pair->standby;
			is(readlink $node->data_dir . '/pg_wal', $node->basedir . '/wal_elsewhere', 'pg_wal is still a link');
			is(readlink $node->data_dir . "/pg_tblspc/$oid", $node->basedir . '/space_elsewhere',
				'the tablespace is where it was');
			is($node->query('SELECT count(*) FROM in_space_kept'), 100, 'what was dropped there is back');
		});

	# checksums: a torn page is found, whatever its header says
	my $path;
	$pair->story('a torn page, with checksums',
		before => [ 'CREATE TABLE torn AS ' . sprintf $fill, 1, 3000 ],
		lost => [ q{UPDATE torn SET x = 'lost' WHERE id < 50} ],
		damaged => sub {
			my ($old, $new) = ($pair->old_primary, $pair->new_primary);
			$path = $new->query(q{SELECT pg_relation_filepath('torn')});
			$new->query('CHECKPOINT');
			# the first half of the page from before the fork, the second from after
			open my $from, '<:raw', $new->data_dir . "/$path" or die $!;
			open my $to, '+<:raw', $old->data_dir . "/$path" or die $!;
			my $half;
			read $from, $half, 4096;
			print {$to} $half;
			close $to or die $!;
			my $scan = scan_pages($old->data_dir, $pair->fork_lsn);
			ok(!grep({ $_ == 0 } @{ $scan->{files}{$path} // [] }), 'by its header the page is not ahead');
		},
		repaired => sub {
			is($pair->standby->query(q{SELECT count(*) FROM torn WHERE x = 'lost'}), 0, 'nothing of it is left');
		});
	$pair->standby->stop;
	my (undef, $checks) = PostgreSQL::Test::Utils::run_command([ 'pg_checksums', '--check', '-D', $pair->standby->data_dir ]);
	is($?, 0, 'all checksums are right') or diag($checks);
	$pair->primary->stop;
}

# ---- Configuration outside, read-only ---------------------------------------------------

{
	my $pair = Tandem::Rejoin->new;
	$pair->primary->query('CREATE TABLE t AS ' . sprintf $fill, 1, 1000);
	my $node = $pair->primary;
	my $data = $node->data_dir;
	my $etc = $node->basedir . '/etc';

	mkdir $etc or die $!;
	$pair->part;
	$node->stop;
	move("$data/$_", "$etc/$_") or die $! for qw(postgresql.conf pg_hba.conf pg_ident.conf);
	append_to_file("$etc/postgresql.conf", "\ndata_directory = '$data'\nhba_file = '$etc/pg_hba.conf'\nident_file = '$etc/pg_ident.conf'\n");
	chmod oct '400', glob "$etc/*";
	chmod oct '500', $etc;
	my $conf = Tandem::Rejoin::tree($etc);

	my $start = sub {
		PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $etc, '-l', $node->logfile, '-w', '-s', 'start');
		$node->_update_pid(1);
	};
	$start->();
	$node->query(q{UPDATE t SET x = 'lost' WHERE id % 2 = 0});
	chmod oct '400', "$data/postgresql.auto.conf";
	$pair->fail_over;
	$pair->new_primary->query(q{UPDATE t SET x = 'gained' WHERE id % 3 = 0});

	my ($code, $out, $err) = $pair->rejoin;
	is($code, 0, 'configuration outside and read-only: rejoined, started as it was last') or diag("$out$err");
	$pair->caught_up;
	$pair->is_equal('configuration outside');
	Tandem::Rejoin::is_unchanged($etc, $conf, 'the configuration is as it was');
	ok(!-e "$data/postgresql.conf", 'and none has appeared in the data directory');

	# told where it is, when the way it was started is not known
	$pair->standby->stop;
	unlink "$data/postmaster.opts" or die $!;
	$pair->primary->query(q{INSERT INTO t VALUES (2000, 'more')});
	@{$pair}{qw(primary standby)} = ($pair->standby, $pair->primary);
	($code, $out, $err) = $pair->rejoin('--config-file', "$etc/postgresql.conf");
	is($code, 0, 'with --config-file') or diag("$out$err");
	$pair->caught_up;
	is($pair->standby->query('SELECT x FROM t WHERE id = 2000'), 'more', 'it streams again');
	chmod oct '700', $etc;
	$_->stop for $pair->standby, $pair->primary;
}

# ---- Started by somebody else -----------------------------------------------------------------------

{
	my $pair = Tandem::Rejoin->new(conf => "restore_command = 'false'\n");
	$pair->primary->query('CREATE TABLE t AS ' . sprintf $fill, 1, 1000);
	$pair->part;
	$pair->primary->query(q{UPDATE t SET x = 'lost' WHERE id % 2 = 0});
	my $untouched = $pair->primary->data_dir . '/kept_by_somebody';
	append_to_file($untouched, "mine\n");
	$pair->fail_over;
	$pair->new_primary->query(q{UPDATE t SET x = 'gained' WHERE id % 3 = 0});

	my ($code, $out, $err) = $pair->rejoin('--dry-run', '--json');
	is($code, 0, 'a dry run with --json');
	my $object = eval { JSON::PP->new->utf8->decode($out) };
	ok($object, 'prints one object') or diag($out);

	($code, $out, $err) = $pair->rejoin('--no-start', '--slot', 'mine');
	is($code, 0, 'with --no-start') or diag("$out$err");
	ok(!-e $pair->primary->data_dir . '/postmaster.pid', 'the server is not started');
	like($out, qr/restore_command/, 'the note about restore_command') or diag($out);
	$pair->primary->start;
	$pair->caught_up;
	is($pair->primary->query(q{SELECT active FROM pg_replication_slots WHERE slot_name = 'mine'}), 't',
		'it streams with the slot that was named');
	$pair->is_equal('started by hand');
	is(slurp_file($untouched), "mine\n", 'a file of somebody else is still there');
	$_->stop for $pair->standby, $pair->primary;
}

# ---- The source under full load ----------------------------------------------------------

{
	my $pair = Tandem::Rejoin->new(conf => "shared_buffers = 4MB\n");
	my $script = q{
\set id random(1, 20000)
BEGIN;
UPDATE t SET x = md5(random()::text) WHERE id = :id;
INSERT INTO t SELECT max(id) + 1, 'new' FROM t ON CONFLICT DO NOTHING;
DELETE FROM t WHERE id = :id + 7;
COMMIT;
};
	$pair->primary->query('CREATE TABLE t (id int PRIMARY KEY, x text)');
	$pair->primary->query('CREATE INDEX ON t (x)');
	$pair->primary->query('INSERT INTO t ' . sprintf $fill, 1, 20000);
	my $load = $pair->primary->start_load(script => $script, clients => 2);
	poll_for(sub { $pair->primary->query(q{SELECT count(*) > 20050 FROM t}) eq 't' }, 'load');
	$pair->part;
	my $mark = $pair->primary->query('SELECT pg_current_wal_lsn()');
	poll_for(sub { $pair->primary->query("SELECT pg_current_wal_lsn() - '$mark' > 2000000") eq 't' }, 'lost writes');
	$pair->fail_over;
	$load->{run}->kill_kill;

	$load = $pair->new_primary->start_load(script => $script, clients => 3);
	$mark = $pair->new_primary->query('SELECT pg_current_wal_lsn()');
	poll_for(sub { $pair->new_primary->query("SELECT pg_current_wal_lsn() - '$mark' > 1000000") eq 't' }, 'writes on the new primary');
	my ($code, $out, $err) = $pair->rejoin;
	is($code, 0, 'the source is under load: rejoined') or diag("$out$err");
	like($out, qr/copy +\d\d+ pages/, 'with pages to copy');
	$pair->caught_up;
	$pair->primary->set(wal_consistency_checking => 'all');
	$mark = $pair->primary->query('SELECT pg_current_wal_lsn()');
	poll_for(sub { $pair->primary->query("SELECT pg_current_wal_lsn() - '$mark' > 3000000") eq 't' }, 'checked writes');
	unlike($pair->primary->stop_load($load), qr/ERROR/, 'no transaction failed');
	$pair->primary->wait_replayed($pair->standby);
	unlike(slurp_file($pair->standby->logfile), qr/inconsistent page/, 'every page that was replayed is as it should be');
	$pair->is_equal('under load');
}

done_testing();
