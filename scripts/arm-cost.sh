#!/usr/bin/env bash
# Counts the AArch64 instructions of a token and predicts the cycles of the hot loops, without a board:
# [LEAP_COST_ISAS="neondot neoni8mm"] arm-cost.sh [SHAPE], by default tinyllama. Prints four tables.
#
# QEMU's user emulation counts what the build of benches/decode.rs as it is shipped executes, with the plugin
# benches/tcg-count.c. Layers cost the same each, so models of one layer and of two tell the cost of
# any; where recurrent layers and others take turns, models of one turn and of two. Loops are those around the
# blocks that the plugin saw most, taken from the program's disassembly; llvm-mca says how many cycles they take on a core whose data are all in its first-level cache.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

SHAPE=${1:-tinyllama}
ISAS=${LEAP_COST_ISAS:-neondot neoni8mm}
OUT=$(realpath -m "$TARGET_DIR")/arm-cost
# Tokens of the prompt, in one batch.
PROMPT=128
# Rows of passes.
PASSES=(1 2 3 4 5 6 7 8 12 16)
# A loop is told if it is at least this part of its stage's instructions, in per cent.
SHARE_MIN=8
# Longest loop in instructions.
LOOP_MAX=4096

# The shape's own number of layers.
layers_of() {
	case $1 in
	tinyllama) echo 22 ;;
	llama3-1b) echo 16 ;;
	llama3-3b) echo 28 ;;
	llama3-8b | qwen3.5-4b) echo 32 ;;
	qwen3.5-0.8b | qwen3.5-2b) echo 24 ;;
	*) die "$1 is no shape: tinyllama, llama3-1b, llama3-3b, llama3-8b, qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b" ;;
	esac
}

# turn_of SHAPE: number of layers after which they repeat.
turn_of() { case $1 in qwen3.5-*) echo 4 ;; *) echo 1 ;; esac; }

# Cores that a tier's loops are predicted for, each with the products of bytes it can begin in a
# cycle: sdot or smmla of 16 bytes. Neoverse N1, N2 are the A76's and A710's twins for servers.
cores_of() {
	case $1 in
	neoni8mm) echo "neoverse-n2:2 cortex-a510:1" ;;
	*) echo "neoverse-n1:2 cortex-a55:1" ;;
	esac
}

build() {
	local flags copies
	flags=$(rustflags_of aarch64-unknown-linux-musl)
	copies=$(few_copies aarch64)
	export "$flags=$copies"
	# Benches unwind whatever the profile says; the standard library has to be built for that.
	CARGO_PROFILE_BOARD_STRIP=none CARGO_PROFILE_BOARD_PANIC=unwind musl aarch64 rustc --locked --profile board -p leap-lm --no-default-features --bench decode \
		--message-format json-render-diagnostics -- -C opt-level=3 >"$OUT/build.json"
	BENCH=$(sed -n 's/.*"name":"decode".*"executable":"\([^"]*\)".*/\1/p' "$OUT/build.json" | tail -n1)
	[ -x "$BENCH" ] || die "cargo named no program for benches/decode.rs"
	cc -Wall -Wextra -O2 -shared -fPIC -o "$OUT/tcg-count.so" benches/tcg-count.c
}

# count ISA VERSION TURNS: runs the bench; the plugin's lines go to a file of that name.
count() {
	QEMU_CPU=max LEAP_ISA=$1 qemu-aarch64 -plugin "$OUT/tcg-count.so,out=$OUT/$1-$2-$3" \
		"$BENCH" --shape "$SHAPE" --version "$2" --layers $(($3 * TURN)) --prompt "$PROMPT" \
			--passes "$(IFS=,; echo "${PASSES[*]}")" >"$OUT/$1-$2-$3.stdout"
}

# stage FILE NUMBER: instructions of the stage.
stage() { awk -v n="$2" '$1 == "stage" && ++i == n { print $2 }' "$1"; }

# per_token ISA VERSION STAGE TOKENS: of the whole model, in millions.
per_token() {
	local one two
	one=$(stage "$OUT/$1-$2-1" "$3")
	two=$(stage "$OUT/$1-$2-2" "$3")
	awk -v one="$one" -v two="$two" -v turns="$TURNS" -v tokens="$4" \
		'BEGIN { printf "%.1f", (one + (turns - 1) * (two - one)) / tokens / 1e6 }'
}

# passes ISA VERSION: of each number of rows.
passes() {
	local i one row
	one=$(per_token "$1" "$2" 4 1)
	row=$(per_token "$1" "$2" 3 "$PROMPT")
	for i in "${!PASSES[@]}"; do
		awk -v k="${PASSES[i]}" -v one="$one" -v row="$row" -v cost="$(per_token "$1" "$2" $((4 + i)) 1)" \
			'BEGIN { printf " %d: %.1f (%.2f)", k, cost, cost / (one > k * row ? one : k * row) }'
	done
	echo
}

# functions ISA VERSION STAGE TOKENS: those with at least a thousandth of the stage: millions of instructions
# a token of the whole model, part of the stage.
functions() {
	llvm-nm-19 --demangle --defined-only --numeric-sort --radix=d "$BENCH" |
		awk -v n="$3" -v tokens="$4" -v turns="$TURNS" '
			function value(hex,   i, v) {
				for (i = 3; i <= length(hex); i++) v = v * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
				return v
			}
			# The last symbol that is not behind the address.
			function symbol(at,   low, high, middle) {
				low = 1
				high = symbols + 1
				while (high - low > 1) {
					middle = int((low + high) / 2)
					if (address[middle] <= at) low = middle; else high = middle
				}
				return name[low]
			}
			FNR == 1 { file++; stage = 0 }
			file == 1 && $2 ~ /^[tTwW]$/ {
				address[++symbols] = $1 + 0
				sub(/^[0-9]+ [tTwW] /, "")
				name[symbols] = $0
			}
			$1 == "block" { work[$2] += $3 * $4 }
			$1 == "stage" {
				# One turn and two: what other turns take is the difference.
				weight = (file == 2 ? 2 - turns : turns - 1) / tokens / 1e6
				if (++stage == n) for (a in work) cost[symbol(value(a))] += weight * work[a]
				if (stage == n) total += weight * $2
				split("", work)
			}
			END {
				for (f in cost) if (cost[f] >= total / 1000) printf "%7.2f %5.1f %%  %s\n", cost[f], 100 * cost[f] / total, f
			}' - "$OUT/$1-$2-1" "$OUT/$1-$2-2" | sort -rn
}

# hot_blocks ISA VERSION STAGE: address and share of the stage, in per cent, of blocks with at least one.
hot_blocks() {
	awk -v n="$3" '
		$1 == "block" { work[$2] += $3 * $4 }
		$1 == "stage" && ++i == n { for (a in work) if (100 * work[a] >= $2) print a, 100 * work[a] / $2 }
		$1 == "stage" { delete work }' "$OUT/$1-$2-2"
}

# loop_around ADDRESS: first address and end of the smallest loop around the block that begins there,
# from the target of a branch back to that branch. Nothing if the function ends before.
loop_around() {
	llvm-objdump-19 -d --no-show-raw-insn --start-address="$1" --stop-address=$(($1 + 4 * LOOP_MAX)) "$BENCH" |
		awk -v start="$1" '
			function value(hex,   i, v) {
				for (i = 3; i <= length(hex); i++) v = v * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
				return v
			}
			# All is read even behind the end: objdump fails on a closed pipe.
			/^ *[0-9a-f]+:/ && !is_done {
				at = value("0x" substr($1, 1, length($1) - 1))
				if ($2 ~ /^(b\.|cbz|cbnz|tbz|tbnz)/ && match($0, /0x[0-9a-f]+( <.*)?$/)) {
					target = substr($0, RSTART)
					sub(/ <.*/, "", target)
					if (value(target) <= value(start)) { printf "%s 0x%x\n", target, at + 4; is_done = 1 }
				}
				if ($2 == "ret") is_done = 1
			}'
}

# hot_loops ISA VERSION STAGE: first address, end and share of the loops that are enough of the stage.
hot_loops() {
	local address share loop
	hot_blocks "$@" | while read -r address share; do
		loop=$(loop_around "$address")
		[ -z "$loop" ] || echo "$loop $share"
	done | awk -v min="$SHARE_MIN" '
		{ share[$1 " " $2] += $3 }
		END { for (loop in share) if (share[loop] >= min) print loop, share[loop] }' | sort -k3 -rn
}

# disassemble FROM TO: as the assembler wants it.
disassemble() {
	llvm-objdump-19 -d --no-show-raw-insn --no-leading-addr --start-address="$1" --stop-address="$2" "$BENCH" |
		sed -n 's/^[ \t]\{1,\}//p' | sed 's/0x[0-9a-f]* <.*>$/.Lloop/; s/[ \t]*\/\/.*//'
}

# cycles CPU FILE: of one round of the loop.
cycles() {
	{ echo ".Lloop:"; cat "$2"; } |
		llvm-mca-19 -mtriple=aarch64 -mcpu="$1" -mattr=+dotprod,+i8mm,+fullfp16 -iterations=200 2>>"$OUT/mca.log" |
		awk '/^Total Cycles:/ { printf "%.1f", $3 / 200 }'
}

# loop_row ISA FILE: what the cores make of the loop.
loop_row() {
	local core n cost
	n=$(grep -cE '^(sdot|smmla)' "$2" || true)
	printf '%5d %5d' "$(wc -l <"$2")" "$n"
	for core in $(cores_of "$1"); do
		cost=$(cycles "${core%:*}" "$2")
		[ -n "$cost" ] || die "llvm-mca does not take $2; see $OUT/mca.log"
		awk -v core="${core%:*}" -v cost="$cost" -v n="$n" -v slots="${core#*:}" \
			'BEGIN { printf "  %-12s %7.1f %4.0f %%", core, cost, 100 * n / slots / cost }'
	done
	echo
}

# loops ISA VERSION NAME STAGE
loops() {
	local from to share
	hot_loops "$1" "$2" "$4" | while read -r from to share; do
		disassemble "$from" "$to" >"$OUT/$1-$2-$3-$from.s"
		printf '%-9s %-7s %-8s %5.1f %%' "$1" "$(weights "$2")" "$3" "$share"
		loop_row "$1" "$OUT/$1-$2-$3-$from.s"
	done
}

weights() {
	case $1 in
	2) echo int8 ;;
	3) echo 4-bit ;;
	*) echo 4.5-bit ;;
	esac
}

TURN=$(turn_of "$SHAPE")
TURNS=$(($(layers_of "$SHAPE") / TURN))
need_tools qemu-aarch64:qemu-user cc:gcc /usr/include/stdlib.h:libc6-dev llvm-mca-19:llvm-19 llvm-objdump-19:llvm-19 llvm-nm-19:llvm-19
need_cargo
need_musl aarch64
mkdir -p "$OUT"
build
for isa in $ISAS; do
	for version in 2 3 4; do
		for turns in 1 2; do
			count "$isa" "$version" "$turns"
		done
	done
done

say "Instructions per token of $SHAPE, in millions, one thread; prompts are $PROMPT tokens in one batch"
say "tier      weights  decode  prefill"
for isa in $ISAS; do
	for version in 2 3 4; do
		printf '%-9s %-7s %8s %8s\n' "$isa" "$(weights "$version")" "$(per_token "$isa" "$version" 2 4)" \
			"$(per_token "$isa" "$version" 3 "$PROMPT")"
	done
done
say
say "Instructions per pass of so many rows, in millions; in brackets over the larger of one row's pass and as"
say "many rows of a prompt"
for isa in $ISAS; do
	for version in 2 3 4; do
		printf '%-9s %-7s' "$isa" "$(weights "$version")"
		passes "$isa" "$version"
	done
done
say
say "Functions of a prompt: millions of instructions a token, part of all"
for isa in $ISAS; do
	for version in 2 3 4; do
		functions "$isa" "$version" 3 "$PROMPT" | sed "s/^/$(printf '%-9s %-7s' "$isa" "$(weights "$version")") /"
	done
done
say
say "Hot loops: part of the stage's instructions; instructions and products of bytes (sdot, smmla) in a"
say "round; predicted cycles of a round, and how busy they keep the units for such products"
for isa in $ISAS; do
	for version in 2 3 4; do
		loops "$isa" "$version" decode 2
		loops "$isa" "$version" prefill 3
	done
done
