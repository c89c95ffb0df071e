"""What the cases have in common."""

from __future__ import annotations


class Wrong(Exception):
    """What was not as it must be."""


def check(holds: bool, what: object) -> None:
    """Raises what is wrong."""
    if not holds:
        raise Wrong(what)
