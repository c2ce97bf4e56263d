#!/usr/bin/env bash
# Whether texts are the same with drafts and without: every tier of this CPU, keys and values in f16, f32 and int8, greedy and
# at temperature 0.8, alone and several at a time, guessed from what was said, by a smaller model, and by a draft node; then rings
# of 2 to 5 nodes. Workers and draft nodes are killed meanwhile. By hand: minutes for 100,000 tokens.
# Usage: [FORCED=1] [FIRST=0] [LEAP_ISAS="neon neondot"] [KILL_EVERY=2] soak-drafts.sh [TOKENS [PROGRAM...]]; FORCED tries 1, 2 … 15 drafts
# at a time, in turn, whatever they cost; other texts begin from another FIRST. PROGRAM may be an emulator and its options, too. Then kill
# more rarely than every two seconds: a worker that starts anew must have time to catch up.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TOKENS=${1:-100000}
[ $# -eq 0 ] || shift
PROGRAM=("${@:-$TARGET_DIR/release/leap}")
KILL_EVERY=${KILL_EVERY:-2}
FORCED=${FORCED:-} FIRST=${FIRST:-0}
for number in "$TOKENS" "$KILL_EVERY" "$FIRST"; do
	case $number in *[!0-9]* | '') die "$number is no number" ;; esac
done
command -v "${PROGRAM[0]}" >/dev/null || die "${PROGRAM[0]} is no program; make it with: cargo build --release"

MODEL=models/demo.bin
DRAFTS=(auto models/demo-draft.bin node)
KINDS=(f16 f32 int8)
TEMPERATURES=(0 0.8)
N_PREDICT=400
PORT=$((22000 + $$ % 200 * 50))
guesses=()
read -ra ISAS <<<"${LEAP_ISAS:-$(case $(uname -m) in x86_64) say scalar avx2 ;; *) say scalar neon ;; esac)}"

work=$(mktemp -d)
pids=()
n_tokens=0 n_texts=0 n_drafted=0 n_accepted=0
end_workers() {
	local pid
	for pid in "${pids[@]}"; do
		kill -- "-$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	pids=()
	rm -f "$work"/pid-*
}

clean_up() {
	end_workers
	rm -rf "$work"
}

# tell FILE COMMAND...: what a program says; its tokens are counted.
tell() {
	local file=$1
	shift
	"$@" --json >"$file.json" 2>"$file.log" || { cat "$file.log" >&2; die "failed: $*"; }
	sed -E 's/.*"text": "(.*)", "stop_reason".*/\1/' "$file.json" >"$file"
	n_tokens=$((n_tokens + $(sum generated "$file.json")))
	n_drafted=$((n_drafted + $(sum drafted "$file.json"))) n_accepted=$((n_accepted + $(sum accepted "$file.json")))
	n_texts=$((n_texts + 1))
}

# sum WHAT FILE: that many tokens, of all texts in it.
sum() { grep -oE "\"$1_tokens\": [0-9]+" "$2" | awk '{ n += $2 } END { print n + 0 }'; }

# guess DRAFT SEED: options for one of the ways to guess, into `guesses`, and how many are tried at a time.
guess() {
	case $1 in
	node) guesses=(--draft-node "127.0.0.1:$((PORT + 9))" --key "$work/key") ;;
	*) guesses=(--draft "$1") ;;
	esac
	unset LEAP_DRAFTS
	if [ -n "$FORCED" ]; then export LEAP_DRAFTS=$(($2 % 15 + 1)); fi
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
		guess "$draft" "$seed"
		tell "$work/drafted" "${way[@]}" "${guesses[@]}" </dev/null
		same "$isa, ${way[*]} ${guesses[*]}, ${LEAP_DRAFTS:-as many as are worth it}"
	done
}

# keep_working NAME OPTION...: a worker that comes back whenever it ends.
keep_working() {
	local name=$1
	shift
	# In the group of this shell, which ends with it.
	set +m
	while :; do
		"${PROGRAM[@]}" worker "$@" --threads 1 >>"$work/worker.log" 2>&1 &
		say $! >"$work/pid-$name"
		wait $! || sleep 0.1
	done
}

# begin_working NAME OPTION...: the same, until `end_workers`.
begin_working() {
	set -m
	# A shell says who was killed.
	keep_working "$@" 2>/dev/null & pids+=($!)
	set +m
}

# Kills workers, now and then.
kill_workers() {
	local all
	while sleep "$KILL_EVERY"; do
		all=("$work"/pid-*)
		kill -KILL "$(cat "${all[RANDOM % ${#all[@]}]}")" 2>/dev/null || true
	done
}

# begin_killing: the same, until `end_workers`.
begin_killing() {
	set -m
	kill_workers & pids+=($!)
	set +m
}

# A node that guesses, where `guess` looks for it.
begin_guessing() { begin_working guess --draft-model models/demo-draft.bin --key "$work/key" --host 127.0.0.1 --port $((PORT + 9)); }

# in_a_ring N TOKENS: rings of N nodes, until that many tokens have been said. Those of an even number are sealed and have a draft
# node.
in_a_ring() {
	local n=$1 until=$((n_tokens + $2)) seed=$FIRST index way seal=() drafts=(auto models/demo-draft.bin)
	for ((index = 0; index < n; index++)); do
		say "n$index 127.0.0.1:$((PORT + index)) $((index * 6 / n))..$(((index + 1) * 6 / n))"
	done >"$work/ring"
	if [ $((n % 2)) -eq 0 ]; then
		seal=(--key "$work/key") drafts=("${DRAFTS[@]}")
		begin_guessing
	fi
	unset LEAP_ISA LEAP_DRAFTS
	for ((index = 1; index < n; index++)); do begin_working "$index" "$MODEL" --ring "$work/ring" --node "n$index" "${seal[@]}"; done
	begin_killing
	while [ "$n_tokens" -lt "$until" ]; do
		seed=$((seed + 1))
		way=("$MODEL" -p "A ring of $n, number $seed" -n "$N_PREDICT" --ctx 512 --seed "$seed" --temp "${TEMPERATURES[seed % 2]}"
			--kv "${KINDS[seed % ${#KINDS[@]}]}")
		tell "$work/plain" "${PROGRAM[@]}" run "${way[@]}" --draft off </dev/null
		guess "${drafts[seed / 2 % ${#drafts[@]}]}" "$seed"
		[ "${guesses[0]}" = --draft-node ] || guesses+=("${seal[@]}")
		tell "$work/drafted" "${PROGRAM[@]}" master "${way[@]}" --ring "$work/ring" --node n0 "${guesses[@]}" </dev/null
		same "a ring of $n, ${way[*]} ${guesses[*]}, ${LEAP_DRAFTS:-as many as are worth it}"
	done
	end_workers
	PORT=$((PORT + 10))
}

# Three in five tokens on a board, the rest in rings.
soak() {
	local seed=$FIRST n
	head -c 32 /dev/urandom >"$work/key"
	chmod 600 "$work/key"
	printf 'Once upon a time\nThe dog said:\nOnce upon a time there was a cat\nTim and Mia\nOnce upon a time\n' >"$work/prompts"
	begin_guessing
	begin_killing
	while [ "$n_tokens" -lt $((TOKENS * 3 / 5)) ]; do
		on_a_board "$seed"
		seed=$((seed + 1))
	done
	end_workers
	PORT=$((PORT + 10))
	say "$n_texts texts of $n_tokens tokens on a board: the same with drafts and without"
	for n in 2 3 4 5; do in_a_ring "$n" $((TOKENS / 10)); done
	say "$n_texts texts of $n_tokens tokens on boards and rings: 0 differ; $n_accepted of $n_drafted drafts were right"
}

begin_steps
trap 'code=$?; clean_up; end_steps $code' EXIT
step "soak" soak
