"""Watches `millrace ps --json` while a program runs, to say how its bytes travelled."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from harness.road import Road, connections

INTERVAL_S = 0.2
ROADS = ("shm", "kernel")
IDENTITY = ("pid", "fd", "local", "remote", "since_ns")
"""What tells one end of one connection from all others."""


class Watcher:
    """Reads the list of connections now and then; keeps the last that was seen of each."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._seen: dict[Any, dict[str, Any]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        if self._road.millrace is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(INTERVAL_S):
            for connection in connections(self._road):
                for end in connection.get("ends", []):
                    self._seen[tuple(str(end.get(name)) for name in IDENTITY)] = end

    def shares(self) -> dict[str, float]:
        """The share of bytes per road, sent by all ends seen; empty where there was none."""
        totals: Counter[str] = Counter()
        for end in self._seen.values():
            totals.update({road: end["sent"][f"{road}_bytes"] for road in ROADS})
        whole = sum(totals.values())
        return {road: totals[road] / whole for road in ROADS} if whole else {}

    def reasons(self) -> dict[str, int]:
        """How many ends were on the kernel's road when last seen, for each reason."""
        return dict(Counter(end["reason"] for end in self._seen.values() if end["road"] == "kernel"))
