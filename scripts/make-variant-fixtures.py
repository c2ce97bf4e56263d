#!/usr/bin/env python3
"""Makes llama-bias-tiny and qwen3moe-dense-tiny of tests/golden: make-variant-fixtures.py [OUT]

Random weights, and what transformers makes of them in float32. Needs torch, transformers and safetensors.
"""

import json
import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

COMMON = {
    "vocab_size": 256, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
    "attn_implementation": "eager",
}
MODELS = {
    # Biases of all seven matrices of a layer.
    "llama-bias-tiny": lambda: LlamaForCausalLM(LlamaConfig(
        **COMMON, intermediate_size=96, num_hidden_layers=3, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False)),
    # Layers 1 and 5 are mixtures, the others are not.
    "qwen3moe-dense-tiny": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **COMMON, intermediate_size=160, num_hidden_layers=6, decoder_sparse_step=2,
        mlp_only_layers=[3], num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        norm_topk_prob=True, tie_word_embeddings=True)),
}
PROMPTS = (1, 5, 17, 40, 90)
GREEDY = 24


def weights(model):
    """Random weights that bf16 can hold; norms around 1."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape)
            if name.endswith("bias"):
                drawn *= 0.5
            elif weight.dim() == 1:
                drawn = 1 + 0.2 * drawn
            else:
                drawn *= 1.5 * weight.shape[-1] ** -0.5
            weight.copy_(drawn.to(torch.bfloat16).float())


def case(model, length):
    """A prompt, and what the model makes of it."""
    ids = torch.randint(3, COMMON["vocab_size"], (1, length))
    with torch.no_grad():
        logits = model(ids).logits[0]
        text = ids
        for _ in range(GREEDY):
            text = torch.cat([text, model(text).logits[:, -1].argmax(-1, keepdim=True)], 1)
    out = {
        "prompt_ids": ids[0].tolist(),
        "last_logits": [float(f"{x:.7g}") for x in logits[-1].tolist()],
        "argmax_per_position": logits.argmax(-1).tolist(),
        "greedy_ids": text[0, length:].tolist(),
    }
    if length > 1:
        out["nll"] = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item()
    return out


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    for seed, (name, make) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = make().eval()
        weights(model)
        cases = [case(model, length) for length in PROMPTS]
        model.to(torch.bfloat16).save_pretrained(out / name)
        golden = json.dumps({"cases": cases}, separators=(",", ":"))
        (out / name / "golden.json").write_text(golden + "\n")


main()
