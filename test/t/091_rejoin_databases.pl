# Databases that the new primary copies or moves after the fork: replay copies
# the rejoined node's own files.  That is right where they are as they were
# there; else "tandem rejoin" refuses, since a page fetched now is newer than
# the copy has to be, and a page of a folder that was moved can't be fetched.
# Without the refusal both nodes would seem fine and differ.

use strict;
use warnings;

use Tandem::Rejoin;
use Tandem::Test;
use Test::More;

my $pair = Tandem::Rejoin->new;
my $fill = 'SELECT g AS id, md5(g::text) AS x FROM generate_series(%d, %d) g';

sub in_database
{
	my ($node, $database, @statements) = @_;
	$node->query($_, $database) for @statements;
	return;
}

# A database with a table, replicated; and a tablespace to move it to.
sub new_database
{
	my ($name) = @_;
	$pair->primary->query("CREATE DATABASE $name");
	in_database($pair->primary, $name, 'CREATE TABLE t AS ' . sprintf($fill, 1, 2000), 'CREATE TABLE empty (a int)',
		'CREATE INDEX ON t (id)');
	return;
}
$pair->primary->query(q{CREATE TABLESPACE elsewhere LOCATION ''});

my $move = 'ALTER DATABASE %s SET TABLESPACE elsewhere';
my $copy = 'CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy';

# ---- Copied from files that are right ----------------------------------------------

new_database($_) for qw(moved template);
$pair->story('moved and copied after the fork',
	gained => [ sprintf($move, 'moved'), sprintf($copy, 'copied', 'template'), 'DROP DATABASE template' ],
	repaired => sub {
		is($pair->standby->query('SELECT count(*) FROM t', $_), 2000, "all rows of $_") for qw(moved copied);
		is($pair->standby->query('SELECT count(*) FROM empty', $_), 0, "an empty table of $_") for qw(moved copied);
	});

$pair->story('made and moved after the fork',
	gained => [ 'CREATE DATABASE young', 'CREATE DATABASE dropped', sprintf($copy, 'copy_of_young', 'young'),
		sprintf($move, 'young'), 'DROP DATABASE dropped' ]);

# ---- Copied from files that are not --------------------------------------------------

# What is lost makes rejoin refuse, because of what the new primary does.
sub is_refused
{
	my ($name, $database, $lost, $gained, $broken) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	new_database($database);
	$pair->part;
	$lost->($pair->primary);
	$pair->fail_over;
	my $dir = $pair->old_primary->data_dir;
	$broken->($dir) if $broken;
	$pair->new_primary->query($_) for @{$gained};
	my $before = Tandem::Rejoin::tree($dir);
	my ($code, undef, $err) = $pair->rejoin;
	is($code, 1, "$name: refused");
	like($err, qr/copied the directory "base\/\d+" after the fork.*\n.*base backup/s, "$name: says why");
	Tandem::Rejoin::is_unchanged($dir, $before, "$name: the directory is unchanged");

	# go on with a new standby
	my ($old, $new) = ($pair->old_primary, $pair->new_primary);
	$pair->{primary} = $new;
	$pair->{standby} = $new->new_standby("after_$database");
	return;
}

my $update = sub { in_database($_[0], $_[1], q{UPDATE t SET x = 'lost' WHERE id % 7 = 0}) };
is_refused('a page ahead in a database that was moved', 'ahead', sub { $update->($_[0], 'ahead') },
	[ sprintf $move, 'ahead' ]);
is_refused('a page ahead in a template', 'ahead_template', sub { $update->($_[0], 'ahead_template') },
	[ sprintf $copy, 'of_ahead', 'ahead_template' ]);
is_refused('a table dropped in a database that was moved', 'less', sub { in_database($_[0], 'less', 'DROP TABLE t') },
	[ sprintf $move, 'less' ]);
is_refused('a database dropped here, moved there', 'gone', sub { $_[0]->query('DROP DATABASE gone') },
	[ sprintf $move, 'gone' ]);

is_refused('a database moved to the same place on both', 'each_side', sub { $_[0]->query(sprintf $move, 'each_side') },
	[ sprintf $move, 'each_side' ]);

# DROP DATABASE removes the files first; killed then, it leaves no record.
is_refused('a database whose drop was killed here, moved there', 'half', sub { },
	[ sprintf $move, 'half' ],
	sub {
		my ($dir) = @_;
		my $oid = $pair->new_primary->query(q{SELECT oid FROM pg_database WHERE datname = 'half'});
		PostgreSQL::Test::Utils::system_or_bail('rm', '-r', "$dir/base/$oid");
	});

# ---- Nothing of it matters if the copy has gone again --------------------------------

new_database('short');
$pair->story('a page ahead in a template whose copy was dropped',
	lost => sub { $update->($pair->primary, 'short') },
	gained => [ sprintf($copy, 'of_short', 'short'), 'DROP DATABASE of_short' ]);

done_testing();
