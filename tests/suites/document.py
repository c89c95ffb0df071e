"""Writes docs/results/suites.md: how many cases did the same, per suite and mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compare import Verdict
from report import named
from suite import Suite

MODES = ("default", "eager", "eager-nospin", "chaos:7")
"""Those that come first in the table, in this order."""

HEAD = """# Public test suites

Cases of public test suites that did under Millrace what they do plain, of all cases. This page is written by
`tests/suites/run.py` when it has run all suites in one mode; see `tests/suites/README.md`. The end of each unit counts as
a case: a unit must not run out of time, or be killed, where it plainly is not. A *flaky* case did not do the same in every
plain run; it agrees when it did under Millrace what it did in any of them.
"""


def record(head: dict[str, Any], done: dict[str, dict[str, Any]], suites: list[Suite], place: Path) -> None:
    """Takes one mode's run of all suites into the figures that are kept, and writes the page."""
    file = place / "suites.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    verdicts = {suite.name: Verdict() for suite in suites}
    for name, result in done.items():
        verdicts[name.partition("/")[0]].add(named(name, result))
    kept[head["mode"]] = {
        "run": {name: head[name] for name in ("commit", "date", "kernel", "processors", "processor")},
        "seconds": round(sum(result["seconds"] for result in done.values())),
        "suites": {name: [verdict.agreed, sum(verdict.counts.values())] for name, verdict in verdicts.items()},
        "flaky": sum(len(verdict.flaky) for verdict in verdicts.values()),
        "differences": {case: why for verdict in verdicts.values() for case, why in verdict.differences.items()},
    }
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=1) + "\n")
    (place / "suites.md").write_text(_page(kept, suites))


def _page(kept: dict[str, dict[str, Any]], suites: list[Suite]) -> str:
    modes = sorted(kept, key=lambda mode: (MODES.index(mode) if mode in MODES else len(MODES), mode))
    lines = [HEAD, f"| suite | from | {' | '.join(modes)} |", f"|---|---|{'---|' * len(modes)}"]
    for suite in suites:
        pairs = [kept[mode]["suites"].get(suite.name, [0, 0]) for mode in modes]
        cells = [f"{agreed} of {cases}" if cases else "not run" for agreed, cases in pairs]
        lines.append(f"| {suite.name} | {suite.origin} | {' | '.join(cells)} |")
    lines += ["", "| mode | commit | date | machine | minutes | flaky | different |", "|---|---|---|---|---|---|---|"]
    for mode in modes:
        entry, run = kept[mode], kept[mode]["run"]
        machine = f"{run['processors']} processors, {run['processor']}, Linux {run['kernel']}"
        figures = [round(entry["seconds"] / 60), entry["flaky"], len(entry["differences"])]
        lines.append(f"| {mode} | {run['commit']} | {run['date']} | {machine} | {' | '.join(map(str, figures))} |")
    different = [
        f"| {mode} | {case.replace('|', '/')} | {why} |"
        for mode in modes
        for case, why in kept[mode]["differences"].items()
    ]
    if different:
        lines += ["", "## What differs", "", "| mode | case | how often |", "|---|---|---|", *different]
    lines += ["", "## What is left out, on both roads", ""]
    lines += [f"- {suite.name}: {what}: {why}" for suite in suites for what, why in suite.left_out.items()]
    return "\n".join(lines) + "\n"
