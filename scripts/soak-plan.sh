#!/usr/bin/env bash
# Compares a ring of unequal boards with its plan: three boards on this machine, each with a part of a core's time, one
# of them with little memory. By hand, as root, on a quiet machine; minutes. Usage: soak-plan.sh MODEL [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/groups.sh
. scripts/groups.sh

if [ $# -lt 1 ] || [ $# -gt 2 ]; then die "usage: ${0##*/} MODEL [LEAP]"; fi
MODEL=$(realpath "$1")
BOARDS=(desk pi orange)
# Percent of a core, MB of memory and, if it is not the best, the instruction set of each board.
FLEETS=(
	"100:650:avx512vnni 100:600:avxvnni 100:4000:avx2" "100:4000:avx2 100:450:avx512vnni 100:4000:avxvnni"
	"60:4000 50:4000 40:4000" "40:4000 60:4000 50:300" "60:600 40:4000 50:4000"
)
work=$(mktemp -d)

clean_up() {
	pkill -KILL -f -- "--key $work/key" || true
	sleep 0.5
	remove_groups "${BOARDS[@]}"
	rm -rf "$work"
}

# figure NAME: a number of the master's JSON object.
figure() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$work/desk.log" | head -n1; }

# ratio A B
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

# board NAME PERCENT COMMAND…: runs it as that board, in the background; sets $board, its process.
board() {
	local percent=$2
	on "$1" "${@:3}"
	board=$!
	[ "$percent" -eq 100 ] || scripts/part-time.py "$board" "$percent" &
}

# try FLEET OBJECTIVE STREAMS: all boards for one stream, which they work for in turn; for several the first two, each with a core.
try() {
	local index=0 core part port=8401 addresses=() planned observed name percent memory isa masters="" mine
	for part in $1; do
		if [ "$3" -gt 1 ] && [ "$index" -eq 2 ]; then break; fi
		name=${BOARDS[index]} core=$((index % 2))
		IFS=: read -r percent memory isa <<<"$part"
		limit_memory "$name" "$memory"
		rm -rf "${work:?}/$name" && mkdir "$work/$name"
		if [ "$index" -gt 0 ]; then
			board "$name" "$percent" env ${isa:+LEAP_ISA="$isa"} "$leap" worker --key "$work/key" --node "$name" --join "$port" --port $((port + 100)) --host 127.0.0.1 --cores "$core"
			# It measures itself before that, which others would disturb.
			until grep -q 'waits for a master' "$work/$name.log"; do sleep 0.1; done
			addresses+=("127.0.0.1:$port")
			port=$((port + 1))
		else
			masters=$isa mine=$percent
		fi
		index=$((index + 1))
	done
	for _ in $(seq "$3"); do say "Once upon a time"; done >"$work/prompts"
	board desk "$mine" env ${masters:+LEAP_ISA="$masters"} "$leap" master "$MODEL" --boards "$(IFS=,; say "${addresses[*]}")" --key "$work/key" --node desk --host 127.0.0.1 \
		--port 8400 --give 8490 --cores 0 --objective "$2" --draft off --ctx 512 --streams "$3" --prompt-file "$work/prompts" \
		-n 150 --temp 0 --json --control off --rebalance-after off
	wait "$board" || { tail -n 5 "$work/desk.log"; die "the master ended"; }
	pkill -TERM -f -- "worker --key $work/key" || true
	wait
	grep -E '^(desk|pi|orange) ' "$work/desk.log" || true
	local one='\([0-9.]*\) tokens\/s of one stream, \([0-9.]*\) of many.*'
	if [ "$3" -eq 1 ]; then
		planned=$(sed -n "s/^$one/\1/p" "$work/desk.log" | head -n1)
		observed=$(figure generated_tokens_per_s)
	else
		planned=$(sed -n "s/^$one/\2/p" "$work/desk.log" | head -n1)
		observed=$(awk -v s="$(figure generated_tokens_per_s)" -v n="$3" 'BEGIN { print s * n }')
	fi
	say "$2: planned $planned tokens/s, observed $observed: $(ratio "$observed" "$planned") of that; $(tail -n1 "$work/desk.log")"
}

need_tools pkill:procps awk:mawk python3:python3
trap clean_up EXIT
leap=$(realpath "${2:-target/release/leap}")
(umask 077 && head -c 32 /dev/urandom >"$work/key")
make_groups "${BOARDS[@]}"
for fleet in "${FLEETS[@]}"; do
	say "== boards with percent of a core and MB: $fleet"
	try "$fleet" latency 1
	try "$fleet" throughput 2
done
