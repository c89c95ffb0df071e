#!/usr/bin/python3
"""The traps of a socket library, one case each: small programs that must observe the same plain and under Millrace.

    tests/traps/run.py [--only CASE] [--millrace PATH]

Each `.c` file is a program of several cases (`traps.h`). A case runs plain once, and under `millrace run` in every mode with an
agent of its own. Exits with 0 when all did what the plain one did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import isolate, road  # noqa: E402

HERE = Path(__file__).resolve().parent
LIBRARIES = {"uring": ["-luring"]}
BUILT = road.REPOSITORY / "target/traps"
CASE_S = 60.0
AT_A_TIME = 2
MODES = ("eager", "default", "eager-nospin", "chaos:5")


def _build() -> dict[str, Path]:
    """Compiles the programs; returns each case with its program."""
    BUILT.mkdir(parents=True, exist_ok=True)
    cases = {}
    for source in sorted(HERE.glob("*.c")):
        program = BUILT / source.stem
        libraries = LIBRARIES.get(source.stem, [])
        flags = ["-O1", "-Wall", "-Wextra", "-Wno-unused-function", "-pthread"]
        subprocess.run(["cc", *flags, "-o", program, source, *libraries], check=True)
        names = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
        cases.update({f"{source.stem}:{name}": program for name in names})
    return cases


def _observe(argv: list[str], environment: dict[str, str], directory: Path, millrace: Path | None) -> list[str]:
    """Runs one case, and answers what it asks; returns what it said, and how it ended."""
    with open(directory / "errors", "wb") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=directory,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(CASE_S, process.kill)
        timer.start()
        seen = []
        for line in process.stdout:
            if line == "look\n":
                roads = road.roads(millrace, environment) if millrace else ["ring"] * 100
                process.stdin.write(" ".join(roads) + "\n")
                process.stdin.flush()
            else:
                seen.append(line.rstrip("\n"))
        code = process.wait()
        timer.cancel()
    said = (directory / "errors").read_text(errors="replace").strip()
    return [*seen, f"ended with {code}", *([said] if said else [])]


def _differs(case: str, program: Path, millrace: Path) -> str:
    """Runs one case on every road; returns how it differs, if it does."""
    name = case.partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="millrace-traps-") as temporary:
        directory = Path(temporary)
        plain = _observe([str(program), name], dict(os.environ), directory, None)
        for mode in MODES:
            environment = dict(os.environ, MILLRACE_AGENT=str(directory / mode / "agent.sock"))
            argv = [str(millrace), "run", "--mode", mode, "--", str(program), name]
            under = _observe(argv, environment, directory, millrace)
            if under != plain:
                return f"mode {mode}\nplain:\n  " + "\n  ".join(plain) + "\nunder:\n  " + "\n  ".join(under)
    return "" if plain[-1] == "ended with 0" else "plain:\n  " + "\n  ".join(plain)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", help="one case, or one program with all of its cases")
    parser.add_argument(
        "--millrace", type=Path, default=road.REPOSITORY / "target/release/millrace", help="the program to test"
    )
    options = parser.parse_args()
    isolate.ensure()
    cases = {
        case: program for case, program in _build().items() if options.only in (None, case, *case.partition(":")[::2])
    }
    failed = {}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = pool.map(lambda item: _differs(*item, options.millrace.resolve()), cases.items())
        for case, why in zip(cases, results, strict=True):
            print(f"{case}: " + ("DIFFERS" if why else "the same"), flush=True)
            if why:
                failed[case] = why
    for case, why in failed.items():
        print(f"{case}: {why}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
