"""The agent of a run, and what it holds."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from harness import scrape
from harness.process import Process, ProgramFailed

READY_S = 20.0
STEP_S = 0.005


class Lacking(Exception):
    """What this machine does not have."""


def until(condition: Callable[[], object], timeout_s: float = READY_S) -> bool:
    """Waits until a function's result is true; returns whether it came to that."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_S)
    return True


def descriptors(pid: int) -> int:
    """How many a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def holds_back_term(pid: int) -> bool:
    """Whether a process is so far that SIGTERM does not end it, but asks it to stop."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    held_back = next((line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), "0")
    return bool(int(held_back, 16) >> (signal.SIGTERM - 1) & 1)


class Site:
    """A directory with an agent, which can be killed and started again. It ends with the site, and so does every program."""

    def __init__(self, millrace: Path, directory: Path, rules: str = "") -> None:
        directory.mkdir(mode=0o755)
        self.directory = directory
        self.runtime = directory / "agent"
        self.runtime.mkdir(mode=0o755)
        self.socket = self.runtime / "agent.sock"
        self._millrace = millrace
        self._metrics = directory / "metrics.sock"
        self._config = directory / "agent.toml"
        self._config.write_text(f'metrics = "{self._metrics}"\n{rules}')
        self._numbers = itertools.count()
        self.processes: list[Process] = []
        self.agent = self._start_agent()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        self.agent.stop()

    def start(self, name: str, argv: list[str]) -> Process:
        """A program that knows the agent."""
        log = self.directory / f"{next(self._numbers):05}-{name}"
        process = Process(argv, log, environment={"MILLRACE_AGENT": str(self.socket)})
        self.processes.append(process)
        return process

    def _start_agent(self) -> Process:
        argv = [str(self._millrace), "agent", "--socket", str(self.socket), "--log", "warn", "--config", str(self._config)]
        agent = Process(argv, self.directory / f"{next(self._numbers):05}-agent", environment={"MILLRACE": "off"})
        if not until(lambda: agent.code() is not None or self.metrics()) or agent.code() is not None:
            raise ProgramFailed(f"the agent does not answer\n{agent.wait(0.1).tail()}")
        return agent

    def restart_agent(self) -> None:
        """Kills it and starts another."""
        self.agent.signal(signal.SIGKILL)
        self.agent.wait(READY_S)
        self.agent = self._start_agent()

    def metrics(self) -> dict[str, float]:
        """What the agent says of itself; nothing where it does not answer."""
        return scrape.metrics(self._metrics)

    def left_behind(self, descriptors_before: int) -> list[str]:
        """What the agent still holds of channels when nobody takes part any more; it has a while to let go."""

        def look() -> list[str]:
            found = [
                f"the agent has {name}: {value:.0f}"
                for name, value in self.metrics().items()
                if name.partition("{")[0] in ("millrace_channel_bytes", "millrace_channel_links", "millrace_channel_participants") and value
            ]
            now = descriptors(self.agent.pid)
            return found + ([f"the agent has {now} descriptors, not {descriptors_before}"] if now > descriptors_before else [])

        until(lambda: not look())
        # Whose a program is that is dead already cannot be told, and nobody's may take part in nothing.
        lines = self.agent.errors.read_text().splitlines(keepends=True)
        said = "".join(line for line in lines if 'tenant="nobody"' not in line)
        return look() + ([f"the agent said: {said}"] if said else [])
