"""A GGUF file of a model of one layer, with the tokenizer of tests/golden/gguf/spm.gguf: needs nothing from PyPI."""
import os, struct

SPM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/golden/gguf/spm.gguf")
# Bytes of a value of each kind; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32, F32 = 8, 9, 4, 6
DIM = 64


def text(name):
    return struct.pack("<Q", len(name)) + name.encode()


def behind(file, at, kind):
    """The place behind the value of `kind` at `at`."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", file, at)[0]
    if kind != ARRAY:
        return at + SIZES[kind]
    kind, n = struct.unpack_from("<IQ", file, at)
    at += 12
    for _ in range(n):
        at = behind(file, at, kind)
    return at


def tokenizer():
    """The tokenizer's fields as they stand in the file, their number, and that of the tokens."""
    file = open(SPM, "rb").read()
    n_fields, at, n_tokens = struct.unpack_from("<Q", file, 16)[0], 24, 0
    for _ in range(n_fields):
        name_end = behind(file, at, STRING)
        if file[at + 8:name_end] == b"tokenizer.ggml.tokens":
            n_tokens = struct.unpack_from("<Q", file, name_end + 8)[0]
        at = behind(file, name_end + 4, struct.unpack_from("<I", file, name_end)[0])
    return file[24:at], n_fields, n_tokens


def write(path):
    fields, n_fields, n_tokens = tokenizer()
    own = {"block_count": 1, "context_length": 256, "embedding_length": DIM, "feed_forward_length": DIM,
           "attention.head_count": 2, "attention.head_count_kv": 2}
    fields += b"".join(text(f"llama.{name}") + struct.pack("<II", U32, value) for name, value in own.items())
    fields += text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", F32, 1e-5)
    shapes = {"token_embd": [DIM, n_tokens], "output_norm": [DIM], "blk.0.attn_norm": [DIM], "blk.0.ffn_norm": [DIM]}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = [DIM, DIM]
    tensors, values = b"", b""
    for name, shape in shapes.items():
        tensors += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(values))
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values += struct.pack(f"<{n}f", *((i * 7919 + len(values)) % 1009 / 1009 - 0.5 for i in range(n)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), n_fields + len(own) + 1) + fields + tensors
    with open(path, "wb") as to:
        to.write(head + bytes(-len(head) % 32) + values)
