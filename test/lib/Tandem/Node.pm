# Servers for the tests, and how they are put together.
#
#   my $primary = Tandem::Node->new_primary('primary', conf => "...");
#   my $standby = $primary->new_standby('standby', conf => "...");
#   my $cascade = $standby->new_standby('cascade');
#   my $subscriber = Tandem::Node->new_subscriber('subscriber');
#   $subscriber->subscribe('sub', $primary, 'pub');
#
# A primary preloads the library, has wal_level = logical and the extension in
# database "postgres".  A standby has a physical slot of its own on the node it
# follows, named like itself, and the same settings.  A subscriber is a stock
# server without the library.
#
# With recipe => 1 a primary is set up the way docs/ tells users to: its
# standbys connect over TCP as role "repl", which is no superuser, with
# scram-sha-256 and a password file.
package Tandem::Node;

use strict;
use warnings;

use parent 'PostgreSQL::Test::Cluster';

use Carp;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Tandem::Fault;
use Tandem::Wait;

my $recipe_password = 'tandem secret';

# A query that hangs fails its test, and not the whole run.
my $longest_query = 3 * $PostgreSQL::Test::Utils::timeout_default;

# Room for everything a topology needs; the cluster class allows ten of each.
my $base_conf = q{
max_connections = 60
max_wal_senders = 20
max_replication_slots = 20
max_worker_processes = 20
max_logical_replication_workers = 10
max_wal_size = 1GB
log_checkpoints = on
};

# ---- Making nodes -----------------------------------------------------------

# A running primary.  Parameters: conf (text for postgresql.conf), library => 0
# (a stock server), recipe => 1, initdb => [ options of initdb ].
sub new_primary
{
	my ($class, $name, %params) = @_;
	my $self = $class->new($name);
	my $library = $params{library} // 1;

	$self->init(allows_streaming => 'logical', extra => $params{initdb} // []);
	$self->append_conf('postgresql.conf', $base_conf);
	$self->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_tandem'")
	  if $library;
	$self->_listen_for_recipe if $params{recipe};
	$self->append_conf('postgresql.conf', $params{conf} // '');
	$self->start;
	$self->safe_psql('postgres', 'CREATE EXTENSION pg_tandem') if $library;
	$self->_create_recipe_role($library) if $params{recipe};
	return $self;
}

# A running standby of this node.  Parameters: conf; slot (name of its slot,
# undef for none); backup => name of an earlier backup of this node; start => 0
# to only set it up.
sub new_standby
{
	my ($self, $name, %params) = @_;
	my $slot = exists $params{slot} ? $params{slot} : $name;
	my $backup = $params{backup};

	$self->safe_psql('postgres', "SELECT pg_create_physical_replication_slot('$slot', true)")
	  if defined $slot;
	if (!defined $backup)
	{
		$backup = "for_$name";
		$self->backup($backup);
	}

	my $standby = ref($self)->new($name);
	$standby->init_from_backup($self, $backup);
	$standby->set_standby_mode;
	$standby->{tandem_recipe} = $self->{tandem_recipe};
	$standby->append_conf('postgresql.conf',
		"listen_addresses = '127.0.0.1'") if $standby->{tandem_recipe};
	$standby->append_conf('postgresql.conf', $standby->_follow_conf($self, $slot));
	$standby->append_conf('postgresql.conf', $params{conf} // '');
	if ($params{start} // 1)
	{
		$standby->start;
		$self->wait_replayed($standby);
	}
	return $standby;
}

# A running stock server to subscribe with.  Parameters: conf, library => 1.
sub new_subscriber
{
	my ($class, $name, %params) = @_;
	return $class->new_primary($name, library => 0, %params);
}

# Settings that make this node a standby of another.
sub _follow_conf
{
	my ($self, $upstream, $slot) = @_;
	my $conninfo = $upstream->conninfo_for($self);
	$conninfo =~ s/'/''/g;
	return "primary_conninfo = '$conninfo'\n"
	  . 'primary_slot_name = \'' . ($slot // '') . "'\n";
}

# How another node reaches this one for replication.
sub conninfo_for
{
	my ($self, $client) = @_;
	return $self->connstr . ' application_name=' . $client->name
	  unless $self->{tandem_recipe};

	my $passfile = $client->basedir . '/pgpass';
	if (!-e $passfile)
	{
		append_to_file($passfile, "127.0.0.1:*:*:repl:$recipe_password\n");
		chmod 0600, $passfile or croak "chmod $passfile: $!";
	}
	return "host=127.0.0.1 port=" . $self->port
	  . " user=repl passfile=$passfile application_name=" . $client->name;
}

# The recipe: nobody but the replication role over TCP, and it only with its
# password.
sub _listen_for_recipe
{
	my ($self) = @_;

	$self->{tandem_recipe} = 1;
	$self->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
	unlink $self->data_dir . '/pg_hba.conf';
	$self->append_conf('pg_hba.conf', q{
local all          all                trust
local replication  all                trust
host  replication  repl  127.0.0.1/32 scram-sha-256
host  postgres     repl  127.0.0.1/32 scram-sha-256
});
	return;
}

sub _create_recipe_role
{
	my ($self, $library) = @_;

	$self->safe_psql('postgres', qq{
		SET password_encryption = 'scram-sha-256';
		SET log_statement = 'none';
		CREATE ROLE repl LOGIN REPLICATION PASSWORD '$recipe_password'});
	$self->safe_psql('postgres', q{
		GRANT EXECUTE ON FUNCTION tandem.source_slots, tandem.source_wal,
			tandem.rejoin_source, tandem.source_files, tandem.source_file,
			tandem.source_blocks, tandem.page_digests TO repl;
		GRANT pg_checkpoint TO repl})
	  if $library;
	return;
}

# ---- Life of a node ---------------------------------------------------------

# A sanitizer's runtime has to be loaded before the stock server is; only there.
sub start
{
	my ($self, @args) = @_;
	local $ENV{LD_PRELOAD} = $ENV{TANDEM_SERVER_PRELOAD} if $ENV{TANDEM_SERVER_PRELOAD};
	return $self->SUPER::start(@args);
}

sub restart
{
	my ($self, @args) = @_;
	local $ENV{LD_PRELOAD} = $ENV{TANDEM_SERVER_PRELOAD} if $ENV{TANDEM_SERVER_PRELOAD};
	return $self->SUPER::restart(@args);
}

sub postmaster_pid
{
	my ($self) = @_;
	return $self->{_pid} // croak 'server "' . $self->name . '" does not run';
}

# Process ids of this server's children whose title matches, such as
# qr/walreceiver/ or qr/tandem worker/.
sub pids_of
{
	my ($self, $pattern) = @_;
	return grep { process_title($_) =~ $pattern } child_pids($self->postmaster_pid);
}

# Waits for exactly such a child and returns its process id.
sub pid_of
{
	my ($self, $pattern) = @_;
	return poll_for(
		sub { my @pids = $self->pids_of($pattern); @pids == 1 ? $pids[0] : 0 },
		'one process ' . $pattern . ' of "' . $self->name . '"');
}

# Like the plug pulled: the postmaster and all its children, signal 9.
sub kill9_all
{
	my ($self) = @_;
	my $postmaster = $self->postmaster_pid;

	print '### Killing node "' . $self->name . "\" and all its processes\n";
	# stopped, it can neither notice its children's death nor have new ones; they
	# go first, for a backend that sees the postmaster die rolls back in good order
	stall_working($postmaster);
	my @pids = (child_pids($postmaster), $postmaster);
	kill 'KILL', @pids;
	poll_for(sub { !grep { process_alive($_) } @pids },
		'all processes of "' . $self->name . '" to end');
	resume($postmaster);
	$self->{_pid} = undef;

	# Where no init reaps the dead, or not at once, the server would take its own
	# corpse for a running postmaster.
	unlink $self->data_dir . '/postmaster.pid',
	  $self->host . '/.s.PGSQL.' . $self->port . '.lock'
	  if kill 0, $postmaster;
	return;
}

# Stops a whole server where it is (a machine that hangs) / lets it go on.
sub stall_all
{
	my ($self) = @_;
	my $postmaster = stall($self->postmaster_pid);
	stall($_) for grep { process_alive($_) } child_pids($postmaster);
	return;
}

sub resume_server
{
	my ($self) = @_;
	resume($_) for child_pids($self->postmaster_pid), $self->postmaster_pid;
	return;
}

# This node's processes will be killed by signals that look like a crash.
sub expect_crash
{
	my ($self) = @_;
	$self->{tandem_crash_expected} = 1;
	return;
}

# Promotes and waits until the node takes writes.
sub promote
{
	my ($self) = @_;
	$self->SUPER::promote;
	poll_for(sub { $self->query('SELECT NOT pg_is_in_recovery()') eq 't' },
		'the end of recovery on "' . $self->name . '"');
	return;
}

# Makes a running standby follow another node, by reload.
sub follow
{
	my ($self, $upstream, $slot) = @_;
	$slot //= $self->name;
	$upstream->safe_psql('postgres', qq{
		SELECT pg_create_physical_replication_slot('$slot', true)
		WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = '$slot')});
	$self->{tandem_recipe} ||= $upstream->{tandem_recipe};
	$self->append_conf('postgresql.conf', $self->_follow_conf($upstream, $slot));
	$self->reload;
	return;
}

# Changes settings by ALTER SYSTEM and reload; a value of undef resets.  Returns
# when a new session sees them.
sub set
{
	my ($self, %settings) = @_;
	for my $name (sort keys %settings)
	{
		my $value = $settings{$name};
		$value =~ s/'/''/g if defined $value;
		$self->safe_psql('postgres', defined $value
			? "ALTER SYSTEM SET $name = '$value'" : "ALTER SYSTEM RESET $name");
	}
	my $before = $self->query('SELECT pg_conf_load_time()');
	$self->safe_psql('postgres', 'SELECT pg_reload_conf()');
	poll_for(sub { $self->query('SELECT pg_conf_load_time()') ne $before },
		'the new settings of "' . $self->name . '"');
	return;
}

# ---- Asking -----------------------------------------------------------------

# One query, its output as psql -At gives it; dies of an SQL error.
sub query
{
	my ($self, $sql, $dbname) = @_;
	return $self->safe_psql($dbname // 'postgres', $sql, timeout => $longest_query);
}

# The error a statement raises (message, detail, hint), or '' if it succeeds.
sub query_error
{
	my ($self, $sql, $dbname) = @_;
	my ($code, $stdout, $stderr) = $self->psql($dbname // 'postgres', $sql, timeout => $longest_query);
	return $code == 0 ? '' : $stderr;
}

# Where the log is now; wait_log and log_since look from here on.
sub log_mark
{
	my ($self) = @_;
	return -s $self->logfile // 0;
}

sub log_since
{
	my ($self, $mark) = @_;
	return slurp_file($self->logfile, $mark // 0);
}

sub wait_log
{
	my ($self, $pattern, $mark, $timeout) = @_;
	return poll_for(sub { $self->log_since($mark) =~ $pattern },
		"\"$pattern\" in the log of \"" . $self->name . '"', $timeout);
}

# ---- Moving WAL and slots ---------------------------------------------------

# Waits until the standby has replayed all this node has written (or, when this
# node is itself a standby, replayed).
sub wait_replayed
{
	my ($self, $standby) = @_;
	my $lsn = $self->query(
		q{SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
			ELSE pg_current_wal_flush_lsn() END});
	poll_for(
		sub { $standby->query("SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't' },
		'"' . $standby->name . "\" to replay $lsn");
	return $lsn;
}

# Ends the current WAL segment for certain, returns the name of the next one.
sub switch_wal
{
	my ($self, $times) = @_;
	for (1 .. $times // 1)
	{
		$self->query(q{SELECT pg_logical_emit_message(false, 'tandem test', 'x')});
		$self->query('SELECT pg_switch_wal()');
	}
	$self->query(q{SELECT pg_logical_emit_message(true, 'tandem test', 'x')});
	return $self->query('SELECT pg_walfile_name(pg_current_wal_insert_lsn())');
}

# Writes a running-transactions record, the only place where decoding may start.
# Before 16 only a checkpoint does that on demand.
sub log_standby_snapshot
{
	my ($self) = @_;
	$self->query($self->pg_version >= 16
		? 'SELECT pg_log_standby_snapshot()' : 'CHECKPOINT');
	return;
}

# A restartpoint on this standby: cuts WAL and snapshot files like a checkpoint.
sub restartpoint
{
	my ($self, $upstream) = @_;
	$upstream->query('CHECKPOINT');
	my $redo = $upstream->query('SELECT redo_lsn FROM pg_control_checkpoint()');
	$upstream->wait_replayed($self);
	$self->query('CHECKPOINT');
	my $here = $self->query('SELECT redo_lsn FROM pg_control_checkpoint()');
	croak "the restartpoint of \"" . $self->name . "\" is at $here, not at $redo or later"
	  unless $self->query("SELECT '$here'::pg_lsn >= '$redo'::pg_lsn") eq 't';
	return $here;
}

# The value of a slot's column in pg_replication_slots.
sub slot_value
{
	my ($self, $slot, $column) = @_;
	return $self->query(
		"SELECT $column FROM pg_replication_slots WHERE slot_name = '$slot'");
}

# Moves an idle slot to the end of WAL, its restart_lsn too: a decoder takes
# that from running-transactions records it has passed, so it needs a few.
sub advance_slot
{
	my ($self, $slot) = @_;
	my $database = $self->slot_value($slot, 'database');
	my $before = $self->slot_value($slot, 'restart_lsn');
	for (1 .. 5)
	{
		$self->query(q{SELECT pg_logical_emit_message(true, 'tandem test', 'x')});
		$self->log_standby_snapshot;
		$self->query(
			"SELECT pg_replication_slot_advance('$slot', pg_current_wal_flush_lsn())",
			$database);
		my $now = $self->slot_value($slot, 'restart_lsn');
		return $now if $now ne $before;
	}
	croak "restart_lsn of slot \"$slot\" stays at $before: is a transaction open?";
}

# ---- Failover slots ---------------------------------------------------------

# Waits until a slot has this state in tandem.slots and, if given, a reason that
# matches; otherwise says what the row was.
sub wait_slot_state
{
	my ($self, $slot, $state, $reason, $timeout) = @_;
	my $row = '';
	my $done = eval {
		poll_for(
			sub {
				$row = $self->query(qq{
					SELECT state || ': ' || coalesce(reason, '-') || ' / ' || coalesce(hint, '-')
					FROM tandem.slots WHERE slot_name = '$slot'});
				return $row =~ /^\Q$state\E: / && (!defined $reason || $row =~ $reason);
			},
			"slot \"$slot\" to be $state on \"" . $self->name . '"', $timeout);
	};
	croak "$@\tits row in tandem.slots: " . ($row || 'none') unless $done;
	return;
}

sub wait_slot_ready
{
	my ($self, $slot, $timeout) = @_;
	return $self->wait_slot_state($slot, 'ready', undef, $timeout);
}

# ---- Subscriptions ----------------------------------------------------------

# Publishes tables (all if none is named) under a name.
sub publish
{
	my ($self, $publication, @tables) = @_;
	$self->query("CREATE PUBLICATION $publication FOR "
		  . (@tables ? 'TABLE ' . join(', ', @tables) : 'ALL TABLES'));
	return;
}

# Subscribes with a built-in subscription and waits for the initial copy.
# Options as in WITH (...), for example 'copy_data = false'.
sub subscribe
{
	my ($self, $subscription, $publisher, $publication, $options) = @_;
	my $conninfo = $publisher->connstr('postgres');
	$conninfo =~ s/'/''/g;
	$self->query("CREATE SUBSCRIPTION $subscription CONNECTION '$conninfo' PUBLICATION $publication"
		  . ($options ? " WITH ($options)" : ''));
	$self->wait_tables($subscription, $publisher);
	return;
}

# Waits until the server has copied all tables, and its apply worker has them:
# "r", and not "s" (done, but not taken over), which can't be adopted.
sub wait_tables
{
	my ($self, $subscription, $publisher) = @_;
	$self->wait_for_subscription_sync($publisher, $subscription);
	poll_for(sub { $self->query(q{SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'}) eq '0' },
		'all tables to be in state r');
	return;
}

# A subscription that tandem applies from the start, without a copy of what
# there is.  This node needs the library.
sub subscribe_adopted
{
	my ($self, $subscription, $publisher, $publication, $options) = @_;
	my $conninfo = $publisher->connstr('postgres');
	$conninfo =~ s/'/''/g;
	$self->query("CREATE SUBSCRIPTION $subscription CONNECTION '$conninfo' PUBLICATION $publication"
		  . ' WITH (enabled = false, copy_data = false' . ($options ? ", $options" : '') . ')');
	$self->query("SELECT tandem.adopt('$subscription')");
	return;
}

# Points a subscription at another node, where its slot goes on.
sub resubscribe
{
	my ($self, $subscription, $publisher) = @_;
	my $conninfo = $publisher->connstr('postgres');
	$conninfo =~ s/'/''/g;
	$self->query("ALTER SUBSCRIPTION $subscription CONNECTION '$conninfo'");
	return;
}

# Waits until a subscription has confirmed all its publisher has written.
sub wait_subscription
{
	my ($self, $subscription, $publisher, $timeout) = @_;
	my $slot = $self->query(
		"SELECT subslotname FROM pg_subscription WHERE subname = '$subscription'");
	my $lsn = $publisher->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(
		sub {
			$publisher->query(qq{
				SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots
				WHERE slot_name = '$slot'}) eq 't';
		},
		"subscription \"$subscription\" to reach $lsn of \"" . $publisher->name . '"',
		$timeout);
	return $lsn;
}

# ---- Load -------------------------------------------------------------------

# Starts pgbench in the background.  Give a script (text) or pgbench's own
# options.  stop_load ends it and returns what it printed, which is nothing but
# its version if no transaction failed.
#
#   my $load = $primary->start_load(script => 'INSERT ...', clients => 4);
sub start_load
{
	my ($self, %params) = @_;
	my @command = ($self->installed_command('pgbench'), '--no-vacuum',
		'--client', $params{clients} // 2, '--time', $params{time} // 600,
		'--max-tries', $params{max_tries} // 1);
	if (defined $params{script})
	{
		my $path = $self->basedir . '/load_' . ++$self->{tandem_loads} . '.sql';
		append_to_file($path, $params{script});
		push @command, '--file', $path;
	}
	push @command, @{ $params{options} // [] };

	my %load = (output => '', node => $self);
	# thousands of statements a second aren't worth a log
	local %ENV = $self->_get_env(PGOPTIONS => '-c log_statement=none');
	$load{run} = IPC::Run::start([ @command, $params{dbname} // 'postgres' ],
		'<', \undef, '>', \$load{output}, '2>&1');
	return \%load;
}

sub stop_load
{
	my ($self, $load) = @_;
	my $run = delete $load->{run} or return $load->{output};
	$run->signal('INT');
	eval { $run->finish; 1 } or $run->kill_kill;
	return $load->{output};
}

1;
