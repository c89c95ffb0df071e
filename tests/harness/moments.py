"""Moments of a program: before which of its system calls it is killed. What it does is observed once; then it is killed there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

Moment = tuple[str, int]
"""Before which call of which name, of those that one process makes."""


def observing(trace: Path, command: Sequence[str], names: str = "all") -> list[str]:
    """A command that notes in `trace` which system calls of these names this one makes."""
    return ["strace", "-f", "-o", str(trace), "-e", f"trace={names}", *command]


def observed(trace: Path, begin: int = 0) -> list[Moment]:
    """What has been noted, from a place in the trace on."""
    count: Counter[tuple[str, str]] = Counter()
    found: dict[Moment, None] = {}
    for match in re.finditer(r"^(\d+) +(\w+)\(", trace.read_text(), re.MULTILINE):
        call = (match[1], match[2])
        count[call] += 1
        if match.start() >= begin:
            found.setdefault((match[2], count[call]))
    return list(found)


def killing(moment: Moment, command: Sequence[str]) -> list[str]:
    """A command that kills this one at that moment."""
    return _at(moment, "signal=KILL", command)


def delaying(moment: Moment, seconds: float, command: Sequence[str]) -> list[str]:
    """A command that holds this one up at that moment."""
    return _at(moment, f"delay_enter={seconds * 1e6:.0f}", command)


def _at(moment: Moment, what: str, command: Sequence[str]) -> list[str]:
    name, number = moment
    return ["strace", "-f", "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:{what}:when={number}", *command]


def some(found: Sequence[Moment], most: int) -> Sequence[Moment]:
    """That many of them at most, from everywhere."""
    step = max(len(found) // most, 1)
    return found[step // 2 :: step][:most]
