"""Ports of each kind beside a memif: what comes back is compared with what was sent, and the peer dies under load and comes back."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ends import Programs, Site, memif
from harness import examples
from rig import Interface, check, ip, namespace

NEAR, FAR = "near", "far"
RING = str(examples.PLACE / "ring")
MANY, FEW = 20_000, 10_000
"""Packets that are exchanged with programs, and with what Python does."""
LOAD = ("number", str(1 << 40), "200")
"""Packets as fast as they go, and as long as anybody wants them."""
BACK_TO_US = "--eth-peer=0,02:00:00:00:00:01"
"""testpmd, which answers in its own name, answers to the station that sends the packets."""


def _balanced(site: Site, count: int) -> None:
    """Everything that came by one port went by the other."""
    for name, port in site.ports().items():
        counters = port["counters"]
        passed = (counters["received_packets"], counters["transmitted_packets"], counters["made"], counters["drops"])
        check(passed == (count, count, 0, []), f"{name}: {counters}")


def _dies_under_load(site: Site, peer: subprocess.Popen[bytes]) -> None:
    """The peer of port `b` is killed while packets go there; the port says so, and the others' packets go on."""
    load = site.ours("a.sock", *LOAD)
    site.until_passed("b", more=1000)
    time.sleep(random.uniform(0.0, 0.02))
    peer.kill()
    peer.wait()
    site.until_state("b", "connecting: the peer has gone")
    dropped = lambda: sum(drop["packets"] for drop in site.ports()["b"]["counters"]["drops"])  # noqa: E731
    before = dropped()
    site.until(lambda: dropped() > before, "what is for nobody is dropped, and counted")
    load.kill()
    load.wait()


def _lives_and_dies(site: Site, begin: Callable[[str], subprocess.Popen[bytes]], *words: str, deaths: int = 2) -> None:
    """Everything is exchanged with a peer, and again with the one after it, and so on."""
    peer = begin("peer1")
    site.until_state("b", "connected")
    site.ours("a.sock", *words)
    site.exchanged(MANY)
    _balanced(site, MANY)
    for life in range(2, 2 + deaths):
        _dies_under_load(site, peer)
        peer = begin(f"peer{life}")
        site.until_state("b", "connected")
        site.ours("a.sock", *words)
        site.exchanged(MANY)
    check(site.ports()["b"]["counters"]["connections"] == 1 + deaths, f"{site.ports()['b']}")
    peer.kill()
    peer.wait()
    site.stop()


def vhost_user(stack: ExitStack, place: Path) -> None:
    """DPDK's `net_virtio_user` at two queues each way: stations are learnt, each flow is in order."""
    a = memif(place, "a").replace("memif.path", "memif.queues = 2\nmemif.path")
    b = f'[[port]]\nname = "b"\nvhost_user = {{ path = "{place}/b.sock", queues = 2, accept_unsealed = true }}\n'
    site = Site(stack, place, a + b)
    device = f"net_virtio_user0,path={place}/b.sock,queues=2,queue_size=1024"
    begin = lambda name: site.testpmd_with(name, device, "mac", BACK_TO_US, queues=2)  # noqa: E731
    _lives_and_dies(site, begin, "--queues", "2", "exchange", str(MANY), "mac")


def virtio_user(stack: ExitStack, place: Path) -> None:
    """DPDK's `net_vhost`, which listens."""
    peers = place / "peers"
    peers.mkdir()
    b = f'[[port]]\nname = "b"\nvirtio_user = {{ path = "{peers}/b.sock", role = "client" }}\n'
    site = Site(stack, place, memif(place, "a") + b)

    def begin(name: str) -> subprocess.Popen[bytes]:
        # testpmd does not take the place of a dead one.
        (peers / "b.sock").unlink(missing_ok=True)
        return site.testpmd_with(name, f"net_vhost0,iface={peers}/b.sock", "mac", BACK_TO_US)

    _lives_and_dies(site, begin, "exchange", str(MANY), "mac")


class Rings:
    """A switch with a ring, and the agent, which was there before it."""

    def __init__(self, stack: ExitStack, place: Path, more: str = "") -> None:
        namespace(stack, FAR)
        self.peers = place / "peers"
        self.peers.mkdir()
        self.programs = Programs(stack, self.peers)
        self.agent = self.new_agent("agent1")
        ring = f'ring = {{ name = "tests/b", agent = "{self.peers}/agent.sock", slots = 1024, pool_bytes = 8388608 }}'
        self.site = Site(stack, place, memif(place, "a") + f'[[port]]\nname = "b"\n{ring}\n{more}')

    def new_agent(self, name: str) -> subprocess.Popen[bytes]:
        """Starts an agent."""
        process = self.programs.spawn(name, [RING, f"{self.peers}/agent.sock", "agent"])
        self.programs.until(lambda: "ready" in self.programs.said(name) or process.poll() is not None, f"{name} is ready")
        check(process.poll() is None, self.programs.said(name))
        return process

    def peer(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """A program in another namespace."""
        return self.programs.spawn(name, [RING, f"{self.peers}/agent.sock", "tests/b", "second", *words], FAR)


def ring(stack: ExitStack, place: Path, deaths: int) -> None:
    """A program in another namespace, by channels."""
    rings = Rings(stack, place)
    _lives_and_dies(rings.site, lambda name: rings.peer(name, "echo"), "exchange", str(MANY), deaths=deaths)


def ring_without_agent(stack: ExitStack, place: Path) -> None:
    """The agent dies: packets pass as before. When there is one again, a port is added by the command line, and its program is met."""
    rings = Rings(stack, place)
    site = rings.site
    peer = rings.peer("peer1", "echo")
    site.until_state("b", "connected")
    rings.agent.kill()
    rings.agent.wait()
    site.ours("a.sock", "exchange", str(MANY))
    site.exchanged(MANY)
    peer.kill()
    site.until_state("b", "connecting: the peer has gone")
    rings.new_agent("agent2")
    # The same port anew, by the command line.
    site.ask("del-port", "b")
    site.ask("add-port", "b", "ring", "name=tests/b", f"agent={rings.peers}/agent.sock", "slots=512")
    rings.peer("peer2", "echo")
    site.until_state("b", "connected")
    site.ours("a.sock", "exchange", str(MANY))
    site.exchanged(MANY)
    site.stop()


def ring_in_place(stack: ExitStack, place: Path) -> None:
    """Packets that a program has written where the switch reads them: each arrives, or was dropped for want of room, and counted."""
    count, size = 200_000, "1400"
    # They are from and for nobody.
    rings = Rings(stack, place, '[[flow]]\nname = "all"\nin = "b"\nout = ["a"]\n')
    site = rings.site
    ours = site.ours("a.sock", "count", size)
    site.until_state("a", "connected")
    rings.peer("peer1", "lend", str(count), size)
    rings.programs.until(lambda: "sent in" in rings.programs.said("peer1"), "all was sent")
    site.until(lambda: site.ports()["b"]["counters"]["received_packets"] == count, "all has come")
    settle(site)
    counters = site.ports()["a"]["counters"]
    dropped = {drop["cause"]: drop["packets"] for drop in counters["drops"]}
    check(set(dropped) <= {"full"} and counters["transmitted_packets"] + sum(dropped.values()) == count, f"{counters}")
    result = site.finished(ours, "ours")
    check(result["wrong"] == 0 and result["received"] == counters["transmitted_packets"], f"{result} {counters}")


def settle(site: Site) -> None:
    """Waits until no packets pass any more."""
    passed = lambda: [port["counters"] for port in site.ports().values()]  # noqa: E731
    before = None
    while before != (now := passed()):
        before = now
        time.sleep(0.2)


class Echo:
    """Returns whatever comes by an interface of a namespace."""

    def __init__(self, stack: ExitStack, inside: str, name: str) -> None:
        self.interface = Interface(stack, inside, name)
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        stack.callback(self.close)

    def close(self) -> None:
        """Returns nothing more."""
        self.is_over.set()
        self.thread.join()

    def _serve(self) -> None:
        while not self.is_over.is_set():
            try:
                frame = self.interface.receive(0.05)
                if frame is not None:
                    self.interface.send(frame)
            except OSError:
                # The interface is down, or gone.
                time.sleep(0.01)


def _cable() -> None:
    ip("link", "add", "xa", "type", "veth", "peer", "name", "xb", "netns", FAR, inside=NEAR)
    ip("link", "set", "xa", "up", inside=NEAR)
    ip("link", "set", "xb", "up", inside=FAR)


def af_xdp(stack: ExitStack, place: Path) -> None:
    """An interface of the kernel's: what is at its other end returns everything, goes down and comes up, and is gone with the interface."""
    for name in (NEAR, FAR):
        namespace(stack, name)
    _cable()
    site = Site(stack, place, memif(place, "a") + '[[port]]\nname = "b"\naf_xdp.interface = "xa"\n', NEAR)

    def exchange() -> None:
        with_it = Echo(stack, FAR, "xb")
        site.ours("a.sock", "exchange", str(FEW))
        site.exchanged(FEW)
        with_it.close()

    exchange()
    _balanced(site, FEW)
    load = site.ours("a.sock", *LOAD)
    site.until_passed("b", more=1000)
    ip("link", "set", "xb", "down", inside=FAR)
    time.sleep(0.1)
    ip("link", "set", "xb", "up", inside=FAR)
    site.until_passed("b", more=1000)
    load.kill()
    load.wait()
    settle(site)
    exchange()
    load = site.ours("a.sock", *LOAD)
    site.until_passed("b", more=1000)
    ip("link", "delete", "xb", inside=FAR)
    site.until_state("b", "closed: the peer has gone")
    load.kill()
    load.wait()
    site.ask("del-port", "b")
    _cable()
    site.ask("add-port", "b", "af_xdp", "interface=xa")
    exchange()
    site.stop()
    links = subprocess.run(["ip", "-n", NEAR, "link"], capture_output=True, text=True, check=True).stdout
    check("xa" in links and "prog/xdp" not in links, f"a program is left: {links}")
