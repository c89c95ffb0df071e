#!/usr/bin/python3
"""The unit tests of the crates that handle shared memory and messages, under Miri, which sees undefined behaviour and data races.

    tests/miri/run.py

Miri is a part of Rust's nightly toolchain. Where that is not installed and cannot be had, the tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CRATES = ("millrace-shm", "millrace-stream", "millrace-wire", "millrace-channel")
INSTALL = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri", "--component", "rust-src"]
# The memory of files is mapped for good, and its addresses go through numbers, as the kernel's do.
FLAGS = "-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-permissive-provenance"


def _is_there() -> bool:
    asked = subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True, check=False)
    return asked.returncode == 0


def main() -> int:
    """Runs the tests; returns the exit code."""
    if not _is_there():
        try:
            subprocess.run(["rustup", *INSTALL], check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"skipped: no nightly toolchain with Miri: {error}")
            print("0 passed, 0 failed, 1 skipped")
            return 0
    command = ["cargo", "+nightly", "miri", "test", "--lib", "--target-dir", "target/miri"]
    crates = [word for crate in CRATES for word in ("--package", crate)]
    ran = subprocess.run([*command, *crates], cwd=REPOSITORY, env=dict(os.environ, MIRIFLAGS=FLAGS), check=False)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
