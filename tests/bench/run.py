#!/usr/bin/python3
"""`millrace bench` from outside: what it measures, how it fails, and what it leaves behind.

    tests/bench/run.py [--full] [--millrace PATH] [CASE ...]

Exits with 0 when every case was right. No case judges a figure. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_stage import ANSWER, LIMIT_S, MEASURED, QUICK, Stage, alive, counted, limited, splicing_programs  # noqa: E402
from clocks import both_ends_of_a_host_have_one_clock, the_clocks_of_two_hosts_are_held_against_each_other  # noqa: E402
from devices import (  # noqa: E402
    functions_and_their_peers_are_measured,
    functions_are_measured,
    functions_are_measured_at_fixed_rates,
    hashes_are_counted_if_they_are_right,
    packets_are_measured,
    ports_are_measured_alone,
)
from harness import isolate, road as roads  # noqa: E402
from judged import equal_roads_are_equal_and_a_slowed_one_is_slower, two_groups_of_trials_are_told  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# What channels are measured against, which is not built with Millrace.
PEERS = ROOT / "target/xtask/millrace-peers"
BUILD_PEERS = shlex.split(
    "cargo build --quiet --profile xtask --manifest-path crates/bench/peers/Cargo.toml --target-dir target"
)
# What the scheduler's hash is measured against, where DPDK's header is.
BUILD_SOFTRSS = ["make", "--silent", "softrss", f"BUILT={PEERS.parent}"]
# Where both are found.
BESIDE_PEERS = {"PATH": f"{PEERS.parent}:{os.environ['PATH']}"}
# Cases that do not mind others beside them, most of which wait most of the time.
WORKERS = 4
SPLICED = [
    (
        "checked",
        "{millrace} load serve echo --listen {listen}",
        "{millrace} load echo {address} --bytes 65536 --connections {clients} {record}",
        "millrace-load",
        "operations_per_second",
    ),
    (
        "iperf3",
        "iperf3 -s -B {bind} -p {port}",
        "iperf3 -c {host} -p {port} -t 1 -P 2 --bitrate 1G -J; : {clients}",
        "iperf3",
        "bits_per_second",
    ),
    (
        "redis",
        "redis-server --bind {bind} --port {port} --protected-mode no --save '' --appendonly no",
        "redis-benchmark -h {host} -p {port} -c {clients} -d 8192 -n {count} -t get",
        "redis-benchmark",
        "operations_per_second",
    ),
]
# Short trials, of which many make a verdict. They are of a number of requests: a busy machine makes them longer, and not empty.
SHORT = """
title = "Short trials"
about = "Two thousand requests, one at a time."
[server]
command = "redis-server --bind {bind} --port {port} --protected-mode no --save '' --appendonly no"
[[case]]
name = "get"
title = "GET"
client = "redis-benchmark -h {host} -p {port} -c 1 -d {bytes} -n 2000 -t get"
read = "redis-benchmark"
unit = "operations_per_second"
grid = [{ bytes = [64] }]
"""
# A build whose programs do not spin, and so sleep for each message.
SLOWED = """#!/bin/sh
if [ "$1" = run ]; then export MILLRACE_SPIN_US=0; fi
exec {millrace} "$@"
"""


def every_road_is_measured(stage: Stage) -> None:
    """Redis on all roads, which the suite makes and takes away."""
    names = ["loopback", "unix", "veth", "bridge", "dnat", "vxlan", "host-gw", "sockmap"]
    for line in stage.bench("list").stdout.splitlines():
        if line.startswith(("ovs ", "ovs-user ", "ovs-dpdk ")):
            name, here = line.split(maxsplit=1)
            names += [name] if here.startswith("yes ") else []
            if not here.startswith("yes "):
                print(f"every road is measured: the road {name} is skipped: {here}")
    # A busy machine has the switch's program wait for a processor, and connections over it need longer to be worth the ring.
    names += [f"millrace-{name}" for name in names if name not in ("unix", "sockmap", "ovs-user", "ovs-dpdk")]
    options = ["--quick", "--repeat", "1", "--time", "0.3", *stage.out("all")]
    done = stage.bench("run", "redis/mix", "--clients", "1", "--roads", ",".join(names), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counted(stage.results("all"))
    for name in names:
        assert [trial["round"] for trial in found[name]] == [1], name
        for trial in found[name]:
            assert trial["value"] > 0 and "load redis" in trial["commands"]["client"], trial
            spent = trial["processor"]
            assert spent["server_user_s"] + spent["server_system_s"] > 0, trial
            assert (trial["ring_share"] or 0) > 0.5 if name.startswith("millrace-") else trial["ring_share"] is None, trial
    assert "on the kernel's road" not in done.stdout and "most bytes took" not in done.stdout, done.stdout
    assert "millrace-dnat against dnat" in done.stdout, done.stdout


def messages_are_measured(stage: Stage) -> None:
    """Channels and their peers on their own roads, where the program is there that speaks with all of them."""
    # On a processor each: two that spin on the same one answer each other once in a slice of time.
    options = ["--repeat", "1", "--time", "0.3", "--sizes", "64"]
    done = stage.bench("run", "channels", *options, *stage.out("messages"), environment=BESIDE_PEERS)
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("messages")
    cells = {(cell["scenario"].split("/")[1], cell["road"]): cell["trials"] for cell in results["cells"]}
    roads_of = {road: [case for case, other in cells if other == road] for _, road in cells}
    everything = ["round-trip", "one-way", "fan-in", "work", "waking"]
    assert all(roads_of[road] == everything for road in ("channel", "iceoryx2", "seqpacket", "pipe")), roads_of
    assert (roads_of["bare-line"], roads_of["eventfd"]) == (["round-trip"], ["waking"]), roads_of
    for (case, road), trials in cells.items():
        trial = next(trial for trial in trials if trial["outcome"] == "counts")
        assert trial["value"] > 0 and f"{road} {case}" in trial["commands"]["client"], trial
        assert any("no message was lost" in note for note in trial["notes"]) == (case in ("fan-in", "work")), trial
        assert (trial["histogram"] is not None) == (case in ("round-trip", "waking")), trial
    alone = shutil.copy(stage.millrace, stage.directory)
    done = stage.bench("run", "channels", *stage.out("nothing"), program=alone, environment={"PATH": os.defpath + ":/usr/sbin"})
    told = "there is no millrace-peers here (in a checkout of Millrace: make peers)"
    assert done.returncode == 1 and told in done.stderr, done.stdout + done.stderr


def hashes_are_counted(stage: Stage) -> None:
    """The hash by which flows are found, beside DPDK's."""
    hashes_are_counted_if_they_are_right(stage, BESIDE_PEERS)


def bytes_by_the_kernel_are_told(stage: Stage) -> None:
    """A client that turns Millrace off goes by the kernel on every road, and nobody takes that for Millrace's figure."""
    scenario = stage.directory / "off.toml"
    client = "env MILLRACE=off {millrace} load echo {address} --connections {clients} {record}"
    server = json.dumps("{millrace} load serve echo --listen {listen}")
    text = MEASURED.format(server=server, client=json.dumps(client), read="millrace-load", unit="operations_per_second")
    scenario.write_text(text)
    words = ["run", str(scenario), "--roads", "loopback,millrace-loopback", *QUICK, *stage.out("off")]
    done = stage.bench(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    told = "most bytes took the kernel's road: this is no figure of Millrace's"
    assert f"note: off/one clients=50 on millrace-loopback: {told}" in done.stdout, done.stdout
    found = counted(stage.results("off"))
    assert all(trial["ring_share"] == 0 and told in trial["notes"] for trial in found["millrace-loopback"]), found
    assert told in (stage.directory / "off" / "report.html").read_text()


def spliced_bytes_pass_the_interface_by(stage: Stage) -> None:
    """Loopback's interface sees next to nothing of what real programs send on the sockmap; `millrace load` checks each byte."""
    for name, server, client, reader, unit in SPLICED:
        carried = {}
        for road in ("loopback", "sockmap"):
            seen = stage.directory / f"seen-{name}-{road}"
            look = f"grep lo: /proc/net/dev >> {seen}"
            whole = shlex.join(["sh", "-c", f"{look} && {client} && {look}"])
            scenario = stage.directory / f"{name}.toml"
            scenario.write_text(MEASURED.format(server=json.dumps(server), client=json.dumps(whole), read=reader, unit=unit))
            options = ["--quick", "--repeat", "1", "--time", "1", "--pin", "none", *stage.out(f"{name}-{road}")]
            done = stage.bench("run", str(scenario), "--roads", road, *options)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "no message took the sockmap" not in done.stdout, done.stdout
            # The last two lines are of the trial; those before, if any, of attempts that found the pace.
            before, after = [int(line.split()[1]) for line in seen.read_text().splitlines()[-2:]]
            carried[road] = after - before
        # However few messages a busy machine has time for, they are more than what makes and ends connections.
        assert carried["sockmap"] < 2e5 and carried["loopback"] > 5 * carried["sockmap"], (name, carried)


def idle_connections_are_accounted_for(stage: Stage) -> None:
    """Each program has its share of processor time and memory; descriptors that do not suffice are told, and nothing runs on."""
    words = ["run", "idle/memory", "idle/processor", "--clients", "200", "--repeat", "1", "--time", "0.3"]
    enough, too_few = 1234, 100
    for files in (enough, too_few):
        on = ["--roads", "loopback,millrace-loopback", *stage.out(f"idle-{files}")] if files == enough else stage.out(f"idle-{files}")
        command = limited(files, stage.command(*words, *on))
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert not alive(files), alive(files)
        if files == too_few:
            assert done.returncode == 1 and "raise the limit of open files" in done.stdout, done.stdout + done.stderr
            continue
        assert done.returncode == 0 and "not known" not in done.stdout, done.stdout + done.stderr
        for road, trials in counted(stage.results(f"idle-{files}")).items():
            check_idle(road, trials)
    table = stage.bench("report", str(stage.directory / f"idle-{enough}"), "--csv").stdout.splitlines()
    for line in csv.DictReader(table):
        # A server that has memory left from earlier connections takes no more.
        shares = [int(line[f"idle_{whose}_memory_bytes"]) for whose in ("server", "client", "agent", "kernel")]
        assert line["idle_connections"] == "200" and min(shares) >= 0 < sum(shares), line
        assert (int(line["idle_agent_memory_bytes"]) > 0) == (line["road"] == "millrace-loopback"), line


def check_idle(road: str, trials: list[dict[str, Any]]) -> None:
    """The figures are made of the shares, and the connections are on the road that is measured."""
    for trial in trials:
        idle = trial["idle"]
        shares = [idle[end]["memory_bytes"] for end in ("server", "client", "agent")]
        assert idle["connections"] == 200 and idle["kernel_bytes"] > 0, (road, idle)
        assert (shares[2] > 0) == (road == "millrace-loopback"), (road, idle)
        assert 0 < sum(shares) < 200e6, (road, idle)
        assert (trial["ring_share"] or 0) > 0 if road == "millrace-loopback" else trial["ring_share"] is None, trial
    memory, processor = trials
    each = sum(memory["idle"][end]["memory_bytes"] for end in ("server", "client", "agent")) + memory["idle"]["kernel_bytes"]
    assert abs(memory["value"] - each / 200) < 1, memory
    assert 0 <= processor["value"] < 2, processor


def answers_of_http_have_their_sizes(stage: Stage) -> None:
    """nginx and our own server, wrk and our own generator, which checks lengths; ours tell ready connections, and both tell the mean."""
    words = ["run", "http", "http-minimal", "--clients", "10", "--sizes", "64,512,1280", "--repeat", "1", "--time", "0.3", "--pin", "none"]
    done = stage.bench(*words, "--roads", "loopback", *stage.out("http"))
    assert done.returncode == 0, done.stdout + done.stderr
    cells = stage.results("http")["cells"]
    found = {(cell["scenario"], cell["parameters"]["bytes"]): cell["trials"][0] for cell in cells}
    assert len(found) == 12, found.keys()
    for (scenario, _), trial in found.items():
        assert 0 < trial["latency"]["min_ns"] <= trial["latency"]["mean_ns"] <= trial["latency"]["max_ns"], (scenario, trial)
        ready = trial["ready_per_wake"]
        assert 1 <= ready <= 10 if scenario.endswith("own") else ready is None, (scenario, ready)
        # A new connection and a listener may be ready beside the others; nginx does not tell.
        served = trial["server_ready_per_wake"]
        assert 1 <= served <= 11 if scenario.startswith("http-minimal") else served is None, (scenario, served)
    table = stage.bench("report", str(stage.directory / "http"), "--markdown").stdout
    assert table.count(": latency") == 4 and table.count(": ready for each wake-up") == 3, table
    assert table.count("| server, 64\u00a0B ") == 2 and table.count("| generator, 64\u00a0B ") == 2, table


def cases_that_quick_runs_leave_out_have_figures(stage: Stage) -> None:
    """Those of which no other case is sure; the time to the first byte is a part of the whole answer's."""
    names = ["pingpong/one-way", "pingpong/spinning", "echo/spinning", "throughput/download", "connect/first-byte", "mixed/bulk"]
    names += ["connect/kept", "connect/kept-answer", "mixed/hogs-own", "mixed/hogs-rate", "mixed/bulk-own", "mixed/bulk-rate"]
    names += ["redis/get", "redis/set", "redis/own-get", "redis/own-set"]
    words = ["run", *names, "--clients", "1", "--sizes", "64", "--repeat", "1", "--time", "0.3", "--pin", "none"]
    done = stage.bench(*words, "--roads", "loopback", *stage.out("left-out"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {cell["scenario"]: cell["trials"][0] for cell in stage.results("left-out")["cells"]}
    assert sorted(found) == sorted(names) and all(trial["value"] > 0 for trial in found.values()), found
    assert found["connect/first-byte"]["value"] <= found["connect/first-byte"]["latency"]["max_ns"], found
    assert all("iperf3 -c" in found[f"mixed/{case}"]["commands"]["beside 2"] for case in ("bulk", "bulk-own", "bulk-rate")), found
    for name in ("mixed/hogs-own", "mixed/hogs-rate", "mixed/bulk-own", "mixed/bulk-rate", "redis/own-get", "redis/own-set"):
        assert found[name]["trace"] and found[name]["histogram"], found[name]
        assert found[name]["latency"]["deviation_ns"] > 0, found[name]
    for name in ("redis/get", "redis/set"):
        latency = found[name]["latency"]
        assert 0 < latency["min_ns"] <= latency["mean_ns"] <= latency["max_ns"] and latency["deviation_ns"] == 0, latency
        assert [at for at, _ in latency["percentiles"]][:2] == [50.0, 95.0], latency


def a_suite_has_its_scenarios_and_roads(stage: Stage) -> None:
    """A word for both; roads of the user's own come before those of the suite."""
    listed = stage.bench("list").stdout.split("\n\n")[0].splitlines()
    assert listed[0].split() == ["SUITE", "CELLS", "HERE", "WHAT"], listed
    suites = {line.split()[0]: line for line in listed[1:]}
    assert {"all", "containers", "overlay", "switches"} <= set(suites), suites
    assert " yes " in suites["containers"], suites
    words = ["run", "containers", "--clients", "1", "--quick", "--repeat", "1", "--time", "0.3", "--pin", "none"]
    done = stage.bench(*words, *stage.out("suite"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("suite")
    roads_of = [road["name"] for road in results["roads"]]
    assert roads_of == ["bridge", "millrace-bridge", "dnat", "millrace-dnat", "vxlan", "millrace-vxlan"], roads_of
    assert {cell["scenario"]: cell["figure"] for cell in results["cells"]} == {
        "redis/mix": "requests per second",
        "proxy/keep-alive": "requests per second",
    }, results["cells"]
    done = stage.bench(*words, "--roads", "loopback", *stage.out("suite-elsewhere"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [road["name"] for road in stage.results("suite-elsewhere")["roads"]] == ["loopback"]


def what_fails_is_told_and_the_rest_goes_on(stage: Stage) -> None:
    """A program that is missing, one that fails, one that says nothing that can be read."""
    good, bad = stage.scenario("good", ANSWER), stage.scenario("bad", "sh -c 'echo no luck; exit 3'")
    mute, gone = stage.scenario("mute", "echo nothing"), stage.scenario("gone", "no-such-program")
    done = stage.bench("run", good, bad, mute, gone, "--roads", "loopback", *QUICK, *stage.out("failing"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "there is no no-such-program here" in done.stdout, done.stdout
    assert "no luck" in done.stdout, done.stdout
    results = stage.results("failing")
    outcomes = {cell["scenario"]: [trial["outcome"] for trial in cell["trials"]] for cell in results["cells"]}
    assert outcomes["good/one"] == ["counts"] * 2, outcomes
    assert all("failed" in outcome for outcome in outcomes["bad/one"] + outcomes["mute/one"]), outcomes
    assert "gone/one" not in outcomes, outcomes


def a_road_that_cannot_be_set_up_is_left_out(stage: Stage) -> None:
    """A command of it fails: the road above it goes, too, and the others are measured."""
    refusal = '#!/bin/sh\ncase "$*" in *vxlan*) echo "Operation not permitted" >&2; exit 2;; esac\nexec {real} "$@"\n'
    path = stage.program("ip", refusal)
    words = ["run", stage.scenario("rest", ANSWER), "--roads", "vxlan,millrace-vxlan,loopback", *QUICK, *stage.out("rest")]
    done = stage.bench(*words, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    for road in ("vxlan", "millrace-vxlan"):
        told = f"warning: the road {road} is left out: it cannot be set up: ip netns add vxlan-"
        line = next(line for line in done.stdout.splitlines() if line.startswith(told))
        assert line.endswith(": Operation not permitted"), line
    results = stage.results("rest")
    assert [road["name"] for road in results["roads"]] == ["loopback"], results["roads"]
    assert len(counted(results)["loopback"]) == 2, results
    alone = stage.bench(*words[:2], "--roads", "vxlan", *QUICK, *stage.out("none"), path=path)
    assert alone.returncode == 1 and "there is no road to measure: the road vxlan is left out" in alone.stderr, alone.stderr


def a_trial_in_company_is_as_long_as_others(stage: Stage) -> None:
    """The client is told how much to do by what it does in that company: it is slow there only."""
    mark = stage.directory / "company"
    client = f"sh -c 'test ! -e {mark} || sleep 0.4; echo result: requests {{count}} microseconds 400000 errors 0 p50 1 p99 2 p99.9 3'"
    scenario = Path(stage.scenario("company", client))
    beside = f"sh -c 'touch {mark}; exec sleep 60'"
    scenario.write_text(scenario.read_text() + f'beside = [{{ end = "client", command = {json.dumps(beside)} }}]\n')
    done = stage.bench("run", str(scenario), "--roads", "loopback", *QUICK, *stage.out("in-company"))
    assert done.returncode == 0, done.stdout + done.stderr
    trials = [trial for cell in stage.results("in-company")["cells"] for trial in cell["trials"]]
    assert trials and all(trial["outcome"] == "counts" and trial["operations"] < 1e6 for trial in trials), trials


def a_stranger_on_its_processors_makes_a_trial_void(stage: Stage) -> None:
    """A program that the run did not start, and not those that its scenario has beside the pair."""
    scenario = stage.directory / "crowded.toml"
    server, client = "{millrace} load serve echo --listen {listen}", "{millrace} load echo {address} --connections {clients} {record}"
    hogs = ", ".join(f'{{ end = "{end}", command = "sh -c \'while :; do :; done\'" }}' for end in ("server", "client"))
    text = MEASURED.format(server=json.dumps(server), client=json.dumps(client), read="millrace-load", unit="operations_per_second")
    scenario.write_text(text + f"beside = [{hogs}]\n")
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        print("a stranger: there is one processor only")
        return
    words = ["run", str(scenario), "--roads", "loopback", "--repeat", "1", "--pin", ",".join(map(str, processors))]
    done = stage.bench(*words, "--clients", "1", "--time", "1", *stage.out("alone"))
    assert done.returncode == 0, done.stdout + done.stderr
    for spent in [trial["processor"] for cell in stage.results("alone")["cells"] for trial in cell["trials"]]:
        pair = sum(spent[f"{end}_{where}_s"] for end in ("server", "client") for where in ("user", "system"))
        assert spent["busy_s"] - spent["others_s"] > 1.5 * pair, f"the hogs, which have as much as the pair, are taken for others: {spent}"
    strangers = [subprocess.Popen(["taskset", "-c", str(each), "sh", "-c", "while :; do :; done"]) for each in processors]
    try:
        done = stage.bench(*words, "--clients", "1,2,3", "--time", "0.5", *stage.out("company"))
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    for cell in stage.results("company")["cells"]:
        *void, last = cell["trials"]
        # The third one is not repeated: it is no use.
        assert len(void) == (0 if cell["parameters"]["clients"] == 3 else 2), cell
        assert all("other programs had" in trial["outcome"]["void"] for trial in void), void
        assert last["outcome"] == "counts" and "counts although it was disturbed" in last["notes"][-1], last
    assert "warning: the machine was too busy" in done.stdout, done.stdout
    told = "warning: trials were disturbed: 7 of 7 (100 %), of which 3 count all the same; other programs had up to "
    assert told in done.stdout, done.stdout


def a_road_of_the_user_s_own_is_measured(stage: Stage) -> None:
    """The example of the documents, and with Millrace above it."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "benchmarking.md").read_text()
    section = text.split("## A road of your own")[1]
    road = stage.directory / "routed.toml"
    road.write_text(section.split("```toml\n")[1].split("```")[0])
    on = f"{road},millrace-routed"
    done = stage.bench("run", "echo", "--sizes", "64", "--roads", on, *QUICK, *stage.out("own-road"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("own-road")
    assert [cell["road"] for cell in results["cells"]] == ["routed", "millrace-routed"], results["cells"]
    assert all(len(trials) == 2 for trials in counted(results).values()), results["cells"]
    assert any("ip_forward=1" in line for line in results["roads"][0]["settings"]), results["roads"]


def mistakes_are_told_before_anything_is_set_up(stage: Stage) -> None:
    """Each names what was wrong and what there is."""
    wrong = stage.directory / "wrong.toml"
    wrong.write_text("title = 1\n")
    misspelt = Path(stage.scenario("misspelt", ANSWER))
    misspelt.write_text(misspelt.read_text().replace("{clients}", "{cleints}"))
    one, other = stage.scenario("same", ANSWER), stage.directory / "elsewhere" / "same.toml"
    other.parent.mkdir()
    other.write_text(Path(one).read_text())
    road = stage.directory / "road.toml"
    road.write_text("about = ''\nserver = 'a'\nclient = 'b'\nhost = '10.0.0.1'\nset_up = ['ip netns add a']\n")
    for words, told in [
        (["run", "reddis"], "there is no scenario reddis; there are pingpong"),
        (["run", "redis/put"], "no case put; it has mix, rate, get, set"),
        (["run", "--roads", "brigde"], "there is no road brigde; there are loopback"),
        (["run", "--roads", str(road)], f"{road}:3: `client` is in the network namespace b, and no command"),
        (["run", "--roads", "./gone.toml"], "cannot read ./gone.toml"),
        (["run", "--pin", "0,999"], "processor 999 may not be used here"),
        (["run", "--pin", "fast"], "auto, none, or two processors"),
        (["run", str(wrong)], f"{wrong}: the scenario wrong: TOML parse error at line 1"),
        (["run", str(misspelt)], "the parameter clients is in no command"),
        (["run", one, str(other)], "two scenarios would be called same"),
        (["run", "redis/get", "--quick"], "a quick run leaves these cases out"),
        (["run", "http", "--roads", "unix"], "can take any of these roads"),
        (["run", "--out", "/run/results"], "a /run of its own"),
        (["run", "--max-time", "5", "--repeat", "9"], "after 10 trials of each cell at least"),
        (["run", "--max-time", "5", "--quick"], "cannot be used with"),
        (["run", "redis", "--width", "0.1"], "--width is for what searches the highest rates, and nothing does that here"),
        (["run", "packets", "--width", "2"], "packets a second from 1 to 1000000, as 100/s, and not 2"),
    ]:
        out = [] if "--out" in words else stage.out("never")
        done = stage.bench(*words, *out)
        assert done.returncode != 0 and told in done.stderr, (words, done.stderr)
        assert "panicked" not in done.stderr, done.stderr
    assert not (stage.directory / "never" / "results.json").exists()


def where_namespaces_are_refused(stage: Stage) -> None:
    """A user namespace of its own whose root may make no network namespaces: what is missing is told, and nothing is measured."""
    refuse = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    words = stage.command("run", "echo", "--quick", *stage.out("refused"))
    own = ["unshare", "--user", "--map-root-user", "sh", "-c", refuse, "sh", *words]
    done = subprocess.run(own, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and "the namespaces of a run cannot be made here: unshare" in done.stderr, done.stdout + done.stderr
    assert "user.max_net_namespaces" in done.stderr and not (stage.directory / "refused").exists(), done.stderr


def a_road_without_its_module_is_left_out(stage: Stage) -> None:
    """What is missing stands in the list, and the other roads are measured."""
    line = next(line for line in stage.bench("list").stdout.splitlines() if line.startswith("smc "))
    if "yes" in line.split()[:2]:
        print("a road without its module: this kernel has SMC")
        return
    assert "this kernel has no module smc" in line or "no smc_run" in line, line
    done = stage.bench("run", "echo", "--sizes", "64", "--roads", "loopback,smc", *QUICK, *stage.out("module"))
    assert done.returncode == 0 and "the road smc is left out: " in done.stdout, done.stdout + done.stderr


def what_dpdk_lacks_is_told(stage: Stage) -> None:
    """Without its switch the road is listed with the package that brings it; without a driver it is left out, as the switch says why."""
    words = stage.command("run", "echo", "--sizes", "64", "--roads", "loopback,ovs-dpdk", *QUICK)
    listed = hidden("/usr/lib/openvswitch-switch-dpdk", stage.command("list"))
    line = next(line for line in listed.stdout.splitlines() if line.startswith("ovs-dpdk "))
    assert ": apt install openvswitch-switch-dpdk " in line and " no " in line, line
    drivers = [place for place in Path("/usr/lib").glob("*/dpdk") if place.is_dir()]
    line = next(line for line in stage.bench("list").stdout.splitlines() if line.startswith("ovs-dpdk "))
    if not drivers or "yes" not in line.split()[:2]:
        raise unittest.SkipTest(line)
    done = hidden(str(drivers[0]), [*words, *stage.out("driverless")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the road ovs-dpdk is left out: it cannot be set up: " in done.stdout and "DPDK" in done.stdout, done.stdout
    assert [road["name"] for road in stage.results("driverless")["roads"]] == ["loopback"]


def hidden(place: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command where a directory is empty, or is not there at all."""
    script = '[ ! -d "$0" ] || mount -t tmpfs none "$0" && exec "$@"'
    own = ["unshare", "--mount", "sh", "-c", script, place, *command]
    return subprocess.run(own, capture_output=True, text=True, timeout=LIMIT_S)


def results_that_cannot_be_read_are_told(stage: Stage) -> None:
    """Those of another schema, an empty file, JSON of something else, and none at all."""
    for name, text, told in [
        ("newer", '{"schema": 2}', "is of schema 2, and this millrace reads schema 1"),
        ("other", "{}", "is of schema unknown"),
        ("empty", "", "is not JSON"),
        ("none", None, "is this a directory that `millrace bench run --out` made?"),
    ]:
        directory = stage.directory / name
        if text is not None:
            directory.mkdir()
            (directory / "results.json").write_text(text)
        for words in (["report", str(directory)], ["compare", str(directory)]):
            done = stage.bench(*words)
            assert done.returncode == 1 and told in done.stderr, (words, done.stderr)


def what_was_measured_before_is_told(stage: Stage) -> None:
    """The same command with the same directory has nothing to do, and does not look as if it had measured."""
    words = ["run", stage.scenario("again", ANSWER), "--roads", "loopback", *QUICK, *stage.out("again")]
    first, second = stage.bench(*words), stage.bench(*words)
    assert first.returncode == second.returncode == 0, second.stderr
    assert "were there before" not in first.stdout, first.stdout
    # Two that count, and those that were disturbed.
    made = sum(len(cell["trials"]) for cell in stage.results("again")["cells"])
    assert made >= 2 and f"{made} trials were there before, and 0 were made now" in second.stdout, second.stdout


def trials_that_failed_are_made_again(stage: Stage) -> None:
    """The same command tries them once more, and keeps those that count."""
    mark = stage.directory / "mended"
    lame = stage.scenario("lame", f"sh -c 'test -e {mark} && {ANSWER}'")
    words = ["run", lame, "--roads", "loopback", *QUICK, *stage.out("lame")]
    first = stage.bench(*words)
    assert first.returncode == 1, first.stdout + first.stderr
    mark.touch()
    second = stage.bench(*words)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "failed" not in second.stdout and len(counted(stage.results("lame"))["loopback"]) == 2, second.stdout


def another_build_is_noticed(stage: Stage) -> None:
    """Figures of two builds are not mixed; what is there goes when that is asked for."""
    own = stage.directory / "own"
    own.mkdir()
    for name in ("millrace", "libmillrace_preload.so"):
        shutil.copy(Path(stage.millrace).with_name(name), own)
    first, second = stage.scenario("build", ANSWER), Stage(str(own / "millrace"), stage.directory)
    words = ["run", first, "--roads", "loopback", *QUICK, *stage.out("build")]
    assert second.bench(*words).returncode == 0
    with (own / "libmillrace_preload.so").open("ab") as library:
        library.write(b"of another day")
    refused = second.bench(*words)
    assert refused.returncode == 1, refused.stdout
    assert "has results of another build, of another machine, or of other files:\nbuild: millrace " in refused.stderr, refused.stderr
    anew = second.bench(*words, "--anew")
    assert anew.returncode == 0 and "were there before" not in anew.stdout, anew.stdout + anew.stderr
    assert len(counted(stage.results("build"))["loopback"]) == 2


def what_is_not_decided_goes_on(stage: Stage) -> None:
    """Ten rounds decide a cell whose figures are always the same, and not one whose figures are chance."""
    calm = stage.scenario("calm", ANSWER)
    chance = stage.scenario("chance", "sh -c '" + ANSWER.replace("1000", "$((1000 + $(od -An -N2 -tu2 /dev/urandom)))") + "'")
    for path in (Path(calm), Path(chance)):
        # A server that starts at once.
        slow = "python3 -m http.server --bind {bind} {port}"
        path.write_text(path.read_text().replace(slow, "{millrace} load serve echo --listen {listen}"))
    words = ["run", calm, chance, "--roads", "loopback,veth", "--clients", "1", "--time", "0.1", "--pin", "none", *stage.out("going on")]
    first = stage.bench(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    second = stage.bench(*words, "--max-time", "0.1")
    assert second.returncode == 0, second.stdout + second.stderr
    made = {}
    for cell in stage.results("going on")["cells"]:
        made[cell["scenario"], cell["road"]] = [trial["round"] for trial in cell["trials"] if trial["outcome"] == "counts"]
    assert made["calm/one", "loopback"] == made["calm/one", "veth"] == list(range(1, 11)), made
    assert made["chance/one", "loopback"] == made["chance/one", "veth"], made
    assert made["chance/one", "veth"] == list(range(1, len(made["chance/one", "veth"]) + 1)), made
    assert len(made["chance/one", "veth"]) > 10, made
    verdicts = {line.split()[0]: line for line in second.stdout.splitlines() if " against " in line}
    assert "no difference" in verdicts["calm/one"] and "no difference" not in verdicts["chance/one"], second.stdout


def a_client_that_does_not_heed_its_number_is_told(stage: Stage) -> None:
    """The suite looks for a number of operations that takes as long as a trial, and there is none."""
    heedless = stage.scenario("heedless", f"sh -c '{ANSWER} # {{count}}'")
    done = stage.bench("run", heedless, "--roads", "loopback", *QUICK, *stage.out("heedless"))
    assert done.returncode == 1 and "however large {count} is" in done.stdout, done.stdout + done.stderr


def without_root(stage: Stage) -> None:
    """Another user has a user namespace, in which there is no user but root for servers to become."""
    home = stage.directory / "home"
    home.mkdir()
    own = shutil.copy(stage.millrace, home / "millrace")
    shutil.copy(Path(stage.millrace).with_name("libmillrace_preload.so"), home)
    shutil.chown(home, "nobody")
    nobody = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env", f"HOME={home}"]
    if subprocess.run([*nobody, "unshare", "--user", "true"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("no user namespaces here")
    words = [*nobody, own, "bench", "run", "redis/mix", "http", "memcached", "proxy", "--clients", "1"]
    words += ["--roads", "loopback,millrace-dnat,sockmap"]
    # What is started in a namespace of its own begins slowly on a busy machine.
    longer = ["--quick", "--repeat", "1", "--time", "1"]
    done = subprocess.run([*words, *longer, "--out", str(home / "out")], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the kernel's road is what millrace-dnat shows" in done.stdout, done.stdout
    told = "no sockmap: it is BPF, which is for root"
    assert f"the road sockmap is left out: {told}" in done.stdout, done.stdout
    listed = subprocess.run([*nobody, own, "bench", "list"], capture_output=True, text=True, timeout=LIMIT_S)
    assert told in listed.stdout, listed.stdout + listed.stderr


def ended_by(stage: Stage, number: signal.Signals) -> None:
    """A run that is ended leaves nothing but its results, and the same command goes on with them."""
    name = f"ended-{number.name}"
    on = ["bridge", "millrace-bridge", "sockmap"]
    words = ["run", "redis/mix", "--clients", "1", "--roads", ",".join(on), *QUICK, *stage.out(name)]
    files, before = 2000 + number, splicing_programs()
    with subprocess.Popen(limited(files, stage.command(*words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + LIMIT_S
        results = stage.directory / name / "results.json"
        while not results.exists() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.poll() is None, run.returncode
        # Some of them may be of another run, and end with it.
        loaded = splicing_programs() - before
        assert loaded, "the programs of the sockmap are not loaded"
        assert len(alive(files)) > 3, alive(files)
        run.send_signal(number)
        run.wait(timeout=LIMIT_S)
    assert number == signal.SIGKILL or run.returncode == 130, run.returncode
    deadline = time.monotonic() + LIMIT_S
    while (left := {*alive(files), *(loaded & splicing_programs())}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, left
    assert not list(Path("/run/netns").glob("*bridge*")), "a network namespace is left"
    made = len(counted(stage.results(name)).get("bridge", []))
    done = stage.bench(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    after = counted(stage.results(name))
    assert [len(after[road]) for road in on] == [2, 2, 2] and made <= 2, after
    other = stage.bench("run", "redis/mix", "--quick", "--repeat", "1", *stage.out(name))
    assert other.returncode == 1 and "results of another plan" in other.stderr, other.stderr


def compared(stage: Stage, name: str, second: Path) -> tuple[int, dict[str, Any], str]:
    """The exit status, the only row and the rest of what is said of this build and another one."""
    scenario = stage.directory / "short.toml"
    scenario.write_text(SHORT)
    # Builds that differ by less are not told apart here: other programs may run beside this test.
    options = ["--margin", "60", "--json", "--repeat", "10", "--time", "1", *stage.out(name)]
    done = stage.bench("compare", "--build-a", stage.millrace, "--build-b", str(second), str(scenario), *options)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert len(found["rows"]) == 1, found
    assert found["rows"][0]["compared"]["pairs"] == 10, found
    return done.returncode, found["rows"][0], done.stdout + done.stderr


def equal_builds_have_no_difference(stage: Stage) -> None:
    """A build and itself; what was measured can be compared again, without measuring."""
    status, row, told = compared(stage, "equal", Path(stage.millrace).parent)
    assert status == 0 and row["verdict"] in ("no_difference", "undecided"), row
    assert "A and B are the same build" in told, told
    again = stage.bench("compare", str(stage.directory / "equal"))
    assert again.returncode in (0, 1) and "millrace-loopback" in again.stdout, again.stdout + again.stderr
    roads = [road["name"] for road in stage.results("equal")["roads"]]
    assert roads == ["millrace-loopback-A", "millrace-loopback-B"], roads


def a_slower_build_is_found(stage: Stage) -> None:
    """One whose programs sleep where those of the other one spin."""
    status, row, told = compared(stage, "slowed", slowed_build(stage, stage.directory / "slow"))
    assert status == 1 and row["verdict"] == "slower", row
    assert row["compared"]["ratio"] < 0.6 and "same build" not in told, (row, told)


def slowed_build(stage: Stage, directory: Path) -> Path:
    """Makes it, beside a library of its own."""
    directory.mkdir()
    program = directory / "millrace"
    program.write_text(SLOWED.replace("{millrace}", shlex.quote(stage.millrace)))
    program.chmod(0o755)
    shutil.copy(Path(stage.millrace).with_name("libmillrace_preload.so"), directory)
    return directory


def builds_that_are_none_are_told(stage: Stage) -> None:
    """Before anything is set up: no program, none of Millrace, no library; and roads that no build carries."""
    empty, alone, good = stage.directory / "no-build", stage.directory / "no-library", stage.millrace
    empty.mkdir()
    alone.mkdir()
    shutil.copy(stage.millrace, alone)
    for first, more, told in [
        (str(empty), [], f"there is no program at {empty}/millrace"),
        (str(alone), [], "no-library/millrace has no library; it is not at"),
        (str(stage.directory / "none"), [], f"there is no program at {stage.directory}/none"),
        (good, ["--roads", "loopback"], "the road loopback is the same with every build"),
        (good, ["no-such-scenario"], "there is no scenario no-such-scenario"),
    ]:
        done = stage.bench("compare", "--build-a", first, "--build-b", good, *more, *stage.out("unmeasured"))
        assert done.returncode == 1 and told in done.stderr, (first, more, done.stderr)
    not_ours = stage.bench("compare", "--build-a", good, "--build-b", "/bin/true", *stage.out("unmeasured"))
    assert "has no library" in not_ours.stderr, not_ours.stderr
    one = stage.bench("compare", "--build-a", good)
    assert one.returncode == 2 and "--build-b" in one.stderr, one.stderr
    measured = stage.bench("compare", "--repeat", "3", str(empty))
    assert measured.returncode == 2 and "--build-a" in measured.stderr, measured.stderr
    assert not (stage.directory / "unmeasured").exists()


Case = tuple[str, Callable[[Stage], None]]

BESIDE: list[Case] = [
    ("without root", without_root),
    ("equal roads are equal, and a slowed one is slower", equal_roads_are_equal_and_a_slowed_one_is_slower),
    ("two groups of trials are told", two_groups_of_trials_are_told),
    ("spliced bytes pass the interface by", spliced_bytes_pass_the_interface_by),
    ("answers of http have their sizes", answers_of_http_have_their_sizes),
    ("what is not decided goes on", what_is_not_decided_goes_on),
    ("cases that quick runs leave out have figures", cases_that_quick_runs_leave_out_have_figures),
    ("a suite has its scenarios and roads", a_suite_has_its_scenarios_and_roads),
    ("ended by SIGINT", lambda stage: ended_by(stage, signal.SIGINT)),
    ("ended by SIGTERM", lambda stage: ended_by(stage, signal.SIGTERM)),
    ("ended by SIGKILL", lambda stage: ended_by(stage, signal.SIGKILL)),
    ("bytes by the kernel are told", bytes_by_the_kernel_are_told),
    ("what fails is told, and the rest goes on", what_fails_is_told_and_the_rest_goes_on),
    ("a road that cannot be set up is left out", a_road_that_cannot_be_set_up_is_left_out),
    ("a road of the user's own is measured", a_road_of_the_user_s_own_is_measured),
    ("mistakes are told before anything is set up", mistakes_are_told_before_anything_is_set_up),
    ("where namespaces are refused", where_namespaces_are_refused),
    ("a road without its module is left out", a_road_without_its_module_is_left_out),
    ("what DPDK lacks is told", what_dpdk_lacks_is_told),
    ("results that cannot be read are told", results_that_cannot_be_read_are_told),
    ("what was measured before is told", what_was_measured_before_is_told),
    ("trials that failed are made again", trials_that_failed_are_made_again),
    ("another build is noticed", another_build_is_noticed),
    ("a client that does not heed its number is told", a_client_that_does_not_heed_its_number_is_told),
    ("builds that are none are told", builds_that_are_none_are_told),
    ("the clocks of two hosts are held against each other", the_clocks_of_two_hosts_are_held_against_each_other),
    ("both ends of a host have one clock", both_ends_of_a_host_have_one_clock),
    ("a trial in company is as long as others", a_trial_in_company_is_as_long_as_others),
]
# These look at what takes a processor or the machine's memory, or at how fast something is.
ALONE: list[Case] = [
    ("idle connections are accounted for", idle_connections_are_accounted_for),
    ("every road is measured", every_road_is_measured),
    ("messages are measured", messages_are_measured),
    ("packets are measured", packets_are_measured),
    ("ports are measured alone", ports_are_measured_alone),
    ("functions are measured", functions_are_measured),
    ("functions are measured at fixed rates", functions_are_measured_at_fixed_rates),
    ("hashes are counted if they are right", hashes_are_counted),
    ("all functions and their peers are measured", functions_and_their_peers_are_measured),
    ("a stranger on its processors makes a trial void", a_stranger_on_its_processors_makes_a_trial_void),
    ("equal builds have no difference", equal_builds_have_no_difference),
    ("a slower build is found", a_slower_build_is_found),
]
# What is left to the full run, as it takes long.
FULL = {
    "cases that quick runs leave out have figures",
    "messages are measured",
    "all functions and their peers are measured",
    "the clocks of two hosts are held against each other",
}


def outcome_of(case: Case, millrace: str, directory: Path) -> tuple[str, str]:
    """Runs a case in a directory of its own. Whether it `passed`, `failed` or was `skipped`, and what it said if it failed."""
    name, function = case
    own = Path(tempfile.mkdtemp(prefix="case-", dir=directory))
    own.chmod(0o755)  # other users run there, too
    begun = time.monotonic()
    try:
        function(Stage(millrace, own))
    except (AssertionError, OSError, ValueError, KeyError, subprocess.SubprocessError) as problem:
        print(f"{name}: FAILED", flush=True)
        return "failed", f"{name}: {problem!r}"
    except unittest.SkipTest as why:
        print(f"{name}: skipped: {why}", flush=True)
        return "skipped", ""
    print(f"{name}: as it should be ({time.monotonic() - begun:.0f} s)", flush=True)
    return "passed", ""


def main() -> int:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cases")
    parser.add_argument("--millrace", default=roads.UNDER.split()[0], help="the program to test")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of their names")
    options = parser.parse_args()
    named = tuple(options.cases)
    wanted = {name for name, _ in BESIDE + ALONE if (name.startswith(named) if named else options.full or name not in FULL)}
    if not isolate.is_inside() and "messages are measured" in wanted:
        # In there is no network.
        subprocess.run(BUILD_PEERS, check=True, cwd=ROOT)
    if not isolate.is_inside() and "hashes are counted if they are right" in wanted:
        subprocess.run(BUILD_SOFTRSS, check=True, cwd=ROOT)
    isolate.ensure()
    if not isolate.is_inside():
        print("0 passed, 0 failed, 1 skipped: network namespaces need root")
        return 0
    beside, alone = ([case for case in cases if case[0] in wanted] for cases in (BESIDE, ALONE))
    if not named and not options.full:
        print(f"{len(FULL)} cases are left to the full run")
    with tempfile.TemporaryDirectory(prefix="millrace-bench-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with ThreadPoolExecutor(WORKERS) as workers:
            outcomes = list(workers.map(lambda case: outcome_of(case, options.millrace, directory), beside))
        outcomes += [outcome_of(case, options.millrace, directory) for case in alone]
    print("\n".join(said for _, said in outcomes if said))
    counts = {how: sum(how == other for other, _ in outcomes) for how in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {how}" for how, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
