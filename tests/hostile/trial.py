"""Runs rounds, one after the other, and counts."""

from __future__ import annotations

import re
import time
from collections import Counter

import checks
import ledger
from checks import Baseline
from hostility import Round
from ledger import CLIENT, SERVER
from site_of_hostility import HostileSite
from site_of_kills import until

from harness.process import Process, ProgramFailed

BEGIN_S = 10.0
HOSTILE_S = 1.2
"""How long the hostile program goes on."""
HOSTILE_ENDS_S = 40.0
SLOTS = 200
SIEGE_LOOKS = 5
MOVES_S = 10.0
"""Within that time bytes must move on an honest connection, whoever floods the processors beside it."""
ENDS_S = 10.0
RING_S = 5.0
ASK_S = 0.2
_ENDINGS = {ledger.DONE, ledger.GAVE_UP, ledger.error("ECONNRESET"), ledger.error("EPIPE")}


class Trial:
    """The rounds of a run. Each has a server of its own; the agent lives for all, or until a round fails."""

    def __init__(self, site: HostileSite, verbose: bool) -> None:
        self._site, self._verbose = site, verbose
        self._counts: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._began = time.monotonic()

    def run(self, plan: Round) -> None:
        """One round."""
        began = time.monotonic()
        try:
            kinds = {
                "attack": self._attack,
                "pester": self._pester,
                "pretend": self._pretend,
                "trick": self._trick,
            }
            why = kinds[plan.kind](plan)
        except ProgramFailed as error:
            why = [str(error)]
        self._counts["failed" if why else "passed"] += 1
        if why or self._verbose:
            print(f"{'FAILED' if why else 'ok':7}{plan} ({time.monotonic() - began:.2f} s)", flush=True)
            for line in why:
                print(f"       {line}", flush=True)
        for name in ("hostile", "client", "server", *(["agent"] if why else [])):
            self._site.end(name)

    def _serve(self, plan: Round) -> Baseline:
        """An agent, and a server that has served a connection and holds none."""
        site = self._site
        if "agent" not in site.processes:
            site.start_agent()
        site.start_server(plan.server, plan.mode)
        self._honest(plan, ("request",))
        if why := self._complete(self._honest_slots):
            raise ProgramFailed(f"before anything hostile: {why}")
        return Baseline.take(site)

    def _honest(self, plan: Round, rhythms: tuple[str, ...]) -> None:
        """An honest client, whose connections have begun and, where there is an agent to believe, are on the ring."""
        site = self._site
        self._honest_slots = slots = site.start_client(plan.client, plan.mode, rhythms, plan.seed)
        if not until(lambda: all(site.ledger.end(slot, SERVER).received for slot in slots), BEGIN_S):
            raise ProgramFailed(f"no bytes came through: {checks.describe(site, rhythms, slots)}")
        if plan.kind != "pretend" and not until(self._is_on_ring, RING_S):
            raise ProgramFailed(f"not on the ring within {RING_S} s: {site.connections()}")

    def _is_on_ring(self) -> bool:
        """Whether a connection of two ends that we can see is on the ring."""
        ends = [connection["ends"] for connection in self._site.connections()]
        return any(len(pair) == 2 and all(end["road"] == "shm" for end in pair) for pair in ends)

    def _complete(self, slots: list[int]) -> list[str]:
        """The honest connections come to their ends exactly, and their client ends well."""
        why = checks.completed(self._site, slots)
        client = self._site.processes["client"]
        until(lambda: client.code() is not None, ENDS_S)
        if client.code() != 0:
            why.append(f"the honest client ended with {client.code()}\n{client.errors.read_text()}")
        self._site.end("client")
        return why

    def _attack(self, plan: Round) -> list[str]:
        """A peer of the server writes what it likes over their segment."""
        site = self._site
        base = self._serve(plan)
        self._honest(plan, plan.rhythms)
        slots = [site.ledger.take() for _ in range(SLOTS)]
        besieges = plan.style == "siege"
        hostile = site.start_attack(plan, HOSTILE_ENDS_S if besieges else HOSTILE_S, slots)
        why = self._bear(hostile, SIEGE_LOOKS if besieges else None)
        return why or self._aftermath(base, slots)

    def _pester(self, plan: Round) -> list[str]:
        """A client of the agent says what it likes."""
        base = self._serve(plan)
        self._honest(plan, plan.rhythms)
        why = self._bear(self._site.start_pester(plan, HOSTILE_S)) or self._aftermath(base, [])
        if not why:
            self._honest(plan, ("echo",))
            why = self._complete(self._honest_slots)
        return why

    def _pretend(self, plan: Round) -> list[str]:
        """The agent of both ends is hostile: they go on by the kernel."""
        site = self._site
        with site.pretended_agent(plan):
            site.start_server(plan.server, plan.mode)
            self._honest(plan, plan.rhythms)
            time.sleep(HOSTILE_S / 2)
            why = self._moves()
            why += self._complete(self._honest_slots)
            # Who is sent away comes again after a second, and meets another offer.
            self._honest(plan, plan.rhythms)
            why += self._complete(self._honest_slots) + self._said("server")
        self._done["pretended agents"] += 1
        return why

    def _trick(self, plan: Round) -> list[str]:
        """A peer does what TCP has no means for: the server gets what TCP would give it."""
        site = self._site
        if "agent" not in site.processes:
            site.start_agent()
        ends = {"the server": site.start_suffering(plan), "the hostile program": site.start_trick(plan)}
        until(lambda: all(process.code() is not None for process in ends.values()), HOSTILE_ENDS_S)
        self._done["tricks"] += 1
        return [
            f"{name} ended with {process.code()}: {process.errors.read_text()[-2000:]}"
            for name, process in ends.items()
            if process.code() != 0
        ] + self._said("agent")

    def _bear(self, hostile: Process, looks: int | None = None) -> list[str]:
        """While the hostile program runs, or for so many looks, honest bytes move, and the agent answers."""
        deadline = time.monotonic() + HOSTILE_ENDS_S
        why: list[str] = []
        while hostile.code() is None and not why:
            if looks == 0:
                hostile.kill()
                break
            looks = looks and looks - 1
            why = self._moves()
            if not self._site.connections():
                why.append("the agent does not list the honest connection")
            if time.monotonic() > deadline:
                why.append(f"the hostile program has not ended within {HOSTILE_ENDS_S} s")
            time.sleep(ASK_S)
        if not why and looks is None and hostile.code() != 0:
            why = [f"the hostile program ended with {hostile.code()}: {hostile.errors.read_text()}"]
        for count, what in re.findall(r"(\d+) ([a-z ]+)", hostile.output.read_text()):
            self._done[what] += int(count)
        self._site.end("hostile")
        return why

    def _moves(self) -> list[str]:
        """Bytes move on every honest connection."""
        counts = self._site.ledger
        slots = self._honest_slots
        before = {slot: counts.end(slot, CLIENT).received for slot in slots}
        if until(lambda: all(counts.end(slot, CLIENT).received > before[slot] for slot in slots), MOVES_S):
            return []
        return ["an honest connection stands still", *checks.describe(self._site, ("",) * len(slots), slots)]

    def _aftermath(self, base: Baseline, slots: list[int]) -> list[str]:
        """The server has ended what was attacked, the honest streams are exact, and nothing is left."""
        site = self._site
        begun = [slot for slot in slots if site.ledger.end(slot, SERVER).has_begun]
        until(lambda: all(site.ledger.end(slot, SERVER).has_ended for slot in begun), ENDS_S)
        why = []
        for slot in begun:
            end = site.ledger.end(slot, SERVER)
            if not end.has_ended or not {end.read_end, end.write_end} <= _ENDINGS:
                why.append(f"an attacked connection, its attacker gone, has no ending that TCP gives: {end}")
        why += self._moves() + self._complete(self._honest_slots)
        return why or checks.leaks(site, base, [], self._hits) + self._said("server") + self._said("agent")

    def _said(self, name: str) -> list[str]:
        """The program runs, and has not complained; the agent may say whom it has dropped."""
        process = self._site.processes[name]
        said = process.errors.read_text() if name == "server" else ""
        if process.code() is not None or said:
            return [f"the {name}: exit code {process.code()}, {process.errors.read_text()[-2000:]}"]
        return []

    def report(self) -> int:
        """The closing lines; returns the exit code."""
        site = self._site
        if "agent" in site.processes and (code := site.processes["agent"].stop()) != 0:
            print(f"FAILED the agent ended with {code}")
            self._counts["failed"] += 1
        seconds = time.monotonic() - self._began
        done = ", ".join(f"{count} {what}" for what, count in sorted(self._done.items()))
        print(f"figure: {sum(self._counts.values())} rounds in {seconds:.0f} s: {done}")
        print(f"{self._counts['passed']} passed, {self._counts['failed']} failed, 0 skipped")
        return 1 if self._counts["failed"] else 0
