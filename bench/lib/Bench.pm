# What the benchmarks share: the machine, summaries of runs, files of results.
package Bench;

use strict;
use warnings;

use Exporter 'import';
use File::Path ();
use IO::Handle;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Utils qw(slurp_file);
use Time::HiRes qw(time);

our @EXPORT = qw(machine machine_line middle summary spread results_name write_results);

# Median of numbers.
sub middle
{
	my @sorted = sort { $a <=> $b } @_;
	my $n = @sorted;
	return $n % 2 ? $sorted[ $n / 2 ] : ($sorted[ $n / 2 - 1 ] + $sorted[ $n / 2 ]) / 2;
}

# Median, minimum, maximum and all runs.
sub summary
{
	my @sorted = sort { $a <=> $b } @_;
	return { median => middle(@sorted), min => $sorted[0], max => $sorted[-1], runs => [@_] };
}

# A summary as text: "1.02 (0.98-1.07)".
sub spread
{
	my ($summary, $format) = @_;
	return '-' unless $summary;
	return join '', sprintf($format, $summary->{median}), ' (', sprintf($format, $summary->{min}), '-',
	  sprintf($format, $summary->{max}), ')';
}

sub machine
{
	my ($cores) = (POSIX::sysconf(84));
	my ($memory) = slurp_file('/proc/meminfo') =~ /MemTotal:\s+(\d+)/;
	my ($model) = slurp_file('/proc/cpuinfo') =~ /model name\s*:\s*(.*)/;
	my $version = `pg_config --version`;
	chomp $version;
	return {
		cores => $cores + 0, memory_mb => int($memory / 1024), cpu => $model // 'unknown',
		kernel => (POSIX::uname())[2], server => $version, fsync => 'on',
		fsync_ms => fsync_ms() };
}

sub machine_line
{
	my ($machine) = @_;
	return "$machine->{server}, $machine->{cores} cores ($machine->{cpu}), $machine->{memory_mb} MB,"
	  . sprintf(" fsync on (%.2f ms)", $machine->{fsync_ms});
}

# What one durable write of a small file costs here.
sub fsync_ms
{
	my $path = "$ENV{TESTDIR}/fsync_probe";
	my @ms;
	for (1 .. 50)
	{
		my $start = time;
		open my $file, '>', $path or die "$path: $!";
		syswrite $file, 'x' x 200;
		$file->sync;
		close $file;
		push @ms, 1000 * (time - $start);
	}
	unlink $path;
	return middle(@ms);
}

# Path of a result without its ending; makes the folder.
sub results_name
{
	my ($bench, $machine, $size) = @_;
	my $folder = ($ENV{TANDEM_OUTPUT} // $ENV{TESTDIR}) . '/bench/results';
	File::Path::mkpath($folder);
	my ($major) = $machine->{server} =~ /(\d+)/;
	return "$folder/$bench-$major-$size";
}

sub write_results
{
	my ($name, $object) = @_;
	open my $json, '>', "$name.json" or die "$name.json: $!";
	print $json JSON::PP->new->pretty->canonical->encode($object);
	close $json;
	return;
}

1;
