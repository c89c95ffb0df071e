"""`millrace switch` between programs that it does not know."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rig import BUILT, Skipped, Wrong, check

WAIT_S = 20.0
COUNT = 50_000


class Site:
    """A switch that runs, and the programs at its ports; all end with the case."""

    def __init__(self, stack: ExitStack, place: Path, config: str) -> None:
        self.stack = stack
        self.place = place
        (place / "switch.toml").write_text(config)
        command = [str(BUILT / "millrace"), "switch", "run", "--config", str(place / "switch.toml"), *self.control()]
        self.switch = self.spawn("switch", command)
        self.until(lambda: "the switch works" in self.said("switch"), "the switch works")

    def control(self) -> list[str]:
        """Where the switch is asked."""
        return ["--control", str(self.place / "control.sock")]

    def spawn(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program, with its output in a file of that name."""
        with open(self.place / name, "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def said(self, name: str) -> str:
        """What a program has said so far."""
        return (self.place / name).read_text(errors="replace")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                names = [log.name for log in self.place.iterdir() if log.is_file() and not log.suffix]
                logs = "\n".join(f"--- {name}\n{self.said(name)[-1500:]}" for name in names)
                raise Wrong(f"in vain: until {what}\n{logs}")
            time.sleep(0.02)

    def ask(self, *words: str) -> Any:
        """What the switch answers to a command."""
        command = [str(BUILT / "millrace"), "switch", *self.control(), *words, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    def ports(self) -> dict[str, Any]:
        """What was counted of each port."""
        return {port["name"]: port for port in self.ask("show")["ports"]}

    def testpmd(self, name: str, socket: str, mode: str) -> subprocess.Popen[bytes]:
        """DPDK's program as the client of a port."""
        if shutil.which("dpdk-testpmd") is None:
            raise Skipped("there is no dpdk-testpmd here (Debian's package is dpdk-dev)")
        if (os.cpu_count() or 1) < 2:
            raise Skipped("dpdk-testpmd needs two processors")
        device = f"net_memif0,role=client,socket={self.place / socket},socket-abstract=no"
        argv = [
            "dpdk-testpmd", "-l", "0,1", "--no-huge", "-m", "192", "--no-pci", "--no-telemetry", "--single-file-segments",
            f"--file-prefix={name}", f"--vdev={device}", "--", "--total-num-mbufs=16384", f"--forward-mode={mode}", "--no-flush-rx",
            "--stats-period=60",
        ]  # fmt: skip
        process = self.spawn(name, argv)
        # Not only until the port says so: DPDK empties the rings when it hears that it is connected, and loses what is there already.
        self.until(lambda: "io packet forwarding packets/burst" in self.said(name), f"{name} forwards")
        return process

    def ours(self, socket: str, *words: str) -> subprocess.Popen[bytes]:
        """Our side of a memif, as the client of a port."""
        return self.spawn("ours", [str(BUILT / "examples/memif"), "client", str(self.place / socket), *words])

    def exchanged(self) -> None:
        """Waits until all came back, unchanged and in order."""
        self.until(lambda: "result" in self.said("ours"), "all was exchanged")
        found = re.search(r"result wrong=(\d+) .*received (\d+)", self.said("ours"))
        check(found is not None and found[1] == "0" and found[2] == str(COUNT), self.said("ours")[-500:])


def memif(place: Path, name: str) -> str:
    """A port that listens."""
    return f'[[port]]\nname = "{name}"\nmemif.path = "{place / name}.sock"\n'


def through(stack: ExitStack, place: Path) -> None:
    """Packets go through the switch to testpmd, which returns them, and back: all of them, unchanged and in order."""
    flows = '[[flow]]\nname = "there"\nin = "a"\nout = ["b"]\n[[flow]]\nname = "back"\nin = "b"\nout = ["a"]\n'
    site = Site(stack, place, memif(place, "a") + memif(place, "b") + flows)
    site.testpmd("testpmd", "b.sock", "io")
    site.ours("a.sock", "exchange", str(COUNT))
    site.exchanged()
    ports = site.ports()
    for name in ("a", "b"):
        counters = ports[name]["counters"]
        check(counters["received_packets"] == counters["transmitted_packets"] == COUNT and not counters["drops"], f"{ports[name]}")
    hits = {flow["name"]: flow["packets"] for flow in site.ask("flow", "list")["flows"]}
    check(hits == {"there": COUNT, "back": COUNT}, f"{hits}")
    site.switch.send_signal(signal.SIGTERM)
    check(site.switch.wait(WAIT_S) == 0, "the switch did not stop cleanly")
    left = [path.name for path in place.iterdir() if path.is_socket() or path.suffix in (".sock", ".lock")]
    check(not left, f"left behind: {left}")


def changes(stack: ExitStack, place: Path) -> None:
    """testpmd's stations are learnt; ports, flows and mirrors come and go while packets pass; testpmd is killed and comes back."""
    site = Site(stack, place, memif(place, "a") + memif(place, "b"))
    theirs = site.testpmd("testpmd1", "b.sock", "io")
    site.ask("flow", "add", "there", "in=a", "out=b")
    site.ask("flow", "add", "back", "in=b", "out=a")
    site.ours("a.sock", "exchange", str(COUNT))
    for turn in range(5):
        site.ask("add-port", "c", "memif", f"path={place / 'c.sock'}", "vlan.access=5")
        site.ask("mirror", "add", "look", str(place / "look.pcapng"), "ports=b")
        site.ask("flow", "add", f"more{turn}", "priority=500", "ip_proto=tcp", f"dst_port={turn}", "drop")
        site.ask("mirror", "del", "look")
        site.ask("del-port", "c")
    site.exchanged()
    theirs.kill()
    theirs.wait()
    site.until(lambda: site.ports()["b"]["state"].startswith("connecting: the peer has gone"), "testpmd is missed")
    site.testpmd("testpmd2", "b.sock", "io")
    (place / "ours").unlink()
    site.ours("a.sock", "exchange", str(COUNT))
    site.exchanged()
