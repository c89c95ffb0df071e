"""Debian packages that a run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from harness import lock

LOCK = Path(__file__).resolve().parents[2] / "target/packages.lock"


def alone() -> AbstractContextManager[None]:
    """Waits for others who use apt: where it is told to keep no archives, an update takes away those that somebody is installing."""
    return lock.held(LOCK)


def missing(packages: Iterable[str]) -> list[str]:
    """Those of `packages` that are not installed; `PACKAGE|COMMAND` is there where the command is, whoever brought it."""
    pairs = [package.partition("|")[::2] for package in packages]
    wanted = sorted({package for package, command in pairs if not (command and shutil.which(command))})
    if not wanted:
        return []
    found = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {line.split()[0] for line in found.stdout.splitlines() if line.endswith(" installed")}
    return [package for package in wanted if package not in installed]


def install(packages: Iterable[str]) -> None:
    """Installs what is missing; services are not started by the installation."""
    absent = missing(packages)
    if not absent:
        return
    print(f"installing: {' '.join(absent)}", file=sys.stderr)
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
    with alone():
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
