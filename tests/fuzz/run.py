#!/usr/bin/python3
"""Fuzzes message formats, streams, rings, channels, ports and the user plane with a hostile peer, and the agent, led by what they reach.

    tests/fuzz/run.py [--seconds N] [--seed N] [--only TARGET]
    tests/fuzz/run.py --only TARGET --input FILE

Each target begins with the inputs in `corpus/TARGET`, where there are any; a failing one is kept in `target/fuzz/found/TARGET`.
Exits with 0 when none failed.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE.parents[1] / "target/fuzz"
LONGEST = {
    "codec": 256,
    "frames": 128,
    "gtpu": 256,
    "stream": 4096,
    "ring": 4096,
    "publisher": 1024,
    "subscriber": 1024,
    "agent": 1024,
    "user_plane": 1024,
    "node": 1024,
    "captures": 4096,
    "filter": 256,
    "offloads": 256,
    "memif-control": 512,
    "memif-rings": 2048,
    "vhost-control": 512,
    "virtio-rings": 2048,
}
"""The targets, and how many bytes an input of each has at most."""
TARGETS = tuple(LONGEST)
PORTS = ("captures", "filter", "offloads", "memif-control", "memif-rings", "vhost-control", "virtio-rings")
SHARES = {"gtpu": 0.2, "user_plane": 0.2, "node": 0.12, **dict.fromkeys(PORTS, 0.5)}
"""Of the seconds that are asked for. GTP-U needs no processes, and does ten times as much in a second as others; ports are many targets."""
COUNTERS = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
)
"""What `-Zsanitizer` of a nightly compiler would ask for, and every compiler can do."""
SLACK_S = 120
LONG_S = 60
"""From so many seconds on, what is gained by inputs that run faster is more than what their programs take longer to build."""


def _build(seconds: int) -> None:
    # The counters are for the programs, not for what runs at build time.
    environment = dict(os.environ, CARGO_ENCODED_RUSTFLAGS="\x1f".join(COUNTERS))
    if seconds < LONG_S:
        environment["CARGO_PROFILE_RELEASE_OPT_LEVEL"] = "1"
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    triple = next(line.split()[1] for line in host.splitlines() if line.startswith("host:"))
    command = ["cargo", "build", "--release", "--quiet", "--manifest-path", str(HERE / "Cargo.toml"), "--target", triple]
    subprocess.run([*command, "--target-dir", str(BUILT)], check=True, env=environment)
    for target in TARGETS:
        shutil.copy2(BUILT / triple / "release" / target, BUILT / target)


def _fuzz(target: str, seconds: int, seed: int) -> bool:
    found = BUILT / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    kept = HERE / "corpus" / target
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as fresh:
        inputs = [fresh, *([str(kept)] if kept.exists() else [])]
        options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LONGEST[target]}", "-timeout=60"]
        command = [str(BUILT / target), *options, "-print_final_stats=1", f"-artifact_prefix={found}/", *inputs]
        environment = dict(os.environ, TMPDIR=fresh)
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=seconds + SLACK_S, env=environment
        )
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr)
    reached = re.findall(r"cov: (\d+)", ended.stderr)
    print(f"figure: {target}: {runs[1] if runs else '?'} inputs in {seconds} s, {reached[-1] if reached else '?'} edges reached")
    if ended.returncode != 0:
        print(f"FAILED {target}, exit code {ended.returncode}\n{ended.stderr[-6000:]}")
    return ended.returncode == 0


def main() -> int:
    """Fuzzes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first mutations (default: %(default)s)")
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--input", help="run this input, and no other")
    options = parser.parse_args()
    _build(options.seconds)
    if options.input:
        return subprocess.run([BUILT / options.only, options.input], check=False).returncode
    chosen = [options.only] if options.only else TARGETS
    shares = {} if options.only else SHARES
    good = [_fuzz(target, math.ceil(options.seconds * shares.get(target, 1)), options.seed) for target in chosen]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed, 0 skipped")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
