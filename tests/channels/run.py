#!/usr/bin/python3
"""Channels: the user plane of `examples/` in namespaces and containers, and participants that are killed or scribble.

    tests/channels/run.py [--millrace PATH] [--seed N] [--kills N] [--seconds N] [CASE ...]

README.md says what is checked. A CASE is a part of the names of those to run. Exits with 0 when every case was right.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from harness import isolate, road  # noqa: E402
from harness.process import ProgramFailed  # noqa: E402

import control_groups  # noqa: E402
import huge  # noqa: E402
import labels  # noqa: E402
import plane  # noqa: E402
from kills import SCENARIOS, Round, Scenario  # noqa: E402
from site_of_channels import Lacking, Site  # noqa: E402

HERE = Path(__file__).resolve().parent
PARTICIPANT = road.REPOSITORY / "target/channels/release/participant"
USERPLANE = road.REPOSITORY / "target/xtask/userplane"
HUGE = "pools of huge pages"
CONTROL_GROUPS = "rules by control group"
FAULTS = 20
"""Of a round."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE, help="the program to test")
    parser.add_argument("--seed", type=int, default=1, help="what the rounds are drawn from (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=240, metavar="N", help="faults in all (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no round of kills after so many seconds")
    parser.add_argument("--first", type=int, default=0, metavar="ROUND", help="begin with this round of each case of kills")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    return parser.parse_args()


def _build() -> None:
    """Builds the programs; what was built before does where Cargo cannot be had."""
    own = ["--release", "--manifest-path", str(HERE / "participant/Cargo.toml"), "--target-dir", str(PARTICIPANT.parents[1])]
    for options in (own, ["--profile", "xtask", "--package", "millrace-userplane"]):
        subprocess.run(["cargo", "build", "--quiet", *options], check=True, cwd=road.REPOSITORY)


class Run:
    """The cases, and how they went."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options = options
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.deadline = time.monotonic() + options.seconds

    def is_wanted(self, name: str) -> bool:
        """Whether it is among those that were named."""
        return not self.options.cases or any(case in name for case in self.options.cases)

    def play(self, name: str, case: Callable[[], str | None]) -> None:
        """Runs a case, and says how it went."""
        began = time.monotonic()
        try:
            wrong = case()
        except Lacking as lack:
            return self.skip(name, str(lack))
        except (ProgramFailed, subprocess.SubprocessError, plane.EngineFailed) as error:
            wrong = str(error)
        said = f"{'FAILED' if wrong else 'ok':8}{time.monotonic() - began:5.1f} s  {name}"
        print(f"{said}: {wrong}" if wrong else said, flush=True)
        self.counts["failed" if wrong else "passed"] += 1

    def skip(self, name: str, why: str) -> None:
        """Says that a case cannot run here."""
        print(f"skipped           {name}: {why}", flush=True)
        self.counts["skipped"] += 1

    def kill(self, scenario: Scenario) -> str | None:
        """Rounds of one scenario; what was wrong."""
        number = self.options.first
        place = self.directory / f"kills{SCENARIOS.index(scenario)}"
        left = self.options.kills // len(SCENARIOS)
        with Site(self.options.millrace.resolve(), place) as site:
            while left > 0 and (time.monotonic() < self.deadline or number == self.options.first):
                source = random.Random(f"{self.options.seed}/{scenario.name}/{number}")
                turn = Round(site, PARTICIPANT, scenario, source, place / f"round{number}")
                wrong = turn.play(min(FAULTS, left))
                self.done.update(turn.done)
                self.done["messages"] += turn.messages
                self.done.update({"messages dropped": turn.dropped} if turn.dropped else {})
                if wrong:
                    return f"round {number}: {'; '.join(wrong)}"
                shutil.rmtree(turn.place)
                left -= FAULTS
                number += 1
        return None

    def report(self) -> int:
        """The closing lines; returns the exit code."""
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        print(f"figure: {done or 'no kills'}")
        print(f"{self.counts['passed']} passed, {self.counts['failed']} failed, {self.counts['skipped']} skipped")
        return 1 if self.counts["failed"] else 0


def main() -> int:
    """Runs the cases; returns the exit code."""
    options = _arguments()
    if not isolate.is_inside():
        _build()
    isolate.ensure()
    if not isolate.is_inside():
        print("not root: there are no namespaces to be had", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # podman has its locks there, and leaves them.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
    directory = Path(tempfile.mkdtemp(prefix="millrace-channels-"))
    directory.chmod(0o755)
    run = Run(options, directory)
    try:
        millrace = options.millrace.resolve()
        containers = (*plane.cases(millrace, USERPLANE, directory, options.seed), *labels.cases(millrace, directory))
        for name, case, why_not in containers:
            if not run.is_wanted(name):
                continue
            if why_not:
                run.skip(name, why_not)
            else:
                run.play(name, case)
        if run.is_wanted(HUGE):
            run.play(HUGE, lambda: huge.case(options.millrace.resolve(), directory / "huge"))
        if run.is_wanted(CONTROL_GROUPS):
            run.play(CONTROL_GROUPS, lambda: control_groups.case(options.millrace.resolve(), PARTICIPANT, directory / "groups"))
        for scenario in SCENARIOS:
            if run.is_wanted(scenario.name):
                run.play(scenario.name, lambda scenario=scenario: run.kill(scenario))
    finally:
        plane.clean_up()
        shutil.rmtree(directory, ignore_errors=True)
    return run.report()


if __name__ == "__main__":
    sys.exit(main())
