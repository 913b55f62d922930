use strict; use warnings; use FindBin; use lib "$FindBin::Bin/lib";
use Tandem::Test; use Tandem::Waves; use Test::More; use Time::HiRes qw(time);
my $conf = "fsync = on\nlog_statement = none\nmax_wal_size = 8GB\nmin_wal_size = 3GB\nshared_buffers = 256MB\nautovacuum = off\ncheckpoint_timeout = 1h\nlog_min_messages = warning\n";
my $p = Tandem::Node->new_primary('publisher', library => 0, conf => $conf);
my $s = Tandem::Node->new_subscriber('subscriber', library => 1, conf => $conf . "tandem.sync_workers = 2\n");
my $w = Tandem::Waves->new($p, $s);
my $n = $ENV{N} // 2500000;
$_->query('CREATE TABLE plain (id bigint PRIMARY KEY, k int, v text); CREATE INDEX ON plain (k); CREATE TABLE filtered (LIKE plain INCLUDING ALL); CREATE TABLE toasted (id bigint PRIMARY KEY, v text)') for $p, $s;
$p->query("INSERT INTO plain SELECT g, hashint4(g::int), md5(g::text) || md5((g+1)::text) FROM generate_series(1, $n) g");
$p->query("INSERT INTO filtered SELECT * FROM plain");
$p->query("INSERT INTO toasted SELECT g, (SELECT string_agg(md5((g * 1000 + i / 4)::text), '') FROM generate_series(1, 300) i) FROM generate_series(1, $n / 100) g");
$p->query('VACUUM ANALYZE');
$p->query(q{CREATE PUBLICATION pub FOR TABLE plain, toasted, filtered WHERE (md5(md5(md5(md5(v)))) > '0')});
$p->query('ALTER TABLE filtered REPLICA IDENTITY FULL');
$w->subscribe; $w->wait_ready(timeout => 600);
sub one { my ($t, $size) = @_;
  $s->append_conf('postgresql.conf', "tandem.debug_range_size = $size\n"); $s->query('SELECT pg_reload_conf()');
  $_->query('CHECKPOINT') for $p, $s;
  my $start = time; $w->resync($t); $w->wait_state($t, 'ready', 600);
  return $s->query("SELECT extract(epoch FROM finished - started) FROM tandem.tables WHERE name = '$t'") || time - $start; }
for my $t (qw(plain toasted filtered)) { my (@r);
  for my $i (1 .. 4) { my %x; for my $m ($i % 2 ? ('2TB', '64MB') : ('64MB', '2TB')) { $x{$m} = one($t, $m) } printf STDERR "%s: one %.2f several %.2f ratio %.2f\n", $t, $x{'2TB'}, $x{'64MB'}, $x{'2TB'} / $x{'64MB'}; } }
ok(1); done_testing();
