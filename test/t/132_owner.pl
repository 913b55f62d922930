# The owner of a subscription is no superuser (any more): rights are checked as
# the server's own worker does, in copies and in apply.  A right that is missing
# stops one table's copy and tells the GRANT; row-level security that binds the owner
# refuses.

use strict;
use warnings;

use Tandem::Test;
use Tandem::Waves;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', library => 0);
my $node = Tandem::Node->new_subscriber('subscriber', library => 1);
my @tables = qw(granted denied secured theirs);

for my $server ($publisher, $node)
{
	$server->query("CREATE TABLE $_ (id int PRIMARY KEY, v text)") for @tables;
}
$publisher->query("INSERT INTO $_ SELECT g, 'row ' || g FROM generate_series(1, 10) g") for @tables;
$publisher->publish('pub');
$node->query(q{
	CREATE ROLE alice SUPERUSER LOGIN;
	ALTER TABLE granted OWNER TO alice;
	ALTER TABLE secured OWNER TO alice;
	ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
	ALTER TABLE secured FORCE ROW LEVEL SECURITY;
	CREATE POLICY half ON secured USING (id > 5)});
my $waves = Tandem::Waves->new($publisher, $node);
$node->query("SET SESSION AUTHORIZATION alice; CREATE SUBSCRIPTION sub CONNECTION '" . $waves->conninfo . "' PUBLICATION pub WITH (enabled = false)");
$node->query('ALTER ROLE alice NOSUPERUSER');
like($node->query_error(q{SET SESSION AUTHORIZATION alice; SELECT tandem.adopt('sub')}), qr/permission denied for function adopt/, 'the owner needs EXECUTE');
$node->query('GRANT USAGE ON SCHEMA tandem TO alice; GRANT EXECUTE ON FUNCTION tandem.adopt, tandem.release, tandem.resync TO alice');
is($node->query_error(q{SET SESSION AUTHORIZATION alice; SELECT tandem.adopt('sub')}), '', 'with it the owner adopts');

# ---- Copies -----------------------------------------------------------------------

$waves->wait_state('granted', 'ready');
$waves->wait_state($_, qr/^failed: permission denied for table $_$/) for qw(denied theirs);
$waves->wait_state('secured', qr/^failed: user "alice" cannot replicate into relation with row-level security enabled: "secured"$/);
like($node->query(q{SELECT hint FROM tandem.tables WHERE name = 'secured'}), qr/owner whom row-level security/, 'a hint for row-level security');
my $hint = $node->query(q{SELECT hint FROM tandem.tables WHERE name = 'denied'});
like($hint, qr/: GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON public\.denied TO alice;$/, 'the GRANT that is missing');
is($node->query('SELECT count(*) FROM denied'), '0', 'nothing was written');

# a table of ours isn't there for the owner
like($node->query_error('SET SESSION AUTHORIZATION alice; SELECT * FROM tandem.copies'), qr/permission denied/, 'our tables stay ours');

$hint =~ s/^.*: //;
$node->query($hint);
$node->query('ALTER ROLE alice BYPASSRLS');
$node->query(q{SET SESSION AUTHORIZATION alice; SELECT tandem.resync('sub', relid) FROM unnest('{denied,secured}'::regclass[]) relid});
$waves->wait_state($_, 'ready') for qw(denied secured);
is_same_table($publisher, $node, $_) for qw(granted denied secured);

# ---- Apply ------------------------------------------------------------------------

my @ready = qw(granted denied secured);
$publisher->query("INSERT INTO $_ VALUES (100, 'new'); UPDATE $_ SET v = 'x' WHERE id = 1; DELETE FROM $_ WHERE id = 2") for @ready;
$publisher->query('TRUNCATE granted; INSERT INTO granted VALUES (1)');
$node->wait_subscription('sub', $publisher);
is_same_table($publisher, $node, $_) for @ready;

# each right is needed for what it allows
sub stops_without
{
	my ($right, $change, $error) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = $node->query('SELECT last_error_at FROM tandem.subscriptions');
	$node->query("REVOKE $right ON denied FROM alice");
	$publisher->query($change);
	poll_for(sub { my ($at, $text) = split /\|/, $node->query('SELECT last_error_at, last_error FROM tandem.subscriptions'), 2; $at ne $before && $text =~ $error }, "an error without $right");
	pass("apply stops without $right, and says so");
	isnt($node->query('SELECT next_retry FROM tandem.subscriptions'), '', '... and when it tries again');
	$node->query("GRANT $right ON denied TO alice");
	# now, and not when the pause is over
	$node->query(q{SELECT tandem.adopt('sub', 'enabled = off')});
	$node->query(q{SELECT tandem.adopt('sub', 'enabled = on')});
	$node->wait_subscription('sub', $publisher);
	is_same_table($publisher, $node, 'denied', "... with $right it goes on");
	return;
}
stops_without('INSERT', q{INSERT INTO denied VALUES (200)}, qr/permission denied for table denied/);
stops_without('UPDATE', q{UPDATE denied SET v = 'y' WHERE id = 3}, qr/permission denied for table denied/);
stops_without('DELETE', q{DELETE FROM denied WHERE id = 4}, qr/permission denied for table denied/);
stops_without('TRUNCATE', q{TRUNCATE denied}, qr/permission denied for table denied/);

$node->query('ALTER ROLE alice NOBYPASSRLS');
$publisher->query('INSERT INTO secured VALUES (300)');
poll_for(sub { $node->query('SELECT last_error FROM tandem.subscriptions') =~ qr/user "alice" cannot replicate into relation with row-level security enabled: "secured"/ },
	'row-level security to stop apply');
pass('row-level security that binds the owner stops apply');
$node->query('ALTER ROLE alice BYPASSRLS');
is($node->query_error(q{SET SESSION AUTHORIZATION alice; SELECT tandem.release('sub', true)}), '', 'the owner releases');

done_testing();
