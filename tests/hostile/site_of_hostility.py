"""What a run starts beside honest programs: a peer, a client and an agent without manners."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostility import Round
from site_of_kills import Site, until

from harness.process import Process, ProgramFailed

READY_S = 10.0


class HostileSite(Site):
    """A site of kills where nobody is killed."""

    def __init__(self, millrace: Path, traffic: Path, hostile: Path, directory: Path) -> None:
        super().__init__(millrace, traffic, directory)
        self._hostile = str(hostile)
        self._pretended = directory / "pretended.sock"
        self._library = millrace.parent / "libmillrace_preload.so"

    def start_attack(self, plan: Round, seconds: float, slots: list[int]) -> Process:
        """Starts a peer that connects to the server once per slot."""
        words = ["attack", self.port, plan.seed, seconds, plan.style, *slots]
        return self._start("hostile", [self._hostile, *map(str, words)])

    def start_pester(self, plan: Round, seconds: float) -> Process:
        """Starts a client that pesters the agent."""
        return self._start("hostile", [self._hostile, "pester", str(plan.seed), str(seconds)])

    def start_suffering(self, plan: Round) -> Process:
        """Starts a server on which a trick is to be played, and waits until it has said its port."""
        run = [str(self.millrace), "run", "--mode", plan.mode, "--"]
        process = self._start("server", [*run, self._hostile, "suffer", plan.trick])
        if not until(lambda: process.output.read_text().endswith("\n"), READY_S):
            raise ProgramFailed(f"the server does not say its port\n{process.wait(0.1).tail()}")
        self.port = int(process.output.read_text())
        return process

    def start_trick(self, plan: Round) -> Process:
        """Starts a peer that plays a trick on the server."""
        words = ["trick", plan.trick, self.port, plan.seed]
        return self._start("hostile", [self._hostile, *map(str, words)])

    @contextmanager
    def pretended_agent(self, plan: Round) -> Iterator[None]:
        """Inside it, programs find a hostile agent; `millrace run` is not asked to find one."""
        self._pretended.unlink(missing_ok=True)
        process = self._start("hostile", [self._hostile, "pretend", str(self._pretended), str(plan.seed)])
        if not until(lambda: process.output.read_text() == "ready\n", READY_S):
            raise ProgramFailed(f"no pretended agent\n{process.wait(0.1).tail()}")
        true_agent = os.environ["MILLRACE_AGENT"]
        os.environ.update(MILLRACE_AGENT=str(self._pretended), MILLRACE_MODE=plan.mode)
        self._is_pretended = True
        try:
            yield
        finally:
            self._is_pretended = False
            os.environ["MILLRACE_AGENT"] = true_agent
            del os.environ["MILLRACE_MODE"]
            self.end("hostile")

    _is_pretended = False

    def _under(self, mode: str, argv: list[str]) -> list[str]:
        if self._is_pretended:
            return ["env", f"LD_PRELOAD={self._library}", self._traffic, *argv]
        return super()._under(mode, argv)
