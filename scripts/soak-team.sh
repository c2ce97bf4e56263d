#!/usr/bin/env bash
# A team of three with unequal shares in network namespaces: each node is killed at random moments and comes back, the lead with the
# same request, and the text is that of one board; then how much longer an answer takes where each node loses 1 % of what comes in.
# By hand, as root; minutes. With LEAP_RING=1 desk is the master of a ring whose other place is a team of pi and orange.
# Usage: [LEAP_DEATHS=20] [LEAP_ROUNDS=9] [LEAP_RING=1] soak-team.sh [MODEL [LEAP]]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 2 ] || die "usage: ${0##*/} [MODEL [LEAP]]"
MODEL=$(realpath "${1:-models/demo.bin}")
# How often each node is killed.
DEATHS=${LEAP_DEATHS:-20}
# Answers with and without loss, in turn.
ROUNDS=${LEAP_ROUNDS:-9}
# The option that names the places: --team, or --ring.
PLACES=--team
[ "${LEAP_RING:-0}" = 0 ] || PLACES=--ring
LOSS=1
NODES=(desk pi orange)
SHARES=(2 3 1)
# A text that does not end early.
PROMPT=(-p "Once upon a time" --temp 1.5 --top-p 1 --seed 2 --ctx 512 --draft off)
N_PREDICT=${LEAP_TOKENS:-400}
BRIDGE="st$$b"
work=$(mktemp -d)
declare -A pids=()
n_deaths=0

clean_up() {
	local pid name
	for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	for name in "${NODES[@]}"; do ip netns delete "$(space "$name")" 2>/dev/null || true; done
	ip link delete "$BRIDGE" 2>/dev/null || true
	rm -rf "$work"
}

space() { say "leap-$$-$1"; }

# make_node NAME INDEX: its namespace, at 10.215.7.INDEX.
make_node() {
	local wire="st$$v$2"
	ip netns add "$(space "$1")"
	ip link add "$wire" type veth peer name eth0 netns "$(space "$1")"
	ip link set "$wire" master "$BRIDGE" up
	ip -n "$(space "$1")" address add "10.215.7.$2/24" dev eth0
	ip -n "$(space "$1")" link set eth0 up
	ip -n "$(space "$1")" link set lo up
}

# set_loss PERCENT: what each node loses of what comes in.
set_loss() {
	local name
	for name in "${NODES[@]}"; do
		ip netns exec "$(space "$name")" nft -f - <<-NFT
			table inet leap
			delete table inet leap
			table inet leap {
				chain in { type filter hook input priority 0; iif eth0 numgen random mod 100 < $1 drop; }
			}
		NFT
	done
}

# start_worker NAME: the process has the number of the program, which takes the place of `ip`.
start_worker() {
	ip netns exec "$(space "$1")" "$leap" worker "$MODEL" "$PLACES" "$work/places" --node "$1" --threads 1 --transport udp \
		</dev/null 2>>"$work/$1.log" &
	pids[$1]=$!
}

start_lead() {
	: >"$work/text"
	ip netns exec "$(space desk)" "$leap" master "$MODEL" "$PLACES" "$work/places" --threads 1 --transport udp --ring-timeout 60 \
		"${PROMPT[@]}" -n "$N_PREDICT" "$@" </dev/null >"$work/text" 2>>"$work/desk.log" &
	pids[desk]=$!
}

# Waits until the answer has begun, and a random moment more.
wait_a_while() {
	local tries=0
	while [ "$(stat -c %s "$work/text")" -lt 20 ]; do
		sleep 0.01
		tries=$((tries + 1))
		[ "$tries" -lt 6000 ] || die "the lead does not begin: $(tail -n 3 "$work/desk.log")"
	done
	sleep "$(awk -v r="$RANDOM" -v most="$1" 'BEGIN { print r / 32768 * most * 0.8 }')"
}

kill_node() {
	# A process that has ended has given its answer.
	if kill -0 "${pids[desk]}" 2>/dev/null; then
		n_deaths=$((n_deaths + 1))
	else
		say "    the answer was over before $1 died"
	fi
	kill -KILL "${pids[$1]}" 2>/dev/null || true
	wait "${pids[$1]}" 2>/dev/null || true
}

end_answer() {
	wait "${pids[desk]}" || die "the lead failed $1: $(tail -n 5 "$work/desk.log")"
	cmp -s "$work/wanted" "$work/text" || die "another text $1: $(cp -r "$work" "$work.kept" && say "$work.kept")"
}

# seconds: how long an undisturbed answer takes, the start included.
seconds() {
	local begin
	begin=$(date +%s%N)
	start_lead
	end_answer "undisturbed"
	awk -v ns="$(($(date +%s%N) - begin))" 'BEGIN { printf "%.3f\n", ns / 1e9 }'
}

check_deaths() {
	local round name most
	most=$(seconds)
	for ((round = 0; round < DEATHS; round++)); do
		for name in "${NODES[@]}"; do
			start_lead
			wait_a_while "$most"
			kill_node "$name"
			if [ "$name" = desk ]; then start_lead; else start_worker "$name"; fi
			end_answer "after the death of $name"
		done
	done
	say "    $n_deaths deaths in the midst of an answer: the same text"
}

# tokens_per_s: of an answer, from its first token to its last.
tokens_per_s() {
	start_lead --json
	wait "${pids[desk]}" || die "the lead failed: $(tail -n 5 "$work/desk.log")"
	grep -oE '"generated_tokens_per_s": [0-9.]+' "$work/text" | head -n 1 | cut -d' ' -f2
}

check_loss() {
	local round ratio plain lossy
	for ((round = 0; round < ROUNDS; round++)); do
		set_loss 0
		plain=$(tokens_per_s)
		set_loss "$LOSS"
		lossy=$(tokens_per_s)
		ratio=$(awk -v a="$plain" -v b="$lossy" 'BEGIN { printf "%.2f\n", a / b }')
		say "    $plain tokens/s, with $LOSS % loss $lossy: $ratio times as long"
		say "$ratio" >>"$work/ratios"
	done
	set_loss 0
	say "    median: $(sort -g "$work/ratios" | sed -n "$(((ROUNDS + 1) / 2))p"), wanted at most 1.5"
}

[ "$(id -u)" -eq 0 ] || die "network namespaces are for root"
begin_steps
trap 'STATUS=$?; clean_up; end_steps "$STATUS"' EXIT
need_tools cmp:diffutils ip:iproute2 nft:nftables
if [ $# -eq 2 ]; then
	leap=$(realpath "$2")
else
	need_cargo
	step "binary" cargo build --locked --release --bin leap
	leap=$(realpath "$TARGET_DIR/release/leap")
fi
ip link add "$BRIDGE" type bridge
ip link set "$BRIDGE" up
for index in "${!NODES[@]}"; do
	make_node "${NODES[index]}" $((index + 1))
	say "${NODES[index]} 10.215.7.$((index + 1)) ${SHARES[index]}" >>"$work/places"
done
if [ "$PLACES" = --ring ]; then
	layers=$("$leap" info "$MODEL" | awk '$1 == "n_layers" { print $2 }')
	say "desk 10.215.7.1 0..$((layers / 2))" >"$work/places"
	say "pi 10.215.7.2 $((layers / 2))..$layers" >>"$work/places"
	for index in 1 2; do say "team ${NODES[index]} 10.215.7.$((index + 1)) ${SHARES[index]}" >>"$work/places"; done
fi
"$leap" run "$MODEL" --threads 1 "${PROMPT[@]}" -n "$N_PREDICT" </dev/null >"$work/wanted" 2>"$work/alone.log"
for name in "${NODES[@]:1}"; do start_worker "$name"; done
step "deaths" check_deaths
step "loss" check_loss
