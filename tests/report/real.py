"""A real run of the whole suite, as small as it can be, and its page."""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MILLRACE = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release/millrace"
LIMIT_S = 240.0
# Every scenario, once and briefly, beside other tests: nobody reads its figures.
RUN = ["bench", "run", "--quick", "--repeat", "1", "--time", "0.1", "--pin", "none", "--anew"]
ROADS = ["loopback", "millrace-loopback"]
# These need no program but ours, so that they are in each run, and have parts of the page that no other scenario has.
OURS = ["echo/blocking", "one-way/blocking", "http-minimal/own", "idle/memory"]
# Rows of the tables with this label, as texts of their cells, the first one the road or the parameters.
TABLES = """[...document.querySelectorAll('[aria-label="%s"]')].flatMap((part) => [...part.querySelectorAll("tbody tr:not(.set)")].map(
  (row) => [...row.children].map((cell) => cell.textContent.replaceAll("\\u00a0", " ").trim())))"""
# Of each scenario in the summary, its link and what its cells say, with the text of the notes that they have.
SUMMARY = """[...document.querySelectorAll("table.summary tbody")].map((body) => ({
  link: body.querySelector("tr.scenario a").getAttribute("href"),
  cells: [...body.querySelectorAll("tr:not(.scenario) td")].map((cell) => cell.textContent.replaceAll("\\u00a0", " ")),
  notes: [...body.querySelectorAll("sup a")].map((mark) => document.querySelector(mark.getAttribute("href"))?.textContent ?? "none"),
}))"""


class Run:
    """A run that goes on while others are tested."""

    def __init__(self, kept: Path) -> None:
        self.directory = kept / "real"
        self.child: subprocess.Popen[str] | None = None
        if MILLRACE.exists():
            command = [str(MILLRACE), *RUN, "--out", str(self.directory)]
            self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def results(self) -> dict[str, Any]:
        """What it has kept, when it is done."""
        assert self.child, f"there is no {MILLRACE}: make build"
        said, complained = self.child.communicate(timeout=LIMIT_S)
        if "the namespaces of a run cannot be made here" in complained:
            raise unittest.SkipTest(complained.strip())
        assert self.child.returncode == 0, said[-2000:] + complained[-2000:]
        return json.loads((self.directory / "results.json").read_text())  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends it, if it was not waited for. It takes all that it has started with it."""
        if self.child and self.child.poll() is None:
            self.child.terminate()
            self.child.communicate(timeout=LIMIT_S)


def counting(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials of a cell that count."""
    return [trial for trial in cell["trials"] if trial["outcome"] == "counts"]


def check_results(results: dict[str, Any]) -> list[str]:
    """Every scenario is there, or there is a line that says what it lacks. Returns those that are."""
    cells = results["cells"]
    found = [cell["scenario"] for cell in cells]
    assert all(found.count(name) == len(ROADS) for name in OURS), found
    assert Counter(cell["road"] for cell in cells).keys() == set(ROADS), found
    # One that the hypervisor disturbs is void, and made again.
    failed = [trial["outcome"] for cell in cells for trial in cell["trials"] if "failed" in trial["outcome"]]
    assert not failed and all(counting(cell) for cell in cells), failed
    missing = [line for line in results["warnings"] if "left out" in line]
    assert len({name.split("/")[0] for name in found}) + len(missing) >= 12, (found, missing)
    return sorted(set(found))


def check_summary(summary: list[dict[str, Any]], cells: list[dict[str, Any]]) -> None:
    """Both roads have a figure everywhere, and Millrace's the share of its ring; whose clocks they were is told of one way."""
    for entry in summary:
        named = entry["link"].removeprefix("#scenario-")
        own = [cell for cell in cells if "".join(c if c.isalnum() else "-" for c in cell["scenario"]) == named]
        assert len(own) == len(ROADS) == len(entry["cells"]), (entry, [cell["scenario"] for cell in own])
        for cell, text in zip(own, entry["cells"]):
            share = counting(cell)[0]["ring_share"]
            assert ("ring " in text) == (share is not None), (text, share)
            assert "processor" in text, text
        told = "one clock for both ends" in entry["notes"]
        assert told == named.startswith("one-way"), entry


def check_tables(tables: dict[str, list[list[str]]], cells: list[dict[str, Any]]) -> None:
    """Idle connections, ready ones and processor time have a row for each road, with figures and not blanks."""
    idle, ready, processor = tables["Idle connections"], tables["Ready connections"], tables["Processor time"]
    assert [row[0] for row in idle] == ROADS, idle
    # Memory of the server and in all; the agent's is Millrace's only.
    for row in idle:
        assert all(row[index].split()[1] in ("B", "KiB", "MiB") for index in (1, 2, 5)), row
    assert ready and all(len(row) == 1 + len(ROADS) for row in ready), ready
    connections = max(cell["parameters"].get("clients", 1) for cell in cells)
    assert all(1 <= float(figure) <= connections for row in ready for figure in row[1:]), ready
    assert len(processor) == len(cells), (len(processor), len(cells))
    # A road, a bar, own time, six parts of it, and in most scenarios the share of the ring.
    assert all(len(row) in (9, 10) and all(any(c.isdigit() for c in figure) for figure in row[2:9]) for row in processor), processor
    shares = [row[9] for row in processor if len(row) == 10 and row[0] == "millrace-loopback"]
    assert shares and all(share.endswith(" %") for share in shares), shares
