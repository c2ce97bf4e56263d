#!/usr/bin/env bash
# Compares the int8 demo model with f32, from its checkpoint with validation_ids.json: eval-demo.sh CHECKPOINT_DIR
[ $# -ne 1 ] || set -- "$(realpath "$1")"
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || die "usage: ${0##*/} CHECKPOINT_DIR"
checkpoint=$1
ids=$checkpoint/validation_ids.json
[ -f "$ids" ] || die "$ids: no such file"
cases=$checkpoint/golden.json

need_tools python3:python3 cc:gcc
need_cargo
cargo build --locked --release --bin leap
leap=$TARGET_DIR/release/leap
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$leap" export "$work/f32.bin" --meta-llama "$checkpoint" --version 1
"$leap" export "$work/int8.bin" --meta-llama "$checkpoint" --version 2
cmp "$work/int8.bin" models/demo.bin || die "models/demo.bin is not this checkpoint's export"

if [ -f "$cases" ]; then
	say "f32 against the reference:"
	"$leap" eval "$work/f32.bin" --cases "$cases" --max-drift 2e-4 --min-top1 1 --greedy
fi
say "int8 against f32, windows of 256 ids:"
"$leap" eval "$work/int8.bin" --ids "$ids" --against "$work/f32.bin" --json | tee "$work/report.json"
python3 - "$work/report.json" "$ids" <<'EOF'
import json, sys

report, reference = (json.load(open(path)) for path in sys.argv[1:])
worse = report["perplexity"] / report["reference_perplexity"] - 1
figures = [
    ("f32 perplexity is the reference's, off by", abs(report["reference_perplexity"] / reference["perplexity_f32"] - 1), 1e-5),
    ("int8 perplexity is worse by", worse, 1e-3),
    ("mean KL", report["mean_kl"], 4e-5),
    ("top-1 that differs", 1 - report["top1_agreement"], 0.02),
]
for name, value, limit in figures:
    print(f"{name} {value:.2e}, limit {limit:.0e}: {'good' if value <= limit else 'BAD'}")
sys.exit(any(value > limit for _, value, limit in figures))
EOF
