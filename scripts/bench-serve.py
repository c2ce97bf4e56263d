#!/usr/bin/env python3
"""Measures servers of one model: bench-serve.py model FILE | bench-serve.py run [--rounds N] NAME=ADDRESS...

`model` writes a made-up GGUF file of TinyLlama's shape, 1.1 B weights in Q8_0, with a vocabulary of made-up
words; it needs the packages gguf and numpy. `run` asks servers of it over OpenAI's protocol, in turn, and prints
medians: tokens/s of 1, 4 and 16 clients, and the time to the first token of a prompt of 1,500 tokens. What follows
is measured of the first server alone: the time to the first token of a prompt of 3,000 tokens that it has
answered before, and what a newcomer's prompt of 2,000 tokens does to seven others.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time

VOCAB, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 32000, 2048, 5632, 22, 32, 4
END = 2


def write_model(path):
    import gguf
    import numpy as np

    rng = np.random.default_rng(1)
    pool = rng.integers(0, 256, (1 << 16, 34), dtype=np.uint8)
    pool[:, :2] = np.frombuffer(np.float16(3e-4).tobytes(), dtype=np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(DIM // HEADS)
    writer.add_vocab_size(VOCAB)
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    words += [f"▁w{index}" for index in range(len(words), VOCAB)]
    kinds += [gguf.TokenType.NORMAL] * (VOCAB - len(kinds))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(index) for index in range(VOCAB)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)

    def add(name, rows, columns):
        blocks = rows * columns // 32
        starts = rng.integers(0, len(pool), blocks // 4096 + 1)
        parts = [pool[(start + np.arange(4096)) % len(pool)] for start in starts]
        data = np.concatenate(parts)[:blocks].reshape(rows, columns // 32 * 34)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    norm = np.ones(DIM, dtype=np.float32)
    add("token_embd.weight", VOCAB, DIM)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        writer.add_tensor(f"{at}attn_norm.weight", norm)
        writer.add_tensor(f"{at}ffn_norm.weight", norm)
        kv = DIM // HEADS * KV_HEADS
        for name, rows, columns in [
            ("attn_q", DIM, DIM), ("attn_k", kv, DIM), ("attn_v", kv, DIM), ("attn_output", DIM, DIM),
            ("ffn_gate", HIDDEN, DIM), ("ffn_up", HIDDEN, DIM), ("ffn_down", DIM, HIDDEN),
        ]:
            add(f"{at}{name}.weight", rows, columns)
    writer.add_tensor("output_norm.weight", norm)
    add("output.weight", VOCAB, DIM)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prompt(seed, length):
    source = random.Random(seed)
    return [1] + [source.randrange(300, VOCAB) for _ in range(length - 1)]


class Answer:
    """A streamed answer: when it was asked for, when each piece came, and how many tokens it has."""

    def __init__(self, server, ids, length, begun=None):
        name, address = server
        body = {"prompt": ids, "max_tokens": length, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, "logit_bias": {str(END): -100}}
        if name.startswith("llama"):
            # Prompts differ, but a server that looks for what they have in common loses time.
            body["cache_prompt"] = False
        connection = http.client.HTTPConnection(address, timeout=600)
        self.asked = time.perf_counter()
        self.times, self.tokens = [], 0
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{name}: {response.status} {response.read()[:300]}")
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                self.tokens = event["usage"]["completion_tokens"]
            if event["choices"] and event["choices"][0].get("text"):
                self.times.append(time.perf_counter())
                if begun and len(self.times) == 4:
                    begun.release()
        connection.close()

    def first(self):
        return self.times[0] - self.asked

    def gaps(self, since=0.0, until=float("inf")):
        pairs = zip(self.times, self.times[1:])
        return [b - a for a, b in pairs if a >= since and b <= until]


def all_at_once(tasks):
    answers = [None] * len(tasks)

    def run(index, task):
        answers[index] = task()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in answers:
        raise SystemExit("a client has failed")
    return answers


def tokens_per_s(server, clients, seed):
    begun = time.perf_counter()
    tasks = [lambda at=at: Answer(server, prompt(seed + at, 32), 64) for at in range(clients)]
    answers = all_at_once(tasks)
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - begun)


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def compare(servers, rounds):
    found = {}
    for turn in range(rounds):
        for server in servers:
            for clients in (1, 4, 16):
                speed = tokens_per_s(server, clients, 1000 * turn + 100 * clients)
                found.setdefault((f"{clients} clients, tokens/s", server[0]), []).append(speed)
            first = Answer(server, prompt(77 + turn, 1500), 1).first()
            found.setdefault(("first token of 1,500, s", server[0]), []).append(first)
    for what in dict.fromkeys(what for what, _ in found):
        medians = [statistics.median(found[what, name]) for name, _ in servers]
        shown = "  ".join(f"{name} {median:.3f}" for (name, _), median in zip(servers, medians))
        ratio = medians[0] / medians[-1]
        print(f"{what:26} {shown}  ratio {ratio if 'tokens/s' in what else 1 / ratio:.2f}", flush=True)


def warm_prefix(server):
    ids = prompt(5, 3000)
    cold = Answer(server, ids, 2).first()
    warm = [Answer(server, ids, 16) for _ in range(3)]
    step = statistics.median(gap for answer in warm for gap in answer.gaps())
    first = statistics.median(answer.first() for answer in warm)
    print(f"prompt of 3,000: first token {cold:.3f} s, again {first:.3f} s: {first / step:.2f} steps of {step:.3f} s")


def newcomer(server):
    # Weights may still be copied to huge pages beside the first.
    alone = min(Answer(server, prompt(seed, 2000), 1).first() for seed in (6, 8))
    begun = threading.Semaphore(0)
    others = [lambda at=at: Answer(server, prompt(200 + at, 32), 700, begun) for at in range(7)]

    def later():
        for _ in others:
            begun.acquire()
        time.sleep(3)
        return Answer(server, prompt(7, 2000), 1)

    *seven, new = all_at_once(others + [later])
    before = [gap for answer in seven for gap in answer.gaps(new.asked - 3, new.asked)]
    # Their last token may come before it.
    beside = [gap for answer in seven for gap in answer.gaps(new.asked, new.times[0])]
    last = min(answer.times[-1] for answer in seven)
    step, p99 = statistics.median(before), percentile(beside, 0.99)
    print(f"seven decode: {step * 1000:.0f} ms a token; beside a prompt of 2,000: p99 {p99 * 1000:.0f} ms "
          f"({p99 / step:.2f} steps), its first token {new.first():.1f} s (alone {alone:.1f} s: "
          f"{new.first() / alone:.2f} times)" + ("" if last > new.times[0] else "; THEY ENDED BEFORE IT"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["model", "run"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("places", nargs="+")
    arguments = parser.parse_args()
    if arguments.what == "model":
        return write_model(arguments.places[0])
    servers = [tuple(place.split("=", 1)) for place in arguments.places]
    compare(servers, arguments.rounds)
    warm_prefix(servers[0])
    newcomer(servers[0])


main()
