#!/usr/bin/env python3
"""Makes the checkpoints of tests/golden: make-fixtures.py SOURCE [OUT]

SOURCE is the folder with the reference models llama3-tiny, llama2-meta-tiny and
mistral-tiny; OUT is tests/golden by default. Needs nothing but Python 3.

llama3-tiny is copied. The other two hold their weights as PyTorch files; these become
safetensors files with the same names, types and bytes. golden.json is written without
white space, with NaN as null and logits rounded to at most 3e-5 of the largest.

The reference outputs of those two come from a program that rounded the RoPE frequencies to
f16 with the weights. That is no part of the model, so their outputs are computed anew here, in
f64 with exact frequencies, after showing that rounded ones give the reference's outputs.
"""

import collections
import json
import math
import operator
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


def read_floats(tensors):
    """Each tensor as a list of floats, or a matrix as a list of rows."""
    floats = {}
    for name, (dtype, shape, values) in tensors.items():
        assert dtype == "F16", name
        flat = struct.unpack(f"<{len(values) // 2}e", values)
        cols = shape[-1]
        floats[name] = [flat[i : i + cols] for i in range(0, len(flat), cols)]
        if len(shape) == 1:
            floats[name] = flat
    return floats


def to_f16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def dot(a, b):
    return sum(map(operator.mul, a, b))


def times(matrix, vector):
    return [dot(row, vector) for row in matrix]


def argmax(logits):
    return max(range(len(logits)), key=logits.__getitem__)


HUGGING_FACE = {
    "embedding": "model.embed_tokens", "norm": "model.norm", "classifier": "lm_head",
    "layer": "model.layers.{}.", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj",
}
META = {
    "embedding": "tok_embeddings", "norm": "norm", "classifier": "output",
    "layer": "layers.{}.", "attention_norm": "attention_norm", "ffn_norm": "ffn_norm",
    "wq": "attention.wq", "wk": "attention.wk", "wv": "attention.wv", "wo": "attention.wo",
    "w1": "feed_forward.w1", "w2": "feed_forward.w2", "w3": "feed_forward.w3",
}


class Llama:
    """A plain forward pass in f64, one token at a time. Weights as the checkpoint has them."""

    def __init__(self, folder, tensors, round_frequency):
        is_meta = (folder / "params.json").exists()
        config = json.loads((folder / ("params.json" if is_meta else "config.json")).read_text())
        names = META if is_meta else HUGGING_FACE
        self.n_heads = config["n_heads" if is_meta else "num_attention_heads"]
        self.n_kv_heads = config["n_kv_heads" if is_meta else "num_key_value_heads"]
        self.eps = config["norm_eps" if is_meta else "rms_norm_eps"]
        self.window = config.get("sliding_window") or math.inf
        # Meta rotates neighbours, Hugging Face a value with the one half a head further.
        self.is_interleaved = is_meta
        weight = lambda name: tensors[name + ".weight"]
        self.embedding, self.norm, self.classifier = (
            weight(names[name]) for name in ("embedding", "norm", "classifier"))
        parts = ("attention_norm", "ffn_norm", "wq", "wk", "wv", "wo", "w1", "w2", "w3")
        n_layers = config["n_layers" if is_meta else "num_hidden_layers"]
        self.layers = [
            {part: weight(names["layer"].format(layer) + names[part]) for part in parts}
            for layer in range(n_layers)]
        self.head_dim = len(self.layers[0]["wq"]) // self.n_heads
        theta = 10000.0 if is_meta else config["rope_parameters"]["rope_theta"]
        half = self.head_dim // 2
        self.frequencies = [round_frequency(theta ** (-i / half)) for i in range(half)]
        self.clear()

    def clear(self):
        self.cache = [([], []) for _ in self.layers]

    def normalise(self, x, weights):
        scale = 1 / math.sqrt(dot(x, x) / len(x) + self.eps)
        return [value * scale * weight for value, weight in zip(x, weights)]

    def rotate(self, heads, pos):
        """Splits the values into heads and rotates each."""
        out = []
        for start in range(0, len(heads), self.head_dim):
            head = heads[start : start + self.head_dim]
            half = self.head_dim // 2
            for i, frequency in enumerate(self.frequencies):
                a, b = (2 * i, 2 * i + 1) if self.is_interleaved else (i, i + half)
                cos, sin = math.cos(pos * frequency), math.sin(pos * frequency)
                head[a], head[b] = head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos
            out.append(head)
        return out

    def attend(self, q, keys, values):
        first = max(0, len(keys) - self.window)
        out = []
        for index, head in enumerate(q):
            kv_head = index // (self.n_heads // self.n_kv_heads)
            scores = [dot(head, key[kv_head]) / math.sqrt(self.head_dim) for key in keys[first:]]
            largest = max(scores)
            weights = [math.exp(score - largest) for score in scores]
            columns = zip(*(value[kv_head] for value in values[first:]))
            out += [dot(weights, column) / sum(weights) for column in columns]
        return out

    def push(self, token):
        """The logits after one more token."""
        x = list(self.embedding[token])
        for layer, (keys, values) in zip(self.layers, self.cache):
            inner = self.normalise(x, layer["attention_norm"])
            q = self.rotate(times(layer["wq"], inner), len(keys))
            keys.append(self.rotate(times(layer["wk"], inner), len(keys)))
            flat = times(layer["wv"], inner)
            values.append([flat[i : i + self.head_dim] for i in range(0, len(flat), self.head_dim)])
            x = list(map(operator.add, x, times(layer["wo"], self.attend(q, keys, values))))
            inner = self.normalise(x, layer["ffn_norm"])
            gate = [value / (1 + math.exp(-value)) for value in times(layer["w1"], inner)]
            inner = list(map(operator.mul, gate, times(layer["w3"], inner)))
            x = list(map(operator.add, x, times(layer["w2"], inner)))
        return times(self.classifier, self.normalise(x, self.norm))

    def case(self, prompt, n_greedy):
        """A case of golden.json."""
        self.clear()
        logits = [self.push(token) for token in prompt]
        # A sum over nothing has no mean.
        nll = math.nan
        if len(prompt) > 1:
            terms = [
                math.log(sum(map(math.exp, row))) - row[token] for row, token in zip(logits, prompt[1:])]
            nll = sum(terms) / len(terms)
        last, greedy = logits[-1], []
        while len(greedy) < n_greedy:
            greedy.append(argmax(logits[-1]))
            logits.append(self.push(greedy[-1]))
        argmax_per_position = [argmax(row) for row in logits[: len(prompt)]]
        return {"prompt_ids": prompt, "last_logits": last, "argmax_per_position": argmax_per_position,
                "nll": nll, "greedy_ids": greedy}


def compute(golden, folder, tensors, round_frequency):
    model = Llama(folder, tensors, round_frequency)
    return [model.case(case["prompt_ids"], len(case["greedy_ids"])) for case in golden["cases"]]


def check_same(cases, references):
    """Stops unless the cases are the reference's, as near as f32 gets."""
    for case, reference in zip(cases, references):
        logits = reference["last_logits"]
        worst = max(abs(a - b) for a, b in zip(case["last_logits"], logits)) / max(map(abs, logits))
        same = all(case[key] == reference[key] for key in ("argmax_per_position", "greedy_ids"))
        print(f"  prompt of {len(case['prompt_ids'])}: within {worst:.1e} of the reference")
        if worst > 1e-5 or not same:
            sys.exit("does not reproduce the reference")


def with_exact_frequencies(golden, folder, tensors):
    """The outputs of a reference that rounded its RoPE frequencies to f16, without that."""
    tensors = read_floats(tensors)
    check_same(compute(golden, folder, tensors, to_f16), golden["cases"])
    cases = compute(golden, folder, tensors, float)
    return {"reference": golden["reference"] + "; recomputed in f64 with exact RoPE frequencies", "cases": cases}


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
            golden = with_exact_frequencies(golden, source / model, tensors)
        write_golden(golden, out / model)


main()
