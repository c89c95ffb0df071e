"""What the cases of `millrace bench` share: how it is run, its results, and what it has left behind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

LIMIT_S = 180.0
# Two short trials, which are not void for what other cases do meanwhile.
QUICK = ["--quick", "--repeat", "2", "--time", "0.3", "--pin", "none"]

SCENARIO = """
title = "A scenario of the user's own"
about = "Two programs of the C library's age."
[server]
command = "python3 -m http.server --bind {{bind}} {{port}}"
[[case]]
name = "one"
title = "one request"
client = "{client} {{clients}}"
read = "result-line"
unit = "operations_per_second"
grid = [{{ clients = [1, 2] }}]
quick = [{{ clients = [1] }}]
"""
# Measured with what the interface has carried before and after.
MEASURED = """
title = "A scenario that looks at the interface"
about = "What it has carried before, and after."
[server]
command = {server}
[[case]]
name = "one"
title = "one"
client = {client}
read = "{read}"
unit = "{unit}"
grid = [{{ clients = [50] }}]
quick = [{{ clients = [50] }}]
"""
ANSWER = "echo result: requests 1000 microseconds 500000 errors 0 p50 1 p99 2 p99.9 3"
# bpf(2): its number, commands, and the kinds of programs that a sockmap has.
SYS_BPF = {"x86_64": 321}.get(os.uname().machine, 280)
NEXT_ID, PROGRAM_BY_ID, INFORMATION = 11, 13, 15
SPLICING = {13: "sock_ops", 16: "sk_msg"}


class Stage:
    """Runs the suite, each time with a directory of its own for the results."""

    def __init__(self, millrace: str, directory: Path) -> None:
        self.millrace = millrace
        self.directory = directory

    def command(self, *words: str) -> list[str]:
        """A command line of `millrace bench`."""
        return [self.millrace, "bench", *words]

    def bench(
        self, *words: str, path: Path | None = None, program: str | None = None, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs it, or another `program`, to its end; programs are looked for in `path` first."""
        own = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"])
        command = [program or self.millrace, "bench", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=own | (environment or {}))

    def program(self, name: str, script: str) -> Path:
        """A directory with a program that is found before the machine's own, as which the script calls `{real}`."""
        directory = self.directory / f"instead of {name}".replace(" ", "-")
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(script.format(real=shutil.which(name)))
        (directory / name).chmod(0o755)
        return directory

    def results(self, name: str) -> dict[str, Any]:
        """What a run has kept."""
        return json.loads((self.directory / name / "results.json").read_text())  # type: ignore[no-any-return]

    def scenario(self, name: str, client: str) -> str:
        """A scenario's file."""
        path = self.directory / f"{name}.toml"
        path.write_text(SCENARIO.format(client=client))
        return str(path)

    def out(self, name: str) -> list[str]:
        """The option that names the directory of results."""
        return ["--out", str(self.directory / name)]


def counted(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The trials that count, by road."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        trials = [trial for trial in cell["trials"] if trial["outcome"] == "counts"]
        found.setdefault(cell["road"], []).extend(trials)
    return found


def limited(files: int, command: list[str]) -> list[str]:
    """A command whose processes are known by their hard limit of open files, which they cannot raise: see `alive`."""
    return ["prlimit", f"--nofile={files}:{files}", *command]


def alive(files: int) -> list[str]:
    """The command lines of processes with that limit."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            limits = (entry / "limits").read_text() if entry.name.isdigit() else ""
            if any(line.split()[:5] == ["Max", "open", "files", str(files), str(files)] for line in limits.splitlines()):
                found.append(f"{entry.name} {(entry / 'cmdline').read_text()}")
        except OSError:
            continue  # gone meanwhile
    return found


def splicing_programs() -> set[str]:
    """The BPF programs in this kernel that could be a sockmap's."""
    bpf = ctypes.CDLL(None, use_errno=True).syscall
    found, number = set(), 0
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("=I", number), 128)
        if bpf(SYS_BPF, NEXT_ID, attributes, 128) < 0:
            return found
        number = struct.unpack_from("=I", attributes, 4)[0]
        program = bpf(SYS_BPF, PROGRAM_BY_ID, ctypes.create_string_buffer(struct.pack("=I", number), 128), 128)
        if program < 0:
            continue  # gone meanwhile
        about = ctypes.create_string_buffer(256)
        request = struct.pack("=IIQ", program, 256, ctypes.addressof(about))
        bpf(SYS_BPF, INFORMATION, ctypes.create_string_buffer(request, 128), 128)
        os.close(program)
        kind = struct.unpack_from("=I", about)[0]
        if kind in SPLICING:
            found.add(f"{SPLICING[kind]} {number}")
