#!/usr/bin/env python3
"""Checks the Yocto layer without bitbake: check-recipes.py

Reads every recipe with what it requires, applies its assignments as each release would that the layer names, and
makes sure that variables resolve, that sources lie where the release unpacks them, that files it fetches exist
here, that the recipe from source fetches every file that the sources include, that licences have the stated checksums and
that versions are Cargo.toml's. Packages have all features of Cargo.toml but `gpu`, as static programs can open no driver;
programs of boards and the layer all but `demo`, `gpu` and `pull`.
Where oelint-adv is installed (pip install oelint-adv), that reads the recipes too.
"""
import hashlib, os, re, shutil, subprocess, sys

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYER = os.path.join(TREE, "images/yocto/meta-leap")
VERSION = re.search(r'^version = "(.+)"', open(os.path.join(TREE, "Cargo.toml")).read(), re.M)[1]
# Variables that oe-core sets; the values only need to be there.
KNOWN = {name: "/oe/" + name.lower() for name in """BP COMMON_LICENSE_DIR D MACHINE_ARCH PN WORKDIR bindir
    localstatedir nonarch_base_libdir nonarch_libdir prefix sbindir sysconfdir systemd_system_unitdir""".split()}
# Rules of oelint-adv that do not hold here: no home page yet; the layer stands inside the source it builds;
# machines of layers that are not there; skips that the recipes explain.
NOT_HERE = """oelint.var.mandatoryvar.HOMEPAGE oelint.var.licenseremotefile oelint.vars.fileextrapaths
    oelint.vars.outofcontext oelint.vars.specific oelint.vars.insaneskip""".split()

# Weak defaults of each release's bitbake.conf. Those that have UNPACKDIR refuse one that is WORKDIR, and an S that
# names WORKDIR.
RELEASES = {"scarthgap": {}} | {name: {"UNPACKDIR": "${WORKDIR}/sources-unpack"} for name in ("styhead", "walnascar")} | {
    name: {"UNPACKDIR": "${WORKDIR}/sources"} for name in ("whinlatter", "wrynose", "blacksail")}

problems = []


def tell(path, what):
    problem = f"{os.path.relpath(path, TREE)}: {what}"
    if problem not in problems:
        problems.append(problem)


def logical_lines(path):
    """Lines with their continuations, without comments and bodies of functions."""
    text = re.sub(r"\\\n", "", open(path).read())
    text = re.sub(r"^[\w:]+\(\) \{\n.*?^\}$", "", text, flags=re.M | re.S)
    return [line for line in text.split("\n") if line.strip() and not line.startswith("#")]


class Values(dict):
    """Variables; the `weak` ones have only a default that any other assignment replaces, a later default too."""

    def __init__(self, values, weak):
        super().__init__(values | weak)
        self.weak = set(weak)

    def assign(self, name, operator, value):
        is_open = name not in self or name in self.weak
        if operator == "??=" and is_open:
            self.weak.add(name)
        elif operator in ("?=", "??=") and not is_open:
            return
        else:
            self.weak.discard(name)
        self[name] = value


def read(path, values, shell):
    """Applies the assignments of a file; `shell` gathers the bodies of functions."""
    assignment = re.compile(r'^(?:export )?([\w.:+\[\]$\{\}-]+)\s*(\?\?=|\?=|:=|\+=|\.=|=)\s*"(.*)"$')
    shell.append(open(path).read())
    for line in logical_lines(path):
        if found := re.match(r"^require (\S+)$", line):
            wanted = os.path.join(os.path.dirname(path), found[1])
            read(wanted, values, shell) if os.path.exists(wanted) else tell(path, f"requires {found[1]}, which is not there")
        elif found := assignment.match(line):
            name, operator, value = found.groups()
            if operator == "+=" or operator == ".=":
                value = f"{values.get(name, '')} {value}"
            elif ":prepend" in name:
                name, value = name.replace(":prepend", ""), value + values.get(name.replace(":prepend", ""), "")
            elif ":append" in name:
                name, value = name.replace(":append", ""), values.get(name.replace(":append", ""), "") + value
            values.assign(name, operator, value)
        elif not re.match(r"^(inherit [\w .-]+|do_\w+\[noexec\] = \"1\"|SRC_URI\[.*)$", line):
            tell(path, f"cannot read: {line}")


# The first variable that is set.
FIRST_OF = re.compile(r"@d\.getVar\('\w+'\)( or d\.getVar\('\w+'\))*")


def expand(path, text, values, depth=0):
    def one(found):
        name = found[1]
        if name.startswith("@"):
            first = FIRST_OF.fullmatch(name) and next((known for known in re.findall(r"'(\w+)'", name) if known in values), None)
            return expand(path, values[first], values, depth + 1) if first else "python"
        if name not in values or depth > 20:
            tell(path, f"${{{name}}} does not resolve")
            return ""
        return expand(path, values[name], values, depth + 1)

    return re.sub(r"\$\{([^{}]+)\}", one, text)


def check_files(path, values):
    """Everything that SRC_URI fetches from here is here, or is built by scripts/build-board.sh."""
    folders = [folder for folder in expand(path, values.get("FILESEXTRAPATHS", ""), values).split(":") if folder]
    for uri in expand(path, values.get("SRC_URI", ""), values).split():
        if uri.startswith("file://"):
            name = uri[7:].split(";")[0]
            if name != "leap" and not any(os.path.exists(os.path.join(folder, name)) for folder in folders):
                tell(path, f"fetches {name}, which is not there")
        elif not re.match(r"^crate://crates\.io/[\w-]+/[\w.+-]+$", uri):
            tell(path, f"fetches {uri}")
    for item in values.get("LIC_FILES_CHKSUM", "").split():
        name, md5 = re.match(r"^file://(.+);md5=([0-9a-f]{32})$", item).groups()
        folders.append(os.path.join(TREE, "kmod"))
        file = next((os.path.join(folder, name) for folder in folders if os.path.exists(os.path.join(folder, name))), None)
        if not file:
            tell(path, f"{name} is not there")
        elif hashlib.md5(open(file, "rb").read()).hexdigest() != md5:
            tell(path, f"{name} has another checksum")


def check_folders(path, values, release):
    """The sources lie where the release unpacks them, and by the names that it allows."""
    workdir = values["WORKDIR"]
    unpacked = expand(path, values.get("UNPACKDIR", workdir), values)
    if "UNPACKDIR" in RELEASES[release]:
        if unpacked == workdir:
            tell(path, f"UNPACKDIR is WORKDIR, which {release} refuses")
        if "${WORKDIR}" in values.get("S", ""):
            tell(path, f"S names WORKDIR, which {release} refuses")
    if "S" in values and not expand(path, values["S"], values).startswith(unpacked + "/"):
        tell(path, f"S lies outside {unpacked}, where {release} unpacks")


def check(path, release):
    values, shell = Values(dict(KNOWN, LEAP_TREE=TREE, LAYERDIR=LAYER), RELEASES[release]), []
    read(os.path.join(LAYER, "conf/layer.conf"), values, [])
    values["LEAP_TREE"] = TREE
    read(path, values, shell)
    check_folders(path, values, release)
    for name, value in list(values.items()):
        expand(path, name + value, values)
    for body in re.findall(r"^[\w:]+\(\) \{\n(.*?)^\}$", "".join(shell), re.M | re.S):
        expand(path, body, values)
    check_files(path, values)
    version = re.search(r"_([\d.]+)\.bb$", path)
    if version and version[1] != VERSION:
        tell(path, f"is not of version {VERSION}, which Cargo.toml has")


def features():
    """Each feature of Cargo.toml, with those that it names."""
    table = re.search(r"^\[features\]\n(.*?)^\[", open(os.path.join(TREE, "Cargo.toml")).read(), re.M | re.S)[1]
    return {name: re.findall(r'"([\w-]+)"', names) for name, names in re.findall(r"^([\w-]+) = \[(.*?)\]", table, re.M | re.S)}


def check_features():
    """No program that is shipped lacks a feature: what one user's LEAP can do, another's can. Boards alone lack downloads."""
    known = features()

    def reach(names):
        return set(names).union(*(reach(known.get(name, [])) for name in names))

    wanted = set(known) - {"default", "board", "demo"}
    places = {f"cross/{name}/board.conf": r"^FEATURES=(.*)$" for name in os.listdir(os.path.join(TREE, "cross")) if
              os.path.exists(os.path.join(TREE, "cross", name, "board.conf"))}
    places |= {"scripts/boards.sh": r"^PACKAGE_FEATURES=(.*)$", "scripts/test.sh": r"^BOARD_FEATURES=(.*)$",
               f"{os.path.relpath(LAYER, TREE)}/recipes-leap/leap/leap_{VERSION}.bb": r"--features ([\w,-]+)"}
    for path, pattern in places.items():
        found = re.findall(pattern, open(os.path.join(TREE, path)).read(), re.M)
        if not found:
            tell(os.path.join(TREE, path), "names no features")
        for names in found:
            spared = {"gpu"} if path == "scripts/boards.sh" else {"gguf", "gpu", "pull"}
            if missing := wanted - spared - reach(names.split(",")):
                tell(os.path.join(TREE, path), f"its program lacks {', '.join(sorted(missing))}")


def check_includes(path):
    """The recipe from source fetches every file that the sources include; tests and the demo model are not built."""
    fetched = re.findall(r"file://(\S+?);subdir=", open(path).read())
    for folder, _, names in os.walk(os.path.join(TREE, "src")):
        for name in (name for name in names if name.endswith(".rs")):
            source = open(os.path.join(folder, name)).read().split("#[cfg(test)]\nmod tests")[0]
            for included in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', source):
                file = os.path.relpath(os.path.join(folder, included), TREE)
                if not file.startswith("models/") and not any(file == one or file.startswith(f"{one}/") for one in fetched):
                    tell(path, f"does not fetch {file}, which {os.path.relpath(os.path.join(folder, name), TREE)} includes")


recipes = [os.path.join(folder, name) for folder, _, names in os.walk(LAYER) for name in names if re.search(r"\.bb(append)?$", name)]
layer = os.path.join(LAYER, "conf/layer.conf")
series = re.search(r'^LAYERSERIES_COMPAT_leap = "(.*)"', open(layer).read(), re.M)[1].split()
for release in series:
    if release not in RELEASES:
        tell(layer, f"names {release}, whose rules are not known here")
        continue
    for recipe in sorted(recipes):
        check(recipe, release)
check_features()
check_includes(os.path.join(LAYER, f"recipes-leap/leap/leap_{VERSION}.bb"))
if oelint := shutil.which(os.environ.get("OELINT", "oelint-adv")):
    ran = subprocess.run([oelint, "--quiet", "--hide", "info", *(f"--suppress={rule}" for rule in NOT_HERE), *recipes], capture_output=True, text=True)
    problems += [line for line in (ran.stdout + ran.stderr).splitlines() if re.search(r":(error|warning):", line)]
print("\n".join(problems) or f"{len(recipes)} recipes are sound{'' if oelint else '; oelint-adv is not installed'}")
sys.exit(bool(problems))
