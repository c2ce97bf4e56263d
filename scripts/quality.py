#!/usr/bin/env python3
"""What quantising costs a model, here and in llama.cpp, as a table in Markdown: see quality.sh, which calls it.

quality.py --leap FILE --llama FOLDER --work FOLDER CHECKPOINT [--ids FILE | --text FILE] [--calibrate WHAT]...
           [--versions 2,3,4] [--types Q4_0,Q4_K_S,...] [--window 256]

LEAP is the program, LLAMA the folder of llama.cpp's tools, WORK is written to. Needs gguf and numpy.
"""

import argparse
import json
import pathlib
import re
import struct
import subprocess
import sys

import gguf

from gguf_words import TOKENIZER_KEYS, text_of

SCRIPTS = pathlib.Path(__file__).resolve().parent
DEFAULT_TEXT = SCRIPTS.parent / "src/cli/export/text.txt"
# As `leap export --calibrate` reads a text.
CALIBRATION_WINDOW, CALIBRATION_TOKENS = 512, 32 * 512
# A text of the model's own is made of so many bytes, by seeds from 1 on.
OWN_BYTES, OWN_TOKENS = 50000, 250
ALONE = ("-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32")
FIGURES = {
    "perplexity": r"Mean PPL\(Q\) +: +(\S+)", "mean_kl": r"Mean +KLD: +(\S+)", "median_kl": r"Median +KLD: +(\S+)",
    "p99_kl": r"99\.0% +KLD: +(\S+)", "top1_agreement": r"Same top p: +(\S+)",
}
# The exit code of `leap export` if it has no such version.
BAD_USAGE = 2


class Failed(Exception):
    """A program has failed: what it said, and its exit code."""


def call(*words, text="", with_log=False):
    """What a program has printed, and also its log if that is wanted."""
    ran = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True)
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
        raise Failed(f"{pathlib.Path(words[0]).name} {words[1]}: {last[0]}", ran.returncode)
    return ran.stdout + (ran.stderr if with_log else "")


def say(text):
    print(text, file=sys.stderr, flush=True)


class Quality:
    """One checkpoint, the ids that judge its files, and the texts that calibrate them."""

    def __init__(self, words):
        self.leap, self.llama, self.words = words.leap, words.llama, words
        self.checkpoint, self.work = words.checkpoint, words.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.f32 = self.work / "f32.bin"
        self.export(self.f32, 1)
        self.info = json.loads(call(self.leap, "info", self.f32, "--json"))
        self.ids = self.ids_that_judge()
        self.write_ids()
        self.left_out = []
        self.calibrations = [(what, *self.calibration(what)) for what in words.calibrate]

    def export(self, out, version, *more):
        say(f"leap export {out.name}")
        call(self.leap, "export", out, "--meta-llama", self.checkpoint, "--version", version, *more)

    def encode(self, text):
        out = call(self.leap, "tokenizer", self.work / "tokenizer.bin", "--encode", text=json.dumps(text) + "\n")
        return json.loads(out)

    def bos(self):
        return [self.info["bos"]] if isinstance(self.info["bos"], int) else []

    def ids_that_judge(self):
        if self.words.text:
            return self.bos() + self.encode(self.words.text.read_text())
        value = json.loads((self.words.ids or self.checkpoint / "validation_ids.json").read_text())
        return value["ids"] if isinstance(value, dict) else value

    def write_ids(self):
        """The ids for `leap eval`: all of them, and windows of which it counts what llama-perplexity counts."""
        window = self.words.window
        self.n_windows = (len(self.ids) - 1) // window
        if self.n_windows < 2:
            sys.exit(f"{len(self.ids)} ids are too few for two windows of {window}")
        self.all_ids, self.late_ids = self.work / "ids.json", self.work / "late-ids.json"
        self.all_ids.write_text(json.dumps(self.ids))
        parts = [self.ids[window * at : window * (at + 1)] for at in range(self.n_windows)]
        self.late_ids.write_text(json.dumps(parts))

    def calibration(self, what):
        """The text that calibrates, as a file, and its windows of ids."""
        path = self.own_text() if what == "self" else DEFAULT_TEXT if what == "default" else pathlib.Path(what)
        bos = self.bos()
        window = min(CALIBRATION_WINDOW, self.info["max_seq_len"])
        ids, step = self.encode(path.read_text())[:CALIBRATION_TOKENS], window - len(bos)
        return path, [bos + ids[at : at + step] for at in range(0, len(ids) - step + 1, step)]

    def own_text(self):
        path, int8 = self.work / "own.txt", self.work / "own-int8.bin"
        newest = max(file.stat().st_mtime for file in self.checkpoint.iterdir())
        if not path.exists() or path.stat().st_mtime < newest:
            self.export(int8, 2)
            say("leap run: the model's own text")
            texts, seed = [], 0
            while sum(map(len, texts)) < OWN_BYTES:
                seed += 1
                told = call(self.leap, "run", int8, "-q", "--json", "-p", "", "--temp", "1", "--seed", seed,
                            "-n", OWN_TOKENS)
                texts += [json.loads(line)["text"] for line in told.splitlines()]
            path.write_text("\n\n".join(texts) + "\n")
        return path

    def judge(self, model):
        """What `leap eval` finds of a file on all positions, and on those that llama-perplexity counts."""
        say(f"leap eval {model.name}")
        words = ("eval", model, "--against", self.f32, "--threads", "1", "--json")
        window = self.words.window
        every = call(self.leap, *words, "--ids", self.all_ids, "--window", window)
        late = call(self.leap, *words, "--ids", self.late_ids, "--window", window, "--skip", window // 2)
        return json.loads(every), json.loads(late)

    def ours(self):
        """LEAP's files, each without and with every calibration."""
        for version in self.words.versions:
            ways = [("", ())] + [(what, ("--calibrate", path if what != "default" else what))
                                 for what, path, _ in self.calibrations]
            for what, more in ways:
                path = self.work / f"v{version}-{pathlib.Path(what).stem or 'plain'}.bin"
                try:
                    self.export(path, version, *more)
                except Failed as why:
                    if why.args[1] != BAD_USAGE:
                        raise
                    self.left_out.append(f"Version {version}: {why.args[0]}")
                    break
                every, late = self.judge(path)
                yield f"LEAP version {version}", what, path, bits_of_ours(self.leap, path), every, late

    def theirs(self):
        """llama.cpp's files, without and with the importance matrix of every calibration. All positions are judged
        with their weights in f32."""
        if not self.words.types:
            return
        original, base = self.work / "f32.gguf", self.work / "base.bin"
        call(sys.executable, SCRIPTS / "make-gguf.py", self.checkpoint, original, "F32", "words")
        n_ids = self.n_windows * self.words.window
        text = self.work / "ids.txt"
        text.write_text(text_of(self.ids[:n_ids]))
        say("llama-perplexity f32.gguf")
        context = ("-c", self.words.window, "--kl-divergence-base", base)
        call(self.llama / "llama-perplexity", "-m", original, "-f", text, *context, *ALONE)
        if ids_of(base) != self.ids[:n_ids]:
            sys.exit("llama.cpp reads other ids")
        matrices = [("", ())]
        for what, _, windows in self.calibrations:
            out, text = self.work / f"{pathlib.Path(what).stem}.imatrix", self.work / "calibration-ids.txt"
            text.write_text("".join(map(text_of, windows)))
            say(f"llama-imatrix {out.name}")
            call(self.llama / "llama-imatrix", "-m", original, "-f", text, "-o", out, "-c", len(windows[0]), *ALONE)
            matrices.append((what, ("--imatrix", out)))
        for kind in self.words.types:
            # Q8_0 has no use for a matrix.
            for what, more in matrices[:1] if kind == "Q8_0" else matrices:
                path = self.work / f"{kind}-{pathlib.Path(what).stem or 'plain'}.gguf"
                say(f"llama-quantize {path.name}")
                call(self.llama / "llama-quantize", *more, original, path, kind, "1")
                told = call(self.llama / "llama-perplexity", "-m", path, "--kl-divergence", *context, *ALONE)
                late = {name: float(re.search(pattern, told)[1]) for name, pattern in FIGURES.items()}
                late["top1_agreement"] /= 100
                every, _ = self.judge(self.dequantised(path))
                yield f"llama.cpp {kind}", what, path, bits_of_theirs(path), every, late

    def dequantised(self, path):
        """The weights of a GGUF file as LEAP's file in f32. Its made-up tokenizer is of no use there."""
        bare, out = self.work / "bare.gguf", path.with_suffix(".f32.bin")
        keys = [word for key in TOKENIZER_KEYS for word in ("--remove-metadata", key)]
        call(pathlib.Path(sys.executable).parent / "gguf-new-metadata", "--force", *keys, path, bare)
        call(self.leap, "export", out, "--gguf", bare, "--version", "1")
        return out

    def table(self):
        window, n = self.words.window, self.n_windows
        print(f"{n * window} positions in {n} windows, {n * (window - 1 - window // 2)} of them late.\n")
        for what, path, windows in self.calibrations:
            n_ids = len(windows) * len(windows[0]) if windows else 0
            print(f"Calibration {label(what)}: {path.stat().st_size} bytes, {len(windows)} windows, {n_ids} ids.\n")
        print("| file | calibrated with | bytes | bits a weight, of layers | perplexity | KL: mean | median | 99 % | "
              "top-1 | late: mean KL | 99 % | top-1 |")
        print("|" + "---|" * 12)
        every = json.loads(call(self.leap, "eval", self.f32, "--ids", self.all_ids, "--window", window, "--threads",
                                "1", "--json"))
        print(f"| LEAP version 1 | | {self.f32.stat().st_size} | 32.00, 32.00 | {every['perplexity']:.4f} |" + " |" * 7)
        for rows in (self.ours(), self.theirs()):
            for name, what, path, (bits, of_layers), every, late in rows:
                cells = [name, label(what), path.stat().st_size, f"{bits:.2f}, {of_layers:.2f}"]
                cells.append(f"{every['perplexity']:.4f} ({100 * (every['perplexity_ratio'] - 1):+.3f} %)")
                for figures, keys in ((every, ("mean_kl", "median_kl", "p99_kl")), (late, ("mean_kl", "p99_kl"))):
                    cells += [f"{1e4 * figures[key]:.3f}" for key in keys]
                    cells.append(f"{100 * figures['top1_agreement']:.2f} %")
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        for line in self.left_out:
            print(f"\n{line}")


def label(calibration):
    """What a calibration is called in the table."""
    names = {"": "", "self": "its own text", "default": "`default`"}
    return names.get(calibration, pathlib.Path(calibration).name)


def ids_of(base):
    """The ids in llama-perplexity's file of a reference."""
    with open(base, "rb") as file:
        if file.read(8) != b"_logits_":
            sys.exit(f"{base}: not a reference of llama-perplexity's")
        window, _, n_windows = struct.unpack("<3i", file.read(12))
        return list(struct.unpack(f"<{window * n_windows}i", file.read(4 * window * n_windows)))


def bits(tensors):
    """Bits for each weight of all matrices, and of those of the layers; `tensors` are names, weights and bytes."""
    def mean(parts):
        return 8 * sum(size for _, _, size in parts) / sum(n for _, n, _ in parts)
    return mean(tensors), mean([part for part in tensors if re.match(r"layers\.|blk\.", part[0])])


def bits_of_ours(leap, path):
    table = call(leap, "info", path, "--tensors")
    found = re.findall(r"^(\S+) +\[(\d+), (\d+)\] at \d+, (\d+) bytes", table, re.MULTILINE)
    return bits([(name, int(rows) * int(cols), int(size)) for name, rows, cols, size in found if rows != "1"])


def bits_of_theirs(path):
    found = gguf.GGUFReader(path).tensors
    return bits([(one.name, int(one.n_elements), int(one.n_bytes)) for one in found if len(one.shape) > 1])


def names(text):
    return [name for name in text.split(",") if name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("leap", "llama", "work"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--ids", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--calibrate", action="append", default=[])
    parser.add_argument("--versions", type=names, default="2,3,4")
    parser.add_argument("--types", type=names, default="Q8_0,Q4_0,Q4_K_S,Q4_K_M")
    parser.add_argument("--window", type=int, default=256)
    try:
        Quality(parser.parse_args()).table()
    except Failed as why:
        sys.exit(why.args[0])


if __name__ == "__main__":
    main()
