"""Has a ring write answers while one of its boards is throttled, and compares its tokens a second with what it planned:
see soak-throttle.sh.

Usage: soak-throttle.py SOCKET LOG, where LOG is what the master tells.
"""

import http.client
import json
import os
import re
import socket
import statistics
import sys
import threading
import time

SOCKET, LOG = sys.argv[1:3]
CLIENTS, SECONDS_AFTER = 3, 240


def connect():
    connection = http.client.HTTPConnection("leap", timeout=600)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(SOCKET)
    return connection


def ask_for_ever():
    while True:
        try:
            connection = connect()
            body = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            connection.getresponse().read()
        except OSError:
            time.sleep(1)


def tokens():
    connection = connect()
    connection.request("GET", "/metrics")
    found = re.search(r"^leap_generated_tokens_total (\S+)", connection.getresponse().read().decode(), re.M)
    return float(found.group(1))


def told(pattern):
    return re.findall(pattern, open(LOG, errors="replace").read())


def main():
    while not os.path.exists(SOCKET):
        time.sleep(0.5)
    for _ in range(CLIENTS):
        threading.Thread(target=ask_for_ever, daemon=True).start()
    open(LOG + ".answers", "w").close()
    # Tokens a second of each five seconds: before the board is throttled, then by how often layers had moved.
    before, rates, throttled_at, moves_before = [], {}, None, 0
    last, n_moves = tokens(), 0
    while throttled_at is None or time.monotonic() < throttled_at + SECONDS_AFTER:
        time.sleep(5)
        now = tokens()
        rate, last = (now - last) / 5, now
        n_now = len(told(r"layers have moved: (.*)"))
        if throttled_at is None and os.path.exists(LOG + ".throttled"):
            throttled_at, moves_before = time.monotonic(), n_now
            continue
        if throttled_at is None:
            before.append(rate)
        # Where layers move, a rate belongs to neither split.
        elif n_now == n_moves:
            rates.setdefault(n_now - moves_before, []).append(rate)
        n_moves = n_now
    planned = float(told(r"([0-9.]+) of many")[0])
    print(f"planned at the start: {planned:.1f} tokens/s; observed {statistics.median(before[2:]):.1f}")
    gains = [int(gain) for gain in told(r"layers move: (\d+) % better")[moves_before:]]
    for n, gain in enumerate(gains):
        if n in rates and n + 1 in rates:
            was, became = statistics.median(rates[n]), statistics.median(rates[n + 1])
            wanted = was * (1 + gain / 100)
            print(f"throttled, move {n + 1}: {was:.1f} tokens/s, planned {wanted:.1f}, observed {became:.1f}: {became / wanted:.2f} of that")
    print(f"{len(gains)} moves in {SECONDS_AFTER} s")


main()
