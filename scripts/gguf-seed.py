#!/usr/bin/env python3
"""Makes a seed for the fuzzer of a GGUF file: gguf-seed.py FILE OUT

All fields stay, with arrays cut to a few values, and the first tensors as one block of F32 each: so that the bytes are
few and the fields are still read as those of a model.
"""
import struct
import sys

from small_gguf import ARRAY, STRING, behind

VALUES_MAX = 24
TENSORS_MAX = 24
ALIGNMENT = 32


def string_end(file, at):
    return at + 8 + struct.unpack_from("<Q", file, at)[0]


def field(file, at):
    """The field at `at`, with an array cut short, and the place behind it."""
    name_end = string_end(file, at)
    kind = struct.unpack_from("<I", file, name_end)[0]
    end = behind(file, name_end + 4, kind)
    if kind != ARRAY:
        return file[at:end], end
    of, n = struct.unpack_from("<IQ", file, name_end + 4)
    start = place = name_end + 16
    kept = min(n, VALUES_MAX)
    for _ in range(kept):
        place = behind(file, place, of)
    return file[at:name_end + 4] + struct.pack("<IQ", of, kept) + file[start:place], end


def main(path, out):
    file = open(path, "rb").read()
    n_tensors, n_fields = struct.unpack_from("<QQ", file, 8)
    at, fields, tensors = 24, b"", b""
    for _ in range(n_fields):
        one, at = field(file, at)
        # A chat template is fuzzed for itself.
        fields += one if len(one) < 4096 else b""
        n_fields -= len(one) >= 4096
    n_tensors = min(n_tensors, TENSORS_MAX)
    for index in range(n_tensors):
        name = file[at:string_end(file, at)]
        n_dims = struct.unpack_from("<I", file, at + len(name))[0]
        at += len(name) + 4 + 8 * n_dims + 12
        tensors += name + struct.pack("<IQIQ", 1, ALIGNMENT // 4, 0, index * ALIGNMENT)
    head = file[:8] + struct.pack("<QQ", n_tensors, n_fields) + fields + tensors
    head += bytes(-len(head) % ALIGNMENT)
    open(out, "wb").write(head + bytes(n_tensors * ALIGNMENT))


main(*sys.argv[1:])
