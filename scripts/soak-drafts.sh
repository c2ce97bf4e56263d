#!/usr/bin/env bash
# Whether texts are the same with drafts and without: every tier of this CPU, keys and values in f16, f32 and int8, greedy and
# at temperature 0.8, alone and several at a time, guessed from what was said and by a smaller model; then rings of 2 to 5
# nodes, workers of which are killed meanwhile. By hand: minutes for 100,000 tokens.
# Usage: [LEAP_ISAS="neon neondot"] [KILL_EVERY=2] soak-drafts.sh [TOKENS [PROGRAM...]]; PROGRAM may be an emulator and its
# options, too. Then kill more rarely than every two seconds: a worker that starts anew must have time to catch up.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TOKENS=${1:-100000}
[ $# -eq 0 ] || shift
PROGRAM=("${@:-$TARGET_DIR/release/leap}")
KILL_EVERY=${KILL_EVERY:-2}
for number in "$TOKENS" "$KILL_EVERY"; do
	case $number in *[!0-9]* | '') die "$number is no number" ;; esac
done
command -v "${PROGRAM[0]}" >/dev/null || die "${PROGRAM[0]} is no program; make it with: cargo build --release"

MODEL=models/demo.bin
DRAFTS=(auto models/demo-draft.bin)
KINDS=(f16 f32 int8)
TEMPERATURES=(0 0.8)
N_PREDICT=400
PORT=$((22000 + $$ % 1000 * 10))
read -ra ISAS <<<"${LEAP_ISAS:-$(case $(uname -m) in x86_64) say scalar avx2 ;; *) say scalar neon ;; esac)}"

work=$(mktemp -d)
pids=()
n_tokens=0 n_texts=0
end_workers() {
	local pid
	for pid in "${pids[@]}"; do
		kill -- "-$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	pids=()
}

clean_up() {
	end_workers
	rm -rf "$work"
}

# tell FILE COMMAND...: what a program says; its tokens are counted.
tell() {
	local file=$1 n
	shift
	"$@" --json >"$file.json" 2>"$file.log" || { cat "$file.log" >&2; die "failed: $*"; }
	sed -E 's/.*"text": "(.*)", "stop_reason".*/\1/' "$file.json" >"$file"
	while read -r n; do n_tokens=$((n_tokens + n)); done < <(grep -oE '"generated_tokens": [0-9]+' "$file.json" | cut -d' ' -f2)
	n_texts=$((n_texts + 1))
}

# same WHAT: two programs said the same.
same() { cmp -s "$work/plain" "$work/drafted" || die "another text with drafts: $1, see $(cp -r "$work" "$work.kept" && say "$work.kept")"; }

# on_a_board SEED: one of the ways to run on a board, with all drafts.
on_a_board() {
	local seed=$1 draft way isa kv temp streams=()
	isa=${ISAS[seed % ${#ISAS[@]}]} kv=${KINDS[seed / 2 % 3]} temp=${TEMPERATURES[seed / 6 % 2]}
	[ $((seed / 12 % 2)) -eq 0 ] || streams=(--streams 3 --prompt-file "$work/prompts")
	[ ${#streams[@]} -gt 0 ] || streams=(-p "Once upon a time, number $seed")
	way=("${PROGRAM[@]}" run "$MODEL" --ctx 512 -n "$N_PREDICT" --seed "$seed" --temp "$temp" --kv "$kv" "${streams[@]}")
	export LEAP_ISA=$isa
	tell "$work/plain" "${way[@]}" --draft off </dev/null
	for draft in "${DRAFTS[@]}"; do
		tell "$work/drafted" "${way[@]}" --draft "$draft" </dev/null
		same "$isa, ${way[*]} --draft $draft"
	done
}

# A worker that comes back whenever it ends.
keep_working() {
	while :; do
		{ "${PROGRAM[@]}" worker "$MODEL" --ring "$work/ring" --node "n$1" --threads 1 || sleep 0.1; } >>"$work/worker.log" 2>&1
	done
}

# Kills workers, now and then.
kill_workers() {
	while sleep "$KILL_EVERY"; do
		pkill -KILL -f -- "worker $MODEL --ring $work/ring --node n$((1 + RANDOM % ($1 - 1)))" || true
	done
}

# in_a_ring N TOKENS: rings of N nodes, until that many tokens have been said.
in_a_ring() {
	local n=$1 until=$((n_tokens + $2)) seed=0 index way
	for ((index = 0; index < n; index++)); do
		say "n$index 127.0.0.1:$((PORT + index)) $((index * 6 / n))..$(((index + 1) * 6 / n))"
	done >"$work/ring"
	PORT=$((PORT + n))
	set -m
	for ((index = 1; index < n; index++)); do keep_working "$index" & pids+=($!); done
	kill_workers "$n" & pids+=($!)
	set +m
	unset LEAP_ISA
	while [ "$n_tokens" -lt "$until" ]; do
		seed=$((seed + 1))
		way=("$MODEL" -p "A ring of $n, number $seed" -n "$N_PREDICT" --ctx 512 --seed "$seed" --temp "${TEMPERATURES[seed % 2]}"
			--kv "${KINDS[seed % ${#KINDS[@]}]}")
		tell "$work/plain" "${PROGRAM[@]}" run "${way[@]}" --draft off </dev/null
		tell "$work/drafted" "${PROGRAM[@]}" master "${way[@]}" --ring "$work/ring" --node n0 --draft "${DRAFTS[seed / 2 % 2]}" </dev/null
		same "a ring of $n, ${way[*]}"
	done
	end_workers
}

# Three in five tokens on a board, the rest in rings.
soak() {
	local seed=0 n
	printf 'Once upon a time\nThe dog said:\nOnce upon a time there was a cat\nTim and Mia\nOnce upon a time\n' >"$work/prompts"
	while [ "$n_tokens" -lt $((TOKENS * 3 / 5)) ]; do
		on_a_board "$seed"
		seed=$((seed + 1))
	done
	say "$n_texts texts of $n_tokens tokens on a board: the same with drafts and without"
	for n in 2 3 4 5; do in_a_ring "$n" $((TOKENS / 10)); done
	say "$n_texts texts of $n_tokens tokens on boards and rings: 0 differ"
}

begin_steps
trap 'code=$?; clean_up; end_steps $code' EXIT
step "soak" soak
