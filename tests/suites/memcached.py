"""memcached's tests: text, meta and binary protocol, limits of connections, idle connections, watchers, misbehaviour."""

from __future__ import annotations

from pathlib import Path

from cases import Cases, merged, perl
from source import build, debian_source
from suite import LOG, Suite, Unit

LEFT_OUT = {
    "ssl_*.t, sasl, extstore*.t, proxy.t": "need builds of memcached with other options than Debian's sources default to",
    "slab*.t, lru*.t, evictions.t, whitespace.t, 64bit.t": "test memory and source text, no socket call that others do not",
}
QUICK = ("maxconns", "noreply", "watcher", "idle-timeout", "issue_14", "quit")
RANDOM = ("maxconns",)
"""How many connections these see rejected depends on time."""

FILES = (
    *QUICK,
    "00-startup",
    "binary",
    "getset",
    "binary-get",
    "bogus-commands",
    "cas",
    "chunked-items",
    "conn-limits",
    "daemonize",
    "dash-M",
    "flags",
    "flush-all",
    "getandtouch",
    "incrdecr",
    "issue_108",
    "issue_140",
    "issue_152",
    "issue_163",
    "issue_183",
    "issue_192",
    "issue_22",
    "issue_29",
    "issue_3",
    "issue_41",
    "issue_42",
    "issue_50",
    "issue_61",
    "issue_67",
    "issue_68",
    "issue_70",
    "item_size_max",
    "line-lengths",
    "malicious-commands",
    "metaget",
    "misbehave",
    "multiversioning",
    "refhang",
    "restart",
    "shutdown",
    "stats",
    "stats-conns",
    "stats-detail",
    "touch",
    "udp",
    "unixsocket",
    "watcher_connid",
)


def _parse(work: Path) -> Cases:
    return perl(work / LOG)


def _parse_merged(work: Path) -> Cases:
    return merged(perl(work / LOG))


def _units(sources: Path) -> list[Unit]:
    top = debian_source("memcached", sources)
    build(top, [["autoreconf", "-fi"], ["./configure"], ["make"]], sources / "memcached.log")
    names = [name for name in FILES if (top / "t" / f"{name}.t").exists()]
    return [
        Unit(name, ["perl", f"t/{name}.t"], 200, _parse_merged if name in RANDOM else _parse, top) for name in names
    ]


SUITE = Suite(
    name="memcached",
    origin="Debian source package memcached",
    packages=["dpkg-dev", "build-essential", "automake", "autoconf", "libevent-dev", "perl"],
    units=_units,
    left_out=LEFT_OUT,
    quick=frozenset(QUICK),
)
