"""What a run starts and looks at: the agent, the server, clients, and what the kernel says of them."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger import Ledger
from plan import RHYTHMS, Round

from harness import isolate, road, scrape
from harness.process import Process, ProgramFailed

READY_S = 10.0
STEP_S = 0.002


def until(condition: object, timeout_s: float) -> bool:
    """Waits until a function's result is true; returns whether it came to that."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP_S)
    return True


@dataclass(frozen=True)
class Facts:
    """What a process holds."""

    descriptors: int
    memory_descriptors: int
    memory_maps: int
    maps: int
    rss_kib: int

    @classmethod
    def of(cls, pid: int) -> Facts:
        """Reads them from /proc."""
        links = []
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
            except FileNotFoundError:
                continue
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        status = Path(f"/proc/{pid}/status").read_text()
        rss = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
        return cls(
            len(links), sum("memfd:" in link for link in links), sum("memfd:" in line for line in maps), len(maps), rss
        )

    def beyond(self, base: Facts, maps_slack: int) -> list[str]:
        """What is more than it was at `base`. Memory maps of other kinds come and go with threads: they have some slack."""
        names = ("descriptors", "memory_descriptors", "memory_maps")
        found = [f"{name} {getattr(base, name)} -> {getattr(self, name)}" for name in names]
        more = [getattr(self, name) > getattr(base, name) for name in names]
        if self.maps - self.memory_maps > base.maps - base.memory_maps + maps_slack:
            found, more = [*found, f"maps {base.maps} -> {self.maps}"], [*more, True]
        return [text for text, is_more in zip(found, more, strict=True) if is_more]


class Site:
    """The agent, one server, one client at a time, in a directory of their own. All of them end with it."""

    def __init__(self, millrace: Path, traffic: Path, directory: Path) -> None:
        self.millrace, self._traffic, self._directory = str(millrace), str(traffic), directory
        self.runtime = directory / "run"
        self.runtime.mkdir(mode=0o755)
        self._metrics = directory / "metrics.sock"
        self._config = directory / "agent.toml"
        self._config.write_text(f'metrics = "{self._metrics}"\n')
        os.environ["MILLRACE_AGENT"] = str(self.runtime / "agent.sock")
        # The C library keeps no memory of threads that have ended.
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0"
        self.ledger = Ledger(directory / "ledger")
        self._logs = itertools.count()
        self.processes: dict[str, Process] = {}
        self.sessions: set[int] = set()
        self.port = 0

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.end(name)

    def _start(self, name: str, argv: list[str]) -> Process:
        assert name not in self.processes, f"{name} runs already"
        process = Process(argv, self._directory / f"{next(self._logs):05}-{name}")
        self.processes[name] = process
        self.sessions.add(process.pid)
        return process

    def end(self, name: str) -> None:
        """Kills a program, if it runs, with all of its processes, and removes what it said."""
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.output.unlink(missing_ok=True)
            process.errors.unlink(missing_ok=True)

    def start_agent(self) -> None:
        """Starts the agent and waits until it answers."""
        options = ["--socket", os.environ["MILLRACE_AGENT"], "--log", "warn", "--config", str(self._config)]
        process = self._start("agent", [self.millrace, "agent", *options])
        if not until(lambda: process.code() is not None or self.segment_bytes() is not None, READY_S):
            raise ProgramFailed(f"the agent does not answer\n{process.wait(0.1).tail()}")
        if process.code() is not None:
            raise ProgramFailed(f"the agent has ended\n{process.wait(0.1).tail()}")

    def segment_bytes(self) -> int | None:
        """What the agent's metrics say of the memory of segments."""
        value = scrape.metrics(self._metrics).get("millrace_segment_bytes")
        return None if value is None else int(value)

    def connections(self) -> list[dict[str, Any]]:
        """What `millrace ps` lists; only our own programs know this agent."""
        return road.connections(road.under(f"{self.millrace} run --", ""))

    def _under(self, mode: str, argv: list[str]) -> list[str]:
        run = [] if mode == "plain" else [self.millrace, "run", "--mode", mode, "--"]
        return [*run, self._traffic, *argv]

    def start_server(self, variant: str, mode: str) -> None:
        """Starts a server and waits until it has said its port."""
        process = self._start("server", self._under(mode, ["serve", variant, str(self.ledger.path)]))
        until(lambda: process.output.read_text().endswith("\n") or process.code() is not None, READY_S)
        if not process.output.read_text().endswith("\n"):
            raise ProgramFailed(f"the server does not say its port\n{process.wait(0.1).tail()}")
        self.port = int(process.output.read_text())

    def wake_server(self) -> None:
        """Gives the server a connection that ends before it has begun."""
        socket.create_connection(("127.0.0.1", self.port), timeout=READY_S).close()

    def start_client(self, variant: str, mode: str, rhythms: tuple[str, ...], seed: int) -> list[int]:
        """Starts a client with a connection per rhythm; returns their slots."""
        slots = [self.ledger.take() for _ in rhythms]
        orders = []
        for slot, name in zip(slots, rhythms, strict=True):
            rhythm = RHYTHMS[name]
            pauses = f"{rhythm.pause_us}:{rhythm.read_pause_us}"
            orders.append(f"{slot}:{seed + slot}:{rhythm.message_max}:{pauses}:{rhythm.shape}")
        self._start("client", self._under(mode, ["connect", variant, str(self.ledger.path), str(self.port), *orders]))
        return slots

    def start_for(self, plan: Round) -> list[int]:
        """Starts a round's client."""
        return self.start_client(plan.client, plan.mode, plan.rhythms, plan.seed)

    def signal(self, word: str, name: str, slots: list[int]) -> None:
        """Sends a signal to every process of a program, or to one of those that hold the first connection."""
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "cont": signal.SIGCONT}[word]
        program, _, part = name.partition(".")
        try:
            if part:
                end = self.ledger.end(slots[0], 0 if program == "client" else 1)
                os.kill(getattr(end, part), number)
                return
            os.killpg(self.processes[program].pid, number)
        except ProcessLookupError:
            return
        if word in ("kill", "term"):
            self.processes[program].wait(READY_S)

    def strays(self) -> list[str]:
        """Processes that this run began, but for the agent's, the server's and the client's first.

        In a namespace of the run's own that is every process; elsewhere, those in the sessions of what was started.
        """
        ours = {process.pid for process in self.processes.values()} | {1, os.getpid()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in ours:
                continue
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, session = rest.split()[0], int(rest.split()[3])
            if (isolate.is_inside() or session in self.sessions) and state != "Z":
                found.append(f"{entry.name} {head.partition('(')[2]} ({state})")
        return found
