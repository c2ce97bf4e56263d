#!/usr/bin/env python3
"""Asks `leap serve` over 64 connections at once and compares each answer with what `leap run` says alone.

Usage: soak-serve.py PROGRAM FOLDER ANSWERS REQUESTS [MODEL KV_MEMORY]; KV_MEMORY holds about two contexts

Three servers, one after the other: a board that is short of memory for keys and values; a ring of three that is so, too,
whose nodes keep prefixes in files, and of which a worker dies every few seconds, for a fifth of ANSWERS; and a board that keeps
prefixes in files. Some clients go away
early, some read slowly; some answers come whole, some as streams. The last server gets REQUESTS, most of which are small,
and its memory is watched."""

import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
ANSWERS, REQUESTS = int(sys.argv[3]), int(sys.argv[4])
# The demo model, if there is none.
MODEL = sys.argv[5:6]
N_CLIENTS = 64
CTX = 512
# Sixteen pages of 64 tokens: two contexts for eight streams.
KV_MEMORY = (sys.argv[6:7] or ["1600K"])[0]
NAMES = ["fox", "bear", "owl", "lamp", "boat", "marble", "hill", "girl", "king", "mouse"]
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "is_brave"],
    "properties": {"name": {"type": "string", "maxLength": 12}, "is_brave": {"type": "boolean"}},
}


def said(words, told):
    """What a program writes, whose ends of lines are left as they are."""
    return subprocess.run(words, input=told.encode(), capture_output=True, check=True).stdout.decode()


class Question:
    """What is asked, and what `leap run` answers to it."""

    def __init__(self, number, is_short):
        rng = random.Random(number // 2)
        self.is_chat = rng.random() < 0.6
        name = rng.choice(NAMES)
        # Texts of about 20, 120 and 300 tokens, of which many begin alike.
        n_beside = rng.choice([0] * (15 if is_short else 3) + [1, 3])
        opening = "".join(f"There was a {a} and a {b}. " for a in NAMES for b in NAMES[:n_beside])
        self.system = opening or None
        self.prompt = f"Tell me a story about a {name}." if self.is_chat else f"{opening}Once upon a time, a {name}"
        self.n = rng.randrange(1, 12) if is_short else rng.randrange(10, 100)
        self.temperature = rng.choice([0, 0.7, 0.9, 1.2])
        self.top_p = rng.choice([0.5, 0.95, 1])
        self.stop = rng.choice([[], [], [" the"], [".", "called"]])
        # The answers of a pair may be asked for at once.
        self.seed = 1000 + number

    def ask_alone(self):
        words = [PROGRAM, "run", *MODEL, "-q", "--ctx", str(CTX), "--threads", "1", "-n", str(self.n)]
        words += ["--temp", str(self.temperature), "--top-p", str(self.top_p), "--seed", str(self.seed)]
        words += [word for stop in self.stop for word in ("--stop", stop)]
        if self.is_chat:
            words += ["--chat"] + (["-s", self.system] if self.system else [])
            self.wanted = said(words, self.prompt + "\n").removesuffix("\n")
        else:
            words += ["-p", self.prompt]
            text = said(words, "")
            assert text.startswith(self.prompt), text
            self.wanted = text[len(self.prompt):].removesuffix("\n")
        return self

    def messages(self):
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [{"role": "user", "content": self.prompt}]

    def requests(self):
        """Path and body for each protocol that can ask this."""
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        openai = {**sampling, "max_tokens": self.n, "stop": self.stop}
        options = {**sampling, "top_k": 0, "num_predict": self.n, "stop": self.stop}
        if not self.is_chat:
            return [("/v1/completions", {**openai, "prompt": self.prompt})]
        found = [
            ("/v1/chat/completions", {**openai, "messages": self.messages()}),
            ("/api/chat", {"messages": self.messages(), "options": options}),
        ]
        generate = {"prompt": self.prompt, "options": options}
        found.append(("/api/generate", {**generate, "system": self.system} if self.system else generate))
        if not self.stop:
            # It takes no stop strings.
            more = {**sampling, "max_output_tokens": self.n, "input": self.prompt}
            found.append(("/v1/responses", {**more, "instructions": self.system} if self.system else more))
        return found


def texts_of(path, answer, n):
    """The texts of a whole answer."""
    if path == "/v1/responses":
        return ["".join(part["text"] for item in answer["output"] for part in item["content"])]
    if path.startswith("/api/"):
        return [answer["message"]["content"] if "message" in answer else answer["response"]]
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    assert len(choices) == n, answer
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]


class Pieces:
    """Joins the pieces of a stream."""

    def __init__(self, path, n):
        self.path, self.texts, self.is_over = path, [""] * n, False

    def take(self, line):
        if self.path.startswith("/api/"):
            event = json.loads(line)
            self.texts[0] += event["message"]["content"] if "message" in event else event["response"]
            self.is_over = event["done"]
        elif line == b"data: [DONE]\n":
            self.is_over = True
        elif line.startswith(b"data: "):
            self.take_event(json.loads(line[6:]))

    def take_event(self, event):
        assert "error" not in event or event["error"] is None, event
        if self.path == "/v1/responses":
            if event["type"] == "response.output_text.delta":
                self.texts[0] += event["delta"]
            self.is_over = event["type"] in ("response.completed", "response.incomplete")
        for choice in event.get("choices", []):
            delta = choice["delta"].get("content") if "delta" in choice else choice["text"]
            self.texts[choice["index"]] += delta or ""


class Served:
    """A server, and the workers of its ring."""

    def __init__(self, name, *words):
        self.log = FOLDER / f"{name}.log"
        with self.log.open("w") as log:
            command = [PROGRAM, "serve", *MODEL, "--listen", "127.0.0.1:0", "--threads", "1", "--ctx", str(CTX)]
            command += ["--streams", "8", "--queue", "256", *words]
            environment = {"LEAP_LOG": "debug", "PATH": "/usr/bin:/bin"}
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environment)
        self.port = int(self.said(r"answers on 127\.0\.0\.1:(\d+)")[1])

    def said(self, pattern):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.05)
        raise AssertionError(f"the server never said {pattern}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def metrics(self):
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return {name: float(value) for name, value in re.findall(r"^leap_(\w+) (\S+)$", text, re.MULTILINE)}

    def memory_kb(self):
        """Memory of its own: maps of files are not counted."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1])

    def end(self):
        """Ends it as a service is; nothing may be left."""
        end = time.monotonic() + 60
        while True:
            figures = self.metrics()
            left = {name: figures.get(name) for name in ("jobs_running", "jobs_queued", "kv_pages_used")}
            if not any(left.values()):
                break
            assert time.monotonic() < end, f"never ended: {left}"
            time.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()[-2000:]
        lost = re.search(r"(\d+) idle, (\d+) lost", self.log.read_text())
        assert lost is None or lost[2] == "0", lost
        return figures


def kept(name):
    return ["--prefix-cache", FOLDER / f"kept-{name}", "--prefix-cache-size", "8M"]


def thirds():
    """The layers of each of three boards."""
    n = 6
    if MODEL:
        told = subprocess.run([PROGRAM, "info", *MODEL], capture_output=True, text=True, check=True).stdout
        n = int(re.search(r"^n_layers +(\d+)", told, re.MULTILINE)[1])
    cuts = [0, n // 3, 2 * n // 3, n]
    return [f"{start}..{end}" for start, end in zip(cuts, cuts[1:])]


class Ring:
    """The workers of a ring, of which one dies every few seconds."""

    def __init__(self):
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        nodes = zip(["desk", "pi", "orange"], sockets, thirds())
        self.file = FOLDER / "ring.txt"
        self.file.write_text("".join(f"{name} 127.0.0.1:{one.getsockname()[1]} {at}\n" for name, one, at in nodes))
        for one in sockets:
            one.close()
        self.workers = {name: self.start(name) for name in ("pi", "orange")}
        self.n_deaths, self.is_over = 0, threading.Event()
        self.reaper = threading.Thread(target=self.reap)

    def start(self, name):
        command = [PROGRAM, "worker", *MODEL, "-q", "--ring", self.file, "--node", name, "--transport", "udp", "--threads", "1"]
        command += kept(name)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def reap(self):
        rng = random.Random(1)
        while not self.is_over.wait(rng.uniform(4, 8)):
            name = rng.choice(list(self.workers))
            self.workers[name].kill()
            self.workers[name].wait()
            time.sleep(rng.uniform(0, 1))
            self.workers[name] = self.start(name)
            self.n_deaths += 1

    def end(self):
        self.is_over.set()
        self.reaper.join()

    def kill(self):
        for worker in self.workers.values():
            worker.kill()


class Soak:
    """Clients that ask until there are `n` answers, or requests."""

    def __init__(self, served, questions, formed, n, counts_requests=False):
        self.served, self.questions, self.formed = served, questions, formed
        self.n, self.counts_requests = n, counts_requests
        self.lock = threading.Lock()
        self.n_answers = self.n_requests = self.n_cancelled = 0
        self.differing, self.failures, self.memory = [], [], []

    def run(self):
        start = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(number,)) for number in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(
            f"{self.n_requests} requests, {self.n_answers} answers compared, {len(self.differing)} differ, "
            f"{self.n_cancelled} clients went away, {time.monotonic() - start:.0f} s",
            flush=True,
        )
        for what in self.differing[:3] + self.failures[:3]:
            print(what)
        assert not self.differing and not self.failures
        return self

    def is_over(self):
        done = self.n_requests if self.counts_requests else self.n_answers
        return done >= self.n or self.failures

    def count(self):
        with self.lock:
            self.n_requests += 1
            if self.counts_requests and self.n_requests % max(self.n // 20, 1) == 0:
                self.memory.append(self.served.memory_kb())

    def client(self, number):
        rng = random.Random(number)
        connection = self.served.connect()
        try:
            while not self.is_over():
                time.sleep(rng.expovariate(50))
                if rng.random() < 0.1:
                    connection.close()
                    connection = self.served.connect()
                if self.counts_requests and rng.random() < 0.8:
                    self.small(connection, rng)
                elif rng.random() < 0.15:
                    self.leave(rng)
                else:
                    self.compare(connection, rng)
                self.count()
        except Exception as error:  # Whatever it is, it is what this looks for.
            with self.lock:
                self.failures.append(f"client {number}: {error!r}")

    def compare(self, connection, rng):
        if rng.random() < 0.05:
            question = rng.choice(self.formed)
            path, body, wanted = "/v1/chat/completions", question["body"], [question["wanted"]]
        else:
            path, body, wanted = self.wanted(rng)
        if rng.random() < 0.5:
            texts = self.whole(connection, path, body, len(wanted))
        else:
            texts = self.streamed(connection, path, body, len(wanted), rng)
        with self.lock:
            self.n_answers += len(wanted)
            if texts != wanted:
                self.differing.append(json.dumps({"path": path, "body": body, "wanted": wanted, "found": texts}))

    def wanted(self, rng):
        at = rng.randrange(len(self.questions))
        path, body = rng.choice(self.questions[at].requests())
        if at % 2 == 0 and path.startswith("/v1/c") and rng.random() < 0.2:
            return path, {**body, "n": 2}, [self.questions[at].wanted, self.questions[at + 1].wanted]
        return path, body, [self.questions[at].wanted]

    def whole(self, connection, path, body, n):
        connection.request("POST", path, json.dumps({**body, "stream": False}))
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return texts_of(path, json.loads(text), n)

    def streamed(self, connection, path, body, n, rng):
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        pieces, is_slow = Pieces(path, n), rng.random() < 0.05
        while line := response.readline():
            pieces.take(line)
            if is_slow:
                time.sleep(0.02)
        assert pieces.is_over, f"{path} ended too soon"
        return pieces.texts

    def leave(self, rng):
        """Asks, and goes away: at once, or after a few lines."""
        path, body, _ = self.wanted(rng)
        connection = self.served.connect()
        connection.request("POST", path, json.dumps({**body, "stream": rng.random() < 0.7}))
        n_lines = rng.choice([0, 0, 1, 5])
        if n_lines > 0:
            response = connection.getresponse()
            for _ in range(n_lines):
                response.readline()
            response.close()
        else:
            time.sleep(rng.uniform(0, 0.05))
        connection.close()
        with self.lock:
            self.n_cancelled += 1

    def small(self, connection, rng):
        """What needs no engine, or is refused."""
        method, path, body, wanted = rng.choice([
            ("GET", "/health", None, 200),
            ("GET", "/metrics", None, 200),
            ("GET", "/v1/models", None, 200),
            ("GET", "/nowhere", None, 404),
            ("POST", "/tokenize", json.dumps({"content": "Once upon a time " * rng.randrange(1, 50)}), 200),
            ("POST", "/v1/completions", '{"prompt": "a"', 400),
            ("POST", "/v1/completions", json.dumps({"prompt": "fox " * 2000}), 400),
            ("POST", "/api/chat", json.dumps({"messages": [{"role": "user", "content": "a"}], "options": {"typical_p": 0.5}}), 400),
        ])
        connection.request(method, path, body)
        response = connection.getresponse()
        text = response.read()
        assert response.status == wanted, (path, text)


def ask_formed(served):
    """Answers with a form, each asked for alone: `leap run` has none."""
    found = []
    for seed in range(6):
        schema = {**SCHEMA, "description": str(seed)}
        form = {"type": "json_schema", "json_schema": {"name": "hero", "schema": schema}}
        messages = [{"role": "user", "content": f"Who is the {NAMES[seed]}?"}]
        body = {"messages": messages, "seed": seed, "max_tokens": 60, "response_format": form}
        connection = served.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        found.append({"body": body, "wanted": texts_of("", json.loads(connection.getresponse().read()), 1)[0]})
    return found


def told(figures):
    names = ["answers_total", "answers_cancelled_total", "generated_tokens_total", "prompt_tokens_total"]
    names += ["prefix_tokens_total", "prefix_file_tokens_total", "kv_pages"]
    return ", ".join(f"{name} {figures[name]:.0f}" for name in names if name in figures)


def soak_board(questions):
    print("one board, two contexts of memory for eight streams", flush=True)
    served = Served("board", "--kv-memory", KV_MEMORY)
    try:
        formed = ask_formed(served)
        Soak(served, questions, formed, ANSWERS).run()
        print(told(served.end()))
    finally:
        served.process.kill()
    return formed


def soak_ring(questions, formed):
    print("a ring of three, of which a worker dies every few seconds", flush=True)
    ring = Ring()
    served = None
    try:
        words = ["--ring", ring.file, "--transport", "udp", "--kv-memory", KV_MEMORY, *kept("desk")]
        served = Served("ring", *words)
        ring.reaper.start()
        Soak(served, questions, formed, ANSWERS // 5).run()
        ring.end()
        print(f"{ring.n_deaths} workers died; {told(served.end())}")
    finally:
        ring.is_over.set()
        ring.kill()
        if served:
            served.process.kill()


def soak_memory(questions, formed):
    print("one board with prefixes in files", flush=True)
    served = Served("memory", "--kv-memory", KV_MEMORY, *kept("alone"))
    try:
        soak = Soak(served, questions, formed, REQUESTS, counts_requests=True).run()
        print(told(served.end()))
    finally:
        served.process.kill()
    print("memory in KB, at each twentieth of the requests:", *soak.memory)
    # Threads and buffers of the first requests are there by then.
    early, late = max(soak.memory[4:8]), max(soak.memory[16:])
    assert late <= early + 2048, f"memory grew from {early} KB to {late} KB"


def main():
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        numbers = range(min(240, ANSWERS // 5 * 2))
        long = list(pool.map(lambda number: Question(number, False).ask_alone(), numbers))
        short = list(pool.map(lambda number: Question(number, True).ask_alone(), numbers))
    print(f"{len(long) + len(short)} questions asked of `leap run`, {time.monotonic() - start:.0f} s", flush=True)
    formed = soak_board(long)
    soak_ring(long, formed)
    soak_memory(short, formed)


main()
