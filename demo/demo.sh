#!/bin/bash
# The two-minute story: a primary dies in the middle of pgbench traffic, its
# standby takes over, and a built-in subscription goes on there without losing
# or doubling a row.  Called by "make demo", which puts the servers' programs in
# PATH and names a folder in TESTDIR; exit status 0 only if all of it is true.
set -euo pipefail

folder=${TESTDIR:?called by make demo}/demo
mkdir -p "$folder/sockets"
export PGHOST=$folder/sockets PGUSER=postgres PGDATABASE=postgres
primary=54321 standby=54322 subscriber=54323	# sockets only, no TCP port is used
tables="pgbench_accounts pgbench_branches pgbench_tellers pgbench_history"
load_pid=

# ---- Telling ------------------------------------------------------------------

if [ -t 1 ]; then
	bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
else
	bold='' dim='' red='' green='' plain=''
fi

chapter()
{
	printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

say()
{
	printf '  %s\n' "$*"
}

show()					# show PORT QUERY: the query and its result
{
	printf '  %s%s$ %s%s\n' "$dim" "$(name_of "$1")" "$2" "$plain"
	psql -X -p "$1" -P footer=off -P linestyle=unicode -P null=- -c "$2" | sed '/^$/d; s/^/    /'
}

name_of()
{
	case $1 in
		"$primary") echo primary ;;
		"$standby") echo standby ;;
		*) echo subscriber ;;
	esac
}

fail()
{
	printf '\n%sFAILED: %s%s\n' "$red" "$*" "$plain" >&2
	exit 1
}

# ---- Doing --------------------------------------------------------------------

sql()					# sql PORT QUERY
{
	psql -XAtq -v ON_ERROR_STOP=1 -p "$1" -c "$2"
}

wait_until()			# wait_until PORT QUERY WHAT: until it says t, a minute at most
{
	local end=$((SECONDS + 60))
	until [ "$(sql "$1" "$2" 2>/dev/null)" = t ]; do
		[ $SECONDS -lt $end ] || fail "waited a minute for $3"
		sleep 0.1
	done
}

start()					# start PORT
{
	pg_ctl -s -w -D "$folder/$(name_of "$1")" -l "$folder/$(name_of "$1").log" start
}

configure()				# configure PORT: settings from standard input
{
	cat >> "$folder/$(name_of "$1")/postgresql.conf" <<-END
		port = $1
		listen_addresses = ''
		unix_socket_directories = '$PGHOST'
		$(cat)
	END
}

# Writes to whatever server is the primary, again and again.
load()
{
	trap 'kill $(jobs -p) 2>/dev/null; exit 0' TERM
	while true; do
		pgbench -n -p "$(cat "$folder/write_to")" -c 4 -R 400 -T 600 >> "$folder/pgbench.log" 2>&1 &
		wait $! || true
		sleep 0.2
	done
}

# Signal 9 for a postmaster and every process it started, at the same moment.
kill_server()			# kill_server PORT
{
	local postmaster
	postmaster=$(head -n 1 "$folder/$(name_of "$1")/postmaster.pid")
	kill -STOP "$postmaster"
	# shellcheck disable=SC2046
	kill -KILL "$postmaster" $(ps -o pid= --ppid "$postmaster")
}

clean_up()
{
	local status=$?
	trap - EXIT INT TERM
	[ -z "$load_pid" ] || kill "$load_pid" 2>/dev/null || true
	for server in standby subscriber primary; do
		pg_ctl -s -m immediate -D "$folder/$server" stop >/dev/null 2>&1 || true
	done
	wait
	exit $status
}
trap clean_up EXIT
trap 'exit 130' INT TERM

checksum()				# checksum PORT TABLE: independent of the order of rows
{
	sql "$1" "SELECT count(*) || ' rows ' || sum(hashtextextended(t::text, 0)::numeric) FROM $2 t"
}

# ---- The story ----------------------------------------------------------------

chapter "1. A primary, a physical standby, and a subscriber that knows nothing of us"

initdb -D "$folder/primary" -U postgres -A trust >/dev/null
configure $primary <<-END
	shared_preload_libraries = 'pg_tandem'
	wal_level = logical
	tandem.standby_slots = 'standby'		# logical consumers never overtake this one
	wal_sender_timeout = 5s
END
start $primary
sql $primary "CREATE EXTENSION pg_tandem"

pg_basebackup -p $primary -D "$folder/standby" -c fast -R -C -S standby
configure $standby <<-END
	tandem.standby_slots = ''				# when it is primary it has no standby yet
END
start $standby

initdb -D "$folder/subscriber" -U postgres -A trust >/dev/null
configure $subscriber <<-END
	wal_retrieve_retry_interval = 500ms		# try to reconnect twice a second
END
start $subscriber

say "All three are stock PostgreSQL $(sql $primary 'SHOW server_version')."
say "Primary and standby preload pg_tandem; the subscriber is as Debian ships it."

pgbench -i -q -s 2 -p $primary >/dev/null 2>&1
sql $primary "ALTER TABLE pgbench_history ADD COLUMN id bigserial"	# names every row
sql $primary "CREATE PUBLICATION everything FOR ALL TABLES"
pg_dump -p $primary --schema-only -t 'pgbench_*' | sed '/PUBLICATION/d' | psql -Xq -p $subscriber >/dev/null
sql $subscriber "CREATE SUBSCRIPTION sub CONNECTION 'host=$PGHOST port=$primary user=postgres dbname=postgres' PUBLICATION everything" 2>/dev/null
wait_until $subscriber "SELECT count(*) = 4 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel" "the initial copy"
show $subscriber "SELECT subname, subenabled, subslotname FROM pg_subscription"

chapter "2. pgbench writes, and goes on writing until the end"

echo $primary > "$folder/write_to"
load &
load_pid=$!
wait_until $primary "SELECT count(*) > 2000 FROM pgbench_history" "pgbench"
# the subscriber first: it is never ahead
arrived=$(sql $subscriber 'SELECT count(*) FROM pgbench_history')
say "$(sql $primary 'SELECT count(*) FROM pgbench_history') transactions so far, $arrived of them on the subscriber."

chapter "3. The standby keeps the subscription's slot, and says when it is safe"

wait_until $standby "SELECT ready FROM tandem.failover_ready()" "the standby to be ready"
show $standby "SELECT slot_name, state, restart_lsn, confirmed_lsn, primary_confirmed_lsn FROM tandem.slots"
show $standby "SELECT * FROM tandem.failover_ready()"

wait_until $primary "SELECT count(*) > 5000 FROM pgbench_history" "pgbench"

chapter "4. The primary dies: signal 9 for all of its processes, in the middle of the load"

before=$(sql $primary "SELECT count(*) FROM pgbench_history")
kill_server $primary
died=$(date +%s.%N)
say "$before transactions were in, and more were on their way."

chapter "5. Before promoting, ask the standby"

show $standby "SELECT slot_name, state, reason FROM tandem.slots"
show $standby "SELECT * FROM tandem.failover_ready()"
[ "$(sql $standby 'SELECT ready FROM tandem.failover_ready()')" = t ] ||
	fail "the standby was not ready"

chapter "6. Promote it, and point the subscription at it"

pg_ctl -s -w -D "$folder/standby" promote
echo $standby > "$folder/write_to"
survived=$(sql $standby "SELECT count(*) FROM pgbench_history")
say "standby\$ pg_ctl promote"
sql $subscriber "ALTER SUBSCRIPTION sub CONNECTION 'host=$PGHOST port=$standby user=postgres dbname=postgres'"
say "subscriber\$ ALTER SUBSCRIPTION sub CONNECTION '... port=$standby ...'"
wait_until $standby "SELECT active FROM pg_replication_slots WHERE slot_name = 'sub'" "the subscription to connect"
wait_until $subscriber "SELECT count(*) > $survived + 400 FROM pgbench_history" "new rows on the subscriber"
say "$(awk -v a="$died" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }') s after the death, rows written to the new primary arrive on the subscriber."
show $standby "SELECT slot_name, active, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots"

wait_until $standby "SELECT count(*) > $survived + 3000 FROM pgbench_history" "pgbench"

chapter "7. Stop writing, let the subscriber finish, and count"

kill $load_pid
wait $load_pid 2>/dev/null || true
load_pid=
wait_until $standby "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')" "pgbench to end"
lsn=$(sql $standby "SELECT pg_current_wal_lsn()")
wait_until $standby "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'" "the subscriber to catch up"

wrong=0
printf '    %-18s %-42s %s\n' table 'new primary' subscriber
for table in $tables; do
	there=$(checksum $standby "$table")
	here=$(checksum $subscriber "$table")
	verdict="${green}equal${plain}"
	[ "$there" = "$here" ] || { verdict="${red}DIFFERENT${plain}"; wrong=1; }
	printf '    %-18s %-42s %-42s %s\n' "$table" "$there" "$here" "$verdict"
done

# every row has a number, so what is missing or there twice can be named
lost=$(comm -23 \
	<(sql $standby "SELECT id FROM pgbench_history" | sort) \
	<(sql $subscriber "SELECT id FROM pgbench_history" | sort) | wc -l)
extra=$(comm -13 \
	<(sql $standby "SELECT id FROM pgbench_history" | sort) \
	<(sql $subscriber "SELECT DISTINCT id FROM pgbench_history" | sort) | wc -l)
doubled=$(sql $subscriber "SELECT count(*) - count(DISTINCT id) FROM pgbench_history")
echo
say "history rows lost: $lost, doubled: $doubled, known to the subscriber only: $extra"
[ "$lost" = 0 ] && [ "$doubled" = 0 ] && [ "$extra" = 0 ] && [ $wrong = 0 ] ||
	fail "new primary and subscriber differ"

printf '\n%sThe subscription survived its publisher.%s\n' "$green$bold" "$plain"
say "What the dead primary had committed in its last moment without sending it to the standby is"
say "gone on both sides alike: that is asynchronous physical replication, not ours to change."
