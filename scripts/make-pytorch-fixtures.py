#!/usr/bin/env python3
"""Makes tests/golden/pytorch: make-pytorch-fixtures.py [OUT]

Needs PyTorch (`pip install torch`), which wrote the files in the repository as version 2.15; the
tests need nothing of it. One tiny model with random weights is saved in every way that
checkpoints are published in, and once as safetensors files, which hold what the others must
read as:

    plain.safetensors   what sharded/, views/ and legacy/ hold
    types.safetensors   what types/ holds
    meta.safetensors    what meta2/ and meta3/ hold
    sharded/            two pytorch_model files and their index; the tensors are parameters
    views/              tensors that are slices, columns and transposes of shared storages
    types/              bfloat16, float32, int8 and bool side by side
    legacy/             the format before PyTorch 1.6, which is refused
    meta2/, meta3/      two model-parallel files each, as Meta splits Llama 2 and Llama 3
"""

import json
import pathlib
import struct
import sys

import torch

DIM, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 32, 64, 1, 2, 1, 24
HEAD = DIM // HEADS
NAMES = {torch.float16: "F16", torch.float32: "F32"}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PARAMS = {
    "dim": DIM,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "n_kv_heads": KV_HEADS,
    "vocab_size": -1,
    "multiple_of": 32,
    "ffn_dim_multiplier": 0.75,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
}

# Our name of a weight: Hugging Face's, Meta's, its shape, and the axis that Meta's files share out.
WEIGHTS = {
    "attention_norm": ("input_layernorm", "attention_norm", (DIM,), None),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm", (DIM,), None),
    "wq": ("self_attn.q_proj", "attention.wq", (DIM, DIM), 0),
    "wk": ("self_attn.k_proj", "attention.wk", (KV_HEADS * HEAD, DIM), 0),
    "wv": ("self_attn.v_proj", "attention.wv", (KV_HEADS * HEAD, DIM), 0),
    "wo": ("self_attn.o_proj", "attention.wo", (DIM, DIM), 1),
    "w1": ("mlp.gate_proj", "feed_forward.w1", (FFN, DIM), 0),
    "w2": ("mlp.down_proj", "feed_forward.w2", (DIM, FFN), 1),
    "w3": ("mlp.up_proj", "feed_forward.w3", (FFN, DIM), 0),
}
OUTER = {
    "embedding": ("model.embed_tokens", "tok_embeddings", (VOCAB, DIM), 0),
    "norm": ("model.norm", "norm", (DIM,), None),
    "classifier": ("lm_head", "output", (VOCAB, DIM), 0),
}


def model(family):
    """Name to f16 tensor, and name to split axis; family 0 is Hugging Face's, 1 Meta's."""
    tensors, axes = {}, {}
    for prefix, weights in [("", OUTER)] + [
        (("model." if family == 0 else "") + f"layers.{layer}.", WEIGHTS) for layer in range(LAYERS)
    ]:
        for entry in weights.values():
            name = f"{prefix}{entry[family]}.weight"
            tensors[name] = torch.randn(entry[2]).half()
            axes[name] = entry[3]
    return tensors, axes


def write_safetensors(path, tensors):
    table, values = {}, b""
    for name, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        offsets = [len(values), len(values) + len(data)]
        shape = list(tensor.shape)
        table[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
        values += data
    header = json.dumps(table, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_sharded(out, tensors):
    names = list(tensors)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for number in (1, 2):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        own = names[number - 1 :: 2]
        shard = {name: torch.nn.Parameter(tensors[name], requires_grad=False) for name in own}
        torch.save(shard, out / file)
        index["weight_map"].update({name: file for name in own})
    write_json(out / "pytorch_model.bin.index.json", index)


def views(tensors):
    """The same values, lying otherwise: no tensor is the whole of its storage in order."""
    found = {}
    for prefix in (f"model.layers.{layer}." for layer in range(LAYERS)):
        # Query, key and value as one matrix, as models that join them are split up.
        parts = [f"{prefix}self_attn.{kind}_proj.weight" for kind in "qkv"]
        joined = torch.cat([tensors[name] for name in parts])
        rows = [tensors[name].shape[0] for name in parts]
        found.update(zip(parts, joined.split(rows)))
    for index, (name, tensor) in enumerate(tensors.items()):
        if name in found:
            continue
        if tensor.dim() == 1:
            wide = torch.full((tensor.shape[0], 3), torch.nan).half()
            wide[:, 1] = tensor
            found[name] = wide[:, 1]
        elif index % 2 == 0:
            found[name] = tensor.t().contiguous().t()
        else:
            wide = torch.full((tensor.shape[0] + 2, tensor.shape[1] + 5), torch.nan).half()
            wide[1:-1, 2:-3] = tensor
            found[name] = wide[1:-1, 2:-3]
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    return found


def types():
    """Stored tensors, and their values in f32."""
    stored = {}
    for index, (name, tensor) in enumerate(model(0)[0].items()):
        kinds = [
            lambda x: x.bfloat16(),
            lambda x: x.float() * 1.001,
            lambda x: (x * 40).clamp(-128, 127).to(torch.int8),
            lambda x: x > 0,
        ]
        stored[name] = kinds[index % 4](tensor)
    assert {tensor.dtype for tensor in stored.values() if tensor.dim() == 2} == {
        torch.bfloat16,
        torch.float32,
        torch.int8,
        torch.bool,
    }
    return stored, {name: tensor.float() for name, tensor in stored.items()}


def write_parallel(out, tensors, axes):
    for rank in range(2):
        part = lambda name: (
            tensors[name]
            if axes[name] is None
            else tensors[name].chunk(2, axes[name])[rank].clone()
        )
        torch.save({name: part(name) for name in tensors}, out / f"consolidated.{rank:02}.pth")
    write_json(out / "params.json", PARAMS)


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "pytorch"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else default
    folders = {name: out / name for name in "sharded views types legacy meta2 meta3".split()}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for name in "sharded views types legacy".split():
        write_json(folders[name] / "config.json", CONFIG)
    torch.manual_seed(42)

    plain, _ = model(0)
    write_safetensors(out / "plain.safetensors", plain)
    write_sharded(folders["sharded"], plain)
    torch.save(views(plain), folders["views"] / "pytorch_model.bin")
    legacy = {"model.norm.weight": plain["model.norm.weight"]}
    path = folders["legacy"] / "pytorch_model.bin"
    torch.save(legacy, path, _use_new_zipfile_serialization=False)

    stored, values = types()
    write_safetensors(out / "types.safetensors", values)
    # A module's state_dict, which is an OrderedDict with attributes.
    module = torch.nn.Module()
    for name, tensor in stored.items():
        module.register_buffer(name.replace(".", "/"), tensor)
    state = module.state_dict()
    for name in list(state):
        state[name.replace("/", ".")] = state.pop(name)
    torch.save(state, folders["types"] / "pytorch_model.bin")

    meta, axes = model(1)
    write_safetensors(out / "meta.safetensors", meta)
    write_parallel(folders["meta3"], meta, axes)
    write_parallel(folders["meta2"], meta, axes | {"tok_embeddings.weight": 1})


main()
