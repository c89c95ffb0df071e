#!/usr/bin/python3
"""Programs of images with whatever C library there is: the preload library breaks none, and accelerates where it can.

    tests/images/run.py [--millrace PATH] [PART-OF-A-NAME ...]

A server and a client of each image, and of different ones, talk plain and with the environment that a container gets. They must say the
same, on standard error too. Needs root, and once the network, for Debian's packages. Exits with 0 when all is as it should be.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import systems  # noqa: E402
from harness import isolate, road  # noqa: E402

HERE = Path(__file__).resolve().parent
TALK_S = 30.0
# A busy machine's agent may take a while.
LOOKS = 20
PORT = 7100
PRELOAD = "/millrace/$PLATFORM/libmillrace_preload.so"
SOCKET = "/millrace-agent/agent.sock"


def _environment(image: systems.Image, mode: str | None) -> dict[str, str]:
    """What a program of the image has; with a mode, as a container under Millrace. What the image preloads comes first."""
    environment = {"PATH": "/bin", **image.environment}
    if mode is not None:
        own = environment.get("LD_PRELOAD")
        environment |= {"LD_PRELOAD": f"{own}:{PRELOAD}" if own else PRELOAD, "MILLRACE_AGENT": SOCKET, "MILLRACE_MODE": mode}
    return environment


def _start(image: systems.Image, mode: str | None, errors: Path, *words: str) -> subprocess.Popen[str]:
    def enter() -> None:
        os.chroot(image.root)
        os.chdir("/")

    with open(errors, "ab") as file:
        return subprocess.Popen(
            ["/talk", *words, str(PORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=_environment(image, mode),
            preexec_fn=enter,
            text=True,
        )


def _converse(server: systems.Image, client: systems.Image, mode: str | None, millrace: Path) -> tuple[list[str], list[str]]:
    """Lets the two talk; returns what they said, and the roads that their connection was seen on."""
    # A connection that cannot come to the ring has time to show it.
    wanted = "ring" if mode is None or server.on_ring and client.on_ring else None
    roads: list[str] = []
    said = []
    with tempfile.TemporaryDirectory(prefix="millrace-images-") as directory:
        errors = Path(directory, "errors")
        ends = [_start(server, mode, errors, "serve"), _start(client, mode, errors, "call")]
        timers = [threading.Timer(TALK_S, end.kill) for end in ends]
        for timer in timers:
            timer.start()
        for end in reversed(ends):
            assert end.stdin is not None and end.stdout is not None
            for line in end.stdout:
                if line == "look\n":
                    roads.append("/".join(road.roads(millrace, dict(os.environ))) if mode else "ring")
                    is_done = roads[-1] == wanted or len(roads) == LOOKS
                    end.stdin.write("done\n" if is_done else "more\n")
                    end.stdin.flush()
                else:
                    said.append(line.rstrip("\n"))
            said.append(f"ended with {end.wait()}")
        for timer in timers:
            timer.cancel()
        said += errors.read_text(errors="replace").splitlines()
    return said, roads


def _judge(server: systems.Image, client: systems.Image, millrace: Path) -> str:
    """How the conversation under Millrace differs from the plain one; empty when it does not."""
    plain, _ = _converse(server, client, None, millrace)
    if plain.count("ended with 0") != 2:
        return f"plain: {plain}"
    for mode in ("eager", "default"):
        under, roads = _converse(server, client, mode, millrace)
        if under != plain:
            return f"{mode}: {under}, plain: {plain}"
        if ("ring" in roads) != (server.on_ring and client.on_ring):
            return f"{mode}: the roads are {roads}"
    return ""


def _listed() -> list[str]:
    lines = (HERE / "symbols.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _needs() -> str:
    """What the library needs: others, versions, names that are not in the list, or its own of whoever is first."""
    command = ["readelf", "--wide", "--dynamic", "--version-info", "--dyn-syms", systems.LIBRARY]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [line.strip() for line in text.splitlines() if "(NEEDED)" in line or "(VERNEED)" in line]
    undefined = re.findall(r"GLOBAL\s+DEFAULT\s+UND\s+(\S+)", text)
    found += sorted(set(undefined) - set(_listed()))
    found += sorted(_bound_to_whoever_is_first())
    return ", ".join(found) if undefined else "it has no symbols?"


def _bound_to_whoever_is_first() -> set[str]:
    """Functions that the library defines, and calls by a name that another library in front of it may define, too."""
    defined = subprocess.run(["nm", "--dynamic", "--defined-only", systems.LIBRARY], capture_output=True, text=True, check=True).stdout
    text = subprocess.run(["readelf", "--wide", "--relocs", systems.LIBRARY], capture_output=True, text=True, check=True).stdout
    called = re.findall(r"R_\w+_(?:JUMP_SLOT?|GLOB_DAT)\s+\S+\s+([^\s@]+)", text)
    return {line.split()[-1] for line in defined.splitlines()} & set(called)


def _is_nowhere_missing() -> str:
    """Names of the list that an old C library lacks: glibc, whose versions tell since when it has them, or musl."""
    old = _names_of_old_glibc()
    musl = subprocess.run(["nm", "--dynamic", "--defined-only", systems.MUSL_LOADER], capture_output=True, text=True, check=True).stdout
    there = {line.split()[-1] for line in musl.splitlines()}
    return ", ".join(name for name in _listed() if name not in old & there)


def _names_of_old_glibc() -> set[str]:
    """Names that glibc 2.31 has where every program finds them, in a version up to 2.17."""
    names = set()
    place = systems.PLACE / "bullseye-amd64/lib/x86_64-linux-gnu"
    for library in ("libc.so.6", "ld-linux-x86-64.so.2"):
        command = ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", place / library]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, version in re.findall(r" (\w+)@@?GLIBC_([\d.]+)$", text, re.MULTILINE):
            if tuple(map(int, version.split("."))) <= (2, 17):
                names.add(name)
    return names


def _cases(images: list[systems.Image]) -> dict[str, tuple[systems.Image, systems.Image]]:
    named = {image.name: image for image in images}
    cases = {image.name: (image, image) for image in images}
    pairs = [("bullseye", "trixie"), ("musl", "trixie"), ("C library alone", "musl"), ("static", "trixie"), ("bookworm", "32 bits")]
    cases |= {f"{one}, {other}": (named[one], named[other]) for one, other in pairs}
    return cases


def _mount(images: list[systems.Image], library: Path) -> None:
    """The library and the agent's directory, in every image. They go with the run's own namespace."""
    for root in {image.root for image in images}:
        for source, name in ((library, "millrace"), (road.AGENT_SOCKET.parent, "millrace-agent")):
            (root / name).mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", source, root / name], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", root / "millrace"], check=True)


def main() -> int:
    """Runs the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PART-OF-A-NAME")
    parser.add_argument("--millrace", type=Path, default=road.MILLRACE)
    options = parser.parse_args()
    if not isolate.is_inside():
        systems.prepare()
    isolate.ensure()
    images, library = systems.make(), systems.lay_out()
    millrace = options.millrace.resolve()
    judged = {"needs no library and no version": _needs, "names that are everywhere": _is_nowhere_missing}
    for name, (server, client) in _cases(images).items():
        judged[name] = lambda server=server, client=client: _judge(server, client, millrace)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="millrace-images-") as logs:
        with road.Agent(road.under(f"{millrace} run --", ""), Path(logs, "agent")):
            _mount(images, library)
            chosen = {name: judge for name, judge in judged.items() if all(part in name for part in options.names)}
            for name, judge in chosen.items():
                why = judge()
                failed += bool(why)
                print(f"{name}: {why or 'as it should be'}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
