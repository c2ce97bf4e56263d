#!/usr/bin/env bash
# `leap serve` beside llama.cpp's server: one made-up model, one machine, one run. Builds llama.cpp from the source package of
# PyPI's llama-cpp-python below target/llama, which takes half an hour on two cores the first time. Without drafts, as a
# made-up model repeats itself.
# Usage: bench-serve.sh [ROUNDS]; CORES (both sides' threads, default all), VERSION (2 or 3) in the environment.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

LLAMA=$TARGET_DIR/llama
LLAMA_VERSION=0.3.36
N_THREADS=${CORES:-$(nproc)}
PORT=${LEAP_TEST_PORT:-18090}
[ $# -le 1 ] || die "usage: ${0##*/} [ROUNDS]"

begin_steps
need_tools python3:python3 g++:g++
venv=$LLAMA/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv" || die "python3 has no venv; install python3-venv"
"$venv/bin/pip" -q install cmake gguf numpy

fetch_llama() {
	local index url
	index=$("$venv/bin/pip" config get global.index-url 2>/dev/null || echo https://pypi.org/simple)
	url=$(curl -fsSL "$index/llama-cpp-python/" | grep -o "href=\"[^\"#]*llama_cpp_python-$LLAMA_VERSION\.tar\.gz" | head -n 1)
	url=${url#href=\"}
	[ -n "$url" ] || die "no source package of llama-cpp-python $LLAMA_VERSION"
	mkdir -p "$LLAMA/source"
	curl -fsSL "$url" | tar xz --strip-components=1 -C "$LLAMA/source"
}

build_llama() {
	"$venv/bin/cmake" -S "$LLAMA/source/vendor/llama.cpp" -B "$LLAMA/build" -DCMAKE_BUILD_TYPE=Release \
		-DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF >"$LLAMA/cmake.log"
	"$venv/bin/cmake" --build "$LLAMA/build" --target llama-server -j "$(nproc)" >"$LLAMA/build.log"
}

[ -d "$LLAMA/source/vendor" ] || step "llama.cpp's source" fetch_llama
[ -x "$LLAMA/build/bin/llama-server" ] || step "llama.cpp" build_llama
step "leap" cargo build --release --locked
gguf=$LLAMA/tinyllama.gguf
[ -e "$gguf" ] || step "model" "$venv/bin/python" scripts/bench-serve.py model "$gguf"

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
step "servers" "$venv/bin/python" scripts/bench-serve.py run --rounds "${1:-3}" "leap=127.0.0.1:$PORT" "llama.cpp=127.0.0.1:$((PORT + 1))"
