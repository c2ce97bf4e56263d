"""A Llama in PyTorch, for the scripts that train small ones. Imported, never called."""

import math

import torch
import torch.nn.functional as F

MATRICES = {
    "wq": "attention.wq", "wk": "attention.wk", "wv": "attention.wv", "wo": "attention.wo",
    "w1": "feed_forward.w1", "w2": "feed_forward.w2", "w3": "feed_forward.w3",
}
NORMS = {"attention_norm": "attention_norm", "ffn_norm": "ffn_norm"}


class Llama:
    """Weights as Meta names them, in f32. Embedding and classifier are one."""

    def __init__(self, shape, weights):
        self.shape, self.weights = shape, weights
        self.head_dim = shape["dim"] // shape["n_heads"]
        places = torch.arange(1024, dtype=torch.float64)
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angles = places[:, None] * shape["rope_theta"] ** -steps
        self.turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def norm(self, x, name):
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.shape["norm_eps"]) * self.weights[f"{name}.weight"]

    def times(self, x, name):
        return x @ self.weights[f"{name}.weight"].T

    def heads(self, x, is_turned):
        x = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        if not is_turned:
            return x
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[: x.shape[2]]).flatten(-2)

    def layer(self, x, at):
        h = self.norm(x, f"{at}.attention_norm")
        q, k, v = (self.heads(self.times(h, f"{at}.attention.w{of}"), of != "v") for of in "qkv")
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.times(mixed.transpose(1, 2).flatten(2), f"{at}.attention.wo")
        h = self.norm(x, f"{at}.ffn_norm")
        gated = F.silu(self.times(h, f"{at}.feed_forward.w1")) * self.times(h, f"{at}.feed_forward.w3")
        return x + self.times(gated, f"{at}.feed_forward.w2")

    def states(self, ids):
        """What logits are made of, for windows of ids, [rows, window]."""
        x = F.embedding(ids, self.weights["tok_embeddings.weight"])
        for index in range(self.shape["n_layers"]):
            x = self.layer(x, f"layers.{index}")
        return self.norm(x, "norm")

    def logits(self, ids):
        return self.times(self.states(ids), "tok_embeddings")


def begin(shape, table):
    """A model to train, whose embedding is `table`, [vocab, dim]."""
    dim, ffn_dim, layers = shape["dim"], shape["ffn_dim"], shape["n_layers"]
    kv_dim = dim * shape["n_kv_heads"] // shape["n_heads"]
    sizes = {"wq": (dim, dim), "wk": (kv_dim, dim), "wv": (kv_dim, dim), "wo": (dim, dim),
             "w1": (ffn_dim, dim), "w2": (dim, ffn_dim), "w3": (ffn_dim, dim)}
    weights = {"tok_embeddings.weight": table, "norm.weight": torch.ones(dim)}
    for layer in range(layers):
        for name in NORMS.values():
            weights[f"layers.{layer}.{name}.weight"] = torch.ones(dim)
        for name, size in sizes.items():
            spread = size[1] ** -0.5 / (math.sqrt(2 * layers) if name in ("wo", "w2") else 1)
            weights[f"layers.{layer}.{MATRICES[name]}.weight"] = torch.randn(size) * spread
    return Llama(shape, {name: weight.requires_grad_() for name, weight in weights.items()})


def rate_at(step, steps, warm_up, most):
    """The learning rate of a step: it rises for `warm_up` steps and falls by half a cosine."""
    return most * min((step + 1) / warm_up, 0.51 + 0.49 * math.cos(math.pi * step / steps))
