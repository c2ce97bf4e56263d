#!/usr/bin/env python3
"""Makes GGUF files: make-gguf.py [CHECKPOINT OUT TYPE [words]]

Without CHECKPOINT writes the fixtures of tests/golden/gguf:
    blocks.gguf     random blocks of every type, and their values as `gguf` dequantises them
    spm.gguf        the SentencePiece tokenizer of tests/golden/llama2-meta-tiny, without a model
    model.gguf      a model of one layer with all types in it, tied, with rope_freqs
    golden.json     the outputs of `transformers` for that model's dequantised weights
With CHECKPOINT, a Hugging Face folder with safetensors files, converts it as llama.cpp's
converter does, with matrices of TYPE (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K,
Q6_K) and without a tokenizer, or with one of made-up words (gguf_words.py). Knows the families whose
GGUF files LEAP reads.

Needs from PyPI: gguf, numpy; for the fixtures also sentencepiece, torch, transformers.
The _K encoders here are plain roundings: what they lose does not matter to a test.
"""

import json
import math
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

from gguf_words import add_words

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down",
    "mlp.up_proj": "ffn_up", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT_OSS_NAMES = {"post_attention_layernorm": "post_attention_norm"}
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"}
# Those whose queries and keys llama.cpp has interleaved.
INTERLEAVED = ("llama", "smollm3", "granite")


def gguf_name(name, names):
    name, kind = (name, "weight") if name.endswith("sinks") else name.rsplit(".", 1)
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{names[rest]}.{kind}"
    return f"{names[name]}.{kind}"


def permuted(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def unpermuted(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def half(x):
    return x.astype(np.float16)


def inverse(x):
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def packed_scales(scales, mins):
    """Eight scales and minima of six bits in twelve bytes."""
    low = np.concatenate([scales[:, :4] & 63, mins[:, :4] & 63], axis=1)
    low[:, :4] |= (scales[:, 4:] >> 4) << 6
    low[:, 4:] |= (mins[:, 4:] >> 4) << 6
    return np.concatenate([low, scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4], axis=1)


def encode_4_or_5_k(w, bits):
    groups = w.reshape(-1, 8, 32)
    top = 2**bits - 1
    low = np.minimum(groups.min(axis=2), 0)
    step = (groups.max(axis=2) - low) / top
    d = half(step.max(axis=1, keepdims=True) / 63)
    m = half((-low).max(axis=1, keepdims=True) / 63)
    scales = np.clip(np.rint(step * inverse(d.astype(np.float32))), 0, 63).astype(np.uint8)
    mins = np.clip(np.rint(-low * inverse(m.astype(np.float32))), 0, 63).astype(np.uint8)
    step, low = d.astype(np.float32) * scales, m.astype(np.float32) * mins
    q = np.rint((groups + low[:, :, None]) * inverse(step)[:, :, None])
    q = np.clip(q, 0, top).astype(np.uint8)
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    codes = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    parts = [d.view(np.uint8), m.view(np.uint8), packed_scales(scales, mins)]
    if bits == 5:
        fifth = (q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]
        parts.append(np.bitwise_or.reduce(fifth, axis=1))
    return np.concatenate([*parts, codes], axis=1)


def encode_6_k(w):
    groups = w.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / 31
    d = half(step.max(axis=1, keepdims=True) / 127)
    scales = np.clip(np.rint(step * inverse(d.astype(np.float32))), 0, 127).astype(np.int8)
    step = d.astype(np.float32) * scales
    q = np.clip(np.rint(groups * inverse(step)[:, :, None]), -32, 31).astype(np.int8)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([q[:, :, 0:2] & 15 | (q[:, :, 2:4] & 15) << 4], axis=2).reshape(-1, 128)
    high = q >> 4 << (2 * np.arange(4, dtype=np.uint8))[None, None, :, None]
    high = np.bitwise_or.reduce(high, axis=2).reshape(-1, 64)
    return np.concatenate([low, high, scales.view(np.uint8), d.view(np.uint8)], axis=1)


def encode(w, kind):
    """The bytes of `w`, rows apart."""
    w = np.ascontiguousarray(w, dtype=np.float32)
    if kind in (T.Q4_K, T.Q5_K):
        blocks = encode_4_or_5_k(w, 4 if kind == T.Q4_K else 5)
    elif kind == T.Q6_K:
        blocks = encode_6_k(w)
    elif kind == T.F16:
        return half(w)
    elif kind == T.F32:
        return w
    else:
        return gguf.quants.quantize(w, kind)
    return blocks.reshape(w.shape[0], -1)


def divisors(rope, head_dim):
    """What llama.cpp's converter makes of Llama 3.1's scaling, in f32."""
    theta, ctx = np.float32(rope["rope_theta"]), rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    freqs = 1.0 / (theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim))
    out = []
    for wavelen in 2 * math.pi / freqs:
        if wavelen < ctx / high:
            out.append(1)
        elif wavelen > ctx / low:
            out.append(factor)
        else:
            smooth = (ctx / wavelen - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def write_model(path, config, tensors, kind_of, has_words=False):
    """Writes the f32 `tensors` with the types `kind_of(name)`; gives back what they became, with
    the names they came with."""
    kind_of_model = config.get("model_type", "llama")
    architecture = ARCHITECTURES.get(kind_of_model, kind_of_model)
    writer = gguf.GGUFWriter(path, architecture)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    theta = {"rope_theta": config.get("rope_theta", 10000.0)}
    rope = theta | (config.get("rope_parameters") or config.get("rope_scaling") or {})
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1)))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    if has_words:
        add_words(writer, config["vocab_size"])
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", divisors(rope, head_dim))
    tensors = dict(tensors)
    kind_of_rope = rope.get("rope_type", rope.get("type"))
    if kind_of_rope == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind_of_rope == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)
    if architecture == "gpt-oss":
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        experts = [name for name in tensors if ".experts." in name]
        for name in experts:
            if not name.endswith("_scales"):
                add_experts(writer, name, tensors)
    if architecture == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "qwen3moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        tensors = stacked(tensors, config)
    names = NAMES | {"gemma3": GEMMA_NAMES, "gpt-oss": GPT_OSS_NAMES}.get(architecture, {})
    stored = {}
    for name, w in tensors.items():
        w = w.astype(np.float32)
        n = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        n = n if architecture in INTERLEAVED else None
        w = permuted(w, n) if n else w
        if architecture == "gemma3" and name.endswith("norm.weight"):
            w = w + 1
        is_f32 = w.ndim == 1 or ".mlp.gate." in name or ".mlp.router." in name
        kind = T.F32 if is_f32 else kind_of(name)
        data = encode(w.reshape(-1, w.shape[-1]), kind) if w.ndim == 3 else encode(w, kind)
        data = data.reshape(*w.shape[:-1], -1) if w.ndim == 3 else data
        writer.add_tensor(gguf_name(name, names), data, raw_dtype=kind)
        w = gguf.quants.dequantize(data, kind).reshape(w.shape)
        stored[name] = unpermuted(w, n) if n else w
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def add_experts(writer, name, tensors):
    """Takes a tensor of gpt-oss's experts from `tensors` and writes it: gates and ups, which
    alternate, apart, and matrices output-major."""
    w = tensors.pop(name)
    layer = name.split(".")[2]
    kind, end = T.F32, "bias"
    if name.endswith("_blocks"):
        # The scale of a block, then values 0 to 15 in low halves and 16 to 31 in high ones.
        scales = tensors.pop(name.replace("_blocks", "_scales"))
        codes = np.stack([w & 15, w >> 4], axis=-1).reshape(*w.shape[:-1], 32)
        blocks = codes[..., :16] | codes[..., 16:] << 4
        w = np.concatenate([scales[..., None], blocks], axis=-1).reshape(*w.shape[:2], -1)
        kind, end = T.MXFP4, "weight"
    elif not name.endswith("_bias"):
        w, end = w.swapaxes(1, 2), "weight"
    parts = {"gate": w[:, 0::2], "up": w[:, 1::2]} if "gate_up" in name else {"down": w}
    for part, w in parts.items():
        data = np.ascontiguousarray(w)
        writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.{end}", data, raw_dtype=kind)


def stacked(tensors, config):
    """The experts of each layer in one tensor."""
    out = {name: w for name, w in tensors.items() if ".mlp.experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        for part in ("gate_proj", "up_proj", "down_proj"):
            of = f"model.layers.{layer}.mlp.experts"
            experts = [tensors[f"{of}.{i}.{part}.weight"] for i in range(config["num_experts"])]
            out[f"{of}.{part}.weight"] = np.stack(experts)
    return out


def load(path):
    """The tensors of a safetensors file in f32."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    out = {}
    for name, info in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = info["data_offsets"]
        dtypes = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}
        dtype = dtypes[info["dtype"]]
        w = np.frombuffer(data[start + first : start + end], dtype)
        if info["dtype"] == "BF16":
            w = (w.astype(np.uint32) << 16).view(np.float32)
        out[name] = w.reshape(info["shape"])
        if info["dtype"] != "U8":
            out[name] = out[name].astype(np.float32)
    return out


def convert(folder, out, kind, *more):
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load(path)
    write_model(out, config, tensors, lambda _: T[kind], has_words=more == ("words",))


def write_blocks(path):
    """Two rows of random blocks of each type. Scales are sane, all else is any bits."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "blocks")
    for kind in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K, T.F16, T.BF16,
                 T.MXFP4, T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS):
        values, size = gguf.GGML_QUANT_SIZES[kind]
        n = 2 * 4 * (32 // min(values, 32) if values < 32 else 1)
        blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
        floats = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
                  T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.F16: [0], T.BF16: [0],
                  T.MXFP4: [], T.Q2_K: [80, 82], T.Q3_K: [108], T.IQ4_NL: [0],
                  T.IQ4_XS: [0]}[kind]
        if kind == T.MXFP4:
            # The exponent 255 stands for no number, which ggml does not know.
            blocks[:, 0] = [0, 1, 2, 120, 127, 128, 200, 254]
        for at in floats:
            scales = half(rng.normal(0, 0.02, n))
            # A subnormal and a zero, too.
            scales[0], scales[1] = np.float16(3e-7), 0
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n, 2)
        data = blocks.reshape(2, -1)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.f32", gguf.quants.dequantize(data, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_spm(path, model):
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(str(model))
    writer = gguf.GGUFWriter(path, "llama")
    tokens, scores, kinds = [], [], []
    for i in range(pieces.vocab_size()):
        tokens.append(pieces.id_to_piece(i).encode())
        scores.append(pieces.get_score(i))
        kinds.append(gguf.TokenType.UNKNOWN if pieces.is_unknown(i)
                     else gguf.TokenType.CONTROL if pieces.is_control(i)
                     else gguf.TokenType.UNUSED if pieces.is_unused(i)
                     else gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_chat_template("{{ bos_token }}[INST] <<SYS>>\n")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_golden_model(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 256,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 64},
    }
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    tensors = {n: w.detach().numpy() * 4 for n, w in model.named_parameters() if w.dim() == 2}
    for name, w in model.named_parameters():
        if w.dim() == 1:
            tensors[name] = (1 + 0.1 * torch.randn(w.shape)).numpy()
    kinds = {"embed_tokens": T.Q6_K, "q_proj": T.Q4_K, "k_proj": T.Q8_0, "v_proj": T.F16,
             "o_proj": T.Q5_K, "gate_proj": T.Q4_0, "up_proj": T.Q4_1, "down_proj": T.Q5_0}
    stored = write_model(folder / "model.gguf", config, tensors, lambda n: kinds[n.split(".")[-2]])
    weights = {name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in stored.items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    cases = []
    for n in (1, 9, 33, 100):
        ids = torch.randint(0, 256, (1, n))
        with torch.no_grad():
            logits = model(ids).logits[0]
            greedy = ids
            for _ in range(24):
                last = model(greedy).logits[:, -1]
                greedy = torch.cat([greedy, last.argmax(dim=1, keepdim=True)], dim=1)
        cases.append({
            "prompt_ids": ids[0].tolist(),
            "last_logits": [float(f"{x:.6g}") for x in logits[-1].tolist()],
            "argmax_per_position": logits.argmax(dim=1).tolist(),
            "greedy_ids": greedy[0, n:].tolist(),
        })
    golden = {"reference": "transformers, dequantised weights", "cases": cases}
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def main():
    if len(sys.argv) in (4, 5):
        return convert(pathlib.Path(sys.argv[1]), *sys.argv[2:])
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    tokenizer = GOLDEN / "llama2-meta-tiny" / "tokenizer.model"
    folder = GOLDEN / "gguf"
    folder.mkdir(exist_ok=True)
    write_blocks(folder / "blocks.gguf")
    write_spm(folder / "spm.gguf", tokenizer)
    write_golden_model(folder)


main()
