"""Checkpoints: CRIU stops, copies and starts again one end of a connection, or both, plain and under Millrace.

Plain, the connection goes on. Under Millrace it goes on with exactly its bytes, or it is reset, or the checkpoint is refused and nothing
has happened to the programs. Never does an end take a byte that is not the next one, end well where the other end does not, or hang.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness import road
from harness.process import Process

PATIENCE_S = 120.0
"""For an emulated machine, which is some ten times as slow as others."""
# A sender shows itself to the network once a second: whoever sleeps for longer misses that.
JOIN_S = 10.0
ATTEMPTS = 5
# What CRIU asks about sockets, and how it holds packets back meanwhile.
KERNEL_MODULES = ("unix_diag", "inet_diag", "tcp_diag", "udp_diag", "raw_diag", "af_packet_diag", "netlink_diag")
KERNEL_MODULES += ("crc32c_generic", "nf_tables")
LOCK = ("--network-lock", "nftables")
AWAY_S = (0.0, 2.5)
PORTS = itertools.count(7400)


class Went(Exception):
    """What went otherwise than it must."""


@dataclass(frozen=True)
class Case:
    """Who is stopped and copied, what the client does meanwhile, and whether the agent is there."""

    name: str
    whom: str
    client: str = "ask"
    agent: bool = False
    leave_running: bool = False


CASES = (
    Case("a client, with the agent there", "client", agent=True),
    Case("a server, with the agent there", "server", agent=True),
    Case("a client that asks", "client"),
    Case("a server that is asked", "server"),
    Case("a client that sends a flow", "client", "flow"),
    Case("a server that gets a flow", "server", "flow"),
    Case("a client that is left running, and a copy later", "client", leave_running=True),
    Case("both ends at once", "both", "flow"),
)


class Pair:
    """The two ends of a connection, each with its output in a file."""

    def __init__(
        self, stack: ExitStack, case: Case, program: Path, prefix: list[str], environment: dict[str, str], directory: Path
    ) -> None:
        """Starts them, and waits until enough went there and back."""
        port = str(next(PORTS))
        self.directory = directory

        def start(name: str, role: str) -> Process:
            argv = [*prefix, str(program), role, port]
            started = Process(argv, directory / name, directory, environment)
            stack.callback(started.stop)
            until(lambda: "ready" in self.said(name) or started.code() is not None, f"the {name} begins")
            return started

        self.server = start("server", "serve")
        self.client = start("client", case.client)

    def said(self, name: str) -> str:
        """What an end has said; of a copy, too."""
        return (self.directory / f"{name}.out").read_text()

    def lines(self) -> dict[str, str]:
        """The last line of each."""
        return {name: (self.said(name).splitlines() or ["nothing"])[-1] for name in ("server", "client")}

    def is_over(self) -> bool:
        """Whether both ends have said how they ended."""
        return all(line.startswith(("done", "failed", "wrong")) for line in self.lines().values())

    def whereabouts(self) -> list[str]:
        """In which system call each thread is that has not ended."""
        threads = [task for pid in (self.server.pid, self.client.pid) for task in Path("/proc").glob(f"{pid}/task/*")]
        return [f"{task.name}: {(task / 'wchan').read_text()} {(task / 'syscall').read_text().strip()}" for task in threads]

    def verdict(self, can_copy_differ: bool = False) -> str:
        """How it ended, if that may be."""
        lines = self.lines()
        said = f"server: {lines['server']}; client: {lines['client']}"
        everything = self.said("server") + self.said("client")
        if "wrong" in everything:
            raise Went(said)
        both_failed = all(line.startswith("failed") for line in lines.values())
        if can_copy_differ or both_failed or len(set(lines.values())) == 1:
            return said
        raise Went(said)


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise Went(f"not in {patience_s:.0f} s: {what}")
        time.sleep(0.05)


def criu(verb: str, images: Path, *words: str) -> str:
    """Runs CRIU; returns why it failed, if it did."""
    argv = ["criu", verb, "-D", str(images), "-v4", "-o", f"{verb}.log", "--tcp-established", "--shell-job", *LOCK, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if ran.returncode == 0:
        return ""
    log = images / f"{verb}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [line.partition("): ")[2] for line in lines if "Error" in line]
    return "; ".join(errors[:2]) or ran.stderr.strip() or f"exit code {ran.returncode}"


def dump(case: Case, pair: Pair, images: Path) -> str:
    """Stops and copies; returns why that was refused, if it was."""
    images.mkdir()
    stopped = {"client": [pair.client], "server": [pair.server], "both": [pair.client, pair.server]}[case.whom]
    for process in stopped:
        each = images / str(process.pid)
        each.mkdir()
        more = ["--leave-running"] if case.leave_running else []
        if case.agent:
            # What CRIU proposes for sockets whose other end stays outside.
            more.append("--ext-unix-sk")
        if refused := criu("dump", each, "-t", str(process.pid), *more):
            return refused
        if not case.leave_running:
            process.wait(PATIENCE_S)
    return ""


def restore(images: Path) -> str:
    """Starts the copies; returns why that failed, if it did."""
    return "; ".join(filter(None, (criu("restore", each, "-d") for each in sorted(images.iterdir()))))


def finish(pair: Pair) -> None:
    """Tells the client, or its copy, to end, and waits for both."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pair.client.pid, signal.SIGTERM)
    try:
        until(pair.is_over, "both end")
    except Went as went:
        raise Went(f"{went}: {pair.lines()}, {pair.whereabouts()}") from None


def play(case: Case, program: Path, millrace: Path | None, away_s: float) -> str:
    """Plays a case; returns what came of it."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-checkpoint-")))
        if millrace is None:
            return course(case, Pair(stack, case, program, [], {}, directory), directory / "images", away_s, True)
        environment = {"MILLRACE_AGENT": str(directory / "a/agent.sock")}
        agent = Process([str(millrace), "agent"], directory / "agent", environment={**environment, "MILLRACE": "off"})
        stack.callback(agent.stop)
        until((directory / "a/agent.sock").exists, "the agent listens")
        prefix = [str(millrace), "run", "--mode", "eager", "--"]
        for _ in range(ATTEMPTS):
            pair = Pair(stack, case, program, prefix, environment, directory)
            if is_on_ring(millrace, environment):
                break
            # Two ends that are never both awake, as on a machine that stands still now and then, are not joined.
            pair.client.kill()
            pair.server.kill()
        else:
            raise Went("the connection does not come to the ring")
        if not case.agent:
            agent.stop()
        return course(case, pair, directory / "images", away_s, False)


def is_on_ring(millrace: Path, environment: dict[str, str]) -> bool:
    """Whether the one connection that the agent has comes to the ring soon."""
    with contextlib.suppress(Went):
        until(lambda: road.roads(millrace, dict(os.environ, **environment)) == ["ring"], "it is on the ring", JOIN_S)
        return True
    return False


def course(case: Case, pair: Pair, images: Path, away_s: float, is_plain: bool) -> str:
    """Stops, copies, starts again, and ends."""
    said_bytes = pair.client.output.stat().st_size
    if refused := dump(case, pair, images):
        if is_plain:
            raise Went(f"CRIU does not: {refused}")
        finish(pair)
        if not all(line.startswith("done") for line in pair.lines().values()):
            raise Went(f"refused ({refused}), and then: {pair.verdict()}")
        return f"refused ({refused}), and went on: {pair.verdict()}"
    time.sleep(away_s)
    before = ""
    if case.leave_running:
        finish(pair)
        before = f"the one left running: {pair.verdict()}; its copy: "
        pair.client.wait(PATIENCE_S)
        # CRIU wants the file as it was.
        os.truncate(pair.client.output, said_bytes)
    if failed := restore(images):
        raise Went(f"{before}not restored: {failed}")
    finish(pair)
    return f"{before}{pair.verdict(case.leave_running)}"


def run(millrace: Path, built: Path) -> int:
    """Plays all cases, plain and under Millrace; returns how many failed."""
    if shutil.which("criu") is None:
        print("checkpoint: skipped: needs the Debian package criu\n0 passed, 0 failed, 1 skipped", flush=True)
        return 0
    program = built / "moved"
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in CASES:
        try:
            print(f"checkpoint: {case.name}: plain: {play(case, program, None, AWAY_S[0])}", flush=True)
        except Went as went:
            print(f"checkpoint: {case.name}: skipped: plain: {went}", flush=True)
            counts["skipped"] += 1
            continue
        try:
            for away_s in AWAY_S:
                came = play(case, program, millrace, away_s)
                print(f"checkpoint: {case.name}, restored after {away_s} s: {came}", flush=True)
            counts["passed"] += 1
        except Went as went:
            print(f"checkpoint: {case.name}: DIFFERS: {went}", flush=True)
            counts["failed"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
    return counts["failed"]
