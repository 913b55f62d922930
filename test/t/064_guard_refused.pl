# Where the guard can't be sure that it is called it is off and says so, in the
# log and in the view; everything else works as without it.
#
# tandem.debug_guard_failure provokes each reason.  "uncalled" and
# "partial" leave functions in place and let the self test find out: without it the view would
# say "armed" here.

use strict;
use warnings;

use Tandem::Pages;
use Tandem::Test;
use Test::More;

my $primary = Tandem::Node->new_primary('primary', conf => q{
wal_log_hints = on
tandem.synchronous_transfer = all
tandem.failback_standbys = 'standby'
});
my $standby = $primary->new_standby('standby');

sub guard
{
	my ($columns) = @_;
	return $primary->query("SELECT $columns FROM tandem.failback");
}

poll_for(sub { guard('state') eq 'armed' }, 'the guard to be armed');
unlike($primary->log_since(0), qr/can't guard data pages/, 'this server and this library agree');

my %reasons = (
	minor => 'the library was built for a minor release with another mdtruncate',
	missing => 'the table of storage manager functions was not found',
	uncalled => 'the replaced storage manager functions are not called',
	partial => 'not all of the replaced storage manager functions are called');

for my $failure (sort keys %reasons)
{
	my $mark = $primary->log_mark;
	$primary->append_conf('postgresql.conf', "tandem.debug_guard_failure = $failure");
	$primary->restart;

	# the last part of the proof is the worker's
	poll_for(sub { guard('state') eq 'off' }, 'the guard to be off');
	like($primary->log_since($mark), qr/LOG:  pg_tandem can't guard data pages: \Q$reasons{$failure}\E\n.*HINT:/,
		"$failure: logged, with a hint");
	is(guard('state'), 'off', "$failure: the guard is off");
	is(guard('reason'), "data pages can't be guarded: $reasons{$failure}", "$failure: the view says why");
	isnt(guard(q{coalesce(hint, '')}), '', "$failure: and what to do");

	# the server works, the standby follows, nobody waits
	$primary->query('CREATE TABLE IF NOT EXISTS story (id int)');
	$primary->query('INSERT INTO story SELECT generate_series(1, 1000)');
	$primary->query('CHECKPOINT');
	$primary->query('TRUNCATE story');
	$primary->query('VACUUM story');
	is(guard('data_waits || \' \' || commit_waits'), '0 0', "$failure: nothing waited");
	$primary->wait_replayed($standby);

	# commits can wait nevertheless
	$primary->set('tandem.synchronous_transfer' => 'commit');
	poll_for(sub { guard('state') eq 'armed' }, 'the guard of commits to be armed');
	# one commit may be confirmed before it looks
	ok(poll_for(sub { $primary->query('INSERT INTO story VALUES (1)'); guard('commit_waits > 0') eq 't' },
		'a commit to wait'), "$failure: commits may wait");
	$primary->set('tandem.synchronous_transfer' => 'all');
	poll_for(sub { guard('state') eq 'off' }, 'the guard to be off again');
}

$primary->append_conf('postgresql.conf', 'tandem.debug_guard_failure = none');
$primary->restart;
poll_for(sub { guard('state') eq 'armed' }, 'the guard to be armed');
ok(1, 'armed again');

# a server that does not preload the library
$primary->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$primary->restart;
like($primary->query_error('TABLE tandem.failback'), qr/must be loaded via shared_preload_libraries.*HINT/s,
	'not preloaded: the view says so');

$primary->stop;
done_testing();
