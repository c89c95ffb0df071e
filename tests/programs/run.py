#!/usr/bin/python3
"""Runs real programs on the plain kernel road and under Millrace, and compares their results.

    tests/programs/run.py [--quick] [--modes MODE,…] [--under COMMAND] [PROGRAM ...]

Each program runs over the loopback interface, between two network namespaces, and over IPv6. Exits with 0 when every
run was right and every result the same on all roads. A run of everything writes docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report  # noqa: E402
from catalogue import PROGRAMS  # noqa: E402
from placement import PLACEMENTS, Namespaces, Placement  # noqa: E402
from program import Program  # noqa: E402
from shares import Watcher  # noqa: E402
from site_of_run import CheckFailed, Site  # noqa: E402

from harness import isolate, packages, process, road  # noqa: E402

QUICK_PLACEMENTS = ("loopback",)
DOCUMENT = road.REPOSITORY / "docs" / "compatibility.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; all where none is named"
    )
    parser.add_argument(
        "--under", default=road.UNDER, help="command prefix; MODE in it stands for each mode; '' is plain again"
    )
    parser.add_argument(
        "--modes", default="default", help="values of MILLRACE_MODE, with commas (default: %(default)s)"
    )
    parser.add_argument("--placements", help=f"of {', '.join(PLACEMENTS)}, with commas")
    parser.add_argument("--quick", action="store_true", help="the quick programs, over the loopback interface alone")
    parser.add_argument("--results", default=str(road.REPOSITORY / "target/programs"), help="directory for the results")
    parser.add_argument(
        "--document", help="where to write the table (default: docs/compatibility.md, of whole runs under Millrace)"
    )
    options = parser.parse_args()
    unknown = set(options.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    return options


def run_once(program: Program, placement: Placement, which: road.Road) -> dict[str, Any]:
    """One program at one placement on one road."""
    began = time.monotonic()
    row: dict[str, Any] = {"program": program.name, "placement": placement.name, "road": which.name}
    with Watcher(which) as watcher:
        try:
            with Site(placement, which) as site:
                row["steps"] = site.steps
                row["results"] = program.run(site)
            row["ok"] = True
        except (CheckFailed, process.ProgramFailed, OSError, ValueError, LookupError) as error:
            row |= {"ok": False, "why": f"{type(error).__name__}: {error}"}
    return row | {
        "seconds": round(time.monotonic() - began, 1),
        "shares": watcher.shares(),
        "reasons": watcher.reasons(),
    }


def _judge(row: dict[str, Any], plain: dict[str, Any]) -> None:
    """A run whose results are not those of the plain road has failed."""
    if row["ok"] and plain["ok"] and row["results"] != plain["results"]:
        different = [name for name in plain["results"] if row["results"].get(name) != plain["results"][name]]
        why = "; ".join(f"{name}: {row['results'].get(name)} instead of {plain['results'][name]}" for name in different)
        row |= {"ok": False, "why": f"other results than on the plain road: {why}"}


def _run_all(
    programs: list[Program], placements: list[Placement], roads: list[road.Road], agents: set[int]
) -> list[dict[str, Any]]:
    rows = []
    for program in programs:
        for placement in placements:
            if placement.name not in program.placements:
                continue
            plain: dict[str, Any] = {}
            for which in roads:
                row = run_once(program, placement, which)
                plain = plain or row
                _judge(row, plain)
                row["strays"] = process.end_strays(agents) if isolate.is_inside() else []
                report.line(row)
                rows.append(row)
    return rows


def main() -> int:
    """Runs what the command line asks for."""
    options = _arguments()
    chosen = [PROGRAMS[name] for name in options.programs] or [
        p for p in PROGRAMS.values() if p.quick or not options.quick
    ]
    if not isolate.is_inside():
        packages.install(
            ["iproute2", "util-linux", "python3", *(package for program in chosen for package in program.packages)]
        )
    isolate.ensure()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o022)
    names = (
        options.placements.split(",")
        if options.placements
        else QUICK_PLACEMENTS
        if options.quick
        else tuple(PLACEMENTS)
    )
    placements = [PLACEMENTS[name] for name in names if isolate.is_inside() or not PLACEMENTS[name].separate]
    roads = [road.PLAIN, *dict.fromkeys(road.under(options.under, mode) for mode in options.modes.split(","))]
    results = Path(options.results)
    results.mkdir(parents=True, exist_ok=True)
    began, commit = time.monotonic(), road.commit()
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(road.Agent(roads[1], results / "agent"))
        if any(placement.separate for placement in placements):
            stack.enter_context(Namespaces())
        rows = _run_all(chosen, placements, roads, agent.pids)
    facts = {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.monotonic() - began),
        **road.machine(),
    }
    (results / "results.json").write_text(json.dumps({"facts": facts, "rows": rows}, indent=1))
    whole = len(chosen) == len(PROGRAMS) and len(placements) == len(PLACEMENTS) and roads[1].millrace
    document = Path(options.document) if options.document else DOCUMENT if whole else None
    if document:
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_text(report.document(list(PROGRAMS.values()), rows, facts))
    return report.summary(rows, facts, results / "results.json")


if __name__ == "__main__":
    sys.exit(main())
