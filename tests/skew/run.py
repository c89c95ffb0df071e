#!/usr/bin/python3
"""Old and new together: agents and libraries of this version and of one that is two versions ahead.

    tests/skew/run.py [--millrace PATH] [CASE ...]

`millrace-wire` built with the feature `ahead` speaks two further versions of the control protocol, in which messages have more fields.
Every mixture of agent, server's library and client's library brings a conversation to the ring, with every byte compared; agents of either
version take the other's place meanwhile; and programs whose bytes the agent brings back to the kernel's road see what they see without
Millrace. Participants of channels talk in every mixture, too; those that have no version in common with the agent (the feature `apart`), or
lay out links in another way (`relaid`), are told so. Exits with 0 when all was so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import cases, isolate, road  # noqa: E402
from harness.process import Process, ProgramFailed  # noqa: E402

import channels  # noqa: E402

AHEAD, APART, RELAID = (road.REPOSITORY / "target" / feature for feature in ("ahead", "apart", "relaid"))
BUILT = road.REPOSITORY / "target/traps"
TALK = road.REPOSITORY / "tests/containers/talk.c"
# The agent works for these, which ask it from two processes.
TRAPS = ("full_and_left_by_exec", "full_and_passed", "passed_in_the_middle")
CASE_S = 60.0
SOON_S = 10.0
PORT = "7100"


def build(directory: Path, *packages: str) -> None:
    """What stands for another version, by the feature of the directory's name."""
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--profile", "xtask", "--target-dir", str(directory)]
    # The one with the feature is named as well: not all of the others need it themselves.
    what = [word for package in ("millrace-wire", *packages) for word in ("--package", package)]
    subprocess.run([*cargo, *what, "--features", f"millrace-wire/{directory.name}"], cwd=road.REPOSITORY, check=True)


def build_all() -> None:
    """Programs with their libraries beside them, and one library alone."""
    build(AHEAD, "millrace-cli", "millrace-preload", "millrace-channel-c")
    build(APART, "millrace-cli", "millrace-channel-c")
    build(RELAID, "millrace-channel-c")


def _wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not holds():
        if time.monotonic() > deadline:
            raise ProgramFailed(f"{what}: not within {SOON_S:.0f} s")
        time.sleep(0.02)


class Stage:
    """A place with an agent's socket, for programs under libraries of either version."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "agent.sock"
        self.environment = dict(os.environ, MILLRACE_AGENT=str(self.socket))
        self._count = itertools.count()

    def start(self, *command: str | Path) -> Process:
        """Starts a program that meets that agent."""
        log = self.place / f"program-{next(self._count)}"
        return Process([str(word) for word in command], log, environment={"MILLRACE_AGENT": str(self.socket)})

    def agent(self, millrace: Path, log: str = "error") -> Process:
        """An agent, which answers."""
        agent = self.start(millrace, "agent", "--socket", self.socket, "--log", log)
        _wait_for("an agent", self.socket.exists)
        return agent

    @staticmethod
    def wait_for(what: str, holds: Callable[[], bool]) -> None:
        """Waits for something that comes soon."""
        _wait_for(what, holds)

    def talks(self, millrace: Path, talk: Path) -> Process:
        """A conversation that is on the ring. A server that has slept asks for a new agent a second after it was woken: not the first."""
        deadline = time.monotonic() + SOON_S
        while True:
            client = self.start(millrace, "run", "--mode", "eager", "--", talk, "call", "127.0.0.1", PORT)
            _wait_for("talk", lambda client=client: "ready" in client.output.read_text() or client.code() is not None)  # type: ignore[misc]
            if "ring" in (roads := road.roads(millrace, self.environment)):
                return client
            hang_up(client)
            if time.monotonic() > deadline:
                raise ProgramFailed(f"no conversation is on the ring: {roads}")


def hang_up(client: Process) -> None:
    """Ends a conversation, which compares once more."""
    client.signal(signal.SIGTERM)
    outcome = client.wait(SOON_S)
    if outcome.code != 0 or "done" not in outcome.text:
        raise ProgramFailed(f"the conversation ended with {outcome.code}: {outcome.tail()}")


def mixture(place: Path, talk: Path, agent: Path, server: Path, client: Path) -> None:
    """One conversation."""
    stage = Stage(place)
    with stage.agent(agent), stage.start(server, "run", "--mode", "eager", "--", talk, "serve", "127.0.0.1", PORT):
        hang_up(stage.talks(client, talk))


def succession(place: Path, talk: Path, agents: tuple[Path, ...], millrace: Path) -> None:
    """Agents of other versions come while programs run that do not know of them."""
    stage = Stage(place)
    first, *others = agents
    agent = stage.agent(first)
    try:
        with stage.start(millrace, "run", "--mode", "eager", "--", talk, "serve", "127.0.0.1", PORT):
            for other in others:
                client = stage.talks(millrace, talk)
                agent.stop()
                agent = stage.agent(other)
                hang_up(client)
            hang_up(stage.talks(millrace, talk))
    finally:
        agent.stop()


def recalls(place: Path, trap: str, program: Path, agent: Path, millrace: Path) -> None:
    """A trap, for which the agent brings bytes back."""
    stage = Stage(place)
    plain = cases.observe([str(program), trap], stage.environment, place, lambda _: ["ring"] * 100, CASE_S)
    with stage.agent(agent):
        argv = [str(millrace), "run", "--mode", "eager", "--", str(program), trap]
        seen = cases.observe(argv, stage.environment, place, lambda environment: road.roads(millrace, environment), CASE_S)
    if seen != plain:
        raise ProgramFailed("plain:\n  " + "\n  ".join(plain) + "\nunder Millrace:\n  " + "\n  ".join(seen))


def main() -> int:
    """Plays all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE, help="the program to test")
    parser.add_argument("names", nargs="*", metavar="CASE", help="parts of the names of those to play")
    arguments = parser.parse_args()
    now = arguments.millrace.resolve()
    if not channels.library(now).exists():
        parser.error(f"{channels.library(now)} is missing: it is built from crates/channel-c")
    if not isolate.is_inside():
        build_all()
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O1", "-o", BUILT / "talk", TALK], check=True)
    isolate.ensure()
    talk, ahead = BUILT / "talk", AHEAD / "xtask/millrace"
    names = {now: "now", ahead: "ahead"}
    plays: dict[str, Callable[[Path], None]] = {}
    for agent, server, client in itertools.product(names, repeat=3):
        what = f"agent {names[agent]}, server {names[server]}, client {names[client]}"
        plays[what] = lambda place, which=(agent, server, client): mixture(place, talk, *which)  # type: ignore[misc]
    for millrace in names:
        what = f"agents now, ahead, now; programs {names[millrace]}"
        plays[what] = lambda place, millrace=millrace: succession(place, talk, (now, ahead, now), millrace)  # type: ignore[misc]
    program = next(iter(set(cases.build([cases.TRAPS / "passed_on.c"], BUILT).values())))
    for trap, (agent, millrace) in itertools.product(TRAPS, ((now, ahead), (ahead, now))):
        what = f"{trap}: agent {names[agent]}, programs {names[millrace]}"
        plays[what] = lambda place, which=(trap, program, agent, millrace): recalls(place, *which)  # type: ignore[misc]
    plays |= channels.plays(Stage, now, ahead, APART / "xtask/millrace", channels.library(RELAID / "xtask/millrace"))
    plays = {what: play for what, play in plays.items() if all(name in what for name in arguments.names)}
    failed = 0
    for what, play in plays.items():
        try:
            with tempfile.TemporaryDirectory(prefix="millrace-skew-") as place:
                play(Path(place))
        except (ProgramFailed, subprocess.SubprocessError, OSError) as error:
            failed += 1
            print(f"FAILED {what}: {error}", flush=True)
    print(f"{len(plays) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
