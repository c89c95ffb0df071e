#!/usr/bin/python3
"""Runs public test suites on the plain kernel road and under Millrace, and compares them case by case.

    tests/suites/run.py [--quick] [--mode MODE] [--under COMMAND] [SUITE[:UNIT] ...]

Exits with 0 when every case did under Millrace what it does plain. A run of everything writes docs/results/suites.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cpython  # noqa: E402
import document  # noqa: E402
import kernel  # noqa: E402
import libevent  # noqa: E402
import libuv  # noqa: E402
import memcached  # noqa: E402
import redis  # noqa: E402
import report  # noqa: E402
from cases import FAILED, Cases  # noqa: E402
from compare import Verdict, compare  # noqa: E402
from suite import Suite, Unit  # noqa: E402

from harness import isolate, lock, packages, process, road  # noqa: E402

SUITES = {
    suite.name: suite
    for suite in (kernel.SUITE, cpython.SUITE, libuv.SUITE, libevent.SUITE, memcached.SUITE, redis.SUITE)
}
DOCUMENTED = road.REPOSITORY / "docs" / "results"
FLAKY = Path(__file__).with_name("flaky.toml")
END = "(the end of the unit)"
CONFIRMED_CASES = 40


class Runner:
    """Runs units on one road or the other, and keeps what they did in files."""

    def __init__(self, options: argparse.Namespace, under: road.Road, agents: set[int]) -> None:
        self.options = options
        self.under = under
        self.agents = agents
        self.known: dict[str, dict[str, str]] = tomllib.loads(FLAKY.read_text()) if FLAKY.exists() else {}

    def unit(self, suite: Suite, unit: Unit) -> dict[str, object]:
        """Runs a unit as often as it takes; returns its part of the result file."""
        began = time.monotonic()
        plain = self._plain(suite, unit)
        under = [self._once(suite, unit, self.under, self._place(suite, unit, self.under) / "0")]
        known = self.known.get(f"{suite.name}/{unit.name}", {})
        verdict = compare(plain, under, known)
        for attempt in range(1, self.options.confirm + 1):
            if not verdict.differences:
                break
            chosen = [case for case in verdict.differences if case != END]
            part = chosen if unit.select and END not in verdict.differences and len(chosen) <= CONFIRMED_CASES else []
            place = self._place(suite, unit, self.under)
            under.append(self._once(suite, unit, self.under, place / str(attempt), part))
            plain.append(self._once(suite, unit, road.PLAIN, place / f"plain-{attempt}", part))
            verdict = compare(plain, under, known)
        report.unit(suite, unit, verdict, time.monotonic() - began)
        return {"seconds": round(time.monotonic() - began, 1), "plain": plain, "under": under, **vars(verdict)}

    def _plain(self, suite: Suite, unit: Unit) -> list[Cases]:
        """The plain runs: as many as asked for, from an earlier run of this machine, or one beside, where that is allowed."""
        place = self._place(suite, unit, road.PLAIN)
        key = [suite.origin, unit.argv, str(unit.directory), unit.environment, os.uname().release]
        kept = place / "plain.json"
        # Runs in other modes may come to this unit at the same time.
        with lock.held(place / "lock"):
            if self.options.reuse_plain and kept.exists() and (old := json.loads(kept.read_text()))["key"] == key:
                runs: list[Cases] = old["runs"]
                return runs
            runs = [self._once(suite, unit, road.PLAIN, place / str(number)) for number in range(self.options.plain_runs)]
            kept.write_text(json.dumps({"key": key, "runs": runs}, indent=1))
            return runs

    def _place(self, suite: Suite, unit: Unit, which: road.Road) -> Path:
        place = (
            Path(self.options.results)
            / which.name.replace(" ", "-")
            / suite.name
            / unit.name.replace("/", "-").replace(" ", "-")
        )
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _once(self, suite: Suite, unit: Unit, which: road.Road, work: Path, part: list[str] | None = None) -> Cases:
        """One process of the unit, in a directory that is emptied for it, with everything it leaves behind ended after it."""
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        argv = unit.select(part) if part and unit.select else unit.argv
        argv = which.command([word.replace("{work}", str(work)) for word in argv])
        environment = {"TMPDIR": str(work), "HOME": str(work), **unit.environment}
        # Tests that are run where their sources are write there, too.
        alone = lock.held(Path(self.options.results) / f"{suite.name}.lock") if unit.directory else nullcontext()
        with alone:
            outcome = process.run(
                argv, work / "log", unit.timeout_s, directory=unit.directory or work, environment=environment, merged=True
            )
        strays = process.end_strays(self.agents) if isolate.is_inside() else []
        cases = unit.parse(work)
        if part:
            # The others may be listed as skipped, which says nothing about them.
            cases = {case: cases.get(case, FAILED) for case in part}
        else:
            cases[END] = (
                "ran out of time"
                if outcome.code is None
                else f"signal {-outcome.code}"
                if outcome.code < 0
                else "ended"
            )
        (work / "result.json").write_text(
            json.dumps({"code": outcome.code, "strays": strays, "cases": cases}, indent=1)
        )
        return cases


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE[:UNIT]", help=f"of {', '.join(SUITES)}; all where none is named"
    )
    parser.add_argument(
        "--under", default=road.UNDER, help="command prefix; MODE in it stands for --mode; '' is plain again"
    )
    parser.add_argument("--mode", default="default", help="value of MILLRACE_MODE (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only the units that a short run consists of")
    parser.add_argument(
        "--plain-runs", type=int, default=2, help="how often each unit runs plain (default: %(default)s)"
    )
    parser.add_argument(
        "--confirm", type=int, default=3, help="how often a difference is repeated (default: %(default)s)"
    )
    parser.add_argument(
        "--reuse-plain", action="store_true", help="take plain runs from an earlier run where there are any"
    )
    parser.add_argument(
        "--resume", action="store_true", help="skip units that the result file of this commit and mode has"
    )
    parser.add_argument(
        "--results", default=str(road.REPOSITORY / "target/suites"), help="directory for results and sources"
    )
    parser.add_argument("--list", action="store_true", help="list suites and units, and end")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[tuple[Suite, Unit]]:
    """The units that the command line names; fetches and builds their suites where that is still to do."""
    wanted = [name.partition(":")[::2] for name in options.suites] or [(name, "") for name in SUITES]
    sources = Path(options.results) / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    if not isolate.is_inside():
        packages.install(package for name, _ in wanted for package in SUITES[name].packages)
    pairs = []
    for name, unit_name in wanted:
        suite = SUITES[name]
        for unit in suite.units(sources):
            if unit_name in ("", unit.name) and (unit_name or not options.quick or unit.name in suite.quick):
                pairs.append((suite, unit))
    return pairs


def main() -> int:
    """Runs what the command line asks for."""
    options = _arguments()
    os.umask(0o022)
    shared = Path(options.results) / "lock"
    with lock.held(shared):
        pairs = _chosen(options)
    if options.list:
        report.listing(pairs)
        return 0
    isolate.ensure()
    under = road.under(options.under, options.mode)
    results = Path(options.results) / f"{under.name.replace(' ', '-').replace(':', '-')}.json"
    head = {
        "commit": road.commit(),
        "date": time.strftime("%Y-%m-%d"),
        "mode": under.name,
        "under": under.prefix,
        **road.machine(),
    }
    done: dict[str, dict[str, object]] = {}
    if options.resume and results.exists() and (old := json.loads(results.read_text()))["commit"] == head["commit"]:
        done = old["units"]
    total = Verdict()
    with road.Agent(under, results.with_name(f"{results.stem}-agent")) as agent:
        runner = Runner(options, under, agent.pids)
        for suite, unit in pairs:
            name = f"{suite.name}/{unit.name}"
            if name not in done:
                done[name] = runner.unit(suite, unit)
                results.write_text(json.dumps({**head, "units": done}, indent=1))
    if under.millrace and not options.suites and not options.quick:
        with lock.held(shared):
            document.record(head, done, list(SUITES.values()), DOCUMENTED)
    for name, result in done.items():
        total.add(report.named(name, result))
    report.summary(
        under, total, [suite for suite in SUITES.values() if any(pair[0] is suite for pair in pairs)], results
    )
    return 1 if total.differences else 0


if __name__ == "__main__":
    sys.exit(main())
