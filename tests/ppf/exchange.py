"""Messages and users' packets between the kernel's stacks, and what tshark says of them."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from rig import Inside, Interface, Skipped, check, ip, ipv4
from site_ppf import (
    CORE,
    ECHO_REQUEST,
    ECHO_RESPONSE,
    END_MARKER,
    ERROR_INDICATION,
    GTP_PORT,
    RADIO,
    SIDES,
    Function,
    Peer,
    far,
    message,
    own,
    teid_and_body,
)

USER = "10.45.0.7"


def stations(stack: ExitStack, place: Path) -> None:
    """The kernel finds the function by ARP and neighbour discovery, and its pings are answered, of all lengths."""
    if shutil.which("ping") is None:
        raise Skipped("there is no ping here (Debian's package is iputils-ping)")
    function = Function(stack, place)
    macs = {port["name"]: port["mac"] for port in function.ask("show")["ports"]}
    for side in (RADIO, CORE):
        for family in SIDES[side]:
            address = own(side, family)
            for length in ("0", "56", "1400"):
                command = ["ip", "netns", "exec", side, "ping", "-n", "-c", "3", "-i", "0.01", "-W", "2", "-s", length, address]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                check(" 3 received" in done.stdout, f"{side}, {address}, {length} bytes: {done.stdout}")
            shown = subprocess.run(["ip", "-n", side, "neigh", "show", address], capture_output=True, text=True, check=True).stdout
            check(macs[side] in shown, f"the kernel says {shown!r}, and not {macs[side]}")
    function.stop()


def workers(stack: ExitStack, place: Path) -> None:
    """The same where each port has a worker of its own, so that packets are handed over."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise Skipped("there is one processor here")
    relay(stack, place, socket.AF_INET, f"processors = {processors}")


SOURCES, ROUNDS = 16, 50


def queues(stack: ExitStack, place: Path) -> None:
    """Ports of two queues, which two workers have: by whichever a sender's messages come, each arrives, in order."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise Skipped("there is one processor here")
    function = Function(stack, place, f"processors = {processors}", queues=2)
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}
    # A bearer each, of which either worker has some, and a port that messages come from (TS 29.281, 4.4.2.3): a flow for the kernel.
    bearers = [function.add(core=f"{far(CORE)}/{4711 + at}", radio=f"{far(RADIO)}/{815 + at}") for at in range(SOURCES)]
    sources = []
    for _ in bearers:
        with Inside(RADIO):
            sources.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        sources[-1].bind((far(RADIO), 0))
    # Each worker looks for the next station by itself, for which few packets wait.
    for bearer, source in zip(bearers, sources):
        source.sendto(message(bearer["teids"]["radio"], b"first"), peers[RADIO].to)
        check(teid_and_body(peers[CORE].receive())[1] == b"first", f"{bearer}: {function.drops()}")
    for number in range(ROUNDS):
        for bearer, source in zip(bearers, sources):
            source.sendto(message(bearer["teids"]["radio"], number.to_bytes(4, "big")), peers[RADIO].to)
        time.sleep(0.002)
    came: dict[int, list[int]] = {4711 + at: [] for at in range(SOURCES)}
    for _ in range(SOURCES * ROUNDS):
        teid, body = teid_and_body(peers[CORE].receive())
        came[teid].append(int.from_bytes(body, "big"))
    check(all(numbers == list(range(ROUNDS)) for numbers in came.values()), f"{came}")
    # All parts of a message come by one queue, since only addresses are in all of them.
    for bearer, source in zip(bearers, sources):
        body = os.urandom(9000)
        source.sendto(message(bearer["teids"]["radio"], body), peers[RADIO].to)
        check(teid_and_body(peers[CORE].receive())[1] == body, f"in parts: {function.drops()}")
    for bearer in bearers:
        peers[CORE].send(message(bearer["teids"]["core"], b"back"))
        check(teid_and_body(peers[RADIO].receive())[1] == b"back", f"{bearer}")
    status = function.ask("show")
    radio = next(port for port in status["ports"] if port["name"] == RADIO)
    check(radio["state"] == "connected" and radio["counters"]["connections"] == 1, f"{radio}")
    check(radio["counters"]["received_packets"] >= SOURCES * ROUNDS, f"{radio}")
    function.stop()


def relay(stack: ExitStack, place: Path, family: int, more: str = "") -> None:
    """Messages of both directions arrive with their bytes, echoes are answered, and whoever sends to no tunnel is told."""
    function = Function(stack, place, more)
    bearer = function.add(core=f"{far(CORE, family)}/4711", radio=f"{far(RADIO, family)}/815")
    peers = {side: Peer(stack, side, family) for side in (RADIO, CORE)}
    other = {RADIO: (CORE, 4711), CORE: (RADIO, 815)}
    lengths = [0, 1, 20, 60, 100, 111, 112, 113, 500, 1400]
    for side, peer in peers.items():
        to, teid = other[side]
        for length in lengths:
            body = os.urandom(length)
            peer.send(message(bearer["teids"][side], body))
            check(teid_and_body(peers[to].receive()) == (teid, body), f"{length} bytes from {side}")
        peer.send(message(bearer["teids"][side], b"", END_MARKER))
        came = peers[to].receive()
        check(came is not None and (came[1], came[4:8]) == (END_MARKER, struct.pack("!I", teid)), f"the last message is {came!r}")
        peer.send(struct.pack("!BBHIHBB", 0x32, ECHO_REQUEST, 4, 0, 77, 0, 0))
        came = peer.receive()
        check(came is not None and (came[1], came[8:10]) == (ECHO_RESPONSE, struct.pack("!H", 77)), f"the answer is {came!r}")
        peer.send(message(0x7FFFFFFE, b"nobody's"))
        came = peer.receive()
        check(came is not None and came[1] == ERROR_INDICATION, f"nobody was told: {came!r}")
    usage = function.ask("bearer", "show", str(bearer["id"]))["usage"]
    for towards in ("core", "radio"):
        counted = (usage[f"{towards}_packets"], usage[f"{towards}_bytes"])
        # A message without a packet is a frame between stations.
        check(counted == (len(lengths) - 1, sum(lengths)), f"towards {towards}: {counted}")
    drops = function.drops()
    check(all(drops.get(f"{side} unknown_teid") == 1 for side in (RADIO, CORE)), f"{drops}")
    # The radio's peer moves to another number, and the bearer is shut for it.
    words = (f"core={far(CORE, family)}/4711", f"radio={far(RADIO, family)}/900")
    function.ask("bearer", "set", str(bearer["id"]), *words)
    peers[CORE].send(message(bearer["teids"]["core"], b"moved"))
    check(teid_and_body(peers[RADIO].receive()) == (900, b"moved"), "the bearer was changed")
    function.ask("bearer", "set", str(bearer["id"]), *words, "gates=core")
    peers[CORE].send(message(bearer["teids"]["core"], b"shut"))
    peers[RADIO].send(message(bearer["teids"]["radio"], b"open"))
    check(teid_and_body(peers[CORE].receive()) == (4711, b"open"), "the other direction is open")
    check(peers[RADIO].all() == [], "nothing passes a gate that is shut")
    gone = function.ask("bearer", "remove", str(bearer["id"]))["bearers"][0]
    check(gone["usage"]["core_packets"] == len(lengths), f"{gone}")
    peers[RADIO].send(message(bearer["teids"]["radio"], b"late"))
    came = peers[RADIO].receive()
    check(came is not None and came[1] == ERROR_INDICATION, "what is late for a bearer is nobody's")
    function.stop()


def data_network(stack: ExitStack, place: Path) -> None:
    """A user behind a tunnel talks UDP with the kernel behind N6, which routes the user's network to the function."""
    function = Function(stack, place)
    bearer = function.add(core_user=USER, radio=f"{far(RADIO)}/815")
    peer = Peer(stack, RADIO)
    with Inside(CORE):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(server.close)
    server.bind((far(CORE), 5000))
    server.settimeout(2)
    for length in (0, 1, 80, 1000):
        data = os.urandom(length)
        datagram = struct.pack("!HHHH", 6000, 5000, 8 + length, 0) + data
        peer.send(message(bearer["teids"]["radio"], ipv4(USER, far(CORE), 17, datagram)))
        came, source = server.recvfrom(4096)
        check((came, source) == (data, (USER, 6000)), f"{length} bytes came from {source}")
        server.sendto(data[::-1], source)
        teid, packet = teid_and_body(peer.receive())
        check(teid == 815, f"the tunnel is {teid}")
        check((packet[12:16], packet[16:20]) == (socket.inet_aton(far(CORE)), socket.inet_aton(USER)), packet.hex())
        check(packet[28:] == data[::-1], f"{length} bytes came back otherwise")
    peer.send(message(bearer["teids"]["radio"], ipv4("10.45.0.8", far(CORE), 17, struct.pack("!HHHH", 6000, 5000, 8, 0))))
    deadline = time.monotonic() + 5
    while function.drops().get("radio spoofed") != 1:
        check(time.monotonic() < deadline, f"dropped: {function.drops()}")
        time.sleep(0.02)
    error = function.command("bearer", "add", f"core.user={USER}", f"radio={far(RADIO)}/9", wrong=True)
    check("already" in error, error)
    function.stop()


def _pcap(path: Path, frames: list[bytes]) -> None:
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def _tshark(path: Path, fields: tuple[str, ...]) -> list[list[str]]:
    words = [word for field in fields for word in ("-e", field)]
    command = ["tshark", "-r", str(path), "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", *words]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    return [line.split("\t") for line in lines]


def dissected(stack: ExitStack, place: Path) -> None:
    """What scapy has made goes through, and tshark finds nothing malformed in what leaves, and the fields that were sent."""
    if shutil.which("tshark") is None:
        raise Skipped("there is no tshark here (Debian's package is tshark)")
    try:
        from scapy.contrib import gtp  # noqa: PLC0415
        from scapy.layers.inet import IP, UDP  # noqa: PLC0415
        from scapy.layers.inet6 import IPv6  # noqa: PLC0415
    except ImportError:
        raise Skipped("there is no scapy here (Debian's package is python3-scapy)") from None
    function = Function(stack, place)
    watched = {side: Interface(stack, side, f"{side}0") for side in (RADIO, CORE)}
    for family in SIDES[RADIO]:
        bearer = function.add(core=f"{far(CORE, family)}/4711", radio=f"{far(RADIO, family)}/815")
        for side, to, teid in ((RADIO, CORE, 4711), (CORE, RADIO, 815)):
            peer, end = Peer(stack, side, family), Peer(stack, to, family)
            mine = bearer["teids"][side]
            inner = IP(src=USER, dst="8.8.8.8") / UDP(sport=1, dport=2) / (b"x" * 33)
            inner6 = IPv6(src="2001:db8:45::7", dst="2001:db8:88::8") / UDP(sport=1, dport=2) / (b"y" * 700)
            container = gtp.GTPPDUSessionContainer(type=1 if side == RADIO else 0, QFI=9)
            made = [
                gtp.GTP_U_Header(teid=mine) / inner,
                gtp.GTP_U_Header(teid=mine) / inner6,
                gtp.GTP_U_Header(teid=mine, S=1, seq=7) / inner,
                gtp.GTP_U_Header(teid=mine, E=1, next_ex=0x85) / container / inner,
                gtp.GTP_U_Header(teid=mine, E=1, S=1, seq=8, next_ex=0x85) / container / inner6,
            ]
            for one in watched.values():
                one.all()
            for one in made:
                peer.send(bytes(one))
                check(end.receive() is not None, f"{one.summary()} did not arrive")
            frames = [frame for frame in watched[to].all() if frame[12:14] in (b"\x08\x00", b"\x86\xdd") and len(frame) > 70]
            # Beside the messages only neighbour discovery may be there, which is as long.
            _pcap(place / "left.pcap", frames)
            flow = "gtp.ext_hdr.pdu_ses_con.qos_flow_id"
            fields = ("_ws.malformed", "gtp.teid", "gtp.message", flow, "ip.checksum.status", "udp.checksum.status")
            rows = [row for row in _tshark(place / "left.pcap", fields) if row[1]]
            check(len(rows) == len(made), f"{len(rows)} messages of {len(made)}: {rows}")
            for row, wanted in zip(rows, ["", "", "", "9", "9"]):
                shown = (row[0], int(row[1], 0), int(row[2], 0), row[3])
                check(shown == ("", teid, 255, wanted), f"tshark says {row}")
                # 0: wrong; of the inner packets as well.
                check("0" not in ",".join(row[4:]).split(","), f"a checksum is wrong: {row}")
            for ended in (peer, end):
                ended.socket.close()
        function.ask("bearer", "remove", str(bearer["id"]))
    function.stop()


def wrong(stack: ExitStack, place: Path) -> None:
    """A station that sends anything: each frame has its cause, and the function goes on."""
    function = Function(stack, place)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}
    peers[RADIO].send(message(bearer["teids"]["radio"], b"first"))
    check(teid_and_body(peers[CORE].receive())[1] == b"first", "before anything wrong")
    interface = Interface(stack, RADIO, "radio0")
    mac = bytes.fromhex(function.ask("show")["ports"][0]["mac"].replace(":", ""))
    datagram = struct.pack("!HHHH", GTP_PORT, GTP_PORT, 8 + 48, 0) + message(bearer["teids"]["radio"], bytes(40))
    good = mac + b"\x02\0\0\0\0\x09\x08\0" + ipv4(far(RADIO), own(RADIO), 17, datagram)
    for seed in range(20_000):
        frame = bytearray(good)
        at = seed % len(good)
        frame[at] ^= 1 + seed // len(good) % 255
        if seed % 11 == 0:
            frame = frame[: 14 + seed % (len(good) - 14)]
        interface.send(bytes(frame))
    deadline = time.monotonic() + 20
    while True:
        peers[RADIO].send(message(bearer["teids"]["radio"], b"last"))
        came = peers[CORE].all()
        if any(one.endswith(b"last") for one in came):
            break
        check(time.monotonic() < deadline, f"nothing passes any more: {function.drops()}")
        time.sleep(0.02)
    drops = function.drops()
    for cause in ("radio link station", "radio link ip_checksum", "radio link truncated", "radio link udp_checksum", "radio unknown_teid"):
        check(drops.get(cause, 0) > 0, f"nothing was dropped as {cause}: {drops}")
    ip("link", "set", "radio0", "down", inside=RADIO)
    ip("link", "set", "radio0", "up", inside=RADIO)
    function.stop()
