#!/usr/bin/python3
"""What one end of a connection sees when the other one ends, on the kernel's sockets and under Millrace.

    tests/endings/run.py [--seed N] [--cases N] [--modes MODE,...] [--only NUMBER] [--millrace PATH]

README.md says what a case is. Exits with 0 when what was seen under Millrace is seen on the kernel's sockets, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import isolate, road  # noqa: E402

ENDINGS = ("kill", "exit", "close", "linger", "shut-write", "shut-both", "shut-write-kill", "shut-both-kill")
HALVED_ENDINGS = ("kill", "close", "shut-write", "shut-write-kill")
"""Those that come also after the survivor has shut its sending direction down."""
STATES = {
    "idle": ("none", "none"),
    "leaver behind": ("some", "none"),
    "survivor behind": ("none", "some"),
    "both behind": ("some", "some"),
    "survivor blocked": ("full", "none"),
    "leaver blocked": ("none", "full"),
    "both blocked": ("full", "full"),
}
SIZES = {"small": 64, "large": 16 * 1024}
WAYS = ("blocking", "poll", "epoll", "edge", "reader", "edge writer")
STEPS = {
    "reads": ("look", "read", "read", "error", "send", "send", "look"),
    "sends": ("send", "send", "send", "look", "read", "error"),
    "asks": ("error", "look", "read", "send", "send", "read"),
}
HOLDERS = {"is stopped": ("kill",), "is told": ("kill",), "races": ("kill",), "sleeps": ("kill", "exit", "close", "shut-write")}
"""When one of two processes that have the survivor's end is killed, and the endings with which that is tried: stopped before the leaver's
kill, after it has been told of that, in the moment of it; or before the ending, while it sleeps in a call."""
RACE_S = 0.0005
ASLEEP_S = 0.05
"""After which a survivor that was to wait sleeps, likely; else the case is one of those that do not wait."""
PLAIN_RUNS = 4
"""TCP may give several answers: so often it is asked before one of ours is called wrong."""
AGAIN = 3
"""A sender that learns of a kill within the time in which it does not look yet is asked so often again."""
NEED_AGENT = ("shut-write-kill", "shut-both-kill")
"""The agent sees to it that the survivor hears of these; so long may that take."""
AGENT_S = 0.1
RING_S = 5.0
MUTE = "mute"
"""The mode in which the agent stands still while the leaver ends: some of the cases."""


POLLOUT, POLLERR, POLLHUP = 0x4, 0x8, 0x10


def limit(case: dict[str, Any], mode: str) -> dict[str, Any] | None:
    """The case that a survivor under Millrace takes this one for, where that is a known limit; README.md says why."""
    if mode == MUTE and case["ending"] in NEED_AGENT and case["to_leaver"] == "some":
        return {**case, "to_leaver": "none"}
    if case["ending"] == "shut-both" and case["to_leaver"] == "full":
        return {**case, "ending": "shut-both-kill"}
    return None


def comparable(case: dict[str, Any], seen: list[str]) -> list[str]:
    """What was seen, without what nobody can rely on, or what is a known limit."""
    hidden = 0
    if case["to_leaver"] == "full" and not case["ending"].endswith("kill"):
        # Whether there is room depends on the sizes that the kernel's buffers have grown to.
        hidden |= POLLOUT
        seen = [word.replace("EAGAIN", "1") for word in seen]
    # Whoever sleeps while one thing happens after the other wakes at the first or at the second.
    at_wake = POLLERR | POLLHUP if case["ending"].startswith("shut-") and case["to_leaver"] != "none" else 0
    masks = {"look": hidden, "wait": hidden | at_wake}

    def masked(text: str) -> str:
        what, _, events = text.partition(" ")
        if what not in masks or events == "nothing":
            return text
        left = int(events, 16) & ~masks[what]
        return f"{what} {left:#x}" if left else f"{what} nothing"

    return [masked(text) for text in seen]


def cases() -> list[dict[str, Any]]:
    """All of them."""
    found = []
    for ending, state, ring, how, waits, order, halved in itertools.product(
        ENDINGS, STATES, SIZES, WAYS, (False, True), STEPS, (False, True)
    ):
        if halved and ending not in HALVED_ENDINGS:
            continue
        to_leaver, to_survivor = STATES[state]
        if waits and to_survivor != "none":
            continue
        if waits and how == "edge writer" and to_leaver == "full":
            # There are other edges than that of the ending: whenever a buffer has grown.
            continue
        found.append(
            {
                "name": f"{ending}, {state}, {ring} ring, {how}, {'waits' if waits else 'comes later'}, {order}"
                + (", survivor shut" if halved else ""),
                "ending": ending,
                "size": SIZES[ring],
                "how": how,
                "waits": waits,
                "halved": halved,
                "holder": None,
                "steps": STEPS[order],
                "to_leaver": to_leaver,
                "to_survivor": to_survivor,
            }
        )
    return found + cases_of_two()


def cases_of_two() -> list[dict[str, Any]]:
    """Those in which two processes have the survivor's end. One of them is killed; the other one says what it sees."""
    found = []
    for (holder, endings), state, how, order in itertools.product(HOLDERS.items(), STATES, WAYS, STEPS):
        to_leaver, to_survivor = STATES[state]
        if "full" in (to_leaver, to_survivor) or (to_survivor != "none" and holder != "sleeps"):
            continue
        found += [
            {
                "name": f"{ending}, {state}, small ring, {how}, another holder {holder}, {order}",
                "ending": ending,
                "size": SIZES["small"],
                "how": how,
                "waits": False,
                "halved": False,
                "holder": holder,
                "steps": STEPS[order],
                "to_leaver": to_leaver,
                "to_survivor": to_survivor,
            }
            for ending in endings
        ]
    return found


def is_for_mute(case: dict[str, Any]) -> bool:
    """Whether the case is run in MUTE, too: these take long."""
    return case["size"] == SIZES["small"] and case["how"] in ("poll", "edge")


class Program:
    """One of the two programs."""

    def __init__(self, prefix: list[str], part: str, environment: dict[str, str]) -> None:
        argv = [*prefix, sys.executable, "-B", str(Path(__file__).with_name("ends.py")), part]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment, text=True)
        self.is_dead = False

    def tell(self, order: Any) -> None:
        """Writes a line."""
        assert self._child.stdin is not None
        self._child.stdin.write((order if isinstance(order, str) else json.dumps(order)) + "\n")
        self._child.stdin.flush()

    def hear(self) -> Any:
        """Reads a line; None where the program has ended."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        return json.loads(line) if line else None

    def stop(self) -> None:
        """Has it stand still."""
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED)

    def kill(self, waits: bool = True) -> None:
        """Kills it."""
        self._child.kill()
        self.is_dead = True
        if waits:
            self.wait()

    def wait(self) -> None:
        """Waits for its end."""
        self._child.wait()
        self.is_dead = True


def start_agent(millrace: Path, socket: Path) -> subprocess.Popen[bytes]:
    """An agent of a road's own, which answers."""
    agent = subprocess.Popen([millrace, "agent", "--socket", socket, "--log", "warn"], env=dict(os.environ, MILLRACE="off"))
    deadline = time.monotonic() + RING_S
    while not socket.exists():
        assert agent.poll() is None and time.monotonic() < deadline, "no agent"
        time.sleep(0.01)
    return agent


class Road:
    """Both programs, on one road."""

    def __init__(self, mode: str, millrace: Path, socket: Path) -> None:
        self.mode = mode
        self._millrace = millrace
        self._agent: subprocess.Popen[bytes] | None = None
        if mode == MUTE:
            socket = socket.with_name("mute.sock")
            self._agent = start_agent(millrace, socket)
        self._environment = dict(os.environ, MILLRACE_AGENT=str(socket))
        under = [str(millrace), "run", "--mode", "eager" if mode == MUTE else mode, "--"]
        self._prefix = [] if mode == "plain" else under
        self._survivor = self._start("survive")
        self._port = self._survivor.hear()
        self._leaver = self._start("leave")

    def _start(self, part: str) -> Program:
        return Program(self._prefix, part, self._environment)

    def close(self) -> None:
        """Ends both."""
        for program in (self._leaver, self._survivor):
            program.kill()
        if self._agent:
            self._agent.kill()
            self._agent.wait()

    def _tell_agent(self, number: signal.Signals) -> None:
        if self._agent:
            self._agent.send_signal(number)

    def _is_on_ring(self) -> bool:
        if self.mode == "plain":
            return True
        command = [self._millrace, "ps", "--json"]
        said = subprocess.run(command, capture_output=True, timeout=10, check=True, env=self._environment)
        for connection in road.parsed(said.stdout):
            ends = connection["ends"]
            if len(ends) == 2 and all(end["road"] == "shm" and end["reason"] == "none" for end in ends):
                return True
        return False

    def run(self, case: dict[str, Any]) -> list[str]:
        """Runs a case; returns what the survivor saw."""
        if self._survivor.is_dead:
            self._survivor = self._start("survive")
            self._port = self._survivor.hear()
        if self._leaver.is_dead:
            self._leaver = self._start("leave")
        leaver, survivor = self._leaver, self._survivor
        for program in (survivor, leaver):
            program.tell({**case, "port": self._port})
        deadline = time.monotonic() + RING_S
        while True:
            both = leaver.hear(), survivor.hear()
            assert both == ("talked", "talked"), both
            if self._is_on_ring():
                break
            assert time.monotonic() < deadline, f"{case['name']}: not on the ring"
            for program in (leaver, survivor):
                program.tell("talk")
        self._tell_agent(signal.SIGSTOP)
        survivor.tell("fill")
        filled = survivor.hear()
        assert filled in ("filled", "sleeps"), f"{case['name']}: the survivor's sends: {filled}"
        if case["holder"]:
            # Both say something, in whatever order.
            survivor.hear()
            time.sleep(ASLEEP_S)
        if case["holder"] == "sleeps":
            survivor.kill()
        leaver.tell("fill")
        to_come = leaver.hear()
        assert to_come is not None, f"{case['name']}: the leaver's sends"
        if case["waits"]:
            time.sleep(ASLEEP_S)
        if case["ending"] != "kill":
            leaver.tell("leave")
            leaver.hear()
        if case["holder"] == "is stopped":
            survivor.stop()
        if case["ending"].endswith("kill"):
            leaver.kill(waits=case["holder"] != "races")
        elif case["ending"] == "exit":
            leaver.wait()
        if case["holder"] not in (None, "sleeps"):
            time.sleep({"is told": ASLEEP_S, "races": random.random() * RACE_S}.get(case["holder"], 0))
            survivor.kill()
            leaver.wait()
        if case["ending"] in NEED_AGENT and case["to_leaver"] == "some":
            time.sleep(AGENT_S)
        survivor.tell(to_come)
        seen: list[str] = survivor.hear()
        self._tell_agent(signal.SIGCONT)
        return seen


def judge(case: dict[str, Any], plain_road: Road, plain: list[list[str]], road: Road) -> str:
    """How what is seen under Millrace compares with what TCP gave. Both are asked again where they differ."""

    def is_among(seen: list[str], answers: list[list[str]]) -> bool:
        return comparable(case, seen) in [comparable(case, answer) for answer in answers]

    seen = road.run(case)
    if is_among(seen, plain):
        return "passed"
    if other := limit(case, road.mode):
        answers = [plain_road.run(other)]
        # A sender may be late here, too.
        if is_among(seen, answers) or any(is_among(road.run(case), answers) for _ in range(AGAIN)):
            return "limit"
    if case["holder"] == "races":
        plain += [plain_road.run({**case, "holder": holder}) for holder in ("sleeps", "is told")]
    while len(plain) < PLAIN_RUNS:
        plain.append(plain_road.run(case))
    if is_among(seen, plain):
        return "passed"
    if case["ending"] == "kill" and all(is_among(road.run(case), plain) for _ in range(AGAIN)):
        return "late"
    for answer in {tuple(words) for words in plain}:
        print(f"TCP:      {'; '.join(answer)}")
    print(f"Millrace: {'; '.join(seen)}")
    return "failed"


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="what the cases are drawn from (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=10**6, help="how many (default: all)")
    parser.add_argument("--modes", default=f"eager,default,{MUTE}", help="values of MILLRACE_MODE, with commas (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names have this text")
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    options = parser.parse_args()
    isolate.ensure()
    chosen = [case for case in cases() if options.only in case["name"]]
    if options.cases < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.cases)
    directory = Path(tempfile.mkdtemp(prefix="millrace-endings-"))
    roads = []
    counts = dict.fromkeys(("passed", "failed", "limit", "late"), 0)
    try:
        for mode in ("plain", *options.modes.split(",")):
            roads.append(Road(mode, options.millrace.resolve(), directory / "agent.sock"))
        for case in chosen:
            plain = [roads[0].run(case)]
            for other in roads[1:]:
                if other.mode == MUTE and not is_for_mute(case):
                    continue
                outcome = judge(case, roads[0], plain, other)
                counts[outcome] += 1
                if outcome == "failed":
                    print(f"FAILED {case['name']}, mode {other.mode}", flush=True)
    finally:
        for one in roads:
            one.close()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"figure: {counts['limit']} of these ended as the limits in README.md say")
    print(f"figure: {counts['late']} saw a kill a moment later than on the kernel's sockets, and {AGAIN} times after that at once")
    print(f"{sum(counts.values()) - counts['failed']} passed, {counts['failed']} failed, 0 skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
