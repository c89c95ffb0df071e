#!/usr/bin/python3
"""Builds the parts of a real cluster from their public Go modules, once, into a cache outside the repository.

    tests/kubernetes/build.py

Takes a quarter of an hour on two processors when nothing is there, and nothing when all is. Needs Go.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True

KUBERNETES = "1.31.4"
CONTAINERD = "2.0.5"
HELM = "3.16.4"
# Of a low priority: whatever else the machine does goes first.
NICENESS = 10


@dataclass(frozen=True)
class Source:
    """A Go module and the programs that are built of it."""

    module: str
    version: str
    programs: tuple[str, ...]
    """The longest build first: the others find most of their packages done."""
    flags: str
    tags: str = ""

    @property
    def place(self) -> Path:
        """Where its programs are, by their version."""
        return cache() / f"{self.module.split('/')[1]}-{self.version}"

    @property
    def missing(self) -> list[str]:
        """Programs that are still to be built."""
        return [program for program in self.programs if not (self.place / program).exists()]


_STAMP = "-X k8s.io/component-base/version."
SOURCES = (
    Source(
        "k8s.io/kubernetes",
        KUBERNETES,
        ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kubectl"),
        # Without these, clients do not understand the server's version.
        f"{_STAMP}gitVersion=v{KUBERNETES} {_STAMP}gitMajor=1 {_STAMP}gitMinor={KUBERNETES.split('.')[1]}",
    ),
    Source(
        "github.com/containerd/containerd/v2",
        CONTAINERD,
        ("containerd", "containerd-shim-runc-v2", "ctr"),
        f"-X github.com/containerd/containerd/v2/version.Version={CONTAINERD}",
        "no_btrfs,no_zfs,no_devmapper,no_aufs",
    ),
    Source("helm.sh/helm/v3", HELM, ("helm",), f"-X helm.sh/helm/v3/internal/version.version=v{HELM}"),
)


class BuildFailed(Exception):
    """Go said no."""


def cache() -> Path:
    """Where it is all kept; it may be removed at any time, and costs a new build."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "millrace-kubernetes"


def directories() -> list[Path]:
    """Where the programs are."""
    return [source.place for source in SOURCES]


def ensure() -> None:
    """Builds what is missing."""
    for source in SOURCES:
        if source.missing:
            _build(source)


def _go(words: list[str], directory: Path) -> str:
    """Runs Go; what it printed."""
    done = subprocess.run(
        ["nice", "-n", str(NICENESS), "go", *words],
        cwd=directory,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"go {' '.join(words)}, in {directory}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _build(source: Source) -> None:
    """A module of our own that requires the other: its programs cannot be installed by their names alone."""
    if shutil.which("go") is None:
        raise BuildFailed("there is no Go here: the programs of a cluster are Go modules (install Go 1.23 or later)")
    source.place.mkdir(parents=True, exist_ok=True)
    work = source.place / "module"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "go.mod").write_text("module millrace.test/cluster\n")
    required = f"{source.module}@v{source.version}"
    theirs = json.loads(_go(["mod", "download", "-json", required], work))["GoMod"]
    asked = json.loads(_go(["mod", "edit", "-json", theirs], work))
    (work / "go.mod").write_text(_module(source, asked))
    for program in source.missing:
        began = time.monotonic()
        print(f"building {program} {source.version}", file=sys.stderr, flush=True)
        made = f"{program}.new"
        words = ["build", "-mod=mod", "-trimpath", f"-tags={source.tags}", f"-ldflags=-s -w {source.flags}", "-o", made]
        _go([*words, f"{source.module}/cmd/{program}"], work)
        # Under its name only when it is whole.
        os.replace(work / made, source.place / program)
        print(f"built {program} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    shutil.rmtree(work)


def _module(source: Source, asked: dict[str, object]) -> str:
    """The module file: what the other's own says of replacements and exclusions does not hold for who requires it."""
    lines = ["module millrace.test/cluster", f"go {asked['Go']}", f"require {source.module} v{source.version}"]
    staged = f"v0.{source.version.partition('.')[2]}"
    for replaced in asked.get("Replace") or []:  # type: ignore[attr-defined]
        old, new = replaced["Old"]["Path"], replaced["New"]
        if new["Path"].startswith("./staging/"):
            lines.append(f"replace {old} => {old} {staged}")
        elif "Version" in new:
            lines.append(f"replace {old} => {new['Path']} {new['Version']}")
    for excluded in asked.get("Exclude") or []:  # type: ignore[attr-defined]
        lines.append(f"exclude {excluded['Path']} {excluded['Version']}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Builds all of it."""
    try:
        ensure()
    except BuildFailed as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    print(f"{cache()}: kubernetes {KUBERNETES}, containerd {CONTAINERD}, helm {HELM}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
