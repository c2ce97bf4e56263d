#!/usr/bin/env bash
# Distils models/demo-draft.bin from models/demo.bin with PyTorch, in a virtual environment below target/ (PyPI's
# brings several GB there): distill-draft.sh [--minutes N]. See distill-draft.py.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

VENV=$TARGET_DIR/draft-venv

need_tools python3:python3 cc:gcc
need_cargo
[ -x "$VENV/bin/pip" ] || python3 -m venv "$VENV" || die "python3 has no venv; install python3-venv"
"$VENV/bin/pip" -q install torch numpy
cargo build --locked --release --bin leap
OMP_NUM_THREADS=1 "$VENV/bin/python3" scripts/distill-draft.py "$TARGET_DIR/release/leap" "$TARGET_DIR/draft" "$@"
