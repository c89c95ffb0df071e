"""Cases of `millrace bench` whose two ends have one clock, or two: what is said of their times, and whether it is true."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path
from typing import Any

from bench_stage import QUICK, Stage, counted

# A time namespace (time_namespaces(7)) shifts the monotonic clock of who is in it, and so stands for another host's.
SHIFTED = """
title = "One way, to another clock"
about = "The server's monotonic clock is shifted."
[server]
command = "unshare --time --fork --kill-child --monotonic={shift} {{millrace}} load serve stamp --listen {{listen}}"
[[case]]
name = "there"
title = "there"
client = "{{millrace}} load echo {{address}} --one-way --blocking --bytes {{bytes}} {{record}}"
read = "millrace-load-median"
unit = "nanoseconds"
grid = [{{ bytes = [64] }}]
quick = [{{ bytes = [64] }}]
"""


def trials(stage: Stage, name: str, words: list[str], on: str) -> dict[str, list[dict[str, Any]]]:
    """Measures, and gives the trials that count, each of which has all requests of its histogram."""
    done = stage.bench("run", *words, "--roads", on, *QUICK, *stage.out(name))
    assert done.returncode == 0, done.stdout + done.stderr
    found = counted(stage.results(name))
    assert sorted(found) == sorted(on.split(",")), found.keys()
    for trial in [trial for made in found.values() for trial in made]:
        assert trial["latency"]["count"] > 0 and trial["trace"] and trial["histogram"], trial
        assert not [note for note in trial["notes"] if "as clocks do not" in note], trial
    return found


def the_clocks_of_two_hosts_are_held_against_each_other(stage: Stage) -> None:
    """The kernel shifts one end's clock by a time that is known: the estimate is that, but for the error that it tells."""
    for shift_s in (1000, -2):
        name = f"shifted{shift_s}"
        scenario = stage.directory / f"{name}.toml"
        scenario.write_text(SHIFTED.format(shift=shift_s))
        found = trials(stage, name, [str(scenario)], "veth,millrace-veth")
        for road, trial in [(road, trial) for road, made in found.items() for trial in made]:
            clocks = trial["clocks"]
            assert not clocks["one_clock"], (road, clocks)
            for estimate in (clocks["before"], clocks["after"]):
                off_ns = estimate["offset_ns"] - shift_s * 10**9
                assert abs(off_ns) <= estimate["error_ns"], (road, off_ns, estimate)
                assert 0 < estimate["probes"] <= 64, estimate
            assert clocks["after"]["at_ns"] > clocks["before"]["at_ns"], clocks
            # Both are one oscillator's.
            assert abs(clocks["drift_ppm"]) <= clocks["drift_error_ppm"], (road, clocks)
        told = check_reports(stage, name, r"two clocks, the server's ([0-9.]+) s (ahead|behind), ")
        for seconds, where in told:
            assert abs(float(seconds) - abs(shift_s)) < 0.01 and (where == "ahead") == (shift_s > 0), told


def both_ends_of_a_host_have_one_clock(stage: Stage) -> None:
    """Nothing is estimated between two network namespaces, as these have no clock of their own."""
    found = trials(stage, "one-clock", ["one-way"], "loopback,veth,unix")
    for clocks in [trial["clocks"] for made in found.values() for trial in made]:
        assert clocks == {"one_clock": True, "before": None, "after": None, "drift_ppm": 0.0, "drift_error_ppm": 0.0}, clocks
    check_reports(stage, "one-clock", "(one clock for) (both ends)")
    other = stage.bench("run", "echo", "--roads", "loopback", *QUICK, *stage.out("round-trips"))
    assert other.returncode == 0, other.stdout + other.stderr
    assert all(trial["clocks"] is None for trial in counted(stage.results("round-trips"))["loopback"])


def check_reports(stage: Stage, name: str, pattern: str) -> list[tuple[str, str]]:
    """The page and the Markdown say it, in words that are given back, and the table of trials has the figures."""
    place = str(stage.directory / name)
    page = html.unescape((Path(place) / "report.html").read_text())
    markdown = stage.bench("report", place, "--markdown").stdout
    told = [re.findall(pattern, text) for text in (page, markdown)]
    assert all(told), f"{pattern} is not in both of {place}/report.html and its Markdown: {told}"
    lines = list(csv.DictReader(stage.bench("report", place, "--csv").stdout.splitlines()))
    is_one = "one clock" in pattern
    assert lines and all((line["clock_error_ns"] == "0") == is_one == (line["clock_offset_ns"] == "0") for line in lines), lines
    return [words for found in told for words in found]
