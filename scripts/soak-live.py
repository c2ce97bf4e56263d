"""Moves the layers of a ring of three boards at random moments while it answers, and kills workers: see soak-live.sh.

Usage: soak-live.py LEAP MODEL FOLDER PREFIX MOVES, where PREFIX and a board's name are its network namespace.
"""

import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

LEAP, MODEL, FOLDER, PREFIX, MOVES = sys.argv[1:5] + [int(sys.argv[5])]
BOARDS = {"desk": 1, "pi": 2, "orange": 3}
PROMPT, N_TOKENS, STREAMS = "Once upon a time there was a", 100, 3


def on(board, *command, **options):
    folder = os.path.join(FOLDER, board)
    os.makedirs(folder, exist_ok=True)
    names = {"XDG_CACHE_HOME": folder, "XDG_RUNTIME_DIR": folder}
    log = open(os.path.join(FOLDER, board + ".log"), "a")
    options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | options
    return subprocess.Popen(
        ["ip", "netns", "exec", PREFIX + board, *command], env=os.environ | names, **options
    )


def worker(board):
    return on(
        board, LEAP, "worker", "--key", FOLDER + "/key", "--node", board, "--threads", "1", "--transport", "udp"
    )


def ask(*words):
    """What `leap ring` says, or why not."""
    ran = on("desk", LEAP, "ring", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = ran.communicate()
    return ran.returncode, (out + err).strip()


def alone(seed):
    """The text of one board."""
    command = [LEAP, "run", MODEL, "-q", "-p", PROMPT, "-n", str(N_TOKENS), "--temp", "0.8", "--top-p", "0.9", "--seed", str(seed)]
    text = subprocess.run(command + ["--ctx", "256"], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    return text.decode().removeprefix(PROMPT).removesuffix("\n")


class Answers(threading.Thread):
    """Asks for one text again and again, and keeps when its pieces came."""

    def __init__(self, seed, wanted):
        super().__init__()
        self.seed, self.wanted, self.is_over = seed, wanted, False
        self.came, self.n, self.wrong = [], 0, 0

    def run(self):
        while not self.is_over:
            text = self.answer()
            self.n += 1
            if text != self.wanted:
                self.wrong += 1
            if text != self.wanted and self.wrong == 1:
                print(f"seed {self.seed}: {text!r}, not {self.wanted!r}", flush=True)

    def answer(self):
        body = {"prompt": PROMPT, "max_tokens": N_TOKENS, "temperature": 0.8, "top_p": 0.9, "seed": self.seed, "stream": True}
        text = ""
        for line in http_post(body):
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                self.came.append(time.monotonic())
        return text


def http_post(body):
    connection = http.client.HTTPConnection("leap", timeout=600)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(FOLDER + "/http.sock")
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def any_split(n_layers):
    first, second = sorted(random.sample(range(1, n_layers), 2))
    return f"desk=0..{first},pi={first}..{second},orange={second}..{n_layers}"


def pause(answers, begin, end):
    """The longest time without a piece of an answer, of any, between these moments."""
    longest = 0
    for one in answers:
        came = [at for at in one.came if begin - 2 < at < end + 2]
        longest = max([longest] + [b - a for a, b in zip(came, came[1:]) if b > begin and a < end])
    return longest


def main():
    random.seed(1)
    running = {board: worker(board) for board in ("pi", "orange")}
    wanted = [alone(seed) for seed in range(1, STREAMS + 1)]
    master = on(
        "desk", LEAP, "serve", MODEL, "--listen", FOLDER + "/http.sock", "--boards", "10.214.8.2,10.214.8.3", "--key",
        FOLDER + "/key", "--objective", "memory", "--node", "desk", "--threads", "1", "--transport", "udp", "--ctx", "256",
        "--rebalance-after", "off", "--streams", str(STREAMS),
    )
    while ask("status")[0] != 0 or "open" not in ask("status")[1]:
        time.sleep(0.5)
        if master.poll() is not None:
            sys.exit("the master ended: see " + open(FOLDER + "/desk.log").read()[-2000:])
    n_layers = json.loads(ask("status", "--json")[1])["nodes"][-1]["end_layer"]
    answers = [Answers(seed, text) for seed, text in enumerate(wanted, 1)]
    for one in answers:
        one.start()
    time.sleep(3)
    pauses, kills, refused = [], 0, 0
    for move in range(MOVES):
        time.sleep(random.uniform(0, 2))
        if move % 5 == 4:
            board = random.choice(["pi", "orange"])
            running[board].kill()
            running[board].wait()
            running[board] = worker(board)
            kills += 1
        begin = time.monotonic()
        code, said = ask("resize", any_split(n_layers))
        end = time.monotonic()
        time.sleep(1)
        if code != 0:
            refused += 1
            print(f"move {move}: {said}", flush=True)
        elif move % 5 != 4:
            pauses.append(pause(answers, begin, end))
    for one in answers:
        one.is_over = True
    for one in answers:
        one.join()
    token = statistics.mean((one.came[-1] - one.came[0]) / len(one.came) for one in answers)
    n, wrong = sum(one.n for one in answers), sum(one.wrong for one in answers)
    pauses.sort()
    print(f"{MOVES} moves, {kills} kills, {refused} refused; {n} answers of {N_TOKENS} tokens, {wrong} differ")
    print(
        f"a token takes {token * 1e3:.1f} ms; pause of a move {pauses[len(pauses) // 2]:.3f} s half of the time, "
        f"{pauses[-1]:.3f} s at most: {pauses[len(pauses) // 2] / token:.1f} and {pauses[-1] / token:.1f} tokens"
    )
    master.terminate()
    sys.exit(1 if wrong or refused else 0)


main()
