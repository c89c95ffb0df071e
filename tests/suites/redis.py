"""Redis's own tests that exercise connections: replication, clients, limits, publication, blocking commands."""

from __future__ import annotations

from pathlib import Path

import cases
from source import build, debian_source
from suite import LOG, Suite, Unit

QUICK = (
    "unit/networking",
    "unit/pubsub",
    "unit/protocol",
    "unit/multi",
    "integration/redis-cli",
    "integration/redis-benchmark",
)
FILES = (
    *QUICK,
    "unit/auth",
    "unit/client-eviction",
    "unit/introspection",
    "unit/introspection-2",
    "unit/latency-monitor",
    "unit/limits",
    "unit/obuf-limits",
    "unit/other",
    "unit/pause",
    "unit/pendingquerybuf",
    "unit/pubsubshard",
    "unit/querybuf",
    "unit/quit",
    "unit/replybufsize",
    "unit/scripting",
    "unit/shutdown",
    "unit/tracking",
    "unit/wait",
    "unit/type/list",
    "unit/type/stream-cgroups",
    "unit/type/zset",
    "integration/block-repl",
    "integration/failover",
    "integration/logging",
    "integration/psync2",
    "integration/psync2-master-restart",
    "integration/psync2-pingoff",
    "integration/psync2-reg",
    "integration/replication",
    "integration/replication-2",
    "integration/replication-3",
    "integration/replication-4",
    "integration/replication-buffer",
    "integration/replication-psync",
    "integration/shutdown",
)
RANDOM = ("integration/psync2", "integration/psync2-reg")
"""These draw the layout of replicas by chance, and load them for a time instead of a number of times."""

LEFT_OUT = {
    "units about data types, persistence files and memory alone": "they would test no socket call that others do not",
}


def _parse(work: Path) -> cases.Cases:
    return cases.redis(work / LOG)


def _parse_random(work: Path) -> cases.Cases:
    return cases.merged(cases.redis(work / LOG))


def _unit(top: Path, name: str) -> Unit:
    def command(selected: list[str]) -> list[str]:
        only = [word for case in selected for word in ("--only", case.partition(" #")[0])]
        return ["./runtest", "--single", name, "--clients", "1", "--timeout", "600", *only]

    if name in RANDOM:
        return Unit(name, command([]), 700, _parse_random, top)
    return Unit(name, command([]), 700, _parse, top, select=command)


def _units(sources: Path) -> list[Unit]:
    top = debian_source("redis", sources)
    build(top, [["make", "-C", "src", "MALLOC=libc", "USE_SYSTEMD=no"]], sources / "redis.log")
    return [_unit(top, name) for name in FILES]


SUITE = Suite(
    name="redis",
    origin="Debian source package redis",
    packages=["dpkg-dev", "build-essential", "tcl"],
    units=_units,
    left_out=LEFT_OUT,
    quick=frozenset(QUICK),
)
