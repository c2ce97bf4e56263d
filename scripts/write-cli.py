#!/usr/bin/env python3
"""Writes docs/reference/cli.md, every command and option, as the program tells them: write-cli.py PROGRAM [--check]

--check only says whether the page is what the program tells. Programs of boards lack `leap pull`.
"""
import os, re, subprocess, sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(TREE, "docs/reference/cli.md")
HEAD = """# All commands and options

Made from the program by `scripts/write-cli.py`; do not edit. `leap COMMAND --help-all` shows the same on a terminal,
and `leap help --man | man -l -` is the manual page. [The index](../index.md#commands) has the commands in one table.

"""


def told(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    if done.returncode != 0 or not done.stdout.strip():
        sys.exit(f"write-cli.py: {program} {' '.join(arguments)}: {done.stderr.strip() or 'prints nothing'}")
    return done.stdout.rstrip()


def commands(overview):
    """The names under `Commands:`."""
    section = re.search(r"^Commands:\n(.*?)\n\n", overview, re.M | re.S)
    return re.findall(r"^  ([a-z-]+) ", section[1] if section else "", re.M) or sys.exit("write-cli.py: `leap --help` lists no commands")


def all_options(program, command):
    """What the command tells with `--help-all`, where it has that, else with `--help`."""
    short = told(program, command, "--help")
    return told(program, command, "--help-all") if "--help-all" in short else short


def sections(program):
    """Titles of the page's parts, and what the program tells there."""
    overview = told(program, "--help")
    parts = [("leap", overview)] + [(f"leap {name}", all_options(program, name)) for name in commands(overview)]
    if "compatibility" in overview:
        parts.append(("leap help compatibility", told(program, "help", "compatibility")))
    return parts


def is_page_of(page, program):
    """Whether the program tells what the page has; without `leap pull`, the rest of it."""
    parts = sections(program)
    if any(title == "leap pull" for title, _ in parts):
        return page == write(parts)
    wanted = re.findall(r"^## (.*?)\n\n```text\n(.*?)\n```\n", page, re.M | re.S)
    entry = r"^  pull .*\n(?: {10,}.*\n)*"
    return parts == [(title, re.sub(entry, "", text, flags=re.M)) for title, text in wanted if title != "leap pull"]


def write(parts):
    contents = " · ".join(f"[{title}](#{title.replace(' ', '-')})" for title, _ in parts)
    lines, line = [], "-"
    for entry in contents.split(" · "):
        if len(line) + len(entry) > 105:
            lines.append(line + " ·")
            line = " "
        line += (" " if line in ("-", " ") else " · ") + entry
    body = "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in parts)
    return HEAD + "\n".join(lines + [line]).replace("   [", "  [") + "\n" + body


if len(sys.argv) == 2:
    os.makedirs(os.path.dirname(PAGE), exist_ok=True)
    open(PAGE, "w").write(write(sections(sys.argv[1])))
elif len(sys.argv) == 3 and sys.argv[2] == "--check":
    if not os.path.exists(PAGE) or not is_page_of(open(PAGE).read(), sys.argv[1]):
        sys.exit("write-cli.py: docs/reference/cli.md is not what the program tells: run scripts/write-cli.py target/debug/leap")
else:
    sys.exit(__doc__)
