#!/usr/bin/env bash
# The chat page as a browser shows it: Debian's Chromium, on a desk and on a phone, asks servers of the demo model. By hand, as
# the browser takes 300 MB. Usage: test-page.sh [PROGRAM]
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 1 ] || die "usage: ${0##*/} [PROGRAM]"
PROGRAM=${1:-$TARGET_DIR/debug/leap}
[ -x "$PROGRAM" ] || die "$PROGRAM is no program; make it with: cargo build"
PORT=${LEAP_TEST_PORT:-18080}

begin_steps
need_tools python3:python3 chromium:chromium /usr/share/fonts/truetype/dejavu:fonts-dejavu-core

work=$(mktemp -d)
servers=()
trap 'code=$?; kill "${servers[@]}" 2>/dev/null; rm -rf "$work"; end_steps $code' EXIT

# serve PORT [OPTION...]: a server of the demo model, unless the options name others.
serve() {
	local port=$1
	shift
	"$PROGRAM" serve --listen "127.0.0.1:$port" --quiet "$@" &
	servers+=($!)
	for _ in $(seq 100); do
		if python3 -c "import socket; socket.create_connection(('127.0.0.1', $port)).close()" 2>/dev/null; then return; fi
		kill -0 $! 2>/dev/null || die "the server has ended"
		sleep 0.1
	done
}

(umask 077 && head -c 24 /dev/urandom | base64 >"$work/keys")
serve "$PORT"
serve "$((PORT + 1))" --api-key-file "$work/keys"
serve "$((PORT + 2))" --models models/demo.bin,second=models/demo.bin
mkdir -p "$TARGET_DIR/page"
step "page" python3 scripts/test-page.py "http://127.0.0.1:$PORT/" "http://127.0.0.1:$((PORT + 1))/" "$(cat "$work/keys")" \
	"http://127.0.0.1:$((PORT + 2))/" "$TARGET_DIR/page"
say "$TARGET_DIR/page: what it looked like"
