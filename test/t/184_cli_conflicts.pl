# "tandem conflicts": lists what the conflict log has, one conflict column by column,
# and sees to it.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Test;
use Test::More;

delete $ENV{PGDATABASE};
$ENV{LC_ALL} = 'C';

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1, conf => 'track_commit_timestamp = on');

my ($code, $out, $err) = tandem('conflicts', at($node));
is($code, 1, 'nothing is adopted: exit code 1');
like($err, qr/^tandem: error: no subscription of \S+ is adopted\ntandem: hint: Name the database with -d/, '... and what to do');
($code, $out) = tandem('conflicts', at($node), '-d', 'postgres');
is("$code $out", "0 No conflicts.\n", 'an empty log');
($code, undef, $err) = tandem('conflicts', at($node), '-d', 'template1');
is($code, 1, 'a database without the extension');
like($err, qr/Run CREATE EXTENSION pg_tandem in that database/, '... is told');

for my $server ($publisher, $node)
{
	$server->query(q{
		CREATE TABLE t (id int PRIMARY KEY, v text);
		CREATE TABLE "Odd name" (id int PRIMARY KEY);
		INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 100) g;
		INSERT INTO "Odd name" VALUES (1), (2)});
}
$publisher->publish('pub');
$node->subscribe_adopted('sub', $publisher, 'pub');
$node->query(q{DELETE FROM t WHERE id <= 70; DELETE FROM "Odd name"});
$publisher->query(q{DELETE FROM t WHERE id = 1});
$publisher->query(q{UPDATE t SET v = E'new\e[31m' WHERE id = 2});
$publisher->query(q{DELETE FROM "Odd name" WHERE id = 1});
$publisher->query(q{DELETE FROM t WHERE id BETWEEN 11 AND 70});
$node->wait_subscription('sub', $publisher);

# ---- The list --------------------------------------------------------------------

($code, $out, $err) = tandem('conflicts', at($node));
is("$code $err", '0 ', 'listed');
my @lines = split /\n/, $out;
like($lines[0], qr/^ID +AGO +SUBSCRIPTION +TABLE +TYPE +RESULT +KEY$/, 'titles');
is((grep { /delete_missing +skipped/ } @lines), 50, 'the newest fifty');
like($out, qr/^The newest 50 are shown; --limit=0 shows all\.$/m, '... which it says');
is((grep { length > 100 } @lines), 0, 'in 100 columns');
($code, $out) = tandem('conflicts', at($node), '--limit=0');
is((grep { /_missing/ } split /\n/, $out), 63, 'all of them');
($code, $out) = tandem('conflicts', at($node), '--type=update_missing');
like($out, qr/^ *\d+ .* sub +public\.t +update_missing +skipped +\{"id": 2\}$/m, 'of a type');
is((grep { /_missing/ } split /\n/, $out), 1, '... only that');
($code, $out) = tandem('conflicts', at($node), '--table="Odd name"', '--since=1 hour', '--subscription=sub');
like($out, qr/public\.Odd name +delete_missing/, 'of a table, a subscription and a time');
is((grep { /_missing/ } split /\n/, $out), 1, '... only that');
($code, $out) = tandem('conflicts', at($node), @$_) and is("$code $out", "0 No conflicts.\n", "none: @$_")
  for [ '--table=other.t' ], [ '--subscription=other' ], [ '--since=2100-01-01' ];

# ---- For programs ---------------------------------------------------------------------

($code, my $object) = tandem_json('conflicts', at($node), '--table=t', '--type=update_missing');
is($code, 0, 'as JSON');
is(scalar @{ $object->{conflicts} }, 1, '... one');
my $conflict = $object->{conflicts}[0];
is("@$conflict{qw(database subscription schema table type operation resolution state)}", 'postgres sub public t update_missing update skipped open',
	'... with what it is');
is_deeply($conflict->{key}, { id => 2 }, '... its key is JSON');
my $updated = $conflict->{id};

# ---- One of them -------------------------------------------------------------------------

($code, $out) = tandem('conflicts', $updated, at($node));
is($code, 0, 'one');
like($out, qr/^Conflict $updated of subscription "sub" in database "postgres"\nconflict +update_missing on update of public\.t\nfound +\S/, 'what it is');
like($out, qr/^remote +node \S+, transaction \d+, committed /m, 'who wrote it');
like($out, qr/^ +COLUMN +LOCAL +REMOTE +NOW\n +id +- +2 +-$/m, 'its columns');
unlike($out, qr/\e/, 'nothing that a terminal would obey');
is((tandem('conflicts', "--diff=$updated", at($node)))[1] =~ s/found.*\n//r, $out =~ s/found.*\n//r, '--diff is the same');
my ($deleted) = $node->query(q{SELECT id FROM tandem.conflicts WHERE key = '{"id": 1}' AND "table" = 't'});
$node->query(q{INSERT INTO t VALUES (1, 'again')});
($code, $out) = tandem('conflicts', "--replay=$deleted", at($node));
is("$code $out", qq{0 Conflict $deleted of database "postgres" is replayed: the row was deleted.\n}, 'replayed');
is($node->query('SELECT count(*) FROM t WHERE id = 1'), '0', '... it is');
($code, $out, $err) = tandem('conflicts', "--replay=$deleted", at($node));
is($code, 1, 'not twice');
like($err, qr/^tandem: error: conflict $deleted has been replayed already\ntandem: hint: /, '... which is told');
($code, $out) = tandem('conflicts', "--dismiss=$updated", at($node));
is("$code $out", qq{0 Conflict $updated of database "postgres" is dismissed.\n}, 'dismissed');
($code, $out) = tandem('conflicts', $updated, at($node));
like($out, qr/^state +dismissed by postgres, /m, '... which it says');
unlike($out, qr/--replay/, '... and offers no more');

# ---- status and doctor --------------------------------------------------------------------

($code, $out) = tandem('status', at($node));
like($out, qr/^Open conflicts of the last day in database "postgres" of \S+: 61, of which failed: 0\. See/m, 'status counts those that are open');
(undef, $object) = tandem_json('status', at($node));
my ($status) = map { @{ $_->{subscriptions} // [] } } @{ $object->{nodes} };
is("@$status{qw(conflicts_open conflicts_failed conflicts_not_stored)}", '61 0 0', '... for programs, too');
is((grep { /^conflict/ } map { $_->{code} } @{ (tandem_json('doctor', at($node)))[1]{findings} }), 0, 'doctor has nothing to say of them');
$node->query(q{SELECT tandem.adopt('sub', 'update_origin_differs = last_update_wins')});
$node->query('ALTER MATERIALIZED VIEW tandem.conflict_log RENAME TO hidden');
$publisher->query(q{DELETE FROM t WHERE id = 4});
$node->wait_subscription('sub', $publisher);
$node->query('ALTER MATERIALIZED VIEW tandem.hidden RENAME TO conflict_log');
(undef, $object) = tandem_json('status', at($node));
my ($finding) = grep { $_->{code} eq 'conflicts_not_stored' } @{ $object->{findings} };
is($finding->{severity}, 'warning', 'status knows that one could not be stored');
like($finding->{what}, qr/could not be stored: 1; the last one .* ago: relation "tandem.conflict_log" does not exist\.$/, '... and why');
$node->append_conf('postgresql.conf', 'track_commit_timestamp = off');
$node->restart;
(undef, $object) = tandem_json('doctor', at($node));
($finding) = grep { $_->{code} eq 'conflict_timestamps' } @{ $object->{findings} };
is($finding->{severity}, 'warning', 'doctor knows that nobody keeps commit times');
like($finding->{cost}, qr/Missing rows and keys that exist are detected/, '... and what still works');

# ---- Two databases ------------------------------------------------------------------------

$node->query('CREATE DATABASE other');
$node->query('CREATE EXTENSION pg_tandem; CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE "Odd name" (id int PRIMARY KEY)', 'other');
(my $conninfo = $publisher->connstr('postgres')) =~ s/'/''/g;
$node->query("CREATE SUBSCRIPTION second CONNECTION '$conninfo' PUBLICATION pub WITH (enabled = false, copy_data = false)", 'other');
$node->query(q{SELECT tandem.adopt('second')}, 'other');
$publisher->query(q{DELETE FROM t WHERE id = 3});
$node->wait_subscription($_, $publisher) for 'sub', 'second';
($code, $out) = tandem('conflicts', '--limit=1', at($node));
like($out, qr/^Database "other"\n.*\n *1 .* second .*\n\nDatabase "postgres"\n/, 'both are listed');
($code, undef, $err) = tandem('conflicts', '1', at($node));
is($code, 1, 'a number that both have');
like($err, qr/^tandem: error: databases "other" and "postgres" have a conflict 1\ntandem: hint: Name the database with -d\.$/m, '... is refused');
($code, $out) = tandem('conflicts', '1', at($node), '-d', 'other');
like($out, qr/^Conflict 1 of subscription "second" in database "other"/, '-d names one');

# ---- Wrong --------------------------------------------------------------------------------

for my $wrong (
	[ 'x'                                 => qr/"x" is not the number of a conflict/ ],
	[ '--replay=-1'                       => qr/"-1" is not the number of a conflict/ ],
	[ '--replay=1', '--dismiss=1'         => qr/name one conflict/ ],
	[ '1', '--table=t'                    => qr/name one conflict/ ],
	[ '--limit=some'                      => qr/"some" is not a number of conflicts/ ],
	[ '--json', '--dismiss=1'             => qr/--json can't be used/ ],
	[ '--since=some day'                  => qr/"some day" is neither a time nor an interval/ ],
	[ '1', '2'                            => qr/too many arguments/ ])
{
	my $message = pop @$wrong;
	($code, $out, $err) = tandem('conflicts', @$wrong, at($node));
	is("$code $out", '2 ', "wrong usage: @$wrong");
	like($err, qr/^tandem: error: .*$message.*\ntandem: hint: /, '... is told, with a hint');
}
($code, undef, $err) = tandem('conflicts', '--type=quarrel', at($node));
is($code, 1, 'no such type');
like($err, qr/"quarrel" is not a type of conflict\ntandem: hint: .*--help/, '... is told');
($code, undef, $err) = tandem('conflicts', '999', at($node));
is($code, 1, 'no such conflict');
like($err, qr/there is no conflict 999 on /, '... is told');
($code, $out) = tandem('conflicts', '--help');
like($out, qr/insert_exists.*multiple_unique_conflicts/s, 'the help names the types');
$node->stop;
($code, undef, $err) = tandem('conflicts', at($node));
is($code, 3, 'a server that does not answer');

done_testing();
