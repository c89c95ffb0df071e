"""Kills and stops participants of channels, and the agent, at random moments, and checks what the others see.

A round starts participants (`participant/`), does its faults, has the survivors finish, and asks the judge.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.process import Process

from site_of_channels import READY_S, Site, descriptors, holds_back_term, until

FINISH_S = 60.0
STOPPED_S = 0.3
AGAIN_S = 0.12
"""In this time participants have come again to the next agent."""
SLOTS = 64
"""As the participants have it."""


@dataclass(frozen=True)
class Scenario:
    """Who takes part, and what must come of it."""

    name: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    rule: str = ""
    """For the judge of streams, see `participant/src/judge.rs`."""
    options: tuple[str, ...] = ()
    harms_agent: bool = False
    hostile: tuple[str, ...] = ()


PUBLISHERS, SUBSCRIBERS = ("publisher",) * 3, ("subscriber",) * 3
CLIENTS, SERVERS = ("client",) * 3, ("server",) * 3
GROUP = ("workers",)
HASTY = (*GROUP, "redeliver", "hasty")
SCENARIOS = [
    Scenario("every subscriber sees every message", PUBLISHERS, SUBSCRIBERS, "all"),
    Scenario("one of a group has each message", PUBLISHERS, SUBSCRIBERS, "once", GROUP),
    Scenario("one of a group has each message, by key", PUBLISHERS, SUBSCRIBERS, "once", (*GROUP, "keyed")),
    Scenario("delivered again", PUBLISHERS, SUBSCRIBERS, "redeliver", (*GROUP, "redeliver")),
    Scenario("delivered again, by key", PUBLISHERS, SUBSCRIBERS, "redeliver-keyed", (*GROUP, "redeliver", "keyed")),
    Scenario("delivered again, by key, also what slow ones have", PUBLISHERS, SUBSCRIBERS, "redeliver-keyed", (*HASTY, "keyed")),
    Scenario("drop-oldest", PUBLISHERS, SUBSCRIBERS, "drop-oldest", ("-", "drop-oldest")),
    Scenario("drop-newest", PUBLISHERS, SUBSCRIBERS, "drop-newest", ("-", "drop-newest")),
    Scenario("drop-oldest of a group, by key", PUBLISHERS, SUBSCRIBERS, "once-or-dropped", (*GROUP, "keyed", "drop-oldest")),
    Scenario("drop-newest of a group", PUBLISHERS, SUBSCRIBERS, "once-or-dropped", (*GROUP, "drop-newest")),
    Scenario("requests", CLIENTS, SERVERS),
    Scenario("requests, delivered again, also what slow ones have", CLIENTS, SERVERS, options=HASTY),
    Scenario("messages, and the agent killed", PUBLISHERS, SUBSCRIBERS, "all", harms_agent=True),
    Scenario("delivered again, and the agent killed", PUBLISHERS, SUBSCRIBERS, "redeliver", (*GROUP, "redeliver"), True),
    Scenario("requests, and the agent killed", CLIENTS, SERVERS, harms_agent=True),
    Scenario("a subscriber that scribbles", PUBLISHERS, SUBSCRIBERS, "all", ("-", "patient"), hostile=("hostile-subscriber",)),
    Scenario("a publisher that scribbles", PUBLISHERS, SUBSCRIBERS, "all", hostile=("hostile-publisher",)),
    Scenario("a client that scribbles", CLIENTS, SERVERS, hostile=("hostile-client",)),
    Scenario("a server that scribbles", CLIENTS, SERVERS, options=("-", "patient", "beset"), hostile=("hostile-server",)),
    Scenario("who is told that there is no room", PUBLISHERS, SUBSCRIBERS, "all", ("-", "fail")),
    Scenario("long messages", PUBLISHERS, SUBSCRIBERS, "all", ("-", "long")),
]


@dataclass
class Round:
    """One round: its participants by process, and what was done to whom."""

    site: Site
    program: Path
    scenario: Scenario
    source: random.Random
    place: Path
    done: Counter[str] = field(default_factory=Counter)
    living: dict[Process, str] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    dropped: int = 0
    """Where publishers do not wait: for want of room."""

    def start(self, role: str) -> Process:
        """A participant."""
        argv = [str(self.program), role, str(self.place), self.place.name, *self.scenario.options]
        process = self.site.start(role, argv)
        self.living[process] = role
        return process

    def play(self, faults: int) -> list[str]:
        """Runs it; what was wrong."""
        (self.place / "ledger").mkdir(parents=True)
        before = descriptors(self.site.agent.pid)
        # These two are harmed by nobody, and see it all.
        witnesses = {self.start(self.scenario.receivers[0]), self.start(self.scenario.senders[0])}
        for role in (*self.scenario.senders, *self.scenario.receivers, *self.scenario.hostile):
            self.start(role)
        for _ in range(faults):
            time.sleep(0.0005 * 200 ** self.source.random())
            if self.scenario.harms_agent and self.source.random() < 0.15:
                self._kill_agent()
                continue
            self._harm(self.source.choice([it for it in self.living if it not in witnesses]))
            if wrong := self._ended_early():
                return wrong
        if self.scenario.harms_agent:
            # They leave while they come again to the next one.
            self._kill_agent()
            time.sleep(AGAIN_S * self.source.random())
        if self.scenario.rule:
            # On a busy machine all this may take less time than the first message.
            ledgers = (self.place / "ledger").glob
            until(lambda: any(path.stat().st_size for path in ledgers("subscriber-*")))
        wrong = self._finish() or self._judge()
        return wrong or self.site.left_behind(before)

    def _kill_agent(self) -> None:
        self.site.restart_agent()
        self.done["agents killed"] += 1

    def _harm(self, victim: Process) -> None:
        role = self.living[victim]
        if role.startswith("hostile") and self.source.random() < 0.8:
            return
        if self.source.random() < 0.2:
            victim.signal(signal.SIGSTOP)
            time.sleep(STOPPED_S * self.source.random())
            victim.signal(signal.SIGCONT)
            self.done["stops"] += 1
            return
        victim.signal(signal.SIGKILL)
        self.killed[role] += 1
        self.done["kills"] += 1
        victim.wait(READY_S)
        self._forget(victim)
        self.start(role)

    def _forget(self, process: Process) -> None:
        del self.living[process]
        self.site.processes.remove(process)
        process.output.unlink()
        process.errors.unlink()

    def _ended_early(self) -> list[str]:
        # One that scribbles over its own memory may come to harm by that: nobody else must.
        for process, role in list(self.living.items()):
            if process.code() is None:
                continue
            said = process.errors.read_text()
            if not role.startswith("hostile") or "only read" in said:
                return [f"a {role} ended with {process.code()}: {said}"]
            self._forget(process)
            self.start(role)
        return []

    def _finish(self) -> list[str]:
        """Has the senders finish, and then those who receive."""
        for process, role in list(self.living.items()):
            if role.startswith("hostile"):
                process.signal(signal.SIGKILL)
                process.wait(READY_S)
                self._forget(process)
        for kind in ("publisher", "client", "subscriber", "server"):
            ending = [process for process, role in self.living.items() if role == kind]
            for process in ending:
                until(lambda process=process: process.code() is not None or holds_back_term(process.pid))
                process.signal(signal.SIGTERM)
            for process in ending:
                if not until(lambda process=process: process.code() is not None, FINISH_S):
                    return [f"a {kind} does not come to its end"]
                if process.code() != 0:
                    return [f"a {kind} ended with {process.code()}: {process.errors.read_text()}"]
                self._forget(process)
        return []

    def _judge(self) -> list[str]:
        if not self.scenario.rule:
            return self._judge_requests()
        may_miss = SLOTS * self.killed["subscriber"]
        argv = [str(self.program), "judge", str(self.place), self.scenario.rule, str(may_miss)]
        judged = subprocess.run(argv, capture_output=True, text=True, check=False)
        self.messages, dropped = map(int, judged.stdout.split() or (0, 0))
        if judged.returncode:
            return [judged.stderr.strip()]
        if "drop" in self.scenario.rule:
            self.dropped = dropped
            if not dropped:
                return ["nothing was dropped"]
        return [] if self.messages else ["nothing was read"]

    def _judge_requests(self) -> list[str]:
        """Answers are lost where servers were killed, and nowhere else."""
        ends = [path.read_text().split() for path in (self.place / "ledger").glob("end-of-client-*")]
        self.messages = sum(int(answered) for answered, _ in ends)
        lost = sum(int(lost) for _, lost in ends)
        if "beset" in self.scenario.options:
            return [] if self.messages else ["nothing was answered"]
        allowed = 0 if "redeliver" in self.scenario.options else self.killed["server"] * 8 * len(ends)
        if lost > allowed:
            return [f"{lost} requests were lost, and {allowed} may be"]
        return [] if self.messages else ["nothing was answered"]
