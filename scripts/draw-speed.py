#!/usr/bin/env python3
"""Draws docs/speed.svg, speed beside llama.cpp, from the figures of docs/benchmarks.md: draw-speed.py [--check]

--check only says whether the picture is of these figures.
"""
import os, re, sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIGURES = os.path.join(TREE, "docs/benchmarks.md")
PICTURE = os.path.join(TREE, "docs/speed.svg")
# The section, and the row of its first table: two threads.
SECTION, ROW = "### Zen 5", "| 2 |"
TITLE = "Tokens a second, 1.1 B parameters, two cores of an AMD EPYC (Zen 5)"
PANELS = ["Answering", "Reading a prompt of 512 tokens"]
PROGRAMS = {"LEAP": "#0b7a75", "llama.cpp": "#b8bfc7"}
WIDTH, HEIGHT, PANEL, BAR, GAP, TOP = 760, 284, 360, 26, 6, 92
LONGEST = 170


def figures():
    """Per panel, per width of the weights: what LEAP and llama.cpp reach, and the quotient that the table states."""
    section = open(FIGURES).read().split(SECTION)[1]
    row = next(line for line in section.split("\n") if line.startswith(ROW))
    found = [tuple(map(float, cell)) for cell in re.findall(r"\| ([\d.]+), ([\d.]+): ([\d.]+) ×", row)]
    if len(found) != 4:
        sys.exit(f"draw-speed.py: {FIGURES}: the row {row!r} does not hold four pairs of figures")
    return [dict(zip(["8 bits", "4 bits"], found[at : at + 2])) for at in (0, 2)]


def text(x, y, words, more=""):
    return f'<text x="{x:g}" y="{y:g}" {more}>{words}</text>'


def bar(x, y, length, value, program):
    quick = ' font-weight="600"' if program == "LEAP" else ""
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="2" fill="{PROGRAMS[program]}"/>',
        text(x + length + 6, y + BAR / 2 + 5, f"{value:g}", quick.strip()),
    ]


def panel(at, name, groups):
    left, top = 20 + at * (PANEL + 10), TOP
    scale = LONGEST / max(max(ours, theirs) for ours, theirs, _ in groups.values())
    lines = [text(left, top - 14, name, 'font-weight="600"')]
    for bits, (ours, theirs, quotient) in groups.items():
        lines.append(text(left, top + BAR + GAP / 2 + 5, bits))
        for program, value in zip(PROGRAMS, (ours, theirs)):
            lines += bar(left + 56, top, value * scale, value, program)
            top += BAR + GAP
        ratio = f"{quotient:.1f} ×" if quotient > 1.05 else "as fast"
        lines.append(text(left + PANEL - 20, top - BAR - GAP / 2 + 2, ratio, 'text-anchor="end" fill="#0b7a75" font-weight="600"'))
        top += 3 * GAP
    return lines


def legend():
    lines, x = [], 20
    for program, colour in PROGRAMS.items():
        lines.append(f'<rect x="{x}" y="{HEIGHT - 26}" width="12" height="12" rx="2" fill="{colour}"/>')
        lines.append(text(x + 18, HEIGHT - 15, program))
        x += 90
    lines.append(text(WIDTH - 20, HEIGHT - 15, "LEAP int8 and 4-bit, llama.cpp Q8_0 and Q4_0", 'text-anchor="end" fill="#57606a"'))
    return lines


def picture():
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="system-ui, sans-serif" font-size="14" fill="#1f2328" role="img">')
    lines = [head, f"<title>{TITLE}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="#d0d7de"/>']
    lines.append(text(20, 34, TITLE, 'font-size="16" font-weight="600"'))
    for at, (name, groups) in enumerate(zip(PANELS, figures())):
        lines += panel(at, name, groups)
    return "\n".join(lines + legend() + ["</svg>", ""])


if sys.argv[1:] == ["--check"]:
    if not os.path.exists(PICTURE) or open(PICTURE).read() != picture():
        sys.exit("draw-speed.py: docs/speed.svg is not of docs/benchmarks.md's figures: run scripts/draw-speed.py")
elif len(sys.argv) == 1:
    open(PICTURE, "w").write(picture())
else:
    sys.exit(__doc__)
