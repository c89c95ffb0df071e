"""A switch that is killed under load, again and again, between peers that stay."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from ends import Programs, Site, memif
from harness import examples
from kinds import LOAD, NEAR, RING
from rig import check, ip, namespace

VIRTIO = str(examples.PLACE / "virtio")
MEMIF = str(examples.PLACE / "memif")
TAP = "killed0"
BURST = 32
"""Packets that a switch has in hand, and that come twice when it is killed: a back end takes again what it had not given back."""


def _vhost_user(place: Path, name: str) -> str:
    return f'[[port]]\nname = "{name}"\nvhost_user.path = "{place / name}.sock"\n'


def _flow(source: str, *targets: str) -> str:
    out = ", ".join(f'"{target}"' for target in targets)
    return f'[[flow]]\nname = "of-{source}"\nin = "{source}"\nout = [{out}]\n'


def held(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """What a program has open, and how much memory it shares: descriptors, and mappings of files without a name."""
    about = Path(f"/proc/{process.pid}")
    maps = (about / "maps").read_text()
    return len(os.listdir(about / "fd")), maps.count("/memfd:") + maps.count("/dev/shm/")


def interfaces() -> dict[str, bool]:
    """Those of the switch's namespace, and whether each has a program."""
    links = subprocess.run(["ip", "-n", NEAR, "-json", "link"], capture_output=True, check=True, text=True).stdout
    return {link["ifname"]: "xdp" in link for link in json.loads(links)}


def around() -> dict[str, object]:
    """What a switch could leave on the machine: interfaces, programs at them, namespaces, shared memory."""
    places = [place for place in ("/run", "/run/netns", "/dev/shm") if os.path.isdir(place)]
    return {"interfaces": interfaces(), **{place: sorted(os.listdir(place)) for place in places}}


class Peers:
    """Programs at the ports of a switch: two that send numbered packets, and three that check what comes."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.programs = Programs(stack, place / "peers")
        self.programs.place.mkdir()
        self.agent = str(self.programs.place / "agent.sock")
        self.all = {"agent": self.programs.spawn("agent", [RING, self.agent, "agent"])}
        self.programs.until(lambda: "ready" in self.programs.said("agent"), "the agent is ready")

    def begin(self, place: Path) -> None:
        """Starts the others."""
        front = [VIRTIO, "virtio-user", "client"]
        commands = {
            "a": [MEMIF, "client", f"{place}/a.sock", *LOAD],
            "b": [*front, f"{place}/b.sock", "--sleep", "ordered"],
            "c": [*front, f"{place}/c.sock", "number", str(1 << 40), "700"],
            "d": [MEMIF, "client", f"{place}/d.sock", "--sleep", "ordered"],
            "e": [RING, self.agent, "tests/e", "second", "--sleep", "ordered"],
        }
        self.all |= {name: self.programs.spawn(name, argv) for name, argv in commands.items()}

    def held(self) -> dict[str, tuple[int, int]]:
        """What each has open."""
        return {name: held(process) for name, process in self.all.items()}


def switch(stack: ExitStack, place: Path, kills: int) -> None:
    """Killed under load, and now and then while it begins: peers by memif, vhost-user and channels find the next one, what comes is what
    was sent, and nothing is left: no socket, no interface or program at one, no memory."""
    seed = random.randrange(1 << 32)
    choose = random.Random(seed)
    namespace(stack, NEAR)
    ip("link", "add", "xa", "type", "veth", "peer", "name", "xb", inside=NEAR)
    for name in ("xa", "xb"):
        ip("link", "set", name, "up", inside=NEAR)
    peers = Peers(stack, place)
    ports = memif(place, "a") + _vhost_user(place, "b") + _vhost_user(place, "c") + memif(place, "d")
    ports += f'[[port]]\nname = "e"\nring = {{ name = "tests/e", agent = "{peers.agent}" }}\n'
    ports += f'[[port]]\nname = "t"\ntap.interface = "{TAP}"\n[[port]]\nname = "x"\naf_xdp.interface = "xa"\n'
    before = around()
    site = Site(stack, place, f'metrics = "{place}/metrics"\n' + ports + _flow("a", "b", "e") + _flow("c", "d"), NEAR)
    peers.begin(place)
    ended = lambda: [name for name, process in peers.all.items() if process.poll() is not None]  # noqa: E731
    first = None
    for kill in range(kills):
        if kill % 3 == 2:
            # Before it works.
            time.sleep(choose.uniform(0.0, 0.03))
        else:
            site.until_it_works()
            site.until_passed("b", "d", "e", more=100)
            first = first or peers.held()
            time.sleep(choose.uniform(0.0, 0.05))
        site.kill()
        check(not ended(), f"seed {seed}: {ended()} ended with the switch")
        site.launch()
    site.until_it_works()
    site.until_passed("b", "d", "e", more=100)
    check(TAP in interfaces() and interfaces()["xa"], f"an interface, or its program, is not there again: {interfaces()}")
    last = peers.held()
    grown = {name: (first[name], last[name]) for name in last if first and any(map(int.__gt__, last[name], first[name]))}
    check(not grown, f"seed {seed}: what is held has grown: {grown}")
    for name in ("a", "c"):
        peers.all[name].kill()
        peers.all[name].wait()
    results = {name: peers.programs.finished(peers.all[name], name) for name in ("b", "d", "e")}
    site.stop()
    check(around() == before, f"seed {seed}: left behind: {before} {around()}")
    for name, most in (("b", 0), ("d", kills * BURST), ("e", 0)):
        result = results[name]
        check(result["wrong"] == 0 and result["again"] <= most, f"seed {seed}: {name}: {result}")
        check(result["received"] > 0 and result["connections"] > kills // 2, f"seed {seed}: {name}: {result}")
    print(f"        {kills} kills, {[result['received'] for result in results.values()]} packets", flush=True)


def behind_testpmd(stack: ExitStack, place: Path, kills: int) -> None:
    """The same between two of DPDK's `net_virtio_user`, which listen and go on with the next switch: packets go to the one, and come back
    by the other. Not its `net_memif`: that of 22.11 ends with SIGSEGV now and then when its peer dies under load, at this end as at any."""
    seed = random.randrange(1 << 32)
    choose = random.Random(seed)
    theirs = place / "theirs"
    theirs.mkdir()
    ports = memif(place, "a") + memif(place, "b")
    for name in "xy":
        where = f'path = "{theirs}/{name}.sock", role = "client", accept_unsealed = true'
        ports += f'[[port]]\nname = "{name}"\nvhost_user = {{ {where} }}\n'
    site = Site(stack, place, ports + _flow("a", "x") + _flow("y", "b"))
    devices = [f"net_virtio_user{number},path={theirs}/{name}.sock,queue_size=1024,server=1" for number, name in enumerate("xy")]
    testpmd = site.testpmd_with("testpmd", " ".join(devices), "io")
    site.spawn("sender", [MEMIF, "client", f"{place}/a.sock", *LOAD])
    receiver = site.spawn("receiver", [MEMIF, "client", f"{place}/b.sock", "--sleep", "ordered"])
    for _ in range(kills):
        site.until_it_works()
        site.until_passed("b", more=100)
        time.sleep(choose.uniform(0.0, 0.1))
        site.kill()
        check(testpmd.poll() is None, f"seed {seed}: testpmd has gone with the switch: {site.said('testpmd')[-1000:]}")
        site.launch()
    site.until_it_works()
    site.until_passed("b", more=100)
    result = site.finished(receiver, "receiver")
    check(result["wrong"] == 0 and result["again"] <= kills * BURST, f"seed {seed}: {result}")
    check(result["connections"] == kills + 1, f"seed {seed}: {result}")
    print(f"        {kills} kills, {result['received']} packets", flush=True)
