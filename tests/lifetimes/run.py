#!/usr/bin/python3
"""How long things live: agents in the background, and the shares that processes have in a connection after a fork.

    tests/lifetimes/run.py [--only CASE] [--millrace PATH]

`cases.py` has the programs; each runs under `millrace run` with an agent of its own, which `run` starts. A case asks by a
line which roads its connections take. When it has ended, the agent must leave. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import CASES  # noqa: E402

from harness import isolate, road  # noqa: E402

CASE_S = 60.0
LEAVES_S = 8.0
AT_A_TIME = 3
MODES = ("eager", "default")


def _run(millrace: Path, name: str, mode: str) -> list[str]:
    """Runs one case; returns what was wrong."""
    directory = Path(tempfile.mkdtemp(prefix="millrace-lifetimes-"))
    socket = directory / "run/agent.sock"
    environment = dict(os.environ, MILLRACE_AGENT=str(socket))
    program = [sys.executable, str(Path(__file__).with_name("cases.py")), name]
    with open(directory / "errors", "wb") as errors:
        process = subprocess.Popen(
            [millrace, "run", "--mode", mode, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(CASE_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        for _ in process.stdout:
            process.stdin.write(" ".join(road.roads(millrace, environment)) + "\n")
            process.stdin.flush()
        code = process.wait()
        timer.cancel()
    said = (directory / "errors").read_text()
    why = [f"ended with {code}\n{said}"] if code != 0 or said else []
    deadline = time.monotonic() + LEAVES_S
    while socket.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if socket.exists():
        why.append(f"its agent is still there {LEAVES_S} s later")
    shutil.rmtree(directory, ignore_errors=True)
    return why


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), metavar="CASE", help="one of: " + ", ".join(CASES))
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    options = parser.parse_args()
    isolate.ensure()
    work = [(name, mode) for name in ([options.only] if options.only else CASES) for mode in MODES]
    failed = 0
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = pool.map(lambda case: _run(options.millrace.resolve(), *case), work)
        for (name, mode), why in zip(work, results, strict=True):
            if why:
                failed += 1
                print(f"FAILED {name}, mode {mode}: " + "\n".join(why), flush=True)
    print(f"{len(work) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
