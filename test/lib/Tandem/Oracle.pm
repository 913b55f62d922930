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
# Of each stored conflict is checked that
# - the remote change was made by that node, at that time, to that key;
# - whoever is said to have written the row here, or to have deleted it, did so;
# - under last_update_wins the later of the two has won;
# - "missing" is said of no row that had been deleted here, unless whoever sent the
#   change knew of the deletion; "unknown" only within a window, or where the
#   tombstones couldn't be asked in time.
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
	CREATE PROCEDURE work(node text, seed float8, count int, keys int, deletes bool DEFAULT true) LANGUAGE plpgsql AS $$
		DECLARE
			dice float8;
			k int;
			left_in_transaction int := 1;
		BEGIN
			PERFORM setseed(seed);
			FOR i IN 1 .. count LOOP
				dice := random() * CASE WHEN deletes THEN 1 ELSE 0.65 END;
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

# ---- Conflicts --------------------------------------------------------------

# Time between a statement and its commit, or the moment it is seen, at most; s.
my $margin = 2;

# Was this done to a key at this time?  "gone": it was deleted, or got another key.
sub _done
{
	my ($self, $node, $time, $id, $gone) = @_;
	$self->{done} //= $self->_index;
	return $self->{done}{ join ' ', $node, sprintf('%.6f', $time), $id, $gone ? 1 : 0 };
}

sub _index
{
	my ($self) = @_;
	my %done;
	for my $event (map { @$_ } values %{ $self->{own} })
	{
		for my $effect (effects($event))
		{
			$done{ join ' ', $event->{node}, sprintf('%.6f', $event->{time}), $effect->[0], defined $effect->[1] ? 0 : 1 } = $event;
		}
	}
	return \%done;
}

# Deletions of a key that this node had committed when it met the conflict, and
# the author of the change had not heard of when it made it.
sub _unheard_deletion
{
	my ($self, $name, $conflict) = @_;
	my $author = $conflict->{remote_node};

	for my $event (@{ $self->{own}{$name} // [] }, @{ $self->{seen}{$name} // [] })
	{
		next unless grep { $_->[0] eq $conflict->{id} && !defined $_->[1] } effects($event);
		next if $event->{at} > $conflict->{time} - $margin;
		return $event if $event->{time} > $conflict->{remote_time};
		next if $event->{node} eq $author;
		# by the author's clock
		my ($heard) = grep { $_->{time} == $event->{time} && $_->{node} eq $event->{node} && $_->{old_id} eq $event->{old_id} }
		  @{ $self->{seen}{$author} // [] };
		return $event if $heard && $heard->{at} - $margin > $conflict->{remote_time};
	}
	return;
}

# { type => number }, and descriptions of those that are wrong.
sub conflicts
{
	my ($self, $node) = @_;
	my $name = $node->name;
	my (%count, @wrong);

	for my $line (split /\n/, $node->query(q{
		SELECT c.id, extract(epoch FROM c."time"), c.type, c.operation, c.outcome, c.resolution, c.detection,
			coalesce(c.reason, ''), coalesce(substr(s.subname, 6), c.local_origin, ''),
			coalesce(extract(epoch FROM c.local_time)::text, ''), c.remote_node, extract(epoch FROM c.remote_time),
			coalesce(c.key->>'id', c.local_row->>'id', c.remote_row->>'id', ''), coalesce(c.remote_row->>'id', '')
		FROM tandem.conflicts c LEFT JOIN pg_subscription s ON c.local_origin IN (s.subname, 'pg_' || s.oid)
		WHERE c."table" = 't' ORDER BY c.id}))
	{
		my %c;
		@c{qw(number time type operation outcome resolution detection reason local_node local_time remote_node remote_time id new_id)} =
		  split /\|/, $line, -1;
		$c{local_node} = $name if $c{local_node} eq 'local';
		$count{ $c{type} . ($c{detection} eq 'certain' ? '' : " $c{detection}") }++;
		push @wrong, map { "on $name: $_: $line\n" . $self->story($c{id}) } $self->_judge($name, \%c);
	}
	return (\%count, @wrong);
}

# What is wrong with a conflict.
sub _judge
{
	my ($self, $name, $c) = @_;
	my $deleted = $c->{type} =~ /deleted$/;
	my $id = $c->{type} eq 'update_exists' && $c->{new_id} ne '' ? $c->{new_id} : $c->{id};
	my @wrong;

	return "no key" if $id eq '';
	push @wrong, "$c->{remote_node} did no such thing"
	  unless grep { $self->_done($c->{remote_node}, $c->{remote_time}, $id, $_) } 0, 1;
	if ($c->{local_time} ne '')
	{
		push @wrong, "$c->{local_node} has not " . ($deleted ? 'deleted' : 'written') . ' it'
		  unless $self->_done($c->{local_node}, $c->{local_time}, $id, $deleted);
		my $remote_wins = ($c->{remote_time} <=> $c->{local_time} || $c->{remote_node} cmp $c->{local_node}) >= 0;
		push @wrong, 'the wrong one has won'
		  # a row with a new key isn't the one that was deleted
		  if !($deleted && $c->{operation} eq 'update' && $c->{new_id} ne $c->{id}) &&
		  $c->{outcome} eq 'last_update_wins' && $c->{resolution} ne 'error' &&
		  $remote_wins != ($c->{resolution} ne 'skipped');
	}
	elsif ($deleted || $c->{type} =~ /origin_differs$/)
	{
		push @wrong, 'nobody is said to have done it';
	}
	if ($c->{type} eq 'update_missing' && $c->{detection} eq 'certain')
	{
		my $deletion = $self->_unheard_deletion($name, $c);
		push @wrong, 'it was deleted: ' . _line($deletion) if $deletion;
	}
	return @wrong;
}

1;
