"""Images from this machine's own files, as archives that container runtimes take in without a registry."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import images

PAUSE = "localhost/pause:1"
WORK = "localhost/work:1"
"""A shell, redis and its clients, and the program that compares every byte (`tests/containers/talk.c`)."""
MUSL = "localhost/musl:1"
"""The same without redis, and with another C library."""
_PROGRAMS = ("/usr/bin/redis-server", "/usr/bin/redis-cli", "/usr/bin/redis-benchmark")
_TOOLS = ("sh", "cat", "sleep", "ls", "kill", "grep", "env", "true", "wget")


def make(place: Path) -> list[Path]:
    """Archives of all images."""
    work = place / "work"
    images.make(images.Image("glibc"), place)
    os.rename(place / "glibc", work)
    for program in _PROGRAMS:
        for file in [Path(program), *images.libraries(Path(program))]:
            target = work / file.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for tool in _TOOLS:
        if not (work / "bin" / tool).is_symlink():
            os.symlink("busybox", work / "bin" / tool)
    images.make(images.Image("musl", ("musl-gcc",)), place)
    # A process that waits is all that a pod's first container is for.
    pause = place / "pause"
    (pause / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", pause / "bin/busybox")
    return [
        _archive(pause, PAUSE, ["/bin/busybox", "sleep", "1000000"]),
        _archive(work, WORK, ["/bin/sh"]),
        _archive(place / "musl", MUSL, ["/bin/sh"]),
    ]


def _archive(root: Path, reference: str, command: list[str]) -> Path:
    """An archive as `docker save` writes it: one layer, the configuration, and a list of both."""
    layer = root.with_suffix(".layer")
    subprocess.run(["tar", "-C", str(root), "--owner=0", "--group=0", "-cf", str(layer), "."], check=True)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    configuration = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    file = root.with_suffix(".json")
    file.write_text(json.dumps(configuration))
    listing = root.with_suffix(".manifest")
    listing.write_text(json.dumps([{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]))
    archive = root.with_suffix(".image.tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(listing, "manifest.json")
        tar.add(file, "config.json")
        tar.add(layer, "layer.tar")
    return archive
