#!/usr/bin/env python3
"""Version 5 on files of every kind that llama-quantize writes, as a table in Markdown: see kinds.sh, which calls it.

kinds.py --leap FILE --llama FOLDER --work FOLDER GGUF [--kinds "Q8_0 Q4_0:pure Q8_0:ffn=mxfp4 ..."] [--text FILE]
         [--window 512] [--windows 4]

LEAP is the program, LLAMA the folder of llama.cpp's tools, WORK is written to. A kind may be followed by `pure`, or by
tensors and their own kind. Needs gguf and numpy.
"""

import argparse
import json
import pathlib
import re
import sys

import gguf
import numpy as np

from quality import FIGURES, SCRIPTS, Failed, call, ids_of, say

ROOT = SCRIPTS.parent
# Prose and code, of which every tokenizer makes more than 4096 ids.
TEXTS = (ROOT / "LICENSE-APACHE", ROOT / "src/model/pass.rs")
KINDS = ("Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K_S Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS Q3_K_M Q2_K F16 BF16 "
         "Q8_0:ffn=mxfp4 Q4_0:pure Q5_0:pure Q4_K:pure Q5_K:pure Q6_K:pure IQ4_NL:pure IQ4_XS:pure")
FLOATS = ("F32", "F16", "BF16")
PLAIN = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")
# llama-perplexity's file of a reference has no likelihood below e^-16 of the greatest, so its perplexity is not this.
OWN_PERPLEXITY = r"Final estimate: PPL = (\S+)"
HEADER_BYTES, FEATURES_LEN_AT = 256, 232
# The tensors' names in GGUF files.
NAMES = {
    "embedding": "token_embd", "final_norm": "output_norm", "classifier": "output", "attention_norm": "attn_norm",
    "ffn_norm": "ffn_norm", "wq": "attn_q", "wk": "attn_k", "wv": "attn_v", "wo": "attn_output", "w1": "ffn_gate",
    "w2": "ffn_down", "w3": "ffn_up", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "attention_post_norm": "post_attention_norm", "ffn_post_norm": "post_ffw_norm",
}
# Tensors whose rows stand in pairs in LEAP's files, and in two halves of each head in most GGUF files.
PAIRED = ("wq", "wk", "q_norm", "k_norm")
PAIRED_FAMILIES = ("llama", "smollm3", "granite", "mistral3")


class Gguf:
    """A GGUF file's values, named and ordered as in LEAP's files."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.family = reader.get_field("general.architecture").contents()
        n_heads = reader.get_field(f"{self.family}.attention.head_count").contents()
        head_dim = reader.get_field(f"{self.family}.attention.key_length")
        dim = reader.get_field(f"{self.family}.embedding_length").contents()
        self.head_dim = head_dim.contents() if head_dim else dim // n_heads

    def tensor(self, name):
        layer, _, kind = name.rpartition(".")
        place = f"{layer.replace('layers', 'blk')}.{NAMES[kind]}" if layer else NAMES[kind]
        return self.tensors[f"{place}.weight"]

    def values(self, name):
        tensor = self.tensor(name)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        if name.rpartition(".")[2] not in PAIRED or self.family in PAIRED_FAMILIES:
            return values
        halves = values.reshape(-1, 2, self.head_dim // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)


def stored(leap, path):
    """Name, rows, columns, offset and bytes of each tensor of a model file."""
    table = call(leap, "info", path, "--tensors")
    found = re.findall(r"^(\S+) +\[(\d+), (\d+)\] at (\d+), (\d+) bytes", table, re.MULTILINE)
    return [(name, *map(int, numbers)) for name, *numbers in found]


def differing(leap, path, original):
    """How many of a model file's weights, and of its types of blocks, are not those of the GGUF file."""
    file, n_weights, n_types = path.read_bytes(), 0, 0
    types = HEADER_BYTES + int.from_bytes(file[FEATURES_LEN_AT : FEATURES_LEN_AT + 4], "little")
    version = int.from_bytes(file[4:8], "little")
    for name, rows, cols, offset, size in stored(leap, path):
        wanted, kind = original.values(name).reshape(rows, cols), gguf.GGMLQuantizationType.F32
        if rows > 1 and version == 5:
            kind = gguf.GGMLQuantizationType(file[types])
            types += 1
            own = original.tensor(name).tensor_type
            n_types += own.name not in FLOATS and own != kind
            if own.name in FLOATS:
                continue
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        data = np.frombuffer(file, np.uint8, rows * cols // block * block_bytes, offset).reshape(rows, -1)
        found = gguf.quants.dequantize(data.view(np.float32) if kind.name == "F32" else data, kind)
        n_weights += int((found.view(np.uint32) != wanted.view(np.uint32)).sum())
    return n_weights, n_types


class Kinds:
    """One model, the text that judges its files, and the programs."""

    def __init__(self, words):
        self.leap, self.llama, self.work, self.words = words.leap, words.llama, words.work, words
        self.work.mkdir(parents=True, exist_ok=True)
        self.original = self.work / "original.gguf"
        self.quantise(words.gguf, self.original, "F32")
        self.text = words.text or self.work / "text.txt"
        if not words.text:
            self.text.write_text("\n".join(path.read_text()[:9000] for path in TEXTS))

    def quantise(self, source, out, kind, *more):
        call(self.llama / "llama-quantize", "--allow-requantize", *more, source, out, kind, "2")

    def export(self, source, version):
        out = self.work / f"v{version}.bin"
        call(self.leap, "export", out, "--gguf", source, "--version", version, "--verify")
        return out

    def perplexity(self, path, *more):
        base = ("--kl-divergence-base", self.work / "base.bin")
        return call(self.llama / "llama-perplexity", "-m", path, "-f", self.text, "-c", self.words.window, "--chunks",
                    self.words.windows, "-t", "2", *PLAIN, *base, *more, with_log=True)

    def ids(self, bos):
        """Windows of the ids that llama-perplexity has read."""
        ids, window = ids_of(self.work / "base.bin"), self.words.window
        parts = [ids[at : at + window] for at in range(0, len(ids), window)]
        if ids[0] == bos:
            parts = [[bos, *part[1:]] for part in parts]
        path = self.work / "ids.json"
        path.write_text(json.dumps(parts))
        return path

    def judge(self, path):
        """How far either program's run of a file is from the file's own weights in f32."""
        same = self.work / "same.gguf"
        self.quantise(path, same, "F32")
        base = float(re.search(OWN_PERPLEXITY, self.perplexity(same))[1])
        told = self.perplexity(path, "--kl-divergence")
        theirs = {name: float(re.search(pattern, told)[1]) for name, pattern in FIGURES.items()}
        theirs |= {"base": base, "ratio": theirs["perplexity"] / base}
        f32, exact = self.work / "v1.bin", self.work / "v5.bin"
        ids = self.ids(json.loads(call(self.leap, "info", f32, "--json")).get("bos"))
        window = self.words.window
        ours = call(self.leap, "eval", exact, "--against", f32, "--json", "--ids", ids, "--window", window, "--skip",
                    window // 2)
        return json.loads(ours), theirs

    def row(self, kind):
        name, _, way = kind.partition(":")
        path = self.work / f"{name}.gguf"
        say(f"llama-quantize {kind}")
        more = ["--tensor-type", way] if "=" in way else ["--pure"] if way else []
        self.quantise(self.original, path, name, *more)
        types = sorted({one.tensor_type.name for one in gguf.GGUFReader(path).tensors if len(one.shape) > 1})
        cells = [kind, " ".join(types), path.stat().st_size]
        try:
            f32 = self.export(path, 1)
            cells += [differing(self.leap, f32, Gguf(path))[0]]
            exact = self.export(path, 5)
        except Failed as why:
            return [*cells, why.args[0]]
        cells += ["+".join(map(str, differing(self.leap, exact, Gguf(path)))), exact.stat().st_size]
        ours, theirs = self.judge(path)
        ratio = ours["mean_kl"] / theirs["mean_kl"]
        cells += [f"{1e4 * ours['mean_kl']:.2f}", f"{1e4 * theirs['mean_kl']:.2f}", f"{ratio:.2f}"]
        cells += [f"{ours['perplexity_ratio']:.4f}", f"{theirs['ratio']:.4f}"]
        cells += [f"{ours['perplexity'] / ours['perplexity_ratio'] / theirs['base'] - 1:.1e}"]
        return cells

    def table(self):
        print("| file | types | bytes | f32: weights that differ | version 5: weights + types that differ | its bytes | "
              "KL, 1e-4 | llama.cpp's | ours / theirs | perplexity ratio | llama.cpp's | perplexities in f32: ratio - 1 |")
        print("|" + "---|" * 12)
        for kind in self.words.kinds.split():
            print("| " + " | ".join(map(str, self.row(kind))) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("leap", "llama", "work"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4)
    try:
        Kinds(parser.parse_args()).table()
    except Failed as why:
        sys.exit(why.args[0])


if __name__ == "__main__":
    main()
