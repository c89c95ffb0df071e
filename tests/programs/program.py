"""What a real program is to the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from placement import PLACEMENTS
from site_of_run import Site

Results = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A program and the loads it is put under.

    `run` returns results (checksums, counts) that must be the same on every road, and raises where one is wrong.
    """

    name: str
    loads: str
    packages: list[str]
    run: Callable[[Site], Results]
    quick: bool = True
    placements: tuple[str, ...] = tuple(PLACEMENTS)
    remark: str = ""
