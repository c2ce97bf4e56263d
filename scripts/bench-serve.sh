#!/usr/bin/env bash
# `leap serve` beside llama.cpp's server: one made-up model, one machine, one run. Builds llama.cpp from the source package of
# PyPI's llama-cpp-python below target/llama, which takes half an hour on two cores the first time. Without drafts, as a
# made-up model repeats itself.
# Usage: bench-serve.sh [ROUNDS]; CORES (both sides' threads, default all), VERSION (2 or 3) in the environment.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/llama-cpp.sh
. scripts/llama-cpp.sh

N_THREADS=${CORES:-$(nproc)}
PORT=${LEAP_TEST_PORT:-18090}
[ $# -le 1 ] || die "usage: ${0##*/} [ROUNDS]"

begin_steps
need_llama llama-server
step "leap" cargo build --release --locked
gguf=$LLAMA/tinyllama.gguf
[ -e "$gguf" ] || step "model" "$LLAMA/venv/bin/python" scripts/bench-serve.py model "$gguf"

work=$(mktemp -d)
servers=()
trap 'code=$?; kill "${servers[@]}" 2>/dev/null; rm -rf "$work"; end_steps $code' EXIT
# await PORT: until the server answers.
await() {
	for _ in $(seq 600); do
		if curl -fs "http://127.0.0.1:$1/health" >/dev/null; then return; fi
		kill -0 "${servers[-1]}" 2>/dev/null || die "the server has ended: $(tail -n 3 "$work/log")"
		sleep 1
	done
	die "the server does not answer"
}

"$TARGET_DIR/release/leap" serve "$gguf" --version "${VERSION:-2}" --listen "127.0.0.1:$PORT" --threads "$N_THREADS" \
	--streams 16 --ctx 4096 --draft off --name m --quiet 2>"$work/log" &
servers+=($!)
await "$PORT"
"$LLAMA/build/bin/llama-server" -m "$gguf" --port $((PORT + 1)) -t "$N_THREADS" -tb "$N_THREADS" -np 16 -c $((16 * 4096)) \
	>"$work/log" 2>&1 &
servers+=($!)
await $((PORT + 1))
step "servers" "$LLAMA/venv/bin/python" scripts/bench-serve.py run --rounds "${1:-3}" "leap=127.0.0.1:$PORT" "llama.cpp=127.0.0.1:$((PORT + 1))"
