# Every page of two nodes compared, whether anything has touched it or not: with
# wal_consistency_checking a standby looks only at pages that it replays, and
# pg_amcheck only at tables and btrees.
#
#   my @different = different_pages($primary, $standby);
#
# The nodes have to be at rest, the standby has replayed all.  Databases without
# the extension are left out.  A page counts as different if its bytes are, with
# what replay leaves out masked.  That goes for its LSN too, which differs where
# a sorted build of a GiST index left its own mark on the primary.
package Tandem::Digests;

use strict;
use warnings;

use Exporter 'import';

our @EXPORT = qw(different_pages);

# Left out: unlogged and temporary relations; sequences, whose primary is ahead
# of their WAL; free space and visibility maps; metapages of SP-GiST, which
# change without WAL.  Numbers are those of resource managers.
my $digests = q{
	SELECT c.oid::regclass AS relation, b, request, d.lsn, d.digest
	FROM pg_class c
	LEFT JOIN pg_am a ON a.oid = c.relam
	CROSS JOIN LATERAL (VALUES (
		CASE WHEN c.relkind IN ('r', 'm', 't') THEN 10
			WHEN a.amname = 'btree' THEN 11 WHEN a.amname = 'hash' THEN 12 WHEN a.amname = 'gin' THEN 13
			WHEN a.amname = 'gist' THEN 14 WHEN a.amname = 'spgist' THEN 16 WHEN a.amname = 'brin' THEN 17
		END)) AS r (rmgr)
	CROSS JOIN LATERAL (
		SELECT array_agg(g) FROM generate_series(CASE WHEN r.rmgr = 16 THEN 1 ELSE 0 END,
			pg_relation_size(c.oid) / current_setting('block_size')::int - 1) g) AS blocks (b)
	CROSS JOIN LATERAL tandem.page_digests(
		array_fill(coalesce(nullif(c.reltablespace, 0),
			(SELECT dattablespace FROM pg_database WHERE datname = current_database())), ARRAY[cardinality(b)]),
		array_fill(CASE WHEN c.relisshared THEN 0::oid
			ELSE (SELECT oid FROM pg_database WHERE datname = current_database()) END, ARRAY[cardinality(b)]),
		array_fill(pg_relation_filenode(c.oid), ARRAY[cardinality(b)]),
		array_fill(0, ARRAY[cardinality(b)]), b, array_fill(r.rmgr, ARRAY[cardinality(b)])) d
	WHERE c.relpersistence = 'p' AND rmgr IS NOT NULL AND b IS NOT NULL
};

sub different_pages
{
	my ($primary, $standby) = @_;
	my @different;

	# looking at a primary's page may prune it
	for (1 .. 5)
	{
		@different = _different_now($primary, $standby) or last;
		$primary->wait_replayed($standby);
	}
	return @different;
}

sub _different_now
{
	my ($primary, $standby) = @_;
	my @different;

	for my $database (split /\n/, $primary->query('SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2 ORDER BY 1'))
	{
		my ($ours, $theirs) = map { _digests($_, $database) } $standby, $primary;
		my %all = (%$ours, %$theirs);
		for my $page (sort keys %all)
		{
			my ($here, $there) = map { $_->{$page} // [ '0/0', 'missing' ] } $ours, $theirs;
			next if $here->[1] eq $there->[1];
			# a page that was never written to has no LSN and may be missing
			next if $here->[0] eq '0/0' && $there->[0] eq '0/0';
			push @different, "$database: $page, LSN $there->[0] on the primary, $here->[0] on the standby";
		}
	}
	return @different;
}

# By relation and block: LSN and digest.
sub _digests
{
	my ($node, $database) = @_;
	my $rows = $node->query(q{SELECT 1 FROM pg_extension WHERE extname = 'pg_tandem'}, $database)
	  ? $node->query(<<"END", $database) : '';
SELECT relation || ' block ' || b[request], lsn, digest FROM ($digests) AS p
END
	return { map { my ($page, @digest) = split /\|/; $page => \@digest } split /\n/, $rows };
}

1;
