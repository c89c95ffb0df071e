"""What the cases share: the engines and the agent, two containers that talk, and what the agent says of their connection."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import road
from harness.process import Process

import engines
import images
import oci
from engines import DEVICE, Container, Podman

PLACE = Path("/run/containers-test")
RING_S = 10.0
PORT = "7100"


@dataclass(frozen=True)
class Side:
    """One end's container."""

    options: tuple[str, ...] = ()
    image: str = "glibc"
    device: str = DEVICE
    engine: str = "root"
    """`root`: podman with runc; `rootless`: as a user; `crun`: as root, with that runtime."""


@dataclass(frozen=True)
class Case:
    """Two containers, how the one reaches the other, and whether that must be accelerated."""

    name: str
    server: Side = Side()
    client: Side = Side()
    target: str = "container"
    """`container`: the server's address; `container, IPv6`; `loopback`; `published`: a port of the host's."""
    on_ring: bool = True


BRIDGE = Case("two containers on a bridge")


class Stage:
    """The engines, the agent, and what is asked of it."""

    def __init__(self, millrace: Path) -> None:
        self.millrace = millrace
        environment = engines.configure(PLACE / "containers.conf")
        self.podman = Podman(PLACE / "root", environment)
        self.rootless = Podman(PLACE / "user", environment, engines.USER)
        # crun refuses to run where both versions of control groups have controllers.
        alone = "umount /sys/fs/cgroup/unified; exec sleep 1000000"
        place = Process(["unshare", "--mount", "--propagation=slave", "sh", "-c", alone], PLACE / "without-unified")
        crun = self.podman.by_crun(Path(f"/proc/{place.pid}/ns/mnt"))
        self.engines = {"root": self.podman, "rootless": self.rootless, "crun": crun}

    def prepare(self) -> None:
        """Makes the images and networks."""
        self.injector = oci.build_injector(PLACE)
        for image in images.IMAGES:
            archive = images.make(image, PLACE / "images")
            self.podman.load(image, archive)
            if image.name == "glibc":
                self.rootless.load(image, archive)
        self.podman("network", "create", "--ipv6", "--subnet=10.90.6.0/24", "--subnet=fd90:6::/64", "six")
        self.podman("pod", "create", "--name=pair", "--infra-command=/bin/sleep 100000", "--infra-image=localhost/glibc:1",
                    f"--cgroup-parent=/{engines.GROUP}")  # fmt: skip

    def start(self, stack: ExitStack, side: Side, device: bool, *command: str) -> Container:
        """A container of a case; removed when the stack is left."""
        engine = self.engines[side.engine]
        devices = ["--device", side.device] if device and side.device else []
        container = engine.start(side.image, [*devices, *side.options], command)
        stack.callback(container.remove)
        return container

    def converse(
        self, stack: ExitStack, case: Case, device: bool = True, verb: str = "call"
    ) -> tuple[Container, Container]:
        """Both ends, after enough went there and back."""
        any_address = "::" if "IPv6" in case.target else "0.0.0.0"
        server = self.start(stack, case.server, device, "/bin/talk", "serve", any_address, PORT)
        server.wait_for("listening")
        address, port = self.target(case, server)
        client = self.start(stack, case.client, device, "/bin/talk", verb, address, port)
        client.wait_for("ready")
        return server, client

    def target(self, case: Case, server: Container) -> tuple[str, str]:
        """Where the client connects to."""
        match case.target:
            case "loopback":
                return "127.0.0.1", PORT
            case "published":
                return "10.88.0.1", "7200"
            case "host":
                return "10.88.0.1", PORT
            case "container, IPv6":
                return server.address("GlobalIPv6Address"), PORT
            case _:
                return server.address(), PORT

    def roads(self) -> list[str]:
        """Of each connection: `ring`, or why not."""
        return road.roads(self.millrace, dict(os.environ))


def check_road(stage: Stage, case: Case) -> str | None:
    """What is wrong with the road that the one connection took."""
    end = time.monotonic() + RING_S
    while True:
        roads = stage.roads()
        is_right = ("ring" in roads) if case.on_ring else ("ring" not in roads)
        if is_right or time.monotonic() > end:
            return None if is_right else f"roads: {roads}"
        time.sleep(0.1)


AGENT: list[Process] = []


def unit_capabilities() -> str:
    """What the systemd unit leaves to the agent, as setpriv names it."""
    unit = (road.REPOSITORY / "deploy/systemd/millrace.service.in").read_text()
    names = next(line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet=")).partition("=")[2].split()
    return ",".join(["-all", *("+" + name.removeprefix("CAP_").lower() for name in names)])


def start_agent(millrace: Path, *options: str) -> Process:
    """Root's agent, which serves containers, too, with the capabilities that the systemd unit gives it."""
    command = ["setpriv", f"--bounding-set={unit_capabilities()}", "--inh-caps=-all", str(millrace), "agent", *options]
    AGENT.append(Process(command, PLACE / f"agent{time.monotonic_ns()}", environment={"MILLRACE": "off"}))
    end = time.monotonic() + engines.PATIENCE_S
    while not Path("/var/lib/millrace/agent.sock").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return AGENT[-1]


@contextmanager
def without_agent(stage: Stage) -> Iterator[None]:
    """Stops the agent meanwhile."""
    AGENT.pop().stop()
    try:
        yield
    finally:
        start_agent(stage.millrace)
