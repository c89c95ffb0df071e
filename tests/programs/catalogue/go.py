"""A Go program, which calls the kernel without the C library: unaffected."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from program import Program, Results
from site_of_run import CLIENTS, Site, check

from harness.road import REPOSITORY


def _build() -> Path:
    """Builds the program once, without the C library."""
    source, built = CLIENTS / "echo.go", REPOSITORY / "target" / "programs" / "echo-go"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        check(go, "Go is not installed")
        built.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": "/usr/bin:/bin",
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "HOME": str(built.parent),
            "GOCACHE": str(built.parent / "go-cache"),
        }
        subprocess.run([str(go), "build", "-o", str(built), str(source)], env=environment, check=True)
    return built


def _run(site: Site) -> Results:
    port, program = site.port(), str(_build())
    site.serve([program, "server", site.at(port)], port)
    return {"said": site.client([program, "client", site.at(port)]).text}


PROGRAM = Program(
    name="Go",
    loads="echo on 8 connections: round trips, 4 MiB both ways at once, half-closes; verified",
    packages=["golang-go|go"],
    run=_run,
    remark="calls the kernel without the C library, so it is not accelerated, and must not be affected",
)
