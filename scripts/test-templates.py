#!/usr/bin/env python3
"""Compares chat templates as LEAP runs them with jinja2 as transformers sets it up.

Usage: test-templates.py FOLDER [--leap PROGRAM] [--conversations 200] [--only PART] [--show]

FOLDER holds templates (*.jinja). llama.cpp has a collection of published ones, in its repository under
models/templates, and in the source package of llama-cpp-python on PyPI under vendor/llama.cpp/models/templates:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    python3 -m venv venv && venv/bin/pip install jinja2
    venv/bin/python scripts/test-templates.py llama_cpp_python-*/vendor/llama.cpp/models/templates

Each template writes the same conversations twice. The texts must be equal, and LEAP must refuse what jinja2 refuses.
Names of special tokens in messages must not change which special tokens the ids have.
"""

import argparse
import base64
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 9)
N_BYTES = 256
WORDS = ["Hi", "there.", "What is 2 < 3?", "naïve", "漢字", "🙂", "a\nb", "\n", "  ", "\t", '"quoted"', "it's", "\\n", "{{ x }}", "{% y %}", "</b>", ""]
NAME = re.compile(r"<[|｜][^<>\s'\"]{1,40}[|｜]>|</?[a-z_:]{1,30}(?:=\w+)?>|\[/?[A-Z][A-Z_]+\]|</?\|[a-z_]+\|?>|<\|?[a-z_]+\|>")
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather of a \"city\".\nToday's.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Its name."}, "days": {"type": "integer", "default": 1}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]


class Generation(jinja2.ext.Extension):
    """The tag that marks what training learns from."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(text):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env.from_string(text)


def content(rng, names):
    pieces = [rng.choice(WORDS + ["word"] * 6) for _ in range(rng.choice([0, 1, 2, 2, 3, 5]))]
    if names and rng.random() < 0.3:
        pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(names))
    return rng.choice(["", " ", "\n"]).join(pieces)


def conversation(rng, names):
    kind = rng.choice(["plain", "plain", "system", "system", "thinking", "tools", "calls", "odd"])
    said = []
    if kind != "plain" and rng.random() < 0.7:
        said.append({"role": "system", "content": content(rng, names)})
    for turn in range(rng.choice([1, 1, 2, 3])):
        if turn:
            answer = {"role": "assistant", "content": content(rng, names)}
            if kind == "thinking" and rng.random() < 0.5:
                answer["reasoning_content"] = content(rng, names)
            if kind == "thinking" and rng.random() < 0.3:
                answer["content"] = f"<think>\n{content(rng, [])}\n</think>\n\n{answer['content']}"
            said.append(answer)
        said.append({"role": "user", "content": content(rng, names)})
    talk = {"messages": said, "add_generation_prompt": rng.random() < 0.9}
    if kind in ("tools", "calls"):
        talk["tools"] = TOOLS[: rng.choice([1, 2])]
    if kind == "calls":
        call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "weather", "arguments": {"city": content(rng, names), "days": 3}}}
        said += [{"role": "assistant", "content": rng.choice(["", content(rng, [])]), "tool_calls": [call]},
                 {"role": "tool", "content": content(rng, names), "tool_call_id": "a1b2c3d4e", "name": "weather"}]
    if kind == "odd":
        said.insert(rng.randrange(len(said) + 1), {"role": rng.choice(["system", "user", "assistant"]), "content": content(rng, names)})
    if kind in ("thinking", "calls") and rng.random() < 0.8:
        talk["enable_thinking"] = rng.random() < 0.5
    if kind == "thinking" and rng.random() < 0.3:
        talk["reasoning_effort"] = rng.choice(["low", "medium", "high"])
    return talk


def changed(value, change):
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [changed(one, change) for one in value]
    if isinstance(value, dict):
        return {key: one if key in ("role", "type") else changed(one, change) for key, one in value.items()}
    return value


def is_token(name):
    """Whether a name is that of a token: templates also have formats, and words of their own for nothing."""
    return "{" not in name and "NONE" not in name


def tokenizer_folder(folder, names):
    """A vocabulary of bytes and these special tokens."""
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(N_BYTES)]
    (folder / "tokenizer.model").write_text("\n".join(lines) + "\n")
    added = {str(N_BYTES + at): {"content": name, "special": True} for at, name in enumerate(names)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": names[0], "eos_token": names[1], "add_bos_token": True, "added_tokens_decoder": added}))


def leap(args, folder, template, talks, flags):
    """What LEAP says to each conversation: its answer, or an error as text. The command ends at its first error."""
    answers = []
    while len(answers) < len(talks):
        lines = "".join(json.dumps(talk | {"now": "2026-03-09"}) + "\n" for talk in talks[len(answers):])
        command = [args.leap, "tokenizer", str(folder), "--chat", "--chat-template", str(template), *flags]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=600)
        answers += [json.loads(line) for line in done.stdout.split("\n") if line]
        if done.returncode:
            if "stdin line" not in done.stderr:
                return [LeapError(done.stderr.strip())] * len(talks)
            answers.append(LeapError(done.stderr.strip()))
    return answers


class LeapError(str):
    """A refusal, or the failure of a template."""


def compare(args, path, folder):
    text = path.read_text()
    names = ["<|bos|>", "<|eos|>"] + sorted(set(filter(is_token, NAME.findall(text))) - {"<|bos|>", "<|eos|>"})
    tokenizer_folder(folder, names)
    rng = random.Random(path.name)
    talks = [conversation(rng, names) for _ in range(args.conversations)]
    harmless = [changed(talk, lambda text: NAME.sub(lambda found: "x" * len(found[0]), text)) for talk in talks]
    template = compiled(text)
    counts = dict.fromkeys(["equal", "both refuse", "only LEAP refuses", "only jinja2 refuses", "different", "forged"], 0)
    answers = leap(args, folder, path, talks, ["--text"])
    ids, other_ids = [leap(args, folder, path, some, []) for some in (talks, harmless)]
    other_texts = leap(args, folder, path, harmless, ["--text"])
    shown = set()
    for at, (talk, answer) in enumerate(zip(talks, answers)):
        try:
            wanted = template.render(bos_token=names[0], eos_token=names[1], **talk)
        except Exception as e:
            wanted = e
        is_refused = isinstance(wanted, Exception)
        refuses = isinstance(answer, LeapError)
        kind = {(True, True): "both refuse", (True, False): "only jinja2 refuses", (False, True): "only LEAP refuses"}.get((is_refused, refuses))
        kind = kind or ("equal" if answer == wanted else "different")
        counts[kind] += 1
        special = lambda ids: [id for id in ids if id >= N_BYTES]
        same = not refuses and not isinstance(other_ids[at], LeapError) and len(other_texts[at]) == len(answer)
        if same and special(ids[at]) != special(other_ids[at]):
            counts["forged"] += 1
            kind = "forged"
        if args.show and kind not in ("equal", "both refuse") and kind not in shown:
            shown.add(kind)
            print(f"--- {path.name}: {kind}\n{json.dumps(talk, ensure_ascii=False)}\njinja2: {wanted!r}\nLEAP:   {answer!r}\n")
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--leap", default="target/release/leap")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    total, is_right = {}, True
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(args.folder.glob("*.jinja")):
            if args.only not in path.name:
                continue
            counts = compare(args, path, pathlib.Path(folder))
            print(f"{path.name:60}", ", ".join(f"{kind} {n}" for kind, n in counts.items() if n), flush=True)
            for kind, n in counts.items():
                total[kind] = total.get(kind, 0) + n
    print(f"{'all':60}", ", ".join(f"{kind} {n}" for kind, n in total.items()))
    wrong = sum(n for kind, n in total.items() if kind not in ("equal", "both refuse"))
    sys.exit(wrong > 0)


main()
