# Each type of conflict with each of its outcomes, by a deterministic
# interleaving: the subscription is paused, both sides write, and then it goes on.
# Without resolve.c the first unique violation stops it, and rows of another origin
# are overwritten whatever their time.

use strict;
use warnings;

use Tandem::Test;
use Test::More;

my $publisher = Tandem::Node->new_primary('publisher', conf => "track_commit_timestamp = on\n");
my $subscriber = Tandem::Node->new_primary('subscriber', conf => "track_commit_timestamp = on\n");

$_->query(q{
	CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, a text);
	CREATE TABLE p (id int, k int, a text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
	CREATE TABLE p1 (a text, id int NOT NULL, k int NOT NULL);
	ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1);
	CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)}) for $publisher, $subscriber;
$publisher->query(q{CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)});
# what only this side has stays when a row becomes the remote one
$subscriber->query('ALTER TABLE t ADD here text');
$subscriber->subscribe_adopted('sub', $publisher, 'pub');
$subscriber->query("SELECT tandem.adopt('sub', 'node_id = there')");

sub caught_up
{
	$subscriber->wait_subscription('sub', $publisher);
	return;
}

# The row as "id,u,a,here"; nothing if there is none.
sub row
{
	my ($where) = @_;
	return $subscriber->query("SELECT coalesce(string_agg(concat_ws(',', id, u, a, here), ' ' ORDER BY id), '') FROM t WHERE $where");
}

# What the log says since a mark.
sub said
{
	my ($mark) = @_;
	return join(' ', $subscriber->log_since($mark) =~ /conflict detected on relation "[^"]+": conflict=(\w+)/g);
}

# Both sides have "before"; then, while it is paused, here and there are done; "order" says
# who is later.  Then it goes on with the options.
sub meet
{
	my (%case) = @_;

	$subscriber->query("SELECT tandem.adopt('sub', 'enabled = on, insert_exists = error, update_origin_differs = apply, update_exists = error, update_missing = skip, update_deleted = skip, delete_origin_differs = apply, delete_missing = skip, multiple_unique_conflicts = error')");
	$publisher->query('TRUNCATE t');
	$publisher->query($case{before}) if $case{before};
	caught_up();
	$subscriber->query("SELECT tandem.adopt('sub', 'enabled = off')");
	poll_for(sub { $subscriber->query(q{SELECT state = 'paused' AND pid IS NULL FROM tandem.subscriptions}) eq 't' }, 'paused');
	my $mark = $subscriber->log_mark;
	$publisher->query($case{there}) if ($case{order} // 'there') eq 'there first';
	$subscriber->query($case{here}) if $case{here};
	$publisher->query($case{there}) unless ($case{order} // '') eq 'there first';
	$subscriber->query("SELECT tandem.adopt('sub', 'enabled = on, $case{options}')");
	return $mark;
}

sub meets
{
	my ($title, %case) = @_;
	my $mark = meet(%case);

	caught_up();
	is(row('true'), $case{rows}, "$title: the rows");
	is(said($mark), $case{says}, '... and what is said');
	return;
}

sub stops
{
	my ($title, %case) = @_;
	my $last = $subscriber->query('SELECT coalesce(max(id), 0) FROM tandem.conflicts');
	my $mark = meet(%case);

	poll_for(sub { $subscriber->query(q{SELECT state = 'retrying' FROM tandem.subscriptions}) eq 't' }, 'stopped');
	like($subscriber->query('SELECT last_error FROM tandem.subscriptions'), $case{error}, "$title: stopped");
	is(row('true'), $case{rows}, '... and the rows are as they were');
	is($subscriber->query(q{SELECT string_agg(type || ',' || resolution, ' ' ORDER BY id) FROM tandem.conflicts WHERE id > } . $last), "$case{says},error", '... and it is recorded');
	# let it go on
	$subscriber->query('TRUNCATE t');
	my ($lsn) = $subscriber->log_since($mark) =~ /finished at ([0-9A-F\/]+)/;
	$subscriber->query("ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
	caught_up();
	return;
}

# ---- insert_exists ----
my %insert = (here => q{INSERT INTO t VALUES (1, 10, 'here', 'mine')}, there => q{INSERT INTO t VALUES (1, 20, 'there')});
stops('insert_exists, error', %insert, options => 'insert_exists = error', rows => '1,10,here,mine',
	error => qr/duplicate key value violates unique constraint "t_pkey"/, says => 'insert_exists');
meets('insert_exists, skip', %insert, options => 'insert_exists = skip', rows => '1,10,here,mine', says => 'insert_exists');
meets('insert_exists, apply', %insert, options => 'insert_exists = apply', rows => '1,20,there,mine', says => 'insert_exists');
meets('insert_exists, remote later', %insert, options => 'insert_exists = last_update_wins', rows => '1,20,there,mine', says => 'insert_exists');
meets('insert_exists, local later', %insert, order => 'there first', options => 'insert_exists = last_update_wins', rows => '1,10,here,mine', says => 'insert_exists');
meets('insert_exists by another index', here => q{INSERT INTO t VALUES (2, 20, 'here', 'mine')}, there => $insert{there},
	options => 'insert_exists = apply', rows => '1,20,there,mine', says => 'insert_exists');

# ---- multiple_unique_conflicts ----
my %multiple = (here => q{INSERT INTO t VALUES (1, 10, 'here', 'mine'), (2, 20, 'here', 'mine'), (3, 30, 'other', 'mine')},
	there => q{INSERT INTO t VALUES (1, 20, 'there')});
my $both = '1,10,here,mine 2,20,here,mine 3,30,other,mine';
stops('multiple_unique_conflicts, error', %multiple, options => 'multiple_unique_conflicts = error, insert_exists = skip', rows => $both,
	error => qr/conflict detected on relation "public.t": conflict=multiple_unique_conflicts/, says => 'multiple_unique_conflicts');
stops('multiple_unique_conflicts, found out afterwards', %multiple, options => 'multiple_unique_conflicts = error', rows => $both,
	error => qr/duplicate key value/, says => 'multiple_unique_conflicts');
meets('multiple_unique_conflicts, skip', %multiple, options => 'multiple_unique_conflicts = skip', rows => $both, says => 'multiple_unique_conflicts');
meets('multiple_unique_conflicts, apply', %multiple, options => 'multiple_unique_conflicts = apply', rows => '1,20,there 3,30,other,mine', says => 'multiple_unique_conflicts');
meets('multiple_unique_conflicts, remote later than both', %multiple, options => 'multiple_unique_conflicts = last_update_wins', rows => '1,20,there 3,30,other,mine', says => 'multiple_unique_conflicts');
meets('multiple_unique_conflicts, one local row later', here => "$multiple{here}", there => $multiple{there}, order => 'there first',
	options => 'multiple_unique_conflicts = last_update_wins', rows => $both, says => 'multiple_unique_conflicts');

# ---- update_origin_differs ----
my %update = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, here => q{UPDATE t SET a = 'here', here = 'mine'}, there => q{UPDATE t SET a = 'there'});
stops('update_origin_differs, error', %update, options => 'update_origin_differs = error', rows => '1,10,here,mine',
	error => qr/conflict=update_origin_differs/, says => 'update_origin_differs');
meets('update_origin_differs, apply', %update, options => 'update_origin_differs = apply', rows => '1,10,there,mine', says => 'update_origin_differs');
meets('update_origin_differs, skip', %update, options => 'update_origin_differs = skip', rows => '1,10,here,mine', says => 'update_origin_differs');
meets('update_origin_differs, remote later', %update, options => 'update_origin_differs = last_update_wins', rows => '1,10,there,mine', says => 'update_origin_differs');
meets('update_origin_differs, local later', %update, order => 'there first', options => 'update_origin_differs = last_update_wins', rows => '1,10,here,mine', says => 'update_origin_differs');
meets('update of a row that came from there', %update, here => undef, options => 'update_origin_differs = error', rows => '1,10,there', says => '');

# ---- update_exists ----
my %exists = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, here => q{INSERT INTO t VALUES (2, 20, 'here', 'mine')}, there => q{UPDATE t SET u = 20, a = 'there'});
stops('update_exists, error', %exists, options => 'update_exists = error', rows => '1,10,old 2,20,here,mine',
	error => qr/duplicate key value violates unique constraint "t_u_key"/, says => 'update_exists');
meets('update_exists, skip', %exists, options => 'update_exists = skip', rows => '1,10,old 2,20,here,mine', says => 'update_exists');
meets('update_exists, apply', %exists, options => 'update_exists = apply', rows => '1,20,there', says => 'update_exists');
meets('update_exists, remote later', %exists, options => 'update_exists = last_update_wins', rows => '1,20,there', says => 'update_exists');
meets('update_exists, local later', %exists, order => 'there first', options => 'update_exists = last_update_wins', rows => '1,10,old 2,20,here,mine', says => 'update_exists');

# ---- update_missing ----
my %missing = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, here => q{DELETE FROM t}, there => q{UPDATE t SET a = 'there'});
stops('update_missing, error', %missing, options => 'update_missing = error', rows => '', error => qr/conflict=update_missing/, says => 'update_missing');
meets('update_missing, skip', %missing, options => 'update_missing = skip', rows => '', says => 'update_missing');
meets('update_missing, insert_or_skip', %missing, options => 'update_missing = insert_or_skip', rows => '1,10,there', says => 'update_missing');
meets('update_missing, a value is not sent', before => q{ALTER TABLE t ALTER a SET STORAGE EXTERNAL; INSERT INTO t VALUES (1, 10, repeat('x', 9000))},
	here => q{DELETE FROM t}, there => q{UPDATE t SET u = 11}, options => 'update_missing = insert_or_skip', rows => '', says => 'update_missing');
$publisher->query('ALTER TABLE t REPLICA IDENTITY FULL');
meets('update_missing, the old row has it', before => q{INSERT INTO t VALUES (1, 10, repeat('x', 9000))},
	here => q{DELETE FROM t}, there => q{UPDATE t SET u = 11}, options => 'update_missing = insert_or_skip', rows => '1,11,' . 'x' x 9000, says => 'update_missing');
$publisher->query('ALTER TABLE t REPLICA IDENTITY DEFAULT');

# ---- deletes ----
my %delete = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, here => q{UPDATE t SET a = 'here'}, there => q{DELETE FROM t});
stops('delete_origin_differs, error', %delete, options => 'delete_origin_differs = error', rows => '1,10,here', error => qr/conflict=delete_origin_differs/, says => 'delete_origin_differs');
meets('delete_origin_differs, apply', %delete, options => 'delete_origin_differs = apply', rows => '', says => 'delete_origin_differs');
meets('delete_origin_differs, skip', %delete, options => 'delete_origin_differs = skip', rows => '1,10,here', says => 'delete_origin_differs');
meets('delete_origin_differs, remote later', %delete, options => 'delete_origin_differs = last_update_wins', rows => '', says => 'delete_origin_differs');
meets('delete_origin_differs, local later', %delete, order => 'there first', options => 'delete_origin_differs = last_update_wins', rows => '1,10,here', says => 'delete_origin_differs');
%delete = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, here => q{DELETE FROM t}, there => q{DELETE FROM t});
stops('delete_missing, error', %delete, options => 'delete_missing = error', rows => '', error => qr/conflict=delete_missing/, says => 'delete_missing');
meets('delete_missing, skip', %delete, options => 'delete_missing = skip', rows => '', says => 'delete_missing');

# ---- a key that changes: with last_update_wins a delete and an insert ----
my $lww = 'update_exists = last_update_wins, insert_exists = last_update_wins, update_origin_differs = last_update_wins, delete_origin_differs = last_update_wins';
my %key = (before => q{INSERT INTO t VALUES (1, 10, 'old')}, there => q{UPDATE t SET id = 2, a = 'there'});
meets('new key, nothing here', %key, options => $lww, rows => '2,10,there', says => '');
meets('new key, old row changed here later', %key, here => q{UPDATE t SET a = 'here', u = 11}, order => 'there first', options => $lww,
	rows => '1,11,here 2,10,there', says => 'update_origin_differs');
meets('new key, taken here earlier', %key, here => q{INSERT INTO t VALUES (2, 20, 'here')}, options => $lww, rows => '2,10,there', says => 'update_exists');
meets('new key, taken here later', %key, here => q{INSERT INTO t VALUES (2, 20, 'here')}, order => 'there first', options => $lww, rows => '2,20,here', says => 'update_exists');
meets('new key, old row is gone', %key, here => q{DELETE FROM t}, options => $lww, rows => '2,10,there', says => 'update_missing');

# a row that moves to another partition, which only this side has: that is an update, too
$publisher->query('CREATE TABLE q (id int, k int, a text, PRIMARY KEY (id, k))');
$subscriber->query(q{CREATE TABLE q (id int, k int, a text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
	CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1);
	CREATE TABLE q2 (a text, k int NOT NULL, id int NOT NULL);
	ALTER TABLE q ATTACH PARTITION q2 FOR VALUES IN (2);
	ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = false)});
$subscriber->query(q{SELECT tandem.adopt('sub', 'update_exists = skip, insert_exists = error, update_origin_differs = apply')});
$publisher->query(q{INSERT INTO q VALUES (1, 1, 'a'), (2, 1, 'b')});
caught_up();
$subscriber->query(q{INSERT INTO q VALUES (1, 2, 'here')});
$publisher->query(q{UPDATE q SET k = 2 WHERE id = 1; UPDATE q SET k = 2, a = 'moved' WHERE id = 2});
caught_up();
is($subscriber->query('SELECT id, k, a FROM q ORDER BY id'), "1|2|here\n2|2|moved", 'a moved row meets another: update_exists');

done_testing();
