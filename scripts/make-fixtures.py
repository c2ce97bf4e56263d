#!/usr/bin/env python3
"""Makes the checkpoints of tests/golden: make-fixtures.py SOURCE [OUT]

SOURCE is the folder with the reference models llama3-tiny, llama2-meta-tiny and
mistral-tiny; OUT is tests/golden by default. Needs nothing but Python 3.

llama3-tiny is copied. The other two hold their weights as PyTorch files; these become
safetensors files with the same names, types and bytes. golden.json is written without
white space, with NaN as null and logits rounded to at most 3e-5 of the largest.

The reference outputs of those two come from a program that converted the whole model to f16,
its RoPE frequencies too. That is no part of the model: tests compare with them rounded alike.
"""

import collections
import json
import math
import pathlib
import pickle
import shutil
import struct
import sys
import zipfile

DTYPES = {"HalfStorage": ("F16", 2), "BFloat16Storage": ("BF16", 2), "FloatStorage": ("F32", 4)}


class Tensor:
    """What a PyTorch file says about a tensor: its storage's key and its place in it."""

    def __init__(self, storage, offset, shape, stride, *_):
        self.dtype, self.key = storage
        self.offset, self.shape, self.stride = offset, shape, stride

    def is_contiguous(self):
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


class Unpickler(pickle.Unpickler):
    """Reads the table of tensors and refuses to call anything else."""

    def find_class(self, module, name):
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in DTYPES:
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is not a tensor")

    def persistent_load(self, pid):
        _, dtype, key, _, _ = pid
        return dtype, key


def read_pytorch(path):
    """The tensors of a PyTorch file: name to (type, shape, bytes)."""
    tensors = {}
    with zipfile.ZipFile(path) as archive:
        root = next(n for n in archive.namelist() if n.endswith("/data.pkl"))[: -len("data.pkl")]
        with archive.open(root + "data.pkl") as table:
            entries = Unpickler(table).load()
        for name, tensor in entries.items():
            if not tensor.is_contiguous():
                sys.exit(f"{path}: {name} is not contiguous")
            dtype, width = DTYPES[tensor.dtype]
            start = tensor.offset * width
            end = start + math.prod(tensor.shape) * width
            values = archive.read(f"{root}data/{tensor.key}")[start:end]
            tensors[name] = (dtype, list(tensor.shape), values)
    return tensors


def write_safetensors(path, tensors):
    table, offset = {}, 0
    for name, (dtype, shape, values) in tensors.items():
        end = offset + len(values)
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _, _, values in tensors.values():
            file.write(values)


def tidy(value, decimals=4):
    """The value with NaN as null and short floats."""
    if isinstance(value, dict):
        return {key: tidy(inner, 4) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], float):
        largest = max(map(abs, value))
        decimals = math.ceil(-math.log10(2 * 3e-5 * largest))
    if isinstance(value, list):
        return [tidy(inner, decimals) for inner in value]
    if isinstance(value, float):
        return round(value, decimals) if math.isfinite(value) else None
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
    # What is copied, and for two of them the PyTorch file and what it becomes.
    models = {
        "llama3-tiny": (["*.safetensors", "*.index.json", "*config.json"], None, None),
        "llama2-meta-tiny": (["params.json"], "*.pth", "consolidated.00.safetensors"),
        "mistral-tiny": (["*config.json"], "*.bin", "model.safetensors"),
    }
    for model, (patterns, pytorch, converted) in models.items():
        print(model)
        (out / model).mkdir(parents=True, exist_ok=True)
        golden = json.loads((source / model / "golden.json").read_text())
        for path in (path for pattern in patterns for path in (source / model).glob(pattern)):
            if path.name != "tokenizer_config.json":
                shutil.copyfile(path, out / model / path.name)
        if pytorch:
            tensors = read_pytorch(next((source / model).glob(pytorch)))
            write_safetensors(out / model / converted, tensors)
        write_golden(golden, out / model)


main()
