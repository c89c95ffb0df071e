"""Our switch beside the kernel's bridge with VLAN filtering: the same frames come by the same ports, and the same leave."""

from __future__ import annotations

import random
import struct
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rig import Interface, Ours, Wrong, check, ip, mac, namespace, tagged

FRAMES = 250
INSIDE = "bridged"
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Port:
    """A port of both."""

    name: str
    access: int | None
    trunk: tuple[int, ...]
    native: int | None

    def toml(self) -> str:
        """As our switch has it."""
        if self.access is not None:
            vlan = f"{{ access = {self.access} }}"
        else:
            native = "" if self.native is None else f", native = {self.native}"
            vlan = f"{{ trunk = {list(self.trunk)}{native} }}"
        return f'[[port]]\nname = "{self.name}"\nmemif.path = "/test"\nvlan = {vlan}\n'

    def untagged(self) -> int | None:
        """The VLAN of frames without a tag."""
        return self.access if self.access is not None else self.native

    def vlans(self) -> set[int]:
        """All of them."""
        return {vlan for vlan in (*self.trunk, self.untagged()) if vlan is not None}

    def commands(self) -> list[list[str]]:
        """As the kernel's bridge has it."""
        words = [["bridge", "vlan", "del", "dev", self.name, "vid", "1"]]
        untagged = self.untagged()
        for vlan in self.trunk:
            if vlan != untagged:
                words.append(["bridge", "vlan", "add", "dev", self.name, "vid", str(vlan)])
        if untagged is not None:
            words.append(["bridge", "vlan", "add", "dev", self.name, "vid", str(untagged), "pvid", "untagged"])
        return words


def _ports(choose: random.Random) -> list[Port]:
    ports = []
    for number in range(5):
        name = f"p{number}"
        if choose.random() < 0.5:
            ports.append(Port(name, choose.choice((10, 20)), (), None))
        else:
            trunk = tuple(vlan for vlan in (10, 20, 30) if choose.random() < 0.7)
            ports.append(Port(name, None, trunk or (10,), choose.choice((None, 10, 1))))
    return ports


def _frame(choose: random.Random, serial: int) -> bytes:
    to = choose.choice((1, 2, 3, 4, 5, 6, 201, 255))
    frame = mac(to) + mac(choose.randint(1, 6)) + struct.pack("!HI", 0x88B5, serial)
    kind = choose.random()
    if kind < 0.04:
        # What bridges keep to themselves, and what a station cannot be.
        frame = bytes([1, 0x80, 0xC2, 0, 0, choose.randint(1, 15)]) + frame[6:]
    elif kind < 0.08:
        frame = frame[:6] + choose.choice((mac(255), bytes(6), mac(200))) + frame[12:]
    frame += bytes(choose.choice((42, 43, 82, 200, 1000)))
    tag = choose.choice((None, None, 10, 20, 30, 1, 0, 4000))
    if tag is not None:
        frame = tagged(frame, tag | choose.choice((0, 0x6000, 0xE000)))
    return frame


class Filtering:
    """A bridge of the kernel's that knows of VLANs."""

    OPTIONS = ("vlan_filtering", "1", "vlan_default_pvid", "1")

    def __init__(self, stack: ExitStack, ports: list[Port]) -> None:
        _bridge("bridge", *self.OPTIONS)
        self.interfaces: dict[str, Interface] = {}
        for port in ports:
            self.interfaces[port.name] = _member(stack, port.name, "bridge")
            for command in port.commands():
                subprocess.run([command[0], "-n", INSIDE, *command[1:]], check=True, capture_output=True)

    def send(self, port: Port, frame: bytes) -> None:
        """A frame comes by a port."""
        self.interfaces[port.name].send(frame)

    def receive(self) -> list[tuple[str, bytes]]:
        """What has left."""
        return [(name, frame) for name, interface in self.interfaces.items() for frame in interface.all()]


class Apart:
    """Where the kernel's bridge knows of no VLANs: one bridge for each, and tags are taken off before and put on behind, as 802.1Q says."""

    def __init__(self, stack: ExitStack, ports: list[Port]) -> None:
        self.ports = ports
        self.interfaces: dict[tuple[str, int], Interface] = {}
        self.priority = 0
        vlans = {vlan for port in ports for vlan in port.vlans()}
        for vlan in sorted(vlans):
            _bridge(f"bridge{vlan}")
            for port in ports:
                if vlan in port.vlans():
                    self.interfaces[port.name, vlan] = _member(stack, f"{port.name}-{vlan}", f"bridge{vlan}")

    def send(self, port: Port, frame: bytes) -> None:
        """A frame comes by a port: it is in the VLAN of its tag or, without one or with VLAN 0, in the port's own."""
        vlan, self.priority = port.untagged(), 0
        if frame[12:14] == b"\x81\x00":
            tag = struct.unpack("!H", frame[14:16])[0]
            self.priority = tag & 0xF000
            vlan = tag & 0xFFF or vlan
            frame = frame[:12] + frame[16:]
        if vlan is not None and (port.name, vlan) in self.interfaces:
            self.interfaces[port.name, vlan].send(frame)

    def receive(self) -> list[tuple[str, bytes]]:
        """What has left, with the tags that it has to have."""
        left = []
        for (name, vlan), interface in self.interfaces.items():
            own = next(port.untagged() for port in self.ports if port.name == name)
            for frame in interface.all():
                left.append((name, frame if vlan == own else tagged(frame, self.priority | vlan)))
        return left


def _bridge(name: str, *options: str) -> None:
    quiet = ("mcast_snooping", "0", "stp_state", "0")
    ip("link", "add", name, "address", "02:ff:00:00:00:ff", "type", "bridge", *quiet, *options, inside=INSIDE)
    ip("link", "set", name, "up", inside=INSIDE)


def _member(stack: ExitStack, name: str, of: str) -> Interface:
    peer = f"{name}-peer"
    ip("link", "add", name, "type", "veth", "peer", "name", peer, inside=INSIDE)
    ip("link", "set", name, "master", of, inside=INSIDE)
    ip("link", "set", name, "up", inside=INSIDE)
    ip("link", "set", peer, "up", inside=INSIDE)
    return Interface(stack, INSIDE, peer)


def _kernel(stack: ExitStack, ports: list[Port]) -> Filtering | Apart:
    namespace(stack, INSIDE)
    trial = ["ip", "-n", INSIDE, "link", "add", "trial", "type", "bridge", *Filtering.OPTIONS]
    if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
        return Filtering(stack, ports)
    return Apart(stack, ports)


def _collect(kernel: Filtering | Apart, wanted: Counter[tuple[str, bytes]], timeout: float) -> Counter[tuple[str, bytes]]:
    """What leaves the kernel's bridge, until that is what is wanted, or for so long."""
    found: Counter[tuple[str, bytes]] = Counter()
    deadline = time.monotonic() + timeout
    while True:
        found.update(kernel.receive())
        if found == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.0005)


def compare(stack: ExitStack, place: Path, seed: int) -> None:
    """Random ports and frames: each frame leaves both by the same ports, with the same tags. What comes too late is found with the next."""
    choose = random.Random(seed)
    ports = _ports(choose)
    kernel = _kernel(stack, ports)
    # Frames that come before a port of the kernel's forwards are lost.
    time.sleep(0.05)
    ours = Ours(stack, place, "".join(port.toml() for port in ports))
    sent = 0
    for serial in range(FRAMES):
        port, frame = choose.choice(ports), _frame(choose, serial)
        left = Counter(ours.send(port.name, frame))
        kernel.send(port, frame)
        theirs = _collect(kernel, left, PATIENCE_S)
        sent += sum(left.values())
        if theirs != left:
            shown = [(name, copy.hex()) for name, copy in (left - theirs)], [(name, copy.hex()) for name, copy in (theirs - left)]
            raise Wrong(f"frame {serial}, {frame.hex()} by {port}: ours only {shown[0]}, the kernel's only {shown[1]}; {ports}")
    extra = _collect(kernel, Counter({("nobody", b""): 1}), 0.1)
    check(not extra, f"the kernel's bridge had more: {extra}")
    check(sent > FRAMES / 10, f"only {sent} frames left")
