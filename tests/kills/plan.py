"""What is done in each round: drawn from the seed and the round's number alone, so that any round can be run again."""

from __future__ import annotations

import random
from dataclasses import dataclass

VARIANTS = ("blocking", "poll", "epoll", "edge", "forked", "shared")
ROUNDS_PER_SERVER = 16
"""A server serves that many rounds, unless it is killed."""
AGENT_TURN = 4
"""Every so many servers, the agent is a victim, too; in the rounds between, its memory is watched."""

_DUPLEX, _LOCKSTEP, _ONE_WAY = range(3)


@dataclass(frozen=True)
class Rhythm:
    """How an end sends: its longest message, the rest after each message and after each read, and who sends when."""

    message_max: int
    pause_us: int
    shape: int
    read_pause_us: int = 0


RHYTHMS = {
    "flood": Rhythm(128 * 1024, 0, _DUPLEX),
    "chatter": Rhythm(512, 0, _DUPLEX),
    "bursts": Rhythm(16 * 1024, 300, _DUPLEX),
    "echo": Rhythm(64, 0, _LOCKSTEP),
    "request": Rhythm(48 * 1024, 0, _LOCKSTEP),
    "slow-echo": Rhythm(2048, 2000, _LOCKSTEP),
    "log": Rhythm(4096, 100, _ONE_WAY),
    "trickle": Rhythm(64, 20_000, _ONE_WAY),
    "sparse-log": Rhythm(64, 200_000, _ONE_WAY, 250_000),
    "busy-reader": Rhythm(64, 5_000, _ONE_WAY, 12_000),
}
LOCKSTEP = {name for name, rhythm in RHYTHMS.items() if rhythm.shape == _LOCKSTEP}


@dataclass(frozen=True)
class Fault:
    """What is done to whom, and what must come of it.

    A step is `kill X`, `term X`, `stop X` or `cont X` (X: client, server, agent, or `client.main`, `client.worker` and so
    on for one of two processes that hold a connection), `wait` a random time, `live` (bytes must move now), `join` (the connections
    must come to the ring now, where a single process holds each end), or `start agent`.
    """

    name: str
    steps: tuple[str, ...]
    survivors: tuple[str, ...] = ()
    """Sides that must see an ending. Where there is none, and `exact`, the streams must complete."""
    exact: bool = False
    holder: str = ""
    """The side whose variant must be `shared`, in lockstep."""

    @property
    def kills(self) -> bool:
        """Whether a process of either end is killed for good."""
        return any(step.startswith("kill") and not step.endswith("agent") for step in self.steps)

    @property
    def harms_agent(self) -> bool:
        """Whether the agent is a victim."""
        return any(step.endswith("agent") for step in self.steps)


def _ending(name: str, steps: str, *survivors: str, holder: str = "") -> Fault:
    return Fault(name, tuple(step.strip() for step in steps.split(",")), survivors, holder=holder)


def _exact(name: str, steps: str, holder: str = "") -> Fault:
    return Fault(name, tuple(step.strip() for step in steps.split(",")), exact=True, holder=holder)


FAULTS = {
    fault.name: fault
    for fault in (
        _exact("nothing", "wait"),
        _ending("kill-client", "kill client", "server"),
        _ending("kill-server", "kill server", "client"),
        _ending("kill-both", "kill client, kill server"),
        _exact("stop-client", "stop client, wait, cont client"),
        _exact("stop-server", "stop server, wait, cont server"),
        _exact("stop-both", "stop client, stop server, wait, cont client, wait, cont server"),
        _ending("stop-kill-client", "stop client, wait, kill client", "server"),
        _ending("stop-kill-server", "stop server, wait, kill server", "client"),
        _ending("kill-client-of-stopped", "stop server, wait, kill client, wait, cont server", "server"),
        _ending("kill-server-of-stopped", "stop client, wait, kill server, wait, cont client", "client"),
        _exact("kill-holder-client", "kill client.main, live", holder="client"),
        _exact("kill-holder-server", "kill server.main, join", holder="server"),
        _ending("kill-worker-client", "kill client.worker", "server", holder="client"),
        _ending("kill-worker-server", "kill server.worker", "client", holder="server"),
        _exact("stop-holder-client", "stop client.main, live, wait, cont client.main", holder="client"),
        _exact("stop-holder-server", "stop server.main, live, wait, cont server.main", holder="server"),
        _exact("kill-agent", "kill agent, live, wait, start agent, live"),
        _exact("term-agent", "term agent, live, wait, start agent, live"),
        _exact("stop-agent", "stop agent, live, wait, cont agent, live"),
        _ending("kill-agent-client", "kill agent, kill client, wait, start agent", "server"),
        _ending("kill-agent-server", "kill agent, kill server, wait, start agent", "client"),
        _ending("stop-agent-kill-client", "stop agent, kill client, wait, cont agent", "server"),
        _ending("stop-agent-kill-server", "stop agent, kill server, wait, cont agent", "client"),
    )
}


@dataclass(frozen=True)
class Round:
    """One round."""

    number: int
    mode: str
    server: str
    client: str
    rhythms: tuple[str, ...]
    seed: int
    fault: Fault
    in_flow: bool
    """The fault comes when bytes have come through; otherwise when the client begins, into connect and introduction."""
    delay_s: float
    waits_s: tuple[float, ...]

    def __str__(self) -> str:
        when = "in flow" if self.in_flow else "at start"
        return (
            f"round {self.number}: {self.fault.name}, mode {self.mode}, server {self.server}, client {self.client}, "
            f"{'+'.join(self.rhythms)}, {when} + {self.delay_s * 1000:.1f} ms"
        )


def _log_uniform(source: random.Random, low: float, high: float) -> float:
    return low * (high / low) ** source.random()


def draw(seed: int, number: int, modes: list[str], variants: list[str], which: str) -> Round:
    """The round with this number."""
    block = number // ROUNDS_PER_SERVER
    source = random.Random(f"{seed}/{block}")
    mode, server = modes[block % len(modes)], source.choice(variants)
    source = random.Random(f"{seed}/{number}")
    with_agent = which == "agent" or (which == "all" and block % AGENT_TURN == AGENT_TURN - 1)
    holders = ("", "client") if "shared" in variants else ("",)
    faults = [fault for fault in FAULTS.values() if fault.harms_agent == with_agent and fault.holder in holders]
    if server == "shared":
        faults += [fault for fault in FAULTS.values() if fault.harms_agent == with_agent and fault.holder == "server"]
    fault = FAULTS[which] if which in FAULTS else source.choice(faults)
    client = "shared" if fault.holder == "client" else source.choice(variants)
    rhythms = sorted(LOCKSTEP) if fault.holder else list(RHYTHMS)
    count = 1 if fault.holder else source.choice((1, 1, 2, 4))
    return Round(
        number=number,
        mode=mode,
        server=server if fault.holder != "server" else "shared",
        client=client,
        rhythms=tuple(source.choice(rhythms) for _ in range(count)),
        seed=source.getrandbits(40),
        fault=fault,
        in_flow=bool(fault.holder) or source.random() < 0.75,
        delay_s=_log_uniform(source, 0.0002, 0.15),
        waits_s=tuple(_log_uniform(source, 0.001, 0.3) for _ in fault.steps),
    )
