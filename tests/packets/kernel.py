"""Ports whose other end is the kernel's network stack, in namespaces: TAP interfaces, and what wraps ports, seen by others."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.process import unprivileged
from wrong import check

REPOSITORY = Path(__file__).resolve().parents[2]
FORWARD = REPOSITORY / "target/xtask/examples/forward"
MEMIF = REPOSITORY / "target/xtask/examples/memif"
MTU_FRAME = 1514
WAIT_S = 20.0


class Site(Protocol):
    """What a case is given: a place for files, and programs that end with it."""

    place: Path

    def spawn(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program."""

    def said(self, name: str) -> str:
        """What a program has said so far."""

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits."""

    def until_said(self, name: str, line: str, times: int = 1) -> None:
        """Waits for what a program says at the start of a line."""


@dataclass(frozen=True)
class Tally:
    """What a port counted in one direction."""

    packets: int
    size: int
    drops: int


@dataclass(frozen=True)
class Counted:
    """What `forward` says at its end."""

    received: list[Tally]
    transmitted: list[Tally]
    queues: list[list[int]]
    faults: dict[str, int]
    trace: dict[str, int]


def run(*argv: object, inside: str = "") -> str:
    """Runs a program to its end, in a namespace perhaps, and returns what it said."""
    words = [*(["ip", "netns", "exec", inside] if inside else []), *map(str, argv)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    check(done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-800:]} {done.stderr[-800:]}")
    return done.stdout


def named(text: str) -> dict[str, int]:
    """Numbers with names."""
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}


def counted(text: str) -> Counted:
    """Reads what `forward` says at its end."""

    def tally(found: re.Match[str], at: int) -> Tally:
        return Tally(int(found[at]), int(found[at + 1]), sum(named(found[at + 2]).values()))

    ports = list(re.finditer(r"port \d received (\d+) (\d+) (\S+) transmitted (\d+) (\d+) (\S+) queues \[(.*)\]", text))
    check(len(ports) == 2, f"nothing was counted: {text}")
    line = lambda name: named("".join(re.findall(rf"^{name} (.*)$", text, re.MULTILINE)))  # noqa: E731
    return Counted(
        [tally(port, 1) for port in ports],
        [tally(port, 4) for port in ports],
        [[int(count) for count in port[7].split(", ") if count] for port in ports],
        line("faults"),
        line("trace"),
    )


def spaces() -> None:
    """Two network namespaces, new ones."""
    for name in ("a", "b"):
        if Path("/run/netns", name).exists():
            run("ip", "netns", "del", name)
        run("ip", "netns", "add", name)
        # It would say something on its own.
        run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", inside=name)
        run("ip", "link", "set", "lo", "up", inside=name)


def inhabit(interface: str, name: str) -> None:
    """Gives an interface to a namespace, with an address."""
    run("ip", "link", "set", interface, "netns", name)
    run("ip", "addr", "add", f"10.77.0.{1 if name == 'a' else 2}/24", "dev", interface, inside=name)
    run("ip", "link", "set", interface, "up", inside=name)


def taps(site: Site, *options: str, queues: int = 1) -> subprocess.Popen[bytes]:
    """Two TAP interfaces, each in a namespace, and `forward` between them."""
    spaces()
    process = site.spawn("forward1", [str(FORWARD), f"tap:ta:{queues}", f"tap:tb:{queues}", *options])
    site.until_said("forward1", "ready")
    inhabit("ta", "a")
    inhabit("tb", "b")
    return process


def finish(site: Site, process: subprocess.Popen[bytes]) -> Counted:
    """Lets `forward` end, and returns what it counted."""
    assert process.stdin
    process.stdin.close()
    process.wait(WAIT_S)
    check(process.returncode == 0, site.said("forward1"))
    return counted(site.said("forward1"))


def balances(result: Counted) -> None:
    """What came by one port went by the other, or was dropped there for a cause."""
    faults = result.faults
    there, back = result.transmitted[1], result.transmitted[0]
    check(result.received[0].packets + faults["doubled"] == there.packets + there.drops + faults["held"], result)
    check(result.received[1].packets == back.packets and back.drops == 0, result)
    check(result.received[0].drops == result.received[1].drops == 0 and there.drops == faults["lost"] + faults["gone"], result)


def ping(*options: object) -> tuple[int, int]:
    """Pings from `a` to `b`; returns how many went and how many came back."""
    words = ["ip", "netns", "exec", "a", "ping", "-q", *map(str, options), "10.77.0.2"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
    check(found is not None, said)
    assert found
    return int(found[1]), int(found[2])


SERVER = """
import hashlib, socket
listener = socket.create_server(("10.77.0.2", 4000))
print("listening", flush=True)
connection, found = listener.accept()[0], hashlib.sha256()
while data := connection.recv(65536):
    found.update(data)
connection.sendall(found.hexdigest().encode())
"""
"""Returns what the bytes come to that it got."""
CLIENT = """
import hashlib, random, socket, sys
data = random.Random(1).randbytes(int(sys.argv[1]))
connection = socket.create_connection(("10.77.0.2", 4000))
connection.sendall(data)
connection.shutdown(socket.SHUT_WR)
assert connection.makefile().read() == hashlib.sha256(data).hexdigest()
"""


def whole(site: Site, size: int) -> None:
    """Sends so many bytes by TCP from `a` to `b`, where each of them arrives."""
    site.spawn("server", ["ip", "netns", "exec", "b", sys.executable, "-c", SERVER])
    site.until(lambda: "listening" in site.said("server"), "the server listens")
    run(sys.executable, "-c", CLIENT, size, inside="a")


def tcp(site: Site, size: str, streams: int = 1) -> None:
    """Sends so much by TCP from `a` to `b`, as fast as that goes."""
    server = site.spawn("iperf", ["ip", "netns", "exec", "b", "iperf3", "-s", "-1", "--forceflush"])
    site.until(lambda: "listening" in site.said("iperf"), "iperf3 listens")
    said = json.loads(run("iperf3", "-J", "-c", "10.77.0.2", "-n", size, "-P", streams, inside="a"))
    server.wait(WAIT_S)
    sent, arrived = (int(said["end"][end]["bytes"]) for end in ("sum_sent", "sum_received"))
    # The receiver does not count what was still on its way when the sender had sent enough.
    check(sent >= int(size.removesuffix("M")) << 20 and arrived > sent / 2, f"{arrived} bytes of {sent}")


def reaches(site: Site, *options: str, queues: int = 1, size: str = "300M") -> Counted:
    """Pings of all lengths, and TCP; returns what was counted."""
    process = taps(site, *options, queues=queues)
    check(ping("-c", 5, "-i", 0.01) == (5, 5), "pings were lost")
    check(ping("-c", 5, "-i", 0.01, "-s", 8000) == (5, 5), "fragments were lost")
    tcp(site, size, streams=2 * queues)
    whole(site, 10_000_000)
    result = finish(site, process)
    balances(result)
    print(f"        {result.received[0].size >> 20} MiB in {result.received[0].packets} packets", flush=True)
    return result


def segments(site: Site) -> None:
    """With offloads, TCP comes in packets that are far longer than a frame, whose checksum nobody has summed."""
    result = reaches(site, "--offloads", "yes")
    check(result.received[0].size > 4 * MTU_FRAME * result.received[0].packets, result)


def frames(site: Site) -> None:
    """Without, no packet is longer than a frame."""
    result = reaches(site, size="40M")
    check(result.received[0].size <= MTU_FRAME * result.received[0].packets, result)


def queues(site: Site) -> None:
    """Flows spread over queues."""
    result = reaches(site, "--offloads", "yes", queues=4)
    check(sum(count > 0 for count in result.queues[0]) >= 2, result.queues)


def handed_over(site: Site) -> None:
    """An interface that another process has opened, by one without any capability; at the other end is a memif of ours."""
    spaces()
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    ours = None
    try:
        # TUNSETIFF, with IFF_TAP, IFF_NO_PI and IFF_VNET_HDR.
        fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"ta", 0x0002 | 0x1000 | 0x4000))
        program = site.place / "forward"
        shutil.copy(FORWARD, program)
        site.place.chmod(0o755)
        socket = site.place / "memif.sock"
        echo = site.spawn("memif1", [str(MEMIF), "server", str(socket), "count", "98"])
        site.until_said("memif1", "ready")
        socket.chmod(0o666)
        with open(site.place / "forward1", "wb") as log:
            ours = subprocess.Popen(
                [*unprivileged(), str(program), "stdin", f"memif:{socket}", "--seconds", "1"],
                stdin=device,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        site.until_said("memif1", "connected")
        inhabit("ta", "a")
        run("ip", "neigh", "add", "10.77.0.2", "lladdr", "02:00:00:00:00:02", "dev", "ta", inside="a")
        went, _ = ping("-c", 20, "-i", 0.005, "-W", 0.1)
        ours.wait(WAIT_S)
    finally:
        os.close(device)
        if ours is not None:
            ours.kill()
            ours.wait()
    result = counted(site.said("forward1"))
    check(result.received[0].packets == result.transmitted[1].packets == went, (went, result))
    assert echo.stdin
    echo.stdin.close()
    echo.wait(WAIT_S)
    check(f"received {went} " in site.said("memif1") and "wrong=0" in site.said("memif1"), site.said("memif1"))


def goes_away(site: Site) -> None:
    """The interface is deleted under load: the port says so, and ends."""
    process = taps(site)
    pings = site.spawn("pings", ["ip", "netns", "exec", "a", "ping", "-q", "-f", "-w", "10", "10.77.0.2"])
    time.sleep(0.3)
    run("ip", "link", "del", "tb", inside="b")
    process.wait(WAIT_S)
    pings.kill()
    check("over: the peer has gone" in site.said("forward1"), site.said("forward1"))
    result = counted(site.said("forward1"))
    check(result.received[1].packets > 0 and result.received[0].drops == 0, result)


def traced(site: Site) -> None:
    """tshark reads a trace: as many packets as were counted, their directions, and what was not written."""
    capture = site.place / "trace.pcapng"
    process = taps(site, "--trace", str(capture), "--filter", "icmp and host 10.77.0.2", "--snap", "60")
    check(ping("-c", 30, "-i", 0.01) == (30, 30), "pings were lost")
    result = finish(site, process)
    check(result.trace["matched"] == result.trace["written"] == 60 < result.trace["seen"], result.trace)
    wanted = ["frame.len", "frame.cap_len", "frame.interface_name", "frame.packet_flags_direction", "icmp.type"]
    fields = [word for field in wanted for word in ("-e", field)]
    lines = [line.split("\t") for line in run("tshark", "-r", capture, "-T", "fields", *fields).splitlines()]
    check(len(lines) == 60 and all(line[:3] == ["98", "60", "tap:ta:1"] for line in lines), lines[:3])
    # What the port receives is the kernel's request, and what it transmits the reply.
    directions = {(int(line[3], 0), line[4]) for line in lines}
    check(directions == {(1, "8"), (2, "0")}, directions)
    said = run("capinfos", capture)
    check("Number of stat entries = 1" in said and "Number of packets = 60" in said, said)
    check("icmp and host 10.77.0.2" in said, said)


def faulty(site: Site) -> None:
    """Pings and TCP over loss, reordering, delay and doubles: everything is counted, and TCP arrives whole."""
    process = taps(site, "--seed", "7", "--loss", "0.05", "--reorder", "0.05", "--duplication", "0.05", "--delay", "0.05")
    went, came = ping("-c", 300, "-i", 0.002, "-W", 1)
    whole(site, 2_000_000)
    result = finish(site, process)
    balances(result)
    faults = result.faults
    check(faults["offered"] + faults["doubled"] == faults["passed"] + faults["lost"] + faults["gone"] + faults["held"], faults)
    check(all(faults[name] > 10 for name in ("lost", "doubled", "delayed", "reordered")), faults)
    check(went == 300 and 250 <= came < 300, f"{came} pings of {went}")


def cases() -> dict[str, Callable[[Site], None]]:
    """Each by its name."""
    return {
        "tap: ping, TCP in segments": segments,
        "tap: ping, TCP in frames": frames,
        "tap: four queues": queues,
        "tap: handed over to a process without capabilities": handed_over,
        "tap: the interface is deleted": goes_away,
        "trace: to tshark": traced,
        "fault: ping and TCP": faulty,
    }


def missing() -> list[str]:
    """Programs that are not here."""
    return [name for name in ("ip", "ping", "iperf3", "tshark", "capinfos", "setpriv") if shutil.which(name) is None]
