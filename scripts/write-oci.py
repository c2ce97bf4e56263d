#!/usr/bin/env python3
"""Writes a container image of static programs as one OCI archive: write-oci.py OUT NAME VERSION EPOCH ARCH=FOLDER...

NAME is the image's, as in localhost/leap:0.2.0. FOLDER holds what the image adds to its own folders and users: the
program and its licences. The same files give the same bytes: everything has the date EPOCH, seconds since 1970.
"""
import gzip, hashlib, io, json, os, sys, tarfile, time

# An unprivileged user; distroless images call the same number `nonroot`.
UID = 65532
PASSWD = f"root:x:0:0:root:/:/nologin\nleap:x:{UID}:{UID}:LEAP:/cache:/nologin\n"
GROUP = f"root:x:0:\nleap:x:{UID}:\n"
# Folders with their owner and mode. The program keeps what it can make again in $XDG_CACHE_HOME/leap.
FOLDERS = {"cache": (UID, 0o755), "etc": (0, 0o755), "models": (UID, 0o755), "tmp": (0, 0o1777)}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PLATFORMS = {
    "amd64": {"architecture": "amd64", "os": "linux"},
    "arm64": {"architecture": "arm64", "os": "linux", "variant": "v8"},
}


def entry(name, epoch, mode, owner=0):
    found = tarfile.TarInfo(name)
    found.mtime, found.mode, found.uid, found.gid = epoch, mode, owner, owner
    return found


def archive(entries):
    """A tar file of (TarInfo, bytes or None for a folder), in the order of their names."""
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for found, content in sorted(entries, key=lambda pair: pair[0].name):
            if content is None:
                found.type = tarfile.DIRTYPE
            else:
                found.size = len(content)
            tar.addfile(found, None if content is None else io.BytesIO(content))
    return to.getvalue()


def layer(folder, epoch):
    """The image's files: those below `folder`, its users and its folders."""
    entries = [(entry("etc/passwd", epoch, 0o644), PASSWD.encode()), (entry("etc/group", epoch, 0o644), GROUP.encode())]
    entries += [(entry(name, epoch, mode, owner), None) for name, (owner, mode) in FOLDERS.items()]
    for place, folders, files in os.walk(folder):
        below = lambda name: os.path.relpath(os.path.join(place, name), folder)
        entries += [(entry(below(name), epoch, 0o755), None) for name in folders]
        for name in files:
            path = os.path.join(place, name)
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            entries.append((entry(below(name), epoch, mode), open(path, "rb").read()))
    return archive(entries)


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Layout:
    """Blobs by their hashes."""

    def __init__(self):
        self.blobs = {}

    def add(self, media_type, content):
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(content)}


def image(layout, platform, folder, epoch, labels):
    """Adds one platform's image; its descriptor."""
    plain = layer(folder, epoch)
    packed = layout.add(LAYER, gzip.compress(plain, 9, mtime=0))
    config = {
        **platform,
        "created": labels["org.opencontainers.image.created"],
        "config": {
            "User": f"{UID}:{UID}",
            "Env": ["PATH=/", "HOME=/cache", "XDG_CACHE_HOME=/cache"],
            "Entrypoint": ["/leap"],
            # Nobody without a key is answered, unless another command says so.
            "Cmd": ["serve", "--listen", "0.0.0.0:8080", "--api-key-file", "/run/secrets/leap-keys"],
            "ExposedPorts": {"8080/tcp": {}},
            "Volumes": {"/models": {}},
            "WorkingDir": "/models",
            "Labels": labels,
            "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
        "history": [{"created": labels["org.opencontainers.image.created"], "created_by": "scripts/build-oci.sh"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.add(CONFIG, as_json(config)),
        "layers": [packed],
        "annotations": labels,
    }
    return {**layout.add(MANIFEST, as_json(manifest)), "platform": platform}


def main(out, name, version, epoch, *images):
    epoch, layout = int(epoch), Layout()
    labels = {
        "org.opencontainers.image.title": "LEAP",
        "org.opencontainers.image.description": "Language models on edge boards, alone or as a ring of unequal boards",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
    }
    pairs = [pair.split("=", 1) for pair in sorted(images)]
    manifests = [image(layout, PLATFORMS[arch], folder, epoch, labels) for arch, folder in pairs]
    both = layout.add(INDEX, as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
    # One name for both platforms; containerd reads the second.
    both["annotations"] = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    files = {"blobs/sha256/" + digest: content for digest, content in layout.blobs.items()}
    files["oci-layout"] = as_json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = as_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [both]})
    entries = [(entry(path, epoch, 0o644), content) for path, content in files.items()]
    entries += [(entry(path, epoch, 0o755), None) for path in ("blobs", "blobs/sha256")]
    # A reader never sees half an image.
    with open(out + ".new", "wb") as to:
        to.write(archive(entries))
    os.replace(out + ".new", out)


if len(sys.argv) < 6:
    sys.exit(__doc__.strip().split("\n")[0])
main(*sys.argv[1:])
