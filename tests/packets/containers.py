"""Ports of programs in containers, which here are network namespaces: rings between two, and queues of a kernel interface (AF_XDP)."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from harness.process import unprivileged
from kernel import REPOSITORY, WAIT_S, Site, ping, run, spaces, tcp
from wrong import check

RING = REPOSITORY / "target/xtask/examples/ring"
XDP = REPOSITORY / "target/xtask/examples/xdp"
PORT = 7777


def agent(site: Site) -> Path:
    """An agent, and two namespaces."""
    spaces()
    path = site.place / "agent.sock"
    site.spawn("agent", [str(RING), str(path), "agent"])
    site.until_said("agent", "ready")
    return path


def ring(site: Site, name: str, space: str, side: str, *words: object) -> subprocess.Popen[bytes]:
    """One side, in a namespace."""
    argv = ["ip", "netns", "exec", space, str(RING), str(site.place / "agent.sock"), "ring", side, *map(str, words)]
    process = site.spawn(name, argv)
    site.until(lambda: "ready" in site.said(name) or process.poll() is not None, f"{name} is ready")
    return process


def result(site: Site, process: subprocess.Popen[bytes], name: str) -> dict[str, int]:
    """Lets a side end, and returns what it counted."""
    assert process.stdin
    process.stdin.close()
    process.wait(WAIT_S)
    found = re.search(r"result wrong=(\d+) connections=(\d+) .* received (\d+) \d+ (\S+) transmitted (\d+) \d+ (\S+)", site.said(name))
    check(found is not None, site.said(name))
    assert found
    drops = sum(int(count) for count in re.findall(r"=(\d+)", found[4] + found[6]))
    names = ("wrong", "connections", "received", "transmitted")
    return {**dict(zip(names, map(int, (found[1], found[2], found[3], found[5])))), "drops": drops}


def exchanges(site: Site) -> None:
    """Everything that one sends the other returns: unchanged, and in order."""
    agent(site)
    ring(site, "echo1", "b", "second", "echo")
    process = ring(site, "ours1", "a", "first", "exchange", 50_000)
    site.until(lambda: "result" in site.said("ours1"), "all was exchanged")
    counts = result(site, process, "ours1")
    check(counts == {"wrong": 0, "connections": 1, "received": 50_000, "transmitted": 50_000, "drops": 0}, counts)


def arrives(site: Site, size: int, *how: str) -> None:
    """As many arrive as were sent, while the receiver sleeps now and then."""
    agent(site)
    receiver = ring(site, "receiver1", "b", "second", "--sleep", "count", size)
    sender = ring(site, "sender1", "a", "first", *how, 500_000, size)
    site.until(lambda: "sent" in site.said("sender1"), "all was sent")
    time.sleep(0.3)
    counts = result(site, receiver, "receiver1")
    check(counts["received"] == 500_000 and counts["wrong"] == 0 and counts["drops"] == 0, counts)
    sender.kill()


def is_killed(site: Site) -> None:
    """Either side is killed under load, again and again: the other says so, and goes on with the next."""
    agent(site)
    receiver = ring(site, "receiver1", "b", "second", "count", 1400)
    for number in range(1, 6):
        sender = ring(site, f"sender{number}", "a", "first", "send", 1 << 40, 1400)
        site.until_said("receiver1", "connected", number)
        time.sleep(0.1)
        sender.kill()
        sender.wait()
        site.until_said("receiver1", "closed: the peer has gone", number)
    sender = ring(site, "sender6", "a", "first", "send", 1 << 40, 1400)
    site.until_said("receiver1", "connected", 6)
    for number in range(2, 5):
        receiver.kill()
        receiver.wait()
        receiver = ring(site, f"receiver{number}", "b", "second", "count", 1400)
        site.until_said(f"receiver{number}", "connected")
        time.sleep(0.1)
    counts = result(site, receiver, "receiver4")
    check(counts["received"] > 1000 and counts["wrong"] == 0, counts)
    check(sender.poll() is None, site.said("sender6"))


def veth(site: Site, queues: int = 1) -> None:
    """A pair of interfaces, one in each namespace."""
    spaces()
    count = ["numtxqueues", queues, "numrxqueues", queues]
    run("ip", "link", "add", "va", *count, "type", "veth", "peer", "name", "vb", *count)
    for name in ("a", "b"):
        run("ip", "link", "set", f"v{name}", "netns", name)
        run("ip", "addr", "add", f"10.77.0.{1 if name == 'a' else 2}/24", "dev", f"v{name}", inside=name)
        run("ip", "link", "set", f"v{name}", "up", inside=name)


ASK = """
import socket, sys
for number in range(int(sys.argv[1])):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        # Nobody completes checksums on a veth.
        asker.setsockopt(socket.SOL_SOCKET, 11, 1)
        asker.settimeout(5)
        data = number.to_bytes(4, "big") * (1 + number % 300)
        asker.sendto(data, ("10.77.0.2", int(sys.argv[2])))
        assert asker.recv(2000) == data
"""
"""Asks so often, each time from another port, and gets back what it sent."""


def takes(site: Site, queues: int = 4) -> None:
    """What is for a port is taken, and comes back; pings and TCP go to the kernel beside it."""
    veth(site, queues)
    echo = site.spawn("echo1", ["ip", "netns", "exec", "b", str(XDP), "echo", "vb", str(PORT), str(queues)])
    site.until_said("echo1", "ready")
    asker = subprocess.Popen(["ip", "netns", "exec", "a", shutil.which("python3") or "python3", "-c", ASK, "2000", str(PORT)])
    check(ping("-c", 20, "-i", 0.01) == (20, 20), "pings were lost")
    tcp(site, "100M")
    asker.wait(WAIT_S)
    check(asker.returncode == 0, "an answer was lost or wrong")
    assert echo.stdin
    echo.stdin.close()
    echo.wait(WAIT_S)
    check("result received 2000 drops 0 transmitted 2000 drops 0" in site.said("echo1"), site.said("echo1"))
    check("prog/xdp" not in run("ip", "link", "show", "vb", inside="b"), "the program is still there")


def hands_over(site: Site) -> None:
    """A socket that another process has opened, used by one without any capability; the program goes with who opened it."""
    veth(site)
    program = site.place / "xdp"
    shutil.copy(XDP, program)
    site.place.chmod(0o755)
    opener = site.spawn(
        "opener1", ["ip", "netns", "exec", "b", str(XDP), "open", "vb", str(PORT), *unprivileged(), str(program), "stdin"]
    )
    site.until_said("opener1", "ready")
    run("python3", "-c", ASK, 200, PORT, inside="a")
    opener.wait(WAIT_S)
    check("result received 200 drops 0 transmitted 200 drops 0" in site.said("opener1"), site.said("opener1"))
    check("prog/xdp" not in run("ip", "link", "show", "vb", inside="b"), "the program is still there")


def xdp_is_killed(site: Site) -> None:
    """Killed under load: the program goes with it, the kernel has all packets again, and the next one takes its place."""
    veth(site)
    for number in range(2):
        name = f"echo{number + 1}"
        echo = site.spawn(name, ["ip", "netns", "exec", "b", str(XDP), "echo", "vb", str(PORT)])
        site.until(lambda name=name: "ready" in site.said(name) or "busy" in site.said(name), f"{name} is ready")
        run("python3", "-c", ASK, 50, PORT, inside="a")
        echo.kill()
        echo.wait()
        check("prog/xdp" not in run("ip", "link", "show", "vb", inside="b"), "the program is still there")
        time.sleep(0.1)
    check(ping("-c", 3, "-i", 0.01) == (3, 3), "pings were lost")


def cases() -> dict[str, Callable[[Site], None]]:
    """Each by its name."""
    return {
        "ring: exchanges, between namespaces": exchanges,
        "ring: arrives, copied": lambda site: arrives(site, 1400, "send"),
        "ring: arrives, written in place": lambda site: arrives(site, 1400, "lend"),
        "ring: either side is killed": is_killed,
        "af_xdp: takes a port on four queues, ping and TCP beside it": takes,
        "af_xdp: handed over to a process without capabilities": hands_over,
        "af_xdp: is killed": xdp_is_killed,
    }
