"""What a public test suite is to the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cases import Cases


@dataclass(frozen=True)
class Unit:
    """One process of a suite: a module, a test file, or the whole suite where it is one program.

    `argv` may hold `{work}`, the directory of this one run, where `parse` finds the log and whatever the
    program wrote; it starts empty. `select` gives the command line for a few of the unit's cases.
    """

    name: str
    argv: list[str]
    timeout_s: int
    parse: Callable[[Path], Cases]
    directory: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    select: Callable[[list[str]], list[str]] | None = None


@dataclass(frozen=True)
class Suite:
    """A public suite: where it comes from, what is left out of it and why, and its units.

    `units` is called twice with the directory for sources: outside the run's namespaces to fetch and build,
    and inside, when everything is there.
    """

    name: str
    origin: str
    packages: list[str]
    units: Callable[[Path], list[Unit]]
    left_out: dict[str, str] = field(default_factory=dict)
    quick: frozenset[str] = frozenset()


LOG = "log.out"
