#!/usr/bin/env bash
# A mixture of 3 GB on three nodes that have 1.3 GB of memory each gives the text of one node, and so does one
# such node alone, at the speed of its disk. Takes a minute, root, and 9 GB of disk under the target folder.
# Usage: test-memory-ring.sh [LEAP]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 1 ] || die "usage: ${0##*/} [LEAP]"

LIMIT_MB=1300
NODES=(desk pi orange)
LAYERS=(0..2 2..4 4..6)
PROMPT="Once upon a time there was a fox who lived in a wood, and the wood was old."
SAMPLING=(--temp 1.5 --top-p 1 --seed 3 -n 48 --ctx 512 --threads 1)
PORT=$((20000 + $$ % 1000 * 10))

leap=$(realpath "${1:-$TARGET_DIR/release/leap}")
has_root || die "limits of memory need root"
mkdir -p "$TARGET_DIR"
work=$(mktemp -d "$(realpath "$TARGET_DIR")/memory-ring.XXXXXX")
model=$work/mixture.bin
declare -A pids=()

clean_up() {
	local name
	for name in "${!pids[@]}"; do
		kill -KILL "${pids[$name]}" 2>/dev/null || true
	done
	wait 2>/dev/null || true
	for name in "${NODES[@]}" alone; do
		[ ! -d "$(group "$name")" ] || as_root rmdir "$(group "$name")"
	done
	rm -rf "$work"
}

# Version 2 of control groups where that has the memory, else version 1. Groups are made in our own.
find_groups() {
	local own
	own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
	if [ -n "$own" ]; then
		parent=/sys/fs/cgroup/memory$own limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes killed=memory.oom_control
	else
		# A group with processes in it cannot give its own groups a limit.
		parent=/sys/fs/cgroup limit=memory.max peak=memory.peak killed=memory.events
		grep -qw memory "$parent/cgroup.subtree_control" || die "control groups have no memory here"
	fi
}

group() { say "$parent/leap-$$-$1"; }

# within NAME COMMAND...: in a group of its own with little memory. Replaces the shell.
within() {
	local folder pid=$BASHPID
	folder=$(group "$1")
	as_root mkdir -p "$folder" || exit
	say $((LIMIT_MB * 1000000)) | as_root tee "$folder/$limit" >/dev/null || exit
	say "$pid" | as_root tee "$folder/cgroup.procs" >/dev/null || exit
	exec "${@:2}"
}

# use NAME: what the group had at most; none of its processes was killed for want of memory.
use() {
	local folder
	folder=$(group "$1")
	say "    $1: $(($(cat "$folder/$peak") / 1000000)) MB at most"
	grep -q '^oom_kill 0$' "$folder/$killed" || die "$1 was killed for want of memory"
}

# Files that are in memory count for the group that read them first.
forget() { sync && dd of="$model" oflag=nocache conv=notrunc,fdatasync count=0 status=none; }

# text COMMAND...: an answer, whose hash goes to stdout.
text() {
	"$@" -p "$PROMPT" "${SAMPLING[@]}" </dev/null >"$work/text" || return
	[ -s "$work/text" ] || die "no text"
	sha256sum <"$work/text"
}

make_model() {
	mkdir "$work/checkpoint"
	python3 scripts/make-checkpoint.py "$work/checkpoint" mixture
	"$leap" export "$model" --meta-llama "$work/checkpoint" 2>"$work/export.log" || die "$(cat "$work/export.log")"
	rm -r "$work/checkpoint"
	say "    $(($(stat -c %s "$model") / 1000000)) MB"
}

check_ring() {
	local index name found
	for index in "${!NODES[@]}"; do
		say "${NODES[$index]} 127.0.0.1:$((PORT + index)) ${LAYERS[$index]}"
		mkdir "$work/${NODES[$index]}"
	done >"$work/ring"
	forget
	for name in "${NODES[@]:1}"; do
		(within "$name" "$leap" worker "$model" --ring "$work/ring" --node "$name" --threads 1 --cache "$work/$name") 2>"$work/$name.log" &
		pids[$name]=$!
	done
	found=$(text within_desk) || die "the ring failed: $(tail -n 5 "$work"/*.log)"
	for name in "${NODES[@]}"; do
		use "$name"
	done
	for name in "${NODES[@]:1}"; do
		kill -TERM "${pids[$name]}"
		wait "${pids[$name]}" || die "$name ended with status $?"
		unset "pids[$name]"
	done
	[ "$found" = "$wanted" ] || die "the ring's text is another one"
}

within_desk() {
	(within desk "$leap" master "$model" --ring "$work/ring" --cache "$work/desk" --ring-timeout 600 "$@") 2>"$work/desk.log"
}

check_alone() {
	local found
	rm -r "${NODES[@]/#/$work/}"
	mkdir "$work/alone"
	forget
	found=$(text within_alone) || die "one node failed: $(tail -n 5 "$work/alone.log")"
	use alone
	grep "MB of weights are more than the .* that are free" "$work/alone.log" || die "one node did not say what it lacks"
	grep "generated" "$work/alone.log"
	[ "$found" = "$wanted" ] || die "the text with little memory is another one"
}

within_alone() { (within alone "$leap" run "$model" --cache "$work/alone" "$@") 2>"$work/alone.log"; }

find_groups
trap clean_up EXIT
step "a model" make_model
wanted=$(text "$leap" run "$model" --cache off 2>"$work/wanted.log") || die "$(cat "$work/wanted.log")"
step "a ring of little memory" check_ring
step "one node of little memory" check_alone
