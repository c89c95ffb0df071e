"""Packets that are longer than links take: the kernel cuts what the function puts together, and puts together what the function cuts."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

from rig import Inside, Interface, check, checksum, ipv4
from site_ppf import CORE, RADIO, SIDES, Function, Peer, far, message, own, teid_and_body

USER = "10.45.0.7"
IP_MTU_DISCOVER, IP_PMTUDISC_DONT, IP_PMTUDISC_DO, IP_MTU = 10, 0, 2, 14
ICMP, UDP = 1, 17
MTU = 1500
TUNNEL_BYTES = 36
"""Of IPv4, UDP and GTP-U."""
FLOOD = 3000
KEPT = 1024
"""Of `[reassembly]`, `packets`."""


def relayed(stack: ExitStack, place: Path) -> None:
    """Messages of up to 60 000 bytes between two tunnels of each family, by two workers: each arrives as it was."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    function = Function(stack, place, f"processors = {processors}")
    for family in SIDES[RADIO]:
        # Whichever worker a port has, one of two bearers is the other's.
        bearers = [function.add(core=f"{far(CORE, family)}/{4711 + at}", radio=f"{far(RADIO, family)}/{815 + at}") for at in range(2)]
        peers = {side: Peer(stack, side, family) for side in (RADIO, CORE)}
        for at, bearer in enumerate(bearers):
            for side, to, teid in ((RADIO, CORE, 4711 + at), (CORE, RADIO, 815 + at)):
                for length in (MTU - TUNNEL_BYTES + 1, 3000, 9000, 30_000, 60_000):
                    body = os.urandom(length)
                    peers[side].send(message(bearer["teids"][side], body))
                    check(teid_and_body(peers[to].receive()) == (teid, body), f"{length} bytes from {side}: {function.drops()}")
        for peer in peers.values():
            peer.socket.close()
    drops = function.drops()
    check(not any("fragment" in cause or "too_long" in cause for cause in drops), f"dropped: {drops}")
    function.stop()


def flood(stack: ExitStack, place: Path) -> None:
    """First parts alone are kept as the limits say and no longer, and whoever sends all parts of a message is served meanwhile."""
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}
    interface = Interface(stack, RADIO, "radio0")
    mac = bytes.fromhex(function.ask("show")["ports"][0]["mac"].replace(":", ""))
    for number in range(FLOOD):
        part = bytearray(ipv4("192.0.2.77", own(RADIO), UDP, bytes(600)))
        part[4:8] = struct.pack("!HH", number, 0x2000)
        part[10:12] = struct.pack("!H", checksum(bytes(part[:10] + part[12:20])))
        interface.send(mac + b"\x02\0\0\0\0\x09\x08\0" + bytes(part))
        if number % 500 == 0:
            body = os.urandom(5000)
            peers[RADIO].send(message(bearer["teids"]["radio"], body))
            check(teid_and_body(peers[CORE].receive()) == (4711, body), f"nobody else is served: {function.drops()}")
    deadline = time.monotonic() + 10
    while True:
        drops = function.drops()
        memory, age = (drops.get(f"radio fragment_{cause}", 0) for cause in ("memory", "age"))
        if memory + age == FLOOD:
            break
        check(time.monotonic() < deadline, f"of {FLOOD} parts there are {drops}")
        time.sleep(0.05)
    check(age <= KEPT, f"{age} parts have waited")
    function.stop()


def users(stack: ExitStack, place: Path) -> None:
    """What users and the data network send each other is cut where it may be, and who sends what may not be is told the path's MTU."""
    function = Function(stack, place, mtus={CORE: 1300})
    bearer = function.add(core_user=USER, radio=f"{far(RADIO)}/815")
    peer = Peer(stack, RADIO)
    with Inside(CORE):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        told = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for one in (server, told):
        stack.callback(one.close)
        one.settimeout(2)
    server.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
    server.bind((far(CORE), 5000))
    # Up: the function cuts, and the kernel puts together.
    for length in (1273, 1400, 5000, 20_000):
        data = os.urandom(length)
        datagram = struct.pack("!HHHH", 6000, 5000, 8 + length, 0) + data
        peer.send(message(bearer["teids"]["radio"], ipv4(USER, far(CORE), UDP, datagram, whole=False)))
        check(server.recv(65536) == data, f"{length} bytes came otherwise")
    peer.send(message(bearer["teids"]["radio"], ipv4(USER, far(CORE), UDP, struct.pack("!HHHH", 6000, 5000, 1400, 0) + bytes(1392))))
    _, error = teid_and_body(peer.receive())
    check((error[9], error[20:22], error[26:28]) == (ICMP, b"\x03\x04", struct.pack("!H", 1300)), f"the user is told {error[:28].hex()}")
    # Down: what fits the link does not fit with a tunnel's headers, and what the kernel has cut is cut again on its way.
    for length in (1465, 1472, 4000):
        data = os.urandom(length)
        server.sendto(data, (USER, 6000))
        payload = b""
        while len(payload) < 8 + length:
            teid, packet = teid_and_body(peer.receive())
            check((teid, packet[16:20]) == (815, socket.inet_aton(USER)), packet[:20].hex())
            check(8 * (struct.unpack("!H", packet[6:8])[0] & 0x1FFF) == len(payload), "parts are not in their order")
            payload += packet[20:]
        check(payload[8:] == data, f"{length} bytes went otherwise")
    told.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    told.connect((USER, 6000))
    told.send(bytes(MTU - 28))
    deadline = time.monotonic() + 5
    while (mtu := told.getsockopt(socket.IPPROTO_IP, IP_MTU)) == MTU:
        check(time.monotonic() < deadline, f"the kernel is not told: {function.drops()}")
        time.sleep(0.02)
    check(mtu == MTU - TUNNEL_BYTES, f"the kernel is told {mtu}")
    try:
        told.send(bytes(mtu - 28))
    except OSError as error:
        # What it was told is said once, and then sent.
        check(error.errno in (errno.EMSGSIZE, errno.ECONNREFUSED), f"{error}")
        told.send(bytes(mtu - 28))
    _, packet = teid_and_body(peer.receive())
    check(len(packet) == mtu, f"{len(packet)} bytes came")
    drops = function.drops()
    check((drops.get("radio too_big"), drops.get("core too_big")) == (1, 1), f"dropped: {drops}")
    function.stop()
