#!/usr/bin/env python3
"""Distils models/demo-draft.bin from models/demo.bin: distill-draft.py LEAP FOLDER [--minutes N]

LEAP is the program, FOLDER keeps what the demo model wrote and the state of the training, with which
a call goes on where one ended. With --minutes it ends after so many, and says so by exit code 9.
Needs PyTorch; distill-draft.sh brings it.

The text to learn from is the demo model's own, at its usual temperature: stories and questions
from nothing, and its answers to these questions. The draft learns what the demo model holds likely at
each place (forward KL divergence, in f32, on one thread).

On about half a core of an AVX2 machine the text took 14 minutes, what the demo model says of it 9, the training 13. In
texts of other seeds so many drafts were right (the text's token, the most likely one for the demo model), and so
many of each 4 and 8 were taken:

    stories, greedy             0.937  0.942  3.30  5.31
    answers, greedy             0.920  0.922  3.20  5.05
    stories, temperature 0.8    0.866  0.962  2.77  4.34
    answers, temperature 0.8    0.792  0.882  2.12  2.96
"""

import argparse
import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from small_llama import MATRICES, NORMS, Llama, begin, rate_at

ROOT = pathlib.Path(__file__).parent.parent
DEMO = ROOT / "models/demo.bin"
DEMO_TOKENIZER = ROOT / "models/demo.tokenizer.bin"
DRAFT = ROOT / "models/demo-draft.bin"
# The demo model's, with which its checkpoint came.
TOKENIZER = ROOT / "tests/golden/llama3-tiny/tokenizer.model"

BEGIN, END, TURN_END = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"
# A turn as LEAP's chat template has it, and what the model's own begin with once special tokens are left out.
ASKED = (f"<|start_header_id|>user<|end_header_id|>\n\n{{}}{TURN_END}"
         "<|start_header_id|>assistant<|end_header_id|>\n\n")
QUESTION = "user\n\n"
# Temperature of the text to learn from.
USUAL = "1"
# Seeds of the text to learn from, and those of the text that shows what was learned.
N_SEEDS, TEST_SEED, N_TEST_SEEDS = 4000, 10**6, 150
SHAPE = {"dim": 64, "ffn_dim": 192, "n_layers": 4, "n_heads": 2, "n_kv_heads": 1}
STEPS, WARM_UP, ROWS, WINDOW = 2400, 100, 8, 256
RATE = 4e-3
# Ids that occur so often are known; texts with a smaller share of them are left out.
COUNT_MIN, SHARE_MIN = 50, 0.97
FIRST_ID = 4064
# Ids that stand for those that never occur, at each step others.
N_OTHERS = 64


class Leap:
    """The program, and what the demo model writes with it."""

    def __init__(self, program):
        self.program = program

    def call(self, *words, text=""):
        return subprocess.run([self.program, *words], input=text, capture_output=True, text=True, check=True).stdout

    def answers(self, *words, text=""):
        lines = self.call("run", DEMO, "-q", "--json", *words, text=text).splitlines()
        return [json.loads(line)["text"] for line in lines]

    def documents(self, seeds, temperature):
        """What the model wrote: stories, and conversations of a question or two. Each is a list of pairs,
        what it went on from and what it said."""
        documents, questions = [], []
        for seed in seeds:
            words = ("--seed", str(seed), "--temp", temperature)
            [text] = self.answers("-p", "", "--seed", str(seed))
            if text.startswith(QUESTION):
                questions.append(" ".join(text.removeprefix(QUESTION).split()))
                asked = questions[-1 - seed % 2 :]
                said = self.answers("--chat", *words, text="\n".join(asked) + "\n")
                pairs = [(ASKED.format(question), answer + TURN_END) for question, answer in zip(asked, said)]
                documents.append([(BEGIN + pairs[0][0], pairs[0][1])] + pairs[1:])
                continue
            opening = "" if temperature == USUAL else " ".join(text.split(" ")[: 1 + seed % 12])
            [rest] = self.answers("-p", opening, *words) if opening else [text]
            documents.append([(BEGIN + opening, rest + END)])
        return documents

    def encode(self, documents):
        """Each document's ids, and which of them the model said."""
        parts = [part for document in documents for pair in document for part in pair]
        lines = "".join(json.dumps(part) + "\n" for part in parts)
        encoded = self.call("tokenizer", DEMO_TOKENIZER, "--encode", "--special", text=lines)
        parts = (json.loads(line) for line in encoded.splitlines())
        for document in documents:
            ids, is_said = [], []
            for part, said in ((next(parts), said) for _ in document for said in (False, True)):
                ids += part
                is_said += [said] * len(part)
            yield torch.tensor(ids), torch.tensor(is_said)


def read(leap, path):
    """The model of an int8 file, whose fields and tensors `leap info` names."""
    table = leap.call("info", path, "--tensors")
    file = pathlib.Path(path).read_bytes()
    fields = dict(re.findall(r"^(\S+)  +(\S+)$", table, re.MULTILINE))
    group = int(re.search(r"int8, groups of (\d+)", table)[1])
    shape = {name: int(fields[name]) for name in SHAPE}
    shape |= {"norm_eps": float(fields["norm_eps"]), "rope_theta": float(fields["rope_theta"])}
    places = {f"layers.{layer}.{ours}": f"layers.{layer}.{meta}.weight"
              for layer in range(shape["n_layers"]) for ours, meta in (NORMS | MATRICES).items()}
    places |= {"final_norm": "norm.weight", "embedding": "tok_embeddings.weight"}
    weights = {}
    for name, rows, cols, offset, length in re.findall(r"^(\S+) +\[(\d+), (\d+)\] at (\d+), (\d+) bytes", table, re.M):
        n, data = int(rows) * int(cols), bytearray(file[int(offset) : int(offset) + int(length)])
        if name.endswith("norm"):
            weights[places[name]] = torch.frombuffer(data, dtype=torch.float32)
            continue
        codes = torch.frombuffer(data, dtype=torch.int8, count=n).view(-1, group)
        scales = torch.frombuffer(data, dtype=torch.float32, offset=n)
        weights[places[name]] = (codes * scales[:, None]).view(int(rows), int(cols))
    return Llama(shape, weights)


def begin_draft(teacher, ids):
    """A draft to train. Its embedding is the teacher's, as far as so few dimensions hold it."""
    table = teacher.weights["tok_embeddings.weight"]
    share = torch.bincount(ids, minlength=len(table)).add(1).float().sqrt()
    basis = torch.linalg.svd(share[:, None] * table, full_matrices=False)[2][: SHAPE["dim"]]
    return begin(teacher.shape | SHAPE, table @ basis.T)


def usual(ids):
    """The texts that are stories and talk of stories, and the ids that these are made of. The demo model
    rambles about other things now and then, of which it knows nothing."""
    is_known = torch.bincount(ids).ge(COUNT_MIN)
    texts = ids.tensor_split(ids.eq(FIRST_ID).nonzero().flatten()[1:])
    texts = [text for text in texts if is_known[text].float().mean() > SHARE_MIN]
    return torch.cat(texts), is_known.nonzero().flatten()


def wanted_of(teacher, windows, known):
    """How likely the teacher holds each of the `known` ids at each place, in f16."""
    table = teacher.weights["tok_embeddings.weight"][known].T
    with torch.no_grad():
        parts = (F.softmax(teacher.states(rows) @ table, -1).half() for rows in windows.split(ROWS))
        return torch.cat(list(parts))


def loss_of(draft, rows, wanted, known, others):
    """Cross entropy of the draft with what is `wanted` of the `known` ids. For all others, of which it wants
    none, stand a few."""
    few = others[torch.randperm(len(others))[:N_OTHERS]]
    table = draft.weights["tok_embeddings.weight"]
    states = draft.states(rows)
    logits = states @ table[known].T
    least = states @ table[few].T + math.log(len(others) / N_OTHERS)
    total = torch.logaddexp(logits.logsumexp(-1), least.logsumexp(-1))
    return (total - (wanted * logits).sum(-1)).mean()


def train(teacher, ids, folder, minutes):
    """The trained draft; `None` if the time was not enough."""
    torch.manual_seed(1)
    draft = begin_draft(teacher, ids)
    ids, known = usual(ids)
    print(f"{len(ids)} tokens, {len(known)} of the vocabulary")
    others = torch.ones(len(teacher.weights["tok_embeddings.weight"])).index_fill(0, known, 0).nonzero().flatten()
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    wanted = kept(folder / "wanted.pt", lambda: wanted_of(teacher, windows, known))
    optimizer = torch.optim.Adam(draft.weights.values(), betas=(0.9, 0.99))
    path, first, until = folder / "training.pt", 0, time.monotonic() + 60 * minutes
    if path.exists():
        first, weights, moments = torch.load(path)
        for name, weight in draft.weights.items():
            weight.data.copy_(weights[name])
        optimizer.load_state_dict(moments)
    for step in range(first, STEPS):
        if time.monotonic() > until:
            torch.save((step, {name: weight.detach() for name, weight in draft.weights.items()},
                        optimizer.state_dict()), path)
            return None
        torch.manual_seed(step)
        chosen = torch.randint(len(windows), (ROWS,))
        aim = wanted[chosen].float()
        aim /= aim.sum(-1, keepdim=True)
        rate = rate_at(step, STEPS, WARM_UP, RATE)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(draft, windows[chosen], aim, known, others)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.weights.values(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == STEPS:
            least = -torch.special.xlogy(aim, aim).sum(-1).mean()
            print(f"step {step}: {loss.item() - least.item():.4f} nats from the demo model", flush=True)
    return draft


def kept(path, make):
    """What is in a file, which is made if it is missing."""
    if not path.exists():
        torch.save(make(), path)
    return torch.load(path)


def export(leap, draft, folder):
    """Writes the draft as Meta lays checkpoints out, and as LEAP's file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "norm_eps", "rope_theta")
    shape = {name: draft.shape[name] for name in names}
    vocab_size = len(draft.weights["tok_embeddings.weight"])
    params = shape | {"vocab_size": vocab_size, "max_seq_len": 1024}
    (folder / "params.json").write_text(json.dumps(params))
    weights = {name: weight.detach().clone() for name, weight in draft.weights.items()}
    torch.save(weights, folder / "consolidated.00.pth")
    shutil.copy(TOKENIZER, folder)
    # With the demo model's stop ids its tokenizer is the demo model's to the byte.
    stops = {"bos_token_id": FIRST_ID, "eos_token_id": [4065, 4073]}
    (folder / "generation_config.json").write_text(json.dumps(stops))
    leap.call("export", folder / "demo-draft.bin", "--meta-llama", folder, "--verify")
    if (folder / "tokenizer.bin").read_bytes() != DEMO_TOKENIZER.read_bytes():
        sys.exit("the draft's tokenizer is not the demo model's")
    return folder / "demo-draft.bin"


def taken(hits, k):
    """Drafts that are taken in each pass, if each brings k, for all texts of `hits`, which say at which
    places the draft would be right."""
    passes, tokens = 0, 0
    for text in hits:
        at = 0
        while at < len(text):
            run = list(itertools.takewhile(bool, text[at : at + k]))
            passes, tokens, at = passes + 1, tokens + len(run), at + len(run) + 1
    return tokens / passes


def report(leap, path):
    """Says how often the draft is right, in texts that it has not learned from."""
    teacher, draft = read(leap, DEMO), read(leap, path)
    for temperature in ("0", "0.8"):
        documents = leap.documents(range(TEST_SEED, TEST_SEED + N_TEST_SEEDS), temperature)
        for name, is_chat in (("stories", False), ("answers", True)):
            chosen = [document for document in documents if (ASKED[:10] in document[0][0]) == is_chat]
            hits, agreed = [], 0
            for ids, is_said in leap.encode(chosen):
                with torch.no_grad():
                    most_likely, drafted = (model.logits(ids[None, :-1])[0].argmax(-1) for model in (teacher, draft))
                hits.append((drafted == ids[1:])[is_said[1:]].tolist())
                agreed += (drafted == most_likely)[is_said[1:]].sum().item()
            n = sum(map(len, hits))
            means = ", ".join(f"{taken(hits, k):.2f}" for k in range(1, 9))
            print(f"{name} at temperature {temperature}, {n} tokens: {sum(map(sum, hits)) / n:.3f} of the drafts are "
                  f"the text's, {agreed / n:.3f} the demo model's most likely; taken of 1 to 8: {means}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("leap", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=math.inf)
    words = parser.parse_args()
    torch.set_num_threads(1)
    words.folder.mkdir(parents=True, exist_ok=True)
    leap = Leap(words.leap.absolute())
    text = lambda: torch.cat([ids for ids, _ in leap.encode(leap.documents(range(1, N_SEEDS), USUAL))])
    ids = kept(words.folder / "text.pt", text)
    draft = train(read(leap, DEMO), ids, words.folder, words.minutes)
    if draft is None:
        sys.exit(9)
    path = export(leap, draft, words.folder / "checkpoint")
    report(leap, path)
    shutil.copy(path, DRAFT)


main()
