"""Prints what a run of the suites found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cases import FAILED, PASSED, SKIPPED
from compare import Verdict
from suite import Suite, Unit

from harness.road import Road


def listing(pairs: list[tuple[Suite, Unit]]) -> None:
    """Names every unit, and says which belong to a quick run."""
    for suite, unit in pairs:
        print(f"{suite.name}:{unit.name}{'  (quick)' if unit.name in suite.quick else ''}")


def unit(suite: Suite, of: Unit, verdict: Verdict, seconds: float) -> None:
    """One line for a unit, and one for each difference and each flaky case."""
    counts = ", ".join(f"{verdict.counts[result]} {result}" for result in (PASSED, FAILED, SKIPPED))
    judged = "differs" if verdict.differences else "same"
    print(f"{judged:8}{suite.name + ':' + of.name:44}{counts}  ({seconds:.0f} s)", flush=True)
    for case, evidence in verdict.differences.items():
        print(f"        DIFFERS {case}: {evidence}", flush=True)
    for case, evidence in verdict.flaky.items():
        print(f"        flaky   {case}: {evidence}", flush=True)


def named(name: str, result: dict[str, Any]) -> Verdict:
    """A verdict as the result file has it, with the unit's name before each case."""
    return Verdict(
        Counter(result["counts"]),
        {f"{name} {case}": evidence for case, evidence in result["differences"].items()},
        {f"{name} {case}": evidence for case, evidence in result["flaky"].items()},
    )


def summary(under: Road, total: Verdict, suites: list[Suite], results: Path) -> None:
    """The end of a run: what was left out and why, what is flaky, what differs, and the closing line, to which left out is skipped."""
    for suite in suites:
        for what, why in suite.left_out.items():
            print(f"left out on both roads: {suite.name}: {what}: {why}")
    print(f"plain and {under.name}: {len(total.flaky)} flaky on the plain road, {len(total.differences)} different")
    for case, evidence in total.differences.items():
        print(f"  {case}: {evidence}")
    print(f"results: {results}")
    left_out = sum(len(suite.left_out) for suite in suites)
    print(f"{total.agreed} passed, {len(total.differences)} failed, {left_out} skipped")
