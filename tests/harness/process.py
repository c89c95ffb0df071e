"""Programs that a run starts: each in a process group of its own, with its output in files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 10.0
DYING_S = 0.2


def unprivileged(user: int = 65534) -> list[str]:
    """What makes a command somebody's without any capability."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


class ProgramFailed(Exception):
    """A program could not be started, ended early, or did not end in time."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended. A program that ran out of time has no exit code."""

    code: int | None
    seconds: float
    output: Path
    errors: Path

    @property
    def text(self) -> str:
        """The program's standard output."""
        return self.output.read_text(errors="replace")

    def tail(self, lines: int = 12) -> str:
        """The end of what the program said, for a failure's message."""
        said = self.output.read_text(errors="replace") + self.errors.read_text(errors="replace")
        return "\n".join(said.splitlines()[-lines:])


class Process:
    """A running program. Used as a context manager it is stopped at the end, whatever happened."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        merged: bool = False,
        stdin: Path | None = None,
    ) -> None:
        """Starts `argv`; its output goes to `log` with the endings `.out` and `.err` (one file if `merged`)."""
        self.argv = list(argv)
        self.output = log.with_name(log.name + ".out")
        self.errors = self.output if merged else log.with_name(log.name + ".err")
        self.started = time.monotonic()
        with open(self.output, "wb") as out, open(self.errors, "wb") as err, open(stdin or os.devnull, "rb") as inp:
            self._child = subprocess.Popen(
                self.argv,
                cwd=directory,
                env=dict(os.environ, **(environment or {})),
                start_new_session=True,
                stdin=inp,
                stdout=out,
                stderr=subprocess.STDOUT if merged else err,
            )
        self.pid = self._child.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def code(self) -> int | None:
        """The exit code, or `None` while the program runs."""
        return self._child.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the program itself, not to its group."""
        self._child.send_signal(number)

    def wait(self, timeout_s: float) -> Outcome:
        """Waits for the end; kills the whole group of a program that runs out of time."""
        code: int | None
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
            self.kill()
        return Outcome(code, time.monotonic() - self.started, self.output, self.errors)

    def stop(self, timeout_s: float = STOP_S) -> int | None:
        """Asks the program to end, then kills what is left of its group."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        return self._child.returncode

    def kill(self) -> None:
        """Kills every process of the group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._child.wait()


def run(argv: Sequence[str], log: Path, timeout_s: float, **options: object) -> Outcome:
    """Runs a program to its end, or to its time-out."""
    with Process(argv, log, **options) as process:  # type: ignore[arg-type]
        return process.wait(timeout_s)


def run_checked(argv: Sequence[str], log: Path, timeout_s: float, **options: object) -> Outcome:
    """Runs a program that must succeed."""
    outcome = run(argv, log, timeout_s, **options)
    if outcome.code != 0:
        how = "ran out of time" if outcome.code is None else f"exit code {outcome.code}"
        raise ProgramFailed(f"{' '.join(argv)}: {how}\n{outcome.tail()}")
    return outcome


def end_strays(keep: set[int]) -> list[str]:
    """Kills what daemonized out of its group. Only inside a PID namespace of the run's own.

    Returns the command names of what was found: processes whose parent is the namespace's first process, and that
    are not just ending.
    """
    if _orphans(keep):
        time.sleep(DYING_S)
    strays = []
    for pid, name in _orphans(keep).items():
        try:
            os.kill(pid, signal.SIGKILL)
            strays.append(name)
        except ProcessLookupError:
            continue
    return strays


def _orphans(keep: set[int]) -> dict[int, str]:
    """Command names by process id of the children of process 1, but for `keep` and this run's own."""
    orphans = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in keep | {1, os.getpid(), os.getppid()}:
            continue
        try:
            head, _, rest = (entry / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = rest.split()[:2]
        if parent == "1" and state != "Z":
            orphans[int(entry.name)] = head.partition("(")[2]
    return orphans
