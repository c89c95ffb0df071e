"""Channels among agents and libraries of different versions: conversations where these meet, and words where they do not."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.process import Process, ProgramFailed

PARTICIPANT = Path(__file__).with_name("participant.py")
SOON_S = 20.0
NOTHING_IN_COMMON = "no version of channels in common"

Play = Callable[[Path], None]


def library(millrace: Path) -> Path:
    """The library of channels that was built with a program."""
    return millrace.with_name("libmillrace.so")


def _start(stage: Any, which: Path, role: str, name: str) -> Process:
    """Starts one side, with the library at that path."""
    started: Process = stage.start("env", f"MILLRACE_CHANNEL_LIBRARY={which}", sys.executable, PARTICIPANT, role, name)
    return started


def _wait_for_word(stage: Any, side: Process, word: str) -> None:
    stage.wait_for(f"{word!r}", lambda: word in side.output.read_text().split() or side.code() is not None)
    if word not in side.output.read_text().split():
        raise ProgramFailed(f"not {word!r}: {side.wait(SOON_S).tail()}")


class Conversation:
    """Two sides that have met."""

    def __init__(self, stage: Any, name: str, speaker: Path, listener: Path) -> None:
        self._stage = stage
        self.sides = [_start(stage, listener, "listen", name), _start(stage, speaker, "speak", name)]
        for side in self.sides:
            _wait_for_word(stage, side, "met")

    def end(self) -> None:
        """Has the speaker say its last word, and both compare."""
        self.sides[1].signal(signal.SIGTERM)
        for side in self.sides:
            _wait_for_word(self._stage, side, "done")
            if (outcome := side.wait(SOON_S)).code != 0:
                raise ProgramFailed(f"it ended with {outcome.code}: {outcome.tail()}")

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            side.stop()


def _listed(stage: Any, millrace: Path) -> set[int]:
    """Who takes part, as the agent says that is there now."""
    asked = subprocess.run([millrace, "channels", "--json"], env=stage.environment, capture_output=True, timeout=SOON_S, check=True)
    return {end["pid"] for channel in json.loads(asked.stdout)["channels"] for end in channel["ends"]}


def mixture(stage: Any, agent: Path, speaker: Path, listener: Path) -> None:
    """One conversation."""
    with stage.agent(agent), Conversation(stage, "mixture", speaker, listener) as talk:
        talk.end()


def succession(stage: Any, agents: tuple[Path, ...], which: Path, stranger: Path) -> None:
    """Agents of other versions come: they learn of those who are there, and bring newcomers together, but for one, `stranger`, with which
    nobody has a version in common."""
    first, *others = agents
    agent = stage.agent(first)
    try:
        with Conversation(stage, "lasting", which, which) as lasting:
            for number, other in enumerate(others):
                agent.stop()
                agent = stage.agent(other, log="warn")
                if other == stranger:
                    stage.wait_for("somebody who is refused", lambda: bool(_refusals(agent)))  # noqa: B023
                    continue
                pids = {side.pid for side in lasting.sides}
                stage.wait_for("those who are there", lambda other=other, pids=pids: pids <= _listed(stage, other))
                with Conversation(stage, f"new{number}", which, which) as talk:
                    talk.end()
            lasting.end()
    finally:
        agent.stop()


def _refusals(agent: Process) -> list[str]:
    said = agent.output.read_text() + agent.errors.read_text()
    return [line for line in said.splitlines() if "refused a participant: this agent speaks versions" in line]


def refusal(stage: Any, agent: Path, which: Path, good: Path) -> None:
    """A library that the agent has nothing in common with: it says so at once, so does the agent, and others go on."""
    with stage.agent(agent, log="warn") as serving:
        for role in ("speak", "listen"):
            outcome = _start(stage, which, role, "refused").wait(SOON_S)
            if outcome.code != 1 or NOTHING_IN_COMMON not in outcome.tail():
                raise ProgramFailed(f"{role}: ended with {outcome.code}: {outcome.tail()}")
        if not _refusals(serving):
            raise ProgramFailed(f"the agent said: {serving.output.read_text()}{serving.errors.read_text()}")
        with Conversation(stage, "good", good, good) as talk:
            talk.end()


def plays(stage: Callable[[Path], Any], now: Path, ahead: Path, apart: Path, relaid: Path) -> dict[str, Play]:
    """All of them. `ahead` and `apart` are programs, as `now` is; `relaid` is a library."""
    names = {now: "now", ahead: "ahead"}
    all_of: dict[str, Play] = {}
    for agent, speaker, listener in itertools.product(names, repeat=3):
        what = f"channels: agent {names[agent]}, speaker {names[speaker]}, listener {names[listener]}"
        libraries = library(speaker), library(listener)
        all_of[what] = lambda place, agent=agent, libraries=libraries: mixture(stage(place), agent, *libraries)  # type: ignore[misc]
    for millrace in names:
        what = f"channels: agents now, ahead, apart, now; participants {names[millrace]}"
        order = now, ahead, apart, now
        which = library(millrace)
        all_of[what] = lambda place, which=which, order=order: succession(stage(place), order, which, apart)  # type: ignore[misc]
    refusals = {
        "agent now, a library that is apart": (now, library(apart), library(now)),
        "agent apart, the library of now": (apart, library(now), library(apart)),
        "a library with another layout": (now, relaid, library(now)),
    }
    for what, which in refusals.items():
        all_of[f"channels: {what}"] = lambda place, which=which: refusal(stage(place), *which)  # type: ignore[misc]
    return all_of
