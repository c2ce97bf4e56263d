#!/usr/bin/env python3
"""Checks that a program has everything that boards and packages promise: test-program.py COMMAND...

COMMAND starts the program, under an emulator if need be: test-program.py qemu-aarch64-static out/rk3588/leap.
It has every command and option of docs/reference/cli.md; it runs a GGUF file, and reads PyTorch's; its server answers
in a form, and takes a GGUF file too.
"""
import http.client, json, os, shlex, socket, subprocess, sys, tempfile, time

import small_gguf

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(TREE, "models/demo.bin")
# Seconds that one step may take: emulated programs are slow.
PATIENCE = 120


def fail(what):
    sys.exit(f"test-program.py: {what}")


def run(program, *arguments, cache):
    """What the program prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", env=environment,
                              stdin=subprocess.DEVNULL, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        fail(f"leap {' '.join(arguments)}: not done within {PATIENCE} s")
    if done.returncode != 0:
        fail(f"leap {' '.join(arguments)}: code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Connection(http.client.HTTPConnection):
    """To the Unix socket at `place`."""

    def __init__(self, place):
        super().__init__("leap", timeout=PATIENCE)
        self.place = place

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.place)


def await_server(server, place, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if server.poll() is not None:
            fail(f"leap serve ended with code {server.returncode}: {open(log).read().strip()}")
        try:
            connection = Connection(place)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    fail(f"leap serve does not answer within {PATIENCE} s: {open(log).read().strip()}")


def answer(program, folder, model, path, request):
    """What `leap serve` of `model` answers."""
    place, log = os.path.join(folder, "http"), os.path.join(folder, "log")
    arguments = ["serve", model, "--listen", place, "--threads", "1", "--ctx", "256", "--cache", "off"]
    environment = {**os.environ, "XDG_CACHE_HOME": folder}
    with open(log, "w") as to:
        server = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=to, stderr=to, env=environment)
    try:
        await_server(server, place, log)
        connection = Connection(place)
        connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            fail(f"leap serve {model}: {response.status} {text}")
        return json.loads(text)["choices"][0]
    finally:
        server.terminate()
        try:
            server.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            server.kill()


def check_form(program, folder):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
    messages = [{"role": "user", "content": "Which colour?"}]
    request = {"messages": messages, "response_format": form, "max_tokens": 60}
    text = answer(program, folder, DEMO, "/v1/chat/completions", request)["message"]["content"]
    try:
        colour = json.loads(text)["colour"]
    except (ValueError, TypeError, KeyError):
        colour = None
    if colour not in ("red", "green"):
        fail(f"an answer has not the form that was asked for: {text}")


def check(program, folder):
    page = subprocess.run([os.path.join(TREE, "scripts/write-cli.py"), program, "--check"], capture_output=True, text=True)
    if page.returncode != 0:
        fail(f"commands or options are missing: {page.stderr.strip()}")
    gguf = os.path.join(folder, "small.gguf")
    small_gguf.write(gguf)
    if not run(program, "run", gguf, "-p", "One", "-n", "4", "--temp", "0", "-q", cache=folder):
        fail("a GGUF file gives no text")
    out = os.path.join(folder, "pytorch.bin")
    run(program, "export", out, "--meta-llama", os.path.join(TREE, "tests/golden/pytorch/types"), cache=folder)
    told = json.loads(run(program, "info", out, "--json", cache=folder))
    if told["file"] != "model":
        fail(f"PyTorch's files give no model: {told}")
    check_form(program, folder)
    answer(program, folder, gguf, "/v1/completions", {"prompt": "One", "max_tokens": 4})


if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
with tempfile.TemporaryDirectory() as folder:
    # A name for the whole command, which scripts/write-cli.py takes too.
    program = os.path.join(folder, "leap")
    with open(program, "w") as to:
        to.write(f'#!/bin/sh\nexec {shlex.join(sys.argv[1:])} "$@"\n')
    os.chmod(program, 0o755)
    check(program, folder)
print(f"{' '.join(sys.argv[1:])}: every command and option; GGUF and PyTorch files, forms")
