#!/usr/bin/python3
"""The unit tests of the crates that handle shared memory and messages, under Miri, which sees undefined behaviour and data races.

    tests/miri/run.py [--full]

Without `--full` a few tests are left out that take most of the time. Miri is a part of Rust's nightly toolchain. Where that is not
installed and cannot be had, the tests are skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CRATES = ("millrace-shm", "millrace-stream", "millrace-wire", "millrace-channel")
INSTALL = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri", "--component", "rust-src"]
# The memory of files is mapped for good, and its addresses go through numbers, as the kernel's do.
FLAGS = "-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-permissive-provenance"

LONG = (
    "buckets_are_shared_evenly_and_few_change_hands",
    "every_prefix_is_refused",
    "messages_of_one_key_are_worked_on_in_order_and_none_is_lost",
    "one_that_is_never_answered_keeps_no_place_for_those_after_it",
    "what_members_of_deserted_groups_left_makes_room_when_patience_is_over",
    "who_comes_after_those_that_give_nothing_back_finds_room",
)
"""Tests for the full run: what they do in many steps others do in few, and without Miri they run always."""


def _is_there() -> bool:
    asked = subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True, check=False)
    return asked.returncode == 0


def main() -> int:
    """Runs the tests; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all tests")
    left = () if parser.parse_args().full else LONG
    if not _is_there():
        try:
            subprocess.run(["rustup", *INSTALL], check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"skipped: no nightly toolchain with Miri: {error}")
            print("0 passed, 0 failed, 1 skipped")
            return 0
    command = ["cargo", "+nightly", "miri", "test", "--lib", "--target-dir", "target/miri"]
    crates = [word for crate in CRATES for word in ("--package", crate)]
    if left:
        print(f"{len(left)} tests are left to the full run", flush=True)
        crates += ["--", *(word for name in left for word in ("--skip", name))]
    ran = subprocess.run([*command, *crates], cwd=REPOSITORY, env=dict(os.environ, MIRIFLAGS=FLAGS), check=False)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
