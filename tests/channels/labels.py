"""Containers that a rule names by their labels: annotations, which a hook of the device keeps for the agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "containers"))

import engines  # noqa: E402
import plane  # noqa: E402
from engines import Container, Podman  # noqa: E402
from site_of_channels import Site, until  # noqa: E402

LABELS = Path("/run/millrace/labels")
ROLE = "--annotation=millrace.dev/role="
MAY = '"label:role=plane-*"'
RULES = f'[[channel]]\nname = "userplane/*"\nsend = [{MAY}]\nreceive = [{MAY}]\n'
MAPPED = ("--uidmap=0:200000:65536", "--gidmap=0:200000:65536")
NOT_ALLOWED = "its configuration says who may"


class Labelled:
    """Stages of the user plane in containers with the device."""

    def __init__(self, podman: Podman, site: Site, stack: ExitStack) -> None:
        self._podman, self._site, self._stack = podman, site, stack

    def start(self, annotation: str, *words: str, options: tuple[str, ...] = ()) -> Container:
        """A stage in a container with this annotation."""
        confined = ["--network=none", "--cap-drop=all", "--read-only", "--device", engines.DEVICE]
        given = ["-v", f"{self._site.runtime}:/run/agent", "-e", "MILLRACE_AGENT=/run/agent/agent.sock", "-e", "MILLRACE=off"]
        container = self._podman.start("userplane", [*confined, *given, *options, annotation], ["/bin/userplane", *words])
        self._stack.callback(container.remove)
        return container


def _ended(container: Container) -> int | None:
    state = container.facts()["State"]
    return None if state["Running"] else int(state["ExitCode"])  # type: ignore[index]


def _said(container: Container) -> str:
    """What it printed, and what it complained of."""
    return Path(str(container.facts()["HostConfig"]["LogConfig"]["Path"])).read_text()  # type: ignore[index]


def _play(podman: Podman, site: Site) -> str | None:
    with ExitStack() as stack:
        stages = Labelled(podman, site, stack)
        collector = stages.start(f"{ROLE}plane-collector", "collector", "--packets", str(plane.PACKETS))
        # In a user namespace the container's root could not write the file.
        worker = stages.start(f"{ROLE}plane-worker", "worker", options=MAPPED)
        for annotation in (f"{ROLE}other", "--annotation=role=plane-worker", "--label=millrace.dev/role=plane-worker"):
            stranger = stages.start(annotation, "worker")
            if not until(lambda stranger=stranger: _ended(stranger) is not None) or NOT_ALLOWED not in _said(stranger):
                return f"{annotation} is not refused: {_said(stranger)!r}"
        balancer = stages.start(f"{ROLE}plane-balancer", "balancer", "--workers", "1", "/packets.pcap")
        for stage in (balancer, collector):
            if not until(lambda stage=stage: _ended(stage) is not None, plane.FINISH_S) or _ended(stage) != 0:
                return f"a stage with a label ended with {_ended(stage)}: {_said(stage)!r}"
        if not until(lambda: os.listdir(LABELS) == [worker.number]):
            return f"only {worker.number} runs, and there are labels of {os.listdir(LABELS)}"
        modes = [path.stat().st_mode & 0o777 for path in (LABELS, LABELS / worker.number)]
        if modes != [0o700, 0o600]:
            return f"the modes of the labels are {modes}"
    if not until(lambda: not os.listdir(LABELS)):
        return f"the labels of {os.listdir(LABELS)} stay"
    return None


def cases(millrace: Path, directory: Path) -> Iterator[tuple[str, Callable[[], str | None], str | None]]:
    """The name, what to do, and why it cannot be done here."""

    def play() -> str | None:
        podman = plane.podman(directory)
        command = [str(millrace), "cdi", "install", "--directory", str(directory / "device"), "--specifications", "/run/cdi"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with Site(millrace, directory / "labels", RULES) as site:
            return _play(podman, site)

    yield "containers by their labels", play, plane.lacking()
