#!/usr/bin/env bash
# Cost of quantising a model: quality.sh [CHECKPOINT_DIR] [--ids FILE | --text FILE] [--calibrate default|self|FILE]...
#
# Prints a table in Markdown of LEAP's files and llama.cpp's: bytes, perplexity, and how far the next token's likelihoods
# are from those of the weights in f32. CHECKPOINT_DIR is a Hugging Face folder, by default that of train-small.sh, and
# is judged by its validation_ids.json unless a file is named. Each --calibrate adds a row to every version and, as
# importance matrix, to every type; `self` is what the model writes itself at temperature 1 after its BOS, `default` the
# text that `leap export` has. Also --versions 2,3,4 (those that the program lacks are named and left out), --types
# Q8_0,Q4_0,Q4_K_S,Q4_K_M and --window 256.
#
# llama.cpp is given the same ids, as words of a made-up tokenizer (gguf_words.py). On all positions both are judged by
# `leap eval`, LEAP's files as they run and llama.cpp's weights in f32, so without what its int8 activations add. `late`
# are the positions that llama-perplexity counts, those of a window's second half: there each program runs its own file.
# Results go to target/quality.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/llama-cpp.sh
. scripts/llama-cpp.sh

called_from=$OLDPWD
case ${1:-} in
'' | -*) set -- "$(realpath "$TARGET_DIR")/small" "$@" ;;
esac

begin_steps
need_cargo
need_llama llama-quantize llama-imatrix llama-perplexity
step "leap" cargo build --release --locked --bin leap
target=$(realpath "$TARGET_DIR") llama=$(realpath "$LLAMA") scripts=$(realpath scripts)
cd "$called_from"
[ -f "$1/config.json" ] || die "$1: not the folder of a checkpoint; scripts/train-small.sh makes one"
step "quality" "$llama/venv/bin/python" "$scripts/quality.py" --leap "$target/release/leap" --llama "$llama/build/bin" \
	--work "$target/quality/$(basename "$1")" "$@"
