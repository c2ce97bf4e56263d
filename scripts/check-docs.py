#!/usr/bin/env python3
"""Checks the Markdown pages of the repository: check-docs.py

Every link to a file or a heading leads somewhere; a page of more than 100 lines has a list of its contents at its head; lines are
short; README.md and docs/ring.md keep to their lengths.
"""
import os, re, subprocess, sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINE_MAX, HEAD_LINES, LONG_PAGE = 120, 16, 100
LINES_MAX = {"README.md": 150}
WORDS_MAX = {"docs/ring.md": 1500}
# A list of changes is read from its top.
NO_CONTENTS = {"CHANGELOG.md", "README.md"}
SKIPPED = ("target/", "out/")


def pages():
    try:
        found = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=TREE,
                               capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        found = [os.path.relpath(os.path.join(folder, name), TREE)
                 for folder, _, names in os.walk(TREE) for name in names if name.endswith(".md")]
    return sorted(path for path in found if path and not path.startswith(SKIPPED) and os.path.exists(os.path.join(TREE, path)))


def prose(text):
    """The page's lines with their numbers, without blocks of code."""
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


def anchors(text):
    """The ids that a forge gives a page's headings."""
    found = {}
    for _, line in prose(text):
        if heading := re.match(r"#+ +(.*)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {name if n == 0 else f"{name}-{n}" for name, last in found.items() for n in range(last + 1)}


def links(text):
    for number, line in prose(text):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            yield number, target


def check(path, texts):
    text, lines = texts[path], texts[path].rstrip("\n").split("\n")
    for number, target in links(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(os.path.join(TREE, to)):
            yield number, f"there is no {to}"
        elif anchor and to in texts and anchor not in anchors(texts[to]):
            yield number, f"{to} has no heading #{anchor}"
    if len(lines) > LONG_PAGE and path not in NO_CONTENTS and not any("](#" in line for line in lines[:HEAD_LINES]):
        yield 1, f"{len(lines)} lines, and no list of contents in the first {HEAD_LINES}"
    for number, line in prose(text):
        if len(line) > LINE_MAX and not line.startswith("|") and " " in line.strip()[: LINE_MAX // 2]:
            yield number, f"{len(line)} characters, more than {LINE_MAX}"
    if len(lines) > LINES_MAX.get(path, len(lines)):
        yield 1, f"{len(lines)} lines, more than {LINES_MAX[path]}"
    if len(text.split()) > WORDS_MAX.get(path, len(text.split())):
        yield 1, f"{len(text.split())} words, more than {WORDS_MAX[path]}"


texts = {path: open(os.path.join(TREE, path), encoding="utf-8").read() for path in pages()}
found = [f"{path}:{number}: {what}" for path in texts for number, what in check(path, texts)]
print("\n".join(found) if found else f"{len(texts)} pages: links, contents and lengths are right")
sys.exit(bool(found))
