"""Runs rounds, one after the other, and counts."""

from __future__ import annotations

import time
from collections import Counter

import checks
from checks import Baseline
from ledger import CLIENT, SERVER
from plan import ROUNDS_PER_SERVER, Round
from site_of_kills import Facts, Site, until

from harness.process import ProgramFailed

BEGIN_S = 5.0
CALM_S = 0.03
RETURN_S = 3.0
"""How long after the agent's return new connections must be on the ring at the latest."""
RSS_WARM = 20
RSS_GROWTH_KIB = 2048


def _counted(words: list[str]) -> str:
    return ", ".join(f"{word} ({count})" if count > 1 else word for word, count in Counter(words).most_common())


class Runner:
    """The rounds of a run. After a round that fails, agent and server are started afresh."""

    def __init__(self, site: Site, verbose: bool, ignore: list[str]) -> None:
        self._site, self._verbose, self._ignore = site, verbose, ignore
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        self._server: tuple[int, str, str] | None = None
        self._base: Baseline | None = None
        self._seen: list[str] = []
        self._rss: list[int] = []
        self._longest: tuple[int, int, int] = (0, 0, 0)

    def run(self, plan: Round) -> None:
        """One round."""
        site, slots = self._site, list[int]()
        began = time.monotonic()
        self._seen = []
        try:
            why = self._prepare(plan)
            if not why:
                slots = site.start_for(plan)
                why = self._harm(plan, slots) or self._judge(plan, slots)
        except ProgramFailed as error:
            why = [str(error)]
        if why is None:
            self._counts["skipped"] += 1
        else:
            self._counts["failed" if why else "passed"] += 1
        if why or self._verbose:
            seconds = time.monotonic() - began
            print(f"{'FAILED' if why else 'ok':7}{plan} ({seconds:.2f} s; {_counted(self._seen)})", flush=True)
            for line in [*(why or []), *(checks.describe(site, plan.rhythms, slots) if why and slots else [])]:
                print(f"       {line}", flush=True)
        if why:
            self._forget()

    def _forget(self) -> None:
        for name in ("client", "server", "agent"):
            self._site.end(name)
        self._server = None
        self._rss.clear()

    def _prepare(self, plan: Round) -> list[str]:
        """Sees to an agent, and to a server that has served a connection and holds none."""
        site = self._site
        wanted = (plan.number // ROUNDS_PER_SERVER, plan.server, plan.mode)
        if "agent" not in site.processes:
            site.start_agent()
        if self._server == wanted and "server" in site.processes:
            return []
        site.end("server")
        site.start_server(plan.server, plan.mode)
        self._server = wanted
        why = self._calm(plan)
        if not why:
            self._base = Baseline.take(site)
        return why

    def _calm(self, plan: Round) -> list[str]:
        """A connection that nobody harms completes, and is on the ring soon, where anything is."""
        deadline = time.monotonic() + RETURN_S
        while True:
            slots = self._site.start_client("blocking", plan.mode, ("request",), plan.seed)
            self._until_begun(slots)
            time.sleep(CALM_S)
            roads = self._roads()
            why = checks.completed(self._site, slots) or self._leave(["client"])
            is_ring = "ring" in roads or plan.mode == "plain" or plan.server == "shared"
            if why or is_ring:
                return [f"calm connection: {text}" for text in why]
            if time.monotonic() > deadline:
                return [f"a new connection is not accelerated within {RETURN_S} s: {_counted(roads)}"]

    def _until_begun(self, slots: list[int]) -> bool:
        """Waits until bytes have come through on every connection."""
        ledger = self._site.ledger
        return until(lambda: all(ledger.end(slot, SERVER).received for slot in slots), BEGIN_S)

    def _roads(self) -> list[str]:
        """Of each connection: `ring` where both ends are on it, else why not."""
        found = []
        for connection in self._site.connections():
            ends = connection["ends"]
            is_ring = len(ends) == 2 and all(end["road"] == "shm" and end["reason"] == "none" for end in ends)
            found.append("ring" if is_ring else "kernel: " + "/".join(end["reason"] for end in ends))
        return found

    def _harm(self, plan: Round, slots: list[int]) -> list[str] | None:
        """Takes the fault's steps."""
        site = self._site
        ledger = site.ledger
        if not plan.in_flow:
            until(lambda: all(ledger.end(slot, CLIENT).has_begun for slot in slots), BEGIN_S)
        elif not self._until_begun(slots):
            return [f"no bytes came through within {BEGIN_S} s"]
        time.sleep(plan.delay_s)
        where = "start"
        if plan.in_flow:
            self._seen = roads = self._roads()
            self._reasons.update(roads)
            where = "ring" if "ring" in roads else "kernel" if roads else "unlisted"
        why = []
        for step, wait_s in zip(plan.fault.steps, plan.waits_s, strict=True):
            word, _, name = step.partition(" ")
            if word == "wait":
                time.sleep(wait_s)
            elif word == "live":
                why += [f"{text} (step {step})" for text in checks.moves(site, slots)]
            elif step == "join":
                why += self._joins(plan)
            elif step == "start agent":
                site.end("agent")
                site.start_agent()
                self._rss.clear()
            else:
                site.signal(word, name, slots)
        self._hits[where] += 1
        self._hits[f"{plan.fault.name.split('-')[0]}s"] += 1
        return why

    def _joins(self, plan: Round) -> list[str]:
        """Now that one process holds each end, the connection comes to the ring."""
        if plan.mode == "plain" or plan.client == "shared":
            return []
        roads = list[str]()

        def is_on_ring() -> bool:
            roads[:] = self._roads()
            return "ring" in roads

        if until(is_on_ring, RETURN_S):
            return []
        return [f"not on the ring within {RETURN_S} s after its other holder's death: {_counted(roads)}"]

    def _judge(self, plan: Round, slots: list[int]) -> list[str]:
        """What must hold after the steps."""
        site, fault = self._site, plan.fault
        why = checks.completed(site, slots) if fault.exact else checks.endings(site, plan, slots)
        if why:
            return why
        killed = {step.split()[1] for step in fault.steps if step.startswith("kill")}
        if "server" in killed:
            why += self._leave([] if "client" in killed else ["client"])
            site.end("client")
            site.end("server")
            site.start_server(plan.server, plan.mode)
            why += self._calm(plan)
        else:
            why += self._leave([] if {"client", "client.worker"} & killed else ["client"])
            site.end("client")
            if fault.harms_agent:
                why += self._calm(plan)
        assert self._base is not None
        why += [] if why else checks.leaks(site, self._base, self._ignore, self._ignored)
        return why + self._weigh() + self._said()

    def _leave(self, names: list[str]) -> list[str]:
        """Programs that should have come to their ends have done so, and well."""
        why = []
        for name in names:
            process = self._site.processes[name]
            until(lambda process=process: process.code() is not None, checks.ENDING_S)
            if process.code() != 0:
                why.append(f"the {name} ended with {process.code()}\n{process.errors.read_text()}")
            self._site.end(name)
        return why

    def _said(self) -> list[str]:
        """Server and agent run, and have not complained."""
        why = []
        for name in ("server", "agent"):
            process = self._site.processes[name]
            if process.code() is not None:
                why.append(f"the {name} has ended with {process.code()}")
            if said := process.errors.read_text():
                why.append(f"the {name} said: {said}")
        return why

    def _weigh(self) -> list[str]:
        """The agent's memory does not grow over the rounds of its life."""
        self._rss.append(Facts.of(self._site.processes["agent"].pid).rss_kib)
        if len(self._rss) <= RSS_WARM:
            return []
        warm, now = max(self._rss[:RSS_WARM]), self._rss[-1]
        self._longest = max(self._longest, (len(self._rss), warm, now))
        return [f"the agent's memory grew from {warm} to {now} KiB"] if now > warm + RSS_GROWTH_KIB else []

    def end(self) -> None:
        """Ends everything; an agent that is asked to leave leaves no file."""
        site = self._site
        site.end("client")
        site.end("server")
        if "agent" in site.processes:
            code = site.processes["agent"].stop()
            site.end("agent")
            if code != 0 or checks.files(site):
                print(f"FAILED the agent ended with {code} and left {sorted(checks.files(site))}")
                self._counts["failed"] += 1
        if strays := site.strays():
            print(f"FAILED left behind: {strays}")
            self._counts["failed"] += 1

    def report(self) -> int:
        """The closing lines; returns the exit code."""
        seconds = time.monotonic() - self._began
        count = sum(self._counts.values())
        flow = self._hits["ring"] + self._hits["kernel"] + self._hits["unlisted"]
        print(f"figure: {count} rounds in {seconds:.0f} s, {count * 60 / max(seconds, 1):.0f} a minute")
        print(
            f"figure: {self._hits['kills']} kills, {self._hits['stops']} stops, {self._hits['terms']} others; "
            f"{self._hits['ring']} of {flow} hit while bytes flowed on the ring, {self._hits['start']} while connections began"
        )
        print(f"figure: connections before a fault: {_counted(list(self._reasons.elements()))}")
        if self._ignored:
            print(f"figure: ignored: {_counted(list(self._ignored.elements()))}")
        rounds, warm, now = self._longest
        print(f"figure: the agent's longest life {rounds} rounds, its memory from {warm} to {now} KiB")
        print(f"{self._counts['passed']} passed, {self._counts['failed']} failed, {self._counts['skipped']} skipped")
        return 1 if self._counts["failed"] else 0
