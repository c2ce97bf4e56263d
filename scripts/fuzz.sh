#!/usr/bin/env bash
# Fuzzes the parsers of files and packets. Usage: fuzz.sh [SECONDS [TARGET...]]; default 60 seconds each, all targets
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

SECONDS_EACH=${1:-60}
[ $# -eq 0 ] || shift
case $SECONDS_EACH in *[!0-9]* | '') die "usage: ${0##*/} [SECONDS [TARGET...]]" ;; esac

FUZZ_DIR=$TARGET_DIR/fuzz
# The flags of cargo-fuzz, less the address sanitizer, which needs an unstable compiler: edges and comparisons are
# counted, and arithmetic is checked. The crate's own profile adds assertions.
FUZZ_FLAGS="--cfg fuzzing -C passes=sancov-module -C codegen-units=1
	-C llvm-args=-sanitizer-coverage-level=4
	-C llvm-args=-sanitizer-coverage-inline-8bit-counters
	-C llvm-args=-sanitizer-coverage-pc-table
	-C llvm-args=-sanitizer-coverage-trace-compares"

targets() { sed -n 's/^name = "\(.*\)"/\1/p' tests/fuzz/Cargo.toml | grep -v '^leap-fuzz$'; }

# build HOST: all targets. A target of its own keeps the flags from build scripts.
build() {
	RUSTFLAGS=${FUZZ_FLAGS//$'\n'/ } cargo build --release --target "$1" \
		--manifest-path tests/fuzz/Cargo.toml --target-dir "$FUZZ_DIR"
}

# seed NAME: what models of tests/golden say of themselves, which chance would be long in finding.
seed() {
	local file seed
	for file in tests/golden/*/*; do
		seed=$FUZZ_DIR/corpus/$1/${file//\//-}
		case $1:${file##*/} in
		# The first byte says which file it is.
		config:config.json) { printf '\0' && cat "$file"; } >"$seed" ;;
		config:params.json) { printf '\1' && cat "$file"; } >"$seed" ;;
		tokenizer_json:tokenizer.json | chat_template:tokenizer_config.json)
			python3 - "$file" >"$seed" <<-'PYTHON'
				import json, sys
				value = json.load(open(sys.argv[1]))
				print(value.get("chat_template") or json.dumps(value, separators=(",", ":")), end="")
			PYTHON
			;;
		sentencepiece:tokenizer.model) cp "$file" "$seed" ;;
		gguf:*.gguf) scripts/gguf-seed.py "$file" "$seed" ;;
		esac
	done
}

# fuzz PROGRAM NAME: inputs found earlier are kept and used again; those that fail are kept too.
# Where chance would be long in finding what is parsed at all, tests/fuzz/seeds has some that are.
fuzz() {
	local corpus=("$FUZZ_DIR/corpus/$2")
	mkdir -p "$FUZZ_DIR/corpus/$2" "$FUZZ_DIR/failures/$2"
	seed "$2"
	[ ! -d "tests/fuzz/seeds/$2" ] || corpus+=("tests/fuzz/seeds/$2")
	"$1" -max_total_time="$SECONDS_EACH" -max_len=16384 -timeout=10 -rss_limit_mb=2048 \
		-print_final_stats=1 -verbosity=0 -artifact_prefix="$FUZZ_DIR/failures/$2/" "${corpus[@]}"
}

need_cargo
need_tools c++:g++ python3
host=$(rustc -vV | sed -n 's/^host: //p')
if [ $# -eq 0 ]; then
	mapfile -t names < <(targets)
else
	names=("$@")
fi
step "building fuzz targets" build "$host"
for name in "${names[@]}"; do
	program=$FUZZ_DIR/$host/release/$name
	[ -x "$program" ] || die "no fuzz target $name; there are $(targets | tr '\n' ' ')"
	step "fuzzing $name for $SECONDS_EACH s" fuzz "$program" "$name"
done
