"""What cases share: our examples, and how they fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from harness import examples


class Wrong(Exception):
    """What was not as it must be."""


class Skipped(Exception):
    """Why a case cannot be run here."""


def check(holds: bool, what: str) -> None:
    """Raises what is wrong."""
    if not holds:
        raise Wrong(what)


Fields = dict[str, list[str]]


def ours(capture: Path) -> list[Fields]:
    """What we read in each datagram of a capture."""
    said = subprocess.run([examples.PLACE / "gtpu", "read", capture], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]
