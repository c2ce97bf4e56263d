#!/usr/bin/env bash
# `leap serve` as the clients see it that people use: the packages openai and ollama of PyPI, in a virtual environment
# below target/; with --all also langchain-openai, litellm, pydantic-ai, instructor, llama-index, what Home Assistant's
# integrations send, and npm's openai, ollama and ai (Debian: nodejs, npm).
# Usage: test-clients.sh [--all] [PROGRAM]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

ALL=
if [ "${1:-}" = --all ]; then
	ALL=1
	shift
fi
[ $# -le 1 ] || die "usage: ${0##*/} [--all] [PROGRAM]"
PROGRAM=${1:-$TARGET_DIR/debug/leap}
[ -x "$PROGRAM" ] || die "$PROGRAM is no program; make it with: cargo build"
VENV=$TARGET_DIR/clients-venv
NODE=$TARGET_DIR/clients-node
PORT=${LEAP_TEST_PORT:-18080}

begin_steps
need_tools python3:python3
[ -z "$ALL" ] || need_tools node:nodejs npm:npm
# packages FOLDER PACKAGE...: packages in a virtual environment.
packages() {
	local folder=$1
	shift
	[ -x "$folder/bin/pip" ] || python3 -m venv "$folder" || die "python3 has no venv; install python3-venv"
	"$folder/bin/pip" -q install "$@"
}
packages "$VENV" openai ollama
if [ -n "$ALL" ]; then
	# litellm asks for tools through mcp, which it does not bring.
	packages "$VENV" langchain-openai litellm mcp
	# Each of these wants its own versions of what they share.
	packages "$VENV-pydantic-ai" "pydantic-ai-slim[openai]"
	packages "$VENV-instructor" instructor
	packages "$VENV-llama-index" llama-index-core llama-index-llms-openai-like llama-index-llms-ollama
	mkdir -p "$NODE"
	# Modules are looked for above the script that asks for them.
	cp scripts/test-clients.mjs scripts/test-ai-sdk.mjs "$NODE/"
	npm install --prefix "$NODE" --silent --no-fund --no-audit openai ollama ai @ai-sdk/openai-compatible \
		ollama-ai-provider-v2 zod
fi

work=$(mktemp -d)
trap 'code=$?; kill "${servers[@]}" 2>/dev/null; rm -rf "$work"; end_steps $code' EXIT
head -c 24 /dev/urandom | base64 >"$work/keys"
chmod 600 "$work/keys"
# serve PORT [MODEL]: a server, once it listens; its process is added to servers.
servers=()
serve() {
	local port=$1
	shift
	"$PROGRAM" serve "$@" --listen "127.0.0.1:$port" --api-key-file "$work/keys" --quiet &
	servers+=($!)
	for _ in $(seq 100); do
		if python3 -c "import socket; socket.create_connection(('127.0.0.1', $port)).close()" 2>/dev/null; then return; fi
		kill -0 "${servers[-1]}" 2>/dev/null || die "the server has ended"
		sleep 0.1
	done
	die "the server does not listen"
}

serve "$PORT"
# Weights are random, but its template has words for tools.
XDG_CACHE_HOME=$work serve $((PORT + 1)) tests/golden/qwen3-tiny
step "clients" "$VENV/bin/python" scripts/test-clients.py "127.0.0.1:$PORT" "127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")"
[ -n "$ALL" ] || exit 0
step "npm's clients" node "$NODE/test-clients.mjs" "127.0.0.1:$PORT" "127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")"
step "Vercel's ai" node "$NODE/test-ai-sdk.mjs" "127.0.0.1:$PORT" "127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")"
step "Home Assistant's integrations" "$VENV/bin/python" scripts/test-assistant.py \
	"127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")"
for package in pydantic-ai instructor llama-index; do
	step "$package" "$VENV-$package/bin/python" scripts/test-frameworks.py \
		"127.0.0.1:$PORT" "127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")" "$package"
done
# litellm has a list of prices of its own, and asks for another one otherwise.
export LITELLM_LOCAL_MODEL_COST_MAP=True
step "langchain-openai and litellm" "$VENV/bin/python" scripts/test-chains.py \
	"127.0.0.1:$PORT" "127.0.0.1:$((PORT + 1))" "$(cat "$work/keys")"
