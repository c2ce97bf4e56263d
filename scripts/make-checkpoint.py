#!/usr/bin/env python3
"""Makes a checkpoint to measure with: make-checkpoint.py FOLDER [SHAPE]

SHAPE is tinyllama, 1.1 B weights in bf16, or mixture, 2.8 B in the form of Qwen3's mixtures: config.json,
model.safetensors and the tokenizer of a model in tests/golden, which uses few of the ids. The weights are normally distributed, norms ones;
a few million of them are repeated. Needs nothing but Python 3.
"""

import array
import json
import pathlib
import random
import shutil
import sys

POOL = 1 << 21
# In bf16, which norms are made of.
ONE = b"\x80\x3f"
TOKENIZER = pathlib.Path(__file__).parent.parent / "tests/golden/qwen3-tiny"
SHAPES = {
    "tinyllama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
    "mixture": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 96,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "num_hidden_layers": 6, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 768, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": False,
    },
}


def feed_forward(config, prefix, width):
    dim = config["hidden_size"]
    yield f"{prefix}.gate_proj", [width, dim]
    yield f"{prefix}.up_proj", [width, dim]
    yield f"{prefix}.down_proj", [dim, width]


def shapes(config):
    dim, head_dim = config["hidden_size"], config["head_dim"]
    q, kv = (config[f"num_{of}_heads"] * head_dim for of in ("attention", "key_value"))
    yield "model.embed_tokens", [config["vocab_size"], dim]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm", [dim]
        yield f"{prefix}.post_attention_layernorm", [dim]
        for name, shape in (("q", [q, dim]), ("k", [kv, dim]), ("v", [kv, dim]), ("o", [dim, q])):
            yield f"{prefix}.self_attn.{name}_proj", shape
        if "num_experts" not in config:
            yield from feed_forward(config, f"{prefix}.mlp", config["intermediate_size"])
            continue
        yield f"{prefix}.self_attn.q_norm", [head_dim]
        yield f"{prefix}.self_attn.k_norm", [head_dim]
        yield f"{prefix}.mlp.gate", [config["num_experts"], dim]
        for expert in range(config["num_experts"]):
            name = f"{prefix}.mlp.experts.{expert}"
            yield from feed_forward(config, name, config["moe_intermediate_size"])
    yield "model.norm", [dim]
    yield "lm_head", [config["vocab_size"], dim]


def main():
    shape = sys.argv[2] if len(sys.argv) > 2 else "tinyllama"
    if len(sys.argv) not in (2, 3) or shape not in SHAPES:
        sys.exit(__doc__)
    folder, config = pathlib.Path(sys.argv[1]), SHAPES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    (folder / "config.json").write_text(json.dumps(config))
    rng = random.Random(1)
    values = array.array("f", (rng.gauss(0, 0.02) for _ in range(POOL)))
    # The upper half of each little-endian float.
    halves = array.array("H", values.tobytes())[1::2].tobytes()
    halves += halves
    table, offset = {}, 0
    for name, shape in shapes(config):
        end = offset + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for entry in table.values():
            start, end = entry["data_offsets"]
            if len(entry["shape"]) == 1:
                file.write(ONE * entry["shape"][0])
                continue
            while start < end:
                size = min(end - start, 2 * POOL)
                at = 2 * rng.randrange(POOL)
                file.write(halves[at : at + size])
                start += size


main()
