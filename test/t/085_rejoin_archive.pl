# "tandem rejoin" with a WAL archive.  The archive has the fork's segment of the
# old timeline with everything that was lost in it; a server with a
# restore_command would replay it.  The archive can also give what both nodes no
# longer have, and the slot on the standby keeps what they need without one.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $archive = PostgreSQL::Test::Utils::tempdir();
my $archiving = qq{
archive_mode = on
archive_command = 'test -e $archive/%f || cp %p $archive/%f'
restore_command = 'test ! -e $archive/closed && cp $archive/%f %p'
};
my $pair = Tandem::Rejoin->new(conf => $archiving);
$pair->primary->query('CREATE TABLE t AS SELECT g AS id, md5(g::text) AS x FROM generate_series(1, 3000) g');

sub archived
{
	my ($node, $file) = @_;
	poll_for(sub { -e "$archive/$file" }, "$file in the archive");
	return;
}

sub restore_command_of
{
	my ($node) = @_;
	return $node->query('SHOW restore_command');
}

# The standby must not get from the archive what it shall not have.
sub close_archive
{
	append_to_file("$archive/closed", "for the time being\n");
	return;
}

sub open_archive
{
	unlink "$archive/closed" or die $!;
	return;
}

# ---- The archive knows too much ---------------------------------------------------

my $file;
$pair->story('the archive has what was lost',
	before => \&close_archive,
	lost => sub {
		my $node = $pair->primary;
		$node->query(q{UPDATE t SET x = 'lost' WHERE id % 2 = 0});
		$node->query('CREATE TABLE lost AS SELECT generate_series(1, 1000) AS id');
		$file = $node->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
		$node->switch_wal(1);
		archived($node, $file);
	},
	gained => sub {
		my $node = $pair->new_primary;
		open_archive();
		$node->query(q{UPDATE t SET x = 'gained' WHERE id % 3 = 0});
		$node->query('CREATE TABLE gained AS SELECT generate_series(1, 1000) AS id');
	},
	damaged => sub {
		my ($out) = PostgreSQL::Test::Utils::run_command(
			[ 'pg_waldump', '-s', $pair->fork_lsn, '-n', 5, "$archive/$file" ]);
		like($out, qr/lsn: /, 'the archive has records of the old timeline past the fork');
	},
	repaired => sub {
		is($pair->standby->query(q{SELECT count(*) FROM t WHERE x = 'lost'}), 0, 'they were not replayed');
	});

# Once no restart can go back behind the fork the archive is in use again.
my $node = $pair->standby;
if (restore_command_of($node) eq '')
{
	$pair->primary->query('CHECKPOINT');
	$pair->primary->wait_replayed($node);
	$node->query('CHECKPOINT');
	$node->query('ALTER SYSTEM RESET restore_command');
	$node->query('SELECT pg_reload_conf()');
}
poll_for(sub { restore_command_of($node) =~ /cp/ }, 'the restore_command of before');
my $conf = slurp_file($node->data_dir . '/postgresql.auto.conf');
unlike($conf, qr/restore_command/, 'nothing of it is left in postgresql.auto.conf');
$node->restart;
$pair->primary->query('INSERT INTO t VALUES (10001)');
$pair->primary->wait_replayed($node);
is($node->query(q{SELECT count(*) FROM t WHERE x = 'lost'}), 0, 'nor is it replayed after a restart');
$pair->is_equal('with the archive');

# ---- The slot keeps what is needed ---------------------------------------------------

# The new primary would have recycled the fork's segment long ago.
$pair->story('the new primary has moved on',
	before => \&close_archive,
	lost => [ q{UPDATE t SET x = 'lost' WHERE id % 2 = 0} ],
	gained => sub {
		my $node = $pair->new_primary;
		open_archive();
		for (1 .. 3)
		{
			$node->query(q{UPDATE t SET x = 'gained' WHERE id % 3 = 0});
			$node->switch_wal(2);
			$node->query('CHECKPOINT');
		}
		is($node->query("SELECT restart_lsn <= '" . $pair->fork_lsn . q{' FROM pg_replication_slots
			WHERE slot_name = 'tandem_rejoin'}), 't', 'the slot made in advance stands before the fork');
	});

# ---- The archive has what nobody else has ---------------------------------------------

# Local WAL between the start checkpoint and the fork is gone, on both nodes.
$pair->primary->query('CHECKPOINT');
$pair->primary->query(q{UPDATE t SET x = 'common' WHERE id % 5 = 0});
$file = $pair->primary->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
$pair->primary->switch_wal(2);
archived($pair->primary, $file);
close_archive();
$pair->part(checkpoint => 0);
$pair->primary->query(q{UPDATE t SET x = 'lost' WHERE id % 7 = 0});
$pair->fail_over;
open_archive();
$pair->new_primary->query(q{UPDATE t SET x = 'gained' WHERE id % 11 = 0});
unlink map { $_->data_dir . "/pg_wal/$file" } $pair->old_primary, $pair->new_primary;

my ($code, $out, $err) = $pair->rejoin;
is($code, 1, 'without the archive it is refused');
like($err, qr/$file/, 'naming the segment');
($code, $out, $err) = $pair->rejoin('--restore-command', "cp $archive/%f %p");
is($code, 0, 'with --restore-command the node comes back') or diag("$out$err");
$pair->caught_up;
$pair->is_equal('from the archive');

done_testing();
