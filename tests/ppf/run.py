#!/usr/bin/python3
"""The packet processing function between stacks of the kernel's, messages of scapy's and tshark, and when it is killed.

    tests/ppf/run.py [--full] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.dont_write_bytecode = True
TESTS = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(TESTS), str(TESTS / "switch")]

import exchange  # noqa: E402
import kept  # noqa: E402
import kernel  # noqa: E402
import long  # noqa: E402
import told  # noqa: E402
import treated  # noqa: E402
from harness import isolate, road  # noqa: E402
from rig import Skipped, Wrong  # noqa: E402

Case = Callable[[ExitStack, Path], None]

FULL = {
    "idle: it sleeps",
    "relay: IPv6",
    "long: first parts alone",
    "traced: two workers",
    "wrong: 20 000 frames",
    "kernel: the device gtp",
    "guest: its device gtp",
}
"""What is left to the full run."""


def cases(thorough: bool) -> dict[str, Case]:
    """Each by its name."""
    found: dict[str, Case] = {"stations: ARP, neighbour discovery, pings": exchange.stations}
    for name, family in (("IPv4", socket.AF_INET), ("IPv6", socket.AF_INET6)):
        found[f"relay: {name}"] = lambda stack, place, family=family: exchange.relay(stack, place, family)
    found["relay: two workers"] = exchange.workers
    found["relay: queues of two workers"] = exchange.queues
    found["data network: a user talks UDP"] = exchange.data_network
    found["dissected: scapy and tshark"] = exchange.dissected
    found["treated: flows, marks, limits, pauses"] = treated.treated
    found["long: parts between tunnels"] = long.relayed
    found["long: users and the data network"] = long.users
    found["long: first parts alone"] = long.flood
    found["told: peers that answer, and do not"] = told.supervised
    found["traced: a bearer's frames"] = told.traced
    found["traced: two workers"] = told.traced_by_two
    found["wrong: 20 000 frames"] = exchange.wrong
    count, kills, many = (200_000, 100, 1_000_000) if thorough else (5_000, 3, 50_000)
    found["changed: while packets pass"] = lambda stack, place: kept.changed(stack, place, count)
    found["kernel: the device gtp"] = kernel.peer
    found["guest: its device gtp"] = kernel.in_guest
    found["idle: it sleeps"] = kept.sleeps
    found["killed: with many bearers"] = lambda stack, place: kept.restored(stack, place, many)
    found["killed: under load"] = lambda stack, place: kept.killed(stack, place, kills)
    return found


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cases, a hundred kills, and a million bearers")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    every = cases(options.full)
    if options.cases:
        wanted = {name: case for name, case in every.items() if any(part in name for part in options.cases)}
    else:
        wanted = {name: case for name, case in every.items() if options.full or name not in FULL}
        if len(wanted) < len(every):
            print(f"{len(every) - len(wanted)} cases are left to the full run")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: namespaces of the kernel need root, and ip (Debian's package is iproute2)")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    if not isolate.is_inside() and any(name.startswith("guest") for name in wanted):
        kernel.prepare()
    isolate.ensure()
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name, case in wanted.items():
        began = time.monotonic()
        outcome, why = "ok", ""
        with tempfile.TemporaryDirectory(prefix="millrace-ppf-") as place, ExitStack() as stack:
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
