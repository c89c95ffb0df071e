"""What a program's test is given: a placement, a road, a directory, and the means to start servers and clients."""

from __future__ import annotations

import hashlib
import itertools
import json
import pwd
import random
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placement import CLIENT, SERVER, Placement

from harness.process import Outcome, Process, ProgramFailed, run
from harness.road import PLAIN, Road

PYTHON = "/usr/bin/python3"
CLIENTS = Path(__file__).with_name("clients")
READY_S = 20.0
CLIENT_S = 120.0
_LISTEN = "0A"
_ports = itertools.count(21000)


class CheckFailed(Exception):
    """A program ran, and gave a wrong result."""


def check(condition: object, message: str) -> None:
    """Fails the program's test with `message` unless `condition` holds."""
    if not condition:
        raise CheckFailed(message)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Site:
    """One run of one program at one placement on one road. Everything it started is stopped at the end."""

    def __init__(self, placement: Placement, road: Road) -> None:
        self.placement = placement
        self.address = placement.address
        self.road = road
        self.directory = Path(tempfile.mkdtemp(prefix="millrace-program-"))
        self.directory.chmod(0o755)
        self._servers: list[Process] = []
        self._count = 0
        self.steps: list[tuple[str, float]] = []

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers):
            server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def port(self) -> int:
        """A port that nothing in this run has used."""
        return next(_ports)

    def at(self, port: int) -> str:
        """Address and port as URLs have them."""
        return self.placement.at(port)

    def command(self, side: str, argv: Sequence[str], user: str | None = None, road: Road | None = None) -> list[str]:
        """The whole command line: the side's namespace, the user, the road, the program."""
        become = (
            ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"] if user else []
        )
        return [*self.placement.prefix(side), *become, *(road or self.road).command(list(argv))]

    def _log(self, argv: Sequence[str]) -> Path:
        self._count += 1
        return self.directory / f"{self._count:02}-{Path(argv[0]).name}"

    def start(
        self,
        argv: Sequence[str],
        side: str = SERVER,
        user: str | None = None,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a program that runs until the site ends."""
        process = Process(self.command(side, argv, user), self._log(argv), directory or self.directory, environment)
        self._servers.append(process)
        return process

    def serve(self, argv: Sequence[str], *ports: int, **options: Any) -> Process:
        """Starts a server and waits until it listens on each of `ports`; no connection is made for that."""
        process = self.start(argv, **options)
        deadline = time.monotonic() + READY_S
        while not set(ports) <= _listening(process.pid):
            if process.code() is not None or time.monotonic() > deadline:
                said = process.wait(0.1).tail()
                raise ProgramFailed(f"{' '.join(argv)}: does not listen on {ports}\n{said}")
            time.sleep(0.02)
        return process

    def client(
        self,
        argv: Sequence[str],
        timeout_s: float = CLIENT_S,
        side: str = CLIENT,
        user: str | None = None,
        codes: tuple[int, ...] = (0,),
        plain: bool = False,
        **options: Any,
    ) -> Outcome:
        """Runs a client to its end; it must end with one of `codes`."""
        road = PLAIN if plain else self.road
        options.setdefault("directory", self.directory)
        outcome = run(self.command(side, argv, user, road), self._log(argv), timeout_s, **options)
        self.steps.append((" ".join(argv).replace(str(self.directory), "."), round(outcome.seconds, 2)))
        if outcome.code not in codes:
            how = f"ran out of time ({timeout_s:.0f} s)" if outcome.code is None else f"exit code {outcome.code}"
            raise ProgramFailed(f"{' '.join(argv)}: {how}\n{outcome.tail()}")
        return outcome

    def script(self, name: str, *arguments: object, **options: Any) -> dict[str, Any]:
        """Runs one of `clients/*.py`, which prints its results as JSON in the last line."""
        argv = [PYTHON, str(CLIENTS / name), *(str(argument) for argument in arguments)]
        lines = self.client(argv, **options).text.splitlines()
        check(lines, f"{name} printed no result")
        results: dict[str, Any] = json.loads(lines[-1])
        return results

    def data(self, name: str, size_bytes: int) -> Path:
        """A file of bytes that look random and are the same in every run."""
        path = self.directory / name
        path.write_bytes(random.Random(name).randbytes(size_bytes))
        path.chmod(0o644)
        return path


def _listening(pid: int) -> set[int]:
    """The TCP ports that are listened on in a process's network namespace."""
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        ports |= {int(row.split()[1].rpartition(":")[2], 16) for row in rows if row.split()[3] == _LISTEN}
    return ports
