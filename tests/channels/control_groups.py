"""Rules that name control groups: processes in groups of the case's own, and who of them may send and receive."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.process import Process

from site_of_channels import READY_S, Lacking, Site, holds_back_term, until

NAME = "guarded"
GROUPS = ("inside", "inside-too", "inside/below", "beside")
RULES = '[[channel]]\nname = "{name}"\nsend = ["cgroup:{top}/inside"]\nreceive = ["cgroup:{top}/inside", "cgroup:{top}/be*"]\n'
REFUSED = [
    ("publisher", "inside-too"),
    ("publisher", "inside/below"),
    ("publisher", "beside"),
    ("publisher", ""),
    ("subscriber", "inside-too"),
    ("subscriber", ""),
]
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def _hierarchy() -> tuple[Path, str]:
    """Where the groups are mounted by which the agent goes, and what it is called in `/proc/PID/cgroup`: systemd's, or the only one."""
    mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for kind, option, controllers in (("cgroup", "name=systemd", "name=systemd"), ("cgroup2", "", "")):
        for before, _, after in mounts:
            words = after.split()
            if words[0] == kind and (not option or option in words[-1].split(",")):
                return Path(before.split()[4]), controllers
    raise Lacking("no control groups are mounted")


@contextmanager
def _groups(name: str) -> Iterator[tuple[Path, str]]:
    """Makes the groups below one of this name; says where, and what the kernel calls that."""
    mounted, controllers = _hierarchy()
    top = mounted / name
    made = [top, *(top / group for group in GROUPS)]
    try:
        try:
            for directory in made:
                directory.mkdir(exist_ok=True)
            shown = subprocess.run(["sh", "-c", JOIN, top, "cat", "/proc/self/cgroup"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise Lacking(f"no control group can be made: {error}") from error
        lines = (line.split(":", 2)[1:] for line in shown.stdout.splitlines())
        yield top, next(path for which, path in lines if which == controllers)
    finally:
        for directory in reversed(made):
            if directory.exists():
                until(lambda directory=directory: not (directory / "cgroup.procs").read_text())
                os.rmdir(directory)


class _Case:
    def __init__(self, site: Site, program: Path, top: Path) -> None:
        self._site, self._program, self._top = site, program, top
        self._place = site.directory / "place"
        (self._place / "ledger").mkdir(parents=True)

    def _start(self, role: str, group: str) -> Process:
        argv = [str(self._program), role, str(self._place), NAME]
        join = ["sh", "-c", JOIN, str(self._top / group)] if group else []
        return self._site.start(role, [*join, *argv])

    def play(self) -> list[str]:
        """What was wrong."""
        wrong = []
        for role, group in REFUSED:
            process = self._start(role, group)
            code = process.wait(READY_S).code
            said = process.errors.read_text()
            if code != 1 or "Refused(NotAllowed)" not in said:
                wrong.append(f"a {role} in {group or 'no group'} is let in, or ends with {code}: {said}")
        receivers = [self._start("subscriber", group) for group in ("inside", "beside")]
        sender = self._start("publisher", "inside")
        return wrong + self._pass(sender, receivers)

    def _pass(self, sender: Process, receivers: list[Process]) -> list[str]:
        """Waits until all have something, has them finish, and asks the judge."""

        def have_read() -> bool:
            ledgers = list((self._place / "ledger").glob("subscriber-*"))
            return len(ledgers) == len(receivers) and all(ledger.stat().st_size for ledger in ledgers)

        if not until(have_read):
            return ["those who are let in do not meet: " + "".join(it.errors.read_text() for it in (sender, *receivers))]
        for process in (sender, *receivers):
            until(lambda process=process: holds_back_term(process.pid))
            process.signal(signal.SIGTERM)
            if not until(lambda process=process: process.code() is not None) or process.code() != 0:
                return [f"ended with {process.code()}: {process.errors.read_text()}"]
        judged = subprocess.run([self._program, "judge", self._place, "all", "0"], capture_output=True, text=True, check=False)
        return [judged.stderr] if judged.returncode else []


def case(millrace: Path, program: Path, place: Path) -> str | None:
    """The case; what was wrong."""
    with _groups(place.parent.name) as (top, called), Site(millrace, place, RULES.format(name=NAME, top=called)) as site:
        return "; ".join(_Case(site, program, top).play()) or None
