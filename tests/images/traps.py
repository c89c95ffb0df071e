#!/usr/bin/python3
"""The traps of tests/traps in programs with another C library.

    tests/images/traps.py musl|bullseye|trixie [--only CASE] [--millrace PATH]

What the C library lacks is left out. Such a program runs on this machine with its own dynamic linker. Needs once the network.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import systems  # noqa: E402
from harness import road  # noqa: E402


def _compiler(system: str) -> list[str]:
    """The compiler, with what it takes to run what it makes."""
    if system == "musl":
        # musl comes without the kernel's headers.
        return ["musl-gcc", "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
    root = systems.PLACE / f"{system}-amd64"
    place = root / "lib/x86_64-linux-gnu"
    libraries = ["-Wl,--no-as-needed", "-lpthread", "-lutil", "-lrt", "-ldl"]
    loader = f"-Wl,--dynamic-linker={place}/ld-linux-x86-64.so.2"
    return [*systems.compiler(root), loader, f"-Wl,-rpath,{place},-rpath,{root}/usr/lib/x86_64-linux-gnu", *libraries]


def main() -> None:
    """Becomes the runner of the traps."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("musl", "bullseye", "trixie"):
        sys.exit(__doc__)
    systems.prepare()
    runner = str(road.REPOSITORY / "tests/traps/run.py")
    os.execv(runner, [runner, "--cc", shlex.join(map(str, _compiler(sys.argv[1]))), *sys.argv[2:]])


if __name__ == "__main__":
    main()
