#!/usr/bin/python3
"""The traps of a socket library, one case each: small programs that must observe the same plain and under Millrace.

    tests/traps/run.py [--only CASE] [--cc COMMAND] [--millrace PATH]

Each `.c` file is a program of several cases (`traps.h`). A case runs plain once, and under `millrace run` in every mode with an
agent of its own, for some also with one that may not administer the network. Exits with 0 when all did what the plain one did.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import cases, isolate, road  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILT = road.REPOSITORY / "target/traps"
# In the modes for tests every program is taken for one whose waits are seen.
AS_USERS_HAVE_IT = ("unseen",)
# What is brought back to the kernel's road by means for which the agent may lack the right: once more without it.
NEEDS_RIGHTS = ("passed_on",)
WITHOUT_RIGHTS = ("setpriv", "--inh-caps", "-net_admin", "--bounding-set", "-net_admin")


def _build(compiler: str) -> dict[str, Path]:
    """Compiles the programs; returns each case with its program."""
    built = BUILT if compiler == "cc" else BUILT.with_name(f"traps-{Path(compiler.split()[0]).name}")
    return cases.build(sorted(HERE.glob("*.c")), built, compiler)


def _run(case: str, program: Path, millrace: Path, may_fail: bool) -> cases.Verdict:
    """Runs one case on every road."""
    under = cases.ways(("default",) if program.stem in AS_USERS_HAVE_IT else cases.MODES)
    if program.stem in NEEDS_RIGHTS:
        under = (*under, cases.Way("eager, without CAP_NET_ADMIN", "eager", WITHOUT_RIGHTS))
    return cases.compare(case, program, millrace, under, may_fail=may_fail)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", help="one case, or one program with all of its cases")
    parser.add_argument(
        "--millrace", type=Path, default=road.MILLRACE, help="the program to test"
    )
    parser.add_argument("--cc", default="cc", help="a compiler for another C library, with its options")
    options = parser.parse_args()
    isolate.ensure()
    chosen = {
        case: program for case, program in _build(options.cc).items() if options.only in (None, case, *case.partition(":")[::2])
    }
    failed = {}
    skipped = 0
    with ThreadPoolExecutor(cases.AT_A_TIME) as pool:
        results = pool.map(lambda item: _run(*item, options.millrace.resolve(), options.cc != "cc"), chosen.items())
        for case, verdict in zip(chosen, results, strict=True):
            print(f"{case}: {verdict}", flush=True)
            skipped += bool(verdict.lacks)
            if verdict.why:
                failed[case] = verdict.why
    for case, why in failed.items():
        print(f"{case}: {why}")
    print(f"{len(chosen) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
