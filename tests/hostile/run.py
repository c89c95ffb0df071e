#!/usr/bin/python3
"""Sets hostile peers, clients and agents on programs under Millrace, and checks that nobody else suffers.

    tests/hostile/run.py [--seed N] [--rounds N] [--seconds N] [--modes MODE,...] [--kinds KIND,...] [--styles STYLE,...]
    tests/hostile/run.py --seed N --only ROUND [--repeat N]

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
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent), str(HERE.parent / "kills")]

from hostility import KINDS, STYLES, draw  # noqa: E402
from site_of_hostility import HostileSite  # noqa: E402
from trial import Trial  # noqa: E402

from harness import isolate, road  # noqa: E402

PROGRAMS = {
    "traffic": (HERE.parent / "kills/traffic", road.REPOSITORY / "target/kills"),
    "hostile": (HERE / "peer", road.REPOSITORY / "target/hostile"),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="what the rounds are drawn from (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no round after so many seconds")
    parser.add_argument("--modes", default="eager,default,chaos:7", help="with commas (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="in turn, with commas (default: %(default)s)")
    parser.add_argument("--styles", default=",".join(STYLES), help="of attacks, with commas (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="ROUND", help="run this round alone")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="that round so many times")
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every round")
    return parser.parse_args()


def _build() -> None:
    for manifest, target in PROGRAMS.values():
        command = ["cargo", "build", "--release", "--quiet", "--manifest-path", str(manifest / "Cargo.toml")]
        subprocess.run([*command, "--target-dir", str(target)], check=True)


def main() -> int:
    """Runs the rounds; returns the exit code."""
    options = _arguments()
    if not isolate.is_inside():
        _build()
    isolate.ensure()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kinds = (options.modes.split(","), options.kinds.split(","), options.styles.split(","))
    numbers = range(options.rounds) if options.only is None else [options.only] * options.repeat
    directory = Path(tempfile.mkdtemp(prefix="millrace-hostile-"))
    deadline = time.monotonic() + options.seconds
    programs = [target / "release" / name for name, (_, target) in PROGRAMS.items()]
    try:
        with HostileSite(options.millrace.resolve(), *programs, directory) as site:
            trial = Trial(site, options.verbose)
            for number in numbers:
                if time.monotonic() > deadline:
                    break
                trial.run(draw(options.seed, number, *kinds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return trial.report()


if __name__ == "__main__":
    sys.exit(main())
