#!/usr/bin/env python3
"""Makes guesses.json of tests/golden/qwen35-tiny and qwen35moe-tiny: make-guess-fixtures.py [FOLDER...]

What the block behind the last layer guesses (`mtp` tensors), computed in float32 with the parts of transformers, which
leaves the block out. Needs torch, transformers and safetensors.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as mixture

LENGTHS = (1, 2, 17, 64, 90)
CHAIN = 5


def parts(folder):
    """The model without its head, the block's layer, and the block's other tensors."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    config._attn_implementation = "eager"
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= {name: tensor.float() for name, tensor in load_file(path).items()}
    is_mixture = "moe" in config.model_type
    of, kind = (mixture, "Qwen3_5Moe") if is_mixture else (dense, "Qwen3_5")
    model = getattr(of, kind + "TextModel")(config)
    prefix = "model.language_model."
    own = {name[len(prefix):]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    model.load_state_dict(own)
    full = config.layer_types.index("full_attention")
    layer = getattr(of, kind + "DecoderLayer")(config, full)
    prefix = "mtp.layers.0."
    layer.load_state_dict({name[len(prefix):]: tensor for name, tensor in tensors.items() if name.startswith(prefix)})
    rest = {name: tensor for name, tensor in tensors.items()
            if name.startswith("mtp.") and not name.startswith(prefix)}
    head = tensors.get("lm_head.weight", own["embed_tokens.weight"])
    return config, model.eval(), layer.eval(), rest, head


def norm(x, weight, eps):
    """RMSNorm whose weights are stored less 1."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


class Block:
    """The block that guesses."""

    def __init__(self, folder):
        self.config, self.model, self.layer, self.rest, self.head = parts(folder)

    def outputs(self, ids, hidden):
        """Outputs of the block behind its norm, for tokens and the hidden states before them."""
        eps = self.config.rms_norm_eps
        embedded = self.model.embed_tokens(ids)
        joined = torch.cat([
            norm(embedded, self.rest["mtp.pre_fc_norm_embedding.weight"], eps),
            norm(hidden, self.rest["mtp.pre_fc_norm_hidden.weight"], eps),
        ], -1)
        x = joined @ self.rest["mtp.fc.weight"].T
        n = ids.shape[1]
        angles = self.model.rotary_emb(x, torch.arange(n).view(1, 1, n).expand(3, 1, n))
        mask = torch.full((1, 1, n, n), float("-inf")).triu(1)
        x = self.layer(x, position_embeddings=angles, attention_mask=mask)
        return norm(x, self.rest["mtp.norm.weight"], eps)

    def case(self, length):
        """A text, and what the block guesses behind each of its tokens."""
        ids = torch.randint(3, 700, (1, length))
        hidden = self.model(ids, use_cache=False).last_hidden_state
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
        out = self.outputs(ids, before)
        logits = out @ self.head.T
        chain, text = [], ids
        for _ in range(CHAIN):
            chain.append(int((out @ self.head.T)[0, -1].argmax()))
            text = torch.cat([text, torch.tensor([[chain[-1]]])], 1)
            before = torch.cat([before, out[:, -1:]], 1)
            out = self.outputs(text, before)
        return {
            "ids": ids[0].tolist(),
            "last_logits": [float(f"{x:.7g}") for x in logits[0, -1].tolist()],
            "argmax_per_position": logits[0].argmax(-1).tolist(),
            "chain": chain,
        }


def main():
    golden = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    folders = [pathlib.Path(name) for name in sys.argv[1:]] or [golden / "qwen35-tiny", golden / "qwen35moe-tiny"]
    for folder in folders:
        torch.manual_seed(7)
        block = Block(folder)
        with torch.no_grad():
            cases = [block.case(length) for length in LENGTHS]
        (folder / "guesses.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
