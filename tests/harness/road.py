"""Which road a run's programs take: the plain kernel's, or under Millrace in one of its modes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.process import Process

REPOSITORY = Path(__file__).resolve().parents[2]
MILLRACE = REPOSITORY / "target/release/millrace"
UNDER = f"{MILLRACE} run --mode MODE --"
AGENT_SOCKET = Path("/run/millrace/agent.sock")
AGENT_READY_S = 5.0


@dataclass(frozen=True)
class Road:
    """A name for tables and a command prefix for every program of a run."""

    name: str
    prefix: tuple[str, ...] = ()

    @property
    def millrace(self) -> str | None:
        """Path of the `millrace` program in the prefix, where there is one."""
        return next((word for word in self.prefix if Path(word).name == "millrace"), None)

    def command(self, argv: list[str]) -> list[str]:
        """The command line that runs `argv` on this road."""
        return [*self.prefix, *argv]


PLAIN = Road("plain")


def under(template: str, mode: str) -> Road:
    """The road that a command prefix such as `millrace run --mode MODE --` gives; an empty one is plain again."""
    prefix = tuple(word.replace("MODE", mode) for word in shlex.split(template))
    return Road(mode if prefix else "plain again", prefix)


class Agent:
    """Holds an agent for the time of a run, so that programs of every user on this machine meet at one."""

    def __init__(self, road: Road, log: Path) -> None:
        """Nothing is started on a road without Millrace, where an agent answers, or for a user's own agent."""
        self._process: Process | None = None
        if road.millrace is None or AGENT_SOCKET.exists() or os.geteuid() != 0:
            return
        self._process = Process([road.millrace, "agent"], log, environment={"MILLRACE": "off"})
        deadline = time.monotonic() + AGENT_READY_S
        while not AGENT_SOCKET.exists() and time.monotonic() < deadline and self._process.code() is None:
            time.sleep(0.02)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def pids(self) -> set[int]:
        """Process ids that belong to the run itself."""
        return {self._process.pid} if self._process is not None else set()


def connections(road: Road) -> list[dict[str, Any]]:
    """What `millrace ps --json` lists; empty on a plain road, or where it cannot be had."""
    if road.millrace is None:
        return []
    try:
        listing = subprocess.run([road.millrace, "ps", "--json"], capture_output=True, timeout=10, check=True)
        return parsed(listing.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return []


def roads(millrace: Path, environment: dict[str, str], in_use: bool = False) -> list[str]:
    """Of each connection that the environment's agent knows: `ring` where both ends are on it, else the reasons why not. With `in_use` it
    is that only where both ends have got bytes by it, and `none` is said of others."""
    # Where it fails, its words are to be read.
    listing = subprocess.run([millrace, "ps", "--json"], stdout=subprocess.PIPE, timeout=30, check=True, env=environment)
    found = []
    for connection in parsed(listing.stdout):
        ends = connection["ends"]
        is_ring = len(ends) == 2 and all(
            end["road"] == "shm" and end["reason"] == "none" and (not in_use or end["received"]["shm_bytes"] > 0) for end in ends
        )
        found.append("ring" if is_ring else "/".join(end["reason"] for end in ends))
    return sorted(found)


def parsed(listing: bytes) -> list[dict[str, Any]]:
    """The connections that `millrace ps --json` printed."""
    answer = json.loads(listing)
    rows = answer.get("connections", []) if isinstance(answer, dict) else answer
    return [row for row in rows if isinstance(row, dict)]


def commit() -> str:
    """The repository's commit, with a `+` where the work tree differs from it."""
    describe = subprocess.run(
        ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False
    )
    return describe.stdout.strip() or "uncommitted"


def machine() -> dict[str, str]:
    """Facts about this machine that a result needs beside it."""
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"kernel": os.uname().release.partition("-")[0], "processor": model, "processors": str(os.cpu_count())}
