"""What is asked of a bearer is done: QoS flows, marks, limits, pauses, end markers."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

from rig import check
from site_ppf import CORE, END_MARKER, RADIO, Function, Peer, far, message, teid_and_body

PDU_SESSION = 0x85
DOWNLINK = 0


def contained(flow: int, body: bytes, teid: int, kind: int = DOWNLINK) -> bytes:
    """A message with a PDU Session Container (TS 38.415, 5.5.2) before a user's packet."""
    container = bytes([0, 0, 0, PDU_SESSION, 1, kind << 4, flow, 0])
    return struct.pack("!BBHI", 0x34, 255, len(container) + len(body), teid) + container + body


def flow_of(received: bytes | None) -> tuple[int | None, bytes]:
    """The QoS flow that a message says, and the user's packet."""
    check(received is not None, "no message came")
    assert received is not None
    if received[0] & 7 == 0:
        return None, received[8:]
    check(received[11] == PDU_SESSION and received[12] == 1 and received[15] == 0, f"what came is {received[:16].hex()}")
    return received[14] & 0x3F, received[16:]


def treated(stack: ExitStack, place: Path) -> None:
    """Each treatment towards the radio network, and what is told of it."""
    function = Function(stack, place)
    ends = (f"core={far(CORE)}/4711", f"radio={far(RADIO)}/815")
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    number, teid = str(bearer["id"]), bearer["teids"]["core"]
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}

    def have(*words: str) -> None:
        function.ask("bearer", "set", number, *ends, *words)

    have("to_radio.flow=9", "to_radio.dscp=46")
    peers[RADIO].socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    for sent in (message(teid, b"without"), contained(5, b"with", teid)):
        peers[CORE].send(sent)
        peers[RADIO].socket.settimeout(2)
        received, control, _, _ = peers[RADIO].socket.recvmsg(65536, 64)
        check(flow_of(received)[0] == 9, f"what came is {received.hex()}")
        marks = [data[0] for level, kind, data in control if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)]
        check(marks == [46 << 2], f"the outer header has {marks}")
    have("to_radio.flow=9", "to_radio.rqi=true", "to_radio.ppi=5")
    peers[CORE].send(message(teid, b"said"))
    received = peers[RADIO].receive()
    # Reflective, with a paging policy, and filled up to four bytes more (TS 38.415, 5.5.2.1).
    wanted = bytes([PDU_SESSION, 2, DOWNLINK << 4, 0x80 | 0x40 | 9, 5 << 5, 0, 0, 0, 0])
    check(received is not None and (received[11:20], received[20:]) == (wanted, b"said"), f"what came is {received!r}")
    have("to_radio.flow.5=63")
    for flow, wanted in ((5, 63), (6, None)):
        peers[CORE].send(contained(flow, b"mapped", teid))
        came = peers[RADIO].receive(2.0 if wanted else 0.1)
        check((flow_of(came) if wanted else came) == ((63, b"mapped") if wanted else None), f"of flow {flow} came {came!r}")
    have("to_radio.flow=removed")
    peers[CORE].send(contained(5, b"bare", teid))
    check(flow_of(peers[RADIO].receive()) == (None, b"bare"), "the container was to be removed")

    have("to_radio.paused=true")
    bodies = [b"held %d" % at + bytes(at * 100) for at in range(12)]
    for body in bodies:
        peers[CORE].send(message(teid, body))
    peers[RADIO].send(message(bearer["teids"]["radio"], b"up"))
    check(teid_and_body(peers[CORE].receive())[1] == b"up", "the other direction is not paused")
    check(peers[RADIO].all() == [], "a paused bearer lets something pass")
    have()
    for body in bodies:
        check(teid_and_body(peers[RADIO].receive()) == (815, body), "what was held comes, in its order")

    have("to_radio.limit.packets_per_second=1", "to_radio.limit.burst_packets=3")
    before = function.drops().get(f"{CORE} bearer_limit", 0)
    for at in range(20):
        peers[CORE].send(message(teid, b"limited %d" % at))
    passed, dropped, deadline = 0, 0, time.monotonic() + 10
    while passed + dropped < 20 and time.monotonic() < deadline:
        passed += len(peers[RADIO].all())
        dropped = function.drops().get(f"{CORE} bearer_limit", 0) - before
    check(passed >= 3 and dropped > 0 and passed + dropped == 20, f"{passed} passed, and {dropped} were over the limit")

    ue = str(function.ask("ue", "add", "to_radio.packets_per_second=1", "to_radio.burst_packets=5")["ue"])
    other = function.add(core=f"{far(CORE)}/4712", radio=f"{far(RADIO)}/816", ue=ue)
    have(f"ue={ue}")
    before = function.drops().get(f"{CORE} user_limit", 0)
    for at in range(20):
        peers[CORE].send(message((teid, other["teids"]["core"])[at % 2], b"of one user %d" % at))
    passed, dropped, deadline = [], 0, time.monotonic() + 10
    while len(passed) + dropped < 20 and time.monotonic() < deadline:
        passed += peers[RADIO].all()
        dropped = function.drops().get(f"{CORE} user_limit", 0) - before
    teids = {teid_and_body(one)[0] for one in passed}
    check(len(passed) >= 5 and dropped > 0 and len(passed) + dropped == 20, f"{len(passed)} passed, {dropped} were over the limit")
    check(teids == {815, 816}, f"what passed is of {teids}")

    function.ask("bearer", "set", number, "--end-markers", "2", ends[0], f"radio={far(RADIO)}/900")
    last = [peers[RADIO].receive(), peers[RADIO].receive()]
    check(all(came is not None and (came[1], came[4:8]) == (END_MARKER, struct.pack("!I", 815)) for came in last), f"what came is {last}")
    peers[CORE].send(message(teid, b"moved"))
    check(teid_and_body(peers[RADIO].receive()) == (900, b"moved"), "the tunnel leads elsewhere")
    shown = function.ask("bearer", "show", number)["spec"]
    check("to_radio" not in shown and shown["radio"]["teid"] == 900, f"{shown}")
    function.stop()
