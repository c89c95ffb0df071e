"""`millrace bench run packets`, `ppf` and `scheduler`: devices that forward packets, and hashes, in a short run each."""

from __future__ import annotations

import os
import shlex
import shutil
import unittest

from bench_stage import Stage


def packets_are_measured(stage: Stage) -> None:
    """The switch and its peer in the same place, and the switch between two front ends: rates, latencies, and no packet that was wrong."""
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("generator and device have a processor each")
    peers = ["testpmd-memif"] if shutil.which("dpdk-testpmd") else []
    if not peers:
        print("packets are measured: without their peer: there is no dpdk-testpmd here (Debian's package is dpdk-dev)")
    devices = [*peers, "switch-memif", "switch-vhost"]
    # Not pinned, so that no trial is void for what else the machine does; devices have the first processor all the same.
    words = ["--quick", "--repeat", "1", "--time", "0.3", "--pin", "none", "--width", "50000/s", "--roads", ",".join(devices)]
    done = stage.bench("run", "packets", *words, *stage.out("packets"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("packets")
    cells = {cell["road"]: cell for cell in results["cells"]}
    assert sorted(cells) == sorted(devices) == sorted(road["name"] for road in results["roads"]), cells.keys()
    for road, cell in cells.items():
        assert cell["scenario"] == ("packets/vhost-user" if road == "switch-vhost" else "packets/memif"), cell["scenario"]
        assert cell["figure"] == "packets without loss per second" and cell["parameters"] == {"bytes": 64, "flows": 1}, cell
        trial = next(trial for trial in cell["trials"] if trial["outcome"] == "counts")
        found = trial["packets"]
        assert [rate["loss"] for rate in found["rates"]] == [0.0, 0.005], found
        without, with_some = (rate["rate"] for rate in found["rates"])
        assert trial["value"] == without <= with_some <= found["most"], found
        assert found["most"] > 10_000 < found["own"] and found["runs"] > 0 and found["sizes"] == "64", found
        shares = [at["share"] for at in found["latencies"]]
        assert shares == ([0.1, 0.5, 0.9] if without else []), found
        assert all(at["latency"]["count"] > 0 for at in found["latencies"]), found
        program = "dpdk-testpmd" if road in peers else "switch run"
        assert program in trial["commands"]["device"] and "load packets" in trial["commands"]["client"], trial["commands"]
        assert "--width 50000/s" in trial["commands"]["client"], trial["commands"]
        assert sum(trial["processor"][f"server_{what}_s"] for what in ("user", "system")) > 0, trial["processor"]
    assert results["plan"]["width"] == "50000/s", results["plan"]
    assert "rates searched to 50000 packets/s; " in (stage.directory / "packets" / "report.html").read_text()
    settings = {road["name"]: " ".join(road["settings"]) for road in results["roads"]}
    assert all("the generator sends by" in text and "1024" in text for text in settings.values()), settings
    table = stage.bench("report", str(stage.directory / "packets"), "--markdown").stdout
    of_latency = {cell["scenario"] for cell in cells.values() if any(trial.get("packets", {}).get("latencies") for trial in cell["trials"])}
    assert table.count(": highest rates") == 2, table
    assert table.count(": latency at shares of the rate without loss") == len(of_latency), table


def ports_are_measured_alone(stage: Stage) -> None:
    """A ring between two programs, and a memif that testpmd sends to."""
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("who sends and who takes have a processor each")
    peers = ["memif-to-millrace"] if shutil.which("dpdk-testpmd") else []
    if not peers:
        print("ports are measured alone: without a memif: there is no dpdk-testpmd here (Debian's package is dpdk-dev)")
    # Not pinned, as above; testpmd pins itself.
    words = ["--quick", "--repeat", "1", "--time", "0.3", "--pin", "none", "--roads", ",".join(["ring", *peers])]
    done = stage.bench("run", "packets/ring", "packets/memif-receive", *words, *stage.out("ports"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("ports")
    cells = {cell["road"]: cell for cell in results["cells"]}
    assert sorted(cells) == sorted(["ring", *peers]), cells.keys()
    for road, cell in cells.items():
        assert cell["figure"] == "packets received per second" and cell["parameters"] == {"bytes": 64}, cell
        trial = next(trial for trial in cell["trials"] if trial["outcome"] == "counts")
        assert trial["value"] > 10_000, (road, trial)
        said = {end: shlex.split(command) for end, command in trial["commands"].items()}
        sends = {"--send"} if road == "ring" else {"--forward-mode=txonly", "--txpkts=64"}
        assert sends <= set(said["device"]) and "--receive" in said["client"], said
    settings = {road["name"]: " ".join(road["settings"]) for road in results["roads"]}
    assert all("who takes its packets:" in text for text in settings.values()), settings


def functions_are_measured(stage: Stage) -> None:
    """The packet processing function: bearers are added, and every packet comes as the function has to send it."""
    functions_on(stage, ["ppf-memif"], "ppf/relay", "ppf/encapsulation")


def functions_and_their_peers_are_measured(stage: Stage) -> None:
    """All ways, and testpmd with the same frames."""
    peers = ["testpmd-5tswap", "testpmd-macswap"] if shutil.which("dpdk-testpmd") else []
    if not peers:
        print("functions are measured: without testpmd: there is no dpdk-testpmd here (Debian's package is dpdk-dev)")
    functions_on(stage, [*peers, "ppf-memif"], "ppf")


def functions_are_measured_at_fixed_rates(stage: Stage) -> None:
    """Latencies at a rate that was said, with their distribution, by number and as curves."""
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("generator and device have a processor each")
    # Not pinned, as above.
    words = ["--short", "--repeat", "1", "--time", "0.1", "--pin", "none", "--roads", "ppf-memif"]
    done = stage.bench("run", "ppf/relay-rate", *words, *stage.out("rates"))
    assert done.returncode == 0, done.stdout + done.stderr
    cells = stage.results("rates")["cells"]
    assert [cell["parameters"] for cell in cells] == [{"bearers": 1000, "rate": rate} for rate in (100003, 1000003, 3000003)], cells
    for cell in cells:
        assert cell["figure"] == "median time from when a packet was due" and cell["unit"] == "nanoseconds", cell
        trial = next(trial for trial in cell["trials"] if trial["outcome"] == "counts")
        latency = trial["latency"]
        assert 0 < latency["min_ns"] <= trial["value"] <= latency["max_ns"] and latency["deviation_ns"] > 0 < latency["mean_ns"], latency
        assert (stage.directory / "rates" / trial["histogram"]).stat().st_size > 0, trial
    page = (stage.directory / "rates" / "report.html").read_text()
    told = [page.count(f"<h3>{heading}</h3>") for heading in ("Latency by percentile", "Against rate", "Latency against rate")]
    assert told == [1, 1, 1], told
    assert "deviation (jitter)" in page and "rates searched" not in page


def hashes_are_counted_if_they_are_right(stage: Stage, beside: dict[str, str]) -> None:
    """Ours and DPDK's, where that is built; one whose hashes are others fails. `beside`: where it is."""
    built = shutil.which("millrace-softrss", path=beside["PATH"])
    if not built:
        print("hashes are counted: without DPDK's: there is no rte_thash.h here (Debian's package is libdpdk-dev)")
    words = ["run", "scheduler/toeplitz", "--repeat", "1", "--time", "0.1", "--pin", "none"]
    done = stage.bench(*words, *stage.out("hashes"), environment=beside)
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("hashes")
    peers = ["rte-softrss"] if built else []
    cells = {cell["road"]: cell for cell in results["cells"]}
    assert list(cells) == [*peers, "toeplitz-naive", "toeplitz-tables"], cells.keys()
    for road, cell in cells.items():
        assert cell["figure"] == "hashes per second" and cell["parameters"] == {}, cell
        trial = next(trial for trial in cell["trials"] if trial["outcome"] == "counts")
        assert trial["value"] > 10_000 and ("millrace-softrss" in trial["commands"]["client"]) == (road in peers), trial
    left_out = any("the road rte-softrss is left out" in warning for warning in results["warnings"])
    assert left_out != bool(built), results["warnings"]
    if built:
        wrong = stage.directory / "wrong"
        wrong.mkdir()
        (wrong / "millrace-softrss").write_text(f'#!/bin/sh\n{built} "$@" | sed "s/sum.:/&1/"\n')
        (wrong / "millrace-softrss").chmod(0o755)
        environment = {"PATH": f"{wrong}:{beside['PATH']}"}
        done = stage.bench(*words, "--roads", "rte-softrss", *stage.out("wrong results"), environment=environment)
        assert done.returncode == 1 and "some are wrong" in done.stdout, done.stdout + done.stderr


def functions_on(stage: Stage, roads: list[str], *what: str) -> None:
    """Measures these roads in a short run."""
    if len(os.sched_getaffinity(0)) < 2:
        raise unittest.SkipTest("generator and device have a processor each")
    # Not pinned, as above.
    words = ["--quick", "--repeat", "1", "--time", "0.1", "--pin", "none", "--roads", ",".join(roads)]
    done = stage.bench("run", *what, *words, *stage.out("functions"))
    assert done.returncode == 0, done.stdout + done.stderr
    results = stage.results("functions")
    cells = {(cell["scenario"], cell["road"]): cell for cell in results["cells"]}
    ways = what if len(what) > 1 else ("ppf/relay", "ppf/decapsulation", "ppf/encapsulation")
    on = [(way, road) for way in ways for road in roads if way == "ppf/relay" or road == "ppf-memif"]
    assert sorted(cells) == sorted(on), cells.keys()
    for (way, road), cell in cells.items():
        assert cell["figure"] == "packets without loss per second" and cell["parameters"] == {"bearers": 1000, "bytes": 90}, cell
        trial = next(trial for trial in cell["trials"] if trial["outcome"] == "counts")
        found = trial["packets"]
        assert found["most"] > 1_000 < found["own"] and found["runs"] > 0 and found["sizes"] == "90", (way, road, found)
        command = shlex.split(trial["commands"]["client"])
        assert ("--function" in command) == (road == "ppf-memif") and ("--turned" in command) == (road == "testpmd-5tswap"), command
        ports = [word for word in command if word.startswith("memif-server:")]
        assert "radio.sock" in ports[way == "ppf/encapsulation"] if road == "ppf-memif" else "in.sock" in ports[0], ports
    settings = {road["name"]: " ".join(road["settings"]) for road in results["roads"]}
    assert all("{generator}: --" in text for text in settings.values()), settings
