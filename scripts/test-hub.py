#!/usr/bin/env python3
"""Compares LEAP's downloads with those of huggingface_hub, in both directions: test-hub.py LEAP MODEL.gguf

Starts a small hub on this machine. Fetches a model with each of the two programs, and finds it with the other one.
Needs PyPI's huggingface_hub.
"""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

REPO = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """The hub's answers for one repository."""

    protocol_version = "HTTP/1.1"
    files = {}

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith(f"/api/models/{REPO}"):
            self.reply(200, {}, json.dumps(listing(self.files)).encode())
        elif path.startswith(f"/{REPO}/resolve/") and path.rsplit("/", 1)[1] in self.files:
            self.send_file(path.rsplit("/", 1)[1])
        else:
            self.reply(404, {"X-Error-Code": "EntryNotFound"}, b"")

    def send_file(self, name):
        content = self.files[name]
        fields = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(name, content)}"', "Accept-Ranges": "bytes"}
        start, end = 0, len(content)
        if span := self.headers.get("Range"):
            first, last = span.removeprefix("bytes=").split("-")
            start, end = int(first), int(last) + 1 if last else end
            fields["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self.reply(206 if span else 200, fields, content[start:end])

    def reply(self, status, fields, body):
        self.send_response(status)
        for name, value in {**fields, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def etag(name, content):
    """The name of a file's content: SHA-256 of large files, else git's hash."""
    if name.endswith(".gguf"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listing(files):
    entries = []
    for name, content in files.items():
        entry = {"rfilename": name, "size": len(content), "blobId": etag(name, content)}
        if name.endswith(".gguf"):
            entry["lfs"] = {"sha256": etag(name, content), "size": len(content), "pointerSize": 134}
        entries.append(entry)
    return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": entries, "private": False, "tags": [],
            "downloads": 0, "likes": 0}


def leap(program, home, *words):
    done = subprocess.run([program, *words], env={**os.environ, "HF_HOME": home}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"leap {' '.join(words)}: {done.stderr}")
    return done.stdout


def python(home, code):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "HF_HOME": home}, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout.strip()


def main():
    program, gguf = sys.argv[1:]
    Hub.files = {"tiny-Q4_0.gguf": Path(gguf).read_bytes(), "README.md": b"hello\n"}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    find = f"import huggingface_hub as h; print(h.try_to_load_from_cache({REPO!r}, 'tiny-Q4_0.gguf'))"
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = f"{folder}/ours", f"{folder}/theirs"
        leap(program, ours, "pull", f"hf:{REPO}:Q4_0", "-q")
        path = python(ours, find)
        assert Path(path).read_bytes() == Hub.files["tiny-Q4_0.gguf"], path
        scan = "import huggingface_hub as h; s = h.scan_cache_dir(); print(len(s.repos), s.warnings)"
        assert python(ours, scan) == "1 []", python(ours, scan)

        fetch = f"import huggingface_hub as h; print(h.hf_hub_download({REPO!r}, 'tiny-Q4_0.gguf'))"
        path = python(theirs, fetch)
        info = leap(program, theirs, "info", f"hf:{REPO}:Q4_0")
        assert info == leap(program, theirs, "info", path), info
        assert f"hf:{REPO}:Q4_0" in leap(program, theirs, "models")
        layout = "find . -not -name '.leap*' -not -name '*.lock' -path '*models--*' | sort"
        names = [subprocess.run(layout, shell=True, cwd=f"{home}/hub", capture_output=True, text=True, check=True).stdout
                 for home in (ours, theirs)]
        assert names[0] == names[1], "\n".join(names)
    print("huggingface_hub finds what leap fetched, and leap what huggingface_hub fetched: the same files")


if __name__ == "__main__":
    main()
