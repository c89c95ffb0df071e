"""Packet ports of containers: what a switch gives by the device, and what is left of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.process import Process

from engines import PATIENCE_S, Container, EngineFailed
from stage import PLACE, Side, Stage

CONTROL = Path("/run/millrace/switch.sock")
LEFT = CONTROL.with_suffix(".ports")
SPECIFICATION = Path("/etc/cdi/millrace.dev-packet.json")
CONFIG = """
[[device]]
name = "default"
ports = 2
memif = {}

[[device]]
name = "guest"
containers = 1
vhost_user = {}
"""
DEVICE = "--device=millrace.dev/packet=default"
GUEST = "--device=millrace.dev/packet=guest"
HARDENED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--user=1000:1000")
MAPPED = ("--uidmap=0:200000:65536", "--gidmap=0:200000:65536")
WAIT = ("sleep", "1000000")
SCRIPT = (
    "echo $MILLRACE_PACKET_DEFAULT $MILLRACE_PACKET_GUEST; ls $MILLRACE_PACKET_DEFAULT $MILLRACE_PACKET_GUEST;"
    "echo 2>/dev/null > $MILLRACE_PACKET_DEFAULT/x || echo read-only; echo all; exec sleep 1000000"
)
TELL = ("sh", "-c", SCRIPT)


class Switch:
    """The switch, which is killed and started again."""

    def __init__(self, millrace: Path) -> None:
        self.command = [str(millrace), "switch", "--control", str(CONTROL)]
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        config = PLACE / "switch.toml"
        config.write_text(CONFIG)
        self.process = Process([*self.command, "run", "--config", str(config)], PLACE / f"switch{time.monotonic_ns()}")
        until(lambda: subprocess.run([*self.command, "show"], capture_output=True, check=False).returncode == 0, "the switch answers")

    def ports(self) -> list[str]:
        """Names of its ports."""
        done = subprocess.run([*self.command, "show", "--json"], capture_output=True, check=True)
        return [str(port["name"]) for port in json.loads(done.stdout)["ports"]]


def until(holds: Any, what: str) -> None:
    """Waits."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise EngineFailed(f"in vain: until {what}")
        time.sleep(0.05)


@contextmanager
def switch_of(stage: Stage) -> Iterator[Switch]:
    """A switch whose devices engines know."""
    switch = Switch(stage.millrace)
    try:
        subprocess.run([stage.millrace, "cdi", "install"], check=True, capture_output=True)
        yield switch
    finally:
        switch.process.stop()
        SPECIFICATION.unlink(missing_ok=True)


def passes(container: Container) -> str | None:
    """Packets from one port of a container to the other, through the switch, each checked."""
    ports = [f"memif-client:/run/millrace-packet/default/{number}.sock" for number in (0, 1)]
    said = container.execute("/run/millrace/millrace", "load", "packets", *ports, "--rate", "5000", "--time", "0.3", "--whole", "--json")
    found = json.loads(said)
    is_good = found["sent"] > 500 and found["received"] > 0.9 * found["sent"] and not any(found["faults"].values())
    return None if is_good else said


def has_ports(stage: Stage) -> str | None:
    """A container without any privilege gets ports, and they are gone with it, however it ends; a switch may be killed meanwhile."""
    with switch_of(stage) as switch:
        for side in (Side(HARDENED), Side(MAPPED), Side(HARDENED, engine="crun")):
            # crun's `createContainer` hook cannot write into a root that is read-only.
            device = "millrace.dev/socket=variable" if side.engine == "crun" else side.device
            with ExitStack() as stack:
                both = stage.start(stack, Side((*side.options, DEVICE, GUEST), device=device, engine=side.engine), True, *TELL)
                if len(switch.ports()) != 3:
                    return f"{side}: ports {switch.ports()}"
                wrong = is_as_told(both) or passes(both)
                if wrong:
                    return f"{side}: {wrong}"
                switch.process.kill()
                switch.start()
                if wrong := passes(both):
                    return f"{side}, after the switch was killed: {wrong}"
                both.engine("kill", "--signal=KILL", both.name)
                until(lambda: not switch.ports() and not list(LEFT.iterdir()), "nothing is left")
    return None if not LEFT.exists() else f"{LEFT} is left"


def is_as_told(container: Container) -> str | None:
    """What the container finds: variables, sockets, and nothing that it could write to."""
    container.wait_for("all")
    said = container.output.split()
    place = "/run/millrace-packet"
    names = [f"{place}/default:", "0.sock", "1.sock", "ports.json", f"{place}/guest:", "0.sock", "ports.json"]
    expected = [f"{place}/default", f"{place}/guest", *names, "read-only", "all"]
    return None if said == expected else f"expected {expected}, got {said}"


def is_refused(stage: Stage) -> str | None:
    """A container that cannot have a port does not start, and says why; and leaves nothing."""
    with switch_of(stage) as switch:
        with ExitStack() as stack:
            first = stage.start(stack, Side((GUEST,)), True, *WAIT)
            try:
                second = stage.start(stack, Side((GUEST,)), True, *WAIT)
                return f"{second.name} has what {first.name} has alone"
            except EngineFailed as refused:
                if "1 containers have it" not in str(refused):
                    return str(refused)
            if len(switch.ports()) != 1:
                return f"ports {switch.ports()}"
        until(lambda: not switch.ports(), "the first one's port is gone")
        switch.process.stop()
        listing = subprocess.run([stage.millrace, "cdi", "list"], capture_output=True, text=True, check=False)
        if "no switch answers" not in listing.stdout or "millrace.dev/packet=guest" not in listing.stdout:
            return f"cdi list: {listing.stdout}"
        with ExitStack() as stack:
            try:
                stage.start(stack, Side((GUEST,)), True, *WAIT)
                return "it started without a switch"
            except EngineFailed as refused:
                return None if "no switch answers" in str(refused) else str(refused)
