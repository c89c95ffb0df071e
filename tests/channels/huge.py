"""Pools of huge pages: made where the machine has some, found again by another agent, given back with the last who has them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import road

from site_of_channels import Lacking, Site, until

RESERVED = Path("/proc/sys/vm/nr_hugepages")
PAGES = 4
POOL_BYTES = 4 << 20
MODULE = road.REPOSITORY / "crates/channel-c/python/millrace.py"


def _meminfo(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextmanager
def _more_huge_pages() -> Iterator[int]:
    """Has the machine reserve some more, if it can, and puts that back; says how many are free."""
    before = RESERVED.read_text()
    try:
        RESERVED.write_text(str(int(before) + PAGES))
        yield _meminfo("HugePages_Free")
    finally:
        RESERVED.write_text(before)


def _module(library: Path) -> ModuleType:
    os.environ["MILLRACE_CHANNEL_LIBRARY"] = str(library)
    spec = importlib.util.spec_from_file_location("millrace", MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _are_huge(millrace: Path, site: Site) -> dict[str, bool]:
    """Of each channel, whether the pool of its publisher is."""
    environment = dict(os.environ, MILLRACE_AGENT=str(site.socket))
    said = subprocess.run([millrace, "channels", "--json"], capture_output=True, check=True, env=environment).stdout
    channels: list[dict[str, Any]] = json.loads(said)["channels"]
    return {channel["name"]: end["huge"] for channel in channels for end in channel["ends"] if end["role"] == "publisher"}


def _files(pid: int) -> list[str]:
    """What a process has open."""
    return [os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd")]


def _pass(publisher: Any, subscribers: list[Any], first: int) -> list[str]:
    """Messages from one to all; what was wrong."""
    wrong = []
    for number in range(first, first + 1000):
        message = number.to_bytes(4, "little") * 700
        publisher.send(message)
        wrong += [f"message {number} did not come whole" for subscriber in subscribers if subscriber.receive(timeout=10) != message]
    return wrong


def _use(millrace: Path, site: Site, free: int) -> list[str]:
    module = _module(millrace.with_name("libmillrace.so"))
    agent = {"agent": str(site.socket)}
    wrong = []
    subscriber = module.Subscriber("huge", **agent)
    with module.Publisher("huge", pool_bytes=POOL_BYTES, **agent) as publisher, module.Publisher("odd", pool_bytes=3 << 16, **agent):
        publisher.wait(1)
        wrong += _pass(publisher, [subscriber], 0)
        if (said := _are_huge(millrace, site)) != {"huge": True, "odd": False}:
            wrong.append(f"of huge pages: {said}")
        site.restart_agent()
        with module.Subscriber("huge", **agent) as another:
            publisher.wait(2, timeout=20)
            wrong += _pass(publisher, [subscriber, another], 1000)
        # What the pages that are left do not suffice for is of small ones.
        with module.Publisher("large", pool_bytes=(free + 1) * (2 << 20), **agent):
            # The odd one has not asked for the new agent: nobody has used it since.
            if (said := _are_huge(millrace, site)) != {"huge": True, "large": False}:
                wrong.append(f"of huge pages, with another agent: {said}")
    subscriber.close()
    if not until(lambda: _meminfo("HugePages_Free") == free):
        wrong.append(f"{_meminfo('HugePages_Free')} huge pages are free, not {free}")
    # It has a few for good, of its own.
    wrong += site.left_behind(sys.maxsize)
    return wrong + [f"the agent has {name}" for name in _files(site.agent.pid) if "memfd:" in name]


def case(millrace: Path, place: Path) -> str | None:
    """The case; what was wrong."""
    if not RESERVED.exists():
        raise Lacking("the kernel has no huge pages")
    with _more_huge_pages() as free, Site(millrace, place) as site:
        if free * (2 << 20) < POOL_BYTES:
            raise Lacking(f"the machine has {free} huge pages free")
        wrong = _use(millrace, site, free)
    return "; ".join(wrong[:5]) or None
