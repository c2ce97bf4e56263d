#!/usr/bin/env python3
"""Licences of the crates that LEAP is made of: third-party.py --check | TARGET FEATURES

--check compares the licences of all crates with those that deny.toml allows. With a target and features it prints what a
package of such a program has to say: each crate that is linked into it, with its licence's text.
"""
import json, os, re, subprocess, sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGETS = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|unlicense|notice)", re.I)
HEAD = """Third-party code in this program
================================

LEAP itself is under MIT or Apache-2.0, at your choice. The program also holds Rust's standard library (MIT or Apache-2.0,
the Rust project developers), {libc} and these crates.
"""
LIBC = {
    "musl": "musl libc (MIT, Rich Felker and others)",
    "gnu": "LLVM's libunwind and compiler-rt (Apache-2.0 with LLVM exceptions)",
}


def metadata(target, *features):
    """What cargo knows of this target's crates; without a network where they have been fetched."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target, *features]
    for more in (["--offline"], []):
        done = subprocess.run(command + more, cwd=TREE, capture_output=True, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout)
    sys.exit(f"third-party.py: {' '.join(command)}: {done.stderr.strip()}")


def linked(found):
    """The crates of others that become a part of the program: no tests' crates, nothing that runs while it is built."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    root = found["resolve"]["root"]
    seen, ahead = {root}, [root]
    while ahead:
        for dep in nodes[ahead.pop()]["deps"]:
            package = packages[dep["pkg"]]
            is_linked = any(kind["kind"] is None for kind in dep["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
            if is_linked and not is_macro and dep["pkg"] not in seen:
                seen.add(dep["pkg"])
                ahead.append(dep["pkg"])
    others = (packages[id] for id in seen if packages[id]["source"])
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def allowed():
    """The list in deny.toml; its form is simple enough to read without a parser, which older Pythons lack."""
    text = open(os.path.join(TREE, "deny.toml"), encoding="utf-8").read()
    found = re.search(r"^allow = \[(.*?)\]", text, re.M | re.S)
    return set(re.findall(r'"([^"]+)"', found[1])) if found else sys.exit("third-party.py: deny.toml allows no licence")


def holds(expression, names):
    """Whether an SPDX expression can be fulfilled with licences of these names."""
    words = re.findall(r"\(|\)|[^\s()]+", re.sub(r"\s+WITH\s+", "+WITH+", expression.replace("/", " OR ")))

    def either(at):
        value, at = both(at)
        while at < len(words) and words[at] == "OR":
            other, at = both(at + 1)
            value = value or other
        return value, at

    def both(at):
        value, at = one(at)
        while at < len(words) and words[at] == "AND":
            other, at = one(at + 1)
            value = value and other
        return value, at

    def one(at):
        if words[at] == "(":
            value, at = either(at + 1)
            return value, at + 1
        return words[at].replace("+WITH+", " WITH ") in names, at + 1

    return either(0)[0]


def check():
    names, bad, n = allowed(), [], set()
    for target in TARGETS:
        for package in metadata(target, "--all-features")["packages"]:
            n.add(package["id"])
            if not holds(package["license"] or "none", names):
                bad.append(f"{package['name']} {package['version']}: {package['license']} is not allowed by deny.toml")
    print("\n".join(sorted(set(bad))) if bad else f"{len(n)} crates: licences are those that deny.toml allows")
    sys.exit(bool(bad))


def texts(package):
    folder = os.path.dirname(package["manifest_path"])
    names = sorted(name for name in os.listdir(folder) if LICENCE_FILE.match(name) and os.path.isfile(os.path.join(folder, name)))
    return [open(os.path.join(folder, name), encoding="utf-8", errors="replace").read().strip() for name in names]


def report(target, features):
    """Texts that several crates share are printed once, behind all of the crates."""
    libc = LIBC["musl" if target.endswith("musl") else "gnu"]
    numbers, lines = {}, [HEAD.format(libc=libc)]
    for package in linked(metadata(target, "--no-default-features", "--features", features)):
        own = [numbers.setdefault(text, len(numbers) + 1) for text in texts(package)]
        if not own:
            sys.exit(f"third-party.py: {package['name']} {package['version']} has no licence's text")
        lines.append(f"{package['name']} {package['version']}: {package['license']}; texts {', '.join(map(str, own))}")
    for text, number in numbers.items():
        lines.append(f"\n--- text {number} ---\n\n{text}")
    print("\n".join(lines))


if sys.argv[1:] == ["--check"]:
    check()
elif len(sys.argv) == 3:
    report(*sys.argv[1:])
else:
    sys.exit(__doc__)
