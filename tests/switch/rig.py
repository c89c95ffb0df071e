"""A switch whose ports are lines of text, frames, and interfaces of the kernel to send and receive them by."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import examples

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
PACKET_AUXDATA = 8
SO_RCVBUFFORCE = 33
CLONE_NEWNET = 0x40000000


class Wrong(Exception):
    """What was not as it must be."""


class Skipped(Exception):
    """Why a case cannot be run here."""


def check(holds: bool, what: str) -> None:
    """Raises what is wrong."""
    if not holds:
        raise Wrong(what)


def ip(*words: str, inside: str | None = None) -> None:
    """Configures the kernel, in a network namespace or in the run's own."""
    subprocess.run(["ip", *(["-n", inside] if inside else []), *words], check=True, capture_output=True, text=True)


def namespace(stack: ExitStack, name: str) -> None:
    """A network namespace for the time of a case, with nothing in it that talks by itself."""
    ip("netns", "add", name)
    stack.callback(lambda: ip("netns", "delete", name))
    for family in ("all", "default"):
        setting = f"echo 1 > /proc/sys/net/ipv6/conf/{family}/disable_ipv6"
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", setting], check=True)
    ip("link", "set", "lo", "up", inside=name)


def _enter(namespace: int) -> None:
    # Python has this from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Inside:
    """For sockets that are made in a network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        with open(f"/run/netns/{self.name}", "rb") as inside:
            _enter(inside.fileno())

    def __exit__(self, *_: object) -> None:
        _enter(self.before)
        os.close(self.before)


class Interface:
    """Sends and receives whole frames by an interface of a namespace."""

    def __init__(self, stack: ExitStack, inside: str, name: str) -> None:
        with Inside(inside):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            # The kernel takes tags off, and says them beside the frame.
            self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            # Beyond the machine's limit: what comes meanwhile is not to be lost.
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
            self.socket.bind((name, ETH_P_ALL))
        stack.callback(self.socket.close)

    def send(self, frame: bytes) -> None:
        """A frame leaves by the interface."""
        self.socket.send(frame)

    def receive(self, timeout: float) -> bytes | None:
        """A frame that came; none within that time."""
        self.socket.settimeout(timeout)
        try:
            frame, control, _, _ = self.socket.recvmsg(65536, 256)
        except (TimeoutError, BlockingIOError):
            return None
        for level, kind, data in control:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tag, tag_type = struct.unpack("IIIHHHH", data[:20])
                if status & 0x10:
                    shown = tag_type if status & 0x40 else 0x8100
                    frame = frame[:12] + struct.pack("!HH", shown, tag) + frame[12:]
        return frame

    def all(self) -> list[bytes]:
        """Frames that are there."""
        frames = []
        while (frame := self.receive(0)) is not None:
            frames.append(frame)
        return frames


class Ours:
    """Our switch, without threads."""

    def __init__(self, stack: ExitStack, place: Path, config: str, inside: str | None = None) -> None:
        (place / "switch.toml").write_text(config)
        command = [*(["ip", "netns", "exec", inside] if inside else []), str(examples.PLACE / "lines"), str(place / "switch.toml")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        self._answer()

    def close(self) -> None:
        """Ends it; what its mirrors wrote is on the disk then."""
        assert self.process.stdin
        self.process.stdin.close()
        check(self.process.wait() == 0, "our switch did not end well")

    def _answer(self) -> list[str]:
        assert self.process.stdout
        lines = []
        while (line := self.process.stdout.readline()) != ".\n":
            if not line:
                raise Wrong(f"our switch has ended with {self.process.wait()}")
            lines.append(line.rstrip("\n"))
        return lines

    def _ask(self, question: str) -> list[str]:
        assert self.process.stdin
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self._answer()

    def send(self, port: str, frame: bytes) -> list[tuple[str, bytes]]:
        """A frame comes by a port; returns those that leave, and by which."""
        return self._frames(self._ask(f"{port} {frame.hex()}"))

    def wait(self, milliseconds: int) -> list[tuple[str, bytes]]:
        """Returns what leaves meanwhile."""
        return self._frames(self._ask(f"wait {milliseconds}"))

    def until(self, is_wanted: Callable[[bytes], bool], left: list[tuple[str, bytes]] | None = None) -> bytes:
        """Returns the first frame that leaves by port `a` and is what is wanted; `left` are those that have left already."""
        left = left or []
        for _ in range(2000):
            for port, frame in left:
                if port == "a" and is_wanted(frame):
                    return frame
            left = self.wait(2)
        raise Wrong("what was to come did not come")

    def exchange(self, frame: bytes, is_wanted: Callable[[bytes], bool]) -> bytes:
        """A frame comes by port `a`; returns the first that leaves by it afterwards and is what is wanted."""
        return self.until(is_wanted, self.send("a", frame))

    def report(self) -> Any:
        """What it says of itself."""
        return json.loads(self._ask("report")[0])

    def port(self, name: str) -> Any:
        """What it says of a port."""
        return next(one for one in self.report()["ports"] if one["name"] == name)

    def drops(self, port: str) -> dict[str, int]:
        """Packets that were dropped, by cause."""
        return {drop["cause"]: drop["packets"] for drop in self.port(port)["counters"]["drops"]}

    @staticmethod
    def _frames(lines: list[str]) -> list[tuple[str, bytes]]:
        return [(port, bytes.fromhex(text)) for port, text in (line.split(" ") for line in lines)]


def mac(number: int) -> bytes:
    """A station's address; from 200 on, groups'; 255 is everybody's."""
    if number == 255:
        return b"\xff" * 6
    return bytes([1, 0, 0x5E, 0, 0, number]) if number >= 200 else bytes([2, 0, 0, 0, 0, number])


def tagged(frame: bytes, tag: int) -> bytes:
    """With a tag."""
    return frame[:12] + struct.pack("!HH", 0x8100, tag) + frame[12:]


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(source: str, destination: str, protocol: int, payload: bytes, tos: int = 0, whole: bool = True) -> bytes:
    """A packet."""
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    flags = 0x4000 if whole else 0
    head = struct.pack("!BBHHHBBH", 0x45, tos, 20 + len(payload), 1, flags, 64, protocol, 0)
    return head[:10] + struct.pack("!H", checksum(head + addresses)) + addresses + payload


def echo(serial: int, length: int = 56) -> bytes:
    """ICMP's question."""
    body = struct.pack("!HH", 77, serial) + bytes(at & 0xFF for at in range(length))
    return struct.pack("!BBH", 8, 0, checksum(struct.pack("!BBH", 8, 0, 0) + body)) + body
