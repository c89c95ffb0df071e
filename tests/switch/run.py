#!/usr/bin/python3
"""The switch beside the kernel's bridge and the kernel's VXLAN, between programs of DPDK's and of ours, and between pods of two nodes.

    tests/switch/run.py [--full] [--seeds N] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bridge  # noqa: E402
import ends  # noqa: E402
import handed  # noqa: E402
import idle  # noqa: E402
import kills  # noqa: E402
import kinds  # noqa: E402
import mirror  # noqa: E402
import nodes  # noqa: E402
import tcp  # noqa: E402
import tunnel  # noqa: E402
from harness import examples, isolate  # noqa: E402
from rig import Skipped, Wrong  # noqa: E402

Case = Callable[[ExitStack, Path], None]


FULL = {
    "kind vhost_user: testpmd",
    "kind virtio_user: testpmd",
    "kind ring: without an agent",
    "killed: between testpmd's ports",
    "nodes: iperf3",
    "nodes: the other node's switch is killed",
    "nodes: a worker is killed",
}
"""What is left to the full run, as it takes long."""


def cases(seeds: int, thorough: bool) -> dict[str, Case]:
    """Each by its name."""
    found: dict[str, Case] = {}
    for seed in range(seeds):
        found[f"bridge: random frames, seed {seed}"] = lambda stack, place, seed=seed: bridge.compare(stack, place, seed)
    for family in ("IPv4", "IPv6"):
        found[f"tunnel: {family}, stations of both hosts talk"] = lambda stack, place, family=family: tunnel.talks(stack, place, family)
        found[f"tunnel: {family}, what is outside"] = lambda stack, place, family=family: tunnel.outside(stack, place, family)
        found[f"tunnel: {family}, congestion"] = lambda stack, place, family=family: tunnel.congestion(stack, place, family)
    found["tunnel: VLANs have their networks"] = tunnel.networks
    for which, workers in (("", ""), (", by another worker", "processors = [0, 1]")):
        found[f"tunnel: what is too long{which}"] = lambda stack, place, workers=workers: tunnel.too_long(stack, place, workers)
    found["TCP: two TAP interfaces of one switch"] = tcp.beside
    found["TCP: two switches, and a memif between them"] = tcp.apart
    found["testpmd: through a switch and back"] = ends.through
    found["testpmd: changes meanwhile, and a peer that is killed"] = ends.changes
    found["mirror: as tshark reads it"] = mirror.read
    found["kind vhost_user: testpmd"] = kinds.vhost_user
    found["kind virtio_user: testpmd"] = kinds.virtio_user
    found["kind af_xdp: a veth"] = kinds.af_xdp
    found["handed: interfaces of another namespace"] = handed.used
    found["handed: the switch is killed"] = handed.dies
    found["handed: what is refused"] = handed.refused
    found["kind ring: another namespace"] = lambda stack, place: kinds.ring(stack, place, 10 if thorough else 1)
    found["kind ring: without an agent"] = kinds.ring_without_agent
    found["kind ring: packets in place"] = kinds.ring_in_place
    many, some = (300, 20) if thorough else (6, 3)
    found["killed: between peers that stay"] = lambda stack, place: kills.switch(stack, place, many)
    found["killed: between testpmd's ports"] = lambda stack, place: kills.behind_testpmd(stack, place, many // 3)
    found["nodes: pods of both talk"] = nodes.talk
    found["nodes: iperf3"] = nodes.iperf
    found["nodes: the other node's switch is killed"] = lambda stack, place: nodes.is_killed(stack, place, some)
    found["nodes: a worker is killed"] = lambda stack, place: nodes.worker_is_killed(stack, place, some)
    found["idle: it sleeps"] = idle.sleeps
    return found


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12, help="random runs beside the kernel's bridge (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="all cases, and hundreds of kills")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    every = cases(options.seeds, options.full)
    if options.cases:
        wanted = {name: case for name, case in every.items() if any(part in name for part in options.cases)}
    else:
        wanted = {name: case for name, case in every.items() if options.full or name not in FULL}
        if len(wanted) < len(every):
            print(f"{len(every) - len(wanted)} cases are left to the full run")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: bridges and tunnels of the kernel need root, and ip (Debian's package is iproute2)")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    if not isolate.is_inside():
        examples.build()
    isolate.ensure()
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name, case in wanted.items():
        began = time.monotonic()
        outcome, why = "ok", ""
        with tempfile.TemporaryDirectory(prefix="millrace-switch-") as place, ExitStack() as stack:
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
