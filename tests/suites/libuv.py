"""libuv's tests: the event loop of Node.js, with every case in a process of its own."""

from __future__ import annotations

from pathlib import Path

from cases import Cases, tap
from source import build, debian_source
from suite import LOG, Suite, Unit


def _parse(work: Path) -> Cases:
    return tap(work / LOG)


def _units(sources: Path) -> list[Unit]:
    top = debian_source("libuv1", sources)
    build(
        top,
        [["cmake", "-S", ".", "-B", "b", "-DBUILD_TESTING=ON"], ["make", "-C", "b", "uv_run_tests_a"]],
        sources / "libuv1.log",
    )
    environment = {"UV_RUN_AS_ROOT": "1"}
    return [Unit("all", ["b/uv_run_tests_a"], 600, _parse, top, environment)]


SUITE = Suite(
    name="libuv",
    origin="Debian source package libuv1",
    packages=["dpkg-dev", "build-essential", "cmake"],
    units=_units,
    quick=frozenset({"all"}),
)
