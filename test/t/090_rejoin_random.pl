# Rounds of everything: a random workload, the standby stalled at a random
# moment, the primary killed at another, the standby promoted and written to,
# the old primary rejoined under load.  Then the new primary adds an image of
# each page to each record, which the rejoined node compares with its own page
# (wal_consistency_checking); pg_amcheck on both; equal dumps.  Roles swap.
#
#   TANDEM_ROUNDS  rounds with the guard and as many without (default 3)
#   TANDEM_SEED    of the first round (default: the time)
#   TANDEM_MODES   "data_flush none" (default), or one of them

use strict;
use warnings;

use Tandem::Command;
use Tandem::Pages;
use Tandem::Test;
use Tandem::Workload;
use Test::More;
use Time::HiRes ();

my $rounds = $ENV{TANDEM_ROUNDS} // 3;
my $first_seed = $ENV{TANDEM_SEED} // time % 100000;
my @modes = split / /, $ENV{TANDEM_MODES} // 'data_flush none';

# The load runs for a random while; nothing is waited for.
sub let_run
{
	my ($least, $most) = @_;
	Time::HiRes::sleep($least + rand($most - $least));
	return;
}

# What a series of rounds has in common, by its first seed.
sub make_cluster
{
	my ($mode, $seed) = @_;
	srand($seed);
	my $checksums = rand() < 0.5;
	my $buffers = (1, 1, 8)[ int rand 3 ];
	my $compress = rand() < 0.3 ? 'on' : 'off';
	note "series $mode from seed $seed: checksums " . ($checksums ? 'on' : 'off')
	  . ", shared_buffers ${buffers}MB, wal_compression $compress";
	my $name = "${mode}_$seed";
	my $conf = qq{
		shared_buffers = ${buffers}MB
		wal_compression = $compress
		wal_log_hints = @{[ $checksums ? 'off' : 'on' ]}
		allow_in_place_tablespaces = on
		max_prepared_transactions = 50
		wal_keep_size = 2GB
		checkpoint_timeout = 30s
		max_wal_size = 256MB
		bgwriter_delay = 10ms
		bgwriter_lru_maxpages = 1000
		autovacuum_naptime = 1s
		max_standby_streaming_delay = 500ms
		log_statement = none
		log_min_messages = warning
		tandem.failback_timeout = 20s
		tandem.failback_standbys = 'node'
		tandem.synchronous_transfer = '$mode'
		tandem.sync_slots = off
	};
	my $a = Tandem::Node->new_primary("a_$name", conf => $conf,
		initdb => [ $checksums ? '--data-checksums' : () ]);
	Tandem::Workload->new->prepare($a);
	# both nodes use a slot of the same name, so that the list fits after a swap
	my $b = $a->new_standby("b_$name", slot => 'node');
	return ($a, $b);
}

# The first lines that only one of two texts has.
sub show_difference
{
	my %balance;
	$balance{$_}++ for split /\n/, $_[0];
	$balance{$_}-- for split /\n/, $_[1];
	my @different = grep { $balance{$_} != 0 } sort keys %balance;
	diag substr(($balance{$_} > 0 ? 'new primary: ' : 'rejoined: ') . $_, 0, 200) for splice @different, 0, 10;
	diag 'the same lines in another order' if !@different;
	return;
}

sub one_round
{
	my ($mode, $seed, $old, $new) = @_;
	my $load = Tandem::Workload->new(seed => $seed);

	srand($seed);
	my $how = rand() < 0.15 ? 'stop' : 'kill';
	my $fresh = rand() < 0.5;
	my $unfenced = $how eq 'kill' && rand() < 0.2;
	my $quiet = rand() < 0.4;
	note "round of seed $seed: $how, restartpoint " . ($fresh ? 'fresh' : 'old')
	  . ($unfenced ? ', restarted without being fenced' : '') . ($quiet ? ', nothing new at first' : '');

	$old->safe_psql('postgres', 'CHECKPOINT');
	$old->wait_replayed($new);
	$new->restartpoint($old) if $fresh;
	$old->poll_query_until('postgres', q{SELECT state = 'armed' FROM tandem.failback})
	  or die 'the guard is not armed'
	  if $mode ne 'none';

	$load->start($old);
	let_run(0.3, 1.5);
	my $receiver;
	if ($how eq 'kill')
	{
		$receiver = stall($new->pid_of(qr/walreceiver/));
		let_run(0.1, 1.5);
		$old->kill9_all;
	}
	else
	{
		$new->set(primary_conninfo => '');
		let_run(0.1, 0.8);
		$old->stop('fast');
	}
	$load->stop;
	if ($unfenced)
	{
		$old->start;
		$load->start($old);
		let_run(0.2, 0.7);
		$old->kill9_all;
		$load->stop;
	}
	resume($receiver) if $receiver;
	$new->promote;

	my $scan = scan_pages($old->data_dir, fork_point($new), $new->data_dir);
	# a stop, like a restart, has to go on without a standby that never answers
	if ($mode eq 'data_flush' && $how eq 'kill' && !$unfenced)
	{
		is($scan->{ahead}, 0, "seed $seed: no page ahead of the fork") or diag explain $scan->{files};
	}
	else
	{
		note "$scan->{ahead} pages ahead of the fork";
	}

	if (!$quiet)
	{
		$load->start($new);
		let_run(0.2, 1);
	}
	my ($code, $result, $err) = tandem_json('rejoin', '-D', $old->data_dir,
		'--source', $new->connstr, '--slot', 'node', '--log', $old->logfile);
	if (!is($code, 0, "seed $seed: rejoined"))
	{
		diag $err;
		BAIL_OUT("seed $seed of $mode") if $ENV{TANDEM_BAIL};
		return;
	}
	$old->_update_pid(1);
	note "copied $result->{done}{pages_copied} pages, $result->{done}{files_copied} files, "
	  . "deleted $result->{done}{deleted}, healed $result->{plan}{pages_healed}, "
	  . "verified $result->{verified}{pages_equal} " . ($result->{verified}{why_not} // '');

	if ($quiet)
	{
		# WAL is still shorter than what was abandoned: no page of that may be left,
		# in whatever fork
		$new->wait_replayed($old);
		$old->safe_psql('postgres', 'CHECKPOINT');
		$scan = scan_pages($old->data_dir, $new->query('SELECT pg_current_wal_insert_lsn()'),
			$new->data_dir, running => 1);
		is($scan->{ahead}, 0, "seed $seed: no page is newer than the new primary's WAL")
		  or diag explain $scan->{files};
		$load->start($new);
	}

	my $mark = $old->log_mark;
	$new->set(wal_consistency_checking => 'all');
	let_run(1, 2);
	$load->stop;
	$new->set(wal_consistency_checking => undef);
	ok(eval { $new->wait_replayed($old); 1 }, "seed $seed: every page that was replayed is consistent")
	  or diag $@ . join "\n", grep { /FATAL|PANIC|WARNING|CONTEXT/ } split /\n/, $old->log_since($mark);

	# Locks of a transaction that was cut off by the crash are released on
	# standbys, as in core, by a snapshot that finds none older running.
	$new->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
	  for split /\n/, $new->query('SELECT gid FROM pg_prepared_xacts');
	$new->safe_psql('postgres', 'CHECKPOINT');
	$new->wait_replayed($old);

	for my $node ($new, $old)
	{
		my ($out, $errors) = ('', '');
		IPC::Run::run([ 'pg_amcheck', '--all', '--heapallindexed', '-j', '2',
				$node == $new ? '--install-missing' : (),
				'-h', $node->host, '-p', $node->port ], '>', \$out, '2>', \$errors);
		$errors =~ s/^NOTICE:.*already exists, skipping\n//mg;
		is($out . $errors, '', "seed $seed: pg_amcheck finds nothing on " . ($node == $new ? 'the new primary' : 'the rejoined node'));
		$new->wait_replayed($old) if $node == $new;
	}

	my @dumps;
	for my $node ($new, $old)
	{
		my ($out, $errors) = ('', '');
		IPC::Run::run([ 'pg_dumpall', '--no-unlogged-table-data', '-h', $node->host, '-p', $node->port ],
			'>', \$out, '2>', \$errors);
		# a sequence is ahead of its last record where it is used
		$out =~ s{^(?:SELECT pg_catalog\.setval|\\(?:un)?restrict ).*\n}{}mg;
		push @dumps, $errors . $out;
	}
	ok($dumps[0] eq $dumps[1], "seed $seed: equal dumps (" . length($dumps[0]) . ' bytes)')
	  or show_difference(@dumps);
	return 1;
}

for my $mode (@modes)
{
	my ($old, $new) = make_cluster($mode, $first_seed);
	for my $round (0 .. $rounds - 1)
	{
		last if !one_round($mode, $first_seed + $round, $old, $new);
		($old, $new) = ($new, $old);
	}
	$_->stop('immediate') for $old, $new;
}

done_testing();
