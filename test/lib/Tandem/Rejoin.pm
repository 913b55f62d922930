# Two nodes that take turns at being the primary, and what happens to the one
# that crashed: the frame of the tests of "tandem rejoin".
#
#   my $pair = Tandem::Rejoin->new(conf => '...');
#   $pair->primary->query('CREATE TABLE ...');
#   $pair->part;                    # from here on only the primary has it
#   $pair->primary->query('...');
#   $pair->fail_over;               # primary killed, standby promoted
#   $pair->new_primary->query('...');
#   my ($code, $out, $err) = $pair->rejoin;
#   $pair->caught_up;               # the roles are swapped now
#   $pair->is_equal('story');       # tests: both nodes hold the same
#
# rejoin() connects as role "repl", which is no superuser and has exactly what
# the documentation tells users to grant.
package Tandem::Rejoin;

use strict;
use warnings;

use Carp;
use PostgreSQL::Test::Utils;
use Tandem::Command;
use Tandem::Node;
use Tandem::Pages;
use Tandem::Wait;
use Test::More ();

my $pairs = 0;

# A primary and its standby, both running, equal.  Parameters: conf; initdb;
# slot => name of the standby's slot; setup => a sub that gets the stopped
# primary before its first start.
sub new
{
	my ($class, %params) = @_;
	my $letter = $pairs++ ? $pairs : '';
	my $primary = Tandem::Node->new_primary("a$letter",
		initdb => $params{initdb} // [],
		start => $params{start},
		conf => q{
wal_log_hints = on
max_prepared_transactions = 10
track_commit_timestamp = on
autovacuum = off
allow_in_place_tablespaces = on
} . ($params{conf} // ''));
	if ($params{setup})
	{
		$primary->stop;
		$params{setup}->($primary);
		$primary->start;
	}
	$primary->safe_psql('postgres', q{
		CREATE ROLE repl LOGIN REPLICATION;
		GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal, tandem.rejoin_source,
			tandem.source_files, tandem.source_file, tandem.source_blocks, tandem.page_digests TO repl;
		GRANT pg_checkpoint TO repl;
		CREATE EXTENSION amcheck;
		CREATE EXTENSION pg_visibility});
	$primary->safe_psql('template1', 'CREATE EXTENSION amcheck');
	my $standby = $primary->new_standby("b$letter", slot => $params{slot} // "b$letter");
	return bless { primary => $primary, standby => $standby }, $class;
}

sub primary { return $_[0]->{primary} }
sub standby { return $_[0]->{standby} }
# After fail_over(): the node that was promoted, and the one that crashed.
sub new_primary { return $_[0]->{standby} }
sub old_primary { return $_[0]->{primary} }

# The standby gets nothing any more.  The last checkpoint before is the one to
# start from, unless checkpoint => 0.
sub part
{
	my ($self, %params) = @_;
	my ($primary, $standby) = @{$self}{qw(primary standby)};

	$primary->safe_psql('postgres', 'CHECKPOINT') if $params{checkpoint} // 1;
	$primary->wait_replayed($standby);
	$standby->set(primary_conninfo => '');
	poll_for(sub { !$standby->pids_of(qr/walreceiver/) }, 'the walreceiver to end');
	return;
}

# The primary dies, the standby takes over.  What the primary wrote since
# part() is on its disk, unless checkpoint => 0.
sub fail_over
{
	my ($self, %params) = @_;
	my ($primary, $standby) = @{$self}{qw(primary standby)};

	$primary->safe_psql('postgres', 'CHECKPOINT') if $params{checkpoint} // 1;
	$primary->expect_crash;
	$primary->kill9_all;
	$standby->promote;
	$standby->set(primary_conninfo => undef);
	$self->{fork} = fork_point($standby);
	return $self->{fork};
}

sub fork_lsn { return $_[0]->{fork} }

sub source
{
	my ($self) = @_;
	my $node = $self->{standby};
	return 'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres user=repl';
}

# Runs the command on the crashed node's directory: exit code, output, errors.
sub rejoin
{
	my ($self, @options) = @_;
	my $node = $self->{primary};
	my @result = tandem('rejoin', '-D', $node->data_dir, '--source', $self->source,
		'--log', $node->logfile, @options);
	$node->_update_pid(-1) if -e $node->data_dir . '/postmaster.pid';
	print "# tandem rejoin @options: exit $result[0]\n", map { "#   $_\n" } split /\n/, "$result[1]$result[2]";
	return @result;
}

# Waits until the rejoined node has replayed all; from then on it is the
# standby and the other one the primary.
sub caught_up
{
	my ($self) = @_;
	my ($old, $new) = @{$self}{qw(primary standby)};
	poll_for(sub { $old->query('SELECT pg_is_in_recovery()') eq 't' }, 'the rejoined node to answer');
	$new->wait_replayed($old);
	@{$self}{qw(primary standby)} = ($new, $old);
	return;
}

# One way to part and come together again, with tests:
#
#   before    on the primary, replicated
#   lost      on the primary, after the fork
#   damaged   tests of the dead node, to see that there is something to repair
#   gained    on the new primary
#   repaired  tests of the node after it was rejoined and has caught up
#
# Each is a sub that gets the pair, or for before, lost and gained a list of
# statements.  Returns whether the node was rejoined.
sub story
{
	my ($self, $name, %parts) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $act = sub {
		my ($part, $node) = @_;
		return unless $part;
		return $part->($self) if ref $part eq 'CODE';
		$node->safe_psql('postgres', $_) for @{$part};
		return;
	};

	$act->($parts{before}, $self->primary);
	$self->part(checkpoint => $parts{checkpoint_before} // 1);
	$act->($parts{lost}, $self->primary);
	$self->fail_over(checkpoint => $parts{checkpoint_after} // 1);
	$act->($parts{gained}, $self->new_primary);
	$act->($parts{damaged});

	my ($code, $out, $err) = $self->rejoin(@{ $parts{options} // [] });
	if (!Test::More::is($code, 0, "$name: rejoined"))
	{
		Test::More::diag($out . $err);
		return;
	}
	$self->caught_up;
	$act->($parts{repaired});
	$self->is_equal($name);
	return 1;
}

# ---- Looking ------------------------------------------------------------------

# Everything that SQL shows, of all databases.
sub dump_all
{
	my ($node) = @_;
	my ($out, $err) = run_command(
		[ 'pg_dumpall', '-h', $node->host, '-p', $node->port, '-U', $ENV{PGUSER} // 'postgres',
			'--no-unlogged-table-data', '--no-sync' ]);
	croak "pg_dumpall of \"" . $node->name . "\": $err" if $err =~ /error/;
	$out =~ s/^\\(un)?restrict .*\n//mg;
	$out =~ s/^(CREATE TABLESPACE .* LOCATION) .*/$1/mg;	# each has its own
	return $out;
}

# Relation files by path, and the folders of databases.  Not free space maps,
# whose changes no WAL tells of, and not visibility maps, which may be there
# without telling anything.
sub files
{
	my ($node) = @_;
	my %files = relation_files($node->data_dir);
	delete @files{ grep { /_(fsm|vm)/ } keys %files };
	my $data = $node->data_dir;
	for my $folder (glob "$data/base/* $data/pg_tblspc/*/*/*")
	{
		next if $folder =~ /pgsql_tmp/;
		$files{ substr $folder, length($data) + 1 } = 0 if -d $folder;
	}
	return \%files;
}

# The content of all files of a transaction log, such as pg_xact, without the
# empty pages at the end, by file.
sub log_pages
{
	my ($node, $log) = @_;
	my %content;
	for my $path (glob $node->data_dir . "/$log/*")
	{
		my $bytes = slurp_file($path);
		$bytes =~ s/\0+\z//;
		$content{ $path =~ s{.*/}{}r } = $bytes;
	}
	return \%content;
}

# Test: both nodes hold the same, seen by SQL, by their files, by amcheck.  With
# files => 0 without the list of files: the crash of a primary leaves orphans.
# may_have => pattern of paths that only the rejoined node may have.
sub is_equal
{
	my ($self, $name, %params) = @_;
	my ($primary, $standby) = @{$self}{qw(primary standby)};
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	# files of dropped relations go with the checkpoint after the next
	for (1 .. 2)
	{
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_replayed($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
	}

	my ($ours, $theirs) = map { dump_all($_) } $standby, $primary;
	# A standby has the value that was logged, up to 32 ahead of the one given out.
	# A rejoined node may have the one that it gave out itself, as long as the new
	# primary will log the next one (log_cnt = 0).
	my @sequences = map { [ $_ =~ /^SELECT pg_catalog\.setval\('(.*)', (\d+), \w+\);$/mg ] } $ours, $theirs;
	s/^(SELECT pg_catalog\.setval\('.*'), \d+, \w+\);$/$1/mg for $ours, $theirs;
	my @wrong = grep {
		$_ % 2 && ($sequences[0][$_] > $sequences[1][$_] + 32
			|| $sequences[0][$_] < $sequences[1][$_] && $primary->query("SELECT log_cnt FROM $sequences[1][$_ - 1]") ne '0')
	} 0 .. $#{ $sequences[1] };
	Test::More::is_deeply([ map { "$sequences[1][$_ - 1]: $sequences[1][$_], here $sequences[0][$_]" } @wrong ],
		[], "$name: no sequence falls back");
	Test::More::ok($ours eq $theirs, "$name: equal dumps") or _show_difference($theirs, $ours);

	($ours, $theirs) = map { files($_) } $standby, $primary;
	my @only = ((map { "$_ only on the primary" } grep { !exists $ours->{$_} } keys %{$theirs}),
		map { "$_ only on the rejoined node" }
		  grep { !exists $theirs->{$_} && !($params{may_have} && $_ =~ $params{may_have}) } keys %{$ours});
	Test::More::is_deeply([ sort @only ], [], "$name: the same files") if $params{files} // 1;

	for my $log (qw(pg_xact pg_multixact/offsets pg_commit_ts))
	{
		($ours, $theirs) = map { log_pages($_, $log) } $standby, $primary;
		my @different = grep { ($ours->{$_} // 'none') ne ($theirs->{$_} // 'none') }
		  sort keys %{ { %{$ours}, %{$theirs} } };
		Test::More::is_deeply(\@different, [], "$name: the same $log");
	}

	# members that no multixact leads to may be left over
	my $members = q{
		SELECT string_agg(m || ' ' || xid || ' ' || mode, ', ' ORDER BY m, xid::text::bigint)
		FROM pg_control_checkpoint() c,
			generate_series(oldest_multi_xid::text::bigint, next_multixact_id::text::bigint - 1) m,
			pg_get_multixact_members(m::text::xid)};
	Test::More::is($standby->query($members), $primary->query($members),
		"$name: the same members of multixacts");

	Test::More::is(
		join(' ', sort map { s{.*/}{}r } glob $standby->data_dir . '/pg_twophase/*'),
		join(' ', sort map { s{.*/}{}r } glob $primary->data_dir . '/pg_twophase/*'),
		"$name: the same prepared transactions");

	my $invisible = $standby->query(q{
		SELECT string_agg(c.oid::regclass || ' ' || t, ', ') FROM pg_class c, pg_check_visible(c.oid) t
		WHERE relkind IN ('r', 't') AND relpersistence = 'p'});
	Test::More::is($invisible, '', "$name: the visibility maps are right");
	my ($out, $err) = run_command(
		[ 'pg_amcheck', '-h', $standby->host, '-p', $standby->port, '-U', $ENV{PGUSER} // 'postgres',
			'--all', '--heapallindexed', '--no-strict-names' ]);
	Test::More::is("$out$err" =~ s/^.*skipping database.*\n//mgr, '', "$name: pg_amcheck finds nothing");
	return;
}

sub _show_difference
{
	my ($left, $right) = @_;
	my %balance;
	$balance{$_}++ for split /\n/, $left;
	$balance{$_}-- for split /\n/, $right;
	my @different = grep { $balance{$_} } sort keys %balance;
	Test::More::diag(($balance{$_} > 0 ? 'only on the primary: ' : 'only on the rejoined node: ') . substr $_, 0, 200)
	  for splice @different, 0, 10;
	return;
}

# A fingerprint of a whole tree: every path with type, mode, size, content.
sub tree
{
	my ($dir) = @_;
	my %tree;
	require Digest::SHA;
	File::Find::find({
		no_chdir => 1,
		wanted => sub {
			my @stat = lstat $File::Find::name or return;
			my $what = sprintf '%o %d:%d', @stat[ 2, 4, 5 ];
			$what .= ' -> ' . readlink $File::Find::name if -l _;
			if (-f _)
			{
				$what .= " $stat[7] $stat[9] " . Digest::SHA->new(1)->addfile($File::Find::name, 'b')->hexdigest
				  if -r _;
			}
			$tree{ substr $File::Find::name, length $dir } = $what;
		} }, $dir);
	return \%tree;
}

# Test: a tree is as it was when tree() was called.
sub is_unchanged
{
	my ($dir, $before, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $after = tree($dir);
	my @changed = grep { ($before->{$_} // 'absent') ne ($after->{$_} // 'absent') }
	  sort keys %{ { %{$before}, %{$after} } };
	Test::More::is_deeply(
		[ map { "$_: " . ($before->{$_} // 'absent') . ' became ' . ($after->{$_} // 'absent') } @changed ],
		[], $name);
	return;
}

1;
