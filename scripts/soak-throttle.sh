#!/usr/bin/env bash
# Three boards on this machine, each with a part of a core. One of them is throttled to a quarter while answers are written: the
# ring has to find another split by itself, and keep it. Tells what was planned and what came of it. By hand, as root, on a
# quiet machine; six minutes. Usage: soak-throttle.sh MODEL [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/groups.sh
. scripts/groups.sh

if [ $# -lt 1 ] || [ $# -gt 2 ]; then die "usage: ${0##*/} MODEL [LEAP]"; fi
MODEL=$(realpath "$1")
# A millisecond of each period, which is as little as there is: 40 % of a core, then 10 %.
QUOTA_US=1000 PERIOD_US=2500 THROTTLED_US=10000
BOARDS=(desk pi orange)
work=$(mktemp -d)

clean_up() {
	pkill -KILL -f -- "--key $work/key" || true
	sleep 0.5
	remove_groups "${BOARDS[@]}"
	rm -rf "$work"
}

need_tools pkill:procps python3:python3
trap clean_up EXIT
leap=$(realpath "${2:-target/release/leap}")
(umask 077 && head -c 32 /dev/urandom >"$work/key")
port=8401
make_groups "${BOARDS[@]}"
for name in "${BOARDS[@]}"; do
	mkdir "$work/$name"
	limit "$name" "$QUOTA_US" "$PERIOD_US"
	[ "$name" = desk ] ||
		on "$name" "$leap" worker --key "$work/key" --node "$name" --join $((port++)) --port $((port + 100)) --host 127.0.0.1 --threads 1
done
on desk env LEAP_LOG=debug "$leap" serve "$MODEL" --listen "$work/http.sock" --boards 127.0.0.1:8401,127.0.0.1:8402 --key "$work/key" \
	--node desk --host 127.0.0.1 --port 8400 --give 8490 --threads 1 --objective throughput --rebalance-after 15 --draft off --ctx 512 --streams 3
python3 "$(dirname "$0")/soak-throttle.py" "$work/http.sock" "$work/desk.log" &
watcher=$!
# Answers for a minute, then the second board is throttled.
while [ ! -e "$work/desk.log.answers" ] && kill -0 $watcher; do sleep 0.2; done
sleep 60
limit pi "$QUOTA_US" "$THROTTLED_US"
touch "$work/desk.log.throttled"
wait $watcher
