#!/usr/bin/env bash
# GGUF files of every kind beside llama.cpp: kinds.sh GGUF [--kinds "Q8_0 Q4_0:pure ..."] [--text FILE]
#
# llama-quantize makes a file of each kind from the model GGUF. Prints a table in Markdown: how many weights of LEAP's
# files differ from what PyPI's gguf dequantises (none should), and how far the next token's likelihoods are from those
# of the same weights in f32, in LEAP (version 5) and in llama.cpp. Files go to target/kinds.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/llama-cpp.sh
. scripts/llama-cpp.sh

called_from=$OLDPWD
[ $# -ge 1 ] || die "usage: ${0##*/} GGUF [--kinds KINDS] [--text FILE] [--window N] [--windows N]"

begin_steps
need_cargo
need_llama llama-quantize llama-perplexity
step "leap" cargo build --release --locked --bin leap
target=$(realpath "$TARGET_DIR") llama=$(realpath "$LLAMA") scripts=$(realpath scripts)
cd "$called_from"
step "kinds" "$llama/venv/bin/python" "$scripts/kinds.py" --leap "$target/release/leap" --llama "$llama/build/bin" \
	--work "$target/kinds/$(basename "$1" .gguf)" "$@"
