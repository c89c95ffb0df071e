"""Two nodes, each a network namespace with a switch, which are joined by the switches' VXLAN; and pods of both, that have TAP ports."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ends import Site, memif
from kills import MEMIF, VIRTIO
from rig import Inside, Skipped, check, ip, namespace

NODES = {"node-a": "192.0.2.1", "node-b": "192.0.2.2"}
PODS = {"a1": "node-a", "a2": "node-a", "b1": "node-b", "b2": "node-b"}
FITS = 1450
"""Of a packet of the Internet: 1 500, less the headers outside (IPv4, UDP, VXLAN, Ethernet)."""
PORT = 5001
TYPE = "0x88b5"
"""Of frames of our programs, which are no packets of the Internet."""


def address(pod: str, family: socket.AddressFamily = socket.AF_INET) -> str:
    """Of a pod."""
    number = list(PODS).index(pod) + 1
    return f"10.8.0.{number}" if family == socket.AF_INET else f"fd00:8::{number}"


class Nodes:
    """Both, and their pods."""

    def __init__(self, stack: ExitStack, place: Path, more: dict[str, str] | None = None) -> None:
        if not os.path.exists("/dev/net/tun"):
            raise Skipped("there is no /dev/net/tun here")
        self.sites: dict[str, Site] = {}
        for name in (*NODES, *PODS):
            namespace(stack, name)
        ip("link", "add", "under", "type", "veth", "peer", "name", "under", "netns", "node-b", inside="node-a")
        for name, own in NODES.items():
            ip("address", "add", f"{own}/24", "dev", "under", inside=name)
            ip("link", "set", "under", "up", inside=name)
        for name, own in NODES.items():
            (place / name).mkdir()
            other = next(place for node, place in NODES.items() if node != name)
            ports = "".join(f'[[port]]\nname = "{pod}"\ntap.interface = "{pod}"\n' for pod in self.pods(name))
            ports += f'[[port]]\nname = "tunnel"\nvxlan = {{ local = "{own}", remote = "{other}", vni = 77 }}\n'
            self.sites[name] = Site(stack, place / name, ports + (more or {}).get(name, ""), name)
            self.inhabit(name)

    @staticmethod
    def pods(node: str) -> list[str]:
        """Those of a node."""
        return [pod for pod, place in PODS.items() if place == node]

    def inhabit(self, node: str) -> None:
        """Gives the pods of a node their interfaces, as whoever starts pods does it: the second of each node knows how much fits."""
        for pod in self.pods(node):
            ip("link", "set", pod, "netns", pod, inside=node)
            settings = "; ".join(f"echo 0 > /proc/sys/net/ipv6/conf/{pod}/{name}" for name in ("disable_ipv6", "accept_dad"))
            subprocess.run(["ip", "netns", "exec", pod, "sh", "-c", settings], check=True)
            number = list(PODS).index(pod) + 1
            mtu = ["mtu", str(FITS)] if pod.endswith("2") else []
            # The same one after the switch was killed.
            ip("link", "set", pod, "address", f"02:00:00:00:08:{number:02x}", *mtu, inside=pod)
            ip("address", "add", f"{address(pod)}/24", "dev", pod, inside=pod)
            ip("address", "add", f"{address(pod, socket.AF_INET6)}/64", "dev", pod, "nodad", inside=pod)
            ip("link", "set", pod, "up", inside=pod)

    def drops(self, node: str) -> dict[str, int]:
        """What a node's switch has dropped, by cause."""
        found: dict[str, int] = {}
        for port in self.sites[node].ports().values():
            for drop in port["counters"]["drops"]:
                found[drop["cause"]] = found.get(drop["cause"], 0) + drop["packets"]
        return found


def ping(source: str, target: str, *options: str, family: socket.AddressFamily = socket.AF_INET) -> tuple[int, str]:
    """Pings from a pod to another; returns how many answers came, and all that was said."""
    if shutil.which("ping") is None:
        raise Skipped("there is no ping here (Debian's package is iputils-ping)")
    argv = ["ip", "netns", "exec", source, "ping", "-i", "0.02", "-W", "2", *options, address(target, family)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r" (\d+) received", said.stdout)
    return int(found[1]) if found else 0, said.stdout + said.stderr


class Stream:
    """Bytes that go from a pod to another by TCP, until somebody has enough; what arrives is what was sent."""

    def __init__(
        self, stack: ExitStack, source: str, target: str, family: socket.AddressFamily = socket.AF_INET, pace_s: float = 0.0
    ) -> None:
        with Inside(target):
            self.listener = socket.create_server((address(target, family), PORT), family=family)
        with Inside(source):
            self.sender = socket.socket(family)
        self.target = (address(target, family), PORT)
        self.pace_s = pace_s
        self.is_enough = threading.Event()
        self.sent, self.received = hashlib.sha256(), hashlib.sha256()
        self.sent_bytes = self.received_bytes = 0
        self.failed: list[OSError] = []
        self.ends = [self.listener, self.sender]
        self.threads = [threading.Thread(target=self._try, args=(body,)) for body in (self._receive, self._send)]
        for thread in self.threads:
            thread.start()
        stack.callback(self._abandon)

    def _abandon(self) -> None:
        """Ends it, whatever has come."""
        self.is_enough.set()
        for one in self.ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    def _try(self, body: Callable[[], None]) -> None:
        try:
            body()
        except OSError as error:
            self.failed.append(error)

    def _send(self) -> None:
        data = os.urandom(1 << 18)
        with self.sender:
            self.sender.settimeout(60)
            self.sender.connect(self.target)
            while not self.is_enough.is_set():
                self.sender.sendall(data)
                self.sent.update(data)
                self.sent_bytes += len(data)
                time.sleep(self.pace_s)

    def _receive(self) -> None:
        with self.listener:
            self.listener.settimeout(60)
            taken, _ = self.listener.accept()
            self.ends.append(taken)
            with taken:
                taken.settimeout(60)
                while piece := taken.recv(1 << 20):
                    self.received.update(piece)
                    self.received_bytes += len(piece)

    def goes_on(self, more: int = 1 << 20) -> None:
        """Waits until so many more bytes have come."""
        wanted, deadline = self.received_bytes + more, time.monotonic() + 30
        while self.received_bytes < wanted:
            check(not self.failed and time.monotonic() < deadline, f"{self.received_bytes} bytes have come, and no more: {self.failed}")
            time.sleep(0.01)

    def end(self) -> None:
        """Sends no more; everything has to have come."""
        self.is_enough.set()
        for thread in self.threads:
            thread.join()
        is_right = self.received.digest() == self.sent.digest()
        check(is_right and not self.failed, f"{self.received_bytes} of {self.sent_bytes} bytes came: {self.failed}")


def _transfer(stack: ExitStack, source: str, target: str, family: socket.AddressFamily, size: int) -> None:
    stream = Stream(stack, source, target, family)
    stream.goes_on(size)
    stream.end()


def _fits(source: str, target: str, most: int, family: socket.AddressFamily = socket.AF_INET) -> None:
    """A packet of so many bytes arrives whole, and of a longer one its sender is told how long it may be."""
    headers = 28 if family == socket.AF_INET else 48
    came, said = ping(source, target, "-c", "1", "-M", "do", "-s", str(most - headers), family=family)
    check(came == 1, f"{most} bytes: {said}")
    # The first one is answered by the switch, and the kernel has learnt it for the others.
    came, said = ping(source, target, "-c", "2", "-W", "0.3", "-M", "do", "-s", str(most - headers + 1), family=family)
    check(came == 0 and re.search(rf"mtu ?[=:] ?{most}\b", said) is not None, f"{most + 1} bytes: {came} {said}")


def _counted_by_ip(node: str) -> dict[str, int]:
    text = subprocess.run(["ip", "netns", "exec", node, "cat", "/proc/net/snmp"], capture_output=True, check=True, text=True).stdout
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Ip:"))
    return dict(zip(names, map(int, values)))


def talk(stack: ExitStack, place: Path) -> None:
    """Pods of one node and of both: pings, and TCP of both families; what is too long is told, and no datagram is in fragments."""
    nodes = Nodes(stack, place)
    for source, target in (("a1", "b1"), ("b2", "a1"), ("a1", "a2"), ("a2", "b2"), ("b1", "b2")):
        came, said = ping(source, target, "-c", "3")
        check(came == 3, f"{source} to {target}: {said}")
    for family in (socket.AF_INET, socket.AF_INET6):
        _fits("a1", "b1", FITS, family)
    came, said = ping("a1", "a2", "-c", "1", "-M", "do", "-s", str(FITS - 28))
    check(came == 1, said)
    for source, target in (("a1", "b1"), ("b1", "a2"), ("a1", "a2")):
        for family in (socket.AF_INET, socket.AF_INET6):
            _transfer(stack, source, target, family, 8 << 20)
    for name, site in nodes.sites.items():
        counters = site.ports()["tunnel"]["counters"]
        mean = counters["transmitted_bytes"] / counters["transmitted_packets"]
        check(site.ports()["tunnel"]["mtu"] == FITS and mean <= FITS + 14, f"{name}: {counters}")
        counted = _counted_by_ip(name)
        check(counted["FragCreates"] == counted["ReasmReqds"] == 0, f"{name}: {counted}")
        # Rings and sockets may be full, which TCP is told so by the loss, and interfaces were not up at first.
        check(set(nodes.drops(name)) <= {"full", "no_peer", "too_large"}, f"{name}: {nodes.drops(name)}")
    # Pods that know how much fits send nothing that does not.
    before = [nodes.drops(name).get("too_large", 0) for name in NODES]
    _transfer(stack, "a2", "b2", socket.AF_INET, 8 << 20)
    check([nodes.drops(name).get("too_large", 0) for name in NODES] == before, f"{before}")
    for site in nodes.sites.values():
        site.stop()


def is_killed(stack: ExitStack, place: Path, kills: int) -> None:
    """The other node's switch is killed and comes back: a connection between pods of both goes on, and one within the first node never
    waits."""
    nodes = Nodes(stack, place)
    far = nodes.sites["node-b"]
    between, back = Stream(stack, "a1", "b1", pace_s=0.005), Stream(stack, "b2", "a2", pace_s=0.005)
    between.goes_on()
    back.goes_on()
    for _ in range(kills):
        time.sleep(random.uniform(0.0, 0.2))
        far.kill()
        came, said = ping("a1", "a2", "-c", "20")
        check(came == 20, said)
        far.launch()
        far.until_it_works()
        nodes.inhabit("node-b")
        between.goes_on()
        back.goes_on()
    between.end()
    back.end()
    check(nodes.sites["node-a"].switch.poll() is None, "the first switch has gone with the other")
    for site in nodes.sites.values():
        site.stop()


def worker_is_killed(stack: ExitStack, place: Path, kills: int) -> None:
    """Programs behind a memif of the one node and a vhost-user port of the other are killed while packets go from the one to the other:
    a connection between pods goes on, by the same tunnel, and so do pings."""
    police = "police.packets = 5000\n"
    flow = '[[flow]]\nname = "work"\nin = "{}"\nout = ["{}"]\nmatch.eth_type = ' + TYPE + "\n"
    worker = f'[[port]]\nname = "worker"\nvhost_user.path = "{place}/node-b/worker.sock"\n'
    more = {
        "node-a": memif(place / "node-a", "worker") + police + flow.format("worker", "tunnel"),
        "node-b": worker + flow.format("tunnel", "worker"),
    }
    nodes = Nodes(stack, place, more)
    near, far = nodes.sites["node-a"], nodes.sites["node-b"]
    sends = [MEMIF, "client", f"{place}/node-a/worker.sock", "number", str(1 << 40), "700"]
    checks = [VIRTIO, "virtio-user", "client", f"{place}/node-b/worker.sock", "--sleep", "ordered"]
    stream = Stream(stack, "a1", "b1", pace_s=0.005)
    sender, receiver = near.spawn("sender", sends), far.spawn("receiver", checks)
    for kill in range(kills):
        far.until_passed("worker", more=50)
        stream.goes_on()
        if kill % 2 == 0:
            sender.kill()
            sender.wait()
            near.until_state("worker", "connecting: the peer has gone")
        else:
            receiver.kill()
            receiver.wait()
            far.until_state("worker", "connecting: the peer has gone")
        stream.goes_on()
        came, said = ping("a2", "b2", "-c", "10")
        check(came >= 8, said)
        if kill % 2 == 0:
            sender = near.spawn("sender", sends)
        else:
            receiver = far.spawn("receiver", checks)
    far.until_passed("worker", more=50)
    stream.end()
    result = far.finished(receiver, "receiver")
    check(result["wrong"] == 0 and result["received"] > 0, f"{result}")
    for site in nodes.sites.values():
        check(site.switch.poll() is None, "a switch has gone with a program")


def iperf(stack: ExitStack, place: Path) -> None:
    """iperf3 each way between pods of both nodes, several connections at once."""
    if shutil.which("iperf3") is None:
        raise Skipped("there is no iperf3 here (Debian's package is iperf3)")
    nodes = Nodes(stack, place)
    for number, (source, target) in enumerate((("a1", "b1"), ("b1", "a1"), ("a2", "b2"))):
        site = nodes.sites[PODS[target]]
        name = f"iperf{number}"
        server = site.spawn(name, ["iperf3", "-s", "-1", "--forceflush"], target)
        site.until(lambda site=site, name=name: "listening" in site.said(name), "iperf3 listens")
        argv = ["ip", "netns", "exec", source, "iperf3", "-J", "-c", address(target), "-n", "100M", "-P", "4"]
        said = json.loads(subprocess.run(argv, capture_output=True, timeout=120, check=True, text=True).stdout)
        server.wait(20)
        sent, arrived = (int(said["end"][end]["bytes"]) for end in ("sum_sent", "sum_received"))
        # The receiver does not count what was still on its way when the sender had sent enough.
        check(sent >= 100 << 20 and arrived > sent / 2, f"{arrived} bytes of {sent}")
    for site in nodes.sites.values():
        site.stop()
