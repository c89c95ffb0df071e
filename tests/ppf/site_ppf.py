"""A packet processing function between two namespaces of the kernel's, and peers in them."""

from __future__ import annotations

import array
import fcntl
import http.client
import json
import signal
import socket
import struct
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ends import WAIT_S, Programs
from harness import road
from rig import Inside, Wrong, check, ip, namespace

SELF, RADIO, CORE = "ppf", "radio", "core"
SIDES = {
    RADIO: {socket.AF_INET: ("192.0.2.1", "192.0.2.9", 24), socket.AF_INET6: ("2001:db8:1::1", "2001:db8:1::9", 64)},
    CORE: {socket.AF_INET: ("198.51.100.1", "198.51.100.9", 24), socket.AF_INET6: ("2001:db8:2::1", "2001:db8:2::9", 64)},
}
"""Of each side and family: the function's address, the peer's, and bits of the network."""
USERS = "10.45.0.0/16"
GTP_PORT = 2152
G_PDU, ECHO_REQUEST, ECHO_RESPONSE, ERROR_INDICATION, END_MARKER = 255, 1, 2, 26, 254
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17


def own(side: str, family: int = socket.AF_INET) -> str:
    """The function's address."""
    return SIDES[side][family][0]


def far(side: str, family: int = socket.AF_INET) -> str:
    """The peer's."""
    return SIDES[side][family][1]


def _whole_checksums(inside: str, device: str) -> None:
    """The kernel leaves no checksum to the other end of a veth: it would come as it is to a socket of AF_XDP."""
    value = array.array("B", struct.pack("II", ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP8x", device.encode(), value.buffer_info()[0])
    with Inside(inside), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def links(stack: ExitStack, queues: int = 1) -> None:
    """Namespaces, and a veth from the function's to that of each side, with so many queues at both ends."""
    several = ["numtxqueues", str(queues), "numrxqueues", str(queues)]
    for name in (SELF, RADIO, CORE):
        namespace(stack, name)
    for side in (RADIO, CORE):
        device = f"{side}0"
        ip("link", "add", side, *several, "type", "veth", "peer", "name", device, "netns", side, *several, inside=SELF)
        ip("link", "set", side, "up", inside=SELF)
        setting = f"echo 0 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/{device}/accept_dad"
        subprocess.run(["ip", "netns", "exec", side, "sh", "-c", setting], check=True)
        for family in SIDES[side]:
            _, address, bits = SIDES[side][family]
            nodad = ["nodad"] if family == socket.AF_INET6 else []
            ip("address", "add", f"{address}/{bits}", "dev", device, *nodad, inside=side)
        ip("link", "set", device, "up", inside=side)
        _whole_checksums(side, device)
    ip("route", "add", USERS, "via", own(CORE), inside=CORE)


def config(place: Path, more: str = "", mtus: dict[str, int] | None = None, queues: int = 1) -> str:
    """The function's, with a port of AF_XDP on either side."""
    text = f'store = "{place}/store"\n{more}\n'
    for side in (RADIO, CORE):
        addresses = ", ".join(f'"{mine}/{bits}"' for mine, _, bits in SIDES[side].values())
        text += f'[[port]]\nname = "{side}"\nside = "{side}"\naddresses = [{addresses}]\n'
        text += f'af_xdp = {{ interface = "{side}", queues = {queues} }}\n'
        text += f"mtu = {(mtus or {}).get(side, 1500)}\n"
    return text + f'routes = [{{ to = "0.0.0.0/0", via = "{far(CORE)}" }}]\n'


class Function(Programs):
    """`millrace ppf run`, and who asks it."""

    def __init__(self, stack: ExitStack, place: Path, more: str = "", mtus: dict[str, int] | None = None, queues: int = 1) -> None:
        super().__init__(stack, place)
        links(stack, queues)
        self.file = place / "ppf.toml"
        self.file.write_text(config(place, more, mtus, queues))
        self.socket = place / "ppf.sock"
        self.launch()

    def launch(self) -> None:
        """Starts it, and waits until it works."""
        command = [str(road.MILLRACE), "ppf", "--control", str(self.socket), "run", str(self.file)]
        self.process = self.spawn("function", command, SELF)
        works = lambda: "the function works" in self.said("function")  # noqa: E731
        self.until(lambda: works() or self.process.poll() is not None, "the function works")
        check(works(), f"the function has ended with {self.process.poll()}: {self.said('function')}")

    def kill(self) -> None:
        """It dies, and has not done so before."""
        self.process.kill()
        code = self.process.wait()
        check(code == -signal.SIGKILL, f"the function had ended with {code}: {self.said('function')}")

    def stop(self) -> None:
        """It ends cleanly, and leaves no socket."""
        self.process.send_signal(signal.SIGTERM)
        check(self.process.wait(WAIT_S) == 0, f"the function did not stop cleanly: {self.said('function')}")
        left = [path.name for path in self.place.iterdir() if path.is_socket() or path.suffix == ".lock"]
        check(not left, f"left behind: {left}")

    def command(self, *words: str, wrong: bool = False) -> str:
        """What `millrace ppf` prints."""
        argv = [str(road.MILLRACE), "ppf", "--control", str(self.socket), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        check((done.returncode != 0) == wrong, f"{words}: {done.returncode} {done.stderr}")
        return done.stderr if wrong else done.stdout

    def ask(self, *words: str) -> Any:
        """The same for programs."""
        return json.loads(self.command(*words, "--json"))

    def add(self, **ends: str) -> dict[str, Any]:
        """Adds a bearer; `core_user` is the key core.user."""
        words = [f"{key.replace('_', '.')}={value}" for key, value in ends.items()]
        found: dict[str, Any] = self.ask("bearer", "add", *words)
        return found

    def drops(self) -> dict[str, int]:
        """Packets that were dropped, by port or side, place and cause."""
        status = self.ask("stats")
        found: dict[str, int] = {}
        for port in status["ports"]:
            found |= {f"{port['name']} {drop['at']} {drop['cause']}": drop["packets"] for drop in port["counters"]["drops"]}
        for side in (RADIO, CORE):
            found |= {f"{side} {drop['cause']}": drop["packets"] for drop in status[f"{side}_drops"]}
        return found


class Api(http.client.HTTPConnection):
    """HTTP by the control socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self.path))

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        """The status, and what was said."""
        kind = "application/x-ndjson" if isinstance(body, str) else "application/json"
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        self.request(method, target, data, {"Content-Type": kind})
        response = self.getresponse()
        return response.status, json.loads(response.read())


class Peer:
    """A GTP-U peer: a socket of the kernel's, by which messages come and go."""

    def __init__(self, stack: ExitStack, side: str, family: int = socket.AF_INET) -> None:
        self.to = (own(side, family), GTP_PORT)
        with Inside(side):
            self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        self.socket.bind((far(side, family), GTP_PORT))
        stack.callback(self.socket.close)

    def send(self, message: bytes) -> None:
        """A message leaves."""
        self.socket.sendto(message, self.to)

    def receive(self, timeout: float = 2.0) -> bytes | None:
        """A message that came from the function; none within that time."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                message, source = self.socket.recvfrom(65536)
            except TimeoutError:
                return None
            if source[:2] != self.to:
                raise Wrong(f"a message came from {source}")
            return message
        return None

    def all(self) -> list[bytes]:
        """Messages that are there."""
        found = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.socket.recv(65536))
        except BlockingIOError:
            return found


def message(teid: int, body: bytes, kind: int = G_PDU) -> bytes:
    """As short as it can be."""
    return struct.pack("!BBHI", 0x30, kind, len(body), teid) + body


def teid_and_body(received: bytes | None) -> tuple[int, bytes]:
    """Of a message without options."""
    if received is None:
        raise Wrong("no message came")
    flags, kind, length, teid = struct.unpack("!BBHI", received[:8])
    check((flags, kind, length) == (0x30, G_PDU, len(received) - 8), f"what came is {received[:16].hex()}")
    return teid, received[8:]
