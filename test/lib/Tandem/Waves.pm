# For tests of initial copies: a copy that waits where the test wants it, and
# what the view says.
#
#   my $waves = Tandem::Waves->new($publisher, $subscriber);   # subscription "sub", publication "pub"
#   $waves->pause('slow');       # the copy of this local table will wait with its first row
#   $waves->subscribe;
#   $waves->wait_paused;         # the wave has its snapshot; with one copy worker
#                                # nothing smaller than "slow" is copied yet
#   ...
#   $waves->resume;
#   $waves->wait_state('other', 'ready');
package Tandem::Waves;

use strict;
use warnings;

use Carp;
use IPC::Run ();
use Tandem::Wait;

my $pause_key = 156156;

sub new
{
	my ($class, $publisher, $subscriber, %params) = @_;
	return bless {
		publisher => $publisher, subscriber => $subscriber,
		name => $params{name} // 'sub', publication => $params{publication} // 'pub',
		publisher_database => $params{publisher_database} // 'postgres',
		database => $params{database} // 'postgres',
	}, $class;
}

# ---- Sessions that stay open ----------------------------------------------------

# A session that runs these statements and then waits.  wait_session waits until
# they have run, end_session ends it.
sub start_session
{
	my ($class, $node, $sql, $database) = @_;
	my %session = (in => '', out => '', sql => $sql);
	local %ENV = $node->_get_env;

	$session{run} = IPC::Run::start([ $node->installed_command('psql'), '-XAtq', '-d', $database // 'postgres' ],
		'<', \$session{in}, '>', \$session{out}, '2>&1');
	$session{in} .= "$sql;\n\\echo session-is-ready\n";
	$session{run}->pump_nb;
	return \%session;
}

sub wait_session
{
	my ($class, $session) = @_;
	poll_for(sub { $session->{run}->pump_nb; $session->{out} =~ /^session-is-ready/m }, "a session to run \"$session->{sql}\"");
	croak "in a session: $session->{out}" if $session->{out} =~ /ERROR/;
	return;
}

# Both.
sub session
{
	my ($class, @params) = @_;
	my $session = $class->start_session(@params);
	$class->wait_session($session);
	return $session;
}

sub end_session
{
	my ($class, $session) = @_;
	my $run = delete $session->{run} or return;
	$session->{in} .= "\\q\n";
	$run->finish;
	return;
}

# ---- Copies that wait -------------------------------------------------------------

# The copy of a local table waits with its first row until resume.
sub pause
{
	my ($self, @tables) = @_;
	my $subscriber = $self->{subscriber};

	$subscriber->query(qq{
		CREATE OR REPLACE FUNCTION public.wait_for_test() RETURNS trigger LANGUAGE plpgsql
			SET lock_timeout = 0 AS \$\$
		BEGIN
			PERFORM pg_catalog.pg_advisory_xact_lock_shared($pause_key);
			RETURN NULL;
		END \$\$}, $self->{database});
	for my $table (@tables)
	{
		$subscriber->query(qq{
			CREATE OR REPLACE TRIGGER wait_for_test BEFORE INSERT ON $table FOR EACH STATEMENT EXECUTE FUNCTION public.wait_for_test();
			ALTER TABLE $table ENABLE ALWAYS TRIGGER wait_for_test}, $self->{database});
	}
	$self->{pausing} = $self->session($subscriber, "SELECT pg_advisory_lock($pause_key)", $self->{database});
	return;
}

# Waits until that copy waits.
sub wait_paused
{
	my ($self, $timeout) = @_;
	poll_for(
		sub {
			$self->{subscriber}->query(qq{SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND objid = $pause_key AND NOT granted}) > 0;
		},
		'the copy to be paused', $timeout);
	return;
}

sub resume
{
	my ($self) = @_;
	$self->end_session(delete $self->{pausing});
	return;
}

# ---- The subscription -------------------------------------------------------------

sub conninfo
{
	my ($self) = @_;
	my $conninfo = $self->{publisher}->connstr($self->{publisher_database});
	$conninfo =~ s/'/''/g;
	return $conninfo;
}

# CREATE SUBSCRIPTION and tandem.adopt; "with" are further options of CREATE.
sub subscribe
{
	my ($self, %params) = @_;
	my $with = $params{with} ? ", $params{with}" : '';
	my $options = $params{options} // '';
	$self->{subscriber}->query("CREATE SUBSCRIPTION $self->{name} CONNECTION '" . $self->conninfo
		  . "' PUBLICATION $self->{publication} WITH (enabled = false$with)", $self->{database});
	$self->{subscriber}->query("SELECT tandem.adopt('$self->{name}', '$options')", $self->{database});
	return;
}

sub resync
{
	my ($self, @tables) = @_;
	$self->{subscriber}->query("SELECT tandem.resync('$self->{name}', '$_')", $self->{database}) for @tables;
	return;
}

# "state" or "state: error" of a table, from tandem.tables.
sub state_of
{
	my ($self, $table) = @_;
	my $name = $table =~ s/'/''/gr;
	return $self->{subscriber}->query(
		"SELECT state || coalesce(': ' || last_error, '') FROM tandem.tables
		 WHERE subscription = '$self->{name}' AND name = '$name'", $self->{database});
}

# Waits for a state (exactly, or a pattern); says what it was otherwise.
sub wait_state
{
	my ($self, $table, $state, $timeout) = @_;
	my $last = '';
	my $match = ref $state ? $state : qr/^\Q$state\E$/;
	eval {
		poll_for(sub { ($last = $self->state_of($table)) =~ $match }, "table $table to be \"$state\"", $timeout);
	} or croak "$@\tit is: $last";
	return;
}

# Waits until each table is ready, trying failed ones at once.
sub wait_ready
{
	my ($self, %params) = @_;
	my $sql = "SELECT string_agg(name || ' ' || state || coalesce(': ' || last_error, ''), '; ') FROM tandem.tables WHERE state <> 'ready'";
	my $last = '';
	eval {
		poll_for(
			sub {
				$self->{subscriber}->psql($self->{database},
					"SELECT tandem.resync(subscription, relid) FROM tandem.tables WHERE state = 'failed'")
				  if $params{retry};
				$last = $self->{subscriber}->query($sql, $self->{database});
				return $last eq '' && $self->{subscriber}->query('SELECT count(*) FROM tandem.tables', $self->{database}) > 0;
			},
			'all tables to be ready', $params{timeout});
	} or croak "$@\tnot ready: $last";
	return;
}

# Waits until all the publisher has committed is applied (or spooled) and flushed.
sub wait_applied
{
	my ($self) = @_;
	$self->{publisher}->query(q{SELECT pg_logical_emit_message(true, 'test', 'end')});
	my $lsn = $self->{publisher}->query('SELECT pg_current_wal_flush_lsn()');
	poll_for(
		sub {
			$self->{subscriber}->query(
				"SELECT flushed_lsn >= '$lsn' FROM tandem.subscriptions WHERE subscription = '$self->{name}'",
				$self->{database}) eq 't';
		},
		"changes until $lsn to be applied");
	return;
}

1;
