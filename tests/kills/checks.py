"""What must hold after a fault: streams that are exact, endings as TCP gives them, and nothing left behind."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import ledger
from ledger import CLIENT, SERVER, SIDES, End
from plan import RHYTHMS, Round
from site_of_kills import Facts, Site, until

ENDING_S = 2.0
FINISH_S = 10.0
CLEAN_S = 2.0
PAUSE_S = 0.05
MAPS_SLACK = 4
"""Maps that a process may have beyond its baseline: the kernel joins neighbours or not."""

_ENDED_READING = {ledger.DONE, ledger.error("ECONNRESET"), ledger.error("EPIPE")}
_ENDED_WRITING = {ledger.DONE, ledger.GAVE_UP, ledger.error("ECONNRESET"), ledger.error("EPIPE")}
_NO_CONNECTION = {ledger.error("ECONNREFUSED")}


def describe(site: Site, plan_rhythms: tuple[str, ...], slots: list[int]) -> list[str]:
    """What each connection came to."""
    return [
        f"connection {slot} ({rhythm}): client {site.ledger.end(slot, CLIENT)}; server {site.ledger.end(slot, SERVER)}"
        for slot, rhythm in zip(slots, plan_rhythms, strict=True)
    ]


def _wrong(site: Site, slots: list[int]) -> list[str]:
    ends = [(slot, side, site.ledger.end(slot, SIDES[side])) for slot in slots for side in SIDES]
    return [f"wrong bytes at the {side} of connection {slot}" for slot, side, end in ends if end.wrong_at]


def endings(site: Site, plan: Round, slots: list[int]) -> list[str]:
    """A survivor has an exact prefix, then an ending that TCP could give, in time."""
    found = _wrong(site, slots)
    for name in plan.fault.survivors:
        mine, theirs = SIDES[name], 1 - SIDES[name]
        begun = [slot for slot in slots if site.ledger.end(slot, mine).has_begun]
        until(lambda begun=begun, mine=mine: all(site.ledger.end(slot, mine).has_ended for slot in begun), ENDING_S)
        for slot, rhythm in zip(slots, plan.rhythms, strict=True):
            if slot in begun:
                why = _ending(site.ledger.end(slot, mine), site.ledger.end(slot, theirs), RHYTHMS[rhythm].message_max)
                found += [f"{name} of connection {slot} ({rhythm}): {text}" for text in why]
    return found + [text for text in _wrong(site, slots) if text not in found]


def _ending(mine: End, theirs: End, message_max: int) -> list[str]:
    found = []
    for direction, code, allowed in (
        ("reader", mine.read_end, _ENDED_READING),
        ("writer", mine.write_end, _ENDED_WRITING),
    ):
        if code == ledger.UNDER_WAY:
            found.append(f"no ending for its {direction} within {ENDING_S} s")
        elif code not in allowed | _NO_CONNECTION and code != ledger.WRONG:
            found.append(f"an ending for its {direction} that TCP does not give: {ledger.how(code)}")
    if mine.received > theirs.sent + message_max:
        found.append(f"received {mine.received} of {theirs.sent} bytes")
    # Where a writer has met a reset, that reset took what was under way, and the reader sees no more than an end of stream.
    if mine.read_end == ledger.DONE and mine.write_end in (ledger.DONE, ledger.GAVE_UP) and mine.received < theirs.sent:
        found.append(f"end of stream at {mine.received}, but {theirs.sent} had been sent")
    return found


def completed(site: Site, slots: list[int]) -> list[str]:
    """All streams come to their ends exactly, once the clients are told to finish."""
    for slot in slots:
        site.ledger.finish(slot)
    both = [(slot, side) for slot in slots for side in SIDES.values()]
    until(lambda: all(site.ledger.end(slot, side).has_ended for slot, side in both) or _wrong(site, slots), FINISH_S)
    found = _wrong(site, slots)
    for slot in slots:
        client, server = site.ledger.end(slot, CLIENT), site.ledger.end(slot, SERVER)
        codes = {client.read_end, client.write_end, server.read_end, server.write_end}
        if codes != {ledger.DONE}:
            found.append(f"connection {slot} did not complete within {FINISH_S} s")
        elif (client.sent, server.sent) != (server.received, client.received):
            found.append(f"connection {slot} completed with other counts at its two ends")
    return found


def moves(site: Site, slots: list[int]) -> list[str]:
    """Every connection that has begun at both ends carries bytes now."""

    def counts(slot: int) -> int:
        return site.ledger.end(slot, CLIENT).received + site.ledger.end(slot, SERVER).received

    begun = [slot for slot in slots if all(site.ledger.end(slot, side).has_begun for side in SIDES.values())]
    before = {slot: counts(slot) for slot in begun}
    until(lambda: all(counts(slot) > before[slot] for slot in begun), ENDING_S)
    return [f"connection {slot} stands still" for slot in begun if counts(slot) == before[slot]]


@dataclass(frozen=True)
class Baseline:
    """What agent and server hold when there is no connection."""

    agent: Facts
    server: Facts
    files: frozenset[str]

    @classmethod
    def take(cls, site: Site) -> Baseline:
        """Reads it now."""
        agent, server = (Facts.of(site.processes[name].pid) for name in ("agent", "server"))
        return cls(agent, server, files(site))


def files(site: Site) -> frozenset[str]:
    """What lies in the agent's directory."""
    return frozenset(entry.name for entry in site.runtime.iterdir())


def leaks(site: Site, base: Baseline, ignore: list[str], ignored: Counter[str]) -> list[str]:
    """What is left behind when no client runs; processes have a moment to go. What is to be ignored is counted."""

    def look() -> list[str]:
        now = Baseline.take(site)
        found = [f"agent: {text}" for text in now.agent.beyond(base.agent, MAPS_SLACK)]
        found += [f"server: {text}" for text in now.server.beyond(base.server, MAPS_SLACK)]
        found += [f"stray process {stray}" for stray in site.strays()]
        found += [f"file {name}" for name in now.files - base.files]
        if listed := site.connections():
            found.append(f"{len(listed)} connections listed that are no more")
        segments = site.segment_bytes()
        if segments:
            # What waits to be read by a process that sleeps is memory until its next call.
            site.wake_server()
        return found + ([f"segments of {segments} bytes without a connection"] if segments else [])

    deadline = time.monotonic() + CLEAN_S

    def is_known(text: str) -> bool:
        return any(known in text for known in ignore)

    while not all(map(is_known, found := look())) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    ignored.update(filter(is_known, found))
    return [text for text in found if not is_known(text)]
