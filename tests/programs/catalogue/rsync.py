"""rsync's daemon, a process per connection: a tree down, up again compressed, and once more where little has changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from program import Program, Results
from site_of_run import Site, check, sha256

FILES = 200
CONFIGURATION = """
use chroot = no
uid = root
gid = root
[there]
path = {top}/there
[back]
path = {top}/back
read only = no
"""


def _tree(top: Path) -> str:
    """The checksum of all names and contents."""
    return hashlib.sha256("".join(f"{file.name} {sha256(file)}\n" for file in sorted(top.iterdir())).encode()).hexdigest()


def _run(site: Site) -> Results:
    port, top = site.port(), site.directory
    for name in ("there", "back"):
        (top / name).mkdir()
    for number in range(FILES):
        site.data(f"file{number}", number * 997).rename(top / "there" / f"file{number}")
    site.data("large", 24 << 20).rename(top / "there" / "large")
    (top / "rsyncd.conf").write_text(CONFIGURATION.format(top=top))
    log = f"--log-file={top}/rsyncd.log"
    at = [f"--address={site.address}", f"--port={port}"]
    site.serve(["rsync", "--daemon", "--no-detach", f"--config={top}/rsyncd.conf", log, *at], port)
    url = f"rsync://{site.at(port)}"
    expected = _tree(top / "there")
    results: Results = {}
    for name, words in (
        ("down", ["-a", f"{url}/there/", "down/"]),
        ("up, compressed", ["-az", "down/", f"{url}/back/"]),
        ("down again, by blocks", ["-a", "--no-whole-file", "--ignore-times", f"{url}/there/", "down/"]),
    ):
        site.client(["rsync", *words])
        results[name] = _tree(top / ("back" if words[-1].startswith("rsync:") else "down"))
        check(results[name] == expected, f"{name}: not the tree that is there")
    return results


PROGRAM = Program(
    name="rsync",
    loads="a daemon with a process per connection: 201 files down, up compressed, and down again by blocks, by checksum",
    packages=["rsync"],
    run=_run,
    quick=False,
)
