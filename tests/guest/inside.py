#!/usr/bin/python3
"""What runs inside the guest: groups of cases, each as an ordinary user or as root, with what the group sets before.

    inside.py --millrace PATH --built DIRECTORY GROUP...     as root, in the guest
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import checkpoints  # noqa: E402
from harness import cases, road  # noqa: E402

# Nobody's number (65534) is what an unknown user has in a user namespace.
USER = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
# Beside what the machine itself needs.
KERNEL_MODULES = ("tls", "gcm", "ctr", "ghash_generic", *checkpoints.KERNEL_MODULES)
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# A guest without KVM is some ten times as slow.
CASE_S = 300.0
# The agent waits 100 ms at most for what it brings back, and the library not much longer for the agent. A machine that is emulated, on
# another one that is busy, stands still for as long now and then: what a right is lacking for fails each time.
ATTEMPTS = 3


# The same wait is for a call of the sender's that sleeps to end, which here takes longer more often than not.
LEFT_OUT = {
    "passed_on:full_and_passed_under_a_sleeper",
    "passed_on:full_and_passed_with_a_small_buffer",
    "passed_on:full_and_passed_with_a_chosen_buffer",
    "passed_on:full_and_passed_with_an_unsent_limit",
    "passed_on:full_and_left_by_exec_under_a_sleeper",
    "passed_on:full_and_left_to_a_program_under_a_sleeper",
}


@dataclass(frozen=True)
class Group:
    """Programs whose cases run in one setting; `road` is what both ends of a connection state that has come as far as it will."""

    programs: tuple[str, ...]
    ptrace_scope: int = 0
    is_root: bool = False
    modes: tuple[str, ...] = ("eager",)
    road: str = "ring"


CHECKPOINT = "checkpoint"
GROUPS = {
    "ptrace_scope 0": Group(("tracing",)),
    "ptrace_scope 1": Group(("passed_on", "tracing"), 1),
    "ptrace_scope 2": Group(("passed_on", "tracing"), 2, road="untraceable/untraceable"),
    "kTLS": Group(("ktls",), modes=("eager", "default")),
    CHECKPOINT: Group(("moved",), is_root=True),
}


def _run_cases(name: str, millrace: Path, built: Path) -> int:
    """Runs the cases of a group in this process's own right; returns how many differed."""
    group = GROUPS[name]

    def roads(environment: dict[str, str]) -> list[str]:
        try:
            return ["ring" if found == group.road else found for found in road.roads(millrace, environment)]
        except subprocess.SubprocessError:
            # The agent has not had its turn: the case asks again.
            return []

    found = [item for source in group.programs for item in cases.cases_of(built / source).items()]
    chosen = {case: program for case, program in found if case not in LEFT_OUT}

    failed = 0
    for case, program in chosen.items():
        for _ in range(ATTEMPTS):
            why = cases.compare(case, program, millrace, cases.ways(group.modes), look=roads, limit_s=CASE_S).why
            if not why:
                break
            print(f"{name}: {case}: differs, {why}", flush=True)
        print(f"{name}: {case}: " + ("DIFFERS" if why else "the same"), flush=True)
        failed += bool(why)
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped", flush=True)
    return failed


def main() -> int:
    """Runs the groups one after the other, each in a process of its own; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, required=True)
    parser.add_argument("--built", type=Path, required=True)
    parser.add_argument("--here", action="store_true", help="one group, as whoever this is")
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    options = parser.parse_args()
    if options.here:
        run = checkpoints.run if options.groups == [CHECKPOINT] else functools.partial(_run_cases, options.groups[0])
        return min(run(options.millrace, options.built), 1)
    code = 0
    for name in options.groups:
        PTRACE_SCOPE.write_text(f"{GROUPS[name].ptrace_scope}\n")
        before = () if GROUPS[name].is_root else USER
        argv = [sys.executable, __file__, "--here", "--millrace", str(options.millrace), "--built", str(options.built), name]
        code |= subprocess.run([*before, *argv], check=False).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
