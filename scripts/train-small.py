#!/usr/bin/env python3
"""Trains a small model that is not the demo: train-small.py FOLDER [--steps N] [--minutes N]

FOLDER gets the checkpoint as Hugging Face lays it out, with validation_ids.json as the demo's has: 11,777 ids
that the model has not learned from. Beside it in FOLDER.text are calibration.txt and evaluation.txt, neither of
which it has learned from, and the state of the training, with which a call goes on where one ended. With
--minutes it ends after so many, and says so by exit code 9. Needs PyTorch, tokenizers and safetensors from PyPI;
train-small.sh brings them.

The text is made here by chance and is in the public domain: reports of the weather, recipes, sums, and small
programs with what they print. The model has rows of 256 and 768, which all of llama.cpp's types can hold.
"""

import argparse
import json
import math
import pathlib
import random
import sys
import time

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from small_llama import MATRICES, NORMS, begin, rate_at

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
VOCAB_SIZE, CONTEXT = 1024, 512
SHAPE = {"dim": 256, "ffn_dim": 768, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
         "rope_theta": 10000.0}
# Llama 3's.
SPLITTER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")
# Seeds of the texts: what is learned from, what calibrates and what judges.
LEARNED, CALIBRATION, EVALUATION = 1, 2, 3
N_DOCUMENTS = {LEARNED: 60000, CALIBRATION: 240, EVALUATION: 180}
N_EVALUATED = 46 * 256 + 1
ROWS, WINDOW, WARM_UP, RATE = 4, CONTEXT, 60, 3e-3
NAMES = {
    "wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}

PLACES = ("Aldmoor Bexley Carrow Dunfell Eskdale Farrowby Glenrath Harwick Ironford Jarrold Kelby Lorne Marsk "
          "Norburn Oxley Penrose Quarley Rowde Selkirk Thornby Ulster Vale Wexcombe Yarrow").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SKIES = ["clear skies", "a few clouds", "low cloud", "steady rain", "light showers", "fog in the valleys",
         "thunder in the hills", "wet snow", "dry snow", "hail"]
WINDS = "north north-east east south-east south south-west west north-west".split()
FOODS = {
    "soup": ["carrots", "leeks", "potatoes", "lentils", "celery", "onions", "pumpkin", "beans"],
    "cake": ["flour", "sugar", "butter", "eggs", "almonds", "honey", "plums", "apples"],
    "salad": ["lettuce", "tomatoes", "cucumber", "radishes", "olives", "chickpeas", "walnuts", "fennel"],
    "stew": ["beef", "mushrooms", "turnips", "barley", "garlic", "peppers", "tomatoes", "potatoes"],
    "bread": ["flour", "yeast", "salt", "rye", "oats", "seeds", "honey", "milk"],
}
STEPS = {
    "soup": ["Chop the {}.", "Fry the {} in a little oil.", "Add the {} and cover with water.",
             "Simmer for {n} minutes.", "Season and serve hot."],
    "cake": ["Heat the oven to {t} degrees.", "Beat the {} until it is smooth.", "Fold in the {}.",
             "Bake for {n} minutes.", "Let it cool on a rack."],
    "salad": ["Wash the {}.", "Slice the {} thinly.", "Toss the {} with oil and lemon.",
              "Leave it to stand for {n} minutes.", "Serve cold."],
    "stew": ["Cut the {} into pieces.", "Brown the {} on all sides.", "Stir in the {}.",
             "Cook slowly for {n} minutes.", "Taste it, and add salt."],
    "bread": ["Mix the {} in a bowl.", "Knead in the {}.", "Let the dough rise for {n} minutes.",
              "Bake at {t} degrees until it is brown.", "Wait before you cut it."],
}
VARIABLES = "a b c n x y total count left width".split()


def weather(rng):
    place, others = rng.choice(PLACES), rng.sample(PLACES, 2)
    first, length = rng.randrange(7), rng.randint(2, 4)
    lines, low = [f"Weather for {place}, {DAYS[first]} to {DAYS[(first + length - 1) % 7]}."], rng.randint(-9, 18)
    for day in range(length):
        high = low + rng.randint(2, 9)
        trend = rng.choice(["warmer", "colder", "no change"])
        lines.append(f"{DAYS[(first + day) % 7]}: {rng.choice(SKIES)}, {low} to {high} degrees, wind from the "
                     f"{rng.choice(WINDS)} at {5 * rng.randint(1, 14)} km/h.")
        low += {"warmer": 3, "colder": -3, "no change": 0}[trend]
        if day + 1 < length:
            lines.append({"warmer": "It turns warmer overnight.", "colder": "It turns colder overnight.",
                          "no change": "The night brings no change."}[trend])
    if rng.random() < 0.5:
        lines.append(f"The road from {place} to {others[0]} is {rng.choice(['open', 'closed', 'icy', 'flooded'])}; "
                     f"travel by {others[1]} instead.")
    return "\n".join(lines)


def recipe(rng):
    kind = rng.choice(list(FOODS))
    foods = rng.sample(FOODS[kind], 3)
    people = rng.randint(2, 8)
    lines = [f"{foods[0].capitalize()} {kind} for {people}", ""]
    lines += [f"- {25 * people * rng.randint(1, 4)} g of {food}" for food in foods]
    lines.append("")
    chosen = iter(foods)
    for index, step in enumerate(STEPS[kind], 1):
        food = next(chosen) if "{}" in step else ""
        lines.append(f"{index}. " + step.format(food, n=5 * rng.randint(2, 18), t=10 * rng.randint(15, 24)))
    lines.append(f"\nFor {2 * people} people take twice as much: {', '.join(foods)}.")
    return "\n".join(lines)


def sums(rng):
    lines = [rng.choice(["Sums", "Exercises", "Work these out"]) + ":"]
    for _ in range(rng.randint(3, 7)):
        kind, a, b = rng.randrange(4), rng.randint(2, 99), rng.randint(2, 99)
        if kind == 0:
            lines.append(f"{a} + {b} = {a + b}")
        elif kind == 1:
            lines.append(f"{a + b} - {b} = {a}")
        elif kind == 2:
            a, b = a % 12 + 1, b % 12 + 1
            lines.append(f"{a} x {b} = {a * b}")
        else:
            each, n = rng.randint(2, 12), rng.randint(2, 9)
            thing = rng.choice(["eggs", "pens", "boxes", "coins", "stamps", "tickets"])
            lines.append(f"{n} bags hold {each} {thing} each: {n * each} {thing} in all.")
    return "\n".join(lines)


def program(rng):
    kind, (a, b) = rng.randrange(4), rng.sample(VARIABLES, 2)
    n, m = rng.randint(2, 9), rng.randint(2, 30)
    if kind == 0:
        lines = [f"{a} = {m}", f"for i in range({n}):", f"    {a} = {a} + i", f"print({a})"]
        out = [m + n * (n - 1) // 2]
    elif kind == 1:
        lines = [f"def double({a}):", f"    return 2 * {a}", "", f"{b} = double({m})", f"print({b}, double({b}))"]
        out = [f"{2 * m} {4 * m}"]
    elif kind == 2:
        lines = [f"{a} = {m}", f"{b} = {n}", f"if {a} > {b}:", f"    print(\"{a} is larger\")", "else:",
                 f"    print(\"{b} is not smaller\")"]
        out = [f"{a} is larger" if m > n else f"{b} is not smaller"]
    else:
        words = rng.sample(PLACES, n % 4 + 2)
        lines = [f"{a} = {json.dumps(words)}", f"for name in {a}:", "    print(len(name), name)"]
        out = [f"{len(word)} {word}" for word in words]
    told = "\n".join(map(str, out))
    return "```python\n" + "\n".join(lines) + f"\n```\nIt prints:\n{told}"


def documents(seed, known=frozenset()):
    """Texts of a seed, all different and none in `known`."""
    rng, out = random.Random(seed), {}
    while len(out) < N_DOCUMENTS[seed]:
        text = rng.choice([weather, recipe, sums, program])(rng)
        if text not in known:
            out[text] = None
    return list(out)


def make_tokenizer(texts):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(SPLITTER), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[BEGIN, END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def ids_of(tokenizer, texts):
    encoded = tokenizer.encode_batch([BEGIN + text + END for text in texts])
    return [i for one in encoded for i in one.ids]


def loss_of(model, rows):
    # Products in bf16 take two thirds of the time where the processor has instructions for them.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def train(ids, steps, state, minutes):
    """The trained model; `None` if the time was not enough."""
    torch.manual_seed(1)
    model = begin(SHAPE, torch.randn(VOCAB_SIZE, SHAPE["dim"]) * SHAPE["dim"] ** -0.5)
    optimizer = torch.optim.Adam(model.weights.values(), betas=(0.9, 0.98))
    first, until = 0, time.monotonic() + 60 * minutes
    if state.exists():
        first, weights, moments = torch.load(state)
        for name, weight in model.weights.items():
            weight.data.copy_(weights[name])
        optimizer.load_state_dict(moments)
    for step in range(first, steps):
        if time.monotonic() > until:
            weights = {name: weight.detach() for name, weight in model.weights.items()}
            torch.save((step, weights, optimizer.state_dict()), state)
            return None
        torch.manual_seed(step)
        starts = torch.randint(len(ids) - WINDOW, (ROWS,))
        rows = torch.stack([ids[at : at + WINDOW + 1] for at in starts])
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps, WARM_UP, RATE)
        loss = loss_of(model, rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.weights.values(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == steps:
            print(f"step {step}: {loss.item():.4f} nats a token", flush=True)
    return model


def halves(w, heads):
    """Rows of queries or keys, whose pairs stand side by side, as Hugging Face has them: in two halves."""
    return w.view(heads, -1, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


def write(model, tokenizer, validation, folder):
    shape = model.shape
    tensors = {"model.embed_tokens.weight": model.weights["tok_embeddings.weight"],
               "model.norm.weight": model.weights["norm.weight"]}
    heads = {"wq": shape["n_heads"], "wk": shape["n_kv_heads"]}
    for layer in range(shape["n_layers"]):
        for ours, name in (NORMS | MATRICES).items():
            w = model.weights[f"layers.{layer}.{name}.weight"]
            w = halves(w, heads[ours]) if ours in heads else w
            tensors[f"model.layers.{layer}.{NAMES[ours]}.weight"] = w
    tensors = {name: w.detach().bfloat16().contiguous() for name, w in tensors.items()}
    begin_id, end_id = (tokenizer.token_to_id(name) for name in (BEGIN, END))
    stops = {"bos_token_id": begin_id, "eos_token_id": end_id}
    config = stops | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": shape["dim"], "intermediate_size": shape["ffn_dim"],
        "num_hidden_layers": shape["n_layers"], "num_attention_heads": shape["n_heads"],
        "num_key_value_heads": shape["n_kv_heads"], "head_dim": model.head_dim, "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": shape["norm_eps"], "rope_theta": shape["rope_theta"],
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(stops) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "validation_ids.json").write_text(json.dumps({"ids": validation}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    words = parser.parse_args()
    torch.set_num_threads(1)
    beside = words.folder.with_name(words.folder.name + ".text")
    beside.mkdir(parents=True, exist_ok=True)
    learned = documents(LEARNED)
    others = {seed: documents(seed, frozenset(learned)) for seed in (CALIBRATION, EVALUATION)}
    (beside / "calibration.txt").write_text("\n\n".join(others[CALIBRATION]) + "\n")
    (beside / "evaluation.txt").write_text("\n\n".join(others[EVALUATION]) + "\n")
    tokenizer = make_tokenizer(learned)
    ids = torch.tensor(ids_of(tokenizer, learned))
    validation = ids_of(tokenizer, others[EVALUATION])
    print(f"{len(ids)} tokens to learn from, {len(validation)} to judge by", flush=True)
    if len(validation) < N_EVALUATED:
        sys.exit("too few documents to judge by")
    model = train(ids, words.steps, beside / "training.pt", words.minutes)
    if model is None:
        sys.exit(9)
    with torch.no_grad():
        rows = torch.tensor(validation[: WINDOW * 20 + 1]).unfold(0, WINDOW + 1, WINDOW)
        print(f"perplexity of what it has not seen: {loss_of(model, rows).exp().item():.4f}")
    write(model, tokenizer, validation[:N_EVALUATED], words.folder)


main()
