"""Compares what the cases of a unit did on the plain road and under Millrace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cases import PASSED, SKIPPED, Cases

MISSING = "missing"


@dataclass
class Verdict:
    """What the runs of one unit say together."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: dict[str, str] = field(default_factory=dict)
    flaky: dict[str, str] = field(default_factory=dict)

    @property
    def agreed(self) -> int:
        """How many cases did under Millrace what they do plain."""
        return sum(self.counts.values()) - len(self.differences)

    def add(self, other: Verdict) -> None:
        """Adds the counts of another unit."""
        self.counts += other.counts
        self.differences |= other.differences
        self.flaky |= other.flaky


def _evidence(runs: list[Cases], case: str) -> str:
    """For instance `passed 4, failed 1`."""
    counted = Counter(run[case] if case in run else MISSING for run in runs)
    return ", ".join(f"{result} {count}" for result, count in sorted(counted.items()))


def compare(plain: list[Cases], under: list[Cases], known: dict[str, str]) -> Verdict:
    """Each case under Millrace must do what it did in some plain run.

    A case that does not do the same in every plain run is flaky, and listed with the evidence; `known` names cases
    that earlier runs on the plain road showed to be flaky, with theirs. A run may hold only some of the cases
    (a repetition): each case is judged by the runs that hold it, but the first run of either side holds all.
    """
    verdict = Verdict()
    for case in sorted(set(plain[0]) | set(under[0])):
        plainly = [run for run in plain if case in run or run is plain[0]]
        unders = [run for run in under if case in run or run is under[0]]
        results = {run.get(case, MISSING) for run in plainly}
        found = {run.get(case, MISSING) for run in unders}
        verdict.counts[max(results, key=lambda result: (result == PASSED, result == SKIPPED))] += 1
        if len(results) > 1 or case in known:
            verdict.flaky[case] = "plain: " + known.get(case, _evidence(plainly, case))
        if not found <= results and case not in known:
            verdict.differences[case] = f"plain: {_evidence(plainly, case)}; under: {_evidence(unders, case)}"
    return verdict
