"""Our tunnels and the kernel's: a host of ours, and one with a `vxlan` device, in two network namespaces with a veth pair between them."""

from __future__ import annotations

import socket
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

from rig import Inside, Interface, Ours, check, checksum, echo, ip, ipv4, mac, namespace, tagged

OURS, THEIRS = "host-a", "host-b"
NETWORK = 77
ADDRESSES = {"IPv4": ("192.0.2.1", "192.0.2.2", 24), "IPv6": ("2001:db8::1", "2001:db8::2", 64)}
STATION = mac(1)
THEIR_STATION = bytes([2, 0, 0, 0, 1, 1])
UNDERLAY_OVERHEAD = {"IPv4": 50, "IPv6": 70}


class Hosts:
    """Both, and what is looked at between them."""

    def __init__(
        self, stack: ExitStack, place: Path, family: str, tunnel: str = f"vni = {NETWORK}", more: str = "", workers: str = ""
    ) -> None:
        self.family = family
        own, other, bits = ADDRESSES[family]
        for name in (OURS, THEIRS):
            namespace(stack, name)
        ip("link", "add", "under", "type", "veth", "peer", "name", "under", "netns", THEIRS, inside=OURS)
        for name, address in ((OURS, own), (THEIRS, other)):
            if family == "IPv6":
                settings = ("disable_ipv6", "accept_dad", "router_solicitations")
                commands = "; ".join(f"echo 0 > /proc/sys/net/ipv6/conf/under/{setting}" for setting in settings)
                subprocess.run(["ip", "netns", "exec", name, "sh", "-c", commands], check=True)
            ip("address", "add", f"{address}/{bits}", "dev", "under", *(["nodad"] if family == "IPv6" else []), inside=name)
            ip("link", "set", "under", "up", inside=name)
        self.wire = Interface(stack, THEIRS, "under")
        self.device("overlay", NETWORK, "10.9.0.2/24")
        config = f'{workers}\n[[port]]\nname = "a"\nmemif.path = "/test"\n{more}\n'
        config += f'[[port]]\nname = "tunnel"\nvxlan = {{ local = "{own}", remote = "{other}", {tunnel} }}\n'
        self.ours = Ours(stack, place, config, inside=OURS)

    def device(self, name: str, network: int, address: str) -> None:
        """A tunnel of the kernel's."""
        own, other, _ = ADDRESSES[self.family]
        options = ["id", str(network), "local", other, "remote", own, "dstport", "4789"]
        ip("link", "add", name, "address", "02:00:00:00:01:01", "type", "vxlan", *options, inside=THEIRS)
        ip("address", "add", address, "dev", name, inside=THEIRS)
        ip("link", "set", name, "up", inside=THEIRS)
        ip("neigh", "add", "10.9.0.1", "lladdr", "02:00:00:00:00:01", "dev", name, inside=THEIRS)

    def outer(self) -> bytes:
        """The next datagram of ours, as it is on the wire."""
        for _ in range(200):
            frame = self.wire.receive(1)
            if frame is not None and self.datagram(frame) is not None:
                return frame
        check(False, "no datagram was seen")
        return b""

    def datagram(self, frame: bytes) -> bytes | None:
        """The UDP header of a datagram of VXLAN, and what follows."""
        at = 34 if self.family == "IPv4" else 54
        kinds = {"IPv4": (b"\x08\x00", 23), "IPv6": (b"\x86\xdd", 20)}
        ether_type, protocol_at = kinds[self.family]
        if frame[12:14] != ether_type or frame[protocol_at] != 17 or frame[at + 2 : at + 4] != struct.pack("!H", 4789):
            return None
        return frame[at:]


def question(serial: int, length: int = 56, tos: int = 0, whole: bool = True) -> bytes:
    """A frame that a station of the kernel's answers."""
    return THEIR_STATION + STATION + b"\x08\x00" + ipv4("10.9.0.1", "10.9.0.2", 1, echo(serial, length), tos, whole)


def is_answer(frame: bytes) -> bool:
    """Whether it is what a station of the kernel's answers."""
    return frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34] == 0


def talks(stack: ExitStack, place: Path, family: str) -> None:
    """Stations of both hosts talk, with packets of any length that fits; and the kernel's ask ours by its address."""
    hosts = Hosts(stack, place, family)
    fits = 1500 - UNDERLAY_OVERHEAD[family] - 28
    for serial, length in enumerate((0, 1, 56, 63, 64, 100, 1000, fits)):
        found = hosts.ours.exchange(question(serial, length), is_answer)
        check(found[:12] == STATION + THEIR_STATION and found[38:] == question(serial, length)[38:], found.hex())
    report = hosts.ours.report()
    ports = {port["name"]: port for port in report["ports"]}
    check(ports["tunnel"]["mtu"] == 1500 - UNDERLAY_OVERHEAD[family], f"{ports['tunnel']}")
    check(ports["tunnel"]["counters"]["received_packets"] >= 8 and ports["tunnel"]["stations"] == 1, f"{ports['tunnel']}")
    # What the kernel sends to everybody comes to us as it was.
    other = Interface(stack, THEIRS, "overlay")
    sent = mac(255) + THEIR_STATION + b"\x88\xb5" + bytes(range(200))
    other.send(sent)
    hosts.ours.until(lambda frame: frame == sent)


def outside(stack: ExitStack, place: Path, family: str) -> None:
    """The outer headers: flows have source ports of their own, which stay; IPv4 has no checksum, IPv6 a right one; nothing is cut."""
    hosts = Hosts(stack, place, family)
    ports: dict[int, int] = {}
    for turn in range(2):
        for flow in range(40):
            payload = struct.pack("!HHHH", 1000 + flow, 80, 108, 0) + bytes(100)
            hosts.ours.send("a", THEIR_STATION + STATION + b"\x08\x00" + ipv4("10.9.0.1", "10.9.0.2", 17, payload))
            frame = hosts.outer()
            datagram = hosts.datagram(frame)
            assert datagram
            source, _, length, found = struct.unpack("!HHHH", datagram[:8])
            check(ports.setdefault(flow, source) == source, f"flow {flow} has another port in turn {turn}")
            check(length == len(datagram) and datagram[8:16] == struct.pack("!II", 0x08000000, NETWORK << 8), datagram.hex())
            if family == "IPv4":
                check(found == 0 and frame[20:22] == b"\x40\x00", "a checksum, or no mark that it must not be cut")
            else:
                pseudo = frame[22:54] + struct.pack("!II", length, 17)
                # On a veth the kernel leaves it to the device, which is none: it is what the pseudo-header gives, or right.
                partial = ~checksum(pseudo) & 0xFFFF
                check(found == partial or checksum(pseudo + datagram) == 0, f"checksum {found:#x}")
    check(len(set(ports.values())) >= 8 and min(ports.values()) > 1023, f"source ports: {sorted(set(ports.values()))}")


def congestion(stack: ExitStack, place: Path, family: str) -> None:
    """ECN (RFC 6040): outside it is as inside; and what a congested path says outside is said inside afterwards, or it is dropped."""
    hosts = Hosts(stack, place, family)
    for inner in range(4):
        hosts.ours.exchange(question(inner, tos=0xB8 | inner), is_answer)
        frame = hosts.outer()
        outer = frame[15] if family == "IPv4" else (frame[14] << 4 | frame[15] >> 4) & 0xFF
        check(outer == inner, f"inside {inner}, outside {outer:#x}")
    expected = {(0, 0): 0, (0, 2): 0, (0, 1): 0, (0, 3): None, (2, 0): 2, (2, 2): 2, (2, 1): 1, (2, 3): 3}
    expected |= {(1, 0): 1, (1, 2): 1, (1, 1): 1, (1, 3): 3, (3, 0): 3, (3, 2): 3, (3, 1): 3, (3, 3): 3}
    own, other, _ = ADDRESSES[family]
    level, option = (socket.IPPROTO_IP, socket.IP_TOS) if family == "IPv4" else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    with Inside(THEIRS):
        sender = socket.socket(socket.AF_INET if family == "IPv4" else socket.AF_INET6, socket.SOCK_DGRAM)
        stack.callback(sender.close)
        sender.bind((other, 0))
    dropped = 0
    for (inner, outer), wanted in expected.items():
        sender.setsockopt(level, option, outer)
        frame = mac(255) + THEIR_STATION + b"\x08\x00" + ipv4("10.9.0.2", "10.9.0.255", 17, bytes(40), tos=0x48 | inner)
        sender.sendto(struct.pack("!II", 0x08000000, NETWORK << 8) + frame, (own, 4789))
        if wanted is None:
            for _ in range(2000):
                hosts.ours.wait(2)
                if (dropped := hosts.ours.drops("tunnel").get("tunnel_congestion", 0)) == 1:
                    break
            check(dropped == 1, "it was not dropped")
            continue
        found = hosts.ours.until(lambda frame: frame[:12] == mac(255) + THEIR_STATION)
        check(found[15] == 0x48 | wanted, f"inside {inner}, outside {outer}: {found.hex()}")
        check(checksum(found[14:34]) == 0, "the header's checksum")


def networks(stack: ExitStack, place: Path) -> None:
    """VLANs have a network each, and frames no tag inside."""
    hosts = Hosts(stack, place, "IPv4", f"vnis = {{ 10 = {NETWORK}, 20 = 78 }}", "vlan.trunk = [10, 20]")
    for turn, (vlan, network) in enumerate(((10, NETWORK), (20, 78), (10, NETWORK))):
        left = hosts.ours.send("a", tagged(question(turn), vlan))
        datagram = hosts.datagram(hosts.outer())
        assert datagram
        check(datagram[8:16] == struct.pack("!II", 0x08000000, network << 8), datagram.hex())
        check(datagram[16:30] == question(0)[:14], "there is a tag inside")
        if vlan == 10:
            found = hosts.ours.until(lambda frame: is_answer(frame[:12] + frame[16:]), left)
            check(found[12:16] == b"\x81\x00\x00\x0a", found.hex())


def too_long(stack: ExitStack, place: Path, workers: str) -> None:
    """What does not fit: who must be told is told, with the length that fits; what may be cut is dropped; and both are counted. A path's
    width changes."""
    hosts = Hosts(stack, place, "IPv4", workers=workers)
    hosts.ours.exchange(question(0), is_answer)
    found = hosts.ours.send("a", question(1, 1450 - 28 + 1))
    check(len(found) == 1 and found[0][0] == "a", f"{found}")
    frame = found[0][1]
    check(frame[:12] == STATION + THEIR_STATION and frame[34:36] == b"\x03\x04", frame.hex())
    check(frame[40:42] == struct.pack("!H", 1450) and checksum(frame[34:]) == 0 and checksum(frame[14:34]) == 0, frame.hex())
    check(not hosts.ours.send("a", question(2, 2000, whole=False)), "what may be cut was answered")
    check(hosts.ours.drops("a") == {"too_large": 2}, f"{hosts.ours.drops('a')}")
    # The path becomes narrower: the next one that does not fit is lost, and then the new length is told.
    ip("link", "set", "under", "mtu", "1400", inside=OURS)
    hosts.ours.send("a", question(3, 1400))
    hosts.ours.wait(20)
    told = hosts.ours.send("a", question(4, 1400))
    check(len(told) == 1 and told[0][1][40:42] == struct.pack("!H", 1350), f"{told} {hosts.ours.drops('tunnel')}")
    check(hosts.ours.port("tunnel")["mtu"] == 1350, f"{hosts.ours.port('tunnel')}")
    # It becomes as wide again as it was: so does the tunnel, and what was too long passes.
    ip("link", "set", "under", "mtu", "1500", inside=OURS)
    for _ in range(100):
        hosts.ours.wait(100)
        if hosts.ours.port("tunnel")["mtu"] == 1450:
            break
    check(hosts.ours.port("tunnel")["mtu"] == 1450, f"{hosts.ours.port('tunnel')}")
    hosts.ours.exchange(question(5, 1400), is_answer)
