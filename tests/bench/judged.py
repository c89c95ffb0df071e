"""Whether equal roads are found equal, and a slowed one slower, by what `millrace bench` runs and compares.

The programs are real, and so is everything about them but the figure: the client makes it up, of what a round and a trial may have of
chance. Chance is seeded by the server's port, which is another one for each road and round, and by the cell: each run has the same figures,
and takes no longer than its programs take to start.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

from bench_stage import Stage

CELLS, SLOWED_CELLS, ROUNDS = 100, 20, 10
# This one is four times as fast in half of the rounds: a machine with two speeds.
TWOFOLD = 0
# A road like loopback. Its two programs are started by what follows.
ROAD = """
about = "two programs in one network namespace"
server = "{name}"
client = "{name}"
host = "127.0.0.1"
run_by = "env SLOWNESS={slowness}"
set_up = ["ip netns add {name}", "ip -n {name} link set lo up"]
"""
SCENARIO = """
title = "Figures of a known distribution"
about = "20 % of drift over the rounds, 10 % that is a round's own, and 2 % that is a trial's."
[server]
command = "{millrace} load serve echo --listen {listen}"
"""
CASE = """
[[case]]
name = "{name}"
title = "{name}"
client = {client}
read = "result-line"
unit = "operations_per_second"
grid = [{{ cell = {cells} }}]
roads = {roads}
"""
# Park and Miller's generator (1988), whose products a floating point number holds; twelve of its numbers make a normal one. It is linear:
# neighbours would remain neighbours, so that seeds are mixed by squares first. Servers of a round have ports one after the other, two each.
CLIENT = """
function next_share() { state = state * 16807 % 2147483647; return state / 2147483647 }
function normal(seed,   sum, i) {
    state = seed
    for (i = 0; i < 8; i++) state = (state * state + seed) % 67108859
    state++
    for (i = 0; i < 12; i++) sum += next_share()
    return sum - 6
}
BEGIN {
    round = int((port - 7002) / 2 / roads)
    machine = (1 - 0.02 * round) * exp(0.1 * normal(cell * 1000 + round))
    if (cell == twofold) machine *= 1 + round % 2 * 3
    rate = 1e5 * machine * exp(0.02 * normal(cell * 1000003 + port)) / ENVIRON["SLOWNESS"]
    print "result: requests 1000 microseconds", 1e9 / rate, "errors 0 p50 1 p99 2 p99.9 3"
}
"""


def run(stage: Stage, name: str, cases: dict[str, tuple[int, list[str]]], first: int = 1) -> str:
    """Measures cases, each with so many cells on these roads; what was said."""
    script = stage.directory / "client.awk"
    script.write_text(CLIENT)
    on = list(dict.fromkeys(road for _, roads in cases.values() for road in roads))
    client = f"awk -v port={{port}} -v cell={{cell}} -v roads={len(on)} -v twofold={TWOFOLD} -f {shlex.quote(str(script))}"
    text = SCENARIO
    for case, (count, roads) in cases.items():
        cells = list(range(first, first + count))
        text += CASE.format(name=case, client=json.dumps(client), cells=cells, roads=json.dumps(roads))
    scenario = stage.directory / f"{name}.toml"
    scenario.write_text(text)
    files = [stage.directory / f"{road}.toml" for road in on]
    for road, file in zip(on, files):
        file.write_text(ROAD.format(name=road, slowness=1.1 if road == "slowed" else 1.0))
    words = ["run", str(scenario), "--roads", ",".join(map(str, files)), "--repeat", str(ROUNDS), "--time", "0.1", "--pin", "none"]
    done = stage.bench(*words, *stage.out(name))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def equal_roads_are_equal_and_a_slowed_one_is_slower(stage: Stage) -> None:
    """In 95 of a hundred cells at least; and of those that are equal no more are called different than the rate of false verdicts has."""
    run(stage, "judged", {"equal": (CELLS, ["even", "like-even"]), "slowed": (SLOWED_CELLS, ["even", "slowed"])})
    compared = stage.bench("compare", "--json", str(stage.directory / "judged"))
    assert compared.returncode == 1, f"a cell is slower, and the status says {compared.returncode}"
    rows: list[dict[str, Any]] = json.loads(compared.stdout)["rows"]
    verdicts = {case: Counter(row["verdict"] for row in rows if row["scenario"] == f"judged/{case}") for case in ("equal", "slowed")}
    print(f"equal roads: {dict(verdicts['equal'])}; a tenth slower: {dict(verdicts['slowed'])}", flush=True)
    assert verdicts["equal"].total() == CELLS and verdicts["slowed"].total() == SLOWED_CELLS, verdicts
    assert verdicts["equal"]["no_difference"] >= 0.95 * CELLS, verdicts
    # Of all that is called faster or slower at most a twentieth is false.
    false = verdicts["equal"]["faster"] + verdicts["equal"]["slower"]
    assert false <= 0.05 * (false + verdicts["slowed"]["slower"]), verdicts
    assert verdicts["slowed"]["slower"] >= 0.95 * SLOWED_CELLS and not verdicts["slowed"]["faster"], verdicts
    ratios = sorted(row["compared"]["ratio"] for row in rows if row["scenario"] == "judged/slowed")
    assert 1 / 1.15 < ratios[0] <= ratios[-1] < 1 / 1.05, ratios
    assert all(row["compared"]["pairs"] == ROUNDS for row in rows), rows


def two_groups_of_trials_are_told(stage: Stage) -> None:
    """At the end of a run, and in its report."""
    said = run(stage, "twofold", {"one": (1, ["even"])}, first=TWOFOLD)
    assert "warning: trials fall into two groups in 1 of 1 cells" in said, said
    report = stage.bench("report", "--markdown", str(stage.directory / "twofold")).stdout
    assert report.count("two groups") >= 2, report
