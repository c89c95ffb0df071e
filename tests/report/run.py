#!/usr/bin/python3
"""Opens a benchmark report in a headless browser; see README.md.

    tests/report/run.py [--keep DIRECTORY] [NAME ...]
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import traceback
import unittest
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True

import browser  # noqa: E402
import real  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
WIDTH = 1280
TESTS: dict[str, Callable[[Any], None]] = {}
# Of the sample: redis has curves at four numbers of clients, requests of each on four roads, and one chart against clients; ping-pong has
# curves; throughput has one chart against size.
EXPECTED = {"percentiles": 4 + 1, "requests": 4 * 4, "sweep": 1 + 1}

# For each chart that has room: its kind, and of each of its roads how many pixels have just that road's colour.
PIXELS = """(() => {
  const { charts } = JSON.parse(document.getElementById("data").textContent);
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (road) => {
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--road-${road % 10}`).trim();
    probe.fillRect(0, 0, 1, 1);
    return probe.getImageData(0, 0, 1, 1).data;
  };
  return [...document.querySelectorAll(".chart")].filter((element) => element.clientWidth > 0).map((element) => {
    const chart = charts[element.dataset.chart];
    const roads = (chart.curves ?? chart.lines ?? [chart]).map(({ road }) => road);
    const canvas = element.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const drawn = roads.map((road) => {
      const wanted = paint(road);
      let count = 0;
      for (let i = 0; i < data.length; i += 4) {
        // Paper is transparent, and so are points in a crowd.
        if (data[i + 3] > 40 && [0, 1, 2].every((c) => Math.abs(data[i + c] - wanted[c]) < 12)) count++;
      }
      return [road, count];
    });
    return { kind: chart.kind, drawn, width: canvas.clientWidth, room: element.clientWidth };
  });
})()"""
# What is wider than the window, or than the part of the page that it is in.
TOO_WIDE = """(() => {
  const wide = [...document.querySelectorAll("main, main *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && !element.closest(".hidden, .uplot") && box.right > innerWidth + 1;
  });
  const scrolling = [...document.querySelectorAll(".wide")].filter((element) => element.scrollWidth > element.clientWidth + 1);
  const page = document.documentElement.scrollWidth > innerWidth ? [document.documentElement] : [];
  return [...page, ...scrolling, ...wide].slice(0, 6).map((element) => element.outerHTML.slice(0, 120));
})()"""
UNFOLD = 'document.querySelectorAll("details").forEach((details) => { details.open = true; })'
GROUND = "getComputedStyle(document.body).backgroundColor"


def test(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Takes a test into the list."""
    TESTS[function.__name__] = function
    return function


class Site:
    """The sample and its report, and a browser."""

    def __init__(self, program: str, kept: Path) -> None:
        """Makes the one and starts the other."""
        self.kept = kept
        self.sample = kept / "sample"
        self.page = self.sample / "report.html"
        kept.mkdir(parents=True, exist_ok=True)
        self.run = real.Run(kept)
        self.make()
        self.browser = browser.Browser(program)

    def make(self, *arguments: str) -> None:
        """Makes the sample, or reports of a directory that is there."""
        argv = ["cargo", "run", "--quiet", "--package", "millrace-bench", "--example", "sample", "--"]
        subprocess.run([*argv, str(self.sample), *arguments], cwd=REPOSITORY, check=True)

    def open(self, page: Path | None = None, scheme: str = "light", width: int = WIDTH) -> browser.Browser:
        """Opens the report anew."""
        self.browser.complaints.clear()
        self.browser.media(scheme)
        self.browser.width(width)
        self.browser.open(page or self.page)
        self.browser.settle()
        return self.browser


def check_drawn(charts: list[dict[str, Any]]) -> None:
    """Each chart fills its room and shows each of its roads."""
    for chart in charts:
        assert abs(chart["width"] - chart["room"]) <= 1, chart
        for _, pixels in chart["drawn"]:
            assert pixels >= 30, chart


@test
def assets(_: Site) -> None:
    """The library's files are those that the table beside them names."""
    directory = REPOSITORY / "crates/bench/assets"
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", (directory / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 2, rows
    for name, checksum in rows:
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == checksum, name


@test
def silent(site: Site) -> None:
    """Nothing on the console, nothing asked for; text from results is text."""
    page = site.open()
    page.evaluate(UNFOLD)
    page.settle()
    assert not page.complaints, page.complaints
    text = page.evaluate("document.body.innerText")
    assert "<script>alert(1)</script>" in text and "<while trials ran>" in text
    assert "Void is a trial during which" in text and "median round trip; less is better" in text
    assert page.evaluate("document.scripts.length") == 4


@test
def charts(site: Site) -> None:
    """The expected charts, drawn in their roads' colours."""
    for scheme, light in [("light", True), ("dark", False)]:
        page = site.open(scheme=scheme)
        assert (sum(json.loads(page.evaluate(GROUND).replace("rgb(", "[").replace(")", "]"))) > 600) == light
        page.screenshot(site.kept / f"{scheme}.png")
        page.evaluate(UNFOLD)
        page.settle()
        found = page.evaluate(PIXELS)
        assert Counter(chart["kind"] for chart in found) == EXPECTED, Counter(chart["kind"] for chart in found)
        check_drawn(found)
        bars = page.evaluate('[...document.querySelectorAll("div.bar")].map((bar) => bar.lastElementChild.offsetWidth)')
        # The cell that failed has none.
        assert len(bars) == 16 + 4 + 15 and min(bars) >= 1, bars


@test
def scheme_changes(site: Site) -> None:
    """The system goes dark while the page is open."""
    page = site.open()
    light = page.evaluate(PIXELS)
    page.media("dark")
    page.settle()
    dark = page.evaluate(PIXELS)
    check_drawn(light)
    check_drawn(dark)
    assert page.evaluate('getComputedStyle(document.documentElement).colorScheme') == "dark"


@test
def fits(site: Site) -> None:
    """Nothing is wider than the page."""
    page = site.open()
    page.evaluate(UNFOLD)
    page.settle()
    assert not (wide := page.evaluate(TOO_WIDE)), wide
    check_drawn(page.evaluate(PIXELS))
    page.width(900)
    page.settle()
    check_drawn(page.evaluate(PIXELS))
    page = site.open(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(site.kept / "telephone.png")


@test
def cursor(site: Site) -> None:
    """What is under the cursor is told."""
    page = site.open()
    chart = """[...document.querySelectorAll(".chart")].filter((element) => element.ariaLabel.startsWith("%s"))[%d]"""
    said = []
    for start, index, place in [("Latency by percentile", 0, 0.5), ("Latency of each", 1, 0.41), ("Figures against", 0, 0.5)]:
        element = chart % (start, index)
        page.evaluate(f'{element}.scrollIntoView({{ block: "center" }})')
        page.settle()
        over = page.evaluate(f'(() => {{ const b = {element}.querySelector(".u-over").getBoundingClientRect(); '
                             "return [b.x, b.y, b.width, b.height]; })()")
        x, y = over[0] + over[2] * place, over[1] + over[3] / 2
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 3, y=y)
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        page.settle()
        said.append(page.evaluate(f"{element}.nextElementSibling.textContent"))
    percentiles, requests, sweep = (text.replace("\u00a0", " ") for text in said)
    assert all(f"{road} " in percentiles for road in ("loopback", "bridge", "vxlan", "millrace-bridge")), percentiles
    assert percentiles.startswith("99."), percentiles
    # The stall of 100 ms begins two of five seconds from the left.
    assert "slowest here: " in requests and " ms, sent at 2.0" in requests, requests
    assert "clients · loopback " in sweep and " – " in sweep, sweep
    assert not page.complaints, page.complaints


@test
def print_(site: Site) -> None:
    """On paper, and back on the screen."""
    page = site.open(scheme="dark")
    before = page.evaluate(PIXELS)
    # What happens to the page while it is printed is seen by a listener that comes after the page's own.
    page.evaluate("""addEventListener("beforeprint", () => { window.printed = {
        light: document.documentElement.classList.contains("paper"), open: document.querySelector("#trials details").open,
        widths: [...document.querySelectorAll(".chart canvas")].map((canvas) => canvas.width) }; })""")
    page.media("")
    page.pdf(site.kept / "report.pdf")
    printed = page.evaluate("window.printed")
    assert printed and printed["light"] and printed["open"], printed
    assert printed["widths"] and min(printed["widths"]) >= 600, printed
    data = (site.kept / "report.pdf").read_bytes()
    pages = data.count(b"/Type /Page\n") + data.count(b"/Type /Page/") + data.count(b"/Type /Page ")
    assert data.startswith(b"%PDF") and len(data) > 100_000 and pages >= 3, (len(data), pages)
    page.media("dark")
    page.settle()
    check_drawn(after := page.evaluate(PIXELS))
    assert [chart["width"] for chart in after] == [chart["width"] for chart in before]
    assert page.evaluate('getComputedStyle(document.documentElement).colorScheme') == "dark"


@test
def without_script(site: Site) -> None:
    """Tables without JavaScript."""
    page = site.browser
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.width(WIDTH)
        page.open(site.page)
        assert page.evaluate("document.documentElement.dataset.script") is None
        assert "Charts need JavaScript" in page.evaluate("document.body.innerText")
        visible = '[...document.querySelectorAll(".chart")].filter((chart) => chart.offsetHeight > 0).length'
        assert page.evaluate(visible) == 0
        rows = page.evaluate('document.querySelectorAll("table.summary tbody tr:not(.scenario)").length')
        assert rows == 4 + 1 + 4, rows
        assert page.evaluate('document.querySelectorAll("table.dense:not(.processor) tbody td").length') > 4 * 5 * 12 - 1
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


@test
def many(site: Site) -> None:
    """Five, six and ten roads side by side."""
    whole = (site.sample / "results.json").read_text()
    others = ["unix", "veth", "host-gw", "dnat", "sockmap", "millrace-vxlan"]
    try:
        for names in (others[:1], others[:2], others):
            results = json.loads(whole)
            for number, name in enumerate(names):
                results["roads"].append(dict(results["roads"][number % 4], name=name))
            for cell in list(results["cells"]):
                for number, name in enumerate(names):
                    if cell["road"] == results["roads"][number % 4]["name"]:
                        other = dict(copy.deepcopy(cell), road=name)
                        for trial in other["trials"]:
                            trial["value"] *= 1.11 + 0.07 * number
                        results["cells"].append(other)
            (site.sample / "results.json").write_text(json.dumps(results))
            site.make("--reports-only")
            page = site.open()
            page.screenshot(site.kept / f"roads-{4 + len(names)}.png")
            check_drawn([chart for chart in page.evaluate(PIXELS) if chart["kind"] == "requests"])
            assert page.evaluate('document.querySelectorAll("table.summary thead th").length') == 4 + len(names)
            assert not (wide := page.evaluate(TOO_WIDE)), (len(names), wide)
            assert not page.complaints, page.complaints
    finally:
        (site.sample / "results.json").write_text(whole)
        site.make("--reports-only")


@test
def packets(site: Site) -> None:
    """Devices that forward packets: rates and latencies as tables, latency drawn against the share of the rate, lengths to the byte."""
    whole = (site.sample / "results.json").read_text()
    results = json.loads(whole)
    results["cells"] = [cell for cell in results["cells"] if cell["scenario"] == "throughput"]
    for number, cell in enumerate(results["cells"]):
        cell["parameters"]["bytes"] = {64: 64, 1024: 512, 16384: 1280, 262144: 1518}[cell["parameters"]["bytes"]]
        for trial in cell["trials"]:
            rate = 8e6 + 1e5 * number + 1e4 * trial["round"]
            latencies = [
                {"share": share, "rate": share * rate, "loss": 0.0, "latency": {
                    "count": 10**6, "min_ns": 900, "max_ns": 90_000, "mean_ns": 5e3, "deviation_ns": 1e3,
                    "percentiles": [[50.0, 4000], [99.0, round(5000 * (1 + share + number / 9 + trial["round"] / 50))], [99.9, 40_000]],
                }}
                for share in (0.1, 0.5, 0.9)
            ]  # fmt: skip
            rates = [{"loss": 0.0, "rate": rate}, {"loss": 0.005, "rate": 1.1 * rate}]
            trial["packets"] = {"sizes": "64", "rates": rates, "most": 1.2 * rate, "most_loss": 0.125, "own": 2.5e7,
                                "latencies": latencies, "runs": 25, "disturbed": 0}  # fmt: skip
    try:
        (site.sample / "results.json").write_text(json.dumps(results))
        site.make("--reports-only")
        page = site.open()
        page.evaluate(UNFOLD)
        page.settle()
        assert not page.complaints, page.complaints
        found = page.evaluate(PIXELS)
        # Figures against the length, and for each of four lengths latency against the share.
        assert Counter(chart["kind"] for chart in found) == {"sweep": 1 + 4}, found
        check_drawn(found)
        page.screenshot(site.kept / "packets.png")
        text = page.evaluate("document.body.innerText").replace("\u00a0", " ").replace("\u202f", " ")
        assert all(words in text for words in ("1 518 B", "1 280 B", "at most 0.5 % lost", "generator itself")), text
        rows = page.evaluate("""[...document.querySelectorAll('[aria-label="Latency at shares of the rate"] tbody tr:not(.set)')].length""")
        # Four roads at four lengths, but for the cell that failed.
        assert rows == 3 * (4 * 4 - 1), rows
        assert not (wide := page.evaluate(TOO_WIDE)), wide
    finally:
        (site.sample / "results.json").write_text(whole)
        site.make("--reports-only")


@test
def real_run(site: Site) -> None:
    """A run of the whole suite, and what no sample has: idle and ready connections, clocks, the share of the ring."""
    results = site.run.results()
    scenarios = real.check_results(results)
    cells = results["cells"]
    for scheme in ("dark", "light"):
        page = site.open(site.run.directory / "report.html", scheme)
        page.evaluate(UNFOLD)
        page.settle()
        page.screenshot(site.kept / f"real-{scheme}.png")
        assert not page.complaints, page.complaints
        charts = page.evaluate(PIXELS)
        assert {"percentiles", "requests"} <= {chart["kind"] for chart in charts}, charts
        for chart in charts:
            # Where two roads are as fast as each other, the line of one hides the other's.
            assert abs(chart["width"] - chart["room"]) <= 1 and sum(pixels for _, pixels in chart["drawn"]) >= 30, chart
    text = page.evaluate("document.body.innerText")
    assert not re.search(r"NaN|Infinity|undefined|\bnull\b", text), text
    assert not (wide := page.evaluate(TOO_WIDE)), wide
    summary = page.evaluate(real.SUMMARY)
    assert len(summary) == len(scenarios) == page.evaluate('document.querySelectorAll("section.scenario").length'), summary
    real.check_summary(summary, cells)
    names = ("Idle connections", "Ready connections", "Processor time")
    real.check_tables({name: page.evaluate(real.TABLES % name) for name in names}, cells)


def main() -> int:
    """Runs the tests that are named, or all."""
    names = {name.rstrip("_"): run for name, run in TESTS.items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=TARGET / "report", help="where screenshots stay")
    parser.add_argument("names", nargs="*", choices=[[], *names], metavar="NAME", help=", ".join(names))
    arguments = parser.parse_args()
    wanted = {name: run for name, run in names.items() if not arguments.names or name in arguments.names}
    program = browser.find()
    if program is None:
        print("skipped: no Chromium here; Debian's package is chromium")
        print(f"0 passed, 0 failed, {len(wanted)} skipped")
        return 0
    passed = failed = skipped = 0
    site = Site(program, arguments.keep.resolve())
    try:
        for name, run in wanted.items():
            try:
                run(site)
                print(f"{name}: passed")
                passed += 1
            except unittest.SkipTest as why:
                print(f"{name}: skipped: {why}")
                skipped += 1
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print(f"{name}: FAILED")
                failed += 1
            sys.stdout.flush()
    finally:
        site.run.close()
        site.browser.close()
    print(f"screenshots: {arguments.keep}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
