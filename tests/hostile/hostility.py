"""What is done in each round: drawn from the seed and the round's number alone, so that any round can be run again."""

from __future__ import annotations

import random
from dataclasses import dataclass

STYLES = ("noise", "words", "lies", "flip", "siege", "board", "punch", "silent", "any")
"""What a peer writes; `peer/src/strikes.rs` says more."""
KINDS = ("attack", "attack", "attack", "pester", "pretend", "trick")
TRICKS = ("retract", "change", "follow", "hold", "inherit", "request")
"""What TCP has no means for; `peer/src/tricks.rs` says more."""
SERVERS = ("blocking", "poll", "epoll", "edge")
"""How the victim uses its sockets: its honest connection and the attacker's are served by one process."""
RHYTHMS = ("chatter", "echo", "request", "slow-echo", "bursts", "flood")


@dataclass(frozen=True)
class Round:
    """One round."""

    number: int
    kind: str
    style: str
    mode: str
    server: str
    client: str
    rhythms: tuple[str, ...]
    seed: int
    trick: str

    def __str__(self) -> str:
        style = {"attack": f" {self.style}", "trick": f" {self.trick}"}.get(self.kind, "")
        ends = f"server {self.server}, client {self.client}, {'+'.join(self.rhythms)}"
        return f"round {self.number}: {self.kind}{style}, mode {self.mode}, {ends}"


def draw(seed: int, number: int, modes: list[str], kinds: list[str], styles: list[str]) -> Round:
    """The round with this number."""
    source = random.Random(f"{seed}/{number}")
    return Round(
        number=number,
        kind=kinds[number % len(kinds)],
        style=source.choice(styles),
        mode=source.choice(modes),
        server=source.choice(SERVERS),
        client=source.choice(SERVERS),
        rhythms=tuple(source.choice(RHYTHMS) for _ in range(source.choice((1, 2)))),
        seed=source.getrandbits(40),
        trick=source.choice(TRICKS),
    )
