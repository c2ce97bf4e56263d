#!/bin/sh
# Measures leap export against the disk: bench-export.sh [--calibrate] [FOLDER]
#
# Makes a checkpoint of 1.1 B weights in bf16 (2.2 GB) in FOLDER, by default a new one in
# $TMPDIR that is removed afterwards; one that is there is used again. Then, for int8 and for
# 4 bits, with a cold page cache (as root) and with a warm one: how fast dd reads the source and
# writes a file as long as the result, how long the export takes, and its peak memory without
# and with the pages of mapped files. "of disk" is what dd needs for the slower of the two as a
# part of what the export needs. With --calibrate instead: how long the export to 4.5 bits takes
# that has read 16,384 tokens first. Needs python3; LEAP names the program to measure.
set -eu

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

what=measure
if [ "${1:-}" = --calibrate ]; then
    what=calibrate
    shift
fi
[ $# -le 1 ] || die "usage: ${0##*/} [--calibrate] [FOLDER]"
root=$(cd "$(dirname "$0")/.." && pwd)
leap=${LEAP:-$root/target/release/leap}
[ -x "$leap" ] || die "$leap is missing: cargo build --release"
if [ $# -eq 1 ]; then
    folder=$1
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 1' INT TERM
fi
[ -e "$folder/model.safetensors" ] || python3 "$root/scripts/make-checkpoint.py" "$folder"

measure() {
    python3 - "$leap" "$folder" <<'PYTHON'
import os, resource, subprocess, sys, time

leap, folder = sys.argv[1:]
source, out, probe = f"{folder}/model.safetensors", f"{folder}/out.bin", f"{folder}/probe"


def prepare(is_cold):
    os.sync()
    if is_cold:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    else:
        subprocess.run(["dd", f"if={source}", "of=/dev/null", "bs=4M"], stderr=subprocess.DEVNULL)


def seconds(command):
    start = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def export(version):
    """Seconds, and the peaks of anonymous and of all resident memory in bytes."""
    command = [leap, "export", out, "--meta-llama", folder, "--version", version]
    start = time.monotonic()
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    own = 0
    while child.poll() is None:
        try:
            with open(f"/proc/{child.pid}/status") as status:
                fields = dict(line.split(":", 1) for line in status)
            own = max(own, int(fields["RssAnon"].split()[0]))
        except (OSError, KeyError):
            pass
        time.sleep(0.02)
    elapsed = time.monotonic() - start
    if child.returncode:
        sys.exit("leap export failed")
    return elapsed, own * 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


size = os.path.getsize(source)
largest = 32000 * 2048 * 2
for cache in ("cold", "warm") if os.geteuid() == 0 else ("warm",):
    for name, version in (("int8", "2"), ("4-bit", "3")):
        prepare(cache == "cold")
        read = seconds(["dd", f"if={source}", "of=/dev/null", "bs=4M"])
        prepare(cache == "cold")
        spent, own, resident = export(version)
        result = os.path.getsize(out)
        blocks = result // 2**22
        write = seconds(["dd", "if=/dev/zero", f"of={probe}", "bs=4M", f"count={blocks}", "conv=fsync"])
        os.remove(probe)
        os.remove(out)
        print(
            f"{name:5} {cache}: read {size / read / 1e6:5.0f} MB/s, write {result / write / 1e6:5.0f} MB/s;"
            f" export {spent:5.2f} s = {size / spent / 1e6:5.0f} MB/s of source,"
            f" {max(read, write) / spent:4.0%} of disk;"
            f" memory {own / largest:.2f} (with mapped pages {resident / largest:.2f}) x largest tensor",
            flush=True,
        )
PYTHON
}

calibrate() {
    i=0
    while [ $i -lt 8 ]; do
        cat "$root/src/cli/export/text.txt"
        i=$((i + 1))
    done >"$folder/text"
    "$leap" export "$folder/out.bin" --meta-llama "$folder" --version 4 --calibrate "$folder/text"
    rm "$folder/out.bin"
}

$what
