# What several writable nodes must agree on, computed from what each of them did.
#
# The table t (id, v) has a trigger that records each change in the table
# history, in the same transaction: the node's own, and those it applied.  With
# the commit times that the server keeps, that is all that "the last update
# wins" depends on:
#
#   my $oracle = Tandem::Oracle->new($mesh);          # when nobody writes any more
#   $oracle->rows                                     # { id => v } as it must be everywhere
#   $oracle->wrong_conflicts($node)                   # stored conflicts whose facts or verdict are wrong
#
# Tandem::Oracle::tables() is the SQL for Tandem::Mesh, with a procedure work()
# that writes at random; the publication is publication().
#
# Only one node's statements are compared by that node's clock; what two nodes
# did is compared as the rule does, by commit time and then node.
package Tandem::Oracle;

use strict;
use warnings;

sub publication { return 'FOR TABLE t' }

# $identity: DEFAULT or FULL.
sub tables
{
	my ($identity) = @_;
	$identity //= 'DEFAULT';
	return qq{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	ALTER TABLE t REPLICA IDENTITY $identity;
	CREATE TABLE history (
		n bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(),
		xid xid DEFAULT pg_current_xact_id()::xid,
		applied bool DEFAULT current_setting('session_replication_role') = 'replica',
		op "char", id int, old_id int, v text);
	CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS '
		BEGIN
			INSERT INTO public.history (op, id, old_id, v) VALUES
				(left(TG_OP, 1)::pg_catalog."char", NEW.id, OLD.id, NEW.v);
			RETURN NULL;
		END';
	CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION record();
	ALTER TABLE t ENABLE ALWAYS TRIGGER record;
	} . q{
	-- "count" statements at random on "keys" keys, in transactions of one to four
	CREATE PROCEDURE work(node text, seed float8, count int, keys int) LANGUAGE plpgsql AS $$
		DECLARE
			dice float8;
			k int;
			left_in_transaction int := 1;
		BEGIN
			PERFORM setseed(seed);
			FOR i IN 1 .. count LOOP
				dice := random();
				k := 1 + floor(random() * keys);
				BEGIN
					IF dice < 0.35 THEN
						INSERT INTO t VALUES (k, node || ':' || seed || ':' || i) ON CONFLICT DO NOTHING;
					ELSIF dice < 0.65 THEN
						UPDATE t SET v = node || ':' || seed || ':' || i WHERE id = k;
					ELSIF dice < 0.75 THEN
						UPDATE t SET id = 1 + floor(random() * keys), v = node || ':' || seed || ':' || i
						WHERE id = k;
					ELSE
						DELETE FROM t WHERE id = k;
					END IF;
				EXCEPTION WHEN unique_violation OR deadlock_detected THEN
				END;
				left_in_transaction := left_in_transaction - 1;
				IF left_in_transaction = 0 THEN
					COMMIT;
					-- mostly one statement
					left_in_transaction := greatest(1, floor(random() * 12) - 7);
				END IF;
			END LOOP;
		END $$;
	};
}

sub new
{
	my ($class, $mesh) = @_;
	my $self = bless { mesh => $mesh, own => {}, seen => {} }, $class;

	for my $node ($mesh->nodes)
	{
		my $name = $node->name;
		my %origin = (0 => $name, split /[|\n]/, $node->query(q{
			SELECT o.roident, substr(s.subname, 6) FROM pg_replication_origin o
			JOIN pg_subscription s ON o.roname = 'pg_' || s.oid}));
		for my $line (split /\n/, $node->query(q{
			SELECT h.n, extract(epoch FROM c.timestamp), extract(epoch FROM h.at), c.roident, h.applied, h.op,
				coalesce(h.id::text, ''), coalesce(h.old_id::text, ''), coalesce(h.v, '')
			FROM history h, pg_xact_commit_timestamp_origin(h.xid) c ORDER BY h.n}))
		{
			my %event;
			@event{qw(n time at origin applied op id old_id v)} = split /\|/, $line, -1;
			die "no commit time: $line" unless $event{time} && defined $event{origin};
			$event{node} = $origin{ $event{origin} } // die "origin $event{origin} of $line";
			die "applied or not? $line" if ($event{applied} eq 't') != ($event{node} ne $name);
			push @{ $self->{ $event{applied} eq 't' ? 'seen' : 'own' }{$name} }, \%event;
		}
	}
	return $self;
}

# Number of statements that changed a row.
sub changes
{
	my ($self) = @_;
	my $n = 0;
	$n += @$_ for values %{ $self->{own} };
	return $n;
}

# What an event means for each key it is about: [ id, v ], undef for none.
sub effects
{
	my ($event) = @_;
	return [ $event->{old_id}, undef ] if $event->{op} eq 'D';
	return [ $event->{id}, $event->{v} ]
	  if $event->{op} eq 'I' || $event->{id} eq $event->{old_id};
	return ([ $event->{old_id}, undef ], [ $event->{id}, $event->{v} ]);
}

# The later one is the one that wins.
sub later
{
	my ($left, $right) = @_;
	return $left->{time} <=> $right->{time} || $left->{node} cmp $right->{node} || $left->{n} <=> $right->{n};
}

# { id => event that decides }
sub deciding
{
	my ($self) = @_;
	my %last;
	for my $event (sort { later($a, $b) } map { @$_ } values %{ $self->{own} })
	{
		$last{ $_->[0] } = { event => $event, v => $_->[1] } for effects($event);
	}
	return \%last;
}

sub rows
{
	my ($self) = @_;
	my $last = $self->deciding;
	return { map { ($_ => $last->{$_}{v}) } grep { defined $last->{$_}{v} } keys %$last };
}

# All that was done to a key, as text, the last one last: for whoever looks for a cause.
sub story
{
	my ($self, $id) = @_;
	my @lines;
	for my $event (sort { later($a, $b) } map { @$_ } values %{ $self->{own} })
	{
		push @lines, _line($event) if grep { $_->[0] == $id } effects($event);
	}
	for my $name (sort keys %{ $self->{seen} })
	{
		push @lines, map { "applied on $name: " . _line($_) }
		  grep { my $e = $_; grep { $_->[0] == $id } effects($e) } @{ $self->{seen}{$name} };
	}
	return join "\n", @lines;
}

sub _line
{
	my ($event) = @_;
	return "$event->{time} $event->{node} #$event->{n} $event->{op} $event->{old_id} -> $event->{id} $event->{v} at $event->{at}";
}

# The rows of a node that aren't as they must be, with their story.
sub wrong_rows
{
	my ($self, $node) = @_;
	my $rows = $self->rows;
	my %here = split /[|\n]/, $node->query('SELECT id, v FROM t');
	my @wrong;
	for my $id (sort { $a <=> $b } keys %{ { %$rows, %here } })
	{
		next if ($rows->{$id} // '') eq ($here{$id} // '');
		push @wrong, 'on ' . $node->name . " row $id is " . ($here{$id} // 'not there') . ', not '
		  . ($rows->{$id} // 'missing') . "\n" . $self->story($id);
	}
	return @wrong;
}

1;
