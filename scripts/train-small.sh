#!/usr/bin/env bash
# Trains a small model that is not the demo into target/small, in a virtual environment below target/ (PyPI's PyTorch
# brings several GB there); a quarter of an hour on one thread: train-small.sh [--minutes N]. See train-small.py.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

VENV=$TARGET_DIR/draft-venv

need_tools python3:python3
[ -x "$VENV/bin/pip" ] || python3 -m venv "$VENV" || die "python3 has no venv; install python3-venv"
"$VENV/bin/pip" -q install torch numpy tokenizers safetensors
OMP_NUM_THREADS=1 "$VENV/bin/python3" scripts/train-small.py "$TARGET_DIR/small" "$@"
