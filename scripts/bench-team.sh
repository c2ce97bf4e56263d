#!/usr/bin/env bash
# A team on this machine, a thread a node, beside one process with as many threads, and beside what `leap plan --team` computes. In each
# round the process runs before and after the team: what memory gives then is what the plan reckons with, as it changes from second to
# second where machines are shared. Rounds in which both differ by more than 5 % do not count. By hand; where there are fewer cores than
# nodes, those after the first share the other cores. Usage: [LEAP_ROUNDS=9] [LEAP_TOKENS=100] [LEAP_NODES=2] bench-team.sh MODEL [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

case $# in 1 | 2) ;; *) die "usage: ${0##*/} MODEL [LEAP]" ;; esac
MODEL=$(realpath "$1")
ROUNDS=${LEAP_ROUNDS:-9}
N_PREDICT=${LEAP_TOKENS:-100}
NODES=${LEAP_NODES:-2}
CORES=$(nproc)
THREADS=$((NODES < CORES ? NODES : CORES))
# At most so many rounds are tried for each that counts.
TRIES=5
PROMPT=(-p "Once upon a time" --temp 0 --draft off)
work=$(mktemp -d)
pids=()

clean_up() {
	kill "${pids[@]}" 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf "$work"
}

# core NODE: the first has one to itself.
core() { say $(($1 == 0 || CORES == 1 ? 0 : 1 + ($1 - 1) % (CORES - 1))); }

# part NODE: what it has of a core, in percent.
part() {
	local node n=0
	for ((node = 0; node < NODES; node++)); do
		if [ "$(core "$node")" = "$(core "$1")" ]; then n=$((n + 1)); fi
	done
	say $((100 / n))
}

# speed ARGUMENTS...: tokens a second of an answer, from its first to its last token.
speed() {
	"$leap" "$@" "${PROMPT[@]}" -n "$N_PREDICT" --json </dev/null 2>>"$work/log" | grep -oE '"generated_tokens_per_s": [0-9.]+' | cut -d' ' -f2
}

of_process() { speed run "$MODEL" --threads "$THREADS" --huge off; }
of_team() { speed run "$MODEL" --team "$work/team" --threads 1 --cores 0; }

# plan GB_PER_S: what `leap plan` computes of boards of which a whole core reads so much.
plan() {
	local node
	for ((node = 0; node < NODES; node++)); do
		say "n$node 127.0.0.1 read=$(awk -v r="$1" -v p="$(part "$node")" 'BEGIN { print r * p / 100 }') int8=100000 memory=100 rtt=$RTT wire=$WIRE"
	done >"$work/boards"
	"$leap" plan "$MODEL" --boards "$work/boards" --team --json >"$work/plan"
}

# planned NAME: a figure of it.
planned() { grep -oE "\"$1\": [0-9.e-]+" "$work/plan" | tail -n 1 | cut -d' ' -f2; }

measure_link() {
	"$leap" bench --link self >"$work/link" 2>>"$work/log"
	RTT=$(grep -A1 '^udp ' "$work/link" | grep -oE '2 KiB [0-9.]+' | cut -d' ' -f3 | awk '{ print 2 * $1 }')
	WIRE=$(grep '^udp ' "$work/link" | grep -oE '[0-9.]+ MB/s' | cut -d' ' -f1)
	say "    round trip $RTT us, $WIRE MB/s"
}

# gb_per_s TOKENS_PER_S: what a core reads when the process has that speed. The first node's part is a core's part of the whole.
gb_per_s() {
	plan 10
	awk -v ms="$(planned weights_ms)" -v speed="$1" 'BEGIN { print ms / 1e3 * 10 * speed }'
}

start_team() {
	local node
	for ((node = 0; node < NODES; node++)); do
		say "n$node 127.0.0.1:$((17000 + 20 * node)) $(part "$node")" >>"$work/team"
	done
	for ((node = 1; node < NODES; node++)); do
		"$leap" worker "$MODEL" --team "$work/team" --node "n$node" --threads 1 --cores "$(core "$node")" -q </dev/null 2>>"$work/log" &
		pids+=($!)
	done
}

rounds() {
	local try before team after mean n=0
	for ((try = 0; n < ROUNDS && try < ROUNDS * TRIES; try++)); do
		before=$(of_process)
		team=$(of_team)
		after=$(of_process)
		mean=$(awk -v a="$before" -v b="$after" 'BEGIN { print 2 * a * b / (a + b) }')
		if awk -v a="$before" -v b="$after" 'BEGIN { exit !(a > 1.05 * b || b > 1.05 * a) }'; then
			say "    process $before and $after tokens/s: not quiet"
			continue
		fi
		n=$((n + 1))
		plan "$(gb_per_s "$mean")"
		awk -v a="$before" -v b="$after" -v mean="$mean" -v team="$team" -v plan="$(planned stream_tokens_per_s)" -v file="$work/ratios" 'BEGIN {
			printf "    process %.1f and %.1f tokens/s, team %.1f (%.2f), planned %.1f: %.2f of the measured\n", a, b, team, team / mean, plan, plan / team
			print team / mean >> file ".team"; print plan / team >> file ".plan"
		}'
	done
	[ "$n" -gt 0 ] || die "it was never quiet"
	say "    medians of $n: team $(median team) of the process, plan $(median plan) of the team"
}

# median NAME: of the ratios of that name, the lower one of two.
median() { sort -g "$work/ratios.$1" | awk '{ value[NR] = $1 } END { printf "%.2f", value[int((NR + 1) / 2)] }'; }

begin_steps
trap 'STATUS=$?; clean_up; end_steps "$STATUS"' EXIT
if [ $# -eq 2 ]; then
	leap=$(realpath "$2")
else
	need_cargo
	step "binary" cargo build --locked --release --bin leap
	leap=$(realpath "$TARGET_DIR/release/leap")
fi
step "link" measure_link
start_team
step "rounds" rounds
