#!/usr/bin/python3
"""Kills and stops programs that stream bytes under Millrace, and its agent, and checks what the others see.

    tests/kills/run.py [--seed N] [--rounds N] [--seconds N] [--modes MODE,...] [--millrace PATH]
    tests/kills/run.py --seed N --only ROUND [--repeat N]

README.md says what a round is and what is checked. Exits with 0 when every round was right.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plan import FAULTS, VARIANTS, draw  # noqa: E402
from runner import Runner  # noqa: E402
from site_of_kills import Site  # noqa: E402

from harness import isolate, road  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILT = road.REPOSITORY / "target/kills"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="what the rounds are drawn from (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no round after so many seconds")
    parser.add_argument(
        "--modes",
        default="eager,chaos:7,default",
        help="values of MILLRACE_MODE, with commas, or `plain` for the kernel alone (default: %(default)s)",
    )
    parser.add_argument(
        "--faults",
        default="all",
        choices=["all", "ends", "agent", *FAULTS],
        metavar="KIND",
        help="all, ends (no harm to the agent), agent, or one by name (default: %(default)s)",
    )
    parser.add_argument(
        "--variants", default=",".join(VARIANTS), help="how programs use sockets, with commas (default: %(default)s)"
    )
    parser.add_argument("--only", type=int, metavar="ROUND", help="run this round alone")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="that round so many times")
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="TEXT", help="leaks that are known: count findings with this text"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every round")
    return parser.parse_args()


def _build() -> Path:
    """Builds the program that streams; what was built before does where Cargo cannot be had."""
    command = ["cargo", "build", "--release", "--quiet", "--manifest-path", str(HERE / "traffic/Cargo.toml")]
    subprocess.run([*command, "--target-dir", str(BUILT)], check=True)
    return BUILT / "release/traffic"


def main() -> int:
    """Runs the rounds; returns the exit code."""
    options = _arguments()
    if not isolate.is_inside():
        _build()
    isolate.ensure()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    modes, variants = options.modes.split(","), options.variants.split(",")
    numbers = range(options.rounds) if options.only is None else [options.only] * options.repeat
    directory = Path(tempfile.mkdtemp(prefix="millrace-kills-"))
    deadline = time.monotonic() + options.seconds
    try:
        with Site(options.millrace.resolve(), BUILT / "release/traffic", directory) as site:
            runner = Runner(site, options.verbose, options.ignore)
            for number in numbers:
                if time.monotonic() > deadline:
                    break
                runner.run(draw(options.seed, number, modes, variants, options.faults))
            runner.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return runner.report()


if __name__ == "__main__":
    sys.exit(main())
