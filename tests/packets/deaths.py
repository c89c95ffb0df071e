"""Kills by the thousand: one side of a port dies, under load or while it connects, and the other goes on and holds no more than before."""

from __future__ import annotations

import os
import random
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import containers
from harness import road
from wrong import Wrong, check

if TYPE_CHECKING:
    from run import Run

MEMIF = road.REPOSITORY / "target/xtask/examples/memif"
VIRTIO = road.REPOSITORY / "target/xtask/examples/virtio"
ENDLESS = str(1 << 60)
PROOF = "20000"
"""So many packets are more than any ring has: they have gone only where somebody takes them."""
WAIT_S = 120.0
"""After which somebody is stuck: where both sides share a busy processor, they pass a ring's packets in each of their turns."""
SETTLED = 25
"""After so many deaths everything has been once, and what is held is compared with what is held at the end."""
ANON_KB = 2048
"""What a heap may grow by, in all of the deaths: a page leaked by each would be more."""


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    descriptors: int
    mappings: int
    memory_files: int
    anon_kb: int


def held(process: subprocess.Popen[bytes]) -> Held:
    """Looks."""
    place = Path(f"/proc/{process.pid}")
    maps = (place / "maps").read_text().splitlines()
    anon = re.search(r"RssAnon:\s+(\d+)", (place / "status").read_text())
    assert anon
    return Held(len(list((place / "fd").iterdir())), len(maps), sum("memfd:" in line for line in maps), int(anon[1]))


class Mortal:
    """A program that will be killed, or has ended; what it says is read as it comes."""

    def __init__(self, run: Run, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        run.stack.callback(self.kill)
        self.said = b""

    def until_said(self, line: bytes) -> None:
        """Waits for the beginning of a line."""
        assert self.process.stdout
        deadline = time.monotonic() + WAIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not any(said.startswith(line) for said in self.said.splitlines()):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Wrong(f"stuck: {self.process.args} has not said {line!r}: {self.said!r}")
                more = os.read(self.process.stdout.fileno(), 65536)
                if not more:
                    raise Wrong(f"{self.process.args} has ended: {self.said!r}")
                self.said += more

    def kill(self) -> None:
        """Kills it, if it lives, and forgets it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


def die(run: Run, argv: Sequence[str], turns: int, sends: bool, rest: Callable[[], Held]) -> None:
    """Starts the mortal side and kills it, so many times: while it connects, under load, and after it was seen that packets pass.

    `argv` is all but what it does; `rest` waits until the survivor has noticed, and looks at what it holds.
    """
    before = None
    for turn in range(turns):
        # The last of all proves, so that one that listens has tidied up after those before.
        kind = (turns - 1 - turn) % 3
        what = ["send", ENDLESS if kind else PROOF, "64"] if sends else ["count", "64"]
        mortal = Mortal(run, [*argv, *what])
        if kind == 0:
            mortal.until_said(b"sent" if sends else b"flows")
        elif kind == 2:
            mortal.until_said(b"connected")
        time.sleep(random.uniform(0, 0.008))
        mortal.kill()
        if before is None and kind == 0 and turn >= min(SETTLED, turns // 3):
            before = rest()
    after = rest()
    assert before
    print(f"        {turns} deaths: {before}, and at last {after}", flush=True)
    same = (before.descriptors, before.memory_files) == (after.descriptors, after.memory_files)
    # The heap has mappings of its own, a few of which may come and go.
    check(same and abs(after.mappings - before.mappings) <= 8, f"{before}, and after {turns} deaths {after}")
    check(after.anon_kb <= before.anon_kb + ANON_KB, f"{before}, and after {turns} deaths {after}")


def survives(run: Run, survivor: list[str], mortal: list[str], turns: int, mortal_sends: bool) -> None:
    """The survivor takes what the mortal side sends, or sends what that counts."""
    what = ["count", "64"] if mortal_sends else ["send", ENDLESS, "64"]
    ours, name = run.program([*survivor, *what])

    def rest() -> Held:
        # The last that it has said.
        run.until(lambda: run.said(name).splitlines()[-1].startswith("closed"), f"{name} has noticed the death")
        # A turn or two of its loop.
        time.sleep(0.05)
        return held(ours)

    die(run, mortal, turns, mortal_sends, rest)
    check(ours.poll() is None, run.said(name))
    result = run.finish(ours, name)
    passed = result.received if mortal_sends else result.transmitted
    # What one that died under load had begun to send is whole, or is not there.
    check(result.wrong == 0 and result.drops == 0 and passed > 1000 * turns, f"{result}")
    # A killed server's own path stays, until the next one takes it.
    left = [path.name for path in run.place.iterdir() if path.is_socket() and path != run.socket]
    check(not left, f"socket files are left behind: {left}")
    check(run.socket.exists() == ("server" in mortal), f"{run.socket} exists: {run.socket.exists()}")


def ring_survives(run: Run, turns: int, mortal_sends: bool) -> None:
    """The same of a ring between two namespaces, whose ends an agent joins."""
    path = containers.agent(run)
    what = ["count", "64"] if mortal_sends else ["send", ENDLESS, "64"]
    ours = containers.ring(run, "ours1", "a", "first", *what)
    argv = ["ip", "netns", "exec", "b", str(containers.RING), str(path), "ring", "second"]

    def rest() -> Held:
        run.until(lambda: run.said("ours1").splitlines()[-1].startswith("closed"), "the death is noticed")
        time.sleep(0.05)
        return held(ours)

    die(run, argv, turns, mortal_sends, rest)
    counts = containers.result(run, ours, "ours1")
    check(counts["wrong"] == 0, counts)


def cases(thorough: bool) -> dict[str, Callable[[Run], None]]:
    """Each by its name."""
    turns = 1000 if thorough else 30
    found: dict[str, Callable[[Run], None]] = {}

    def add(name: str, survivor: list[str], mortal: list[str]) -> None:
        for does, sends in (("sends", True), ("counts", False)):
            found[f"deaths: {name}, which {does}"] = lambda run, sends=sends: survives(
                run,
                [word.format(run.socket) for word in survivor],
                [word.format(run.socket) for word in mortal],
                turns,
                sends,
            )

    for role, other in (("server", "client"), ("client", "server")):
        add(f"memif, of the {other}", [str(MEMIF), role, "{}"], [str(MEMIF), other, "{}"])
    for packed in ([], ["--packed"]):
        kind = ", packed" if packed else ""
        front, back = [str(VIRTIO), "virtio-user"], [str(VIRTIO), "vhost-user"]
        add(f"vhost-user, of the back end{kind}", [*front, "server", "{}", *packed], [*back, "client", "{}"])
        add(f"vhost-user, of the front end{kind}", [*back, "server", "{}"], [*front, "client", "{}", *packed])
    listens = [str(VIRTIO), "vhost-user", "server", "{}"]
    add("vhost-user, of a back end that listens", [str(VIRTIO), "virtio-user", "client", "{}"], listens)
    for does, sends in (("sends", True), ("counts", False)):
        found[f"deaths: ring, of one that {does}"] = lambda run, sends=sends: ring_survives(run, turns, sends)
    return found
