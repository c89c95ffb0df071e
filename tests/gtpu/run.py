#!/usr/bin/python3
"""GTP-U beside others who speak it: tshark's dissector, scapy's layers, and go-gtp's user plane.

    tests/gtpu/run.py [--full] [--seed N] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import captures  # noqa: E402
import peers  # noqa: E402
from harness import examples, isolate, packages  # noqa: E402
from rig import Skipped, Wrong  # noqa: E402

Case = Callable[[ExitStack, Path], None]


def cases(seed: int, thorough: bool) -> dict[str, Case]:
    """Each by its name."""
    found: dict[str, Case] = {}
    count = 20_000 if thorough else 600
    found["tshark: reads what we write"] = lambda _, place: captures.written(place, seed, count)
    found["tshark: reads a capture of others as we do"] = lambda _, place: captures.kept(place)
    found["scapy: what it writes we read, and so does tshark"] = lambda _, place: captures.from_scapy(place, seed, count // 10)
    found["scapy: reads what went through the function"] = lambda _, place: captures.through(place, seed, count // 10)
    found["go-gtp: packets, echoes, errors, last messages"] = peers.talks
    if thorough:
        found["go-gtp: it is asked, and dies"] = peers.dies
    return found


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of messages (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="all cases, and more messages")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    every = cases(options.seed, options.full)
    wanted = {name: case for name, case in every.items() if not options.cases or any(part in name for part in options.cases)}
    if not isolate.is_inside():
        packages.install(["tshark|tshark", "python3-scapy"])
        examples.build()
        peers.build()
    isolate.ensure()
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name, case in wanted.items():
        began = time.monotonic()
        outcome, why = "ok", ""
        with tempfile.TemporaryDirectory(prefix="millrace-gtpu-") as place, ExitStack() as stack:
            try:
                case(stack, Path(place))
            except Skipped as skipped:
                outcome, why = "skipped", f": {skipped}"
            except (Wrong, OSError, subprocess.SubprocessError) as error:
                outcome, why = "FAILED", f": {error}"
        counts[outcome] += 1
        print(f"{outcome:8}{time.monotonic() - began:5.1f} s  {name}{why}", flush=True)
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
