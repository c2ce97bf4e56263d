#!/usr/bin/env bash
# Checks that `leap serve` gives each of 64 clients, who come and go, the text of `leap run` alone, and loses neither pages
# nor memory: on a board, and on a ring of three whose workers die. By hand: minutes for 1,000 answers.
# Usage: soak-serve.sh [ANSWERS [PROGRAM [MODEL KV_MEMORY]]]; default 10000 answers, ten times as many requests, the demo
# model. KV_MEMORY holds about two contexts of 512 tokens.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -le 2 ] || [ $# = 4 ] || die "usage: ${0##*/} [ANSWERS [PROGRAM [MODEL KV_MEMORY]]]"
ANSWERS=${1:-10000}
PROGRAM=${2:-$TARGET_DIR/debug/leap}
case $ANSWERS in *[!0-9]* | '') die "$ANSWERS is no number" ;; esac
[ "$ANSWERS" -ge 100 ] || die "fewer than 100 answers show nothing"
[ -x "$PROGRAM" ] || die "$PROGRAM is no program; make it with: cargo build"

begin_steps
need_tools python3:python3
work=$(mktemp -d)
trap 'code=$?; rm -rf "$work"; end_steps $code' EXIT
step "soak" python3 scripts/soak-serve.py "$PROGRAM" "$work" "$ANSWERS" $((ANSWERS * 10)) "${@:3}"
