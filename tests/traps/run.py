#!/usr/bin/python3
"""The traps of a socket library, one case each: small programs that must observe the same plain and under Millrace.

    tests/traps/run.py [--only CASE] [--cc COMMAND] [--millrace PATH]

Each `.c` file is a program of several cases (`traps.h`). A case runs plain once, and under `millrace run` in every mode with an
agent of its own, for some also with one that may not administer the network. Exits with 0 when all did what the plain one did.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
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
# Most wait most of the time.
AT_A_TIME = 4
# How a case begins the line by which it says so.
SKIPPED = "skipped: "
MODES = ("eager", "default", "eager-nospin", "chaos:5")
# What is brought back to the kernel's road by means for which the agent may lack the right: once more without it.
NEEDS_RIGHTS = ("passed_on",)
WITHOUT_RIGHTS = ("setpriv", "--inh-caps", "-net_admin", "--bounding-set", "-net_admin")


def _build(compiler: str) -> dict[str, Path]:
    """Compiles the programs; returns each case with its program."""
    is_own = compiler == "cc"
    built = BUILT if is_own else BUILT.with_name(f"traps-{Path(compiler.split()[0]).name}")
    built.mkdir(parents=True, exist_ok=True)
    flags = ["-O1", "-Wall", "-Wextra", "-Wno-unused-function", "-pthread"]
    if not is_own:
        flags += ["-include", str(HERE / "lacking.h")]
    cases = {}
    for source in sorted(HERE.glob("*.c")):
        program = built / source.stem
        libraries = LIBRARIES.get(source.stem, [])
        made = subprocess.run(
            [*shlex.split(compiler), *flags, "-o", program, source, *libraries], stderr=None if is_own else subprocess.DEVNULL, check=is_own
        )
        if made.returncode != 0:
            # It needs what this C library does not have.
            print(f"{source.stem}: needs what this C library does not have", flush=True)
            continue
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
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        # With its children, which hold its output.
        timer = threading.Timer(CASE_S, os.killpg, (process.pid, signal.SIGKILL))
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


def _run(case: str, program: Path, millrace: Path, may_fail: bool) -> tuple[str, str]:
    """Runs one case on every road, but where it says that this machine lacks what it needs; returns that, and how it differs.

    Plain it must succeed, unless it may fail.
    """
    source, _, name = case.partition(":")
    with tempfile.TemporaryDirectory(prefix="millrace-traps-") as temporary:
        directory = Path(temporary)
        plain = _observe([str(program), name], dict(os.environ), directory, None)
        if plain[0].startswith(SKIPPED):
            return plain[0].removeprefix(SKIPPED), ""
        roads = [(mode, mode, ()) for mode in MODES]
        if source in NEEDS_RIGHTS:
            roads.append(("eager, without CAP_NET_ADMIN", "eager", WITHOUT_RIGHTS))
        for road_name, mode, before in roads:
            environment = dict(os.environ, MILLRACE_AGENT=str(directory / road_name / "agent.sock"))
            argv = [*before, str(millrace), "run", "--mode", mode, "--", str(program), name]
            under = _observe(argv, environment, directory, millrace)
            if under != plain:
                return "", f"mode {road_name}\nplain:\n  " + "\n  ".join(plain) + "\nunder:\n  " + "\n  ".join(under)
    return "", "" if may_fail or plain[-1] == "ended with 0" else "plain:\n  " + "\n  ".join(plain)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="CASE", help="one case, or one program with all of its cases")
    parser.add_argument(
        "--millrace", type=Path, default=road.REPOSITORY / "target/release/millrace", help="the program to test"
    )
    parser.add_argument("--cc", default="cc", help="a compiler for another C library, with its options")
    options = parser.parse_args()
    isolate.ensure()
    cases = {
        case: program for case, program in _build(options.cc).items() if options.only in (None, case, *case.partition(":")[::2])
    }
    failed = {}
    skipped = 0
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = pool.map(lambda item: _run(*item, options.millrace.resolve(), options.cc != "cc"), cases.items())
        for case, (lacks, why) in zip(cases, results, strict=True):
            print(f"{case}: " + (f"skipped: {lacks}" if lacks else "DIFFERS" if why else "the same"), flush=True)
            skipped += bool(lacks)
            if why:
                failed[case] = why
    for case, why in failed.items():
        print(f"{case}: {why}")
    print(f"{len(cases) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
