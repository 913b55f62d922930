# What can go wrong, on purpose: killed, stalled and resumed processes, a full
# disk.  Whatever a test leaves stalled or full is undone when it ends, also
# when it dies.
package Tandem::Fault;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use Fcntl;
use PostgreSQL::Test::Utils qw(slurp_file);

use Tandem::Wait;

our @EXPORT = qw(
  kill_process stall stall_working resume resume_all process_alive child_pids process_title
  small_disk fill_disk free_disk
);

my %stalled;
my %filler;

# A test that is interrupted still runs its END blocks, which stop the servers.
$SIG{INT} = $SIG{TERM} = $SIG{HUP} = sub { die "interrupted by SIG$_[0]\n" };

# Is there such a process, and does it still run?  A dead one that nobody has
# waited for (state Z) counts as gone: a container may have no init.
sub process_alive
{
	my ($pid) = @_;
	my $stat = _stat($pid) or return 0;
	return $stat->{state} !~ /[ZX]/;
}

# The process ids of a process's children.
sub child_pids
{
	my ($parent) = @_;
	my @children;
	for my $path (glob '/proc/[0-9]*')
	{
		my ($pid) = $path =~ /(\d+)$/;
		my $stat = _stat($pid) or next;
		push @children, $pid if $stat->{ppid} == $parent;
	}
	return @children;
}

# What ps would show, such as "postgres: standby: walreceiver streaming 0/3000060".
sub process_title
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/cmdline" or return '';
	local $/ = undef;
	my $title = <$file> // '';
	close $file;
	$title =~ tr/\0/ /;
	$title =~ s/\s+$//;
	return $title;
}

sub _stat
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return;
	my $line = <$file> // '';
	close $file;
	return unless $line =~ /^\d+ \(.*\) (\S) (\d+)/s;
	return { state => $1, ppid => $2 };
}

# Kills one process, by default with signal 9, and waits until it is gone.
sub kill_process
{
	my ($pid, $signal) = @_;
	kill($signal // 'KILL', $pid) or croak "could not signal process $pid: $!";
	kill 'CONT', $pid if delete $stalled{$pid};
	poll_for(sub { !process_alive($pid) }, "process $pid to end");
	return;
}

# Stops a process in a wait of its own.  Returns when the kernel shows it stopped.
#
# A server process that is stopped while it works may hold a lightweight lock,
# and then every other process hangs with it.  One that sleeps waits for a latch
# and holds none: it slept before the signal, and the stop itself was the only
# time it has given up the processor since.
sub stall
{
	my ($pid) = @_;
	process_alive($pid) or croak "there is no process $pid";
	$stalled{$pid} = 1;
	poll_for(
		sub {
			my $before = _switches($pid);
			return unless ($before->{state} // '') eq 'S';
			stall_working($pid);
			return 1 if _switches($pid)->{count} - $before->{count} <= 1;
			kill 'CONT', $pid;
			return;
		},
		"process $pid to sleep");
	return $pid;
}

# Stops a process where it is: for one that works, and whose locks nobody needs.
sub stall_working
{
	my ($pid) = @_;
	kill 'STOP', $pid or croak "could not stop process $pid: $!";
	$stalled{$pid} = 1;
	poll_for(sub { my $stat = _stat($pid); $stat && $stat->{state} eq 'T' }, "process $pid to be stopped");
	return $pid;
}

# The state of a process and how often it has waited for something.
sub _switches
{
	my ($pid) = @_;
	my $status = eval { slurp_file("/proc/$pid/status") } or croak "process $pid is gone";
	my ($state) = $status =~ /^State:\s+(\w)/m;
	my ($count) = $status =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	return { state => $state, count => $count };
}

# Lets a stalled process go on.
sub resume
{
	my ($pid) = @_;
	delete $stalled{$pid};
	kill 'CONT', $pid;
	return;
}

sub resume_all
{
	resume($_) for keys %stalled;
	return;
}

# A folder on a small file system of its own, which "make check" mounts when it
# runs as root (TANDEM_SMALL_DISK), or undef.  Use: my $disk = small_disk() or
# plan skip_all => 'no small file system: make check as root provides one'.
sub small_disk
{
	my $disk = $ENV{TANDEM_SMALL_DISK};
	return unless defined $disk && -d $disk && -w $disk;
	# never fill anything that the machine needs
	my @folder = stat $disk;
	my @parent = stat "$disk/..";
	return if $folder[0] == $parent[0];
	return $disk;
}

# Writes until the file system has no room left, not even for a byte.
sub fill_disk
{
	my ($disk) = @_;
	croak 'fill_disk works on the small disk only'
	  unless defined small_disk() && index($disk, small_disk()) == 0;

	my $path = "$disk/filler.$$";
	sysopen my $file, $path, O_WRONLY | O_CREAT | O_APPEND
	  or croak "could not create $path: $!";
	$filler{$path} = 1;
	for my $size (1 << 20, 4096, 1)
	{
		my $chunk = "\0" x $size;
		1 while syswrite $file, $chunk;
	}
	croak "filling $disk ended with: $!" unless $!{ENOSPC} || $!{EDQUOT};
	close $file;
	return;
}

# Gives back what fill_disk took.
sub free_disk
{
	unlink keys %filler;
	%filler = ();
	return;
}

# Runs before the END block that stops the servers: a stopped process would
# never answer a shutdown.
END
{
	my $exit_code = $?;
	resume_all();
	free_disk();
	$? = $exit_code;
}

1;
