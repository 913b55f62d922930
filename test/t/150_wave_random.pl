# 200 mixed tables are copied under write load, while publisher, subscriber and
# their processes are killed at random: both sides are equal in the end, no
# table is copied again after its copy has been seen committed, and neither
# side keeps a slot or an origin.
#
# What it looks like without: a leader that reads pg_subscription_rel before
# tandem.copies takes a table for a new one that is finished in between, copies it
# again and fails at its first row.
#
# TANDEM_ROUNDS is the number of kills, TANDEM_SEED repeats a run's choices.

use strict;
use warnings;

use List::Util qw(shuffle);
use Tandem::Test;
use Test::More;
use Time::HiRes;

my $kills = $ENV{TANDEM_ROUNDS} // 6;
my $seed = $ENV{TANDEM_SEED} // int(Time::HiRes::time() * 1000) % 1000000;
srand($seed);
note "TANDEM_SEED=$seed TANDEM_ROUNDS=$kills";

my $async = int(rand(2));
my $restart = "restart_after_crash = on\nwal_retrieve_retry_interval = 100ms\n";
# a crash of an asynchronous publisher forgets transactions and uses their ids again
my $publisher = Tandem::Node->new_primary('publisher', library => 0,
	conf => $restart . ($async ? "synchronous_commit = off\nwal_writer_delay = 1s\n" : ''));
my $subscriber = Tandem::Node->new_subscriber('subscriber', library => 1,
	conf => $restart . "tandem.sync_workers = 3\nmax_locks_per_transaction = 256\n");
$_->expect_crash for $publisher, $subscriber;

# ---- Tables -------------------------------------------------------------------

my (@tables, $ddl, $fill, @written);
$ddl = $fill = '';
for my $i (1 .. 200)
{
	my $name = $i % 17 == 0 ? qq("odd ""name"" $i.x") : "t$i";
	my $key = $i % 5 == 0 ? '' : ' PRIMARY KEY';
	push @tables, $name;
	if ($i % 23 == 0)
	{
		$ddl .= "CREATE TABLE $name (id int$key, n int DEFAULT 0, filler text) PARTITION BY HASH (id);"
		  . join '', map { "CREATE TABLE part_${i}_$_ PARTITION OF $name FOR VALUES WITH (MODULUS 3, REMAINDER $_);" } 0 .. 2;
	}
	else
	{
		$ddl .= "CREATE TABLE $name (id int$key, n int DEFAULT 0, filler text);";
	}
	$ddl .= "CREATE INDEX ON $name (n); CREATE INDEX ON $name (filler, id);" if $i % 7 == 0;
	$ddl .= "ALTER TABLE $name ADD FOREIGN KEY (id) REFERENCES t1 DEFERRABLE;" if $i % 29 == 0;
	my $rows = $i % 29 == 0 ? 0 : $i % 40 == 1 ? 20000 : $i % 3 == 0 ? 0 : 50;
	$fill .= "INSERT INTO $name SELECT g, 0, repeat('x', 100) FROM generate_series(1, $rows) g;";
	push @written, $name if $key && $i % 29 && ($rows > 50 || $i % 11 == 0);
}
$_->query($ddl) for $publisher, $subscriber;
$publisher->query($fill);
# who applied what twice shows here
$_->query('CREATE TABLE log (x int)') for $publisher, $subscriber;
push @tables, 'log';
$publisher->query('CREATE PUBLICATION pub FOR ALL TABLES');
my $amcheck = $subscriber->query(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
$subscriber->query('CREATE EXTENSION amcheck') if $amcheck;

my $script = "BEGIN;\n\\set r random(1, 1000)\nINSERT INTO log VALUES (:r);\n";
for my $table (@written)
{
	$script .= "\\set i random(1, 21000)\n"
	  . "INSERT INTO $table AS o VALUES (:i, 1) ON CONFLICT (id) DO UPDATE SET n = o.n + 1;\n";
	$script .= "\\set d random(1, 21000)\nDELETE FROM $table WHERE id = :d;\n" if rand() < 0.5 && $table ne 't1';
	$script .= "END;\nBEGIN;\n" if rand() < 0.3;
}
$script .= "END;\n";

my $conninfo = $publisher->connstr('postgres');
$conninfo =~ s/'/''/g;

sub sums
{
	my ($node) = @_;
	return $node->query(join ' UNION ALL ',
		map { my $name = s/'/''/gr; "SELECT '$name', count(*), sum(hashtextextended(t::text, 0)::numeric) FROM $_ t" } @tables);
}

# ---- Kills ---------------------------------------------------------------------

my $load;
sub with_other_load
{
	my ($what) = @_;
	$publisher->stop_load($load);
	$what->();
	poll_for(sub { $publisher->query('SELECT NOT pg_is_in_recovery()') eq 't' }, 'the publisher to answer');
	$load = $publisher->start_load(clients => 2, script => $script);
	return;
}

sub signal_one
{
	my ($node, $pattern, $signal) = @_;
	my @pids = shuffle $node->pids_of($pattern);
	return 0 unless @pids;
	kill $signal, $pids[0];
	return 1;
}

my %kill = (
	'apply worker ended' => sub { signal_one($subscriber, qr/tandem apply/, 'TERM') },
	'leader ended' => sub { signal_one($subscriber, qr/tandem wave/, 'TERM') },
	'copy worker ended' => sub { signal_one($subscriber, qr/tandem copy/, 'TERM') },
	'a worker killed' => sub { signal_one($subscriber, qr/tandem (apply|copy|wave)/, 'KILL') },
	'subscriber killed' => sub { $subscriber->kill9_all; $subscriber->start; 1 },
	'subscriber stopped' => sub { $subscriber->stop('immediate'); $subscriber->start; 1 },
	'walsender ended' => sub { signal_one($publisher, qr/walsender/, 'TERM') },
	'walsender killed' => sub {
		return 0 unless $publisher->pids_of(qr/walsender/);
		with_other_load(sub {
			my $mark = $publisher->log_mark;
			# one that was about to end by itself may have done so
			signal_one($publisher, qr/walsender/, 'KILL')
			  and eval { $publisher->wait_log(qr/all server processes terminated/, $mark, 5) };
		});
		1 },
	'publisher killed' => sub {
		with_other_load(sub { $publisher->kill9_all; $publisher->start }); 1 },
	'publisher stopped' => sub {
		with_other_load(sub { $publisher->stop('immediate'); $publisher->start }); 1 },
);

# ---- Rounds --------------------------------------------------------------------

my %committed;    # table => the wave in which its copy was seen committed
my @again;

# Looks at all tables; returns how many are not ready.
sub look
{
	my $left = 0;
	my $rows = $subscriber->query(q{SELECT relid::text || E'\t' || state || E'\t' || coalesce(wave, 0) || E'\t' || coalesce(last_error, '') FROM tandem.tables});
	for my $row (split /\n/, $rows)
	{
		my ($table, $state, $wave, $error) = split /\t/, $row, -1;
		my $before = $committed{$table};
		push @again, "$table: committed in wave $before, now $state in wave $wave ($error)"
		  if $before && ($wave != $before || $state !~ /^(catching up|ready)$/);
		$committed{$table} = $wave if $state =~ /^(catching up|ready)$/;
		$left++ if $state ne 'ready';
	}
	die "no tables\n" unless $rows;
	return $left;
}

my $done = 0;
my $round = 0;
$load = $publisher->start_load(clients => 2, script => $script);
while ($done < $kills)
{
	$round++;
	%committed = @again = ();
	my @story;
	# a commit that was seen, but isn't flushed, is lost with the subscriber
	my $durable = int(rand(2));
	$subscriber->query("CREATE SUBSCRIPTION sub CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false, synchronous_commit = "
		  . ($durable ? 'on' : 'off') . ')');
	$subscriber->query(q{SELECT tandem.adopt('sub')});

	my $last_left = 1;
	for my $i (1 .. 6)
	{
		# until some moment of the copy, which need not come
		my $until = Time::HiRes::time() + rand(1.5);
		poll_for(sub { $last_left = look(); !$last_left || Time::HiRes::time() > $until }, 'a moment to kill');
		last if !$last_left || $done >= $kills;
		my @names = sort keys %kill;
		my $name = $names[ int(rand(@names)) ];
		next unless $kill{$name}->();
		%committed = () if !$durable && $name =~ /^(subscriber|a worker killed)/;
		$done++;
		push @story, $name;
		note "kill $done: $name";
		poll_for(sub { look(); 1 }, "the subscriber to answer after: $name");
	}
	my $ready = eval { poll_for(sub {
		$subscriber->query(q{SELECT tandem.resync('sub', relid) FROM tandem.tables WHERE state = 'failed'});
		!look() }, 'all tables to be ready', 120) };
	ok($ready, "round $round (" . join(', ', @story) . ')')
	  or diag($@ . $subscriber->query(q{SELECT name, state, wave, last_error FROM tandem.tables WHERE state <> 'ready' LIMIT 20})), last;

	$publisher->stop_load($load);
	# what is not flushed isn't sent
	$publisher->query(q{SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'tandem test', 'x')});
	$subscriber->wait_subscription('sub', $publisher, 60);
	my ($there, $here) = (sums($publisher), sums($subscriber));
	my %there = map { $_ => 1 } split /\n/, $there;
	is(join("\n", grep { !$there{$_} } split /\n/, $here), '', "round $round: all tables are equal") or last;
	is(join("\n", @again), '', "round $round: no table is copied again after its commit");
	$subscriber->query(q{SELECT bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
		JOIN pg_index i ON i.indexrelid = c.oid WHERE amname = 'btree' AND c.relkind = 'i' AND c.oid >= 16384}) if $amcheck;
	poll_for(sub { $subscriber->query(q{SELECT count(*) FROM pg_replication_origin WHERE roname LIKE 'tandem%'}) eq '0' },
		'the origins of the workers to go', 60);
	is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '1', "round $round: one slot");
	$subscriber->query('DROP SUBSCRIPTION sub');
	is($publisher->query('SELECT count(*) FROM pg_replication_slots'), '0', "round $round: no slot left");
	is($subscriber->query('SELECT count(*) FROM pg_replication_origin'), '0', "round $round: no origin left");
	$subscriber->query('TRUNCATE ' . join(', ', @tables));
	$load = $publisher->start_load(clients => 2, script => $script);
}
$publisher->stop_load($load);

done_testing();
