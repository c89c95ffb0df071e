"""TCP between two of the kernel's stacks, by TAP interfaces of switches: what one leaves to others to do, and the way does not do."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

from ends import Site, memif
from rig import Inside, Skipped, check, ip, namespace

BYTES = 48 << 20
PORT = 5001
ADDRESSES = {
    socket.AF_INET: {"left": "10.8.0.1", "right": "10.8.0.2"},
    socket.AF_INET6: {"left": "fd00:8::1", "right": "fd00:8::2"},
}


def _tap(name: str) -> str:
    return f'[[port]]\nname = "{name}"\ntap.interface = "{name}0"\n'


def _station(stack: ExitStack, name: str) -> None:
    """A namespace with the interface that a switch has made."""
    namespace(stack, name)
    device = f"{name}0"
    ip("link", "set", device, "netns", name)
    setting = f"echo 0 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/{device}/accept_dad"
    subprocess.run(["ip", "netns", "exec", name, "sh", "-c", setting], check=True)
    ip("address", "add", f"{ADDRESSES[socket.AF_INET][name]}/24", "dev", device, inside=name)
    ip("address", "add", f"{ADDRESSES[socket.AF_INET6][name]}/64", "dev", device, "nodad", inside=name)
    ip("link", "set", device, "up", inside=name)


def _transfer(family: socket.AddressFamily, source: str, target: str) -> None:
    """Bytes go from one station to another, and are those that were sent."""
    data = os.urandom(1 << 20)
    with Inside(target):
        listener = socket.create_server((ADDRESSES[family][target], PORT), family=family)
    with Inside(source):
        sender = socket.socket(family)
    received = hashlib.sha256()
    count = 0

    def receive() -> None:
        nonlocal count
        taken, _ = listener.accept()
        with taken:
            taken.settimeout(30)
            while piece := taken.recv(1 << 20):
                count += len(piece)
                received.update(piece)

    with listener, sender:
        sender.settimeout(30)
        thread = threading.Thread(target=receive)
        thread.start()
        try:
            sender.connect((ADDRESSES[family][target], PORT))
            for _ in range(BYTES >> 20):
                sender.sendall(data)
            sender.shutdown(socket.SHUT_WR)
        finally:
            thread.join(30)
    expected = hashlib.sha256()
    for _ in range(BYTES >> 20):
        expected.update(data)
    check(count == BYTES and received.digest() == expected.digest(), f"{count} of {BYTES} bytes came")


def _everywhere() -> None:
    for family in ADDRESSES:
        _transfer(family, "left", "right")
        _transfer(family, "right", "left")


def _needs_tap() -> None:
    if not os.path.exists("/dev/net/tun"):
        raise Skipped("there is no /dev/net/tun here")


def _mean(port: dict[str, object]) -> float:
    counters = port["counters"]
    assert isinstance(counters, dict)
    return counters["received_bytes"] / counters["received_packets"]


def beside(stack: ExitStack, place: Path) -> None:
    """Both at one switch: what one kernel leaves undone goes to the other as it is."""
    _needs_tap()
    site = Site(stack, place, _tap("left") + _tap("right"))
    for name in ("left", "right"):
        _station(stack, name)
    # What the first kernel says of itself before the other one's interface is up is dropped.
    before = site.ports()
    _everywhere()
    ports = site.ports()
    for name, other in (("left", "right"), ("right", "left")):
        counters, others = ports[name]["counters"], ports[other]["counters"]
        lost = sum(drop["packets"] for drop in others["drops"])
        check(counters["received_packets"] == others["transmitted_packets"] + lost, f"{ports}")
        check(counters["drops"] == before[name]["counters"]["drops"] and counters["made"] == 0, f"{counters}")
    check(max(_mean(ports["left"]), _mean(ports["right"])) > 2000, f"no packet was longer than a segment: {ports}")


def apart(stack: ExitStack, place: Path) -> None:
    """At two switches with a memif between them, whose packets are cut and have their checksums; with VLANs, whose tags are put on."""
    _needs_tap()
    near, far = place / "near", place / "far"
    near.mkdir()
    far.mkdir()
    middle = memif(near, "middle")
    access, trunk = "vlan.access = 10\n", "vlan.trunk = [10]\n"
    first = Site(stack, near, _tap("left") + access + middle + trunk)
    client = f'[[port]]\nname = "middle"\nmemif = {{ path = "{near / "middle"}.sock", role = "client" }}\n'
    second = Site(stack, far, _tap("right") + access + client + trunk)
    first.until(lambda: first.ports()["middle"]["state"] == "connected", "the switches are joined")
    for name in ("left", "right"):
        _station(stack, name)
    _everywhere()
    for site, name in ((first, "left"), (second, "right")):
        ports = site.ports()
        check(_mean(ports[name]) > 2000 and ports["middle"]["counters"]["made"] > 1000, f"nothing was cut: {ports}")
        causes = {drop["cause"] for port in ports.values() for drop in port["counters"]["drops"]}
        # A ring may be full: TCP is told so by the loss. And an interface may not have been up at first.
        check(causes <= {"full", "no_peer"}, f"{ports}")
        check(ports["middle"]["counters"]["transmitted_bytes"] / ports["middle"]["counters"]["transmitted_packets"] <= 1518, f"{ports}")
