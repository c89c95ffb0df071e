"""What the function tells: whether peers live, what they have lost, and a bearer's frames."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ends import WAIT_S
from harness import road
from rig import Inside, Skipped, check, ipv4
from site_ppf import CORE, ECHO_REQUEST, ECHO_RESPONSE, ERROR_INDICATION, RADIO, Api, Function, Peer, far, message, own, teid_and_body

SUPERVISION = "[supervision]\ninterval_s = 1\nresponse_ms = 100\nrequests = 3"
RESTARTS = 5
USER = "10.45.0.7"


class Answering:
    """A peer that answers echoes for as long as it is to, and keeps them."""

    def __init__(self, stack: ExitStack, side: str, answers: bool) -> None:
        self.peer = Peer(stack, side)
        self.answers = answers
        self.asked: list[bytes] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        stack.callback(self.stop)

    def _serve(self) -> None:
        while not self.over.is_set():
            came = self.peer.receive(0.05)
            if came is None or came[1] != ECHO_REQUEST:
                continue
            self.asked.append(came)
            if self.answers:
                self.peer.send(struct.pack("!BBHI", 0x32, ECHO_RESPONSE, 6, 0) + came[8:10] + bytes([0, 0, 14, RESTARTS]))

    def stop(self) -> None:
        """It is not there any more."""
        self.over.set()
        self.thread.join()


class Events:
    """Events in their order, waited for."""

    def __init__(self, function: Function) -> None:
        self.api = Api(function.socket)
        self.next = 0
        self.all: list[dict[str, Any]] = []

    def until(self, **wanted: object) -> dict[str, Any]:
        """The next event that has these."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            status, said = self.api.ask("GET", f"/v1/events?from={self.next}&limit=1&wait=2")
            check(status == 200 and said["missed"] == 0, f"{status} {said}")
            self.next = said["next"]
            self.all += said["events"]
            for event in said["events"]:
                if all(event.get(key) == value for key, value in wanted.items()):
                    return event
        check(False, f"{wanted} was not among {self.all}")
        raise AssertionError


def supervised(stack: ExitStack, place: Path) -> None:
    """Peers are asked if they live: one answers, and then does not; the other never does. And whose tunnels they have lost."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    workers = f"processors = {processors}\n" if len(processors) == 2 else ""
    function = Function(stack, place, workers + SUPERVISION)
    peers = {RADIO: Answering(stack, RADIO, answers=True), CORE: Answering(stack, CORE, answers=False)}
    bearers = [function.add(core=f"{far(CORE)}/{4711 + one}", radio=f"{far(RADIO)}/{815 + one}") for one in range(2)]
    events = Events(function)
    seen: set[tuple[str, str]] = set()
    while len(seen) < 2:
        event = events.until()
        seen.add((event["event"], event["peer"]))
    check(seen == {("path_up", far(RADIO)), ("path_down", far(CORE))}, f"what was told is {events.all}")
    paths = {path["side"]: path for path in function.ask("paths")["paths"]}
    up, down = paths[RADIO], paths[CORE]
    check((up["state"], up["tunnels"], up["restart_counter"]) == ("up", 2, RESTARTS) and up["responses"] >= 1, f"{up}")
    check((down["state"], down["responses"], down["restart_counter"]) == ("down", 0, None), f"{down}")
    asked = peers[CORE].asked[:3]
    wanted = [struct.pack("!BBHIHBB", 0x32, ECHO_REQUEST, 4, 0, 1, 0, 0)] * 3
    check(asked == wanted, f"it was asked {[one.hex() for one in asked]}")
    # A bearer's number says which worker has it, and a tunnel's at its far end nothing.
    for at, bearer in enumerate(bearers):
        body = struct.pack("!BIBH4s", 16, 815 + at, 133, 4, bytes(map(int, far(RADIO).split("."))))
        peers[RADIO].peer.send(struct.pack("!BBHIHBB", 0x32, ERROR_INDICATION, 4 + len(body), 0, 0, 0, 0) + body)
        events.until(event="lost", bearer=bearer["id"], side=RADIO)
    peers[RADIO].answers = False
    events.until(event="path_down", peer=far(RADIO))
    shown = function.command("events")
    check(shown.count("path_down") >= 2 and "lost" in shown, shown)
    function.ask("bearer", "remove", *[str(bearer["id"]) for bearer in bearers])
    check(function.ask("paths")["paths"] == [], "nobody is asked for nothing")
    function.stop()


def _rows(path: Path) -> list[list[str]]:
    fields = ("frame.interface_name", "frame.packet_flags_direction", "gtp.teid", "ip.src", "_ws.malformed")
    words = [word for field in fields for word in ("-e", field)]
    done = subprocess.run(["tshark", "-r", str(path), "-T", "fields", *words], capture_output=True, check=True, text=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def traced_by_two(stack: ExitStack, place: Path) -> None:
    """The same where each port has a worker of its own: one sees a frame come, and the other sees it leave."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise Skipped("there is one processor here")
    traced(stack, place, f"processors = {processors}")


def traced(stack: ExitStack, place: Path, more: str = "") -> None:
    """A bearer's frames, as they come and as they leave, and no other's: tshark reads them, with the TEIDs that were sent."""
    if shutil.which("tshark") is None:
        raise Skipped("there is no tshark here (Debian's package is tshark)")
    function = Function(stack, place, more)
    bearer = function.add(core=f"{far(CORE)}/4711", radio=f"{far(RADIO)}/815")
    other = function.add(core_user=USER, radio=f"{far(RADIO)}/816")
    peers = {side: Peer(stack, side) for side in (RADIO, CORE)}

    def trace(name: str, which: int, count: int) -> Path:
        path = place / f"{name}.pcapng"
        argv = [str(road.MILLRACE), "ppf", "--control", str(function.socket), "trace", str(which)]
        function.spawn(name, [*argv, "-w", str(path), "--count", str(count)])
        function.until(lambda: path.exists() and path.stat().st_size > 0, "the trace has begun")
        return path

    def has_ended(name: str, count: int) -> bool:
        return f"{count} frames were written, and 0 found no room" in function.said(name)

    with Inside(CORE):
        # Or the kernel would tell the user that nobody is there.
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(server.close)
    server.bind((far(CORE), 5000))
    # Both stations are known.
    peers[RADIO].send(message(bearer["teids"][RADIO], b"first"))
    check(peers[CORE].receive() is not None, "a message passes")
    peers[CORE].send(message(bearer["teids"][CORE], b"first"))
    check(peers[RADIO].receive() is not None, "a message passes")
    relay = trace("relay", bearer["id"], 8)
    user = trace("user", other["teids"][RADIO], 2)
    inner = ipv4(USER, far(CORE), 17, struct.pack("!HHHH", 6000, 5000, 8 + 4, 0) + b"user")
    stranger = "10.9.9.9"
    for length in (33, 1200):
        body = ipv4(stranger, USER, 17, struct.pack("!HHHH", 1, 2, 8 + length, 0) + b"x" * length)
        for side, to in ((RADIO, CORE), (CORE, RADIO)):
            peers[side].send(message(bearer["teids"][side], body))
            check(teid_and_body(peers[to].receive())[1] == body, f"{len(body)} bytes from {side}")
        peers[RADIO].send(message(other["teids"][RADIO], inner))
    function.until(lambda: has_ended("relay", 8) and has_ended("user", 2), "both traces end")
    ours = {side: hex(bearer["teids"][side]) for side in (RADIO, CORE)}
    # A packet in a tunnel has two sources.
    once = [
        [RADIO, "1", ours[RADIO], f"{far(RADIO)},{stranger}", ""],
        [CORE, "2", hex(4711), f"{own(CORE)},{stranger}", ""],
        [CORE, "1", ours[CORE], f"{far(CORE)},{stranger}", ""],
        [RADIO, "2", hex(815), f"{own(RADIO)},{stranger}", ""],
    ]
    found = _rows(relay)
    rows = [[row[0], str(int(row[1], 0)), hex(int(row[2], 0)), *row[3:]] for row in found]
    # What two workers have seen comes from each in its order.
    order = sorted if more else list
    check(order(rows) == order(once * 2), f"tshark says {found}")
    found = _rows(user)
    if more:
        found.sort(key=lambda row: row[0], reverse=True)
    wanted = [[RADIO, f"{far(RADIO)},{USER}"], [CORE, USER]]
    check([[row[0], row[3]] for row in found] == wanted, f"tshark says {found}")
    check(int(found[0][2], 0) == other["teids"][RADIO], f"tshark says {found}")
    function.stop()
