"""libevent's regression tests, once per way of waiting: epoll, epoll with a change list, poll and select."""

from __future__ import annotations

from pathlib import Path

from cases import Cases, tinytest
from source import build, debian_source
from suite import LOG, Suite, Unit

BACKENDS = {
    "epoll": {"EVENT_NOPOLL": "1", "EVENT_NOSELECT": "1"},
    "epoll-changelist": {"EVENT_NOPOLL": "1", "EVENT_NOSELECT": "1", "EVENT_EPOLL_USE_CHANGELIST": "1"},
    "poll": {"EVENT_NOEPOLL": "1", "EVENT_NOSELECT": "1"},
    "select": {"EVENT_NOEPOLL": "1", "EVENT_NOPOLL": "1"},
}


def _parse(work: Path) -> Cases:
    return tinytest(work / LOG)


def _units(sources: Path) -> list[Unit]:
    top = debian_source("libevent", sources)
    configure = ["cmake", "-S", ".", "-B", "b", "-DEVENT__LIBRARY_TYPE=STATIC", "-DEVENT__DISABLE_BENCHMARK=ON"]
    build(top, [configure, ["make", "-C", "b", "regress"]], sources / "libevent.log")
    program = "bin/regress"
    return [
        Unit(backend, [program], 400, _parse, top / "b", environment, select=lambda cases: [program, *cases])
        for backend, environment in BACKENDS.items()
    ]


SUITE = Suite(
    name="libevent",
    origin="Debian source package libevent",
    packages=["dpkg-dev", "build-essential", "cmake", "libssl-dev", "zlib1g-dev"],
    units=_units,
    quick=frozenset({"epoll", "select"}),
)
