# WAL files, read in three ways: by the reader of "tandem rejoin" (through
# test/wal_dump), by the server's pg_waldump, and byte by byte here.
#
#   my $wal = Tandem::Wal->new("$data_dir/pg_wal", 1 << 20);
#   my ($records, $end) = $wal->ours($start);
#   my $theirs = $wal->theirs($start);
#
# Records are hashes.  LSNs are strings as pg_waldump prints them; lsn() and
# number() convert.
package Tandem::Wal;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use FindBin;
use IPC::Run ();

our @EXPORT = qw(lsn number);

my $page_size = 8192;
my $short_header = 24;
my $long_header = 40;
my $record_header = 24;

sub lsn
{
	my ($number) = @_;
	return sprintf '%X/%08X', $number >> 32, $number & 0xFFFFFFFF;
}

sub number
{
	my ($lsn) = @_;
	my ($high, $low) = $lsn =~ m{^([0-9A-Fa-f]+)/([0-9A-Fa-f]+)$}
	  or croak "not an LSN: $lsn";
	return hex($high) << 32 | hex $low;
}

# The WAL in a folder.  Its timelines are those of the newest history file.
sub new
{
	my ($class, $dir, $segment_size) = @_;
	my @history = ({ tli => 1, begin => 0 });
	my ($newest) = reverse sort glob "$dir/*.history";
	if (defined $newest)
	{
		@history = ();
		my $begin = 0;
		open my $file, '<', $newest or croak "could not open $newest: $!";
		while (my $line = <$file>)
		{
			my ($tli, $lsn) = $line =~ m{^(\d+)\s+(\S+/\S+)} or next;
			push @history, { tli => $tli, begin => $begin, end => number($lsn) };
			$begin = number($lsn);
		}
		close $file;
		push @history, { tli => hex(($newest =~ /([0-9A-F]{8})\.history$/)[0]), begin => $begin };
	}
	return bless { dir => $dir, size => $segment_size, history => \@history }, $class;
}

sub history
{
	my ($self) = @_;
	return @{ $self->{history} };
}

# The name of the file of a timeline that holds this LSN.
sub file_name
{
	my ($self, $tli, $lsn) = @_;
	my $segment = int(number($lsn) / $self->{size});
	my $per_id = int(2**32 / $self->{size});
	return sprintf '%08X%08X%08X', $tli, $segment / $per_id, $segment % $per_id;
}

# What our reader reads: the records, and its last line.  Dies if it crashes.
sub ours
{
	my ($self, $start, $fetch_dir) = @_;
	my ($out, $err) = ('', '');
	my $program = "$FindBin::RealBin/../wal_dump";
	croak "\"make check\" builds $program" unless -x $program;

	my $history = join ',', map { "$_->{tli}@" . lsn($_->{begin}) } $self->history;
	IPC::Run::run(
		[ $program, $self->{dir}, $self->{size}, $history, $start, $fetch_dir // () ],
		'<', \undef, '>', \$out, '2>', \$err);
	croak "wal_dump died of signal " . ($? & 127) . ": $err" if $? & 127;
	croak "wal_dump said: $err" if $err =~ /Sanitizer|runtime error/;
	return ([], "exit $err") if $? != 0;

	my @lines = split /\n/, $out;
	my $end = pop @lines;
	return (\@lines, $end);
}

sub split_ours
{
	my ($line) = @_;
	my ($head, $blocks, $meaning) = split /\|/, $line, 3;
	my %record;
	@record{qw(lsn end tli prev rmgr info xid top_xid origin data_len)} = split / /, $head;
	$record{blocks} = $blocks;
	$record{meaning} = $meaning;
	return \%record;
}

# What pg_waldump reads, timeline by timeline, in the terms of ours(): with the
# blocks as there but "init", and the meaning of records that it knows.
sub theirs
{
	my ($self, $start) = @_;
	my @records;
	for my $entry ($self->history)
	{
		next if defined $entry->{end} && $entry->{end} <= number($start);
		my $from = $entry->{begin} > number($start) ? lsn($entry->{begin}) : $start;
		my ($out, $err) = ('', '');
		IPC::Run::run(
			[
				'pg_waldump', '-p', $self->{dir}, '-t', $entry->{tli}, '-s', $from,
				defined $entry->{end} ? ('-e', lsn($entry->{end})) : ()
			],
			'<', \undef, '>', \$out, '2>', \$err);
		for my $line (split /\n/, $out)
		{
			push @records, { %{ _split_theirs($line) }, timeline => $entry->{tli} };
		}
	}
	return \@records;
}

sub _split_theirs
{
	my ($line) = @_;
	my %record;
	my $blkref = qr{blkref\ \#\d+:\ rel\ \d+/\d+/\d+\ (?:fork\ \w+\ )?blk\ \d+
		(?:\ FPW(?:\ for\ WAL\ verification)?)?}x;
	my ($rmgr, $len, $xid, $lsn, $prev, $rest) = $line =~
	  m{^rmgr: (\S+)\s+len \(rec/tot\):\s*\d+/\s*(\d+), tx:\s*(\d+), lsn: (\S+), prev (\S+), desc: (.*)$}
	  or croak "pg_waldump printed: $line";
	@record{qw(rmgr len xid lsn prev)} = ($rmgr, $len, $xid, $lsn, $prev);

	my @blocks;
	while ($rest =~ s/, ($blkref)$//)
	{
		my ($id, $rel, $fork, $block, $image) = $1 =~
		  m{^blkref #(\d+): rel (\S+) (?:fork (\w+) )?blk (\d+)(.*)$};
		unshift @blocks,
		  join ':', $id, $rel, $fork // 'main', $block, $image eq ' FPW' ? 'image' : ();
	}
	$record{blocks} = join ' ', @blocks;
	($record{kind}, $record{desc}) = $rest =~ /^(\S+) ?(.*)$/;
	$record{meaning} = _meaning(\%record);
	delete $record{desc};		# a logical message's is as long as the message
	return \%record;
}

# A path of pg_waldump as tablespace/database/node, and the fork's name.
sub _relation
{
	my ($path) = @_;
	my ($node, $fork) = $path =~ m{/(\d+)(?:_(\w+))?$};
	my $folder =
		$path =~ m{^base/(\d+)/} ? "1663/$1"
	  : $path =~ m{^global/} ? '1664/0'
	  : $path =~ m{^pg_tblspc/(\d+)/\w+/(\d+)/} ? "$1/$2"
	  : croak "no relation: $path";
	my %number = (main => 0, fsm => 1, vm => 2, init => 3);
	return ("$folder/$node", $number{ $fork // 'main' });
}

# What wal_dump would print for a record with this description.
sub _meaning
{
	my ($record) = @_;
	my ($rmgr, $kind, $desc) = @{$record}{qw(rmgr kind desc)};

	if ($rmgr eq 'Transaction' && $kind =~ /^(COMMIT|ABORT|PREPARE)(_PREPARED)?$/)
	{
		my $xid = $desc =~ /^(\d+): / ? $1 : $record->{xid};
		my @subxacts = $desc =~ /; subxacts: ([\d ]+)/ ? split(/ /, $1) : ();
		my @rels = $desc =~ /; rels: ([^;]+)/ ? map { (_relation($_))[0] } split(/ /, $1) : ();
		return lc($1)
		  . ($kind =~ /_PREPARED/ ? ' prepared' : '')
		  . " xid $xid"
		  . (@subxacts ? " subxacts @subxacts" : '')
		  . (@rels ? " drops @rels" : '')
		  . ($desc =~ m{; origin: node (\d+), lsn ([0-9A-F]+/[0-9A-F]+)} ? " origin $1 at $2" : '')
		  if $kind =~ /^(COMMIT|ABORT|PREPARE)/;
	}
	return "checkpoint $4 redo $1 tli $2 oid $3"
	  if $kind =~ /^CHECKPOINT/
	  && $desc =~ /^redo (\S+); tli (\d+); .* oid (\d+); .* (online|shutdown)/;
	return sprintf 'create %s fork %d', _relation($desc) if "$rmgr $kind" eq 'Storage CREATE';
	return sprintf 'truncate %s to %u flags %d', (_relation($1))[0], $2, $3
	  if "$rmgr $kind" eq 'Storage TRUNCATE' && $desc =~ /^(\S+) to (\d+) blocks flags (\d+)/;
	return "create database $1" if $rmgr eq 'Database' && $desc =~ m{^(?:copy dir \S+ to|create dir) (\S+)};
	return "drop database $1" if $rmgr eq 'Database' && $desc =~ /^dir (.*\d)/;
	return "create tablespace $1 $2" if $rmgr eq 'Tablespace' && $desc =~ /^(\d+) "(.*)"/;
	return "drop tablespace $1" if $rmgr eq 'Tablespace' && $desc =~ /^(\d+)$/;
	return "relation map $2/$1" if $rmgr eq 'RelMap' && $desc =~ /^database (\d+) tablespace (\d+)/;
	return "multixact $1 offset $2 members $3"
	  if $rmgr eq 'MultiXact' && $desc =~ /^(\d+) offset (\d+) nmembers (\d+)/;
	return 'truncate slru ' . { CLOG => 0, CommitTs => 1, MultiXact => 2 }->{$rmgr}
	  if $kind =~ /^TRUNCATE/ && $rmgr =~ /^(CLOG|CommitTs|MultiXact)$/;
	return 'full_page_writes ' . ($desc =~ /true/ ? 'on' : 'off') if $kind eq 'FPW_CHANGE';
	return "next oid $desc" if $kind eq 'NEXTOID';
	return "end of recovery tli $1 prev tli $2"
	  if $kind eq 'END_OF_RECOVERY' && $desc =~ /^tli (\d+); prev tli (\d+)/;
	return "set origin $1" if $rmgr eq 'ReplicationOrigin' && $desc =~ /^set (\d+)/;
	return "drop origin $1" if $rmgr eq 'ReplicationOrigin' && $desc =~ /^drop (\d+)/;
	if ($kind eq 'PARAMETER_CHANGE')
	{
		my %set = $desc =~ /(\w+)=(\S+)/g;
		my %level = (minimal => 0, replica => 1, logical => 2);
		return "settings wal_level $level{$set{wal_level}} wal_log_hints $set{wal_log_hints}"
		  . " track_commit_timestamp $set{track_commit_timestamp}";
	}
	return '';
}

# ---- Byte by byte -----------------------------------------------------------

# Where a record of this length at this LSN ends, and [start, length] of its
# pieces.
sub pieces
{
	my ($self, $lsn, $length) = @_;
	my $at = number($lsn);
	my @pieces;
	while ($length > 0)
	{
		$at += $at % $self->{size} == 0 ? $long_header : $short_header
		  if $at % $page_size == 0;
		my $room = $page_size - $at % $page_size;
		my $part = $length < $room ? $length : $room;
		push @pieces, [ $at, $part ];
		$length -= $part;
		$at += $part;
	}
	return ($at + (-$at % 8 + 8) % 8, \@pieces);
}

# The bytes at a number, from the newest timeline's file.  Keeps the last file
# in memory: not for one that changes.
sub bytes
{
	my ($self, $at, $length) = @_;
	my $segment = int($at / $self->{size});
	if (($self->{kept} // -1) != $segment)
	{
		my ($path) = grep { -e } map { "$self->{dir}/" . $self->file_name($_->{tli}, lsn($at)) }
		  grep { int($_->{begin} / $self->{size}) <= $segment } reverse $self->history;
		croak 'no file holds ' . lsn($at) unless defined $path;
		open my $file, '<:raw', $path or croak "could not open $path: $!";
		local $/ = undef;
		$self->{content} = <$file>;
		$self->{kept} = $segment;
		close $file;
	}
	return substr $self->{content}, $at % $self->{size}, $length;
}

sub record_bytes
{
	my ($self, $lsn, $length) = @_;
	my (undef, $pieces) = $self->pieces($lsn, $length);
	return join '', map { $self->bytes(@{$_}) } @{$pieces};
}

# A record's block references with all flags, transaction id of the top level,
# origin and length of the main data, straight from its headers.
sub dissect
{
	my ($self, $lsn, $length) = @_;
	my $bytes = $self->record_bytes($lsn, $length);
	my $at = $record_header;
	my ($payload, $data_len, $rel) = (0, 0, '');
	my %found = (top_xid => 0, origin => 0, blocks => []);
	my $take = sub {
		my ($template, $size) = @_;
		$at += $size;
		return unpack $template, substr $bytes, $at - $size, $size;
	};
	while ($length - $at > $payload)
	{
		my $id = $take->('C', 1);
		if ($id == 255) { $data_len = $take->('C', 1); last; }
		if ($id == 254) { $data_len = $take->('V', 4); last; }
		if ($id == 253) { $found{origin} = $take->('v', 2); next; }
		if ($id == 252) { $found{top_xid} = $take->('V', 4); next; }
		my ($flags, $size) = $take->('Cv', 3);
		my $image_info = 0;
		if ($flags & 0x10)
		{
			my ($image_size, $hole_offset, $info) = $take->('vvC', 5);
			$image_info = $info;
			$take->('v', 2) if $image_info & 0x1C && $image_info & 0x01;
			$size += $image_size;
		}
		$rel = join '/', $take->('VVV', 12) unless $flags & 0x80;
		my $block = $take->('V', 4);
		$payload += $size;
		push @{ $found{blocks} },
		  join ':', $id, $rel, (qw(main fsm vm init))[ $flags & 0x0F ], $block,
		  ($image_info & 0x02 ? 'image' : ()), ($flags & 0x40 ? 'init' : ());
	}
	croak "record at $lsn doesn't add up" unless $at + $payload + $data_len == $length;
	$found{data_len} = $data_len;
	return \%found;
}

1;
