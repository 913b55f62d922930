# "tandem rejoin" repairs whole folders and files that a lost stretch of WAL made
# or removed: databases, tablespaces, removed transaction logs, decoding
# snapshots, slots, marks for the archiver.  Each story first shows on the
# crashed node's disk what would be wrong without the repair.

use strict;
use warnings;

use File::Path qw(remove_tree);
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

# Transaction and multixact ids a segment or two further on, so that there is
# something to truncate.
sub jump_ahead
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my ($xid, $multi) = (2_100_000, 70_000);
	my %entries_per_segment = (pg_xact => 32 * 32768, pg_commit_ts => 32 * 819, 'pg_multixact/offsets' => 32 * 2048);
	PostgreSQL::Test::Utils::system_or_bail('pg_resetwal', '-x', $xid, '-m', "$multi,$multi", '-D', $data);
	for my $log (keys %entries_per_segment)
	{
		my $id = $log =~ /multi/ ? $multi : $xid;
		append_to_file(sprintf('%s/%s/%04X', $data, $log, $id / $entries_per_segment{$log}), "\0" x (32 * 8192));
	}
	return;
}

my $pair = Tandem::Rejoin->new(
	setup => \&jump_ahead,
	conf => q{
archive_mode = on
archive_command = 'false'
});

sub database_folder
{
	my ($node, $name) = @_;
	return 'base/' . $node->query("SELECT oid FROM pg_database WHERE datname = '$name'");
}

sub files_below
{
	my ($node, $folder) = @_;
	return scalar(() = glob $node->data_dir . "/$folder/*");
}

my $fill = 'CREATE TABLE t AS SELECT g AS id, md5(g::text) AS x FROM generate_series(1, 500) g';
$pair->primary->query($fill);

# ---- databases ------------------------------------------------------------------

my $folder;
$pair->story('dropped database',
	before => sub {
		$pair->primary->query('CREATE DATABASE dropped');
		$pair->primary->query("$fill; CREATE INDEX ON t (x)", 'dropped');
	},
	lost => ['DROP DATABASE dropped'],
	gained => sub { $pair->new_primary->query(q{INSERT INTO t VALUES (0, 'gained')}, 'dropped') },
	damaged => sub {
		$folder = database_folder($pair->new_primary, 'dropped');
		is(files_below($pair->old_primary, $folder), 0, 'its files are gone on the old primary');
	},
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM t', 'dropped'), 501, 'the database is back');
	});

# The server removes the files first and then writes the record.
$pair->story('database half dropped when the crash came',
	lost => [q{INSERT INTO t VALUES (-1, 'lost')}],
	damaged => sub {
		remove_tree($pair->old_primary->data_dir . "/$folder");
		is(files_below($pair->old_primary, $folder), 0, 'its files are gone, and no record tells');
	},
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM t', 'dropped'), 501, 'the database is back');
	});

$pair->story('database made after the fork',
	lost => sub {
		$pair->primary->query("CREATE DATABASE made_$_ STRATEGY $_") for qw(wal_log file_copy);
		$pair->primary->query($fill, "made_$_") for qw(wal_log file_copy);
	},
	gained => sub {
		$pair->new_primary->query('CREATE DATABASE made_here');
		$pair->new_primary->query('CREATE TABLE t (a int)', 'made_here');
	},
	damaged => sub {
		my ($old, $new) = map { Tandem::Rejoin::files($_) } $pair->old_primary, $pair->new_primary;
		cmp_ok(scalar(grep { !exists $new->{$_} && m{^base/\d+$} } keys %{$old}), '>=', 1,
			'folders of databases that never were');
	},
	repaired => sub {
		is($pair->standby->query(q{SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE 'made%'}),
			'made_here', 'they are gone');
	});

$pair->story('databases made and dropped shortly before the fork',
	before => sub {
		$pair->primary->query('CHECKPOINT');
		for my $strategy (qw(wal_log file_copy))
		{
			$pair->primary->query("CREATE DATABASE early_$strategy STRATEGY $strategy");
			$pair->primary->query($fill, "early_$strategy");
		}
		$pair->primary->query('CREATE DATABASE copied TEMPLATE dropped STRATEGY file_copy');
	},
	checkpoint_before => 0,
	lost => sub {
		$pair->primary->query(q{UPDATE t SET x = 'lost'}, $_) for qw(early_wal_log copied);
		$pair->primary->query('DROP DATABASE early_file_copy');
	},
	gained => sub {
		$pair->new_primary->query(q{UPDATE t SET x = 'gained' WHERE id = 7}, $_) for qw(early_file_copy copied);
		$pair->new_primary->query('DROP DATABASE dropped');
	});

# ---- tablespaces -----------------------------------------------------------------

# In the folder where tablespaces of tests live, "in place", or elsewhere.
$pair->story('tablespace made after the fork',
	lost => sub {
		$pair->primary->query($_) for q{CREATE TABLESPACE lost_space LOCATION ''},
		  'CREATE TABLE in_space TABLESPACE lost_space AS SELECT * FROM t',
		  'CREATE DATABASE in_space TABLESPACE lost_space';
	},
	gained => [ q{CREATE TABLESPACE gained_space LOCATION ''},
		'CREATE TABLE in_space TABLESPACE gained_space AS SELECT 1 AS a' ],
	damaged => sub {
		cmp_ok(files_below($pair->old_primary, 'pg_tblspc'), '>=', 1, 'the old primary has it');
	},
	repaired => sub {
		is(files_below($pair->standby, 'pg_tblspc'), 1, 'only the new primary\'s is there');
	});

$pair->story('tablespace dropped after the fork',
	before => [ 'INSERT INTO in_space SELECT generate_series(1, 1000)' ],
	lost => [ 'DROP TABLE in_space', 'DROP TABLESPACE gained_space' ],
	gained => [ 'INSERT INTO in_space VALUES (42)' ],
	damaged => sub {
		is(files_below($pair->old_primary, 'pg_tblspc'), 0, 'it is gone on the old primary');
	},
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM in_space'), 1002, 'it is back with what is in it');
	});

# ---- removed transaction logs -------------------------------------------------------

sub freeze_all
{
	my ($node) = @_;
	$node->query('ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	$node->query('VACUUM FREEZE', $_)
	  for split /\n/, $node->query('SELECT datname FROM pg_database');
	$node->query('ALTER DATABASE template0 ALLOW_CONNECTIONS false');
	return;
}
$pair->story('transaction logs truncated after the fork',
	before => sub {
		my $node = $pair->primary;
		$node->query('CREATE TABLE old_rows AS SELECT generate_series(1, 300) AS id');
		# a multixact, so that there is a reason to truncate those too
		my $session = $node->background_psql('postgres');
		$session->query_safe('BEGIN');
		$session->query_safe('SELECT count(*) FROM (SELECT 1 FROM old_rows WHERE id < 5 FOR KEY SHARE) l');
		$node->query('SELECT count(*) FROM (SELECT 1 FROM old_rows WHERE id < 5 FOR SHARE) l');
		$session->query_safe('COMMIT');
		$session->quit;
	},
	lost => sub { freeze_all($pair->primary) },
	gained => [ 'DELETE FROM old_rows WHERE id > 200' ],
	damaged => sub {
		for my $log (qw(pg_xact pg_multixact/offsets))
		{
			my ($old, $new) = map { Tandem::Rejoin::log_pages($_, $log) } $pair->old_primary, $pair->new_primary;
			ok(!exists $old->{'0000'} && exists $new->{'0000'}, "a segment of $log is gone");
		}
	},
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM old_rows'), 200, 'rows can be judged');
	});
$pair->story('transaction logs truncated on the new primary',
	gained => sub { freeze_all($pair->new_primary) },
	lost => [ 'DELETE FROM old_rows' ],
	repaired => sub {
		ok(!-e $pair->standby->data_dir . "/$_/0000", "a segment of $_ is gone here too")
		  for qw(pg_xact pg_multixact/offsets);
	});

# ---- unlogged relations ----------------------------------------------------------------

$pair->story('unlogged relations',
	before => [ 'CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)', 'INSERT INTO unlogged SELECT generate_series(1, 100)' ],
	lost => [ 'INSERT INTO unlogged SELECT generate_series(101, 5000)',
		'CREATE UNLOGGED TABLE unlogged_lost AS SELECT generate_series(1, 1000) AS id' ],
	gained => [ 'INSERT INTO unlogged SELECT generate_series(1, 10)', 'CREATE UNLOGGED TABLE unlogged_gained (id int)' ]);
$pair->story('unlogged relations after the next failover',
	lost => [ 'DROP TABLE unlogged_gained', 'VACUUM FULL unlogged' ],
	gained => sub {
		is($pair->new_primary->query('SELECT count(*) FROM unlogged'), 0, 'an unlogged table is empty and usable');
		$pair->new_primary->query('INSERT INTO unlogged SELECT generate_series(1, 50)');
		$pair->new_primary->query('INSERT INTO unlogged_gained VALUES (1)');
	});

# ---- slots, decoding ----------------------------------------------------------------------

$pair->story('slots and decoding snapshots',
	before => sub {
		my $node = $pair->primary;
		$node->query(q{SELECT pg_create_logical_replication_slot('stale', 'test_decoding')});
		$node->query(q{SELECT pg_create_physical_replication_slot('reader', true)});
	},
	lost => sub {
		my $node = $pair->primary;
		$node->query(q{INSERT INTO t VALUES (-2, 'lost')});
		$node->query(q{SELECT count(*) FROM pg_logical_slot_get_changes('stale', NULL, NULL)});
		$node->advance_slot('stale');
		$node->query(q{SELECT pg_create_logical_replication_slot('stale_too', 'test_decoding')});
	},
	gained => [ q{INSERT INTO t VALUES (-3, 'gained')} ],
	damaged => sub {
		my @ahead = grep { m{/([0-9A-F]+)-([0-9A-F]+)\.snap$}
			  && lsn_number("$1/$2") >= lsn_number($pair->fork_lsn) }
		  glob $pair->old_primary->data_dir . '/pg_logical/snapshots/*';
		cmp_ok(scalar(@ahead), '>=', 1, 'snapshots of the lost stretch');
	},
	repaired => sub {
		my $node = $pair->standby;
		my $theirs = join ' ', map { s{.*/}{}r } glob $pair->primary->data_dir . '/pg_logical/snapshots/*';
		my @foreign = grep { m{/([0-9A-F]+)-([0-9A-F]+)\.snap$}
			  && lsn_number("$1/$2") >= lsn_number($pair->fork_lsn)
			  && index($theirs, "$1-$2.snap") < 0 } glob $node->data_dir . '/pg_logical/snapshots/*';
		is_deeply(\@foreign, [], 'none of them is left');
		is($node->query(q{SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'stale_too'}), 0,
			'a slot that the new primary has not is gone');
		is($node->query(q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE slot_name = 'reader'}),
			'reader', 'a physical slot of others stays');
		my $hold = $node->query(q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots
			WHERE slot_type = 'physical' AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)});
		is($hold, '', 'no physical slot holds back rows');
	});

# ---- the archive -------------------------------------------------------------------------

$pair->story('marks for the archiver',
	lost => sub {
		$pair->primary->query(q{INSERT INTO t SELECT g, 'lost' FROM generate_series(1, 1000) g});
		$pair->primary->switch_wal(2);
	},
	gained => sub { $pair->new_primary->switch_wal(1) },
	damaged => sub {
		cmp_ok(scalar(ready_past_fork($pair->old_primary, $pair->new_primary)), '>=', 1, 'segments of the lost stretch wait for the archiver');
	},
	repaired => sub {
		is_deeply([ ready_past_fork($pair->standby, $pair->primary) ], [], 'none of them waits any more');
	});

# Marks of segments of the timeline that was left, from the fork's one on.
sub ready_past_fork
{
	my ($node, $promoted) = @_;
	my ($newest) = reverse sort glob $promoted->data_dir . '/pg_wal/*.history';
	my $tli = hex(($newest =~ /([0-9A-F]{8})[.]history/)[0]) - 1;
	my $segment = int(lsn_number($pair->fork_lsn) / (16 << 20));
	return map { s{.*/}{}r } grep { m{/([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})[.]ready$}
		  && hex($1) == $tli && hex($2) * 256 + hex($3) >= $segment }
	  glob $node->data_dir . '/pg_wal/archive_status/*.ready';
}

done_testing();
