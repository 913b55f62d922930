# The output plugin pg_tandem_output: pgoutput that doesn't send back what came
# from another node.  Without the filter, two nodes of 15 that subscribe to each
# other send every change round for ever: the first part shows that with pgoutput.

use strict;
use warnings;

use Tandem::Command;
use Tandem::Mesh;
use Tandem::Test;
use Test::More;

my $conf = Tandem::Mesh::plugin_conf() . q{
max_prepared_transactions = 10
logical_decoding_work_mem = 64kB
};
my $a = Tandem::Node->new_primary('a', conf => $conf);
my $b = Tandem::Node->new_primary('b', conf => $conf);

plan skip_all => 'this server has origin = none itself' if $a->pg_version >= 16;

# no key: a row that comes back is there twice
$_->query(q{
	CREATE TABLE t (node text, n int);
	CREATE PUBLICATION p FOR TABLE t}) for $a, $b;

sub subscribe
{
	my ($here, $there, $plugin, $options) = @_;
	my $name = 'from_' . $there->name;
	my $conninfo = $there->connstr('postgres') =~ s/'/''/gr;
	$there->query("SELECT pg_create_logical_replication_slot('$name', '$plugin', false, "
		. (($options // '') =~ /two_phase/ ? 'true' : 'false') . ')');
	$here->query("CREATE SUBSCRIPTION $name CONNECTION '$conninfo' PUBLICATION p WITH (enabled = false,"
		. " create_slot = false, copy_data = false, slot_name = '$name'" . ($options ? ", $options" : '') . ')');
	$here->query("SELECT tandem.adopt('$name')");
	return;
}

sub unsubscribe
{
	$_->[0]->query("DROP SUBSCRIPTION from_" . $_->[1]->name) for [ $a, $b ], [ $b, $a ];
	return;
}

# Each way twice: what a sends, b may send back.
sub settle
{
	for (1 .. 2)
	{
		$b->wait_subscription('from_a', $a);
		$a->wait_subscription('from_b', $b);
	}
	return;
}

sub rows_of
{
	my ($node, $where) = @_;
	return $node->query("SELECT count(*) FROM t" . ($where ? " WHERE $where" : ''));
}

note 'pgoutput: a row goes round';
subscribe($b, $a, 'pgoutput');
subscribe($a, $b, 'pgoutput');
$a->query(q{INSERT INTO t VALUES ('a', 1)});
poll_for(sub { rows_of($a) > 3 }, 'the row to come back, and again');

sub finding
{
	my ($code) = @_;
	my (undef, $object) = tandem_json('doctor', at($b));
	my ($found) = grep { $_->{code} eq $code } @{ $object->{findings} };
	return $found;
}

my $loop = finding('subscription_loop');
is($loop->{severity}, 'problem', 'doctor finds the loop');
like($loop->{what}, qr/"from_a" and its publisher subscribe to each other, and slot "from_a" sends back/, '... and names the subscription and its slot');
unsubscribe();
$_->query('TRUNCATE t') for $a, $b;

note 'pg_tandem_output: it does not';
subscribe($b, $a, 'pg_tandem_output', 'two_phase = on, streaming = on');
subscribe($a, $b, 'pg_tandem_output', 'two_phase = on, streaming = on');
poll_for(sub { $_->query('SELECT subtwophasestate FROM pg_subscription') eq 'e' }, 'two_phase') for $a, $b;
$a->query(q{INSERT INTO t VALUES ('a', 1)});
$b->query(q{INSERT INTO t VALUES ('b', 1)});
settle();
is(rows_of($_), 2, 'both rows once on ' . $_->name) for $a, $b;

$a->query(q{INSERT INTO t SELECT 'a', n FROM generate_series(2, 5000) n});
$b->query(q{INSERT INTO t SELECT 'b', n FROM generate_series(2, 5000) n});
settle();
is(rows_of($_), 10000, 'transactions that are streamed, too: ' . $_->name) for $a, $b;
cmp_ok($a->query(q{SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = 'from_a'}), '>', 0,
	'... and streamed they were');

for my $end ('COMMIT', 'ROLLBACK')
{
	for my $node ($a, $b)
	{
		my $name = $node->name;
		$node->query("BEGIN; INSERT INTO t VALUES ('$name', 6000); PREPARE TRANSACTION 'from $name'");
	}
	settle();
	is($_->query('SELECT count(*) FROM pg_prepared_xacts'), 2, "one prepared here and one there, before $end: " . $_->name)
	  for $a, $b;
	$_->query("$end PREPARED 'from " . $_->name . q{'}) for $a, $b;
	settle();
	is($_->query('SELECT count(*) FROM pg_prepared_xacts'), 0, "none after $end: " . $_->name) for $a, $b;
}
is(rows_of($_), 10002, 'prepared transactions once: ' . $_->name) for $a, $b;

$b->query('TRUNCATE t');
settle();
is(rows_of($_), 0, 'TRUNCATE: ' . $_->name) for $a, $b;
$_->query(q{INSERT INTO t VALUES ('} . $_->name . q{', 1)}) for $a, $b;
settle();
is(rows_of($_), 2, '... is not sent back: ' . $_->name) for $a, $b;
is($_->query('SELECT coalesce(sum(error_count), 0) FROM tandem.subscriptions'), 0, 'no error on ' . $_->name) for $a, $b;
is(finding($_), undef, "doctor finds nothing: $_") for qw(subscription_loop plugin_refused);

note 'options';
$a->query(q{SELECT pg_create_logical_replication_slot('peek', 'pg_tandem_output')});
$b->query(q{INSERT INTO t VALUES ('b', 2)});
$a->query(q{INSERT INTO t VALUES ('a', 2)});
settle();
my $peek = q{SELECT count(*) FILTER (WHERE get_byte(data, 0) = ascii('I')) FROM pg_logical_slot_peek_binary_changes(
	'peek', NULL, NULL, 'proto_version', '1', 'publication_names', 'p'};
is($a->query("$peek)"), 1, 'without the option only rows of this node');
is($a->query("$peek, 'origin', 'none')"), 1, 'origin = none: the same');
is($a->query("$peek, 'origin', 'any')"), 2, 'origin = any: all');
like($a->query_error("$peek, 'origin', 'some')"), qr/invalid value for option "origin": "some".*HINT: +It can be none or any/s, 'another value');
like($a->query_error("$peek, 'origin', 'any', 'origin', 'any')"), qr/option "origin" is given more than once/, 'twice');
like($a->query_error("$peek, 'colour', 'red')"), qr/unrecognized pgoutput option: colour/, 'what pgoutput does not know');

note 'messages';
$a->query(q{SELECT pg_logical_emit_message(true, 'yours', 'x'), pg_logical_emit_message(false, 'tandem.probe', 'x'),
	pg_logical_emit_message(true, 'tandem.deleted', 'x'), pg_logical_emit_message(false, 'theirs', 'x')});
is($a->query(q{SELECT string_agg(m[1], ' ' ORDER BY m[1]) FROM pg_logical_slot_peek_binary_changes(
	'peek', NULL, NULL, 'proto_version', '1', 'publication_names', 'p', 'messages', 'true'),
	regexp_matches(encode(data, 'escape'), '^M.*(yours|theirs|tandem)') m}),
	'theirs yours', 'ours are sent to nobody, others are');
is($a->query(q{SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
	'peek', NULL, NULL, 'proto_version', '1', 'publication_names', 'p') WHERE get_byte(data, 0) = ascii('M')}),
	0, 'and none without "messages"');

if (Tandem::Mesh::lists_plugins())
{
	note 'the list of allowed plugins';
	$a->set(output_plugin_libraries => 'pgoutput');
	my $refused = finding('plugin_refused');
	is($refused->{severity}, 'problem', 'doctor says that the plugin is not allowed');
	$a->query($refused->{fix}[0]{line});
	$a->query('SELECT pg_reload_conf()');
	poll_for(sub { !finding('plugin_refused') }, 'the fix to be enough');
	$a->set(output_plugin_libraries => 'pgoutput');
	like($b->query_error(q{SELECT tandem.release('from_a'); SELECT tandem.adopt('from_a')}),
		qr/output_plugin_libraries of its publisher does not allow the output plugin "pg_tandem_output" of slot "from_a".*HINT: +Add pg_tandem_output to output_plugin_libraries there/s,
		'adopting says that the publisher does not allow it');
}

done_testing();
