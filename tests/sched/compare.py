#!/usr/bin/python3
"""The scheduler's Toeplitz hash beside DPDK's `rte_softrss`: the same tuples, and the sums of all hashes, which must be equal.

    tests/sched/compare.py [--rounds 5]

Needs `dpdk-dev` (`rte_thash.h`), a C compiler, and `cargo build --release -p millrace-sched --examples`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def hashes(programs: list[Path]) -> list[float]:
    """Nanoseconds of a hash of 12 bytes, of each."""
    lines = [subprocess.run([str(name), "2000"], check=True, capture_output=True, text=True).stdout.split() for name in programs]
    if len({words[2] for words in lines}) != 1:
        sys.exit(f"the hashes differ: {[words[2] for words in lines]}")
    return [float(words[0]) for words in lines]


def main() -> None:
    """Compares them."""
    parser = argparse.ArgumentParser(description="the Toeplitz hash beside rte_softrss")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", type=Path, default=REPOSITORY / "target/release/examples")
    words = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("needs a C compiler")
    with tempfile.TemporaryDirectory() as directory:
        peer = Path(directory) / "softrss"
        flags = subprocess.run(["pkg-config", "--cflags", "libdpdk"], check=True, capture_output=True, text=True).stdout.split()
        source = Path(__file__).with_name("softrss.c")
        subprocess.run([compiler, "-O3", "-march=native", "-o", str(peer), str(source), *flags], check=True)
        rounds = [hashes([peer, words.examples / "toeplitz"]) for _ in range(words.rounds)]
    theirs, ours = (statistics.median(figures) for figures in zip(*rounds))
    print(f"hash of 12 bytes: rte_softrss {theirs:.1f} ns, ours {ours:.1f} ns, {theirs / ours:.2f}x")


if __name__ == "__main__":
    main()
