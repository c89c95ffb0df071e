"""A switch with ports of all kinds, by which nothing comes: it sleeps."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

from ends import Programs, Site, memif
from kills import MEMIF, VIRTIO
from kinds import FAR, NEAR, RING
from rig import Skipped, check, ip, namespace

SETTLES_S = 0.4
LOOKED_AT_S = 1.5
WAKES = 15
"""Of all threads in that time: an AF_XDP port looks for its interface once in a second, others not at all. One that polls wakes millions
of times or, where it yields its processor, as often as anybody else wants it."""
ALONE = 45
"""The same while nobody is at the other ends: those who connect look for them once or twice in a second each."""


def looked_at(pid: int) -> tuple[int, int]:
    """What a process has had so far: switches from its threads to others, and processor time in ticks."""
    switches = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        lines = (thread / "status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return switches, int(fields[11]) + int(fields[12])


def _sleeps(site: Site, most: int, when: str) -> None:
    time.sleep(SETTLES_S)
    switches, ticks = looked_at(site.switch.pid)
    time.sleep(LOOKED_AT_S)
    later, ticks_later = looked_at(site.switch.pid)
    print(f"        {when}: {later - switches} switches and {ticks_later - ticks} ticks in {LOOKED_AT_S} s", flush=True)
    check(later - switches <= most, f"{when}, it woke {later - switches} times in {LOOKED_AT_S} s")
    # One in a hundred.
    most_ticks = LOOKED_AT_S * os.sysconf("SC_CLK_TCK") / 100
    check(ticks_later - ticks <= most_ticks, f"{when}, it had {ticks_later - ticks} ticks in {LOOKED_AT_S} s")


def sleeps(stack: ExitStack, place: Path) -> None:
    """All ports are connected, and silent; then the programs at their other ends die, and do not come back."""
    if not os.path.exists("/dev/net/tun"):
        raise Skipped("there is no /dev/net/tun here")
    for name in (NEAR, FAR):
        namespace(stack, name)
    for own, other in (("xa", "xb"), ("under", "under")):
        ip("link", "add", own, "type", "veth", "peer", "name", other, "netns", FAR, inside=NEAR)
        ip("link", "set", own, "up", inside=NEAR)
        ip("link", "set", other, "up", inside=FAR)
    ip("address", "add", "192.0.2.1/24", "dev", "under", inside=NEAR)
    peers = Programs(stack, place / "peers")
    peers.place.mkdir()
    theirs = {
        "agent": [RING, f"{peers.place}/agent.sock", "agent"],
        "memif-server": [MEMIF, "server", f"{peers.place}/memif.sock", "--sleep", "count", "64"],
        "back": [VIRTIO, "vhost-user", "server", f"{peers.place}/back.sock", "--sleep", "count", "64"],
    }
    running = {name: peers.spawn(name, argv) for name, argv in theirs.items()}
    for name in theirs:
        peers.until(lambda name=name: "ready" in peers.said(name), f"{name} is ready")
    kinds = {
        "memif-client": f'memif = {{ path = "{peers.place}/memif.sock", role = "client" }}',
        "front": f'vhost_user.path = "{place}/front.sock"',
        "back": f'virtio_user = {{ path = "{peers.place}/back.sock", role = "client" }}',
        "ring": f'ring = {{ name = "tests/idle", agent = "{peers.place}/agent.sock" }}',
        "tap": 'tap.interface = "idle0"',
        "af_xdp": 'af_xdp.interface = "xa"',
        "vxlan": 'vxlan = { local = "192.0.2.1", remote = "192.0.2.2", vni = 7 }',
        "pcap": f'pcap.write = "{place}/written.pcapng"',
    }
    config = memif(place, "memif") + "".join(f'[[port]]\nname = "{name}"\n{kind}\n' for name, kind in kinds.items())
    config += f'[[mirror]]\nname = "look"\nfile = "{place}/look.pcapng"\n'
    site = Site(stack, place, f'metrics = "{place}/metrics"\n' + config, NEAR)
    ip("link", "set", "idle0", "up", inside=NEAR)
    running["memif"] = peers.spawn("memif", [MEMIF, "client", f"{place}/memif.sock", "--sleep", "count", "64"])
    running["front"] = peers.spawn("front", [VIRTIO, "virtio-user", "client", f"{place}/front.sock", "--sleep", "count", "64"])
    running["ring"] = peers.spawn("ring", [RING, f"{peers.place}/agent.sock", "tests/idle", "second", "--sleep", "count", "64"])
    site.until(lambda: all(port["state"] == "connected" for port in site.ports().values()), "all ports are connected")
    _sleeps(site, WAKES, "with all ports connected")
    for process in running.values():
        process.kill()
        process.wait()
    for name in ("memif", "memif-client", "front", "back", "ring"):
        site.until_state(name, "connecting: the peer has gone")
    ip("link", "set", "xb", "down", inside=FAR)
    _sleeps(site, ALONE, "with nobody at the other ends")
    site.stop()
