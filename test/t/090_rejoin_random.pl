# Rounds of everything: a random workload, the standby stalled at a random
# moment, the primary killed at another, the standby promoted and written to,
# the old primary rejoined under load.  While writes go on, the new primary adds
# an image of each page to each record, which the rejoined node compares with
# its own page (wal_consistency_checking).  Then the two have to be equal: by
# dumps, files, transaction logs, pg_amcheck, and page by page.  Roles swap; a
# pair of nodes lives for three rounds.
#
# What is random follows from the seed that is printed; the moments too, but not
# what the server's processes make of them.
#
#   TANDEM_ROUNDS  rounds with the guard and as many without (default 3)
#   TANDEM_SEED    of the first round (default: the time); the next has the next
#   TANDEM_MODES   "guard none" (default), or one of them
#   TANDEM_KEEP    1 = stop at the first failure, and keep the old primary's
#                  directory as it was before it was rejoined, as "wreck"

use strict;
use warnings;

use Tandem::Command;
use Tandem::Digests;
use Tandem::Pages;
use Tandem::Rejoin;
use Tandem::Test;
use Tandem::Workload;
use Test::More;
use Time::HiRes ();

my $rounds = $ENV{TANDEM_ROUNDS} // 3;
my $first_seed = $ENV{TANDEM_SEED} // time % 100000 * 100;
my @modes = split / /, $ENV{TANDEM_MODES} // 'guard none';

# All but hash: its vacuum attaches an image of a bucket's first page that is taken
# without a lock (blkref 0 of Hash/DELETE, hashbucketcleanup in core), and may be
# older than the record.  Seen as a false alarm here.
my $checked = 'brin, gin, gist, heap, heap2, btree, sequence, spgist, generic';
my $rounds_of_a_pair = 3;

# what looks at the nodes fails where it would hang
$ENV{PGOPTIONS} = '-c lock_timeout=30s';

sub pick { return $_[ int rand @_ ] }
sub chance { return rand() < $_[0] }

# The load runs for a random while; nothing is waited for.
sub let_run
{
	my ($least, $most) = @_;
	Time::HiRes::sleep($least + rand($most - $least));
	return;
}

# ---- A pair of nodes ------------------------------------------------------------

sub new_pair
{
	my ($guarded, $seed) = @_;
	srand $seed;
	my $checksums = chance(0.5);
	my %conf = (
		shared_buffers => pick('1MB', '1MB', '8MB'),
		wal_compression => pick('off', 'off', 'pglz'),
		wal_log_hints => $checksums ? 'off' : 'on',
		full_page_writes => 'on',
		max_wal_size => '256MB',
		checkpoint_timeout => '30s',
		wal_keep_size => '1GB',
		max_prepared_transactions => 50,
		bgwriter_delay => '10ms',
		bgwriter_lru_maxpages => 1000,
		autovacuum => pick('on', 'off'),
		autovacuum_naptime => '1s',
		max_standby_streaming_delay => '500ms',
		log_statement => 'none',
		'tandem.sync_slots' => 'off',
		'tandem.synchronous_transfer' => $guarded ? pick('data_flush', 'all') : 'none',
		'tandem.failback_standbys' => 'node',
		'tandem.failback_timeout' => '20s');
	note "pair of seed $seed: checksums " . ($checksums ? 'on' : 'off'),
	  map { ", $_ $conf{$_}" } qw(shared_buffers wal_compression autovacuum tandem.synchronous_transfer);

	# both use a slot of the same name, so that the list fits after a swap
	my $pair = Tandem::Rejoin->new(
		initdb => [ $checksums ? '--data-checksums' : () ],
		slot => 'node',
		conf => join '', map { "$_ = '$conf{$_}'\n" } sort keys %conf);
	$_->expect_crash for $pair->primary, $pair->standby;
	$pair->primary->safe_psql('template1', 'CREATE EXTENSION pg_tandem');
	Tandem::Workload->new->prepare($pair->primary);
	return $pair;
}

# ---- Parts of a round -------------------------------------------------------------

# The primary ends while the standby lags behind it, or just behind it.
sub end_primary
{
	my ($how, $old, $new, $load) = @_;

	$load->start($old);
	let_run(0.3, 1.5);
	if ($how eq 'kill' || $how eq 'unfenced')
	{
		my $receiver = stall($new->pid_of(qr/walreceiver/));
		let_run(0.1, 1.5);
		$old->kill9_all;
		$load->stop;
		if ($how eq 'unfenced')
		{
			$old->start;
			$load->start($old);
			let_run(0.2, 0.7);
			$old->kill9_all;
			$load->stop;
		}
		resume($receiver);
	}
	elsif ($how eq 'kill at once')
	{
		$old->kill9_all;
		$load->stop;
	}
	elsif ($how eq 'stop')
	{
		$old->stop('fast');
		$load->stop;
	}
	else
	{
		# the guard gives up after its timeout and says so
		$old->set('tandem.failback_timeout' => '1s');
		$new->set(primary_conninfo => '');
		let_run(0.1, 0.8);
		$old->stop('fast');
		$load->stop;
	}
	return;
}

# Pages of relations whose transactions were lost don't count: they are written
# without waiting, and nothing leads to them.  Returns how many there are.
sub ignore_lost_relations
{
	my ($scan, $new) = @_;
	my $lost = 0;
	my $oid = $new->query(q{SELECT oid FROM pg_database WHERE datname = 'postgres'});
	for my $path (keys %{ $scan->{files} })
	{
		my ($tablespace, $node) = $path =~ m{^(?:base|pg_tblspc/(\d+)/\w+)/$oid/(\d+)} or next;
		$tablespace //= 0;
		next if $new->query("SELECT pg_filenode_relation($tablespace, $node)") ne '';
		my $pages = @{ delete $scan->{files}{$path} };
		$scan->{ahead} -= $pages;
		$lost += $pages;
	}
	return $lost;
}

# The rejoin dies at a random moment, before the one that counts.
sub kill_a_rejoin
{
	my (@command) = @_;
	my $output = '';
	local %ENV = %ENV;
	$ENV{PGUSER} = 'postgres';
	my $run = IPC::Run::start([ 'tandem', @command, '--no-start' ], '<', \undef, '&>', \$output);
	let_run(0.02, 0.6);
	$run->signal('KILL');
	eval { $run->finish };
	return;
}

sub one_round
{
	my ($pair, $guarded, $seed) = @_;
	my ($old, $new) = ($pair->primary, $pair->standby);

	srand $seed;
	my $how = pick(('kill') x 7, 'kill at once', 'unfenced', 'unfenced', 'stop', 'stop cut off');
	my $fresh = chance(0.5);
	my $crash_new = chance(0.15);
	my $rejoin_killed = chance(0.2);
	my $check_from_promotion = chance(0.25);
	my $crash_rejoined = chance(0.2);
	my $prepared_stay = chance(0.5);
	my $quiet = !$crash_new && chance(0.3);
	# Core: a standby that crashes after it has replayed ALTER DATABASE SET TABLESPACE
	# replays the copy once more, from the folder that it has removed.
	my $load = Tandem::Workload->new(seed => $seed, moves => !$crash_new && !$crash_rejoined);
	note "round of seed $seed: $how, restartpoint " . ($fresh ? 'fresh' : 'old')
	  . ($quiet ? ', nothing new at first' : '')
	  . ($crash_new ? ', new primary crashes too' : '')
	  . ($rejoin_killed ? ', rejoin killed once' : '')
	  . ($check_from_promotion ? ', consistency checked from the promotion on' : '')
	  . ($crash_rejoined ? ', rejoined node crashes' : '');

	$old->safe_psql('postgres', 'CHECKPOINT');
	$old->wait_replayed($new);
	$new->restartpoint($old) if $fresh;
	$old->poll_query_until('postgres', 'SELECT state FROM tandem.failback', 'armed')
	  or die "the guard is not armed\n"
	  if $guarded;

	end_primary($how, $old, $new, $load);
	$new->promote;
	$new->set(primary_conninfo => undef) if $how eq 'stop cut off';

	my $scan = scan_pages($old->data_dir, fork_point($new), $new->data_dir);
	my $lost = ignore_lost_relations($scan, $new);
	my $none_ahead = $guarded && $how !~ /unfenced|cut off/;
	is($scan->{ahead}, 0, "seed $seed: no page is ahead of the fork") || diag explain $scan->{files}
	  if $none_ahead;
	note "$scan->{ahead} pages ahead of the fork";
	my $wreck = $old->basedir . '/wreck';
	PostgreSQL::Test::Utils::system_or_bail("rm -rf $wreck && cp -a " . $old->data_dir . " $wreck")
	  if $ENV{TANDEM_KEEP};

	$new->set(wal_consistency_checking => $checked) if $check_from_promotion;
	if (!$quiet)
	{
		$load->start($new);
		let_run(0.2, 1);
	}
	if ($crash_new)
	{
		$new->kill9_all;
		$load->stop;
		$new->start;
		$load->start($new);
	}

	# that much WAL is hard to catch up with
	$load->stop if $check_from_promotion;

	# ---- rejoin, in most rounds under load
	my @command = ('-D', $old->data_dir, '--source', $pair->source, '--slot', 'node', '--log', $old->logfile);
	my $mark = $old->log_mark;
	kill_a_rejoin('rejoin', @command) if $rejoin_killed;
	my ($code, $result, $err) = eval { tandem_json('rejoin', @command) };
	my $why = $@ . ($err // '');
	if ($why =~ /copied the directory ".*" after the fork/)
	{
		# see 091_rejoin_databases.pl
		$load->stop;
		pass("seed $seed: refused, a database that was copied needs repair");
		return 'refused';
	}
	if (!is($code, 0, "seed $seed: rejoined"))
	{
		diag $why, shown_log($old, $mark);
		return;
	}
	$old->_update_pid(1);
	note "rejoin: $result->{outcome}, copied $result->{done}{pages_copied} pages, $result->{done}{files_copied} files, "
	  . "deleted $result->{done}{deleted}, healed $result->{plan}{pages_healed}, "
	  . "compared $result->{verified}{pages_equal}, $result->{verified}{pages_changing} change"
	  . ($result->{resumed} ? ', resumed' : '')
	  . join '', map { "; $_->{reason} $_->{pages}/$_->{relations}/$_->{files}/$_->{deleted}" }
	  @{ $result->{plan}{reasons} // [] };
	if (($result->{verified}{why_not} // '') =~ /no connection/)
	{
		note $result->{verified}{why_not};
		finish_prepared($new);
		$new->log_standby_snapshot;
	}
	my ($ahead) = grep { $_->{reason} =~ /ahead/ } @{ $result->{plan}{reasons} // [] };
	cmp_ok($ahead->{pages} // 0, '<=', $lost, "seed $seed: no page copied for being ahead, but for $lost that are lost")
	  if $none_ahead;

	# ---- every page that is replayed is compared
	$new->set(wal_consistency_checking => $checked);
	$load->start($new) if $quiet || $check_from_promotion;
	let_run(0.5, 1.5);
	if ($crash_rejoined)
	{
		$old->kill9_all;
		let_run(0.1, 0.5);
		$old->start;
	}
	$load->stop;
	$new->set(wal_consistency_checking => undef);
	if (!ok(eval { $new->wait_replayed($old); 1 }, "seed $seed: all is replayed and consistent"))
	{
		diag $@, shown_log($old, $mark);
		return;
	}

	@{$pair}{qw(primary standby)} = ($new, $old);
	# at rest
	$new->set(autovacuum => 'off');
	poll_for(sub { $new->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'}) == 0 },
		'autovacuum to end');
	forget_lost_locks($pair, $prepared_stay);
	my $good = is_same($pair, $seed, $crash_new);
	$new->set(autovacuum => undef);
	return $good;
}

sub finish_prepared
{
	my ($primary, $which) = @_;
	for my $gid (split /\n/, $primary->query('SELECT gid FROM pg_prepared_xacts ' . ($which // '')))
	{
		$primary->query(pick('COMMIT', 'ROLLBACK') . " PREPARED '$gid'");
	}
	return;
}

# A standby keeps the locks of transactions that were lost in a failover as long
# as an older prepared transaction is open, or until it restarts: on whatever
# way it came to follow the new primary.  pg_amcheck would wait for them.
sub forget_lost_locks
{
	my ($pair, $prepared_stay) = @_;
	my ($primary, $standby) = ($pair->primary, $pair->standby);
	# those that hold a table exclusively can't stay in any case
	my $locking = q{WHERE EXISTS (SELECT FROM pg_locks x JOIN pg_locks l USING (virtualtransaction)
		WHERE x.transactionid = transaction AND l.mode = 'AccessExclusiveLock')};
	finish_prepared($primary, $prepared_stay ? $locking : '');
	if ($prepared_stay)
	{
		$standby->restartpoint($primary);
		$standby->restart;
		poll_for(sub { $standby->query('SELECT pg_is_in_recovery()') eq 't' }, 'the standby to answer');
	}
	$primary->query('CHECKPOINT');
	$primary->wait_replayed($standby);
	return;
}

# Nothing differs between the two.
sub is_same
{
	my ($pair, $seed, $orphans) = @_;
	# Core: ALTER DATABASE SET TABLESPACE that fails removes its copy without WAL.
	# And a folder made for a relation in a tablespace stays when that is deleted.
	my $moved = join '|', 'pg_tblspc/\d+/\w+/\d+$', split /\n/,
	  $pair->primary->query(q{SELECT 'pg_tblspc/(?!' || dattablespace || '/)\d+/\w+/' || oid
		FROM pg_database WHERE datname ~ '^db'});
	my $good = subtest "seed $seed: both nodes are the same" => sub {
		$pair->is_equal("seed $seed", may_have => qr/^(?:$moved)(?:\/|$)/, $orphans ? (files => 0) : ());
	};
	my @different = different_pages($pair->primary, $pair->standby);
	$good &= is(scalar @different, 0, "seed $seed: every page is the same") || diag join "\n", splice @different, 0, 20;
	return $good;
}

# What a server's log says that could explain a failure.
sub shown_log
{
	my ($node, $mark) = @_;
	my @lines = grep { /FATAL|PANIC|WARNING|TRAP|CONTEXT/ && !/terminating|starting up|not yet accepting/ }
	  split /\n/, $node->log_since($mark);
	splice @lines, 0, @lines - 12 if @lines > 12;
	return join "\n", @lines;
}

# ---- The rounds -----------------------------------------------------------------

# Stops a pair; gives its room back unless it is of interest.
sub end_pair
{
	my ($pair, $keep) = @_;
	for my $node ($pair ? ($pair->primary, $pair->standby) : ())
	{
		$node->stop('immediate', fail_ok => 1);
		$node->clean_node unless $keep;
	}
	return;
}

for my $mode (@modes)
{
	my $pair;
	for my $round (0 .. $rounds - 1)
	{
		my $seed = $first_seed + $round;
		if (!$pair || $round % $rounds_of_a_pair == 0)
		{
			end_pair($pair);
			$pair = new_pair($mode eq 'guard', $seed);
		}
		my $good = eval { one_round($pair, $mode eq 'guard', $seed) };
		die $@ if $@ =~ /^interrupted/;
		fail("seed $seed: the round ran to its end") || diag $@ if $@;
		BAIL_OUT("seed $seed, $mode") if !$good && $ENV{TANDEM_KEEP};
		if (!$good || $good eq 'refused')
		{
			end_pair($pair, !$good);
			undef $pair;
		}
	}
	end_pair($pair);
}

done_testing();
