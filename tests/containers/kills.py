"""What is left when Millrace's own programs are killed before any of their system calls: nothing, and everything goes on."""

from __future__ import annotations

import filecmp
import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from oci import OciContainer
from stage import PLACE, Stage

from harness import moments

SPECIFICATION = Path("/etc/cdi/millrace.dev-socket.json")
TRACE = PLACE / "trace"
SAMPLE = 8
"""So many moments are enough when not all are wanted."""
LIVED_MAX = 2
"""So many moments may not come again."""

def chosen(whole: bool) -> Sequence[moments.Moment]:
    """All moments that were observed, or a few from everywhere. Before the first call it is not yet the program."""
    found = moments.observed(TRACE)[1:]
    return found if whole else moments.some(found, SAMPLE)


def files(top: Path) -> dict[str, Path]:
    """Every file below."""
    return {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()}


def install_killed(stage: Stage, whole: bool) -> str | None:
    """Nobody ever finds half a file, or a specification without what it names; and the next installation leaves it as it should be."""
    top = PLACE / "killed"
    reference = PLACE / "reference"

    def command(place: Path, verb: str = "install") -> list[str]:
        words = [str(stage.millrace), "cdi", verb, "--directory", str(place / "all"), "--specifications", str(place / "cdi")]
        return words

    subprocess.run(moments.observing(TRACE, command(reference)), check=True, stdout=subprocess.DEVNULL)
    wanted = files(reference)
    specification = f"cdi/{SPECIFICATION.name}"
    lived = 0
    for index, moment in enumerate(chosen(whole)):
        # Every second time there is an old one.
        is_update = index % 2 == 1
        if is_update:
            shutil.copytree(reference, top)
        killed = subprocess.run(moments.killing(moment, command(top)), capture_output=True, check=False)
        there = files(top)
        ours = {name: path for name, path in there.items() if name in wanted and name != specification}
        different = [name for name, path in ours.items() if not filecmp.cmp(path, wanted[name], shallow=False)]
        is_whole = len(ours) == len(wanted) - 1
        # Of an update some calls are not made.
        lived += killed.returncode == 0 and not is_update
        if different or ((is_update or killed.returncode == 0 or specification in there) and not is_whole):
            return f"{moment}: status {killed.returncode}, different {different}, there {sorted(ours)}"
        if specification in there:
            json.loads(there[specification].read_text())
        subprocess.run(command(top), check=True, stdout=subprocess.DEVNULL)
        if files(top).keys() != wanted.keys():
            return f"{moment}: installed again, there are {sorted(files(top).keys() ^ wanted.keys())}"
        subprocess.run(moments.killing(moment, command(top)), capture_output=True, check=False)
        subprocess.run(command(top, "remove"), check=True, stdout=subprocess.DEVNULL)
        if files(top) or (top / "all").exists():
            return f"{moment}: removed, there are {sorted(files(top))}"
        shutil.rmtree(top, ignore_errors=True)
    # How often the list of all processes is read on depends on how many there are.
    return f"{lived} installations lived through the moment at which they were to be killed" if lived > LIVED_MAX else None


def mounts() -> list[str]:
    """What is mounted here."""
    return [line.split(" ", 1)[1] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def hook_killed(stage: Stage, whole: bool) -> str | None:
    """The engine says that the container was not made, or it runs; the machine has no mount and no file more than before."""
    hook = PLACE / "hook"
    before = SPECIFICATION.read_text()
    program = Path("/var/lib/millrace/millrace")
    SPECIFICATION.write_text(before.replace(f'"path": "{program}"', f'"path": "{hook}"'))
    try:
        write_hook(hook, program, moments.observing(TRACE, [str(program)]))
        if "done" not in start_and_end(stage):
            return "the hook under observation made no container"
        for moment in chosen(whole):
            write_hook(hook, program, moments.killing(moment, [str(program)]))
            there = (mounts(), sorted(files(Path("/var/lib/millrace"))))
            said = start_and_end(stage)
            if "done" not in said and "hook" not in said:
                return f"{moment}: {said}"
            if (mounts(), sorted(files(Path("/var/lib/millrace")))) != there:
                return f"{moment}: left behind {mounts()}"
    finally:
        SPECIFICATION.write_text(before)
    return None


LABELS = Path("/run/millrace/labels")
NUMBER = "2f5102ae29a3f18ca9d56498b35440b8d44b2e53c824bb006d3e1a7ab852383e"


def label_hooks_killed(stage: Stage, whole: bool) -> str | None:
    """A container's labels are there whole or not at all, and when it has gone nothing of them is left."""
    state = json.dumps({"ociVersion": "1.0.2", "id": NUMBER, "pid": 1, "annotations": {"millrace.dev/role": "worker"}})

    def play(command: list[str]) -> None:
        subprocess.run(command, input=state, text=True, capture_output=True, check=False)

    def hook(step: str) -> list[str]:
        return [str(stage.millrace), "cdi", "hook", step]

    for step in ("label", "unlabel"):
        play(hook("label" if step == "unlabel" else "unlabel"))
        play(moments.observing(TRACE, hook(step)))
        for moment in chosen(whole):
            play(hook("label" if step == "unlabel" else "unlabel"))
            play(moments.killing(moment, hook(step)))
            there = {path.name: path.read_text() for path in LABELS.glob("*")}
            # What a killed writer left has another name than a container has.
            if there.get(NUMBER, "role=worker\n") != "role=worker\n":
                return f"{step}, {moment}: the labels are {there[NUMBER]!r}"
            play(hook("unlabel"))
            if left := [path.name for path in LABELS.glob("*")]:
                return f"{step}, {moment}: left behind {left}"
    return None


def write_hook(path: Path, program: Path, command: list[str]) -> None:
    """A hook that runs a command in place of the one that engines know; those that keep labels are left alone."""
    path.write_text(f'#!/bin/sh\n[ "$3" ] && exec {program} "$@"\nexec {" ".join(command)} "$@"\n')
    path.chmod(0o755)


def start_and_end(stage: Stage) -> str:
    """What a container prints that ends at once, or why it was not made."""
    with ExitStack() as stack:
        container = OciContainer("hooked", PLACE / "images/glibc", stage.injector, "", ["/bin/sh", "-c", "echo done"])
        stack.callback(container.remove)
        return container.wait()
