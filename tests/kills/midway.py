#!/usr/bin/python3
"""Kills the agent, or the worker that touches sockets for it, in the middle of bringing bytes back to the kernel's road.

    tests/kills/midway.py [--only CASE] [--moments N] [--millrace PATH]

The programs are those traps (`tests/traps`) for which the agent works on sockets. Each runs plain, and under an agent that is observed;
then for each of its system calls the worker is held up before it, and killed, or the agent is. Every second time another agent comes at
once. A connection goes on or is reset: nobody waits for ever, reads a wrong byte, or takes an end for whole that is not. Where nobody is
killed, and the worker only stands still, all is as on the kernel. How soon new connections take the ring is not looked at. Exits with 0
when all was so.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import cases, isolate, moments, road  # noqa: E402
from harness.process import Process, ProgramFailed  # noqa: E402

BUILT = road.REPOSITORY / "target/traps"
PROGRAMS = ("passed_on", "bereaved")
CALLS = "setsockopt,sendto,recvfrom,bind,connect,pidfd_getfd,sendmsg"
CASE_S = 30.0
# Less than a program waits for the agent's answer.
HELD_UP_S = 0.05
# So long nobody stands still who is not stopped; less than a program waits that gets a connection, and cannot read its ring.
STILL_S = 1.0
READY_S = 10.0
EVERYWHERE = ["ring"] * 100
# What a program says of a connection that was reset.
RESET = re.compile(r"reset|broken pipe|ECONNRESET|EPIPE", re.IGNORECASE)
# Its next connection has waited for the ring in vain: how soon that comes after an agent's death, `run.py` tests.
NOT_AGAIN = "the ring: "
WRONG = re.compile(r"wrong bytes|received early|read all, then 0")


def _children(process: int) -> list[int]:
    try:
        return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


class Agent:
    """An agent that is started by some command. It ends with this, and so does what comes after it."""

    def __init__(self, command: Sequence[str], socket: Path, doomed: str) -> None:
        """Who is doomed, the worker or the agent or nobody, is killed while a worker is held up."""
        # One that was killed has left it.
        socket.unlink(missing_ok=True)
        self._process = Process(command, socket.with_name("agent"))
        deadline = time.monotonic() + READY_S
        while not socket.exists():
            if self._process.code() is not None or time.monotonic() > deadline:
                raise ProgramFailed("there is no agent:\n" + self._process.wait(0.1).tail())
            time.sleep(0.002)
        self._doomed, self._is_over = doomed, threading.Event()
        self.has_killed = False
        self._killer = threading.Thread(target=self._kill_at_work)
        if doomed:
            self._killer.start()

    def _kill_at_work(self) -> None:
        agent = self._process.pid
        while (below := _children(agent)) and Path(f"/proc/{agent}/comm").read_text() != "millrace\n":
            agent = below[0]
        seen: list[int] = []
        while not self._is_over.wait(HELD_UP_S / 4):
            worker = _children(agent)
            if worker and worker == seen:
                os.kill(worker[0] if self._doomed == "worker" else agent, signal.SIGKILL)
                self.has_killed = True
                return
            seen = worker

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._killer.ident:
            self._killer.join()
        self._process.kill()


class Case:
    """One case of a program, and what it says plain."""

    def __init__(self, name: str, program: Path, millrace: Path, place: Path) -> None:
        self.name, self._program, self._millrace, self._place = name, program, millrace, place
        self._plain = self._run([])
        self.kills = 0

    def _run(self, before: Sequence[str]) -> list[str]:
        argv = [*before, str(self._program), self.name.partition(":")[2]]
        environment = dict(os.environ, MILLRACE_AGENT=str(self._place / "agent.sock"))
        return cases.observe(argv, environment, self._place, self._roads if before else lambda _: EVERYWHERE, CASE_S)

    def _roads(self, environment: dict[str, str]) -> list[str]:
        """Without an agent no case waits for its connections to be on the ring."""
        try:
            return road.roads(self._millrace, environment)
        except subprocess.SubprocessError:
            return EVERYWHERE

    def _under(self, command: Sequence[str], doomed: str = "") -> list[str]:
        with Agent(command, self._place / "agent.sock", doomed) as agent:
            seen = self._run([str(self._millrace), "run", "--mode", "eager", "--"])
        self.kills += agent.has_killed
        return seen

    def moments(self) -> list[moments.Moment]:
        """Observes an agent; returns the moments at which it worked on sockets."""
        trace = self._place / "trace"
        seen = self._under(moments.observing(trace, self._agent, CALLS))
        if seen != self._plain:
            raise ProgramFailed("it differs although nobody kills the agent:\n  " + "\n  ".join(seen))
        # The first thing that it does for a connection, but asking whether it may.
        begin = re.search(r"^\d+ +pidfd_getfd\(\d+, \d", trace.read_text(), re.MULTILINE)
        return moments.observed(trace, begin.start() if begin else sys.maxsize)

    @property
    def _agent(self) -> list[str]:
        return [str(self._millrace), "agent", "--socket", str(self._place / "agent.sock"), "--log", "error"]

    def held_up_at(self, moment: moments.Moment, doomed: str, has_successor: bool) -> tuple[str, str]:
        """Runs it with the worker held up, and somebody killed; returns how that went in a word, and what is wrong with that."""
        agent = moments.delaying(moment, HELD_UP_S if doomed else STILL_S, self._agent)
        if has_successor:
            agent = ["sh", "-c", 'n=$1; shift; "$@"; shift $(($# - n)); exec "$@"', "sh", str(len(self._agent)), *agent]
        seen = self._under(agent, doomed)
        if seen == self._plain:
            return "as on the kernel", ""
        lines = "\n  ".join(seen)
        is_wrong = WRONG.search(lines) or "ended with -9" in seen
        if NOT_AGAIN in lines and not is_wrong:
            return "not on the ring again", ""
        if is_wrong or not doomed or not RESET.search(lines):
            return "wrong", f"{self.name}, {doomed or 'nobody'} killed while a worker is before {moment[0]} {moment[1]}:\n  {lines}"
        return "reset", ""


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", help="one case, or one program with all of its cases")
    parser.add_argument("--moments", type=int, default=1000, metavar="N", help="so many for each case at most (default: all)")
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    options = parser.parse_args()
    isolate.ensure()
    built = cases.build([cases.TRAPS / f"{name}.c" for name in PROGRAMS], BUILT)
    chosen = {case: program for case, program in built.items() if options.only in (None, case, case.partition(":")[0])}
    counts: Counter[str] = Counter()

    def one(item: tuple[str, Path]) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="millrace-midway-") as place:
            case = Case(*item, options.millrace.resolve(), Path(place))
            found = moments.some(case.moments(), options.moments)
            outcomes = [case.held_up_at(each, doomed, n % 2 == 1) for n, each in enumerate(found) for doomed in ("worker", "agent", "")]
            how = Counter(word for word, _ in outcomes)
            counts.update(how)
            counts["killed"] += case.kills
            print(f"{case.name}: " + ", ".join(f"{count} {word}" for word, count in sorted(how.items())), flush=True)
            return [why for _, why in outcomes if why]

    with ThreadPoolExecutor(cases.AT_A_TIME) as pool:
        for why in pool.map(one, chosen.items()):
            print("".join(f"{text}\n" for text in why), end="", flush=True)
    right = counts["as on the kernel"] + counts["reset"] + counts["not on the ring again"]
    ended = f"{counts['reset']} ended by a reset, {counts['not on the ring again']} did not come to the ring again"
    print(f"figure: {counts['killed']} kills in {right + counts['wrong']} runs; {ended}")
    print(f"{right} passed, {counts['wrong']} failed, 0 skipped")
    # Without a kill nothing was tested.
    return 1 if counts["wrong"] or not counts["killed"] else 0


if __name__ == "__main__":
    sys.exit(main())
