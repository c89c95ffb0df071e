"""The user plane of `examples/`: each stage in namespaces, or in a container, of its own, while workers come, go and are killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "containers"))

import engines  # noqa: E402
import images  # noqa: E402
from engines import EngineFailed  # noqa: E402
from harness.process import Process, ProgramFailed  # noqa: E402

from site_of_channels import Site, descriptors, holds_back_term, until  # noqa: E402

__all__ = ["EngineFailed", "cases", "clean_up"]

FLOWS, PACKETS, TIMES, RATE = 64, 10_000, 30, 100_000
PACKET_BYTES = 20 + 8 + 8, 20 + 8 + 1400
"""The shortest and the longest of the file, as `examples/userplane/src/capture.rs` makes them."""
SLOTS = 256
CHANGES = 12
"""Workers that are killed, removed or added while packets pass."""
FINISH_S = 60.0
RULES = '[[channel]]\nname = "userplane/*"\nsend = ["container/*"]\nreceive = ["container/*"]\n'
ENTER = "mount --bind {agent} {root}/run/millrace && mount -t proc proc {root}/proc && exec chroot {root} /bin/userplane {words}"


def make_root(userplane: Path, root: Path) -> Path:
    """A file system with the program, what it is linked with, and packets."""
    for directory in ("bin", "proc", "dev", "run/millrace", "etc", "tmp"):
        (root / directory).mkdir(parents=True)
    for file, name in [(userplane, Path("/bin/userplane")), *((library, library) for library in images.libraries(userplane))]:
        target = root / name.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    words = ["capture", "--flows", str(FLOWS), "--packets", str(PACKETS), str(root / "packets.pcap")]
    subprocess.run([str(userplane), *words], check=True)
    return root


class Stage:
    """A program of the user plane, somewhere of its own."""

    def said(self) -> str:
        """What it printed, and what it complained of."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        raise NotImplementedError

    def code(self) -> int | None:
        """Its exit status, when it has ended."""
        raise NotImplementedError

    def remove(self) -> None:
        """Nothing stays of it."""


class InNamespaces(Stage):
    """In user, process, mount, IPC and network namespaces, with a file system of its own and the agent's directory."""

    def __init__(self, site: Site, root: Path, name: str, words: list[str]) -> None:
        unshare = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--ipc", "--net", "--fork", "--kill-child"]
        script = ENTER.format(agent=site.runtime, root=root, words=" ".join(words))
        self._process: Process = site.start(name, ["env", "MILLRACE_AGENT=/run/millrace/agent.sock", *unshare, "sh", "-c", script])

    def _first(self) -> int | None:
        """The first process of its namespace, once that is the program and listens."""
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            is_program = children and "userplane" in os.readlink(f"/proc/{children[0]}/exe")
            return int(children[0]) if is_program and holds_back_term(int(children[0])) else None
        except OSError:
            return None

    def said(self) -> str:
        return self._process.output.read_text() + self._process.errors.read_text()

    def signal(self, number: int) -> None:
        until(lambda: self._first() or self.code() is not None)
        if first := self._first():
            os.kill(first, number)

    def code(self) -> int | None:
        return self._process.code()


PODMAN: list[engines.Podman] = []
MOUNTED: list[str] = []


class InContainer(Stage):
    """In a container, which gets the agent's directory and nothing else."""

    def __init__(self, site: Site, _: Path, __: str, words: list[str]) -> None:
        # Without a terminal, network, or any capability; in a user namespace of its own.
        confined = ["--network=none", "--cap-drop=all", "--read-only", "--uidmap=0:200000:65536", "--gidmap=0:200000:65536"]
        given = ["-v", f"{site.runtime}:/run/millrace", "-e", "MILLRACE_AGENT=/run/millrace/agent.sock"]
        image = images.Image("userplane")
        self._container = PODMAN[0].start(image.name, [*confined, *given], ["/bin/userplane", *words])

    def said(self) -> str:
        return self._container.output

    def signal(self, number: int) -> None:
        state = self._container.facts()["State"]
        until(lambda: not state["Running"] or holds_back_term(state["Pid"]))  # type: ignore[index]
        PODMAN[0]("kill", f"--signal={number}", self._container.name, check=False)

    def code(self) -> int | None:
        state = self._container.facts()["State"]
        return None if state["Running"] else int(state["ExitCode"])  # type: ignore[index]

    def remove(self) -> None:
        self._container.remove()


def clean_up() -> None:
    """What containers leave at places that are the machine's."""
    for engine in PODMAN:
        engine("rm", "--all", "--force", "--time", "0", check=False)
        # An engine mounts its storage onto itself.
        subprocess.run(["umount", "--lazy", *MOUNTED], check=False, stderr=subprocess.DEVNULL)
        engines.remove_groups()


class Plane:
    """A collector, workers and a balancer, and what is done to the workers."""

    def __init__(self, site: Site, make: Callable[..., Stage], root: Path, redeliver: bool, in_order: bool) -> None:
        self._site, self._make, self._root = site, make, root
        self._redeliver, self._in_order = redeliver, in_order
        self._killed = 0
        self._workers: list[Stage] = []
        self._all: list[Stage] = []

    def _start(self, role: str, *words: str) -> Stage:
        stage = self._make(self._site, self._root, role, [role, "--slots", str(SLOTS), *words])
        self._all.append(stage)
        return stage

    def _add(self) -> None:
        self._workers.append(self._start("worker", *(["--in-order"] if self._in_order else [])))

    def play(self, source: random.Random) -> str | None:
        """Sends packets while workers change; what was wrong."""
        before = descriptors(self._site.agent.pid)
        promised = ["--repeats"] if self._redeliver else ["--may-lose", str(CHANGES * SLOTS)]
        promised += ["--in-order"] if self._in_order else []
        try:
            collector = self._start("collector", *promised)
            for _ in range(3):
                self._add()
            sends = ["--workers", "3", "--times", str(TIMES), "--rate", str(RATE), "/packets.pcap"]
            balancer = self._start("balancer", *(["--redeliver"] if self._redeliver else []), *sends)
            for turn in range(CHANGES):
                time.sleep(0.02 + 0.2 * source.random())
                self._change(("kill", "add", "remove")[turn % 3], source)
            wrong = self._finish(balancer, collector)
        finally:
            for stage in self._all:
                stage.remove()
        return wrong or "; ".join(self._site.left_behind(before)) or None

    def _change(self, what: str, source: random.Random) -> None:
        if what != "add":
            victim = self._workers.pop(source.randrange(len(self._workers)))
            victim.signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
        if what != "remove":
            self._add()

    def _finish(self, balancer: Stage, collector: Stage) -> str | None:
        if not until(lambda: balancer.code() is not None, FINISH_S):
            return f"the balancer does not come to its end: {balancer.said()}"
        if balancer.code() != 0:
            return f"the balancer ended with {balancer.code()}: {balancer.said()}"
        # It ends when all was given back, and so when all was forwarded.
        for stage in (*self._workers, collector):
            stage.signal(signal.SIGTERM)
            if not until(lambda stage=stage: stage.code() is not None, FINISH_S):
                return f"a stage does not come to its end: {stage.said()}"
            if stage.code() != 0:
                return f"ended with {stage.code()}: {stage.said()}"
        sent, came = _facts(balancer), _facts(collector)
        if wrong := self._compare(sent, came):
            return wrong
        latency = [line.split()[2] for line in collector.said().splitlines() if line.startswith("latency p")][:2]
        shown = ("rate", "lost", "repeated", "overtaken")
        print("figure: " + ", ".join(f"{name} {came[name]}" for name in shown) + f", p50 {latency[0]} us, p99 {latency[1]} us")
        return None

    def _compare(self, sent: dict[str, str], came: dict[str, str]) -> str | None:
        """What the balancer says beside what the collector says, which counts each packet once."""
        if int(sent["sent"]) != PACKETS * TIMES or int(came["flows"]) != FLOWS:
            return f"{sent['sent']} packets were sent, of {came['flows']} flows"
        missing = int(sent["sent"]) - int(came["packets"])
        missing_bytes = int(sent["bytes"]) - int(came["bytes"])
        if not 0 <= missing <= (0 if self._redeliver else CHANGES * SLOTS):
            return f"{came['packets']} of {sent['sent']} packets came"
        shortest, longest = PACKET_BYTES
        if not missing * shortest <= missing_bytes <= missing * longest:
            return f"{came['bytes']} of {sent['bytes']} bytes came, and {missing} packets are missing"
        return None


def _facts(stage: Stage) -> dict[str, str]:
    """What a stage counted."""
    return dict(line.rsplit(" ", 1) for line in stage.said().splitlines() if not line.endswith(" us"))


def lacking() -> str | None:
    """Why there are no containers here."""
    return next((f"there is no {name}" for name in ("podman", "runc") if not shutil.which(name)), None)


def podman(directory: Path) -> engines.Podman:
    """An engine of this run's own, with an image."""
    if PODMAN:
        return PODMAN[0]
    directory, root = directory / "plane", directory / "plane/root"
    engines.remove_groups()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
    PODMAN.append(engines.Podman(directory / "engine", engines.configure(directory / "containers.conf")))
    MOUNTED.append(str(directory / "engine/storage/overlay"))
    archive = directory / "image.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    PODMAN[0].load(images.Image("userplane"), archive)
    return PODMAN[0]


def cases(
    millrace: Path, userplane: Path, directory: Path, seed: int
) -> Iterator[tuple[str, Callable[[], str | None], str | None]]:
    """Names, what to do, and why it cannot be done here."""
    place = directory / "plane"
    place.mkdir()
    root = make_root(userplane, place / "root")

    def play(name: str, make: Callable[..., Stage], rules: str, redeliver: bool, in_order: bool) -> str | None:
        if make is InContainer:
            podman(directory)
        with Site(millrace, directory / name.replace(" ", "-").replace(",", ""), rules) as site:
            return Plane(site, make, root, redeliver, in_order).play(random.Random(f"{seed}/{name}"))

    for where, make, rules in (("namespaces", InNamespaces, ""), ("containers", InContainer, RULES)):
        for how, redeliver, in_order in (("", False, False), (", delivered again", True, False), (", in order", True, True)):
            name = f"user plane in {where}{how}"
            yield name, partial(play, name, make, rules, redeliver, in_order), lacking() if make is InContainer else None


__all__ += ["ProgramFailed"]
