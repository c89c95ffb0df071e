#!/usr/bin/python3
"""The scheduler beside DPDK's `event_dsw`, in the same place, in turns: one processor lets events in, the other one is the worker.

    tests/sched/compare.py [--rounds 5] [--seconds 3] [--stages 1,4] [--flows 1024]

Needs `dpdk-dev` (`dpdk-test-eventdev`; `rte_thash.h` for the hash, which is left out without a C compiler), root, two processors, and
`cargo build --release -p millrace-sched --examples`. README.md says what is measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RATE = re.compile(r"([0-9.]+) mpps avg ([0-9.]+) mpps")
START_S = 2.0
"""What a program needs until it is at its rate: these lines of its are not looked at."""


def peer(stages: int, flows: int, seconds: float) -> float:
    """Events in a second, in millions, that `event_dsw` brings through so many atomic stages: the median of its own lines."""
    command = ["dpdk-test-eventdev", "--lcores", "0@0,1@0,2@1", "--no-pci", "--no-huge", "-m", "512", "--no-shconf", "--vdev=event_dsw0"]
    command += ["--", "--test=perf_queue", "--plcores=1", "--wlcores=2", "--stlist=" + ",".join("a" * stages), f"--nb_flows={flows}"]
    command += ["--prod_enq_burst_sz=32", "--worker_deq_depth=32", "--nb_pkts=0"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            # Its main thread only looks at the clock, all the time, on the producer's processor: it gets what the producer leaves.
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            time.sleep(START_S + seconds)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    rates = [float(rate) for rate, _ in RATE.findall(text)][int(START_S) :]
    if not rates:
        sys.exit(f"dpdk-test-eventdev said no rate:\n{text}")
    return statistics.median(rates)


def ours(program: Path, stages: int, flows: int, seconds: float) -> float:
    """The same of the scheduler."""
    words = [str(program), str(stages), str(flows), str(round(seconds))]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])


def hashes(program: Path) -> tuple[float, float] | None:
    """Nanoseconds of a hash of 12 bytes: DPDK's, and ours."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        other = Path(directory) / "softrss"
        flags = subprocess.run(["pkg-config", "--cflags", "libdpdk"], check=True, capture_output=True, text=True).stdout.split()
        source = Path(__file__).with_name("softrss.c")
        subprocess.run([compiler, "-O3", "-march=native", "-o", str(other), str(source), *flags], check=True)
        commands = [[str(name), "2000"] for name in (other, program)]
        lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for command in commands]
    if lines[0][2] != lines[1][2]:
        sys.exit(f"the hashes differ: {lines[0][2]} and {lines[1][2]}")
    return float(lines[0][0]), float(lines[1][0])


def main() -> None:
    parser = argparse.ArgumentParser(description="the scheduler beside event_dsw")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--stages", default="1,4")
    parser.add_argument("--flows", type=int, default=1024)
    parser.add_argument("--examples", type=Path, default=REPOSITORY / "target/release/examples")
    words = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2 or shutil.which("dpdk-test-eventdev") is None:
        sys.exit("needs two processors and dpdk-test-eventdev (Debian: dpdk-dev)")
    for stages in (int(stages) for stages in words.stages.split(",")):
        rounds = []
        for _ in range(words.rounds):
            pair = peer(stages, words.flows, words.seconds), ours(words.examples / "rate", stages, words.flows, words.seconds)
            if min(pair) > 0:
                rounds.append(pair)
            else:
                print(f"{stages} stages: one of them had no processor in this round: {pair[0]:.2f} and {pair[1]:.2f} M/s")
        if not rounds:
            sys.exit("this machine has no processor to spare")
        theirs, mine = (statistics.median(figures) for figures in zip(*rounds))
        ratios = sorted(mine / theirs for theirs, mine in rounds)
        print(
            f"{stages} stages: event_dsw {theirs:.2f} M/s, ours {mine:.2f} M/s,"
            f" {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    figures = hashes(words.examples / "toeplitz")
    if figures is None:
        print("hash: no C compiler")
    else:
        print(f"hash of 12 bytes: rte_softrss {figures[0]:.1f} ns, ours {figures[1]:.1f} ns, {figures[0] / figures[1]:.2f}x")


if __name__ == "__main__":
    main()
