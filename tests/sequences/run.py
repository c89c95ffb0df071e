#!/usr/bin/python3
"""Runs differential sequences on the plain kernel and under Millrace, in namespaces of their own with an agent of their own.

    tests/sequences/run.py [--modes MODE,...] [--seeds N] [--total N] [--jobs N]

First what is kept, in every mode; then `--seeds` seeds, the same in every mode, or `--total` in all, other ones in each mode. In the
default mode, where connections come to the ring in the middle of a sequence or not at all, they are seeds that see to it; a few of these
are run in the other modes, too, because threads run beside each other in them. With
`--total`, what has been run with a build is not run again: an interrupted run goes on where it stopped, unless `--restart` is given.
What known.txt names is run and told, and counts as skipped where it differs. Exits with 0 when nothing else differed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import isolate, road  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILT = road.REPOSITORY / "target/sequences"
PROGRAM = BUILT / "release/sequences"
PROGRESS = BUILT / "progress.json"
LIBRARY = road.MILLRACE.with_name("libmillrace_preload.so")
KNOWN = HERE / "known.txt"
# As in src/generate: from here on, connections come to the ring in the middle of a sequence.
MIDWAY = 1_000_000_000
# For so many ordinary seeds there is one of those.
PER_MIDWAY = 10
# An agent that is busy stands still for so many seconds.
STILL_S = (0.002, 0.01, 0.03)
CHUNK = 500
CLOSING = re.compile(r"^(\d+) sequences, (\d+) differ", re.MULTILINE)
DIFFERS = re.compile(r"^sequence (\S+) differs:", re.MULTILINE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="eager,eager-nospin,chaos:7,default", help="values of MILLRACE_MODE (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="seeds 0..N in every mode, half as many in the default mode")
    parser.add_argument("--total", type=int, default=0, metavar="N", help="so many sequences in all modes together")
    parser.add_argument("--jobs", type=int, metavar="N", help="sequences at a time (default: four per processor)")
    parser.add_argument("--restart", action="store_true", help="forget what this build has run")
    return parser.parse_args()


@dataclass
class Progress:
    """What one build has run: for each piece of work how many sequences, and the names of those that differed."""

    build: str
    stored: bool
    done: dict[str, dict] = field(default_factory=dict)

    @staticmethod
    def load(options: argparse.Namespace) -> Progress:
        """What was stored for the programs as they are now, where the run is one that goes on."""
        if not options.total:
            return Progress("", False)
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in (road.MILLRACE, LIBRARY, PROGRAM))).hexdigest()
        if PROGRESS.exists() and not options.restart:
            stored = json.loads(PROGRESS.read_text())
            if stored["build"] == digest:
                return Progress(digest, True, stored["done"])
        return Progress(digest, True)

    def note(self, piece: str, count: int, differing: list[str]) -> None:
        """A piece of work is done."""
        self.done[piece] = {"count": count, "differing": differing}
        if self.stored:
            PROGRESS.write_text(json.dumps({"build": self.build, "done": self.done}))


def _pieces(options: argparse.Namespace) -> list[tuple[str, str, list[str]]]:
    """The work: a name, a mode, and what to ask of the program."""
    modes = options.modes.split(",")
    pieces = [(f"kept {mode}", mode, ["--kept", "."]) for mode in modes]
    share = -(-options.total // len(modes))
    for index, mode in enumerate(modes):
        # The sequences of the default mode are longer.
        seeds = options.seeds // 2 if mode == "default" else options.seeds
        first, last = (0, seeds) if not options.total else (index * share, min((index + 1) * share, options.total))
        for start, end in _ranges(mode, first, last):
            chunk = f"{start}..{end}"
            pieces.append((f"{chunk} {mode}", mode, ["--seeds", chunk]))
    return pieces


def _ranges(mode: str, first: int, last: int) -> list[tuple[int, int]]:
    """The seeds that stand for these in a mode, in chunks: for the most part ordinary ones, or those that are for the default mode."""
    few = (last - first) // PER_MIDWAY
    ordinary, midway = (first, last - few), (MIDWAY + first, MIDWAY + first + few)
    parts = [(MIDWAY + first, MIDWAY + last)] if mode == "default" else [ordinary, midway]
    return [(start, min(start + CHUNK, end)) for begin, end in parts for start in range(begin, end, CHUNK)]


@contextmanager
def _busy(agents: set[int]) -> Iterator[None]:
    """Meanwhile the agents stand still for some milliseconds again and again, as if they had others to serve."""
    over = threading.Event()
    choices = random.Random(1)

    def _disturb() -> None:
        while not over.wait(choices.uniform(0, 0.03)):
            for agent in agents:
                os.kill(agent, signal.SIGSTOP)
            over.wait(choices.choice(STILL_S))
            for agent in agents:
                os.kill(agent, signal.SIGCONT)

    disturbance = threading.Thread(target=_disturb)
    disturbance.start()
    try:
        yield
    finally:
        over.set()
        disturbance.join()


def _run(mode: str, work: list[str], jobs: int | None) -> tuple[int, list[str]]:
    """Runs one piece; returns how many sequences it had and the names of those that differed."""
    command = [str(PROGRAM), "--under", f"{road.MILLRACE} run --mode {mode} --", "--max-failures", "1000000", *work]
    if jobs:
        command += ["--jobs", str(jobs)]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    closing = CLOSING.findall(result.stderr)
    if result.returncode not in (0, 1) or not closing:
        sys.exit(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr}")
    print(result.stdout, end="", flush=True)
    return int(closing[-1][0]), DIFFERS.findall(result.stdout)


def _known() -> dict[str, str]:
    """Sequences that are known to differ, and why."""
    lines = (line.strip() for line in KNOWN.read_text().splitlines())
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: why for name, why in pairs}


def main() -> int:
    """Runs what is asked for; returns the exit code."""
    options = _arguments()
    if not isolate.is_inside():
        manifest = str(HERE / "Cargo.toml")
        subprocess.run(
            ["cargo", "build", "--release", "--quiet", "--manifest-path", manifest, "--target-dir", str(BUILT)], check=True
        )
    isolate.ensure()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    progress, known = Progress.load(options), _known()
    total, failed, skipped = 0, [], []
    with tempfile.TemporaryDirectory(prefix="millrace-sequences-") as directory:
        with road.Agent(road.under(road.UNDER, "eager"), Path(directory) / "agent") as agent:
            for piece, mode, work in _pieces(options):
                if piece not in progress.done:
                    # The other modes wait for introductions; in this one, a slow agent makes connections join at other moments.
                    with _busy(agent.pids) if mode == "default" else nullcontext():
                        progress.note(piece, *_run(mode, work, options.jobs))
                done = progress.done[piece]
                total += done["count"]
                for name in done["differing"]:
                    (skipped if name in known else failed).append(f"{name} {mode}")
                print(f"{piece}: {done['count']} sequences, {len(done['differing'])} differ", flush=True)
    for name in skipped:
        print(f"known to differ: {name}: {known[name.split()[0]]}")
    for name in failed:
        print(f"differed: {name}; to be kept in seeds.txt, or made small in kept/")
    print(f"figure: {total} sequences in the modes {options.modes}")
    print(f"{total - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
