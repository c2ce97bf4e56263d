#!/usr/bin/env python3
"""Makes a checkpoint to measure with: make-checkpoint.py FOLDER

The shape is TinyLlama's, 1.1 B weights in bf16: config.json and model.safetensors. The weights are
normally distributed; a few million of them are repeated. Needs nothing but Python 3.
"""

import array
import json
import pathlib
import random
import sys

DIM, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 22, 32, 4, 32000
POOL = 1 << 21


def shapes():
    kv = DIM // HEADS * KV_HEADS
    yield "model.embed_tokens", [VOCAB, DIM]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm", [DIM]
        yield f"{prefix}.post_attention_layernorm", [DIM]
        for name, shape in (
            ("self_attn.q_proj", [DIM, DIM]), ("self_attn.k_proj", [kv, DIM]),
            ("self_attn.v_proj", [kv, DIM]), ("self_attn.o_proj", [DIM, DIM]),
            ("mlp.gate_proj", [FFN, DIM]), ("mlp.up_proj", [FFN, DIM]),
            ("mlp.down_proj", [DIM, FFN]),
        ):
            yield f"{prefix}.{name}", shape
    yield "model.norm", [DIM]
    yield "lm_head", [VOCAB, DIM]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": DIM,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = random.Random(1)
    values = array.array("f", (rng.gauss(0, 0.02) for _ in range(POOL)))
    # The upper half of each little-endian float.
    halves = array.array("H", values.tobytes())[1::2].tobytes()
    halves += halves
    table, offset = {}, 0
    for name, shape in shapes():
        end = offset + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for entry in table.values():
            start, end = entry["data_offsets"]
            while start < end:
                size = min(end - start, 2 * POOL)
                at = 2 * rng.randrange(POOL)
                file.write(halves[at : at + size])
                start += size


main()
