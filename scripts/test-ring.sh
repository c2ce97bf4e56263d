#!/usr/bin/env bash
# Rings of real processes: loss, death and return, in network namespaces where those are allowed, else on loopback.
# Usage: [LEAP_RING_DEATHS=20] test-ring.sh [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 1 ] || die "usage: ${0##*/} [LEAP]"

# How often each node is killed.
DEATHS=${LEAP_RING_DEATHS:-1}
# Percent of datagrams that are lost in namespaces.
LOSS=5
NODES=(desk pi orange)
LAYERS=(0..1 1..4 4..6)
MODEL=models/demo.bin
PROMPT="Once upon a time"
# A text that does not end early.
SAMPLING=(--temp 1.5 --top-p 1 --seed 2)
N_PREDICT=200
# TCP waits long for what was lost.
N_PREDICT_TCP=30
# A checkpoint that is exported in the nodes' parts.
CHECKPOINT=tests/golden/llama3-tiny
PART_LAYERS=(0..1 1..3 3..4)
N_PREDICT_PARTS=60
BRIDGE="leap-test"

work=$(mktemp -d)
has_namespaces=
has_parts=
declare -A pids=()

clean_up() {
	local pid
	for pid in $(pgrep -f -- "^${leap:-leap} .*$work/ring"); do
		kill -KILL "$pid" 2>/dev/null || true
	done
	wait 2>/dev/null || true
	remove_namespaces
	rm -rf "$work"
}

remove_namespaces() {
	local name
	[ -n "$has_namespaces" ] || return 0
	for name in "${NODES[@]}"; do
		as_root ip netns delete "leap-$name" 2>/dev/null || true
	done
	as_root ip link delete "$BRIDGE" 2>/dev/null || true
	has_namespaces=
}

# One namespace a node, on a bridge; each drops datagrams that come in.
make_namespaces() {
	local index name
	as_root ip link add "$BRIDGE" type bridge && as_root ip link set "$BRIDGE" up || return
	has_namespaces=1
	for index in "${!NODES[@]}"; do
		name=${NODES[$index]}
		as_root ip netns add "leap-$name" &&
			as_root ip link add "lt-$name" type veth peer name eth0 netns "leap-$name" &&
			as_root ip link set "lt-$name" master "$BRIDGE" up &&
			as_root ip -n "leap-$name" address add "10.213.7.$((index + 1))/24" dev eth0 &&
			as_root ip -n "leap-$name" link set eth0 up &&
			as_root ip -n "leap-$name" link set lo up &&
			as_root ip netns exec "leap-$name" nft -f - <<-NFT || return
				table inet leap {
					chain in { type filter hook input priority 0; iif eth0 numgen random mod 100 < $LOSS drop; }
				}
			NFT
	done
}

can_use_namespaces() {
	has_root && command -v ip >/dev/null && command -v nft >/dev/null && make_namespaces >"$work/namespaces" 2>&1
}

write_ring() {
	local index
	for index in "${!NODES[@]}"; do
		if [ -n "$has_namespaces" ]; then
			say "${NODES[$index]} 10.213.7.$((index + 1)) ${LAYERS[$index]}"
		else
			say "${NODES[$index]} 127.0.0.1:$((21790 + index)) ${LAYERS[$index]}"
		fi
	done >"$work/ring"
}

# on NODE COMMAND...: where the node lives.
on() {
	local name=$1
	shift
	if [ -n "$has_namespaces" ]; then
		as_root ip netns exec "leap-$name" "$@"
	else
		"$@"
	fi
}

# model_of NODE: the file it runs.
model_of() { if [ -n "$has_parts" ]; then say "$work/$1.bin"; else say "$MODEL"; fi; }

# start_worker NODE OPTION...
start_worker() {
	local name=$1
	shift
	on "$name" "$leap" worker "$(model_of "$name")" --ring "$work/ring" --node "$name" --threads 1 "$@" 2>>"$work/$name.log" &
	pids[$name]=$!
}

start_workers() {
	local name
	for name in "${NODES[@]:1}"; do
		start_worker "$name" "$@"
	done
}

# end NODE: a SIGTERM ends it, cleanly and within a second.
end() {
	local name=$1 start
	start=$(date +%s%N)
	kill -TERM "$(leap_pid "$name")"
	wait "${pids[$name]}" || die "$name ended with status $? after a SIGTERM: $(tail -n 3 "$work/$name.log")"
	local ms=$((($(date +%s%N) - start) / 1000000))
	[ "$ms" -lt 1000 ] || die "$name took $ms ms to end"
	unset "pids[$name]"
}

end_workers() {
	local name
	for name in "${NODES[@]:1}"; do
		end "$name"
	done
}

# master N OPTION...: an answer of N tokens goes to stdout.
master() {
	local n=$1
	shift
	on desk "$leap" master "$(model_of desk)" --ring "$work/ring" --threads 1 -p "$PROMPT" -n "$n" "${SAMPLING[@]}" --ctx 512 \
		--ring-timeout 30 "$@" </dev/null 2>>"$work/desk.log"
}

# alone N: the answer of one node.
alone() {
	"$leap" run "$MODEL" -p "$PROMPT" -n "$1" "${SAMPLING[@]}" --ctx 512 </dev/null 2>/dev/null >"$work/wanted-$1"
}

# same N WHAT: the answer is that of one node.
same() {
	cmp -s "$work/wanted-$1" "$work/text" ||
		die "another text $2: $(diff "$work/wanted-$1" "$work/text" | head -n 4; tail -n 5 "$work/desk.log")"
}

# check_text N OPTION...: two masters after each other, as workers outlive theirs.
check_text() {
	local n=$1 count
	shift
	start_workers "$@"
	for count in first second; do
		master "$n" "$@" >"$work/text" || die "the $count master failed ($*): $(tail -n 3 "$work/desk.log")"
		same "$n" "of the $count master with $*"
	done
	end_workers
}

# export_model OUT OPTION...
export_model() {
	"$leap" export "$1" --meta-llama "$CHECKPOINT" "${@:2}" 2>"$work/export.log" ||
		die "export: $(tail -n 1 "$work/export.log")"
}

# Nodes that each have a file of their own layers alone give the text of the whole model, and a
# node refuses the file of another.
check_parts() {
	local index error code=0
	export_model "$work/whole.bin"
	MODEL=$work/whole.bin
	LAYERS=("${PART_LAYERS[@]}")
	write_ring
	alone "$N_PREDICT_PARTS"
	for index in "${!NODES[@]}"; do
		export_model "$work/${NODES[$index]}.bin" --layers "${LAYERS[$index]}"
	done
	rm "$MODEL"
	has_parts=1
	check_text "$N_PREDICT_PARTS"
	error=$("$leap" worker "$work/pi.bin" --ring "$work/ring" --node orange 2>&1) || code=$?
	if [ "$code" -ne 3 ] || [[ $error != *"holds layers 1..3 of 4, and orange has 3..4"* ]]; then
		die "another node's part: exit code $code, $error"
	fi
}

# Starts a master in the background and waits until it has begun to answer.
begin_answer() {
	: >"$work/text"
	master "$N_PREDICT" >"$work/text" &
	pids[desk]=$!
	local tries=0
	while [ "$(stat -c %s "$work/text")" -lt 100 ]; do
		sleep 0.01
		tries=$((tries + 1))
		[ "$tries" -lt 3000 ] || die "the master does not begin: $(tail -n 3 "$work/desk.log")"
	done
}

end_answer() {
	wait "${pids[desk]}" || die "the master failed $1: $(tail -n 5 "$work/desk.log")"
	unset "pids[desk]"
	same "$N_PREDICT" "$1"
}

# leap_pid NODE: of the program itself, which the shell's own process waits for.
leap_pid() {
	case $1 in
	desk) pgrep -o -f -- "^$leap master .*$work/ring" ;;
	*) pgrep -o -f -- "^$leap worker .*$work/ring --node $1 " ;;
	esac
}

# is_mended NODE: the master had to open the ring again. Without loss an answer may be too quick for that.
is_mended() {
	mended=$((mended + 1))
	if [ "$(grep -c "the ring is complete again" "$work/desk.log")" -lt "$mended" ]; then
		[ -z "$has_namespaces" ] || die "the answer was over before $1 died"
		mended=$((mended - 1))
		say "the answer was over before $1 died"
	fi
}

check_deaths() {
	local round name mended=0
	start_workers
	for ((round = 0; round < DEATHS; round++)); do
		for name in "${NODES[@]:1}"; do
			begin_answer
			kill -KILL "$(leap_pid "$name")"
			wait "${pids[$name]}" 2>/dev/null || true
			start_worker "$name"
			end_answer "after the death of $name"
			is_mended "$name"
		done
		begin_answer
		kill -KILL "$(leap_pid desk)"
		wait "${pids[desk]}" 2>/dev/null || true
		unset "pids[desk]"
		begin_answer
		end_answer "of the master after one that was killed"
	done
}

check_pause() {
	begin_answer
	local pid
	pid=$(leap_pid desk)
	kill -STOP "$pid"
	sleep 2
	kill -CONT "$pid"
	end_answer "after a pause of the master"
	end_workers
}

begin_steps
trap 'STATUS=$?; clean_up; end_steps "$STATUS"' EXIT
need_tools cc:gcc cmp:diffutils pgrep:procps ip:iproute2 nft:nftables
if [ $# -eq 1 ]; then
	leap=$(realpath "$1")
else
	need_cargo
	step "binary" cargo build --locked --bin leap
	leap=$(realpath "$TARGET_DIR/debug/leap")
fi
if can_use_namespaces; then
	say "nodes in network namespaces that lose $LOSS % of what comes in"
else
	# Some may have been made.
	remove_namespaces
	say "no network namespaces here ($(tail -n 1 "$work/namespaces" 2>/dev/null || say "no root, ip or nft")): processes on loopback, without loss"
fi
write_ring
head -c 32 /dev/urandom >"$work/key"
alone "$N_PREDICT"
alone "$N_PREDICT_TCP"
step "udp" check_text "$N_PREDICT" --transport udp
step "udp, sealed" check_text "$N_PREDICT" --transport udp --key "$work/key"
step "tcp" check_text "$N_PREDICT_TCP" --transport tcp
step "tcp, sealed" check_text "$N_PREDICT_TCP" --transport tcp --key "$work/key"
# Slow kernels, so that there is time to die: the bits are the same.
export LEAP_ISA=scalar
step "death of each node, $DEATHS times" check_deaths
step "pause of the master" check_pause
step "a part of the model on each node" check_parts
