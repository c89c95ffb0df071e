"""Prints the runs of real programs, and writes the table of docs/compatibility.md."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from placement import PLACEMENTS
from program import Program

Row = dict[str, Any]
WHY_COLUMNS = 90

HEAD = """# Compatibility

Real programs, unmodified, on the plain kernel road and under Millrace: each is put under the same load at every
placement, and must give the same results (checksums, counts, exit codes). This page is written by
`tests/programs/run.py`; every figure is of one run.

- date: {date}; commit: {commit}
- machine: {processors} processors, {processor}, Linux {kernel}
- placements: *loopback* (127.0.0.1), *namespaces* (two network namespaces, joined by a veth pair), *IPv6* (::1)

The last columns say how the bytes travelled that the programs exchanged, as `millrace ps` saw them while the load ran
(connections that lived for less than a fifth of a second are not seen), and why connections stayed on the kernel's
road. In a cell, *ok* means that the results were right and the same as on the plain road.
"""


def line(row: Row) -> None:
    """One line for one run."""
    said = "ok" if row["ok"] else "FAILED"
    print(
        f"{said:7}{row['program']:16}{row['placement']:12}{row['road']:14}{row['seconds']:6.1f} s  {_shares(row)}",
        flush=True,
    )
    if not row["ok"]:
        print("        " + row["why"].replace("\n", "\n        "), flush=True)
    if row["strays"]:
        print(f"        left behind: {', '.join(row['strays'])}", flush=True)


def _shares(row: Row) -> str:
    """For instance `shm 98 %, kernel 2 %`."""
    return ", ".join(
        f"{road} {share:.0%}".replace("%", " %") for road, share in sorted(row["shares"].items(), reverse=True)
    )


def _reasons(row: Row) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(row["reasons"].items()))


def document(programs: list[Program], rows: list[Row], facts: dict[str, Any]) -> str:
    """The whole page."""
    roads = list(dict.fromkeys(row["road"] for row in rows))
    parts = [HEAD.format(**facts), _overview(programs, rows, roads)]
    for which in roads[1:]:
        parts.append(_details([row for row in rows if row["road"] == which], which))
    failures = [row for row in rows if not row["ok"]]
    if failures:
        parts.append("## What failed\n\n" + "\n".join(_failure(row) for row in failures) + "\n")
    return "\n".join(parts)


def _failure(row: Row) -> str:
    first = textwrap.shorten(row["why"].splitlines()[0], WHY_COLUMNS, placeholder="…")
    return f"- {row['program']}, {row['placement']}, {row['road']}: {first}"


def _overview(programs: list[Program], rows: list[Row], roads: list[str]) -> str:
    """Programs and their loads, with one column per placement."""
    lines = ["## Programs\n", f"| program | load | {' | '.join(PLACEMENTS)} |", f"|---|---|{'---|' * len(PLACEMENTS)}"]
    for program in programs:
        cells = [
            _cell([row for row in rows if (row["program"], row["placement"]) == (program.name, name)], roads)
            for name in PLACEMENTS
        ]
        loads = program.loads + (f". *{program.remark}*" if program.remark else "")
        lines.append(f"| {program.name} | {loads} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: list[Row], roads: list[str]) -> str:
    if not rows:
        return "not applicable"
    failed = [row["road"] for row in rows if not row["ok"]]
    return f"failed: {', '.join(failed)}" if failed else "ok"


def _details(rows: list[Row], which: str) -> str:
    """One line per program and placement for one road."""
    lines = [
        f"## Roads: mode {which}\n",
        "| program | placement | result | seconds | bytes by road | on the kernel because |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        result = "ok" if row["ok"] else "failed"
        lines.append(
            f"| {row['program']} | {row['placement']} | {result} | {row['seconds']} | {_shares(row)} | {_reasons(row)} |"
        )
    return "\n".join(lines) + "\n"


def summary(rows: list[Row], facts: dict[str, Any], results: Path) -> int:
    """The closing lines; returns the exit code."""
    failed = sum(not row["ok"] for row in rows)
    print(f"{facts['seconds']} s; results: {results}")
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0
