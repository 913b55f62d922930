# What is on disk: the LSN of every page of every relation of a stopped server,
# read from its files without any help of the server.
#
#   my $fork = fork_point($promoted);
#   my $scan = scan_pages($old_primary->data_dir, $fork, $promoted->data_dir);
#   is($scan->{ahead}, 0, 'no page ahead') or diag explain $scan->{files};
package Tandem::Pages;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use File::Find ();

our @EXPORT = qw(scan_pages relation_files fork_point lsn_number);

my $block_size = 8192;

# "0/3000060" as a number.
sub lsn_number
{
	my ($lsn) = @_;
	my ($high, $low) = $lsn =~ m{^([0-9A-F]{1,8})/([0-9A-F]{1,8})$}i
	  or croak "\"$lsn\" is no LSN";
	return (hex($high) << 32) | hex $low;
}

# Where a promoted node's timeline left the one before it, from the history
# file of its newest timeline.
sub fork_point
{
	my ($node) = @_;
	my ($file) = reverse sort glob $node->data_dir . '/pg_wal/*.history';
	croak '"' . $node->name . '" has no timeline history' unless defined $file;
	open my $handle, '<', $file or croak "could not open $file: $!";
	my @forks = map { /^\s*\d+\s+([0-9A-F]+\/[0-9A-F]+)/i ? $1 : () } <$handle>;
	close $handle;
	croak "$file names no fork" unless @forks;
	return $forks[-1];
}

# The relation files of a data directory that replication keeps, by path from
# there: every fork and segment of permanent relations.  Of unlogged relations
# only the init fork counts; temporary ones not at all.
sub relation_files
{
	my ($data_dir) = @_;
	my %size;
	my %unlogged;

	for my $top (qw(base global pg_tblspc))
	{
		next unless -d "$data_dir/$top";
		File::Find::find({
			follow_fast => 1,
			follow_skip => 2,
			no_chdir => 1,
			wanted => sub {
				my $path = substr $File::Find::name, length($data_dir) + 1;
				my ($relation, $fork) =
				  $path =~ m{^((?:.*/)?[0-9]+)(?:_(fsm|vm|init))?(?:\.[0-9]+)?$} or return;
				return unless -f $File::Find::name;
				$size{$path} = -s _;
				$unlogged{$relation} = 1 if defined $fork && $fork eq 'init';
			} }, "$data_dir/$top");
	}
	for my $path (keys %size)
	{
		my ($relation, $fork) = $path =~ m{^(.*?[0-9]+)(?:_(fsm|vm|init))?(?:\.[0-9]+)?$};
		delete $size{$path} if $unlogged{$relation} && ($fork // '') ne 'init';
	}
	return %size;
}

# Reads every page.  Returns a hash: pages (how many were read), ahead (how
# many have an LSN beyond $lsn), files (path => [ blocks ahead ]), highest (the
# highest LSN seen, a number).  Files that the other data directory lacks are
# left out, they go away anyway.  running => 1 allows a server that writes no
# page just now.
sub scan_pages
{
	my ($data_dir, $lsn, $other_dir, %params) = @_;
	my $limit = lsn_number($lsn);
	my %files = relation_files($data_dir);
	my %scan = (pages => 0, ahead => 0, highest => 0, files => {});

	croak "$data_dir has no relation files" unless %files;
	croak "a server runs in $data_dir" if !$params{running} && _is_running($data_dir);
	for my $path (sort keys %files)
	{
		next if defined $other_dir && !-e "$other_dir/$path";

		my ($segment) = $path =~ /\.([0-9]+)$/;
		my $block = ($segment // 0) * 131072;
		open my $file, '<:raw', "$data_dir/$path" or croak "could not open $path: $!";
		while (my $got = read $file, my $data, 128 * $block_size)
		{
			for (my $at = 0; $at + 8 <= $got; $at += $block_size, $block++)
			{
				# two native 32 bit words, the high one first
				my ($high, $low) = unpack 'LL', substr $data, $at, 8;
				my $page_lsn = ($high << 32) | $low;
				$scan{pages}++;
				$scan{highest} = $page_lsn if $page_lsn > $scan{highest};
				next if $page_lsn <= $limit;
				$scan{ahead}++;
				push @{ $scan{files}{$path} }, $block;
			}
		}
		close $file;
	}
	return \%scan;
}

sub _is_running
{
	my ($data_dir) = @_;
	open my $file, '<', "$data_dir/postmaster.pid" or return 0;
	my ($pid) = <$file> =~ /^(\d+)/;
	close $file;
	return $pid && kill 0, $pid;
}

1;
