#!/usr/bin/env python3
"""Makes the checkpoints of tests/golden: make-fixtures.py SOURCE [OUT]

SOURCE is the folder with the reference models llama3-tiny, llama2-meta-tiny and
mistral-tiny; OUT is tests/golden by default. Needs nothing but Python 3.

Weights and configuration are copied as they are. golden.json is written without white space,
without what is no number, and with logits rounded to at most 3e-5 of the largest.
"""

import json
import math
import pathlib
import shutil
import sys

def tidy(value, decimals=4):
    """The value with short floats, and without members that are NaN."""
    if isinstance(value, dict):
        is_number = lambda inner: not isinstance(inner, float) or math.isfinite(inner)
        return {key: tidy(inner, 4) for key, inner in value.items() if is_number(inner)}
    if isinstance(value, list) and value and isinstance(value[0], float):
        largest = max(map(abs, value))
        decimals = math.ceil(-math.log10(2 * 3e-5 * largest))
    if isinstance(value, list):
        return [tidy(inner, decimals) for inner in value]
    if isinstance(value, float):
        return round(value, decimals)
    return value


def write_golden(golden, out):
    text = json.dumps(tidy(golden), separators=(",", ":"), allow_nan=False)
    (out / "golden.json").write_text(text + "\n")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else default
    # Models to copy beside golden.json.
    models = {
        "llama3-tiny": ["*.safetensors", "*.index.json", "*config.json"],
        "llama2-meta-tiny": ["*.pth", "params.json"],
        "mistral-tiny": ["*.bin", "*config.json"],
    }
    for model, patterns in models.items():
        print(model)
        (out / model).mkdir(parents=True, exist_ok=True)
        golden = json.loads((source / model / "golden.json").read_text())
        for path in (path for pattern in patterns for path in (source / model).glob(pattern)):
            if path.name != "tokenizer_config.json":
                shutil.copyfile(path, out / model / path.name)
        write_golden(golden, out / model)


main()
