#!/bin/bash
# The two-minute story: a primary dies in the middle of pgbench traffic, its
# standby takes over, and a built-in subscription goes on there without losing
# or doubling a row.  The dead primary comes back as a standby, and takes over
# again; the subscription goes on.  A second subscriber joins, its tables copied
# by pg_tandem.  At last two nodes write to the same rows, and agree.  Called by
# "make demo", which puts the servers' programs in PATH and names a folder in
# TESTDIR; exit status 0 only if all of it is true.
set -euo pipefail

folder=${TESTDIR:?called by make demo}/demo
mkdir -p "$folder/sockets"
export PGHOST=$folder/sockets PGUSER=postgres PGDATABASE=postgres
# sockets only, no TCP port is used
primary=54321 standby=54322 subscriber=54323 newcomer=54324 north=54325 south=54326
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
		"$newcomer") echo newcomer ;;
		"$north") echo north ;;
		"$south") echo south ;;
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
	# where nothing reaps the dead, a corpse would be taken for a running server
	! kill -0 "$postmaster" 2>/dev/null ||
		rm -f "$folder/$(name_of "$1")/postmaster.pid" "$PGHOST/.s.PGSQL.$1.lock"
}

# Runs "tandem rejoin" on a server that doesn't run, shows what it prints.
rejoin()				# rejoin PORT SOURCE_PORT [OPTION...]
{
	local port=$1 source=$2
	shift 2
	printf '  %s%s$ tandem rejoin -D DIR --source "port=%s" %s%s\n' "$dim" "$(name_of "$port")" "$source" "$*" "$plain"
	tandem rejoin -D "$folder/$(name_of "$port")" --source "host=$PGHOST port=$source user=postgres" "$@" |
		sed 's/^/    /'
}

subscribe_to()			# subscribe_to PORT
{
	sql $subscriber "ALTER SUBSCRIPTION sub CONNECTION 'host=$PGHOST port=$1 user=postgres dbname=postgres'"
	say "subscriber\$ ALTER SUBSCRIPTION sub CONNECTION '... port=$1 ...'"
}

# How many rows the writers get through in a moment, seen by the subscriber.
wait_more()				# wait_more PORT ROWS
{
	local rows
	rows=$(sql "$1" "SELECT count(*) FROM pgbench_history")
	wait_until "$subscriber" "SELECT count(*) > $rows + $2 FROM pgbench_history" "new rows on the subscriber"
}

# Runs "tandem" against a server, shows what it prints.
tandem_on()				# tandem_on PORT COMMAND [ARGUMENT...]
{
	local port=$1
	shift
	printf '  %s%s$ tandem %s%s\n' "$dim" "$(name_of "$port")" "$*" "$plain"
	tandem "$@" -p "$port" | sed 's/^/    /'
}

run()					# run PORT STATEMENT: shows it, too
{
	printf '  %s%s$ %s%s\n' "$dim" "$(name_of "$1")" "$2" "$plain"
	sql "$1" "$2" >/dev/null
}

clean_up()
{
	local status=$?
	trap - EXIT INT TERM
	[ -z "$load_pid" ] || kill "$load_pid" 2>/dev/null || true
	for server in standby subscriber newcomer primary north south; do
		pg_ctl -s -m immediate -D "$folder/$server" stop >/dev/null 2>&1 || true
	done
	wait
	exit $status
}
trap clean_up EXIT
trap 'exit 130' INT TERM

since()					# since SECONDS: how long ago
{
	awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'
}

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
	wal_log_hints = on
	tandem.standby_slots = 'standby'		# logical consumers never overtake this one
	tandem.failback_standbys = 'standby'	# pages aren't written before it has their WAL
	tandem.synchronous_transfer = data_flush
	wal_sender_timeout = 5s
END
start $primary
sql $primary "CREATE EXTENSION pg_tandem"

pg_basebackup -p $primary -D "$folder/standby" -c fast -R -C -S standby
configure $standby <<-END
	tandem.standby_slots = ''				# when it is primary it has no standby yet
	tandem.failback_standbys = ''			# likewise
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
say "standby\$ pg_ctl promote"
subscribe_to $standby
wait_until $standby "SELECT active FROM pg_replication_slots WHERE slot_name = 'sub'" "the subscription to connect"
wait_more $standby 400
say "$(since "$died") s after the death, rows written to the new primary arrive on the subscriber."
show $standby "SELECT slot_name, active, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_type = 'logical'"

chapter "7. The dead primary comes back as a standby, while pgbench writes"

back=$(date +%s.%N)
rejoin $primary $standby || fail "the old primary could not be rejoined"
say "$(since "$back") s, and no base backup."
# it streams through the slot that was kept for it: from now on it is the one to wait for
sql $standby "ALTER SYSTEM SET tandem.standby_slots = 'tandem_rejoin'"
sql $standby "ALTER SYSTEM SET tandem.failback_standbys = 'tandem_rejoin'"
sql $standby "SELECT pg_reload_conf()" >/dev/null
wait_until $standby "SELECT state = 'armed' FROM tandem.failback" "the guard"
wait_until $primary "SELECT ready FROM tandem.failover_ready()" "the old primary to be ready"
printf '  %s$ tandem status%s\n' "$dim" "$plain"
tandem status -p $standby --node="port=$primary" 2>&1 | sed 's/^/    /' || true
wait_more $standby 1000

chapter "8. Switch back: a planned change of roles"

pg_ctl -s -w -D "$folder/standby" -m fast stop
say "standby\$ pg_ctl stop -m fast"
checkpoint=$(pg_controldata -D "$folder/standby" | sed -n 's/^Latest checkpoint location: *//p')
[ "$(sql $primary "SELECT pg_last_wal_replay_lsn() > '$checkpoint'")" = t ] ||
	fail "the primary lacks WAL of the one that was stopped"
pg_ctl -s -w -D "$folder/primary" promote
echo $primary > "$folder/write_to"
say "primary\$ pg_ctl promote"
subscribe_to $primary
rejoin $standby $primary --slot=standby || fail "the standby could not be rejoined"
wait_until $standby "SELECT ready FROM tandem.failover_ready()" "the standby to be ready again"
wait_until $primary "SELECT state = 'armed' FROM tandem.failback" "the guard"
wait_more $primary 1000
say "All is as it was in the beginning, on timeline $(sql $primary 'SELECT timeline FROM tandem.rejoin_source()')."
printf '  %s$ tandem status%s\n' "$dim" "$plain"
tandem status -p $primary --node="port=$standby" 2>&1 | sed 's/^/    /' || true

chapter "9. A second subscriber joins while pgbench writes; pg_tandem copies its tables"

initdb -D "$folder/newcomer" -U postgres -A trust >/dev/null
configure $newcomer <<-END
	shared_preload_libraries = 'pg_tandem'
END
start $newcomer
sql $newcomer "CREATE EXTENSION pg_tandem"
pg_dump -p $primary --schema-only -t 'pgbench_*' | sed '/PUBLICATION/d' | psql -Xq -p $newcomer >/dev/null
sql $newcomer "CREATE SUBSCRIPTION newcomer CONNECTION 'host=$PGHOST port=$primary user=postgres dbname=postgres' PUBLICATION everything WITH (enabled = false)" 2>/dev/null
say "newcomer\$ CREATE SUBSCRIPTION newcomer ... WITH (enabled = false)"
printf '  %snewcomer$ tandem adopt newcomer%s\n' "$dim" "$plain"
tandem adopt newcomer -p $newcomer | sed 's/^/    /'
printf '  %snewcomer$ tandem sync --watch%s\n' "$dim" "$plain"
timeout 60 tandem sync newcomer --watch=0.5 -p $newcomer | sed 's/^/    /' ||
	fail "the tables were not copied within a minute"
show $newcomer "SELECT subscription, state, lag_bytes, transactions FROM tandem.subscriptions"

chapter "10. Stop writing, let all finish, and count"

kill $load_pid
wait $load_pid 2>/dev/null || true
load_pid=
wait_until $primary "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')" "pgbench to end"
lsn=$(sql $primary "SELECT pg_current_wal_lsn()")
wait_until $primary "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'" "the subscriber to catch up"
wait_until $primary "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'newcomer'" "the second subscriber to catch up"
wait_until $standby "SELECT pg_last_wal_replay_lsn() >= '$lsn'" "the standby to catch up"

wrong=0
printf '    %-18s %-40s %-10s %-10s %s\n' table primary standby subscriber newcomer
for table in $tables; do
	there=$(checksum $primary "$table")
	verdicts=()
	for other in $standby $subscriber $newcomer; do
		if [ "$(checksum "$other" "$table")" = "$there" ]; then
			verdicts+=("${green}equal     ${plain}")
		else
			verdicts+=("${red}DIFFERENT ${plain}")
			wrong=1
		fi
	done
	printf '    %-18s %-40s %s %s %s\n' "$table" "$there" "${verdicts[@]}"
done

# every row has a number, so what is missing or there twice can be named
lost=$(comm -23 \
	<(sql $primary "SELECT id FROM pgbench_history" | sort) \
	<(sql $subscriber "SELECT id FROM pgbench_history" | sort) | wc -l)
extra=$(comm -13 \
	<(sql $primary "SELECT id FROM pgbench_history" | sort) \
	<(sql $subscriber "SELECT DISTINCT id FROM pgbench_history" | sort) | wc -l)
doubled=$(sql $subscriber "SELECT count(*) - count(DISTINCT id) FROM pgbench_history")
echo
say "history rows lost: $lost, doubled: $doubled, known to the subscriber only: $extra"
[ "$lost-$doubled-$extra-$wrong" = 0-0-0-0 ] || fail "the four servers differ"

chapter "11. Two new nodes, which both write"

for server in standby subscriber newcomer primary; do
	pg_ctl -s -m immediate -D "$folder/$server" stop	# they have played their part
done
for node in $north $south; do
	initdb -D "$folder/$(name_of "$node")" -U postgres -A trust >/dev/null
	configure "$node" <<-END
		shared_preload_libraries = 'pg_tandem'
		wal_level = logical
		track_commit_timestamp = on				# who wrote a row, and when
		tandem.node_id = '$(name_of "$node")'
		tandem.detection_timeout = 30s			# was a row deleted? a busy machine has its time
	END
	# the newest minor releases have a list of the output plugins that may be used
	if [ "$(postgres --describe-config | grep -c '^output_plugin_libraries')" = 1 ]; then
		configure "$node" <<-END
			output_plugin_libraries = 'pgoutput, test_decoding, pg_tandem_output'
		END
	fi
	start "$node"
	sql "$node" "CREATE EXTENSION pg_tandem"
	sql "$node" "CREATE TABLE stock (item text PRIMARY KEY, place text, pieces int)"
	sql "$node" "CREATE PUBLICATION stock FOR TABLE stock"
done

# what came from the other node isn't sent back: 16 has an option for that
plugin=pgoutput origin="origin = none, "
if [ "$(sql $north "SHOW server_version_num")" -lt 160000 ]; then
	plugin=pg_tandem_output origin=""
fi
rules="update_missing = insert_or_skip, tombstones = on"
for type in insert_exists update_exists multiple_unique_conflicts insert_deleted update_deleted update_origin_differs delete_origin_differs; do
	rules="$type = last_update_wins, $rules"
done
for pair in "$north $south" "$south $north"; do
	read -r here there <<< "$pair"
	run "$there" "SELECT pg_create_logical_replication_slot('to_$(name_of "$here")', '$plugin')"
	sql "$here" "CREATE SUBSCRIPTION from_$(name_of "$there") CONNECTION 'host=$PGHOST port=$there user=postgres dbname=postgres' PUBLICATION stock
		WITH (${origin}enabled = false, create_slot = false, slot_name = 'to_$(name_of "$here")', copy_data = false)"
	say "$(name_of "$here")\$ CREATE SUBSCRIPTION from_$(name_of "$there") ... WITH (${origin}enabled = false, create_slot = false, ...)"
	printf '  %s%s$ tandem adopt from_%s --options="update_origin_differs = last_update_wins, ..., tombstones = on"%s\n' "$dim" "$(name_of "$here")" "$(name_of "$there")" "$plain"
	tandem adopt "from_$(name_of "$there")" --options="$rules" -p "$here" >/dev/null
done
for node in $north $south; do
	wait_until "$node" "SELECT bool_and(state = 'streaming') FROM tandem.subscriptions" "the nodes to hear of each other"
	wait_until "$node" "SELECT bool_and(state = 'collecting') FROM tandem.tombstones" "deletes to be collected"
done
say "They subscribe to each other, and the last one to write a row wins."
run $north "INSERT INTO stock VALUES ('apple', 'shelf', 100), ('pear', 'shelf', 50)"
wait_until $south "SELECT count(*) = 2 FROM stock" "north's rows on south"

say "Both write to both rows before they hear of each other:"
for node in $north $south; do
	sql "$node" "SELECT tandem.adopt(subscription, 'enabled = off') FROM tandem.subscriptions" >/dev/null
	wait_until "$node" "SELECT bool_and(state = 'paused' AND pid IS NULL) FROM tandem.subscriptions" "the pause"
done
run $north "UPDATE stock SET pieces = 90 WHERE item = 'apple'"
run $south "UPDATE stock SET place = 'cellar' WHERE item = 'apple'"
run $north "UPDATE stock SET pieces = 49 WHERE item = 'pear'"
run $south "DELETE FROM stock WHERE item = 'pear'"
for node in $north $south; do
	sql "$node" "SELECT tandem.adopt(subscription, 'enabled = on') FROM tandem.subscriptions" >/dev/null
done

# type and what was done, of each conflict that a node must have met by then
expect_conflicts()		# expect_conflicts PORT LIST
{
	wait_until "$1" "SELECT string_agg(type || ' ' || resolution || ' ' || detection, ', ' ORDER BY id) = '$2' FROM tandem.conflicts" "the conflicts of $(name_of "$1")"
}
expect_conflicts $north "update_origin_differs applied certain, delete_origin_differs applied certain"
expect_conflicts $south "update_origin_differs skipped certain, update_deleted skipped certain"

say "Each has met both changes of the other one, found out what they are, and decided alike:"
tandem_on $north conflicts
tandem_on $south conflicts
tandem_on $south conflicts 1
for node in $north $south; do
	show "$node" "SELECT * FROM stock"
done
[ "$(checksum $north stock)" = "$(checksum $south stock)" ] || fail "north and south differ"
[ "$(sql $north 'SELECT * FROM stock')" = "apple|cellar|100" ] || fail "not the last one has won"
say "Both have the same. What has lost is in the log, with who wrote it and when."

printf '\n%sThe subscription survived its publisher, the publisher came back, and two writers agree.%s\n' "$green$bold" "$plain"
say "What the dead primary had committed in its last moment without sending it to the standby is"
say "gone on all sides alike: that is asynchronous physical replication, not ours to change."
