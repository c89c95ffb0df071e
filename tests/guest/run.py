#!/usr/bin/python3
"""What this machine's kernel lacks, in a small guest with Debian's stock kernel: plain and under Millrace alike.

    tests/guest/run.py [--only GROUP] [--millrace PATH]

A case runs plain once, and under `millrace run` in several modes. Exits with 0 when all did what the plain one did. Where no guest
can run, that is said, and counted as skipped. Needs once the network, for the kernel.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import inside  # noqa: E402
import machine  # noqa: E402
from harness import cases, isolate, process, road  # noqa: E402

HERE = Path(__file__).resolve().parent
# Where the guest has the repository.
THERE = Path("/mnt")
BUILT = machine.PLACE / "programs"
RUN_S = 2400.0


def _in_guest(path: Path) -> str:
    """A path of this machine as the guest's users reach it."""
    path = path.resolve()
    return str(THERE / path.relative_to(road.REPOSITORY) if path.is_relative_to(road.REPOSITORY) else path)


def _sources() -> list[Path]:
    names = sorted({name for group in inside.GROUPS.values() for name in group.programs})
    return [next(place / f"{name}.c" for place in (HERE, cases.TRAPS) if (place / f"{name}.c").exists()) for name in names]


def _follow(guest: process.Process, limit_s: float) -> list[str]:
    """Shows what the guest reports, until it ends; returns the lines."""
    deadline = time.monotonic() + limit_s
    lines: list[str] = []
    with open(guest.output, errors="replace") as report:
        is_over, line = False, ""
        while not is_over and time.monotonic() < deadline:
            is_over = guest.code() is not None
            while part := report.readline():
                line += part
                if line.endswith("\n"):
                    lines.append(line.rstrip())
                    if not lines[-1].endswith(" skipped") and not lines[-1].startswith("ended with "):
                        print(lines[-1], flush=True)
                    line = ""
            time.sleep(0.2)
    return lines


def _summed(lines: list[str]) -> list[int]:
    """Passed, failed and skipped, over the groups."""
    counts = [[int(part.split()[0]) for part in line.split(", ")] for line in lines if line.endswith(" skipped")]
    return [sum(column) for column in zip(*counts, strict=True)] or [0, 0, 0]


def main() -> int:
    """Boots a guest that runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GROUP", choices=inside.GROUPS, help="one of: " + ", ".join(inside.GROUPS))
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE, help="the program to test")
    options = parser.parse_args()
    groups = [options.only] if options.only else list(inside.GROUPS)
    machine.PLACE.mkdir(parents=True, exist_ok=True)
    try:
        machine.require()
        # Before the run is cut off from the network.
        kernel = machine.kernel()
    except machine.Lacking as lacking:
        print(f"skipped: {lacking}")
        print(f"0 passed, 0 failed, {len(groups)} skipped")
        return 0
    isolate.ensure()
    cases.build(_sources(), BUILT)
    program = _in_guest(HERE / "inside.py")
    command = ["/usr/bin/python3", program, "--millrace", _in_guest(options.millrace), "--built", _in_guest(BUILT), *groups]
    archive = machine.initramfs(kernel, inside.KERNEL_MODULES, command)
    console = machine.PLACE / "console"
    start = time.monotonic()
    with process.Process(machine.qemu(kernel, archive, console), machine.PLACE / "report") as guest:
        lines = _follow(guest, RUN_S)
    print(f"a guest with Linux {kernel.release}, {time.monotonic() - start:.0f} s")
    passed, failed, skipped = _summed(lines)
    ended = lines[-1] if lines else ""
    if ended != "ended with 0" and failed == 0:
        failed += 1
        said = console.read_text(errors="replace").splitlines()[-30:] if console.exists() else []
        print("the guest did not end well:\n  " + "\n  ".join([*said, *guest.errors.read_text(errors="replace").splitlines()]))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
